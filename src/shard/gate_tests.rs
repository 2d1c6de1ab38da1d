//! The gate by hand, and under load; its interleavings one by one are in `tests/gate.rs`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

/// What bounds are checked by: the bound, and so many more with each time it moved.
const MOVED: u64 = 1 << 16;

/// Eight shards on however many cores there are. Each holds what it may, waits, leaves at random, and checks the bound from inside.
// proves R-ADM-1, R-ADM-2, R-ADM-3
#[test]
fn eight_shards_at_once() {
    const SHARDS: usize = 8;
    const ROOM: usize = 9;
    let gate = Gate::new(LIMIT, SHARDS, ROOM);
    let bound = AtomicU64::new(LIMIT as u64);
    let out = AtomicU64::new(0);
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for shard in 0..SHARDS {
            let (gate, out, bound, served) = (&gate, &out, &bound, &served);
            scope.spawn(move || {
                let mut own = OneShard::new(gate, out, bound, shard);
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
    bound: &'a AtomicU64,
    shard: usize,
    prng: Prng,
    held: Vec<Permit>,
    waiting: Vec<Ticket>,
    served: u64,
}

impl<'a> OneShard<'a> {
    fn new(gate: &'a Gate, out: &'a AtomicU64, bound: &'a AtomicU64, shard: usize) -> Self {
        OneShard {
            gate,
            out,
            bound,
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
        let bound = self.bound.load(Ordering::SeqCst);
        let before = self.out.fetch_add(1, Ordering::SeqCst);
        // One that moves meanwhile says nothing.
        if self.bound.load(Ordering::SeqCst) == bound {
            assert!(before < bound % MOVED, "{before} were out of {bound}");
        }
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

/// The same while the limit moves, the line too: whoever is in stays, and once those over a lower limit have left there are never more in.
/// No seat is lost on the way: at the end the last limit is what there is.
// proves R-CFG-7, R-ADM-1, R-ADM-2
#[test]
fn a_limit_moves_under_load() {
    const SHARDS: usize = 4;
    const MOVES: u64 = 300;
    let gate = Gate::new(LIMIT, SHARDS, 4);
    let (bound, out) = (AtomicU64::new(LIMIT as u64), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for shard in 0..SHARDS {
            let (gate, out, bound, over) = (&gate, &out, &bound, &over);
            scope.spawn(move || {
                let mut own = OneShard::new(gate, out, bound, shard);
                while !over.load(Ordering::Relaxed) {
                    own.step();
                }
                own.end();
            });
        }
        let mut prng = Prng::new(77);
        for _ in 0..MOVES {
            let (limit, now) = (prng.below(9), bound.load(Ordering::SeqCst));
            gate.set_room(prng.below(6) as usize);
            if limit > now % MOVED {
                bound.store(now / MOVED * MOVED + MOVED + limit, Ordering::SeqCst);
            }
            gate.set_limit(limit as usize, &mut Vec::new());
            // Those over it leave in their own time.
            while gate.owes() > 0 {
                std::thread::yield_now();
            }
            bound.store(now / MOVED * MOVED + 2 * MOVED + limit, Ordering::SeqCst);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!((gate.held(), gate.waiting(), gate.owes()), (0, 0, 0));
    let limit = gate.limit() as usize;
    let all: Vec<_> = std::iter::from_fn(|| gate.acquire(1)).collect();
    assert_eq!(all.len(), limit, "no seat more, no seat less");
    for permit in all {
        gate.release(0, permit, &mut Vec::new());
    }
}

/// Bounds that are taken away and given back: what there is of them is moved at once, not one by one.
// proves R-CFG-7
#[test]
fn a_limit_falls_from_the_sky_at_once() {
    let gate = Gate::new(3, 4, usize::MAX);
    let mut wakes = Vec::new();
    let inside: Vec<_> = (0..2).filter_map(|_| gate.acquire(1)).collect();
    for _ in 0..1000 {
        gate.set_limit(usize::MAX, &mut wakes);
        gate.set_limit(3, &mut wakes);
    }
    assert_eq!((gate.held(), gate.owes()), (2, 0));
    let last = gate.acquire(2).expect("one is left");
    assert!(gate.acquire(0).is_none());
    for permit in inside.into_iter().chain([last]) {
        gate.release(3, permit, &mut wakes);
    }
    assert_eq!(gate.held(), 0);
}

/// A gate by the definition: a line, and how many may be in.
#[derive(Default)]
struct Naive {
    limit: usize,
    room: usize,
    waiting: Vec<(Ticket, usize)>,
    /// Not fetched yet.
    granted: Vec<(Ticket, usize)>,
    inside: usize,
}

impl Naive {
    fn is_full(&self) -> bool {
        self.inside + self.granted.len() >= self.limit
    }

    fn settle(&mut self) {
        while !self.waiting.is_empty() && !self.is_full() {
            let first = self.waiting.remove(0);
            self.granted.push(first);
        }
    }
}

const SHARDS: usize = 3;

proptest::proptest! {
    /// Any sequence of calls, limits and lengths of the line that move among them, agrees with the definition.
    // proves R-CFG-7, R-ADM-2
    #[test]
    fn agrees_with_a_plain_line(
        limit in 0usize..4,
        room in 0usize..4,
        calls in proptest::collection::vec((0u8..8, 0usize..SHARDS, 0usize..5), 0..120),
    ) {
        let gate = Gate::new(limit, SHARDS, room);
        let mut plain = Naive { limit, room, ..Naive::default() };
        let mut held: Vec<Permit> = Vec::new();
        let mut wakes = Vec::new();
        for (call, shard, n) in calls {
            match call {
                0 => {
                    let free = plain.waiting.is_empty() && !plain.is_full();
                    let got = gate.acquire(shard);
                    proptest::prop_assert_eq!(got.is_some(), free);
                    plain.inside += got.iter().len();
                    held.extend(got);
                }
                1 | 2 => {
                    let free = plain.waiting.is_empty() && !plain.is_full();
                    let has_room = plain.waiting.len() < plain.room;
                    match gate.ask(shard, &mut wakes) {
                        Asked::Permit(permit) => {
                            proptest::prop_assert!(free);
                            plain.inside += 1;
                            held.push(permit);
                        }
                        Asked::Waits(ticket) => {
                            proptest::prop_assert!(!free && has_room);
                            plain.waiting.push((ticket, shard));
                        }
                        Asked::Full => proptest::prop_assert!(!free && !has_room),
                    }
                }
                3 => {
                    if let Some(permit) = held.pop() {
                        gate.release(shard, permit, &mut wakes);
                        plain.inside -= 1;
                    }
                }
                4 => {
                    let own = |at: &(Ticket, usize)| at.1 == shard;
                    let all = plain.waiting.iter().chain(&plain.granted).copied();
                    let own: Vec<_> = all.filter(own).collect();
                    if let Some((ticket, _)) = own.get(n % own.len().max(1)) {
                        gate.leave(shard, *ticket, &mut wakes);
                        plain.waiting.retain(|at| at.0 != *ticket);
                        plain.granted.retain(|at| at.0 != *ticket);
                    }
                }
                5 => {
                    for (ticket, permit) in gate.granted(shard) {
                        let at = plain.granted.iter().position(|at| *at == (ticket, shard));
                        proptest::prop_assert!(at.is_some());
                        plain.granted.retain(|at| at.0 != ticket);
                        plain.inside += 1;
                        held.push(permit);
                    }
                    proptest::prop_assert!(plain.granted.iter().all(|at| at.1 != shard));
                }
                6 => {
                    gate.set_limit(n, &mut wakes);
                    plain.limit = n;
                }
                _ => {
                    gate.set_room(n);
                    plain.room = n;
                }
            }
            plain.settle();
            let inside = (plain.inside + plain.granted.len()) as u64;
            proptest::prop_assert_eq!((gate.held(), gate.waiting()), (inside, plain.waiting.len()));
            proptest::prop_assert_eq!(gate.owes(), inside.saturating_sub(plain.limit as u64));
        }
        // Whoever was granted something was woken.
        let told = |at: &(Ticket, usize)| wakes.contains(&at.1);
        proptest::prop_assert!(plain.granted.iter().all(told));
        let last = SHARDS - 1;
        held.into_iter().for_each(|permit| gate.release(last, permit, &mut wakes));
    }
}
