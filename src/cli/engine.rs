//! The simulated engine on sockets: HTTP/1.1 as uvicorn serves it, around [`stub::engine`](crate::stub::engine).
//!
//! Owns its connections; shares the world of engines with the other listeners of its thread, and borrows it only between awaits.
//! A connection is one task. It keeps a read in flight all the time, so that a client that leaves (or shuts its sending side, which
//! vLLM takes for the same) is noticed at once: then the task ends, and with the reply the request on the engine.
//! What is written and when, faults included, is [`stub::output`](crate::stub::output)'s business.
//!
//! Invariant: bytes read ahead ≤ [`AHEAD_BYTES_MAX`] + one read; body ≤ [`BODY_BYTES_MAX`].

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use self::alarm::Ear;
use self::inbox::Inbox;
use crate::base::limits;
use crate::base::time::{Clock, Instant};
use crate::runtime::clock::MonotonicClock;
use crate::runtime::io::{Hangup, ReadHalf, Rt, WriteHalf, yield_now};
use crate::stub::answer::Answer;
use crate::stub::engine::{Incoming, World};
use crate::stub::faults::Do;
use crate::stub::output::{Act, How, Output};
use crate::stub::rooms::Seat;
use crate::wire::h1::body::{BodyDecoder, Step};
use crate::wire::h1::encode;
use crate::wire::h1::head::{self, Expect, HeadLimits, Method, RequestHead};

mod alarm;

mod inbox;

#[cfg(test)]
mod tests;

pub use self::alarm::Alarm;

/// One engine of a world, and how it writes.
#[derive(Clone)]
pub struct Server {
    pub world: Rc<RefCell<World>>,
    /// Which of the world's engines.
    pub index: usize,
    pub clock: MonotonicClock,
    /// Rung when the process is to end, or an engine's port closes.
    pub alarm: Rc<Alarm>,
    /// Events, each a chunk, that one write may hold.
    pub events_per_write: usize,
}

/// Idle connections are closed after this, as uvicorn does (5.0 s, measured).
pub const IDLE: Duration = Duration::from_secs(5);

/// Pipelined bytes read while an answer runs. Past it the socket is not read, and leaving is seen at the next write.
pub const AHEAD_BYTES_MAX: usize = limits::PIPELINE_BYTES_MAX;

/// Bytes of a request body. uvicorn has no bound; this one is far above any router's.
pub const BODY_BYTES_MAX: usize = 64 << 20;

impl Server {
    /// Serves until the listener is stopped, or the engine's port closes for good. Connections go on by themselves.
    pub async fn serve<R: Rt>(self, listener: R::Listener) {
        let address = R::local_addr(&listener);
        let mut listener = Rc::new(listener);
        loop {
            // Nothing else closes a port.
            if self.has_faults() {
                R::spawn(self.clone().watch::<R>(Rc::downgrade(&listener)));
            }
            self.accept_all::<R>(&listener).await;
            drop(listener);
            let Ok(address) = address else {
                return;
            };
            match self.reopened::<R>(address).await {
                Some(again) => listener = Rc::new(again),
                None => return,
            }
        }
    }

    async fn accept_all<R: Rt>(&self, listener: &R::Listener) {
        loop {
            match R::accept(listener).await {
                Ok((reader, writer, _)) => {
                    R::spawn(self.clone().connection::<R>(reader, writer));
                }
                // What accept says of a listener that listens no more.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                // Out of descriptors, or the client left the queue.
                Err(_) => R::sleep(TICK).await,
            }
        }
    }

    /// Closes the port when the engine's time has come.
    async fn watch<R: Rt>(self, listener: Weak<R::Listener>) {
        loop {
            R::sleep(TICK).await;
            let Some(listener) = listener.upgrade() else {
                return;
            };
            if self.is_closed() {
                R::stop_listening(&listener);
                self.alarm.ring();
                return;
            }
        }
    }

    /// The port again, once the engine is back; `None` when it never is.
    async fn reopened<R: Rt>(&self, address: SocketAddr) -> Option<R::Listener> {
        let until = self.world.borrow().engines[self.index].closed().1;
        if until == Instant::FAR {
            return None;
        }
        R::sleep(until.since(self.clock.now())).await;
        loop {
            match R::listen(address, false, BACKLOG) {
                Ok(listener) => {
                    let now = self.clock.now();
                    self.world.borrow_mut().reopened(self.index, now);
                    return Some(listener);
                }
                // Somebody else took the port meanwhile.
                Err(_) => R::sleep(TICK).await,
            }
        }
    }

    async fn connection<R: Rt>(self, reader: R::Reader, writer: R::Writer) {
        let now = self.clock.now();
        let injected = self.world.borrow_mut().accepted(self.index, now);
        let hangup = reader.hangup();
        let mut connection = Connection::<R> {
            ear: Ear::new(&self.alarm),
            server: self,
            inbox: Inbox::new(reader),
            writer: Some(writer),
            hangup,
            out: Vec::with_capacity(1_024),
        };
        match injected.steps.first().map(|step| step.act) {
            None => {}
            Some(Do::Hang) => return connection.hang().await,
            Some(Do::Close) => return,
            Some(_) => return connection.hangup.reset(),
        }
        // Ended by the client, by idleness, or after an answer that closes: all the same from here.
        while connection.exchange().await.is_some() {}
    }

    fn has_faults(&self) -> bool {
        let world = self.world.borrow();
        !world.engines[self.index].setup().faults.0.is_empty()
    }

    fn is_closed(&self) -> bool {
        self.world.borrow().engines[self.index].is_closed(self.clock.now())
    }
}

struct Connection<R: Rt> {
    server: Server,
    inbox: Inbox<R::Reader>,
    /// Away only while a write has it, and for good once a write failed.
    writer: Option<R::Writer>,
    hangup: Hangup,
    ear: Ear,
    /// What is written next. Empty between writes.
    out: Vec<u8>,
}

impl<R: Rt> Connection<R> {
    /// One request and its answer; `None` ends the connection.
    async fn exchange(&mut self) -> Option<()> {
        let Some(head) = self.head().await? else {
            return self.refuse().await;
        };
        let head_bytes: Vec<u8> = self.inbox.buf.drain(..head.head_bytes).collect();
        if head.expect == Expect::Continue {
            self.out.extend_from_slice(encode::CONTINUE);
            self.send().await?;
        }
        let Some(body) = self.body(&head).await? else {
            return self.refuse().await;
        };
        let incoming = Incoming {
            method: head_bytes
                .trim_ascii_start()
                .split(|b| *b == b' ')
                .next()
                .unwrap_or(b""),
            path: &head_bytes[head.path.clone()],
            request_id: head::field(&head_bytes, "x-request-id"),
            content_type: head::field(&head_bytes, "content-type"),
            body: &body,
        };
        let server = &self.server;
        let now = server.clock.now();
        let reply = server
            .world
            .borrow_mut()
            .request(server.index, now, &incoming);
        let (epoch_unix_s, keep_alive) = {
            let world = server.world.borrow();
            let setup = world.engines[server.index].setup();
            (setup.epoch_unix_s, setup.keep_alive)
        };
        let how = How {
            epoch_unix_s,
            close: !head.keep_alive,
            headless: head.method == Method::Head,
            events_per_write: server.events_per_write.max(1),
            keep_alive,
        };
        let alarm = server.alarm.clone();
        alarm.answering.set(alarm.answering.get() + 1);
        let answered = self.answer(Output::new(reply, now, how)).await;
        alarm.answering.set(alarm.answering.get() - 1);
        answered.filter(|()| !self.server.is_closed())
    }

    /// The next head; inner `None` when the bytes are none.
    async fn head(&mut self) -> Option<Option<RequestHead>> {
        const LIMITS: HeadLimits = HeadLimits {
            // A header of 70 kB passes through uvicorn.
            bytes_max: 1 << 17,
            fields_max: head::FIELDS_MAX,
        };
        if self.inbox.buf.is_empty() {
            self.first().await?;
        }
        let mut scanned = 0;
        loop {
            match head::parse_request(&self.inbox.buf, &mut scanned, &LIMITS) {
                Ok(Some(head)) => return Some(Some(head)),
                Ok(None) => self.inbox.more().await?,
                Err(_) => return Some(None),
            }
        }
    }

    /// The whole body; inner `None` when its framing is broken or it is too large.
    async fn body(&mut self, head: &RequestHead) -> Option<Option<Vec<u8>>> {
        let mut decoder = BodyDecoder::request(head.body);
        let mut body = Vec::new();
        loop {
            match decoder.next(&self.inbox.buf) {
                Ok(Step::Piece { data, used }) => {
                    if body.len() + data.len() > BODY_BYTES_MAX {
                        return Some(None);
                    }
                    body.extend_from_slice(&self.inbox.buf[data]);
                    self.inbox.buf.drain(..used);
                }
                Ok(Step::More { used }) => {
                    self.inbox.buf.drain(..used);
                    self.inbox.more().await?;
                }
                Ok(Step::End { used }) => {
                    self.inbox.buf.drain(..used);
                    return Some(Some(body));
                }
                Err(_) => return Some(None),
            }
        }
    }

    /// Carries out an answer; `None` ends the connection.
    async fn answer(&mut self, mut output: Output) -> Option<()> {
        let mut now = self.server.clock.now();
        let mut writes = 0;
        loop {
            match output.poll(now, &mut self.out) {
                Act::Send => {
                    self.send().await?;
                    writes += 1;
                    // The others too; and only then another look at the clock.
                    if writes % WRITES_PER_TURN == 0 {
                        yield_now().await;
                        now = self.server.clock.now();
                    }
                }
                Act::Wait(at) => {
                    self.wait(at, output.seat()).await?;
                    now = self.server.clock.now();
                }
                Act::Turn(turn) => {
                    let server = &self.server;
                    server.world.borrow_mut().turn(server.index, now, turn);
                    server.alarm.ring();
                }
                Act::Done { close } => return (!close).then_some(()),
                Act::Close => return None,
                Act::Reset => {
                    self.hangup.reset();
                    return None;
                }
                Act::Hang => {
                    self.hang().await;
                    return None;
                }
            }
        }
    }

    /// Nothing, until the client leaves.
    async fn hang(&mut self) {
        loop {
            self.inbox.buf.clear();
            if self.inbox.more().await.is_none() {
                return;
            }
        }
    }

    /// Answers what is no HTTP, and ends the connection.
    async fn refuse(&mut self) -> Option<()> {
        let answer = Answer::unparsable();
        answer.head(self.unix_s(), true, &mut self.out);
        self.out.extend_from_slice(&answer.body);
        self.send().await?;
        None
    }

    /// Writes `out` and empties it; `None` when the client is gone.
    async fn send(&mut self) -> Option<()> {
        let writer = self.writer.take()?;
        let write = writer.write_all(std::mem::take(&mut self.out), 0);
        let (sent, out, writer) = self.inbox.race(write).await?;
        sent.ok()?;
        self.out = out;
        self.out.clear();
        self.writer = Some(writer);
        Some(())
    }

    /// Waits for a time, for a change of what the leg of `seat` waits for, or for the alarm.
    async fn wait(&mut self, at: Instant, seat: Option<&Seat>) -> Option<()> {
        let left = at.since(self.server.clock.now());
        if left.is_zero() {
            return Some(());
        }
        let mut sleep = pin!(R::sleep(left));
        let mut rung = pin!(self.ear.rung());
        let mut changed = pin!(async {
            match seat {
                Some(seat) => seat.changed().await,
                None => pending().await,
            }
        });
        let any = poll_fn(|cx| {
            let done = changed.as_mut().poll(cx).is_ready()
                || sleep.as_mut().poll(cx).is_ready()
                || rung.as_mut().poll(cx).is_ready();
            if done { Poll::Ready(()) } else { Poll::Pending }
        });
        self.inbox.race(any).await
    }

    /// The first byte of a request, in time and from an engine that is there.
    async fn first(&mut self) -> Option<()> {
        let mut more = pin!(self.inbox.more_within::<R>(IDLE));
        loop {
            let mut rung = pin!(self.ear.rung());
            let got = poll_fn(|cx| match more.as_mut().poll(cx) {
                Poll::Ready(more) => Poll::Ready(Some(more)),
                Poll::Pending => rung.as_mut().poll(cx).map(|()| None),
            })
            .await;
            match got {
                Some(more) => return more,
                None if self.server.is_closed() => return None,
                None => {}
            }
        }
    }

    fn unix_s(&self) -> u64 {
        let server = &self.server;
        server.world.borrow().engines[server.index].unix_s(server.clock.now())
    }
}

/// Writes of one answer before other connections get their turn.
const WRITES_PER_TURN: u32 = 32;

/// How often a port looks whether it is to close.
const TICK: Duration = Duration::from_millis(10);

const BACKLOG: u32 = 1_024;
