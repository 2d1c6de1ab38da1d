//! A summary as text for people, and as one JSON object (schema `narwhal.journal_summary`, version 1). Names out of files are escaped.

use std::fmt::Write;

use serde_json::{Value, json};

use super::spread::Spread;
use super::stamp::{self, UnixMicros};
use super::summary::{Engine, Part, Summary, Timed};

pub const SCHEMA: &str = "narwhal.journal_summary";
/// Members are added over time, never renamed.
pub const SCHEMA_VERSION: u32 = 1;

/// Quantiles shown of everything, and of each engine.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

impl Timed {
    const fn meaning(self) -> &'static str {
        match self {
            Timed::Ttft => "first token, from arrival",
            Timed::Tpot => "per token after it",
            Timed::QueueWait => "wait for a seat",
            Timed::Prefill => "prefill leg",
            Timed::FirstToken => "first token, from the decode leg",
            Timed::Total => "whole request",
        }
    }
}

impl Summary {
    pub fn json(&self) -> Value {
        let ends = self.outcomes.iter();
        let ends = ends.map(|((outcome, reason), rows)| {
            let reason = Some(reason).filter(|reason| !reason.is_empty());
            json!({"outcome": outcome, "reason": reason, "rows": rows})
        });
        let times = Timed::ALL.iter().map(|timed| {
            let spread = &self.times[timed.index()];
            (format!("{}_s", timed.name()), spread_json(spread))
        });
        let engines = self.engines.iter();
        let engines = engines.map(|((name, part), engine)| engine_json(name, *part, engine));
        json!({
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "rows": self.rows,
            "passed_over": {
                "torn": self.torn,
                "foreign": self.foreign,
                "newer": self.newer,
                "too_long": self.too_long,
            },
            "first_arrived_at": self.first.map(shown),
            "last_arrived_at": self.last.map(shown),
            "outcomes": ends.collect::<Vec<_>>(),
            "streams": self.streams,
            "retried": self.retried,
            "slo_met": self.slo_met,
            "prompt_tokens": self.tokens.prompt,
            "cached_tokens": self.tokens.cached,
            "output_tokens": self.tokens.output,
            "served": times.collect::<serde_json::Map<_, _>>(),
            "engines": engines.collect::<Vec<_>>(),
        })
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        self.head(&mut out);
        self.ends(&mut out);
        self.latencies(&mut out);
        self.by_engine(&mut out);
        out
    }

    fn head(&self, out: &mut String) {
        // Writing to a string does not fail.
        let _ = write!(out, "{} requests", self.rows);
        if let (Some(first), Some(last)) = (self.first, self.last) {
            let span_s = (last.0 - first.0) as f64 / 1e6;
            let _ = write!(out, ", {} to {}", shown(first), shown(last));
            if span_s > 0.0 {
                let _ = write!(out, " ({:.2} a second)", self.rows as f64 / span_s);
            }
        }
        out.push('\n');
        let tokens = &self.tokens;
        let _ = writeln!(
            out,
            "{} streams, {} retried, {} within both targets; {} prompt tokens ({} cached), {} output tokens",
            self.streams, self.retried, self.slo_met, tokens.prompt, tokens.cached, tokens.output,
        );
        if self.passed_over() > 0 {
            let _ = writeln!(
                out,
                "passed over {} lines: {} cut off, {} of something else, {} of a later version, {} too long",
                self.passed_over(),
                self.torn,
                self.foreign,
                self.newer,
                self.too_long,
            );
        }
    }

    fn ends(&self, out: &mut String) {
        let head = ["OUTCOME", "REASON", "REQUESTS", "SHARE"].map(str::to_owned);
        let mut lines = vec![head];
        for ((outcome, reason), rows) in &self.outcomes {
            let share = *rows as f64 / self.rows as f64;
            lines.push([
                named(outcome),
                reason.escape_debug().to_string(),
                rows.to_string(),
                format!("{:.2} %", share * 100.0),
            ]);
        }
        table(out, "", &lines, 2);
    }

    fn latencies(&self, out: &mut String) {
        let mut head = vec!["SERVED", "REQUESTS", "MEAN"];
        head.extend(["P50", "P90", "P99", "P99.9", "MAX"]);
        let mut lines = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        for timed in Timed::ALL {
            let spread = &self.times[timed.index()];
            let mut line = vec![timed.meaning().to_owned(), spread.count().to_string()];
            line.push(spread.mean().map_or("-".to_owned(), |us| time(us as u64)));
            let shown = |us: Option<u64>| us.map_or("-".to_owned(), time);
            line.extend(QUANTILES.map(|(_, q)| shown(spread.quantile(q))));
            line.push(shown(spread.greatest()));
            lines.push(line);
        }
        table(out, "\n", &lines, 1);
    }

    fn by_engine(&self, out: &mut String) {
        if self.engines.is_empty() {
            return;
        }
        let head = ["ENGINE", "LEG", "REQUESTS", "SERVED", "FAILED LEGS"];
        let more = ["TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "TOKENS"];
        let head = head.iter().chain(&more).map(|word| (*word).to_owned());
        let mut lines = vec![head.collect::<Vec<_>>()];
        for ((name, part), engine) in &self.engines {
            let at = |spread: &Spread, q| spread.quantile(q).map_or("-".to_owned(), time);
            lines.push(vec![
                named(name),
                part.name().to_owned(),
                engine.requests.to_string(),
                engine.served.to_string(),
                engine.failures.to_string(),
                at(&engine.ttft, 0.5),
                at(&engine.ttft, 0.99),
                at(&engine.tpot, 0.5),
                at(&engine.tpot, 0.99),
                engine.tokens.to_string(),
            ]);
        }
        table(out, "\n", &lines, 2);
    }
}

fn engine_json(name: &str, part: Part, engine: &Engine) -> Value {
    json!({
        "engine": Some(name).filter(|name| !name.is_empty()),
        "leg": part.name(),
        "requests": engine.requests,
        "served": engine.served,
        "failed_legs": engine.failures,
        "tokens": engine.tokens,
        "ttft_s": spread_json(&engine.ttft),
        "tpot_s": spread_json(&engine.tpot),
    })
}

fn spread_json(spread: &Spread) -> Value {
    let mut object = json!({
        "count": spread.count(),
        "mean": spread.mean().map(|us| us / 1e6),
        "max": spread.greatest().map(seconds),
    });
    for (name, q) in QUANTILES {
        object[name] = json!(spread.quantile(q).map(seconds));
    }
    object
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn shown(at: UnixMicros) -> String {
    // It is ASCII.
    String::from_utf8_lossy(&stamp::write(at)).into_owned()
}

/// A name out of a file, fit for a terminal.
fn named(name: &str) -> String {
    match name {
        "" => "(others)".to_owned(),
        name => name.escape_debug().to_string(),
    }
}

/// In the unit that shows three digits or more.
fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.2} ms", us as f64 / 1e3),
        _ => format!("{:.3} s", us as f64 / 1e6),
    }
}

/// Columns as wide as their widest word: the first `words` of them to the left, numbers to the right.
fn table<L: AsRef<[String]>>(out: &mut String, before: &str, lines: &[L], words: usize) {
    let columns = lines.first().map_or(0, |head| head.as_ref().len());
    let width = |column: usize| {
        let cells = lines
            .iter()
            .map(|line| line.as_ref()[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    out.push_str(before);
    for line in lines {
        let mut shown = String::new();
        for (column, (word, width)) in line.as_ref().iter().zip(&widths).enumerate() {
            // Writing to a string does not fail.
            let _ = match column < words {
                true => write!(shown, "{word:width$}  "),
                false => write!(shown, "{word:>width$}  "),
            };
        }
        out.push_str(shown.trim_end());
        out.push('\n');
    }
}
