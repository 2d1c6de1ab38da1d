//! What a request teaches: the pace of its engine while it streams, and the length of its answer when it was served.
//!
//! Only counted token ids teach. Of a stream that is cut, the segments before count as they were; a length is learned from served
//! requests alone, stopped ones and those that reached their cap: what a client did not wait for has no length.

use super::exchange::{Cx, Exchange};
use crate::base::units::EngineId;
use crate::fleet::pick::Placement;
use crate::shard::Shard;

/// More than any model writes: a cap above it weighs no more, and sums of them stay numbers.
const OUTPUT_TOKENS_MAX: u64 = 1 << 40;

impl Exchange {
    /// A read of the stream is used up.
    pub(super) fn teach_pace(&mut self, cx: &mut Cx) {
        if cx.io.out.is_full() {
            self.relay.pace.held_up();
        }
        let Some(engine) = self.teaches() else {
            return;
        };
        let (tokens, last) = (self.relay.tokens, self.relay.last_token);
        let profiled = || profiled_s(cx, engine);
        if let Some(ratio) = self.relay.pace.read(tokens, last, profiled) {
            pace(cx.shard, engine, ratio);
        }
    }

    /// It is about to end as served; its load is still on the board.
    pub(super) fn teach_end(&mut self, cx: &mut Cx) {
        let Some(engine) = self.teaches() else {
            return;
        };
        let (tokens, last) = (self.relay.tokens, self.relay.last_token);
        let profiled = || profiled_s(cx, engine);
        if let Some(ratio) = self.relay.pace.end(tokens, last, profiled) {
            pace(cx.shard, engine, ratio);
        }
        let cap = self.request().cap;
        let cap = cap.filter(|cap| *cap <= cx.shard.kv_tokens_max());
        let learned = &cx.shard.shared.learned;
        learned.delivered(self.sized_tokens, cap, tokens);
    }

    /// Tokens that it may come to generate, by what was learned of requests like it.
    pub fn output_tokens(&self, cx: &Cx) -> u64 {
        let learned = &cx.shard.shared.learned;
        // A cap that no engine could fill is none: whoever means `without end` would have an engine to itself.
        let cap = self.request().cap;
        let cap = cap.filter(|cap| *cap <= cx.shard.kv_tokens_max());
        let tokens = learned.output_tokens(self.sized_tokens, cap);
        tokens.min(OUTPUT_TOKENS_MAX)
    }

    /// The engine that generates, when its tokens are counted.
    fn teaches(&self) -> Option<EngineId> {
        self.generates().filter(|_| self.relay.counts_ids)
    }

    /// The engine that generates.
    pub(super) fn generates(&self) -> Option<EngineId> {
        match self.placement? {
            Placement::TwoLegs { decode, .. } => Some(decode),
            Placement::OneLeg { engine } => Some(engine),
        }
    }
}

/// The interval that the profile gives for what the engine has to do now; 0 without a profile. Not for all that the board has reserved
/// there: with those that still wait for their prompts every engine would look faster than it is, the more so the more of them there
/// are, and draw still more.
fn profiled_s(cx: &Cx, engine: EngineId) -> f64 {
    let Some(curves) = &cx.shard.fleet()[engine.index()].curves else {
        return 0.0;
    };
    let (requests, kv_tokens) = cx.shard.shared.board.line(engine).generating();
    curves.interval_s(kv_tokens, requests)
}

fn pace(shard: &Shard, engine: EngineId, ratio: f64) {
    let rules = &shard.snapshot.fleet.controller.decode_correction;
    let correction = shard.shared.learned.pace(engine, rules, ratio);
    shard.shared.board.line(engine).set_correction(correction);
}
