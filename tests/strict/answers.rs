//! Reads our answers as a client would that trusts nothing: the grammar of each head, one framing, an error that is an error envelope.
//!
//! Pure over bytes. Invariant: what is given back was whole, and the bytes behind it are untouched.

use serde_json::Value;

use super::rows::{End, Row, Want};

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(have, _)| have == name);
        found.map(|(_, value)| value.as_str())
    }

    fn closes(&self) -> bool {
        self.field("connection") == Some("close")
    }
}

/// The next answer and its bytes, or none yet. `head_only` when the request was HEAD, `over` when nothing more will come.
pub fn next(bytes: &[u8], head_only: bool, over: bool) -> Result<Option<(Answer, usize)>, String> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| "a head that is not ASCII")?;
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let status = line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.split_once(' '));
    let (status, reason) = status.ok_or_else(|| format!("a status line {line:?}"))?;
    let status: u16 = status.parse().map_err(|_| format!("a status {status:?}"))?;
    if reason.is_empty() || reason == "Unknown" {
        return Err(format!("no reason for {status}"));
    }
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in lines {
        let pair = line
            .split_once(": ")
            .ok_or_else(|| format!("a field {line:?}"))?;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if pair.0.is_empty() || !pair.0.chars().all(is_name) || pair.1.chars().any(char::is_control)
        {
            return Err(format!("a field {line:?}"));
        }
        if fields.iter().any(|(name, _)| name == pair.0) {
            return Err(format!("{} twice", pair.0));
        }
        fields.push((pair.0.to_owned(), pair.1.to_owned()));
    }
    let mut answer = Answer {
        status,
        fields,
        body: Vec::new(),
    };
    let start = end + 4;
    match body(&mut answer, &bytes[start..], head_only, over)? {
        Some(used) => {
            check(&answer, head_only)?;
            Ok(Some((answer, start + used)))
        }
        None => Ok(None),
    }
}

/// Takes the body, and gives its bytes on the wire.
fn body(
    answer: &mut Answer,
    bytes: &[u8],
    head_only: bool,
    over: bool,
) -> Result<Option<usize>, String> {
    let length = answer.field("content-length").map(str::to_owned);
    let coding = answer.field("transfer-encoding").map(str::to_owned);
    if length.is_some() && coding.is_some() {
        return Err("two framings".to_owned());
    }
    if matches!(answer.status, 100..200 | 204 | 304) {
        return match length.or(coding) {
            None => Ok(Some(0)),
            Some(framing) => Err(format!("{} framed by {framing:?}", answer.status)),
        };
    }
    if head_only {
        return Ok(Some(0));
    }
    if let Some(length) = length {
        let length: usize = length.parse().map_err(|_| format!("a length {length:?}"))?;
        if bytes.len() < length {
            return Ok(None);
        }
        answer.body = bytes[..length].to_vec();
        return Ok(Some(length));
    }
    if let Some(coding) = coding {
        return match coding.as_str() {
            "chunked" => chunks(answer, bytes),
            _ => Err(format!("a coding {coding:?}")),
        };
    }
    if !answer.closes() {
        return Err("no framing, and no close".to_owned());
    }
    if !over {
        return Ok(None);
    }
    answer.body = bytes.to_vec();
    Ok(Some(bytes.len()))
}

fn chunks(answer: &mut Answer, bytes: &[u8]) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        let Some(end) = bytes[at..].windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        let size = std::str::from_utf8(&bytes[at..at + end]).unwrap_or("?");
        let size = usize::from_str_radix(size, 16).map_err(|_| format!("a chunk size {size:?}"))?;
        at += end + 2;
        let Some(chunk) = bytes.get(at..at + size + 2) else {
            return Ok(None);
        };
        if !chunk.ends_with(b"\r\n") {
            return Err("a chunk without its end".to_owned());
        }
        answer.body.extend_from_slice(&chunk[..size]);
        at += size + 2;
        if size == 0 {
            return Ok(Some(at));
        }
    }
}

/// What every answer of ours has.
fn check(answer: &Answer, head_only: bool) -> Result<(), String> {
    let status = answer.status;
    if status >= 200 && answer.field("date").is_none() {
        return Err(format!("{status} without a date"));
    }
    if status >= 400 && !head_only {
        let text: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let is_text = |member: &str| text["error"][member].is_string();
        if !is_text("message") || !is_text("type") {
            return Err(format!("{status} is no error envelope: {text}"));
        }
    }
    for (of, name) in [(401, "www-authenticate"), (405, "allow")] {
        if status == of && answer.field(name).is_none() {
            return Err(format!("{status} without {name}"));
        }
    }
    Ok(())
}

/// What a client has read, against what a row wants. Where it stands is kept, so that it can go on when more has come.
pub struct Reading<'a> {
    row: &'a Row,
    /// Answers to skip in front of the row's, all 200.
    before: usize,
    stage: usize,
    at: usize,
    used: usize,
    last: Option<Answer>,
}

/// How far a reading got.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    /// More must come.
    Less,
    /// The clock is to run on.
    Late,
    /// All answers of this stage are there.
    Stage,
}

impl<'a> Reading<'a> {
    pub fn new(row: &'a Row, before: usize) -> Reading<'a> {
        Reading {
            row,
            before,
            stage: 0,
            at: 0,
            used: 0,
            last: None,
        }
    }

    /// Goes on with the answers of the stage it stands in.
    pub fn go_on(&mut self, bytes: &[u8], over: bool) -> Result<Got, String> {
        while self.before > 0 {
            match next(&bytes[self.used..], false, over)? {
                Some((answer, used)) if answer.status == 200 => self.used += used,
                Some((answer, _)) => return Err(format!("{} before the row", answer.status)),
                None => return Ok(Got::Less),
            }
            self.before -= 1;
        }
        let wanted = &self.row.stages[self.stage].want;
        while let Some(want) = wanted.get(self.at) {
            let (status, head_only) = match *want {
                Want::Late => {
                    self.at += 1;
                    return Ok(Got::Late);
                }
                Want::Status(status) => (status, false),
                Want::Head(status) => (status, true),
                Want::MaybeContinue => (100, false),
            };
            let Some((answer, used)) = next(&bytes[self.used..], head_only, over)? else {
                return Ok(Got::Less);
            };
            self.at += 1;
            if *want == Want::MaybeContinue && answer.status != 100 {
                continue;
            }
            if answer.status != status {
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(format!("{} instead of {status}: {text}", answer.status));
            }
            self.used += used;
            self.last = Some(answer);
        }
        Ok(Got::Stage)
    }

    /// The stage is done; whether there is another one.
    pub fn next_stage(&mut self) -> bool {
        self.stage += 1;
        self.at = 0;
        self.stage < self.row.stages.len()
    }

    /// The bytes that no answer of the row has used.
    pub fn rest<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.used..]
    }

    /// What the row says of its last answer and of the connection's end, which came (`over`) or did not.
    pub fn check_end(&self, bytes: &[u8], over: bool) -> Result<(), String> {
        let announced = self.last.as_ref().is_some_and(Answer::closes);
        match (self.row.end, over) {
            (End::Keep, true) | (End::Wait, true) => return Err("it was closed".to_owned()),
            (End::Close | End::Cut, false) => return Err("it was not closed".to_owned()),
            _ => {}
        }
        if announced != (self.row.end == End::Close) {
            return Err(format!("announced: {announced}"));
        }
        if over && !self.rest(bytes).is_empty() {
            let text = String::from_utf8_lossy(self.rest(bytes)).into_owned();
            return Err(format!("bytes behind the last answer: {text}"));
        }
        let Some(last) = &self.last else {
            return Ok(());
        };
        for line in &self.row.has {
            let (name, value) = line.split_once(": ").ok_or("has what?")?;
            if last.field(name) != Some(value) {
                return Err(format!("{name} is {:?}", last.field(name)));
            }
        }
        match self
            .row
            .lacks
            .iter()
            .find(|name| last.field(name).is_some())
        {
            Some(name) => Err(format!("it has {name}")),
            None => Ok(()),
        }
    }
}

/// The request behind each row: it tells whether the connection was kept, and it must never be answered where it was not.
pub const PROBE: &[u8] = b"GET /v1/models HTTP/1.1\r\nHost: probe\r\n\
    Authorization: Bearer strict-0123456789abcdef\r\n\r\n";

/// Whether these bytes are the answer to the probe and nothing else; `None` when more must come.
pub fn is_probed(bytes: &[u8]) -> Result<Option<()>, String> {
    match next(bytes, false, false)? {
        None => Ok(None),
        Some((answer, used)) => {
            let text: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            if answer.status != 200 || text["object"] != "list" || used != bytes.len() {
                return Err(format!("the probe: {} {text}", answer.status));
            }
            Ok(Some(()))
        }
    }
}

#[test]
fn answers_that_are_none_are_told() {
    let rows: &[(&str, &[u8])] = &[
        ("1.0", b"HTTP/1.0 200 OK\r\n\r\n"),
        ("no reason", b"HTTP/1.1 200 \r\n\r\n"),
        ("an upper-case name", b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n"),
        ("no framing", b"HTTP/1.1 200 OK\r\ndate: x\r\n\r\n"),
        ("no date", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        (
            "two lengths",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "two framings",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n",
        ),
        (
            "204 with a length",
            b"HTTP/1.1 204 No Content\r\ndate: x\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "no envelope",
            b"HTTP/1.1 400 Bad Request\r\ndate: x\r\ncontent-length: 2\r\n\r\n{}",
        ),
        (
            "a chunk",
            b"HTTP/1.1 200 OK\r\ndate: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        ),
    ];
    for (name, bytes) in rows {
        assert!(next(bytes, false, true).is_err(), "{name}");
    }
}
