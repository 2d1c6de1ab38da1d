//! Fuzz bodies of the event room and the plain re-implementations that they compare with.
//!
//! The naive reader splits a whole buffer by the book and asks serde_json about each value; it keeps no state between reads, so
//! it cannot have the faults that the streaming one could. A tape of bytes makes structured input: any bytes are a valid tape.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{EventStream, Facts, Ids, Item, TooLarge, write_event};
use crate::base::limits;

/// Any bytes, as a stream of their own or as a tape for the generators. Panics when a property is broken.
pub fn fuzz(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else {
        return;
    };
    let ids = if mode & 1 == 0 {
        Ids::Expected
    } else {
        Ids::Absent
    };
    match mode >> 1 & 3 {
        0 => check_event(rest, ids),
        1 => check_event(event_text(&mut Tape(rest)).as_bytes(), ids),
        2 => check_stream(rest, ids),
        _ => check_stream(&stream_bytes(&mut Tape(rest)), ids),
    }
}

/// One item, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Object(Vec<u8>, bool),
    Malformed(Vec<u8>, bool),
    Done,
    Line(Vec<u8>),
    Blank,
}

/// What a stream fed in `pieces` tells, end of body included. The facts of each object are checked on the way.
pub fn told<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    ids: Ids,
    bytes_max: usize,
) -> (Vec<Told>, Result<(), TooLarge>) {
    let mut out = Vec::new();
    let mut stream = EventStream::new(ids, bytes_max);
    let mut sink = |item: Item<'_>| {
        out.push(match item {
            Item::Object {
                value,
                joined,
                facts,
            } => {
                assert_eq!(joined, value.contains(&b'\n'));
                assert_facts(value, ids, facts);
                Told::Object(value.to_vec(), joined)
            }
            Item::Malformed { value, joined } => Told::Malformed(value.to_vec(), joined),
            Item::Done => Told::Done,
            Item::Line(line) => Told::Line(line.to_vec()),
            Item::Blank => Told::Blank,
        });
        ControlFlow::Continue(())
    };
    for piece in pieces {
        if let Err(fault) = stream.feed(piece, &mut sink) {
            return (out, Err(fault));
        }
        // A carried line may have been counted with the two bytes of a mark that was none.
        assert!(stream.capacity() <= bytes_max.max(2).saturating_add(64 * 1024));
    }
    let end = stream.eof(&mut sink).map(|_| ());
    (out, end)
}

/// What a stream holds, told from the whole of it.
pub fn naive(bytes: &[u8], ids: Ids) -> Vec<Told> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut out = Vec::new();
    let mut block: Vec<&[u8]> = Vec::new();
    let mut loose = false;
    let dispatch = |block: &mut Vec<&[u8]>, loose: &mut bool, out: &mut Vec<Told>| {
        let joined = block.len() > 1;
        let value = block.join(&b'\n');
        block.clear();
        if value.trim_ascii().is_empty() {
            return;
        }
        *loose = false;
        out.push(if facts(&value, ids).is_some() {
            Told::Object(value, joined)
        } else {
            Told::Malformed(value, joined)
        });
    };
    for (line, ended) in lines(bytes) {
        let colon = line.iter().position(|b| *b == b':');
        let (name, value) = match colon {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let done = value.trim_ascii() == b"[DONE]";
        match name {
            b"data" if done || facts(value, ids).is_some() => {
                if !block.is_empty() {
                    dispatch(&mut block, &mut loose, &mut out);
                }
                loose = false;
                if done {
                    out.push(Told::Done);
                    return out;
                }
                out.push(Told::Object(value.to_vec(), false));
            }
            _ if !ended => {}
            b"data" => block.push(value),
            b"event" | b"id" | b"retry" => {
                loose = true;
                out.push(Told::Line(line.to_vec()));
            }
            b"" if colon.is_some() => {
                loose = true;
                out.push(Told::Line(line.to_vec()));
            }
            b"" => {
                if !block.is_empty() {
                    dispatch(&mut block, &mut loose, &mut out);
                }
                if std::mem::take(&mut loose) {
                    out.push(Told::Blank);
                }
            }
            _ => {}
        }
    }
    out
}

/// Lines and whether each was terminated.
fn lines(bytes: &[u8]) -> Vec<(&[u8], bool)> {
    let mut out = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|b| matches!(b, b'\n' | b'\r')) {
        out.push((&rest[..at], true));
        let crlf = rest[at..].starts_with(b"\r\n");
        rest = &rest[at + 1 + usize::from(crlf)..];
    }
    if !rest.is_empty() {
        out.push((rest, false));
    }
    out
}

fn check_stream(bytes: &[u8], ids: Ids) {
    let want = (naive(bytes, ids), Ok(()));
    assert_eq!(told([bytes], ids, usize::MAX), want);
    assert_eq!(told(bytes.chunks(1), ids, usize::MAX), want);
    for size in [2, 3, 7, 61] {
        assert_eq!(told(bytes.chunks(size), ids, usize::MAX), want);
    }
    // With a bound every split still tells the same, the refusal included.
    let bytes_max = 4 + usize::from(bytes.first().copied().unwrap_or(0)) / 4;
    let bounded = told([bytes], ids, bytes_max);
    assert_eq!(told(bytes.chunks(1), ids, bytes_max), bounded);
    assert_eq!(told(bytes.chunks(5), ids, bytes_max), bounded);
    assert!(want.0.starts_with(&bounded.0));
}

fn check_event(value: &[u8], ids: Ids) {
    let mut ours = Facts::default();
    let read = ours.read(value, ids);
    assert_eq!(
        read,
        facts(value, ids).is_some(),
        "{}",
        String::from_utf8_lossy(value)
    );
    if read {
        assert_facts(value, ids, &ours);
    }
}

/// The facts are the oracle's, and the value without its cuts is the value without the members.
fn assert_facts(value: &[u8], ids: Ids, ours: &Facts) {
    let shown = String::from_utf8_lossy(value);
    let Some(theirs) = facts(value, ids) else {
        panic!("not an object: {shown}");
    };
    let message = |span: &std::ops::Range<usize>| plain(&value[span.clone()]);
    let told = Truth {
        tokens: ours.tokens,
        bears_token: ours.bears_token,
        output: ours.output,
        ids_ok: ours.ids_ok,
        error: ours
            .error
            .as_ref()
            .map(|e| (e.status, e.message.as_ref().map(message))),
        abort: ours.abort,
    };
    assert_eq!(told, theirs, "{shown}");
    let mut out = Vec::new();
    write_event(&mut out, value, value.contains(&b'\n'), ours.cuts());
    let line = out
        .strip_prefix(b"data: ")
        .and_then(|o| o.strip_suffix(b"\n\n"));
    let line = line.expect("written as one data line");
    assert!(!line.contains(&b'\n'));
    assert_eq!(members(line, false), members(value, true), "{shown}");
    assert!(ours.cuts().windows(2).all(|w| w[0].end <= w[1].start));
}

/// Facts as the oracle tells them.
#[derive(Debug, PartialEq, Eq)]
struct Truth {
    tokens: u64,
    bears_token: bool,
    output: bool,
    ids_ok: bool,
    error: Option<(u16, Option<String>)>,
    abort: bool,
}

/// An object's members in order, values as text.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

impl Pairs<'_> {
    fn last(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value.get())
    }
}

/// Bytes to text that serde_json judges as our cursor does: bad UTF-8 replaced, and surrogate escapes made harmless.
fn plain(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    let mut from = 0;
    while let Some(at) = text[from..].find("\\u") {
        from += at + 2;
        let surrogate = text.as_bytes().get(from..from + 4).is_some_and(|hex| {
            matches!(hex[0], b'd' | b'D')
                && matches!(hex[1], b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F')
                && hex.iter().all(u8::is_ascii_hexdigit)
        });
        if surrogate {
            text.replace_range(from..from + 4, "0041");
        }
    }
    text
}

fn facts(value: &[u8], ids: Ids) -> Option<Truth> {
    let text = plain(value.trim_ascii());
    let top: Pairs<'_> = serde_json::from_str(&text).ok()?;
    if depth(&text) > limits::JSON_DEPTH_MAX {
        return None;
    }
    let (mut tokens, mut output, mut abort, mut ids_ok) = (0, false, false, true);
    match top
        .last("choices")
        .map(serde_json::from_str::<Vec<&RawValue>>)
    {
        None => {}
        Some(Err(_)) => ids_ok = false,
        Some(Ok(items)) => {
            for item in items {
                let Ok(choice) = serde_json::from_str::<Pairs<'_>>(item.get()) else {
                    ids_ok = false;
                    continue;
                };
                let delta = choice.last("delta").filter(|d| *d != "null");
                let delta = delta.map(serde_json::from_str::<Pairs<'_>>);
                ids_ok &= !matches!(delta, Some(Err(_)));
                let speaks = choice.last("text").is_some_and(truthy)
                    || delta.and_then(Result::ok).is_some_and(|delta| {
                        let names = ["content", "reasoning", "reasoning_content", "refusal"];
                        let calls = ["tool_calls", "function_call"];
                        let mut names = names.iter().chain(&calls);
                        names.any(|name| delta.last(name).is_some_and(truthy))
                    });
                output |= speaks;
                abort |= choice
                    .last("finish_reason")
                    .is_some_and(|r| is_text(r, "abort"));
                match choice.last("token_ids").filter(|list| *list != "null") {
                    None => ids_ok &= !speaks,
                    Some(list) => match serde_json::from_str::<Vec<&RawValue>>(list) {
                        Ok(list) if list.is_empty() => ids_ok &= !speaks,
                        Ok(list) if list.iter().all(|id| digits(id.get())) => tokens += list.len(),
                        _ => ids_ok = false,
                    },
                }
            }
        }
    }
    let (tokens, ids_ok) = match ids {
        Ids::Expected => (tokens as u64, ids_ok),
        Ids::Absent => (u64::from(output), true),
    };
    Some(Truth {
        tokens,
        bears_token: tokens > 0,
        output,
        ids_ok,
        error: error(&top),
        abort,
    })
}

fn error(top: &Pairs<'_>) -> Option<(u16, Option<String>)> {
    let inner = top.last("error").filter(|e| *e != "null");
    if inner.is_none() && !top.last("object").is_some_and(|o| is_text(o, "error")) {
        return None;
    }
    let object = inner.and_then(|e| serde_json::from_str::<Pairs<'_>>(e).ok());
    let of = |name: &str, good: fn(&str) -> bool| {
        let first = object
            .as_ref()
            .and_then(|o| o.last(name))
            .filter(|v| good(v));
        let own = || inner.filter(|e| name == "message" && good(e));
        let outer = || top.last(name).filter(|v| good(v));
        first.or_else(own).or_else(outer).map(str::to_owned)
    };
    let code = of("code", |c| digits(c.strip_prefix('-').unwrap_or(c)));
    let status = code
        .and_then(|c| c.parse().ok())
        .filter(|c| (400..600).contains(c));
    let message = of("message", |m| m.starts_with('"'));
    Some((
        status.unwrap_or(500),
        message.map(|m| m[1..m.len() - 1].to_owned()),
    ))
}

fn digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

fn is_text(raw: &str, want: &str) -> bool {
    serde_json::from_str::<String>(raw).is_ok_and(|text| text == want)
}

fn truthy(raw: &str) -> bool {
    if raw.starts_with(['[', '{']) {
        return !raw[1..raw.len() - 1].trim_ascii().is_empty();
    }
    match raw {
        "null" | "false" | "\"\"" => false,
        _ if raw.starts_with(['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) => raw
            .split(['e', 'E'])
            .next()
            .is_some_and(|m| m.contains(|c| ('1'..='9').contains(&c))),
        _ => true,
    }
}

fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let mut bytes = text.bytes();
    let mut quoted = false;
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !quoted => depth -= 1,
            _ => {}
        }
    }
    deepest
}

/// The members of an event at top level and in its choices, in order, values as text; without the id lists if told to drop them.
fn members(value: &[u8], without_ids: bool) -> Vec<String> {
    let text = plain(value.trim_ascii());
    let top: Pairs<'_> = serde_json::from_str(&text).expect("an object");
    let is_ids = |key: &str| key == "token_ids" || key == "prompt_token_ids";
    let mut out = Vec::new();
    for (key, value) in top
        .0
        .iter()
        .filter(|(key, _)| !(without_ids && is_ids(key)))
    {
        assert!(!is_ids(key));
        match serde_json::from_str::<Vec<&RawValue>>(value.get()) {
            Ok(items) if key == "choices" => {
                out.push("choices: [".to_owned());
                for item in items {
                    let Ok(choice) = serde_json::from_str::<Pairs<'_>>(item.get()) else {
                        out.push(item.get().replace('\n', " "));
                        continue;
                    };
                    let kept = choice
                        .0
                        .iter()
                        .filter(|(key, _)| !(without_ids && is_ids(key)));
                    for (key, value) in kept {
                        assert!(!is_ids(key));
                        out.push(format!("{key}: {}", value.get().replace('\n', " ")));
                    }
                    out.push("end".to_owned());
                }
                out.push("]".to_owned());
            }
            _ => out.push(format!("{key}: {}", value.get().replace('\n', " "))),
        }
    }
    out
}

/// Bytes that decide what a generator makes. Past its end it says zero, so generation ends.
pub struct Tape<'a>(pub &'a [u8]);

impl Tape<'_> {
    fn below(&mut self, n: usize) -> usize {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                usize::from(*byte) % n
            }
            None => 0,
        }
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }
}

const SCALARS: [&str; 44] = [
    "null",
    "true",
    "false",
    "0",
    "-0.0",
    "0e5",
    "1",
    "-1",
    "1.5",
    "1E400",
    "0.10",
    "\"\"",
    "\"x\"",
    "\"abort\"",
    "\"error\"",
    "\"\\u0061bort\"",
    "\"{\\\"token_ids\\\":[1]}\"",
    "\"\\ud800\"",
    "\"h\u{e9}\u{2028}\"",
    "[]",
    "[ ]",
    "{}",
    "{ }",
    "{\"a\":1}",
    "[1]",
    "[ 7 , 8 ]",
    "[0]",
    "[1,\"2\"]",
    "[true]",
    "[[1]]",
    "[-1]",
    "[1.0]",
    "[1e2]",
    "[123456789012345678901234567890]",
    "[null]",
    "{\"0\":2}",
    "{\"token_ids\":[1],\"x\":2}",
    "400",
    "429",
    "599",
    "600",
    "-500",
    "500.0",
    "99999999999",
];
const TOP: [&str; 9] = [
    "choices",
    "id",
    "token_ids",
    "prompt_token_ids",
    "error",
    "object",
    "code",
    "message",
    "choice",
];
const CHOICE: [&str; 7] = [
    "delta",
    "text",
    "token_ids",
    "finish_reason",
    "prompt_token_ids",
    "index",
    "logprobs",
];
const DELTA: [&str; 8] = [
    "content",
    "role",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "function_call",
    "refusal",
    "token_ids",
];
const ERROR: [&str; 4] = ["code", "message", "type", "cod"];

/// An object that is nearly always an event, in any order of keys, with doubles, escaped keys and odd spacing.
pub fn event_text(tape: &mut Tape<'_>) -> String {
    let mut out = String::new();
    object(tape, &mut out, &TOP, 0);
    out
}

fn object(tape: &mut Tape<'_>, out: &mut String, names: &[&'static str], level: usize) {
    out.push('{');
    for n in 0..tape.below(6) {
        if n > 0 {
            space(tape, out);
            out.push(',');
        }
        space(tape, out);
        let key = tape.pick(names);
        let at = tape.below(4 * key.len());
        out.push('"');
        for (i, c) in key.char_indices() {
            if i == at {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            } else {
                out.push(c);
            }
        }
        out.push('"');
        space(tape, out);
        out.push(':');
        space(tape, out);
        member(tape, out, key, level);
    }
    space(tape, out);
    out.push('}');
}

fn member(tape: &mut Tape<'_>, out: &mut String, key: &str, level: usize) {
    match key {
        "choices" if level == 0 && tape.below(8) > 0 => {
            out.push('[');
            for n in 0..tape.below(4) {
                if n > 0 {
                    out.push(',');
                }
                space(tape, out);
                if tape.below(8) == 7 {
                    out.push_str(tape.pick(&SCALARS));
                } else {
                    object(tape, out, &CHOICE, 1);
                }
            }
            space(tape, out);
            out.push(']');
        }
        "delta" if tape.below(4) > 0 => object(tape, out, &DELTA, 2),
        "error" if tape.below(4) > 0 => object(tape, out, &ERROR, 2),
        "token_ids" if tape.below(2) > 0 => out.push_str(tape.pick(&["[1]", "[2,3]", "[]"])),
        _ => out.push_str(tape.pick(&SCALARS)),
    }
}

fn space(tape: &mut Tape<'_>, out: &mut String) {
    out.push_str(tape.pick(&["", "", "", "", "", " ", "\t", "  "]));
}

/// A stream of events, comments, joined lines and noise, with every line end.
pub fn stream_bytes(tape: &mut Tape<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice([&b""[..], b"\xef\xbb\xbf", b"\xef\xbb"][tape.below(3)]);
    let end = ["\n", "\r\n", "\r", "mixed"][tape.below(4)];
    for _ in 0..tape.below(12) {
        let text = match tape.below(9) {
            0 | 1 => format!("data: {}\n\n", event_text(tape)),
            2 => {
                // One event over several data lines, cut at a comma.
                let text = event_text(tape);
                format!(
                    "data: {}\n\n",
                    text.replacen(',', ",\ndata:", 1 + tape.below(3))
                )
            }
            3 => format!("data:{}\n", event_text(tape)),
            4 => tape
                .pick(&[": ping\n\n", ":\n", "event: e\n", "id\n", "retry: 10\n\n"])
                .to_owned(),
            5 => tape
                .pick(&["data:\n\n", "data: \n", "data\ndata\n\n", "data:  \u{c}\n"])
                .to_owned(),
            6 => tape
                .pick(&["data: {oops\n\n", "data: [1,2]\n", "data: x\n", "garbage\n"])
                .to_owned(),
            7 => tape
                .pick(&["\n", "\n\n", "data: {\"a\":1,\ndata: \"b\":2}\n\n"])
                .to_owned(),
            _ => tape
                .pick(&["data: x\n", "data: [DONE]", "data:   [DONE]  \n\n"])
                .to_owned(),
        };
        for c in text.bytes() {
            if c != b'\n' {
                out.push(c);
            } else if end == "mixed" {
                out.extend_from_slice(tape.pick(&["\n", "\r\n", "\r"]).as_bytes());
            } else {
                out.extend_from_slice(end.as_bytes());
            }
        }
    }
    if tape.below(8) == 7 {
        out.truncate(out.len().saturating_sub(tape.below(40)));
    }
    out
}
