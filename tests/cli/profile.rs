//! `profile`: simulated engines whose curves are known are measured, and come out as they went in.
//!
//! Times are large beside the noise of a busy machine, and medians are taken; the sweeps are short.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::child::{Child, Ended, address, narwhal, run};
use crate::files::fleet_file;
use crate::http;

/// What the engines cost.
const TRUTH: [(&str, f64); 6] = [
    ("ttft_a", 1e-7),
    ("ttft_b", 1e-4),
    ("ttft_c", 0.06),
    ("tpot_slope", 5e-6),
    ("tpot_request_slope", 0.001_5),
    ("tpot_intercept", 0.008),
];

const PREFILL: [&str; 3] = ["ttft_a", "ttft_b", "ttft_c"];
const DECODE: [&str; 3] = ["tpot_slope", "tpot_request_slope", "tpot_intercept"];

/// A short sweep; flags that a test leaves out of it.
const READS: [&str; 4] = ["--prompts", "16,128,400,1024", "--repeats", "3"];
/// Where noise was too much: the same points, and more of each.
const MORE: [[&str; 2]; 4] = [["3", "1"], ["7", "3"], ["15", "7"], ["31", "15"]];
const STREAMS: [&str; 6] = [
    "--concurrency",
    "1,3,8",
    "--contexts",
    "32,500",
    "--window-tokens",
    "24",
];
/// Of prompts where they do not matter.
const FEW_READS: [&str; 4] = ["--prompts", "16,64,128,256,300", "--repeats", "1"];

/// Engines, one for each role, and a fleet file for them: `p0` prefills, `d0` decodes, `b0` does both.
struct Stage {
    _engines: Child,
    at: Vec<SocketAddr>,
    fleet: PathBuf,
    out: PathBuf,
}

impl Stage {
    fn new(name: &str, dialect: &str, roles: &[&str], faults: &Value, limits: &Value) -> Stage {
        let mut row = json!({"iid": "e", "kv_capacity_tokens": 100_000, "decode_max_requests": 64});
        for (key, value) in TRUTH {
            row[key] = json!(value);
        }
        let curves = json!({"schema": "narwhal.profiles", "schema_version": 1, "profiles": [row]});
        let curves = fleet_file(&format!("{name}-curves"), "json", &curves.to_string());
        let script = json!({"schema": "narwhal.faults", "schema_version": 1, "rules": faults});
        let script = fleet_file(&format!("{name}-faults"), "json", &script.to_string());
        let mut command = narwhal(&["engine", "--model", "m", "--dialect", dialect]);
        command.arg("--profile").arg(curves);
        command.arg("--faults").arg(script);
        for role in roles {
            command.args(["--listen", "127.0.0.1:0", "--role", role]);
        }
        let mut engines = Child::start(command);
        let at: Vec<SocketAddr> = roles
            .iter()
            .map(|_| address(&engines.out_line("engine ")))
            .collect();
        let rows: Vec<Value> = roles
            .iter()
            .zip(&at)
            .map(|(role, at)| {
                json!({"iid": format!("{}0", &role[..1]), "url": format!("http://{at}"), "role": role, "pin": *role == "decode"})
            })
            .collect();
        let connector = if roles == ["both"] || dialect == "openai" {
            "none"
        } else if dialect == "sglang" {
            "mooncake"
        } else {
            "nixl"
        };
        let fleet = json!({
            "schema": "narwhal.fleet", "schema_version": 2, "model": "m", "engines": rows,
            "slo": {"ttft_s": 2, "tpot_s": 0.05}, "profiles": limits,
            "engine": {"backend": dialect, "connector": connector},
        });
        let fleet = fleet_file(name, "json", &fleet.to_string());
        let out = fleet.with_file_name(format!("{name}-profiles.json"));
        for old in [out.clone(), points(&out)] {
            let _ = fs::remove_file(old);
        }
        Stage {
            _engines: engines,
            at,
            fleet,
            out,
        }
    }

    fn command(&self, more: &[&str]) -> std::process::Command {
        let mut command = narwhal(&["profile"]);
        command.arg("--fleet").arg(&self.fleet);
        command.arg("--out").arg(&self.out);
        command.args(more);
        command
    }

    fn run(&self, more: &[&str]) -> Ended {
        self.run_with(&READS, more)
    }

    fn run_with(&self, reads: &[&str], more: &[&str]) -> Ended {
        Child::start(self.command(&[reads, &STREAMS[..], more].concat())).end()
    }

    /// Runs it to a good end; the rows by engine.
    fn rows(&self, more: &[&str]) -> Value {
        let ended = self.run(more);
        assert_eq!(ended.code, Some(0), "{}\n{}", ended.out, ended.err);
        self.written()
    }

    /// The same once the curves named are right to 5 %: on a busy machine that may take more repeats.
    fn true_rows(&self, curves: &[(&str, &[&str])], more: &[&str]) -> Value {
        let mut said = String::new();
        for [repeats, decode_repeats] in MORE {
            let reads = ["--prompts", READS[1], "--repeats", repeats];
            let again = ["--resume", "--decode-repeats", decode_repeats];
            let ended = self.run_with(&reads, &[more, &again[..]].concat());
            let near = |rows: &Value| {
                curves
                    .iter()
                    .all(|(iid, names)| off(&rows[iid], names) < 0.05)
            };
            said = ended.err;
            // Noise may be enough to refuse the fit.
            if ended.code == Some(0) && near(&self.written()) {
                return self.written();
            }
        }
        let written = fs::read_to_string(&self.out).unwrap_or_default();
        panic!("{written} is not {TRUTH:?}\n{said}");
    }

    fn written(&self) -> Value {
        let text = fs::read_to_string(&self.out).expect("a profile file");
        let file: Value = serde_json::from_str(&text).expect("JSON");
        let rows = file["profiles"].as_array().expect("rows");
        let named = rows.iter().map(|row| (text_of(&row["iid"]), row.clone()));
        Value::Object(named.collect())
    }

    /// Completions that an engine has finished.
    fn served(&self, engine: usize) -> u64 {
        let page = String::from_utf8(http::get(self.at[engine], "/metrics").body).expect("text");
        let ended = page
            .lines()
            .filter(|line| line.starts_with("vllm:request_success_total"));
        let counts = ended.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        counts.sum::<f64>() as u64
    }
}

fn points(out: &Path) -> PathBuf {
    out.with_file_name(format!(
        "{}.points.jsonl",
        out.file_name().and_then(|n| n.to_str()).expect("a name")
    ))
}

fn text_of(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// How far the worst of some coefficients is off, as a part of 1.
fn off(row: &Value, names: &[&str]) -> f64 {
    let errors = names.iter().map(|name| {
        let truth = TRUTH.iter().find(|(key, _)| key == name).expect("a key").1;
        let got = row[name].as_f64().expect("a number");
        (got / truth - 1.0).abs()
    });
    errors.fold(0.0, f64::max)
}

// proves R-CLI-5, R-SCH-5, R-SCH-1
#[test]
fn curves_of_a_pair_come_back_and_the_router_takes_them() {
    let stage = Stage::new(
        "profile-pair",
        "vllm",
        &["prefill", "decode"],
        &json!([]),
        &json!({}),
    );
    let old = json!({"iid": "x", "ttft_a": 0, "ttft_b": 0, "ttft_c": 1, "tpot_slope": 0, "tpot_intercept": 1,
        "kv_capacity_tokens": 9, "decode_max_requests": 3});
    let file = json!({"schema": "narwhal.profiles", "schema_version": 1, "profiles": [old]});
    fs::write(&stage.out, file.to_string()).expect("an older file");
    // One of them is pinned.
    let rows = stage.true_rows(&[("p0", &PREFILL), ("p0", &DECODE), ("d0", &DECODE)], &[]);
    assert_eq!(rows["d0"]["ttft_b"], 0.0);
    for iid in ["p0", "d0"] {
        let row = &rows[iid];
        let requests = [&row["decode_min_requests"], &row["decode_max_requests"]];
        assert_eq!(requests, [&json!(1), &json!(8)]);
        // Blocks × tokens of a block, as its metrics say.
        assert_eq!(row["kv_capacity_tokens"], 2_097_152);
        assert!(text_of(&row["generation_digest"]).starts_with("sha256:"));
        let kv = row["decode_max_kv_tokens"].as_u64().expect("a count");
        assert!((4_000..4_600).contains(&kv), "{row}");
    }
    assert_eq!(rows["x"], old);

    // The router starts on it.
    let mut fleet: Value =
        serde_json::from_slice(&fs::read(&stage.fleet).expect("the file")).expect("JSON");
    fleet["profiles"] = json!({"path": stage.out});
    let fleet = fleet_file("profile-pair-serve", "json", &fleet.to_string());
    let mut command = narwhal(&["serve", "--listen", "127.0.0.1:0", "--shards", "1"]);
    command.arg("--fleet").arg(fleet);
    let mut router = Child::start(command);
    let at = address(&router.err_line("listening on http://"));
    let body = json!({"model": "m", "prompt": "one two three", "max_tokens": 3});
    assert_eq!(http::post(at, "/v1/completions", &body).status, 200);
}

// proves R-CLI-5, R-SCH-5
#[test]
fn engines_of_other_dialects_are_measured_as_they_are_asked() {
    let stage = Stage::new(
        "profile-sglang",
        "sglang",
        &["prefill", "decode"],
        &json!([]),
        &json!({}),
    );
    let rows = stage.true_rows(&[("p0", &PREFILL), ("d0", &DECODE)], &[]);
    // Each is started for one role, and has no other curve.
    assert_eq!(
        (&rows["p0"]["tpot_slope"], &rows["d0"]["ttft_c"]),
        (&json!(0.0), &json!(0.0))
    );

    let stage = Stage::new(
        "profile-openai",
        "openai",
        &["both"],
        &json!([]),
        &json!({}),
    );
    let ended = stage.run(&[]);
    assert_eq!(ended.code, Some(1));
    let want = "engine b0: it does not tell its context length: give --len-max";
    assert!(ended.err.contains(want), "{}", ended.err);
    let told = ["--len-max", "4096", "--kv-capacity-tokens", "50000"];
    // One token in 64 has no text, hence no event: the decode curve is a little slow.
    let rows = stage.true_rows(&[("b0", &PREFILL)], &told);
    assert!(off(&rows["b0"], &["tpot_slope"]) < 0.3, "{rows}");
    assert_eq!(rows["b0"]["kv_capacity_tokens"], 50_000);
}

// proves R-CLI-5, R-SCH-5
#[test]
fn a_strict_decode_engine_is_measured_through_handoffs() {
    // It refuses the first plain request.
    let faults = json!([{"engine": 1, "leg": "decode", "nth": 1, "do": "error", "status": 400, "message": "no"}]);
    let stage = Stage::new(
        "profile-strict",
        "vllm",
        &["prefill", "decode"],
        &faults,
        &json!({}),
    );
    let ended = stage.run_with(&FEW_READS, &["--engine", "d0"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let want = "it takes no plain requests (/v1/completions: status 400: no): measured by handoffs";
    assert!(ended.err.contains(want), "{}", ended.err);
    assert!(off(&stage.written()["d0"], &DECODE) < 0.2);
    assert!(
        stage.served(0) > 12,
        "prefill legs went to the other engine"
    );
}

// proves R-CLI-5, R-SCH-5
#[test]
fn a_bad_fit_is_refused_by_name_and_writes_nothing() {
    // Every second prompt is late by more than it takes.
    let late = json!([{"leg": "prefill", "every": 2, "do": "pause", "pause_ms": 150}]);
    let jitter = json!([{"leg": "decode", "every": 3, "at": "event", "events": 20, "do": "pause", "pause_ms": 900}]);
    let off = json!({"max_decode_fit_mape": 0.02});
    let rows = [
        (
            "profile-late",
            "prefill",
            &late,
            &json!({}),
            "its prefill curve is off by ",
            "(--max-ttft-fit-mape)",
        ),
        (
            "profile-jitter",
            "both",
            &jitter,
            &off,
            "its decode curve is off by ",
            "more than 2.0 % (profiles.max_decode_fit_mape)",
        ),
    ];
    for (name, role, faults, limits, what, limit) in rows {
        let roles: &[&str] = if role == "both" {
            &["both"]
        } else {
            &["prefill", "decode"]
        };
        let stage = Stage::new(name, "vllm", roles, faults, limits);
        let iid = format!("{}0", &role[..1]);
        let most = if role == "both" { "1" } else { "0.1" };
        let ended = stage.run_with(&FEW_READS, &["--engine", &iid, "--max-ttft-fit-mape", most]);
        assert_eq!(ended.code, Some(1), "{name}: {}\n{}", ended.out, ended.err);
        for want in [
            format!("engine {iid}: {what}"),
            limit.to_owned(),
            "no row is written".to_owned(),
        ] {
            assert!(ended.err.contains(&want), "{want} in {}", ended.err);
        }
        assert!(!stage.out.exists(), "{name}");
    }
}

// proves R-CLI-5
#[test]
fn a_run_that_was_killed_goes_on_where_it_was() {
    let stage = Stage::new("profile-resume", "vllm", &["both"], &json!([]), &json!({}));
    let mut child = Child::start(stage.command(&[&READS[..], &STREAMS].concat()));
    child.err_line("prefill 3/4");
    child.signal("KILL");
    assert_eq!(child.end().code, None);
    assert!(!stage.out.exists());
    let before = stage.served(0);
    let ended = stage.run(&["--resume"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for at in 1..=3 {
        let line = ended
            .err
            .lines()
            .find(|l| l.contains(&format!("prefill {at}/4")));
        let line = line.unwrap_or_else(|| panic!("{}", ended.err));
        assert!(line.ends_with("(from the journal)"), "{line}");
    }
    // Two to warm up, at most the three of the last length; streams are left before their end, and do not count.
    let reads = stage.served(0) - before;
    assert!((2..=5).contains(&reads), "{reads}");
    let row = &stage.written()["b0"];
    // Once more from the journal alone: the same row.
    assert_eq!(&stage.rows(&["--resume"])["b0"], row);
}

// proves R-SCH-5, R-TOK-1
#[test]
fn an_engine_that_lies_about_ids_fails_by_name() {
    let faults = json!([{"engine": 1, "leg": "decode", "events": 4, "token_ids": "text"}]);
    let stage = Stage::new(
        "profile-ids",
        "vllm",
        &["prefill", "both"],
        &faults,
        &json!({}),
    );
    let ended = stage.run_with(&FEW_READS, &["--engine", "b0"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let want = "engine b0: event 5 of a stream breaks the rule on token ids";
    assert!(ended.err.contains(want), "{}", ended.err);
    assert!(!stage.out.exists());
}

// proves R-CLI-5
#[test]
fn what_cannot_be_done_is_said_before_anything_is_measured() {
    let fleet = fleet_file("profile-usage", "json", crate::serve::FLEET);
    let fleet = fleet.to_str().expect("a path in UTF-8");
    let out = fleet_file("profile-usage-out", "json", "{}");
    let out = out.to_str().expect("a path in UTF-8");
    // more flags, exit code, what is said
    let rows: [(&[&str], i32, &str); 5] = [
        (&["--out", out], 2, "schema"),
        (
            &["--out", "p.toml"],
            2,
            "--out p.toml: the name must end in .json",
        ),
        (
            &["--out", "p.json", "--engine", "e9"],
            2,
            "--engine e9: the fleet has e0",
        ),
        (&["--out", "p.json", "--repeats", "0"], 2, "--repeats"),
        (&[], 2, "--out"),
    ];
    for (more, code, want) in rows {
        let ended = run(&[&["profile", "--fleet", fleet], more].concat());
        assert_eq!(ended.code, Some(code), "{more:?}: {}", ended.err);
        assert!(ended.err.contains(want), "{want} in {}", ended.err);
    }
}
