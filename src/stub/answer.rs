//! Whole answers and the heads of both kinds, as uvicorn 0.54.0 in front of vLLM writes them: lower case, in this order. Pure.
//!
//! Invariant: `content-length` = bytes of the body, also where a HEAD request gets none.

use std::fmt::Write as _;

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
        start(self.status, unix_s, out);
        if let Some(allow) = self.allow {
            field("allow", allow, out);
        }
        field("content-length", &self.body.len().to_string(), out);
        if !self.media.is_empty() {
            field("content-type", self.media, out);
        }
        end(close, out);
    }
}

/// Appends the head of an event stream.
pub fn stream_head(unix_s: u64, close: bool, out: &mut Vec<u8>) {
    start(200, unix_s, out);
    field("content-type", "text/event-stream; charset=utf-8", out);
    field("vary", "Origin", out);
    if close {
        field("connection", "close", out);
    }
    field("transfer-encoding", "chunked", out);
    out.extend_from_slice(b"\r\n");
}

/// A point in time as HTTP writes it (RFC 9110 section 5.6.7, IMF-fixdate).
pub fn http_date(unix_s: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let days = unix_s / 86_400;
    // Civil date from days, after Howard Hinnant's `civil_from_days`: eras of 400 years, years that begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = (month_index + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    let mut out = String::with_capacity(29);
    let (h, m, s) = (unix_s / 3_600 % 24, unix_s / 60 % 60, unix_s % 60);
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "{}, {day:02} {} {year:04} {h:02}:{m:02}:{s:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
    );
    out
}

fn start(status: u16, unix_s: u64, out: &mut Vec<u8>) {
    let line = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    out.extend_from_slice(line.as_bytes());
    field("date", &http_date(unix_s), out);
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

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Request Entity Too Large",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        // unix seconds, date
        let rows = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_795_992_884, "Sun, 29 Nov 2026 22:54:44 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ];
        for (unix_s, date) in rows {
            assert_eq!(http_date(unix_s), date);
        }
    }
}
