//! Taking turns on a shard: whoever always has something to do lets the others have theirs, timers included, and a shard that is to answer
//! at once stays awake for a while.
//!
//! monoio 0.2.4 looks at its timers only when no task is ready (`Runtime::block_on`: a ready task leads to `submit`, which fires none), so
//! one task that is ready again each time would keep all deadlines of its shard from passing. Invariant: no task of a shard is ready for
//! longer than [`BREATH_EVERY`] without a wait for a timer.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::super::io::Rt;
use super::ShardCell;
use crate::base::time::Instant;
use crate::metrics::histogram::Series;
use crate::shard::Shard;

/// See the head of this file.
#[derive(Debug)]
pub struct Turns {
    /// When a timer fired last for somebody who gave way.
    breathed: Cell<Instant>,
    /// How long a shard stays awake after the last thing that happened.
    awake_for: Duration,
    last: Cell<Instant>,
    /// Of the task that keeps it awake, while there is nothing to stay awake for.
    sleeper: RefCell<Option<Waker>>,
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
    pub fn new(awake_for: Duration) -> Turns {
        Turns {
            breathed: Cell::new(Instant::ZERO),
            awake_for,
            last: Cell::new(Instant::ZERO),
            sleeper: RefCell::new(None),
            reads: Cell::new(0),
        }
    }

    /// Lets the other tasks of the shard run first.
    pub async fn give_way<R: Rt>(&self, now: impl Fn() -> Instant) {
        if now().since(self.breathed.get()) < BREATH_EVERY {
            return yield_once().await;
        }
        // In a box, because it is seldom.
        Box::pin(R::sleep(BREATH)).await;
        self.breathed.set(now());
    }

    /// Something happened.
    #[inline]
    pub fn touch(&self, now: Instant) {
        if self.awake_for.is_zero() {
            return;
        }
        self.last.set(now);
        if let Some(waker) = self.sleeper.borrow_mut().take() {
            waker.wake();
        }
    }

    pub fn stays_awake(&self) -> bool {
        !self.awake_for.is_zero()
    }

    /// Keeps the shard's thread from sleeping while something happened a moment ago: a core that sleeps takes longer to wake than an
    /// event takes to relay. For ever.
    pub async fn stay_awake<R: Rt>(&self, now: impl Fn() -> Instant) {
        let is_due = |at: Instant| at.since(self.last.get()) < self.awake_for;
        loop {
            poll_fn(|cx| {
                if is_due(now()) {
                    return Poll::Ready(());
                }
                *self.sleeper.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            while is_due(now()) {
                self.give_way::<R>(&now).await;
            }
        }
    }
}

impl<R: Rt> ShardCell<R> {
    /// Something happened at `now`.
    #[inline]
    pub fn touch(&self, now: Instant) {
        self.turns.touch(now);
    }

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

    pub(super) async fn stay_awake(self: Rc<Self>) {
        self.turns.stay_awake::<R>(|| self.now()).await;
    }
}

/// Ready when all that are ready now have run.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::base::time::Clock;
    use crate::runtime::boot::{self, Completions, Driver};
    use crate::runtime::clock::MonotonicClock;
    use crate::runtime::io::{ReadHalf, WriteHalf};
    use crate::runtime::monoio::Monoio;
    use crate::runtime::testing::{drivers, each_driver};

    /// Longer than any machine takes for a sleep of 30 ms.
    const LIMIT: Duration = Duration::from_secs(10);

    // proves R-ADM-8
    #[test]
    fn timers_fire_beside_tasks_that_are_always_ready() {
        each_driver!(|R| {
            let (turns, over) = (
                Rc::new(Turns::new(Duration::ZERO)),
                Rc::new(Cell::new(false)),
            );
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

    /// Rings whose completions wait for a thread that waits gave none to one that stays awake.
    #[test]
    fn who_stays_awake_hears_of_what_has_come() {
        for driver in drivers() {
            let (done, is_done) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                let ring = (driver, Completions::Prompt);
                let runtime = boot::runtime_on(ring).expect("the driver is available");
                let mut runtime = std::mem::ManuallyDrop::new(runtime);
                runtime.block_on(async move {
                    match driver {
                        Driver::Epoll | Driver::IoUring => answered::<Monoio>().await,
                        #[cfg(feature = "rt-glommio")]
                        Driver::Glommio => {}
                    }
                });
                let _ = done.send(());
            });
            let ended = is_done.recv_timeout(LIMIT);
            assert!(ended.is_ok(), "nothing is heard on {driver:?}");
            thread.join().expect("no panic");
        }
    }

    /// Something is sent and received while a task of the thread is ready all the time.
    async fn answered<R: Rt>() {
        let over = Rc::new(Cell::new(false));
        let awake = over.clone();
        R::spawn(async move {
            while !awake.get() {
                yield_once().await;
            }
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let listener = R::from_listener(listener).expect("a listener");
        let (_reader, writer) = R::connect(at).await.expect("a connection");
        let (reader, _writer, _) = R::accept(&listener).await.expect("the other end");
        let (sent, ..) = writer.write(b"ping".to_vec(), 0).await;
        assert_eq!(sent.ok(), Some(4));
        let (got, buf, _) = reader.read(Vec::with_capacity(8)).await;
        assert_eq!((got.ok(), &buf[..]), (Some(4), &b"ping"[..]));
        over.set(true);
    }

    #[test]
    fn a_shard_stays_awake_as_long_as_it_is_told() {
        each_driver!(|R| {
            let turns = Rc::new(Turns::new(Duration::from_millis(20)));
            let looks = Rc::new(Cell::new(0u32));
            let clock = Rc::new(MonotonicClock::new());
            let (kept, seen, time) = (turns.clone(), looks.clone(), clock.clone());
            R::spawn(async move {
                let look = || {
                    seen.set(seen.get() + 1);
                    time.now()
                };
                kept.stay_awake::<R>(look).await;
            });
            R::sleep(Duration::from_millis(30)).await;
            let quiet = looks.get();
            assert!(quiet <= 1, "nothing has happened yet: {quiet} looks");
            turns.touch(clock.now());
            R::sleep(Duration::from_millis(60)).await;
            let awake = looks.get();
            assert!(awake > 20, "{awake} looks");
            R::sleep(Duration::from_millis(30)).await;
            assert_eq!(looks.get(), awake, "it sleeps again");
        });
    }
}
