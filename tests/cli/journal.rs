//! `narwhal journal summarize` over files as they are found: rotated, cut off, compressed, missing, of another program.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::child::{Ended, narwhal, run};

/// A folder of its own.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("cli-journal")
        .join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder for tests");
    folder
}

/// A row: served in so many milliseconds unless there is a reason why not.
fn row(n: u64, reason: Option<&str>, ttft_ms: u64) -> Value {
    let served = reason.is_none();
    let seconds = |ms: u64| json!(ms as f64 / 1e3);
    let fault = json!({"engine": "d1", "leg": "decode", "fault": "timeout", "status": null});
    json!({
        "schema": "narwhal.journal", "schema_version": 1, "arrived_at": format!("2026-11-30T16:57:{:02}.000000Z", n % 60),
        "outcome": if served { "served" } else { "failed" }, "reason": reason, "stream": true, "slo_met": served.then_some(true),
        "attempts": if served { 1 } else { 2 }, "prompt_tokens": 100, "cached_tokens": 10, "output_tokens": 20,
        "prefill_engine": "p0", "decode_engine": if served { "d0" } else { "d1" },
        "queue_wait_s": seconds(1), "prefill_s": seconds(2), "first_token_s": seconds(3),
        "ttft_s": served.then(|| seconds(ttft_ms)), "tpot_s": served.then(|| seconds(8)), "total_s": seconds(500),
        "faults": if served { json!([]) } else { json!([fault]) },
    })
}

fn lines(rows: impl IntoIterator<Item = Value>) -> String {
    rows.into_iter().map(|row| format!("{row}\n")).collect()
}

fn summarize(args: &[&str]) -> Ended {
    run(&[&["journal", "summarize"], args].concat())
}

// proves R-CLI-10
#[test]
fn numbers_of_rotated_files() {
    let folder = folder("rotated");
    let (old, new) = (folder.join("j.jsonl.1"), folder.join("j.jsonl"));
    fs::write(&old, lines((0..60).map(|n| row(n, None, n + 1)))).expect("a file");
    let torn = "{\"schema\":\"narwhal.journal\",\"schema_ver";
    let later = row(0, None, 1)
        .to_string()
        .replace("\"schema_version\":1", "\"schema_version\":9");
    let more = lines((0..4).map(|n| row(n, Some("decode"), 0)));
    fs::write(
        &new,
        format!("{torn}\n{later}\n{{\"level\":\"info\"}}\n{more}{torn}"),
    )
    .expect("a file");
    let [old, new] = [&old, &new].map(|path| path.to_str().expect("UTF-8"));

    let ended = summarize(&["--json", old, new]);
    assert_eq!((ended.code, &ended.err[..]), (Some(0), ""));
    let got: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!(
        (&got["schema"], &got["rows"]),
        (&json!("narwhal.journal_summary"), &json!(64))
    );
    assert_eq!(
        got["passed_over"],
        json!({"torn": 2, "foreign": 1, "newer": 1, "too_long": 0})
    );
    let outcomes = json!([
        {"outcome": "failed", "reason": "decode", "rows": 4}, {"outcome": "served", "reason": null, "rows": 60},
    ]);
    assert_eq!(got["outcomes"], outcomes);
    assert_eq!(
        (&got["retried"], &got["slo_met"], &got["streams"]),
        (&json!(4), &json!(60), &json!(64))
    );
    assert_eq!(
        (&got["prompt_tokens"], &got["output_tokens"]),
        (&json!(6400), &json!(1280))
    );
    let ttft = &got["served"]["ttft_s"];
    assert_eq!((&ttft["count"], &ttft["max"]), (&json!(60), &json!(0.06)));
    // 1 ms to 60 ms, one of each.
    for (word, want) in [
        ("p50", 0.030),
        ("p90", 0.054),
        ("p99", 0.060),
        ("mean", 0.0305),
    ] {
        let got = ttft[word].as_f64().expect(word);
        assert!((got - want).abs() <= want / 256.0, "{word}: {got}");
    }
    assert_eq!(
        got["served"]["tpot_s"]["p50"], 0.008,
        "one value is that value"
    );
    let engine = |name: &str| {
        let engines = got["engines"].as_array().expect("engines").iter();
        let mut found = engines.filter(|engine| engine["engine"] == name);
        found.next().unwrap_or_else(|| panic!("no {name}")).clone()
    };
    let (d0, d1, p0) = (engine("d0"), engine("d1"), engine("p0"));
    assert_eq!(
        (&d0["requests"], &d0["failed_legs"], &d0["tokens"]),
        (&json!(60), &json!(0), &json!(1200))
    );
    assert_eq!(
        (&d1["requests"], &d1["served"], &d1["failed_legs"]),
        (&json!(4), &json!(0), &json!(4))
    );
    assert_eq!(
        (&p0["leg"], &p0["requests"], &p0["tokens"]),
        (&json!("prefill"), &json!(64), &json!(6400))
    );

    let ended = summarize(&[old, new]);
    assert_eq!(ended.code, Some(0));
    for words in [
        "64 requests, 2026-11-30T16:57:00.000000Z to 2026-11-30T16:57:59.000000Z (1.08 a second)",
        "passed over 4 lines: 2 cut off, 1 of something else, 1 of a later version, 0 too long",
        "\nserved                 60  93.75 %\n",
        "\nfailed   decode         4   6.25 %\n",
        "first token, from arrival",
        "p0      prefill",
    ] {
        assert!(ended.out.contains(words), "{words} in\n{}", ended.out);
    }
}

// proves R-CLI-10
#[test]
fn standard_input_is_a_file_too() {
    let mut command = narwhal(&["journal", "summarize", "--json", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("it is piped");
    // A line without end, longer than anything that is kept, between two rows.
    stdin
        .write_all(lines([row(1, None, 5)]).as_bytes())
        .expect("it reads");
    for _ in 0..300 {
        stdin.write_all(&[b'x'; 10_000]).expect("it reads");
    }
    stdin
        .write_all(format!("\r\n{}", lines([row(2, None, 5)])).as_bytes())
        .expect("it reads");
    drop(stdin);
    let out = child.wait_with_output().expect("it ends");
    let got: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(
        (&got["rows"], &got["passed_over"]["too_long"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(got["served"]["ttft_s"]["p99"], 0.005);
}

// proves R-CLI-10
#[test]
fn what_cannot_be_summarized_is_told() {
    let folder = folder("odd");
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let good = put("good", lines([row(1, None, 5)]).as_bytes());
    let empty = put("empty", b"");
    let other = put("other", b"listening on port 80\n{\"a\":1}\n");
    let packed = put("packed.gz", b"\x1f\x8b\x08\x00rest");
    let missing = folder.join("missing").to_str().expect("UTF-8").to_owned();
    let folder = folder.to_str().expect("UTF-8").to_owned();
    // Files, exit code, whether there is a summary, what is said.
    let rows: [(&[&str], i32, bool, &[&str]); 7] = [
        (&[], 2, false, &["<FILE>..."]),
        (&[&missing], 1, false, &["missing: No such file"]),
        (&[&empty], 1, false, &["empty: empty"]),
        (
            &[&other],
            1,
            false,
            &["other: 2 lines, none of them a row of `narwhal.journal`"],
        ),
        (
            &[&packed],
            1,
            false,
            &[
                "packed.gz: it is compressed",
                "zcat FILE | narwhal journal summarize -",
            ],
        ),
        (
            &[&good, &missing, &folder],
            1,
            true,
            &["missing: No such file", "odd: Is a directory"],
        ),
        (&[&good, &other, &empty], 0, true, &[]),
    ];
    for (files, code, has_summary, said) in rows {
        let ended = summarize(files);
        assert_eq!(ended.code, Some(code), "{files:?}: {}", ended.err);
        assert_eq!(
            ended.out.starts_with("1 requests"),
            has_summary,
            "{files:?}: {}",
            ended.out
        );
        assert_eq!(ended.err.is_empty(), said.is_empty(), "{}", ended.err);
        for words in said {
            assert!(ended.err.contains(words), "{words} in {}", ended.err);
        }
    }
}

// proves R-CLI-1
#[test]
fn a_journal_that_cannot_be_written_is_told_at_the_start() {
    let fleet = crate::files::fleet_file("journal", "json", crate::serve::FLEET);
    let fleet = fleet.to_str().expect("UTF-8");
    let rows: [(&[&str], &[&str]); 5] = [
        (
            &["--journal", "/nowhere/j"],
            &["--journal /nowhere/j: ", "the folder must be there"],
        ),
        (&["--journal", "/"], &["--journal /: ", "s a directory"]),
        (&["--journal-files", "3"], &["--journal <PATH>"]),
        (
            &["--journal", "j", "--journal-max-bytes", "100"],
            &["not 0, nor a number of bytes from 65536"],
        ),
        (
            &["--journal", "j", "--journal-queue", "0"],
            &["16..=1000000"],
        ),
    ];
    for (args, said) in rows {
        let serve = ["serve", "--fleet", fleet, "--listen", "127.0.0.1:0"];
        let ended = run(&[&serve[..], args].concat());
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.err);
        for words in said {
            assert!(ended.err.contains(words), "{words} in {}", ended.err);
        }
    }
}
