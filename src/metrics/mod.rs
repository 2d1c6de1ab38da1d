//! What a router counts and how it says it: the closed outcomes, one ledger and one set of histograms per shard, the
//! table of metric names, and the two texts made of them (Prometheus, `/narwhal/state`) beside the answers of
//! `/health`, `/ready` and `/v1/models`. May use base, serde_json and crossbeam-utils; knows no clock, socket or path.

pub mod outcome;

pub mod ledger;

pub mod histogram;

pub mod journal;

pub mod standing;

pub mod names;

pub mod picture;

pub mod text;

pub mod state;
