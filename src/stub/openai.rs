//! The bytes of a plain server of the OpenAI API: one leg, no ids, errors in OpenAI's shape, and llama.cpp's `/health` and
//! `/metrics`. Pure; knows nothing of time or load.
//!
//! Members are those of the API's published objects. A chunk has `"usage":null` where a usage event will follow. The model's name
//! is checked, as OpenAI does; unknown members of a body are not (see `ask`).
//!
//! Invariant: every error is `{"error":{"message","type","param","code"}}`, in a stream as well, where nothing follows it.

use std::fmt::Write as _;

use crate::stub::answer::{Answer, JSON, METRICS};
use crate::stub::ask::Route;
use crate::stub::refusal::{Refusal, quoted};
use crate::stub::stream::{Plan, Shape, Usage};
use crate::stub::text;
use crate::stub::vllm::pages::Gauges;
use crate::stub::vllm::{Extras, Names};

/// The fixed parts of a stream.
pub fn shape(route: Route, names: &Names<'_>, plan: &Plan, extras: Extras) -> Shape {
    let chat = route == Route::Chat;
    let (object, first) = match chat {
        true => ("chat.completion.chunk", r#"{"index":0,"delta":"#),
        false => ("text_completion", r#"{"index":0,"text":"#),
    };
    let envelope = format!(
        r#"data: {{"id":{},"object":"{object}","created":{},"model":{},"system_fingerprint":{},"choices":["#,
        quoted(names.id),
        names.created,
        quoted(names.model),
        quoted(names.fingerprint),
    );
    let end = match extras.usage {
        true => ",\"usage\":null}\n\n",
        false => "}\n\n",
    };
    let whole = |what: &str, finish: &str| {
        let rest = format!(r#","logprobs":null,"finish_reason":{finish}}}]"#);
        format!("{envelope}{first}{what}{rest}{end}").into_bytes()
    };
    let (opening, finish) = match chat {
        true => {
            let role = r#"{"role":"assistant","content":"","refusal":null}"#;
            (whole(role, "null"), whole("{}", plan.finish.word()))
        }
        false => (Vec::new(), whole("\"\"", plan.finish.word())),
    };
    let (text_open, text_close) = match chat {
        true => (r#"{"content":""#, r#""}"#),
        false => ("\"", "\""),
    };
    Shape {
        opening,
        head: format!("{envelope}{first}").into_bytes(),
        text_open,
        text_close,
        text_none: if chat { "{}" } else { "\"\"" },
        skip_silent: true,
        middle: br#","logprobs":null,"finish_reason":null"#.to_vec(),
        no_ids: true,
        finish,
        close: "}]",
        end,
        usage: extras.usage.then(|| Usage {
            head: format!(
                r#"{envelope}],"usage":{{"prompt_tokens":{},"total_tokens":"#,
                plan.prompt_tokens
            )
            .into_bytes(),
            between: r#","completion_tokens":"#,
            tail: b"}}\n\n".to_vec(),
        }),
        done: "data: [DONE]\n\n",
        fault: Some(put_fault),
        fault_ends: true,
        ..Shape::default()
    }
}

/// A whole answer.
pub fn whole(route: Route, names: &Names<'_>, plan: &Plan) -> Answer {
    let chat = route == Route::Chat;
    let (object, open, close) = match chat {
        true => (
            "chat.completion",
            r#""message":{"role":"assistant","content":"#,
            r#","refusal":null}"#,
        ),
        false => ("text_completion", r#""text":"#, ""),
    };
    let mut out = format!(
        r#"{{"id":{},"object":"{object}","created":{},"model":{},"choices":[{{"index":0,{open}""#,
        quoted(names.id),
        names.created,
        quoted(names.model),
    )
    .into_bytes();
    (0..plan.tokens).for_each(|i| text::piece_json(plan.id(i), &mut out));
    let rest = format!(
        concat!(
            r#""{},"logprobs":null,"finish_reason":{}}}],"#,
            r#""usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}}},"system_fingerprint":{}}}"#
        ),
        close,
        plan.finish.word(),
        plan.prompt_tokens,
        plan.tokens,
        plan.prompt_tokens + plan.tokens,
        quoted(names.fingerprint),
    );
    out.extend_from_slice(rest.as_bytes());
    Answer::new(200, JSON, out)
}

/// An error as a whole answer.
pub fn refused(refusal: &Refusal) -> Answer {
    Answer::new(refusal.status, JSON, error(refusal).into_bytes())
}

fn put_fault(refusal: &Refusal, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(error(refusal).as_bytes());
    out.extend_from_slice(b"\n\n");
}

fn error(refusal: &Refusal) -> String {
    let kind = match refusal.status {
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    // vLLM's words for a place in the body, without the body.
    let param = refusal.param.as_deref();
    let param = param.map(|p| p.strip_prefix("body.").unwrap_or(p));
    let (param, code) = match (refusal.status, param) {
        (404, Some("model")) => (Some("model"), "\"model_not_found\""),
        (_, Some("input_tokens")) => (Some("messages"), "\"context_length_exceeded\""),
        (_, Some("body")) => (None, "null"),
        (_, param) => (param, "null"),
    };
    format!(
        r#"{{"error":{{"message":{},"type":"{kind}","param":{},"code":{code}}}}}"#,
        quoted(&refusal.message),
        param.map_or("null".into(), quoted),
    )
}

/// A path that is not there, `/tokenize` among them.
pub fn no_path() -> Answer {
    let body = r#"{"error":{"message":"Invalid URL","type":"invalid_request_error","param":null,"code":"unknown_url"}}"#;
    Answer::new(404, JSON, body.into())
}

/// A method that a path does not have.
pub fn no_method(allow: &'static str) -> Answer {
    let body = r#"{"error":{"message":"Method not allowed","type":"invalid_request_error","param":null,"code":"method_not_supported"}}"#;
    Answer {
        allow: Some(allow),
        ..Answer::new(405, JSON, body.into())
    }
}

/// `/health`.
pub fn health(dead: bool) -> Answer {
    let (status, body) = match dead {
        true => (
            503,
            r#"{"error":{"message":"The model has stopped","type":"server_error","param":null,"code":null}}"#,
        ),
        false => (200, r#"{"status":"ok"}"#),
    };
    Answer::new(status, JSON, body.into())
}

/// `/v1/models`.
pub fn models(model: &str, created: u64) -> Answer {
    let body = format!(
        r#"{{"object":"list","data":[{{"id":{},"object":"model","created":{created},"owned_by":"narwhal"}}]}}"#,
        quoted(model)
    );
    Answer::new(200, JSON, body.into_bytes())
}

/// `/metrics`, as llama.cpp has them with `--metrics`.
pub fn metrics(g: &Gauges) -> Answer {
    // name, kind, help, value
    let rows = [
        (
            "llamacpp:prompt_tokens_total",
            "counter",
            "Number of prompt tokens processed.",
            g.prompt_tokens as f64,
        ),
        (
            "llamacpp:tokens_predicted_total",
            "counter",
            "Number of generation tokens processed.",
            g.generation_tokens as f64,
        ),
        (
            "llamacpp:requests_processing",
            "gauge",
            "Number of requests processing.",
            g.running as f64,
        ),
        (
            "llamacpp:requests_deferred",
            "gauge",
            "Number of requests deferred.",
            g.waiting as f64,
        ),
        (
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            g.start_unix_s,
        ),
    ];
    let mut out = String::new();
    for (name, kind, help, value) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value:?}"
        );
    }
    Answer::new(200, METRICS, out.into_bytes())
}
