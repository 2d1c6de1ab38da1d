//! curl: the ways in which people and scripts send a request by hand.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::{Value, json};

use super::client::data_of;
use super::environment;
use super::on_both_drivers;
use super::simulated::{MODEL, Simulated, fleet};
use super::world::{World, number};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const PAIR: &[&str] = &["prefill", "decode"];
const JSON: &[&str] = &["-H", "content-type: application/json", "-d", "@-"];

fn chat(stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": "Say it."}]);
    json!({"model": MODEL, "messages": messages, "max_tokens": 40, "stream": stream})
}

fn prompt(stream: bool) -> Value {
    json!({"model": MODEL, "prompt": "Say it.", "max_tokens": 3, "stream": stream})
}

/// curl with nothing of its user's settings.
fn curl(args: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["-q", "-sS", "--noproxy", "*", "--max-time", "30"]);
    command.args(args).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it with this input.
fn run(args: &[&str], input: &[u8]) -> Output {
    let mut child = curl(args).spawn().expect("curl starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    let input = input.to_vec();
    // An early answer ends the reading.
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("curl ends");
    writer.join().expect("no panic");
    output
}

/// The same, and it must succeed: what it printed.
fn fetch(args: &[&str], input: &[u8]) -> String {
    let output = run(args, input);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What a stream says, which must be whole.
fn streamed(text: &str) -> String {
    let mut data = data_of(text);
    assert_eq!(data.pop().as_deref(), Some("[DONE]"), "{text}");
    let events = data.iter().map(|data| {
        let event: Value = serde_json::from_str(data).expect("JSON");
        let delta = &event["choices"][0]["delta"]["content"];
        delta.as_str().unwrap_or_default().to_owned()
    });
    events.collect()
}

fn said(answer: &str) -> String {
    let answer: Value = serde_json::from_str(answer).expect("JSON");
    let content = &answer["choices"][0]["message"]["content"];
    content.as_str().expect("content").to_owned()
}

// proves R-HTTP-1, R-SSE-2, R-ASM-1
#[test]
fn curl_reads_streams_and_answers_in_both_versions() {
    if environment::curl().is_none() {
        return;
    }
    on_both_drivers(|setup| {
        let (world, engines) = Simulated::routed(setup);
        let routed = format!("http://{}{CHAT}", world.addr);
        // The engine's own answer, without a router.
        let engine = format!("http://{}{CHAT}", engines.addresses[0]);
        let whole = chat(false).to_string();
        let stream = chat(true).to_string();
        let truth = said(&fetch(&[JSON, &[&engine]].concat(), whole.as_bytes()));
        assert!(truth.split(' ').count() > 30, "{truth}");
        for version in ["--http1.1", "--http1.0"] {
            let args = [JSON, &[version, &routed]].concat();
            let answer = fetch(&args, whole.as_bytes());
            assert_eq!(said(&answer), truth, "{version}");
            let args = [&args[..], &["-N"]].concat();
            let answer = fetch(&args, stream.as_bytes());
            assert_eq!(streamed(&answer), truth, "{version}");
        }
        assert_eq!(number(&world.at_rest(), "/served"), 4);
    });
}

/// What came is shown at once, and leaving is noticed.
// proves R-HTTP-5
#[test]
fn curl_shows_a_stream_as_it_comes_and_may_leave() {
    if environment::curl().is_none() {
        return;
    }
    on_both_drivers(|setup| {
        let world = World::start(setup, &fleet(PAIR));
        let event = json!({
            "id": "c", "object": "text_completion", "created": 1, "model": MODEL,
            "choices": [{"index": 0, "text": "a", "finish_reason": null, "token_ids": [7]}],
        });
        let event = format!("data: {event}\n\n");
        world
            .engines
            .script(&json!({"decode": {"chunks": [event, {"hang": true}]}}));
        let url = format!("http://{}{TEXT}", world.addr);
        let mut child = curl(&[JSON, &["-N", &url]].concat())
            .spawn()
            .expect("curl starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin
            .write_all(prompt(true).to_string().as_bytes())
            .expect("it reads");
        drop(stdin);
        let mut line = String::new();
        let mut shown = BufReader::new(child.stdout.take().expect("it is piped"));
        shown.read_line(&mut line).expect("a line");
        assert!(line.contains("\"text\":\"a\""), "{line}");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        world.until("the leg is closed", |world| {
            let legs = world.engines.legs("decode");
            legs.len() == 1 && legs[0].client_disconnected().is_some()
        });
        assert_eq!(number(&world.at_rest(), "/cancelled"), 1);
    });
}

/// A body over 1 MiB makes curl ask first; one in chunks has no length.
// proves R-HTTP-1, R-REQ-7
#[test]
fn curl_sends_large_bodies_and_bodies_in_chunks() {
    if environment::curl().is_none() {
        return;
    }
    let mut large = prompt(false);
    large["prompt"] = json!("Say it. ".repeat(200_000));
    let rows: [(&str, Value, &[&str], bool); 4] = [
        (
            "large",
            large.clone(),
            &["-H", "expect: 100-continue"],
            true,
        ),
        (
            "chunked",
            prompt(false),
            &["-H", "transfer-encoding: chunked"],
            false,
        ),
        (
            "large and chunked",
            large.clone(),
            &[
                "-H",
                "transfer-encoding: chunked",
                "-H",
                "expect: 100-continue",
            ],
            true,
        ),
        ("large, not asking", large, &["-H", "expect:"], false),
    ];
    on_both_drivers(|setup| {
        let world = World::start(setup, &fleet(PAIR));
        let url = format!("http://{}{TEXT}", world.addr);
        for (row, body, fields, asks) in &rows {
            world.engines.reset();
            let args = [JSON, fields, &["-v", &url]].concat();
            let output = run(&args, body.to_string().as_bytes());
            let head = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{row}: {head}");
            let told = head.contains("< HTTP/1.1 100 Continue");
            assert_eq!(told, *asks, "{row}: {head}");
            assert!(head.contains("< HTTP/1.1 200 OK"), "{row}: {head}");
            let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(answer["choices"][0]["text"], " w7 w7 w7", "{row}");
            let legs = world.engines.legs("decode");
            assert_eq!(legs.len(), 1, "{row}");
            assert_eq!(legs[0].body["prompt"], body["prompt"], "{row}");
        }
        assert_eq!(number(&world.at_rest(), "/served"), rows.len() as u64);
    });
}

// proves R-HTTP-1
#[test]
fn curl_asks_for_heads_and_uses_its_connection_again() {
    if environment::curl().is_none() {
        return;
    }
    on_both_drivers(|setup| {
        let world = World::start(setup, &fleet(PAIR));
        let base = format!("http://{}", world.addr);
        for path in ["/v1/models", "/health"] {
            let head = fetch(&["-I", &format!("{base}{path}")], b"");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}");
            assert!(head.ends_with("\r\n\r\n"), "{path}: {head}");
            assert!(head.contains("content-length: "), "{path}: {head}");
        }
        let (text, chat_url) = (format!("{base}{TEXT}"), format!("{base}{CHAT}"));
        let (first, second) = (prompt(true).to_string(), chat(false).to_string());
        let (models, shown) = (
            format!("{base}/v1/models"),
            "%{num_connects} %{http_code}\n",
        );
        // Each shows how many connections it made.
        let one = |url, body| ["-o", "/dev/null", "-w", shown, "-d", body, url];
        let args = [
            &one(&text, &first)[..],
            &["--next"],
            &one(&chat_url, &second)[..],
            &["--next", "-I", "-o", "/dev/null", "-w", shown, &models],
            &["--next"],
            &one(&text, &first)[..],
        ];
        assert_eq!(fetch(&args.concat(), b""), "1 200\n0 200\n0 200\n0 200\n");
        assert_eq!(number(&world.at_rest(), "/served"), 3);
    });
}

// proves R-REQ-5, R-REQ-6
#[test]
fn curl_fails_with_the_body_of_an_error() {
    if environment::curl().is_none() {
        return;
    }
    on_both_drivers(|setup| {
        let world = World::start(setup, &fleet(PAIR));
        let url = format!("http://{}{CHAT}", world.addr);
        let with = |name: &str, value: Value| {
            let mut body = chat(true);
            body[name] = value;
            body.to_string()
        };
        let rows = [
            (with("model", json!("another")), "404", "model_not_found"),
            (with("n", json!(2)), "400", "invalid_request_error"),
        ];
        for (body, status, word) in rows {
            let args = [JSON, &["--fail-with-body", &url]].concat();
            let output = run(&args, body.as_bytes());
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(22), "{said}");
            assert!(said.contains(status), "{said}");
            let shown = String::from_utf8_lossy(&output.stdout);
            assert!(shown.contains(word), "{shown}");
        }
        assert_eq!(number(&world.at_rest(), "/invalid_requests"), 2);
    });
}
