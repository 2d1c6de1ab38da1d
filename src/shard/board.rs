//! The load board: one padded line per engine, written by every shard, read by every placement.
//!
//! A line says what this router has outstanding on an engine and whether the control thread believes it alive.
//! Owns atomics only; a [`Reservation`] is the one way to add load and must be handed back. Who reserves learns how many were there
//! before: if more than when the prices were read, others have come in between, and the placement is looked at again.
//! Invariant at rest: every count is 0.

mod kv;

mod line;

use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;

pub use self::kv::KvHold;
pub use self::line::Line;
use super::slots::Slots;
use crate::base::time::Instant;
use crate::base::units::EngineId;
pub use crate::base::units::Phase;
use crate::fleet::price;

/// All engines' lines.
#[derive(Debug)]
pub struct Board {
    lines: Slots<CachePadded<Line>>,
}

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
        Board {
            lines: Slots::new(engines, |_| CachePadded::new(Line::new())),
        }
    }

    /// Lines for so many engines.
    pub fn grow(&self, engines: usize) {
        self.lines.grow(engines, |_| CachePadded::new(Line::new()));
    }

    pub fn line(&self, engine: EngineId) -> &Line {
        &self.lines[engine]
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
