//! What legs report, led to the stage that waits for it. A leg that only drains belongs to an exchange that is over: what it
//! still says never reaches the one that has begun since.

use super::Stage;
use super::accept::Connection;
use super::exchange::{Cx, Exchange};
use super::fault::Cause;
use super::leg::{LegFault, LegStep, State};
use crate::base::limits;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Leg};
use crate::metrics::histogram::Series;
use crate::shard::Shard;
use crate::wire::openai;

impl Connection {
    /// The leg in `slot` has to wait for a connection: its engine has as many as it may.
    pub fn leg_waits(&mut self, shard: &Shard, now: Instant, slot: usize) {
        self.legs[slot].state = State::Waiting;
        self.io
            .bound_leg(slot, now + shard.snapshot.fleet.engine.pool_timeout);
    }

    /// Whether a leg that waited for its connection, or made one, may still send its request. If it may not, its attempt is over.
    pub fn leg_may_go(&mut self, shard: &mut Shard, now: Instant, slot: usize) -> bool {
        let leg = &self.legs[slot];
        let (Some(Leg::Decode), Some(engine), false) = (leg.kind, leg.engine, leg.drains()) else {
            return true;
        };
        let Some(exchange) = self.exchange.as_mut().filter(|x| !x.is_over()) else {
            return true;
        };
        let io = &mut self.io;
        let cx = &mut Cx { shard, io, now };
        if !exchange.handoff_expired(cx) {
            return true;
        }
        exchange.leg_fault(cx, Leg::Decode, engine, Cause::HandoffExpired);
        self.after(shard, now);
        false
    }

    /// The wait is over: the leg's connection is being made. Neither the way to its engine nor the engine's time has begun before.
    pub fn leg_opens(&mut self, shard: &Shard, now: Instant, slot: usize) {
        self.legs[slot].state = State::Opening;
        if let Some(exchange) = &mut self.exchange {
            let marks = &mut exchange.marks;
            let waited = now.since(marks.leg_opened[slot]);
            marks.leg_opened[slot] = now;
            marks.leg_bound[slot] = marks.leg_bound[slot] + waited;
            let connect = now + shard.snapshot.fleet.engine.connect_timeout;
            self.io.bound_leg(slot, connect.min(marks.leg_bound[slot]));
        }
    }

    /// The leg in `slot` has its connection; its request goes out.
    pub fn leg_connected(&mut self, slot: usize) {
        if let (Some(exchange), false) = (&self.exchange, self.legs[slot].drains()) {
            self.io.bound_leg(slot, exchange.marks.leg_bound[slot]);
        }
    }

    /// The request of the leg in `slot` is out, on a pooled connection (`reused`) or a new one.
    pub fn leg_sent(&mut self, shard: &Shard, now: Instant, slot: usize, reused: bool) {
        self.legs[slot].sent(reused);
        if let (Some(exchange), false) = (&mut self.exchange, self.legs[slot].drains()) {
            exchange.handoff.dispatched |=
                self.legs[slot].kind == Some(Leg::Decode) && exchange.handoff_rides();
            self.io.bound_leg(slot, exchange.marks.leg_bound[slot]);
            shard
                .times
                .record(Series::Connect, now.since(exchange.marks.leg_opened[slot]));
        }
    }

    /// Bytes of an engine's answer.
    pub fn leg_bytes(&mut self, shard: &mut Shard, now: Instant, slot: usize, bytes: &[u8]) {
        let mut pos = 0;
        if self.legs[slot].streams() {
            self.stream_pieces(shard, now, slot, bytes, &mut pos);
        }
        while !self.io.has_command(slot) {
            let leg = &mut self.legs[slot];
            let draining = leg.state == State::Draining;
            let step = leg.step(bytes, &mut pos);
            let (status, may_park) = (leg.status, leg.may_park());
            let (Some(kind), Some(engine)) = (leg.kind, leg.engine) else {
                return;
            };
            let live = self
                .exchange
                .as_mut()
                .filter(|exchange| !exchange.is_over() && !draining);
            let cx = &mut Cx {
                shard,
                io: &mut self.io,
                now,
            };
            match (step, live) {
                (LegStep::More, live) => {
                    if let (Some(exchange), Leg::Decode) = (live, kind) {
                        exchange.stream_read_done(cx);
                    }
                    break;
                }
                (LegStep::Head, Some(exchange)) => exchange.leg_head(cx, kind, engine, status),
                (LegStep::Payload(piece), Some(exchange)) => {
                    exchange.leg_payload(cx, kind, engine, status, &bytes[piece]);
                }
                (LegStep::End, live) => {
                    let park = may_park && pos == bytes.len();
                    match live {
                        Some(exchange) => {
                            cx.io.end_leg(slot, park);
                            exchange.leg_end(cx, kind, engine, status, true);
                        }
                        None => self.io.end_leg(slot, park),
                    }
                    break;
                }
                (LegStep::Bad, Some(exchange)) => {
                    exchange.leg_fault(cx, kind, engine, Cause::BadHttp);
                    break;
                }
                (LegStep::Bad, None) => {
                    self.io.end_leg(slot, false);
                    break;
                }
                (LegStep::Head | LegStep::Payload(_), None) => {}
            }
        }
        self.after(shard, now);
    }

    /// Hands the payload of a stream on, piece by piece, up to what is none or decides something.
    #[inline]
    fn stream_pieces(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        slot: usize,
        bytes: &[u8],
        pos: &mut usize,
    ) {
        let leg = &mut self.legs[slot];
        let (Some(engine), Some(exchange)) = (leg.engine, self.exchange.as_mut()) else {
            return;
        };
        let cx = &mut Cx {
            shard,
            io: &mut self.io,
            now,
        };
        while !exchange.is_over() && !cx.io.has_command(slot) {
            let Some(piece) = leg.piece(bytes, pos) else {
                return;
            };
            exchange.stream_payload(cx, engine, &bytes[piece]);
        }
    }

    /// The engine closed its side.
    pub fn leg_eof(&mut self, shard: &mut Shard, now: Instant, slot: usize) {
        let leg = &self.legs[slot];
        let (Some(kind), Some(engine)) = (leg.kind, leg.engine) else {
            return;
        };
        let (status, whole, state) = (leg.status, leg.eof(), leg.state);
        if state == State::Body {
            self.io.end_leg(slot, false);
            if let Some(exchange) = self.exchange.as_mut().filter(|x| !x.is_over()) {
                let cx = &mut Cx {
                    shard,
                    io: &mut self.io,
                    now,
                };
                // A refusal whose end is missing is a refusal all the same.
                let refused = Cause::Status(status).is_refusal();
                if whole || refused || kind == Leg::Decode && status == 200 {
                    exchange.leg_end(cx, kind, engine, status, whole);
                } else {
                    exchange.leg_fault(cx, kind, engine, Cause::Leg(LegFault::Broken));
                }
            }
            self.after(shard, now);
        } else {
            self.leg_failed(shard, now, slot, LegFault::Broken);
        }
    }

    /// The leg's connection failed.
    pub fn leg_failed(&mut self, shard: &mut Shard, now: Instant, slot: usize, fault: LegFault) {
        let leg = &self.legs[slot];
        let (Some(kind), Some(engine)) = (leg.kind, leg.engine) else {
            return;
        };
        let stale = fault == LegFault::Broken && leg.reused && !leg.answered;
        let draining = leg.state == State::Draining;
        self.io.end_leg(slot, false);
        if let Some(exchange) = self.exchange.as_mut().filter(|x| !x.is_over() && !draining) {
            let cause = match fault {
                _ if stale => Cause::StaleSocket,
                LegFault::Shortage => Cause::PoolStarved,
                LegFault::Connect | LegFault::Broken => Cause::Leg(fault),
            };
            let cx = &mut Cx {
                shard,
                io: &mut self.io,
                now,
            };
            exchange.leg_fault(cx, kind, engine, cause);
        }
        self.after(shard, now);
    }

    /// The leg's bound is over.
    pub(super) fn leg_late(&mut self, shard: &mut Shard, now: Instant, slot: usize) {
        let leg = &self.legs[slot];
        let (Some(kind), Some(engine)) = (leg.kind, leg.engine) else {
            return;
        };
        let (draining, starved) = (leg.state == State::Draining, leg.state == State::Waiting);
        if self.io.out.is_full() && leg.state == State::Body && kind == Leg::Decode {
            // The engine is not read while the client's buffer is full: the silence is ours.
            if let Some(exchange) = self.exchange.as_mut() {
                exchange.stream_read_done(&mut Cx {
                    shard,
                    io: &mut self.io,
                    now,
                });
            }
            return;
        }
        match self.exchange.as_mut().filter(|x| !x.is_over() && !draining) {
            Some(exchange) => {
                let cx = &mut Cx {
                    shard,
                    io: &mut self.io,
                    now,
                };
                let cause = if starved {
                    Cause::PoolStarved
                } else {
                    Cause::Timeout
                };
                exchange.leg_fault(cx, kind, engine, cause);
            }
            None => self.io.end_leg(slot, false),
        }
        self.after(shard, now);
    }
}

impl Exchange {
    /// The head alone decides unless the body is wanted: an answer, or the words of a refusal.
    fn leg_head(&mut self, cx: &mut Cx, kind: Leg, engine: EngineId, status: u16) {
        if kind == Leg::Decode {
            self.decode_head(status);
        }
        let cause = Cause::Status(status);
        if status != 200 && !cause.is_refusal() {
            cx.io.close_leg(self.slot(kind));
            self.leg_end(cx, kind, engine, status, false);
        }
    }

    fn leg_payload(&mut self, cx: &mut Cx, kind: Leg, engine: EngineId, status: u16, piece: &[u8]) {
        let mut limit = self.plan.fleet.serving.max_response_bytes;
        let kept = match kind {
            Leg::Decode if status == 200 => return self.stream_payload(cx, engine, piece),
            Leg::Prefill => &mut self.prefill_answer,
            Leg::Decode | Leg::Tokenize => &mut self.collected,
        };
        if status != 200 {
            // Of a refusal, enough for its message.
            let room = limits::ENGINE_REFUSAL_BYTES_MAX.saturating_sub(kept.len());
            kept.extend_from_slice(&piece[..piece.len().min(room)]);
            return;
        }
        if kind == Leg::Tokenize {
            // It lists every id of the prompt: at worst one a byte, of some digits and a comma.
            limit = limit.max(limits::TOKENIZE_BYTES_PER_BYTE * self.body.len());
        }
        if kept.len() + piece.len() > limit {
            return self.leg_fault(cx, kind, engine, Cause::ResponseLimit);
        }
        kept.extend_from_slice(piece);
    }

    /// The answer is over; `whole` when its framing says so.
    fn leg_end(&mut self, cx: &mut Cx, kind: Leg, engine: EngineId, status: u16, whole: bool) {
        match kind {
            Leg::Tokenize => {
                // Its words matter when it refuses; any other failure asks elsewhere.
                self.refusal_message = match status {
                    200 => None,
                    _ => openai::engine_message(&self.collected),
                };
                self.counted(cx, engine, status);
            }
            Leg::Prefill => self.prefilled(cx, engine, status),
            Leg::Decode => self.decode_ended(cx, engine, status, whole),
        }
    }

    pub(super) fn leg_fault(&mut self, cx: &mut Cx, kind: Leg, engine: EngineId, cause: Cause) {
        match kind {
            Leg::Tokenize => self.count_failed(cx, engine, cause),
            Leg::Prefill if cause == Cause::StaleSocket && self.relay.first_token.is_none() => {
                self.prefill(cx, engine, true);
            }
            Leg::Decode if cause == Cause::StaleSocket && self.decode_is_repeatable() => {
                self.decode(cx, engine, true);
            }
            Leg::Prefill => self.prefill_failed(cx, engine, cause),
            Leg::Decode => {
                self.account_events(cx);
                if !matches!(self.stage, Stage::Relay | Stage::Assemble) {
                    self.stage = Stage::Decode;
                }
                self.fail(cx, engine, cause);
            }
        }
    }
}
