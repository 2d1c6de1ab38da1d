//! The atomics of [`gate`](super::gate), by one name: its model tests put others in their place.

pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The slow path's lock.
#[expect(
    clippy::disallowed_types,
    reason = "who waits for a seat is known to all shards, and only a request that waits or is refused comes here"
)]
pub type Lock<T> = std::sync::Mutex<T>;
