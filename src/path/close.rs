//! Stage `close`: what becomes of the connection, its legs and the rest of the request once an answer is out.
//!
//! A kept connection first discards what is left of the request's body, up to `max_request_bytes` and for at most
//! [`limits::DISCARD_KEEP_SECONDS`]; beyond that, and on every connection that closes, writing is shut down and input is discarded for
//! at most [`limits::DISCARD_CLOSE_SECONDS`], so that the client can read the answer before a reset. A client that
//! is late mostly ends here too.

use std::time::Duration;

use super::accept::{Connection, Front};
use super::answer::{self, Refusal};
use super::exchange::Cx;
use super::leg::State;
use super::timers::Timer;
use crate::base::limits;
use crate::base::time::Instant;
use crate::base::units::Leg;
use crate::metrics::ledger::Cell;
use crate::metrics::outcome::{End, InvalidReason};
use crate::shard::Shard;

const LATE: Refusal = Refusal::new(
    408,
    "invalid_request_error",
    "The request did not arrive in time",
);

impl Connection {
    /// The exchange is over: its legs end, and the connection goes on or closes.
    pub(super) fn close_exchange(&mut self, shard: &mut Shard, now: Instant) {
        self.exchange = None;
        self.settle_legs(now);
        self.end_request(shard, now);
    }

    /// An answer is out. What of the request is still to come?
    pub(super) fn end_request(&mut self, shard: &mut Shard, now: Instant) {
        self.io.head_only = false;
        self.io.timers.clear(Timer::Client);
        if self.client_ended || self.io.close {
            return self.linger(now);
        }
        if self.body.as_ref().is_none_or(|body| body.ended()) {
            return self.await_head(shard, now);
        }
        self.front = Front::Discard {
            left: shard.snapshot.fleet.serving.max_request_bytes,
        };
        let until = now + Duration::from_secs(limits::DISCARD_KEEP_SECONDS);
        self.io.timers.set(Timer::Client, until);
    }

    /// A leg that has said all we want may still end its answer, to keep its socket. Others are cut.
    fn settle_legs(&mut self, now: Instant) {
        for slot in 0..self.legs.len() {
            match self.legs[slot].state {
                State::Idle | State::Draining if !self.io.has_command(slot) => {}
                // The prefill leg beside a decode leg that is done answers in a moment, even if it is only just on its way.
                State::Opening | State::Head if self.legs[slot].kind != Some(Leg::Prefill) => {
                    self.io.close_leg(slot);
                }
                State::Opening | State::Head | State::Body
                    if matches!(self.legs[slot].status, 0 | 200) && !self.io.has_command(slot) =>
                {
                    self.legs[slot].state = State::Draining;
                    self.io
                        .bound_leg(slot, now + Duration::from_millis(limits::DRAIN_MILLIS));
                }
                _ => self.io.close_leg(slot),
            }
        }
    }

    /// Closes after what is gathered has gone out.
    pub(super) fn linger(&mut self, now: Instant) {
        self.io.close = true;
        self.inbuf.clear();
        self.front = Front::Linger;
        // What is still to be written has its own bound; the wait for the client's end begins behind it.
        match self.io.out.pending() {
            0 => {
                let until = now + Duration::from_secs(limits::DISCARD_CLOSE_SECONDS);
                self.io.timers.set(Timer::Client, until);
            }
            _ => self.io.timers.clear(Timer::Client),
        }
    }

    /// The client's side took too long.
    pub(super) fn client_late(&mut self, shard: &mut Shard, now: Instant) {
        match self.front {
            // The client is still taking an answer: its own time begins when it has it. Until then the stall timer watches.
            Front::Head if self.is_behind() => self.await_head(shard, now),
            Front::Head if self.inbuf.is_empty() && self.io.out.pending() > 0 => {
                self.await_head(shard, now);
            }
            Front::Linger if self.io.out.pending() > 0 => self.linger(now),
            Front::Head if self.inbuf.is_empty() => self.cut(shard, now),
            Front::Head => {
                shard.count(Cell::HeadsRefused);
                self.io.close = true;
                answer::write_refusal(&mut self.io, shard, &LATE, None, None);
                self.linger(now);
            }
            Front::Body if self.asking.take().is_some() => {
                self.io.close = true;
                answer::write_refusal(&mut self.io, shard, &LATE, None, None);
                self.linger(now);
            }
            Front::Body => {
                self.io.close = true;
                if let Some(exchange) = self.exchange.as_mut() {
                    let cx = &mut Cx {
                        shard,
                        io: &mut self.io,
                        now,
                    };
                    exchange.refuse(cx, LATE, End::Invalid(InvalidReason::BodyIdle));
                }
                self.after(shard, now);
            }
            Front::Discard { .. } => self.linger(now),
            Front::Linger => self.cut(shard, now),
            Front::Running if self.exchange.is_none() => self.control_late(shard, now),
            Front::Running | Front::Closed => {}
        }
    }

    /// The client is gone, or not worth waiting for: nothing more is written or read.
    pub(super) fn cut(&mut self, shard: &mut Shard, now: Instant) {
        if let Some(mut exchange) = self.exchange.take().filter(|x| !x.is_over()) {
            let cx = &mut Cx {
                shard,
                io: &mut self.io,
                now,
            };
            exchange.cancel(cx);
        }
        for slot in 0..self.legs.len() {
            // A leg may be wanted that the runtime has not opened yet.
            let is_wanted = !matches!(self.legs[slot].state, State::Idle | State::Draining);
            if is_wanted || self.io.has_command(slot) {
                self.io.close_leg(slot);
            }
        }
        self.io.out.discard();
        self.end_tail(shard, false);
        self.io.timers.clear(Timer::Client);
        self.io.timers.clear(Timer::Stall);
        self.front = Front::Closed;
        self.client_ended = true;
    }
}
