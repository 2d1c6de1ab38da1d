//! What requests teach, through the whole machine: one engine that is profiled at 40 ms from token to token, scripted read by read.

use super::*;
use crate::base::units::EngineId;
use crate::fleet::learn::drift::Heard;

/// One engine for both legs, with a profile; and a plain server, which sends no ids.
const PROFILED: usize = 2;
const PLAIN: usize = 3;

const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// A stream under way: the head of the decode leg's answer is in.
fn stream(calm: &mut Calm) {
    let body = r#"{"prompt":[1,2],"max_tokens":100,"stream":true}"#;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length:";
    let length = body.len();
    calm.asks(format!("{head} {length}\r\n\r\n{body}").as_bytes());
    for _ in 0..6 {
        if calm
            .0
            .conn
            .exchange
            .as_ref()
            .is_some_and(|x| x.stage == crate::path::Stage::Decode)
        {
            break;
        }
        calm.then(|w| w.leg_step(0, usize::MAX));
    }
    calm.then(|w| w.leg_step(0, 0));
    calm.then(|w| w.leg_step(0, 0));
    calm.then(|w| w.leg_raw(0, HEAD.as_bytes()));
}

/// A read after so many milliseconds: events of one token each, a chunk for each.
fn read(calm: &mut Calm, after_ms: u64, tokens: usize, text: &str) {
    let event = format!(
        "data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"token_ids\":[7]}}]}}\n\n"
    );
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    calm.then(|w| w.advance(Duration::from_millis(after_ms)));
    calm.then(|w| w.leg_raw(0, chunk.repeat(tokens).as_bytes()));
}

fn steady(calm: &mut Calm, reads: usize, after_ms: u64, tokens: usize) {
    for _ in 0..reads {
        read(calm, after_ms, tokens, "a");
        calm.then(|w| w.client_takes(usize::MAX));
    }
}

fn done(calm: &mut Calm) {
    calm.then(|w| w.advance(Duration::from_millis(300)));
    calm.then(|w| w.leg_raw(0, b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"));
    calm.then(|w| w.client_takes(usize::MAX));
}

fn heard(calm: &Calm) -> Heard {
    calm.0.shard.shared.learned.heard(EngineId(0))
}

/// Prompt, cap, samples of each bucket.
fn lengths(calm: &Calm) -> Vec<(u64, Option<u64>, u64)> {
    let known = calm.0.shard.shared.learned.lengths();
    known
        .map(|l| (l.prompt_tokens_min, l.cap_min, l.samples))
        .collect()
}

// proves R-SCH-4, R-TOK-2
#[test]
fn a_served_stream_teaches_pace_and_length() {
    // Reads, milliseconds and tokens of each, the samples, the ratio of each. `[DONE]` comes late and counts for nothing.
    let rows = [
        (33, 80, 1, 2, 2.0),
        (11, 240, 3, 1, 2.0),
        (5, 640, 8, 2, 2.0),
        (5, 40, 1, 1, 1.0),
        (1, 40, 50, 0, 0.0),
        (9, 0, 9, 0, 0.0),
    ];
    for (reads, after_ms, tokens, samples, ratio) in rows {
        let mut calm = Calm::new(PROFILED);
        stream(&mut calm);
        steady(&mut calm, reads, after_ms, tokens);
        done(&mut calm);
        assert_eq!(calm.ended(Outcome::Served), 1, "{reads} {tokens}");
        let got = heard(&calm);
        assert_eq!(got.samples, samples, "{reads} {tokens}: {got:?}");
        assert!((got.sum - samples as f64 * ratio).abs() < 1e-3, "{got:?}");
        assert_eq!(lengths(&calm), [(2, Some(64), 1)]);
    }
}

// proves R-SCH-4
#[test]
fn what_does_not_end_well_has_no_length() {
    type End = (&'static str, fn(&mut World), Outcome);
    let ends: [End; 3] = [
        ("engine breaks", |w| w.leg_breaks(0), Outcome::Failed),
        ("engine closes", |w| w.leg_eof(0), Outcome::Failed),
        ("client leaves", World::client_leaves, Outcome::Cancelled),
    ];
    for (name, end, outcome) in ends {
        let mut calm = Calm::new(PROFILED);
        stream(&mut calm);
        steady(&mut calm, 30, 80, 1);
        calm.then(end);
        assert_eq!(calm.ended(outcome), 1, "{name}");
        // What its tokens said of the engine's pace remains true.
        assert_eq!(heard(&calm).samples, 1, "{name}");
        assert!(lengths(&calm).is_empty(), "{name}");
    }
}

// proves R-SCH-4
#[test]
fn a_slow_client_makes_no_engine_slow() {
    let mut calm = Calm::new(PROFILED);
    stream(&mut calm);
    steady(&mut calm, 17, 40, 1);
    assert_eq!(heard(&calm).samples, 1);
    // It stops reading for twenty seconds, with a full buffer before it.
    let long = "a".repeat(1_500);
    for _ in 0..4 {
        read(&mut calm, 320, 8, &long);
    }
    assert!(calm.0.conn.io.out.is_full());
    calm.then(|w| w.advance(Duration::from_secs(5)));
    for _ in 0..3 {
        calm.then(|w| w.client_takes(usize::MAX));
    }
    steady(&mut calm, 40, 1, 1);
    done(&mut calm);
    assert_eq!(calm.ended(Outcome::Served), 1);
    let got = heard(&calm);
    assert!(
        (got.sum - got.samples as f64).abs() < 0.1 && got.samples <= 3,
        "{got:?}"
    );
    assert_eq!(lengths(&calm), [(2, Some(64), 1)]);
}

// proves R-TOK-2
#[test]
fn tokens_that_nobody_counted_teach_nothing() {
    let mut calm = Calm::new(PLAIN);
    stream(&mut calm);
    steady(&mut calm, 40, 80, 1);
    done(&mut calm);
    assert_eq!(calm.ended(Outcome::Served), 1);
    assert_eq!((heard(&calm), lengths(&calm)), (Heard::default(), vec![]));
}

// proves R-ADM-5, R-SCH-2
#[test]
fn requests_are_charged_what_those_before_them_used() {
    let mut calm = Calm::new(PROFILED);
    let charged = |calm: &Calm| {
        let load = calm.0.shard.shared.board.line(EngineId(0)).load(calm.0.now);
        (load.output_tokens, load.kv_tokens)
    };
    for n in 0..4 {
        stream(&mut calm);
        let output = if n < 3 { 100 } else { 10 };
        assert_eq!(charged(&calm), (output, 2 + output), "{n}");
        steady(&mut calm, 10, 40, 1);
        done(&mut calm);
        assert_eq!(charged(&calm), (0, 0));
    }
    assert_eq!(calm.ended(Outcome::Served), 4);
}
