//! The answers of SGLang that are no completion: `/tokenize`, `/v1/models`, `/model_info`, `/server_info`, `/metrics`. Pure.
//!
//! Invariant: as in the parent.

use std::fmt::Write as _;

use super::VERSION;
use crate::base::units::Role;
use crate::stub::answer::{Answer, JSON, METRICS};
use crate::stub::refusal::quoted;
use crate::stub::rooms;
use crate::stub::vllm::pages::Gauges;
use crate::stub::vllm::put_ids;

/// `/tokenize`.
pub fn tokenized(ids: &[u32], len_max: u64) -> Answer {
    let mut out = br#"{"tokens":"#.to_vec();
    put_ids(Some(ids), &mut out);
    let rest = format!(r#","count":{},"max_model_len":{len_max}}}"#, ids.len());
    out.extend_from_slice(rest.as_bytes());
    Answer::new(200, JSON, out)
}

/// `/v1/models`.
pub fn models(model: &str, created: u64, len_max: u64) -> Answer {
    let model = quoted(model);
    let body = format!(
        concat!(
            r#"{{"object":"list","data":[{{"id":{model},"object":"model","created":{created},"#,
            r#""owned_by":"sglang","root":{model},"parent":null,"max_model_len":{len_max}}}]}}"#
        ),
        model = model,
        created = created,
        len_max = len_max,
    );
    Answer::new(200, JSON, body.into_bytes())
}

/// `/model_info`.
pub fn model_info(model: &str) -> Answer {
    let model = quoted(model);
    let body = format!(
        r#"{{"model_path":{model},"tokenizer_path":{model},"is_generation":true,"weight_version":"default"}}"#
    );
    Answer::new(200, JSON, body.into_bytes())
}

/// What an engine calls its role.
pub const fn mode(role: Role) -> &'static str {
    match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Both => "null",
    }
}

/// `/server_info`: of its hundreds of members those that a router or a person reads.
pub fn server_info(model: &str, role: Role, len_max: u64, port: u16, g: &Gauges) -> Answer {
    let body = format!(
        concat!(
            r#"{{"model_path":{model},"served_model_name":{model},"context_length":{len_max},"#,
            r#""page_size":{page},"disaggregation_mode":"{mode}","disaggregation_transfer_backend":"mooncake","#,
            r#""disaggregation_bootstrap_port":{port},"status":"ready","max_total_num_tokens":{kv},"#,
            r#""max_req_input_len":{input},"internal_states":[{{"disaggregation_mode":"{mode}"}}],"version":"{version}"}}"#
        ),
        model = quoted(model),
        len_max = len_max,
        page = g.block_tokens,
        mode = mode(role),
        port = port,
        kv = g.kv_tokens_max,
        // SGLang keeps a few for itself.
        input = len_max.saturating_sub(6),
        version = VERSION,
    );
    Answer::new(200, JSON, body.into_bytes())
}

/// `/metrics`, as with `--enable-metrics`: the few families that a router or a person reads.
pub fn metrics(model: &str, role: Role, g: &Gauges, rooms: &rooms::Counts) -> Answer {
    let engine = match role {
        Role::Both => "unified",
        _ => mode(role),
    };
    let labels = format!(
        r#"engine_type="{engine}",model_name={},pp_rank="0",tp_rank="0""#,
        quoted(model)
    );
    let gauges = gauges(g).into_iter().map(|row| ("gauge", row));
    let counters = counters(g, rooms).into_iter().map(|row| ("counter", row));
    let mut out = String::new();
    for (kind, (name, help, value)) in gauges.chain(counters) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{{labels}}} {value:?}"
        );
    }
    let start = "process_start_time_seconds";
    let help = "Start time of the process since unix epoch in seconds.";
    let _ = writeln!(
        out,
        "# HELP {start} {help}\n# TYPE {start} gauge\n{start} {:?}",
        g.start_unix_s
    );
    Answer::new(200, METRICS, out.into_bytes())
}

/// Name, help, value.
type Row = (&'static str, &'static str, f64);

fn gauges(g: &Gauges) -> [Row; 5] {
    let usage = g.kv_tokens as f64 / g.kv_tokens_max.max(1) as f64;
    [
        (
            "sglang:num_running_reqs",
            "The number of running requests.",
            g.running as f64,
        ),
        (
            "sglang:num_queue_reqs",
            "The number of requests in the waiting queue.",
            g.waiting as f64,
        ),
        (
            "sglang:num_used_tokens",
            "The number of used tokens.",
            g.kv_tokens as f64,
        ),
        (
            "sglang:max_total_num_tokens",
            "Maximum total number of tokens.",
            g.kv_tokens_max as f64,
        ),
        ("sglang:token_usage", "The token usage.", usage),
    ]
}

fn counters(g: &Gauges, rooms: &rooms::Counts) -> [Row; 6] {
    [
        (
            "sglang:prompt_tokens_total",
            "Number of prefill tokens processed.",
            g.prompt_tokens as f64,
        ),
        (
            "sglang:generation_tokens_total",
            "Number of generation tokens processed.",
            g.generation_tokens as f64,
        ),
        (
            "sglang:num_requests_total",
            "Number of requests processed.",
            (g.stopped + g.cut) as f64,
        ),
        (
            "narwhal_stub_rooms_met_total",
            "Rooms in which both legs met.",
            rooms.met as f64,
        ),
        (
            "narwhal_stub_rooms_taken_total",
            "Legs whose place in a room was taken.",
            rooms.taken as f64,
        ),
        (
            "narwhal_stub_rooms_unmatched_total",
            "Legs believed: the other is of another process.",
            rooms.unmatched as f64,
        ),
    ]
}
