//! Permits that all shards share: retention and seats ([`Gate`]), and the retry budget ([`Credits`]).
//!
//! A gate is one atomic count and never passes its limit in any interleaving; a permit is refused only when the limit is
//! reached at that instant. `0 ≤ held ≤ limit`, and 0 at rest.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// An exact bound on how many permits are out.
#[derive(Debug)]
pub struct Gate {
    limit: u64,
    held: CachePadded<AtomicU64>,
}

/// One permit. It has to go back through [`Gate::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a permit has to be released"]
pub struct Permit(());

impl Gate {
    pub fn new(limit: usize) -> Self {
        Gate {
            limit: limit as u64,
            held: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// A permit, unless as many as the limit are out.
    pub fn acquire(&self) -> Option<Permit> {
        let mut held = self.held.load(Ordering::Relaxed);
        loop {
            if held >= self.limit {
                return None;
            }
            match self.held.compare_exchange_weak(
                held,
                held + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Permit(())),
                Err(now) => held = now,
            }
        }
    }

    pub fn release(&self, permit: Permit) {
        let Permit(()) = permit;
        let before = self.held.fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a permit was released twice");
    }

    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// Retry credits, kept in thousandths so that a served request may earn a part of one.
#[derive(Debug)]
pub struct Credits {
    most: u64,
    left: CachePadded<AtomicU64>,
}

const CREDIT: f64 = 1_000.0;

impl Credits {
    /// Starts full.
    pub fn new(most: f64) -> Self {
        let most = (most * CREDIT) as u64;
        Credits {
            most,
            left: CachePadded::new(AtomicU64::new(most)),
        }
    }

    /// Takes one whole credit, or nothing.
    pub fn take(&self) -> bool {
        let take = |left: u64| left.checked_sub(CREDIT as u64);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    /// Gives a part of a credit back, up to the most.
    pub fn earn(&self, part: f64) {
        // Full is the common case: one read, no write.
        if self.left.load(Ordering::Relaxed) >= self.most {
            return;
        }
        let part = (part * CREDIT) as u64;
        let add = |left: u64| Some((left + part).min(self.most));
        let _ = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Credits left, in whole and parts.
    pub fn left(&self) -> f64 {
        self.left.load(Ordering::Relaxed) as f64 / CREDIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves R-ADM-1
    #[test]
    fn a_gate_is_exact_under_contention() {
        let gate = Gate::new(3);
        let most = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..5_000 {
                        if let Some(permit) = gate.acquire() {
                            most.fetch_max(gate.held(), Ordering::Relaxed);
                            gate.release(permit);
                        }
                    }
                });
            }
        });
        assert!(most.load(Ordering::Relaxed) <= 3);
        assert_eq!(gate.held(), 0);
    }

    #[test]
    fn a_gate_refuses_at_its_limit_only() {
        let gate = Gate::new(1);
        let permit = gate.acquire().unwrap();
        assert!(gate.acquire().is_none());
        gate.release(permit);
        let permit = gate.acquire().unwrap();
        gate.release(permit);
        assert!(Gate::new(0).acquire().is_none());
    }

    #[test]
    fn credits_are_spent_whole_and_earned_in_parts() {
        let credits = Credits::new(1.0);
        assert!(credits.take());
        assert!(!credits.take());
        for _ in 0..9 {
            credits.earn(0.1);
        }
        assert!(!credits.take());
        credits.earn(0.1);
        assert!(credits.take());
        for _ in 0..100 {
            credits.earn(0.5);
        }
        assert_eq!(credits.left(), 1.0);
    }
}
