//! Whole answers and the heads of both kinds, as uvicorn 0.54.0 in front of vLLM writes them: lower case, in this order. Pure.
//!
//! Invariant: `content-length` = bytes of the body, also where a HEAD request gets none.

use crate::base::words::words;
use crate::wire::h1::encode::{http_date, reason};

words! {
    /// How a body ends.
    Framing {
        Chunked = "chunked",
        Length = "length",
        Close = "close",
    }
}

/// Media types in use.
pub const JSON: &str = "application/json";
pub const METRICS: &str = "text/plain; version=1.0.0; charset=utf-8";
pub const TEXT: &str = "text/plain; charset=utf-8";

/// One whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Empty: no `content-type`.
    pub media: &'static str,
    /// The `allow` header of a 405.
    pub allow: Option<&'static str>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn new(status: u16, media: &'static str, body: Vec<u8>) -> Self {
        Answer {
            status,
            media,
            allow: None,
            body,
        }
    }

    /// FastAPI's shape for paths and methods that do not exist.
    pub fn detail(status: u16, detail: &str, allow: Option<&'static str>) -> Self {
        Answer {
            allow,
            ..Answer::new(
                status,
                JSON,
                format!("{{\"detail\":\"{detail}\"}}").into_bytes(),
            )
        }
    }

    /// What the HTTP parser says before any application: the connection ends with it.
    pub fn unparsable() -> Self {
        Answer::new(400, TEXT, b"Invalid HTTP request received.".to_vec())
    }

    /// Appends the head. `unix_s` is the time of day; `close` says that the connection ends.
    pub fn head(&self, unix_s: u64, close: bool, out: &mut Vec<u8>) {
        self.head_framed(unix_s, close, Framing::Length, out);
    }

    /// As [`Answer::head`], with another framing than uvicorn's.
    pub fn head_framed(&self, unix_s: u64, close: bool, framing: Framing, out: &mut Vec<u8>) {
        start(self.status, unix_s, out);
        if let Some(allow) = self.allow {
            field("allow", allow, out);
        }
        match framing {
            Framing::Length => field("content-length", &self.body.len().to_string(), out),
            Framing::Chunked => field("transfer-encoding", "chunked", out),
            Framing::Close => {}
        }
        if !self.media.is_empty() {
            field("content-type", self.media, out);
        }
        end(close, out);
    }
}

/// Appends the head of an event stream.
pub fn stream_head(unix_s: u64, close: bool, out: &mut Vec<u8>) {
    stream_head_framed(unix_s, close, Framing::Chunked, 0, out);
}

/// As [`stream_head`], with another framing than uvicorn's; `length` counts for that kind.
pub fn stream_head_framed(
    unix_s: u64,
    close: bool,
    framing: Framing,
    length: usize,
    out: &mut Vec<u8>,
) {
    start(200, unix_s, out);
    field("content-type", "text/event-stream; charset=utf-8", out);
    field("vary", "Origin", out);
    if close {
        field("connection", "close", out);
    }
    match framing {
        Framing::Chunked => field("transfer-encoding", "chunked", out),
        Framing::Length => field("content-length", &length.to_string(), out),
        Framing::Close => {}
    }
    out.extend_from_slice(b"\r\n");
}

fn start(status: u16, unix_s: u64, out: &mut Vec<u8>) {
    let line = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(b"date: ");
    out.extend_from_slice(&http_date(unix_s));
    out.extend_from_slice(b"\r\n");
    field("server", "uvicorn", out);
}

fn end(close: bool, out: &mut Vec<u8>) {
    field("vary", "Origin", out);
    if close {
        field("connection", "close", out);
    }
    out.extend_from_slice(b"\r\n");
}

fn field(name: &str, value: &str, out: &mut Vec<u8>) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}
