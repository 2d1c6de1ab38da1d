//! The performance suite's own parts: what its engine writes is what its load client asks for, and nothing else passes. Then all three
//! programs over loopback, a few requests each.
//!
//! The programs are examples, which `cargo test` builds beside this test.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

#[allow(dead_code, reason = "the client's half is used here too")]
#[path = "../perf/load/answer.rs"]
mod client;

#[allow(dead_code, reason = "only streams are written here")]
#[path = "../perf/engine/answer.rs"]
mod engine;

#[path = "../perf/engine/ask.rs"]
mod ask;

#[allow(dead_code, reason = "it is read by others")]
#[path = "../perf/load/histogram.rs"]
mod histogram;

#[path = "../perf/stamp.rs"]
mod stamp;

const BODY: &[u8] = br#"{"model":"tiny","prompt":[1000007,1,2],"max_tokens":7,"stream":true,"return_token_ids":true,"stream_options":{"include_usage": true}}"#;

/// A stream as it is on the wire, one element a write.
fn written(body: &[u8], events_per_write: u64) -> Vec<Vec<u8>> {
    let ask = ask::Ask::read(body).expect("a prompt with a tag");
    let mut stream = engine::Stream::default();
    stream.begin(&ask, ask.prompt_ids(body), "tiny", 7);
    let (mut writes, mut out) = (Vec::new(), Vec::new());
    stream.head(&mut out);
    writes.push(std::mem::take(&mut out));
    while stream.made < ask.tokens {
        let count = events_per_write.min(ask.tokens - stream.made);
        stream.write(count, 1_000 + stream.made, &mut out);
        writes.push(out.clone());
    }
    out.clear();
    stream.done(&mut out);
    writes.push(out);
    writes.push(b"0\r\n\r\n".to_vec());
    writes
}

/// What the client says of these bytes, read in pieces of `bytes`.
fn checked(input: &[u8], bytes: usize) -> Result<Vec<u64>, String> {
    let mut answer = client::Answer::new();
    answer.begin(client::Want {
        tag: 1_000_007,
        tokens: 7,
        whole: false,
    });
    let (mut buf, mut under_way) = (Vec::new(), Vec::new());
    for piece in input.chunks(bytes) {
        buf.extend_from_slice(piece);
        let used = answer.bytes(&buf, 2_000)?;
        buf.drain(..used);
        under_way.extend_from_slice(&answer.under_way_ns);
    }
    match answer.is_over() && buf.is_empty() {
        true => Ok(under_way),
        false => Err(format!("not over, {} bytes left", buf.len())),
    }
}

#[test]
fn what_the_engine_writes_is_what_the_client_wants() {
    for events_per_write in [1, 2, 3, 8] {
        let bytes = written(BODY, events_per_write).concat();
        for size in (1..40).chain([64, 300, bytes.len()]) {
            let under_way = checked(&bytes, size).unwrap_or_else(|why| panic!("{size}: {why}"));
            // Each token carries the moment of its write.
            assert_eq!(under_way.len(), 7);
            assert_eq!(
                under_way[6],
                1_000 - (6 / events_per_write) * events_per_write
            );
        }
        let text = String::from_utf8(bytes).expect("JSON is UTF-8");
        assert!(text.contains(r#""prompt_token_ids":[1000007,1,2],"token_ids":[10000]"#));
        assert!(text.contains(r#""token_ids":[10006]"#) && text.contains(r#""total_tokens":10,"#));
    }
}

#[test]
fn every_fault_of_a_stream_is_seen() {
    let whole = written(BODY, 1);
    let edit = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut writes = whole.clone();
        change(&mut writes);
        checked(&writes.concat(), 1 << 20)
    };
    let replace = |writes: &mut Vec<Vec<u8>>, at: usize, from: &str, to: &str| {
        let text = String::from_utf8(writes[at].clone()).expect("JSON is UTF-8");
        assert!(text.contains(from), "{text}");
        writes[at] = text.replacen(from, to, 1).into_bytes();
    };
    assert!(edit(&|_| ()).is_ok());
    type Change<'a> = &'a dyn Fn(&mut Vec<Vec<u8>>);
    let rows: [(&str, Change); 9] = [
        ("lost", &|w| drop(w.remove(3))),
        ("doubled", &|w| w.insert(3, w[3].clone())),
        ("out of order", &|w| w.swap(3, 4)),
        ("of another request", &|w| {
            replace(w, 3, "000f4247", "000f4248");
        }),
        ("without the last", &|w| drop(w.remove(7))),
        ("without its reason", &|w| {
            replace(w, 7, "\"length\"", "\"stop\"  ");
        }),
        ("without [DONE]", &|w| replace(w, 8, "[DONE]", "[DONA]")),
        ("without an end", &|w| drop(w.pop())),
        ("cut in a token", &|w| {
            replace(w, 3, "\"text\":\" ", "\"text\":\"x")
        }),
    ];
    for (name, change) in rows {
        let got = edit(change);
        assert!(got.is_err(), "{name}: {got:?}");
    }
}

/// A program of the suite, ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn example(name: &str) -> Command {
    let this = std::env::current_exe().expect("a path");
    let folder = this.ancestors().nth(2).expect("deps lies in a profile");
    let path: PathBuf = folder.join("examples").join(name);
    assert!(path.exists(), "{path:?}: cargo build --examples");
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts a program, and waits until it has said where it listens, so many times.
fn listening(name: &str, args: &[&str], ports: usize) -> (Program, Vec<String>) {
    let child = example(name).args(args).stdout(Stdio::piped()).spawn();
    let mut program = Program(child.expect("it starts"));
    let out = program.0.stdout.take().expect("it is piped");
    let lines = BufReader::new(out).lines().map_while(Result::ok);
    let at = lines.filter_map(|line| Some(line.rsplit_once(' ')?.1.to_owned()));
    (program, at.take(ports).collect())
}

fn load(args: &[&str]) -> (bool, Value) {
    let out = example("load").args(args).output().expect("it runs");
    let report = serde_json::from_slice(&out.stdout).expect("a line of JSON");
    (out.status.success(), report)
}

#[test]
fn the_programs_work_together() {
    let ports = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let (engine, at) = listening("engine", &ports, 2);
    let pid = engine.0.id().to_string();
    for driver in ["auto", "epoll"] {
        let args = ["--upstream", &at[1], "--driver", driver];
        let args = [&ports[..2], &args].concat();
        let (_relay, relay) = listening("relay", &args, 1);
        let rows: [(&[&str], u64); 4] = [
            (&[], 64),
            (&["--whole"], 64),
            (&["--text"], 64),
            (&["--prompt-tokens", "2000", "--tokens", "3"], 3),
        ];
        for (row, tokens) in rows {
            let args = ["--target", &relay[0], "--watch", &pid];
            let fixed = ["--connections", "4", "--requests", "24"];
            let (ok, report) = load(&[&args, &fixed, row].concat());
            assert!(ok && report["fault"].is_null(), "{row:?}: {report}");
            assert_eq!(report["requests"], 24, "{row:?}");
            assert_eq!(report["events"], 24 * tokens, "{row:?}");
            assert_eq!(report["relay"]["n"], 24 * tokens, "{row:?}");
            assert_eq!(report["ttft"]["n"], 24, "{row:?}");
            assert!(report["relay"]["p50"].as_f64() > Some(0.0), "{report}");
            assert!(report["watched"][0]["cpu_ns"].as_u64() > Some(0));
        }
    }
    // Both legs straight to the engines, in turn with one through the target.
    let both = at.join(",");
    let mode = ["--mode", "single", "--warm-ms", "0", "--count-ms", "100"];
    let (ok, report) = load(&[&["--target", &at[1], "--reference", &both], &mode[..]].concat());
    assert!(ok, "{report}");
    let own = report["reference"]["total"]["n"].as_u64();
    let through = report["total"]["n"].as_u64();
    assert!(own > Some(0) && through > Some(0), "{report}");
}

#[test]
fn a_wrong_answer_is_told() {
    let (_engine, at) = listening("engine", &["--listen", "127.0.0.1:0"], 1);
    let (ok, report) = load(&[
        "--target",
        &at[0],
        "--mode",
        "refused",
        "--warm-ms",
        "0",
        "--count-ms",
        "1",
    ]);
    assert!(!ok, "{report}");
    assert!(
        report["fault"]
            .as_str()
            .is_some_and(|why| why.contains("not refused"))
    );
}

#[test]
fn streams_are_held_until_the_client_leaves() {
    let (_engine, at) = listening(
        "engine",
        &["--listen", "127.0.0.1:0", "--hold-after", "2"],
        1,
    );
    let (ok, report) = load(&[
        "--target",
        &at[0],
        "--mode",
        "hold",
        "--connections",
        "50",
        "--warm-ms",
        "0",
        "--count-ms",
        "1",
    ]);
    assert!(ok && report["streams"] == 50, "{report}");
}
