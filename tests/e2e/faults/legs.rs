//! Two legs and what engines answer to them: what each is asked, who is told of which failure, and what is left behind by it.

use serde_json::{Value, json};

use super::super::client::{self, PATIENCE, data_of};
use super::super::engine::Refusing;
use super::super::world::{Fleet, World, everywhere, number, reason};
use super::notation::{DONE, FAILED};
use super::{TEXT, counted, event, once, refused, served};

/// The last leg of a kind, as the engine read it.
fn last(world: &World, leg: &str) -> Value {
    let legs = world.engines.legs(leg);
    legs.last().expect("a leg").body.clone()
}

fn has(body: &Value, name: &str) -> bool {
    body.get(name).is_some()
}

/// A prefill leg asks for one token and no stream, so nothing that belongs to more may ride on it; a decode leg has what the client
/// wrote, and nothing that it did not.
// proves R-LEG-2, R-LEG-4, R-REQ-7
#[test]
fn options_of_a_stream_stay_with_the_stream() {
    let streaming = [
        "stream_options",
        "min_tokens",
        "n",
        "best_of",
        "max_completion_tokens",
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        for stream in [true, false] {
            let mut body = counted(stream);
            for (name, value) in [
                ("min_tokens", json!(2)),
                ("n", json!(1)),
                ("best_of", json!(1)),
                ("max_completion_tokens", json!(3)),
                ("temperature", json!(0.5)),
            ] {
                body[name] = value;
            }
            if stream {
                body["stream_options"] = json!({"include_usage": true});
            }
            served(&world.post(TEXT, &body), "all options");
            let (prefill, decode) = (last(&world, "prefill"), last(&world, "decode"));
            assert_eq!(prefill["stream"], false);
            assert_eq!(prefill["max_tokens"], 1);
            assert_eq!(prefill["temperature"], 0.5);
            for name in streaming {
                assert!(!has(&prefill, name), "{name}");
                assert_eq!(decode.get(name), body.get(name), "{name}");
            }
        }
        // What a client leaves out stays out, and a null stays a null.
        for (given, body) in [
            (None, json!({"prompt": [1, 2]})),
            (
                Some(json!(null)),
                json!({"prompt": [1, 2], "max_tokens": null}),
            ),
        ] {
            served(&world.post(TEXT, &body), "no limit");
            let decode = last(&world, "decode");
            assert_eq!(decode.get("max_tokens"), given.as_ref());
            for name in streaming {
                assert!(!has(&decode, name), "{name}");
            }
            assert_eq!(last(&world, "prefill")["max_tokens"], 1);
        }
    });
}

const REPEATS: u64 = 500;

/// The handoff is there and nobody takes it: whatever was held for the attempt goes back, each time.
// proves R-ADM-10, R-LEG-8, R-FLT-1, R-FLT-4
#[test]
fn a_decode_engine_that_is_gone_leaves_nothing_behind() {
    everywhere(|setup| {
        let dead = Refusing::start();
        let mut fleet = once(Fleet::pair()).with("serving", "max_connections", 4);
        fleet.file["engines"][1]["url"] = json!(format!("http://127.0.0.1:{}", dead.port));
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        for n in 0..REPEATS {
            client.send(&client::post(TEXT, &counted(n % 2 == 0)));
            refused(&client.answer(), 502, "decode", "refused");
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/failed"), REPEATS);
        assert_eq!(number(&state, "/serving/prefill_attempts"), REPEATS);
        let metrics = world.ask(&client::get("/metrics")).text();
        let orphans = format!("narwhal_orphaned_handoffs_total {REPEATS}");
        assert!(metrics.contains(&orphans), "{metrics}");
    });
}

/// Between the two legs: the prompt is read, and the phase behind it is full.
// proves R-HTTP-5, R-ADM-11, R-LEG-8
#[test]
fn clients_that_leave_between_the_legs_leave_nothing_behind() {
    everywhere(|setup| {
        let fleet = Fleet::pair().with("serving", "decode_concurrency", 1);
        let world = World::start(setup, &fleet);
        let endless = json!({"chunks": [event("a"), {"hang": true}]});
        world
            .engines
            .script(&json!({"decode": [endless, {"default": true}]}));
        let mut first = world.connect();
        first.send(&client::post(TEXT, &counted(true)));
        assert_eq!(first.begin_answer(1).status, Some(200));
        let waiting = |world: &World| number(&world.state(), "/admission/phase_waiting/decode");
        for round in 0..5 {
            let clients: Vec<_> = (0..20)
                .map(|n| {
                    let mut client = world.connect();
                    client.send(&client::post(TEXT, &counted(n % 2 == 0)));
                    client
                })
                .collect();
            world.until("all wait", |world| waiting(world) == 20);
            for client in clients {
                match round % 2 {
                    0 => client.reset(),
                    _ => drop(client),
                }
            }
            world.until("all are gone", |world| waiting(world) == 0);
        }
        assert_eq!(world.engines.legs("decode").len(), 1);
        drop(first);
        let state = world.at_rest();
        assert_eq!(number(&state, "/cancelled"), 101);
        served(&world.post(TEXT, &counted(true)), "after them");
        assert_eq!(world.state()["ejected"], json!([]));
    });
}

/// The decode engine found the whole prompt in the KV that it was handed: that is no hit of a cache, and is not shown as one.
// proves R-ASM-2, R-SSE-4
#[test]
fn what_was_handed_over_is_no_cache_hit() {
    let usage = |details: Value| {
        let mut usage = json!({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4});
        if !details.is_null() {
            usage["prompt_tokens_details"] = details;
        }
        usage
    };
    let all = json!({"cached_tokens": 3});
    let handoff = json!({"remote_engine_id": "e", "remote_block_ids": [1]});
    // What the prefill engine says, and what is shown.
    let rows = [
        (all.clone(), all.clone()),
        (json!({"cached_tokens": 0}), json!({"cached_tokens": 0})),
        (json!({"cached_tokens": 2}), json!({"cached_tokens": 2})),
        (Value::Null, Value::Null),
        (json!({"cached_tokens": null}), Value::Null),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        let last = json!({"id": "c", "choices": [], "usage": usage(all.clone())});
        let decode = json!({"chunks": [event("a"), format!("data: {last}\n\n"), DONE]});
        for (said, shown) in &rows {
            let prefill =
                json!({"choices": [], "usage": usage(said.clone()), "kv_transfer_params": handoff});
            world
                .engines
                .script(&json!({"prefill": {"body": prefill}, "decode": decode}));
            let answer = world.post(TEXT, &counted(false));
            served(&answer, "assembled");
            assert_eq!(answer.json()["usage"], usage(shown.clone()), "{said}");
            // A stream is the engine's own.
            let stream = world.post(TEXT, &counted(true));
            assert!(
                stream.text().contains(&last.to_string()),
                "{}",
                stream.text()
            );
        }
        // In one leg it is the engine's own cache.
        let one = World::start(setup, &Fleet::new(&["both"]));
        one.engines.script(&json!({"decode": decode}));
        let answer = one.post(TEXT, &counted(false));
        assert_eq!(answer.json()["usage"], usage(all.clone()));
    });
}

/// An answer of 200 that holds an error, from either leg and in any of its shapes, is that error.
// proves R-FLT-1, R-FLT-3, R-FLT-4
#[test]
fn an_error_in_a_good_status_is_an_error() {
    let error = |code: Value| json!({"error": {"message": "no such adapter", "code": code}});
    let top = json!({"object": "error", "message": "no such adapter", "code": 400});
    // Body, status and type at the client, attempts.
    let rows = [
        (error(json!(400)), 400, "invalid_request_error", 1),
        (top, 400, "invalid_request_error", 1),
        (error(json!(422)), 422, "invalid_request_error", 1),
        (error(json!(429)), 502, "", 2),
        (error(json!(503)), 502, "", 2),
        (error(json!(504)), 504, "", 2),
        (error(json!(401)), 502, "", 1),
        (error(json!("x")), 502, "", 2),
        (error(Value::Null), 502, "", 2),
        (json!({"error": "x"}), 502, "", 2),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for leg in ["prefill", "decode"] {
            for (body, status, kind, attempts) in &rows {
                let row = format!("{leg} {body}");
                let kind = if kind.is_empty() { leg } else { kind };
                for stream in [true, false] {
                    world.engines.reset();
                    world.engines.script(&json!({leg: {"body": body}}));
                    let answer = world.post(TEXT, &counted(stream));
                    refused(&answer, *status, kind, &row);
                    assert_eq!(world.engines.legs(leg).len(), *attempts, "{row}");
                    let passed = answer.text().contains("no such adapter");
                    assert_eq!(passed, kind == "invalid_request_error", "{row}");
                }
            }
        }
    });
}

/// Before any output a stream's client gets the status, not the head of a stream that holds an error.
// proves R-FLT-1, R-FLT-4, R-SSE-3
#[test]
fn a_streams_refusal_keeps_its_status() {
    let error = json!({"error": {"message": "bad", "code": 400}});
    let close = json!({"close": true});
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let rows = [
        (
            "400",
            json!({"status": 400, "body": error}),
            400,
            "invalid_request_error",
            1,
        ),
        (
            "422",
            json!({"status": 422, "body": {"detail": []}}),
            422,
            "invalid_request_error",
            1,
        ),
        (
            "503",
            json!({"status": 503, "body": "busy"}),
            502,
            "decode",
            2,
        ),
        (
            "429",
            json!({"status": 429, "body": "busy"}),
            502,
            "decode",
            2,
        ),
        ("closes", json!({"raw": [close]}), 502, "decode", 2),
        (
            "resets",
            json!({"raw": [{"reset": true}]}),
            502,
            "decode",
            2,
        ),
        (
            "a head and closes",
            json!({"raw": [head, close]}),
            502,
            "decode",
            2,
        ),
        (
            "a comment and closes",
            json!({"chunks": [": hi\n\n", close]}),
            502,
            "decode",
            2,
        ),
        (
            "204",
            json!({"raw": ["HTTP/1.1 204 X\r\n\r\n"]}),
            502,
            "decode",
            1,
        ),
        (
            "301",
            json!({"status": 301, "headers": {"location": "/x"}, "body": ""}),
            502,
            "decode",
            1,
        ),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for (row, step, status, kind, attempts) in &rows {
            world.engines.reset();
            world.engines.script(&json!({"decode": step}));
            refused(&world.post(TEXT, &counted(true)), *status, kind, row);
            assert_eq!(world.engines.legs("decode").len(), *attempts, "{row}");
        }
    });
}

/// A time-out is 504, any other fault 502, in every leg.
// proves R-FLT-1
#[test]
fn time_outs_are_told_from_faults() {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let rows = [
        ("no answer", json!({"raw": [{"hang": true}]}), 504),
        (
            "half a head and silence",
            json!({"raw": ["HTTP/1.1 200 OK\r\n", {"hang": true}]}),
            504,
        ),
        (
            "a head and silence",
            json!({"raw": [head, {"hang": true}]}),
            504,
        ),
        (
            "a reset behind the head",
            json!({"raw": [head, {"reset": true}]}),
            502,
        ),
        ("a reset", json!({"raw": [{"reset": true}]}), 502),
        ("408", json!({"status": 408, "body": "x"}), 504),
        ("504", json!({"status": 504, "body": "x"}), 504),
        ("500", json!({"status": 500, "body": "x"}), 502),
        ("503", json!({"status": 503, "body": "x"}), 502),
    ];
    everywhere(|setup| {
        let fleet = once(Fleet::pair())
            .with("serving", "prefill_timeout_s", 0.25)
            .with("engine", "first_token_timeout_s", 0.25)
            .with("engine", "tokenize_timeout_s", 0.25);
        let world = World::start(setup, &fleet);
        let sized = json!({"prompt": "hello there", "max_tokens": 3, "stream": true});
        for (leg, phase) in [
            ("tokenize", "admission"),
            ("prefill", "prefill"),
            ("decode", "decode"),
        ] {
            for (row, step, status) in &rows {
                world.engines.reset();
                world.engines.script(&json!({leg: step}));
                let row = format!("{leg}, {row}");
                refused(&world.post(TEXT, &sized), *status, phase, &row);
            }
        }
        for (at, phase) in [(0, "prefill"), (1, "decode")] {
            let dead = Refusing::start();
            let mut fleet = fleet.clone();
            fleet.await_ready = false;
            fleet.file["engines"][at]["url"] = json!(format!("http://127.0.0.1:{}", dead.port));
            let world = World::start(setup, &fleet);
            refused(&world.post(TEXT, &counted(true)), 502, phase, "refused");
        }
    });
}

/// A client's bad requests are no evidence against the engines that say so.
// proves R-FLT-1, R-CTL-3
#[test]
fn refusals_do_not_take_an_engine_out() {
    everywhere(|setup| {
        let mut fleet = Fleet::pair();
        fleet.file["recovery"] = json!({"eject_after": 2, "liveness_every": 0});
        let world = World::start(setup, &fleet);
        let error = json!({"error": {"message": "bad", "code": 400}});
        for leg in ["tokenize", "prefill", "decode"] {
            for status in [400, 413, 422, 404] {
                world.engines.reset();
                world
                    .engines
                    .script(&json!({leg: {"status": status, "body": error}}));
                for _ in 0..5 {
                    let body = json!({"prompt": "hello", "max_tokens": 1});
                    let answer = world.post(TEXT, &body);
                    // An engine without a tokenizer's page is no fault.
                    let fine = leg == "tokenize" && status == 404;
                    assert_eq!(
                        answer.status == Some(200),
                        fine,
                        "{leg} {status}: {}",
                        answer.text()
                    );
                }
            }
        }
        world.engines.reset();
        served(&world.post(TEXT, &counted(false)), "a good one");
        assert_eq!(world.at_rest()["ejected"], json!([]));
        assert_eq!(number(&world.state(), "/health/available_instances"), 2);
    });
}

/// Silence after a token ends at the limit between tokens; without one, at the request's deadline.
// proves R-FLT-2, R-FLT-3, R-ADM-8
#[test]
fn silence_between_tokens_has_an_end() {
    let expired = "data: {\"error\":{\"message\":\"Request deadline expired\",\"type\":\"decode\",\"code\":\"expired\"}}\n\n";
    // Limit between tokens, the request's own, how it ends.
    let rows = [
        (0.3, 30.0, FAILED),
        (0.0, 0.6, expired),
        (30.0, 0.6, expired),
    ];
    everywhere(|setup| {
        for (gap, deadline, end) in rows {
            let fleet = once(Fleet::pair())
                .with("engine", "decode_read_timeout_s", gap)
                .with("serving", "request_timeout_s", deadline);
            let world = World::start(setup, &fleet);
            world
                .engines
                .script(&json!({"decode": {"chunks": [event("a"), {"hang": true}]}}));
            let answer = world.post(TEXT, &counted(true));
            served(&answer, end);
            assert!(answer.text().ends_with(end), "{gap}: {}", answer.text());
            assert_eq!(data_of(&answer.text()).len(), 2);
            world.until("the engine is left", |world| {
                let legs = world.engines.legs("decode");
                legs.iter().all(|leg| leg.client_disconnected().is_some())
            });
            let state = world.at_rest();
            let ends = reason(&state, "expired", "deadline") + number(&state, "/failed");
            assert_eq!(ends, 1);
            let assembled = world.post(TEXT, &counted(false));
            assert_eq!(assembled.status, Some(504), "{gap}: {}", assembled.text());
        }
    });
}

/// No limit but those of the request, of the gap and of the client's reading ends a stream that goes on.
// proves R-FLT-3, R-ADM-8
#[test]
fn a_healthy_stream_outlives_every_other_limit() {
    everywhere(|setup| {
        let mut fleet = once(Fleet::pair());
        for (group, key) in [
            ("engine", "first_token_timeout_s"),
            ("engine", "connect_timeout_s"),
            ("engine", "pool_timeout_s"),
            ("engine", "tokenize_timeout_s"),
            ("engine", "decode_read_timeout_s"),
            ("engine", "health_timeout_s"),
            ("serving", "prefill_timeout_s"),
            ("runtime", "header_timeout_s"),
            ("runtime", "body_idle_timeout_s"),
            ("runtime", "keepalive_idle_s"),
            ("runtime", "client_write_stall_s"),
        ] {
            fleet = fleet.with(group, key, 0.5);
        }
        let world = World::start(setup, &fleet);
        const EVENTS: usize = 12;
        world.engines.script(&json!({"decode": {"chunks": [
            {"repeat": EVENTS, "text": event("a"), "delay_ms": 150}, DONE,
        ]}}));
        for stream in [true, false] {
            let mut client = world.connect();
            client.send(&client::post(TEXT, &counted(stream)));
            let answer = client.answer_within(PATIENCE);
            served(&answer, "a slow stream");
            assert!(answer.text().matches('a').count() >= EVENTS);
        }
        assert_eq!(number(&world.at_rest(), "/served"), 2);
    });
}
