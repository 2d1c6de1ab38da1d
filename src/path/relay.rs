//! Stage `relay`: the engine's event stream, event by event: checked, counted, cut and sent, or handed to assembly.
//!
//! Nothing goes out before the first token-bearing event: up to [`limits::HELD_EVENTS_MAX`] data events are held, other lines dropped.
//! After it, each complete and checked event of a read goes into the client's buffer, and the read becomes at most one write. A bad
//! event ends the attempt; the good ones before it in the same read are sent. A relayed event allocates nothing once the buffers have
//! grown.

use std::ops::ControlFlow;

use super::Stage;
use super::answer;
use super::assemble::Assembly;
use super::exchange::{Cx, Exchange, Io};
use super::fault::Cause;
use super::fields::Fields;
use crate::base::limits;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Phase};
use crate::fleet::learn::pace::Pace;
use crate::fleet::pick::Placement;
use crate::metrics::ledger::Cell;
use crate::wire::event::{self, EventStream, Facts, Item};
use crate::wire::openai;

/// One attempt's stream, as far as it has come.
#[derive(Debug, Default)]
pub struct Relay {
    /// The answer is no event stream: a refusal, or one JSON object.
    pub plain: bool,
    /// The first payload byte that is not white space has been seen.
    sniffed: bool,
    started: bool,
    done: bool,
    fault: Option<Cause>,
    keep_ids: bool,
    limit: usize,
    hold: Vec<u8>,
    held: usize,
    /// Lines that go out with the next event.
    fields: Fields,
    /// Ids counted in this attempt.
    pub tokens: u64,
    /// Ids of the first token-bearing event; the times between tokens count from there.
    pub first_tokens: u64,
    pub first_token: Option<Instant>,
    pub last_token: Instant,
    events: u64,
    /// The engine sends ids for its tokens, so they are known to be counted.
    pub counts_ids: bool,
    pub pace: Pace,
}

impl Relay {
    pub fn new(limit: usize, keep_ids: bool, counts_ids: bool) -> Self {
        Relay {
            limit,
            keep_ids,
            counts_ids,
            ..Relay::default()
        }
    }

    /// Whether the client has seen output.
    pub fn started(&self) -> bool {
        self.started
    }

    pub fn take_fault(&mut self) -> Option<Cause> {
        self.fault.take()
    }
}

impl Exchange {
    /// Payload of a decode leg that answered 200.
    #[inline]
    pub fn stream_payload(&mut self, cx: &mut Cx, engine: EngineId, piece: &[u8]) {
        if !self.relay.sniffed {
            self.sniff(piece);
        }
        if self.relay.plain {
            if !self.collect(piece, self.relay.limit) {
                self.fail(cx, engine, Cause::ResponseLimit);
            }
            return;
        }
        let (events, mut sink) = self.sink(cx);
        let Some(events) = events else {
            return;
        };
        if events.feed(piece, |item| sink.item(item)).is_err() {
            self.relay.fault = Some(Cause::ResponseLimit);
        }
        self.stream_progress(cx, engine);
    }

    /// The engine's body is whole: what is left in the reader may be a last event.
    pub fn stream_eof(&mut self, cx: &mut Cx) {
        let (events, mut sink) = self.sink(cx);
        let Some(events) = events else {
            return;
        };
        if events.eof(|item| sink.item(item)).is_err() {
            self.relay.fault = Some(Cause::ResponseLimit);
        }
        self.account_events(cx);
        if self.relay.fault.is_none() && self.relay.done {
            self.complete(cx);
        }
    }

    /// One read of the decode leg is used up.
    pub fn stream_read_done(&mut self, cx: &mut Cx) {
        self.account_events(cx);
        if self.relay.started {
            Sink::flush_comments(&mut self.relay, cx.io);
        }
        if self.relay.first_token.is_some() {
            self.teach_pace(cx);
            let gap = self.plan.fleet.engine.decode_read_timeout;
            cx.io
                .bound_leg(0, gap.map_or(Instant::FAR, |gap| cx.now + gap));
        }
    }

    /// What the payload decided. What it brought is counted when the read is used up, or when it decided something.
    #[inline]
    fn stream_progress(&mut self, cx: &mut Cx, engine: EngineId) {
        let relay = &self.relay;
        let noted = relay.first_token.is_none() || self.marks.first_token_noted;
        if relay.fault.is_none() && !relay.done && noted {
            return;
        }
        self.account_events(cx);
        match self.relay.fault.take() {
            Some(cause) => self.fail(cx, engine, cause),
            None if self.relay.done => self.complete(cx),
            None => {}
        }
    }

    /// Counts what the read brought, once.
    pub(super) fn account_events(&mut self, cx: &mut Cx) {
        if self.relay.events > 0 {
            let new = self.relay.tokens - self.marks.tokens_counted;
            self.marks.tokens_counted = self.relay.tokens;
            cx.shard.count_events(self.relay.events, new);
            self.relay.events = 0;
        }
        if let (Some(first), false) = (self.relay.first_token, self.marks.first_token_noted) {
            self.marks.first_token_noted = true;
            self.marks.first_token = Some(first);
            // It was used, and serves one attempt: another makes its own.
            self.handoff.params = Vec::new();
            self.handoff_over(cx);
            if let Some(load) = &mut self.decode_load {
                cx.shard.shared.board.generates(load);
            }
            if self.relay.started {
                cx.shard.ledger.update(|tx| tx.add(Cell::StreamsActive, 1));
            }
            self.stage = if self.assembly.is_some() {
                Stage::Assemble
            } else {
                Stage::Relay
            };
            match self.placement {
                Some(Placement::TwoLegs { prefill, decode }) => {
                    cx.shard.shared.pair_met(prefill, decode);
                    cx.shard.shared.board.line(prefill).did_well(Phase::Prefill);
                    // Side by side the decode leg goes first and waits for the prompt to be read, which is no part of it.
                    let marks = &self.marks;
                    let begun = match self.room {
                        None => Some(marks.decoding),
                        Some(_) => Some(marks.prefilled).filter(|read| *read > marks.decoding),
                    };
                    if let Some(begun) = begun {
                        let delay = first.since(begun);
                        cx.shard.shared.note_handoff(delay, cx.now);
                    }
                }
                // The prompt is read.
                Some(Placement::OneLeg { .. }) => self.release_prefill(cx),
                None => {}
            }
        }
    }

    /// `{` where an event stream would start is an answer in one JSON object.
    fn sniff(&mut self, piece: &[u8]) {
        let first = piece
            .iter()
            .find(|b| !matches!(b, b' ' | b'\t' | b'\r' | b'\n'));
        if let Some(first) = first {
            self.relay.sniffed = true;
            self.relay.plain = *first == b'{';
        }
    }

    /// The reader of the stream, and who takes what it reads.
    fn sink<'a>(&'a mut self, cx: &'a mut Cx) -> (Option<&'a mut EventStream>, Sink<'a>) {
        let sink = Sink {
            relay: &mut self.relay,
            assembly: self.assembly.as_deref_mut(),
            head_sent: self.head_sent,
            refusal: &mut self.refusal_message,
            id: &self.id,
            date: &cx.shard.date,
            io: cx.io,
            now: cx.now,
        };
        (self.events.as_mut(), sink)
    }
}

/// Takes the items of one read.
struct Sink<'a> {
    relay: &'a mut Relay,
    assembly: Option<&'a mut Assembly>,
    head_sent: bool,
    refusal: &'a mut Option<String>,
    id: &'a [u8; 36],
    date: &'a [u8; 29],
    io: &'a mut Io,
    now: Instant,
}

impl Sink<'_> {
    fn item(&mut self, item: Item) -> ControlFlow<()> {
        match item {
            Item::Object {
                value,
                joined,
                facts,
                block,
            } => self.object(value, joined, facts, block),
            Item::Malformed { value, .. } => self.malformed(value),
            Item::Done if self.relay.first_token.is_none() => self.fault(Cause::Termination),
            Item::Done => {
                self.relay.done = true;
                ControlFlow::Break(())
            }
            Item::Line(line) => {
                if self.relay.started {
                    self.relay.fields.push(line);
                }
                ControlFlow::Continue(())
            }
            Item::Blank => {
                self.relay.fields.end_block();
                Sink::flush_comments(self.relay, self.io);
                ControlFlow::Continue(())
            }
        }
    }

    #[inline]
    fn object(
        &mut self,
        value: &[u8],
        joined: bool,
        facts: &Facts,
        block: Option<&[u8]>,
    ) -> ControlFlow<()> {
        if let Some(error) = &facts.error {
            *self.refusal = openai::engine_message(value);
            return self.fault(Cause::Status(error.status));
        }
        if !facts.ids_ok {
            return self.fault(Cause::BadIds);
        }
        if facts.abort {
            return self.fault(Cause::Abort);
        }
        self.relay.events += 1;
        self.relay.tokens += facts.tokens;
        if facts.bears_token {
            if self.relay.first_token.is_none() {
                self.relay.first_token = Some(self.now);
                self.relay.first_tokens = facts.tokens;
                if self.assembly.is_none() {
                    self.start();
                }
            }
            self.relay.last_token = self.now;
        }
        let cuts = if self.relay.keep_ids {
            &[]
        } else {
            facts.cuts()
        };
        match self.assembly.as_mut() {
            Some(assembly) => assembly.event_known(value, facts.varies()),
            None if self.relay.started => {
                let out = answer::stream_body(self.io);
                if !self.relay.fields.is_empty() {
                    self.relay.fields.append_to(out);
                }
                match block {
                    Some(block) => event::write_block(out, block, cuts),
                    None => event::write_event(out, value, joined, cuts),
                }
                return ControlFlow::Continue(());
            }
            None => event::write_event(&mut self.relay.hold, value, joined, cuts),
        }
        self.held()
    }

    fn malformed(&mut self, value: &[u8]) -> ControlFlow<()> {
        self.relay.events += 1;
        match self.assembly.as_mut() {
            Some(assembly) => assembly.malformed(),
            None if self.relay.started => {
                let out = answer::stream_body(self.io);
                self.relay.fields.append_to(out);
                event::write_malformed(out, value);
                return ControlFlow::Continue(());
            }
            None => event::write_malformed(&mut self.relay.hold, value),
        }
        self.held()
    }

    /// A data event that is not sent now: bounded before the first token.
    fn held(&mut self) -> ControlFlow<()> {
        if self.relay.first_token.is_some() {
            return ControlFlow::Continue(());
        }
        self.relay.held += 1;
        if self.relay.held > limits::HELD_EVENTS_MAX || self.relay.hold.len() > self.relay.limit {
            return self.fault(Cause::ResponseLimit);
        }
        ControlFlow::Continue(())
    }

    /// Status, headers and held events go out with the first token.
    fn start(&mut self) {
        self.relay.started = true;
        if !self.head_sent {
            answer::write_stream_head(self.io, self.id, self.date);
        }
        answer::stream_body(self.io).append(&mut self.relay.hold);
        self.relay.hold = Vec::new();
    }

    /// Comments alone need not wait.
    fn flush_comments(relay: &mut Relay, io: &mut Io) {
        if relay.fields.are_comments() {
            relay.fields.append_to(answer::stream_body(io));
        }
    }

    fn fault(&mut self, cause: Cause) -> ControlFlow<()> {
        self.relay.fault = Some(cause);
        ControlFlow::Break(())
    }
}
