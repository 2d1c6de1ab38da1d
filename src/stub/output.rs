//! A reply as writes on a connection: head, chunks, and the faults that lie between bytes. Pure; whoever drives it writes what it
//! appends, waits until the moments that it names, and ends the connection when it says so.
//!
//! Every event is a chunk of its own, and by default a write; head, `[DONE]` and the last chunk too. The chunk's size is written
//! into room left in front of the event, so nothing is copied and nothing allocated once the buffer has grown.
//!
//! Invariant: one [`Act::Send`] is one write, and never an empty one; after [`Act::Done`], [`Act::Close`], [`Act::Reset`] and
//! [`Act::Hang`] nothing more comes.

mod chunk;

mod steps;

use std::time::Duration;

pub use self::chunk::{close_chunk, open_chunk};
use crate::base::time::Instant;
use crate::stub::answer::{Answer, Framing, stream_head_framed};
use crate::stub::engine::{Reply, Whole};
use crate::stub::faults::{At, Injected, Turn};
use crate::stub::rooms::Seat;
use crate::stub::stream::{Made, Next, Stream};
use crate::wire::h1::encode::{LAST_CHUNK, reason};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Write what was appended, at once and alone.
    Send,
    /// Come back then, or when the engine's state changed.
    Wait(Instant),
    /// The answer is complete; the connection ends too if so said.
    Done { close: bool },
    /// End the connection: FIN.
    Close,
    /// End it with RST.
    Reset,
    /// Do nothing more, and keep the connection until the client leaves.
    Hang,
    /// Something happens to the engine; then come back.
    Turn(Turn),
}

/// How the connection wants it.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Time of day at [`Instant::ZERO`], Unix seconds.
    pub epoch_unix_s: u64,
    /// The connection ends with this answer.
    pub close: bool,
    /// The request was HEAD.
    pub headless: bool,
    /// Events, each a chunk, that one write may hold. A quiet vLLM sends 1; a busy one was seen to send 103.
    pub events_per_write: usize,
    pub keep_alive: Option<Duration>,
}

#[derive(Debug)]
pub struct Output {
    how: How,
    body: Body,
    framing: Framing,
    injected: Injected,
    /// How often each step was done.
    done: Vec<u64>,
    stage: Stage,
    /// Events sent, for places.
    events: u64,
    sent_at: Instant,
    paused_until: Instant,
    /// The second half of what a step cut, and the step.
    rest: Option<(Vec<u8>, usize)>,
    /// What goes out in small writes, and how much of it is out.
    trickle: (Vec<u8>, usize),
}

#[derive(Debug)]
enum Body {
    Whole(Option<Whole>),
    Answer(Answer),
    Stream(Box<Stream>),
    /// A stream whose length must be known first: all its events.
    Gathered(Box<Stream>, Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Interim,
    Ready,
    Head,
    Events,
    Last,
    End,
}

impl Output {
    pub fn new(mut reply: Reply, now: Instant, mut how: How) -> Self {
        let injected = reply.take_injected();
        let shape = &injected.shape;
        how.keep_alive = shape.keep_alive.or(how.keep_alive);
        let (body, usual) = match reply {
            Reply::Whole(whole) => (Body::Whole(Some(whole)), Framing::Length),
            Reply::Stream(stream) if shape.framing == Some(Framing::Length) => {
                (Body::Gathered(stream, Vec::new()), Framing::Length)
            }
            Reply::Stream(stream) => (Body::Stream(stream), Framing::Chunked),
        };
        let framing = shape.framing.unwrap_or(usual);
        how.close |= framing == Framing::Close;
        Output {
            how,
            body,
            framing,
            done: vec![0; injected.steps.len()],
            injected,
            stage: Stage::Interim,
            events: 0,
            sent_at: now,
            paused_until: Instant::ZERO,
            rest: None,
            trickle: (Vec::new(), 0),
        }
    }

    /// The next act at `now`; bytes of [`Act::Send`] are appended to `out`.
    pub fn poll(&mut self, now: Instant, out: &mut Vec<u8>) -> Act {
        let Some(size) = self.injected.shape.write_bytes else {
            return self.act(now, out);
        };
        if self.trickle.1 == self.trickle.0.len() {
            self.trickle.0.clear();
            self.trickle.1 = 0;
            let mut bytes = std::mem::take(&mut self.trickle.0);
            let act = self.act(now, &mut bytes);
            self.trickle.0 = bytes;
            if act != Act::Send {
                return act;
            }
        }
        let (bytes, at) = &mut self.trickle;
        let end = bytes
            .len()
            .min(at.saturating_add(usize::try_from(size).unwrap_or(usize::MAX)));
        out.extend_from_slice(&bytes[*at..end]);
        *at = end;
        Act::Send
    }

    /// What may end a wait early.
    pub fn seat(&self) -> Option<&Seat> {
        match &self.body {
            Body::Whole(whole) => whole.as_ref().and_then(Whole::seat),
            Body::Stream(stream) | Body::Gathered(stream, _) => stream.seat(),
            Body::Answer(_) => None,
        }
    }

    fn act(&mut self, now: Instant, out: &mut Vec<u8>) -> Act {
        loop {
            if now < self.paused_until {
                return Act::Wait(self.paused_until);
            }
            if let Some((rest, step)) = self.rest.take() {
                if self.done[step] == 0 {
                    self.rest = Some((rest, step));
                    if let Some(act) = self.commit(step, now, out) {
                        return act;
                    }
                    continue;
                }
                out.extend_from_slice(&rest);
                return self.send(now);
            }
            if let Some(step) = self.due()
                && let Some(act) = self.commit(step, now, out)
            {
                return act;
            }
            if let Some(act) = self.go_on(now, out) {
                return act;
            }
        }
    }

    /// One stage further; `None` when nothing was appended and there is more to do at once.
    fn go_on(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Act> {
        match self.stage {
            Stage::Interim => {
                self.stage = Stage::Ready;
                for status in &self.injected.shape.interim {
                    let phrase = match status {
                        102 => "Processing",
                        103 => "Early Hints",
                        other => reason(*other),
                    };
                    let line = format!("HTTP/1.1 {status} {phrase}\r\n\r\n");
                    out.extend_from_slice(line.as_bytes());
                }
                (!out.is_empty()).then(|| self.send(now))
            }
            Stage::Ready => self.ready(now),
            Stage::Head => {
                let from = out.len();
                self.head(now, out);
                self.stage = Stage::Events;
                self.cut(At::InHead, from, out);
                let joins = matches!(&self.body, Body::Stream(stream) if stream.holds_head());
                (!joins || !self.injected.steps.is_empty()).then(|| self.send(now))
            }
            Stage::Events => self.body(now, out),
            Stage::Last => {
                self.stage = Stage::End;
                if self.framing != Framing::Chunked || self.how.headless {
                    return None;
                }
                out.extend_from_slice(LAST_CHUNK);
                Some(self.send(now))
            }
            Stage::End => Some(match self.framing {
                Framing::Close => Act::Close,
                _ => Act::Done {
                    close: self.how.close,
                },
            }),
        }
    }

    fn ready(&mut self, now: Instant) -> Option<Act> {
        match &mut self.body {
            Body::Whole(whole) => {
                if let Some(Next::At(at)) = whole.as_mut().map(|whole| whole.poll(now)) {
                    return Some(Act::Wait(at));
                }
                if let Some(whole) = whole.take() {
                    self.body = Body::Answer(whole.take());
                }
            }
            Body::Gathered(stream, bytes) => loop {
                match stream.next(now, bytes) {
                    Made::Event => {}
                    Made::Wait(at) => return Some(Act::Wait(at)),
                    Made::Done => break,
                }
            },
            Body::Stream(stream) if stream.holds_head() => {
                if let Some(at) = stream.idle_until(now) {
                    return Some(Act::Wait(at));
                }
            }
            Body::Stream(_) | Body::Answer(_) => {}
        }
        self.stage = Stage::Head;
        None
    }

    fn head(&self, now: Instant, out: &mut Vec<u8>) {
        let unix_s = self.how.epoch_unix_s + now.nanos() / 1_000_000_000;
        let (close, framing) = (self.how.close, self.framing);
        match &self.body {
            Body::Answer(answer) => answer.head_framed(unix_s, close, framing, out),
            Body::Gathered(_, bytes) => {
                stream_head_framed(unix_s, close, framing, bytes.len(), out)
            }
            _ => stream_head_framed(unix_s, close, framing, 0, out),
        }
    }

    fn body(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Act> {
        let from = out.len();
        let bytes = match &mut self.body {
            Body::Stream(_) => return self.stream(now, out),
            Body::Answer(answer) => &mut answer.body,
            Body::Gathered(_, bytes) => bytes,
            Body::Whole(_) => return None,
        };
        self.stage = Stage::Last;
        if self.how.headless || bytes.is_empty() {
            return None;
        }
        match self.framing {
            Framing::Chunked => {
                let room = open_chunk(out);
                out.append(bytes);
                close_chunk(room, out);
            }
            _ => out.append(bytes),
        }
        self.cut(At::InEvent, from, out);
        Some(self.send(now))
    }

    /// The events due, as many as one write may hold.
    fn stream(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Act> {
        let Body::Stream(stream) = &mut self.body else {
            return None;
        };
        let chunked = self.framing == Framing::Chunked;
        let mut held = 0;
        loop {
            let from = out.len();
            let room = if chunked { open_chunk(out) } else { from };
            let made = stream.next(now, out);
            if made != Made::Event {
                out.truncate(from);
                if made == Made::Done {
                    self.stage = Stage::Last;
                }
                if held > 0 {
                    return Some(self.send(now));
                }
                return match made {
                    Made::Wait(due) => Some(self.wait(now, due, out)),
                    _ => None,
                };
            }
            if chunked {
                close_chunk(room, out);
            }
            held += 1;
            self.events += 1;
            if !self.injected.steps.is_empty() {
                // Places lie between events: no write passes over one.
                self.events -= 1;
                self.cut(At::InEvent, from, out);
                self.events += 1;
                return Some(self.send(now));
            }
            if held >= self.how.events_per_write || stream.is_at_mark() {
                return Some(self.send(now));
            }
        }
    }

    /// Nothing is due: a comment, when nothing was sent for long.
    fn wait(&mut self, now: Instant, due: Instant, out: &mut Vec<u8>) -> Act {
        let Some(every) = self.how.keep_alive else {
            return Act::Wait(due);
        };
        let at = self.sent_at + every;
        if at > now {
            return Act::Wait(due.min(at));
        }
        self.payload(b": keep-alive\n\n", out);
        self.send(now)
    }

    fn send(&mut self, now: Instant) -> Act {
        self.sent_at = now;
        Act::Send
    }

    /// Appends `bytes` as a piece of the body.
    fn payload(&self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.framing == Framing::Chunked {
            let room = open_chunk(out);
            out.extend_from_slice(bytes);
            close_chunk(room, out);
        } else {
            out.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests;
