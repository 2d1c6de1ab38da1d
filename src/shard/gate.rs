//! An exact bound on what may be out at once, over all shards, with a line of those who wait: seats, retention, phases of engines.
//!
//! `limit` credits lie in cells, one a shard, each on a cache line of its own. To take one, a shard looks into its own cell and, when that
//! is empty, into the others'; what it gives back goes into its own. Credits are moved and never made, so the bound holds in any
//! interleaving. One read-mostly word says whether anyone waits; only then, and before a refusal that will not settle, a lock is taken.
//!
//! *No refusal while one is free.* A cell counts what was put into it. When two passes over all cells find them empty and the counts
//! unchanged, every cell was empty during the whole time between the passes. A pass that sees a count move looks again; if that goes on,
//! the word is raised, so that the others come to the lock, each after one more step at most, and the count stands still.
//!
//! *No seat is lost on a waiter.* Who joins raises the word and then looks into the cells; who gives back fills a cell and then reads the
//! word; a fence between the two halves of each. So one of them sees the other, and hands the credit to the lowest ticket under the lock.
//! An arrival that read the word just before may still take a credit: one a shard.
//!
//! Invariant: Σ cells + permits out = limit + debt. Debt is what a lowered limit ([`Gate::set_limit`], for reloads) has yet to collect; it
//! comes before any waiter.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;

use super::sync::{AtomicU64, Lock, Ordering, fence};

/// See the head of this file.
#[derive(Debug)]
pub struct Gate {
    /// Not 0: somebody waits, or debt is to be collected. Read by all, written seldom.
    attention: CachePadded<AtomicU64>,
    limit: CachePadded<AtomicU64>,
    /// Free credits in the low half, credits ever put in in the high half.
    cells: Box<[CachePadded<AtomicU64>]>,
    line: CachePadded<Lock<Line>>,
}

/// One credit, out. It has to go back through [`Gate::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a permit has to be released"]
pub struct Permit(());

/// A place in the line. Lower ones came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What became of asking.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    Permit(Permit),
    /// In the line. The permit comes by [`Gate::granted`], or the place is given up by [`Gate::leave`].
    Waits(Ticket),
    /// Nothing is free and the line has no room.
    Full,
}

/// Behind the lock.
#[derive(Debug)]
struct Line {
    next: u64,
    room: usize,
    debt: u64,
    /// Who tries to settle a refusal here: keeps the word raised.
    settling: u64,
    /// In ticket order.
    waiting: VecDeque<(Ticket, usize)>,
    /// Tickets that have a credit which their shard has not fetched, by shard.
    granted: Box<[Vec<Ticket>]>,
}

const ONE: u64 = 1;
const PUT: u64 = 1 << 32;
const FREE: u64 = PUT - 1;
/// Credits that one cell can hold, should all come to lie there; no router has more requests.
const LIMIT_MAX: usize = (FREE / 2) as usize;
/// Passes over the cells before a refusal is settled under the lock.
const PASSES: usize = 3;

enum Pass {
    Took(Permit),
    /// All were empty at one instant.
    Empty,
    Moved,
}

impl Gate {
    /// `limit` credits spread over the cells of `shards`; a line of at most `room`.
    pub fn new(limit: usize, shards: usize, room: usize) -> Self {
        let (limit, shards) = (limit.min(LIMIT_MAX), shards.max(1));
        let share = |i: usize| limit / shards + usize::from(i < limit % shards);
        Gate {
            attention: CachePadded::new(AtomicU64::new(0)),
            limit: CachePadded::new(AtomicU64::new(limit as u64)),
            cells: (0..shards)
                .map(|i| CachePadded::new(AtomicU64::new(share(i) as u64)))
                .collect(),
            line: CachePadded::new(Lock::new(Line {
                next: 0,
                room,
                debt: 0,
                settling: 0,
                waiting: VecDeque::new(),
                granted: vec![Vec::new(); shards].into(),
            })),
        }
    }

    /// A permit if one is free and nobody waits; never in the line. `None` only when nothing was free at one instant, or somebody waits.
    pub fn acquire(&self, shard: usize) -> Option<Permit> {
        match self.try_cells(shard) {
            Ok(permit) => permit,
            Err(()) => self.settle_refusal(shard),
        }
    }

    /// A permit, a place in the line, or neither. `wakes` gets the shards that were granted something on the way.
    pub fn ask(&self, shard: usize, wakes: &mut Vec<usize>) -> Asked {
        match self.try_cells(shard) {
            Ok(Some(permit)) => Asked::Permit(permit),
            Ok(None) | Err(()) => self.join(shard, wakes),
        }
    }

    /// Gives a permit back: to the lowest ticket in the line, or into the shard's cell.
    pub fn release(&self, shard: usize, permit: Permit, wakes: &mut Vec<usize>) {
        let Permit(()) = permit;
        self.put(shard, 1);
        fence(Ordering::SeqCst);
        if self.attention.load(Ordering::Relaxed) != 0 {
            let mut line = self.lock();
            self.settle(&mut line, shard, wakes);
        }
    }

    /// Fetches what the shard was granted: each of these tickets has a permit now.
    pub fn granted(&self, shard: usize) -> Vec<(Ticket, Permit)> {
        let tickets = std::mem::take(&mut self.lock().granted[shard]);
        tickets.into_iter().map(|t| (t, Permit(()))).collect()
    }

    /// Leaves the line. What was granted meanwhile, and not fetched, goes to the next one.
    pub fn leave(&self, shard: usize, ticket: Ticket, wakes: &mut Vec<usize>) {
        let mut line = self.lock();
        if let Ok(at) = line.waiting.binary_search_by_key(&ticket, |w| w.0) {
            line.waiting.remove(at);
            return self.raise(&line);
        }
        let own = &mut line.granted[shard];
        let Some(at) = own.iter().position(|t| *t == ticket) else {
            debug_assert!(
                false,
                "a ticket is given up once, by the shard that drew it"
            );
            return;
        };
        own.swap_remove(at);
        self.put(shard, 1);
        self.settle(&mut line, shard, wakes);
    }

    /// A new bound. Permits over a lower one stay out until they come back.
    pub fn set_limit(&self, limit: usize, wakes: &mut Vec<usize>) {
        let mut line = self.lock();
        let limit = limit.min(LIMIT_MAX);
        let (old, new) = (self.limit.load(Ordering::Relaxed), limit as u64);
        self.limit.store(new, Ordering::Relaxed);
        line.debt += old.saturating_sub(new);
        let more = new.saturating_sub(old);
        let forgiven = line.debt.min(more);
        line.debt -= forgiven;
        self.put(0, more - forgiven);
        self.raise(&line);
        fence(Ordering::SeqCst);
        self.settle(&mut line, 0, wakes);
    }

    /// Another length of the line. Those who are in it stay.
    pub fn set_room(&self, room: usize) {
        self.lock().room = room;
    }

    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Permits out. Exact when nothing moves; between moves within what moves.
    pub fn held(&self) -> u64 {
        let free = |cell: &CachePadded<AtomicU64>| cell.load(Ordering::Relaxed) & FREE;
        let free: u64 = self.cells.iter().map(free).sum();
        let debt = self.lock().debt;
        (self.limit() + debt).saturating_sub(free)
    }

    /// What a lowered limit has yet to collect.
    #[cfg(test)]
    pub fn owes(&self) -> u64 {
        self.lock().debt
    }

    /// Places taken in the line.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// `Ok(None)`: refused for good. `Err`: it would not settle.
    fn try_cells(&self, shard: usize) -> Result<Option<Permit>, ()> {
        for _ in 0..PASSES {
            if self.attention.load(Ordering::Acquire) != 0 {
                // Somebody waits; or a refusal is being settled, which ends soon.
                return Err(());
            }
            match self.pass(shard) {
                Pass::Took(permit) => return Ok(Some(permit)),
                Pass::Empty => return Ok(None),
                Pass::Moved => {}
            }
        }
        Err(())
    }

    fn settle_refusal(&self, shard: usize) -> Option<Permit> {
        let mut line = self.lock();
        if line.waiting.is_empty() {
            // What came back while nobody looked is not owed any more, and nobody is there to be woken.
            self.settle(&mut line, shard, &mut Vec::new());
        }
        if !line.waiting.is_empty() || line.debt > 0 {
            return None;
        }
        line.settling += 1;
        self.raise(&line);
        fence(Ordering::SeqCst);
        let found = loop {
            match self.pass(shard) {
                Pass::Took(permit) => break Some(permit),
                Pass::Empty => break None,
                Pass::Moved => {}
            }
        };
        line.settling -= 1;
        self.raise(&line);
        found
    }

    fn join(&self, shard: usize, wakes: &mut Vec<usize>) -> Asked {
        let mut line = self.lock();
        // What came back while nobody looked may make room.
        self.settle(&mut line, shard, wakes);
        if line.waiting.len() >= line.room {
            if line.waiting.is_empty() {
                drop(line);
                return self
                    .settle_refusal(shard)
                    .map_or(Asked::Full, Asked::Permit);
            }
            return Asked::Full;
        }
        let ticket = Ticket(line.next);
        line.next += 1;
        line.waiting.push_back((ticket, shard));
        self.raise(&line);
        fence(Ordering::SeqCst);
        self.settle(&mut line, shard, wakes);
        let own = &mut line.granted[shard];
        match own.iter().position(|t| *t == ticket) {
            Some(at) => {
                own.swap_remove(at);
                Asked::Permit(Permit(()))
            }
            None => Asked::Waits(ticket),
        }
    }

    /// Collects debt, then hands what is free to the lowest tickets.
    fn settle(&self, line: &mut Line, shard: usize, wakes: &mut Vec<usize>) {
        self.collect(&mut line.debt);
        while line.debt == 0
            && let Some((ticket, to)) = line.waiting.front().copied()
            && let Some(permit) = self.take(shard)
        {
            let Permit(()) = permit;
            line.waiting.pop_front();
            line.granted[to].push(ticket);
            if !wakes.contains(&to) {
                wakes.push(to);
            }
        }
        self.raise(line);
    }

    /// Takes what is owed out of the cells, of each at once what it has of it: a limit may fall by millions.
    fn collect(&self, debt: &mut u64) {
        for cell in &self.cells {
            let mut now = cell.load(Ordering::Relaxed);
            loop {
                let some = (now & FREE).min(*debt);
                if some == 0 {
                    break;
                }
                let (rest, order) = (now - some * ONE, Ordering::AcqRel);
                match cell.compare_exchange_weak(now, rest, order, Ordering::Relaxed) {
                    Ok(_) => {
                        *debt -= some;
                        break;
                    }
                    Err(other) => now = other,
                }
            }
        }
    }

    /// Says to all whether there is reason to come to the lock.
    fn raise(&self, line: &Line) {
        let attention = line.waiting.len() as u64 + line.debt + line.settling;
        self.attention.store(attention, Ordering::Relaxed);
    }

    fn put(&self, shard: usize, credits: u64) {
        let cell = &self.cells[shard % self.cells.len()];
        cell.fetch_add(credits * (PUT + ONE), Ordering::AcqRel);
    }

    /// Takes the first free credit it meets, the own cell first.
    fn take(&self, shard: usize) -> Option<Permit> {
        let from = shard % self.cells.len();
        let (before, own) = self.cells.split_at(from);
        let mut cells = own.iter().chain(before);
        cells.any(|cell| take_from(cell)).then_some(Permit(()))
    }

    fn pass(&self, shard: usize) -> Pass {
        if let Some(permit) = self.take(shard) {
            return Pass::Took(permit);
        }
        let before = self.counts();
        fence(Ordering::SeqCst);
        match (before, self.counts()) {
            ((0, puts), (0, again)) if puts == again => Pass::Empty,
            _ => Pass::Moved,
        }
    }

    /// Free credits, and credits ever put in, over all cells.
    fn counts(&self) -> (u64, u64) {
        let cells = self.cells.iter().map(|cell| cell.load(Ordering::Acquire));
        cells.fold((0, 0), |(free, puts), cell| {
            (free + (cell & FREE), puts + cell / PUT)
        })
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = Line> {
        // A panic under the lock ends the process (a shard that dies takes it along).
        self.line
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn take_from(cell: &AtomicU64) -> bool {
    let mut now = cell.load(Ordering::Relaxed);
    while now & FREE > 0 {
        let taken = cell.compare_exchange_weak(now, now - ONE, Ordering::AcqRel, Ordering::Relaxed);
        match taken {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
    false
}
