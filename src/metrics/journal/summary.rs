//! What the rows of a journal come to: outcomes with their reasons, how long things took, and each engine's share. Bounded whatever the
//! files hold: so many outcomes and engines have a line of their own, and the others share one.
//!
//! Latencies are those of served requests, as in the histograms of `/metrics`. Invariant: rows = Σ outcomes.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::What;
use super::read::{Facts, FaultLine, NoRow};
use super::spread::Spread;
use super::stamp::UnixMicros;
use crate::base::words::words;
use crate::metrics::outcome::Outcome;

/// Outcomes with their reasons that have a line of their own.
pub const OUTCOMES_MAX: usize = 256;
/// Engines that do, each with a line for either leg: as many as a fleet has at most.
const LINES_MAX: usize = Part::COUNT * 4_096;
/// Characters of a word or a name that are kept.
const NAME_CHARS_MAX: usize = 128;
/// What the others share. No engine is named so, as a name is not empty.
const OTHERS: &str = "";

words! {
    /// What is timed.
    Timed {
        Ttft = "ttft",
        Tpot = "tpot",
        QueueWait = "queue_wait",
        Prefill = "prefill",
        FirstToken = "first_token",
        Total = "total",
    }
}

words! {
    /// What an engine was placed for.
    Part {
        Prefill = "prefill",
        Decode = "decode",
    }
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub(super) rows: u64,
    pub(super) torn: u64,
    pub(super) foreign: u64,
    pub(super) newer: u64,
    pub(super) too_long: u64,
    pub(super) first: Option<UnixMicros>,
    pub(super) last: Option<UnixMicros>,
    pub(super) outcomes: BTreeMap<(String, String), u64>,
    pub(super) streams: u64,
    pub(super) slo_met: u64,
    /// Placed more than once.
    pub(super) retried: u64,
    pub(super) tokens: Tokens,
    pub(super) times: [Spread; Timed::COUNT],
    pub(super) engines: BTreeMap<(String, Part), Engine>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tokens {
    pub prompt: u64,
    pub cached: u64,
    pub output: u64,
}

/// One engine in one part.
#[derive(Clone, Debug, Default)]
pub(super) struct Engine {
    /// Whose last attempt was placed here.
    pub requests: u64,
    pub served: u64,
    /// Legs that failed here, by any request.
    pub failures: u64,
    /// Read here, or written.
    pub tokens: u64,
    pub ttft: Spread,
    pub tpot: Spread,
}

impl Summary {
    /// Adds what a line was.
    pub fn add(&mut self, line: Result<Facts, NoRow>) {
        match line {
            Ok(facts) => self.row(&facts),
            Err(NoRow::Torn) => self.torn += 1,
            Err(NoRow::Foreign) => self.foreign += 1,
            Err(NoRow::Newer) => self.newer += 1,
            Err(NoRow::TooLong) => self.too_long += 1,
        }
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Lines that were no rows.
    pub fn passed_over(&self) -> u64 {
        self.torn + self.foreign + self.newer + self.too_long
    }

    fn row(&mut self, row: &Facts) {
        self.rows += 1;
        let at = row.arrived_at;
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
        self.last = Some(self.last.map_or(at, |last| last.max(at)));
        let reason = row.reason.as_deref().unwrap_or_default();
        let end = (short(&row.outcome), short(reason));
        *self.end(end) += 1;
        self.streams += u64::from(row.stream == Some(true));
        self.slo_met += u64::from(row.slo_met == Some(true));
        self.retried += u64::from(row.attempts > 1);
        sum(&mut self.tokens.prompt, row.prompt_tokens);
        sum(&mut self.tokens.cached, row.cached_tokens);
        sum(&mut self.tokens.output, row.output_tokens);
        let served = row.outcome == Outcome::Served.name();
        if served {
            self.time(Timed::Ttft, row.ttft);
            self.time(Timed::Tpot, row.tpot);
            self.time(Timed::QueueWait, row.queue_wait);
            self.time(Timed::Prefill, row.prefill);
            self.time(Timed::FirstToken, row.first_token);
            self.time(Timed::Total, Some(row.total));
        }
        let parts = [
            (&row.prefill_engine, Part::Prefill, row.prompt_tokens),
            (&row.decode_engine, Part::Decode, row.output_tokens),
        ];
        for (name, part, tokens) in parts {
            let Some(name) = name else { continue };
            let engine = self.engine(name, part);
            engine.requests += 1;
            engine.served += u64::from(served);
            sum(&mut engine.tokens, tokens);
            if served {
                row.ttft.into_iter().for_each(|ttft| engine.ttft.add(ttft));
                let tpot = row.tpot.filter(|_| part == Part::Decode);
                tpot.into_iter().for_each(|tpot| engine.tpot.add(tpot));
            }
        }
        for fault in row.faults.iter().filter(|fault| is_engines(fault)) {
            let part = match fault.leg.as_ref() {
                "decode" => Part::Decode,
                // A count is the prefill engines' work, or that of whoever had little to do.
                _ => Part::Prefill,
            };
            self.engine(&fault.engine, part).failures += 1;
        }
    }

    fn time(&mut self, timed: Timed, micros: Option<u64>) {
        let spread = &mut self.times[timed.index()];
        micros.into_iter().for_each(|micros| spread.add(micros));
    }

    fn end(&mut self, end: (String, String)) -> &mut u64 {
        let has_room = self.outcomes.len() < OUTCOMES_MAX || self.outcomes.contains_key(&end);
        let others = || (OTHERS.to_owned(), OTHERS.to_owned());
        self.outcomes
            .entry(if has_room { end } else { others() })
            .or_default()
    }

    fn engine(&mut self, name: &str, part: Part) -> &mut Engine {
        let key = (short(name), part);
        let has_room = self.engines.len() < LINES_MAX || self.engines.contains_key(&key);
        let others = || (OTHERS.to_owned(), part);
        self.engines
            .entry(if has_room { key } else { others() })
            .or_default()
    }
}

/// Whether the fault says something about its engine: not what went wrong here, nor a request that the engine found wrong.
fn is_engines(fault: &FaultLine) -> bool {
    let refusal = matches!(fault.status, Some(400 | 413 | 422));
    // A word of a later version is taken for the engine's.
    !refusal && !What::from_str(&fault.fault).is_ok_and(What::is_ours)
}

fn short(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}

fn sum(total: &mut u64, more: u64) {
    *total = total.saturating_add(more);
}

#[cfg(test)]
mod tests;
