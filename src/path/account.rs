//! Stage `account`: the end of an exchange, exactly once. Everything held goes back, and the ledger learns how it ended.
//!
//! offered = ends + in flight, in every published block.

use super::Stage;
use super::accept::SLOTS;
use super::answer;
use super::assemble;
use super::exchange::{Cx, Exchange};
use super::fault::Cause;
use super::tail::{Account, Tail};
use super::timers::Timer;
use crate::base::limits;
use crate::base::time::Instant;
use crate::base::units::{Leg, Phase};
use crate::fleet::pick::Placement;
use crate::metrics::histogram::Series;
use crate::metrics::ledger::Cell;
use crate::metrics::outcome::End;
use crate::shard::waits::Awaited;

/// When things happened, and what was counted already.
#[derive(Debug, Default)]
pub struct Marks {
    pub body_done: Instant,
    pub checked: Instant,
    pub sized: Instant,
    pub admitted: Instant,
    /// Of the last attempt, like the next ones.
    pub placed: Instant,
    pub prefilling: Instant,
    pub prefilled: Instant,
    pub decoding: Instant,
    /// By slot.
    pub leg_opened: [Instant; SLOTS],
    /// Each leg's own bound, once it is connected.
    pub leg_bound: [Instant; SLOTS],
    pub first_token: Option<Instant>,
    pub first_token_noted: bool,
    pub tokens_counted: u64,
    /// The model check was reached: the request counts as sized.
    pub model_checked: bool,
    /// Of an answer that is no stream; 0 while there is none.
    pub status: u16,
}

impl Exchange {
    /// The stream ended as it should: token-bearing output and then `[DONE]`.
    pub fn complete(&mut self, cx: &mut Cx) {
        let Some(mut assembly) = self.assembly.take() else {
            answer::stream_body(cx.io).extend_from_slice(b"data: [DONE]\n\n");
            answer::end_stream(cx.io);
            return self.finish(cx, End::Served);
        };
        let usage = assemble::Usage {
            prompt_tokens: Some(self.prompt_tokens),
            completion_tokens: self.relay.tokens,
        };
        if let Some(Placement::TwoLegs { .. }) = self.placement {
            let held = self.handoff.cached_tokens;
            let held = held.map(|tokens| format!("{{\"cached_tokens\":{tokens}}}"));
            assembly.replace_prompt_details(held.as_deref().map(str::as_bytes));
        }
        let mut body = cx.shard.take_buffer();
        match assembly.finish(&mut body, usage) {
            Ok(()) => {
                self.write_json(cx, &body);
                self.finish(cx, End::Served);
            }
            Err(fault) => {
                self.stage = Stage::Assemble;
                let cause = match fault {
                    assemble::Fault::TooLarge => Cause::ResponseLimit,
                    assemble::Fault::Invalid(_) => Cause::Assembly,
                };
                if let Some(engine) = self.generates() {
                    self.note_fault(cx, Leg::Decode, engine, cause);
                }
                self.answer_fault(cx, cause);
            }
        }
        cx.shard.give_buffer(body);
    }

    /// The client has gone: nothing more is said, and no engine is to blame.
    pub fn cancel(&mut self, cx: &mut Cx) {
        let stage = self.stage;
        self.finish(cx, End::Cancelled(stage));
    }

    /// Ends the exchange.
    pub fn finish(&mut self, cx: &mut Cx, end: End) {
        assert!(self.end.is_none(), "an exchange ends once");
        let row = self.take_row(cx, end);
        if end == End::Served {
            self.teach_end(cx);
            self.praise(cx);
        }
        self.leave_line(cx);
        self.release_attempt(cx);
        self.give_prefix(cx);
        if let Some(permit) = self.seat.take() {
            cx.shard.release(Awaited::Seat, permit);
        }
        if end == End::Served {
            cx.shard
                .shared
                .retries
                .earn(cx.shard.snapshot.fleet.serving.retry_replenish);
        }
        // Legs keep their bounds: the slot may hold one that drains for an earlier exchange.
        for timer in [Timer::Wait, Timer::KeepAlive, Timer::Price] {
            cx.io.timers.clear(timer);
        }
        if self.relay.started() {
            cx.shard.ledger.update(|tx| tx.sub(Cell::StreamsActive, 1));
        }
        self.end = Some(end);
        let account = Account {
            end,
            unsized_offered: !self.marks.model_checked,
            slo_met: self.record(cx, end),
            row,
        };
        self.stage = Stage::Account;
        match self.retained.take() {
            Some(permit) if cx.io.out.pending() > limits::BUFFER_KEEP_BYTES => {
                cx.io.tail = Some(Tail { permit, account });
            }
            permit => {
                if let Some(permit) = permit {
                    cx.shard.let_go(permit);
                }
                cx.io.timers.clear(Timer::Deadline);
                account.settle(cx.shard);
            }
        }
    }

    /// The engines of a served request did what they were asked for.
    fn praise(&self, cx: &mut Cx) {
        let board = &cx.shard.shared.board;
        match self.placement {
            Some(Placement::TwoLegs { prefill, decode }) => {
                // Its part is long over: it may have left, and another be in its place.
                let prefiller = cx.shard.snapshot.engine(prefill);
                if prefiller.is_some_and(|engine| engine.since <= self.placed_in) {
                    board.line(prefill).did_well(Phase::Prefill);
                }
                board.line(decode).did_well(Phase::Decode);
            }
            Some(Placement::OneLeg { engine }) => board.line(engine).forgive(),
            None => {}
        }
    }

    /// Forgets an attempt that is to be made again.
    pub fn reset_attempt(&mut self) {
        self.placement = None;
        self.events = None;
        self.assembly = None;
        self.relay = Default::default();
        let marks = &mut self.marks;
        for mark in [
            &mut marks.placed,
            &mut marks.prefilling,
            &mut marks.prefilled,
            &mut marks.decoding,
        ] {
            *mark = Instant::ZERO;
        }
        self.marks.tokens_counted = 0;
        self.marks.first_token = None;
        self.marks.first_token_noted = false;
    }

    /// Records latencies; says whether both service levels were met.
    fn record(&self, cx: &mut Cx, end: End) -> bool {
        let times = &cx.shard.times;
        if end != End::Served {
            return false;
        }
        let Some(first) = self.marks.first_token else {
            return false;
        };
        let slo = &self.plan.fleet.slo;
        let ttft = first.since(self.arrived);
        times.record(Series::Ttft, ttft);
        times.record(Series::Duration, cx.now.since(self.arrived));
        let later = self.relay.tokens.saturating_sub(self.relay.first_tokens);
        let mut met = ttft <= slo.ttft;
        if later > 0 {
            let tpot = self.relay.last_token.since(first).div_f64(later as f64);
            times.record(Series::Tpot, tpot);
            met &= tpot <= slo.tpot;
        }
        met
    }
}
