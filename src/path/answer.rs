//! What we say ourselves: error envelopes, assembled answers, stream heads and the events that end a broken stream.
//!
//! Framing is always our own and no engine field passes. Every completion answer carries `x-request-id`.

use super::exchange::{Cx, Exchange, Io};
use crate::metrics::outcome::End;
use crate::metrics::standing::{Answer, CHALLENGE};
use crate::shard::Shard;
use crate::wire::h1::encode::{self, Framing};
use crate::wire::openai;

/// An error answer, before it is bytes.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    pub status: u16,
    pub message: &'a str,
    pub kind: &'a str,
    pub param: Option<&'a str>,
    pub code: Option<&'a str>,
    /// Seconds.
    pub retry_after: Option<u32>,
}

const JSON: (&str, &[u8]) = ("content-type", b"application/json");

impl<'a> Refusal<'a> {
    pub const fn new(status: u16, kind: &'a str, message: &'a str) -> Self {
        Refusal {
            status,
            message,
            kind,
            param: None,
            code: None,
            retry_after: None,
        }
    }

    pub const fn code(mut self, code: &'a str) -> Self {
        self.code = Some(code);
        self
    }

    pub const fn param(mut self, param: Option<&'a str>) -> Self {
        self.param = param;
        self
    }

    pub const fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The error object, on one line.
    fn write(&self, out: &mut Vec<u8>) {
        openai::write_error(out, self.message, self.kind, self.param, self.code);
    }
}

impl Exchange {
    /// Answers with an error and ends the exchange. Behind a head that is out already the error is the stream's last event.
    pub fn refuse(&mut self, cx: &mut Cx, refusal: Refusal, end: End) {
        if self.head_sent {
            let out = stream_body(cx.io);
            out.extend_from_slice(b"data: ");
            refusal.write(out);
            out.extend_from_slice(b"\n\n");
            end_stream(cx.io);
        } else {
            self.marks.status = refusal.status;
            write_refusal(cx.io, cx.shard, &refusal, Some(&self.id), None);
        }
        self.finish(cx, end);
    }

    /// One assembled answer.
    pub fn write_json(&self, cx: &mut Cx, body: &[u8]) {
        let fields = [JSON, ("x-request-id", &self.id as &[u8])];
        write_answer(cx.io, cx.shard, 200, &fields, body);
    }
}

/// The head of a stream. Its body is ours to frame.
pub fn write_stream_head(io: &mut Io, id: &[u8; 36], date: &[u8; 29]) {
    let fields: [(&str, &[u8]); 4] = [
        ("content-type", b"text/event-stream; charset=utf-8"),
        ("cache-control", b"no-cache"),
        ("x-accel-buffering", b"no"),
        ("x-request-id", id),
    ];
    let framing = if io.http10 {
        Framing::UntilClose
    } else {
        Framing::Chunked
    };
    encode::response_head(io.out.plain(), 200, &fields, framing, io.close, Some(date));
}

/// The buffer that a stream's payload goes into.
pub fn stream_body(io: &mut Io) -> &mut Vec<u8> {
    if io.http10 {
        io.out.plain()
    } else {
        io.out.chunked()
    }
}

/// Ends a stream's body.
pub fn end_stream(io: &mut Io) {
    if !io.http10 {
        io.out.plain().extend_from_slice(encode::LAST_CHUNK);
    }
}

/// Ends a stream whose head is out and that cannot be finished.
pub fn end_stream_with(io: &mut Io, message: &str, code: &str) {
    let out = stream_body(io);
    out.extend_from_slice(b"data: ");
    openai::write_stream_error(out, message, "decode", code);
    out.extend_from_slice(b"\n\n");
    end_stream(io);
}

pub fn write_refusal(
    io: &mut Io,
    shard: &Shard,
    refusal: &Refusal,
    id: Option<&[u8; 36]>,
    allow: Option<&str>,
) {
    let mut body = Vec::with_capacity(256);
    refusal.write(&mut body);
    let mut fields: [(&str, &[u8]); 5] = [JSON; 5];
    let mut n = 1;
    let mut seconds = [0u8; 10];
    if let Some(id) = id {
        fields[n] = ("x-request-id", id);
        n += 1;
    }
    if refusal.status == 401 {
        fields[n] = ("www-authenticate", CHALLENGE.as_bytes());
        n += 1;
    }
    if let Some(allow) = allow {
        fields[n] = ("allow", allow.as_bytes());
        n += 1;
    }
    if let Some(retry_after) = refusal.retry_after {
        fields[n] = ("retry-after", decimal(&mut seconds, retry_after));
        n += 1;
    }
    write_answer(io, shard, refusal.status, &fields[..n], &body);
}

/// An answer of the routes beside the completions.
pub fn write_small(io: &mut Io, shard: &Shard, answer: &Answer) {
    let mut fields: [(&str, &[u8]); 4] = [("content-type", answer.content_type.as_bytes()); 4];
    let mut n = 1;
    let mut seconds = [0u8; 10];
    if answer.status == 401 {
        fields[n] = ("www-authenticate", CHALLENGE.as_bytes());
        n += 1;
    }
    if let Some(allow) = answer.allow {
        fields[n] = ("allow", allow.as_bytes());
        n += 1;
    }
    if let Some(retry_after) = answer.retry_after {
        fields[n] = ("retry-after", decimal(&mut seconds, retry_after));
        n += 1;
    }
    write_answer(io, shard, answer.status, &fields[..n], &answer.body);
}

/// A whole answer with its length; without its body when the request was HEAD.
pub fn write_answer(
    io: &mut Io,
    shard: &Shard,
    status: u16,
    fields: &[(&str, &[u8])],
    body: &[u8],
) {
    let framing = if status == 204 {
        Framing::None
    } else {
        Framing::Length(body.len() as u64)
    };
    let (close, head_only) = (io.close, io.head_only);
    let out = io.out.plain();
    encode::response_head(out, status, fields, framing, close, Some(&shard.date));
    if !head_only && status != 204 {
        out.extend_from_slice(body);
    }
}

fn decimal(buf: &mut [u8; 10], mut n: u32) -> &[u8] {
    let mut at = buf.len();
    loop {
        at -= 1;
        buf[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &buf[at..];
        }
    }
}
