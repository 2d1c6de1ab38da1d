//! The text held to its format: families in order, labels of their rows, histograms cumulative.

use std::collections::BTreeMap;

use super::*;
use crate::metrics::picture::sample;

/// A plain reader of the format: family → (type, samples as (name, labels, value)).
type Families = BTreeMap<String, (String, Vec<(String, Vec<(String, String)>, f64)>)>;

fn read(text: &str) -> Families {
    let mut out = Families::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family, "HELP before TYPE");
            assert!(
                out.insert(name.into(), (kind.into(), Vec::new())).is_none(),
                "{name} twice"
            );
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').next().unwrap().into();
        } else {
            let (name, labels, value) = sample_line(line);
            assert!(name.starts_with(&family), "{name} under {family}");
            out.get_mut(&family).unwrap().1.push((name, labels, value));
        }
    }
    assert!(text.ends_with('\n'));
    out
}

fn sample_line(line: &str) -> (String, Vec<(String, String)>, f64) {
    let (key, value) = line.rsplit_once(' ').unwrap();
    let value = value.parse().unwrap();
    let Some((name, rest)) = key.split_once('{') else {
        return (key.into(), vec![], value);
    };
    let (mut labels, mut rest) = (Vec::new(), rest.strip_suffix('}').unwrap());
    while !rest.is_empty() {
        let (label, tail) = rest.split_once("=\"").unwrap();
        let (mut text, mut end, mut chars) = (String::new(), None, tail.char_indices());
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    end = Some(i + 1);
                    break;
                }
                '\\' => text.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("escape {c}"),
                }),
                c => text.push(c),
            }
        }
        labels.push((label.into(), text));
        rest = tail[end.unwrap()..].trim_start_matches(',');
    }
    (name.into(), labels, value)
}

// proves R-OBS-1
#[test]
fn text_and_table_are_the_same_set() {
    let text = render(&sample());
    let families = read(&text);
    let order: Vec<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert_eq!(order, names::ALL.iter().map(|m| m.name).collect::<Vec<_>>());
    for m in names::ALL {
        let (kind, samples) = &families[m.name];
        assert_eq!(kind, m.kind.name());
        assert!(!samples.is_empty(), "{}", m.name);
        for (name, labels, _) in samples {
            let bucket = name.ends_with("_bucket") && m.kind == Kind::Histogram;
            let want = m.labels.iter().copied().chain(bucket.then_some("le"));
            let got = labels.iter().map(|(l, _)| l.as_str());
            assert!(got.eq(want), "{name} {labels:?}");
        }
    }
}

// proves R-OBS-1
#[test]
fn histograms_are_cumulative_and_close_with_inf() {
    for m in names::ALL.iter().filter(|m| m.kind == Kind::Histogram) {
        let families = read(&render(&sample()));
        let mut by_stage = BTreeMap::<Vec<(String, String)>, Vec<(f64, f64)>>::new();
        let mut counts = BTreeMap::new();
        for (name, labels, value) in &families[m.name].1 {
            if name.ends_with("_bucket") {
                let (le, rest) = labels.split_last().unwrap();
                let le = if le.1 == "+Inf" {
                    f64::INFINITY
                } else {
                    le.1.parse().unwrap()
                };
                by_stage
                    .entry(rest.to_vec())
                    .or_default()
                    .push((le, *value));
            } else if name.ends_with("_count") {
                counts.insert(labels.clone(), *value);
            }
        }
        assert_eq!(by_stage.len(), counts.len(), "{}", m.name);
        for (stage, buckets) in by_stage {
            assert!(
                buckets
                    .windows(2)
                    .all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1),
                "{}",
                m.name
            );
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, counts[&stage])));
            assert_eq!(counts[&stage], 2.0, "one value per shard in the sample");
        }
    }
}

/// The scrape itself keeps the ledger's invariant, and sums what the shards say.
// proves R-ADM-10, R-OBS-1, R-TOK-2
#[test]
fn ends_and_inflight_add_up_in_the_text() {
    let families = read(&render(&sample()));
    let sum = |name: &str| families[name].1.iter().map(|s| s.2).sum::<f64>();
    let ends = [
        "served",
        "failed",
        "rejected",
        "refused",
        "expired",
        "invalid_requests",
        "cancelled",
    ];
    let ended: f64 = ends
        .iter()
        .map(|e| sum(&format!("narwhal_{e}_total")))
        .sum();
    assert_eq!(
        sum("narwhal_offered_total"),
        ended + sum("narwhal_inflight")
    );
    assert_eq!(sum("narwhal_inflight"), sum("narwhal_shard_inflight"));
    assert_eq!(
        sum("narwhal_offered_total"),
        sum("narwhal_shard_offered_total")
    );
    assert_eq!(
        sum("narwhal_invalid_requests_total"),
        sum("narwhal_invalid_request_reasons_total")
    );
    assert_eq!(
        sum("narwhal_cancelled_total"),
        sum("narwhal_cancelled_stages_total")
    );
    let source = &families["narwhal_token_accounting"].1;
    assert!(source.iter().any(|s| s.1[0].1 == "token_ids" && s.2 == 1.0));
    assert_eq!(source.iter().map(|s| s.2).sum::<f64>(), 1.0);
}

#[test]
fn strange_engine_names_survive_as_label_values() {
    let families = read(&render(&sample()));
    let iids: Vec<&str> = families["narwhal_ejected"]
        .1
        .iter()
        .map(|s| s.1[0].1.as_str())
        .collect();
    assert_eq!(iids, ["e0", "e\"1\\\n"]);
}

/// Series depend on the fleet and the shards, never on traffic.
#[test]
fn the_number_of_series_does_not_depend_on_traffic() {
    let busy = sample();
    let mut quiet = busy.clone();
    for shard in &mut quiet.shards {
        (shard.counts, shard.times) = Default::default();
    }
    let lines = |p: &Picture<'_>| render(p).lines().count();
    assert_eq!(lines(&busy), lines(&quiet.totalled()));
}
