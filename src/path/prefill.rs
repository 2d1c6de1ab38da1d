//! Stage `prefill`: the leg that reads the prompt and makes the KV cache. Its answer holds the handoff for the decode leg, or it runs
//! beside that leg and they meet on their own.
//!
//! The answer is one bounded JSON body. The handoff is passed on verbatim, and used for one decode dispatch.

use super::Stage;
use super::exchange::{Cx, Exchange, Handoff};
use super::fault::Cause;
use crate::base::units::{EngineId, Leg};
use crate::config::topology::Snapshot;
use crate::fleet::pick::Placement;
use crate::metrics::ledger::Cell;
use crate::wire::dialect::sglang::{self, Meeting, Part};
use crate::wire::dialect::vllm;
use crate::wire::openai;

impl Exchange {
    /// Sends the prefill leg; `fresh` when it goes again because a pooled socket was stale.
    pub fn prefill(&mut self, cx: &mut Cx, engine: EngineId, fresh: bool) {
        if self.room.is_none() {
            self.stage = Stage::Prefill;
        }
        if !fresh {
            cx.shard.count(Cell::PrefillAttempts);
        }
        self.handoff = Handoff::default();
        self.prefill_answer.clear();
        self.marks.prefilling = cx.now;
        let mut body = cx.shard.take_buffer();
        let snapshot = &cx.shard.snapshot;
        let model = &snapshot.fleet.model;
        match self.room {
            None => vllm::prefill_body(&mut body, &self.body, self.request(), model),
            Some(_) => {
                let rid = self.leg_id(Leg::Prefill);
                let part = self.part(snapshot, &rid);
                sglang::prefill_body(&mut body, &self.body, self.request(), model, &part);
            }
        }
        let bound = cx.now + self.plan.fleet.serving.prefill_timeout;
        self.open_leg(cx, Leg::Prefill, engine, &body, fresh, bound);
        cx.shard.give_buffer(body);
    }

    /// The whole answer of the prefill leg is in.
    pub fn prefilled(&mut self, cx: &mut Cx, engine: EngineId, status: u16) {
        if status != 200 {
            self.refusal_message = openai::engine_message(&self.prefill_answer);
            return self.prefill_failed(cx, engine, Cause::Status(status));
        }
        let Ok(answer) = vllm::prefill_answer(&self.prefill_answer) else {
            return self.prefill_failed(cx, engine, Cause::Handoff);
        };
        if let Some(error) = answer.error {
            self.refusal_message = error.message;
            return self.prefill_failed(cx, engine, Cause::Status(error.status));
        }
        if answer.aborted {
            return self.prefill_failed(cx, engine, Cause::Abort);
        }
        self.compare_belief(cx, engine, answer.cached_tokens);
        if let (true, Some(tokens)) = (self.estimated, answer.prompt_tokens) {
            self.prompt_tokens = tokens;
        }
        self.release_prefill(cx);
        self.marks.prefilled = cx.now;
        self.handoff.cached_tokens = answer.cached_tokens;
        if self.room.is_some() {
            // The decode leg is on its way, or has brought tokens already.
            return;
        }
        let Ok(params) = answer.handoff else {
            return self.prefill_failed(cx, engine, Cause::Handoff);
        };
        self.handoff = Handoff {
            params: self.prefill_answer[params].to_vec(),
            made: cx.now,
            cached_tokens: answer.cached_tokens,
            dispatched: false,
        };
        self.prefill_answer = Vec::new();
        cx.shard.shared.board.line(engine).handoff_made();
        self.producing = Some(engine);
        self.advance_legs(cx);
    }

    /// Where and as whom this leg meets the other.
    pub fn part<'a>(&self, snapshot: &'a Snapshot, rid: &'a str) -> Part<'a> {
        let meeting = match (self.room, self.placement) {
            (Some(room), Some(Placement::TwoLegs { prefill, .. })) => {
                let server = snapshot.bootstrap(prefill);
                server.map(|(host, port)| Meeting { host, port, room })
            }
            _ => None,
        };
        Part { meeting, rid }
    }
}
