//! Lines beside serde_json: members, kinds and order as the table says, any bytes in texts, a bounded length.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;
use crate::base::prng::Prng;
use crate::base::units::Leg;
use crate::metrics::journal::members::{self, Kind};
use crate::metrics::journal::read::Facts;
use crate::metrics::journal::stamp::UnixMicros;
use crate::metrics::journal::{FAULTS_MAX, Route, TEXT_BYTES_MAX};
use crate::metrics::outcome::{End, Stage};

const ANCHOR: Anchor = Anchor {
    unix: UnixMicros(1_796_057_828_123_456),
    now: Instant::from_nanos(50_000_000_000),
};

fn written(row: &Row) -> Vec<u8> {
    let mut out = Vec::new();
    Writer::new("r\"1").write(&mut out, row, &ANCHOR);
    out
}

fn parsed(row: &Row) -> Map<String, Value> {
    let line = written(row);
    let line = line.strip_suffix(b"\n").expect("a line");
    assert!(line.iter().all(|b| (b' '..=b'~').contains(b)));
    match serde_json::from_slice(line) {
        Ok(Value::Object(members)) => members,
        other => panic!("{other:?}: {}", String::from_utf8_lossy(line)),
    }
}

fn at(ms: u64) -> Option<Instant> {
    Some(Instant::from_nanos(ms * 1_000_000))
}

/// A stream over two engines, after an attempt that failed.
fn served() -> Row {
    let mut row = Row {
        id: *b"01234567-89ab-cdef-0123-456789abcdef",
        client_rid: Text::of(b"mine-7"),
        shard: 3,
        route: Route::Chat,
        model: Text::of(b"tiny"),
        stream: Some(true),
        end: End::Served,
        stage: Stage::Relay,
        status: Some(200),
        slo_met: Some(true),
        attempts: 2,
        request_bytes: 512,
        prompt_tokens: Some(100),
        estimated: false,
        cached_tokens: Some(64),
        cap: Some(32),
        accounting: TokenAccounting::TokenIds,
        output: 21,
        first_output: 1,
        prefill_engine: Text::of(b"p0"),
        decode_engine: Text::of(b"d0"),
        moments: Moments {
            arrived: Instant::from_nanos(1_000_000_000),
            received: at(1_010),
            checked: at(1_010),
            sized: at(1_030),
            seated: at(1_130),
            placed: at(1_400),
            prefilling: at(1_405),
            prefilled: at(1_600),
            decoding: at(1_606),
            first_token: at(1_700),
            last_token: at(2_700),
            ended: Instant::from_nanos(2_701_234_567),
        },
        ..Row::default()
    };
    row.add_fault(Fault {
        engine: Text::of(b"p1"),
        leg: Leg::Prefill,
        what: What::Status,
        status: Some(503),
    });
    row
}

// proves R-OBS-2
#[test]
fn a_row_of_a_served_stream() {
    let members = parsed(&served());
    let want = r#"{
        "schema": "narwhal.journal", "schema_version": 1,
        "arrived_at": "2026-11-30T16:56:19.123456Z", "router_id": "r\"1", "shard": 3,
        "rid": "01234567-89ab-cdef-0123-456789abcdef", "client_rid": "mine-7", "route": "chat", "model": "tiny",
        "stream": true, "outcome": "served", "reason": null, "stage": "relay", "status": 200, "slo_met": true,
        "attempts": 2, "request_bytes": 512, "prompt_tokens": 100, "prompt_estimated": false, "cached_tokens": 64,
        "max_tokens": 32, "token_accounting": "token_ids", "output_tokens": 21, "output_events": null,
        "prefill_engine": "p0", "decode_engine": "d0",
        "receive_s": 0.01, "size_s": 0.02, "queue_wait_s": 0.1, "retry_s": 0.27, "prefill_wait_s": 0.005, "prefill_s": 0.195,
        "decode_wait_s": 0.006, "first_token_s": 0.094, "decode_s": 1.001234, "ttft_s": 0.7, "tpot_s": 0.05, "total_s": 1.701234,
        "faults": [{"engine": "p1", "leg": "prefill", "fault": "status", "status": 503}]
    }"#;
    let want: Value = serde_json::from_str(want).expect("JSON");
    assert_eq!(Value::Object(members), want);
    // The phases of legs in sequence are the whole time.
    let phases = [
        "receive_s",
        "size_s",
        "queue_wait_s",
        "retry_s",
        "prefill_wait_s",
    ];
    let more = ["prefill_s", "decode_wait_s", "first_token_s", "decode_s"];
    let sum: f64 = phases
        .iter()
        .chain(&more)
        .filter_map(|name| want[*name].as_f64())
        .sum();
    assert!((sum - 1.701234).abs() < 1e-9, "{sum}");
}

/// Each row is a moment at which a request may end, and the members that are not null then.
// proves R-OBS-2
#[test]
fn a_phase_that_had_not_ended_ends_with_the_request() {
    let begun = |moments: Moments, row: Row| Row {
        moments: Moments {
            arrived: Instant::from_nanos(1_000_000_000),
            ended: Instant::from_nanos(9_000_000_000),
            ..moments
        },
        ..row
    };
    let none = Row::default();
    let two_legs = Row {
        prefill_engine: Text::of(b"p"),
        decode_engine: Text::of(b"d"),
        ..none
    };
    let one_leg = Row {
        decode_engine: Text::of(b"b"),
        ..none
    };
    let m = Moments::default();
    let seated = Moments {
        received: at(2_000),
        checked: at(2_000),
        sized: at(3_000),
        seated: at(4_000),
        ..m
    };
    let placed = Moments {
        placed: at(5_000),
        ..seated
    };
    type Case = (&'static str, Row, Vec<(&'static str, f64)>);
    let rows: Vec<Case> = vec![
        ("in its body", begun(m, none), vec![("receive_s", 8.0)]),
        (
            "in line",
            begun(
                Moments {
                    seated: None,
                    ..seated
                },
                none,
            ),
            vec![("receive_s", 1.0), ("size_s", 1.0), ("queue_wait_s", 6.0)],
        ),
        (
            "between attempts",
            begun(seated, none),
            vec![
                ("receive_s", 1.0),
                ("size_s", 1.0),
                ("queue_wait_s", 1.0),
                ("retry_s", 5.0),
            ],
        ),
        (
            "in the line of a phase",
            begun(placed, two_legs),
            vec![
                ("receive_s", 1.0),
                ("size_s", 1.0),
                ("queue_wait_s", 1.0),
                ("retry_s", 1.0),
                ("prefill_wait_s", 4.0),
            ],
        ),
        (
            "in its only leg",
            begun(
                Moments {
                    decoding: at(6_000),
                    ..placed
                },
                one_leg,
            ),
            vec![
                ("receive_s", 1.0),
                ("size_s", 1.0),
                ("queue_wait_s", 1.0),
                ("retry_s", 1.0),
                ("decode_wait_s", 1.0),
                ("first_token_s", 3.0),
            ],
        ),
        (
            "side by side, the prompt not read",
            begun(
                Moments {
                    decoding: at(6_000),
                    prefilling: at(6_000),
                    ..placed
                },
                two_legs,
            ),
            vec![
                ("receive_s", 1.0),
                ("size_s", 1.0),
                ("queue_wait_s", 1.0),
                ("retry_s", 1.0),
                ("prefill_wait_s", 1.0),
                ("prefill_s", 3.0),
                ("decode_wait_s", 1.0),
                ("first_token_s", 3.0),
            ],
        ),
        (
            "behind the handoff",
            begun(
                Moments {
                    prefilling: at(6_000),
                    prefilled: at(7_000),
                    ..placed
                },
                two_legs,
            ),
            vec![
                ("receive_s", 1.0),
                ("size_s", 1.0),
                ("queue_wait_s", 1.0),
                ("retry_s", 1.0),
                ("prefill_wait_s", 1.0),
                ("prefill_s", 1.0),
                ("decode_wait_s", 2.0),
            ],
        ),
    ];
    for (name, row, want) in rows {
        let members = parsed(&row);
        let seconds = members
            .iter()
            .filter(|(name, _)| name.ends_with("_s") && *name != "total_s");
        let given: Vec<(&str, f64)> = seconds
            .filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
            .collect();
        let sorted = |mut rows: Vec<(&'static str, f64)>| {
            rows.sort_by(|a, b| a.0.cmp(b.0));
            rows
        };
        assert_eq!(given, sorted(want), "{name}");
        assert_eq!(members["total_s"], 8.0);
    }
}

/// The names in the order of the text, which serde_json does not keep.
fn names(line: &[u8]) -> Vec<String> {
    let text = String::from_utf8(line.to_vec()).expect("ASCII");
    let outer = &text[..text.find(",\"faults\"").expect("the last member") + 10];
    let quoted = outer
        .split("\":")
        .filter_map(|part| part.rsplit('"').next())
        .filter(|name| !name.is_empty());
    quoted.map(str::to_owned).collect()
}

// proves R-OBS-2
#[test]
fn lines_are_as_the_table_says() {
    let all: Vec<&str> = members::ALL.iter().map(|m| m.name).collect();
    assert_eq!(names(&written(&served())), all);
    let mut seen_null = Vec::new();
    for row in [
        served(),
        Row::default(),
        Row {
            accounting: TokenAccounting::TokenIds,
            ..Row::default()
        },
    ] {
        let members = parsed(&row);
        assert_eq!(members.len(), all.len());
        for member in members::ALL {
            let value = &members[member.name];
            if value.is_null() {
                assert_ne!(member.null, "", "{} is null", member.name);
                seen_null.push(member.name);
                continue;
            }
            let fits = match member.kind {
                Kind::Text => value.is_string(),
                Kind::Moment => value
                    .as_str()
                    .is_some_and(|s| stamp::parse(s.as_bytes()).is_some()),
                Kind::Integer => value.is_u64(),
                Kind::Seconds => value.is_f64(),
                Kind::Flag => value.is_boolean(),
                Kind::List => value.is_array(),
            };
            assert!(fits, "{}: {value}", member.name);
        }
    }
    let may = members::ALL.iter().filter(|m| !m.null.is_empty());
    for member in may {
        assert!(
            seen_null.contains(&member.name),
            "{} is never null",
            member.name
        );
    }
}

// proves R-OBS-2, R-ADM-10
#[test]
fn every_end_has_its_words() {
    for end in End::ALL {
        let members = parsed(&Row { end, ..served() });
        assert_eq!(members["outcome"], end.name());
        assert_eq!(members["reason"].as_str(), end.reason());
        let line = written(&Row { end, ..served() });
        let facts = Facts::read(line.trim_ascii_end()).expect("a row");
        assert_eq!(
            (facts.outcome.as_ref(), facts.reason.as_deref()),
            (end.name(), end.reason())
        );
    }
}

// proves R-TOK-2
#[test]
fn without_ids_there_is_no_output_length() {
    let members = parsed(&Row {
        accounting: TokenAccounting::Unavailable,
        ..served()
    });
    assert_eq!(members["token_accounting"], "unavailable");
    assert_eq!(
        (&members["output_tokens"], &members["output_events"]),
        (&Value::Null, &21.into())
    );
    assert_eq!(members["tpot_s"], Value::Null);
}

#[test]
fn the_longest_row_is_within_the_bound() {
    for byte in [0, b'"', 0x7f, 0xff, b'x'] {
        let text = Text::of(&[byte; TEXT_BYTES_MAX + 1]);
        let mut row = Row {
            client_rid: text,
            model: text,
            prefill_engine: text,
            decode_engine: text,
            request_bytes: u64::MAX,
            prompt_tokens: Some(u64::MAX),
            cached_tokens: Some(u64::MAX),
            cap: Some(u64::MAX),
            output: u64::MAX,
            attempts: u32::MAX,
            status: Some(u16::MAX),
            ..served()
        };
        row.moments.ended = Instant::FAR;
        for _ in 0..=FAULTS_MAX {
            row.add_fault(Fault {
                engine: text,
                leg: Leg::Tokenize,
                what: What::Status,
                status: Some(u16::MAX),
            });
        }
        assert_eq!(row.faults().len(), FAULTS_MAX);
        let mut out = Vec::new();
        Writer::new(&"\u{1}".repeat(500)).write(&mut out, &row, &ANCHOR);
        assert!(out.len() <= LINE_BYTES_MAX, "{}", out.len());
        assert!(serde_json::from_slice::<Value>(&out).is_ok());
    }
}

/// A cleared row tells nothing of the request before.
#[test]
fn a_row_is_used_again() {
    let mut row = served();
    row.clear();
    let members = parsed(&row);
    assert_eq!(members["client_rid"], Value::Null);
    assert_eq!(members["faults"], serde_json::json!([]));
}

/// What a text comes to, by the standard library and serde_json.
fn plain(bytes: &[u8]) -> String {
    if bytes.len() <= TEXT_BYTES_MAX {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let kept = &bytes[..TEXT_BYTES_MAX];
    let kept = match std::str::from_utf8(kept) {
        Err(e) if e.error_len().is_none() => &kept[..e.valid_up_to()],
        _ => kept,
    };
    String::from_utf8_lossy(kept).into_owned() + "…"
}

#[test]
fn texts_of_any_bytes() {
    let mut chance = Prng::new(5);
    let long = |unit: &str| unit.repeat(100).into_bytes();
    let mut rows = vec![
        b"a\"b\\c/\x00\x1b[31m\x7f".to_vec(),
        "\u{9b}\u{202e}é漢🦀".into(),
    ];
    rows.extend([long("é"), long("漢"), long("🦀"), long("x")]);
    rows.push([b"x".repeat(127), "é".into()].concat());
    rows.extend((0..200).map(|n| (0..n).map(|_| chance.below(256) as u8).collect()));
    for bytes in rows {
        let members = parsed(&Row {
            client_rid: Text::of(&bytes),
            ..served()
        });
        let got = members["client_rid"].as_str().unwrap_or_default();
        assert_eq!(got, plain(&bytes), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn numbers_and_times_as_serde_json_reads_them(n in any::<u64>(), ns in any::<u64>(), arrived in 0u64..50_000_000_000) {
        let mut row = Row { request_bytes: n, ..served() };
        row.moments.arrived = Instant::from_nanos(arrived);
        row.moments.ended = Instant::from_nanos(ns.max(arrived));
        let members = parsed(&row);
        prop_assert_eq!(members["request_bytes"].as_u64(), Some(n));
        let want = (ns.max(arrived) - arrived) / 1000;
        let got = members["total_s"].as_f64().unwrap();
        prop_assert!((got - want as f64 / 1e6).abs() <= got * 1e-15, "{} {}", got, want);
        let moment = stamp::parse(members["arrived_at"].as_str().unwrap().as_bytes());
        let ago = Instant::from_nanos(50_000_000_000).since(Instant::from_nanos(arrived)).as_micros() as u64;
        prop_assert_eq!(moment, Some(UnixMicros(1_796_057_828_123_456 - ago)));
    }
}
