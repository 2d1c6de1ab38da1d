//! Lines of journals as they are found on disks: cut by a crash, of another version, of another program. What is a row comes out as
//! [`Facts`], everything else as the reason why it is none.
//!
//! Bytes come in pieces of any size. Invariant: no more than [`LINE_READ_BYTES_MAX`] bytes of a line are held, whatever the file says.

use std::borrow::Cow;

use serde::Deserialize;

use super::line::LINE_BYTES_MAX;
use super::stamp::{self, UnixMicros};
use super::{SCHEMA, SCHEMA_VERSION};

/// A longer line is none of ours. More than is ever written, for members that are added later.
pub const LINE_READ_BYTES_MAX: usize = 65_536;

/// Why a line is no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRow {
    /// Not JSON: cut off, most likely.
    Torn,
    /// JSON of something else.
    Foreign,
    /// Of a later version of the schema.
    Newer,
    TooLong,
}

/// What a summary needs of a row. Times are in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts<'a> {
    pub arrived_at: UnixMicros,
    pub outcome: Cow<'a, str>,
    pub reason: Option<Cow<'a, str>>,
    pub stream: Option<bool>,
    pub slo_met: Option<bool>,
    pub attempts: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub prefill_engine: Option<Cow<'a, str>>,
    pub decode_engine: Option<Cow<'a, str>>,
    pub queue_wait: Option<u64>,
    pub prefill: Option<u64>,
    pub first_token: Option<u64>,
    pub ttft: Option<u64>,
    pub tpot: Option<u64>,
    pub total: u64,
    pub faults: Vec<FaultLine<'a>>,
}

/// A leg that failed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FaultLine<'a> {
    #[serde(borrow)]
    pub engine: Cow<'a, str>,
    #[serde(borrow)]
    pub leg: Cow<'a, str>,
    #[serde(borrow)]
    pub fault: Cow<'a, str>,
    pub status: Option<u16>,
}

impl<'a> Facts<'a> {
    /// Reads a line, without its end.
    pub fn read(line: &'a [u8]) -> Result<Facts<'a>, NoRow> {
        if line.len() > LINE_READ_BYTES_MAX {
            return Err(NoRow::TooLong);
        }
        let row: Members = match serde_json::from_slice(line) {
            Ok(row) => row,
            Err(_) => return Err(no_row(line)),
        };
        if row.schema != SCHEMA {
            return Err(NoRow::Foreign);
        }
        match row.schema_version {
            SCHEMA_VERSION => {}
            later if later > SCHEMA_VERSION => return Err(NoRow::Newer),
            _ => return Err(NoRow::Foreign),
        }
        row.facts().ok_or(NoRow::Foreign)
    }
}

/// The line is no row of this version.
fn no_row(line: &[u8]) -> NoRow {
    let Ok(whole) = serde_json::from_slice::<serde_json::Value>(line) else {
        return NoRow::Torn;
    };
    let version = whole["schema_version"].as_u64();
    let is_later = version.is_some_and(|version| version > u64::from(SCHEMA_VERSION));
    match whole["schema"] == SCHEMA && is_later {
        true => NoRow::Newer,
        false => NoRow::Foreign,
    }
}

/// The members that are read, of the kinds that they are written in.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    schema: Cow<'a, str>,
    schema_version: u32,
    #[serde(borrow)]
    arrived_at: Cow<'a, str>,
    #[serde(borrow)]
    outcome: Cow<'a, str>,
    #[serde(borrow)]
    reason: Option<Cow<'a, str>>,
    stream: Option<bool>,
    slo_met: Option<bool>,
    attempts: u64,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    output_tokens: Option<u64>,
    #[serde(borrow)]
    prefill_engine: Option<Cow<'a, str>>,
    #[serde(borrow)]
    decode_engine: Option<Cow<'a, str>>,
    queue_wait_s: Option<f64>,
    prefill_s: Option<f64>,
    first_token_s: Option<f64>,
    ttft_s: Option<f64>,
    tpot_s: Option<f64>,
    total_s: f64,
    #[serde(borrow)]
    faults: Vec<FaultLine<'a>>,
}

impl<'a> Members<'a> {
    /// `None` when a value is out of its range.
    fn facts(self) -> Option<Facts<'a>> {
        let times = [
            self.queue_wait_s,
            self.prefill_s,
            self.first_token_s,
            self.ttft_s,
            self.tpot_s,
            Some(self.total_s),
        ];
        if times
            .into_iter()
            .flatten()
            .any(|s| !(0.0..1e12).contains(&s))
        {
            return None;
        }
        let micros = |s: Option<f64>| s.map(|s| (s * 1e6).round() as u64);
        Some(Facts {
            arrived_at: stamp::parse(self.arrived_at.as_bytes())?,
            outcome: self.outcome,
            reason: self.reason,
            stream: self.stream,
            slo_met: self.slo_met,
            attempts: self.attempts,
            prompt_tokens: self.prompt_tokens.unwrap_or(0),
            cached_tokens: self.cached_tokens.unwrap_or(0),
            output_tokens: self.output_tokens.unwrap_or(0),
            prefill_engine: self.prefill_engine,
            decode_engine: self.decode_engine,
            queue_wait: micros(self.queue_wait_s),
            prefill: micros(self.prefill_s),
            first_token: micros(self.first_token_s),
            ttft: micros(self.ttft_s),
            tpot: micros(self.tpot_s),
            total: (self.total_s * 1e6).round() as u64,
            faults: self.faults,
        })
    }
}

/// Splits what comes into lines, and bounds them.
#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
    /// Its beginning was given up.
    too_long: bool,
}

impl Lines {
    /// Hands each whole line to `take`, without its end (LF or CR LF). `None` is one that is too long. Blank lines are passed over.
    pub fn feed(&mut self, mut bytes: &[u8], mut take: impl FnMut(Option<&[u8]>)) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.begun.is_empty() && !self.too_long {
                give(line, &mut take);
                continue;
            }
            self.keep(line);
            self.end(&mut take);
        }
        self.keep(bytes);
    }

    /// The file has ended: what is left is a line without an end.
    pub fn end(&mut self, mut take: impl FnMut(Option<&[u8]>)) {
        match std::mem::take(&mut self.too_long) {
            true => take(None),
            false => give(&self.begun, &mut take),
        }
        self.begun.clear();
    }

    fn keep(&mut self, bytes: &[u8]) {
        // A CR may follow the last byte that counts.
        if self.too_long || self.begun.len() + bytes.len() > LINE_READ_BYTES_MAX + 1 {
            self.too_long = true;
            self.begun.clear();
            return;
        }
        self.begun.extend_from_slice(bytes);
    }
}

fn give(line: &[u8], take: &mut impl FnMut(Option<&[u8]>)) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line.len() {
        0 => {}
        n if n > LINE_READ_BYTES_MAX => take(None),
        _ => take(Some(line)),
    }
}

const _: () = assert!(LINE_READ_BYTES_MAX > LINE_BYTES_MAX);

#[doc(hidden)]
pub mod fuzzing {
    //! A body for a fuzz target.

    use super::{Facts, LINE_READ_BYTES_MAX, Lines, NoRow};
    use crate::metrics::journal::summary::Summary;

    /// Cut anywhere, bytes make the same lines, those that a plain split makes; and no line panics, in a summary and its texts neither.
    pub fn fuzz(data: &[u8]) {
        let whole = lines([data]);
        let (cut, rest) = data.split_first().map_or((0, data), |(n, rest)| {
            (usize::from(*n) % rest.len().max(1), rest)
        });
        let again = lines([&data[..data.len() - rest.len()], &rest[..cut], &rest[cut..]]);
        assert_eq!(whole, again);
        assert_eq!(lines(data.chunks(1)), whole);
        assert_eq!(plain(data), whole);
        let mut summary = Summary::default();
        for line in &whole {
            let facts = line.as_deref().map_or(Err(NoRow::TooLong), Facts::read);
            if let Ok(facts) = &facts {
                // What is in members that nobody reads is not looked at so closely.
                let line = line.as_deref().unwrap_or_default();
                if let Ok(value) = serde_json::from_slice::<serde_json::Value>(line) {
                    assert_eq!(value["outcome"], facts.outcome.as_ref());
                    assert_eq!(value["attempts"], facts.attempts);
                }
            }
            summary.add(facts);
        }
        let read = summary.rows() + summary.passed_over();
        assert_eq!(read, whole.len() as u64);
        let text = summary.text();
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
        let json = summary.json();
        assert_eq!(json["rows"], summary.rows());
    }

    type Line = Option<Vec<u8>>;

    fn lines<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
        let (mut all, mut lines) = (Vec::new(), Lines::default());
        for piece in pieces {
            lines.feed(piece, |line| all.push(line.map(<[u8]>::to_vec)));
            assert!(lines.begun.len() <= LINE_READ_BYTES_MAX + 1);
        }
        lines.end(|line| all.push(line.map(<[u8]>::to_vec)));
        all
    }

    fn plain(data: &[u8]) -> Vec<Line> {
        let lines = data.split(|b| *b == b'\n');
        let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let lines = lines.filter(|line| !line.is_empty());
        lines
            .map(|line| (line.len() <= LINE_READ_BYTES_MAX).then(|| line.to_vec()))
            .collect()
    }
}

#[cfg(test)]
mod tests;
