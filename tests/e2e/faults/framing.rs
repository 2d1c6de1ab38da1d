//! Where one message ends and the next begins, who says so, and which fields of either side go no further.

use serde_json::{Value, json};

use super::super::client::{self, Answer, Client, PATIENCE, get, head, post};
use super::super::engine::framed;
use super::super::world::{Fleet, World, everywhere, number, reason};
use super::notation::DONE;
use super::{TEXT, counted, event, refused, served};

/// A request that may be smuggled in behind another one. It would be seen by its answer.
const SMUGGLED: &str = "GET /health HTTP/1.1\r\nhost: r\r\n\r\n";

/// Refused, and the connection with it: nothing behind it is read as a request.
fn is_refused(world: &World, wire: &str, status: u16, row: &str) {
    let mut client = world.connect();
    client.send(wire.as_bytes());
    client.send(SMUGGLED.as_bytes());
    let answer = client.answer();
    refused(&answer, status, "invalid_request_error", row);
    assert_eq!(answer.header("connection"), Some("close"), "{row}");
    assert!(client.ends_within(PATIENCE), "{row}");
    assert!(client.buf.is_empty(), "{row}: a second answer");
}

/// Two ways to tell a length in one head, and lengths that are none.
// proves R-HTTP-2
#[test]
fn a_request_has_one_length_or_none() {
    let field = |fields: &str, body: &str| {
        format!("POST {TEXT} HTTP/1.1\r\nhost: r\r\n{fields}\r\n\r\n{body}")
    };
    let both = ["content-length: 4", "transfer-encoding: chunked"];
    let mut rows: Vec<String> = vec![
        field(&both.join("\r\n"), "0\r\n\r\n"),
        field(&[both[1], both[0]].join("\r\n"), "0\r\n\r\n"),
        field(
            "content-length: 0\r\ntransfer-encoding: chunked",
            "0\r\n\r\n",
        ),
        field("content-length: 4\r\ntransfer-encoding: identity", "null"),
        field("content-length: 4\r\ntransfer-encoding:", "null"),
        field("content-length: 4\r\ncontent-length: 5", "nulls"),
        field("content-length: 4\r\nContent-Length: 4", "null"),
        field("content-length: 4\r\ncontent-length:", "null"),
    ];
    let lengths = [
        "5, 5",
        "5,5",
        "+5",
        "0x5",
        "5 5",
        "-1",
        "",
        "18446744073709551616",
        "18446744073709551620",
        "5.0",
        "5e0",
        "5;",
        "\u{665}",
        "5_0",
    ];
    rows.extend(lengths.map(|length| field(&format!("content-length: {length}"), "nulls")));
    let codings = [
        "chunked, chunked",
        "chunked;q=1",
        "xchunked",
        "chunked, identity",
        "identity, chunked",
        "\"chunked\"",
        "chunked,",
        ", chunked",
        "gzip",
        "trailers",
        "chunked\u{b}",
        "\u{b}chunked",
    ];
    rows.extend(codings.map(|coding| field(&format!("transfer-encoding: {coding}"), "0\r\n\r\n")));
    let names = [
        "content-length ",
        "content\u{b}-length",
        "content-length\0",
        " content-length",
        "content_length:x\r\ncontent-length\t",
    ];
    rows.extend(names.map(|name| field(&format!("{name}: 5"), "nulls")));
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        for wire in &rows {
            is_refused(&world, wire, 400, wire);
        }
        // What is legal: white space around a value, zeros before it, any case of name and coding.
        let body = counted(false).to_string();
        let length = body.len();
        let chunked = String::from_utf8(framed(body.as_bytes())).expect("UTF-8") + "0\r\n\r\n";
        for (fields, body) in [
            (format!("Content-Length: \t{length}\t "), &body),
            (format!("CONTENT-LENGTH:000{length}"), &body),
            ("Transfer-Encoding:\tCHUNKED ".to_owned(), &chunked),
        ] {
            let mut client = world.connect();
            client.send(field(&fields, body).as_bytes());
            client.send(SMUGGLED.as_bytes());
            served(&client.answer(), &fields);
            served(&client.answer(), "the one behind it");
        }
        assert_eq!(number(&world.at_rest(), "/failed"), 0);
    });
}

/// Size lines that are none, of either side; what is legal is read.
// proves R-HTTP-1, R-HTTP-2, R-LEG-6
#[test]
fn chunks_are_what_they_say() {
    let bad = [
        "5x\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        ";a=1\r\nhello\r\n0\r\n\r\n",
        "00000000000000005\r\nhello\r\n0\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhellox\r\n0\r\n\r\n",
        "5\r\rhello\r\n0\r\n\r\n",
        "5;a=\"x\r\ny\"\r\nhello\r\n0\r\n\r\n",
        "5;a=\u{1}\r\nhello\r\n0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\t\r\nhello\r\n0\r\n\r\n",
        "5 5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
        "5\r\nhello\r\n0\r\nx: y\n\r\n",
        "5\r\nhello\r\n0\r\n\n",
        "\u{665}\r\nhello\r\n0\r\n\r\n",
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair().with("serving", "max_attempts", 1));
        let start =
            format!("POST {TEXT} HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n");
        for body in bad {
            let long = body.starts_with("0000");
            match long {
                // Zeros in front are only long.
                true => {
                    let mut client = world.connect();
                    client.send((start.clone() + body).as_bytes());
                    assert_eq!(client.answer().status, Some(400), "{body}");
                }
                false => is_refused(&world, &(start.clone() + body), 400, body),
            }
            // The same from an engine.
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            world
                .engines
                .script(&json!({"prefill": {"raw": [head, body, {"hang": true}]}}));
            refused(&world.post(TEXT, &counted(true)), 502, "prefill", body);
            world.engines.reset();
        }
        let (first, rest) = {
            let body = counted(false).to_string();
            let (first, rest) = body.split_at(5);
            (first.to_owned(), rest.to_owned())
        };
        let size = format!("{:X}", rest.len());
        for (extension, more) in [
            (" ;a=1", ""),
            (";a", ""),
            (";a=\"b;c\\\"\"", ""),
            ("", "000"),
            (";a=1;b=2", "0"),
        ] {
            let chunks = format!(
                "5{extension}\r\n{first}\r\n{more}{size}\r\n{rest}\r\n0{extension}\r\n\r\n"
            );
            let mut client = world.connect();
            client.send((start.clone() + &chunks + SMUGGLED).as_bytes());
            served(&client.answer(), extension);
            served(&client.answer(), "the one behind it");
        }
        let framing = reason(&world.at_rest(), "invalid_requests", "framing");
        assert_eq!(framing, bad.len() as u64);
    });
}

/// Fields behind a body are read and forgotten; without end they are refused.
// proves R-HTTP-1, R-HTTP-3, R-LEG-6
#[test]
fn trailers_go_nowhere() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair().with("serving", "max_attempts", 1));
        let start = format!(
            "POST {TEXT} HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\ntrailer: x-a\r\n\r\n"
        );
        let chunk = String::from_utf8(framed(counted(true).to_string().as_bytes())).expect("UTF-8");
        let trailers = "Content-Length: 99\r\nAuthorization: x\r\nTransfer-Encoding: chunked\r\nHost: evil\r\nX-A: 1\r\n";
        let mut client = world.connect();
        client.send(format!("{start}{chunk}0\r\n{trailers}\r\n{SMUGGLED}").as_bytes());
        served(&client.answer(), "trailers");
        served(&client.answer(), "the one behind it");
        for seen in world.engines.log() {
            assert!(!seen.headers.contains_key("authorization"));
            assert!(!seen.headers.contains_key("x-a") && !seen.headers.contains_key("trailer"));
            assert_ne!(seen.headers["host"], "evil");
        }
        // An engine's own are read too, and its connection serves on.
        world.engines.reset();
        let body = format!("{}{DONE}", event("a"));
        let answer = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\nX-T: 1\r\nContent-Length: 7\r\n\r\n",
            body.len()
        );
        world.engines.script(&json!({"decode": {"raw": [answer]}}));
        for _ in 0..2 {
            let answer = world.post(TEXT, &counted(true));
            served(&answer, "an engine's trailers");
            assert_eq!(
                (answer.header("x-t"), answer.header("content-length")),
                (None, None)
            );
            world.at_rest();
        }
        // Too many of them.
        let flood = format!("x-a: {}\r\n", "y".repeat(100)).repeat(10_000);
        let mut client = world.connect();
        client.send(format!("{start}{chunk}0\r\n{flood}\r\n{SMUGGLED}").as_bytes());
        let answer = client.answer();
        assert!(
            matches!(answer.status, Some(400 | 431)),
            "{}",
            answer.text()
        );
        assert!(client.ends_within(PATIENCE));
        assert!(client.buf.is_empty(), "a second answer");
        let endless = json!({"repeat": 20_000, "text": "x-t: 1\r\n"});
        let answer = r#"{"choices":[],"kv_transfer_params":{"remote_engine_id":"e","remote_block_ids":[1]}}"#;
        let head = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{answer}\r\n0\r\n",
            answer.len()
        );
        world
            .engines
            .script(&json!({"prefill": {"raw": [head, endless, {"hang": true}]}}));
        refused(
            &world.post(TEXT, &counted(true)),
            502,
            "prefill",
            "an engine's flood",
        );
    });
}

/// 100 is said at once where the body is wanted, and never where it is not; engines are not made to wait.
// proves R-HTTP-1, R-HTTP-3
#[test]
fn expectations_are_met_or_refused() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        let mut body = counted(false);
        body["pad"] = json!("x".repeat(2 << 20));
        let body = body.to_string();
        let length = body.len().to_string();
        let asks = |expect: &str, length: &str| {
            head(
                "POST",
                TEXT,
                &[("expect", expect), ("content-length", length)],
            )
        };
        for expect in ["100-continue", "100-Continue", "100-CONTINUE"] {
            let mut client = world.connect();
            client.send(&asks(expect, &length));
            assert_eq!(client.answer_to_head().status, Some(100), "{expect}");
            client.send(body.as_bytes());
            served(&client.answer(), expect);
        }
        let over = (5 << 20).to_string();
        let mut client = world.connect();
        client.send(&asks("100-continue", &over));
        refused(&client.answer(), 413, "request_too_large", "over the limit");
        assert!(client.ends_within(PATIENCE));
        for expect in ["foo", "100-continue, foo", "100"] {
            let mut client = world.connect();
            client.send(&asks(expect, "2"));
            let answer = client.answer();
            assert!(
                matches!(answer.status, Some(417 | 400)),
                "{expect}: {}",
                answer.text()
            );
        }
        // HTTP/1.0 knows no 100, and expects nothing.
        for expect in ["100-continue", "foo"] {
            let body = counted(false).to_string();
            let mut client = world.connect();
            let wire = format!(
                "POST {TEXT} HTTP/1.0\r\nexpect: {expect}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            client.send(wire.as_bytes());
            served(&client.answer(), expect);
        }
        let log = world.engines.log();
        assert!(!log.is_empty());
        assert!(log.iter().all(|seen| !seen.headers.contains_key("expect")));
    });
}

/// The names of an answer's fields.
fn names(answer: &Answer) -> Vec<&str> {
    answer
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect()
}

const KEY: &str = "key-of-the-engines";

/// Fields that are a connection's own, those that it names, and everything that lets somebody in: none of it goes further. Of a
/// client's fields only the listed ones do, and of an engine's none.
// proves R-HTTP-4, R-LEG-4
#[test]
fn fields_stay_on_their_side() {
    let mine = [
        ("connection", "close, x-secret"),
        ("x-secret", "1"),
        ("te", "trailers"),
        ("upgrade", "h2c"),
        ("keep-alive", "5"),
        ("proxy-authorization", "b"),
        ("proxy-connection", "keep-alive"),
        ("trailer", "x"),
        ("authorization", "Bearer client"),
        ("x-api-key", "client"),
        ("api-key", "client"),
        ("cookie", "a=client"),
        ("x-goog-api-key", "client"),
        ("x-request-id", "client"),
        ("x-forwarded-for", "client"),
        ("forwarded", "for=client"),
        ("x-kv-transfer-params", "client"),
        ("x-data-parallel-rank", "client"),
        ("accept-encoding", "gzip, br"),
        ("content-type", "text/plain"),
        ("content-encoding", "gzip"),
        ("range", "bytes=0-1"),
        ("user-agent", "client"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ];
    let known = [
        "host",
        "content-length",
        "content-type",
        "accept",
        "accept-encoding",
        "authorization",
        "x-request-id",
        "traceparent",
        "user-agent",
        "connection",
    ];
    let engine = json!({
        "connection": "x-eng", "x-eng": "1", "keep-alive": "1", "server": "uvicorn", "date": "Thu, 01 Jan 1970 00:00:00 GMT",
        "set-cookie": "a=1", "x-request-id": "engine", "access-control-allow-origin": "*", "content-encoding": "identity",
        "retry-after": "77", "www-authenticate": "Basic", "alt-svc": "h2", "proxy-authenticate": "Basic", "trailer": "x",
        "content-type": "text/event-stream", "x-accel-buffering": "yes", "cache-control": "public",
    });
    everywhere(|setup| {
        let mut fleet = Fleet::pair().with("engine", "engine_api_key_env", "FAULTS_ENGINE_KEY");
        let key = ("FAULTS_ENGINE_KEY".to_owned(), KEY.to_owned());
        fleet.env.push(key);
        let world = World::start(setup, &fleet);
        for stream in [true, false] {
            world.engines.reset();
            world
                .engines
                .script(&json!({"decode": {"headers": engine, "chunks": [event("a"), DONE]}}));
            let mut body = counted(stream);
            body["prompt"] = json!("hello");
            let body = body.to_string();
            let length = body.len().to_string();
            let mut fields = mine.to_vec();
            fields.push(("content-length", &length));
            let mut client = world.connect();
            client.send(&[head("POST", TEXT, &fields), body.into_bytes()].concat());
            let answer = client.answer();
            served(&answer, "all fields");
            assert_eq!(world.engines.log().len(), 3);
            for seen in world.engines.log() {
                for (name, value) in &seen.headers {
                    assert!(
                        known.contains(&name.as_str()),
                        "{}: {name}: {value}",
                        seen.leg
                    );
                    assert!(!value.contains("client"), "{}: {name}: {value}", seen.leg);
                }
                assert_eq!(
                    seen.headers["authorization"],
                    format!("Bearer {KEY}"),
                    "{}",
                    seen.leg
                );
                assert_eq!(seen.headers["accept-encoding"], "identity", "{}", seen.leg);
                assert_eq!(
                    seen.headers["content-type"], "application/json",
                    "{}",
                    seen.leg
                );
            }
            let names = names(&answer);
            for name in [
                "x-eng",
                "keep-alive",
                "set-cookie",
                "retry-after",
                "www-authenticate",
                "alt-svc",
                "trailer",
            ] {
                assert!(!names.contains(&name), "{name}");
            }
            for name in [
                "server",
                "date",
                "content-type",
                "x-request-id",
                "connection",
                "cache-control",
            ] {
                assert!(names.iter().filter(|n| **n == name).count() <= 1, "{name}");
            }
            assert_ne!(answer.header("server"), Some("uvicorn"));
            assert_ne!(answer.header("x-request-id"), Some("engine"));
            assert!(
                !answer
                    .header("date")
                    .is_some_and(|date| date.contains("1970"))
            );
            assert_eq!(answer.header("access-control-allow-origin"), None);
            assert_eq!(answer.header("connection"), Some("close"));
        }
    });
}

/// The limit itself is allowed, one byte more is not, and a claim is refused before a byte of it came.
// proves R-HTTP-3, R-ADM-10
#[test]
fn the_limit_of_a_body_is_exact() {
    const LIMIT: usize = 3 << 20;
    let body = |bytes: usize| {
        let mut body = counted(true).to_string();
        body.pop();
        let fill = bytes - body.len() - "\"p\":\"\"},".len();
        format!("{body},\"p\":\"{}\"}}", "x".repeat(fill))
    };
    let sized = |body: &str| client::post_bytes(TEXT, body.as_bytes());
    let chunked = |body: &str| {
        let mut wire = head("POST", TEXT, &[("transfer-encoding", "chunked")]);
        body.as_bytes()
            .chunks(70_001)
            .for_each(|piece| wire.extend(framed(piece)));
        wire.extend_from_slice(b"0\r\n\r\n");
        wire
    };
    everywhere(|setup| {
        let world = World::start(
            setup,
            &Fleet::pair().with("serving", "max_request_bytes", LIMIT),
        );
        let mut offered = 0;
        for (bytes, fits) in [
            (LIMIT - 1, true),
            (LIMIT, true),
            (LIMIT + 1, false),
            (LIMIT / 2, true),
        ] {
            let body = body(bytes);
            assert_eq!(body.len(), bytes);
            for wire in [sized(&body), chunked(&body)] {
                let answer = world.ask(&wire);
                offered += 1;
                match fits {
                    true => served(&answer, &format!("{bytes}")),
                    false => refused(&answer, 413, "request_too_large", &format!("{bytes}")),
                }
            }
        }
        for length in ["10737418240", "18446744073709551615"] {
            let mut client = world.connect();
            client.send(&head("POST", TEXT, &[("content-length", length)]));
            refused(&client.answer(), 413, "request_too_large", length);
            offered += 1;
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/offered"), offered);
        assert_eq!(reason(&state, "invalid_requests", "too_large"), 4);
    });
}

/// Three requests in one write: three answers, in order, though the first is the slowest.
// proves R-HTTP-1
#[test]
fn a_pipeline_is_answered_in_order() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        let slow = json!({"delay_ms": 100, "chunks": [event("slow"), DONE]});
        world
            .engines
            .script(&json!({"decode": [slow, {"default": true}]}));
        let mut client = world.connect();
        client.send(
            &[
                post(TEXT, &counted(false)),
                get("/health"),
                post(TEXT, &counted(true)),
            ]
            .concat(),
        );
        let first = client.answer();
        served(&first, "first");
        assert_eq!(first.json()["choices"][0]["text"], "slow");
        assert_eq!(client.answer().json()["status"], "ok");
        let third = client.answer();
        served(&third, "third");
        assert!(third.text().ends_with(DONE));
        only_these(&mut client);
    });
}

fn only_these(client: &mut Client) {
    client.send(&get("/v1/models"));
    let models: Value = client.answer().json();
    assert_eq!(models["object"], "list");
    assert!(client.buf.is_empty());
}
