//! A row as one line of JSON, its members as `members` lists them. Pure ASCII whatever the texts hold, so that a line is one line, and
//! harmless on a terminal.
//!
//! Invariant: a line ends in its only line feed and has at most [`LINE_BYTES_MAX`] bytes.

use std::time::Duration;

use super::stamp::{self, Anchor};
use super::{Fault, Moments, Row, SCHEMA, SCHEMA_VERSION, Text, What};
use crate::base::time::Instant;
use crate::metrics::picture::TokenAccounting;

/// A byte of a text becomes six at most (`\u00ff`); there are ten texts of a row and the router's own.
pub const LINE_BYTES_MAX: usize = 12_288;

/// What a line says beside its row.
#[derive(Clone, Debug)]
pub struct Writer {
    router_id: Text,
}

impl Writer {
    pub fn new(router_id: &str) -> Writer {
        Writer {
            router_id: Text::of(router_id.as_bytes()),
        }
    }

    /// Appends the row. `anchor` says what time it is by both clocks.
    pub fn write(&self, out: &mut Vec<u8>, row: &Row, anchor: &Anchor) {
        let mut line = Line {
            out: &mut *out,
            mark: b'{',
        };
        line.string("schema", SCHEMA);
        line.number("schema_version", u64::from(SCHEMA_VERSION));
        let arrived = stamp::write(anchor.at(row.moments.arrived));
        line.bytes("arrived_at", &arrived);
        line.text("router_id", Some(&self.router_id));
        line.number("shard", u64::from(row.shard));
        line.bytes("rid", &row.id);
        line.text("client_rid", given(&row.client_rid));
        line.string("route", row.route.name());
        line.text("model", given(&row.model));
        line.flag("stream", row.stream);
        line.string("outcome", row.end.name());
        line.word("reason", row.end.reason());
        line.string("stage", row.stage.name());
        line.maybe("status", row.status.map(u64::from));
        line.flag("slo_met", row.slo_met);
        lengths(&mut line, row);
        line.text("prefill_engine", given(&row.prefill_engine));
        line.text("decode_engine", given(&row.decode_engine));
        times(&mut line, row);
        line.faults("faults", row.faults());
        out.extend_from_slice(b"}\n");
    }
}

fn given(text: &Text) -> Option<&Text> {
    Some(text).filter(|text| !text.is_empty())
}

fn lengths(line: &mut Line, row: &Row) {
    line.number("attempts", u64::from(row.attempts));
    line.number("request_bytes", row.request_bytes);
    line.maybe("prompt_tokens", row.prompt_tokens);
    line.flag("prompt_estimated", Some(row.estimated));
    line.maybe("cached_tokens", row.cached_tokens);
    line.maybe("max_tokens", row.cap);
    line.string("token_accounting", row.accounting.name());
    let has_ids = row.accounting == TokenAccounting::TokenIds;
    line.maybe("output_tokens", Some(row.output).filter(|_| has_ids));
    line.maybe("output_events", Some(row.output).filter(|_| !has_ids));
}

/// A phase that had not ended when the request did ended with it.
fn times(line: &mut Line, row: &Row) {
    let m = &row.moments;
    let phase = |from: Option<Instant>, to: Option<Instant>| {
        from.map(|from| to.unwrap_or(m.ended).since(from))
    };
    let two_legs = !row.prefill_engine.is_empty();
    let prefill_placed = m.placed.filter(|_| two_legs);
    line.seconds("receive_s", phase(Some(m.arrived), m.received));
    line.seconds("size_s", phase(m.checked, m.sized));
    line.seconds("queue_wait_s", phase(m.sized, m.seated));
    line.seconds("retry_s", phase(m.seated, m.placed));
    line.seconds("prefill_wait_s", phase(prefill_placed, m.prefilling));
    line.seconds("prefill_s", phase(m.prefilling, m.prefilled));
    line.seconds(
        "decode_wait_s",
        phase(decode_waits(m, two_legs), m.decoding),
    );
    line.seconds("first_token_s", phase(m.decoding, m.first_token));
    line.seconds("decode_s", phase(m.first_token, None));
    line.seconds("ttft_s", m.first_token.map(|first| first.since(m.arrived)));
    line.seconds("tpot_s", tpot(row));
    line.seconds("total_s", Some(m.ended.since(m.arrived)));
}

/// Since when the decode leg could have gone out.
fn decode_waits(m: &Moments, two_legs: bool) -> Option<Instant> {
    match (m.prefilled, m.decoding) {
        (Some(prefilled), Some(decoding)) if prefilled <= decoding => Some(prefilled),
        (Some(prefilled), None) => Some(prefilled),
        // Side by side the prefill leg ends later, if it has begun at all.
        (_, Some(_)) => m.placed,
        (None, None) => m.placed.filter(|_| !two_legs),
    }
}

/// As the ledger's: the tokens behind the first event, over the time that they took.
fn tpot(row: &Row) -> Option<Duration> {
    let later = row
        .output
        .checked_sub(row.first_output)
        .filter(|n| *n > 0)?;
    let (first, last) = (row.moments.first_token?, row.moments.last_token?);
    let has_ids = row.accounting == TokenAccounting::TokenIds;
    has_ids.then(|| last.since(first).div_f64(later as f64))
}

/// The members of one object.
struct Line<'a> {
    out: &'a mut Vec<u8>,
    mark: u8,
}

impl Line<'_> {
    fn name(&mut self, name: &str) {
        self.out.push(self.mark);
        self.mark = b',';
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// Words of ours, which need no escape.
    fn bytes(&mut self, name: &str, text: &[u8]) {
        self.name(name);
        self.out.push(b'"');
        self.out.extend_from_slice(text);
        self.out.push(b'"');
    }

    fn string(&mut self, name: &str, word: &str) {
        self.bytes(name, word.as_bytes());
    }

    fn word(&mut self, name: &str, word: Option<&str>) {
        match word {
            Some(word) => self.string(name, word),
            None => self.null(name),
        }
    }

    fn text(&mut self, name: &str, text: Option<&Text>) {
        let Some(text) = text else {
            return self.null(name);
        };
        self.name(name);
        escape(self.out, text);
    }

    fn null(&mut self, name: &str) {
        self.name(name);
        self.out.extend_from_slice(b"null");
    }

    fn flag(&mut self, name: &str, flag: Option<bool>) {
        self.name(name);
        self.out.extend_from_slice(match flag {
            None => b"null",
            Some(true) => b"true",
            Some(false) => b"false",
        });
    }

    fn number(&mut self, name: &str, n: u64) {
        self.name(name);
        decimal(self.out, n, 1);
    }

    fn maybe(&mut self, name: &str, n: Option<u64>) {
        match n {
            Some(n) => self.number(name, n),
            None => self.null(name),
        }
    }

    fn seconds(&mut self, name: &str, time: Option<Duration>) {
        let Some(time) = time else {
            return self.null(name);
        };
        self.name(name);
        decimal(self.out, time.as_secs(), 1);
        self.out.push(b'.');
        decimal(self.out, u64::from(time.subsec_micros()), 6);
    }

    fn faults(&mut self, name: &str, faults: &[Fault]) {
        self.name(name);
        self.out.push(b'[');
        for (n, fault) in faults.iter().enumerate() {
            if n > 0 {
                self.out.push(b',');
            }
            let mut object = Line {
                out: &mut *self.out,
                mark: b'{',
            };
            object.text("engine", Some(&fault.engine));
            object.string("leg", fault.leg.name());
            object.string("fault", fault.what.name());
            let status = fault.status.filter(|_| fault.what == What::Status);
            object.maybe("status", status.map(u64::from));
            self.out.push(b'}');
        }
        self.out.push(b']');
    }
}

/// With at least so many digits.
fn decimal(out: &mut Vec<u8>, mut n: u64, digits_min: usize) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    while n > 0 || digits.len() - at < digits_min {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}

/// A JSON string in ASCII; bad UTF-8 is U+FFFD, per maximal bad part. One that was cut ends in `…`, on a whole character.
fn escape(out: &mut Vec<u8>, text: &Text) {
    let mut bytes = text.bytes();
    if text.is_cut() {
        let whole = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Err(e) if e.error_len().is_none() => e.valid_up_to(),
            _ => bytes.len(),
        };
        bytes = &bytes[..whole(bytes)];
    }
    out.push(b'"');
    for part in bytes.utf8_chunks() {
        for c in part.valid().chars() {
            match c {
                '"' | '\\' => out.extend_from_slice(&[b'\\', c as u8]),
                ' '..='~' => out.push(c as u8),
                c => unicode(out, c),
            }
        }
        if !part.invalid().is_empty() {
            unicode(out, char::REPLACEMENT_CHARACTER);
        }
    }
    if text.is_cut() {
        unicode(out, '…');
    }
    out.push(b'"');
}

fn unicode(out: &mut Vec<u8>, c: char) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for unit in c.encode_utf16(&mut [0; 2]) {
        out.extend_from_slice(b"\\u");
        for shift in [12, 8, 4, 0] {
            out.push(HEX[usize::from((*unit >> shift) & 0xf)]);
        }
    }
}

#[cfg(test)]
mod tests;
