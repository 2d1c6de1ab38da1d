//! The answer's text, from the buffers. Every part is raw JSON already, so only brackets, names and commas are added.
//!
//! Owns nothing; may use the room's buffers. Invariant: the output is one JSON object.

use crate::wire::json::{Cursor, JsonFault, Kind as JsonKind};

use super::buffers::Kept;
use super::choice::{Choice, Message};
use super::stage::STRINGS;
use super::tools::{Call, FunctionCall};
use super::{Assembly, Kind, PromptDetails, Rules, Usage};

pub(super) fn answer(a: &Assembly, out: &mut Vec<u8>, counted: Usage) {
    let mut w = Writer::open(out);
    for (name, key, value) in a.meta.iter() {
        w.raw_key(key);
        if name == b"usage" {
            usage(w.out, value, &a.prompt_details);
        } else {
            w.out.extend_from_slice(value);
        }
    }
    if let Some(ids) = a.token_ids.items() {
        w.list("token_ids", ids);
    }
    w.string(
        "object",
        match a.rules.kind {
            Kind::Chat => b"chat.completion",
            Kind::Text => b"text_completion",
        },
    );
    w.key("choices");
    w.out.push(b'[');
    choice(&a.choice, &a.rules, w.out);
    w.out.push(b']');
    if a.meta.value("usage").is_none() {
        w.key("usage");
        counted_usage(w.out, counted);
    }
    w.close();
}

fn choice(choice: &Choice, rules: &Rules, out: &mut Vec<u8>) {
    let mut w = Writer::open(out);
    w.key("index");
    w.out.push(b'0');
    match rules.kind {
        Kind::Chat => {
            w.key("message");
            message(&choice.message, rules, w.out);
        }
        Kind::Text => w.string("text", choice.text.content().unwrap_or_default()),
    }
    if choice.logprobs.iter(rules.kind).next().is_some()
        || choice.logprobs.kept.iter().next().is_some()
    {
        w.key("logprobs");
        let mut inner = Writer::open(w.out);
        for (name, items) in choice.logprobs.iter(rules.kind) {
            inner.list(name, items);
        }
        inner.kept(&choice.logprobs.kept, rules);
        inner.close();
    }
    w.string(
        "finish_reason",
        choice.finish_reason.value().unwrap_or(b"stop"),
    );
    if let Some(reason) = choice.stop_reason.value() {
        w.key("stop_reason");
        w.out.extend_from_slice(reason);
    }
    if let Some(ids) = choice.token_ids.items() {
        w.list("token_ids", ids);
    }
    if let Some(ids) = choice.prompt_token_ids.items() {
        w.list("prompt_token_ids", ids);
    }
    w.kept(&choice.kept, rules);
    w.close();
}

fn message(message: &Message, rules: &Rules, out: &mut Vec<u8>) {
    let mut w = Writer::open(out);
    w.string("role", b"assistant");
    for (n, (name, joined)) in STRINGS.iter().zip(&message.strings).enumerate() {
        match joined.content() {
            Some(content) => w.string(name, content),
            // The content is there even when it is not.
            None if n == 0 => {
                w.key(name);
                w.out.extend_from_slice(b"null");
            }
            None => {}
        }
    }
    if message.tools.iter().next().is_some() {
        w.key("tool_calls");
        w.out.push(b'[');
        for (n, call) in message.tools.iter().enumerate() {
            if n > 0 {
                w.out.push(b',');
            }
            tool_call(call, rules, w.out);
        }
        w.out.push(b']');
    }
    if message.function_call.seen() {
        w.key("function_call");
        function(&message.function_call, rules, w.out);
    }
    w.kept(&message.kept, rules);
    w.close();
}

fn tool_call(call: &Call, rules: &Rules, out: &mut Vec<u8>) {
    let mut w = Writer::open(out);
    w.string("id", call.id.content().unwrap_or_default());
    w.string("type", b"function");
    w.key("function");
    function(&call.function, rules, w.out);
    w.kept(&call.kept, rules);
    w.close();
}

fn function(call: &FunctionCall, rules: &Rules, out: &mut Vec<u8>) {
    let mut w = Writer::open(out);
    w.string("name", call.name.content().unwrap_or_default());
    w.string("arguments", call.arguments.content().unwrap_or_default());
    w.kept(&call.kept, rules);
    w.close();
}

fn counted_usage(out: &mut Vec<u8>, counted: Usage) {
    let mut w = Writer::open(out);
    if let Some(prompt) = counted.prompt_tokens {
        w.number("prompt_tokens", prompt);
    }
    w.number("completion_tokens", counted.completion_tokens);
    if let Some(prompt) = counted.prompt_tokens {
        let total = prompt.saturating_add(counted.completion_tokens);
        w.number("total_tokens", total);
    }
    w.close();
}

/// The engine's usage, with another's `prompt_tokens_details` when so asked.
fn usage(out: &mut Vec<u8>, raw: &[u8], details: &PromptDetails) {
    let producer = match details {
        PromptDetails::AsSent => return out.extend_from_slice(raw),
        PromptDetails::Omit => None,
        PromptDetails::Producer(raw) => Some(raw),
    };
    let start = out.len();
    if usage_without_details(out, raw, producer).is_err() {
        // Not reached: the event was checked. An object, if it is one, goes out as it came.
        out.truncate(start);
        out.extend_from_slice(raw);
    }
}

fn usage_without_details(
    out: &mut Vec<u8>,
    raw: &[u8],
    producer: Option<&Vec<u8>>,
) -> Result<(), JsonFault> {
    let mut c = Cursor::new(raw);
    if c.peek()? != JsonKind::Object {
        out.extend_from_slice(raw);
        return Ok(());
    }
    let mut walk = c.object()?;
    let mut w = Writer::open(out);
    let mut told = false;
    while let Some(key) = c.key(&mut walk)? {
        let value = c.skip()?;
        if key.is("prompt_tokens_details") {
            told = &raw[value] != b"null";
        } else {
            w.raw_key(key.raw);
            w.out.extend_from_slice(&raw[value]);
        }
    }
    // Who is not asked for details gets none.
    if let Some(details) = producer.filter(|_| told) {
        w.key("prompt_tokens_details");
        w.out.extend_from_slice(details);
    }
    w.close();
    Ok(())
}

/// An object being written. Values given to it are raw JSON; strings and lists come without their quotes and brackets.
struct Writer<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl<'o> Writer<'o> {
    fn open(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Writer { out, first: true }
    }

    fn close(self) {
        self.out.push(b'}');
    }

    fn comma(&mut self) {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
    }

    fn raw_key(&mut self, key: &[u8]) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(key);
        self.out.extend_from_slice(b"\":");
    }

    fn key(&mut self, key: &str) {
        self.raw_key(key.as_bytes());
    }

    fn string(&mut self, key: &str, content: &[u8]) {
        self.key(key);
        self.out.push(b'"');
        self.out.extend_from_slice(content);
        self.out.push(b'"');
    }

    fn list(&mut self, key: &str, items: &[u8]) {
        self.key(key);
        self.out.push(b'[');
        self.out.extend_from_slice(items);
        self.out.push(b']');
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        self.out.extend_from_slice(value.to_string().as_bytes());
    }

    fn kept(&mut self, kept: &Kept, rules: &Rules) {
        for (name, value) in kept.iter() {
            self.comma();
            // Writing a string to memory cannot fail.
            let _ = serde_json::to_writer(&mut *self.out, &rules.names[name]);
            self.out.push(b':');
            self.out.extend_from_slice(value);
        }
    }
}
