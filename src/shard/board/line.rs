//! One engine's line on the board: what is outstanding there, why no work may go there, and what requests saw of it.
//!
//! Atomics only; load is added and taken back by the board's reservations alone.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::Phase;
use crate::base::time::Instant;
use crate::fleet::breaker::{FaultClass, Rows};
use crate::fleet::price;
use crate::metrics::standing::EngineLine;

/// One engine. What a placement reads of it lies in one cache line.
#[derive(Debug)]
#[repr(C)]
pub struct Line {
    pub(super) prefill_requests: AtomicU32,
    pub(super) decode_requests: AtomicU32,
    pub(super) prefill_tokens: AtomicU64,
    pub(super) decode_tokens: AtomicU64,
    /// Nanoseconds that the prompts outstanding were predicted to take.
    pub(super) prefill_ns: AtomicU64,
    /// When the engine last finished a prompt, or got one while it had none: what was outstanding then has run down since.
    pub(super) prefill_mark: AtomicU64,
    /// Tokens that the requests that decode may still generate.
    pub(super) output_tokens: AtomicU64,
    /// KV of handoffs that were never fetched, until their leases end.
    pub(super) orphaned_tokens: AtomicU64,
    /// Bits of an `f32`: live ÷ profiled interval between tokens.
    pub(super) correction: AtomicU32,
    /// Bits of [`flag`]: why no new work may go there. 0 when it may.
    pub(super) out: AtomicU8,
    pub(super) on_probation: AtomicBool,
    /// `/tokenize` answered 404, 405 or 501: sizes of its prompts are estimated from then on.
    pub(super) tokenize_missing: AtomicBool,
    /// TLS with it failed, which was told.
    pub(super) tls_failed: AtomicBool,
    /// Requests that generate, and the KV they hold on average meanwhile. The others that decode still wait for their prompts.
    pub(super) generating: AtomicU32,
    pub(super) generating_tokens: AtomicU64,
    /// Failures seen by requests, by class, and those in a row: evidence for whoever judges the engine.
    pub(super) faults: [AtomicU64; FaultClass::COUNT],
    pub(super) rows: [[AtomicU32; FaultClass::COUNT]; Phase::COUNT],
    /// What it is ejected for: a class by its place in [`FaultClass::ALL`], while the flag is set.
    pub(super) ejected_for: AtomicU8,
    /// Handoffs made here that nobody has fetched yet, as far as this router knows.
    pub(super) handoffs: AtomicU32,
}

const _: () = assert!(std::mem::offset_of!(Line, tokenize_missing) <= 64);

/// Why no new work may go to an engine.
mod flag {
    /// It misses its health probes.
    pub const DEAD: u8 = 1;
    /// Its breaker is open.
    pub const EJECTED: u8 = 2;
    /// It was slow for too long.
    pub const EVICTED: u8 = 4;
    /// Operators want it to empty.
    pub const HELD: u8 = 8;
    /// It is not of the fleet, or not on all shards yet.
    pub const AWAY: u8 = 16;
}

impl Line {
    /// Every engine starts alive: the first failed probe or request says otherwise.
    pub(super) fn new() -> Line {
        Line {
            prefill_requests: AtomicU32::new(0),
            decode_requests: AtomicU32::new(0),
            prefill_tokens: AtomicU64::new(0),
            decode_tokens: AtomicU64::new(0),
            prefill_ns: AtomicU64::new(0),
            prefill_mark: AtomicU64::new(0),
            output_tokens: AtomicU64::new(0),
            orphaned_tokens: AtomicU64::new(0),
            correction: AtomicU32::new(1f32.to_bits()),
            out: AtomicU8::new(0),
            on_probation: AtomicBool::new(false),
            tokenize_missing: AtomicBool::new(false),
            tls_failed: AtomicBool::new(false),
            generating: AtomicU32::new(0),
            generating_tokens: AtomicU64::new(0),
            faults: Default::default(),
            rows: Default::default(),
            ejected_for: AtomicU8::new(0),
            handoffs: AtomicU32::new(0),
        }
    }

    /// For an engine that comes: as at the start, but that no work goes there yet. Nothing may be at work here.
    pub fn begin_anew(&self) {
        debug_assert!(self.is_at_rest(), "the engine before has work");
        self.correction.store(1f32.to_bits(), Ordering::Relaxed);
        self.out.store(flag::AWAY, Ordering::Relaxed);
        for mark in [&self.on_probation, &self.tokenize_missing, &self.tls_failed] {
            mark.store(false, Ordering::Relaxed);
        }
        for count in &self.faults {
            count.store(0, Ordering::Relaxed);
        }
        self.prefill_mark.store(0, Ordering::Relaxed);
        self.forgive();
    }

    /// Nothing that requests have put here is left.
    pub fn is_at_rest(&self) -> bool {
        self.resident() == 0 && self.outstanding_tokens() == 0
    }

    /// Tokens of both phases that this router has outstanding there.
    pub fn outstanding_tokens(&self) -> u64 {
        let load = |tokens: &AtomicU64| tokens.load(Ordering::Relaxed);
        load(&self.prefill_tokens) + load(&self.decode_tokens) + load(&self.orphaned_tokens)
    }

    /// What placement is to know of it.
    pub fn load(&self, now: Instant) -> price::Load {
        let promised = self.prefill_ns.load(Ordering::Relaxed);
        let run_down = now
            .nanos()
            .saturating_sub(self.prefill_mark.load(Ordering::Relaxed));
        let orphaned = self.orphaned_tokens.load(Ordering::Relaxed);
        price::Load {
            backlog_s: promised.saturating_sub(run_down) as f64 / 1e9,
            prompts: u64::from(self.requests(Phase::Prefill)),
            residents: u64::from(self.requests(Phase::Decode)),
            kv_tokens: self.decode_tokens.load(Ordering::Relaxed) + orphaned,
            output_tokens: self.output_tokens.load(Ordering::Relaxed),
        }
    }

    /// Requests that generate there now, and the KV that they hold, as far as it is known.
    pub fn generating(&self) -> (u64, u64) {
        let tokens = self.generating_tokens.load(Ordering::Relaxed);
        (u64::from(self.generating.load(Ordering::Relaxed)), tokens)
    }

    pub fn requests(&self, phase: Phase) -> u32 {
        self.cells(phase).0.load(Ordering::Relaxed)
    }

    /// Whether new work may go there.
    pub fn available(&self) -> bool {
        self.out.load(Ordering::Relaxed) == 0
    }

    /// The same but for whether it was evicted for being slow.
    pub fn would_be_available(&self) -> bool {
        self.out.load(Ordering::Relaxed) & !flag::EVICTED == 0
    }

    /// A failure of this class, that says nothing of a phase.
    pub fn count_fault(&self, class: FaultClass) {
        self.faults[class.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// A failure in this phase: how many of its class in a row that makes.
    pub fn count_failure(&self, phase: Phase, class: FaultClass) -> u32 {
        self.count_fault(class);
        let row = self.rows[phase as usize][class.index()].fetch_add(1, Ordering::Relaxed);
        row.saturating_add(1)
    }

    pub fn faults(&self, class: FaultClass) -> u64 {
        self.faults[class.index()].load(Ordering::Relaxed)
    }

    pub fn rows(&self) -> Rows {
        let row = |phase: usize, i: usize| self.rows[phase][i].load(Ordering::Relaxed);
        std::array::from_fn(|phase| std::array::from_fn(|i| row(phase, i)))
    }

    /// It has done what it was asked for in this phase: no row of it goes on.
    pub fn did_well(&self, phase: Phase) {
        for row in &self.rows[phase as usize] {
            // Read first: a line that is only read stays in every core's cache.
            if row.load(Ordering::Relaxed) != 0 {
                row.store(0, Ordering::Relaxed);
            }
        }
    }

    /// It begins anew.
    pub fn forgive(&self) {
        self.did_well(Phase::Prefill);
        self.did_well(Phase::Decode);
    }

    /// It comes back by an operator's word, whatever it was out for.
    pub fn readmit(&self) {
        self.forgive();
        // Its breaker sees that it is no longer out.
        self.set_ejected(false);
        self.set_evicted(false);
        self.set_on_probation(false);
        self.set_live(true);
        self.set_held(false);
    }

    /// KV of a prompt waits here to be fetched.
    pub fn handoff_made(&self) {
        self.handoffs.fetch_add(1, Ordering::Relaxed);
    }

    pub fn handoff_over(&self) {
        let before = self.handoffs.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a handoff ended twice");
    }

    /// All that would be lost if it stopped now: requests of both phases, and handoffs on their way.
    pub fn resident(&self) -> u32 {
        let handoffs = self.handoffs.load(Ordering::Relaxed);
        self.requests(Phase::Prefill) + self.requests(Phase::Decode) + handoffs
    }

    pub fn is_live(&self) -> bool {
        !self.has(flag::DEAD)
    }

    pub fn is_ejected(&self) -> bool {
        self.has(flag::EJECTED)
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.out.load(Ordering::Relaxed) & flag != 0
    }

    pub(super) fn set(&self, flag: u8, on: bool) {
        match on {
            true => self.out.fetch_or(flag, Ordering::Relaxed),
            false => self.out.fetch_and(!flag, Ordering::Relaxed),
        };
    }

    /// Live ÷ profiled interval between tokens, as learned.
    pub fn correction(&self) -> f64 {
        f64::from(f32::from_bits(self.correction.load(Ordering::Relaxed)))
    }

    /// What is no positive number changes nothing.
    pub fn set_correction(&self, correction: f64) {
        let correction = correction as f32;
        if correction.is_normal() && correction > 0.0 {
            self.correction
                .store(correction.to_bits(), Ordering::Relaxed);
        }
    }

    /// It was slow of late: new work goes there only at a price.
    pub fn is_on_probation(&self) -> bool {
        self.on_probation.load(Ordering::Relaxed)
    }

    pub fn set_on_probation(&self, on_probation: bool) {
        self.on_probation.store(on_probation, Ordering::Relaxed);
    }

    /// It was slow for so long that no new work goes there.
    pub fn is_evicted(&self) -> bool {
        self.has(flag::EVICTED)
    }

    pub fn set_evicted(&self, evicted: bool) {
        self.set(flag::EVICTED, evicted);
    }

    /// Operators want it to empty.
    pub fn is_held(&self) -> bool {
        self.has(flag::HELD)
    }

    pub fn set_held(&self, held: bool) {
        self.set(flag::HELD, held);
    }

    /// It left the fleet, or has not come yet.
    pub fn is_away(&self) -> bool {
        self.has(flag::AWAY)
    }

    pub fn set_away(&self, away: bool) {
        self.set(flag::AWAY, away);
    }

    pub fn set_live(&self, live: bool) {
        self.set(flag::DEAD, !live);
    }

    /// No new work goes there, for this.
    pub fn eject(&self, class: FaultClass) {
        self.ejected_for
            .store(class.index() as u8, Ordering::Relaxed);
        self.set(flag::EJECTED, true);
    }

    pub fn set_ejected(&self, ejected: bool) {
        self.set(flag::EJECTED, ejected);
    }

    pub fn ejected_for(&self) -> Option<FaultClass> {
        let class = self.ejected_for.load(Ordering::Relaxed);
        let class = FaultClass::ALL.get(usize::from(class)).copied();
        class.filter(|_| self.is_ejected())
    }

    /// Failures of requests, by class.
    pub fn failures(&self) -> [u64; FaultClass::COUNT] {
        std::array::from_fn(|i| self.faults[i].load(Ordering::Relaxed))
    }

    pub fn tokenize_missing(&self) -> bool {
        self.tokenize_missing.load(Ordering::Relaxed)
    }

    /// Whether this call was the first to say so.
    pub fn mark_tokenize_missing(&self) -> bool {
        !self.tokenize_missing.swap(true, Ordering::Relaxed)
    }

    /// Whether this call was the first to say so.
    pub fn mark_tls_failed(&self) -> bool {
        !self.tls_failed.swap(true, Ordering::Relaxed)
    }

    pub(super) fn cells(&self, phase: Phase) -> (&AtomicU32, &AtomicU64) {
        match phase {
            Phase::Prefill => (&self.prefill_requests, &self.prefill_tokens),
            Phase::Decode => (&self.decode_requests, &self.decode_tokens),
        }
    }
}

impl From<&Line> for EngineLine {
    fn from(line: &Line) -> Self {
        EngineLine {
            prefill_requests: u64::from(line.requests(Phase::Prefill)),
            decode_requests: u64::from(line.requests(Phase::Decode)),
            outstanding_tokens: line.outstanding_tokens(),
            live: line.is_live(),
            ejected: line.is_ejected(),
            evicted: line.is_evicted(),
            held: line.is_held(),
            on_probation: line.is_on_probation(),
        }
    }
}
