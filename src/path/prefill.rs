//! Stage `prefill`: the first leg. It reads the prompt, makes the KV cache and answers with the handoff.
//!
//! The answer is one bounded JSON body. The handoff is passed on verbatim, and used for one decode dispatch.

use super::Stage;
use super::exchange::{Cx, Exchange};
use super::fault::Cause;
use crate::base::units::{EngineId, Leg};
use crate::metrics::ledger::Cell;
use crate::wire::dialect::vllm;
use crate::wire::openai;

impl Exchange {
    /// Sends the prefill leg; `fresh` when it goes again because a pooled socket was stale.
    pub fn prefill(&mut self, cx: &mut Cx, engine: EngineId, fresh: bool) {
        self.stage = Stage::Prefill;
        if !fresh {
            cx.shard.count(Cell::PrefillAttempts);
        }
        self.handoff.params.clear();
        self.collected.clear();
        let mut body = cx.shard.take_buffer();
        vllm::prefill_body(
            &mut body,
            &self.body,
            self.request(),
            &cx.shard.snapshot.fleet.model,
        );
        let bound = cx.now + cx.shard.snapshot.fleet.serving.prefill_timeout;
        self.open_leg(cx, Leg::Prefill, engine, &body, fresh, bound);
        cx.shard.give_buffer(body);
    }

    /// The whole answer of the prefill leg is in `collected`.
    pub fn prefilled(&mut self, cx: &mut Cx, engine: EngineId, status: u16) {
        if status != 200 {
            self.refusal_message = openai::engine_message(&self.collected);
            return self.fail(cx, engine, Cause::Status(status));
        }
        let Ok(answer) = vllm::prefill_answer(&self.collected) else {
            return self.fail(cx, engine, Cause::Handoff);
        };
        if let Some(error) = answer.error {
            self.refusal_message = error.message;
            return self.fail(cx, engine, Cause::Status(error.status));
        }
        if answer.aborted {
            return self.fail(cx, engine, Cause::Abort);
        }
        let Ok(params) = answer.handoff else {
            return self.fail(cx, engine, Cause::Handoff);
        };
        self.handoff
            .params
            .extend_from_slice(&self.collected[params]);
        self.handoff.made = cx.now;
        self.handoff.cached_tokens = answer.cached_tokens;
        if let (true, Some(tokens)) = (self.estimated, answer.prompt_tokens) {
            self.prompt_tokens = tokens;
        }
        if let Some(load) = self.prefill_load.take() {
            cx.shard.shared.board.release(load);
        }
        self.marks.prefilled = cx.now;
        match self.decode_engine(cx) {
            Some(decode) => self.decode(cx, decode, false),
            None => self.refuse_no_engine(cx),
        }
    }
}
