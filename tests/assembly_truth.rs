//! An engine's stream, assembled by us, against the same engine's own answer to the same request without `stream`.

mod recorded;

use narwhal::path::assemble::{Assembly, Kind, Options, Usage};
use recorded::{as_streamed, body, comparable, events};
use serde_json::Value;

// proves R-ASM-1, R-ASM-2
#[test]
fn an_assembled_stream_is_the_engines_own_answer() {
    for (full, stream, differs) in recorded::pairs() {
        let (engine, ours) = pair(full, stream, false);
        assert_eq!(ours, as_streamed(engine, differs), "{stream}");
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
    for event in events(&body("pairs/completion_stream_n2")) {
        assembly.event(&event);
    }
    assert!(assembly.fault().is_some());
}

/// Our answer and the engine's, both without what is not compared.
fn pair(full: &str, stream: &str, keep_ids: bool) -> (Value, Value) {
    let engine: Value = serde_json::from_slice(&body(&format!("pairs/{full}"))).expect("JSON");
    let count = |name: &str| engine["usage"][name].as_u64();
    let counted = Usage {
        prompt_tokens: count("prompt_tokens"),
        completion_tokens: count("completion_tokens").expect("a count"),
    };
    let chat = engine["object"] == "chat.completion";
    let kind = if chat { Kind::Chat } else { Kind::Text };
    let mut assembly = Assembly::new(options(kind, keep_ids));
    for event in events(&body(&format!("pairs/{stream}"))) {
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
