//! The load board: one padded line per engine, written by every shard, read by every placement.
//!
//! A line says what this router has outstanding on an engine and whether the control thread believes it alive.
//! Owns atomics only; a [`Reservation`] is the one way to add load and must be handed back. Who reserves learns how many were there
//! before: if more than when the prices were read, others have come in between, and the placement is looked at again.
//! Invariant at rest: every count is 0.

mod class;

mod kv;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

pub use self::class::FaultClass;
pub use self::kv::KvHold;
use crate::base::time::Instant;
use crate::base::units::EngineId;
use crate::fleet::price;
use crate::metrics::standing::EngineLine;

/// Which phase of an engine a reservation loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Prefill,
    Decode,
}

impl Phase {
    pub const COUNT: usize = 2;
}

/// All engines' lines.
#[derive(Debug)]
pub struct Board {
    lines: Box<[CachePadded<Line>]>,
}

/// One engine. What a placement reads of it lies in one cache line.
#[derive(Debug)]
#[repr(C)]
pub struct Line {
    prefill_requests: AtomicU32,
    decode_requests: AtomicU32,
    prefill_tokens: AtomicU64,
    decode_tokens: AtomicU64,
    /// Nanoseconds that the prompts outstanding were predicted to take.
    prefill_ns: AtomicU64,
    /// When the engine last finished a prompt, or got one while it had none: what was outstanding then has run down since.
    prefill_mark: AtomicU64,
    /// Tokens that the requests that decode may still generate.
    output_tokens: AtomicU64,
    /// KV of handoffs that were never fetched, until their leases end.
    orphaned_tokens: AtomicU64,
    /// Bits of an `f32`: live ÷ profiled interval between tokens.
    correction: AtomicU32,
    live: AtomicBool,
    ejected: AtomicBool,
    on_probation: AtomicBool,
    evicted: AtomicBool,
    /// `/tokenize` answered 404, 405 or 501: sizes of its prompts are estimated from then on.
    tokenize_missing: AtomicBool,
    /// TLS with it failed, which was told.
    tls_failed: AtomicBool,
    /// Requests that generate, and the KV they hold on average meanwhile. The others that decode still wait for their prompts.
    generating: AtomicU32,
    generating_tokens: AtomicU64,
    /// Failures seen by requests, by class; evidence for whoever judges the engine.
    faults: [AtomicU64; FaultClass::ALL.len()],
}

const _: () = assert!(std::mem::offset_of!(Line, tokenize_missing) <= 64);

/// Load added to one engine. Dropping it without [`Board::release`] is a bug that debug builds catch.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation has to be released"]
pub struct Reservation {
    pub engine: EngineId,
    pub phase: Phase,
    charge: Charge,
    /// Requests in the phase when this one came.
    before: u32,
    generates: bool,
}

/// What one leg weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    pub tokens: u64,
    /// Predicted nanoseconds; 0 for decode, and without a profile.
    pub prefill_ns: u64,
    /// 0 for prefill.
    pub output_tokens: u64,
}

impl Board {
    /// Every engine starts alive: the first failed probe or request says otherwise.
    pub fn new(engines: usize) -> Self {
        let line = || {
            CachePadded::new(Line {
                prefill_requests: AtomicU32::new(0),
                decode_requests: AtomicU32::new(0),
                prefill_tokens: AtomicU64::new(0),
                decode_tokens: AtomicU64::new(0),
                prefill_ns: AtomicU64::new(0),
                prefill_mark: AtomicU64::new(0),
                output_tokens: AtomicU64::new(0),
                orphaned_tokens: AtomicU64::new(0),
                correction: AtomicU32::new(1f32.to_bits()),
                live: AtomicBool::new(true),
                ejected: AtomicBool::new(false),
                on_probation: AtomicBool::new(false),
                evicted: AtomicBool::new(false),
                tokenize_missing: AtomicBool::new(false),
                tls_failed: AtomicBool::new(false),
                generating: AtomicU32::new(0),
                generating_tokens: AtomicU64::new(0),
                faults: Default::default(),
            })
        };
        Board {
            lines: (0..engines).map(|_| line()).collect(),
        }
    }

    pub fn line(&self, engine: EngineId) -> &Line {
        &self.lines[engine.index()]
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub fn reserve(
        &self,
        engine: EngineId,
        phase: Phase,
        charge: Charge,
        now: Instant,
    ) -> Reservation {
        let line = self.line(engine);
        let (requests, outstanding) = line.cells(phase);
        let before = requests.fetch_add(1, Ordering::Relaxed);
        outstanding.fetch_add(charge.tokens, Ordering::Relaxed);
        line.output_tokens
            .fetch_add(charge.output_tokens, Ordering::Relaxed);
        if phase == Phase::Prefill {
            if before == 0 {
                line.prefill_mark.store(now.nanos(), Ordering::Relaxed);
            }
            line.prefill_ns
                .fetch_add(charge.prefill_ns, Ordering::Relaxed);
        }
        Reservation {
            engine,
            phase,
            charge,
            before,
            generates: false,
        }
    }

    /// The first token of a decode leg is there.
    pub fn generates(&self, reservation: &mut Reservation) {
        if !std::mem::replace(&mut reservation.generates, true) {
            let line = self.line(reservation.engine);
            line.generating.fetch_add(1, Ordering::Relaxed);
            let tokens = mean_tokens(&reservation.charge);
            line.generating_tokens.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    /// It is over, and nothing says how far the engine has come.
    pub fn release(&self, reservation: Reservation) {
        self.give_back(reservation, None);
    }

    /// The engine has finished it: what is outstanding there runs down from now.
    pub fn finish(&self, reservation: Reservation, now: Instant) {
        self.give_back(reservation, Some(now));
    }

    fn give_back(&self, reservation: Reservation, finished: Option<Instant>) {
        let Reservation { phase, charge, .. } = reservation;
        let line = self.line(reservation.engine);
        if reservation.generates {
            let tokens = mean_tokens(&charge);
            line.generating.fetch_sub(1, Ordering::Relaxed);
            line.generating_tokens.fetch_sub(tokens, Ordering::Relaxed);
        }
        let (requests, outstanding) = line.cells(phase);
        if phase == Phase::Prefill {
            if let Some(now) = finished {
                line.prefill_mark.store(now.nanos(), Ordering::Relaxed);
            }
            line.prefill_ns
                .fetch_sub(charge.prefill_ns, Ordering::Relaxed);
        }
        line.output_tokens
            .fetch_sub(charge.output_tokens, Ordering::Relaxed);
        let before = outstanding.fetch_sub(charge.tokens, Ordering::Relaxed);
        assert!(
            before >= charge.tokens,
            "more tokens came back than went out"
        );
        let before = requests.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a reservation was released twice");
    }
}

/// What is generated is there half of the time.
fn mean_tokens(charge: &Charge) -> u64 {
    charge.tokens - charge.output_tokens.min(charge.tokens) / 2
}

impl Reservation {
    /// Whether others have come since `seen` was read.
    pub fn was_raced(&self, seen: &price::Load) -> bool {
        let seen = match self.phase {
            Phase::Prefill => seen.prompts,
            Phase::Decode => seen.residents,
        };
        u64::from(self.before) > seen
    }

    /// A reading of its engine's line as it would be without it.
    pub fn leave_out(&self, load: &mut price::Load, outstanding_tokens: &mut u64) {
        let Charge {
            tokens,
            prefill_ns,
            output_tokens,
        } = self.charge;
        *outstanding_tokens = outstanding_tokens.saturating_sub(tokens);
        match self.phase {
            Phase::Prefill => {
                load.prompts = load.prompts.saturating_sub(1);
                load.backlog_s = (load.backlog_s - prefill_ns as f64 / 1e9).max(0.0);
            }
            Phase::Decode => {
                load.residents = load.residents.saturating_sub(1);
                load.kv_tokens = load.kv_tokens.saturating_sub(tokens);
                load.output_tokens = load.output_tokens.saturating_sub(output_tokens);
            }
        }
    }
}

impl Line {
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
        self.would_be_available() && !self.evicted.load(Ordering::Relaxed)
    }

    /// The same but for whether it was evicted for being slow.
    pub fn would_be_available(&self) -> bool {
        self.live.load(Ordering::Relaxed) && !self.ejected.load(Ordering::Relaxed)
    }

    pub fn count_fault(&self, class: FaultClass) {
        self.faults[class as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn faults(&self, class: FaultClass) -> u64 {
        self.faults[class as usize].load(Ordering::Relaxed)
    }

    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Relaxed)
    }

    pub fn is_ejected(&self) -> bool {
        self.ejected.load(Ordering::Relaxed)
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
        self.evicted.load(Ordering::Relaxed)
    }

    pub fn set_evicted(&self, evicted: bool) {
        self.evicted.store(evicted, Ordering::Relaxed);
    }

    pub fn set_live(&self, live: bool) {
        self.live.store(live, Ordering::Relaxed);
    }

    pub fn set_ejected(&self, ejected: bool) {
        self.ejected.store(ejected, Ordering::Relaxed);
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

    fn cells(&self, phase: Phase) -> (&AtomicU32, &AtomicU64) {
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
            on_probation: line.is_on_probation(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant::from_nanos(0);

    fn charge(tokens: u64) -> Charge {
        Charge {
            tokens,
            ..Charge::default()
        }
    }

    #[test]
    fn what_goes_out_comes_back() {
        let board = Board::new(2);
        let a = board.reserve(EngineId(1), Phase::Prefill, charge(100), T0);
        let b = board.reserve(EngineId(1), Phase::Decode, charge(30), T0);
        let line = board.line(EngineId(1));
        assert_eq!(line.outstanding_tokens(), 130);
        assert_eq!(
            (line.requests(Phase::Prefill), line.requests(Phase::Decode)),
            (1, 1)
        );
        assert_eq!(board.line(EngineId(0)).outstanding_tokens(), 0);
        board.release(a);
        board.release(b);
        assert_eq!(line.outstanding_tokens(), 0);
        assert_eq!(
            (line.requests(Phase::Prefill), line.requests(Phase::Decode)),
            (0, 0)
        );
    }

    // proves R-SCH-4
    #[test]
    fn those_that_generate_are_counted_apart() {
        let board = Board::new(1);
        let charge = Charge {
            tokens: 130,
            prefill_ns: 0,
            output_tokens: 30,
        };
        let line = board.line(EngineId(0));
        let mut a = board.reserve(EngineId(0), Phase::Decode, charge, T0);
        let mut b = board.reserve(EngineId(0), Phase::Decode, charge, T0);
        assert_eq!(line.generating(), (0, 0));
        board.generates(&mut a);
        board.generates(&mut a);
        assert_eq!(line.generating(), (1, 115));
        board.generates(&mut b);
        board.release(a);
        assert_eq!(line.generating(), (1, 115));
        board.release(b);
        assert_eq!(line.generating(), (0, 0));
    }

    #[test]
    fn availability_needs_every_word() {
        let board = Board::new(1);
        let line = board.line(EngineId(0));
        assert!(line.available());
        line.set_live(false);
        assert!(!line.available());
        line.set_live(true);
        line.set_ejected(true);
        assert!(!line.available());
        line.set_ejected(false);
        line.set_evicted(true);
        assert!(!line.available() && line.would_be_available());
        line.set_evicted(false);
        line.set_on_probation(true);
        assert!(line.available());
        assert!(line.mark_tokenize_missing());
        assert!(!line.mark_tokenize_missing() && line.tokenize_missing());
        assert!(line.mark_tls_failed() && !line.mark_tls_failed());
    }

    // proves R-SCH-2
    #[test]
    fn a_backlog_runs_down_from_when_the_engine_was_last_heard_of() {
        let board = Board::new(1);
        let engine = EngineId(0);
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        let seconds = |s: u64| Charge {
            tokens: 1,
            prefill_ns: s * 1_000_000_000,
            output_tokens: 0,
        };
        let backlog = |now: u64| board.line(engine).load(at(now)).backlog_s;
        // It became busy at 100.
        let a = board.reserve(engine, Phase::Prefill, seconds(5), at(100));
        let b = board.reserve(engine, Phase::Prefill, seconds(3), at(102));
        assert_eq!((backlog(102), backlog(107), backlog(120)), (6.0, 1.0, 0.0));
        // The first took longer than predicted: what is left is the second, whole.
        board.finish(a, at(120));
        assert_eq!((backlog(120), backlog(121)), (3.0, 2.0));
        // One that is given up says nothing of the other.
        let c = board.reserve(engine, Phase::Prefill, seconds(1), at(122));
        assert_eq!(backlog(122), 2.0);
        board.release(c);
        assert_eq!(backlog(122), 1.0);
        board.finish(b, at(123));
        assert_eq!(backlog(123), 0.0);
    }
}
