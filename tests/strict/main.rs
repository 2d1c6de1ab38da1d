//! How strictly both sides read HTTP/1.1: a corpus of cases, one row each, told by what must come of it (`rows`).
//!
//! ```text
//! client/*.txt   what a client may send        each row in every cut on the machine, and on sockets with every driver
//! engine/*.txt   what an engine may answer     the same, with what the client must see of it
//! notes.txt      why other readers differ      checked by scripts/strict against nginx, llhttp and h11
//! ```

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "clients and engines are threads of the operating system, and a test has its own clock"
)]

#[expect(
    dead_code,
    reason = "shared with the end-to-end tests, which use all of it"
)]
#[path = "../e2e/client.rs"]
mod client;

#[expect(
    dead_code,
    reason = "shared with the end-to-end tests, which use all of it"
)]
#[path = "../e2e/engine.rs"]
mod engine;

#[expect(
    dead_code,
    reason = "shared with the end-to-end tests, which use all of it"
)]
#[path = "../e2e/front.rs"]
mod front;

#[expect(
    dead_code,
    reason = "shared with the end-to-end tests, which use all of it"
)]
#[path = "../e2e/world.rs"]
mod world;

mod answers;
mod client_side;
mod early;
mod engine_side;
mod machine;
mod rows;
