//! Stage `accept`: one client connection. Bytes and events come in, the stages run, commands and a deadline come out.
//!
//! The runtime owns sockets and one timer; it calls the `handle`-like methods here with what happened and the time, and then asks, in
//! this order: [`Connection::next_command`], [`Connection::take_output`], [`Connection::leg_reads`], [`Connection::client_reads`],
//! [`Connection::wants_shutdown`], [`Connection::is_closed`], [`Connection::deadline`]. Requests are answered in order: a pipelined one
//! counts as arrived when its turn comes, and what is read ahead is bounded.

use super::exchange::{Cx, Exchange, Io};
use super::leg::{LegCommand, LegSlot};
use super::timers::Timer;
use crate::base::limits;
use crate::base::time::Instant;
use crate::base::units::Leg;
use crate::shard::{ControlRequest, Shard};
use crate::wire::h1::body::BodyDecoder;
use crate::wire::h1::head::HeadLimits;

/// Leg slots of a connection: engines whose legs run side by side need two.
pub const SLOTS: usize = 2;

/// What the client's side is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Between requests, or in the middle of a head.
    Head,
    /// The body of a completion request is coming in.
    Body,
    /// The exchange runs, or the control thread was asked.
    Running,
    /// An early answer is out; the rest of the body is dropped.
    Discard {
        left: usize,
    },
    /// Closing: everything that still comes is dropped.
    Linger,
    Closed,
}

/// See the head of this file.
pub struct Connection {
    pub(super) front: Front,
    pub(super) io: Io,
    pub(super) exchange: Option<Box<Exchange>>,
    pub(super) legs: [LegSlot; SLOTS],
    /// Client bytes not used yet.
    pub(super) inbuf: Vec<u8>,
    /// Of the head that comes: what held when it was awaited.
    pub(super) head_limits: HeadLimits,
    /// How far `inbuf` was searched for the end of a head.
    pub(super) scanned: usize,
    /// The current request's body.
    pub(super) body: Option<BodyDecoder>,
    /// A control request whose body is coming.
    pub(super) asking: Option<Box<ControlRequest>>,
    /// The client closed its sending side, or broke.
    pub(super) client_ended: bool,
    pub(super) loopback: bool,
    /// This connection's address for mail from the control thread.
    pub(super) token: u64,
    /// When output last went to the client.
    pub(super) last_sent: Instant,
    shut: bool,
}

impl Connection {
    pub fn new(shard: &mut Shard, now: Instant, token: u64, loopback: bool) -> Self {
        let mut io = Io::default();
        io.timers.set(
            Timer::Client,
            now + shard.snapshot.fleet.runtime.header_timeout,
        );
        Connection {
            front: Front::Head,
            io,
            exchange: None,
            legs: Default::default(),
            inbuf: Vec::new(),
            head_limits: head_limits(shard),
            scanned: 0,
            body: None,
            asking: None,
            client_ended: false,
            loopback,
            token,
            last_sent: now,
            shut: false,
        }
    }

    // ── what happened ──

    pub fn client_bytes(&mut self, shard: &mut Shard, now: Instant, bytes: &[u8]) {
        if matches!(self.front, Front::Linger | Front::Closed) {
            return;
        }
        if self.front == Front::Head && self.inbuf.is_empty() {
            // The first byte of a head starts its clock; the next ones do not move it.
            let until = now + shard.snapshot.fleet.runtime.header_timeout;
            self.io.timers.set(Timer::Client, until);
            self.head_limits = head_limits(shard);
        }
        if self.front == Front::Body && self.asking.is_none() {
            let until = now + shard.snapshot.fleet.runtime.body_idle_timeout;
            self.io.timers.set(Timer::Client, until);
        }
        self.inbuf.extend_from_slice(bytes);
        if self.front == Front::Running && self.inbuf.len() > limits::PIPELINE_BYTES_MAX {
            // Reading on is how a lost client is noticed, so what is over the bound is dropped, and the connection with it
            // once this answer is out. Requests that were not answered then may be sent again (RFC 9112 section 9.3.2).
            self.io.close = true;
            self.inbuf.clear();
        }
        self.advance(shard, now);
    }

    /// The client closed its sending side, or its connection broke. Either way it is gone: a half-close after
    /// a complete request is not told apart.
    pub fn client_end(&mut self, shard: &mut Shard, now: Instant) {
        self.client_ended = true;
        match self.front {
            Front::Closed => {}
            // The answer may be complete and on its way: it goes out first.
            Front::Head | Front::Discard { .. } | Front::Linger if self.io.out.pending() > 0 => {
                self.linger(now);
            }
            _ => self.cut(shard, now),
        }
    }

    /// Some of a write went out: the client is alive.
    pub fn client_progress(&mut self, shard: &Shard, now: Instant) {
        let until = now + shard.snapshot.fleet.runtime.client_write_stall;
        self.io.timers.set(Timer::Stall, until);
    }

    /// The taken output is out; its buffer comes back.
    pub fn client_written(&mut self, shard: &mut Shard, now: Instant, buf: Vec<u8>) {
        let (was_full, bytes) = (self.io.out.is_full(), self.io.out.in_flight());
        shard.count_write(bytes);
        self.io.out.written(buf);
        self.io.timers.clear(Timer::Stall);
        self.tail_went(shard);
        if let (true, Some(exchange)) = (was_full, self.exchange.as_mut()) {
            // The engine was not read meanwhile, so its silence counts from now.
            exchange.stream_read_done(&mut Cx {
                shard,
                io: &mut self.io,
                now,
            });
        }
        if self.front == Front::Linger && self.io.out.pending() == 0 {
            self.linger(now);
        }
        self.advance(shard, now);
    }

    /// The router is going down: close now when nothing is under way, and after the answer otherwise.
    pub fn close_when_idle(&mut self, shard: &mut Shard, now: Instant) {
        self.io.close = true;
        if self.front == Front::Head && self.inbuf.is_empty() {
            self.linger(now);
        }
        self.advance(shard, now);
    }

    /// Writing failed.
    pub fn client_broken(&mut self, shard: &mut Shard, now: Instant) {
        self.cut(shard, now);
    }

    pub fn timer(&mut self, shard: &mut Shard, now: Instant) {
        while let Some(timer) = self.io.timers.expired(now) {
            match timer {
                Timer::Deadline => self.deadline_over(shard, now),
                Timer::Client => self.client_late(shard, now),
                Timer::Leg0 => self.leg_late(shard, now, 0),
                Timer::Leg1 => self.leg_late(shard, now, 1),
                Timer::Wait => {
                    let Some(exchange) = self.exchange.as_mut() else {
                        continue;
                    };
                    exchange.wait_over(&mut Cx {
                        shard,
                        io: &mut self.io,
                        now,
                    });
                    self.after(shard, now);
                }
                Timer::Stall => self.cut(shard, now),
                Timer::KeepAlive => self.keep_alive(shard, now),
                Timer::Price => {
                    if let Some(exchange) = self.exchange.as_mut().filter(|x| !x.is_over()) {
                        exchange.price_again(&mut Cx {
                            shard,
                            io: &mut self.io,
                            now,
                        });
                    }
                    self.after(shard, now);
                }
            }
        }
    }

    // ── what is wanted ──

    /// The next thing to do for a leg slot.
    pub fn next_command(&mut self, shard: &Shard) -> Option<(usize, LegCommand)> {
        let (slot, command) = self.io.next_command()?;
        let opens = matches!(command, LegCommand::Open { .. });
        shard.count_legs(opens, self.legs[slot].is_open());
        match &command {
            LegCommand::Open { engine, kind, .. } => self.legs[slot].open(*engine, *kind),
            LegCommand::Close | LegCommand::Park => self.legs[slot].close(),
        }
        Some((slot, command))
    }

    /// Everything to write now, and the offset where it begins.
    pub fn take_output(&mut self, shard: &Shard, now: Instant) -> Option<(Vec<u8>, usize)> {
        let taken = self.io.out.take()?;
        self.last_sent = now;
        self.client_progress(shard, now);
        Some(taken)
    }

    /// Whether the leg's socket should be read: not while the client's buffer is full.
    pub fn leg_reads(&self, slot: usize) -> bool {
        let leg = &self.legs[slot];
        let relays = leg.kind == Some(Leg::Decode) && !leg.drains();
        leg.reads() && !(relays && self.io.out.is_full())
    }

    /// Whether the client's socket should be read. While an exchange runs that is how a lost client is noticed.
    pub fn client_reads(&self) -> bool {
        !self.client_ended && (self.front == Front::Running || self.inbuf.len() < self.ahead_max())
    }

    /// Bytes that it may hold before the client is not read: a whole head has room.
    fn ahead_max(&self) -> usize {
        limits::PIPELINE_BYTES_MAX.max(self.head_limits.bytes_max)
    }

    /// Bytes to offer for the next client read.
    pub fn client_read_bytes(&self) -> usize {
        match self.front {
            Front::Body => {
                let left = self.body.as_ref().and_then(BodyDecoder::left);
                match left.is_some_and(|left| left <= limits::CLIENT_READ_BYTES as u64) {
                    true => limits::CLIENT_READ_BYTES,
                    false => limits::CLIENT_BODY_READ_BYTES,
                }
            }
            Front::Running => limits::CLIENT_WATCH_BYTES,
            _ => limits::CLIENT_READ_BYTES,
        }
    }

    /// True once, when everything is out and the client is to see the end of our side.
    pub fn wants_shutdown(&mut self) -> bool {
        let now = self.front == Front::Linger && self.io.out.pending() == 0 && !self.shut;
        self.shut |= now;
        now
    }

    /// The client's socket may go.
    pub fn client_is_done(&self) -> bool {
        self.front == Front::Closed
    }

    /// Nothing is left to do here.
    pub fn is_closed(&self) -> bool {
        self.front == Front::Closed && self.legs.iter().all(|leg| !leg.is_open())
    }

    pub fn deadline(&self) -> Instant {
        self.io.timers.next()
    }

    pub fn token(&self) -> u64 {
        self.token
    }

    // ── in between ──

    /// Uses up what the client has sent, as far as it goes.
    pub(super) fn advance(&mut self, shard: &mut Shard, now: Instant) {
        loop {
            let before = (self.front, self.inbuf.len());
            match self.front {
                Front::Head if self.is_behind() => return,
                Front::Head => self.read_head(shard, now),
                Front::Body if self.asking.is_some() => self.read_ask(shard, now),
                Front::Body => self.read_body(shard, now),
                Front::Discard { left } => self.discard(shard, now, left),
                Front::Running | Front::Linger | Front::Closed => return,
            }
            if (self.front, self.inbuf.len()) == before {
                return;
            }
        }
    }

    /// To be called after every stage: ends what is over.
    pub(super) fn after(&mut self, shard: &mut Shard, now: Instant) {
        if self
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.is_over())
        {
            self.close_exchange(shard, now);
            self.advance(shard, now);
        }
    }

    /// Ready for the next request.
    pub(super) fn await_head(&mut self, shard: &Shard, now: Instant) {
        self.front = Front::Head;
        self.body = None;
        self.scanned = 0;
        self.head_limits = head_limits(shard);
        let runtime = &shard.snapshot.fleet.runtime;
        let wait = if self.inbuf.is_empty() {
            runtime.keepalive_idle
        } else {
            runtime.header_timeout
        };
        self.io.timers.set(Timer::Client, now + wait);
    }
}

fn head_limits(shard: &Shard) -> HeadLimits {
    let runtime = &shard.snapshot.fleet.runtime;
    HeadLimits {
        bytes_max: runtime.max_header_bytes,
        fields_max: runtime.max_headers,
    }
}
