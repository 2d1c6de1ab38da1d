//! `/metrics`: Prometheus text format 0.0.4 from a [`Picture`]. Times are in seconds.
//!
//! Invariant: families come out in the order of [`names::ALL`], each once, with exactly the labels of its row.

use std::fmt::{Display, Write};

use super::histogram::{BOUNDS_NS, Distribution, Series};
use super::ledger::{Cell, Counts};
use super::names::{self, Kind, Metric};
use super::outcome::{End, Outcome};
use super::picture::{DigestMatch, JournalView, Picture, ReloadResult, TokenAccounting};
use super::standing::Standing;

/// What `/metrics` answers with.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The whole scrape.
pub fn render(picture: &Picture<'_>) -> String {
    let mut page = Page {
        out: String::with_capacity(32 * 1024),
    };
    router(&mut page, picture);
    outcomes(&mut page, &picture.totals);
    admission(&mut page, picture);
    legs(&mut page, &picture.totals);
    journal(&mut page, picture);
    engines(&mut page, picture);
    learned(&mut page, picture);
    times(&mut page, picture);
    shards(&mut page, picture);
    page.out
}

fn router(page: &mut Page, p: &Picture<'_>) {
    page.one(&names::BUILD_INFO, &[p.version], 1);
    page.one(&names::UPTIME, &[], p.uptime.as_secs_f64());
    page.one(
        &names::ROUTER_READY,
        &[],
        u8::from(p.health().reason().is_none()),
    );
    let standings = Standing::ALL
        .iter()
        .map(|s| ([s.name()], u64::from(*s == p.standing)));
    page.family(&names::ROUTER_STANDING, standings);
    let sources = TokenAccounting::ALL.iter();
    let sources = sources.map(|s| ([s.name()], u64::from(*s == p.token_accounting)));
    page.family(&names::TOKEN_ACCOUNTING, sources);
    page.one(&names::FLEET_EPOCH, &[], p.reloads.epoch);
    let results = ReloadResult::ALL.iter();
    let results = results.map(|r| ([r.name()], p.reloads.counts[r.index()]));
    page.family(&names::RELOADS, results);
    let last = p.reloads.last.as_ref();
    let well = last.is_none_or(|last| last.result == ReloadResult::Applied);
    page.one(&names::LAST_RELOAD_OK, &[], u8::from(well));
}

fn outcomes(page: &mut Page, c: &Counts) {
    page.one(&names::OFFERED, &[], c.offered());
    page.one(&names::UNSIZED_OFFERED, &[], c.cell(Cell::UnsizedOffered));
    page.one(&names::SERVED, &[], c.outcome(Outcome::Served));
    page.ends(&names::FAILED, c, Outcome::Failed);
    page.ends(&names::REJECTED, c, Outcome::Rejected);
    page.ends(&names::REFUSED, c, Outcome::Refused);
    page.ends(&names::EXPIRED, c, Outcome::Expired);
    page.one(&names::INVALID, &[], c.outcome(Outcome::Invalid));
    page.ends(&names::INVALID_REASONS, c, Outcome::Invalid);
    page.one(&names::CANCELLED, &[], c.outcome(Outcome::Cancelled));
    page.ends(&names::CANCELLED_STAGES, c, Outcome::Cancelled);
    page.one(&names::UNAUTHORIZED, &[], c.cell(Cell::Unauthorized));
    page.one(&names::HEADS_REFUSED, &[], c.cell(Cell::HeadsRefused));
    page.one(&names::SLO_MET, &[], c.cell(Cell::SloMet));
    page.one(&names::INFLIGHT, &[], c.inflight());
}

fn admission(page: &mut Page, p: &Picture<'_>) {
    let c = &p.totals;
    page.one(&names::ADMISSION_INFLIGHT, &[], p.seats.held);
    page.one(&names::ADMISSION_LIMIT, &[], p.seats.limit);
    page.one(&names::HTTP_RETAINED, &[], p.retained.held);
    page.one(&names::HTTP_RETAINED_LIMIT, &[], p.retained.limit);
    page.one(&names::QUEUED, &[], c.cell(Cell::Queued));
    page.one(&names::QUEUE_LIMIT, &[], p.queue_limit);
    let waiting = [
        ("prefill", Cell::PrefillWaiting),
        ("decode", Cell::DecodeWaiting),
    ];
    page.family(
        &names::PHASE_WAITING,
        waiting.map(|(phase, cell)| ([phase], c.cell(cell))),
    );
}

fn legs(page: &mut Page, c: &Counts) {
    page.one(
        &names::TOKENIZE_ATTEMPTS,
        &[],
        c.cell(Cell::TokenizeAttempts),
    );
    page.one(&names::PREFILL_ATTEMPTS, &[], c.cell(Cell::PrefillAttempts));
    page.one(&names::DECODE_ATTEMPTS, &[], c.cell(Cell::DecodeAttempts));
    page.one(&names::RETRY_ATTEMPTS, &[], c.cell(Cell::RetryAttempts));
    page.one(
        &names::DECODE_TOKENS,
        &[],
        c.cell(Cell::DecodeTokensObserved),
    );
    page.one(
        &names::ORPHANED_HANDOFFS,
        &[],
        c.cell(Cell::OrphanedHandoffs),
    );
    page.one(&names::PREFIX_LOOKUPS, &[], c.cell(Cell::PrefixLookups));
    page.one(
        &names::PREFIX_PROMPT_TOKENS,
        &[],
        c.cell(Cell::PrefixPromptTokens),
    );
    page.one(
        &names::PREFIX_BELIEVED_TOKENS,
        &[],
        c.cell(Cell::PrefixBelievedTokens),
    );
    page.one(
        &names::PREFIX_COMPARED_TOKENS,
        &[],
        c.cell(Cell::PrefixComparedTokens),
    );
    page.one(
        &names::PREFIX_HELD_TOKENS,
        &[],
        c.cell(Cell::PrefixHeldTokens),
    );
    page.one(&names::FENCED_LATE, &[], c.cell(Cell::FencedLate));
}

fn journal(page: &mut Page, p: &Picture<'_>) {
    let of = |read: fn(&JournalView) -> u64| p.journal.as_ref().map_or(0, read);
    page.one(&names::JOURNAL_ROWS, &[], of(|journal| journal.rows));
    let dropped = p.totals.cell(Cell::JournalDropped);
    page.one(&names::JOURNAL_DROPPED, &[], dropped);
    page.one(&names::JOURNAL_WAITING, &[], of(|journal| journal.waiting));
    page.one(&names::JOURNAL_BYTES, &[], of(|journal| journal.bytes));
    page.one(&names::JOURNAL_FAULTS, &[], of(|journal| journal.faults));
    let rotations = of(|journal| journal.rotations);
    page.one(&names::JOURNAL_ROTATIONS, &[], rotations);
}

fn engines(page: &mut Page, p: &Picture<'_>) {
    let resident = p.engines.iter().flat_map(|e| {
        let line = e.line;
        [
            ([e.iid, "prefill"], line.prefill_requests),
            ([e.iid, "decode"], line.decode_requests),
        ]
    });
    page.family(&names::RESIDENT, resident);
    let each = p.engines.iter();
    let tokens = each.clone().map(|e| ([e.iid], e.line.outstanding_tokens));
    page.family(&names::OUTSTANDING_TOKENS, tokens);
    let live = each.clone().map(|e| ([e.iid], u64::from(e.line.live)));
    page.family(&names::ENGINE_LIVE, live);
    let ejected = each.clone().map(|e| ([e.iid], u64::from(e.line.ejected)));
    page.family(&names::EJECTED, ejected);
    let failures = each.clone().flat_map(|e| {
        let failures = e.breaker.failures.iter();
        failures.map(|(class, n)| ([e.iid, class], *n))
    });
    page.family(&names::ENGINE_FAILURES, failures);
    let probation = each
        .clone()
        .map(|e| ([e.iid], u64::from(e.line.on_probation)));
    page.family(&names::PROBATION, probation);
    let evicted = each.map(|e| ([e.iid], u64::from(e.line.evicted)));
    page.family(&names::EVICTED, evicted);
    let words = DigestMatch::ALL.iter();
    let digests = p.engines.iter().filter_map(|e| Some((e.iid, e.digest?)));
    let digests = digests.flat_map(|(iid, digest)| {
        let words = words.clone();
        words.map(move |word| ([iid, word.name()], u64::from(*word == digest)))
    });
    page.family(&names::PROFILE_DIGEST, digests);
    page.one(&names::ENGINES_AVAILABLE, &[], p.health().available());
}

fn learned(page: &mut Page, p: &Picture<'_>) {
    let each = p.engines.iter();
    let correction = each.clone().map(|e| ([e.iid], e.pace.correction));
    page.family(&names::DECODE_CORRECTION, correction);
    let samples = each.clone().map(|e| ([e.iid], e.pace.samples));
    page.family(&names::PACE_SAMPLES, samples);
    let known = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let score = each.clone().map(|e| ([e.iid], known(e.pace.score)));
    page.family(&names::DRIFT_SCORE, score);
    let baseline = each.clone().map(|e| ([e.iid], known(e.pace.baseline)));
    page.family(&names::DRIFT_BASELINE, baseline);
    let bad = each.map(|e| ([e.iid], e.pace.bad_windows));
    page.family(&names::DRIFT_BAD_WINDOWS, bad);
    let samples: u64 = p.lengths.iter().map(|length| length.samples).sum();
    page.one(&names::LENGTH_SAMPLES, &[], samples);
    let known = p.lengths.iter().filter(|length| length.median.is_some());
    page.one(&names::LENGTH_BUCKETS, &[], known.count());
}

fn times(page: &mut Page, p: &Picture<'_>) {
    for (metric, series) in [
        (&names::TTFT, Series::Ttft),
        (&names::TPOT, Series::Tpot),
        (&names::QUEUE_WAIT, Series::QueueWait),
        (&names::REQUEST_DURATION, Series::Duration),
    ] {
        page.head(metric);
        page.histogram(metric, "", series, p.times.of(series));
    }
    page.head(&names::OVERHEAD);
    for series in Series::STAGES {
        page.histogram(&names::OVERHEAD, series.name(), series, p.times.of(series));
    }
    page.head(&names::LOOP_DELAY);
    page.histogram(
        &names::LOOP_DELAY,
        "",
        Series::LoopDelay,
        p.times.of(Series::LoopDelay),
    );
}

fn shards(page: &mut Page, p: &Picture<'_>) {
    let known = |n: Option<u32>| n.map_or_else(String::new, |n| n.to_string());
    page.head(&names::SHARD_INFO);
    for (i, s) in p.shards.iter().enumerate() {
        let place = [&i.to_string(), &known(s.core), &known(s.node), s.driver];
        page.sample(&names::SHARD_INFO, "", &place, 1);
    }
    type Reading = fn(&Counts) -> u64;
    let rows: [(&Metric, Reading); 16] = [
        (&names::SHARD_INFLIGHT, Counts::inflight),
        (&names::SHARD_OFFERED, Counts::offered),
        (&names::SHARD_STREAMS, |c| c.cell(Cell::StreamsActive)),
        (&names::SHARD_CONNECTIONS, |c| c.cell(Cell::ConnectionsOpen)),
        (&names::SHARD_ACCEPTED, |c| {
            c.cell(Cell::ConnectionsAccepted)
        }),
        (&names::SHARD_MOVED, |c| c.cell(Cell::ConnectionsMoved)),
        (&names::SHARD_KEPT, |c| c.cell(Cell::ConnectionsKept)),
        (&names::SHARD_LEGS, |c| c.cell(Cell::LegsOpen)),
        (&names::SHARD_POOL_IDLE, |c| c.cell(Cell::PoolIdle)),
        (&names::SHARD_POOL_HITS, |c| c.cell(Cell::PoolHits)),
        (&names::SHARD_POOL_MISSES, |c| c.cell(Cell::PoolMisses)),
        (&names::SHARD_EVENTS, |c| c.cell(Cell::EventsRelayed)),
        (&names::SHARD_BYTES, |c| c.cell(Cell::BytesRelayed)),
        (&names::SHARD_READS, |c| c.cell(Cell::EngineReads)),
        (&names::SHARD_WRITES, |c| c.cell(Cell::ClientWrites)),
        (&names::SHARD_MAIL_DROPPED, |c| c.cell(Cell::MailDropped)),
    ];
    for (metric, reading) in rows {
        page.head(metric);
        for (i, s) in p.shards.iter().enumerate() {
            page.sample(metric, "", &[&i.to_string()], reading(&s.counts));
        }
    }
}

/// The text under way. `write!` to a `String` cannot fail, so its results are dropped.
struct Page {
    out: String,
}

impl Page {
    fn head(&mut self, m: &Metric) {
        let _ = writeln!(self.out, "# HELP {} {}", m.name, m.meaning);
        let _ = writeln!(self.out, "# TYPE {} {}", m.name, m.kind.name());
    }

    fn one(&mut self, m: &Metric, values: &[&str], n: impl Display) {
        self.head(m);
        self.sample(m, "", values, n);
    }

    fn family<'a, const N: usize>(
        &mut self,
        m: &Metric,
        samples: impl IntoIterator<Item = ([&'a str; N], impl Display)>,
    ) {
        self.head(m);
        for (values, n) in samples {
            self.sample(m, "", &values, n);
        }
    }

    fn ends(&mut self, m: &Metric, counts: &Counts, outcome: Outcome) {
        let ends = End::ALL.iter().filter(|e| e.outcome() == outcome);
        self.family(
            m,
            ends.map(|e| ([e.reason().unwrap_or_default()], counts.end(*e))),
        );
    }

    fn histogram(&mut self, m: &Metric, stage: &str, series: Series, d: &Distribution) {
        debug_assert_eq!(m.kind, Kind::Histogram);
        let values: &[&str] = if m.labels.is_empty() { &[] } else { &[stage] };
        for bound in series.bounds_shown() {
            let le = BOUNDS_NS[bound] as f64 / 1e9;
            self.labelled(m, "_bucket", values, Some(&le), d.count_le(bound));
        }
        self.labelled(m, "_bucket", values, Some(&"+Inf"), d.count());
        self.sample(m, "_sum", values, d.sum_seconds());
        self.sample(m, "_count", values, d.count());
    }

    fn sample(&mut self, m: &Metric, suffix: &str, values: &[&str], n: impl Display) {
        self.labelled(m, suffix, values, None, n);
    }

    fn labelled(
        &mut self,
        m: &Metric,
        suffix: &str,
        values: &[&str],
        le: Option<&dyn Display>,
        n: impl Display,
    ) {
        debug_assert_eq!(m.labels.len(), values.len(), "{}", m.name);
        let _ = write!(self.out, "{}{suffix}", m.name);
        let mut mark = '{';
        for (label, value) in m.labels.iter().zip(values) {
            let _ = write!(self.out, "{mark}{label}=\"");
            self.escaped(value);
            self.out.push('"');
            mark = ',';
        }
        if let Some(le) = le {
            let _ = write!(self.out, "{mark}le=\"{le}\"");
            mark = ',';
        }
        let _ = writeln!(self.out, "{} {n}", if mark == ',' { "}" } else { "" });
    }

    /// Label values escape backslash, quote and line feed, nothing else.
    fn escaped(&mut self, value: &str) {
        for c in value.chars() {
            match c {
                '\\' => self.out.push_str("\\\\"),
                '"' => self.out.push_str("\\\""),
                '\n' => self.out.push_str("\\n"),
                c => self.out.push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests;
