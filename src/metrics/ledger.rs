//! A shard's ledger: what it was offered, where each exchange ended, what is in flight, and its other counters and
//! gauges. One padded block per shard; the shard is the only writer, anyone may read.
//!
//! A reader must see one moment, not a mixture, so the block is a sequence lock over atomic cells (no `unsafe`):
//!
//! ```text
//! writer: seq ← odd (Relaxed) · fence Release · cells (Relaxed) · seq ← even (Release)
//! reader: a ← seq (Acquire), odd: again · cells (Relaxed) · fence Acquire · b ← seq (Relaxed), a ≠ b: again
//! ```
//!
//! If a reader saw any cell of an update, its fence pairs with the writer's and the second look at the sequence sees at
//! least the odd number of that update (Boehm, "Can seqlocks get along with programming language memory models?").
//! The writer never waits for a reader.
//!
//! Invariant, at every snapshot: offered = Σ ends + in flight.

use std::sync::atomic::{AtomicU64, Ordering::*, fence};

use super::outcome::{End, Outcome};
use crate::base::words::words;

words! {
    /// The cells beside `offered`, the ends and `inflight`, which only [`Tx::offer`] and [`Tx::end`] move.
    Cell {
        /// Ended before the model check.
        UnsizedOffered = "unsized_offered",
        /// Requests to `/v1/*` without a valid key; not offered.
        Unauthorized = "unauthorized",
        /// Request heads that never became an exchange: malformed, too large, too slow.
        HeadsRefused = "heads_refused",
        SloMet = "slo_met",
        TokenizeAttempts = "tokenize_attempts",
        PrefillAttempts = "prefill_attempts",
        DecodeAttempts = "decode_attempts",
        RetryAttempts = "retry_attempts",
        DecodeTokensObserved = "decode_tokens_observed",
        OrphanedHandoffs = "orphaned_handoffs",
        /// Prompts placed, and how long they were.
        PrefixLookups = "prefix_lookups",
        PrefixPromptTokens = "prefix_prompt_tokens",
        /// Of those, what the engine that reads them was believed to hold.
        PrefixBelievedTokens = "prefix_believed_tokens",
        /// What was remembered of prompts whose engine told, and what it told.
        PrefixComparedTokens = "prefix_compared_tokens",
        PrefixHeldTokens = "prefix_held_tokens",
        /// Legs dispatched after the lease deadline, closed at once.
        FencedLate = "fenced_late",
        ConnectionsAccepted = "connections_accepted",
        /// Handed to another shard at accept.
        ConnectionsMoved = "connections_moved",
        /// To be handed over, but that shard's mailbox or the process's descriptors had no room.
        ConnectionsKept = "connections_kept",
        EventsRelayed = "events_relayed",
        /// Bytes of answers written to clients.
        BytesRelayed = "bytes_relayed",
        EngineReads = "engine_reads",
        ClientWrites = "client_writes",
        PoolHits = "pool_hits",
        PoolMisses = "pool_misses",
        /// Messages for this shard that found its mailbox full.
        MailDropped = "mail_dropped",
        /// Rows that found the way to the journal full.
        JournalDropped = "journal_dropped",
        // Gauges from here on (see `FIRST_GAUGE`).
        ConnectionsOpen = "connections_open",
        Queued = "queued",
        PrefillWaiting = "prefill_waiting",
        DecodeWaiting = "decode_waiting",
        StreamsActive = "streams_active",
        LegsOpen = "legs_open",
        PoolIdle = "pool_idle",
    }
}

impl Cell {
    /// Gauges go down again and are exactly 0 at rest; counters never do.
    pub const fn is_gauge(self) -> bool {
        self.index() >= FIRST_GAUGE
    }
}

/// One shard's block. Share it by `Arc`; only the shard that owns it may call [`ShardLedger::update`].
#[derive(Debug)]
#[repr(align(128))]
pub struct ShardLedger {
    sequence: AtomicU64,
    cells: [AtomicU64; SLOTS],
}

impl ShardLedger {
    pub const fn new() -> Self {
        ShardLedger {
            sequence: AtomicU64::new(0),
            cells: [const { AtomicU64::new(0) }; SLOTS],
        }
    }

    /// One transition: readers see all of it or nothing. Only for the owning shard's thread; not re-entrant.
    pub fn update(&self, f: impl FnOnce(&mut Tx<'_>)) {
        let before = self.sequence.load(Relaxed);
        debug_assert!(
            before.is_multiple_of(2),
            "a ledger has one writer and no nested update"
        );
        self.sequence.store(before.wrapping_add(1), Relaxed);
        fence(Release);
        let mut tx = Tx {
            ledger: self,
            before,
        };
        f(&mut tx);
        drop(tx);
        debug_assert!(self.balanced());
    }

    /// A consistent copy. Never blocks the writer; spins while an update (some dozen stores) is under way.
    pub fn snapshot(&self) -> Counts {
        let mut counts = Counts::default();
        loop {
            let before = self.sequence.load(Acquire);
            if before.is_multiple_of(2) {
                for (slot, cell) in counts.slots.iter_mut().zip(&self.cells) {
                    *slot = cell.load(Relaxed);
                }
                fence(Acquire);
                if self.sequence.load(Relaxed) == before {
                    return counts;
                }
            }
            std::hint::spin_loop();
        }
    }

    /// One cell, at any moment: for choices that need no consistency, such as the least-loaded shard.
    pub fn peek(&self, cell: Cell) -> u64 {
        self.cells[CELLS_AT + cell.index()].load(Relaxed)
    }

    /// Exchanges offered and not ended, at any moment.
    pub fn peek_inflight(&self) -> u64 {
        self.cells[INFLIGHT].load(Relaxed)
    }

    fn balanced(&self) -> bool {
        let at = |i: usize| self.cells[i].load(Relaxed);
        let ends: u64 = (ENDS_AT..CELLS_AT).map(at).sum();
        at(OFFERED) == ends + at(INFLIGHT)
    }
}

impl Default for ShardLedger {
    fn default() -> Self {
        Self::new()
    }
}

/// The moves of one update.
pub struct Tx<'a> {
    ledger: &'a ShardLedger,
    before: u64,
}

impl Tx<'_> {
    /// An exchange begins: offered and in flight.
    pub fn offer(&mut self) {
        self.plus(OFFERED, 1);
        self.plus(INFLIGHT, 1);
    }

    /// It ends, exactly once.
    pub fn end(&mut self, end: End) {
        self.minus(INFLIGHT, 1);
        self.plus(ENDS_AT + end.index(), 1);
    }

    pub fn add(&mut self, cell: Cell, n: u64) {
        self.plus(CELLS_AT + cell.index(), n);
    }

    /// Gauges only.
    pub fn sub(&mut self, cell: Cell, n: u64) {
        debug_assert!(cell.is_gauge(), "{} only grows", cell.name());
        self.minus(CELLS_AT + cell.index(), n);
    }

    /// Gauges only.
    pub fn set(&mut self, cell: Cell, n: u64) {
        debug_assert!(cell.is_gauge(), "{} only grows", cell.name());
        self.ledger.cells[CELLS_AT + cell.index()].store(n, Relaxed);
    }

    /// Brings a counter that somebody else keeps up to `n`.
    pub fn raise(&mut self, cell: Cell, n: u64) {
        let now = &self.ledger.cells[CELLS_AT + cell.index()];
        debug_assert!(now.load(Relaxed) <= n, "{} only grows", cell.name());
        now.store(n, Relaxed);
    }

    // One writer: a load and a store, not a locked add.
    fn plus(&mut self, slot: usize, n: u64) {
        let cell = &self.ledger.cells[slot];
        cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
    }

    fn minus(&mut self, slot: usize, n: u64) {
        let cell = &self.ledger.cells[slot];
        let now = cell.load(Relaxed);
        debug_assert!(now >= n, "slot {slot} would go below zero");
        cell.store(now.saturating_sub(n), Relaxed);
    }
}

impl Drop for Tx<'_> {
    /// Closes the update even when its closure panicked, so that no reader spins for ever.
    fn drop(&mut self) {
        self.ledger
            .sequence
            .store(self.before.wrapping_add(2), Release);
    }
}

/// A copy of a ledger, or the sum of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    slots: [u64; SLOTS],
}

impl Counts {
    pub fn offered(&self) -> u64 {
        self.slots[OFFERED]
    }

    pub fn inflight(&self) -> u64 {
        self.slots[INFLIGHT]
    }

    pub fn end(&self, end: End) -> u64 {
        self.slots[ENDS_AT + end.index()]
    }

    /// All ends of one outcome, whatever the reason.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        let of = |e: &&End| e.outcome() == outcome;
        End::ALL.iter().filter(of).map(|e| self.end(*e)).sum()
    }

    pub fn ended(&self) -> u64 {
        self.slots[ENDS_AT..CELLS_AT].iter().sum()
    }

    pub fn cell(&self, cell: Cell) -> u64 {
        self.slots[CELLS_AT + cell.index()]
    }

    /// Adds another shard's counts. Each part was consistent, so the sum keeps the invariant.
    pub fn add(&mut self, other: &Counts) {
        for (a, b) in self.slots.iter_mut().zip(&other.slots) {
            *a = a.wrapping_add(*b);
        }
    }

    pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Counts>) -> Counts {
        let mut out = Counts::default();
        parts.into_iter().for_each(|c| out.add(c));
        out
    }

    /// offered = Σ ends + in flight.
    pub fn balanced(&self) -> bool {
        self.offered() == self.ended() + self.inflight()
    }

    /// Nothing in flight and every gauge exactly 0.
    pub fn at_rest(&self) -> bool {
        self.inflight() == 0
            && Cell::ALL
                .iter()
                .all(|c| !c.is_gauge() || self.cell(*c) == 0)
    }
}

impl Default for Counts {
    fn default() -> Self {
        Counts { slots: [0; SLOTS] }
    }
}

const OFFERED: usize = 0;
const INFLIGHT: usize = 1;
const ENDS_AT: usize = 2;
const CELLS_AT: usize = ENDS_AT + End::COUNT;
const SLOTS: usize = CELLS_AT + Cell::COUNT;
const FIRST_GAUGE: usize = Cell::ConnectionsOpen.index();

const _: () =
    assert!(align_of::<ShardLedger>() >= 128 && size_of::<ShardLedger>().is_multiple_of(128));

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::base::prng::Prng;
    use crate::metrics::outcome::{FailReason, Stage};

    // proves R-ADM-10
    #[test]
    fn every_end_lands_in_its_own_cell() {
        let ledger = ShardLedger::new();
        for end in End::ALL {
            ledger.update(|t| t.offer());
            assert_eq!(ledger.snapshot().inflight(), 1);
            ledger.update(|t| t.end(end));
        }
        let counts = ledger.snapshot();
        assert_eq!(counts.offered(), End::COUNT as u64);
        assert!(End::ALL.iter().all(|e| counts.end(*e) == 1));
        assert!(counts.balanced() && counts.at_rest());
        let by_outcome: u64 = Outcome::ALL.iter().map(|o| counts.outcome(*o)).sum();
        assert_eq!(by_outcome, counts.ended());
    }

    #[test]
    fn cells_add_set_and_sum() {
        let (a, b) = (ShardLedger::new(), ShardLedger::new());
        a.update(|t| {
            t.add(Cell::BytesRelayed, 10);
            t.add(Cell::ConnectionsOpen, 3);
            t.sub(Cell::ConnectionsOpen, 1);
            t.set(Cell::PoolIdle, 5);
        });
        b.update(|t| {
            t.offer();
            t.end(End::Failed(FailReason::Decode));
            t.add(Cell::BytesRelayed, 7);
        });
        let sum = Counts::sum([&a.snapshot(), &b.snapshot()]);
        assert_eq!(sum.cell(Cell::BytesRelayed), 17);
        assert_eq!(sum.cell(Cell::ConnectionsOpen), 2);
        assert_eq!((a.peek(Cell::PoolIdle), b.peek_inflight()), (5, 0));
        assert_eq!(sum.outcome(Outcome::Failed), 1);
        assert!(!sum.at_rest() && sum.balanced());
    }

    #[test]
    fn a_panicking_update_leaves_the_ledger_readable() {
        let ledger = ShardLedger::new();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ledger.update(|t| {
                t.offer();
                panic!("on purpose");
            });
        }));
        assert!(caught.is_err());
        assert_eq!(ledger.snapshot().inflight(), 1);
    }

    /// One writer at full speed, two readers: a mixture of two moments would break the balance, and the paired cells
    /// (always moved together, first and last of the block) would differ.
    // proves R-ADM-10
    #[test]
    fn snapshots_balance_while_the_shard_writes() {
        const UPDATES: u64 = 300_000;
        let ledger = Arc::new(ShardLedger::new());
        let done = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (ledger, done) = (ledger.clone(), done.clone());
                std::thread::spawn(move || {
                    let (mut seen, mut last) = (0u64, 0);
                    while !done.load(Acquire) || seen == 0 {
                        let c = ledger.snapshot();
                        assert!(c.balanced(), "{c:?}");
                        assert_eq!(c.offered(), c.cell(Cell::UnsizedOffered));
                        assert_eq!(c.inflight(), c.cell(Cell::PoolIdle));
                        assert!(c.offered() >= last, "time ran back");
                        (last, seen) = (c.offered(), seen + 1);
                    }
                    seen
                })
            })
            .collect();
        let mut chance = Prng::new(11);
        let mut live = 0;
        for _ in 0..UPDATES {
            let ending = live > 0 && chance.below(2) == 0;
            let end = End::ALL[chance.below(End::COUNT as u64) as usize];
            ledger.update(|t| {
                if ending {
                    t.end(end);
                    t.sub(Cell::PoolIdle, 1);
                } else {
                    t.offer();
                    t.add(Cell::UnsizedOffered, 1);
                    t.add(Cell::PoolIdle, 1);
                }
            });
            live = if ending { live - 1 } else { live + 1 };
        }
        while live > 0 {
            ledger.update(|t| {
                t.end(End::Cancelled(Stage::Relay));
                t.sub(Cell::PoolIdle, 1);
            });
            live -= 1;
        }
        done.store(true, Release);
        for r in readers {
            assert!(r.join().unwrap() > 0);
        }
        assert!(ledger.snapshot().at_rest());
    }
}
