//! Stage `place`: choose the engines of an attempt and reserve their load.
//!
//! Open placement: least outstanding tokens. A prefill engine is charged the prompt until its leg ends, a decode engine the prompt and
//! what the request may generate until the stream ends. Legs run one after the other, or side by side where engines find each
//! other in a room; then the decode leg goes first, so that it waits for the KV and not the KV for it.

use super::Stage;
use super::exchange::{Cx, Exchange};
use crate::base::units::{Dialect, EngineId};
use crate::fleet::pick::{self, Placement, Rank};
use crate::fleet::price;
use crate::metrics::histogram::Series;
use crate::shard::board::{Charge, Phase, Reservation};

/// How often a placement is looked at again because others came in between.
const RECHECKS: usize = 4;

impl Exchange {
    /// Starts the next attempt.
    pub fn place(&mut self, cx: &mut Cx) {
        self.stage = Stage::Place;
        self.marks.placed = cx.now;
        let began = cx.shard.tick();
        let Some((rank, placement)) = self.plan(cx) else {
            return self.refuse_no_engine(cx);
        };
        self.attempt += 1;
        self.settle(cx, rank, placement);
        cx.shard.took(Series::Place, began);
        self.advance_legs(cx);
    }

    /// Where the attempt would go, by the prices of now.
    pub fn plan(&self, cx: &mut Cx) -> Option<(Rank, Placement)> {
        let rank = cx.shard.rank(self.asks(cx));
        self.survey(cx);
        Some((rank, self.choose(cx, rank)?))
    }

    /// Reserves the load of `placement`. Others may have reserved since the prices were read; then it is looked at again, and
    /// moves where it would go now.
    pub fn settle(&mut self, cx: &mut Cx, rank: Rank, mut placement: Placement) {
        self.reserve(cx, placement);
        for _ in 0..RECHECKS {
            if !self.was_raced(cx) {
                break;
            }
            self.survey(cx);
            for load in self.loads() {
                cx.shard.leave_out(load);
            }
            match self.choose(cx, rank) {
                Some(better) if better != placement => {
                    self.release_loads(cx);
                    self.reserve(cx, better);
                    placement = better;
                }
                _ => break,
            }
        }
        self.placement = Some(placement);
        self.placed_in = cx.shard.snapshot.epoch;
        self.note_placement(cx);
        self.remember(cx);
    }

    fn reserve(&mut self, cx: &mut Cx, placement: Placement) {
        let (prefill, decode) = match placement {
            Placement::TwoLegs { prefill, decode } => (Some(prefill), decode),
            // Of an engine that does both, the prompt counts only where seconds are counted.
            Placement::OneLeg { engine } => {
                let profiled = cx.shard.is_priced();
                (profiled.then_some(engine), engine)
            }
        };
        let board = &cx.shard.shared.board;
        if let Some(engine) = prefill {
            let charge = self.prefill_charge(cx, engine, placement);
            self.prefill_load = Some(board.reserve(engine, Phase::Prefill, charge, cx.now));
        }
        let charge = self.decode_charge(cx);
        self.decode_load = Some(board.reserve(decode, Phase::Decode, charge, cx.now));
    }

    fn was_raced(&self, cx: &Cx) -> bool {
        let seen = |load: &Reservation| &cx.shard.fleet()[load.engine.index()].load;
        self.loads().any(|load| load.was_raced(seen(load)))
    }

    fn loads(&self) -> impl Iterator<Item = &Reservation> {
        self.prefill_load.iter().chain(&self.decode_load)
    }

    fn release_loads(&mut self, cx: &mut Cx) {
        let loads = [self.prefill_load.take(), self.decode_load.take()];
        for load in loads.into_iter().flatten() {
            cx.shard.shared.board.release(load);
        }
    }

    /// Whether some engine is left for another attempt.
    pub fn has_engine_left(&self, cx: &mut Cx) -> bool {
        cx.shard.look(cx.now);
        // Who is eligible does not depend on the ranking.
        self.choose(cx, Rank::LeastTokens).is_some()
    }

    /// Whether the legs of a pair run side by side.
    pub fn runs_beside(&self, cx: &Cx) -> bool {
        cx.shard.snapshot.fleet.engine.dialect == Dialect::Sglang
    }

    /// Where the attempt would go, as the last look saw the fleet.
    fn choose(&self, cx: &Cx, rank: Rank) -> Option<Placement> {
        match cx.shard.snapshot.fleet.engine.dialect {
            Dialect::Openai => pick::place_one(cx.shard.fleet(), &self.avoid, rank),
            Dialect::Vllm | Dialect::Sglang => pick::place(cx.shard.fleet(), &self.avoid, rank),
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
        cx.shard.look(cx.now);
        let decode = pick::place_decode(cx.shard.fleet(), &self.avoid, rank, prefill)?;
        let board = &cx.shard.shared.board;
        if let Some(load) = self.decode_load.take() {
            board.release(load);
        }
        let charge = self.decode_charge(cx);
        self.decode_load = Some(board.reserve(decode, Phase::Decode, charge, cx.now));
        self.placement = Some(Placement::TwoLegs { prefill, decode });
        self.note_placement(cx);
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
        self.release_loads(cx);
    }

    /// The prefill leg is over: its engine is free of it.
    pub fn release_prefill(&mut self, cx: &mut Cx) {
        if let Some(load) = self.prefill_load.take() {
            cx.shard.shared.board.finish(load, cx.now);
        }
        self.leave_phase(cx, Phase::Prefill);
    }

    /// The KV that the producer made is over there, or not wanted any more.
    pub fn handoff_over(&mut self, cx: &Cx) {
        if let Some(producer) = self.producing.take() {
            cx.shard.shared.board.line(producer).handoff_over();
        }
    }

    /// A handoff that no decode leg has carried leaves its blocks with the producer until their lease ends.
    fn give_up_handoff(&mut self, cx: &mut Cx) {
        self.handoff_over(cx);
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
            own_tokens: self.decode_charge(cx).tokens,
            ttft_s: self.ttft_left_s(cx),
            tpot_s: cx.shard.snapshot.fleet.slo.tpot.as_secs_f64(),
        }
    }

    fn prefill_charge(&self, cx: &Cx, engine: EngineId, placement: Placement) -> Charge {
        let seen = &cx.shard.fleet()[engine.index()];
        let read = |curves| price::prompt_s(curves, self.prompt_tokens, seen.cached_tokens);
        let seconds = seen.curves.as_ref().map_or(0.0, read);
        let one_leg = matches!(placement, Placement::OneLeg { .. });
        Charge {
            // One leg's prompt is counted where it decodes.
            tokens: if one_leg { 0 } else { self.prompt_tokens },
            prefill_ns: (seconds * 1e9) as u64,
            output_tokens: 0,
        }
    }

    /// What the request may come to hold on its decode engine.
    fn decode_charge(&self, cx: &Cx) -> Charge {
        let output_tokens = self.output_tokens(cx);
        Charge {
            tokens: self.prompt_tokens.saturating_add(output_tokens),
            prefill_ns: 0,
            output_tokens,
        }
    }
}
