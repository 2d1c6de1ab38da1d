//! The engines' side of the wire: pooled sockets that died, framings, refusals, and every way to break off.

use serde_json::{Value, json};

use super::client::{self, data_of};
use super::engine::Refusing;
use super::world::{Fleet, Setup, World, everywhere, in_each, number};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn prompt(stream: bool) -> Value {
    json!({"model": "stub-model", "prompt": "hello there", "max_tokens": 3, "stream": stream})
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

const DONE: &str = "data: [DONE]\n\n";

fn failed(phase: &str) -> (Value, Value, Value) {
    (json!(phase), json!(null), json!(phase))
}

/// An engine that closes a socket just as it is used again. Free of charge where the leg may be sent twice.
// proves R-LEG-6, R-FLT-4
#[test]
fn a_socket_that_died_in_the_pool_is_no_ones_fault() {
    everywhere(|setup| {
        // No retry is paid for.
        let fleet = Fleet::pair().with("serving", "max_attempts", 1);
        let world = World::start(setup, &fleet);
        let one = Fleet::new(&["both"]).with("serving", "max_attempts", 1);
        let alone = World::start(setup, &one);
        for (world, leg) in [
            (&world, "tokenize"),
            (&world, "prefill"),
            (&alone, "decode"),
        ] {
            for stream in [true, false] {
                world.engines.reset();
                let before = world.at_rest();
                // One connection, so one shard and one pool.
                let mut client = world.connect();
                client.send(&client::post(TEXT, &prompt(stream)));
                assert_eq!(client.answer().status, Some(200), "{leg}");
                // Which engine is asked for a count is the router's choice: each has a socket by then.
                let dead = json!({"raw": [{"close": true}]});
                world
                    .engines
                    .script(&json!({leg: [dead, {"default": true}]}));
                client.send(&client::post(TEXT, &prompt(stream)));
                let answer = client.answer();
                assert_eq!(answer.status, Some(200), "{leg}: {}", answer.text());
                let legs = world.engines.legs(leg);
                let reused: Vec<bool> = legs.iter().map(|leg| leg.nth > 1).collect();
                assert_eq!(reused.len(), 3, "{leg}: {reused:?}");
                assert!(reused[1], "{leg}: the test needs a used socket");
                assert!(!reused[2], "{leg}: the second try is on a fresh one");
                let after = world.at_rest();
                let grew = |pointer: &str| number(&after, pointer) - number(&before, pointer);
                assert_eq!(grew("/serving/retry_attempts"), 0, "{leg}");
                assert_eq!(grew("/serving/decode_attempts"), 2, "{leg}");
                assert_eq!(grew("/served"), 2, "{leg}");
            }
        }
    });
}

/// Two clients, the second of which waits for the first one's connection to the decode engine, a second and a half.
fn one_behind_another(world: &World) -> (client::Client, client::Client) {
    let slow = json!({"chunks": [event("a"), {"delay_ms": 1_500}, DONE]});
    let script = json!({"decode": [slow, {"default": true}]});
    world.engines.script(&script);
    let (mut first, mut second) = (world.connect(), world.connect());
    first.send(&client::post(TEXT, &counted(true)));
    world.until_leg("decode", 1);
    second.send(&client::post(TEXT, &counted(true)));
    (first, second)
}

/// With as many connections to an engine as it may have, the next leg waits for one of them, and for nothing else: whoever waited was
/// once woken and did not look, until some other event or its time-out came.
// proves R-FLT-1
#[test]
fn a_leg_that_waits_for_a_connection_goes_on_when_one_is_free() {
    // Both clients on one shard: pools are a shard's own.
    let setups: Vec<_> = Setup::all().into_iter().filter(|s| s.shards == 1).collect();
    in_each(&setups, |setup| {
        let fleet = Fleet::pair().with("engine", "pool_max", 1);
        // The engine's own time begins when the wait is over.
        let fleet = fleet.with("engine", "first_token_timeout_s", 1.0);
        // No clock of another kind may come to its help.
        let fleet = fleet
            .with("engine", "pool_timeout_s", 3600)
            .with("engine", "connect_timeout_s", 600)
            .with("runtime", "header_timeout_s", 600);
        let world = World::start(setup, &fleet);
        let (mut first, mut second) = one_behind_another(&world);
        world.until_leg("prefill", 2);
        for client in [&mut first, &mut second] {
            let answer = client.answer();
            assert_eq!(answer.status, Some(200), "{}", answer.text());
            assert!(answer.text().ends_with(DONE));
        }
        assert_eq!(number(&world.at_rest(), "/served"), 2);
    });
}

/// A handoff was sent however long its leg had waited for a connection.
// proves R-LEG-3
#[test]
fn a_handoff_that_grows_old_in_the_wait_for_a_connection_is_not_sent() {
    let setups: Vec<_> = Setup::all().into_iter().filter(|s| s.shards == 1).collect();
    in_each(&setups, |setup| {
        let fleet = Fleet::pair()
            .with("engine", "pool_max", 1)
            .with("engine", "kv_lease_s", 1)
            .with("serving", "max_attempts", 1);
        let world = World::start(setup, &fleet);
        let (mut first, mut second) = one_behind_another(&world);
        assert_eq!(first.answer().status, Some(200));
        let late = second.answer();
        assert_eq!(late.status, Some(504), "{}", late.text());
        assert_eq!(late.error().2, json!("handoff_expired"));
        assert_eq!(world.engines.legs("decode").len(), 1);
        assert_eq!(number(&world.at_rest(), "/served"), 1);
    });
}

/// A handoff is for one dispatch, so such a decode leg costs an attempt, but no credit.
// proves R-LEG-4, R-FLT-4
#[test]
fn a_decode_leg_on_a_socket_that_died_costs_an_attempt_and_no_credit() {
    everywhere(|setup| {
        let fleet =
            Fleet::pair()
                .with("serving", "retry_budget", 0)
                .with("serving", "retry_replenish", 0);
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        client.send(&client::post(TEXT, &prompt(true)));
        assert_eq!(client.answer().status, Some(200));
        let before = world.at_rest();
        let dead = json!({"raw": [{"close": true}]});
        world
            .engines
            .script(&json!({"decode": [dead, {"default": true}]}));
        client.send(&client::post(TEXT, &prompt(true)));
        let answer = client.answer();
        assert_eq!(answer.status, Some(200), "{}", answer.text());
        let legs = world.engines.legs("decode");
        assert!(legs[1].nth > 1, "the test needs a used socket");
        let ids = |leg: &str| -> Vec<String> {
            let legs = world.engines.legs(leg);
            let ids = legs
                .iter()
                .filter_map(|leg| leg.headers.get("x-request-id"));
            ids.cloned().collect()
        };
        assert!(ids("decode")[1].ends_with("-a1-decode"));
        assert!(ids("decode")[2].ends_with("-a2-decode"));
        assert!(ids("prefill")[2].ends_with("-a2-prefill"));
        let after = world.at_rest();
        let grew = |pointer: &str| number(&after, pointer) - number(&before, pointer);
        assert_eq!(grew("/serving/prefill_attempts"), 2);
        assert_eq!(grew("/serving/decode_attempts"), 2);
        // There are no credits: a fault that costs one is final.
        let fleet =
            Fleet::pairs()
                .with("serving", "retry_budget", 0)
                .with("serving", "retry_replenish", 0);
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"decode": [{"status": 500, "body": "x"}, {"default": true}]}));
        let answer = world.post(TEXT, &prompt(true));
        assert_eq!(answer.status, Some(502), "{}", answer.text());
        assert_eq!(answer.error(), failed("decode"));
        assert_eq!(number(&world.at_rest(), "/serving/retry_attempts"), 0);
    });
}

// proves R-LEG-6, R-FLT-4
#[test]
fn sockets_that_engines_closed_while_idle_are_not_used() {
    everywhere(|setup| {
        let fleet = Fleet::pair().with("serving", "max_attempts", 1);
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        let mut used = std::collections::BTreeSet::new();
        for round in 0..10 {
            world.engines.reset();
            client.send(&client::post(TEXT, &prompt(round % 2 == 0)));
            let answer = client.answer();
            assert_eq!(answer.status, Some(200), "{round}: {}", answer.text());
            let log = world.engines.log();
            let these: std::collections::BTreeSet<u64> =
                log.iter().map(|leg| leg.connection).collect();
            assert!(used.is_disjoint(&these), "{round}: {these:?}");
            used.extend(these);
            world.until("answers are read to their end", |world| {
                number(&world.state(), "/pools/legs_open") == 0
            });
            world.engines.close_idle();
            world.until("they are closed", |world| world.engines.connections() == 0);
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/serving/retry_attempts"), 0);
        assert_eq!(number(&state, "/failed"), 0);
    });
}

// proves R-LEG-6
#[test]
fn sockets_are_used_again_after_an_answers_last_chunk() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        let mut client = world.connect();
        const ROUNDS: usize = 8;
        for round in 0..ROUNDS {
            client.send(&client::post(TEXT, &prompt(round % 2 == 0)));
            assert_eq!(client.answer().status, Some(200));
            world.until("the socket is back", |world| {
                number(&world.state(), "/pools/legs_open") == 0
            });
        }
        // One connection to each engine carried them all.
        let connections: std::collections::BTreeSet<u64> = world
            .engines
            .log()
            .iter()
            .map(|leg| leg.connection)
            .collect();
        assert_eq!(world.engines.log().len(), 3 * ROUNDS);
        assert_eq!(connections.len(), 2, "{connections:?}");
    });
}

// proves R-LEG-6
#[test]
fn a_socket_with_bytes_behind_the_answer_is_not_used_again() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    let body = r#"{"count":3,"max_model_len":9,"tokens":[1,2,3]}"#;
    let length = body.len();
    let rows = [
        (
            "more bytes",
            format!("{head}content-length: {length}\r\n\r\n{body}HTTP/1.1 200 OK\r\n"),
        ),
        (
            "close",
            format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}"),
        ),
        (
            "HTTP/1.0",
            format!("HTTP/1.0 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"),
        ),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::new(&["both"]));
        for (row, raw) in &rows {
            world.engines.reset();
            world
                .engines
                .script(&json!({"tokenize": [{"raw": [raw]}, {"default": true}]}));
            let mut client = world.connect();
            client.send(&client::post(TEXT, &prompt(false)));
            let answer = client.answer();
            assert_eq!(answer.status, Some(200), "{row}: {}", answer.text());
            let log = world.engines.log();
            assert_ne!(log[0].connection, log[1].connection, "{row}");
        }
    });
}

// proves R-FLT-1, R-ADM-10
#[test]
fn an_engines_refusal_reaches_the_client_in_its_words() {
    let long = "é".repeat(5000);
    let rows: Vec<(&str, u16, Value, Option<String>)> = vec![
        (
            "plain",
            400,
            json!({"error": {"message": "no such adapter"}}),
            Some("no such adapter".into()),
        ),
        (
            "top level",
            422,
            json!({"object": "error", "message": "bad shape"}),
            Some("bad shape".into()),
        ),
        ("detail", 413, json!({"detail": "too big"}), None),
        (
            "control characters",
            400,
            json!({"error": {"message": "a\u{1b}[31m\u{0}b\nc\u{7f}\u{85}"}}),
            None,
        ),
        ("long", 400, json!({"error": {"message": long}}), None),
        ("not JSON", 400, json!("<html>no</html>"), None),
        ("no message", 400, json!({"error": {}}), None),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for leg in ["tokenize", "prefill", "decode"] {
            for (row, status, body, message) in &rows {
                let row = format!("{leg}, {row}");
                world.engines.reset();
                world
                    .engines
                    .script(&json!({leg: {"status": status, "body": body}}));
                let before = world.at_rest();
                for stream in [true, false] {
                    let answer = world.post(TEXT, &prompt(stream));
                    assert_eq!(answer.status, Some(*status), "{row}: {}", answer.text());
                    let error = answer.json()["error"].clone();
                    assert_eq!(error["type"], "invalid_request_error", "{row}");
                    let said = error["message"].as_str().expect(&row);
                    assert!(
                        !said.is_empty() && said.len() <= 1024,
                        "{row}: {}",
                        said.len()
                    );
                    let bare = answer.text().chars().any(char::is_control);
                    assert!(!bare, "{row}: {:?}", answer.text());
                    if let Some(message) = message {
                        assert_eq!(said, message, "{row}");
                    }
                }
                let after = world.at_rest();
                let pointer = "/outcome_reasons/invalid_requests/engine_rejected";
                assert_eq!(
                    number(&after, pointer),
                    number(&before, pointer) + 2,
                    "{row}"
                );
                assert_eq!(number(&after, "/serving/retry_attempts"), 0, "{row}");
            }
        }
    });
}

// proves R-FLT-2, R-FLT-4, R-SSE-5
#[test]
fn an_engine_that_dies_after_output_ends_the_stream_with_an_error() {
    let rows = [
        ("FIN", json!({"close": true})),
        ("RST", json!({"reset": true})),
        ("silence", json!({"hang": true})),
        (
            "an error",
            json!("data: {\"error\":{\"message\":\"secret\",\"code\":500}}\n\ndata: [DONE]\n\n"),
        ),
        (
            "no ids",
            json!("data: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n"),
        ),
        ("a bad chunk", json!({"hex": "0a"})),
    ];
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("engine", "decode_read_timeout_s", 0.3);
        let world = World::start(setup, &fleet);
        for (row, end) in &rows {
            world.engines.reset();
            let mut broken = json!({"chunks": [event("a"), event("b"), end]});
            if *row == "a bad chunk" {
                let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                let (a, b) = (event("a"), event("b"));
                let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
                broken = json!({"raw": [head, chunk(&a), chunk(&b), "zz\r\n", {"hang": true}]});
            }
            world
                .engines
                .script(&json!({"decode": [broken, {"default": true}]}));
            let answer = world.post(TEXT, &counted(true));
            assert_eq!(answer.status, Some(200), "{row}: {}", answer.text());
            assert!(answer.complete, "{row}: a clean end");
            let text = answer.text();
            let data = data_of(&text);
            assert_eq!(data.len(), 3, "{row}: {text}");
            let last: Value = serde_json::from_str(&data[2]).expect(row);
            let want = json!({"error": {"message": "Upstream request failed", "type": "decode", "code": "failed"}});
            assert_eq!(last, want, "{row}");
            assert!(!text.contains("secret") && !text.contains("DONE"), "{row}");

            // Nothing of an assembled answer is out: it may be tried again.
            world
                .engines
                .script(&json!({"decode": [broken, {"default": true}]}));
            let answer = world.post(TEXT, &counted(false));
            assert_eq!(answer.status, Some(200), "{row}: {}", answer.text());
            assert_eq!(answer.json()["choices"][0]["text"], " w7 w7 w7", "{row}");
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/failed"), rows.len() as u64);
        assert_eq!(number(&state, "/serving/retry_attempts"), rows.len() as u64);
    });
}

// proves R-FLT-1, R-FLT-4
#[test]
fn an_engine_that_refuses_connections_is_avoided() {
    everywhere(|setup| {
        let refusing = Refusing::start();
        let url = format!("http://127.0.0.1:{}", refusing.port);
        for role in ["prefill", "decode"] {
            // The others of its role work.
            let at = if role == "prefill" { 0 } else { 2 };
            let mut fleet = Fleet::pairs();
            fleet.file["engines"][at]["url"] = json!(url);
            let world = World::start(setup, &fleet);
            for _ in 0..6 {
                let answer = world.post(TEXT, &counted(true));
                assert_eq!(answer.status, Some(200), "{role}: {}", answer.text());
            }
            assert_eq!(number(&world.at_rest(), "/served"), 6, "{role}");
        }
        // None of its role works. Its last engine stays in placement until it is found unreachable.
        for role in ["prefill", "decode"] {
            let at = if role == "prefill" { 0 } else { 1 };
            let mut fleet = Fleet::pair();
            fleet.file["engines"][at]["url"] = json!(url);
            fleet.await_ready = false;
            let world = World::start(setup, &fleet);
            let answer = world.post(TEXT, &counted(true));
            let error = answer.error();
            match answer.status {
                Some(502) => assert_eq!(error, failed(role)),
                Some(503) => assert_eq!(error.0, "backend_unavailable", "{role}"),
                _ => panic!("{role}: {}", answer.text()),
            }
            world.at_rest();
        }
    });
}

// proves R-LEG-6, R-SSE-1
#[test]
fn every_framing_of_an_engine_is_read() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let stream = format!("{}{}{DONE}", event("a"), event("b"));
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let (half, rest) = stream.split_at(stream.len() / 2);
    let sized = format!("{ok}content-length: {}\r\n\r\n", stream.len());
    let close = json!({"close": true});
    let rows: Vec<(&str, Value)> = vec![
        (
            "length",
            json!({"framing": "length", "chunks": [half, rest]}),
        ),
        ("close", json!({"framing": "close", "chunks": [half, rest]})),
        (
            "no framing at all",
            json!({"raw": [ok, "\r\n", half, rest, close]}),
        ),
        (
            "HTTP/1.0",
            json!({"raw": ["HTTP/1.0 200 OK\r\n\r\n", half, rest, close]}),
        ),
        (
            "length, in one write",
            json!({"raw": [format!("{sized}{stream}")]}),
        ),
        (
            "1xx before it",
            json!({"raw": [
                "HTTP/1.1 100 Continue\r\n\r\n",
                format!("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n{sized}"),
                stream,
            ]}),
        ),
        (
            "extensions, trailers, any case",
            json!({"raw": [
                format!("{ok}Transfer-Encoding: CHUNKED\r\n\r\n{:X} ; x=y\r\n{half}\r\n", half.len()),
                format!("{}0\r\nx-trailer: 1\r\n\r\n", chunk(rest)),
            ]}),
        ),
        (
            "a chunk for every byte",
            json!({"raw": [
                format!("{ok}transfer-encoding: chunked\r\n\r\n"),
                stream.bytes().map(|b| chunk(&char::from(b).to_string())).collect::<String>() + "0\r\n\r\n",
            ]}),
        ),
        (
            "no last chunk",
            json!({"raw": [format!("{ok}transfer-encoding: chunked\r\n\r\n{}", chunk(&stream)), close]}),
        ),
        (
            "CRLF lines",
            json!({"chunks": [stream.replace('\n', "\r\n")]}),
        ),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for (row, step) in &rows {
            for stream in [true, false] {
                world.engines.reset();
                world.engines.script(&json!({"decode": step}));
                let answer = world.post(TEXT, &counted(stream));
                assert_eq!(answer.status, Some(200), "{row}: {}", answer.text());
                assert!(answer.complete, "{row}");
                let text = if stream {
                    let data = data_of(&answer.text());
                    assert_eq!(data.last().map(String::as_str), Some("[DONE]"), "{row}");
                    let texts = data.iter().filter_map(|data| {
                        let event: Value = serde_json::from_str(data).ok()?;
                        Some(event["choices"][0]["text"].as_str()?.to_owned())
                    });
                    texts.collect()
                } else {
                    let answer = answer.json();
                    answer["choices"][0]["text"].as_str().expect(row).to_owned()
                };
                assert_eq!(text, "ab", "{row}");
            }
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/serving/retry_attempts"), 0);
    });
}

// proves R-LEG-6, R-FLT-1, R-FLT-4
#[test]
fn what_is_not_http_fails_the_attempt() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let close = json!({"close": true});
    let big = format!("{ok}x: {}\r\n", "y".repeat(70_000));
    let many = format!("{ok}{}", "x: y\r\n".repeat(150));
    let rows: Vec<(&str, Value)> = vec![
        ("nothing", json!([close])),
        ("a reset", json!([{"reset": true}])),
        ("half a head", json!([ok, close])),
        ("no HTTP", json!(["220 mail.example ESMTP\r\n\r\n", close])),
        ("HTTP/2", json!(["HTTP/2 200\r\n\r\n"])),
        ("a bad status", json!(["HTTP/1.1 2000 OK\r\n\r\n"])),
        (
            "another protocol",
            json!(["HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n"]),
        ),
        (
            "length and coding",
            json!([format!(
                "{ok}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            )]),
        ),
        (
            "two lengths",
            json!([format!(
                "{ok}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}"
            )]),
        ),
        (
            "a signed length",
            json!([format!("{ok}content-length: +2\r\n\r\n{{}}")]),
        ),
        ("a folded field", json!([format!("{ok}x: y\r\n z\r\n\r\n")])),
        (
            "a bad chunk size",
            json!([format!("{ok}transfer-encoding: chunked\r\n\r\nzz\r\n")]),
        ),
        (
            "another coding",
            json!([format!(
                "{ok}transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
            )]),
        ),
        ("a big head", json!([big, {"hang": true}])),
        ("many fields", json!([many, "\r\n"])),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for leg in ["prefill", "decode"] {
            for (row, raw) in &rows {
                let row = format!("{leg}, {row}");
                world.engines.reset();
                world.engines.script(&json!({leg: {"raw": raw}}));
                let before = world.at_rest();
                let answer = world.post(TEXT, &counted(true));
                assert_eq!(answer.status, Some(502), "{row}: {}", answer.text());
                assert_eq!(answer.error(), failed(leg), "{row}");
                let after = world.at_rest();
                let grew = |pointer: &str| number(&after, pointer) - number(&before, pointer);
                assert_eq!(grew("/serving/retry_attempts"), 1, "{row}");
                assert_eq!(world.engines.legs(leg).len(), 2, "{row}");
            }
        }
    });
}

/// A chunked answer of a prefill engine, or one that ends with its connection, is as good as a sized one.
// proves R-LEG-3, R-LEG-6
#[test]
fn a_prefill_answer_may_come_in_any_framing() {
    let handoff = json!({"remote_engine_id": "e", "remote_block_ids": [[1, 2]], "x": 1.50});
    let answer = json!({"choices": [{"index": 0}], "kv_transfer_params": handoff}).to_string();
    let (half, rest) = answer.split_at(20);
    let headers = json!({"content-type": "application/json"});
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for framing in ["chunked", "length", "close"] {
            world.engines.reset();
            world.engines.script(&json!({
                "prefill": {"framing": framing, "headers": headers, "chunks": [half, {"delay_ms": 5}, rest]},
            }));
            let got = world.post(
                CHAT,
                &json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
            );
            assert_eq!(got.status, Some(200), "{framing}: {}", got.text());
            let legs = world.engines.legs("decode");
            let raw = String::from_utf8_lossy(&legs[0].raw);
            // Verbatim.
            assert!(raw.contains(&handoff.to_string()), "{framing}: {raw}");
        }
    });
}

// proves R-REQ-7, R-REQ-3, R-LEG-2, R-LEG-4
#[test]
fn engines_get_the_clients_bytes() {
    let kept = r#""temperature":1.50,"seed":123456789012345678901234567890,"user":"\u0041\/\ud83d\ude00","x y":[1e4,-0, {"n":2}]"#;
    let prompt = r#""prompt":[1,2,3]"#;
    let body = format!(
        "{{ {kept} ,\"kv_transfer_params\":{{\"a\":1}},{prompt},\"n\":1,\"min_tokens\":2,\
         \"kv_transfer\\u005fparams\":[7],\"stream\":true,\"max_tokens\":2,\"ec_transfer_params\":{{}},\
         \"stream_options\":{{\"include_usage\":true}},\"kv_transfer_params\":9}}"
    );
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        let answer = world.ask(&client::post_bytes(TEXT, body.as_bytes()));
        assert_eq!(answer.status, Some(200), "{}", answer.text());
        assert!(answer.text().contains("\"usage\""), "{}", answer.text());
        let leg = |name: &str| {
            let legs = world.engines.legs(name);
            assert_eq!(legs.len(), 1, "{name}");
            String::from_utf8(legs[0].raw.clone()).expect("UTF-8")
        };
        let (prefill, decode) = (leg("prefill"), leg("decode"));
        for (name, raw) in [("prefill", &prefill), ("decode", &decode)] {
            assert!(raw.contains(kept) && raw.contains(prompt), "{name}: {raw}");
            assert!(!raw.contains("ec_transfer"), "{name}: {raw}");
            assert!(!raw.contains("u005f"), "{name}: {raw}");
            assert_eq!(
                raw.matches("kv_transfer_params").count(),
                1,
                "{name}: {raw}"
            );
            assert_eq!(raw.matches("\"max_tokens\"").count(), 1, "{name}: {raw}");
            assert_eq!(raw.matches("\"stream\"").count(), 1, "{name}: {raw}");
        }
        assert!(prefill.contains("\"kv_transfer_params\":{\"do_remote_decode\":true}"));
        for gone in ["stream_options", "min_tokens", "\"n\":1"] {
            assert!(!prefill.contains(gone), "{gone}: {prefill}");
        }
        assert!(decode.contains("\"stream_options\":{\"include_usage\":true}"));
        assert!(decode.contains("\"min_tokens\":2"));
    });
}
