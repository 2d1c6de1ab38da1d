//! Time as an argument: a point in nanoseconds since the process (or the simulation) began.
//! Nothing here reads a clock; `runtime::clock` does, once per wake-up.

use std::ops::Add;
use std::time::Duration;

/// Nanoseconds since start. Saturates instead of wrapping (584 years).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    pub const ZERO: Instant = Instant(0);
    pub const FAR: Instant = Instant(u64::MAX);

    pub const fn from_nanos(ns: u64) -> Self {
        Instant(ns)
    }

    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Zero when `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, d: Duration) -> Instant {
        let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(ns))
    }
}

/// The one way to ask what time it is.
pub trait Clock {
    fn now(&self) -> Instant;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturates_both_ways() {
        assert_eq!(Instant::FAR + Duration::from_secs(1), Instant::FAR);
        assert_eq!(Instant::ZERO.since(Instant::FAR), Duration::ZERO);
        let t = Instant::from_nanos(5) + Duration::from_nanos(7);
        assert_eq!(t.nanos(), 12);
        assert_eq!(t.since(Instant::from_nanos(2)), Duration::from_nanos(10));
    }
}
