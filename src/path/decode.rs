//! Stage `decode`: the leg that generates; the only one on a `both` engine or a plain server. Sends it, reads its head, bounds its first
//! token.
//!
//! The payload goes to `relay`, whether it is relayed or assembled. An answer that is one JSON object instead of a stream is read whole:
//! engines answer 200 with an error in it.

use super::Stage;
use super::exchange::{Cx, Exchange};
use super::fault::Cause;
use super::relay::Relay;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Leg};
use crate::config::checked::Dialect;
use crate::fleet::pick::Placement;
use crate::metrics::ledger::Cell;
use crate::path::assemble::{Assembly, Kind, Options};
use crate::wire::dialect::{openai, sglang, vllm};
use crate::wire::event::{EventStream, Ids};
use crate::wire::openai::{Route, engine_error, engine_message};
use std::time::Duration;

/// The least first-token bound until a pair has done one handoff: the first one shakes hands, 0.4 to 5 s with NIXL 1.5.1.
const FIRST_HANDOFF: Duration = Duration::from_secs(10);

impl Exchange {
    /// Sends the decode leg.
    pub fn decode(&mut self, cx: &mut Cx, engine: EngineId, fresh: bool) {
        self.stage = Stage::Decode;
        if self.handoff_expired(cx) {
            return self.fail(cx, engine, Cause::HandoffExpired);
        }
        if !fresh {
            cx.shard.count(Cell::DecodeAttempts);
        }
        let serving = &self.plan.fleet.serving;
        let limit = serving.max_response_bytes;
        let dialect = self.plan.fleet.engine.dialect;
        let ids = match (dialect, self.route) {
            (Dialect::Vllm, _) | (Dialect::Sglang, Route::Completions) => Ids::Expected,
            (Dialect::Sglang, Route::Chat) => Ids::AbsentSglang,
            (Dialect::Openai, _) => Ids::Absent,
        };
        let dialect_fields: &[&str] = match dialect {
            Dialect::Sglang => &["matched_stop"],
            Dialect::Vllm | Dialect::Openai => &[],
        };
        self.events = Some(EventStream::new(ids, limit));
        let keep_ids = self.request().return_token_ids;
        self.relay = Relay::new(limit, keep_ids, ids == Ids::Expected);
        self.collected.clear();
        self.assembly = (!self.request().stream).then(|| {
            Box::new(Assembly::new(Options {
                kind: if self.route == Route::Chat {
                    Kind::Chat
                } else {
                    Kind::Text
                },
                keep_ids: self.request().return_token_ids,
                extra_fields: &self.plan.fleet.engine.assembly_extra_fields,
                dialect_fields,
                bytes_max: limit,
            }))
        });
        let mut body = cx.shard.take_buffer();
        self.decode_body(cx, &mut body);
        let bound = self.first_token_bound(cx, engine);
        self.marks.decoding = cx.now;
        self.open_leg(cx, Leg::Decode, engine, &body, fresh, bound);
        cx.shard.give_buffer(body);
    }

    fn decode_body(&self, cx: &Cx, out: &mut Vec<u8>) {
        let snapshot = &cx.shard.snapshot;
        let (model, request) = (&snapshot.fleet.model, self.request());
        match snapshot.fleet.engine.dialect {
            Dialect::Vllm => {
                let rides = self.handoff_rides();
                let handoff = rides.then_some(self.handoff.params.as_slice());
                vllm::decode_body(out, &self.body, request, model, handoff);
            }
            Dialect::Sglang => {
                let rid = self.leg_id(Leg::Decode);
                let part = self.part(snapshot, &rid);
                sglang::decode_body(out, &self.body, request, self.route, model, &part);
            }
            Dialect::Openai => openai::decode_body(out, &self.body, request, model),
        }
    }

    /// Whether the decode leg carries the handoff. One engine for both legs holds the KV already: nothing is handed over.
    pub fn handoff_rides(&self) -> bool {
        matches!(self.placement, Some(Placement::TwoLegs { prefill, decode }) if prefill != decode)
    }

    /// The head of the decode leg's answer is in.
    pub fn decode_head(&mut self, status: u16) {
        self.relay.plain = status != 200;
    }

    /// The decode leg's answer has ended: by its framing, or because the engine closed.
    pub fn decode_ended(&mut self, cx: &mut Cx, engine: EngineId, status: u16, whole: bool) {
        self.account_events(cx);
        if status != 200 {
            self.refusal_message = engine_message(&self.collected);
            return self.fail(cx, engine, Cause::Status(status));
        }
        if !self.relay.plain && whole {
            self.stream_eof(cx);
        }
        if self.is_over() {
            return;
        }
        let cause = match self.relay.take_fault() {
            Some(cause) => cause,
            None if self.relay.plain => match engine_error(&self.collected) {
                Some(error) => {
                    self.refusal_message = error.message;
                    Cause::Status(error.status)
                }
                None => Cause::Termination,
            },
            None => Cause::Termination,
        };
        self.fail(cx, engine, cause);
    }

    /// Whether a pooled socket that died unanswered may be tried once more: no handoff rides on this leg.
    pub fn decode_is_repeatable(&self) -> bool {
        matches!(self.placement, Some(Placement::OneLeg { .. }))
    }

    pub(super) fn handoff_expired(&self, cx: &Cx) -> bool {
        let bound = self.plan.fleet.engine.handoff_bound();
        !self.handoff.params.is_empty()
            && self.handoff_rides()
            && bound.is_some_and(|bound| cx.now.since(self.handoff.made) > bound)
    }

    fn first_token_bound(&self, cx: &Cx, engine: EngineId) -> Instant {
        let fleet = &self.plan.fleet;
        let mut bound = fleet.engine.first_token_timeout;
        let mut holds_prefill = true;
        if let Some(Placement::TwoLegs { prefill, .. }) = self.placement {
            holds_prefill = self.room.is_some();
            let met = cx.shard.shared.pair_has_met(prefill, engine);
            if !met && !fleet.engine.first_token_timeout_set {
                bound = bound.max(FIRST_HANDOFF);
            }
        }
        if holds_prefill {
            bound += fleet.serving.prefill_timeout;
        }
        cx.now + bound
    }

    /// Keeps the body of an answer that is no stream, up to a bound.
    pub fn collect(&mut self, piece: &[u8], most: usize) -> bool {
        if self.collected.len() + piece.len() > most {
            return false;
        }
        self.collected.extend_from_slice(piece);
        true
    }
}
