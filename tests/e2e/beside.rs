//! Engines whose legs run side by side (SGLang), and plain servers with one leg: what each leg carries, and how one leg's fate is the
//! other's.

use serde_json::{Value, json};

use super::client::{self, data_of};
use super::world::{Fleet, Setup, World, everywhere, number, reason};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const DONE: &str = "data: [DONE]\n\n";

fn sglang() -> Fleet {
    let mut fleet = Fleet::pairs().with("engine", "dialect", "sglang");
    fleet.file["engine"]["connector"] = json!("mooncake");
    for n in 0..2 {
        fleet.file["engines"][n]["bootstrap_port"] = json!(8101 + n);
    }
    fleet.sglang = true;
    fleet
}

fn counted(stream: bool) -> Value {
    json!({"model": "stub-model", "prompt": [1, 2, 3], "max_tokens": 3, "stream": stream})
}

fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 3})
}

fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"token_ids\":[1]}}]}}\n\n")
}

fn texts(body: &str) -> String {
    let data = data_of(body);
    let text = |data: &String| -> Option<String> {
        let event: Value = serde_json::from_str(data).ok()?;
        Some(event["choices"][0]["text"].as_str()?.to_owned())
    };
    data.iter().filter_map(text).collect()
}

// proves R-LEG-5
#[test]
fn both_legs_go_out_at_once_and_meet_in_one_room() {
    everywhere(|setup| {
        let world = World::start(setup, &sglang());
        // The prefill engine answers nothing until the decode leg is there, as a real one.
        let mut rooms = Vec::new();
        for stream in [true, false] {
            for _ in 0..8 {
                world.engines.reset();
                let answer = world.post(TEXT, &counted(stream));
                assert_eq!(answer.status, Some(200), "{}", answer.text());
                world.until_leg("prefill", 1);
                let prefill = &world.engines.legs("prefill")[0];
                let decode = &world.engines.legs("decode")[0];
                for member in ["bootstrap_host", "bootstrap_port", "bootstrap_room"] {
                    assert_eq!(prefill.body[member], decode.body[member], "{member}");
                }
                let room = decode.body["bootstrap_room"].as_u64().expect("a room");
                assert!(room < 1 << 63);
                rooms.push(room);
                assert!(
                    prefill.body["rid"]
                        .as_str()
                        .is_some_and(|rid| rid.ends_with("-a1-prefill"))
                );
                assert!(
                    decode.body["rid"]
                        .as_str()
                        .is_some_and(|rid| rid.ends_with("-a1-decode"))
                );
                assert_eq!(decode.body["return_token_ids"], true);
                assert_eq!(prefill.body["max_tokens"], 1);
                assert_eq!(world.at_rest()["ejected"], json!([]));
            }
        }
        rooms.sort_unstable();
        rooms.dedup();
        assert_eq!(rooms.len(), 16, "every attempt has a room of its own");
        // Chat is not asked for ids and has none; its events count one each.
        world.engines.reset();
        world.engines.script(&json!({"decode": {"chunks": [
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"matched_stop\":null}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\",\"matched_stop\":7}]}\n\n",
            DONE,
        ]}}));
        let before = number(&world.at_rest(), "/serving/decode_tokens_observed");
        let answer = world.post(CHAT, &chat()).json();
        assert_eq!(answer["choices"][0]["matched_stop"], 7);
        assert_eq!(answer["usage"]["completion_tokens"], 2);
        let decode = &world.engines.legs("decode")[0].body;
        assert!(decode.get("return_token_ids").is_none());
        assert_eq!(decode["max_tokens"], 3);
        assert!(decode.get("max_completion_tokens").is_none());
        let after = number(&world.at_rest(), "/serving/decode_tokens_observed");
        assert_eq!(after - before, 2);
    });
}

/// Relaying begins as soon as there are tokens, whatever the prefill leg does then.
// proves R-LEG-5
#[test]
fn a_stream_does_not_wait_for_the_prefill_legs_answer() {
    // How the prefill leg ends once tokens came, and what it is to have counted against its engine.
    let rows: [(&str, Value); 4] = [
        ("silent", json!({"raw": [{"hang": true}]})),
        ("slow", json!({"delay_ms": 150, "body": {"choices": []}})),
        (
            "fails",
            json!({"delay_ms": 150, "status": 500, "body": "no"}),
        ),
        (
            "breaks",
            json!({"raw": [{"delay_ms": 150}, {"reset": true}]}),
        ),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &sglang());
        for (row, prefill) in &rows {
            for stream in [true, false] {
                world.engines.reset();
                world.engines.script(&json!({
                    "prefill": prefill,
                    "decode": {"chunks": [event("a"), {"delay_ms": 300}, event("b"), DONE]},
                }));
                let answer = world.post(TEXT, &counted(stream));
                assert_eq!(answer.status, Some(200), "{row}: {}", answer.text());
                let text = if stream {
                    texts(&answer.text())
                } else {
                    answer.json()["choices"][0]["text"]
                        .as_str()
                        .unwrap_or("")
                        .to_owned()
                };
                assert_eq!(text, "ab", "{row}");
                assert_eq!(
                    world.engines.legs("prefill").len(),
                    1,
                    "{row}: no other attempt"
                );
                world.at_rest();
                if *row == "silent" {
                    let leg = world.engines.legs("prefill")[0].clone();
                    world.until("the prefill leg is given up", |_| {
                        leg.client_disconnected().is_some()
                    });
                }
            }
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/served"), number(&state, "/offered"));
    });
}

/// Neither leg gets on without the other, so the first failure ends both, and both go elsewhere.
// proves R-LEG-5, R-FLT-4
#[test]
fn one_leg_that_fails_settles_the_other() {
    let hang = json!({"raw": [{"hang": true}]});
    // A moment late, so that the other leg is there.
    let broken = json!({"raw": [{"delay_ms": 100}, {"reset": true}]});
    let status = |status: u16| json!({"delay_ms": 100, "status": status, "body": {"error": {"message": "no", "code": status}}});
    // Which leg fails, how, and what its phase and the status are when nobody else is there.
    let rows = [
        ("prefill", status(500), 502),
        ("prefill", broken.clone(), 502),
        ("prefill", status(504), 504),
        (
            "prefill",
            json!({"delay_ms": 100, "body": {"choices": [{"finish_reason": "abort"}]}}),
            502,
        ),
        (
            "prefill",
            json!({"delay_ms": 100, "body": {"object": "error", "message": "x", "code": 503}}),
            502,
        ),
        ("decode", status(503), 502),
        ("decode", broken, 502),
        (
            "decode",
            json!({"delay_ms": 100, "chunks": ["data: {\"error\": {\"message\": \"KVTransferError\"}}\n\n", DONE]}),
            502,
        ),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &sglang());
        let fleet = sglang().with("serving", "max_attempts", 1);
        let once = World::start(setup, &fleet);
        for (leg, fault, code) in &rows {
            let other = if *leg == "prefill" {
                "decode"
            } else {
                "prefill"
            };
            let row = format!("{leg} {fault}");
            // The other leg waits for it.
            once.engines.reset();
            once.engines.script(&json!({*leg: fault, other: hang}));
            let answer = once.post(TEXT, &counted(true));
            assert_eq!(answer.status, Some(*code), "{row}: {}", answer.text());
            assert_eq!(
                answer.error(),
                (json!(leg), json!(null), json!(leg)),
                "{row}"
            );
            let waiting = once.engines.legs(other)[0].clone();
            once.until("the other leg is closed", |_| {
                waiting.client_disconnected().is_some()
            });
            once.at_rest();

            // With somewhere to go it is served there, in a room of its own.
            world.engines.reset();
            world.engines.script(&json!({
                *leg: [fault, {"default": true}], other: [hang, {"default": true}],
            }));
            let answer = world.post(TEXT, &counted(true));
            assert_eq!(answer.status, Some(200), "{row}: {}", answer.text());
            let legs = world.engines.legs("decode");
            assert_eq!(legs.len(), 2, "{row}");
            assert_ne!(
                legs[0].body["bootstrap_room"],
                legs[1].body["bootstrap_room"]
            );
            let rid = legs[1].body["rid"].as_str().expect("a rid");
            assert!(rid.ends_with("-a2-decode"), "{rid}");
            world.at_rest();
        }
        // A refusal is the client's, and nobody is asked again.
        for leg in ["prefill", "decode"] {
            world.engines.reset();
            let other = if leg == "prefill" {
                "decode"
            } else {
                "prefill"
            };
            world
                .engines
                .script(&json!({leg: status(400), other: hang}));
            let answer = world.post(TEXT, &counted(true));
            assert_eq!(answer.status, Some(400), "{leg}");
            assert_eq!(answer.json()["error"]["message"], "no");
            assert_eq!(world.engines.legs("decode").len(), 1, "{leg}");
        }
    });
}

// proves R-LEG-5
#[test]
fn a_client_that_leaves_ends_both_legs() {
    everywhere(|setup| {
        let world = World::start(setup, &sglang());
        let hang = json!({"raw": [{"hang": true}]});
        world
            .engines
            .script(&json!({"prefill": hang, "decode": hang}));
        let mut client = world.connect();
        client.send(&client::post(TEXT, &counted(true)));
        world.until_leg("prefill", 1);
        world.until_leg("decode", 1);
        drop(client);
        for leg in ["prefill", "decode"] {
            let seen = world.engines.legs(leg)[0].clone();
            world.until(leg, |_| seen.client_disconnected().is_some());
        }
        assert_eq!(number(&world.at_rest(), "/cancelled"), 1);
    });
}

/// A kept client connection whose last prefill leg still drains when the next request comes.
// proves R-LEG-5
#[test]
fn what_drains_does_not_touch_the_next_request() {
    everywhere(|setup| {
        let world = World::start(setup, &sglang());
        let late = json!({"delay_ms": 20, "status": 500, "body": {"error": {"message": "late", "code": 500}}});
        world
            .engines
            .script(&json!({"prefill": [late, {"default": true}]}));
        let mut client = world.connect();
        for _ in 0..3 {
            client.send(&client::post(TEXT, &counted(true)));
            let answer = client.answer();
            assert_eq!(answer.status, Some(200), "{}", answer.text());
            assert!(answer.complete);
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/served"), 3);
        assert_eq!(number(&state, "/serving/retry_attempts"), 0);
    });
}

/// An SGLang engine does one role, whether or not the file pins it: on the other one it would end an answer after a token.
// proves R-LEG-5
#[test]
fn roles_are_fixed_where_engines_are_started_for_one() {
    everywhere(|setup| {
        let mut fleet = sglang();
        for n in 0..4 {
            fleet.file["engines"][n]["pin"] = json!(false);
        }
        let world = World::start(setup, &fleet);
        for _ in 0..4 {
            assert_eq!(world.post(TEXT, &counted(true)).status, Some(200));
        }
        for (leg, engines) in [("prefill", [0, 1]), ("decode", [2, 3])] {
            for seen in world.engines.legs(leg) {
                assert!(
                    engines.contains(&seen.engine),
                    "{leg} on engine {}",
                    seen.engine
                );
            }
        }
    });
}

fn plain() -> Fleet {
    let mut fleet = Fleet::new(&["both", "both"]).with("engine", "dialect", "openai");
    fleet.script = json!({"tokenize": {"status": 404, "body": {"detail": "Not Found"}}});
    fleet
}

// proves R-LEG-5, R-TOK-2
#[test]
fn a_plain_server_gets_one_leg_and_is_asked_for_usage_where_we_assemble() {
    let event =
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let usage = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9,\"total_tokens\":16}}\n\n";
    everywhere(|setup| {
        let world = World::start(setup, &plain());
        world
            .engines
            .script(&json!({"decode": {"chunks": [event, event, usage, DONE]}}));
        let answer = world.post(CHAT, &chat());
        assert_eq!(
            answer.json()["usage"]["completion_tokens"],
            9,
            "{}",
            answer.text()
        );
        let body = json!({"messages": [{"role": "user", "content": "x"}], "stream": true});
        let answer = world.post(CHAT, &body);
        assert_eq!(answer.status, Some(200));
        let legs = world.engines.legs("decode");
        assert_eq!(
            legs[0].body["stream_options"],
            json!({"include_usage": true})
        );
        for leg in &legs {
            for absent in [
                "return_token_ids",
                "stream_interval",
                "kv_transfer_params",
                "rid",
            ] {
                assert!(leg.body.get(absent).is_none(), "{absent}");
            }
        }
        assert!(legs[1].body.get("stream_options").is_none());
        assert!(world.engines.legs("prefill").is_empty());
        let state = world.at_rest();
        assert_eq!(state["token_accounting"], "unavailable");
        // Events with output, since nobody counts ids.
        assert_eq!(number(&state, "/serving/decode_tokens_observed"), 4);
        // A failed server is left for the other one.
        world
            .engines
            .script(&json!({"decode": [{"status": 503, "body": "x"}, {"default": true}]}));
        assert_eq!(world.post(CHAT, &chat()).status, Some(200));
    });
}

fn waiting(fleet: Fleet) -> Fleet {
    fleet.with("runtime", "client_keepalive_s", 0.05)
}

fn slow_then(steps: Value) -> Value {
    json!({"decode": {"delay_ms": 400, "chunks": steps}})
}

/// Status, headers and comments while the first token is awaited; then the stream as ever.
// proves R-SSE-6
#[test]
fn a_waiting_client_gets_comments() {
    everywhere(|setup| {
        let world = World::start(setup, &waiting(Fleet::pairs()));
        let events = json!([event("a"), {"delay_ms": 300}, event("b"), DONE]);
        world.engines.script(&slow_then(events));
        let mut client = world.connect();
        client.send(&client::post(TEXT, &counted(true)));
        // Before the engine has said anything.
        let early = client.begin_answer(10);
        assert_eq!(early.status, Some(200));
        assert!(
            early.text().starts_with(": keep-alive\n\n"),
            "{}",
            early.text()
        );
        let answer = world.post(TEXT, &counted(true));
        let text = answer.text();
        assert!(answer.complete && text.ends_with(DONE), "{text}");
        assert_eq!(texts(&text), "ab");
        assert!(answer.header("x-request-id").is_some());
        let between = text
            .split(&event("a").replace(",\"token_ids\":[1]", ""))
            .nth(1);
        assert!(
            between.is_some_and(|rest| rest.starts_with(": keep-alive\n\n")),
            "{text}"
        );
        // Who asks for one answer gets no byte before it.
        let whole = world.post(TEXT, &counted(false));
        assert_eq!(whole.json()["choices"][0]["text"], "ab", "{}", whole.text());
    });
}

fn last_error(setup: Setup, fleet: &Fleet, script: &Value) -> (Value, String, Value) {
    let world = World::start(setup, fleet);
    world.engines.script(script);
    let answer = world.post(TEXT, &counted(true));
    assert_eq!(answer.status, Some(200));
    assert!(answer.complete);
    let text = answer.text();
    let data = data_of(&text);
    let error: Value = serde_json::from_str(data.last().expect("an error")).expect("JSON");
    (error["error"].clone(), text, world.at_rest())
}

// proves R-SSE-6, R-FLT-4, R-ADM-8
#[test]
fn behind_an_early_head_failures_are_told_in_the_stream() {
    everywhere(|setup| {
        let fleet = waiting(Fleet::pairs());
        let fails = json!({"delay_ms": 200, "status": 500, "body": "x"});
        let (error, text, state) = last_error(setup, &fleet, &json!({"decode": fails}));
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("decode"), &json!("decode"))
        );
        assert!(
            !text.contains("[DONE]") && text.contains(": keep-alive"),
            "{text}"
        );
        // Comments are no output: the other attempt was made.
        assert_eq!(number(&state, "/serving/retry_attempts"), 1);
        assert_eq!(number(&state, "/failed"), 1);

        let refuses =
            json!({"delay_ms": 200, "status": 400, "body": {"error": {"message": "too long"}}});
        let (error, _, state) = last_error(setup, &fleet, &json!({"prefill": refuses}));
        assert_eq!(error["message"], "too long");
        assert_eq!(reason(&state, "invalid_requests", "engine_rejected"), 1);

        let short = waiting(Fleet::pairs()).with("serving", "request_timeout_s", 0.3);
        let (error, _, state) =
            last_error(setup, &short, &json!({"decode": {"raw": [{"hang": true}]}}));
        assert_eq!(
            error,
            json!({"message": "Request deadline expired", "type": "decode", "code": "expired"})
        );
        assert_eq!(reason(&state, "expired", "deadline"), 1);

        // A retry that succeeds goes on behind the same head.
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"decode": [fails, {"chunks": [event("a"), DONE]}]}));
        let answer = world.post(TEXT, &counted(true));
        assert_eq!(texts(&answer.text()), "a");
        assert!(answer.text().ends_with(DONE));
        assert_eq!(answer.text().matches("HTTP/1.1").count(), 0);
    });
}

/// Blocks that nobody fetched stay with the producer until the lease of `kv_lease_s` ends.
// proves R-LEG-8
#[test]
fn a_handoff_that_was_never_sent_is_counted_and_held() {
    everywhere(|setup| {
        let mut fleet = Fleet::new(&["prefill", "decode"]).with("engine", "kv_lease_s", 0.5);
        fleet.file["serving"]["max_attempts"] = json!(1);
        let dead = super::engine::Refusing::start();
        fleet.file["engines"][1]["url"] = json!(format!("http://127.0.0.1:{}", dead.port));
        let world = World::start(setup, &fleet);
        // The decode engine takes no connections, so no request could carry the handoff.
        let body = json!({"prompt": [1, 2, 3, 4, 5], "max_tokens": 2, "stream": true});
        let answer = world.post(TEXT, &body);
        assert_eq!(answer.status, Some(502), "{}", answer.text());
        let held = number(&world.state(), "/resident/e0/outstanding_tokens");
        assert_eq!(held, 5, "held until the lease ends");
        assert_eq!(
            number(&world.at_rest(), "/resident/e0/outstanding_tokens"),
            0
        );
        let metrics = world.ask(&client::get("/metrics")).text();
        assert!(
            metrics.contains("narwhal_orphaned_handoffs_total 1"),
            "{metrics}"
        );
    });
}
