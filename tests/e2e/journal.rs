//! The journal of a running router: a row for each request whatever its end, and nothing that a slow or moved file could do to clients.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::client;
use super::world::{Fleet, World, ends, everywhere, number};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// With a journal beside the fleet file.
pub fn journaled(mut fleet: Fleet, more: &[&str]) -> Fleet {
    fleet
        .args
        .extend(["--journal", "@DIR/j.jsonl"].map(str::to_owned));
    fleet.args.extend(more.iter().map(|arg| (*arg).to_owned()));
    fleet
}

/// Once everything has ended: a row for each end of the ledger, and no other.
pub fn holds_all(world: &World) -> Vec<Value> {
    let state = world.at_rest();
    let mut all = Vec::new();
    world.until("all rows", |world| {
        all = rows(&world.read("j.jsonl"));
        all.len() as u64 >= ends(&state)
    });
    assert_eq!(all.len() as u64, ends(&state));
    assert_eq!(number(&state, "/journal/dropped"), 0);
    let mut found: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for row in &all {
        let words = ["outcome", "reason"].map(|word| row[word].as_str().unwrap_or_default());
        *found.entry((words[0], words[1])).or_default() += 1;
    }
    let served = found.remove(&("served", "")).unwrap_or(0);
    assert_eq!(served, number(&state, "/served"));
    for (outcome, reasons) in state["outcome_reasons"].as_object().expect("outcomes") {
        for (reason, count) in reasons.as_object().expect("reasons") {
            let rows = found.remove(&(outcome, reason)).unwrap_or(0);
            assert_eq!(Some(rows), count.as_u64(), "{outcome} {reason}");
        }
    }
    assert!(found.is_empty(), "{found:?}");
    let count = |holds: fn(&Value) -> bool| all.iter().filter(|row| holds(row)).count() as u64;
    let unsized_offered = count(|row| row["model"].is_null());
    assert_eq!(unsized_offered, number(&state, "/unsized_offered"));
    assert_eq!(
        count(|row| row["slo_met"] == true),
        number(&state, "/slo_met")
    );
    all
}

fn rows(text: &str) -> Vec<Value> {
    // The last line may be on its way.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let row = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    whole.lines().map(row).collect()
}

fn prompt(stream: bool) -> Value {
    json!({"model": "stub-model", "prompt": "hello there", "max_tokens": 3, "stream": stream})
}

fn seconds(row: &Value, name: &str) -> f64 {
    row[name]
        .as_f64()
        .unwrap_or_else(|| panic!("no {name} in {row}"))
}

// proves R-OBS-2, R-HTTP-4, R-TOK-2
#[test]
fn a_row_says_what_became_of_its_request() {
    everywhere(|setup| {
        let world = World::start(setup, &journaled(Fleet::pairs(), &[]));
        let theirs = "a\"b\\\u{e9}\u{9b}".repeat(30);
        let fields = [
            ("x-request-id", &*theirs),
            ("content-length", &body_len(&prompt(true))),
        ];
        let mut request = client::head("POST", TEXT, &fields);
        request.extend_from_slice(prompt(true).to_string().as_bytes());
        let streamed = world.ask(&request);
        assert_eq!(streamed.status, Some(200), "{}", streamed.text());
        let rid = streamed.header("x-request-id").expect("an id").to_owned();
        world.engines.script(&json!({"decode": [
            {"status": 503, "body": "no"}, {"default": true}, {"status": 500, "body": "no"}]}));
        let chat =
            json!({"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 4});
        assert_eq!(world.post(CHAT, &chat).status, Some(200));
        assert_eq!(world.post(CHAT, &chat).status, Some(502));
        assert_eq!(world.ask(&client::post_bytes(TEXT, b"{")).status, Some(400));
        let all = holds_all(&world);
        let of = |outcome: &str, stream: Value| {
            let found = all
                .iter()
                .find(|row| row["outcome"] == outcome && row["stream"] == stream);
            found.unwrap_or_else(|| panic!("{outcome}: {all:?}"))
        };
        let row = of("served", json!(true));
        assert_eq!(row["rid"], rid);
        // 128 bytes of it, whole characters, and a sign that there was more.
        let kept: String = "a\"b\\\u{e9}\u{9b}".repeat(16);
        assert_eq!(row["client_rid"], format!("{kept}…"));
        let want = json!({
            "schema": "narwhal.journal", "schema_version": 1, "route": "completions", "model": "stub-model", "reason": null,
            "stage": "relay", "status": 200, "slo_met": true, "attempts": 1, "request_bytes": prompt(true).to_string().len(),
            "max_tokens": 3, "token_accounting": "token_ids", "output_tokens": 3, "faults": [],
        });
        for (name, value) in want.as_object().expect("members") {
            assert_eq!(row[name], *value, "{name}");
        }
        let engines: Vec<&Value> = ["prefill_engine", "decode_engine"]
            .iter()
            .map(|name| &row[*name])
            .collect();
        let seen = |leg: &str| {
            let legs = world.engines.legs(leg);
            let ours = legs
                .iter()
                .find(|seen| seen.headers["x-request-id"].starts_with(&rid));
            json!(format!("e{}", ours.expect("its leg").engine))
        };
        assert_eq!(engines, [&seen("prefill"), &seen("decode")]);
        let phases = [
            "receive_s",
            "size_s",
            "queue_wait_s",
            "retry_s",
            "prefill_wait_s",
            "prefill_s",
        ];
        let more = ["decode_wait_s", "first_token_s", "decode_s"];
        let sum: f64 = phases
            .iter()
            .chain(&more)
            .map(|name| seconds(row, name))
            .sum();
        let total = seconds(row, "total_s");
        assert!((sum - total).abs() < 0.000_02, "{sum} {total}");
        assert!(seconds(row, "ttft_s") <= total && seconds(row, "tpot_s") >= 0.0);

        let retried = of("served", json!(false));
        assert_eq!(
            (&retried["attempts"], &retried["max_tokens"]),
            (&json!(2), &json!(4))
        );
        let fault = &retried["faults"][0];
        assert_eq!(
            (&fault["leg"], &fault["fault"], &fault["status"]),
            (&json!("decode"), &json!("status"), &json!(503))
        );
        assert_ne!(fault["engine"], retried["decode_engine"]);
        let failed = of("failed", json!(false));
        assert_eq!(
            (&failed["status"], &failed["reason"], &failed["stage"]),
            (&json!(502), &json!("decode"), &json!("decode"))
        );
        assert_eq!(failed["faults"].as_array().map(Vec::len), Some(2));
        assert!(failed["ttft_s"].is_null() && failed["slo_met"].is_null());
        let invalid = of("invalid_requests", Value::Null);
        assert_eq!(
            (&invalid["status"], &invalid["reason"]),
            (&json!(400), &json!("bad_json"))
        );
        assert!(
            invalid["model"].is_null()
                && invalid["queue_wait_s"].is_null()
                && invalid["client_rid"].is_null()
        );
    });
}

fn body_len(body: &Value) -> String {
    body.to_string().len().to_string()
}

fn bad_request(world: &World) {
    assert_eq!(world.ask(&client::post_bytes(TEXT, b"{")).status, Some(400));
}

/// What is in flight has its row too, and those that are turned away meanwhile.
// proves R-OBS-2, R-CTL-7
#[test]
fn a_graceful_stop_leaves_no_row_behind() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "drain_window_s", 2.0);
        let world = World::start(setup, &journaled(fleet, &[]));
        let event = r#"data: {"choices":[{"index":0,"text":"a","token_ids":[1]}]}"#;
        world.engines.script(&json!({"decode": {"chunks": [
            format!("{event}\n\n"), {"delay_ms": 600}, format!("{event}\n\n"), "data: [DONE]\n\n"]}}));
        let mut stream = world.connect();
        stream.send(&client::post(TEXT, &prompt(true)));
        assert_eq!(stream.begin_answer(1).status, Some(200));
        for _ in 0..20 {
            bad_request(&world);
        }
        world.signal("TERM");
        world.until("not ready", |world| {
            world.ask(&client::get("/ready")).status == Some(503)
        });
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(503));
        assert_eq!(world.exit_code(), Some(0));
        while !stream.buf.ends_with(b"0\r\n\r\n") && stream.more(client::PATIENCE) {}
        assert!(stream.buf.ends_with(b"0\r\n\r\n"), "it was finished");
        let text = world.read("j.jsonl");
        assert!(text.ends_with('\n'));
        let rows = rows(&text);
        let count = |outcome: &str| rows.iter().filter(|row| row["outcome"] == outcome).count();
        assert_eq!((count("served"), count("invalid_requests")), (1, 20));
        let drained = rows.iter().filter(|row| row["reason"] == "draining");
        assert_eq!((drained.count(), rows.len()), (1, 22));
    });
}

/// What does not finish in time had no end, and no row.
// proves R-OBS-2, R-CTL-7
#[test]
fn what_outlasts_a_graceful_stop_is_out_of_time() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "drain_window_s", 0).with(
            "serving",
            "graceful_timeout_s",
            0.3,
        );
        let world = World::start(setup, &journaled(fleet, &[]));
        let event = r#"data: {"choices":[{"index":0,"text":"a","token_ids":[1]}]}"#;
        let endless = json!({"chunks": [format!("{event}\n\n"), {"delay_ms": 60_000}]});
        world.engines.script(&json!({"decode": endless}));
        let (mut stream, mut whole) = (world.connect(), world.connect());
        stream.send(&client::post(TEXT, &prompt(true)));
        whole.send(&client::post(TEXT, &prompt(false)));
        assert_eq!(stream.begin_answer(1).status, Some(200));
        world.until_leg("decode", 2);
        world.signal("TERM");
        assert_eq!(world.exit_code(), Some(0));
        while stream.more(client::PATIENCE) {}
        let said = String::from_utf8_lossy(&stream.buf).into_owned();
        assert!(said.contains(r#""code":"expired""#), "{said}");
        assert!(said.ends_with("0\r\n\r\n"), "{said}");
        let late = whole.answer();
        assert_eq!(late.status, Some(504), "{}", late.text());
        assert_eq!(late.error().0, json!("request_expired"));
        let rows = rows(&world.read("j.jsonl"));
        let expired = rows.iter().filter(|row| row["outcome"] == "expired");
        assert_eq!((expired.count(), rows.len()), (2, 2), "{rows:?}");
    });
}

// proves R-OBS-2
#[test]
fn the_file_is_moved_by_size_and_by_others() {
    everywhere(|setup| {
        let fleet = journaled(
            Fleet::pair(),
            &["--journal-max-bytes", "65536", "--journal-files", "2"],
        );
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        let mut sent = 0;
        let mut state = Value::Null;
        while number_or_0(&state, "/journal/rotations") < 3 {
            for _ in 0..50 {
                client.send(&client::post_bytes(TEXT, b"{"));
                assert_eq!(client.answer().status, Some(400));
                sent += 1;
            }
            state = world.state();
            assert!(sent < 20_000, "{}", state["journal"]);
        }
        world.until("written", |world| {
            number(&world.state(), "/journal/rows") == sent
        });
        let names = ["j.jsonl", "j.jsonl.1", "j.jsonl.2"];
        for name in names {
            let text = world.read(name);
            assert!(
                !rows(&text).is_empty() && text.len() <= 65_536,
                "{name}: {}",
                text.len()
            );
        }
        assert!(!world.path("j.jsonl.3").exists());
        // As logrotate does: moved, then told.
        let before = world.read("j.jsonl");
        fs::rename(world.path("j.jsonl"), world.path("aside")).expect("moved");
        world.signal("HUP");
        world.until("another file", |world| world.path("j.jsonl").exists());
        bad_request(&world);
        world.until("its row", |world| rows(&world.read("j.jsonl")).len() == 1);
        assert!(world.read("aside").starts_with(&before));
    });
}

/// A pipe that this test reads when it likes.
struct Pipe(PathBuf, File);

impl Pipe {
    fn new() -> Pipe {
        static PIPES: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "narwhal-e2e-pipe-{}-{}",
            std::process::id(),
            PIPES.fetch_add(1, Ordering::SeqCst)
        );
        let path = std::env::temp_dir().join(name);
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.is_ok_and(|made| made.success()), "mkfifo");
        const O_NONBLOCK: i32 = 0o4000;
        let open = OpenOptions::new()
            .read(true)
            .custom_flags(O_NONBLOCK)
            .open(&path);
        Pipe(path, open.expect("a pipe"))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

// proves R-OBS-2
#[test]
fn a_writer_that_is_held_up_costs_rows_and_no_answers() {
    everywhere(|setup| {
        let pipe = Pipe::new();
        let mut fleet = Fleet::pair();
        let path = pipe.0.display().to_string();
        fleet.args = ["--journal", &path, "--journal-queue", "16"]
            .map(str::to_owned)
            .into();
        let world = World::start(setup, &fleet);
        assert!(
            world.said().contains("not rotated, as it is no file"),
            "{}",
            world.said()
        );
        let mut client = world.connect();
        let mut state = Value::Null;
        while number_or_0(&state, "/journal/dropped") == 0 {
            for _ in 0..50 {
                client.send(&client::post_bytes(TEXT, b"{"));
                assert_eq!(client.answer().status, Some(400));
            }
            state = world.state();
            assert!(number(&state, "/offered") < 20_000, "{}", state["journal"]);
        }
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(200));
        assert_eq!(world.post(TEXT, &prompt(true)).status, Some(200));
        let state = world.at_rest();
        let dropped = number(&state, "/journal/dropped");
        let metrics = world.ask(&client::get("/metrics")).text();
        assert!(
            metrics.contains(&format!("\nnarwhal_journal_dropped_total {dropped}\n")),
            "{metrics}"
        );
        // The reader has come back to it.
        let mut lines = BufReader::new(&pipe.1);
        let mut read = Vec::new();
        world.until("the others", |_| {
            while lines.read_until(b'\n', &mut read).is_ok_and(|n| n > 0) {}
            let whole = read.iter().filter(|b| **b == b'\n').count() as u64;
            whole + dropped == ends(&state)
        });
        let rows = rows(std::str::from_utf8(&read).expect("ASCII"));
        assert_eq!(rows.len() as u64 + dropped, ends(&state));
        bad_request(&world);
        world.until("the next one", |_| {
            lines
                .read_until(b'\n', &mut Vec::new())
                .is_ok_and(|n| n > 0)
        });
        assert_eq!(
            number(&world.state(), "/journal/dropped"),
            dropped,
            "no more than then"
        );
    });
}

fn number_or_0(state: &Value, pointer: &str) -> u64 {
    state.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

// proves R-OBS-2
#[test]
fn without_a_journal_there_is_none() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        bad_request(&world);
        assert_eq!(world.state()["journal"], Value::Null);
        assert!(
            world
                .ask(&client::get("/metrics"))
                .text()
                .contains("\nnarwhal_journal_rows_total 0\n")
        );
    });
}
