//! What an engine says of itself before it is measured: model, version, context length, room in its KV cache, whether it is busy, and
//! which token ids a prompt may be made of.

use serde_json::{Value, json};

use crate::ask::client::{Client, Trouble, told};
use crate::config::topology::EngineView;
use crate::config::{Dialect, Fleet};
use crate::control::generation::{self, MODELS};
use crate::wire::openai::engine_message;

/// One engine, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub version: Option<String>,
    pub len_max: Option<u64>,
    pub kv_tokens: Option<u64>,
    /// Requests that run or wait there now; `None` where it does not tell.
    pub busy: Option<u64>,
    pub digest: String,
    /// Ids of ordinary text; empty where it has no tokenizer route.
    pub vocabulary: Vec<u64>,
}

/// Fewer different ids make prompts that begin alike.
const VOCABULARY_MIN: usize = 16;

const TEXT: &str = "The quick brown fox jumps over the lazy dog while seven wizards quietly count 1234567890 copper coins; \
    nobody in the old harbour town knows why ships return at night, or what songs their crews have learned abroad. \
    Mix flour, butter and sugar (about two cups), then wait: good bread takes patience, warm water and a little salt!";

/// Asks. What an engine does not tell is `None`; that it does not serve the fleet's model is an error.
pub async fn of(client: &Client, engine: &EngineView, fleet: &Fleet) -> Result<Facts, Trouble> {
    let models = page(client, engine, MODELS).await?;
    let models = models.ok_or(Trouble::Answer(MODELS))?;
    let model = generation::find_model(&models, &fleet.model).ok_or_else(|| Trouble::Status {
        path: MODELS,
        status: 200,
        message: format!("it does not serve the fleet's model `{}`", fleet.model),
    })?;
    let len_max = generation::len_max(model);
    let mut facts = Facts {
        len_max,
        ..Facts::default()
    };
    let dialect = fleet.engine.dialect;
    for path in generation::version_pages(dialect) {
        if let Some(told) = page(client, engine, path).await? {
            facts.version = generation::version(&told);
            // SGLang's page tells this too.
            facts.kv_tokens = told["max_total_num_tokens"].as_u64();
            break;
        }
    }
    let (status, metrics) = client.page(engine, "/metrics").await?;
    if status == 200 {
        let metrics = String::from_utf8_lossy(&metrics);
        facts.kv_tokens = facts.kv_tokens.or_else(|| kv_tokens(&metrics));
        facts.busy = busy(&metrics);
    }
    if dialect != Dialect::Openai {
        facts.vocabulary = vocabulary(client, engine, &fleet.model).await?;
    }
    facts.digest = generation::digest(&fleet.model, facts.version.as_deref(), len_max);
    Ok(facts)
}

/// JSON of a page; `None` where there is no such page.
async fn page(
    client: &Client,
    engine: &EngineView,
    path: &'static str,
) -> Result<Option<Value>, Trouble> {
    let (status, body) = client.page(engine, path).await?;
    match status {
        200 => serde_json::from_slice(&body)
            .map(Some)
            .map_err(|_| Trouble::Answer(path)),
        status if generation::is_not_told(status) => Ok(None),
        // A digest without what the engine only failed to tell would not match it later.
        status => Err(Trouble::Status {
            path,
            status,
            message: told(engine_message(&body)),
        }),
    }
}

/// Different ids of ordinary text, by the engine's own tokenizer. Empty where it has none.
async fn vocabulary(
    client: &Client,
    engine: &EngineView,
    model: &str,
) -> Result<Vec<u64>, Trouble> {
    let body = json!({"model": model, "prompt": TEXT}).to_string();
    let link = client.dial(engine).await?;
    let answer = match client.post(link, engine, "/tokenize", body.into()).await {
        Ok(coming) => coming.collect().await?,
        Err(Trouble::Status { .. }) => return Ok(Vec::new()),
        Err(other) => return Err(other),
    };
    Ok(ids(&answer))
}

fn ids(answer: &[u8]) -> Vec<u64> {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let tokens = answer["tokens"].as_array();
    // The first may stand for the beginning of all texts.
    let tokens = tokens.into_iter().flatten().skip(1);
    let mut ids: Vec<u64> = tokens.filter_map(Value::as_u64).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() < VOCABULARY_MIN {
        ids.clear();
    }
    ids
}

/// vLLM: `cache_config_info`; SGLang: a gauge of its own.
fn kv_tokens(metrics: &str) -> Option<u64> {
    if let Some(info) = line(metrics, "vllm:cache_config_info") {
        let product = || {
            let blocks = label(info, "num_gpu_blocks")?;
            blocks.checked_mul(label(info, "block_size")?)
        };
        return product().or_else(|| label(info, "kv_cache_size_tokens"));
    }
    value(metrics, "sglang:max_total_num_tokens")
}

/// Requests that run or wait.
pub fn busy(metrics: &str) -> Option<u64> {
    let names = [
        ["vllm:num_requests_running", "vllm:num_requests_waiting"],
        ["sglang:num_running_reqs", "sglang:num_queue_reqs"],
        ["llamacpp:requests_processing", "llamacpp:requests_deferred"],
    ];
    let [running, waiting] = *names.iter().find(|n| line(metrics, n[0]).is_some())?;
    Some(value(metrics, running)? + value(metrics, waiting).unwrap_or(0))
}

/// The first sample of a family.
fn line<'m>(metrics: &'m str, name: &str) -> Option<&'m str> {
    metrics.lines().find(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
    })
}

/// Of all samples of a family, their sum: an engine with several ranks shows one each.
fn value(metrics: &str, name: &str) -> Option<u64> {
    line(metrics, name)?;
    let samples = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        if !rest.starts_with(['{', ' ']) {
            return None;
        }
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    });
    let sum: f64 = samples.sum();
    (0.0..1e15).contains(&sum).then_some(sum as u64)
}

/// A label's value that is a number.
fn label(line: &str, name: &str) -> Option<u64> {
    let mut rest = line;
    loop {
        let at = rest.find(name)?;
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        if before.ends_with(['{', ','])
            && let Some(value) = after.strip_prefix("=\"")
        {
            return value.split('"').next()?.parse().ok();
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_and_load_are_read_from_metrics() {
        // A real vLLM's line (0.32.0), shortened in the middle.
        let vllm = "# TYPE vllm:num_requests_running gauge\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 2.0\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 1.0\n\
            vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"x\"} 7.0\n\
            vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"128\",effective_attention_block_size=\"64\",\
            kv_cache_size_tokens=\"2097152\",num_gpu_blocks=\"16384\",num_gpu_blocks_override=\"None\"} 1.0\n";
        let sglang =
            "sglang:num_running_reqs{a=\"b\"} 0.0\nsglang:max_total_num_tokens{a=\"b\"} 4096.0\n";
        let two = "vllm:num_requests_running{engine=\"0\"} 1.0\nvllm:num_requests_running{engine=\"1\"} 2.0\n";
        let rows = [
            (vllm, Some(2_097_152), Some(3)),
            (sglang, Some(4_096), Some(0)),
            (two, None, Some(3)),
            (
                "vllm:cache_config_info{block_size=\"None\",kv_cache_size_tokens=\"70\"} 1.0\n",
                Some(70),
                None,
            ),
            ("", None, None),
            ("vllm:num_requests_running", None, None),
            ("vllm:num_requests_running x", None, Some(0)),
            ("sglang:max_total_num_tokens -1e300", None, None),
        ];
        for (metrics, kv, load) in rows {
            assert_eq!((kv_tokens(metrics), busy(metrics)), (kv, load), "{metrics}");
        }
    }

    #[test]
    fn ids_are_numbers_of_ordinary_text() {
        let many: Vec<u64> = (0..40).map(|i| i % 20).collect();
        let answer = json!({"tokens": many, "count": 40}).to_string();
        assert_eq!(ids(answer.as_bytes()).len(), 20);
        for none in [
            "",
            "{}",
            "[1]",
            r#"{"tokens":[1,2,3,"x"]}"#,
            r#"{"tokens":7}"#,
        ] {
            assert!(ids(none.as_bytes()).is_empty(), "{none}");
        }
    }
}
