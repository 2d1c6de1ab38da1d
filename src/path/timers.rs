//! The deadlines of one connection: an enum and a table. The runtime arms one timer for the earliest.

use crate::base::time::Instant;

/// Whose deadline it is. In one wake-up they are served in this order: the request's deadline wins over any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The request's own deadline.
    Deadline,
    /// The client's side: keep-alive idle, slow head, slow body, discarding, lingering.
    Client,
    /// A leg's current bound: connect, count, prefill, first token, gap between tokens, draining.
    Leg0,
    Leg1,
    /// The pause before another attempt, or the bound of a wait in a line.
    Wait,
    /// The client does not take what is written to it.
    Stall,
    /// Nothing was sent to a waiting client for a while.
    KeepAlive,
    /// What waits is priced again.
    Price,
}

/// One deadline each; [`Instant::FAR`] when unset.
#[derive(Debug)]
pub struct Timers([Instant; Timer::ALL.len()]);

impl Timer {
    pub const ALL: [Timer; 8] = [
        Timer::Deadline,
        Timer::Client,
        Timer::Leg0,
        Timer::Leg1,
        Timer::Wait,
        Timer::Stall,
        Timer::KeepAlive,
        Timer::Price,
    ];

    pub fn leg(slot: usize) -> Timer {
        if slot == 0 { Timer::Leg0 } else { Timer::Leg1 }
    }
}

impl Default for Timers {
    fn default() -> Self {
        Timers([Instant::FAR; Timer::ALL.len()])
    }
}

impl Timers {
    pub fn set(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize] = at;
    }

    pub fn clear(&mut self, timer: Timer) {
        self.set(timer, Instant::FAR);
    }

    /// When `timer` is due.
    pub fn at(&self, timer: Timer) -> Instant {
        self.0[timer as usize]
    }

    /// When the next one is due.
    pub fn next(&self) -> Instant {
        self.0.iter().copied().min().unwrap_or(Instant::FAR)
    }

    /// Takes the first one that is due.
    pub fn expired(&mut self, now: Instant) -> Option<Timer> {
        let due = Timer::ALL
            .into_iter()
            .find(|t| self.0[*t as usize] <= now)?;
        self.clear(due);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves R-ADM-8
    #[test]
    fn the_request_deadline_wins_in_one_wake_up() {
        let at = Instant::from_nanos(5);
        let mut timers = Timers::default();
        assert_eq!(timers.next(), Instant::FAR);
        for timer in [Timer::Stall, Timer::Leg0, Timer::Wait, Timer::Deadline] {
            timers.set(timer, at);
        }
        assert_eq!(timers.next(), at);
        assert_eq!(timers.expired(Instant::from_nanos(4)), None);
        let order: Vec<_> = std::iter::from_fn(|| timers.expired(at)).collect();
        assert_eq!(
            order,
            [Timer::Deadline, Timer::Leg0, Timer::Wait, Timer::Stall]
        );
    }
}
