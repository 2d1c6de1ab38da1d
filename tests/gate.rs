//! The gate of `src/shard/gate.rs` in every interleaving that its memory orders allow (loom), for few shards and few steps.
//!
//! The very file is compiled here once more, with loom's atomics in place of the standard ones.

#[path = "../src/shard/gate.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the file is another crate's, and not all of it is modelled"
)]
mod gate;

mod sync {
    //! What `src/shard/sync.rs` is there.

    pub use loom::sync::Mutex as Lock;
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

use gate::{Asked, Gate, Permit, Ticket};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// Every interleaving with at most this many preemptions: more find nothing new in published studies of such code, and take hours.
const PREEMPTIONS: usize = 3;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(body);
}

fn released(gate: &Gate, shard: usize, permit: Permit) {
    gate.release(shard, permit, &mut Vec::new());
}

fn ask(gate: &Gate, shard: usize) -> Asked {
    gate.ask(shard, &mut Vec::new())
}

fn leave(gate: &Gate, shard: usize, ticket: Ticket) {
    gate.leave(shard, ticket, &mut Vec::new());
}

/// Two shards, one credit: never both.
// proves R-ADM-1, R-ADM-3
#[test]
fn the_bound_holds() {
    model(|| {
        let gate = Arc::new(Gate::new(1, 2, 0));
        let out = Arc::new(AtomicUsize::new(0));
        let shard = |shard: usize| {
            let (gate, out) = (gate.clone(), out.clone());
            move || {
                if let Some(permit) = gate.acquire(shard) {
                    assert_eq!(out.fetch_add(1, Ordering::AcqRel), 0, "two are out");
                    out.fetch_sub(1, Ordering::AcqRel);
                    released(&gate, shard, permit);
                }
            }
        };
        let other = thread::spawn(shard(1));
        shard(0)();
        other.join().expect("the other shard");
        assert_eq!(gate.held(), 0);
    });
}

/// As many credits as shards, each wanting one at a time: nobody is refused, though credits wander between the cells.
// proves R-ADM-3
#[test]
fn nobody_is_refused_while_one_is_free() {
    model(|| {
        let gate = Arc::new(Gate::new(2, 2, 0));
        // All credits lie with shard 1 to begin with, so that shard 0 borrows.
        let (a, b) = (gate.acquire(0), gate.acquire(0));
        released(&gate, 1, a.expect("one"));
        released(&gate, 1, b.expect("the other"));
        let shard = |shard: usize, times: usize| {
            let gate = gate.clone();
            move || {
                for _ in 0..times {
                    let permit = gate.acquire(shard).expect("one is free");
                    released(&gate, shard, permit);
                }
            }
        };
        let other = thread::spawn(shard(1, 2));
        shard(0, 2)();
        other.join().expect("the other shard");
        assert_eq!(gate.held(), 0);
    });
}

/// A credit moves against the direction in which a refusal looks: one pass sees every cell empty, and one was always free.
// proves R-ADM-3
#[test]
fn a_credit_that_moves_is_seen() {
    model(|| {
        let gate = Arc::new(Gate::new(2, 3, 0));
        let (a, b) = (gate.acquire(0).expect("a"), gate.acquire(0).expect("b"));
        released(&gate, 2, a);
        let moves = gate.clone();
        let other = thread::spawn(move || {
            released(&moves, 1, b);
            moves.acquire(2).expect("its own cell has one")
        });
        let permit = gate.acquire(0).expect("one is free all the time");
        let taken = other.join().expect("the other shards");
        released(&gate, 0, permit);
        released(&gate, 2, taken);
        assert_eq!(gate.held(), 0);
    });
}

/// One gives back while the other joins the line: it has the permit, or is granted it.
// proves R-ADM-2
#[test]
fn no_seat_is_lost_on_a_waiter() {
    model(|| {
        let gate = Arc::new(Gate::new(1, 2, 1));
        let permit = gate.acquire(0).expect("one");
        let waits = gate.clone();
        let waiter = thread::spawn(move || ask(&waits, 1));
        released(&gate, 0, permit);
        let permit = match waiter.join().expect("the waiter") {
            Asked::Permit(permit) => permit,
            Asked::Waits(ticket) => {
                let (got, permit) = gate.granted(1).pop().expect("a grant");
                assert_eq!(got, ticket);
                permit
            }
            Asked::Full => panic!("the line was empty"),
        };
        assert_eq!(gate.held(), 1);
        released(&gate, 1, permit);
        assert_eq!((gate.held(), gate.waiting()), (0, 0));
    });
}

/// A waiter leaves while its seat is on the way: the seat goes back.
// proves R-ADM-2
#[test]
fn leaving_and_granting_at_once_lose_nothing() {
    model(|| {
        let gate = Arc::new(Gate::new(1, 2, 2));
        let permit = gate.acquire(0).expect("one");
        let Asked::Waits(ticket) = ask(&gate, 1) else {
            panic!("nothing was free");
        };
        let leaves = gate.clone();
        let leaver = thread::spawn(move || leave(&leaves, 1, ticket));
        released(&gate, 0, permit);
        leaver.join().expect("the leaver");
        assert!(gate.granted(1).is_empty());
        assert_eq!((gate.held(), gate.waiting()), (0, 0));
        let again = gate.acquire(0).expect("free again");
        released(&gate, 0, again);
    });
}

/// Two wait; two shards give back at once: both are granted, and after one the lower ticket is.
// proves R-ADM-2
#[test]
fn two_releases_serve_two_waiters() {
    model(|| {
        let gate = Arc::new(Gate::new(2, 2, 2));
        let (a, b) = (gate.acquire(0).expect("a"), gate.acquire(0).expect("b"));
        let (Asked::Waits(first), Asked::Waits(second)) = (ask(&gate, 0), ask(&gate, 1)) else {
            panic!("nothing was free");
        };
        assert!(first < second);
        let gives = gate.clone();
        let other = thread::spawn(move || {
            released(&gives, 1, b);
            // Whoever was served by now, the first was.
            assert!(gives.waiting() < 2);
        });
        released(&gate, 0, a);
        other.join().expect("the other shard");
        assert_eq!(gate.granted(0).len() + gate.granted(1).len(), 2);
        assert_eq!((gate.held(), gate.waiting()), (2, 0));
    });
}

/// An arrival, a waiter and a release: the arrival may pass the waiter once, never lose it.
// proves R-ADM-2
#[test]
fn an_arrival_beside_a_waiter() {
    model(|| {
        let gate = Arc::new(Gate::new(1, 2, 1));
        let permit = gate.acquire(0).expect("one");
        let arrives = gate.clone();
        let arrival = thread::spawn(move || {
            if let Some(permit) = arrives.acquire(1) {
                released(&arrives, 1, permit);
            }
        });
        released(&gate, 0, permit);
        let asked = ask(&gate, 0);
        arrival.join().expect("the arrival");
        match asked {
            Asked::Permit(permit) => released(&gate, 0, permit),
            Asked::Waits(_) => {
                let (_, permit) = gate.granted(0).pop().expect("the arrival gave it back");
                released(&gate, 0, permit);
            }
            Asked::Full => panic!("the line was empty"),
        }
        assert_eq!((gate.held(), gate.waiting()), (0, 0));
    });
}

/// A shard stops: its clients leave the line and what it held goes back, while another shard asks. Nothing stays behind with it.
// proves R-ADM-2
#[test]
fn a_shard_that_stops_leaves_nothing_behind() {
    model(|| {
        let gate = Arc::new(Gate::new(1, 2, 2));
        let permit = gate.acquire(1).expect("one");
        let Asked::Waits(ticket) = ask(&gate, 1) else {
            panic!("the permit is out");
        };
        let stops = gate.clone();
        let stopping = thread::spawn(move || {
            released(&stops, 1, permit);
            leave(&stops, 1, ticket);
        });
        let asked = ask(&gate, 0);
        stopping.join().expect("the shard that stops");
        assert!(gate.granted(1).is_empty());
        let permit = match asked {
            Asked::Permit(permit) => permit,
            Asked::Waits(ticket) => {
                let (got, permit) = gate.granted(0).pop().expect("a grant");
                assert_eq!(got, ticket);
                permit
            }
            Asked::Full => panic!("the line has room"),
        };
        released(&gate, 0, permit);
        assert_eq!((gate.held(), gate.waiting()), (0, 0));
    });
}

/// A shard that keeps arriving passes a waiter at most once: its next step brings it to the lock.
// proves R-ADM-2
#[test]
fn a_shard_passes_a_waiter_at_most_once() {
    model(|| {
        let gate = Arc::new(Gate::new(1, 2, 1));
        let permit = gate.acquire(0).expect("one");
        let arrives = gate.clone();
        // Nothing is free before the release, which comes after the waiter has joined: whatever they take is taken past it.
        let arrivals = thread::spawn(move || {
            let mut passed = 0;
            for _ in 0..2 {
                if let Some(permit) = arrives.acquire(1) {
                    passed += 1;
                    released(&arrives, 1, permit);
                }
            }
            passed
        });
        let Asked::Waits(ticket) = ask(&gate, 0) else {
            panic!("the permit is out");
        };
        released(&gate, 0, permit);
        assert!(arrivals.join().expect("the other shard") <= 1);
        let (got, permit) = gate.granted(0).pop().expect("a grant");
        assert_eq!(got, ticket);
        released(&gate, 0, permit);
        assert_eq!((gate.held(), gate.waiting()), (0, 0));
    });
}

/// The limit falls while permits come back: what is owed is collected once.
// proves R-ADM-1
#[test]
fn a_falling_limit_collects_what_it_is_owed() {
    model(|| {
        let gate = Arc::new(Gate::new(2, 2, 0));
        let (a, b) = (gate.acquire(0).expect("a"), gate.acquire(1).expect("b"));
        let gives = gate.clone();
        let other = thread::spawn(move || released(&gives, 1, b));
        gate.set_limit(1, &mut Vec::new());
        released(&gate, 0, a);
        other.join().expect("the other shard");
        assert_eq!(gate.held(), 0);
        let one = gate.acquire(0).expect("one");
        assert!(gate.acquire(1).is_none(), "the limit is one");
        released(&gate, 0, one);
    });
}
