//! The bytes of SGLang (the 0.5 line, disaggregation over mooncake): events, whole answers, errors. Pure; knows nothing of time or
//! load.
//!
//! From SGLang's source, not from recordings: members and their order are those its response models serialise to. Chats show no
//! ids, and `reasoning_content` is there even when null; completions leave out ids that were not asked for; the chat's end is an
//! event of its own; an error inside a stream holds SGLang's whole error object, and `[DONE]` follows.
//!
//! Invariant: `code` in an error's body = the status of the answer, or what it would have been.

pub mod pages;

use crate::stub::answer::{Answer, JSON};
use crate::stub::ask::Route;
use crate::stub::load::Finish;
use crate::stub::refusal::{Refusal, quoted};
use crate::stub::rooms::{Fault, Seat, Side};
use crate::stub::stream::{Plan, Shape, Usage};
use crate::stub::text;
use crate::stub::vllm::{Extras, Names, put_ids};

/// What `/server_info` says.
pub const VERSION: &str = "0.5.12";

/// The fixed parts of a stream.
pub fn shape(
    route: Route,
    names: &Names<'_>,
    plan: &Plan,
    prompt_ids: &[u32],
    reasoning: u64,
    extras: Extras,
) -> Shape {
    let chat = route == Route::Chat;
    let object = if chat {
        "chat.completion.chunk"
    } else {
        "text_completion"
    };
    let envelope = format!(
        r#"data: {{"id":{},"object":"{object}","created":{},"model":{},"choices":["#,
        quoted(names.id),
        names.created,
        quoted(names.model),
    );
    let usage_open = format!(
        r#""usage":{{"prompt_tokens":{},"total_tokens":"#,
        plan.prompt_tokens
    );
    let tail = format!(r#","prompt_tokens_details":null,"reasoning_tokens":{reasoning}}}"#);
    let usage_tail = match chat {
        true => format!("{tail}}}\n\n"),
        // This event alone leaves nulls out.
        false => format!(",\"reasoning_tokens\":{reasoning}}}}}\n\n"),
    };
    let mut shape = Shape {
        close: "}]",
        no_ids: true,
        running_usage: extras.running_usage.then(|| Usage {
            head: format!(",{usage_open}").into_bytes(),
            between: COMPLETION,
            tail: tail.into_bytes(),
        }),
        usage: extras.usage.then(|| Usage {
            head: format!("{envelope}],{usage_open}").into_bytes(),
            between: COMPLETION,
            tail: usage_tail.into_bytes(),
        }),
        done: "data: [DONE]\n\n",
        last_open: r#","logprobs":null,"finish_reason":"#,
        fault: Some(put_fault),
        holds_head: true,
        ..Shape::default()
    };
    if chat {
        chat_shape(&mut shape, &envelope, plan, reasoning);
    } else {
        completion_shape(&mut shape, &envelope, plan, prompt_ids);
    }
    shape
}

fn chat_shape(shape: &mut Shape, envelope: &str, plan: &Plan, reasoning: u64) {
    const REST: &str = r#","logprobs":null,"finish_reason":null,"matched_stop":null"#;
    let opening = format!(
        "{envelope}{{\"index\":0,\"delta\":{{\"reasoning_content\":null,\"role\":\"assistant\",\"content\":\"\"}}{REST}}}]}}\n\n"
    );
    shape.opening = opening.into_bytes();
    shape.head = format!(r#"{envelope}{{"index":0,"delta":"#).into_bytes();
    shape.text_open = r#"{"reasoning_content":null,"content":""#;
    shape.reasoning_open = r#"{"reasoning_content":""#;
    shape.reasoning = reasoning;
    shape.text_close = r#""}"#;
    shape.text_none = r#"{"reasoning_content":null}"#;
    shape.skip_silent = true;
    shape.middle = REST.into();
    shape.end = "}\n\n";
    let finish = format!(
        "{envelope}{{\"index\":0,\"delta\":{{\"reasoning_content\":null}},\"logprobs\":null,\
         \"finish_reason\":{},\"matched_stop\":{}}}]}}\n\n",
        plan.finish.word(),
        matched_stop(plan.finish),
    );
    shape.finish = finish.into_bytes();
}

fn completion_shape(shape: &mut Shape, envelope: &str, plan: &Plan, prompt_ids: &[u32]) {
    shape.head = format!(r#"{envelope}{{"index":0,"text":"#).into_bytes();
    shape.text_open = r#"""#;
    shape.text_close = r#"""#;
    shape.text_none = r#""""#;
    shape.last_close = match (plan.finish, plan.ids) {
        (Finish::Stop, true) => r#","matched_stop":2,"token_ids":"#,
        (Finish::Stop, false) => r#","matched_stop":2"#,
        (Finish::Length | Finish::Abort, true) => r#","matched_stop":null,"token_ids":"#,
        (Finish::Length | Finish::Abort, false) => r#","matched_stop":null"#,
    };
    let ids = if plan.ids { r#","token_ids":"# } else { "" };
    shape.middle =
        format!(r#","logprobs":null,"finish_reason":null,"matched_stop":null{ids}"#).into_bytes();
    if plan.ids {
        shape.first_tail = br#","prompt_token_ids":"#.to_vec();
        put_ids(Some(prompt_ids), &mut shape.first_tail);
    }
    let end = match shape.running_usage {
        Some(_) => "}\n\n",
        None => ",\"usage\":null}\n\n",
    };
    shape.end = end;
    shape.last_end = end.into();
}

const _: () = assert!(text::EOS == 2, "`matched_stop` above names it");

/// What ended the answer: the end-of-sequence token's id, or nothing.
fn matched_stop(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "2",
        Finish::Length | Finish::Abort => "null",
    }
}

/// A whole answer.
pub fn whole(
    route: Route,
    names: &Names<'_>,
    plan: &Plan,
    prompt_ids: &[u32],
    reasoning: u64,
) -> Answer {
    let chat = route == Route::Chat;
    let object = if chat {
        "chat.completion"
    } else {
        "text_completion"
    };
    let mut out = format!(
        r#"{{"id":{},"object":"{object}","created":{},"model":{},"choices":[{{"index":0,"#,
        quoted(names.id),
        names.created,
        quoted(names.model),
    )
    .into_bytes();
    if chat {
        out.extend_from_slice(br#""message":{"role":"assistant","content":"#);
        put_text(plan, reasoning..plan.tokens, &mut out);
        out.extend_from_slice(br#","reasoning_content":"#);
        match reasoning {
            0 => out.extend_from_slice(b"null"),
            _ => put_text(plan, 0..reasoning, &mut out),
        }
        out.extend_from_slice(br#","tool_calls":null}"#);
    } else {
        out.extend_from_slice(br#""text":"#);
        put_text(plan, 0..plan.tokens, &mut out);
    }
    let middle = format!(
        r#","logprobs":null,"finish_reason":{},"matched_stop":{}"#,
        plan.finish.word(),
        matched_stop(plan.finish),
    );
    out.extend_from_slice(middle.as_bytes());
    if !chat && plan.ids {
        let ids: Vec<u32> = (0..plan.tokens).map(|i| plan.id(i)).collect();
        out.extend_from_slice(br#","token_ids":"#);
        put_ids(Some(&ids), &mut out);
        out.extend_from_slice(br#","prompt_token_ids":"#);
        put_ids(Some(prompt_ids), &mut out);
    }
    let rest = format!(
        concat!(
            r#"}}],"usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"#,
            r#""prompt_tokens_details":null,"reasoning_tokens":{}}},"metadata":{{"weight_version":"default"}}}}"#
        ),
        plan.prompt_tokens,
        plan.prompt_tokens + plan.tokens,
        plan.tokens,
        reasoning,
    );
    out.extend_from_slice(rest.as_bytes());
    Answer::new(200, JSON, out)
}

fn put_text(plan: &Plan, tokens: std::ops::Range<u64>, out: &mut Vec<u8>) {
    out.push(b'"');
    tokens.for_each(|i| text::piece_json(plan.id(i), out));
    out.push(b'"');
}

/// An error as a whole answer: flat, without an `error` member.
pub fn refused(refusal: &Refusal) -> Answer {
    let kind = match refusal.status {
        // What the engine core reports is passed on with the status for a type.
        500.. => refusal.status.to_string(),
        _ => refusal.kind.to_owned(),
    };
    let body = format!(
        r#"{{"object":"error","message":{},"type":"{kind}","param":{},"code":{}}}"#,
        quoted(&refusal.message),
        refusal.param_json(),
        refusal.status,
    );
    Answer::new(refusal.status, JSON, body.into_bytes())
}

/// An error inside a stream: the same object below `error`, with Python's spaces and the status by name.
fn put_fault(refusal: &Refusal, out: &mut Vec<u8>) {
    let kind = match refusal.status {
        400 => "BAD_REQUEST",
        503 => "SERVICE_UNAVAILABLE",
        _ => "INTERNAL_SERVER_ERROR",
    };
    let event = format!(
        "data: {{\"error\": {{\"object\": \"error\", \"message\": {}, \"type\": \"{kind}\", \"param\": null, \"code\": {}}}}}\n\n",
        quoted(&refusal.message),
        refusal.status,
    );
    out.extend_from_slice(event.as_bytes());
}

/// A leg without a room, on an engine that serves legs only.
pub fn no_room(rid: &str) -> Refusal {
    let message = format!(
        "Invalid request: Disaggregated request received without bootstrap room id. req.rid='{rid}'"
    );
    Refusal::bad(message, None)
}

/// Prompt and answer together are too long: SGLang shortens nothing.
pub fn too_many(len_max: u64, prompt_tokens: u64, asked: i64) -> Refusal {
    let total = prompt_tokens.saturating_add_signed(asked);
    Refusal::bad(
        format!(
            "Requested token count exceeds the model's maximum context length of {len_max} tokens. \
             You requested a total of {total} tokens: {prompt_tokens} tokens from the input messages \
             and {asked} tokens for the completion."
        ),
        None,
    )
}

/// Why the leg of `seat` came to nothing.
pub fn unmet(seat: &Seat, fault: Fault) -> Refusal {
    unmet_in(seat.side(), seat.number(), seat.rid(), fault)
}

/// As [`unmet`], for a leg that never sat.
pub fn unmet_in(side: Side, room: u64, rid: &str, fault: Fault) -> Refusal {
    let (what, owner, stage, other) = match (side, fault) {
        (Side::Prefill, Fault::Alone(_) | Fault::Taken) => {
            ("Prefill bootstrap", "req", "Bootstrapping", "")
        }
        (Side::Prefill, _) => (
            "Prefill transfer",
            "req",
            "",
            "Decode instance could be dead",
        ),
        (Side::Decode, _) => (
            "Decode transfer",
            "decode_req.req",
            "WaitingForInput",
            "Failed to get kvcache from prefill instance, it might be dead",
        ),
    };
    let why = match fault {
        Fault::Alone(wait) => {
            let waited = wait.as_secs_f64();
            format!("Request {room} timed out after {waited:.1}s in KVPoll.{stage}")
        }
        Fault::Left => "Aborted by AbortReq.".into(),
        Fault::Died => other.into(),
        Fault::Taken => format!("Request {room} is already in this room"),
    };
    Refusal::failed(format!(
        "{what} failed for request rank=0 {owner}.rid='{rid}' {owner}.bootstrap_room={room} \
         with exception KVTransferError(bootstrap_room={room}): {why}"
    ))
}

const COMPLETION: &str = r#","completion_tokens":"#;
