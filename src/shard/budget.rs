//! The retry budget that all shards share. Invariant: `0 ≤ left ≤ most`.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// Retry credits, kept in thousandths so that a served request may earn a part of one.
#[derive(Debug)]
pub struct Credits {
    most: CachePadded<AtomicU64>,
    left: CachePadded<AtomicU64>,
}

const CREDIT: f64 = 1_000.0;

impl Credits {
    /// Starts full.
    pub fn new(most: f64) -> Self {
        let most = (most * CREDIT) as u64;
        Credits {
            most: CachePadded::new(AtomicU64::new(most)),
            left: CachePadded::new(AtomicU64::new(most)),
        }
    }

    /// Another most: what was spent stays spent.
    pub fn set_most(&self, most: f64) {
        let most = (most * CREDIT) as u64;
        let before = self.most.swap(most, Ordering::Relaxed);
        let follow = |left: u64| Some(left.saturating_add(most).saturating_sub(before).min(most));
        let _ = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, follow);
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
        let most = self.most.load(Ordering::Relaxed);
        if self.left.load(Ordering::Relaxed) >= most {
            return;
        }
        let part = (part * CREDIT) as u64;
        let add = |left: u64| Some((left + part).min(most));
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

    // proves R-CFG-7
    #[test]
    fn another_budget_leaves_what_was_spent_spent() {
        let credits = Credits::new(3.0);
        assert!(credits.take());
        // Rows: the most from now on, what is left then.
        for (most, left) in [(5.0, 4.0), (2.0, 1.0), (0.5, 0.0), (0.0, 0.0), (10.0, 10.0)] {
            credits.set_most(most);
            assert_eq!(credits.left(), left, "{most}");
        }
    }
}
