//! The one table of failures: what happened, and whether output had gone out, decide between another attempt, an answer and a cut stream.
//! No other code chooses a status for an engine's failure.
//!
//! | cause | transient | status when it is answered |
//! |---|---|---|
//! | no connection, connection lost, not HTTP | yes | 502 |
//! | connect, prefill, first token, gap, count time-out | yes | 504 |
//! | the local pool is exhausted | no | 504 |
//! | engine status or error 408, 504 | yes | 504 |
//! | engine status or error 429, 500, 502, 503 | yes | 502 |
//! | engine status or error 400, 413, 422 | no | passed on with the engine's message |
//! | any other engine status | no | 502 |
//! | a count that is none | yes, of another engine | 502 |
//! | token ids that break the rule, end before `[DONE]`, `[DONE]` before a token, `abort` | yes | 502 |
//! | bad handoff, prefill answer not JSON | no | 502 |
//! | handoff too old | yes | 504 `handoff_expired` |
//! | unusable for assembly, response limit | no | 502 |
//!
//! After output a stream is cut with one error event, whatever the cause.

use super::answer::{self, Refusal};
use super::exchange::{Cx, Exchange};
use super::leg::LegFault;
use super::timers::Timer;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Leg, Phase};
use crate::fleet::breaker::FaultClass;
use crate::fleet::pick::Placement;
use crate::metrics::ledger::Cell;
use crate::metrics::outcome::{End, ExpireReason, FailReason, InvalidReason};

use super::Stage;

/// Why an attempt, or a request for a count, failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Leg(LegFault),
    /// The answer broke off, on a pooled socket, before its first byte.
    StaleSocket,
    BadHttp,
    Timeout,
    PoolStarved,
    /// An error status, or an error object in a 200.
    Status(u16),
    BadIds,
    /// EOF before `[DONE]`, or `[DONE]` before a token.
    Termination,
    Abort,
    /// An answer that holds no count.
    BadCount,
    Handoff,
    HandoffExpired,
    Assembly,
    ResponseLimit,
}

impl Cause {
    pub fn is_transient(self) -> bool {
        match self {
            Cause::Leg(_) | Cause::StaleSocket | Cause::BadHttp | Cause::Timeout => true,
            Cause::Status(status) => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            Cause::BadIds | Cause::Termination | Cause::Abort | Cause::HandoffExpired => true,
            Cause::BadCount => true,
            Cause::PoolStarved | Cause::Handoff | Cause::Assembly | Cause::ResponseLimit => false,
        }
    }

    /// The engine's own verdict on the request, which the client gets to see.
    pub fn is_refusal(self) -> bool {
        matches!(self, Cause::Status(400 | 413 | 422))
    }

    pub fn status(self) -> u16 {
        match self {
            Cause::Timeout | Cause::PoolStarved | Cause::Status(408 | 504) => 504,
            Cause::HandoffExpired => 504,
            _ => 502,
        }
    }

    /// What it says about the engine; `None` when it says nothing bad.
    pub fn class(self) -> Option<FaultClass> {
        match self {
            Cause::Leg(LegFault::Connect) => Some(FaultClass::Connection),
            // It took the connection, so it is there.
            Cause::Leg(LegFault::Broken) => Some(FaultClass::Stream),
            Cause::Leg(LegFault::Shortage) => None,
            // An engine may close what is idle.
            Cause::StaleSocket => None,
            Cause::Timeout => Some(FaultClass::Timeout),
            Cause::Status(429 | 503) => Some(FaultClass::Overload),
            Cause::Status(408 | 500..) => Some(FaultClass::InferenceStatus),
            Cause::Status(_) | Cause::PoolStarved => None,
            Cause::Handoff => Some(FaultClass::KvHandoff),
            // It grew old here.
            Cause::HandoffExpired => None,
            Cause::BadHttp | Cause::BadIds | Cause::Termination | Cause::Abort => {
                Some(FaultClass::Stream)
            }
            Cause::BadCount => Some(FaultClass::Stream),
            Cause::Assembly | Cause::ResponseLimit => None,
        }
    }
}

impl Exchange {
    /// An attempt failed at `engine`. Retries, answers or cuts.
    pub fn fail(&mut self, cx: &mut Cx, engine: EngineId, cause: Cause) {
        debug_assert!(!self.is_over());
        if let Some(class) = cause.class() {
            self.blame(cx, engine, class);
        }
        let leg = match self.phase() {
            Stage::Prefill => Leg::Prefill,
            _ => Leg::Decode,
        };
        self.note_fault(cx, leg, engine, cause);
        cx.io.close_leg(0);
        if self.room.is_some() {
            // Without its other half neither leg gets on: engines would hold it until a time-out of their own.
            cx.io.close_leg(1);
        }
        self.release_attempt(cx);
        if self.relay.started() {
            answer::end_stream_with(cx.io, "Upstream request failed", "failed");
            return self.finish(cx, End::Failed(self.fail_reason(cause)));
        }
        if cause.is_refusal() {
            return self.pass_refusal(cx, cause);
        }
        // A socket that died between two uses proves nothing about its engine, which may be the only one: the next legs of this
        // request take new sockets, of another engine where there is one, as this may be gone with all its sockets.
        // A handoff that grew old while it waited here says nothing at all.
        let stale = cause == Cause::StaleSocket;
        self.fresh_sockets |= stale;
        if stale {
            self.avoid.doubt(engine);
        } else if cause != Cause::HandoffExpired {
            self.avoid.failed(engine);
            if let (Stage::Decode, Some(Placement::TwoLegs { prefill, .. })) =
                (self.phase(), self.placement)
            {
                self.avoid.produced(prefill);
            }
        }
        if cause.is_transient() && self.attempt < self.plan.fleet.serving.max_attempts {
            if !self.has_engine_left(cx) {
                return self.refuse_no_engine(cx);
            }
            // A credit is for a retry that there will be.
            if let Some(at) = self.retry_at(cx)
                && (stale || cx.shard.shared.retries.take())
            {
                return self.back_off(cx, at);
            }
        }
        self.answer_fault(cx, cause);
    }

    /// The prefill leg failed. Beside a decode leg that has brought tokens it has done its part: the KV is over there, and the
    /// failure only says something about its engine.
    pub fn prefill_failed(&mut self, cx: &mut Cx, engine: EngineId, cause: Cause) {
        if self.room.is_none() || self.relay.first_token.is_none() {
            self.stage = Stage::Prefill;
            return self.fail(cx, engine, cause);
        }
        if let Some(class) = cause.class() {
            cx.shard.blame(engine, Phase::Prefill, class);
        }
        self.note_fault(cx, Leg::Prefill, engine, cause);
        cx.io.close_leg(1);
        self.release_prefill(cx);
    }

    /// The engine has failed in the phase that this request is in. Before a token came the KV may be to blame, and who made it: both are
    /// suspected, and whoever is well shows it.
    fn blame(&self, cx: &Cx, engine: EngineId, class: FaultClass) {
        if self.phase() != Stage::Decode {
            return cx.shard.blame(engine, Phase::Prefill, class);
        }
        cx.shard.blame(engine, Phase::Decode, class);
        let may_be_kv = matches!(class, FaultClass::InferenceStatus | FaultClass::Timeout);
        if let (Some(Placement::TwoLegs { prefill, .. }), true, None) =
            (self.placement, may_be_kv, self.relay.first_token)
        {
            cx.shard
                .blame(prefill, Phase::Prefill, FaultClass::KvHandoff);
        }
    }

    /// No engine may take the (next) attempt.
    pub fn refuse_no_engine(&mut self, cx: &mut Cx) {
        if let Some(standing) = cx.shard.shared.stopped() {
            return self.refuse_held(cx, standing);
        }
        const NO_ENGINE: Refusal = Refusal::new(
            503,
            "backend_unavailable",
            "No inference engine is available",
        )
        .code("backend_unavailable")
        .retry_after(1);
        self.refuse(cx, NO_ENGINE, End::Failed(FailReason::NoEngine));
    }

    /// Full jitter: uniform in 0..min(cap, base × 2^retries). `None` when the deadline would come first.
    fn retry_at(&self, cx: &mut Cx) -> Option<Instant> {
        let serving = &self.plan.fleet.serving;
        let doublings = self.attempt.saturating_sub(1).min(16);
        let most = (serving.retry_base * 2u32.pow(doublings)).min(serving.retry_cap);
        let pause = most.mul_f64(cx.shard.prng.unit());
        Some(cx.now + pause).filter(|at| *at < self.deadline)
    }

    fn back_off(&mut self, cx: &mut Cx, until: Instant) {
        cx.shard.count(Cell::RetryAttempts);
        self.reset_attempt();
        self.stage = Stage::Place;
        cx.io.timers.set(Timer::Wait, until);
    }

    pub fn answer_fault(&mut self, cx: &mut Cx, cause: Cause) {
        if cause == Cause::HandoffExpired {
            let refusal = Refusal::new(504, "handoff_expired", "The KV handoff expired")
                .code("handoff_expired");
            return self.refuse(cx, refusal, End::Expired(ExpireReason::HandoffExpired));
        }
        let phase = self.phase().fault_name();
        let message = match cause {
            Cause::Assembly => "Invalid non-streaming upstream response",
            Cause::ResponseLimit => "Upstream response over the limit",
            _ if cause.status() == 504 => "Upstream request timed out",
            _ => "Upstream request failed",
        };
        let refusal = Refusal::new(cause.status(), phase, message).code(phase);
        self.refuse(cx, refusal, End::Failed(self.fail_reason(cause)));
    }

    /// The engine says the request itself is wrong: so does the answer, with the engine's words.
    pub fn pass_refusal(&mut self, cx: &mut Cx, cause: Cause) {
        let Cause::Status(status) = cause else { return };
        let message = self.refusal_message.take();
        let message = message
            .as_deref()
            .unwrap_or("The engine refused the request");
        let refusal = Refusal::new(status, "invalid_request_error", message);
        self.refuse(cx, refusal, End::Invalid(InvalidReason::EngineRejected));
    }

    fn fail_reason(&self, cause: Cause) -> FailReason {
        match cause {
            Cause::ResponseLimit => FailReason::ResponseLimit,
            Cause::Assembly => FailReason::Assembly,
            Cause::Handoff => FailReason::Handoff,
            Cause::PoolStarved => FailReason::Pool,
            _ => match self.phase() {
                Stage::Admit => FailReason::Admission,
                Stage::Prefill => FailReason::Prefill,
                _ => FailReason::Decode,
            },
        }
    }

    /// The stage as failures name it: relaying and assembling are decoding.
    fn phase(&self) -> Stage {
        match self.stage {
            Stage::Prefill | Stage::Decode | Stage::Admit => self.stage,
            Stage::Relay | Stage::Assemble => Stage::Decode,
            _ => Stage::Admit,
        }
    }
}

impl Stage {
    /// `type` and `code` of a failure's answer.
    fn fault_name(self) -> &'static str {
        match self {
            Stage::Prefill => "prefill",
            Stage::Decode => "decode",
            _ => "admission",
        }
    }
}
