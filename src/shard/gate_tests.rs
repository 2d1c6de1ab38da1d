//! The gate by hand, and under load; its interleavings one by one are in `tests/gate.rs`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::gate::{Asked, Gate, Permit, Ticket};
use crate::base::prng::Prng;

fn permit(asked: Asked) -> Permit {
    match asked {
        Asked::Permit(permit) => permit,
        other => panic!("{other:?}"),
    }
}

fn ticket(asked: Asked) -> Ticket {
    match asked {
        Asked::Waits(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

// proves R-ADM-2
#[test]
fn freed_seats_go_to_the_lowest_ticket_wherever_it_waits() {
    let gate = Gate::new(2, 3, 3);
    let mut wakes = Vec::new();
    let first = permit(gate.ask(2, &mut wakes));
    let second = permit(gate.ask(2, &mut wakes));
    let a = ticket(gate.ask(1, &mut wakes));
    let b = ticket(gate.ask(0, &mut wakes));
    let c = ticket(gate.ask(1, &mut wakes));
    assert!(a < b && b < c);
    assert_eq!(gate.ask(2, &mut wakes), Asked::Full);
    assert!(gate.acquire(2).is_none(), "nobody passes those who wait");
    assert!(wakes.is_empty());
    gate.release(2, first, &mut wakes);
    assert_eq!(wakes, [1]);
    let mut got = gate.granted(1);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].0, a);
    // The next one leaves, so the one behind it is served.
    gate.leave(0, b, &mut wakes);
    assert_eq!(gate.waiting(), 1);
    gate.release(1, second, &mut wakes);
    got.extend(gate.granted(1));
    assert_eq!(got.iter().map(|g| g.0).collect::<Vec<_>>(), [a, c]);
    assert_eq!((gate.held(), gate.waiting()), (2, 0));
    for (_, permit) in got {
        gate.release(1, permit, &mut wakes);
    }
    assert_eq!(gate.held(), 0);
}

// proves R-ADM-2
#[test]
fn a_grant_that_its_client_did_not_wait_for_goes_on() {
    let gate = Gate::new(1, 2, 2);
    let mut wakes = Vec::new();
    let held = permit(gate.ask(0, &mut wakes));
    let a = ticket(gate.ask(0, &mut wakes));
    let b = ticket(gate.ask(1, &mut wakes));
    gate.release(0, held, &mut wakes);
    // Granted and not fetched; its client has left.
    gate.leave(0, a, &mut wakes);
    assert_eq!(wakes, [0, 1]);
    assert!(gate.granted(0).is_empty());
    let (ticket, permit) = gate.granted(1).pop().expect("a grant");
    assert_eq!(ticket, b);
    gate.release(1, permit, &mut wakes);
    assert_eq!(gate.held(), 0);
}

// proves R-ADM-1
#[test]
fn a_limit_may_fall_below_what_is_out() {
    let gate = Gate::new(3, 2, 2);
    let mut wakes = Vec::new();
    let mut out: Vec<_> = (0..3).filter_map(|_| gate.acquire(0)).collect();
    assert_eq!(out.len(), 3);
    gate.set_limit(1, &mut wakes);
    assert_eq!((gate.limit(), gate.held()), (1, 3));
    let waits = ticket(gate.ask(1, &mut wakes));
    for left in [2, 1] {
        gate.release(0, out.pop().expect("a permit"), &mut wakes);
        assert_eq!(gate.held(), left);
        assert!(gate.granted(1).is_empty(), "debt comes first");
    }
    gate.release(0, out.pop().expect("a permit"), &mut wakes);
    let (ticket, permit) = gate.granted(1).pop().expect("a grant");
    assert_eq!(ticket, waits);
    assert!(gate.acquire(0).is_none());
    gate.set_limit(2, &mut wakes);
    let other = gate.acquire(0).expect("one more");
    gate.set_limit(0, &mut wakes);
    gate.set_limit(2, &mut wakes);
    assert_eq!(gate.held(), 2, "a debt that was forgiven is not paid twice");
    gate.release(0, permit, &mut wakes);
    gate.release(1, other, &mut wakes);
    assert_eq!(gate.held(), 0);
    let all: Vec<_> = std::iter::from_fn(|| gate.acquire(1)).collect();
    assert_eq!(all.len(), 2);
    all.into_iter().for_each(|p| gate.release(0, p, &mut wakes));
}

#[test]
fn a_gate_of_nothing_lets_nobody_in() {
    let gate = Gate::new(0, 4, 0);
    assert!(gate.acquire(3).is_none());
    assert_eq!(gate.ask(3, &mut Vec::new()), Asked::Full);
}

const LIMIT: usize = 5;

/// Eight shards on however many cores there are. Each holds what it may, waits, leaves at random, and checks the bound from inside.
// proves R-ADM-1, R-ADM-2, R-ADM-3
#[test]
fn eight_shards_at_once() {
    const SHARDS: usize = 8;
    const ROOM: usize = 9;
    let gate = Gate::new(LIMIT, SHARDS, ROOM);
    let out = AtomicU64::new(0);
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for shard in 0..SHARDS {
            let (gate, out, served) = (&gate, &out, &served);
            scope.spawn(move || {
                let mut own = OneShard::new(gate, out, shard);
                for _ in 0..20_000 {
                    own.step();
                }
                own.end();
                served.fetch_add(own.served, Ordering::Relaxed);
            });
        }
    });
    assert_eq!((gate.held(), gate.waiting()), (0, 0));
    // How many depends on who runs when; that it goes on does not.
    assert!(served.into_inner() > 500);
}

struct OneShard<'a> {
    gate: &'a Gate,
    out: &'a AtomicU64,
    shard: usize,
    prng: Prng,
    held: Vec<Permit>,
    waiting: Vec<Ticket>,
    served: u64,
}

impl<'a> OneShard<'a> {
    fn new(gate: &'a Gate, out: &'a AtomicU64, shard: usize) -> Self {
        OneShard {
            gate,
            out,
            shard,
            prng: Prng::new(shard as u64),
            held: Vec::new(),
            waiting: Vec::new(),
            served: 0,
        }
    }

    fn step(&mut self) {
        let mut wakes = Vec::new();
        match self.prng.below(6) {
            0 => {
                if let Some(permit) = self.gate.acquire(self.shard) {
                    self.takes(permit);
                }
            }
            1 | 2 => match self.gate.ask(self.shard, &mut wakes) {
                Asked::Permit(permit) => self.takes(permit),
                Asked::Waits(ticket) => {
                    assert!(self.waiting.last().is_none_or(|last| *last < ticket));
                    self.waiting.push(ticket);
                }
                Asked::Full => {}
            },
            3 if !self.waiting.is_empty() => {
                let at = self.prng.below(self.waiting.len() as u64) as usize;
                let ticket = self.waiting.remove(at);
                self.gate.leave(self.shard, ticket, &mut wakes);
            }
            _ => self.gives(&mut wakes),
        }
        self.fetches();
    }

    fn takes(&mut self, permit: Permit) {
        assert!(
            self.out.fetch_add(1, Ordering::AcqRel) < LIMIT as u64,
            "over the limit"
        );
        self.served += 1;
        self.held.push(permit);
    }

    fn gives(&mut self, wakes: &mut Vec<usize>) {
        if let Some(permit) = self.held.pop() {
            self.out.fetch_sub(1, Ordering::AcqRel);
            self.gate.release(self.shard, permit, wakes);
        }
    }

    fn fetches(&mut self) {
        let granted: BTreeMap<_, _> = self.gate.granted(self.shard).into_iter().collect();
        if let Some(last) = granted.keys().last() {
            let left_behind = |ticket: &&Ticket| *ticket < last && !granted.contains_key(ticket);
            assert!(
                self.waiting.iter().find(left_behind).is_none(),
                "out of order"
            );
        }
        for (ticket, permit) in granted {
            self.waiting.retain(|waits| *waits != ticket);
            self.takes(permit);
        }
    }

    /// A shard that stops: all its clients leave, and what it held goes to the others.
    fn end(&mut self) {
        let mut wakes = Vec::new();
        for ticket in std::mem::take(&mut self.waiting) {
            self.gate.leave(self.shard, ticket, &mut wakes);
        }
        assert!(self.gate.granted(self.shard).is_empty());
        while !self.held.is_empty() {
            self.gives(&mut wakes);
        }
    }
}
