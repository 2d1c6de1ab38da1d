//! Engines over https: every kind of request, reuse, and every way in which TLS fails or ends.

use serde_json::{Value, json};

use super::client::{self, Answer, data_of};
use super::front::{Front, How};
use super::world::{Fleet, World, everywhere, number};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const DONE: &str = "data: [DONE]\n\n";

fn prompt(path: &str, stream: bool) -> Value {
    let mut body = json!({"model": "stub-model", "max_tokens": 3, "stream": stream});
    match path {
        CHAT => body["messages"] = json!([{"role": "user", "content": "hello there"}]),
        _ => body["prompt"] = json!("hello there"),
    }
    body
}

/// Needs no count from an engine.
fn counted(stream: bool) -> Value {
    json!({"model": "stub-model", "prompt": [1, 2, 3], "max_tokens": 3, "stream": stream})
}

fn event(text: &str) -> String {
    format!(
        "data: {{\"id\":\"c\",\"object\":\"text_completion\",\"created\":1,\"model\":\"stub-model\",\
         \"choices\":[{{\"index\":0,\"text\":\"{text}\",\"finish_reason\":null,\"token_ids\":[1]}}]}}\n\n"
    )
}

/// A second attempt would go elsewhere; here one is all there is.
fn once(fleet: Fleet, how: How) -> Fleet {
    fleet.with("serving", "max_attempts", 1).https(how)
}

// proves R-LEG-7, R-LEG-2, R-LEG-4
#[test]
fn both_legs_stream_and_assemble_over_https() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs().https(How::Announced));
        for path in [TEXT, CHAT] {
            for stream in [true, false] {
                world.engines.reset();
                let answer = world.post(path, &prompt(path, stream));
                assert_eq!(answer.status, Some(200), "{path}: {}", answer.text());
                assert!(answer.complete, "{path}");
                match stream {
                    true => assert!(answer.text().ends_with(DONE), "{}", answer.text()),
                    false => assert_eq!(answer.json()["usage"]["completion_tokens"], 3),
                }
                for leg in ["tokenize", "prefill", "decode"] {
                    let legs = world.engines.legs(leg);
                    assert_eq!(legs.len(), 1, "{path} {stream}: {leg}");
                    let host = &legs[0].headers["host"];
                    assert!(host.starts_with("127.0.0.1:"), "{host}");
                }
            }
        }
        // A body of many records, each way.
        let long = "x".repeat(300_000);
        let mut body = counted(false);
        body["user"] = json!(long);
        world
            .engines
            .script(&json!({"decode": {"chunks": [event(&long), event("b"), DONE]}}));
        let answer = world.post(TEXT, &body);
        assert_eq!(answer.status, Some(200), "{}", answer.text());
        let text = answer.json()["choices"][0]["text"].take();
        assert_eq!(text, json!(long + "b"));
        let state = world.at_rest();
        assert_eq!(number(&state, "/failed"), 0);
        assert_eq!(number(&state, "/serving/retry_attempts"), 0);
    });
}

// proves R-LEG-7
#[test]
fn one_handshake_serves_many_requests_and_the_next_resumes() {
    everywhere(|setup| {
        let front = Front::new(How::Announced);
        let mut fleet = Fleet::pair().https(How::Announced);
        fleet.front = Some(front.clone());
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        let mut round = |world: &World| {
            for round in 0..4 {
                client.send(&client::post(TEXT, &prompt(TEXT, round % 2 == 0)));
                assert_eq!(client.answer().status, Some(200));
                world.until("the connection is back", |world| {
                    number(&world.state(), "/pools/legs_open") == 0
                });
            }
        };
        round(&world);
        let (full, resumed) = front.handshakes();
        // Both have one host, so the second may begin with what is known of the first.
        assert_eq!(full + resumed, 2, "one for each engine");
        assert_eq!(world.engines.connections(), 2);
        world.engines.close_idle();
        world.until("they are closed", |_| front.is_empty());
        round(&world);
        assert_eq!(
            front.handshakes(),
            (full, resumed + 2),
            "with what is known of them"
        );
        assert_eq!(number(&world.at_rest(), "/serving/retry_attempts"), 0);
    });
}

/// An answer whose end is the connection's: only `close_notify` tells it from one that was cut.
// proves R-LEG-7, R-LEG-6
#[test]
fn an_end_that_nobody_announced_ends_no_answer() {
    let handoff = json!({
        "id": "p", "object": "text_completion", "created": 1, "model": "stub-model",
        "choices": [{"index": 0, "text": "a", "finish_reason": "length"}],
        "kv_transfer_params": {"remote_engine_id": "e", "remote_block_ids": [1]},
    });
    let count = json!({"count": 3, "max_model_len": 9, "tokens": [1, 2, 3]});
    let rows = [
        ("prefill", handoff, "prefill"),
        ("tokenize", count, "admission"),
    ];
    everywhere(|setup| {
        for how in [How::Announced, How::Cut] {
            let world = World::start(setup, &once(Fleet::pair(), how));
            for (leg, body, phase) in &rows {
                world.engines.reset();
                world.engines.script(&json!({*leg: {
                    "headers": {"content-type": "application/json"}, "framing": "close",
                    "chunks": [body.to_string()],
                }}));
                let answer = world.post(TEXT, &prompt(TEXT, false));
                let row = format!("{how:?} {leg}: {}", answer.text());
                if how == How::Announced {
                    assert_eq!(answer.status, Some(200), "{row}");
                } else {
                    assert_eq!(answer.status, Some(502), "{row}");
                    assert_eq!(answer.error().0, *phase, "{row}");
                }
            }
            // A stream says itself when it is whole.
            world.engines.reset();
            world
                .engines
                .script(&json!({"decode": {"framing": "close", "chunks": [event("a"), DONE]}}));
            let answer = world.post(TEXT, &counted(true));
            assert_eq!(answer.status, Some(200), "{}", answer.text());
            assert!(answer.complete && answer.text().ends_with(DONE), "{how:?}");
            world.at_rest();
        }
    });
}

// proves R-LEG-7, R-FLT-2
#[test]
fn a_stream_that_is_cut_over_https_ends_with_an_error() {
    everywhere(|setup| {
        for how in [How::Announced, How::Cut] {
            let world = World::start(setup, &Fleet::pairs().https(how));
            for end in ["close", "reset"] {
                for framing in ["chunked", "close"] {
                    let row = format!("{how:?} {end} {framing}");
                    world.engines.reset();
                    // Both events are read before the end: a reset may overtake what was sent.
                    let chunks = json!([event("a"), event("b"), {"delay_ms": 50}, {end: true}]);
                    world
                        .engines
                        .script(&json!({"decode": {"framing": framing, "chunks": chunks}}));
                    let answer = world.post(TEXT, &counted(true));
                    assert_eq!(answer.status, Some(200), "{row}");
                    let text = answer.text();
                    let data = data_of(&text);
                    assert_eq!(data.len(), 3, "{row}: {text}");
                    let last: Value = serde_json::from_str(&data[2]).expect("an error");
                    assert_eq!(last["error"]["code"], "failed", "{row}");
                    let answer = world.post(TEXT, &counted(false));
                    assert_eq!(answer.status, Some(502), "{row}: {}", answer.text());
                }
            }
            world.engines.reset();
            assert_eq!(world.post(TEXT, &counted(true)).status, Some(200));
            world.at_rest();
        }
    });
}

/// What is not the engine, or speaks no TLS, gets no byte of a request.
// proves R-LEG-7, R-FLT-1
#[test]
fn no_tls_is_no_connection() {
    let rows = [
        (How::Strange, 502, "invalid peer certificate"),
        (How::Plain, 502, "corrupt message"),
        (How::Silent, 504, ""),
    ];
    everywhere(|setup| {
        for (how, status, why) in rows {
            let fleet = once(Fleet::pair(), how).with("engine", "connect_timeout_s", 0.3);
            let world = World::start(setup, &fleet);
            for stream in [true, false, true] {
                let answer = world.post(TEXT, &counted(stream));
                let row = format!("{how:?}: {}", answer.text());
                assert_eq!(answer.status, Some(status), "{row}");
                assert_eq!(
                    answer.error(),
                    (json!("prefill"), json!(null), json!("prefill"))
                );
            }
            assert!(world.engines.log().is_empty(), "{how:?}");
            let told = |world: &World| {
                let said = world.said();
                let lines = said.lines().filter(|line| line.contains("no TLS with it"));
                lines.map(str::to_owned).collect::<Vec<_>>()
            };
            if !why.is_empty() {
                world.until("a word of it", |world| !told(world).is_empty());
                let told = told(&world);
                assert_eq!(told.len(), 1, "once: {told:?}");
                assert!(
                    told[0].contains("engine e0") && told[0].contains(why),
                    "{told:?}"
                );
            }
            let health: Answer = world.ask(&client::get("/health"));
            assert_eq!(health.status, Some(200), "{how:?}");
            world.at_rest();
        }
    });
}

/// A name with more than one address, as `localhost` often is: whichever of them the engine listens on.
// proves R-LEG-7
#[test]
fn engines_have_names() {
    everywhere(|setup| {
        for (scheme, how) in [("http", How::Plain), ("https", How::Announced)] {
            let mut fleet = Fleet::pair();
            if how == How::Announced {
                fleet = fleet.https(how);
            }
            for engine in fleet.file["engines"].as_array_mut().expect("engines") {
                let url = engine["url"].as_str().expect("a url");
                engine["url"] = json!(url.replace("127.0.0.1", "localhost"));
            }
            let world = World::start(setup, &fleet);
            let answer = world.post(TEXT, &prompt(TEXT, false));
            assert_eq!(answer.status, Some(200), "{scheme}: {}", answer.text());
            let host = world.engines.legs("decode")[0].headers["host"].clone();
            assert!(host.starts_with("localhost:"), "{scheme}: {host}");
        }
    });
}

// proves R-LEG-7, R-CTL-1
#[test]
fn https_engines_are_probed() {
    let probed = |fleet: Fleet| {
        let fleet =
            fleet
                .with("recovery", "liveness_every", 1)
                .with("recovery", "liveness_misses", 2);
        let mut fleet = fleet.with("controller", "monitor_interval_s", 0.02);
        fleet.await_ready = false;
        fleet
    };
    everywhere(|setup| {
        let world = World::start(setup, &probed(Fleet::pair().https(How::Announced)));
        let ready = |world: &World| world.ask(&client::get("/ready")).status == Some(200);
        world.until("ready", ready);
        world
            .engines
            .script(&json!({"health@1": {"status": 500, "body": ""}}));
        world.until("not ready", |world| !ready(world));
        world.engines.reset();
        world.until("ready again", ready);
        // Its answer cannot be had.
        let world = World::start(setup, &probed(Fleet::pair().https(How::Strange)));
        world.until("not ready", |world| !ready(world));
        world.until("a word of it", |world| {
            let said = world.said();
            said.contains("not live") && said.contains("invalid peer certificate")
        });
    });
}

// proves R-LEG-7, R-CFG-4
#[test]
fn a_file_of_authorities_that_is_none_stops_the_start() {
    let dir = std::env::temp_dir().join(format!("narwhal-e2e-tls-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    std::fs::write(dir.join("empty.pem"), "").expect("a file");
    for name in ["empty.pem", "missing.pem"] {
        let ca = dir.join(name).display().to_string();
        let mut fleet = Fleet::pair().with("engine", "tls_ca_file", ca.clone());
        fleet.file["engines"][0]["url"] = json!("https://127.0.0.1:9");
        let file = dir.join("fleet.json");
        std::fs::write(&file, fleet.file.to_string()).expect("a fleet file");
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_narwhal"))
            .args(["serve", "--listen", "127.0.0.1:0", "--fleet"])
            .arg(&file)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(
            said.contains("engine.tls_ca_file") && said.contains(&ca),
            "{said}"
        );
    }
    let _ = std::fs::remove_dir_all(&dir);
}
