//! The rows: every key we use, then the names of those that we do not. Data only; `keys` says what the columns mean.

use super::Key;
use super::Preset as P;
use super::Want::{Count, Flag, Place, Real, Section, Sections, Text, Texts, Word};

macro_rules! keys {
    ($($path:literal, $want:expr, $unit:literal, $preset:expr, $doc:literal;)*) => {
        /// The table. Sections come before their members; `check` and the sample files keep this order.
        pub const KEYS: &[Key] = &[
            $(Key { path: $path, want: $want, unit: $unit, preset: $preset, doc: $doc },)*
        ];
    };
}

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
    "engine.tls_ca_file", Text, "", P::Rule("what the system trusts"),
        "CA certificates, PEM, one of which must have signed the certificate of each https engine; no others count then.";

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
    "profiles.max_decode_fit_mape", Real(0.0, 1000.0), "parts of 1", P::Real(0.15),
        "How far off a decode curve may be on average, or `narwhal profile` refuses it.";
    "profiles.max_decode_cv_mape", Real(0.0, 1000.0), "parts of 1", P::Real(0.2),
        "The same, each point predicted from the others.";

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
    "runtime.driver", Word(&["auto", "io_uring", "epoll", "glommio"]), "", P::Text("auto"),
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
pub(super) const NOT_USED_SECTIONS: &[&str] = &[
    "controller.thresholds",
    "engine_contract",
    "engines[].shared_device",
    "hardware",
];

/// Keys of the existing router that we do not use.
pub(super) const NOT_USED: &[&str] = &[
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
];
