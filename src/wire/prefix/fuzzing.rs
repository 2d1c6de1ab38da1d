//! A body for a fuzz target: the hashes against those of a plain reader, which builds the whole string out of serde_json's values first.

use serde_json::Value;
use serde_json::value::RawValue;

use super::chain::Chain;
use super::{BLOCK_BYTES, BLOCKS_MAX, From, Prefix, Salt, mark};
use crate::base::prng::Prng;
use crate::wire::dialect::Dialect;
use crate::wire::openai::{Route, Rules, check};
use crate::wire::splice::fuzzing::members;

/// A body that passes the checks has the hashes of the plain reader's string.
pub fn fuzz(data: &[u8]) {
    let salt = Salt::new(&mut Prng::new(1));
    for route in [Route::Completions, Route::Chat] {
        let Some(got) = read(data, route, &salt) else {
            continue;
        };
        assert!(got.blocks.len() <= BLOCKS_MAX);
        assert!((got.blocks.len() * BLOCK_BYTES) as u64 <= got.bytes);
        assert!(got.tokens(usize::MAX, 7, 3.8) < 7);
        // serde_json reads no numbers beyond its own and no nesting as deep as ours.
        if let Some(want) = plain(data, route) {
            assert_eq!(got, hashed(&want, &salt), "{}", shown(data));
        }
    }
}

/// `None` when the body does not pass.
pub fn read(body: &[u8], route: Route, salt: &Salt) -> Option<Prefix> {
    let rules = Rules {
        dialect: Dialect::Vllm,
        model: "m",
        aliases: &[],
    };
    let request = check(route, body, &rules).ok()?;
    let mut prefix = Prefix::default();
    let from = From { salt, model: "m" };
    prefix.read(body, &request, route, &from);
    Some(prefix)
}

/// The string as one buffer.
#[derive(Debug, Default)]
pub(super) struct Plain {
    pub seed: Vec<u8>,
    pub text: Vec<u8>,
    pub ended: bool,
}

fn hashed(plain: &Plain, salt: &Salt) -> Prefix {
    let mut blocks = Vec::new();
    let mut chain = Chain::new(salt, &mut blocks);
    chain.push(&plain.seed);
    // A string that ends before it begins has no seed of its own.
    if !plain.text.is_empty() || !plain.ended {
        chain.seed();
        chain.push(&plain.text);
    }
    let bytes = chain.bytes();
    Prefix {
        blocks,
        bytes,
        ended: plain.ended,
    }
}

pub(super) fn plain(body: &[u8], route: Route) -> Option<Plain> {
    let members = members(body)?;
    let given = |name: &str| {
        let (_, value) = members.iter().rev().find(|(n, _)| n == name)?;
        (value != "null").then_some(value.as_str())
    };
    let mut out = Plain {
        seed: b"m".to_vec(),
        ..Plain::default()
    };
    for name in ["cache_salt", "chat_template", "chat_template_kwargs"] {
        out.seed.extend(mark::PART);
        out.seed
            .extend(given(name).map(canonical).unwrap_or_default());
    }
    let (prompt, messages) = (given("prompt"), given("messages"));
    let (prompt, messages) = match route {
        Route::Completions => (prompt, messages.filter(|_| prompt.is_none())),
        Route::Chat => (prompt.filter(|_| messages.is_none()), messages),
    };
    out.ended = given("prompt_embeds").is_some() || prompt.is_none() && messages.is_none();
    if out.ended {
        return Some(out);
    }
    if let Some(prompt) = prompt {
        plain_prompt(&mut out, prompt)?;
    } else if let Some(messages) = messages {
        out.seed.extend(mark::MESSAGES);
        let tools = given("tools").map(canonical);
        out.text.extend(tools.unwrap_or_default());
        for message in serde_json::from_str::<Vec<Box<RawValue>>>(messages).ok()? {
            if !plain_message(&mut out.text, message.get())? {
                out.ended = true;
                break;
            }
        }
    }
    Some(out)
}

fn plain_prompt(out: &mut Plain, prompt: &str) -> Option<()> {
    let list = |text: &str| serde_json::from_str::<Vec<Box<RawValue>>>(text).ok();
    let is_id = |id: &RawValue| id.get().bytes().all(|b| b.is_ascii_digit());
    let outer = list(prompt);
    let only = outer.as_ref().filter(|list| list.len() == 1);
    let inner = only.map_or(prompt, |list| list[0].get());
    let ids = list(inner).or_else(|| list(prompt)).unwrap_or_default();
    if !ids.is_empty() && ids.iter().all(|id| is_id(id)) {
        out.seed.extend(mark::IDS);
        for id in ids {
            let id: u32 = id.get().parse().unwrap_or(u32::MAX);
            out.text.extend(id.to_le_bytes());
        }
        return Some(());
    }
    out.seed.extend(mark::PROMPT);
    out.text
        .extend(match serde_json::from_str::<String>(inner) {
            Ok(text) => text.into_bytes(),
            Err(_) => canonical(prompt),
        });
    Some(())
}

/// `Some(false)`: the string ends in it.
fn plain_message(out: &mut Vec<u8>, message: &str) -> Option<bool> {
    let members = members(message.as_bytes())?;
    let given = |name: &str| {
        let (_, value) = members.iter().rev().find(|(n, _)| n == name)?;
        (value != "null").then_some(value.as_str())
    };
    out.extend(mark::MESSAGE);
    out.extend(given("role").map(unquoted).unwrap_or_default());
    out.extend(mark::PART);
    match given("content") {
        Some(content) if content.starts_with('[') => {
            let parts: Vec<Box<RawValue>> = serde_json::from_str(content).ok()?;
            for (i, part) in parts.iter().enumerate() {
                out.extend(b"\n".iter().filter(|_| i > 0));
                let value: Value = serde_json::from_str(part.get()).ok()?;
                let kind = value.get("type").filter(|kind| !kind.is_null());
                let told = kind.is_none_or(|kind| kind == "text" || kind == "input_text");
                match value.get("text").unwrap_or(&value) {
                    Value::String(text) if told => out.extend(text.as_bytes()),
                    _ => return Some(false),
                }
            }
        }
        Some(content) => out.extend(unquoted(content)),
        None => {}
    }
    if let Some(calls) = given("tool_calls") {
        out.extend(mark::CALLS);
        out.extend(canonical(calls));
    }
    Some(true)
}

fn unquoted(value: &str) -> Vec<u8> {
    match serde_json::from_str::<String>(value) {
        Ok(text) => text.into_bytes(),
        Err(_) => canonical(value),
    }
}

/// Character by character.
fn canonical(value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                let mut literal = String::from(c);
                while let Some(c) = chars.next() {
                    literal.push(c);
                    match c {
                        '\\' => literal.extend(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                out.extend(mark::QUOTE);
                out.extend(
                    serde_json::from_str::<String>(&literal)
                        .unwrap_or_default()
                        .bytes(),
                );
                out.extend(mark::QUOTE);
            }
            ' ' | '\t' | '\n' | '\r' => {}
            c => out.extend(c.to_string().bytes()),
        }
    }
    out
}

fn shown(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}
