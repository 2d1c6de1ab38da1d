//! The retry budget that all shards share. Invariant: `0 ≤ left ≤ most`.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

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
