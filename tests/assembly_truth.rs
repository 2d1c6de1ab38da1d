//! An engine's stream, assembled by us, against the same engine's own answer to the same request without `stream`.
//!
//! Both were recorded from a vLLM 0.32.0 (`vectors/vllm/pairs/SOURCE`). They are compared as JSON values, apart from
//! - `id` and `created`, which differ between two requests, and the random ids of tool calls (only their presence is compared);
//! - members that are null in the engine's answer: the contract drops null members, but `content`;
//! - `usage`: the stream's own where it has one, by its three counts (cached tokens depend on what ran before). A stream without
//!   usage takes the counts given to `finish`.
//!
//! Where the engine itself says different things in its two modes, the row pins the difference: member, its answer, its stream.

use std::fs;

use narwhal::path::assemble::{Assembly, Kind, Options, Usage};
use serde_json::{Value, json};

const CONTENT: &str = "/choices/0/message/content";

// proves R-ASM-1, R-ASM-2
#[test]
fn an_assembled_stream_is_the_engines_own_answer() {
    let same = || vec![];
    // The stream's first event has `content: ""`, which is a string though an empty one.
    let empty = || vec![(CONTENT, json!(null), json!(""))];
    // The line breaks before a call are content in the stream, and stripped without one.
    let blank = || vec![(CONTENT, json!(null), json!("\n\n"))];
    // A call cut by `max_tokens` is dropped from a stream, and content without one.
    let leaked = json!("\n\n<tool_call>\n{\"name\": \"ge");
    let cut = || vec![(CONTENT, leaked.clone(), json!("\n\n"))];
    let rows = [
        ("chat", "chat_stream", same()),
        ("chat", "chat_stream_usage", same()),
        ("chat", "chat_stream_continuous_usage", same()),
        // Usage in every event; that engine also reported `metrics`, which are not compared.
        ("chat", "x_force_usage_chat", same()),
        ("chat_code", "chat_stream_code", same()),
        ("chat_max_tokens_1", "chat_stream_max_tokens_1", empty()),
        ("chat_separators", "chat_stream_separators", same()),
        ("chat_stop_string", "chat_stream_stop_string", same()),
        (
            "chat_tools_auto_call",
            "chat_stream_tools_auto_call",
            blank(),
        ),
        (
            "chat_tools_auto_text",
            "chat_stream_tools_auto_text",
            same(),
        ),
        (
            "chat_tools_auto_text_and_call",
            "chat_stream_tools_auto_text_and_call",
            same(),
        ),
        (
            "chat_tools_auto_text_and_call",
            "chat_stream_tools_interval_400",
            same(),
        ),
        (
            "chat_tools_auto_two_calls",
            "chat_stream_tools_auto_two_calls",
            blank(),
        ),
        ("chat_tools_call_cut", "chat_stream_tools_call_cut", cut()),
        ("chat_tools_named", "chat_stream_tools_named", same()),
        ("chat_tools_required", "chat_stream_tools_required", same()),
        (
            "chat_tools_second_turn",
            "chat_stream_tools_second_turn",
            same(),
        ),
        ("completion", "completion_stream", same()),
        ("completion", "completion_stream_usage", same()),
        ("completion_echo", "completion_stream_echo", same()),
        ("completion_eos", "completion_stream_eos", same()),
        (
            "completion_stop_string",
            "completion_stream_stop_string",
            same(),
        ),
        (
            "completion_request_id_header",
            "completion_stream_max_tokens_1",
            same(),
        ),
    ];
    for (full, stream, differs) in rows {
        let (mut engine, ours) = pair(full, stream, false);
        for (member, answer, streamed) in differs {
            let member = engine.pointer_mut(member).expect(stream);
            assert_eq!(*member, answer, "{stream}");
            *member = streamed;
        }
        assert_eq!(ours, engine, "{stream}");
    }
}

/// Of these the stream was asked for more tokens than the answer, at temperature 0: the answer's lists are how ours begin.
// proves R-ASM-1, R-TOK-3
#[test]
fn assembled_lists_begin_like_the_engines_own() {
    let completion: &[&str] = &[
        "/choices/0/logprobs/tokens",
        "/choices/0/logprobs/token_logprobs",
        "/choices/0/logprobs/text_offset",
    ];
    let completion_ids: &[&str] = &["/choices/0/token_ids", "/choices/0/prompt_token_ids"];
    let chat_ids: &[&str] = &["/choices/0/token_ids", "/prompt_token_ids"];
    let chat: &[&str] = &["/choices/0/logprobs/content"];
    let rows = [
        (
            "completion_logprobs3",
            "completion_stream_logprobs",
            completion,
        ),
        ("chat_logprobs", "chat_stream_logprobs", chat),
        (
            "completion_return_token_ids",
            "completion_stream_return_token_ids",
            completion_ids,
        ),
        (
            "chat_return_token_ids",
            "chat_stream_return_token_ids",
            chat_ids,
        ),
    ];
    for (full, stream, members) in rows {
        let (engine, ours) = pair(full, stream, true);
        for member in members {
            let list = |value: &Value| value.pointer(member).and_then(Value::as_array).cloned();
            let engine = list(&engine).expect(member);
            let ours = list(&ours).expect(member);
            assert!(engine.len() >= 4, "{stream} {member}");
            assert!(ours.starts_with(&engine), "{stream} {member}");
        }
        let (_, ours) = pair(full, stream, false);
        assert!(!ours.to_string().contains("token_ids"), "{stream}");
    }
}

/// One choice is what a handoff carries, so two are no answer.
// proves R-ASM-3
#[test]
fn a_stream_of_two_choices_is_a_fault() {
    let mut assembly = Assembly::new(options(Kind::Text, false));
    for event in events(&body("completion_stream_n2")) {
        assembly.event(&event);
    }
    assert!(assembly.fault().is_some());
}

/// Our answer and the engine's, both without what is not compared.
fn pair(full: &str, stream: &str, keep_ids: bool) -> (Value, Value) {
    let engine: Value = serde_json::from_slice(&body(full)).expect("JSON");
    let count = |name: &str| engine["usage"][name].as_u64();
    let counted = Usage {
        prompt_tokens: count("prompt_tokens"),
        completion_tokens: count("completion_tokens").expect("a count"),
    };
    let chat = engine["object"] == "chat.completion";
    let kind = if chat { Kind::Chat } else { Kind::Text };
    let mut assembly = Assembly::new(options(kind, keep_ids));
    for event in events(&body(stream)) {
        assembly.event(&event);
    }
    let mut out = Vec::new();
    assert_eq!(assembly.finish(&mut out, counted), Ok(()), "{stream}");
    let ours = serde_json::from_slice(&out).expect("JSON");
    (comparable(engine), comparable(ours))
}

fn options(kind: Kind, keep_ids: bool) -> Options<'static> {
    Options {
        kind,
        keep_ids,
        extra_fields: &[],
        dialect_fields: &[],
        bytes_max: 1 << 20,
    }
}

fn comparable(mut answer: Value) -> Value {
    for name in ["id", "created"] {
        assert!(!answer[name].is_null());
        answer[name] = Value::Null;
    }
    answer["metrics"] = Value::Null;
    if let Some(usage) = answer["usage"].as_object_mut() {
        usage.retain(|name, _| !name.ends_with("_details"));
    }
    let choice = &mut answer["choices"][0];
    if let Some(calls) = choice["message"]["tool_calls"].as_array_mut() {
        for call in calls {
            assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()));
            call["id"] = Value::Null;
        }
    }
    for path in ["", "/choices/0", "/choices/0/message"] {
        if let Some(object) = answer.pointer_mut(path).and_then(Value::as_object_mut) {
            object.retain(|name, value| !value.is_null() || name == "content");
        }
    }
    answer
}

/// Data events but the terminator, by vLLM's own framing: one line each.
fn events(body: &[u8]) -> Vec<Vec<u8>> {
    let lines = body.split(|byte| *byte == b'\n');
    let data = lines.filter_map(|line| line.strip_prefix(b"data: "));
    let events: Vec<Vec<u8>> = data.map(<[u8]>::to_vec).collect();
    let (done, events) = events.split_last().expect("a terminator");
    assert_eq!(done, b"[DONE]");
    events.to_vec()
}

/// The body of a recorded answer, without its framing.
fn body(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/tests/vectors/vllm/pairs/{name}.http",
        env!("CARGO_MANIFEST_DIR")
    );
    let bytes = fs::read(&path).expect(&path);
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
    let (head, mut rest) = bytes.split_at(end.expect("a head") + 4);
    if !head.windows(7).any(|w| w == b"chunked") {
        return rest.to_vec();
    }
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n").expect("a size");
        let size = std::str::from_utf8(&rest[..end]).expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a size");
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..][..size]);
        rest = &rest[end + 2 + size + 2..];
    }
}
