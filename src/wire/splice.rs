//! Edits a JSON object's members by their spans: what is not edited is copied byte for byte, numbers, escapes, key order and
//! white space included.
//!
//! [`Layout::scan`] walks the object once and keeps the spans of the members that anyone may edit; [`splice`] then writes any
//! number of edited copies without reading the JSON again. Members match by unescaped name, and an edit concerns every occurrence
//! of its name: a new value replaces the last occurrence in place (the one that JSON readers take), all others go; a value for
//! a name that is absent is added at the end.
//!
//! How a comma goes with a removed member: the one before it, or, when everything before it in the object is gone, the one after.
//!
//! Invariant: members stand in order, and `open < before-or-open ≤ value.start < value.end ≤ close < body.len()`.

use std::ops::Range;

use crate::base::limits;
use crate::wire::json::{Cursor, JsonFault};
use crate::wire::openai::write_string;

/// One member of a scanned object.
#[derive(Clone, Debug)]
pub struct Member {
    /// The unescaped name, as the list that was scanned for has it.
    pub name: &'static str,
    /// Offsets of the value, without white space around it.
    pub value: Range<usize>,
    /// Its number among all members of the object, known or not, from 0.
    ordinal: usize,
    /// Offset of the comma before it; of the opening brace for the first.
    before: usize,
}

/// Where the known members of an object stand.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    members: Vec<Member>,
    open: usize,
    close: usize,
    /// All members, known or not.
    count: usize,
}

/// Why an object could not be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutFault {
    Json(JsonFault),
    /// More known members than [`limits::KNOWN_MEMBERS_MAX`].
    Crowded,
}

/// What becomes of a member.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'a> {
    Remove,
    /// JSON text, written as it is.
    Set(&'a [u8]),
    /// A string that is not JSON yet: quoted and escaped on the way.
    Text(&'a str),
}

impl Layout {
    /// Walks the object at the cursor (the caller has peeked it) and keeps the members in `names`. `visit` is called at each
    /// known value and must pass exactly that value; the rest is skipped, and checked all the same.
    pub fn scan<'a>(
        cursor: &mut Cursor<'a>,
        names: &[&'static str],
        mut visit: impl FnMut(&'static str, &mut Cursor<'a>) -> Result<(), JsonFault>,
    ) -> Result<Layout, LayoutFault> {
        let mut layout = Layout {
            open: cursor.pos(),
            ..Layout::default()
        };
        let mut walk = cursor.object()?;
        while let Some(key) = cursor.key(&mut walk)? {
            let ordinal = layout.count;
            layout.count += 1;
            let Some(name) = names.iter().copied().find(|name| key.is(name)) else {
                cursor.skip()?;
                continue;
            };
            if layout.members.len() == limits::KNOWN_MEMBERS_MAX {
                return Err(LayoutFault::Crowded);
            }
            cursor.peek()?;
            let start = cursor.pos();
            visit(name, cursor)?;
            layout.members.push(Member {
                name,
                value: start..cursor.pos(),
                ordinal,
                before: walk.before,
            });
        }
        layout.close = cursor.pos() - 1;
        Ok(layout)
    }

    /// The occurrence that counts: the last.
    pub fn last(&self, name: &str) -> Option<&Member> {
        self.members.iter().rev().find(|m| m.name == name)
    }

    /// Every occurrence, in order.
    pub fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Member> {
        self.members.iter().filter(move |m| m.name == name)
    }

    /// Text of the value that counts; `None` when the member is absent or `null`.
    pub fn given<'b>(&self, body: &'b [u8], name: &str) -> Option<&'b [u8]> {
        let value = body.get(self.last(name)?.value.clone())?;
        (value != b"null").then_some(value)
    }

    fn is_last(&self, index: usize) -> bool {
        let name = self.members[index].name;
        self.members[index + 1..].iter().all(|m| m.name != name)
    }
}

/// Appends a copy of `body` with `edits` made. `layout` comes from the same bytes, and its names include those of the edits, each
/// at most once.
pub fn splice(out: &mut Vec<u8>, body: &[u8], layout: &Layout, edits: &[(&'static str, Edit<'_>)]) {
    debug_assert!(layout.close < body.len() && body[layout.close] == b'}');
    debug_assert!((1..edits.len()).all(|i| edits[..i].iter().all(|e| e.0 != edits[i].0)));
    out.reserve(body.len() + edits.iter().map(|e| e.1.size(e.0)).sum::<usize>());
    let mut copied = 0;
    let mut gone = 0;
    for (index, member) in layout.members.iter().enumerate() {
        let Some((_, edit)) = edits.iter().find(|e| e.0 == member.name) else {
            continue;
        };
        if !matches!(edit, Edit::Remove) && layout.is_last(index) {
            out.extend_from_slice(&body[copied..member.value.start]);
            edit.write(out);
            copied = member.value.end;
            continue;
        }
        if member.ordinal == gone {
            // Everything before it in the object is gone too, so the comma after it goes along.
            if gone == 0 {
                out.extend_from_slice(&body[copied..=layout.open]);
            }
            copied = comma_passed(body, member.value.end);
        } else {
            out.extend_from_slice(&body[copied..member.before]);
            copied = member.value.end;
        }
        gone += 1;
    }
    out.extend_from_slice(&body[copied..layout.close]);
    let mut empty = gone == layout.count;
    for (name, edit) in edits {
        if matches!(edit, Edit::Remove) || layout.last(name).is_some() {
            continue;
        }
        if !std::mem::take(&mut empty) {
            out.push(b',');
        }
        write_string(out, name);
        out.push(b':');
        edit.write(out);
    }
    out.extend_from_slice(&body[layout.close..]);
}

impl Edit<'_> {
    fn write(self, out: &mut Vec<u8>) {
        match self {
            Edit::Remove => {}
            Edit::Set(json) => out.extend_from_slice(json),
            Edit::Text(text) => write_string(out, text),
        }
    }

    /// Bytes that it may add, without escapes: a hint for the one allocation.
    fn size(self, name: &str) -> usize {
        match self {
            Edit::Remove => 0,
            Edit::Set(json) => json.len() + name.len() + 4,
            Edit::Text(text) => text.len() + name.len() + 6,
        }
    }
}

/// Offset after the comma that follows `end`, or `end` when none does (the last member).
fn comma_passed(body: &[u8], end: usize) -> usize {
    let space = body[end..]
        .iter()
        .take_while(|b| b.is_ascii_whitespace())
        .count();
    match body.get(end + space) {
        Some(b',') => end + space + 1,
        _ => end,
    }
}

impl From<JsonFault> for LayoutFault {
    fn from(fault: JsonFault) -> Self {
        LayoutFault::Json(fault)
    }
}
