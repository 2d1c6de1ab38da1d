//! Heads, chunks and dates as we write them. Appends to the caller's buffer and allocates nothing else.
//!
//! Our framing is ours: no field that frames a message or names the connection can come in through `fields`, and no field can
//! hold the end of a line, so no byte of a peer can open a message of its own.
//!
//! A chunk's size stands before its data, but is known after. So room for it is left free, the data is written behind it, and
//! [`chunk_seal`] fills the room in; the data never moves. Invariant: `mark + CHUNK_HEAD ≤ data ≤ out.len()`.

use super::head::{is_field_byte, is_token};

#[cfg(test)]
mod tests;

/// How the receiver will know where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Also for HEAD, which announces the length and sends no body.
    Length(u64),
    /// Never towards an HTTP/1.0 client: that one gets `UntilClose`.
    Chunked,
    /// No body at all: 204, 304.
    None,
    /// The end of the connection ends the body; implies `connection: close`.
    UntilClose,
}

/// Answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// End of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Bytes that [`chunk_begin`] leaves free: a size of up to eight hex digits and its CRLF.
pub const CHUNK_HEAD: usize = SIZE_DIGITS + 2;

/// Writes the head of an answer, blank line included. Always HTTP/1.1, whatever the request said (RFC 9110 section 6.2).
pub fn response_head(
    out: &mut Vec<u8>,
    status: u16,
    fields: &[(&str, &[u8])],
    framing: Framing,
    close: bool,
    date: Option<&[u8; 29]>,
) {
    debug_assert!((100..600).contains(&status));
    out.extend_from_slice(b"HTTP/1.1 ");
    decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Some(date) = date {
        line(out, "date", date);
    }
    for (name, value) in fields {
        field(out, name, value);
    }
    match framing {
        Framing::Length(length) => length_line(out, length),
        Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Framing::None | Framing::UntilClose => {}
    }
    if close || framing == Framing::UntilClose {
        out.extend_from_slice(b"connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the head of a request to an engine, blank line included. `path` is the URL's prefix and the path, and it and `host`
/// come from the fleet file, which was checked. No `length` means no body.
pub fn request_head(
    out: &mut Vec<u8>,
    method: &str,
    path: &str,
    host: &str,
    fields: &[(&str, &[u8])],
    length: Option<usize>,
) {
    debug_assert!(!method.is_empty() && method.bytes().all(is_token));
    debug_assert!(path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic()));
    debug_assert!(!host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic()));
    out.extend_from_slice(method.as_bytes());
    out.push(b' ');
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    line(out, "host", host.as_bytes());
    for (name, value) in fields {
        field(out, name, value);
    }
    if let Some(length) = length {
        length_line(out, length as u64);
    }
    out.extend_from_slice(b"\r\n");
}

/// Leaves room for a chunk's size at the end of `out` and gives the mark to seal it with. Data is appended in between.
#[must_use]
pub fn chunk_begin(out: &mut Vec<u8>) -> usize {
    begin::<SIZE_DIGITS>(out)
}

/// Writes the size and the final CRLF of the chunk that began at `mark`, or takes the chunk back when it has no data (an empty
/// chunk would end the body).
///
/// Gives the bytes at the front of `out` that must not be sent: the unused part of the room when the chunk stands first, which
/// is the common case and costs the wire nothing; else 0, and the size is padded with zeros, which the grammar allows.
#[must_use]
pub fn chunk_seal(out: &mut Vec<u8>, mark: usize) -> usize {
    seal::<SIZE_DIGITS>(out, mark)
}

/// The phrase of a status; clients ignore it.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (IMF-fixdate, RFC 9110 section 5.6.7). Right for the years 1970 to 9999; a later
/// moment is written as the last of these.
pub fn http_date(unix_seconds: u64) -> [u8; 29] {
    let unix_seconds = unix_seconds.min(LAST_SECOND);
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil(days);
    // 1970-01-01 was a Thursday.
    let weekday = &b"ThuFriSatSunMonTueWed"[(days % 7) as usize * 3..][..3];
    let month = &b"JanFebMarAprMayJunJulAugSepOctNovDec"[(month as usize - 1) * 3..][..3];
    let mut text = *b"Www, dd Mmm yyyy hh:mm:ss GMT";
    text[..3].copy_from_slice(weekday);
    text[8..11].copy_from_slice(month);
    for (at, value) in [
        (5, day),
        (12, year / 100),
        (14, year % 100),
        (17, second / 3600),
        (20, second / 60 % 60),
        (23, second % 60),
    ] {
        text[at] = b'0' + (value / 10) as u8;
        text[at + 1] = b'0' + (value % 10) as u8;
    }
    text
}

/// Whether a field can be written: a token as name, no control byte in the value, and nothing that frames the message or names
/// the connection, because those are ours.
fn is_writable(name: &str, value: &[u8]) -> bool {
    !name.is_empty()
        && name.bytes().all(is_token)
        && value.iter().copied().all(is_field_byte)
        && !OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours))
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    let writable = is_writable(name, value);
    debug_assert!(writable, "field {name:?} cannot be written");
    if writable {
        line(out, name, value);
    }
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn length_line(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"content-length: ");
    decimal(out, length);
    out.extend_from_slice(b"\r\n");
}

fn decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn begin<const DIGITS: usize>(out: &mut Vec<u8>) -> usize {
    let mark = out.len();
    out.resize(mark + DIGITS + 2, b'0');
    mark
}

fn seal<const DIGITS: usize>(out: &mut Vec<u8>, mark: usize) -> usize {
    let data = mark + DIGITS + 2;
    debug_assert!(data <= out.len(), "sealed without begin");
    let size = out.len().saturating_sub(data);
    if size == 0 {
        out.truncate(mark);
        return 0;
    }
    let mut digits = [b'0'; 16];
    let mut first = digits.len();
    let mut rest = size;
    while rest > 0 {
        first -= 1;
        digits[first] = b"0123456789abcdef"[rest & 15];
        rest >>= 4;
    }
    let need = digits.len() - first;
    let grow = need.saturating_sub(DIGITS);
    if grow > 0 {
        // A chunk that outgrew its room (4 GiB) pays for the move.
        out.splice(mark..mark, std::iter::repeat_n(b'0', grow));
    }
    let width = DIGITS + grow;
    out[mark..mark + width].copy_from_slice(&digits[digits.len() - width..]);
    out[mark + width..mark + width + 2].copy_from_slice(b"\r\n");
    out.extend_from_slice(b"\r\n");
    if mark == 0 { width - need } else { 0 }
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar. Counts from 0000-03-01, so that the
/// leap day is the last of its year: 400 years are 146,097 days, and the months from March on repeat in a cycle of 153 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

const SIZE_DIGITS: usize = 8;

/// 9999-12-31T23:59:59Z.
const LAST_SECOND: u64 = 253_402_300_799;

/// Fields that only this file writes.
const OURS: [&str; 5] = [
    "content-length",
    "transfer-encoding",
    "connection",
    "host",
    "date",
];
