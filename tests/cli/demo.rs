//! `demo`: what a newcomer runs first, from its first line to its exit code.

use narwhal::stub::text;
use serde_json::{Value, json};

use crate::child::{Child, address, narwhal};
use crate::http;

fn demo(args: &[&str], epoll: bool) -> Child {
    let mut command = narwhal(&[&["demo", "--port", "0"], args].concat());
    if epoll {
        command.env("MONOIO_FORCE_LEGACY_DRIVER", "1");
    }
    Child::start(command)
}

/// The JSON that a printed curl line sends, and where to.
fn curl(line: &str) -> (String, Value) {
    let (_, body) = line.split_once("-d '").expect("a body");
    let body = body.trim_end().trim_end_matches('\'');
    let path = line.split_once("http://").and_then(|(_, rest)| {
        let rest = rest.split(' ').next()?;
        Some(rest[rest.find('/')?..].to_owned())
    });
    let body = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}"));
    (path.expect("a path"), body)
}

/// Asserts that it is what a simulated engine says, complete and in order.
fn assert_whole(content: &str, tokens: u64) {
    let mut check = text::Check::default();
    assert!(check.text(content.as_bytes()), "{content:?}");
    assert!(check.is_whole());
    // Of the tokens counted, the end of sequence and up to two silent ones cannot be seen in the text.
    assert!(
        tokens.abs_diff(check.tokens) <= 3,
        "{tokens} and {}",
        check.tokens
    );
    assert!((60..=121).contains(&tokens), "{tokens}");
}

fn try_it(engines: &[&str], epoll: bool) {
    let mut child = demo(engines, epoll);
    let driver = child.err_line("shards on ");
    assert!(!epoll || driver.contains("on epoll"), "{driver}");
    if !epoll && !driver.contains("on io_uring") {
        eprintln!("not run on io_uring: not available here");
    }
    let at = address(&child.out_line("narwhal demo on http://"));
    let streamed = curl(&child.out_line("curl -N "));
    let assembled = curl(&child.out_line("curl "));
    let state = child.out_line("/narwhal/state");
    assert_eq!(address(&state), at);
    child.out_line("Ctrl-C ends it.");

    let answer = http::post(at, &streamed.0, &streamed.1);
    assert!(
        answer.head.contains("content-type: text/event-stream"),
        "{}",
        answer.head
    );
    assert!(answer.head.contains("x-request-id: "), "{}", answer.head);
    let events = answer.events();
    let content: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    let last = events
        .last()
        .map(|event| &event["choices"][0]["finish_reason"]);
    assert_eq!(last, Some(&json!("stop")));
    assert!(
        events
            .iter()
            .all(|event| event["choices"][0].get("token_ids").is_none())
    );

    let answer = http::post(at, &assembled.0, &assembled.1);
    assert_eq!(answer.status, 200);
    let whole = answer.json();
    let tokens = whole["usage"]["completion_tokens"].as_u64().expect("usage");
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["message"]["content"], content);
    assert_whole(&content, tokens);

    let state = http::get(at, "/narwhal/state").json();
    let two_legs = engines != ["--engines", "1"];
    for (pointer, want) in [
        ("/schema", json!("narwhal.state")),
        ("/offered", json!(2)),
        ("/served", json!(2)),
        ("/failed", json!(0)),
        ("/slo_met", json!(2)),
        ("/admission/inflight", json!(0)),
        (
            "/serving/prefill_attempts",
            json!(if two_legs { 2 } else { 0 }),
        ),
        ("/serving/decode_attempts", json!(2)),
        ("/serving/retry_attempts", json!(0)),
        ("/serving/decode_tokens_observed", json!(2 * tokens)),
    ] {
        assert_eq!(state.pointer(pointer), Some(&want), "{pointer} in {state}");
    }
    assert_eq!(http::get(at, "/ready").status, 200);

    child.signal("TERM");
    let ended = child.end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(!ended.err.contains("ERROR"), "{}", ended.err);
}

// proves R-CLI-2, R-ADM-6
#[test]
fn the_demo_streams_assembles_and_ends_on_any_driver() {
    try_it(&[], false);
}

// proves R-CLI-2, R-SHD-3
#[test]
fn the_demo_streams_assembles_and_ends_on_epoll() {
    try_it(&[], true);
}

// proves R-CLI-2
#[test]
fn a_demo_of_one_engine_serves_in_one_leg() {
    try_it(&["--engines", "1"], false);
}
