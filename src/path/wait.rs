//! Waiting in lines: for a seat, and for a place in a phase of an engine. Stages ask here and go on when they are let in, at once or later.
//!
//! A connection in a line is woken to look: its permit may have come, or the router is held and the wait is over. A wait has a bound of
//! its own beside the request's deadline: `queue_timeout_s` for a seat, the handoff's age for decode. Whoever leaves gives its place up at
//! once. Invariant: `place_in_line.is_some()` ⇒ no leg of this exchange is at work.

use super::Stage;
use super::accept::Connection;
use super::answer::Refusal;
use super::exchange::{Cx, Exchange};
use super::fault::Cause;
use super::timers::Timer;
use crate::base::time::Instant;
use crate::base::units::EngineId;
use crate::fleet::pick::Placement;
use crate::metrics::histogram::Series;
use crate::metrics::outcome::{End, ExpireReason};
use crate::shard::Shard;
use crate::shard::board::Phase;
use crate::shard::gate::{Asked, Permit};
use crate::shard::waits::{Awaited, Place};

/// A place in a phase of an engine that this exchange holds.
#[derive(Debug)]
pub struct InPhase {
    engine: EngineId,
    permit: Permit,
}

impl Connection {
    /// What this connection waits for may have come, or its wait may be over.
    pub fn look(&mut self, shard: &mut Shard, now: Instant) {
        if let Some(exchange) = self.exchange.as_mut().filter(|x| !x.is_over()) {
            exchange.look(&mut Cx {
                shard,
                io: &mut self.io,
                now,
            });
        }
        self.after(shard, now);
    }
}

impl Exchange {
    fn look(&mut self, cx: &mut Cx) {
        let Some(place) = self.place_in_line else {
            return;
        };
        // Not even who was let in just now.
        if let Some(standing) = cx.shard.shared.stopped() {
            return self.refuse_held(cx, standing);
        }
        let Some(permit) = cx.shard.claim(place) else {
            return;
        };
        self.place_in_line = None;
        cx.io.timers.clear(Timer::Wait);
        cx.io.timers.clear(Timer::Price);
        match place.0 {
            Awaited::Seat => {
                self.note_wait(cx);
                // Held from here on, so that whatever ends the request gives it back.
                self.seat = Some(permit);
                if self.is_promising(cx, true) {
                    self.seated(cx);
                }
            }
            Awaited::Phase(engine, phase) => {
                self.phases[phase as usize] = Some(InPhase { engine, permit });
                if self.is_still_placed(cx) {
                    return self.advance_legs(cx);
                }
                // An engine has left meanwhile; nothing was sent yet.
                self.release_attempt(cx);
                self.attempt -= 1;
                self.place(cx);
            }
        }
    }

    /// Whether new work may still go where it is placed. A decode engine that comes after a handoff is placed anew by itself.
    fn is_still_placed(&self, cx: &Cx) -> bool {
        let available = |engine| cx.shard.shared.board.line(engine).available();
        match self.placement {
            Some(Placement::OneLeg { engine }) => available(engine),
            Some(Placement::TwoLegs { prefill, decode }) if self.runs_beside(cx) => {
                available(prefill) && available(decode)
            }
            Some(Placement::TwoLegs { prefill, .. }) => {
                !self.handoff.params.is_empty() || available(prefill)
            }
            None => true,
        }
    }

    /// Waits in a line, for `bound` at most.
    pub fn wait_in_line(&mut self, cx: &mut Cx, place: Place, bound: Option<Instant>) {
        self.place_in_line = Some(place);
        if let Some(bound) = bound {
            cx.io.timers.set(Timer::Wait, bound);
        }
    }

    /// The bound of a wait is over: in a line, or before another attempt.
    pub fn wait_over(&mut self, cx: &mut Cx) {
        match self.place_in_line {
            None => match cx.shard.shared.stopped() {
                Some(standing) => self.refuse_held(cx, standing),
                None => self.place(cx),
            },
            Some((Awaited::Seat, _)) => {
                let refusal = Refusal::new(504, "queue_expired", "No seat came free in time");
                self.refuse(cx, refusal, End::Expired(ExpireReason::QueueExpired));
            }
            Some((Awaited::Phase(engine, _), _)) => {
                self.stage = Stage::Decode;
                self.fail(cx, engine, Cause::HandoffExpired);
            }
        }
    }

    /// Leaves the line, if it is in one.
    pub fn leave_line(&mut self, cx: &mut Cx) {
        if let Some(place) = self.place_in_line.take() {
            if place.0 == Awaited::Seat {
                self.note_wait(cx);
            }
            cx.io.timers.clear(Timer::Wait);
            cx.shard.leave(place);
        }
    }

    /// The wait for a seat is over, with one or without.
    fn note_wait(&self, cx: &Cx) {
        let waited = cx.now.since(self.marks.sized);
        cx.shard.times.record(Series::QueueWait, waited);
    }

    /// Starts the legs of the attempt, as far as the phases of their engines have room; called again when one has.
    pub fn advance_legs(&mut self, cx: &mut Cx) {
        match self.placement {
            Some(Placement::OneLeg { engine }) => {
                if self.enter(cx, engine, Phase::Decode) {
                    self.decode(cx, engine, false);
                }
            }
            Some(Placement::TwoLegs { prefill, decode }) if self.runs_beside(cx) => {
                // Decode first, always: two that wait for each other's phase would wait for ever.
                if self.enter(cx, decode, Phase::Decode) && self.enter(cx, prefill, Phase::Prefill)
                {
                    self.room = Some(cx.shard.rooms.take(&mut cx.shard.prng));
                    self.decode(cx, decode, false);
                    self.prefill(cx, prefill, false);
                }
            }
            Some(Placement::TwoLegs { prefill, .. }) if self.handoff.params.is_empty() => {
                if self.enter(cx, prefill, Phase::Prefill) {
                    self.prefill(cx, prefill, false);
                }
            }
            Some(Placement::TwoLegs { .. }) => match self.decode_engine(cx) {
                Some(decode) if self.enter(cx, decode, Phase::Decode) => {
                    self.decode(cx, decode, false);
                }
                Some(_) => {}
                None => self.refuse_no_engine(cx),
            },
            None => debug_assert!(false, "legs without a placement"),
        }
    }

    /// Whether it holds a place in a phase of `engine`.
    pub fn is_in_phase(&self, engine: EngineId, phase: Phase) -> bool {
        let held = self.phases[phase as usize].as_ref();
        held.is_some_and(|held| held.engine == engine)
    }

    /// Where it is in a phase.
    pub fn phase_engine(&self, phase: Phase) -> Option<EngineId> {
        let held = self.phases[phase as usize].as_ref();
        held.map(|held| held.engine)
    }

    /// Gives back the place in a phase.
    pub fn leave_phase(&mut self, cx: &mut Cx, phase: Phase) {
        if let Some(InPhase { engine, permit }) = self.phases[phase as usize].take() {
            cx.shard.release(Awaited::Phase(engine, phase), permit);
        }
    }

    /// Whether this exchange is in; otherwise it waits.
    fn enter(&mut self, cx: &mut Cx, engine: EngineId, phase: Phase) -> bool {
        if cx.shard.shared.phase(engine, phase).is_none() {
            return true;
        }
        if let Some(held) = &self.phases[phase as usize] {
            if held.engine == engine {
                return true;
            }
            // Placed anew since.
            self.leave_phase(cx, phase);
        }
        self.stage = match phase {
            Phase::Prefill => Stage::Prefill,
            Phase::Decode => Stage::Decode,
        };
        match cx.shard.ask(Awaited::Phase(engine, phase), self.token) {
            Asked::Permit(permit) => {
                self.phases[phase as usize] = Some(InPhase { engine, permit });
                true
            }
            Asked::Waits(ticket) => {
                let bound = self.plan.fleet.engine.handoff_bound();
                let rides = !self.handoff.params.is_empty() && self.handoff_rides();
                let bound = bound.filter(|_| rides);
                let bound = bound.map(|bound| self.handoff.made + bound);
                self.wait_in_line(cx, (Awaited::Phase(engine, phase), ticket), bound);
                false
            }
            Asked::Full => {
                debug_assert!(false, "the line of a phase has room for every seat");
                true
            }
        }
    }
}
