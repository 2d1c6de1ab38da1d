//! The client's side of the wire, with raw sockets.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{self, Answer, Client, PATIENCE, get, head, post};
use super::world::{Fleet, World, everywhere, number, open_connections, poll, reason};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn prompt(stream: bool) -> Value {
    json!({"model": "stub-model", "prompt": "hello there", "max_tokens": 3, "stream": stream})
}

fn assert_served(answer: &Answer, stream: bool, row: &str) {
    assert_eq!(answer.status, Some(200), "{row}: {}", answer.text());
    assert!(answer.complete, "{row}");
    if stream {
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{row}");
        assert_eq!(answer.header("cache-control"), Some("no-cache"), "{row}");
        assert_eq!(answer.header("x-accel-buffering"), Some("no"), "{row}");
    } else {
        assert_eq!(answer.json()["choices"][0]["text"], " w7 w7 w7", "{row}");
    }
    assert!(answer.header("x-request-id").is_some(), "{row}");
}

fn assert_refused(answer: &Answer, status: u16, kind: &str, row: &str) {
    assert_eq!(answer.status, Some(status), "{row}: {}", answer.text());
    assert!(answer.complete, "{row}");
    assert_eq!(answer.json()["error"]["type"], kind, "{row}");
}

// proves R-HTTP-1, R-HTTP-4, R-HTTP-8
#[test]
fn pipelined_requests_are_answered_in_order() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        let wire = [
            post(TEXT, &prompt(false)),
            get("/health"),
            post(TEXT, &prompt(true)),
        ]
        .concat();
        for piece in [wire.len(), 700, 61, 7] {
            let mut client = world.connect();
            for piece in wire.chunks(piece) {
                client.send(piece);
            }
            assert_served(&client.answer(), false, "first");
            let health = client.answer();
            assert_eq!(health.status, Some(200));
            assert_eq!(health.json()["status"], "ok");
            assert_served(&client.answer(), true, "third");
            // And the connection goes on.
            client.send(&get("/v1/models"));
            let models = client.answer();
            assert_eq!(models.json()["data"][0]["id"], "stub-model");
        }
        assert_eq!(number(&world.at_rest(), "/served"), 8);
    });
}

/// The second of two requests waits unheard while the first runs.
// proves R-HTTP-1, R-HTTP-8
#[test]
fn a_pipelined_request_arrives_when_its_turn_comes() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        world
            .engines
            .script(&json!({"prefill": [{"default": true}, {"raw": [{"hang": true}]}]}));
        let mut client = world.connect();
        client.send(&[post(TEXT, &prompt(true)), post(TEXT, &prompt(true))].concat());
        assert_served(&client.answer(), true, "first");
        world.until_leg("prefill", 2);
        let state = world.state();
        assert_eq!(number(&state, "/offered"), 2);
        assert_eq!(number(&state, "/served"), 1);
        assert_eq!(number(&state, "/admission/retained"), 1);
    });
}

/// What is read ahead is bounded, and the bound ends the connection, not the answer that runs.
// proves R-HTTP-1, R-HTTP-3
#[test]
fn a_pipeline_over_the_bound_is_dropped_after_the_running_answer() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        world
            .engines
            .script(&json!({"prefill": {"delay_ms": 100, "body": handoff()}}));
        for (ahead, kept) in [(40_000, true), (400_000, false)] {
            let mut client = world.connect();
            client.send(&post(TEXT, &prompt(true)));
            let health = get("/health");
            let count = ahead / health.len();
            client.send(&health.repeat(count));
            assert_served(&client.answer(), true, "the running one");
            if kept {
                for _ in 0..count {
                    assert_eq!(client.answer().status, Some(200));
                }
            } else {
                assert!(client.ends_within(PATIENCE));
                assert!(client.buf.is_empty(), "half a pipeline was answered");
            }
        }
    });
}

fn handoff() -> Value {
    json!({"choices": [], "kv_transfer_params": {"remote_engine_id": "e", "remote_block_ids": [1]}})
}

// proves R-HTTP-1
#[test]
fn bodies_may_be_chunked_with_extensions_and_trailers() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        let body = prompt(false).to_string();
        let (first, rest) = body.split_at(9);
        let chunked = format!(
            "{:X};a=\"b;c\"\r\n{first}\r\n0{:x}\r\n{rest}\r\n0\r\nx-checksum: 1\r\n\r\n",
            first.len(),
            rest.len()
        );
        let wire = [
            head("POST", TEXT, &[("transfer-encoding", "Chunked")]),
            chunked.into_bytes(),
        ];
        let wire = [wire.concat(), get("/health")].concat();
        for piece in [wire.len(), 1] {
            let mut client = world.connect();
            for piece in wire.chunks(piece) {
                client.send(piece);
            }
            assert_served(&client.answer(), false, "chunked");
            assert_eq!(client.answer().status, Some(200));
        }
    });
}

// proves R-HTTP-3, R-HTTP-8, R-ADM-10
#[test]
fn a_declared_length_over_the_limit_is_refused_at_once() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "max_request_bytes", 1024);
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        client.send(&head("POST", TEXT, &[("content-length", "100000")]));
        // Not a byte of the body was sent.
        let answer = client.answer();
        assert_refused(&answer, 413, "request_too_large", "declared");
        // Everything is read away, so that no reset overtakes the answer; then the connection ends.
        client.send(&[b'x'; 100_000]);
        assert!(client.ends_within(PATIENCE));
        let state = world.at_rest();
        assert_eq!(reason(&state, "invalid_requests", "too_large"), 1);
    });
}

// proves R-HTTP-3, R-HTTP-8
#[test]
fn a_body_is_refused_at_the_byte_that_crosses_the_limit_and_the_connection_kept() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "max_request_bytes", 1024);
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        client.send(&head("POST", TEXT, &[("transfer-encoding", "chunked")]));
        client.send(b"400\r\n");
        client.send(&[b' '; 1024]);
        assert!(
            !client.more(Duration::from_millis(50)),
            "1024 bytes are allowed"
        );
        client.send(b"\r\n1\r\n \r\n");
        assert_refused(&client.answer(), 413, "request_too_large", "crossing");
        // The rest of the body is dropped.
        client.send(b"a\r\n0123456789\r\n0\r\n\r\n");
        client.send(&post(TEXT, &prompt(true)));
        assert_served(&client.answer(), true, "after it");
    });
}

// proves R-ADM-1, R-HTTP-8
#[test]
fn a_full_router_answers_before_the_body_and_keeps_the_connection() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "max_connections", 1);
        let fleet = fleet.with("serving", "max_retained", 1);
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"prefill": [{"raw": [{"hang": true}]}, {"default": true}]}));
        let mut first = world.connect();
        first.send(&post(TEXT, &prompt(true)));
        world.until_leg("prefill", 1);
        let mut second = world.connect();
        let body = prompt(true).to_string();
        let length = body.len().to_string();
        second.send(&head("POST", TEXT, &[("content-length", &length)]));
        let answer = second.answer();
        assert_refused(&answer, 429, "server_overloaded_error", "full");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_ne!(answer.header("connection"), Some("close"));
        let before = world.state();
        assert_eq!(reason(&before, "rejected", "retained"), 1);
        // The refused body, whole, then the next request.
        second.send(body.as_bytes());
        second.send(&get("/health"));
        assert_eq!(second.answer().status, Some(200));
        drop(first);
        world.at_rest();
        second.send(&post(TEXT, &prompt(true)));
        assert_served(&second.answer(), true, "after it");
    });
}

/// A client that goes on sending what nobody wants has a second, and then two more to read its answer.
// proves R-HTTP-8
#[test]
fn a_refused_body_that_never_ends_ends_the_connection() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "max_request_bytes", 1024);
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        client.send(&head("POST", TEXT, &[("transfer-encoding", "chunked")]));
        client.send(b"401\r\n");
        client.send(&[b' '; 1025]);
        assert_refused(&client.answer(), 413, "request_too_large", "crossing");
        let answered = Instant::now();
        assert!(client.ends_within(PATIENCE));
        let took = answered.elapsed();
        assert!(took >= Duration::from_millis(900), "{took:?}");
        assert!(took <= Duration::from_secs(4), "{took:?}");
    });
}

// proves R-HTTP-1
#[test]
fn a_client_that_expects_continue_is_told_to() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "max_request_bytes", 1024);
        let world = World::start(setup, &fleet);
        let body = prompt(false).to_string();
        let length = body.len().to_string();
        let asks = |length: &str, expect: &str| {
            head(
                "POST",
                TEXT,
                &[("content-length", length), ("expect", expect)],
            )
        };
        let mut client = world.connect();
        client.send(&asks(&length, "100-continue"));
        let go_on = client.answer_to_head();
        assert_eq!(go_on.status, Some(100));
        client.send(body.as_bytes());
        assert_served(&client.answer(), false, "continued");
        // The answer is known already.
        let mut client = world.connect();
        client.send(&asks("5000", "100-continue"));
        assert_refused(&client.answer(), 413, "request_too_large", "no 100");
        // Another expectation.
        let mut client = world.connect();
        client.send(&asks(&length, "a-miracle"));
        assert_refused(&client.answer(), 417, "invalid_request_error", "417");
        let state = world.at_rest();
        assert_eq!(reason(&state, "invalid_requests", "expectation"), 1);
    });
}

// proves R-HTTP-1
#[test]
fn methods_and_paths_are_answered_sanely() {
    // Method, path, status, Allow.
    let rows = [
        ("GET", "/health", 200, None),
        ("GET", "/health?verbose=1", 200, None),
        ("GET", "/v1/models", 200, None),
        ("GET", "/v1/models?limit=2&x=%20", 200, None),
        ("GET", "/ready", 200, None),
        ("HEAD", "/health", 200, None),
        ("HEAD", "/v1/models", 200, None),
        ("HEAD", "/nothing", 404, None),
        ("HEAD", TEXT, 405, Some("POST")),
        ("GET", TEXT, 405, Some("POST")),
        ("DELETE", CHAT, 405, Some("POST")),
        ("PUT", "/health", 405, Some("GET")),
        ("POST", "/v1/models", 405, Some("GET")),
        ("GET", "/nothing", 404, None),
        ("POST", "/v1/embeddings", 404, None),
        ("GET", "/v1/completions/", 404, None),
        ("BREW", "/nothing", 404, None),
        ("OPTIONS", TEXT, 204, Some("POST")),
        ("OPTIONS", CHAT, 204, Some("POST")),
        ("OPTIONS", "/health", 204, Some("GET")),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        // All on one connection: each answer's framing must be right for the next to be read.
        let mut client = world.connect();
        for (method, path, status, allow) in rows {
            let row = format!("{method} {path}");
            let fields: &[_] = match method {
                "POST" | "PUT" => &[("content-length", "2")],
                _ => &[],
            };
            let body: &[u8] = if fields.is_empty() { b"" } else { b"{}" };
            client.send(&[head(method, path, fields), body.to_vec()].concat());
            let answer = if method == "HEAD" {
                client.answer_to_head()
            } else {
                client.answer()
            };
            assert_eq!(answer.status, Some(status), "{row}: {}", answer.text());
            let allows = answer.header("allow").unwrap_or_default();
            assert_eq!(allows.is_empty(), allow.is_none(), "{row}: {allows}");
            assert!(
                allows.contains(allow.unwrap_or_default()),
                "{row}: {allows}"
            );
            if method == "HEAD" {
                let length = answer.header("content-length").unwrap_or("0");
                assert_ne!(length, "0", "{row}: of the answer to GET");
            } else if status >= 400 {
                let error = answer.json()["error"].clone();
                assert!(error["message"].is_string(), "{row}: {}", answer.text());
                assert_eq!(error["type"], "invalid_request_error", "{row}");
            }
        }
        assert_eq!(number(&world.state(), "/offered"), 0);
    });
}

// proves R-HTTP-1
#[test]
fn http_1_0_is_answered_and_closed() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for (stream, keep) in [(true, false), (false, false), (true, true), (false, true)] {
            let row = format!("stream={stream} keep-alive={keep}");
            let body = prompt(stream).to_string();
            let mut wire = format!("POST {TEXT} HTTP/1.0\r\ncontent-length: {}\r\n", body.len());
            if keep {
                wire += "connection: keep-alive\r\n";
            }
            let mut client = world.connect();
            client.send((wire + "\r\n" + &body).as_bytes());
            let answer = client.answer();
            assert_served(&answer, stream, &row);
            assert_eq!(answer.header("transfer-encoding"), None, "{row}");
            assert!(client.ends_within(PATIENCE), "{row}");
        }
        let mut client = world.connect();
        client.send(b"GET /health HTTP/1.0\r\n\r\n");
        assert_eq!(client.answer().status, Some(200));
        assert!(client.ends_within(PATIENCE));
    });
}

// proves R-HTTP-1
#[test]
fn connection_close_is_obeyed() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        let body = prompt(true).to_string();
        let length = body.len().to_string();
        let fields = [("content-length", length.as_str()), ("connection", "close")];
        let mut client = world.connect();
        client.send(&[head("POST", TEXT, &fields), body.into_bytes()].concat());
        let answer = client.answer();
        assert_served(&answer, true, "close");
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.ends_within(PATIENCE));
    });
}

// proves R-HTTP-2, R-HTTP-3, R-ADM-10
#[test]
fn malformed_heads_are_refused_and_the_connection_closed() {
    let line = format!("POST {TEXT} HTTP/1.1\r\n");
    let sized = "host: r\r\ncontent-length: 2\r\n";
    let many = "x: y\r\n".repeat(200);
    let big = format!("x: {}\r\n", "y".repeat(70_000));
    let field = |text: &str| format!("{line}host: r\r\n{text}\r\n\r\n{{}}");
    let rows = [
        ("no HTTP", 400, "what is this\r\n\r\n".to_owned()),
        ("no version", 400, format!("POST {TEXT}\r\nhost: r\r\n\r\n")),
        (
            "HTTP/2.0",
            505,
            "GET /health HTTP/2.0\r\nhost: r\r\n\r\n".to_owned(),
        ),
        ("bytes of TLS", 400, "\x16\x03\x01\x02\r\n\r\n".to_owned()),
        (
            "length and coding",
            400,
            field("content-length: 2\r\ntransfer-encoding: chunked"),
        ),
        (
            "two lengths",
            400,
            field("content-length: 2\r\ncontent-length: 2"),
        ),
        ("a list of lengths", 400, field("content-length: 2, 2")),
        ("a signed length", 400, field("content-length: +2")),
        ("a negative length", 400, field("content-length: -2")),
        ("an empty length", 400, field("content-length: ")),
        (
            "a huge length",
            400,
            field("content-length: 99999999999999999999999"),
        ),
        ("a length in hex", 400, field("content-length: 0x2")),
        (
            "two codings",
            400,
            field("transfer-encoding: gzip, chunked"),
        ),
        (
            "two coding fields",
            400,
            field("transfer-encoding: chunked\r\ntransfer-encoding: chunked"),
        ),
        (
            "an unknown coding",
            400,
            field("transfer-encoding: identity"),
        ),
        (
            "coding on 1.0",
            400,
            format!("POST {TEXT} HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"),
        ),
        ("space before the colon", 400, field("content-length : 2")),
        (
            "a folded field",
            400,
            field("x: a\r\n b\r\ncontent-length: 2"),
        ),
        ("a bare CR", 400, field("x: a\rb\r\ncontent-length: 2")),
        (
            "a bare LF",
            400,
            format!("{line}host: r\ncontent-length: 2\r\n\r\n{{}}"),
        ),
        ("a NUL", 400, field("x: a\0b\r\ncontent-length: 2")),
        (
            "a control byte",
            400,
            field("x: a\x07b\r\ncontent-length: 2"),
        ),
        (
            "no host",
            400,
            format!("{line}content-length: 2\r\n\r\n{{}}"),
        ),
        (
            "two hosts",
            400,
            format!("{line}host: a\r\n{sized}\r\n{{}}"),
        ),
        (
            "too many fields",
            431,
            format!("{line}{many}{sized}\r\n{{}}"),
        ),
        ("too many bytes", 431, format!("{line}{big}{sized}\r\n{{}}")),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for (row, status, wire) in &rows {
            let mut client = world.connect();
            client.send(wire.as_bytes());
            // Smuggled behind it.
            client.send(&get("/health"));
            let answer = client.answer();
            assert_refused(&answer, *status, "invalid_request_error", row);
            assert_eq!(answer.header("connection"), Some("close"), "{row}");
            assert!(client.ends_within(PATIENCE), "{row}");
            assert!(client.buf.is_empty(), "{row}: a second answer");
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/offered"), 0, "bad heads are no requests");
        assert!(world.engines.log().is_empty());
    });
}

// proves R-HTTP-2, R-ADM-10
#[test]
fn malformed_chunks_are_refused_and_the_connection_closed() {
    let rows = [
        ("no size", "\r\n{}\r\n0\r\n\r\n"),
        ("a size that is none", "zz\r\n{}\r\n0\r\n\r\n"),
        ("a signed size", "+2\r\n{}\r\n0\r\n\r\n"),
        (
            "a size over 64 bits",
            "11111111111111111\r\n{}\r\n0\r\n\r\n",
        ),
        ("data longer than its size", "1\r\n{}\r\n0\r\n\r\n"),
        ("a bare LF", "2\n{}\r\n0\r\n\r\n"),
        (
            "a control byte in an extension",
            "2;\u{1}\r\n{}\r\n0\r\n\r\n",
        ),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for (row, body) in rows {
            let mut client = world.connect();
            client.send(&head("POST", TEXT, &[("transfer-encoding", "chunked")]));
            client.send(body.as_bytes());
            client.send(&get("/health"));
            let answer = client.answer();
            assert_refused(&answer, 400, "invalid_request_error", row);
            assert!(client.ends_within(PATIENCE), "{row}");
            assert!(client.buf.is_empty(), "{row}: a second answer");
        }
        let state = world.at_rest();
        let framing = reason(&state, "invalid_requests", "framing");
        assert_eq!(framing, rows.len() as u64);
    });
}

// proves R-HTTP-3, R-ADM-8, R-ADM-10
#[test]
fn slow_clients_are_not_waited_for() {
    everywhere(|setup| {
        let fleet = Fleet::pairs()
            .with("runtime", "header_timeout_s", 0.3)
            .with("runtime", "body_idle_timeout_s", 0.3)
            .with("runtime", "keepalive_idle_s", 0.3);
        let world = World::start(setup, &fleet);
        // A head that does not end, though bytes keep coming.
        let mut client = world.connect();
        let answer = dribble(&mut client, b"GET /health HTTP/1.1\r\nx: ", b'y');
        assert_refused(&answer, 408, "invalid_request_error", "slow head");
        assert!(client.ends_within(PATIENCE));
        // A body that stops.
        let mut client = world.connect();
        client.send(&head("POST", TEXT, &[("content-length", "100")]));
        client.send(b"{");
        let answer = client.answer();
        assert_refused(&answer, 408, "invalid_request_error", "idle body");
        assert!(client.ends_within(PATIENCE));
        let state = world.at_rest();
        assert_eq!(reason(&state, "invalid_requests", "body_idle"), 1);
        assert_eq!(
            number(&state, "/admission/heads_refused"),
            1,
            "the slow head"
        );
        // A connection that says nothing more, and one that never said anything.
        let mut client = world.connect();
        client.send(&get("/health"));
        assert_eq!(client.answer().status, Some(200));
        assert!(client.ends_within(PATIENCE));
        assert!(client.buf.is_empty());
        let mut client = world.connect();
        assert!(client.ends_within(PATIENCE));
        assert!(client.buf.is_empty());
        assert_eq!(number(&world.state(), "/offered"), 1);
    });
}

// proves R-HTTP-3, R-ADM-8, R-ADM-10
#[test]
fn a_body_that_comes_until_the_deadline_is_answered_then() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "request_timeout_s", 0.4);
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        let start = head("POST", TEXT, &[("content-length", "100000")]);
        let answer = dribble(&mut client, &start, b' ');
        assert_eq!(answer.status, Some(504), "{}", answer.text());
        assert_eq!(answer.json()["error"]["type"], "request_expired");
        assert!(client.ends_within(PATIENCE));
        let state = world.at_rest();
        assert_eq!(reason(&state, "expired", "body_deadline"), 1);
    });
}

/// Sends `start` and then a byte every now and then, until an answer comes.
fn dribble(client: &mut Client, start: &[u8], byte: u8) -> Answer {
    client.send(start);
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && !client.more(Duration::from_millis(40)) && !client.eof {
        client.send(&[byte]);
    }
    client.answer()
}

/// Bytes of one event of the slow readers' streams, and how many events.
const EVENT_BYTES: usize = 4096;
const EVENTS: usize = 8192;

fn big_stream() -> Value {
    let head = "{\"id\":\"c\",\"object\":\"text_completion\",\"created\":1,\"model\":\"stub-model\",\
         \"choices\":[{\"index\":0,\"text\":\"";
    let tail = "\",\"finish_reason\":null}]}\n\n";
    let text = "t".repeat(EVENT_BYTES - 6 - head.len() - tail.len());
    let event = format!("data: {head}{text}{tail}");
    let with_ids = event.replace("null}]", "null,\"token_ids\":[1]}]");
    json!({"chunks": [{"repeat": EVENTS, "text": with_ids}, "data: [DONE]\n\n"]})
}

/// Bytes of events that were sent on, or wait to be.
fn relayed(world: &World) -> usize {
    let state = world.state();
    let shards = state["shards"].as_array().expect("shards").iter();
    let events: u64 = shards.map(|shard| number(shard, "/events_relayed")).sum();
    events as usize * EVENT_BYTES
}

/// Waits until nothing more is relayed.
fn until_stalled(world: &World) -> usize {
    let (mut last, mut since) = (relayed(world), Instant::now());
    world.until("the stream stalls", |world| {
        let now = relayed(world);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        last > 0 && since.elapsed() > Duration::from_millis(300)
    });
    last
}

/// The engine waits for the client then, not the other way round: its silence is no fault.
// proves R-HTTP-7
#[test]
fn a_slow_reader_stalls_only_its_own_stream() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("engine", "decode_read_timeout_s", 0.5);
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"decode": [big_stream(), {"default": true}]}));
        let memory = resident_bytes(&world);
        let mut slow = world.connect();
        slow.send(&post(TEXT, &prompt(true)));
        let stalled = until_stalled(&world);
        let all = EVENTS * EVENT_BYTES;
        assert!(stalled < all * 3 / 4, "{stalled} of {all} are on their way");
        // Longer than the engine may be silent.
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_millis(1200) {
            assert_served(&world.post(TEXT, &prompt(true)), true, "another");
        }
        assert!(
            resident_bytes(&world) < memory + (8 << 20),
            "the rest waits in the router"
        );
        let answer = slow.answer_within(PATIENCE * 2);
        assert_eq!(answer.status, Some(200));
        assert!(answer.complete);
        assert!(answer.text().ends_with("data: [DONE]\n\n"));
        assert_eq!(answer.body.len(), all + "data: [DONE]\n\n".len());
        assert_eq!(number(&world.at_rest(), "/failed"), 0);
    });
}

// proves R-HTTP-7, R-HTTP-5
#[test]
fn a_client_that_reads_nothing_is_dropped() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("runtime", "client_write_stall_s", 0.4);
        let world = World::start(setup, &fleet);
        world.engines.script(&json!({"decode": big_stream()}));
        let mut client = world.connect();
        client.send(&post(TEXT, &prompt(true)));
        world.until_leg("decode", 1);
        world.until("the leg is closed", |world| {
            let legs = world.engines.legs("decode");
            legs.iter().all(|leg| leg.client_disconnected().is_some())
        });
        let state = world.at_rest();
        assert_eq!(number(&state, "/cancelled"), 1);
        assert!(client.ends_within(PATIENCE));
    });
}

// proves R-HTTP-7, R-ADM-8
#[test]
fn a_client_that_reads_nothing_is_dropped_at_its_deadline() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "request_timeout_s", 0.8);
        let world = World::start(setup, &fleet);
        world.engines.script(&json!({"decode": big_stream()}));
        let mut client = world.connect();
        client.send(&post(TEXT, &prompt(true)));
        world.until_leg("decode", 1);
        let closed = poll(PATIENCE, || {
            let legs = world.engines.legs("decode");
            legs.iter().all(|leg| leg.client_disconnected().is_some())
        });
        assert!(closed, "the leg is closed at the deadline");
        let state = world.at_rest();
        assert_eq!(reason(&state, "expired", "deadline"), 1);
        // Its connection goes soon after, read or not.
        world.until("it is dropped", |world| open_connections(world) <= 1);
        assert!(client.ends_within(PATIENCE));
    });
}

/// Resident memory of the router.
fn resident_bytes(world: &World) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.id()));
    let status = status.expect("a process status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: usize = line
        .and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok())
        .expect("VmRSS");
    kib << 10
}

/// Bytes that are no request at all, at every pace, never hurt others.
// proves R-HTTP-2, R-HTTP-3
#[test]
fn garbage_on_one_connection_leaves_others_alone() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        let mut held = Vec::new();
        for byte in 0..=255u8 {
            let mut client = world.connect();
            client.send(&[byte; 300]);
            held.push(client);
        }
        assert_served(&world.post(TEXT, &prompt(false)), false, "among them");
        drop(held);
        world.at_rest();
        assert!(world.is_alive());
        let answer = world.ask(&client::get("/health"));
        assert_eq!(answer.status, Some(200));
    });
}
