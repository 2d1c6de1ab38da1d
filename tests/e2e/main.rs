//! The running binary, end to end on loopback: scripted engines behind it, raw sockets in front of it.
//!
//! Every test runs on every driver, with one shard and with two. No port is fixed and no wait is blind; `world` says how.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "clients and engines are threads of the operating system, and a test has its own clock"
)]

#[path = "../recorded/mod.rs"]
mod recorded;

mod beside;
mod breaker;
mod cancel;
mod cases;
mod client;
mod engine;
mod faults;
mod fixtures;
mod front;
mod generation;
mod http;
mod journal;
mod keys;
mod learn;
mod legs;
mod lifecycle;
mod queue;
mod reload;
mod serve;
mod spread;
mod states;
mod tls;
mod world;
