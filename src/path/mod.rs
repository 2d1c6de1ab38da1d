//! One request, stage by stage. The files are the stages, in reading order; one word per stage is the file, the [`Stage`] variant,
//! the metric label and the name in an error.
//!
//! ```text
//! accept → parse → admit → place → prefill → decode → relay | assemble → account → close
//! ```
//!
//! May use `base`, `wire`, `fleet`, `metrics` and the shard it is handed. Reads no clock: every entry point takes `now`.

pub mod accept;

pub mod parse;

pub mod admit;

pub mod place;

pub mod prefill;

pub mod decode;

mod fields;

pub mod relay;

pub mod assemble;

pub mod account;

mod tail;

pub mod close;

// What the stages share.

pub mod exchange;

pub mod fault;

pub mod answer;

pub mod routes;

mod ask;

pub mod leg;

pub mod legs;

pub mod out;

pub mod timers;

pub mod keep_alive;

pub mod wait;

pub mod predict;

pub mod teach;

pub mod affinity;

pub mod journal;

#[doc(hidden)]
pub mod fuzzing;

#[doc(hidden)]
pub mod peek;

pub use crate::metrics::outcome::Stage;
