//! The naive reader: it splits a whole buffer by the book and asks serde_json about each value.
//!
//! It keeps no state between reads, so it cannot have the faults that the streaming one could.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Told;
use crate::base::limits;
use crate::wire::event::Ids;

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

/// Facts as the oracle tells them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Truth {
    pub tokens: u64,
    pub bears_token: bool,
    pub output: bool,
    pub ids_ok: bool,
    pub error: Option<(u16, Option<String>)>,
    pub abort: bool,
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
pub fn plain(bytes: &[u8]) -> String {
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

/// The facts of one value, or `None` when it is not one JSON object.
pub fn facts(value: &[u8], ids: Ids) -> Option<Truth> {
    let text = plain(value.trim_ascii());
    let top: Pairs<'_> = serde_json::from_str(&text).ok()?;
    if depth(&text) > limits::JSON_DEPTH_MAX {
        return None;
    }
    let mut truth = Truth {
        ids_ok: true,
        error: error(&top),
        ..Truth::default()
    };
    let mut spoken = false;
    match top
        .last("choices")
        .map(serde_json::from_str::<Vec<&RawValue>>)
    {
        None => {}
        Some(Err(_)) => truth.ids_ok = false,
        Some(Ok(items)) => {
            for item in items {
                spoken |= choice(item.get(), &mut truth);
            }
        }
    }
    truth.bears_token = truth.tokens > 0;
    if ids != Ids::Expected {
        let counts = truth.output && (ids == Ids::Absent || spoken);
        truth.tokens = u64::from(counts);
        truth.bears_token = truth.output;
        truth.ids_ok = true;
    }
    Some(truth)
}

/// Adds one choice; whether it has output under another name than `reasoning`.
fn choice(item: &str, truth: &mut Truth) -> bool {
    let Ok(choice) = serde_json::from_str::<Pairs<'_>>(item) else {
        truth.ids_ok = false;
        return false;
    };
    let delta = choice.last("delta").filter(|d| *d != "null");
    let delta = delta.map(serde_json::from_str::<Pairs<'_>>);
    truth.ids_ok &= !matches!(delta, Some(Err(_)));
    let delta = delta.and_then(Result::ok);
    let says = |name: &str| {
        delta
            .as_ref()
            .is_some_and(|d| d.last(name).is_some_and(truthy))
    };
    let names = [
        "content",
        "reasoning_content",
        "refusal",
        "tool_calls",
        "function_call",
    ];
    let spoken = choice.last("text").is_some_and(truthy) || names.into_iter().any(says);
    let output = spoken || says("reasoning");
    truth.output |= output;
    truth.abort |= choice
        .last("finish_reason")
        .is_some_and(|r| is_text(r, "abort"));
    match choice.last("token_ids").filter(|list| *list != "null") {
        None => truth.ids_ok &= !output,
        Some(list) => match serde_json::from_str::<Vec<&RawValue>>(list) {
            Ok(list) if list.is_empty() => truth.ids_ok &= !output,
            Ok(list) if list.iter().all(|id| digits(id.get())) => truth.tokens += list.len() as u64,
            _ => truth.ids_ok = false,
        },
    }
    spoken
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
pub fn members(value: &[u8], without_ids: bool) -> Vec<String> {
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
