//! The real clock: CLOCK_MONOTONIC, counted from the start of the process. The only reader of the OS clock on the
//! data plane; callers read it once per wake-up and hand `now` on.

use std::sync::OnceLock;
use std::time;

use crate::base::time::{Clock, Instant};

/// All copies count from the same moment, so instants of different shards compare.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    zero: time::Instant,
}

impl MonotonicClock {
    /// The first call in the process sets zero: make it early in `main`.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Self {
        static ZERO: OnceLock<time::Instant> = OnceLock::new();
        MonotonicClock {
            zero: *ZERO.get_or_init(time::Instant::now),
        }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        let passed = self.zero.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

/// Wall-clock seconds, for the `date` field only: nothing is ever timed with it.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn unix_seconds() -> u64 {
    let since = time::SystemTime::now().duration_since(time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Wall-clock microseconds, for moments in the journal: people look there for what happened when.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn unix_micros() -> u64 {
    let since = time::SystemTime::now().duration_since(time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

impl Default for MonotonicClock {
    fn default() -> Self {
        MonotonicClock::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_goes_back_and_is_shared() {
        let (a, b) = (MonotonicClock::new(), MonotonicClock::new());
        let mut last = a.now();
        for i in 0..1000 {
            let now = if i % 2 == 0 { b.now() } else { a.now() };
            assert!(now >= last);
            last = now;
        }
        let other = std::thread::spawn(move || MonotonicClock::new().now()).join();
        assert!(other.expect("no panic") >= last);
    }
}
