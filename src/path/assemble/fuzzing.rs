//! The plain way to assemble an answer, over parsed values, and the fuzz body that holds the room against it.
//!
//! Owns nothing; only tests and fuzz targets call it. Invariant: it shares no line with what it checks but the JSON cursor.

use std::ops::ControlFlow;

use serde_json::{Map, Value, json};

use super::{Assembly, Fault, Kind, Options, Usage};
use crate::wire::event::fuzzing::{alike, tape::Tape};
use crate::wire::event::{EventStream, Ids, Item};
use crate::wire::json::Cursor;

/// Byte 0 chooses the options, the lines of the rest are data events. The answer must be the oracle's, and never outgrow its limit.
pub fn fuzz(data: &[u8]) {
    let Some((flags, rest)) = data.split_first() else {
        return;
    };
    let extra = ["audio".to_string(), "x".to_string()];
    let mut options = Options {
        kind: [Kind::Chat, Kind::Text][usize::from(flags & 1)],
        keep_ids: flags & 2 != 0,
        extra_fields: if flags & 4 != 0 { &extra } else { &[] },
        dialect_fields: if flags & 8 != 0 {
            &["matched_stop"]
        } else {
            &[]
        },
        bytes_max: usize::MAX,
    };
    let events: Vec<&[u8]> = rest.split(|byte| *byte == b'\n').collect();
    check(&options, &events);
    check_known(&options, &data_lines(&events));
    check_known(&options, &alike::stream(&mut Tape(rest)));
    options.bytes_max = rest.len() / 2;
    let mut small = Assembly::new(options);
    for event in events {
        feed(&mut small, event);
        assert!(small.held_bytes() <= options.bytes_max);
    }
}

/// Asserts that an assembly and the oracle agree over these events.
pub fn check(options: &Options, events: &[&[u8]]) {
    let mut assembly = Assembly::new(*options);
    let mut oracle = Some(Vec::new());
    let mut malformed = false;
    for event in events {
        if !feed(&mut assembly, event) {
            malformed = true;
            continue;
        }
        // What serde_json does not take (1E400, lone surrogates, a member given twice under a name that is unknown) is not
        // compared; it must be survived.
        let text = String::from_utf8_lossy(event);
        let value = serde_json::from_str::<Value>(&text).ok();
        let value = value.filter(|value| members(value) == members_raw(text.as_bytes()));
        oracle = oracle.zip(value).map(|(mut all, value)| {
            all.push(value);
            all
        });
    }
    let mut out = Vec::new();
    let counted = Usage {
        prompt_tokens: Some(3),
        completion_tokens: 4,
    };
    let done = assembly.finish(&mut out, counted);
    assert_eq!(done.err(), assembly.fault());
    match done {
        Ok(()) => assert!(is_json(&out), "{}", String::from_utf8_lossy(&out)),
        Err(_) => assert!(out.is_empty()),
    }
    // Bounds that have no limit of bytes are not the oracle's.
    let Some(events) = oracle.filter(|_| done != Err(Fault::TooLarge)) else {
        return;
    };
    let expected = answer(options, &events).filter(|_| !malformed);
    let got = done.ok().map(|()| serde_json::from_slice(&out).ok());
    assert_eq!(got, expected.map(Some), "{}", String::from_utf8_lossy(&out));
}

fn data_lines(events: &[&[u8]]) -> Vec<u8> {
    let lines = events
        .iter()
        .map(|event| [b"data: ", *event, b"\n\n"].concat());
    lines.collect::<Vec<_>>().concat()
}

/// Events of a stream, each merged whole and each by what is known of it, leave the same.
pub fn check_known(options: &Options, stream: &[u8]) {
    for ids in [Ids::Expected, Ids::Absent] {
        let (mut whole, mut known) = (Assembly::new(*options), Assembly::new(*options));
        let read = EventStream::new(ids, usize::MAX).feed(stream, |item| {
            match item {
                Item::Object { value, facts, .. } => {
                    whole.event(value);
                    known.event_known(value, facts.varies());
                }
                Item::Malformed { .. } => {
                    whole.malformed();
                    known.malformed();
                }
                _ => {}
            }
            assert_eq!(whole.fault(), known.fault());
            assert_eq!(whole.held_bytes(), known.held_bytes());
            ControlFlow::Continue(())
        });
        assert!(read.is_ok());
        let (mut by_whole, mut by_known) = (Vec::new(), Vec::new());
        let done = whole.finish(&mut by_whole, Usage::default());
        assert_eq!(known.finish(&mut by_known, Usage::default()), done);
        assert_eq!(by_whole, by_known, "{}", String::from_utf8_lossy(stream));
    }
}

/// As the event reader would: whether it is a JSON object.
fn feed(assembly: &mut Assembly, event: &[u8]) -> bool {
    let object = is_json(event) && event.trim_ascii_start().starts_with(b"{");
    if object {
        assembly.event(event);
    } else {
        assembly.malformed();
    }
    object
}

fn is_json(text: &[u8]) -> bool {
    let mut c = Cursor::new(text);
    c.skip().is_ok() && c.finish().is_ok()
}

/// Members of every object in it.
fn members(value: &Value) -> usize {
    match value {
        Value::Object(map) => map.len() + map.values().map(members).sum::<usize>(),
        Value::Array(items) => items.iter().map(members).sum(),
        _ => 0,
    }
}

/// The same, those given twice included: colons outside strings.
fn members_raw(text: &[u8]) -> usize {
    let (mut quoted, mut escaped, mut colons) = (false, false, 0);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b':' if !quoted => colons += 1,
            _ => {}
        }
    }
    colons
}

/// The answer, by the contract, as simply as can be; `None` is a fault.
pub fn answer(options: &Options, events: &[Value]) -> Option<Value> {
    let chat = options.kind == Kind::Chat;
    let mut top = Map::new();
    let mut choice = Map::new();
    let mut message = Map::new();
    let mut calls = std::collections::BTreeMap::new();
    for event in events {
        for (key, value) in event.as_object()? {
            match key.as_str() {
                "choices" | "object" => {}
                "prompt_token_ids" if !options.keep_ids => {}
                "token_ids" if !options.keep_ids => {}
                "token_ids" => extend(&mut top, key, value)?,
                _ => last(&mut top, key, value),
            }
        }
        let choices = match event.get("choices") {
            None => continue,
            Some(choices) => choices.as_array()?,
        };
        let [one] = &choices[..] else {
            if choices.is_empty() {
                continue;
            }
            return None;
        };
        merge_choice(options, one.as_object()?, &mut choice)?;
        match one.get("delta") {
            Some(Value::Object(delta)) if chat => {
                merge_delta(options, delta, &mut message, &mut calls)?;
            }
            Some(Value::Null) | None => {}
            _ if chat => return None,
            _ => {}
        }
    }
    choice.insert("index".into(), json!(0));
    choice.entry("finish_reason").or_insert(json!("stop"));
    if chat {
        finish_message(&mut message, calls)?;
        choice.insert("message".into(), Value::Object(message));
    } else {
        choice.entry("text").or_insert(json!(""));
    }
    let object = ["text_completion", "chat.completion"][usize::from(chat)];
    top.insert("object".into(), json!(object));
    top.insert("choices".into(), json!([choice]));
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7});
    top.entry("usage").or_insert(usage);
    Some(Value::Object(top))
}

fn merge_choice(
    options: &Options,
    one: &Map<String, Value>,
    choice: &mut Map<String, Value>,
) -> Option<()> {
    let chat = options.kind == Kind::Chat;
    for (key, value) in one.iter().filter(|(_, value)| !value.is_null()) {
        match key.as_str() {
            "index" => (value.as_u64()? == 0).then_some(())?,
            "delta" if chat => {}
            "text" if !chat => join(choice, key, value)?,
            "finish_reason" if value.as_str()?.is_empty() => {}
            "finish_reason" | "stop_reason" => last(choice, key, value),
            "token_ids" | "prompt_token_ids" => {
                value.as_array()?;
                if options.keep_ids && key == "token_ids" {
                    extend(choice, key, value)?;
                } else if options.keep_ids {
                    last(choice, key, value);
                }
            }
            "logprobs" => merge_logprobs(options, value.as_object()?, choice)?,
            _ if options.dialect_fields.contains(&key.as_str()) => last(choice, key, value),
            _ => extra(options, choice, key, value)?,
        }
    }
    Some(())
}

fn merge_logprobs(
    options: &Options,
    logprobs: &Map<String, Value>,
    choice: &mut Map<String, Value>,
) -> Option<()> {
    let lists: &[&str] = match options.kind {
        Kind::Chat => &["content", "refusal"],
        Kind::Text => &["tokens", "token_logprobs", "top_logprobs", "text_offset"],
    };
    for (key, value) in logprobs.iter().filter(|(_, value)| !value.is_null()) {
        let into = choice.entry("logprobs").or_insert(json!({}));
        let into = into.as_object_mut()?;
        if lists.contains(&key.as_str()) {
            extend(into, key, value)?;
        } else {
            extra(options, into, key, value)?;
        }
    }
    Some(())
}

fn merge_delta(
    options: &Options,
    delta: &Map<String, Value>,
    message: &mut Map<String, Value>,
    calls: &mut std::collections::BTreeMap<u64, Map<String, Value>>,
) -> Option<()> {
    for (key, value) in delta.iter().filter(|(_, value)| !value.is_null()) {
        match key.as_str() {
            "role" => (value == "assistant").then_some(())?,
            "content" | "reasoning" | "reasoning_content" | "refusal" => join(message, key, value)?,
            "function_call" => {
                let into = message.entry("function_call").or_insert(json!({}));
                merge_function(options, value.as_object()?, into.as_object_mut()?)?;
            }
            "tool_calls" => {
                for item in value.as_array()? {
                    let item = item.as_object()?;
                    let call = calls.entry(item.get("index")?.as_u64()?).or_default();
                    merge_call(options, item, call)?;
                }
            }
            _ => extra(options, message, key, value)?,
        }
    }
    Some(())
}

fn merge_call(
    options: &Options,
    item: &Map<String, Value>,
    call: &mut Map<String, Value>,
) -> Option<()> {
    for (key, value) in item.iter().filter(|(_, value)| !value.is_null()) {
        match key.as_str() {
            "index" => {}
            "id" => join(call, key, value)?,
            "type" => (value == "function").then_some(())?,
            "function" => {
                let into = call.entry("function").or_insert(json!({}));
                merge_function(options, value.as_object()?, into.as_object_mut()?)?;
            }
            _ => extra(options, call, key, value)?,
        }
    }
    Some(())
}

fn merge_function(
    options: &Options,
    function: &Map<String, Value>,
    into: &mut Map<String, Value>,
) -> Option<()> {
    for (key, value) in function.iter().filter(|(_, value)| !value.is_null()) {
        match key.as_str() {
            "name" | "arguments" => join(into, key, value)?,
            _ => extra(options, into, key, value)?,
        }
    }
    Some(())
}

fn finish_message(
    message: &mut Map<String, Value>,
    calls: std::collections::BTreeMap<u64, Map<String, Value>>,
) -> Option<()> {
    message.insert("role".into(), json!("assistant"));
    message.entry("content").or_insert(Value::Null);
    if let Some(call) = message.get_mut("function_call") {
        named(call.as_object_mut()?)?;
    }
    let mut list = Vec::new();
    for mut call in calls.into_values() {
        named(call.get_mut("function")?.as_object_mut()?)?;
        (!call.get("id")?.as_str()?.is_empty()).then_some(())?;
        call.insert("type".into(), json!("function"));
        list.push(Value::Object(call));
    }
    if !list.is_empty() {
        message.insert("tool_calls".into(), Value::Array(list));
    }
    Some(())
}

fn named(function: &mut Map<String, Value>) -> Option<()> {
    function.entry("arguments").or_insert(json!(""));
    (!function.get("name")?.as_str()?.is_empty()).then_some(())
}

fn last(into: &mut Map<String, Value>, key: &str, value: &Value) {
    if !value.is_null() {
        into.insert(key.into(), value.clone());
    }
}

fn extra(options: &Options, into: &mut Map<String, Value>, key: &str, value: &Value) -> Option<()> {
    let named = options.extra_fields.iter().any(|name| name == key);
    last(into, key, value);
    named.then_some(())
}

fn join(into: &mut Map<String, Value>, key: &str, value: &Value) -> Option<()> {
    let before = into.get(key).and_then(Value::as_str).unwrap_or_default();
    let joined = format!("{before}{}", value.as_str()?);
    into.insert(key.into(), Value::String(joined));
    Some(())
}

fn extend(into: &mut Map<String, Value>, key: &str, value: &Value) -> Option<()> {
    if !value.is_null() {
        let list = into.entry(key).or_insert(json!([])).as_array_mut()?;
        list.extend(value.as_array()?.iter().cloned());
    }
    Some(())
}
