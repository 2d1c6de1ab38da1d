//! How many client connections each shard has open, and where a new one belongs.
//!
//! The kernel spreads connections over the shards' listeners by a hash, and streams are long, so a few connections may pile up on one
//! shard. Where a new one goes is settled the moment it is accepted and counted there at once, before it has travelled, so that a burst
//! on many shards does not all go to the same one. One word a shard, each on cache lines of its own.
//!
//! Invariants: a connection is counted by exactly one shard from its [`Connections::arrive`] to its [`Connections::leave`]; a shard that
//! has closed is given none.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// See the head of this file.
#[derive(Debug)]
pub struct Connections {
    shards: Box<[Line]>,
}

#[derive(Debug)]
struct Line {
    /// Open connections, and [`CLOSED`].
    word: CachePadded<AtomicU64>,
    /// The memory node of the shard's core; shards without one are a group of their own.
    node: Option<usize>,
}

/// The shard accepts no more. In the word itself, so that nobody counts a connection there who has not seen it.
const CLOSED: u64 = 1 << 63;

/// Shards that settle at the same time disturb each other; who is disturbed so often keeps what came to it.
const TRIES: usize = 16;

/// Where a connection belongs that came to `own`: itself, while with it it has at most one more than the mean of its group, else the
/// least loaded of them, the first one behind `own` where several are. `loads` are the group's counts without the new one, `own`'s
/// among them. Returns the shard and its count.
pub fn choose(own: usize, loads: impl Iterator<Item = (usize, u64)>) -> Option<(usize, u64)> {
    let (mut total, mut shards, mut here) = (0, 0, None);
    let mut least: Option<(u64, bool, usize)> = None;
    for (shard, load) in loads {
        total += load;
        shards += 1;
        if shard == own {
            here = Some(load);
        }
        let row = (load, shard <= own, shard);
        least = Some(least.map_or(row, |least| least.min(row)));
    }
    let here = here?;
    // here + 1 > (total + 1) / shards + 1
    match least {
        Some((load, _, shard)) if here * shards > total + 1 => Some((shard, load)),
        _ => Some((own, here)),
    }
}

impl Connections {
    pub fn new(shards: usize) -> Self {
        let line = |_| Line {
            word: CachePadded::new(AtomicU64::new(0)),
            node: None,
        };
        Connections {
            shards: (0..shards).map(line).collect(),
        }
    }

    /// Connections stay within their node; `nodes` are the shards' own.
    pub fn on_nodes(mut self, nodes: impl IntoIterator<Item = Option<usize>>) -> Self {
        for (line, node) in self.shards.iter_mut().zip(nodes) {
            line.node = node;
        }
        self
    }

    /// Counts a connection that came to `own` where it belongs, and says where that is.
    pub fn arrive(&self, own: usize) -> usize {
        for _ in 0..TRIES {
            let group = self.group(own);
            let Some((to, seen)) = choose(own, group) else {
                break;
            };
            let word = &self.shards[to].word;
            let counted =
                word.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Relaxed);
            if counted.is_ok() {
                return to;
            }
        }
        self.shards[own].word.fetch_add(1, Ordering::AcqRel);
        own
    }

    /// A connection that was to go to `to` stays with `own` after all.
    pub fn stay(&self, own: usize, to: usize) {
        // In this order, so that it is counted all the time.
        self.shards[own].word.fetch_add(1, Ordering::AcqRel);
        self.leave(to);
    }

    /// A connection of `shard` is closed.
    pub fn leave(&self, shard: usize) {
        let before = self.shards[shard].word.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before & !CLOSED > 0, "a connection leaves once");
    }

    /// `shard` takes none of the others any more.
    pub fn close(&self, shard: usize) {
        self.shards[shard].word.fetch_or(CLOSED, Ordering::AcqRel);
    }

    pub fn of(&self, shard: usize) -> u64 {
        self.shards[shard].word.load(Ordering::Acquire) & !CLOSED
    }

    /// Whether none is open or on its way from one shard to another. Looks twice: one that stays goes from a cell not yet looked at to
    /// one that was.
    pub fn are_none(&self) -> bool {
        let mut all = (0..self.shards.len()).chain(0..self.shards.len());
        all.all(|shard| self.of(shard) == 0)
    }

    /// The open shards of `own`'s node. None of them is `own` once that has closed.
    fn group(&self, own: usize) -> impl Iterator<Item = (usize, u64)> {
        let node = self.shards[own].node;
        let lines = self.shards.iter().enumerate();
        lines.filter_map(move |(shard, line)| {
            let word = line.word.load(Ordering::Acquire);
            (line.node == node && word & CLOSED == 0).then_some((shard, word))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::base::prng::Prng;

    fn chosen(own: usize, loads: &[u64]) -> usize {
        let rows = loads.iter().copied().enumerate();
        choose(own, rows).expect("own is among them").0
    }

    // proves R-SHD-4
    #[test]
    fn it_moves_when_own_exceeds_the_mean_by_more_than_one() {
        for (name, own, loads, expected) in [
            ("alone", 0, &[7][..], 0),
            ("the first", 0, &[0, 0, 0, 0], 0),
            ("one more than the mean", 0, &[1, 1], 0),
            ("exactly one more: 2 of 2 on 2", 0, &[1, 0], 0),
            ("3 of 3 on 2", 0, &[2, 0], 1),
            ("2 of 2 on 3", 0, &[1, 0, 0], 1),
            ("the first behind own", 1, &[0, 3, 0, 0], 2),
            ("and around", 3, &[0, 0, 0, 3], 0),
            ("the least of all", 2, &[3, 4, 9, 1, 2], 3),
            ("5 of 32 on 8", 0, &[4, 4, 4, 4, 4, 4, 4, 3], 0),
            ("6 of 32 on 8", 0, &[5, 4, 4, 4, 4, 4, 4, 2], 7),
        ] {
            assert_eq!(chosen(own, loads), expected, "{name}");
        }
        assert_eq!(choose(3, [(0, 1), (1, 1)].into_iter()), None);
        assert_eq!(choose(0, std::iter::empty()), None);
    }

    proptest! {
        // proves R-SHD-4
        #[test]
        fn the_rule_in_exact_fractions(loads in proptest::collection::vec(0u64..50, 1..20), at in 0usize..20) {
            let own = at % loads.len();
            let to = chosen(own, &loads);
            let (n, total) = (loads.len() as f64, loads.iter().sum::<u64>() as f64 + 1.0);
            let exceeds = (loads[own] + 1) as f64 - total / n > 1.0 + 1e-9;
            prop_assert_eq!(to != own, exceeds);
            if exceeds {
                prop_assert_eq!(Some(&loads[to]), loads.iter().min());
                prop_assert!(loads[to] < loads[own]);
            }
        }

        /// However the kernel spreads them.
        // proves R-SHD-4
        #[test]
        fn kept_connections_never_pile_up(own in proptest::collection::vec(0usize..8, 32), shards in 1usize..=8) {
            let all = Connections::new(shards);
            for (i, own) in own.iter().enumerate() {
                all.arrive(own % shards);
                let most = (0..shards).map(|shard| all.of(shard)).max().unwrap_or(0) as usize;
                prop_assert!(shards * (most - 1) <= i + 1, "at most one more than the mean");
            }
            let most = (0..shards).map(|shard| all.of(shard)).max().unwrap_or(0) as usize;
            prop_assert!(most * shards <= 2 * 32);
        }

        /// Against plain numbers: every connection is somewhere, closed shards and other nodes get none.
        // proves R-SHD-4, R-SHD-2
        #[test]
        fn every_connection_is_counted_once(steps in proptest::collection::vec((0u8..8, 0usize..6), 0..200)) {
            let node = |shard: usize| [None, Some(0), Some(0), Some(1), Some(1), Some(1)][shard];
            let all = Connections::new(6).on_nodes((0..6).map(node));
            let (mut counts, mut closed) = ([0u64; 6], [false; 6]);
            for (step, shard) in steps {
                match step {
                    0..4 => {
                        let to = all.arrive(shard);
                        prop_assert_eq!(node(to), node(shard));
                        prop_assert!(to == shard || !closed[to] && !closed[shard]);
                        counts[to] += 1;
                        if step == 3 && to != shard {
                            all.stay(shard, to);
                            counts[to] -= 1;
                            counts[shard] += 1;
                        }
                    }
                    4..7 if counts[shard] > 0 => {
                        all.leave(shard);
                        counts[shard] -= 1;
                    }
                    7 => {
                        all.close(shard);
                        closed[shard] = true;
                    }
                    _ => {}
                }
                for (shard, count) in counts.iter().enumerate() {
                    prop_assert_eq!(all.of(shard), *count);
                }
                prop_assert_eq!(all.are_none(), counts == [0; 6]);
            }
        }
    }

    // proves R-SHD-4
    #[test]
    fn shards_that_settle_at_once_lose_none() {
        const EACH: usize = 5_000;
        let all = Arc::new(Connections::new(4));
        let shard = |own: usize| {
            let all = all.clone();
            thread::spawn(move || {
                let mut chance = Prng::new(own as u64);
                let mut mine = Vec::new();
                for _ in 0..EACH {
                    let to = all.arrive(own);
                    mine.push(to);
                    if to != own && chance.below(4) == 0 {
                        all.stay(own, to);
                        mine.pop();
                        mine.push(own);
                    }
                    if mine.len() > 8 {
                        let gone = chance.below(mine.len() as u64) as usize;
                        all.leave(mine.swap_remove(gone));
                    }
                    assert!(!all.are_none(), "they are on their way, not gone");
                }
                mine.into_iter().for_each(|shard| all.leave(shard));
            })
        };
        let threads: Vec<_> = (0..4).map(shard).collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert!(all.are_none() && (0..4).all(|shard| all.of(shard) == 0));
    }
}
