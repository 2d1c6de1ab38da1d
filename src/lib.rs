//! Narwhal: a thread-per-core router in front of LLM inference engines.
//!
//! The rooms, in reading order. Everything above the line is pure: no socket, no OS clock, no thread;
//! `cargo test --no-default-features` builds and tests it alone. Below the line are the few rooms that do I/O.
//!
//! | room | holds |
//! |---|---|
//! | [`base`] | words that all rooms share: ids, time, chance, limits |
//! | [`metrics`] | names, ledgers, histograms and their text |
//! | [`config`] | the fleet file as written, and as checked |
//! | [`wire`] | bytes to messages and back: HTTP/1.1, event streams, JSON, the OpenAI fields, engine dialects |
//! | [`fleet`] | what a shard believes about engines; policy as plain functions |
//! | [`path`] | one request, stage by stage: accept, parse, admit, place, prefill, decode, relay or assemble, account, close |
//! | [`shard`] | all that one core owns, and the kinds of memory that shards share |
//! | [`stub`] | the simulated engine |
//! | *the line* | |
//! | [`runtime`] | sockets, threads and the OS clock of the data plane |
//! | [`ask`] | engines, asked as a router would, from outside of the data path |
//! | [`control`] | the control thread: probes, names, admin HTTP; the thread that writes the journal |
//! | [`cli`] | the commands; the only room that prints or exits |
//!
//! Lexicon: *shard* (one pinned thread and all it owns), *connection*, *exchange* (one client request and its
//! answer), *leg* (one engine request), *attempt* (one prefill + decode pair), *fleet*, *engine* (`iid`), *seat*
//! (right to be in flight), *placement*, *handoff* (KV transfer descriptor), *token-bearing* event (some choice carries
//! a nonempty valid `token_ids`; on legs without ids, an event with output).

#![deny(unsafe_code)]

pub mod base;

pub mod metrics;

pub mod config;

pub mod wire;

pub mod fleet;

pub mod path;

pub mod shard;

pub mod stub;

// ──────────── the line: below needs feature `runtime` ────────────

#[cfg(feature = "runtime")]
pub mod runtime;

#[cfg(feature = "runtime")]
pub mod ask;

#[cfg(feature = "runtime")]
pub mod control;

#[cfg(feature = "runtime")]
pub mod cli;
