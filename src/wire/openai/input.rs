//! Walks over the two members that hold a prompt, each once, while the body is being checked: shape, local count, characters.
//!
//! What the estimate counts is the text that a person wrote: the `prompt` string, or each message's `content` (a string, or the
//! `text` of its parts). Roles, names, tool definitions and the template's own tokens are left out; an estimate is used only where
//! no engine tokenizes.

use std::ops::Range;

use crate::wire::json::{Cursor, JsonFault, Kind};

/// What a `prompt` value is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PromptFacts {
    /// Neither a string nor an array (nor null).
    pub wrong_type: bool,
    /// An array, longer than one, that holds strings or arrays.
    pub many: bool,
    /// Items, when it is a nonempty array of nonnegative integers, or an array of one such.
    pub counted: Option<u64>,
    /// Span of the string, quotes included, when it is an array of one string.
    pub only: Option<Range<usize>>,
    /// Characters of that string, or of the string that it is.
    pub chars: u64,
    /// Null, `""` or `[]`: no prompt of its own.
    pub empty: bool,
}

/// What a `messages` value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MessagesFacts {
    /// Not an array of objects (nor null).
    pub wrong_type: bool,
    pub chars: u64,
}

/// Passes the `prompt` value at the cursor.
pub(super) fn prompt(c: &mut Cursor<'_>) -> Result<PromptFacts, JsonFault> {
    let mut facts = PromptFacts::default();
    match c.peek()? {
        Kind::String => {
            let text = c.string()?;
            facts.chars = text.chars() as u64;
            facts.empty = text.is_empty();
        }
        Kind::Array => items(c, &mut facts)?,
        kind => {
            c.skip()?;
            facts.wrong_type = kind != Kind::Null;
            facts.empty = kind == Kind::Null;
        }
    }
    Ok(facts)
}

fn items(c: &mut Cursor<'_>, facts: &mut PromptFacts) -> Result<(), JsonFault> {
    let (mut count, mut ids, mut prompts) = (0u64, 0u64, 0u64);
    let mut inner = None;
    let mut walk = c.array()?;
    while c.item(&mut walk)? {
        count += 1;
        match c.peek()? {
            Kind::Number => {
                let plain = c.digit_items(&mut walk);
                count += plain;
                ids += plain + u64::from(is_id(c.number()?));
            }
            Kind::String => {
                prompts += 1;
                let text = c.string()?;
                facts.chars = text.chars() as u64;
                facts.only = Some(text.at..c.pos());
            }
            Kind::Array => {
                prompts += 1;
                inner = token_ids(c)?;
            }
            _ => {
                c.skip()?;
            }
        }
    }
    facts.empty = count == 0;
    facts.many = count > 1 && prompts > 0;
    facts.counted = match (count, prompts) {
        (1, 1) => inner,
        _ => (count > 0 && ids == count).then_some(count),
    };
    if count != 1 {
        facts.only = None;
        facts.chars = 0;
    }
    Ok(())
}

/// Passes an array; its length when it is a nonempty list of nonnegative integers.
fn token_ids(c: &mut Cursor<'_>) -> Result<Option<u64>, JsonFault> {
    let (mut count, mut ids) = (0u64, 0u64);
    let mut walk = c.array()?;
    while c.item(&mut walk)? {
        count += 1;
        match c.peek()? {
            Kind::Number => {
                let plain = c.digit_items(&mut walk);
                count += plain;
                ids += plain + u64::from(is_id(c.number()?));
            }
            _ => {
                c.skip()?;
            }
        }
    }
    Ok((count > 0 && ids == count).then_some(count))
}

/// Passes the `messages` value at the cursor.
pub(super) fn messages(c: &mut Cursor<'_>) -> Result<MessagesFacts, JsonFault> {
    let mut facts = MessagesFacts::default();
    let kind = c.peek()?;
    if kind != Kind::Array {
        c.skip()?;
        facts.wrong_type = kind != Kind::Null;
        return Ok(facts);
    }
    let mut walk = c.array()?;
    while c.item(&mut walk)? {
        if c.peek()? == Kind::Object {
            facts.chars += text_member(c, "content", content)?;
        } else {
            c.skip()?;
            facts.wrong_type = true;
        }
    }
    Ok(facts)
}

/// Passes an object; what `read` makes of its last member `name`.
fn text_member(
    c: &mut Cursor<'_>,
    name: &str,
    read: fn(&mut Cursor<'_>) -> Result<u64, JsonFault>,
) -> Result<u64, JsonFault> {
    let mut chars = 0;
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        if key.is(name) {
            chars = read(c)?;
        } else {
            c.skip()?;
        }
    }
    Ok(chars)
}

fn content(c: &mut Cursor<'_>) -> Result<u64, JsonFault> {
    if c.peek()? != Kind::Array {
        return text(c);
    }
    let mut chars = 0;
    let mut walk = c.array()?;
    while c.item(&mut walk)? {
        chars += match c.peek()? {
            Kind::Object => text_member(c, "text", text)?,
            _ => text(c)?,
        };
    }
    Ok(chars)
}

/// Characters of a string; any other value is passed and counts none.
fn text(c: &mut Cursor<'_>) -> Result<u64, JsonFault> {
    if c.peek()? == Kind::String {
        return Ok(c.string()?.chars() as u64);
    }
    c.skip()?;
    Ok(0)
}

/// Digits only: the cursor has checked the grammar, so a nonnegative integer is what has no sign, point or exponent.
fn is_id(number: &[u8]) -> bool {
    number.iter().all(u8::is_ascii_digit)
}
