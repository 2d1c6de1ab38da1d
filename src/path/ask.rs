//! Control routes on the clients' port: head and body go to the control thread, which decides who may ask and what the answer is. Part
//! of stage `parse`.
//!
//! Invariant: a body holds at most [`limits::CONTROL_BODY_BYTES_MAX`].

use std::time::Duration;

use super::accept::{Connection, Front};
use super::answer::{self, Refusal};
use super::parse::{TOO_LARGE, ends_early, malformed};
use super::timers::Timer;
use crate::base::limits;
use crate::base::time::Instant;
use crate::metrics::standing;
use crate::shard::{ControlRequest, Shard};
use crate::wire::h1::body::Step;
use crate::wire::h1::head::{self, Expect, Method, RequestBody, RequestHead};

/// How long a connection waits for the control thread, beyond what that waits for engines itself.
const WAIT: Duration = Duration::from_secs(10);

/// Whether a page in a browser sends this: programs of operators name no origin (Fetch Standard 3.2: every POST of a page does).
fn is_from_page(head: &[u8]) -> bool {
    head::field(head, "origin").is_some() || head::field(head, "sec-fetch-site").is_some()
}

impl Connection {
    /// A head for the control thread has come. What was sent along with anything but a POST is not for it.
    pub(super) fn begin_ask(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        head: &RequestHead,
        bytes: &[u8],
    ) {
        let text = |span: &[u8]| String::from_utf8_lossy(span).into_owned();
        let request = ControlRequest {
            token: self.token,
            method: head.method,
            path: text(&bytes[head.path.clone()]),
            bearer: head::bearer(bytes).map(<[u8]>::to_vec),
            loopback: self.loopback,
            from_page: is_from_page(bytes),
            body: Vec::new(),
        };
        let with_body = head.method == Method::Post && head.body != RequestBody::None;
        if !with_body {
            self.io.close |= ends_early(shard, head);
            return self.ask(shard, now, request);
        }
        if let RequestBody::Length(n) = head.body
            && n > limits::CONTROL_BODY_BYTES_MAX as u64
        {
            self.io.close = true;
            return self.refuse_ask(shard, now, &TOO_LARGE);
        }
        if head.expect != Expect::None && self.inbuf.is_empty() {
            let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
            self.io.out.plain().extend_from_slice(go_on);
        }
        // It is short: bytes that come do not move this bound.
        let bound = shard.snapshot.fleet.runtime.body_idle_timeout;
        self.io.timers.set(Timer::Client, now + bound);
        self.asking = Some(Box::new(request));
        self.front = Front::Body;
    }

    /// Takes body bytes for the control thread.
    pub(super) fn read_ask(&mut self, shard: &mut Shard, now: Instant) {
        let (Some(request), Some(decoder)) = (self.asking.as_mut(), self.body.as_mut()) else {
            return;
        };
        let mut pos = 0;
        let ended = loop {
            match decoder.next(&self.inbuf[pos..]) {
                Ok(Step::Piece { data, used }) => {
                    let piece = &self.inbuf[pos + data.start..pos + data.end];
                    pos += used;
                    if request.body.len() + piece.len() > limits::CONTROL_BODY_BYTES_MAX {
                        break Err(TOO_LARGE);
                    }
                    request.body.extend_from_slice(piece);
                }
                Ok(Step::More { used }) => {
                    self.inbuf.drain(..pos + used);
                    return;
                }
                Ok(Step::End { used }) => {
                    pos += used;
                    break Ok(());
                }
                Err(fault) => break Err(malformed(fault.status())),
            }
        };
        self.inbuf.drain(..pos);
        let request = self.asking.take();
        match (ended, request) {
            (Ok(()), Some(request)) => self.ask(shard, now, *request),
            (Err(refusal), _) => {
                self.io.close = true;
                self.refuse_ask(shard, now, &refusal);
            }
            (Ok(()), None) => {}
        }
    }

    fn ask(&mut self, shard: &mut Shard, now: Instant, request: ControlRequest) {
        let fleet = &shard.snapshot.fleet;
        let wait = match request.method {
            // It may have engines generate a token.
            Method::Post => WAIT + fleet.serving.prefill_timeout + fleet.engine.first_token_timeout,
            _ => WAIT,
        };
        self.front = Front::Running;
        self.io.timers.set(Timer::Client, now + wait);
        if !shard.ask_control(request) {
            self.control_late(shard, now);
        }
    }

    fn refuse_ask(&mut self, shard: &mut Shard, now: Instant, refusal: &Refusal) {
        answer::write_refusal(&mut self.io, shard, refusal, None, None);
        self.end_request(shard, now);
    }

    /// The control thread has too much to do, or is stuck.
    pub(super) fn control_late(&mut self, shard: &mut Shard, now: Instant) {
        let refusal = Refusal::new(503, "server_overloaded_error", "The control thread is busy")
            .retry_after(1);
        // Its answer may still come, and must not be taken for another request's.
        self.io.close = true;
        answer::write_refusal(&mut self.io, shard, &refusal, None, None);
        self.end_request(shard, now);
        self.advance(shard, now);
    }

    /// The control thread's answer to what this connection asked.
    pub fn control_answer(&mut self, shard: &mut Shard, now: Instant, answer: &standing::Answer) {
        if self.front != Front::Running || self.exchange.is_some() {
            return;
        }
        answer::write_small(&mut self.io, shard, answer);
        self.end_request(shard, now);
        self.advance(shard, now);
    }
}
