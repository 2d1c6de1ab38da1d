//! The bytes of vLLM 0.32.0: events, whole answers, handoff parameters and pages, member for member as recorded from
//! `vllm serve` with `--enable-prompt-tokens-details` and the NIXL connector. Pure; knows nothing of time or load.
//!
//! Invariant: members and their order are those of `tests/vectors/vllm/skeleton`.

pub mod pages;

use crate::stub::answer::{Answer, JSON};
use crate::stub::ask::Route;
use crate::stub::handoff::EngineName;
use crate::stub::refusal::quoted;
use crate::stub::stream::{Plan, Shape, Usage, put_integer};
use crate::stub::text;

/// What `/version` says.
pub const VERSION: &str = "0.32.0";

/// The names in one answer.
#[derive(Clone, Debug)]
pub struct Names<'a> {
    /// With its prefix.
    pub id: &'a str,
    pub model: &'a str,
    pub fingerprint: &'a str,
    /// Unix seconds.
    pub created: u64,
}

/// What a prefill leg hands on.
#[derive(Clone, Debug)]
pub struct Parameters<'a> {
    pub blocks: &'a [u32],
    pub engine: &'a EngineName,
    pub request: &'a str,
    pub host: &'a str,
    pub port: u16,
    pub tokens: u64,
    pub cached_tokens: u64,
}

/// Which extras a stream was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    pub usage: bool,
    pub running_usage: bool,
}

/// The fixed parts of a stream.
pub fn shape(
    route: Route,
    names: &Names<'_>,
    plan: &Plan,
    prompt_ids: &[u32],
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
    let fingerprint = format!(
        ",\"system_fingerprint\":{}}}\n\n",
        quoted(names.fingerprint)
    );
    let details = details(chat, plan);
    let running_tail = if chat {
        r#","completion_tokens_details":{"reasoning_tokens":0}}"#
    } else {
        "}"
    };
    let usage_open = format!(
        r#""usage":{{"prompt_tokens":{},"total_tokens":"#,
        plan.prompt_tokens
    );
    let mut shape = Shape {
        close: "}]",
        end: "}\n\n",
        last_end: if extras.usage {
            b"}\n\n".to_vec()
        } else {
            fingerprint.clone().into_bytes()
        },
        running_usage: extras.running_usage.then(|| Usage {
            head: format!(",{usage_open}").into_bytes(),
            between: COMPLETION,
            tail: running_tail.into(),
        }),
        usage: extras.usage.then(|| Usage {
            head: format!("{envelope}],{usage_open}").into_bytes(),
            between: COMPLETION,
            tail: format!("{details}{fingerprint}").into_bytes(),
        }),
        done: "data: [DONE]\n\n",
        last_open: r#","logprobs":null,"finish_reason":"#,
        ..Shape::default()
    };
    if chat {
        chat_shape(&mut shape, &envelope, plan, prompt_ids);
    } else {
        completion_shape(&mut shape, &envelope, plan, prompt_ids);
    }
    shape
}

/// What the usage event says behind its counts.
fn details(chat: bool, plan: &Plan) -> String {
    let cached = plan.cached_tokens;
    if !chat {
        return format!(r#","prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#);
    }
    format!(
        concat!(
            r#","prompt_tokens_details":{{"cached_tokens":{},"created_cache_tokens":0}},"#,
            r#""completion_tokens_details":{{"reasoning_tokens":0}}}}"#
        ),
        cached
    )
}

fn chat_shape(shape: &mut Shape, envelope: &str, plan: &Plan, prompt_ids: &[u32]) {
    let mut opening = envelope.as_bytes().to_vec();
    opening.extend_from_slice(
        br#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#,
    );
    if let Some(usage) = &shape.running_usage {
        opening.extend_from_slice(&usage.head);
        put_integer(plan.prompt_tokens, &mut opening);
        opening.extend_from_slice(usage.between.as_bytes());
        opening.push(b'0');
        opening.extend_from_slice(&usage.tail);
    }
    opening.extend_from_slice(br#","prompt_token_ids":"#);
    put_ids(plan.ids.then_some(prompt_ids), &mut opening);
    opening.extend_from_slice(b",\"prompt_text\":null}\n\n");

    shape.opening = opening;
    shape.head = format!(r#"{envelope}{{"index":0,"delta":"#).into_bytes();
    shape.text_open = r#"{"content":""#;
    shape.text_close = r#""}"#;
    shape.text_none = "{}";
    shape.skip_silent = true;
    shape.middle = br#","logprobs":null,"finish_reason":null,"token_ids":"#.to_vec();
    shape.last_close = r#","stop_reason":null,"token_ids":"#;
}

fn completion_shape(shape: &mut Shape, envelope: &str, plan: &Plan, prompt_ids: &[u32]) {
    shape.head = format!(r#"{envelope}{{"index":0,"text":"#).into_bytes();
    shape.text_open = r#"""#;
    shape.text_close = r#"""#;
    shape.text_none = r#""""#;
    shape.last_close = r#","stop_reason":null,"prompt_token_ids":null,"token_ids":"#;
    shape.middle = [shape.last_open, "null", shape.last_close]
        .concat()
        .into_bytes();
    if plan.ids {
        let mut close = br#","stop_reason":null,"prompt_token_ids":"#.to_vec();
        put_ids(Some(prompt_ids), &mut close);
        close.extend_from_slice(br#","token_ids":"#);
        let middle = [shape.last_open.as_bytes(), b"null", &close].concat();
        shape.first = Some((middle, close));
    }
}

/// A whole answer.
pub fn whole(
    route: Route,
    names: &Names<'_>,
    plan: &Plan,
    prompt_ids: &[u32],
    parameters: Option<&Parameters<'_>>,
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
    whole_text(chat, plan, &mut out);
    let middle = format!(
        r#","logprobs":null,"finish_reason":{},"stop_reason":null,"token_ids":"#,
        plan.finish.word()
    );
    out.extend_from_slice(middle.as_bytes());
    let prompt_ids = plan.ids.then_some(prompt_ids);
    let ids: Option<Vec<u32>> = plan
        .ids
        .then(|| (0..plan.tokens).map(|i| plan.id(i)).collect());
    put_ids(ids.as_deref(), &mut out);
    if !chat {
        out.extend_from_slice(br#","prompt_logprobs":null,"prompt_token_ids":"#);
        put_ids(prompt_ids, &mut out);
    }
    let (created_cache, completion_details) = if chat {
        ("0", r#"{"reasoning_tokens":0}"#)
    } else {
        ("null", "null")
    };
    let rest = format!(
        concat!(
            r#","routed_experts":null}}],"service_tier":null,"system_fingerprint":{},"#,
            r#""usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"#,
            r#""prompt_tokens_details":{{"cached_tokens":{},"created_cache_tokens":{},"multimodal_tokens":null}},"#,
            r#""completion_tokens_details":{}}}"#
        ),
        quoted(names.fingerprint),
        plan.prompt_tokens,
        plan.prompt_tokens + plan.tokens,
        plan.tokens,
        plan.cached_tokens,
        created_cache,
        completion_details,
    );
    out.extend_from_slice(rest.as_bytes());
    if chat {
        out.extend_from_slice(br#","prompt_logprobs":null,"prompt_token_ids":"#);
        put_ids(prompt_ids, &mut out);
        out.extend_from_slice(br#","prompt_text":null"#);
    }
    out.extend_from_slice(br#","kv_transfer_params":"#);
    match parameters {
        Some(p) => put_parameters(p, &mut out),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(br#","ec_transfer_params":null,"metrics":null}"#);
    Answer::new(200, JSON, out)
}

fn whole_text(chat: bool, plan: &Plan, out: &mut Vec<u8>) {
    out.extend_from_slice(if chat {
        br#""message":{"role":"assistant","content":"#
    } else {
        br#""text":"#
    });
    let at = out.len();
    out.push(b'"');
    (0..plan.tokens).for_each(|i| text::piece_json(plan.id(i), out));
    out.push(b'"');
    if chat {
        if out.len() == at + 2 {
            out.truncate(at);
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(
            br#","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}"#,
        );
    }
}

fn put_parameters(p: &Parameters<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(
        br#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":["#,
    );
    put_ids(Some(p.blocks), out);
    let rest = format!(
        concat!(
            r#"],"remote_engine_id":"{}","remote_request_id":{},"remote_host":{},"remote_port":{},"#,
            r#""tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":{},"#,
            r#""remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":{}}}"#
        ),
        String::from_utf8_lossy(p.engine),
        quoted(p.request),
        quoted(p.host),
        p.port,
        p.tokens,
        p.cached_tokens,
    );
    out.extend_from_slice(rest.as_bytes());
}

const COMPLETION: &str = r#","completion_tokens":"#;

/// A list of ids, or `null`.
pub(super) fn put_ids(ids: Option<&[u32]>, out: &mut Vec<u8>) {
    let Some(ids) = ids else {
        out.extend_from_slice(b"null");
        return;
    };
    out.push(b'[');
    for (i, id) in ids.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        put_integer(u64::from(*id), out);
    }
    out.push(b']');
}
