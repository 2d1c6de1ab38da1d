//! What is a row and what is none, and lines cut anywhere.

use super::*;

const ROW: &str = r#"{"schema":"narwhal.journal","schema_version":1,"arrived_at":"2026-11-30T16:57:08.123456Z","outcome":"failed","reason":"decode","stream":true,"slo_met":null,"attempts":2,"prompt_tokens":7,"cached_tokens":null,"output_tokens":3,"prefill_engine":"p\u0031","decode_engine":null,"queue_wait_s":0.000001,"prefill_s":null,"first_token_s":null,"ttft_s":1.5,"tpot_s":null,"total_s":2.25,"faults":[{"engine":"e","leg":"decode","fault":"timeout","status":null}],"more":{"later":[1]}}"#;

// proves R-CLI-10
#[test]
fn a_row_is_read() {
    let facts = Facts::read(ROW.as_bytes()).unwrap();
    assert_eq!(
        (facts.outcome.as_ref(), facts.reason.as_deref()),
        ("failed", Some("decode"))
    );
    assert_eq!(
        (
            facts.attempts,
            facts.prompt_tokens,
            facts.cached_tokens,
            facts.output_tokens
        ),
        (2, 7, 0, 3)
    );
    assert_eq!(
        (facts.prefill_engine.as_deref(), facts.decode_engine),
        (Some("p1"), None)
    );
    assert_eq!(
        (facts.queue_wait, facts.ttft, facts.tpot, facts.total),
        (Some(1), Some(1_500_000), None, 2_250_000)
    );
    assert_eq!(facts.faults[0].fault, "timeout");
}

// proves R-CLI-10
#[test]
fn what_is_no_row() {
    let with = |from: &str, to: &str| ROW.replace(from, to);
    let rows = [
        (ROW[..100].to_owned(), NoRow::Torn),
        ("\0\0\0\0".to_owned(), NoRow::Torn),
        ("listening on port 80".to_owned(), NoRow::Torn),
        (format!("{ROW}{ROW}"), NoRow::Torn),
        ("{}".to_owned(), NoRow::Foreign),
        ("[1]".to_owned(), NoRow::Foreign),
        ("17".to_owned(), NoRow::Foreign),
        (with("narwhal.journal", "narwhal.state"), NoRow::Foreign),
        (
            with("\"schema_version\":1", "\"schema_version\":2"),
            NoRow::Newer,
        ),
        // A later version may have changed anything.
        (
            with("\"schema_version\":1", "\"schema_version\":2")
                .replace("\"attempts\":2", "\"attempts\":[]"),
            NoRow::Newer,
        ),
        (
            with("\"schema_version\":1", "\"schema_version\":0"),
            NoRow::Foreign,
        ),
        (with("\"attempts\":2", "\"attempts\":\"2\""), NoRow::Foreign),
        (with("\"attempts\":2,", ""), NoRow::Foreign),
        (with("\"total_s\":2.25", "\"total_s\":-1.0"), NoRow::Foreign),
        (
            with("\"total_s\":2.25", "\"total_s\":1e300"),
            NoRow::Foreign,
        ),
        (with("2026-11-30T", "2026-11-31T"), NoRow::Foreign),
        (format!("{{\"x\":{}}}", "[".repeat(60_000)), NoRow::Torn),
        (
            with("later", &"x".repeat(LINE_READ_BYTES_MAX)),
            NoRow::TooLong,
        ),
    ];
    for (line, want) in rows {
        assert_eq!(Facts::read(line.as_bytes()), Err(want), "{:.200}", line);
    }
    assert_eq!(Facts::read(b"{\"schema\":\"\xff\"}"), Err(NoRow::Torn));
}

#[test]
fn fuzz_bodies_on_a_few_seeds() {
    let longest = "x".repeat(LINE_READ_BYTES_MAX);
    for seed in [
        String::new(),
        format!("{ROW}\n{ROW}\r\n\n{}\n{{\"a\"", &ROW[..50]),
        format!("a{longest}\nb{longest}\r\n{longest}\n{longest}\r\n"),
        format!("{longest}\r"),
        ROW.replace("\"failed\"", "\"\\u001b[2J\""),
    ] {
        fuzzing::fuzz(seed.as_bytes());
    }
}
