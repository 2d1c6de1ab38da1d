//! Client keys: who is let in to `/v1/*`, what the others are told, and how keys change while it runs.

use serde_json::json;

use super::client::{self, Client};
use super::engine::Seen;
use super::world::{Fleet, Setup, World, everywhere, number};

// As sha256sum 9.1 prints them for `k1` and `k2`.
const K1: &str = "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0  team a\n";
const K2: &str = "015f7e6bc5aeaf483724089e9252cc13b50951a6b69412522765cff4d780306e\n";

fn world(setup: Setup) -> World {
    let mut fleet = Fleet::pairs().with("runtime", "api_keys_file", "@DIR/keys");
    fleet.files = vec![("keys", format!("# clients\n{K1}"))];
    World::start(setup, &fleet)
}

fn body(stream: bool) -> String {
    let body = json!({"model": "stub-model", "prompt": "hi", "max_tokens": 3, "stream": stream});
    body.to_string()
}

/// A request with this line among its fields.
fn request(method: &str, path: &str, line: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: r\r\n{line}content-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn status_with(world: &World, key: &str) -> Option<u16> {
    let line = format!("authorization: Bearer {key}\r\n");
    world
        .ask(&request("POST", "/v1/completions", &line, &body(false)))
        .status
}

// proves R-HTTP-6, R-ADM-10
#[test]
fn who_is_let_in() {
    const K: &str = "authorization: Bearer k1\r\n";
    let (json, stream) = (body(false), body(true));
    // method, path, line, body, status
    let rows: &[(&str, &str, &str, &str, u16)] = &[
        ("POST", "/v1/completions", K, &json, 200),
        ("POST", "/v1/completions?x=1", K, &stream, 200),
        (
            "POST",
            "/v1/completions",
            "AUTHORIZATION:bearer   k1 \r\n",
            &json,
            200,
        ),
        ("GET", "/v1/models", K, "", 200),
        // Who knows no key learns of no route either.
        ("POST", "/v1/completions", "", &json, 401),
        (
            "POST",
            "/v1/chat/completions",
            "authorization: Bearer k2\r\n",
            &stream,
            401,
        ),
        ("POST", "/v1/completions?key=k1", "", &json, 401),
        ("POST", "http://r/v1/completions", "", &json, 401),
        (
            "POST",
            "/v1/completions",
            "authorization: Basic k1\r\n",
            &json,
            401,
        ),
        (
            "POST",
            "/v1/completions",
            "authorization: Bearer \r\n",
            &json,
            401,
        ),
        (
            "POST",
            "/v1/completions",
            "authorization: Bearer k1 k1\r\n",
            &json,
            401,
        ),
        (
            "POST",
            "/v1/completions",
            "authorization: Bearer k1\r\nauthorization: Bearer k1\r\n",
            &json,
            401,
        ),
        ("POST", "/v1/completions", "x-api-key: k1\r\n", &json, 401),
        ("GET", "/v1/completions", "", "", 401),
        ("GET", "/v1/completions", K, "", 405),
        ("GET", "/v1/models", "", "", 401),
        ("GET", "/v1/nothing", "", "", 401),
        ("GET", "/v1/nothing", K, "", 404),
        // Open to all.
        ("OPTIONS", "/v1/completions", "", "", 204),
        ("GET", "/health", "", "", 200),
        ("GET", "/ready", "", "", 200),
        ("GET", "/v1", "", "", 404),
        // No other spelling of the path is served.
        ("POST", "/V1/completions", "", &json, 404),
        ("POST", "//v1/completions", "", &json, 404),
        ("POST", "/%761/completions", "", &json, 404),
    ];
    everywhere(|setup| {
        let world = world(setup);
        // All on one connection: a stranger's body is read past.
        let mut client = world.connect();
        for row @ (method, path, line, body, status) in rows {
            client.send(&request(method, path, line, body));
            let answer = client.answer();
            assert_eq!(answer.status, Some(*status), "{row:?}: {}", answer.text());
            let challenge = answer.header("www-authenticate");
            assert_eq!(challenge.is_some(), *status == 401, "{row:?}");
            if *status == 401 {
                assert_eq!(challenge, Some("Bearer"));
                let want = (
                    json!("invalid_request_error"),
                    json!(null),
                    json!("invalid_api_key"),
                );
                assert_eq!(answer.error(), want, "{row:?}");
            }
        }
        let state = world.at_rest();
        let count = |status| rows.iter().filter(|row| row.4 == status).count() as u64;
        assert_eq!(number(&state, "/admission/unauthorized"), count(401));
        assert_eq!(number(&state, "/offered"), 3, "strangers are not offered");
        // What a client shows us is not shown to engines.
        for leg in ["tokenize", "prefill", "decode"] {
            let legs = world.engines.legs(leg);
            assert!(!legs.is_empty());
            let told = |seen: &Seen| seen.headers.values().any(|value| value.contains("k1"));
            assert!(!legs.iter().any(|seen| told(seen)), "{leg}");
        }
    });
}

// proves R-HTTP-6, R-HTTP-1, R-HTTP-8
#[test]
fn a_stranger_is_told_before_the_body() {
    everywhere(|setup| {
        let world = world(setup);
        // It waits to be told to go on, and is told no; the body may never come.
        let mut client = world.connect();
        client.send(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n");
        let answer = client.answer();
        assert_eq!(answer.status, Some(401));
        assert!(answer.header("x-request-id").is_some());
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.ends_within(client::PATIENCE));
        // Its answer to HEAD is as long as to GET, and without a body.
        let mut client = world.connect();
        client.send(b"HEAD /v1/models HTTP/1.1\r\nhost: r\r\n\r\n");
        assert_eq!(client.answer_to_head().status, Some(401));
        client.send(&request("GET", "/health", "", ""));
        assert_eq!(client.answer().status, Some(200));
    });
}

// proves R-HTTP-6
#[test]
fn keys_change_on_sighup() {
    everywhere(|setup| {
        let mut fleet = Fleet::pairs().with("runtime", "api_keys_file", "@DIR/keys");
        fleet.files = vec![("keys", K1.to_owned())];
        let event = |text: &str| {
            json!(format!(
                "data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"token_ids\":[1]}}]}}\n\n"
            ))
        };
        let done = "data: [DONE]\n\n";
        let slow = json!({"chunks": [event("a"), {"delay_ms": 300}, event("b"), done]});
        fleet.script = json!({"decode": slow});
        let world = World::start(setup, &fleet);
        assert_eq!(status_with(&world, "k1"), Some(200));
        assert_eq!(status_with(&world, "k2"), Some(401));

        let mut kept = world.connect();
        let line = "authorization: Bearer k1\r\n";
        kept.send(&request("POST", "/v1/completions", line, &body(true)));
        assert_eq!(kept.begin_answer(1).status, Some(200));
        world.write("keys", K2);
        world.signal("HUP");
        world.until("the new key", |world| status_with(world, "k2") == Some(200));
        assert_eq!(status_with(&world, "k1"), Some(401));
        // What runs goes on; the connection is not let in again.
        rest_of(&mut kept);
        kept.send(&request("GET", "/v1/models", line, ""));
        assert_eq!(kept.answer().status, Some(401));

        for (bad, why) in [("", "holds no key"), ("sk-plain", "not the hash of a key")] {
            world.write("keys", bad);
            world.signal("HUP");
            world.until(why, |world| world.said().contains(why));
            assert_eq!(status_with(&world, "k2"), Some(200), "{why}");
        }
        assert!(!world.said().contains("sk-plain"), "{}", world.said());
    });
}

/// Reads what is left of a stream.
fn rest_of(client: &mut Client) {
    let last: &[u8] = b"0\r\n\r\n";
    while !client.buf.ends_with(last) && client.more(client::PATIENCE) {}
    assert!(client.buf.ends_with(last));
    client.buf.clear();
}

// proves R-HTTP-6, R-CLI-1
#[test]
fn without_keys_to_reload_sighup_is_survived() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        world.signal("HUP");
        world.until("a word", |world| world.said().contains("SIGHUP"));
        let answer = world.post(
            "/v1/completions",
            &json!({"model": "stub-model", "prompt": "hi"}),
        );
        assert_eq!(answer.status, Some(200));
    });
}
