//! The room as a whole: files in, fleets or messages out.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::keys::{KEYS, Want};
use super::*;

mod broken;

/// The smallest file that loads.
const SMALLEST: &str = r#"{
  "schema": "narwhal.fleet", "schema_version": 2, "model": "m",
  "engines": [{"iid": "e0", "url": "http://h:1"}],
  "slo": {"ttft_s": 2, "tpot_s": 0.05}
}"#;

const FULL: &str = include_str!("../../tests/vectors/fleets/full.toml");

fn env(name: &str) -> Option<String> {
    match name {
        "ENGINE_API_KEY" => Some(" sk-1\n".into()),
        "DECODE_URL" => Some(" http://10.0.0.2:8000/d/ ".into()),
        "BLANK" => Some(" \t".into()),
        "BAD_URL" => Some("ftp://x".into()),
        "BAD_KEY" => Some("two words".into()),
        _ => None,
    }
}

fn json(text: &str) -> Result<Loaded, Errors> {
    parse("f.json", text, Format::Json, &env)
}

fn toml(text: &str) -> Result<Loaded, Errors> {
    parse("f.toml", text, Format::Toml, &env)
}

/// `text` as a value, for edits.
fn value(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// Sets a dotted path; `engines[].x` sets it on the first engine.
fn set(root: &mut serde_json::Value, path: &str, to: serde_json::Value) {
    let mut at = root;
    for name in path.split('.') {
        at = match name.strip_suffix("[]") {
            Some(list) => &mut at[list][0],
            None => &mut at[name],
        };
    }
    *at = to;
}

fn seconds(n: f64) -> Duration {
    Duration::from_secs_f64(n)
}

// proves R-CFG-1
#[test]
fn files_of_the_existing_router_load_unchanged() {
    let vectors = [
        include_str!("../../tests/vectors/fleets/open.json"),
        include_str!("../../tests/vectors/fleets/sglang.json"),
        include_str!("../../tests/vectors/fleets/predictive.json"),
        include_str!("../../tests/vectors/fleets/fenced.json"),
    ];
    let fleets: Vec<Fleet> = vectors
        .iter()
        .map(|text| {
            let loaded = json(text).unwrap();
            assert_eq!((loaded.not_used_line(), loaded.warnings), (None, vec![]));
            loaded.fleet
        })
        .collect();
    assert_eq!(fleets[0].serving.admission, Admission::Open);
    assert_eq!(fleets[0].serving.max_request_bytes, 65536);
    assert_eq!(fleets[1].engine.connector, Connector::Mooncake);
    assert_eq!(fleets[1].engines[0].bootstrap_port, Some(8101));
    assert_eq!(fleets[1].engines[3].bootstrap_port, None);
    assert_eq!(
        fleets[2].profiles_path,
        Some("/tmp/fleet/profiles.json".into())
    );
    assert_eq!(
        fleets[3].runtime.lease,
        Some(Lease::File("/tmp/fleet/lease.json".into()))
    );
}

// proves R-CFG-1
#[test]
fn every_key_of_the_existing_router_is_accepted_and_the_unused_reported() {
    let mut file = value(SMALLEST);
    let mut unused = Vec::new();
    for path in include_str!("../../tests/vectors/fleet_keys.txt").lines() {
        if path.starts_with('#') {
            continue;
        }
        match keys::find(path) {
            Some(keys::Known::NotUsed) => {
                set(&mut file, path, serde_json::json!({"any": [1, null]}));
                unused.push(path);
            }
            Some(keys::Known::Key(_) | keys::Known::NotUsedSection) => {}
            None => panic!("{path} is not known"),
        }
    }
    assert!(unused.len() > 40);
    let loaded = json(&file.to_string()).unwrap();
    assert_eq!(
        loaded.not_used.iter().collect::<BTreeSet<_>>().len(),
        unused.len()
    );
    for path in unused {
        assert!(loaded.not_used.iter().any(|p| p == path), "{path}");
    }
    assert_eq!(loaded.fleet, json(SMALLEST).unwrap().fleet);
    assert!(loaded.not_used_line().unwrap().starts_with("not used: "));
}

// proves R-CFG-1
#[test]
fn each_unused_key_is_reported_once_and_sections_may_hold_anything_or_nothing() {
    let mut file = value(SMALLEST);
    let engine = |i: usize| {
        let url = format!("http://h:{}", i + 1);
        serde_json::json!({"iid": format!("e{i}"), "url": url, "shared_device": {"group": i, "_x": 1}})
    };
    file["engines"] = (0..3).map(engine).collect();
    file["hardware"] = "x".into();
    file["engine_contract"] = serde_json::json!({});
    let loaded = json(&file.to_string()).unwrap();
    let mut not_used = loaded.not_used;
    not_used.sort();
    assert_eq!(
        not_used,
        [
            "engine_contract",
            "engines[].shared_device.group",
            "hardware"
        ]
    );
}

// proves R-CFG-1
#[test]
fn underscore_keys_are_annotations_anywhere_and_null_is_not_set() {
    let text = SMALLEST
        .replace("\"iid\"", "\"_\": {\"x\": 1}, \"pin\": null, \"iid\"")
        .replace("\"ttft_s\"", "\"_why\": \"a\", \"_why\": \"b\", \"ttft_s\"")
        .replace("\"slo\"", "\"_note\": [1], \"serving\": null, \"slo\"");
    assert_eq!(json(&text).unwrap().fleet, json(SMALLEST).unwrap().fleet);
}

// proves R-CFG-2
#[test]
fn defaults_of_model_and_engines() {
    let fleet = json(SMALLEST).unwrap().fleet;
    assert_eq!(fleet.model, "m");
    assert!(fleet.model_aliases.is_empty());
    assert_eq!(
        fleet.slo,
        Slo {
            ttft: seconds(2.0),
            tpot: seconds(0.05)
        }
    );
    let [engine] = fleet.engines.as_slice() else {
        panic!()
    };
    assert_eq!(engine.role, Role::Decode);
    assert!(!engine.pin);
    assert_eq!(engine.url.to_string(), "http://h:1");
    assert_eq!(
        (&engine.bootstrap_host, engine.bootstrap_port),
        (&None, None)
    );
    assert_eq!(engine.attestation_url, None);
}

// proves R-CFG-3
#[test]
fn defaults_of_serving() {
    let want = Serving {
        admission: Admission::Predictive,
        admission_margin: 0.0,
        placement: Placement::Price,
        max_connections: 768,
        queue_capacity: 0,
        queue_timeout: Duration::ZERO,
        max_retained: 768,
        prefill_concurrency: PhaseLimit::Unset,
        decode_concurrency: PhaseLimit::Unset,
        max_attempts: 2,
        retry_base: seconds(0.1),
        retry_cap: seconds(1.0),
        retry_budget: 10.0,
        retry_replenish: 0.1,
        max_request_bytes: 4_194_304,
        max_response_bytes: 16_777_216,
        request_timeout: seconds(600.0),
        prefill_timeout: seconds(120.0),
        graceful_timeout: seconds(30.0),
        drain_window: seconds(5.0),
    };
    assert_eq!(json(SMALLEST).unwrap().fleet.serving, want);

    let mut file = value(SMALLEST);
    file["serving"] = value(
        r#"{"max_connections": 5, "queue_capacity": 3, "queue_timeout_s": 0.5,
            "prefill_concurrency": 0, "decode_concurrency": 7}"#,
    );
    let serving = json(&file.to_string()).unwrap().fleet.serving;
    assert_eq!(serving.max_retained, 8);
    assert_eq!(serving.prefill_concurrency, PhaseLimit::Off);
    assert_eq!(serving.decode_concurrency.max(), Some(7));
}

// proves R-CFG-4
#[test]
fn defaults_of_engine() {
    let want = EngineSettings {
        dialect: Dialect::Vllm,
        connector: Connector::Nixl,
        api_key: None,
        tokenize: true,
        tokenize_timeout: seconds(2.0),
        chars_per_token: 3.8,
        first_token_timeout: seconds(2.5),
        first_token_timeout_set: false,
        decode_read_timeout: Some(seconds(10.0)),
        connect_timeout: seconds(10.0),
        pool_timeout: seconds(5.0),
        pool_max: None,
        health_timeout: seconds(5.0),
        kv_lease: None,
        assembly_extra_fields: vec![],
        tls_ca_file: None,
    };
    assert_eq!(json(SMALLEST).unwrap().fleet.engine, want);

    let mut file = value(SMALLEST);
    file["engine"] =
        value(r#"{"decode_read_timeout_s": 0, "kv_lease_s": 60, "first_token_timeout_s": 2.5}"#);
    let engine = json(&file.to_string()).unwrap().fleet.engine;
    assert_eq!(engine.decode_read_timeout, None);
    assert_eq!(engine.handoff_bound(), Some(seconds(50.0)));
    assert!(engine.first_token_timeout_set);
}

// proves R-CFG-5
#[test]
fn defaults_of_controller_and_recovery() {
    let fleet = json(SMALLEST).unwrap().fleet;
    let controller = Controller {
        monitor_interval: seconds(1.0),
        monitor_failure_limit: 5,
        decode_correction: DecodeCorrection {
            min: 0.5,
            max: 2.0,
            alpha: 0.2,
            min_samples: 8,
        },
    };
    assert_eq!(fleet.controller, controller);
    let recovery = Recovery {
        eject_after: 3,
        readmit_every: 10,
        liveness_every: 10,
        liveness_misses: 2,
        failure_quarantine: None,
        engine_restart_policy: RestartPolicy::Individual,
        state_path: None,
        resume: false,
        health: HealthRules {
            window: seconds(30.0),
            drift_band: 2.0,
            relative_band: 1.5,
            min_samples: 3,
            probation_windows: 3,
            evict_windows: 5,
            recovery_windows: 3,
            probation_penalty: seconds(1.5),
        },
    };
    assert_eq!(fleet.recovery, recovery);
    assert_eq!(fleet.profiles_path, None);
    let limits = (
        fleet.profile_limits.decode_fit_mape,
        fleet.profile_limits.decode_cv_mape,
    );
    assert_eq!(limits, (0.15, 0.2));
}

// proves R-CFG-6
#[test]
fn defaults_of_runtime() {
    let want = RuntimeSettings {
        listen: vec!["127.0.0.1:8000".parse().unwrap()],
        admin_listen: None,
        admin_key_file: None,
        shards: None,
        cpus: None,
        numa: None,
        driver: Driver::Auto,
        tls: None,
        api_keys_file: None,
        forward_headers: vec!["traceparent".into(), "tracestate".into()],
        cors_origins: vec![],
        header_timeout: seconds(10.0),
        body_idle_timeout: seconds(30.0),
        keepalive_idle: seconds(75.0),
        max_header_bytes: 65536,
        max_headers: 100,
        client_write_stall: seconds(30.0),
        client_keepalive: None,
        lease: None,
    };
    assert_eq!(json(SMALLEST).unwrap().fleet.runtime, want);
}

// proves R-CFG-4
#[test]
fn connectors_follow_the_dialect_and_sglang_fills_bootstrap_in() {
    let mut file = value(SMALLEST);
    set(&mut file, "engines[].role", "prefill".into());
    file["engine"] = value(r#"{"dialect": "sglang"}"#);
    let fleet = json(&file.to_string()).unwrap().fleet;
    assert_eq!(fleet.engine.connector, Connector::Mooncake);
    assert_eq!(fleet.engines[0].bootstrap_host.as_deref(), Some("h"));
    assert_eq!(fleet.engines[0].bootstrap_port, Some(8998));

    file["engine"] = value(r#"{"backend": "openai", "dialect": "openai"}"#);
    set(&mut file, "engines[].role", "decode".into());
    let fleet = json(&file.to_string()).unwrap().fleet;
    assert_eq!(
        (fleet.engine.dialect, fleet.engine.connector),
        (Dialect::Openai, Connector::None)
    );
    assert_eq!(fleet.engines[0].bootstrap_port, None);

    file["engine"] = value(r#"{"connector": "none"}"#);
    set(&mut file, "engines[].role", "both".into());
    assert_eq!(
        json(&file.to_string()).unwrap().fleet.engine.connector,
        Connector::None
    );
}

// proves R-CFG-2, R-CFG-4
#[test]
fn the_environment_fills_in_urls_and_the_key() {
    let mut file = value(SMALLEST);
    set(&mut file, "engines[].url", "${DECODE_URL}".into());
    file["engine"] = value(r#"{"engine_api_key_env": "ENGINE_API_KEY"}"#);
    let loaded = json(&file.to_string()).unwrap();
    assert_eq!(
        loaded.fleet.engines[0].url.to_string(),
        "http://10.0.0.2:8000/d"
    );
    assert_eq!(
        loaded.fleet.engine.api_key.as_ref().map(Secret::expose),
        Some("sk-1")
    );
    assert!(!format!("{loaded:?}").contains("sk-1"));
}

// proves R-CFG-1
#[test]
fn warnings_name_what_is_most_likely_not_meant() {
    let mut file = value(SMALLEST);
    file["engines"] = value(
        r#"[{"iid": "a", "url": "http://h/v1", "pin": true, "bootstrap_port": 1},
            {"iid": "b", "url": "http://h:80/v1/", "pin": true}]"#,
    );
    assert_eq!(
        json(&file.to_string()).unwrap().warnings,
        [
            "engines: none can prefill; every request will get a 503",
            "engines[0].url: ends in /v1, and legs add /v1/… to it",
            "engines[0].bootstrap_port: the vllm dialect has no use for it",
            "engines[1].url: the same as that of engine \"a\"",
            "engines[1].url: ends in /v1, and legs add /v1/… to it",
        ]
    );
    let mut file = value(SMALLEST);
    file["engine"] = value(r#"{"tls_ca_file": "ca.pem"}"#);
    let unused = ["engine.tls_ca_file: no engine is https"];
    assert_eq!(json(&file.to_string()).unwrap().warnings, unused);
    set(&mut file, "engines[].url", "https://h".into());
    assert!(json(&file.to_string()).unwrap().warnings.is_empty());
}

/// A value for each key that differs from its default and from what the smallest file sets.
fn another(path: &str, want: Want) -> serde_json::Value {
    match path {
        "engines[].url" => return "https://other/p".into(),
        "engines[].bootstrap_host" => return "boot.example".into(),
        "engines[].role" => return "both".into(),
        "engine.engine_api_key_env" => return "ENGINE_API_KEY".into(),
        "engine.backend" | "engine.dialect" => return "sglang".into(),
        "runtime.listen" => return serde_json::json!(["[::1]:1", "0.0.0.0:0"]),
        "runtime.admin_listen" => return "127.0.0.1:9".into(),
        "runtime.cpus" => return "0-3,8".into(),
        "runtime.lease" => return "etcd://e/p".into(),
        "runtime.forward_headers" => return serde_json::json!(["X-Trace"]),
        "runtime.cors_origins" => return serde_json::json!(["*"]),
        _ => {}
    }
    match want {
        Want::Text => "other".into(),
        Want::Texts => serde_json::json!(["other"]),
        Want::Flag => (!matches!(path, "engine.tokenize")).into(),
        Want::Word(words) => (*words.last().unwrap()).into(),
        Want::Count(from, to) => (from + (to - from) / 2 + 1).min(to).into(),
        Want::Real(from, to) => (from + (to - from) / 2.0).into(),
        Want::Place(_) => 1.into(),
        Want::Section | Want::Sections => unreachable!("sections are left out"),
    }
}

// proves R-CFG-2, R-CFG-3, R-CFG-4, R-CFG-5, R-CFG-6
#[test]
fn every_key_reaches_the_fleet() {
    let mut base = value(SMALLEST);
    base["runtime"] = value(r#"{"tls": {"cert": "c", "key": "k"}}"#);
    base["serving"] = value(r#"{"queue_timeout_s": 1}"#);
    base["controller"] = value(r#"{"reactive": {"decode_correction_max": 99}}"#);
    let fleet = json(&base.to_string()).unwrap().fleet;
    for key in KEYS {
        match key.path {
            "schema" | "schema_version" => continue,
            // Differs from the default only in a fleet that it does not fit alone.
            "engine.connector" => continue,
            _ if matches!(key.want, Want::Section | Want::Sections) => continue,
            _ => {}
        }
        let mut file = base.clone();
        set(&mut file, key.path, another(key.path, key.want));
        let loaded = json(&file.to_string()).unwrap_or_else(|e| panic!("{}: {e}", key.path));
        assert_ne!(loaded.fleet, fleet, "{} changes nothing", key.path);
        assert!(loaded.not_used.is_empty());
    }
}

#[test]
fn words_of_the_table_are_the_words_of_the_types() {
    let rows = [
        ("engines[].role", Role::WORDS),
        ("serving.admission", Admission::WORDS),
        ("serving.placement", Placement::WORDS),
        ("engine.backend", Dialect::WORDS),
        ("engine.dialect", Dialect::WORDS),
        ("engine.connector", Connector::WORDS),
        ("recovery.engine_restart_policy", RestartPolicy::WORDS),
        ("runtime.driver", Driver::WORDS),
    ];
    for (path, words) in rows {
        let Some(keys::Known::Key(key)) = keys::find(path) else {
            panic!("{path}")
        };
        assert_eq!(key.want, Want::Word(words), "{path}");
    }
    let worded = KEYS.iter().filter(|key| matches!(key.want, Want::Word(_)));
    assert_eq!(worded.count(), rows.len() + 1, "schema is the other one");
}

// proves R-CFG-1
#[test]
fn json_and_toml_say_the_same() {
    let from_toml = toml(FULL).unwrap();
    let tree: serde_json::Value = toml_to_json(FULL);
    let from_json = json(&serde_json::to_string_pretty(&tree).unwrap()).unwrap();
    assert_eq!(from_toml.fleet, from_json.fleet);
    assert_eq!(from_toml.not_used, from_json.not_used);
    assert_eq!(from_toml.warnings, Vec::<String>::new());
}

fn toml_to_json(text: &str) -> serde_json::Value {
    ::toml::from_str(text).unwrap()
}

// proves R-CFG-1
#[test]
fn the_full_file_tells_everything_about_every_key() {
    let tree = toml_to_json(FULL);
    for key in KEYS {
        let (_, name) = keys::split(key.path);
        let line = match key.want {
            Want::Section => format!("{}\n[{}]\n", key.comment(), key.path),
            Want::Sections => format!("{}\n[[{}]]\n", key.comment(), key.path),
            _ => format!("{}\n{name} = ", key.comment()),
        };
        assert!(FULL.contains(&line), "{} lacks\n{line}", key.path);
        let mut at = &tree;
        for name in key.path.split('.') {
            at = match name.strip_suffix("[]") {
                Some(list) => &at[list][0],
                None => &at[name],
            };
        }
        assert!(!at.is_null(), "{}", key.path);
    }
    // The defaults it shows are the defaults.
    let full = toml(FULL).unwrap().fleet;
    let small = json(SMALLEST).unwrap().fleet;
    assert_eq!(full.slo, small.slo);
    assert_eq!(full.controller, small.controller);
    assert_eq!(full.recovery.health, small.recovery.health);
    assert_eq!(full.serving.request_timeout, small.serving.request_timeout);
}

#[test]
fn load_reads_the_file_and_tells_the_format_by_its_name() {
    let vectors = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/fleets");
    assert!(load(&vectors.join("open.json"), &env).is_ok());
    assert!(load(&vectors.join("full.toml"), &env).is_ok());
    let why = load(&vectors.join("SOURCE"), &env).unwrap_err().to_string();
    assert!(
        why.ends_with("SOURCE: the name must end in .json or .toml"),
        "{why}"
    );
    let why = load(&vectors.join("none.json"), &env)
        .unwrap_err()
        .to_string();
    assert!(why.contains("none.json: cannot be read: "), "{why}");
    assert_eq!(Format::of("a.b.JSON".as_ref()), Some(Format::Json));
    assert_eq!(Format::of(".toml".as_ref()), None);
}

#[test]
fn bad_bytes_and_marks() {
    let why = parse_bytes("f", b"{\n \"a\xff", Format::Json, &env).unwrap_err();
    assert_eq!(why.to_string(), "f:2:4: not UTF-8");
    assert!(json(&format!("\u{feff}{SMALLEST}")).is_ok());
    assert!(toml(&format!("\u{feff}{FULL}")).is_ok());
    let long = " ".repeat(FILE_BYTES_MAX + 1);
    assert_eq!(
        json(&long).unwrap_err().to_string(),
        "f.json: longer than 4194304 bytes"
    );
}

#[test]
fn depth_costs_no_stack() {
    for text in [
        "[".repeat(1_000_000),
        format!("{}{}", "{\"a\":".repeat(200), "}".repeat(200)),
    ] {
        let why = json(&text).unwrap_err().to_string();
        assert!(why.ends_with("nested deeper than 128 levels"), "{why}");
    }
    // 70 dotted names on each of 70 levels: 4900 tables, each within the `toml` crate's own limits.
    let dotted = ["a"; 70].join(".");
    let text = format!("{}1{}", format!("{dotted} = {{").repeat(69), "}".repeat(69));
    let text = text.replacen("{1", "{b = 1", 1);
    let why = toml(&text).unwrap_err().to_string();
    assert!(why.ends_with("nested deeper than 128 levels"), "{why}");
}

#[test]
fn any_text_is_a_fleet_or_faults() {
    let seeds: [&[u8]; 8] = [
        b"",
        b"\xff",
        b"[]",
        b"engines = [1, {}]",
        SMALLEST.as_bytes(),
        FULL.as_bytes(),
        b"{\"engines\": {\"a\": 1}, \"slo\": []}",
        include_bytes!("../../tests/vectors/fleets/sglang.json"),
    ];
    for seed in seeds {
        fuzzing::fuzz(seed);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// A good file with one piece overwritten.
    #[test]
    fn spoiled_files_do_not_panic(
        at in 0usize..20_000,
        len in 0usize..40,
        with in r#"[\[\]{}"',:=.\n_$a-z0-9é\\-]{0,8}"#,
    ) {
        for whole in [SMALLEST.as_bytes(), FULL.as_bytes()] {
            let from = at % whole.len();
            let to = (from + len).min(whole.len());
            let text = [&whole[..from], with.as_bytes(), &whole[to..]].concat();
            fuzzing::fuzz(&text);
        }
    }
}
