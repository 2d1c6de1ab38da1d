//! One engine request on the wire: reads the engine's answer, head and body, as bytes come in.
//!
//! A leg's bytes are distrusted like a client's: the same strict parser, a bounded head, any framing. It keeps no payload; the exchange
//! is handed each piece where it stands in the read. Invariant: a socket goes back to the pool only after the answer's last byte was read
//! and nothing came behind it.

use std::ops::Range;

use crate::base::limits;
use crate::base::units::{EngineId, Leg};
use crate::wire::h1::body::{BodyDecoder, Step};
use crate::wire::h1::head::{self, HeadLimits, Media};

/// What the runtime is asked to do for a slot.
#[derive(Debug)]
pub enum LegCommand {
    /// Send `request` to `engine`; on a pooled connection unless `fresh`.
    Open {
        engine: EngineId,
        kind: Leg,
        request: Vec<u8>,
        fresh: bool,
    },
    /// Drop the connection at once.
    Close,
    /// The answer was read to its end: the connection may serve again.
    Park,
}

/// How a leg's connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegFault {
    /// No connection: refused, unreachable, reset while connecting, or no address.
    Connect,
    /// The connection broke while the request was sent or the answer read.
    Broken,
    /// This process has no descriptor or memory left for a connection: the engine was not even tried.
    Shortage,
}

/// One of a connection's two leg slots.
#[derive(Debug, Default)]
pub struct LegSlot {
    pub state: State,
    pub engine: Option<EngineId>,
    pub kind: Option<Leg>,
    /// On a connection that had served before.
    pub reused: bool,
    /// Whether any byte of the answer came.
    pub answered: bool,
    pub status: u16,
    /// The request is out. Before that only the connection may be worked on.
    is_sent: bool,
    pub media: Option<Media>,
    keep_alive: bool,
    head: Vec<u8>,
    scanned: usize,
    body: Option<BodyDecoder>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Idle,
    /// Waiting for a connection: the engine has as many as `pool_max` allows.
    Waiting,
    /// Connecting and sending.
    Opening,
    /// The request is out; no head yet.
    Head,
    Body,
    /// The exchange has what it wanted; only the end of the answer is awaited, to keep the socket.
    Draining,
}

/// What came out of the bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum LegStep {
    /// All input is used.
    More,
    /// The head is complete: `status`, `media`.
    Head,
    /// These bytes of the input are payload.
    Payload(Range<usize>),
    /// The answer is complete.
    End,
    /// Not HTTP as we accept it.
    Bad,
}

impl LegSlot {
    pub fn open(&mut self, engine: EngineId, kind: Leg) {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        *self = LegSlot {
            state: State::Opening,
            engine: Some(engine),
            kind: Some(kind),
            head,
            ..LegSlot::default()
        };
    }

    /// The request is out, on a connection that had served before (`reused`) or not.
    pub fn sent(&mut self, reused: bool) {
        self.reused = reused;
        self.is_sent = true;
        self.advance_to(State::Head);
    }

    /// One that only drains goes on draining.
    fn advance_to(&mut self, state: State) {
        if self.state != State::Draining {
            self.state = state;
        }
    }

    pub fn close(&mut self) {
        self.state = State::Idle;
        self.is_sent = false;
        self.body = None;
    }

    /// Its exchange is over.
    pub fn drains(&self) -> bool {
        self.state == State::Draining
    }

    pub fn is_open(&self) -> bool {
        self.state != State::Idle
    }

    /// Whether its socket should be read now.
    pub fn reads(&self) -> bool {
        self.is_sent && self.is_open()
    }

    /// Whether the connection may go back to the pool once the answer has ended and nothing is left of the input.
    pub fn may_park(&self) -> bool {
        self.keep_alive
    }

    /// The next piece of payload in `input[*pos..]`, for whoever wants nothing else. With `None`, [`LegSlot::step`] tells what is
    /// there instead.
    #[inline]
    pub fn piece(&mut self, input: &[u8], pos: &mut usize) -> Option<Range<usize>> {
        if *pos == input.len() {
            return None;
        }
        let (piece, used) = match self.body.as_mut()?.next(&input[*pos..]) {
            Ok(Step::Piece { data, used }) => (Some(*pos + data.start..*pos + data.end), used),
            // Asked again, it says the same.
            Ok(Step::More { used } | Step::End { used }) => (None, used),
            Err(_) => (None, 0),
        };
        *pos += used;
        piece
    }

    /// Whether a stream's payload is all that has come lately, and all that is likely to come.
    #[inline]
    pub fn streams(&self) -> bool {
        self.state == State::Body && self.kind == Some(Leg::Decode) && self.status == 200
    }

    /// Takes the next step through `input[*pos..]`. Call until [`LegStep::More`], [`LegStep::End`] or [`LegStep::Bad`].
    pub fn step(&mut self, input: &[u8], pos: &mut usize) -> LegStep {
        if *pos < input.len() {
            self.answered = true;
        }
        if let Some(body) = &self.body {
            if *pos == input.len() && !body.ended() {
                return LegStep::More;
            }
            self.step_body(input, pos)
        } else {
            self.step_head(input, pos)
        }
    }

    /// The engine closed its side. True when that is how the answer was to end.
    pub fn eof(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.eof().is_ok())
    }

    fn step_body(&mut self, input: &[u8], pos: &mut usize) -> LegStep {
        let Some(body) = self.body.as_mut() else {
            return LegStep::Bad;
        };
        match body.next(&input[*pos..]) {
            Ok(Step::Piece { data, used }) => {
                let piece = *pos + data.start..*pos + data.end;
                *pos += used;
                LegStep::Payload(piece)
            }
            Ok(Step::More { used }) => {
                *pos += used;
                LegStep::More
            }
            Ok(Step::End { used }) => {
                *pos += used;
                LegStep::End
            }
            Err(_) => LegStep::Bad,
        }
    }

    /// Parses where the bytes stand when the head came in one read, and from `self.head` otherwise.
    fn step_head(&mut self, input: &[u8], pos: &mut usize) -> LegStep {
        const LIMITS: HeadLimits = HeadLimits {
            bytes_max: limits::ENGINE_HEAD_BYTES_MAX,
            fields_max: limits::ENGINE_HEADERS_MAX,
        };
        loop {
            let kept = self.head.len();
            let parsed = if kept == 0 {
                head::parse_response(&input[*pos..], &mut self.scanned, &LIMITS)
            } else {
                self.head.extend_from_slice(&input[*pos..]);
                head::parse_response(&self.head, &mut self.scanned, &LIMITS)
            };
            match parsed {
                Err(_) => return LegStep::Bad,
                Ok(None) => {
                    if kept == 0 {
                        self.head.extend_from_slice(&input[*pos..]);
                    }
                    *pos = input.len();
                    return LegStep::More;
                }
                Ok(Some(head)) => {
                    // Of the head's bytes, `kept` came with earlier reads.
                    *pos += head.head_bytes - kept;
                    self.head.clear();
                    self.scanned = 0;
                    // 101 would change the protocol, which nobody asked for.
                    if head.status == 101 {
                        return LegStep::Bad;
                    }
                    if head.status < 200 {
                        continue;
                    }
                    self.status = head.status;
                    self.media = Some(head.media);
                    self.keep_alive = head.keep_alive;
                    self.body = Some(BodyDecoder::response(head.body));
                    self.advance_to(State::Body);
                    return LegStep::Head;
                }
            }
        }
    }
}
