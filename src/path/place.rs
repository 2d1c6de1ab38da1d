//! Stage `place`: choose the engines of an attempt and reserve their load.
//!
//! Open placement: least outstanding tokens. A prefill engine is charged the prompt until its leg ends, a decode engine the prompt and
//! what the request may generate until the stream ends. Legs run one after the other, or side by side where engines find each
//! other in a room; then the decode leg goes first, so that it waits for the KV and not the KV for it.

use super::Stage;
use super::exchange::{Cx, Exchange};
use crate::base::units::{Dialect, EngineId};
use crate::fleet::pick::{self, Placement};
use crate::fleet::price;
use crate::shard::board::{Charge, Phase};

/// Tokens charged for a request without a cap, until output lengths are learned.
const UNCAPPED_TOKENS: u64 = 256;
/// More than any model writes: a cap above it weighs no more, and sums of them stay numbers.
const OUTPUT_TOKENS_MAX: u64 = 1 << 40;

impl Exchange {
    /// Starts the next attempt.
    pub fn place(&mut self, cx: &mut Cx) {
        self.stage = Stage::Place;
        let Some(placement) = self.find_placement(cx) else {
            return self.refuse_no_engine(cx);
        };
        self.placement = Some(placement);
        self.attempt += 1;
        let (prefill, decode) = match placement {
            Placement::TwoLegs { prefill, decode } => (Some(prefill), decode),
            // Of an engine that does both, the prompt counts only where seconds are counted.
            Placement::OneLeg { engine } => {
                let profiled = cx.shard.snapshot.is_profiled();
                (profiled.then_some(engine), engine)
            }
        };
        let board = &cx.shard.shared.board;
        if let Some(engine) = prefill {
            let charge = self.prefill_charge(cx, engine, placement);
            self.prefill_load = Some(board.reserve(engine, Phase::Prefill, charge, cx.now));
        }
        let charge = self.decode_charge();
        self.decode_load = Some(board.reserve(decode, Phase::Decode, charge, cx.now));
        self.advance_legs(cx);
    }

    /// Whether the legs of a pair run side by side.
    pub fn runs_beside(&self, cx: &Cx) -> bool {
        cx.shard.snapshot.fleet.engine.dialect == Dialect::Sglang
    }

    /// Where the next attempt would go.
    pub fn find_placement(&self, cx: &mut Cx) -> Option<Placement> {
        let rank = cx.shard.rank(self.asks(cx));
        let fleet = cx.shard.candidates(cx.now);
        match cx.shard.snapshot.fleet.engine.dialect {
            Dialect::Openai => pick::place_one(&fleet, &self.avoid, rank),
            Dialect::Vllm | Dialect::Sglang => pick::place(&fleet, &self.avoid, rank),
        }
    }

    /// The decode engine of this attempt, placed anew when the first choice has gone.
    pub fn decode_engine(&mut self, cx: &mut Cx) -> Option<EngineId> {
        let Some(Placement::TwoLegs { prefill, decode }) = self.placement else {
            return None;
        };
        if cx.shard.shared.board.line(decode).available() {
            return Some(decode);
        }
        let rank = cx.shard.rank(self.asks(cx));
        let fleet = cx.shard.candidates(cx.now);
        let decode = pick::place_decode(&fleet, &self.avoid, rank, prefill)?;
        let board = &cx.shard.shared.board;
        if let Some(load) = self.decode_load.take() {
            board.release(load, cx.now);
        }
        self.decode_load = Some(board.reserve(decode, Phase::Decode, self.decode_charge(), cx.now));
        self.placement = Some(Placement::TwoLegs { prefill, decode });
        Some(decode)
    }

    /// Gives back what the attempt has reserved.
    pub fn release_attempt(&mut self, cx: &mut Cx) {
        self.leave_line(cx);
        self.leave_phase(cx, Phase::Prefill);
        self.leave_phase(cx, Phase::Decode);
        self.give_up_handoff(cx);
        if let Some(room) = self.room.take() {
            cx.shard.rooms.give(room);
        }
        for load in [self.prefill_load.take(), self.decode_load.take()]
            .into_iter()
            .flatten()
        {
            cx.shard.shared.board.release(load, cx.now);
        }
    }

    /// The prefill leg is over: its engine is free of it.
    pub fn release_prefill(&mut self, cx: &mut Cx) {
        if let Some(load) = self.prefill_load.take() {
            cx.shard.shared.board.release(load, cx.now);
        }
        self.leave_phase(cx, Phase::Prefill);
    }

    /// A handoff that no decode leg has carried leaves its blocks with the producer until their lease ends.
    fn give_up_handoff(&mut self, cx: &mut Cx) {
        let handoff = std::mem::take(&mut self.handoff);
        if handoff.params.is_empty() || handoff.dispatched {
            return;
        }
        if let Some(Placement::TwoLegs { prefill, .. }) = self.placement {
            let tokens = self.prompt_tokens;
            cx.shard.orphaned(prefill, tokens, handoff.made);
        }
    }

    /// What it asks of engines.
    pub fn asks(&self, cx: &Cx) -> price::Ask {
        price::Ask {
            prompt_tokens: self.prompt_tokens,
            own_tokens: self.decode_charge().tokens,
            tpot_s: cx.shard.snapshot.fleet.slo.tpot.as_secs_f64(),
        }
    }

    fn prefill_charge(&self, cx: &Cx, engine: EngineId, placement: Placement) -> Charge {
        let profile = cx.shard.snapshot.engine(engine);
        let profile = profile.and_then(|engine| engine.profile.as_ref());
        let seconds = profile.map_or(0.0, |p| p.prefill_s(self.prompt_tokens));
        let one_leg = matches!(placement, Placement::OneLeg { .. });
        Charge {
            // One leg's prompt is counted where it decodes.
            tokens: if one_leg { 0 } else { self.prompt_tokens },
            prefill_ns: (seconds * 1e9) as u64,
            output_tokens: 0,
        }
    }

    /// What the request may come to hold on its decode engine.
    fn decode_charge(&self) -> Charge {
        let output_tokens = self.request().cap.unwrap_or(UNCAPPED_TOKENS);
        let output_tokens = output_tokens.min(OUTPUT_TOKENS_MAX);
        Charge {
            tokens: self.prompt_tokens.saturating_add(output_tokens),
            prefill_ns: 0,
            output_tokens,
        }
    }
}
