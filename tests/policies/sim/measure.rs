//! What came of a run: one record a request, and the numbers of a table.

use narwhal::base::time::Instant;

use super::fleet::{TPOT_S, TTFT_S};
use super::traffic::Trace;

/// What one client saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub at: Instant,
    /// Tokens of its prompt, of these the ones that the prefill engine knew, and tokens of its answer.
    pub prompt: u64,
    pub cached: u64,
    pub output: u64,
    pub status: u16,
    pub first: Option<Instant>,
    /// The end of a whole answer.
    pub end: Option<Instant>,
    /// What its placement counted on: seconds to the first token.
    pub projected_s: f64,
    pub crowd: bool,
    /// Where its prompt was read.
    pub engine: usize,
}

impl Record {
    pub fn is_admitted(&self) -> bool {
        self.status == 200
    }

    pub fn ttft_s(&self) -> Option<f64> {
        Some(self.first?.since(self.at).as_secs_f64())
    }

    pub fn tpot_s(&self) -> Option<f64> {
        let tokens = (self.output - 1).max(1) as f64;
        Some(self.end?.since(self.first?).as_secs_f64() / tokens)
    }

    pub fn in_ttft(&self) -> bool {
        self.ttft_s().is_some_and(|s| s <= TTFT_S)
    }

    /// Served, within both targets.
    pub fn is_good(&self) -> bool {
        self.in_ttft() && self.tpot_s().is_some_and(|s| s <= TPOT_S)
    }
}

/// One line of the table.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub offered: u64,
    pub admitted: u64,
    pub served: u64,
    /// Requests within both targets, a second.
    pub goodput: f64,
    /// Of the admitted ones: within the target for the first token, and for the others; parts of 1.
    pub in_ttft: f64,
    pub in_tpot: f64,
    pub ttft_p50_s: f64,
    pub ttft_p99_s: f64,
    pub tpot_p99_s: f64,
    /// Median of |projected − observed| ÷ observed, over requests that were served.
    pub projection_error: f64,
    /// Part of the prompt tokens that were in a prefix cache.
    pub cached: f64,
}

impl Summary {
    pub fn of(records: &[Record], trace: &Trace) -> Summary {
        let measured = records
            .iter()
            .filter(|r| r.at >= trace.warm && r.at < trace.end);
        let measured: Vec<&Record> = measured.collect();
        let admitted: Vec<&&Record> = measured.iter().filter(|r| r.is_admitted()).collect();
        let count = |of: &dyn Fn(&Record) -> bool| measured.iter().filter(|r| of(r)).count() as u64;
        let ttfts = sorted(admitted.iter().filter_map(|r| r.ttft_s()));
        let tpots = sorted(admitted.iter().filter_map(|r| r.tpot_s()));
        let errors = sorted(admitted.iter().filter_map(|r| {
            let seen = r.ttft_s()?;
            Some((r.projected_s - seen).abs() / seen)
        }));
        let part = |n: u64| n as f64 / (admitted.len() as f64).max(1.0);
        let tokens =
            |of: &dyn Fn(&Record) -> u64| admitted.iter().map(|r| of(r)).sum::<u64>() as f64;
        Summary {
            offered: measured.len() as u64,
            admitted: admitted.len() as u64,
            served: count(&|r| r.end.is_some()),
            goodput: count(&Record::is_good) as f64 / trace.measured().as_secs_f64(),
            in_ttft: part(count(&Record::in_ttft)),
            in_tpot: part(count(&|r| r.tpot_s().is_some_and(|s| s <= TPOT_S))),
            ttft_p50_s: quantile(&ttfts, 0.5),
            ttft_p99_s: quantile(&ttfts, 0.99),
            tpot_p99_s: quantile(&tpots, 0.99),
            projection_error: quantile(&errors, 0.5),
            cached: tokens(&|r| r.cached) / tokens(&|r| r.prompt).max(1.0),
        }
    }
}

impl Summary {
    /// Of several runs, member by member.
    pub fn mean(all: &[Summary]) -> Summary {
        let count = all.len().max(1);
        let real = |of: fn(&Summary) -> f64| all.iter().map(of).sum::<f64>() / count as f64;
        let whole = |of: fn(&Summary) -> u64| all.iter().map(of).sum::<u64>() / count as u64;
        Summary {
            offered: whole(|s| s.offered),
            admitted: whole(|s| s.admitted),
            served: whole(|s| s.served),
            goodput: real(|s| s.goodput),
            in_ttft: real(|s| s.in_ttft),
            in_tpot: real(|s| s.in_tpot),
            ttft_p50_s: real(|s| s.ttft_p50_s),
            ttft_p99_s: real(|s| s.ttft_p99_s),
            tpot_p99_s: real(|s| s.tpot_p99_s),
            projection_error: real(|s| s.projection_error),
            cached: real(|s| s.cached),
        }
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part) as usize;
    sorted
        .get(at.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}
