//! A shard's idle connections to engines, newest first.
//!
//! Owns the idle connections only: no operation is in flight on any of them, and each was put here after the final
//! chunk of an answer. Pure over the connection type, with `now` handed in. Invariants: within an engine the front is
//! the oldest; `idle` = sum of the queues; with a cap c > 0 no queue is longer than c; an idle connection outlives
//! [`POOL_IDLE_SECONDS`] only until the next call that meets it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::base::limits::POOL_IDLE_SECONDS;
use crate::base::time::Instant;
use crate::base::units::EngineId;

/// What the pool asks of a connection.
pub trait Idle {
    /// Nothing waits on the socket: no byte, no end, no error. One system call at most.
    fn is_quiet(&self) -> bool;
}

/// Idle connections of one shard, by engine.
pub struct Pool<C> {
    engines: Vec<VecDeque<Seat<C>>>,
    per_engine_max: usize,
    idle: usize,
    counts: PoolCounts,
}

/// Counters since start. `taken + missed` is every attempt to reuse; every `put` ends as one of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Connections put back.
    pub put: u64,
    /// Reused.
    pub taken: u64,
    /// Nothing to reuse; the caller dials.
    pub missed: u64,
    /// Closed because the engine had closed, or had sent what nobody asked for.
    pub stale: u64,
    /// Closed because of age.
    pub expired: u64,
    /// Closed because the engine's queue was at its cap.
    pub crowded: u64,
    /// Closed because the engine left the fleet or was cut off.
    pub forgotten: u64,
}

struct Seat<C> {
    connection: C,
    since: Instant,
}

impl<C: Idle> Pool<C> {
    /// At most `per_engine_max` idle connections an engine; 0 leaves it to age alone.
    pub fn new(per_engine_max: usize) -> Self {
        Pool {
            engines: Vec::new(),
            per_engine_max,
            idle: 0,
            counts: PoolCounts::default(),
        }
    }

    /// The newest connection that is young and quiet; drops those it meets that are not.
    pub fn take(&mut self, engine: EngineId, now: Instant) -> Option<C> {
        let taken = self.newest(engine, now);
        match taken {
            Some(_) => self.counts.taken += 1,
            None => self.counts.missed += 1,
        }
        self.check_invariants();
        taken
    }

    /// Keeps a connection whose last answer is wholly read. At the cap the oldest makes room.
    pub fn put(&mut self, engine: EngineId, connection: C, now: Instant) {
        if self.engines.len() <= engine.index() {
            self.engines.resize_with(engine.index() + 1, VecDeque::new);
        }
        let queue = &mut self.engines[engine.index()];
        self.counts.put += 1;
        queue.push_back(Seat {
            connection,
            since: now,
        });
        self.idle += 1;
        if self.per_engine_max > 0 && queue.len() > self.per_engine_max {
            queue.pop_front();
            self.idle -= 1;
            self.counts.crowded += 1;
        }
        self.check_invariants();
    }

    /// Closes all that are too old. Cheap when none is.
    pub fn expire(&mut self, now: Instant) {
        for queue in &mut self.engines {
            while queue.front().is_some_and(|seat| seat.is_old(now)) {
                queue.pop_front();
                self.idle -= 1;
                self.counts.expired += 1;
            }
        }
        self.check_invariants();
    }

    /// When [`Pool::expire`] has work next.
    pub fn next_expiry(&self) -> Option<Instant> {
        let oldest = self.engines.iter().filter_map(|queue| queue.front());
        oldest.map(|seat| seat.since + IDLE_MAX).min()
    }

    /// Closes what is kept for an engine: it was found dead, or left.
    pub fn forget(&mut self, engine: EngineId) {
        if let Some(queue) = self.engines.get_mut(engine.index()) {
            self.idle -= queue.len();
            self.counts.forgotten += queue.len() as u64;
            queue.clear();
        }
        self.check_invariants();
    }

    /// Closes those that `holds` does not hold for: the addresses they lead to are gone.
    pub fn retain(&mut self, holds: impl Fn(EngineId, &C) -> bool) {
        for (index, queue) in (0u16..).zip(&mut self.engines) {
            let count = queue.len();
            queue.retain(|seat| holds(EngineId(index), &seat.connection));
            self.idle -= count - queue.len();
            self.counts.forgotten += (count - queue.len()) as u64;
        }
        self.check_invariants();
    }

    /// Follows a new fleet: `renamed` tells an old index's new one, `None` when the engine left or moved address.
    /// No two old indexes may get the same new one.
    pub fn remap(&mut self, renamed: impl Fn(EngineId) -> Option<EngineId>) {
        let old = std::mem::take(&mut self.engines);
        for (index, queue) in (0u16..).zip(old) {
            let count = queue.len();
            match renamed(EngineId(index)) {
                Some(engine) if count > 0 => {
                    if self.engines.len() <= engine.index() {
                        self.engines.resize_with(engine.index() + 1, VecDeque::new);
                    }
                    debug_assert!(
                        self.engines[engine.index()].is_empty(),
                        "two engines, one name"
                    );
                    self.engines[engine.index()] = queue;
                }
                _ => {
                    self.idle -= count;
                    self.counts.forgotten += count as u64;
                }
            }
        }
        self.check_invariants();
    }

    /// Closes everything, for the end of a drain.
    pub fn clear(&mut self) {
        self.remap(|_| None);
    }

    /// A new cap; what is over it goes as engines are used or as it ages.
    pub fn set_per_engine_max(&mut self, per_engine_max: usize) {
        self.per_engine_max = per_engine_max;
        for queue in &mut self.engines {
            while per_engine_max > 0 && queue.len() > per_engine_max {
                queue.pop_front();
                self.idle -= 1;
                self.counts.crowded += 1;
            }
        }
        self.check_invariants();
    }

    /// Idle connections now, all engines.
    pub fn idle(&self) -> usize {
        self.idle
    }

    pub fn idle_of(&self, engine: EngineId) -> usize {
        self.engines.get(engine.index()).map_or(0, VecDeque::len)
    }

    pub fn counts(&self) -> PoolCounts {
        self.counts
    }

    fn newest(&mut self, engine: EngineId, now: Instant) -> Option<C> {
        let queue = self.engines.get_mut(engine.index())?;
        while let Some(seat) = queue.pop_back() {
            self.idle -= 1;
            if seat.is_old(now) {
                // All behind it are older still.
                self.counts.expired += 1 + queue.len() as u64;
                self.idle -= queue.len();
                queue.clear();
                return None;
            }
            if seat.connection.is_quiet() {
                return Some(seat.connection);
            }
            self.counts.stale += 1;
        }
        None
    }

    fn check_invariants(&self) {
        debug_assert_eq!(
            self.idle,
            self.engines.iter().map(VecDeque::len).sum::<usize>()
        );
        let c = self.counts;
        let ended = c.taken + c.stale + c.expired + c.crowded + c.forgotten;
        debug_assert_eq!(c.put, ended + self.idle as u64);
        debug_assert!(
            self.per_engine_max == 0 || self.engines.iter().all(|q| q.len() <= self.per_engine_max)
        );
    }
}

impl<C> Seat<C> {
    fn is_old(&self, now: Instant) -> bool {
        now.since(self.since) >= IDLE_MAX
    }
}

const IDLE_MAX: Duration = Duration::from_secs(POOL_IDLE_SECONDS);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    struct Line {
        name: u32,
        quiet: Rc<Cell<bool>>,
        closed: Rc<Cell<u32>>,
    }

    impl Idle for Line {
        fn is_quiet(&self) -> bool {
            self.quiet.get()
        }
    }

    impl Drop for Line {
        fn drop(&mut self) {
            self.closed.set(self.closed.get() + 1);
        }
    }

    fn line(name: u32) -> Line {
        Line {
            name,
            quiet: Rc::new(Cell::new(true)),
            closed: Rc::default(),
        }
    }

    fn ms(n: u64) -> Instant {
        Instant::from_nanos(n * 1_000_000)
    }

    const A: EngineId = EngineId(0);
    const B: EngineId = EngineId(3);

    #[test]
    fn newest_first_and_by_engine() {
        let mut pool = Pool::new(0);
        for name in 0..3 {
            pool.put(A, line(name), ms(u64::from(name)));
        }
        pool.put(B, line(9), ms(0));
        assert_eq!(pool.idle(), 4);
        let order: Vec<u32> = std::iter::from_fn(|| pool.take(A, ms(10)).map(|l| l.name)).collect();
        assert_eq!(order, [2, 1, 0]);
        assert_eq!((pool.idle(), pool.idle_of(A), pool.idle_of(B)), (1, 0, 1));
        assert!(pool.take(EngineId(60_000), ms(10)).is_none());
        assert_eq!((pool.counts().taken, pool.counts().missed), (3, 2));
    }

    #[test]
    fn stale_ones_are_closed_on_the_way() {
        let mut pool = Pool::new(0);
        let old = line(1);
        pool.put(A, old, ms(0));
        let dead = line(2);
        let (quiet, closed) = (Rc::clone(&dead.quiet), Rc::clone(&dead.closed));
        pool.put(A, dead, ms(1));
        quiet.set(false);
        assert_eq!(pool.take(A, ms(2)).map(|l| l.name), Some(1));
        assert_eq!((closed.get(), pool.counts().stale, pool.idle()), (1, 1, 0));
    }

    #[test]
    fn four_seconds_is_the_age() {
        for (now, found) in [(3_999, true), (4_000, false), (9_000, false)] {
            let mut pool = Pool::new(0);
            pool.put(A, line(1), ms(0));
            assert_eq!(pool.next_expiry(), Some(ms(4_000)));
            pool.expire(ms(now));
            assert_eq!(pool.idle() == 1, found, "expire at {now}");
            let mut pool = Pool::new(0);
            pool.put(A, line(0), ms(0));
            pool.put(A, line(1), ms(0));
            assert_eq!(pool.take(A, ms(now)).is_some(), found, "take at {now}");
            assert_eq!(pool.counts().expired, if found { 0 } else { 2 });
        }
    }

    #[test]
    fn the_oldest_makes_room_at_the_cap() {
        let mut pool = Pool::new(2);
        for name in 0..5 {
            pool.put(A, line(name), ms(0));
        }
        assert_eq!((pool.idle(), pool.counts().crowded), (2, 3));
        assert_eq!(pool.take(A, ms(1)).map(|l| l.name), Some(4));
        pool.put(A, line(5), ms(1));
        pool.set_per_engine_max(1);
        assert_eq!((pool.idle(), pool.counts().crowded), (1, 4));
    }

    #[test]
    fn a_new_fleet_keeps_what_it_names() {
        let mut pool = Pool::new(0);
        pool.put(A, line(1), ms(0));
        pool.put(B, line(2), ms(0));
        pool.put(EngineId(1), line(3), ms(0));
        pool.remap(|old| (old != EngineId(1)).then_some(EngineId(3 - old.0)));
        assert_eq!(pool.idle(), 2);
        assert_eq!(pool.take(B, ms(1)).map(|l| l.name), Some(1));
        pool.forget(A);
        assert_eq!((pool.idle(), pool.counts().forgotten), (0, 2));
        pool.put(A, line(4), ms(0));
        pool.clear();
        assert_eq!((pool.idle(), pool.next_expiry()), (0, None));
    }

    // proves R-LEG-7
    #[test]
    fn connections_to_addresses_that_are_gone_are_closed() {
        let mut pool = Pool::new(0);
        for name in 0..4 {
            pool.put(A, line(name), ms(0));
            pool.put(B, line(10 + name), ms(0));
        }
        pool.retain(|engine, line| engine == B || line.name % 2 == 1);
        assert_eq!((pool.idle_of(A), pool.idle_of(B)), (2, 4));
        assert_eq!((pool.idle(), pool.counts().forgotten), (6, 2));
        assert_eq!(pool.take(A, ms(1)).map(|l| l.name), Some(3));
        assert_eq!(pool.take(A, ms(1)).map(|l| l.name), Some(1));
    }

    proptest! {
        /// Any sequence of calls keeps the invariants, and agrees with a plain list.
        #[test]
        fn agrees_with_a_plain_list(
            calls in prop::collection::vec((0u8..4, 0u16..3, 0u64..3_000, any::<bool>()), 0..80),
        ) {
            let mut pool = Pool::new(3);
            let mut plain: Vec<(u16, u32, Instant, bool)> = Vec::new();
            let mut now = Instant::ZERO;
            for (name, (call, engine, step, quiet)) in (0u32..).zip(calls) {
                now = now + Duration::from_millis(step);
                let id = EngineId(engine);
                match call {
                    0 | 1 => {
                        let line = line(name);
                        line.quiet.set(quiet);
                        pool.put(id, line, now);
                        plain.push((engine, name, now, quiet));
                        if plain.iter().filter(|l| l.0 == engine).count() > 3 {
                            let oldest = plain.iter().position(|l| l.0 == engine).unwrap();
                            plain.remove(oldest);
                        }
                    }
                    2 => {
                        let young = |l: &(u16, u32, Instant, bool)| now.since(l.2) < IDLE_MAX;
                        let best = plain.iter().rposition(|l| l.0 == engine && l.3 && young(l));
                        let expected = best.map(|at| plain[at].1);
                        prop_assert_eq!(pool.take(id, now).map(|l| l.name), expected);
                        let mut at = 0;
                        plain.retain(|l| {
                            at += 1;
                            l.0 != engine || best.is_some_and(|best| at - 1 < best)
                        });
                    }
                    _ => {
                        pool.expire(now);
                        plain.retain(|l| now.since(l.2) < IDLE_MAX);
                    }
                }
                prop_assert_eq!(pool.idle(), plain.len());
            }
        }
    }
}
