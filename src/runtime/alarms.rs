//! Alarms of a shard's connections: one each, for the earliest of its deadlines.
//!
//! Owns who is to be woken when; one task of the shard sleeps for the earliest. A connection moves its alarm to an earlier time only, and
//! looks what is due when it rings: a stream whose deadline moves on with every read touches this once in a deadline's time, and keeps
//! no timer of the runtime. Invariant: at most one alarm a connection; an alarm never rings before its time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::base::time::Instant;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    set: RefCell<BTreeSet<(Instant, u64)>>,
    /// Of the task that sleeps, and how long it does.
    sleeper: RefCell<Option<Waker>>,
    sleeps_until: Cell<Instant>,
}

impl Alarms {
    /// Moves the alarm of `token` from `from` ([`Instant::FAR`] for none) to `to`.
    pub(super) fn put(&self, token: u64, from: Instant, to: Instant) {
        let mut set = self.set.borrow_mut();
        if from != Instant::FAR {
            set.remove(&(from, token));
        }
        if to == Instant::FAR {
            return;
        }
        set.insert((to, token));
        if to < self.sleeps_until.get()
            && let Some(waker) = self.sleeper.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Takes the first alarm that is due.
    fn take(&self, now: Instant) -> Option<u64> {
        let mut set = self.set.borrow_mut();
        let first = set.first().copied().filter(|(at, _)| *at <= now)?;
        set.remove(&first);
        Some(first.1)
    }

    fn next(&self) -> Instant {
        let set = self.set.borrow();
        set.first().map_or(Instant::FAR, |(at, _)| *at)
    }

    /// Rings the alarms as they are due, for ever.
    pub(super) async fn ring<S: Future<Output = ()>>(
        &self,
        now: impl Fn() -> Instant,
        sleep: impl Fn(Duration) -> S,
        wake: impl Fn(u64),
    ) {
        loop {
            let at = now();
            while let Some(token) = self.take(at) {
                wake(token);
            }
            let next = self.next();
            self.sleeps_until.set(next);
            let mut sleep = pin!((next != Instant::FAR).then(|| sleep(next.since(at))));
            poll_fn(|cx| {
                if self.next() < next {
                    return Poll::Ready(());
                }
                *self.sleeper.borrow_mut() = Some(cx.waker().clone());
                match sleep.as_mut().as_pin_mut() {
                    Some(sleep) => sleep.poll(cx),
                    None => Poll::Pending,
                }
            })
            .await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::base::time::Clock;
    use crate::runtime::clock::MonotonicClock;
    use crate::runtime::testing::each_driver;

    #[test]
    fn one_alarm_each_in_the_order_of_time() {
        let alarms = Alarms::default();
        let at = Instant::from_nanos;
        alarms.put(1, Instant::FAR, at(30));
        alarms.put(2, Instant::FAR, at(20));
        alarms.put(1, at(30), at(10));
        assert_eq!(alarms.next(), at(10));
        assert_eq!(alarms.take(at(9)), None);
        let due = |now| std::iter::from_fn(|| alarms.take(now)).collect::<Vec<_>>();
        assert_eq!(due(at(100)), [1, 2]);
        assert_eq!(alarms.next(), Instant::FAR);
        alarms.put(3, Instant::FAR, at(5));
        // It rang, and was set again before that was seen.
        assert_eq!(alarms.take(at(5)), Some(3));
        alarms.put(3, at(5), at(4));
        alarms.put(3, at(4), Instant::FAR);
        assert_eq!(alarms.next(), Instant::FAR);
    }
    // proves R-ADM-8
    #[test]
    fn an_earlier_alarm_wakes_who_sleeps_for_a_later_one() {
        each_driver!(|R| {
            let (alarms, clock) = (Rc::new(Alarms::default()), MonotonicClock::new());
            let rung = Rc::new(RefCell::new(Vec::new()));
            let (all, told) = (alarms.clone(), rung.clone());
            R::spawn(async move {
                let wake = |token| told.borrow_mut().push((token, clock.now()));
                all.ring(|| clock.now(), R::sleep, wake).await;
            });
            let begun = clock.now();
            let after = |ms| begun + Duration::from_millis(ms);
            alarms.put(1, Instant::FAR, after(3_600_000));
            // The sleeper is asleep by now.
            R::sleep(Duration::from_millis(3)).await;
            alarms.put(2, Instant::FAR, after(20));
            alarms.put(3, Instant::FAR, after(10));
            while rung.borrow().len() < 2 {
                R::sleep(Duration::from_millis(1)).await;
            }
            let rung = rung.borrow();
            let tokens: Vec<_> = rung.iter().map(|(token, _)| *token).collect();
            assert_eq!(tokens, [3, 2]);
            assert!(rung[0].1 >= after(10) && rung[1].1 >= after(20));
        });
    }
}
