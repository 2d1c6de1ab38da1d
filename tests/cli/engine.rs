//! `engine`: simulated engines as processes of their own, alone, in one process, and behind a router.

use std::net::SocketAddr;
use std::thread;

use serde_json::{Value, json};

use crate::child::{Child, address, narwhal, run};
use crate::files::fleet_file;
use crate::http;

fn engine(args: &[&str]) -> Child {
    Child::start(narwhal(
        &[&["engine", "--listen", "127.0.0.1:0"], args].concat(),
    ))
}

/// A prefill leg: the handoff it made.
fn prefill(at: SocketAddr) -> Value {
    let body = json!({
        "prompt": "one two three", "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": true},
    });
    let answer = http::post(at, "/v1/completions", &body);
    assert_eq!(
        answer.status,
        200,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    answer.json()["kv_transfer_params"].take()
}

fn decode(at: SocketAddr, handoff: &Value) -> u16 {
    let body = json!({"prompt": "one two three", "max_tokens": 2, "kv_transfer_params": handoff});
    http::post(at, "/v1/completions", &body).status
}

fn metric(at: SocketAddr, name: &str) -> u64 {
    let page = http::get(at, "/metrics").body;
    let page = String::from_utf8(page).expect("text");
    let line = page.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    value.unwrap_or_else(|| panic!("no {name} in {page}")) as u64
}

// proves R-CLI-3
#[test]
fn engines_of_one_process_share_their_handoffs() {
    let more = [
        "--listen",
        "127.0.0.1:0",
        "--role",
        "prefill",
        "--role",
        "decode",
    ];
    for driver in ["auto", "epoll"] {
        let mut child = engine(&[&more[..], &["--driver", driver, "--model", "m"]].concat());
        let lines = [
            child.out_line("engine prefill"),
            child.out_line("engine decode"),
        ];
        assert!(
            lines.iter().all(|line| line.contains("model m")),
            "{lines:?}"
        );
        assert!(driver == "auto" || lines[0].contains("epoll"), "{lines:?}");
        let [a, b] = lines.map(|line| address(&line));
        for path in ["/health", "/version", "/v1/models", "/metrics"] {
            assert_eq!(http::get(a, path).status, 200, "{path}");
        }
        let handoff = prefill(a);
        let again = "narwhal_stub_handoffs_used_again_total";
        assert_eq!((decode(b, &handoff), metric(b, again)), (200, 0));
        // The second use looks right to a client, and is counted.
        assert_eq!((decode(b, &handoff), metric(b, again)), (200, 1));
        // So does one with blocks that were never offered.
        let mut astray = prefill(a);
        astray["remote_block_ids"] = json!([[7, 8, 9]]);
        decode(b, &astray);
        assert_eq!(metric(b, "narwhal_stub_handoffs_astray_total"), 1);
        child.signal("TERM");
        assert_eq!(child.end().code, Some(0));
    }
}

// proves R-CLI-3, R-CLI-1
#[test]
fn engines_of_two_processes_work_together_behind_a_router() {
    let mut engines = ["prefill", "decode"].map(|role| {
        engine(&[
            "--role",
            role,
            "--model",
            "m",
            "--ttft-ms",
            "5",
            "--tpot-ms",
            "1",
        ])
    });
    let [a, b] = engines
        .each_mut()
        .map(|child| address(&child.out_line("engine ")));
    let text = format!(
        "schema = \"narwhal.fleet\"\nschema_version = 2\nmodel = \"m\"\n\
         engines = [\n  {{ iid = \"p\", url = \"http://{a}\", role = \"prefill\" }},\n  \
         {{ iid = \"d\", url = \"http://{b}\", role = \"decode\" }},\n]\n\
         [slo]\nttft_s = 5\ntpot_s = 1\n[serving]\nadmission = \"open\"\ndrain_window_s = 0.1\n"
    );
    let fleet = fleet_file("two-processes", "toml", &text);
    let mut command = narwhal(&["serve", "--listen", "127.0.0.1:0", "--shards", "1"]);
    command.arg("--fleet").arg(fleet);
    let mut router = Child::start(command);
    let at = address(&router.err_line("listening on http://"));

    let mut body = json!({"model": "m", "prompt": "one two three", "max_tokens": 20});
    let whole = http::post(at, "/v1/completions", &body).json();
    assert_eq!(whole["usage"]["completion_tokens"], 20, "{whole}");
    body["stream"] = json!(true);
    let events = http::post(at, "/v1/completions", &body).events();
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(whole["choices"][0]["text"], text);

    // A request that is on its way when the engine goes is cut, and the router survives it.
    for engine in engines {
        engine.signal("INT");
        assert_eq!(engine.end().code, Some(0));
    }
    router.signal("TERM");
    let ended = router.end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

/// The first leg waits on its connection and is woken by the second.
// proves R-CLI-3, R-LEG-5
#[test]
fn legs_of_sglang_meet_over_sockets() {
    for driver in ["auto", "epoll"] {
        let mut child = engine(&[
            "--listen",
            "127.0.0.1:0",
            "--dialect",
            "sglang",
            "--role",
            "prefill",
            "--role",
            "decode",
            "--driver",
            driver,
        ]);
        let lines = [
            child.out_line("engine prefill, sglang"),
            child.out_line("engine decode, sglang"),
        ];
        let [a, b] = lines.map(|line| address(&line));
        let leg = |stream: bool| {
            json!({
                "model": "m", "prompt": "one two three", "max_tokens": 4, "stream": stream,
                "return_token_ids": true, "rid": format!("r-{stream}"),
                "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998,
                "bootstrap_room": 9_223_372_036_854_775_001u64,
            })
        };
        for first in [a, b] {
            let second = if first == a { b } else { a };
            let body = |at| leg(at == b);
            let early = body(first);
            let early = thread::spawn(move || http::post(first, "/v1/completions", &early));
            let late = http::post(second, "/v1/completions", &body(second));
            let early = early.join().expect("an answer");
            let (prefill, decode) = if first == a {
                (early, late)
            } else {
                (late, early)
            };
            let prefill = prefill.json();
            assert_eq!(prefill["usage"]["completion_tokens"], 1, "{prefill}");
            let ids: Vec<Value> = decode
                .events()
                .iter()
                .filter_map(|event| event["choices"][0]["token_ids"].get(0).cloned())
                .collect();
            assert_eq!(ids.len(), 4, "{ids:?}");
            assert_eq!(prefill["choices"][0]["token_ids"][0], ids[0]);
        }
        let refused = http::post(b, "/v1/completions", &json!({"prompt": "x"}));
        assert_eq!(
            (refused.status, &refused.json()["object"]),
            (400, &json!("error"))
        );
        assert_eq!(metric(a, "narwhal_stub_rooms_met_total"), 2);
    }
}

// proves R-CLI-3
#[test]
fn a_plain_server_has_one_leg_and_no_tokenizer() {
    let mut child = engine(&["--dialect", "openai", "--model", "m"]);
    let at = address(&child.out_line("engine both, openai"));
    let body = json!({
        "model": "m", "prompt": "x", "max_tokens": 3, "stream": true, "return_token_ids": true,
        "stream_options": {"include_usage": true},
    });
    let events = http::post(at, "/v1/completions", &body).events();
    let counted = events.iter().find(|event| event["usage"].is_object());
    assert_eq!(counted.expect("usage")["usage"]["completion_tokens"], 3);
    assert_eq!(http::post(at, "/tokenize", &body).status, 404);
    let other = http::post(at, "/v1/completions", &json!({"model": "n", "prompt": "x"}));
    assert_eq!(other.json()["error"]["code"], "model_not_found");
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let ended = run(&["engine", "--listen", "127.0.0.1:0", "--cpu", "1023"]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    let want = "narwhal: --cpu: cpus: core 1023 is not in the process's affinity mask";
    assert!(ended.err.contains(want), "{}", ended.err);
}

fn running(at: SocketAddr) -> u64 {
    metric(at, "vllm:num_requests_running{")
}

// proves R-CLI-3
#[test]
fn sigterm_gives_up_what_runs_or_lets_it_finish() {
    // flags, why the answer ends
    let rows: [(&[&str], &str); 2] = [
        (&["--tpot-ms", "20"], "abort"),
        (&["--tpot-ms", "20", "--shutdown-timeout-s", "30"], "length"),
    ];
    for (flags, reason) in rows {
        let mut child = engine(flags);
        let at = address(&child.out_line("engine "));
        let stream = std::thread::spawn(move || {
            let body = json!({"prompt": "x", "max_tokens": 40, "ignore_eos": true, "stream": true});
            http::post(at, "/v1/completions", &body).events()
        });
        while running(at) == 0 {}
        child.signal("TERM");
        let events = stream.join().expect("a whole stream");
        let last = events.last().expect("an event");
        assert_eq!(last["choices"][0]["finish_reason"], reason, "{last}");
        assert_eq!(child.end().code, Some(0));
    }
}

// proves R-CLI-3
#[test]
fn files_are_read_and_their_faults_named() {
    let profile = json!({"schema": "narwhal.profiles", "schema_version": 1, "profiles": [{
        "iid": "e0", "ttft_a": 0, "ttft_b": 0, "ttft_c": 0.001, "tpot_slope": 0, "tpot_intercept": 0.001,
        "kv_capacity_tokens": 1000, "decode_max_requests": 4,
    }]});
    let script = json!({"schema": "narwhal.faults", "schema_version": 1, "rules": [
        {"leg": "decode", "nth": 1, "do": "error", "status": 503, "message": "full"},
    ]});
    let profile = fleet_file("engine-profile", "json", &profile.to_string());
    let script = fleet_file("engine-faults", "json", &script.to_string());
    let (profile, script) = (
        profile.to_str().expect("text"),
        script.to_str().expect("text"),
    );
    let mut child = engine(&[
        "--profile",
        profile,
        "--iid",
        "e0",
        "--faults",
        script,
        "--seed",
        "1",
    ]);
    let at = address(&child.out_line("engine "));
    let body = json!({"prompt": "x", "max_tokens": 2});
    let first = http::post(at, "/v1/completions", &body);
    assert_eq!(
        (first.status, first.json()["error"]["message"].as_str()),
        (503, Some("full"))
    );
    assert_eq!(http::post(at, "/v1/completions", &body).status, 200);
    child.signal("TERM");
    assert_eq!(child.end().code, Some(0));

    let bad = fleet_file(
        "engine-bad",
        "json",
        r#"{"schema":"narwhal.faults","schema_version":1,"rules":[{"do":"rest"}]}"#,
    );
    let bad = bad.to_str().expect("text");
    // flags, message
    let rows: [(&[&str], &str); 4] = [
        (
            &["--faults", bad],
            "rules[0].do: unknown word, found \"rest\"",
        ),
        (
            &["--profile", profile, "--iid", "e1"],
            "no profile of \"e1\", found e0",
        ),
        (&["--profile", "none.json"], "none.json: cannot be read"),
        (
            &["--profile", profile, "--tpot-ms", "1"],
            "cannot be used with",
        ),
    ];
    for (flags, want) in rows {
        let ended = run(&[&["engine", "--listen", "127.0.0.1:0"], flags].concat());
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        assert!(ended.err.contains(want), "{}", ended.err);
    }
}
