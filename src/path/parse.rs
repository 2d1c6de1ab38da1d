//! Stage `parse`: the client's head and body become a checked request, or an error answer.
//!
//! Also answers what needs no engine: health, readiness, models, unknown paths and wrong methods; passes control routes on.

use std::time::Duration;

use super::accept::{Connection, Front};
use super::answer::{self, Refusal};
use super::exchange::{Cx, Exchange};
use super::routes::{self, Target};
use super::timers::Timer;
use crate::base::time::Instant;
use crate::metrics::histogram::Series;
use crate::metrics::ledger::Cell;
use crate::metrics::outcome::{End, ExpireReason, InvalidReason};
use crate::shard::Shard;
use crate::wire::h1::body::{BodyDecoder, Step};
use crate::wire::h1::head::{self, Expect, Method, RequestBody, RequestHead, Version};
use crate::wire::openai::{self, Route, Rules};

const UNKNOWN_EXPECTATION: Refusal =
    Refusal::new(417, "invalid_request_error", "Unknown expectation");
pub(super) const TOO_LARGE: Refusal = Refusal::new(
    413,
    "request_too_large",
    "The request body is over the limit",
);

impl Connection {
    /// Looks for a whole head in what has come.
    pub(super) fn read_head(&mut self, shard: &mut Shard, now: Instant) {
        if self.inbuf.is_empty() {
            return;
        }
        match head::parse_request(&self.inbuf, &mut self.scanned, &self.head_limits) {
            Ok(None) => {}
            Ok(Some(head)) => {
                let rest = self.inbuf.split_off(head.head_bytes);
                let bytes = std::mem::replace(&mut self.inbuf, rest);
                self.scanned = 0;
                self.on_head(shard, now, &head, &bytes);
            }
            Err(fault) => {
                self.io.close = true;
                shard.count(Cell::HeadsRefused);
                let refusal = malformed(fault.status());
                answer::write_refusal(&mut self.io, shard, &refusal, None, None);
                self.linger(now);
            }
        }
    }

    fn on_head(&mut self, shard: &mut Shard, now: Instant, head: &RequestHead, bytes: &[u8]) {
        self.io.timers.clear(Timer::Client);
        self.io.http10 = head.version == Version::Http10;
        self.io.close |= !head.keep_alive || shard.shared.is_draining();
        self.io.head_only = head.method == Method::Head;
        self.body = Some(BodyDecoder::request(head.body));
        let path = &bytes[head.path.clone()];
        let target = Target::of(path);
        // A browser asks for OPTIONS without it.
        if shard.shared.has_api_keys() && routes::needs_key(path) && head.method != Method::Options
        {
            let bearer = head::bearer(bytes);
            if !shard.shared.lets_in(bearer) {
                self.io.close |= ends_early(shard, head);
                self.refuse_stranger(shard, target, bearer.is_some());
                return self.end_request(shard, now);
            }
        }
        if let (Target::Completion(route), Method::Post) = (&target, head.method) {
            return self.begin(shard, now, *route, head, bytes);
        }
        let known = head.expect != Expect::Other && head.method != Method::Options;
        if let (Target::Control, true) = (&target, known) {
            return self.begin_ask(shard, now, head, bytes);
        }
        self.io.close |= ends_early(shard, head);
        if head.expect == Expect::Other {
            answer::write_refusal(&mut self.io, shard, &UNKNOWN_EXPECTATION, None, None);
            return self.end_request(shard, now);
        }
        self.answer_simple(shard, target, head.method);
        self.end_request(shard, now);
    }

    /// A completion request has arrived.
    fn begin(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        route: Route,
        head: &RequestHead,
        bytes: &[u8],
    ) {
        let plan = shard.snapshot.clone();
        let deadline = now + plan.fleet.serving.request_timeout;
        let id = shard.prng.uuid();
        let exchange = Exchange::new(plan, self.token, route, id, now, deadline);
        let mut exchange = Box::new(exchange);
        shard.count_offered();
        self.front = Front::Running;
        self.io.timers.set(Timer::Deadline, deadline);
        let expects = head.expect != Expect::None;
        let closing = self.io.close;
        self.io.close |= ends_early(shard, head);
        let cx = &mut Cx {
            shard,
            io: &mut self.io,
            now,
        };
        exchange.begin_row(cx, bytes);
        if exchange.admit_head(cx) {
            if head.expect == Expect::Other {
                let end = End::Invalid(InvalidReason::Expectation);
                exchange.refuse(cx, UNKNOWN_EXPECTATION, end);
            } else if is_over_limit(cx.shard, head) {
                exchange.refuse(cx, TOO_LARGE, End::Invalid(InvalidReason::TooLarge));
            } else {
                cx.io.close = closing;
                exchange.keep_forwarded(bytes);
                if expects && self.inbuf.is_empty() {
                    cx.io
                        .out
                        .plain()
                        .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                let idle = cx.shard.snapshot.fleet.runtime.body_idle_timeout;
                cx.io.timers.set(Timer::Client, now + idle);
                self.front = Front::Body;
            }
        }
        self.exchange = Some(exchange);
        if self.front == Front::Running {
            self.close_exchange(shard, now);
        }
    }

    /// Takes body bytes for the exchange.
    pub(super) fn read_body(&mut self, shard: &mut Shard, now: Instant) {
        let (Some(exchange), Some(decoder)) = (self.exchange.as_mut(), self.body.as_mut()) else {
            return;
        };
        let limit = exchange.plan.fleet.serving.max_request_bytes;
        let cx = &mut Cx {
            shard,
            io: &mut self.io,
            now,
        };
        let mut pos = 0;
        loop {
            match decoder.next(&self.inbuf[pos..]) {
                Ok(Step::Piece { data, used }) => {
                    let piece = &self.inbuf[pos + data.start..pos + data.end];
                    pos += used;
                    if exchange.body.len() + piece.len() > limit {
                        exchange.refuse(cx, TOO_LARGE, End::Invalid(InvalidReason::TooLarge));
                        break;
                    }
                    exchange.body.extend_from_slice(piece);
                }
                Ok(Step::More { used }) => {
                    pos += used;
                    self.inbuf.drain(..pos);
                    return;
                }
                Ok(Step::End { used }) => {
                    pos += used;
                    self.front = Front::Running;
                    cx.io.timers.clear(Timer::Client);
                    exchange.checks(cx);
                    break;
                }
                Err(fault) => {
                    cx.io.close = true;
                    let refusal = malformed(fault.status());
                    exchange.refuse(cx, refusal, End::Invalid(InvalidReason::Framing));
                    break;
                }
            }
        }
        if pos == self.inbuf.len() {
            // A stream may last for minutes, and needs none.
            self.inbuf = Vec::new();
        } else {
            self.inbuf.drain(..pos);
        }
        if self
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.is_over())
        {
            self.close_exchange(shard, now);
        }
    }

    /// Drops body bytes behind an early answer.
    pub(super) fn discard(&mut self, shard: &mut Shard, now: Instant, mut left: usize) {
        let Some(decoder) = self.body.as_mut() else {
            return;
        };
        let mut pos = 0;
        loop {
            match decoder.next(&self.inbuf[pos..]) {
                Ok(Step::Piece { data, used }) => {
                    pos += used;
                    if data.len() > left {
                        return self.linger(now);
                    }
                    left -= data.len();
                }
                Ok(Step::More { used }) => {
                    self.inbuf.drain(..pos + used);
                    self.front = Front::Discard { left };
                    return;
                }
                Ok(Step::End { used }) => {
                    self.inbuf.drain(..pos + used);
                    return self.await_head(shard, now);
                }
                Err(_) => return self.linger(now),
            }
        }
    }

    /// The request's deadline is over, in whatever phase.
    pub fn deadline_over(&mut self, shard: &mut Shard, now: Instant) {
        let Some(exchange) = self.exchange.as_mut().filter(|x| !x.is_over()) else {
            if self.io.tail.is_some() {
                // It had as long for its answer as the request had for all.
                self.cut(shard, now);
            }
            return;
        };
        let in_body = self.front == Front::Body;
        self.io.close |= in_body;
        let cx = &mut Cx {
            shard,
            io: &mut self.io,
            now,
        };
        exchange.expire(cx, in_body);
        self.after(shard, now);
        if self.io.out.pending() > 0 {
            // A client that does not read at its deadline is not waited for much longer.
            let soon = now + Duration::from_secs(1);
            self.io.timers.set(Timer::Stall, soon);
            if self.io.tail.is_some() {
                self.io.timers.set(Timer::Deadline, soon);
            }
        }
    }
}

impl Exchange {
    /// Keeps the client's fields that may pass to engines.
    fn keep_forwarded(&mut self, head: &[u8]) {
        for name in &self.plan.fleet.runtime.forward_headers {
            if let Some(value) = head::field(head, name) {
                self.forward.push((name.clone(), value.to_vec()));
            }
        }
    }

    /// The body is whole: check the request, in the contract's order.
    fn checks(&mut self, cx: &mut Cx) {
        let fleet = &self.plan.fleet;
        let rules = Rules {
            dialect: fleet.engine.dialect,
            model: &fleet.model,
            aliases: &fleet.model_aliases,
        };
        self.marks.body_done = cx.now;
        let began = cx.shard.tick();
        match openai::check(self.route, &self.body, &rules) {
            Ok(request) => {
                self.marks.model_checked = true;
                cx.shard.took(Series::Parse, began);
                self.request = Some(request);
                self.begin_keep_alive(cx);
                self.size(cx);
            }
            Err(fault) => {
                self.marks.model_checked = fault.after_model;
                let refusal = Refusal {
                    status: fault.status,
                    message: fault.message,
                    kind: fault.kind,
                    param: fault.param,
                    code: fault.code,
                    retry_after: None,
                };
                self.refuse(cx, refusal, End::Invalid(invalid_reason(fault.reason)));
            }
        }
    }

    /// The deadline is over.
    fn expire(&mut self, cx: &mut Cx, in_body: bool) {
        cx.io.close_leg(0);
        cx.io.close_leg(1);
        let reason = if in_body {
            ExpireReason::BodyDeadline
        } else {
            ExpireReason::Deadline
        };
        if self.relay.started() || self.head_sent {
            answer::end_stream_with(cx.io, "Request deadline expired", "expired");
            return self.finish(cx, End::Expired(reason));
        }
        let refusal = Refusal::new(504, "request_expired", "Request deadline expired");
        self.refuse(cx, refusal, End::Expired(reason));
    }
}

/// Whether an answer at the head ends the connection, and says so: a client that waits for `100 Continue` may never send
/// its body, and one that is over the limit is not read away.
pub(super) fn ends_early(shard: &Shard, head: &RequestHead) -> bool {
    head.expect != Expect::None || is_over_limit(shard, head)
}

/// Whether the head tells that the body is over the limit.
fn is_over_limit(shard: &Shard, head: &RequestHead) -> bool {
    let limit = shard.snapshot.fleet.serving.max_request_bytes as u64;
    matches!(head.body, RequestBody::Length(length) if length > limit)
}

/// What is no request, or goes on over a limit.
pub(super) fn malformed(status: u16) -> Refusal<'static> {
    let message = match status {
        431 => "The head is over the limit",
        505 => "The HTTP version is not supported",
        _ => "The request is not valid HTTP/1.1",
    };
    Refusal::new(status, "invalid_request_error", message)
}

/// The checks name their reasons by the words of the ledger.
fn invalid_reason(word: &str) -> InvalidReason {
    let found = InvalidReason::ALL
        .iter()
        .copied()
        .find(|reason| reason.name() == word);
    debug_assert!(found.is_some(), "no such reason: {word}");
    found.unwrap_or(InvalidReason::BadType)
}
