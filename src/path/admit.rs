//! Stage `admit`: may this request be in flight, and how long is its prompt?
//!
//! Before the body: retention, saturation, held router, no live engine, declared size. After the checks: the prompt's token count (our
//! own for token arrays, the engine's `/tokenize` otherwise, an estimate where that is off or missing), then a seat or a wait for one.
//! Order is the contract's: an overloaded or held router answers before it looks at the body.

use std::time::Duration;

use super::Stage;
use super::answer::Refusal;
use super::exchange::{Cx, Exchange};
use super::fault::Cause;
use crate::base::units::{EngineId, Leg};
use crate::metrics::histogram::Series;
use crate::metrics::ledger::Cell;
use crate::metrics::outcome::{End, RejectReason};
use crate::metrics::standing::Standing;
use crate::shard::Note;
use crate::shard::gate::Asked;
use crate::shard::waits::Awaited;
use crate::wire::dialect::vllm;
use crate::wire::openai::Prompt;

const OVERLOADED: Refusal = Refusal::new(
    429,
    "server_overloaded_error",
    "The router is at its capacity",
)
.retry_after(1);

impl Exchange {
    /// The gates that need no body. True when the request may go on.
    pub fn admit_head(&mut self, cx: &mut Cx) -> bool {
        let shard = cx.shard.id.index();
        self.retained = cx.shard.shared.retained.acquire(shard);
        if self.retained.is_none() {
            self.refuse(cx, OVERLOADED, End::Rejected(RejectReason::Retained));
            return false;
        }
        if cx.shard.is_saturated() {
            self.refuse(cx, OVERLOADED, End::Rejected(RejectReason::Saturated));
            return false;
        }
        if let Some(standing) = cx.shard.shared.held() {
            self.refuse_held(cx, standing);
            return false;
        }
        if !cx.shard.any_available() {
            let refusal = Refusal::new(
                503,
                "backend_unavailable",
                "No inference engine is available",
            )
            .code("backend_unavailable")
            .retry_after(1);
            self.refuse(cx, refusal, End::Rejected(RejectReason::NotReady));
            return false;
        }
        true
    }

    pub fn refuse_held(&mut self, cx: &mut Cx, standing: Standing) {
        let reason = match standing {
            Standing::Draining => RejectReason::Draining,
            _ => RejectReason::Standby,
        };
        let refusal = Refusal::new(503, "standby", "This router is not serving")
            .code("standby")
            .retry_after(1);
        self.refuse(cx, refusal, End::Rejected(reason));
    }

    /// The request is checked: find its size.
    pub fn size(&mut self, cx: &mut Cx) {
        self.stage = Stage::Admit;
        self.marks.checked = cx.now;
        match self.request().prompt {
            Prompt::Counted(tokens) => self.sized(cx, tokens, false),
            Prompt::Text { .. } if !self.plan.fleet.engine.tokenize => self.estimate(cx),
            Prompt::Text { .. } => self.ask_count(cx, false),
        }
    }

    /// Asks the least busy engine that this request has not asked yet.
    fn ask_count(&mut self, cx: &mut Cx, fresh: bool) {
        let engine = if fresh {
            self.counters_asked.last().copied()
        } else {
            cx.shard.counter(cx.now, &self.counters_asked)
        };
        let Some(engine) = engine else {
            return self.refuse_no_engine(cx);
        };
        if cx.shard.shared.board.line(engine).tokenize_missing() {
            return self.estimate(cx);
        }
        if !fresh {
            self.counters_asked.push(engine);
        }
        let mut body = cx.shard.take_buffer();
        let model = &self.plan.fleet.model;
        vllm::tokenize_body(&mut body, &self.body, self.request(), self.route, model);
        cx.shard.count(Cell::TokenizeAttempts);
        let bound = cx.now + self.plan.fleet.engine.tokenize_timeout;
        self.collected.clear();
        self.open_leg(cx, Leg::Tokenize, engine, &body, fresh, bound);
        cx.shard.give_buffer(body);
    }

    /// The whole answer of `/tokenize` is in `collected`.
    pub fn counted(&mut self, cx: &mut Cx, engine: EngineId, status: u16) {
        match status {
            200 => match vllm::tokenize_count(&self.collected) {
                Some(tokens) => {
                    cx.shard.counter_answered(engine);
                    self.sized(cx, tokens, false);
                }
                None => self.count_failed(cx, engine, Cause::BadCount),
            },
            404 | 405 | 501 => {
                if cx.shard.shared.board.line(engine).mark_tokenize_missing() {
                    cx.shard.note(Note::TokenizeMissing(engine));
                }
                self.estimate(cx);
            }
            status => self.count_failed(cx, engine, Cause::Status(status)),
        }
    }

    /// A count failed. Another engine is asked, free of credits; this one is left alone for a while.
    pub fn count_failed(&mut self, cx: &mut Cx, engine: EngineId, cause: Cause) {
        cx.io.close_leg(0);
        if cause == Cause::StaleSocket {
            return self.ask_count(cx, true);
        }
        self.note_fault(cx, Leg::Tokenize, engine, cause);
        if let Some(class) = cause.class() {
            // It was left alone for a while for it; a prompt that is not counted is no prompt that is not read.
            cx.shard.shared.board.line(engine).count_fault(class);
        }
        if cause.is_refusal() {
            return self.pass_refusal(cx, cause);
        }
        if cause.is_transient() {
            cx.shard.counter_failed(cx.now, engine);
            let tries = self.counters_asked.len();
            let max = self.plan.fleet.serving.max_attempts as usize;
            if tries < max && cx.shard.counter(cx.now, &self.counters_asked).is_some() {
                return self.ask_count(cx, false);
            }
        }
        self.answer_fault(cx, cause);
    }

    fn estimate(&mut self, cx: &mut Cx) {
        let per_token = self.plan.fleet.engine.chars_per_token;
        let tokens = self.request().estimate(per_token);
        self.sized(cx, tokens, true);
    }

    /// The size is known: take a seat, or a place in the queue.
    fn sized(&mut self, cx: &mut Cx, tokens: u64, estimated: bool) {
        (self.prompt_tokens, self.sized_tokens) = (tokens, tokens);
        self.estimated = estimated;
        self.marks.sized = cx.now;
        // The router may have been held while the count was awaited.
        if let Some(standing) = cx.shard.shared.stopped() {
            return self.refuse_held(cx, standing);
        }
        let began = cx.shard.tick();
        self.read_prefix(cx);
        if !self.is_promising(cx, false) {
            return cx.shard.took(Series::Admit, began);
        }
        let asked = cx.shard.ask(Awaited::Seat, self.token);
        cx.shard.took(Series::Admit, began);
        match asked {
            Asked::Permit(permit) => {
                cx.shard.times.record(Series::QueueWait, Duration::ZERO);
                self.seat = Some(permit);
                self.seated(cx);
            }
            Asked::Waits(ticket) => {
                let bound = cx.now + self.plan.fleet.serving.queue_timeout;
                self.wait_in_line(cx, (Awaited::Seat, ticket), Some(bound));
                self.price_again_later(cx);
            }
            Asked::Full => {
                let reason = match cx.shard.snapshot.fleet.serving.queue_capacity {
                    0 => RejectReason::Seats,
                    _ => RejectReason::QueueFull,
                };
                self.refuse(cx, OVERLOADED, End::Rejected(reason));
            }
        }
    }

    /// It has a seat: at once, or after a wait.
    pub fn seated(&mut self, cx: &mut Cx) {
        self.marks.admitted = cx.now;
        self.place(cx);
    }
}
