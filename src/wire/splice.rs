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
            let mut buf = [0; limits::MEMBER_NAME_BYTES_MAX];
            // Decoded once, however many names there are.
            let text = key.short(&mut buf);
            let is_it = |name: &&str| text == Some(name.as_bytes());
            let Some(name) = names.iter().copied().find(is_it) else {
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

#[doc(hidden)]
pub mod fuzzing {
    //! The naive way to edit an object, over serde_json, and a body for a fuzz target.

    use std::fmt;

    use serde::de::{Deserializer, MapAccess, Visitor};
    use serde_json::value::RawValue;

    use super::{Edit, Layout, splice};
    use crate::wire::json::Cursor;

    /// Members of a JSON object in order, repeated ones too: unescaped name, text of the value. `None`: no JSON object.
    pub fn members(json: &[u8]) -> Option<Vec<(String, String)>> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(String, String)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    pairs.push((name, value.get().to_owned()));
                }
                Ok(pairs)
            }
        }
        let mut json = serde_json::Deserializer::from_slice(json);
        let pairs = json.deserialize_map(Pairs).ok()?;
        json.end().ok()?;
        Some(pairs)
    }

    /// Asserts that `out` is `body` with `edits` made (`None` removes): same members, same order, same text of all others.
    pub fn assert_edited(body: &[u8], out: &[u8], edits: &[(&str, Option<&str>)]) {
        let before = members(body).expect("the body is an object");
        let after = members(out).expect("the copy is an object");
        let mut want = Vec::new();
        for (i, (name, value)) in before.iter().enumerate() {
            match edits.iter().find(|e| e.0 == name) {
                None => want.push((name.clone(), value.clone())),
                Some((_, Some(new))) if before[i + 1..].iter().all(|later| later.0 != *name) => {
                    want.push((name.clone(), (*new).to_owned()));
                }
                Some(_) => {}
            }
        }
        for (name, new) in edits {
            if let Some(new) = new
                && before.iter().all(|m| m.0 != *name)
            {
                want.push(((*name).to_owned(), (*new).to_owned()));
            }
        }
        assert_eq!(after, want, "{}", String::from_utf8_lossy(body));
    }

    /// Any bytes that are an object are edited as the naive way does, for every choice of edits of two names and one that is set.
    pub fn edits(data: &[u8]) {
        const NAMES: &[&str] = &["a", "b", "n"];
        let mut c = Cursor::strict(data);
        if std::str::from_utf8(data).is_err() || c.peek() != Ok(crate::wire::json::Kind::Object) {
            return;
        }
        let scanned = Layout::scan(&mut c, NAMES, |_, c| c.skip().map(|_| ()));
        let (Ok(layout), Ok(())) = (scanned, c.finish()) else {
            return;
        };
        for choice in 0..27 {
            let mut edits = Vec::new();
            let mut naive = Vec::new();
            for (i, name) in NAMES.iter().enumerate() {
                match choice / 3usize.pow(i as u32) % 3 {
                    0 => {}
                    1 => {
                        edits.push((*name, Edit::Remove));
                        naive.push((*name, None));
                    }
                    _ => {
                        edits.push((*name, Edit::Set(b"{\"new\":1.0}")));
                        naive.push((*name, Some("{\"new\":1.0}")));
                    }
                }
            }
            let mut out = b"kept".to_vec();
            splice(&mut out, data, &layout, &edits);
            let copy = out.strip_prefix(b"kept").expect("appends only");
            if edits.is_empty() {
                assert_eq!(copy, data);
            }
            assert_edited(data, copy, &naive);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edited(body: &str, edits: &[(&'static str, Edit<'_>)]) -> String {
        let names: Vec<&'static str> = edits.iter().map(|e| e.0).collect();
        let mut c = Cursor::strict(body.as_bytes());
        c.peek().unwrap();
        let layout = Layout::scan(&mut c, &names, |_, c| c.skip().map(|_| ())).unwrap();
        let mut out = Vec::new();
        splice(&mut out, body.as_bytes(), &layout, edits);
        String::from_utf8(out).unwrap()
    }

    // proves R-REQ-7
    #[test]
    fn edits_keep_all_other_bytes() {
        const CUT: &[(&str, Edit<'static>)] = &[("a", Edit::Remove), ("b", Edit::Remove)];
        const SET: &[(&str, Edit<'static>)] = &[("a", Edit::Set(b"9")), ("b", Edit::Remove)];
        for (body, edits, want) in [
            ("{}", CUT, "{}"),
            ("{ }", SET, "{ \"a\":9}"),
            ("{\"a\":1}", CUT, "{}"),
            ("{ \"a\" : 1 }", CUT, "{ }"),
            ("{\"a\":1,\"b\":2}", CUT, "{}"),
            ("{\"a\":1 , \"b\":2 , \"k\":3}", CUT, "{ \"k\":3}"),
            ("{\"k\":0, \"a\":1,\t\"b\":2 }", CUT, "{\"k\":0 }"),
            (
                "{\"a\":1,\"k\":0,\"b\":2,\"j\":3}",
                CUT,
                "{\"k\":0,\"j\":3}",
            ),
            (
                "{\"\\u0061\":{\"a\":1},\"k\":[\"a\"]}",
                CUT,
                "{\"k\":[\"a\"]}",
            ),
            ("{\"a\":1,\"k\":0,\"a\":2}", CUT, "{\"k\":0}"),
            (
                "\n{\"a\" : 1,\"k\":-0.0}\r\n",
                SET,
                "\n{\"a\" : 9,\"k\":-0.0}\r\n",
            ),
            (
                "{\"a\":1,\"k\":0,\"\\u0061\":2}",
                SET,
                "{\"k\":0,\"\\u0061\":9}",
            ),
            ("{\"b\":1,\"a\":2,\"b\":3}", SET, "{\"a\":9}"),
            ("{\"k\":1E400}", SET, "{\"k\":1E400,\"a\":9}"),
            ("{\"b\":1}", SET, "{\"a\":9}"),
            (
                "{\"k\":\"\u{e9}\\u00e9\\/\"}",
                &[("a", Edit::Text("q\"\n\u{7f}"))],
                "{\"k\":\"\u{e9}\\u00e9\\/\",\"a\":\"q\\\"\\n\\u007f\"}",
            ),
        ] {
            assert_eq!(edited(body, edits), want, "{body}");
        }
    }

    #[test]
    fn many_known_members_are_a_fault() {
        let body = |n: usize| format!("{{{}}}", vec!["\"a\":1"; n].join(","));
        let scan = |text: &str| {
            let mut c = Cursor::strict(text.as_bytes());
            Layout::scan(&mut c, &["a"], |_, c| c.skip().map(|_| ())).map(|_| ())
        };
        assert_eq!(scan(&body(limits::KNOWN_MEMBERS_MAX)), Ok(()));
        assert_eq!(
            scan(&body(limits::KNOWN_MEMBERS_MAX + 1)),
            Err(LayoutFault::Crowded)
        );
    }

    #[test]
    fn seeds_of_the_fuzz_body() {
        for seed in [
            "{}",
            "{\"a\":1,\"b\":[],\"\\u006e\":{},\"a\":\"a\"}",
            " { \"x\" : 1 , \"n\" : 2 } ",
            "[1]",
            "{\"a\":}",
            "\u{feff}{}",
        ] {
            fuzzing::edits(seed.as_bytes());
        }
    }

    proptest! {
        // proves R-REQ-7
        #[test]
        fn edits_as_the_naive_way(
            members in proptest::collection::vec(
                (r#"(a|b|n|x|\\u0061|\\u006E|ab)"#, r#"(1|-0\.0|"a\\n"|\{"a":1\}|\[\]|null|1E400)"#, "[ \n\t\r]{0,2}", "[ \n]{0,2}"),
                0..8,
            ),
            outer in "[ \n]{0,2}",
        ) {
            let inner: Vec<String> =
                members.iter().map(|(k, v, s, t)| format!("{s}\"{k}\"{t}:{s}{v}{t}")).collect();
            fuzzing::edits(format!("{outer}{{{outer}{}{outer}}}{outer}", inner.join(",")).as_bytes());
        }
    }
}
