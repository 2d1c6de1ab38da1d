//! The answers of vLLM 0.32.0 that are no completion: `/tokenize`, `/v1/models`, `/version`, `/metrics`. Pure.
//!
//! Invariant: as in the parent.

use std::fmt::Write as _;

use super::{VERSION, put_ids};
use crate::stub::answer::{Answer, JSON, METRICS};
use crate::stub::refusal::quoted;

/// `/tokenize`.
pub fn tokenized(ids: &[u32], strs: Option<&[String]>, len_max: u64) -> Answer {
    let mut out = format!(
        r#"{{"count":{},"max_model_len":{len_max},"tokens":"#,
        ids.len()
    )
    .into_bytes();
    put_ids(Some(ids), &mut out);
    let strs = match strs {
        Some(strs) => serde_json::Value::from(strs).to_string(),
        None => "null".into(),
    };
    out.extend_from_slice(br#","token_strs":"#);
    out.extend_from_slice(strs.as_bytes());
    out.push(b'}');
    Answer::new(200, JSON, out)
}

/// `/v1/models`.
pub fn models(model: &str, permission: &str, created: u64, len_max: u64) -> Answer {
    let body = format!(
        concat!(
            r#"{{"object":"list","data":[{{"id":{model},"object":"model","created":{created},"owned_by":"vllm","#,
            r#""root":{model},"parent":null,"max_model_len":{len_max},"permission":[{{"id":"modelperm-{permission}","#,
            r#""object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"#,
            r#""allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"#,
            r#""organization":"*","group":null,"is_blocking":false}}]}}]}}"#
        ),
        model = quoted(model),
        created = created,
        len_max = len_max,
        permission = permission,
    );
    Answer::new(200, JSON, body.into_bytes())
}

/// `/version`.
pub fn version() -> Answer {
    let body = format!(r#"{{"version":"{VERSION}"}}"#);
    Answer::new(200, JSON, body.into_bytes())
}

/// What `/metrics` shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    pub start_unix_s: f64,
    pub running: u64,
    pub waiting: u64,
    pub preempted: u64,
    pub kv_tokens: u64,
    pub kv_tokens_max: u64,
    pub block_tokens: u32,
    pub blocks: u32,
    pub prompt_tokens: u64,
    pub generation_tokens: u64,
    pub stopped: u64,
    pub cut: u64,
    /// Ours, not vLLM's: handoffs of this world that a real engine would not have noticed to be wrong.
    pub handoffs_used_again: u64,
    pub handoffs_late: u64,
    pub handoffs_astray: u64,
    pub handoffs_orphaned: u64,
}

/// `/metrics`: the few families that a router or a person reads, with vLLM's names, labels and help.
pub fn metrics(model: &str, g: &Gauges) -> Answer {
    let mut out = String::new();
    let labels = format!(r#"engine="0",model_name={}"#, quoted(model));
    let mut family = |name: &str, kind: &str, help: &str, rows: &[(&str, f64)]| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in rows {
            let _ = match labels.is_empty() {
                true => writeln!(out, "{name} {value:?}"),
                false => writeln!(out, "{name}{{{labels}}} {value:?}"),
            };
        }
    };
    let mut one = |name: &str, kind: &str, help: &str, value: f64| {
        family(name, kind, help, &[(&labels, value)]);
    };
    one(
        "vllm:num_requests_running",
        "gauge",
        "Number of requests in model execution batches.",
        g.running as f64,
    );
    one(
        "vllm:num_requests_waiting",
        "gauge",
        "Number of requests waiting to be processed.",
        g.waiting as f64,
    );
    one(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
        g.kv_tokens as f64 / g.kv_tokens_max.max(1) as f64,
    );
    for (name, help, value) in counters(g) {
        one(name, "counter", help, value as f64);
    }
    let ended = |reason: &str| {
        let model = quoted(model);
        format!(r#"engine="0",finished_reason="{reason}",model_name={model}"#)
    };
    family(
        "vllm:request_success_total",
        "counter",
        "Count of successfully processed requests.",
        &[
            (&ended("stop"), g.stopped as f64),
            (&ended("length"), g.cut as f64),
        ],
    );
    let cache = format!(
        r#"block_size="{}",engine="0",kv_cache_size_tokens="{}",num_gpu_blocks="{}""#,
        g.block_tokens, g.kv_tokens_max, g.blocks
    );
    family(
        "vllm:cache_config_info",
        "gauge",
        "Information of the LLMEngine CacheConfig",
        &[(&cache, 1.0)],
    );
    family(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
        &[("", g.start_unix_s)],
    );
    Answer::new(200, METRICS, out.into_bytes())
}

/// The counters without labels of their own; `narwhal_stub_…` are ours, not vLLM's.
fn counters(g: &Gauges) -> [(&'static str, &'static str, u64); 7] {
    [
        (
            "vllm:num_preemptions_total",
            "Cumulative number of preemption from the engine.",
            g.preempted,
        ),
        (
            "vllm:prompt_tokens_total",
            "Number of prefill tokens processed.",
            g.prompt_tokens,
        ),
        (
            "vllm:generation_tokens_total",
            "Number of generation tokens processed.",
            g.generation_tokens,
        ),
        (
            "narwhal_stub_handoffs_used_again_total",
            "Handoffs that were used before.",
            g.handoffs_used_again,
        ),
        (
            "narwhal_stub_handoffs_late_total",
            "Handoffs that were used after their lease.",
            g.handoffs_late,
        ),
        (
            "narwhal_stub_handoffs_astray_total",
            "Handoffs with other blocks than were offered.",
            g.handoffs_astray,
        ),
        (
            "narwhal_stub_handoffs_orphaned_total",
            "Handoffs whose lease ended without a use.",
            g.handoffs_orphaned,
        ),
    ]
}
