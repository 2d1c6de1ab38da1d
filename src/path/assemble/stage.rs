//! Where the members of one event stand, found in one walk. Nothing of the event is copied.
//!
//! Members are judged when their object is over, since one given twice counts by its last value. Only a member nobody knows is
//! held against the event even if a later one of the same name is null: no engine does that, and it would take a set to tell.
//!
//! Owns offsets; may use `wire::json`. Invariant: every span lies inside the text it was taken from, on character borders.

use crate::wire::json::{Cursor, JsonFault, Kind, RawStr};

use super::buffers::{Budget, Kept};
use super::{Fault, Rules};

type Result<T> = std::result::Result<T, JsonFault>;

/// Part of an event's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: usize,
    end: usize,
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Self {
        Span { start, end }
    }

    /// `text` must be what the span was taken from.
    pub(super) fn of(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.end]
    }
}

/// A member of a known type, as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Staged {
    /// Missing or null.
    #[default]
    Absent,
    Is(Span),
    /// Of another type.
    Wrong,
}

impl Staged {
    pub(super) fn read<'a>(
        self,
        text: &'a [u8],
        member: &'static str,
    ) -> std::result::Result<Option<&'a [u8]>, Fault> {
        match self {
            Staged::Absent => Ok(None),
            Staged::Is(span) => Ok(Some(span.of(text))),
            Staged::Wrong => Err(Fault::Invalid(member)),
        }
    }
}

/// `choices` of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Choices {
    /// Missing or empty.
    #[default]
    None,
    One,
    /// Not a list, more than one item, or an item that is not an object.
    Bad,
}

/// The one choice. Lists are staged without their brackets, strings without their quotes.
#[derive(Debug, Default)]
pub(super) struct StagedChoice {
    pub(super) unknown: bool,
    pub(super) index: Staged,
    pub(super) text: Staged,
    pub(super) finish_reason: Staged,
    pub(super) stop_reason: Staged,
    pub(super) logprobs: Staged,
    pub(super) token_ids: Staged,
    pub(super) prompt_token_ids: Staged,
    pub(super) delta: StagedDelta,
}

/// What a chat choice adds to its message.
#[derive(Debug, Default)]
pub(super) struct StagedDelta {
    /// Neither an object nor null.
    pub(super) wrong: bool,
    pub(super) unknown: bool,
    pub(super) role: Staged,
    /// By the order of [`STRINGS`].
    pub(super) strings: [Staged; STRINGS.len()],
    pub(super) tool_calls: Staged,
    pub(super) function_call: Staged,
}

/// Members of a message whose pieces are joined.
pub(super) const STRINGS: [&str; 4] = ["content", "reasoning", "reasoning_content", "refusal"];

/// Members kept by name, while their object is being read. One list for each depth at which they can be open at once.
#[derive(Debug, Default)]
pub(super) struct Staging {
    pub(super) choice: Others,
    pub(super) delta: Others,
    pub(super) inner: Others,
}

/// Members outside the known ones, by their index in the rules' names. As long as that list at most.
#[derive(Debug, Default)]
pub(super) struct Others {
    members: Vec<(usize, Staged)>,
}

impl Others {
    pub(super) fn clear(&mut self) {
        self.members.clear();
    }

    /// Passes the value of a member that is none of the known. `true` when it must not be here.
    pub(super) fn stage(
        &mut self,
        c: &mut Cursor,
        key: &RawStr,
        rules: &Rules,
        names_from: usize,
    ) -> Result<bool> {
        let value = value(c)?;
        let names = rules.names.iter().enumerate().skip(names_from);
        let Some((name, _)) = names.into_iter().find(|(_, name)| key.is(name)) else {
            return Ok(value != Staged::Absent);
        };
        match self.members.iter_mut().find(|member| member.0 == name) {
            Some(member) => member.1 = value,
            None => self.members.push((name, value)),
        }
        Ok(false)
    }

    pub(super) fn commit(
        &self,
        text: &[u8],
        kept: &mut Kept,
        budget: &mut Budget,
    ) -> std::result::Result<(), Fault> {
        for (name, value) in &self.members {
            if let Staged::Is(span) = value {
                kept.set(*name, span.of(text), budget)?;
            }
        }
        Ok(())
    }
}

/// Reads the value of `choices`; the one is staged in `one`.
pub(super) fn choices(
    c: &mut Cursor,
    rules: &Rules,
    staging: &mut Staging,
    one: &mut StagedChoice,
) -> Result<Choices> {
    if c.peek()? != Kind::Array {
        c.skip()?;
        return Ok(Choices::Bad);
    }
    let mut walk = c.array()?;
    let mut choices = Choices::None;
    while c.item(&mut walk)? {
        if choices == Choices::None && c.peek()? == Kind::Object {
            *one = choice(c, rules, staging)?;
            choices = Choices::One;
        } else {
            c.skip()?;
            choices = Choices::Bad;
        }
    }
    Ok(choices)
}

fn choice(c: &mut Cursor, rules: &Rules, staging: &mut Staging) -> Result<StagedChoice> {
    let chat = rules.kind == super::Kind::Chat;
    let mut staged = StagedChoice::default();
    staging.choice.clear();
    staging.delta.clear();
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        if chat && key.is("delta") {
            staged.delta = delta(c, rules, &mut staging.delta)?;
        } else if !chat && key.is("text") {
            staged.text = string(c)?;
        } else if key.is("index") {
            staged.index = index(c)?;
        } else if key.is("finish_reason") {
            staged.finish_reason = string(c)?;
        } else if key.is("logprobs") {
            staged.logprobs = object(c)?;
        } else if key.is("token_ids") {
            staged.token_ids = list(c)?;
        } else if key.is("stop_reason") {
            staged.stop_reason = value(c)?;
        } else if key.is("prompt_token_ids") {
            staged.prompt_token_ids = list(c)?;
        } else {
            staged.unknown |= staging.choice.stage(c, &key, rules, 0)?;
        }
    }
    Ok(staged)
}

fn delta(c: &mut Cursor, rules: &Rules, others: &mut Others) -> Result<StagedDelta> {
    let mut staged = StagedDelta::default();
    others.clear();
    let kind = c.peek()?;
    if kind != Kind::Object {
        c.skip()?;
        staged.wrong = kind != Kind::Null;
        return Ok(staged);
    }
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        if let Some(n) = STRINGS.iter().position(|name| key.is(name)) {
            staged.strings[n] = string(c)?;
        } else if key.is("role") {
            staged.role = string(c)?;
        } else if key.is("tool_calls") {
            staged.tool_calls = list(c)?;
        } else if key.is("function_call") {
            staged.function_call = object(c)?;
        } else {
            staged.unknown |= others.stage(c, &key, rules, rules.dialect_names)?;
        }
    }
    Ok(staged)
}

/// A string, without its quotes.
pub(super) fn string(c: &mut Cursor) -> Result<Staged> {
    match c.peek()? {
        Kind::String => {
            let start = c.string()?.at + 1;
            let end = c.pos() - 1;
            Ok(Staged::Is(Span { start, end }))
        }
        kind => skip_other(c, kind),
    }
}

/// An array, without its brackets and the white space inside of them.
pub(super) fn list(c: &mut Cursor) -> Result<Staged> {
    match c.peek()? {
        Kind::Array => {
            let span = c.skip()?;
            let inner = &c.input()[span.start + 1..span.end - 1];
            let space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
            let before = inner.iter().take_while(space).count();
            let after = inner[before..].iter().rev().take_while(space).count();
            let start = span.start + 1 + before;
            let end = span.end - 1 - after;
            Ok(Staged::Is(Span { start, end }))
        }
        kind => skip_other(c, kind),
    }
}

/// An object, whole.
pub(super) fn object(c: &mut Cursor) -> Result<Staged> {
    match c.peek()? {
        Kind::Object => value(c),
        kind => skip_other(c, kind),
    }
}

/// An integer without sign, point and exponent.
pub(super) fn index(c: &mut Cursor) -> Result<Staged> {
    match c.peek()? {
        Kind::Number => {
            let start = c.pos();
            let number = c.number()?;
            let end = c.pos();
            if number.iter().all(u8::is_ascii_digit) {
                Ok(Staged::Is(Span { start, end }))
            } else {
                Ok(Staged::Wrong)
            }
        }
        kind => skip_other(c, kind),
    }
}

/// Any value but null, whole.
pub(super) fn value(c: &mut Cursor) -> Result<Staged> {
    let kind = c.peek()?;
    let span = c.skip()?;
    if kind == Kind::Null {
        return Ok(Staged::Absent);
    }
    let (start, end) = (span.start, span.end);
    Ok(Staged::Is(Span { start, end }))
}

fn skip_other(c: &mut Cursor, kind: Kind) -> Result<Staged> {
    c.skip()?;
    Ok(match kind {
        Kind::Null => Staged::Absent,
        _ => Staged::Wrong,
    })
}
