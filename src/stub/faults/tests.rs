//! Fault scripts: what is taken, what is refused and in which words, and which requests a rule takes.

use super::*;
use crate::config::Format;

fn script(rules: &str) -> Result<Script, String> {
    let text =
        format!("{{\"schema\":\"narwhal.faults\",\"schema_version\":1,\"rules\":[{rules}]}}");
    parse("f.json", &text, Format::Json).map_err(|errors| errors.to_string())
}

// proves R-CLI-3
#[test]
fn faults_of_a_script_are_named() {
    // rule, message behind the place
    let rows = [
        (
            r#"{"do":"rest"}"#,
            "rules[0].do: unknown word, found \"rest\", allowed one of close, reset, hang, pause, error, error_ok, eof, done, abort, insert, raw, drain, die, restart, refuse; did you mean reset?",
        ),
        (r#"{"does":"reset"}"#, "rules[0].does: unknown key"),
        (
            r#"{"d":"reset","do":"reset"}"#,
            "rules[0].d: unknown key; did you mean do?",
        ),
        (
            r#"{"do":"error","status":200}"#,
            "rules[0].status: out of range, found 200, allowed 400 to 599",
        ),
        (
            r#"{"do":"reset","nth":0}"#,
            "rules[0].nth: out of range, found 0, allowed 1 to 1099511627776 requests",
        ),
        (
            r#"{"do":"reset","probability":1.5}"#,
            "rules[0].probability: out of range, found 1.5, allowed 0 to 1",
        ),
        (
            r#"{"do":"reset","events":2}"#,
            "rules[0].events: has no effect; it needs `at` event or in_event, or `token_ids`",
        ),
        (
            r#"{"do":"reset","status":500}"#,
            "rules[0].status: has no effect; it needs `do` error or error_ok",
        ),
        (
            r#"{"leg":"decode"}"#,
            "rules[0].do: has no effect; give a rule `do`, or one of token_ids, ",
        ),
        (
            r#"{"do":"insert","at":"event"}"#,
            "rules[0].do: has no effect; give exactly one of `what`, `text`, `hex`",
        ),
        (
            r#"{"do":"raw","hex":"0g"}"#,
            "rules[0].hex: not hexadecimal, allowed two digits",
        ),
        (r#"{"do":"raw","hex":"0"}"#, "rules[0].hex: not hexadecimal"),
        (
            r#"{"do":"abort"}"#,
            "rules[0].at: has no effect; it needs a place inside the body",
        ),
        (
            r#"{"at":"accept","do":"error"}"#,
            "rules[0].at: has no effect; a new connection has no leg",
        ),
        (
            r#"{"interim":[101]}"#,
            "rules[0].interim: no interim status, found 101, allowed 100, 102 or 103",
        ),
        (r#"7"#, "rules[0]: wrong type, found 7, allowed a table"),
        (r#"{"do":"reset","do":"hang"}"#, "rules[0].do: given twice"),
        (
            r#"{"do":"reset","count":"1"}"#,
            "rules[0].count: wrong type, found \"1\", allowed 1 to 1099511627776 times",
        ),
    ];
    for (rule, want) in rows {
        let errors = script(rule).expect_err(rule);
        let at = errors.lines().any(|line| {
            line.starts_with("f.json:1:")
                && line
                    .splitn(4, ':')
                    .nth(3)
                    .is_some_and(|m| m.trim_start().starts_with(want))
        });
        assert!(at, "{rule}: {errors}");
    }
    // name, text, message
    let files = [
        (
            "kind",
            r#"{"schema":"narwhal.fleet","schema_version":1,"rules":[]}"#,
            "schema: another kind of file, found \"narwhal.fleet\", allowed \"narwhal.faults\"",
        ),
        (
            "missing",
            r#"{"schema":"narwhal.faults","schema_version":1}"#,
            "rules: missing, allowed a list",
        ),
        (
            "version",
            r#"{"schema":"narwhal.faults","schema_version":2,"rules":[]}"#,
            "schema_version: out of range, found 2, allowed 1 to 1",
        ),
        ("syntax", r#"{"schema":}"#, "not JSON: unexpected '}'"),
    ];
    for (name, text, want) in files {
        let errors = parse("f.json", text, Format::Json)
            .expect_err(name)
            .to_string();
        assert!(errors.contains(want), "{name}: {errors}");
    }
    let toml = "schema = \"narwhal.faults\"\nschema_version = 1\n_note = 1\n[[rules]]\ndo = \"hang\"\n_why = \"x\"\n";
    assert_eq!(parse("f.toml", toml, Format::Toml).unwrap().0.len(), 1);
}

// proves R-CLI-3
#[test]
fn a_rule_takes_the_requests_it_says() {
    let all: Vec<u64> = (1..=12).collect();
    // match, requests of 12 that it takes
    let rows: &[(&str, &[u64])] = &[
        ("", &all),
        (r#""nth":3,"#, &[3]),
        (r#""every":5,"#, &[5, 10]),
        (r#""after":9,"#, &[10, 11, 12]),
        (r#""after":1,"every":5,"#, &[6, 11]),
        (r#""count":2,"#, &[1, 2]),
        (r#""every":3,"count":2,"#, &[3, 6]),
        (r#""probability":0,"#, &[]),
        (r#""probability":1,"#, &all),
        (r#""leg":"decode","#, &all),
        (r#""leg":"prefill","#, &[]),
        (r#""engine":0,"#, &all),
        (r#""engine":1,"#, &[]),
    ];
    for (matches, want) in rows {
        let script = script(&format!("{{{matches}\"do\":\"hang\"}}")).unwrap();
        let mut judge = Judge::new(&script.of_engine(0), 1);
        let got: Vec<u64> = (1..=12)
            .filter(|_| !judge.request(Leg::Decode).steps.is_empty())
            .collect();
        assert_eq!(got, *want, "{matches}");
        assert!(judge.accepted().steps.is_empty());
    }
    let half = script(r#"{"probability":0.5,"do":"hang"}"#).unwrap();
    let run = |seed| {
        let mut judge = Judge::new(&half, seed);
        (0..1_000)
            .filter(|_| !judge.request(Leg::Decode).steps.is_empty())
            .count()
    };
    assert_eq!(run(1), run(1));
    assert!((400..600).contains(&run(1)) && run(1) != run(2));
    let accept = script(r#"{"at":"accept","every":2,"do":"reset"}"#).unwrap();
    let mut judge = Judge::new(&accept, 1);
    assert!(judge.request(Leg::Health).steps.is_empty());
    let got: Vec<usize> = (0..4).map(|_| judge.accepted().steps.len()).collect();
    assert_eq!(got, [0, 1, 0, 1]);
}

#[test]
fn rules_add_up_and_the_later_shape_counts() {
    let script = script(
        r#"{"do":"pause","pause_ms":5},{"framing":"close","write_bytes":1},{"write_bytes":2,"interim":[103]},
           {"leg":"prefill","framing":"chunked"},{"at":"end","do":"close"}"#,
    )
    .unwrap();
    let got = Judge::new(&script, 0).request(Leg::Decode);
    assert_eq!(
        got.steps.iter().map(|s| s.act).collect::<Vec<_>>(),
        [Do::Pause, Do::Close]
    );
    assert_eq!(got.shape.framing, Some(Framing::Close));
    assert_eq!(got.shape.write_bytes, Some(2));
    assert_eq!(got.shape.interim, [103]);
}

#[test]
fn wanted_bytes_are_what_they_say() {
    let utf8 = |what: What| String::from_utf8(what.bytes(100)).is_ok();
    assert!(
        What::ALL
            .iter()
            .all(|w| utf8(*w) == (*w != What::InvalidUtf8))
    );
    let json = |what: What| {
        let bytes = what.bytes(100);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        serde_json::from_str::<serde_json::Value>(text.strip_prefix("data: ")?).ok()
    };
    for what in [What::InvalidUtf8, What::Oversized, What::Role, What::Silent] {
        assert!(json(what).is_some(), "{what}");
    }
    assert!(json(What::Malformed).is_none());
    assert!(What::Oversized.bytes(1 << 20).len() > 1 << 21);
}

#[test]
fn the_readme_names_every_word() {
    let readme = include_str!("../../../README.md");
    let section = readme.split("### Its faults").nth(1).expect("a section");
    let section = section.split("\n## ").next().unwrap_or("");
    let sets = [
        Leg::WORDS,
        At::WORDS,
        Do::WORDS,
        What::WORDS,
        BadIds::WORDS,
        BadHandoff::WORDS,
        Framing::WORDS,
    ];
    for word in sets.concat() {
        assert!(section.contains(&format!("`{word}`")), "{word}");
    }
}

#[test]
fn fuzz_seeds() {
    for seed in [
        r#"{"schema":"narwhal.faults","schema_version":1,"rules":[{"do":"hang","at":"accept"},{"do":"x\ny"}]}"#,
        r#"{"schema":"narwhal.profiles","schema_version":1,"profiles":[{"iid":"e0","ttft_a":-1e999}]}"#,
        "schema = \"narwhal.faults\"\nschema_version = 1\n[[rules]]\ndo = \"raw\"\nhex = \"\u{e9}\"\n",
        r#"{"rules":{"a":[]},"rules":7}"#,
        "[",
    ] {
        fuzzing::fuzz(seed.as_bytes());
    }
}

proptest::proptest! {
    #[test]
    fn fuzz_members(members in proptest::collection::vec(
        (
            proptest::sample::select(vec![
                "leg", "nth", "at", "events", "do", "what", "hex", "status", "token_ids", "interim", "framing", "x",
            ]),
            proptest::sample::select(vec![
                "1", "-1", "1.5", "null", "\"event\"", "\"insert\"", "\"error\"", "\"accept\"", "\"role\"", "\"0\"", "[100]", "{}",
            ]),
        ),
        0..6,
    )) {
        let members: Vec<String> = members.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
        let text = format!(
            r#"{{"schema":"narwhal.faults","schema_version":1,"rules":[{{{}}}]}}"#,
            members.join(",")
        );
        fuzzing::fuzz(text.as_bytes());
    }
}
