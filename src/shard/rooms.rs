//! Where the two legs of an SGLang attempt meet: a number that both engines are told.
//!
//! Random, so that routers which share engines do not meet in one room; a shard writes its own number into the highest bits and knows the
//! live ones, so two attempts of one router never do. SGLang spreads rooms over its data-parallel ranks by remainder, which the low
//! bits keep random. Invariant: every room is below 2^63 and held by at most one attempt.

use std::collections::BTreeSet;

use crate::base::prng::Prng;
use crate::base::units::ShardId;

/// The live rooms of one shard.
#[derive(Debug)]
pub struct Rooms {
    /// This shard's number, in place.
    shard: u64,
    live: BTreeSet<u64>,
}

/// Bits below the shard's.
const RANDOM_BITS: u32 = 53;
const SHARD_MASK: u64 = (1 << (63 - RANDOM_BITS)) - 1;

impl Rooms {
    pub fn new(shard: ShardId) -> Self {
        Rooms {
            shard: (shard.index() as u64 & SHARD_MASK) << RANDOM_BITS,
            live: BTreeSet::new(),
        }
    }

    /// A room that nobody is in.
    pub fn take(&mut self, prng: &mut Prng) -> u64 {
        loop {
            let room = self.shard | prng.u64() >> (64 - RANDOM_BITS);
            if self.live.insert(room) {
                return room;
            }
        }
    }

    pub fn give(&mut self, room: u64) {
        let was_live = self.live.remove(&room);
        debug_assert!(was_live, "a room is given back once");
    }

    pub fn live(&self) -> usize {
        self.live.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves R-LEG-5
    #[test]
    fn rooms_are_unique_among_the_live_of_all_shards() {
        let mut all = BTreeSet::new();
        let mut shards: Vec<_> = (0..4).map(|n| Rooms::new(ShardId(n))).collect();
        for rooms in &mut shards {
            // The same chance for all: only the shard's number tells them apart.
            let mut prng = Prng::new(7);
            for _ in 0..1_000 {
                let room = rooms.take(&mut prng);
                assert!(room < 1 << 63);
                assert!(all.insert(room), "{room} twice");
            }
            // Drawn again from the same seed: all taken, so others come.
            let mut again = Prng::new(7);
            assert!(all.insert(rooms.take(&mut again)));
        }
        let first = *all.first().expect("rooms");
        let live = shards[0].live();
        shards[0].give(first);
        assert_eq!(shards[0].live(), live - 1);
    }
}
