//! Handoffs that nobody fetched: until its lease ends the KV stays on the engine that made it, so its tokens stay on that engine's line.
//!
//! Owned by one shard. A handoff is given up later than it was made, so leases do not end in the order in which they come here.
//! Invariant: at most [`ORPHANS_MAX`] are held.

use std::collections::BTreeMap;

use super::board::{Board, KvHold};
use crate::base::time::Instant;
use crate::base::units::EngineId;

/// Holds by the end of their lease, and a number that tells equal ones apart.
#[derive(Debug, Default)]
pub struct Orphans {
    held: BTreeMap<(Instant, u64), KvHold>,
    added: u64,
}

/// More than that are not held. 500 a second for 30 s.
const ORPHANS_MAX: usize = 16_384;

impl Orphans {
    pub fn add(&mut self, board: &Board, producer: EngineId, tokens: u64, until: Instant) {
        if self.held.len() < ORPHANS_MAX {
            self.added += 1;
            let hold = board.hold_kv(producer, tokens);
            self.held.insert((until, self.added), hold);
        }
    }

    /// Lets go of those whose lease has ended.
    pub fn end_leases(&mut self, board: &Board, now: Instant) {
        while let Some(first) = self.held.first_entry() {
            if first.key().0 > now {
                return;
            }
            board.release_kv(first.remove());
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
        // Given up last, made first.
        orphans.add(&board, producer, 7, at(20));
        orphans.add(&board, producer, 100, at(10));
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
