//! The running binary among hostile peers: engines that die, freeze and lie under load, clients that leave, stall and swarm, and a
//! machine that runs out of what it has. Every answer is checked byte for byte against the one right answer to its prompt.
//!
//! The small forms run here, on every driver; `scripts/isolation`, `scripts/bounds` and `scripts/soak` run the same for longer.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "clients and engines are threads of the operating system, and a test has its own clock"
)]

#[allow(dead_code, reason = "shared with the tests end to end")]
#[path = "../e2e/client.rs"]
mod client;
#[allow(dead_code, reason = "shared with the tests end to end")]
#[path = "../e2e/engine.rs"]
mod engine;
#[allow(dead_code, reason = "shared with the tests end to end")]
#[path = "../e2e/front.rs"]
mod front;
#[allow(dead_code, reason = "shared with the tests end to end")]
#[path = "../e2e/world.rs"]
mod world;

mod ask;
mod clock;
mod crowd;
mod echo;
mod faults;
mod isolation;
mod machine;
mod memory;
mod process;
mod soak;
