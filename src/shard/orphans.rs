//! Handoffs that nobody fetched: until its lease ends the KV stays on the engine that made it, so its tokens stay on that engine's line.
//!
//! Owned by one shard. Invariants: leases end in the order in which they were added (one lease length for all, and time goes forward);
//! at most [`ORPHANS_MAX`] are held.

use std::collections::VecDeque;

use super::board::{Board, KvHold};
use crate::base::time::Instant;
use crate::base::units::EngineId;

/// Holds, and when each ends.
#[derive(Debug, Default)]
pub struct Orphans(VecDeque<(Instant, KvHold)>);

/// More than that are not held. 500 a second for 30 s.
const ORPHANS_MAX: usize = 16_384;

impl Orphans {
    pub fn add(&mut self, board: &Board, producer: EngineId, tokens: u64, until: Instant) {
        if self.0.len() < ORPHANS_MAX {
            self.0.push_back((until, board.hold_kv(producer, tokens)));
        }
    }

    /// Lets go of those whose lease has ended.
    pub fn end_leases(&mut self, board: &Board, now: Instant) {
        while self.0.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, hold)) = self.0.pop_front() {
                board.release_kv(hold);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves R-LEG-8
    #[test]
    fn tokens_are_held_until_each_lease_ends() {
        let board = Board::new(2);
        let mut orphans = Orphans::default();
        let at = Instant::from_nanos;
        let producer = EngineId(1);
        orphans.add(&board, producer, 100, at(10));
        orphans.add(&board, producer, 7, at(20));
        for (now, held) in [(9, 107), (10, 7), (19, 7), (25, 0)] {
            orphans.end_leases(&board, at(now));
            assert_eq!(board.line(producer).outstanding_tokens(), held, "at {now}");
        }
        assert_eq!(board.line(EngineId(0)).outstanding_tokens(), 0);
        for _ in 0..ORPHANS_MAX + 5 {
            orphans.add(&board, producer, 1, at(30));
        }
        assert_eq!(
            board.line(producer).outstanding_tokens(),
            ORPHANS_MAX as u64
        );
        orphans.end_leases(&board, at(30));
        assert_eq!(board.line(producer).outstanding_tokens(), 0);
    }
}
