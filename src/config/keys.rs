//! Every key a fleet file may hold: path, kind, unit, range, default, meaning. One row, one key; nothing about keys is known
//! anywhere else. `[]` in a path stands for each item of a list. The keys of the existing router that we do not use follow
//! the table; they are accepted and reported.
//!
//! Pure; std only. Invariants, held by tests: paths are unique, every path's section has a row of its own, a default lies
//! inside its range.

/// One known key.
#[derive(Debug)]
pub struct Key {
    pub path: &'static str,
    pub want: Want,
    /// Empty when the value has none.
    pub unit: &'static str,
    pub preset: Preset,
    pub doc: &'static str,
}

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want {
    /// A table of keys that have rows of their own.
    Section,
    /// A list of such tables.
    Sections,
    /// A nonempty string.
    Text,
    /// A list of nonempty strings, none twice.
    Texts,
    /// One of these words.
    Word(&'static [&'static str]),
    Flag,
    /// A whole number from..=to.
    Count(u64, u64),
    /// A number from..=to.
    Real(f64, f64),
    /// A whole number in 0..=65535, or one of these words.
    Place(&'static [&'static str]),
}

/// What holds when the key is not there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preset {
    /// Nothing: the feature is off or the value comes from elsewhere, as the row's text says.
    Unset,
    /// The key must be there (when its section is); an example of its value, in JSON.
    Must(&'static str),
    Text(&'static str),
    Texts(&'static [&'static str]),
    Flag(bool),
    Count(u64),
    Real(f64),
    /// Follows from other keys, in words.
    Rule(&'static str),
}

/// What the table says about a path.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    Key(&'static Key),
    /// A key of the existing router that we do not use.
    NotUsed,
    /// A table that holds such keys only.
    NotUsedSection,
}

/// Looks a path up; `None` means an unknown key.
pub fn find(path: &str) -> Option<Known> {
    if let Some(key) = KEYS.iter().find(|key| key.path == path) {
        return Some(Known::Key(key));
    }
    if NOT_USED_SECTIONS.contains(&path) {
        return Some(Known::NotUsedSection);
    }
    NOT_USED.contains(&path).then_some(Known::NotUsed)
}

/// Every path, used or not, sections included.
pub fn paths() -> impl Iterator<Item = &'static str> {
    let used = KEYS.iter().map(|key| key.path);
    used.chain(NOT_USED_SECTIONS.iter().copied())
        .chain(NOT_USED.iter().copied())
}

/// The section that holds `path` (empty for the top level), and the name within it.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// The known path that a mistyped one most likely means: a neighbour at most two edits away or made of the same letters,
/// else the same name in another section.
pub fn near_miss(section: &str, name: &str) -> Option<&'static str> {
    if name.len() > NEAR_NAME_BYTES_MAX {
        return None;
    }
    let neighbour = paths()
        .filter(|path| split(path).0 == section)
        .filter_map(|path| Some((distance(name, split(path).1)?, path)))
        .min_by_key(|(distance, _)| *distance);
    if let Some((_, path)) = neighbour {
        return Some(path);
    }
    let mut same = paths().filter(|path| split(path).1 == name);
    same.next().filter(|_| same.next().is_none())
}

/// Edits from one name to the other when they are few enough to be a slip: 0 for the same letters in another order, case
/// or with other separators; `None` when the names are too different.
fn distance(a: &str, b: &str) -> Option<usize> {
    let letters = |name: &str| {
        let mut letters: Vec<u8> = name
            .bytes()
            .filter(u8::is_ascii_alphanumeric)
            .map(|b| b.to_ascii_lowercase())
            .collect();
        letters.sort_unstable();
        letters
    };
    if letters(a) == letters(b) {
        return Some(0);
    }
    // Two edits turn any word of two letters into any other, so short names get fewer.
    let bound = if b.len() < 4 { 1 } else { 2 };
    if a.len().abs_diff(b.len()) > bound {
        return None;
    }
    Some(edits(a.as_bytes(), b.as_bytes())).filter(|edits| *edits <= bound)
}

/// Levenshtein distance, one row at a time.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

impl Key {
    /// The allowed values in words, without the unit.
    pub fn allowed(&self) -> String {
        match self.want {
            Want::Section => "a table".to_owned(),
            Want::Sections => "a list of tables".to_owned(),
            Want::Text => "a nonempty string".to_owned(),
            Want::Texts => "a list of nonempty strings".to_owned(),
            Want::Word(words) => words.join(", "),
            Want::Flag => "true or false".to_owned(),
            Want::Count(from, to) => format!("a whole number from {from} to {to}"),
            Want::Real(from, to) => format!("a number from {from} to {to}"),
            Want::Place(words) => format!("{}, or a whole number", words.join(", ")),
        }
    }

    /// The default in words, as TOML writes it.
    pub fn default(&self) -> String {
        match self.preset {
            Preset::Unset => "none".to_owned(),
            Preset::Must(_) => "none; must be given".to_owned(),
            Preset::Text(text) => format!("{text:?}"),
            Preset::Texts(texts) => format!("{texts:?}"),
            Preset::Flag(flag) => flag.to_string(),
            Preset::Count(n) => n.to_string(),
            Preset::Real(n) => format!("{n:?}"),
            Preset::Rule(words) => words.to_owned(),
        }
    }

    /// What a reader of a fleet file should know: comment lines to stand above the key.
    pub fn comment(&self) -> String {
        if matches!(self.want, Want::Section | Want::Sections) {
            return format!("# {}", self.doc);
        }
        let unit = if self.unit.is_empty() {
            String::new()
        } else {
            format!(" {}", self.unit)
        };
        let (allowed, default) = (self.allowed(), self.default());
        format!(
            "# {}\n# Allowed: {allowed}{unit}. Default: {default}.",
            self.doc
        )
    }
}

macro_rules! keys {
    ($($path:literal, $want:expr, $unit:literal, $preset:expr, $doc:literal;)*) => {
        /// The table. Sections come before their members; `check` and the sample files keep this order.
        pub const KEYS: &[Key] = &[
            $(Key { path: $path, want: $want, unit: $unit, preset: $preset, doc: $doc },)*
        ];
    };
}

use Preset as P;
use Want::{Count, Flag, Place, Real, Section, Sections, Text, Texts, Word};

// Ranges are wide: they catch slips (milliseconds written as seconds, a minus sign), not taste. A time that must pass before
// something is given up starts at a millisecond; a time that may be off starts at 0. Sizes in bytes start at 1 KiB.
keys! {
    "schema", Word(&["narwhal.fleet"]), "", P::Must(r#""narwhal.fleet""#),
        "Says what kind of file this is.";
    "schema_version", Count(1, 2), "", P::Must("2"),
        "Version of the schema; 1 and 2 read alike.";
    "model", Text, "", P::Must(r#""my-model""#),
        "The model's name, as clients ask for it and as engines serve it.";
    "model_aliases", Texts, "", P::Texts(&[]),
        "More names that clients may use; legs carry `model` instead.";

    "engines", Sections, "", P::Must(r#"[{"iid": "e0", "url": "http://10.0.0.1:8000"}]"#),
        "The engines of the fleet, 1 to 4096.";
    "engines[].iid", Text, "", P::Must(r#""e0""#),
        "The engine's name in placement, metrics and journal; unique, at most 128 bytes.";
    "engines[].url", Text, "", P::Must(r#""http://10.0.0.1:8000""#),
        "Where it listens: http or https, a path prefix is kept; exactly `${NAME}` takes it from the environment.";
    "engines[].role", Word(&["prefill", "decode", "both"]), "", P::Text("decode"),
        "Which leg it serves; `both` serves a request in one leg, without a handoff.";
    "engines[].pin", Flag, "", P::Flag(false),
        "Keeps the engine to its role even when the other role has no live engine.";
    "engines[].bootstrap_host", Text, "", P::Rule("the host of `url`"),
        "Where decode engines reach this prefill engine's bootstrap server (sglang).";
    "engines[].bootstrap_port", Count(1, 65535), "", P::Rule("8998 with sglang"),
        "Port of the bootstrap server (sglang, `--disaggregation-bootstrap-port`).";
    "engines[].attestation_url", Text, "", P::Unset,
        "Where the engine's identity can be asked; kept and shown, not called.";

    "slo", Section, "", P::Must(""),
        "What clients are promised.";
    "slo.ttft_s", Real(0.001, 86400.0), "seconds", P::Must("2.0"),
        "Time to the first token.";
    "slo.tpot_s", Real(0.00001, 3600.0), "seconds", P::Must("0.05"),
        "Time between tokens after the first.";

    "serving", Section, "", P::Unset,
        "Admission, bounds and deadlines.";
    "serving.admission", Word(&["predictive", "open"]), "", P::Text("predictive"),
        "`predictive` refuses what would miss the target and needs profiles; `open` predicts nothing.";
    "serving.admission_margin", Real(-0.99, 10.0), "of slo.ttft_s", P::Real(0.0),
        "The budget for the first token is slo.ttft_s x (1 + this).";
    "serving.placement", Word(&["price", "least", "round_robin"]), "", P::Text("price"),
        "How engines are chosen; `price` needs profiles and is `least` without them.";
    "serving.max_connections", Count(1, 1_000_000), "requests", P::Count(768),
        "Requests in flight at once, over all shards.";
    "serving.queue_capacity", Count(0, 1_000_000), "requests", P::Count(0),
        "Requests that may wait for a seat; 0 refuses at once.";
    "serving.queue_timeout_s", Real(0.0, 86400.0), "seconds", P::Real(0.0),
        "Longest wait for a seat; must be positive with a queue.";
    "serving.max_retained", Count(1, 4_000_000), "requests", P::Rule("max_connections + queue_capacity"),
        "Requests held at all, from head to end of answer.";
    "serving.prefill_concurrency", Count(0, 1_000_000), "requests per engine", P::Rule("off"),
        "Prefill legs at once on one engine; 0 is off.";
    "serving.decode_concurrency", Count(0, 1_000_000), "requests per engine", P::Rule("off, or the profile's decode_max_requests with predictive admission"),
        "Decode legs at once on one engine; 0 is off.";
    "serving.max_attempts", Count(1, 3), "attempts", P::Count(2),
        "Attempts per request, the first included.";
    "serving.retry_base_s", Real(0.0, 3600.0), "seconds", P::Real(0.1),
        "First bound of the jittered wait before a retry; it doubles with each.";
    "serving.retry_cap_s", Real(0.0, 3600.0), "seconds", P::Real(1.0),
        "Last bound of that wait.";
    "serving.retry_budget", Real(0.0, 1e9), "credits", P::Real(10.0),
        "Retry credits at start and at most, shared by all requests.";
    "serving.retry_replenish", Real(0.0, 1.0), "credits per served request", P::Real(0.1),
        "What each served request gives back.";
    "serving.max_request_bytes", Count(1024, 1 << 30), "bytes", P::Count(4_194_304),
        "Largest request body.";
    "serving.max_response_bytes", Count(1024, 1 << 30), "bytes", P::Count(16_777_216),
        "Largest assembled answer, and largest event.";
    "serving.request_timeout_s", Real(0.001, 86400.0), "seconds", P::Real(600.0),
        "Deadline of a request, arrival to end.";
    "serving.prefill_timeout_s", Real(0.001, 86400.0), "seconds", P::Real(120.0),
        "Longest prefill leg.";
    "serving.graceful_timeout_s", Real(0.0, 86400.0), "seconds", P::Real(30.0),
        "How long requests in flight may take to finish at shutdown.";
    "serving.drain_window_s", Real(0.0, 86400.0), "seconds", P::Real(5.0),
        "How long listeners stay open, answering 503, at shutdown.";

    "engine", Section, "", P::Unset,
        "How engines are spoken to.";
    "engine.backend", Word(&["vllm", "sglang", "openai"]), "", P::Text("vllm"),
        "What the engines are.";
    "engine.dialect", Word(&["vllm", "sglang", "openai"]), "", P::Rule("`backend`"),
        "Another name of `backend`; both must agree.";
    "engine.connector", Word(&["nixl", "mooncake", "none"]), "", P::Rule("nixl with vllm, mooncake with sglang, none with openai"),
        "How the KV cache moves; `none` needs role `both` on every engine, or the openai dialect.";
    "engine.engine_api_key_env", Text, "", P::Unset,
        "Name of the environment variable that holds the engines' bearer key.";
    "engine.tokenize", Flag, "", P::Flag(true),
        "Asks an engine for the prompt's length; otherwise it is estimated.";
    "engine.tokenize_timeout_s", Real(0.001, 3600.0), "seconds", P::Real(2.0),
        "Longest wait for that length.";
    "engine.chars_per_token", Real(0.1, 100.0), "characters", P::Real(3.8),
        "For estimates.";
    "engine.first_token_timeout_s", Real(0.001, 86400.0), "seconds", P::Real(2.5),
        "Longest wait for the first token after decode began; a new pair of engines gets at least 10 s unless this is set.";
    "engine.decode_read_timeout_s", Real(0.0, 86400.0), "seconds", P::Real(10.0),
        "Longest silence after the first token; 0 is off.";
    "engine.connect_timeout_s", Real(0.001, 3600.0), "seconds", P::Real(10.0),
        "Longest wait for a connection.";
    "engine.pool_timeout_s", Real(0.001, 3600.0), "seconds", P::Real(5.0),
        "Longest wait for a pooled connection when `pool_max` is reached.";
    "engine.pool_max", Count(0, 65535), "connections per engine and shard", P::Count(0),
        "Bound of a pool; 0 is unbounded.";
    "engine.health_timeout_s", Real(0.001, 3600.0), "seconds", P::Real(5.0),
        "Longest wait for a health probe.";
    "engine.kv_lease_s", Real(0.0, 86400.0), "seconds", P::Real(0.0),
        "How long a producer keeps a handoff's KV; a handoff is used up to five sixths of it; 0 is off.";
    "engine.assembly_extra_fields", Texts, "", P::Texts(&[]),
        "Unknown message members that assembled answers keep, by last value, instead of failing.";

    "controller", Section, "", P::Unset,
        "The monitor.";
    "controller.monitor_interval_s", Real(0.01, 3600.0), "seconds", P::Real(1.0),
        "Time between monitoring passes.";
    "controller.monitor_failure_limit", Count(1, 1_000_000), "passes", P::Count(5),
        "Failed passes in a row that degrade the router.";
    "controller.reactive", Section, "", P::Unset,
        "What is learned from live traffic.";
    "controller.reactive.decode_correction_min", Real(0.01, 100.0), "of the profile", P::Real(0.5),
        "Lower bound of live / profiled decode interval.";
    "controller.reactive.decode_correction_max", Real(0.01, 100.0), "of the profile", P::Real(2.0),
        "Upper bound of it.";
    "controller.reactive.decode_correction_alpha", Real(0.001, 1.0), "", P::Real(0.2),
        "Weight of a new sample.";
    "controller.reactive.decode_correction_min_samples", Count(1, 1_000_000), "samples", P::Count(8),
        "Samples before the correction counts.";

    "recovery", Section, "", P::Unset,
        "Ejection, readmission, state.";
    "recovery.eject_after", Count(1, 1_000_000_000), "failures", P::Count(3),
        "Failures of one class in a row that open the breaker.";
    "recovery.readmit_every", Count(0, 1_000_000_000), "passes", P::Count(10),
        "Monitoring passes between probes of an ejected engine; 0 never readmits by itself.";
    "recovery.liveness_every", Count(0, 1_000_000_000), "passes", P::Count(10),
        "Monitoring passes between liveness probes; 0 is off.";
    "recovery.liveness_misses", Count(1, 1_000_000), "probes", P::Count(2),
        "Missed probes in a row that eject.";
    "recovery.failure_quarantine_s", Real(0.0, 86400.0), "seconds", P::Real(0.0),
        "Least time an ejected engine stays out; 0 is off.";
    "recovery.engine_restart_policy", Word(&["individual", "whole_wave"]), "", P::Text("individual"),
        "Whether engines are maintained one by one or all at once.";
    "recovery.state_path", Text, "", P::Unset,
        "File that keeps roles, ejections and learned values.";
    "recovery.resume", Flag, "", P::Flag(false),
        "Restores that file at start, as `--resume` does.";
    "recovery.health", Section, "", P::Unset,
        "Drift of an engine against its own past and its peers.";
    "recovery.health.window_s", Real(0.1, 86400.0), "seconds", P::Real(30.0),
        "Length of a window.";
    "recovery.health.drift_band", Real(1.0, 100.0), "of its own baseline", P::Real(2.0),
        "A slower window counts against the engine.";
    "recovery.health.relative_band", Real(1.0, 100.0), "of its peers", P::Real(1.5),
        "And so does one slower than this.";
    "recovery.health.min_samples", Count(1, 1_000_000), "samples", P::Count(3),
        "Fewer samples make no window.";
    "recovery.health.probation_windows", Count(1, 1_000_000), "windows", P::Count(3),
        "Bad windows in a row before probation.";
    "recovery.health.evict_windows", Count(1, 1_000_000), "windows", P::Count(5),
        "Bad windows in a row before eviction.";
    "recovery.health.recovery_windows", Count(1, 1_000_000), "windows", P::Count(3),
        "Good windows in a row that end probation.";
    "recovery.health.probation_penalty_s", Real(0.0, 3600.0), "seconds", P::Real(1.5),
        "Added to the price of an engine on probation.";

    "profiles", Section, "", P::Unset,
        "Measured cost curves.";
    "profiles.path", Text, "", P::Unset,
        "The profile file; predictive admission needs it.";

    "runtime", Section, "", P::Unset,
        "This process: sockets, cores, limits of the front.";
    "runtime.listen", Texts, "", P::Texts(&["127.0.0.1:8000"]),
        "Addresses for clients, ADDRESS:PORT.";
    "runtime.admin_listen", Text, "", P::Unset,
        "Address for operators; without it the data port answers them, to loopback peers only.";
    "runtime.admin_key_file", Text, "", P::Unset,
        "File with the operators' bearer key.";
    "runtime.shards", Count(1, 1024), "shards", P::Rule("one per core given"),
        "Number of shards.";
    "runtime.cpus", Text, "", P::Rule("every CPU the process may use"),
        "CPUs to use, as in 0-3,8.";
    "runtime.numa", Place(&["off", "auto"]), "", P::Unset,
        "NUMA node to stay on; `auto` spreads shards node by node.";
    "runtime.driver", Word(&["auto", "io_uring", "epoll"]), "", P::Text("auto"),
        "How sockets are driven.";
    "runtime.tls", Section, "", P::Unset,
        "With it, clients speak HTTPS.";
    "runtime.tls.cert", Text, "", P::Must(r#""cert.pem""#),
        "Certificate chain, PEM.";
    "runtime.tls.key", Text, "", P::Must(r#""key.pem""#),
        "Private key, PEM.";
    "runtime.api_keys_file", Text, "", P::Unset,
        "File of hashed client keys; with it `/v1/*` needs a bearer key.";
    "runtime.forward_headers", Texts, "", P::Texts(&["traceparent", "tracestate"]),
        "Client headers that reach engines.";
    "runtime.cors_origins", Texts, "", P::Texts(&[]),
        "Origins that browsers may call from; `*` is any.";
    "runtime.header_timeout_s", Real(0.001, 3600.0), "seconds", P::Real(10.0),
        "Longest time for a request head.";
    "runtime.body_idle_timeout_s", Real(0.001, 3600.0), "seconds", P::Real(30.0),
        "Longest silence within a request body.";
    "runtime.keepalive_idle_s", Real(0.001, 86400.0), "seconds", P::Real(75.0),
        "Longest silence between requests of a connection.";
    "runtime.max_header_bytes", Count(1024, 1 << 20), "bytes", P::Count(65536),
        "Largest request head.";
    "runtime.max_headers", Count(1, 1000), "fields", P::Count(100),
        "Most fields in it.";
    "runtime.client_write_stall_s", Real(0.001, 86400.0), "seconds", P::Real(30.0),
        "Longest time a client may take no byte.";
    "runtime.client_keepalive_s", Real(0.0, 86400.0), "seconds", P::Real(0.0),
        "Silence after which a stream gets `: keep-alive`; 0 is off.";
    "runtime.lease", Text, "", P::Unset,
        "Who serves of several routers: file:PATH or etcd://HOST:PORT/PREFIX.";
}

/// Tables of the existing router that hold nothing we use.
const NOT_USED_SECTIONS: &[&str] = &[
    "controller.thresholds",
    "engine_contract",
    "engines[].shared_device",
    "hardware",
];

/// Keys of the existing router that we do not use.
const NOT_USED: &[&str] = &[
    "controller.advisory",
    "controller.flip_history",
    "controller.min_decode",
    "controller.min_prefill",
    "controller.reactive.confirmations",
    "controller.reactive.demand_floor",
    "controller.reactive.demand_rise_tolerance",
    "controller.reactive.evidence_max_span_s",
    "controller.reactive.evidence_min_arrivals",
    "controller.reactive.evidence_span_s",
    "controller.reactive.min_arrivals",
    "controller.reactive.movement_margin",
    "controller.reactive.step_s",
    "controller.reactive.utilization",
    "controller.reactive.window_s",
    "controller.thresholds.cooldown_s",
    "controller.thresholds.dwell_s",
    "controller.thresholds.expand",
    "controller.thresholds.flip_resident_guard",
    "controller.thresholds.panic_ratio",
    "controller.thresholds.shrink",
    "controller.thresholds.sustained_intervals",
    "engine.control_connections",
    "engine.first_token_calibration_path",
    "engine_contract.attention_backend",
    "engine_contract.connector",
    "engine_contract.connector_version",
    "engine_contract.cross_layers_blocks",
    "engine_contract.enforce_handshake_compat",
    "engine_contract.engine_version",
    "engine_contract.head_size",
    "engine_contract.hidden_layers",
    "engine_contract.hybrid_kv_cache_manager",
    "engine_contract.image_digest",
    "engine_contract.kv_cache_dtype",
    "engine_contract.kv_heads",
    "engine_contract.kv_role",
    "engine_contract.model_architecture",
    "engine_contract.model_dtype",
    "engine_contract.nixl_connector_version",
    "engine_contract.nixl_version",
    "engine_contract.speculative_config",
    "engine_contract.transfer_mode",
    "engine_contract.transfer_version",
    "engine_contract.vllm_version",
    "engines[].shared_device.device_allowance",
    "engines[].shared_device.gpu_memory_utilization",
    "engines[].shared_device.gpu_uuid",
    "engines[].shared_device.group",
    "hardware.accelerator",
    "hardware.accelerators_per_engine",
    "hardware.tensor_parallel",
    "profiles.max_decode_cv_mape",
    "profiles.max_decode_fit_mape",
];

/// A longer name is no slip of a known one.
const NEAR_NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    // proves R-CFG-1
    #[test]
    fn every_key_of_the_existing_router_is_known() {
        let list = include_str!("../../tests/vectors/fleet_keys.txt");
        let keys: Vec<&str> = list.lines().filter(|l| !l.starts_with('#')).collect();
        assert!(keys.len() > 100);
        for key in &keys {
            assert!(find(key).is_some(), "{key}");
        }
        for key in NOT_USED {
            assert!(keys.contains(key), "{key} is nobody's");
        }
    }

    #[test]
    fn the_table_is_sound() {
        let mut seen = BTreeSet::new();
        for path in paths() {
            assert!(seen.insert(path), "{path} twice");
            let section = split(path).0.trim_end_matches("[]");
            assert!(
                section.is_empty() || seen.contains(section) || find(section).is_some(),
                "{path}"
            );
        }
        for key in KEYS {
            assert!(key.doc.ends_with('.'), "{}", key.path);
            match (key.want, key.preset) {
                (Want::Count(a, b), Preset::Count(n)) => {
                    assert!((a..=b).contains(&n), "{}", key.path)
                }
                (Want::Real(a, b), Preset::Real(n)) => {
                    assert!((a..=b).contains(&n), "{}", key.path)
                }
                (Want::Word(words), Preset::Text(word)) => {
                    assert!(words.contains(&word), "{}", key.path)
                }
                (Want::Flag, Preset::Flag(_)) | (Want::Texts, Preset::Texts(_)) => {}
                (_, Preset::Must(_) | Preset::Unset | Preset::Rule(_)) => {}
                other => panic!("{}: {other:?}", key.path),
            }
            // A name tells its unit.
            let seconds = matches!(key.want, Want::Real(..)) && key.path.ends_with("_s");
            assert_eq!(key.unit == "seconds", seconds, "{}", key.path);
            assert_eq!(
                key.unit == "bytes",
                key.path.ends_with("_bytes"),
                "{}",
                key.path
            );
        }
    }

    // proves R-CFG-1
    #[test]
    fn near_misses_are_found() {
        let rows: &[(&str, &str, Option<&str>)] = &[
            ("serving", "max_conections", Some("serving.max_connections")),
            (
                "serving",
                "prefill_timeout",
                Some("serving.prefill_timeout_s"),
            ),
            (
                "serving",
                "prefill_timeout_ms",
                Some("serving.prefill_timeout_s"),
            ),
            ("serving", "Retry-Base-S", Some("serving.retry_base_s")),
            ("serving", "retries", None),
            ("", "max_connections", Some("serving.max_connections")),
            ("", "modle", Some("model")),
            ("", "engine", Some("engine")),
            ("engines[]", "uri", Some("engines[].url")),
            ("engines[]", "idd", Some("engines[].iid")),
            ("engines[]", "abc", None),
            (
                "engine_contract",
                "kv_rolle",
                Some("engine_contract.kv_role"),
            ),
            (
                "serving",
                "min_samples",
                Some("recovery.health.min_samples"),
            ),
            // `path` of another section would be a guess worth making; a name in no section is none.
            ("serving", "path", Some("profiles.path")),
            ("serving", "nothing_like_it", None),
        ];
        for (section, name, want) in rows {
            assert_eq!(near_miss(section, name), *want, "{section} {name}");
        }
        assert_eq!(near_miss("", &"x".repeat(1000)), None);
    }

    /// The same by the definition, without memory.
    fn naive_edits(a: &[u8], b: &[u8]) -> usize {
        match (a, b) {
            ([], rest) | (rest, []) => rest.len(),
            ([x, a_rest @ ..], [y, b_rest @ ..]) => (naive_edits(a_rest, b_rest)
                + usize::from(x != y))
            .min(naive_edits(a_rest, b) + 1)
            .min(naive_edits(a, b_rest) + 1),
        }
    }

    proptest::proptest! {
        #[test]
        fn edits_are_counted_as_defined(a in "[abc]{0,6}", b in "[abc]{0,6}") {
            proptest::prop_assert_eq!(edits(a.as_bytes(), b.as_bytes()), naive_edits(a.as_bytes(), b.as_bytes()));
        }
    }
}
