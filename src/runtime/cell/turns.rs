//! Taking turns on a shard: whoever always has something to do lets the others have theirs, timers included.
//!
//! monoio 0.2.4 looks at its timers only when no task is ready (`Runtime::block_on`: a ready task leads to `submit`, which fires none), so
//! one task that is ready again each time would keep all deadlines of its shard from passing. Invariant: no task of a shard is ready for
//! longer than [`BREATH_EVERY`] without a wait for a timer.

use std::cell::Cell;
use std::time::Duration;

use super::super::io::{Rt, yield_now};
use super::ShardCell;
use crate::base::time::Instant;
use crate::metrics::histogram::Series;
use crate::shard::Shard;

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Turns {
    /// When a timer fired last for somebody who gave way.
    breathed: Cell<Instant>,
    /// Reads of legs, for which of them is timed.
    reads: Cell<u32>,
}

/// Reading the clock is a good part of what an event takes.
const TIMED_EVERY: u32 = 64;
/// How late a deadline may be for those who are always ready.
pub const BREATH_EVERY: Duration = Duration::from_millis(10);
/// The next tick of the runtime's timers, which is within a millisecond.
const BREATH: Duration = Duration::from_micros(1);

impl Turns {
    /// Lets the other tasks of the shard run first.
    pub async fn give_way<R: Rt>(&self, now: impl Fn() -> Instant) {
        if now().since(self.breathed.get()) < BREATH_EVERY {
            return yield_now().await;
        }
        R::sleep(BREATH).await;
        self.breathed.set(now());
    }
}

impl<R: Rt> ShardCell<R> {
    /// What a leg brought at `began` is ready for the client.
    #[inline]
    pub fn time_read(&self, shard: &Shard, began: Instant) {
        let reads = self.turns.reads.get().wrapping_add(1);
        self.turns.reads.set(reads);
        if reads.is_multiple_of(TIMED_EVERY) {
            shard.took(Series::Relay, began);
        }
    }

    /// Lets the other tasks of this shard run first.
    pub async fn give_way(&self) {
        self.turns.give_way::<R>(|| self.now()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::base::time::Clock;
    use crate::runtime::clock::MonotonicClock;
    use crate::runtime::testing::each_driver;

    /// Longer than any machine takes for a sleep of 30 ms.
    const LIMIT: Duration = Duration::from_secs(10);

    // proves R-ADM-8
    #[test]
    fn timers_fire_beside_tasks_that_are_always_ready() {
        each_driver!(|R| {
            let (turns, over) = (Rc::new(Turns::default()), Rc::new(Cell::new(false)));
            let clock = MonotonicClock::new();
            let begun = clock.now();
            for _ in 0..3 {
                let (turns, over) = (turns.clone(), over.clone());
                R::spawn(async move {
                    let clock = MonotonicClock::new();
                    let began = clock.now();
                    while !over.get() && clock.now().since(began) < LIMIT {
                        turns.give_way::<R>(|| clock.now()).await;
                    }
                });
            }
            for _ in 0..3 {
                R::sleep(Duration::from_millis(10)).await;
            }
            over.set(true);
            assert!(clock.now().since(begun) < LIMIT, "they were kept waiting");
        });
    }
}
