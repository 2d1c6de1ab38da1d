//! The walk over one data event.
//!
//! One pass of the strict cursor checks the JSON and finds everything; nothing is built. Only the members named here are
//! entered, the rest is checked and skipped. Names compare unescaped; of members given twice the last one counts (as in every
//! JSON reader that engines and clients use) while every occurrence is cut.
//!
//! Invariant: every cut ends before the next one starts, and the cursor has passed all of them.

use std::ops::Range;

use super::cutting::Cutting;
use super::facts::EngineError;
use super::shape::Spots;
use crate::wire::json::{Cursor, JsonFault, Kind, RawStr};

type Result<T> = std::result::Result<T, JsonFault>;

/// What the choices of one event say together.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) tokens: u64,
    pub(super) output: bool,
    /// Output under another name than `reasoning`.
    pub(super) spoken: bool,
    pub(super) abort: bool,
    /// A list or a shape that no leg with ids may have.
    pub(super) fault: bool,
}

/// What a `delta` says.
#[derive(Clone, Copy, Default)]
struct Delta {
    /// One bit for each member with output; a member given twice counts as its last value.
    output: u8,
    /// It is neither an object nor null.
    fault: bool,
}

/// The bit of `reasoning` in [`Delta::output`].
const REASONING: u8 = 2;

/// The `token_ids` of one choice.
#[derive(Clone, Copy)]
enum List {
    /// Not there, null, or empty.
    Absent,
    Good(u64),
    Bad,
}

/// `code` and `message` of an error object, or of the top level.
#[derive(Clone, Default)]
struct Report {
    code: Option<u16>,
    message: Option<Range<usize>>,
}

pub(super) struct Reader<'a, 'c> {
    cursor: Cursor<'a>,
    cuts: &'c mut Vec<Range<usize>>,
    spots: &'c mut Spots,
}

impl<'a, 'c> Reader<'a, 'c> {
    pub(super) fn new(
        value: &'a [u8],
        cuts: &'c mut Vec<Range<usize>>,
        spots: &'c mut Spots,
    ) -> Self {
        Reader {
            cursor: Cursor::new(value),
            cuts,
            spots,
        }
    }

    /// Reads the whole value, an object, and nothing after it.
    pub(super) fn event(mut self) -> Result<(Seen, Option<EngineError>)> {
        let mut seen = Seen::default();
        let mut error = None;
        let mut top = Report::default();
        let mut object_error = false;
        let mut cutting = Cutting::default();
        let mut walk = self.cursor.object()?;
        while let Some(key) = self.cursor.key(&mut walk)? {
            cutting.next_member(self.cuts, &key);
            match name(&key, &TOP) {
                b"choices" => seen = self.choices()?,
                b"token_ids" | b"prompt_token_ids" => {
                    let end = self.cursor.skip()?.end;
                    cutting.cut(self.cuts, walk.before, &key, end);
                    continue;
                }
                b"error" => error = self.error()?,
                b"object" => object_error = self.is_string("error")?,
                b"code" => top.code = self.code()?,
                b"message" => top.message = self.message()?,
                _ => {
                    self.cursor.skip()?;
                }
            }
            cutting.kept = true;
        }
        self.cursor.finish()?;
        let error = match error {
            Some(inner) => Some(inner),
            None => object_error.then(Report::default),
        };
        Ok((seen, error.map(|inner| inner.over(top))))
    }

    fn choices(&mut self) -> Result<Seen> {
        let mut seen = Seen::default();
        if self.cursor.peek()? != Kind::Array {
            self.cursor.skip()?;
            seen.fault = true;
            return Ok(seen);
        }
        let mut walk = self.cursor.array()?;
        while self.cursor.item(&mut walk)? {
            if self.cursor.peek()? == Kind::Object {
                self.choice(&mut seen)?;
            } else {
                self.cursor.skip()?;
                seen.fault = true;
            }
        }
        Ok(seen)
    }

    fn choice(&mut self, seen: &mut Seen) -> Result<()> {
        self.spots.choices += 1;
        let mut list = List::Absent;
        let (mut text, mut abort) = (false, false);
        let mut delta = Delta::default();
        let mut cutting = Cutting::default();
        let mut walk = self.cursor.object()?;
        while let Some(key) = self.cursor.key(&mut walk)? {
            cutting.next_member(self.cuts, &key);
            match name(&key, &CHOICE) {
                b"delta" => delta = self.delta()?,
                b"text" => text = self.truthy()?,
                b"finish_reason" => abort = self.is_string("abort")?,
                b"token_ids" => {
                    list = self.token_ids()?;
                    cutting.cut(self.cuts, walk.before, &key, self.cursor.pos());
                    continue;
                }
                b"prompt_token_ids" => {
                    let end = self.cursor.skip()?.end;
                    cutting.cut(self.cuts, walk.before, &key, end);
                    continue;
                }
                _ => {
                    self.cursor.skip()?;
                }
            }
            cutting.kept = true;
        }
        let output = text || delta.output != 0;
        seen.output |= output;
        seen.spoken |= text || delta.output & !REASONING != 0;
        seen.abort |= abort;
        seen.fault |= delta.fault;
        match list {
            List::Absent => seen.fault |= output,
            List::Good(n) => seen.tokens += n,
            List::Bad => seen.fault = true,
        }
        Ok(())
    }

    fn delta(&mut self) -> Result<Delta> {
        let mut delta = Delta::default();
        match self.cursor.peek()? {
            Kind::Object => {}
            kind => {
                self.cursor.skip()?;
                delta.fault = kind != Kind::Null;
                return Ok(delta);
            }
        }
        let mut walk = self.cursor.object()?;
        while let Some(key) = self.cursor.key(&mut walk)? {
            let bit = match name(&key, &DELTA) {
                b"content" => 1,
                b"reasoning" => REASONING,
                b"reasoning_content" => 4,
                b"tool_calls" => 8,
                b"function_call" => 16,
                b"refusal" => 32,
                _ => {
                    self.cursor.skip()?;
                    continue;
                }
            };
            if self.truthy()? {
                delta.output |= bit;
            } else {
                delta.output &= !bit;
            }
        }
        Ok(delta)
    }

    /// A nonempty list of integers written in digits only, of any size, is good.
    fn token_ids(&mut self) -> Result<List> {
        match self.cursor.peek()? {
            Kind::Array => {}
            kind => {
                self.cursor.skip()?;
                return Ok(match kind {
                    Kind::Null => List::Absent,
                    _ => List::Bad,
                });
            }
        }
        let mut good = true;
        let mut count = 0u64;
        let start = self.cursor.pos();
        let mut walk = self.cursor.array()?;
        while self.cursor.item(&mut walk)? {
            count += 1;
            good &= match self.cursor.peek()? {
                Kind::Number => self.cursor.number()?.iter().all(u8::is_ascii_digit),
                _ => {
                    self.cursor.skip()?;
                    false
                }
            };
        }
        self.spots.lists += 1;
        self.spots.list = start..self.cursor.pos();
        Ok(match count {
            0 => List::Absent,
            _ if good => List::Good(count),
            _ => List::Bad,
        })
    }

    /// Truth as the engines' own language has it: not null, not false, not zero, not empty.
    fn truthy(&mut self) -> Result<bool> {
        Ok(match self.cursor.peek()? {
            Kind::String => {
                let text = self.cursor.string()?;
                self.spots.texts += 1;
                self.spots.text = text.at..self.cursor.pos();
                !text.is_empty()
            }
            Kind::Number => {
                self.spots.odd = true;
                nonzero(self.cursor.number()?)
            }
            Kind::Null | Kind::False => {
                self.cursor.skip()?;
                false
            }
            Kind::True => {
                self.spots.odd = true;
                self.cursor.skip()?;
                true
            }
            Kind::Object | Kind::Array => {
                self.spots.odd = true;
                let span = self.cursor.skip()?;
                let inner = &self.cursor.input()[span.start + 1..span.end - 1];
                !inner.trim_ascii_start().is_empty()
            }
        })
    }

    /// The value of an `error` member: `None` when it is null.
    fn error(&mut self) -> Result<Option<Report>> {
        let mut report = Report::default();
        match self.cursor.peek()? {
            Kind::Null => {
                self.cursor.skip()?;
                return Ok(None);
            }
            Kind::Object => {
                let mut walk = self.cursor.object()?;
                while let Some(key) = self.cursor.key(&mut walk)? {
                    match name(&key, &ERROR) {
                        b"code" => report.code = self.code()?,
                        b"message" => report.message = self.message()?,
                        _ => {
                            self.cursor.skip()?;
                        }
                    }
                }
            }
            // Some servers put the bare text there.
            _ => report.message = self.message()?,
        }
        Ok(Some(report))
    }

    /// An integer, if there is one; what cannot be a status is 0.
    fn code(&mut self) -> Result<Option<u16>> {
        if self.cursor.peek()? != Kind::Number {
            self.cursor.skip()?;
            return Ok(None);
        }
        let text = self.cursor.number()?;
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        if !digits.iter().all(u8::is_ascii_digit) {
            return Ok(None);
        }
        let status = std::str::from_utf8(text).ok().and_then(|t| t.parse().ok());
        Ok(Some(status.unwrap_or(0)))
    }

    fn message(&mut self) -> Result<Option<Range<usize>>> {
        if self.cursor.peek()? != Kind::String {
            self.cursor.skip()?;
            return Ok(None);
        }
        let text = self.cursor.string()?;
        let start = text.at + 1;
        Ok(Some(start..start + text.raw.len()))
    }

    fn is_string(&mut self, want: &str) -> Result<bool> {
        if self.cursor.peek()? != Kind::String {
            self.cursor.skip()?;
            return Ok(false);
        }
        Ok(self.cursor.string()?.is(want))
    }
}

impl Report {
    fn over(self, top: Report) -> EngineError {
        EngineError {
            status: self
                .code
                .or(top.code)
                .filter(|code| (400..600).contains(code))
                .unwrap_or(500),
            message: self.message.or(top.message),
        }
    }
}

/// Zero in any spelling (`0`, `-0.0`, `0e9`) is false. A number too small for a float is not called zero.
fn nonzero(text: &[u8]) -> bool {
    text.iter()
        .take_while(|b| !matches!(b, b'e' | b'E'))
        .any(|b| matches!(b, b'1'..=b'9'))
}

/// The key as one of `names`, escapes undone; a key that is none of them comes back as something that equals none.
fn name<'a>(key: &RawStr<'a>, names: &[&'static str]) -> &'a [u8] {
    if !key.escaped() {
        return key.raw;
    }
    names
        .iter()
        .find(|name| key.is(name))
        .map_or(b"", |name| name.as_bytes())
}

const TOP: [&str; 7] = [
    "choices",
    "token_ids",
    "prompt_token_ids",
    "error",
    "object",
    "code",
    "message",
];
const CHOICE: [&str; 5] = [
    "delta",
    "text",
    "finish_reason",
    "token_ids",
    "prompt_token_ids",
];
const DELTA: [&str; 6] = [
    "content",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "function_call",
    "refusal",
];
const ERROR: [&str; 2] = ["code", "message"];
