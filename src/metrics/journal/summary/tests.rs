//! Summaries beside a plain one: sorted vectors and counted maps of the same rows, as serde_json reads them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::base::prng::Prng;

/// A row as a router could have written it.
fn row(chance: &mut Prng) -> Value {
    let mut below = |n| chance.below(n);
    let seconds = |n: u64| json!(n as f64 / 1e6);
    let ends = [
        ("served", None),
        ("failed", Some("decode")),
        ("rejected", Some("seats")),
        ("cancelled", Some("relay")),
    ];
    let (outcome, reason) = ends[below(8).saturating_sub(4) as usize];
    let placed = outcome != "rejected";
    let engine = |n: u64, kind: &str| {
        if placed {
            json!(format!("{kind}{}", n % 3))
        } else {
            Value::Null
        }
    };
    let two_legs = below(4) > 0;
    let first = placed && below(10) > 0;
    let ttft = below(5_000_000);
    let faults: Vec<Value> = (0..below(6).saturating_sub(3))
        .map(|n| {
            let words = ["timeout", "status", "stale_socket", "connect", "later_word"];
            let fault = words[below(5) as usize];
            let status = (fault == "status").then(|| [400, 500, 503][below(3) as usize]);
            let leg = ["prefill", "decode", "tokenize"][below(3) as usize];
            json!({"engine": format!("d{n}"), "leg": leg, "fault": fault, "status": status})
        })
        .collect();
    json!({
        "schema": "narwhal.journal", "schema_version": 1,
        "arrived_at": format!("2026-11-30T16:{:02}:08.123456Z", below(60)),
        "outcome": outcome, "reason": reason, "stream": below(2) == 0, "slo_met": (outcome == "served").then(|| below(2) == 0),
        "attempts": 1 + below(3), "prompt_tokens": placed.then(|| below(10_000)), "cached_tokens": (below(2) == 0).then(|| below(100)),
        "output_tokens": placed.then(|| below(1_000)),
        "prefill_engine": if two_legs { engine(below(3), "p") } else { Value::Null }, "decode_engine": engine(below(3), "d"),
        "queue_wait_s": placed.then(|| seconds(below(1_000_000))), "prefill_s": two_legs.then(|| seconds(below(900_000))),
        "first_token_s": first.then(|| seconds(below(300_000))), "ttft_s": first.then(|| seconds(ttft)),
        "tpot_s": first.then(|| seconds(below(100_000))), "total_s": seconds(ttft + below(60_000_000)), "faults": faults,
    })
}

/// Nearest rank of sorted seconds.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted[((q * sorted.len() as f64).ceil().max(1.0) as usize) - 1]
}

fn holds(name: &str, got: &Value, mut want: Vec<f64>) {
    want.sort_by(f64::total_cmp);
    assert_eq!(got["count"], want.len(), "{name}");
    if want.is_empty() {
        assert!(
            got["p50"].is_null() && got["mean"].is_null(),
            "{name}: {got}"
        );
        return;
    }
    for (word, q) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
        let (got, want) = (got[word].as_f64().unwrap(), quantile(&want, q));
        assert!(
            (got - want).abs() <= want / 256.0 + 1e-6,
            "{name} {word}: {got} for {want}"
        );
    }
    let mean = want.iter().sum::<f64>() / want.len() as f64;
    assert!(
        (got["mean"].as_f64().unwrap() - mean).abs() < 1e-6,
        "{name}"
    );
    assert_eq!(got["max"].as_f64(), want.last().copied(), "{name}");
}

// proves R-CLI-10
#[test]
fn a_summary_is_what_a_plain_one_is() {
    for seed in 0..20 {
        let mut chance = Prng::new(seed);
        let count = [1, 7, 400, 3_000][seed as usize % 4];
        let rows: Vec<Value> = (0..count).map(|_| row(&mut chance)).collect();
        let mut summary = Summary::default();
        for row in &rows {
            let line = row.to_string();
            summary.add(Facts::read(line.as_bytes()));
        }
        let got = summary.json();
        let served: Vec<&Value> = rows
            .iter()
            .filter(|row| row["outcome"] == "served")
            .collect();
        let of = |rows: &[&Value], name: &str| -> Vec<f64> {
            rows.iter().filter_map(|row| row[name].as_f64()).collect()
        };
        assert_eq!(got["rows"], rows.len());
        for name in [
            "ttft_s",
            "tpot_s",
            "queue_wait_s",
            "prefill_s",
            "first_token_s",
            "total_s",
        ] {
            holds(name, &got["served"][name], of(&served, name));
        }
        let mut ends: BTreeMap<(String, String), u64> = BTreeMap::new();
        for row in &rows {
            let word = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            *ends.entry((word("outcome"), word("reason"))).or_default() += 1;
        }
        let ends: Vec<Value> = ends
            .into_iter()
            .map(|((outcome, reason), rows)| {
                let reason = (!reason.is_empty()).then_some(reason);
                json!({"outcome": outcome, "reason": reason, "rows": rows})
            })
            .collect();
        assert_eq!(got["outcomes"], json!(ends));
        let sum = |name: &str| {
            rows.iter()
                .filter_map(|row| row[name].as_u64())
                .sum::<u64>()
        };
        for name in ["prompt_tokens", "cached_tokens", "output_tokens"] {
            assert_eq!(got[name], sum(name), "{name}");
        }
        let those = |holds: fn(&Value) -> bool| rows.iter().filter(|row| holds(row)).count();
        assert_eq!(got["streams"], those(|row| row["stream"] == true));
        assert_eq!(got["slo_met"], those(|row| row["slo_met"] == true));
        assert_eq!(
            got["retried"],
            those(|row| row["attempts"].as_u64() > Some(1))
        );
        for engine in got["engines"].as_array().unwrap() {
            holds_engine(engine, &rows);
        }
        let times: Vec<&str> = rows
            .iter()
            .filter_map(|row| row["arrived_at"].as_str())
            .collect();
        assert_eq!(
            got["first_arrived_at"].as_str(),
            times.iter().min().copied()
        );
        assert_eq!(got["last_arrived_at"].as_str(), times.iter().max().copied());
    }
}

fn holds_engine(got: &Value, rows: &[Value]) {
    let (name, leg) = (&got["engine"], got["leg"].as_str().unwrap());
    let placed = format!("{leg}_engine");
    let here: Vec<&Value> = rows.iter().filter(|row| row[&placed] == *name).collect();
    let served: Vec<&&Value> = here
        .iter()
        .filter(|row| row["outcome"] == "served")
        .collect();
    assert_eq!(got["requests"], here.len());
    assert_eq!(got["served"], served.len());
    let tokens = if leg == "prefill" {
        "prompt_tokens"
    } else {
        "output_tokens"
    };
    assert_eq!(
        got["tokens"],
        here.iter()
            .filter_map(|row| row[tokens].as_u64())
            .sum::<u64>()
    );
    let of = |name: &str| served.iter().filter_map(|row| row[name].as_f64()).collect();
    holds("ttft_s", &got["ttft_s"], of("ttft_s"));
    holds(
        "tpot_s",
        &got["tpot_s"],
        if leg == "decode" {
            of("tpot_s")
        } else {
            Vec::new()
        },
    );
    let faults = rows
        .iter()
        .flat_map(|row| row["faults"].as_array().unwrap());
    let failed = faults.filter(|fault| {
        let same_leg = (fault["leg"] == "decode") == (leg == "decode");
        let ours = fault["fault"] == "stale_socket" || fault["status"] == 400;
        fault["engine"] == *name && same_leg && !ours
    });
    assert_eq!(got["failed_legs"], failed.count(), "{name} {leg}");
}

// proves R-CLI-10
#[test]
fn the_text_has_a_line_for_everything() {
    let mut summary = Summary::default();
    assert_eq!(summary.text().lines().next(), Some("0 requests"));
    let mut chance = Prng::new(3);
    for _ in 0..200 {
        let line = row(&mut chance).to_string();
        summary.add(Facts::read(line.as_bytes()));
    }
    for no_row in [
        NoRow::Torn,
        NoRow::Torn,
        NoRow::Foreign,
        NoRow::Newer,
        NoRow::TooLong,
    ] {
        summary.add(Err(no_row));
    }
    let text = summary.text();
    assert!(text.starts_with("200 requests, 2026-11-30T16:0"), "{text}");
    let passed =
        "passed over 5 lines: 2 cut off, 1 of something else, 1 of a later version, 1 too long\n";
    assert!(text.contains(passed), "{text}");
    for words in [
        "\nserved ",
        "\nfailed     decode",
        "first token, from arrival",
        "\np0 ",
        "\nd2 ",
        "FAILED LEGS",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

// proves R-CLI-10
#[test]
fn names_without_end_share_a_line() {
    let mut summary = Summary::default();
    let mut template = row(&mut Prng::new(1));
    let count = LINES_MAX + 100;
    for n in 0..count {
        template["outcome"] = json!(format!("o{n}{}", "\u{1b}".repeat(500)));
        template["prefill_engine"] = json!(format!("p{n}"));
        template["decode_engine"] = json!("d");
        template["faults"] = json!([]);
        let line = template.to_string();
        summary.add(Facts::read(line.as_bytes()));
    }
    assert!(summary.outcomes.len() <= OUTCOMES_MAX + 1 && summary.engines.len() <= LINES_MAX + 2);
    assert_eq!(summary.outcomes.values().sum::<u64>(), count as u64);
    assert_eq!(
        summary.engines.values().map(|e| e.requests).sum::<u64>(),
        2 * count as u64
    );
    let text = summary.text();
    assert!(text.contains("(others)") && !text.contains('\u{1b}'));
    let json = summary.json();
    assert!(
        json["engines"]
            .as_array()
            .unwrap()
            .iter()
            .any(|e| e["engine"].is_null())
    );
}
