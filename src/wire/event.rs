//! Events of an engine's stream: which data lines make one event, what it means, and how it is written to a client.
//!
//! Owns the bytes of an unfinished line or of joined data lines between two reads, and the facts of the event at hand. Pure: what
//! to do with an event (hold, relay, assemble, fail) is the caller's.
//!
//! A data line that is by itself a JSON object or `[DONE]` is an event at its line end, whether or not other lines of its block
//! came before; engines that leave out blank lines are understood, and a good event does not wait for one. Other data lines
//! join with LF until the blank line, or until such an event: the block is an event when it makes an object, and malformed
//! otherwise. Data of nothing but white space is no event. An unfinished block at the end of the body is dropped (WHATWG HTML).
//!
//! Invariant: `lines` + `block` hold at most `event_bytes_max` bytes; nothing is delivered after [`Item::Done`], an end asked for by
//! the sink, or [`TooLarge`].

use std::ops::{ControlFlow, Range};

use super::sse::{Field, Lines, append_bounded, clear_bounded};

#[doc(hidden)]
pub mod fuzzing;

mod cutting;
mod facts;
mod reader;
mod shape;
#[cfg(test)]
mod tests;

pub use super::sse::TooLarge;
pub use facts::{EngineError, Facts, Ids, Varies};
use shape::{Shape, Spots};

/// What the stream holds, in order.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A complete data event that is one JSON object. `joined`: the value holds the LFs that joined its lines.
    Object {
        value: &'a [u8],
        joined: bool,
        facts: &'a Facts,
        /// `data: `, the value and two LFs, where the event came like that and in one piece.
        block: Option<&'a [u8]>,
    },
    /// Data that is not one JSON object.
    Malformed { value: &'a [u8], joined: bool },
    /// The terminator. Nothing follows.
    Done,
    /// A comment, or an `event`, `id` or `retry` line, whole, without its terminator.
    Line(&'a [u8]),
    /// A block ended, and the lines given since the last event (or since the block began) belong to no event.
    Blank,
}

/// A resumable reader of one event stream.
#[derive(Debug)]
pub struct EventStream {
    lines: Lines,
    blocks: Blocks,
    bytes_max: usize,
    ended: bool,
}

/// Lines to events.
#[derive(Debug)]
struct Blocks {
    ids: Ids,
    /// Data lines that are no event by themselves, joined.
    block: Vec<u8>,
    /// How many lines `block` joins; one line may be empty.
    joined: usize,
    /// Lines were given that no event has taken yet.
    loose: bool,
    facts: Facts,
    shape: Shape,
}

impl EventStream {
    /// `event_bytes_max` bounds one line, and one joined block with the line that is to come.
    pub fn new(ids: Ids, event_bytes_max: usize) -> Self {
        EventStream {
            lines: Lines::default(),
            blocks: Blocks {
                ids,
                block: Vec::new(),
                joined: 0,
                loose: false,
                facts: Facts::default(),
                shape: Shape::default(),
            },
            bytes_max: event_bytes_max,
            ended: false,
        }
    }

    /// Feeds payload bytes, HTTP framing removed. `Break`: the sink stopped the stream or it was done; nothing more will
    /// come, whatever is fed.
    pub fn feed(
        &mut self,
        mut piece: &[u8],
        mut sink: impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TooLarge> {
        while !self.ended {
            if let Some(flow) = self.whole(&mut piece, &mut sink) {
                if flow.is_break() {
                    self.end();
                }
                continue;
            }
            if piece.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            let room = self.bytes_max.saturating_sub(self.blocks.block.len());
            let line = match self.lines.next(&mut piece, room) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(ControlFlow::Continue(())),
                Err(fault) => {
                    self.end();
                    return Err(fault);
                }
            };
            match self.blocks.line(line, self.bytes_max, &mut sink) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => self.end(),
                Err(fault) => {
                    self.end();
                    return Err(fault);
                }
            }
        }
        Ok(ControlFlow::Break(()))
    }

    /// Takes an event that stands whole in the piece, of the stream's shape and written as engines write: nearly all are, and need no
    /// search for line ends, because the shape tells where the event is over.
    #[inline]
    fn whole(
        &mut self,
        piece: &mut &[u8],
        sink: &mut impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Option<ControlFlow<()>> {
        if self.blocks.joined > 0 || !self.lines.at_start() {
            return None;
        }
        let rest = *piece;
        let value = rest.strip_prefix(DATA)?;
        let len = self
            .blocks
            .shape
            .read_front(value, &mut self.blocks.facts)?;
        let end = DATA.len() + len;
        if end > self.bytes_max || !rest[end..].starts_with(EVENT_END) {
            return None;
        }
        let (block, behind) = rest.split_at(end + EVENT_END.len());
        *piece = behind;
        self.blocks.loose = false;
        Some(sink(Item::Object {
            value: &value[..len],
            joined: false,
            facts: &self.blocks.facts,
            block: Some(block),
        }))
    }

    /// The engine's body ended. A last line without terminator that is a JSON object or `[DONE]` is still an event.
    pub fn eof(
        &mut self,
        mut sink: impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TooLarge> {
        if self.ended {
            return Ok(ControlFlow::Break(()));
        }
        let mut flow = ControlFlow::Continue(());
        if let Some(line) = self.lines.last()
            && let Field::Data(value) = Field::of(line)
            && let Some(lone) = self.blocks.lone(value)
        {
            flow = self.blocks.event(value, lone, &mut sink);
        }
        self.end();
        Ok(flow)
    }

    /// Makes the reader new for another stream; buffers of ordinary size are kept.
    pub fn reset(&mut self, ids: Ids, event_bytes_max: usize) {
        self.end();
        self.ended = false;
        self.lines.reset();
        self.blocks.ids = ids;
        self.bytes_max = event_bytes_max;
    }

    /// Bytes of memory held for unfinished events.
    pub fn capacity(&self) -> usize {
        self.lines.capacity() + self.blocks.block.capacity() + self.blocks.shape.capacity()
    }

    fn end(&mut self) {
        self.ended = true;
        self.lines.reset();
        self.blocks.reset();
    }
}

/// A data line that is an event by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lone {
    Object,
    Done,
}

impl Blocks {
    #[inline]
    fn line(
        &mut self,
        line: &[u8],
        bytes_max: usize,
        sink: &mut impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TooLarge> {
        if line.is_empty() {
            return Ok(self.blank(sink));
        }
        match Field::of(line) {
            Field::Data(value) => match self.lone(value) {
                Some(lone) => return Ok(self.event(value, lone, sink)),
                None => self.join(value, bytes_max)?,
            },
            Field::Kept => {
                self.loose = true;
                return Ok(sink(Item::Line(line)));
            }
            Field::Blank | Field::Ignored => {}
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Whether `value` is an event by itself. An object's facts are then in `facts`.
    #[inline]
    fn lone(&mut self, value: &[u8]) -> Option<Lone> {
        if self.shape.read(value, &mut self.facts) {
            return Some(Lone::Object);
        }
        let mut spots = Spots::default();
        if self.facts.read_spots(value, self.ids, &mut spots) {
            self.shape.learn(value, self.ids, &self.facts, &spots);
            return Some(Lone::Object);
        }
        (value.trim_ascii() == b"[DONE]").then_some(Lone::Done)
    }

    #[inline]
    fn event(
        &mut self,
        value: &[u8],
        lone: Lone,
        sink: &mut impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.joined > 0 {
            let whole = self.facts.varies().is_none();
            self.dispatch(sink)?;
            // The block's own facts took the place of the event's.
            let again = self.lone(value);
            debug_assert!(again == Some(lone));
            if whole {
                // It is known by now, but by itself: whoever takes it has not seen one like it.
                self.facts.varies = None;
            }
        }
        self.loose = false;
        match lone {
            Lone::Object => sink(Item::Object {
                value,
                joined: false,
                facts: &self.facts,
                block: None,
            }),
            Lone::Done => {
                // The caller needs no second sign that the stream is over; the sink's own answer changes nothing.
                let _ = sink(Item::Done);
                ControlFlow::Break(())
            }
        }
    }

    fn blank(&mut self, sink: &mut impl FnMut(Item<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        if self.joined > 0 {
            self.dispatch(sink)?;
        }
        if self.loose {
            self.loose = false;
            return sink(Item::Blank);
        }
        ControlFlow::Continue(())
    }

    /// Ends a block of data lines none of which was an event by itself.
    fn dispatch(&mut self, sink: &mut impl FnMut(Item<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        let joined = self.joined > 1;
        self.joined = 0;
        let value = &self.block[..];
        let flow = if value.trim_ascii().is_empty() {
            ControlFlow::Continue(())
        } else {
            self.loose = false;
            if joined && self.facts.read(value, self.ids) {
                let facts = &self.facts;
                sink(Item::Object {
                    value,
                    joined,
                    facts,
                    block: None,
                })
            } else {
                sink(Item::Malformed { value, joined })
            }
        };
        clear_bounded(&mut self.block);
        flow
    }

    fn join(&mut self, value: &[u8], bytes_max: usize) -> Result<(), TooLarge> {
        let lf = usize::from(self.joined > 0);
        // Each line may be written as one of data again.
        let names = self.joined * DATA.len();
        if self.block.len() + names + lf + value.len() > bytes_max {
            return Err(TooLarge);
        }
        append_bounded(&mut self.block, &b"\n"[..lf], bytes_max);
        append_bounded(&mut self.block, value, bytes_max);
        self.joined += 1;
        Ok(())
    }

    fn reset(&mut self) {
        self.shape.forget();
        clear_bounded(&mut self.block);
        self.joined = 0;
        self.loose = false;
    }
}

const DATA: &[u8] = b"data: ";
const EVENT_END: &[u8] = b"\n\n";

/// Appends a client's bytes of an [`Item::Object`] that came as a `block`; `cuts` are of its value.
#[inline]
pub fn write_block(out: &mut Vec<u8>, block: &[u8], cuts: &[Range<usize>]) {
    out.reserve(block.len());
    let mut from = 0;
    for cut in cuts {
        out.extend_from_slice(&block[from..DATA.len() + cut.start]);
        from = DATA.len() + cut.end;
    }
    out.extend_from_slice(&block[from..]);
}

/// Appends a client's bytes of an object event: the value as it came, without `cuts`, on one data line.
pub fn write_event(out: &mut Vec<u8>, value: &[u8], joined: bool, cuts: &[Range<usize>]) {
    out.reserve(value.len() + DATA.len() + EVENT_END.len());
    out.extend_from_slice(DATA);
    let start = out.len();
    let mut from = 0;
    for cut in cuts {
        out.extend_from_slice(&value[from..cut.start]);
        from = cut.end;
    }
    out.extend_from_slice(&value[from..]);
    if joined {
        // LF stands between JSON tokens only: inside a string it would have been a fault.
        for byte in &mut out[start..] {
            if *byte == b'\n' {
                *byte = b' ';
            }
        }
    }
    out.extend_from_slice(EVENT_END);
}

/// Appends a client's bytes of a malformed event: the data lines that came, and a blank line.
pub fn write_malformed(out: &mut Vec<u8>, value: &[u8]) {
    for line in value.split(|b| *b == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
}
