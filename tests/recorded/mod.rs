//! Answers that a real engine gave, and how one of ours is compared with them.
//!
//! Both were recorded from a vLLM 0.32.0 (`vectors/vllm/pairs/SOURCE`). They are compared as JSON values, apart from
//! - `id` and `created`, which differ between two requests, and the random ids of tool calls (only their presence is compared);
//! - members that are null in the engine's answer: the contract drops null members, but `content`;
//! - `usage`: the stream's own where it has one, by its three counts (cached tokens depend on what ran before). A stream without
//!   usage takes what was counted.

use std::fs;

use serde_json::{Value, json};

const CONTENT: &str = "/choices/0/message/content";

/// A request's whole answer, the stream of the same request, and where the engine itself says different things in its two modes:
/// member, its answer, its stream.
pub type Pair = (
    &'static str,
    &'static str,
    Vec<(&'static str, Value, Value)>,
);

/// All of them.
pub fn pairs() -> Vec<Pair> {
    let same = || vec![];
    // The stream's first event has `content: ""`, which is a string though an empty one.
    let empty = || vec![(CONTENT, json!(null), json!(""))];
    // The line breaks before a call are content in the stream, and stripped without one.
    let blank = || vec![(CONTENT, json!(null), json!("\n\n"))];
    // A call cut by `max_tokens` is dropped from a stream, and content without one.
    let leaked = json!("\n\n<tool_call>\n{\"name\": \"ge");
    let cut = || vec![(CONTENT, leaked.clone(), json!("\n\n"))];
    vec![
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
        ("chat_no_reasoning", "chat_stream_no_reasoning", same()),
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
    ]
}

/// The whole answer `full`, as the stream would have it.
pub fn as_streamed(mut engine: Value, differs: Vec<(&str, Value, Value)>) -> Value {
    for (member, answer, streamed) in differs {
        let member = engine.pointer_mut(member).expect("a member");
        assert_eq!(*member, answer);
        *member = streamed;
    }
    engine
}

/// An answer without what is not compared.
pub fn comparable(mut answer: Value) -> Value {
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
pub fn events(body: &[u8]) -> Vec<Vec<u8>> {
    let lines = body.split(|byte| *byte == b'\n');
    let data = lines.filter_map(|line| line.strip_prefix(b"data: "));
    let events: Vec<Vec<u8>> = data.map(<[u8]>::to_vec).collect();
    let (done, events) = events.split_last().expect("a terminator");
    assert_eq!(done, b"[DONE]");
    events.to_vec()
}

/// The recorded answer `vectors/vllm/{name}.http`.
pub fn whole(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/tests/vectors/vllm/{name}.http",
        env!("CARGO_MANIFEST_DIR")
    );
    fs::read(&path).expect(&path)
}

/// Its body, without framing.
pub fn body(name: &str) -> Vec<u8> {
    let bytes = whole(name);
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
