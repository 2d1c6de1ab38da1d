//! Heads of requests and answers: read whole or not at all, and refused where two readers could differ about them.
//!
//! Owns the rules on heads that RFC 9112 leaves to the recipient, always on the strict side: a message that one hop frames
//! by its length and another by its chunks is how requests are smuggled. httparse checks the grammar of lines; what it lets
//! pass (bare LF, repeated lengths, codings, Host) is checked here. Engine heads get the same treatment as clients'.
//!
//! Two steps. First the end is looked for, from where the last look stopped, so that a head coming byte by byte costs linear
//! time; a bad first byte, a bare CR or LF and an overlong head are told at the byte that proves them. Then the
//! complete head is parsed once. Both depend on the bytes alone, never on how they were cut into reads.
//!
//! May use httparse and memchr. Invariant: `start ≤ path.start < path.end ≤ head_bytes ≤ bytes_max`.

use std::mem::MaybeUninit;
use std::ops::Range;

use httparse::Status;
use memchr::memchr;

use self::fields::Fields;
pub use self::fields::{bearer, bearer_token, field, fields};
pub(super) use self::fields::{is_field_byte, is_token};
use self::scan::{find_end, request_opening, response_opening};
use self::target::target_path;
use crate::base::limits;

mod fields;

mod scan;

mod target;

#[doc(hidden)]
pub mod fuzzing;

#[cfg(test)]
mod tests;

/// Fields that any head may have, whatever the fleet file says: the parser's slots live on the stack.
pub const FIELDS_MAX: usize = 256;

/// Methods that we tell apart. Case matters (RFC 9110 section 9.1): `get` is `Other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Options,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}

/// What the client wants to hear before it sends its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing; also on HTTP/1.0 whatever it says, and for `100-continue` without a body.
    None,
    Continue,
    /// Something that we cannot promise: 417.
    Other,
}

/// How the body of a request is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    None,
    Length(u64),
    Chunked,
}

/// How the body of an answer is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// 1xx, 204 and 304, whatever their fields say.
    None,
    Length(u64),
    Chunked,
    UntilClose,
}

/// The media types that a leg tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    EventStream,
    Json,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes through the blank line.
    pub bytes_max: usize,
    /// Field lines; [`FIELDS_MAX`] at most.
    pub fields_max: usize,
}

impl HeadLimits {
    /// For engines' answers.
    pub const ENGINE: HeadLimits = HeadLimits {
        bytes_max: limits::ENGINE_HEAD_BYTES_MAX,
        fields_max: limits::ENGINE_HEADERS_MAX,
    };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    pub method: Method,
    pub version: Version,
    /// Span in the buffer, without query and fragment; of an absolute target only its path. Never empty.
    pub path: Range<usize>,
    pub body: RequestBody,
    /// The client lets us keep the connection.
    pub keep_alive: bool,
    pub expect: Expect,
    /// Bytes through the blank line; the body starts there.
    pub head_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: u16,
    pub body: ResponseBody,
    /// The connection may be used again once the body was read.
    pub keep_alive: bool,
    pub media: Media,
    /// `retry-after` where it is a number of seconds (a date is not read).
    pub retry_after_s: Option<u64>,
    /// Bytes through the blank line; the body starts there.
    pub head_bytes: usize,
}

/// Why a head was refused. The connection closes after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// Breaks the grammar, or could be read in two ways.
    Bad(&'static str),
    /// Over a limit.
    TooLarge,
    /// A well-formed version that we do not speak: any major one but 1.
    Version,
}

impl HeadFault {
    /// The status that a client gets.
    pub fn status(self) -> u16 {
        match self {
            HeadFault::Bad(_) => 400,
            HeadFault::TooLarge => 431,
            HeadFault::Version => 505,
        }
    }

    /// A sentence for the error body; quotes nothing of the peer.
    pub fn message(self) -> &'static str {
        match self {
            HeadFault::Bad(what) => what,
            HeadFault::TooLarge => "request head too large",
            HeadFault::Version => "HTTP version not supported",
        }
    }
}

/// Reads the request head at the start of `buf`; `None` when it is not complete yet: call again with more bytes.
///
/// `scanned` remembers how far the end was looked for. It is 0 for a new head, and is set to 0 again with each head returned.
/// One empty line before the request line is skipped (RFC 9112 section 2.2), a second one is refused.
pub fn parse_request(
    buf: &[u8],
    scanned: &mut usize,
    limits: &HeadLimits,
) -> Result<Option<RequestHead>, HeadFault> {
    let Some(span) = find_end(buf, scanned, limits, request_opening)? else {
        return Ok(None);
    };
    let head = &buf[span.clone()];
    let read = match request(head, &span, limits) {
        Err(HeadFault::Version) => {
            let line = memchr(b'\r', head).unwrap_or_default();
            let earlier = as_http11(head, line.saturating_sub(VERSION_BYTES));
            request(&earlier.ok_or(HeadFault::Version)?, &span, limits)?
        }
        read => read?,
    };
    *scanned = 0;
    Ok(Some(read))
}

/// A whole head, which is at `span` of the buffer.
fn request(
    head: &[u8],
    span: &Range<usize>,
    limits: &HeadLimits,
) -> Result<RequestHead, HeadFault> {
    let mut slots = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let room = limits.fields_max.min(FIELDS_MAX);
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(head, &mut slots[..room]) {
        Ok(Status::Complete(n)) if n == head.len() => {}
        Ok(_) => return Err(HeadFault::Bad("malformed head")),
        Err(error) => {
            let line = parsed.method.unwrap_or("").len() + parsed.path.unwrap_or("").len() + 2;
            return Err(fault(error, head.get(line..), b'\r'));
        }
    }
    let (name, target) = (
        parsed.method.unwrap_or_default(),
        parsed.path.unwrap_or_default(),
    );
    let method = match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "OPTIONS" => Method::Options,
        _ => Method::Other,
    };
    let path = target_path(name, target.as_bytes())?;
    let path_at = span.start + name.len() + 1;
    let fields = Fields::read(parsed.headers, version(parsed.version))?;
    fields.check_host()?;
    let body = match (fields.chunked, fields.length) {
        (true, _) => RequestBody::Chunked,
        (false, Some(length)) => RequestBody::Length(length),
        (false, None) => RequestBody::None,
    };
    Ok(RequestHead {
        method,
        version: fields.version,
        path: path_at + path.start..path_at + path.end,
        body,
        // Behind CONNECT there may be bytes for the tunnel that it does not get.
        keep_alive: fields.keep_alive() && name != "CONNECT",
        expect: match fields.expect {
            _ if fields.version == Version::Http10 => Expect::None,
            Expect::Continue if matches!(body, RequestBody::None | RequestBody::Length(0)) => {
                Expect::None
            }
            expect => expect,
        },
        head_bytes: span.end,
    })
}

/// Reads the head of an answer at the start of `buf`, like [`parse_request`]. A 1xx head is returned like others: the
/// caller skips it and calls again behind it. 101 is refused, since we never ask for another protocol.
pub fn parse_response(
    buf: &[u8],
    scanned: &mut usize,
    limits: &HeadLimits,
) -> Result<Option<ResponseHead>, HeadFault> {
    let Some(span) = find_end(buf, scanned, limits, response_opening)? else {
        return Ok(None);
    };
    let head = &buf[span.clone()];
    let read = match response(head, &span, limits) {
        Err(HeadFault::Version) => {
            let earlier = as_http11(head, 0);
            response(&earlier.ok_or(HeadFault::Version)?, &span, limits)?
        }
        read => read?,
    };
    *scanned = 0;
    Ok(Some(read))
}

/// A whole head, which is at `span` of the buffer.
fn response(
    head: &[u8],
    span: &Range<usize>,
    limits: &HeadLimits,
) -> Result<ResponseHead, HeadFault> {
    let mut slots = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let room = limits.fields_max.min(FIELDS_MAX);
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut parsed, head, &mut slots[..room]) {
        Ok(Status::Complete(n)) if n == head.len() => {}
        Ok(_) => return Err(HeadFault::Bad("malformed head")),
        Err(error) => return Err(fault(error, Some(head), b' ')),
    }
    let status = parsed.code.unwrap_or_default();
    if !(100..600).contains(&status) || status == 101 {
        return Err(HeadFault::Bad("status out of place"));
    }
    let fields = Fields::read(parsed.headers, version(parsed.version))?;
    if fields.coded {
        return Err(HeadFault::Bad("a content coding that nobody asked for"));
    }
    let body = response_body(status, &fields)?;
    Ok(ResponseHead {
        status,
        body,
        keep_alive: fields.keep_alive() && body != ResponseBody::UntilClose,
        media: fields.media,
        retry_after_s: fields.retry_after_s,
        head_bytes: span.end,
    })
}

/// The head with version 1.1 where it has a later minor version: it is to be read as the latest one that we know (RFC 9110
/// section 2.5). Seldom, so it may cost a copy.
#[cold]
fn as_http11(head: &[u8], version_at: usize) -> Option<Vec<u8>> {
    let version = head.get(version_at..version_at + VERSION_BYTES)?;
    let is_later = version.starts_with(b"HTTP/1.") && matches!(version.last(), Some(b'2'..=b'9'));
    is_later.then(|| {
        let mut head = head.to_vec();
        head[version_at + VERSION_BYTES - 1] = b'1';
        head
    })
}

/// `HTTP/1.1`.
const VERSION_BYTES: usize = 8;

/// RFC 9112 section 6.3. On 1xx and 204 a coding or a length is forbidden (section 6.1, RFC 9110 section 8.6); a
/// length of zero is harmless and common.
fn response_body(status: u16, fields: &Fields) -> Result<ResponseBody, HeadFault> {
    Ok(match status {
        100..200 | 204 if fields.chunked || fields.length.unwrap_or(0) > 0 => {
            return Err(HeadFault::Bad("a body where none can be"));
        }
        100..200 | 204 | 304 => ResponseBody::None,
        _ if fields.chunked => ResponseBody::Chunked,
        _ => fields
            .length
            .map_or(ResponseBody::UntilClose, ResponseBody::Length),
    })
}

/// What an error of the base parser means. `version` is the text where the version should stand, `after` the byte behind it.
fn fault(error: httparse::Error, version: Option<&[u8]>, after: u8) -> HeadFault {
    match error {
        httparse::Error::TooManyHeaders => HeadFault::TooLarge,
        httparse::Error::HeaderName => HeadFault::Bad("malformed field name"),
        httparse::Error::HeaderValue => HeadFault::Bad("malformed field value"),
        httparse::Error::Version => match version {
            Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor, end, ..])
                if major.is_ascii_digit() && minor.is_ascii_digit() && *end == after =>
            {
                HeadFault::Version
            }
            _ => HeadFault::Bad("malformed HTTP version"),
        },
        httparse::Error::NewLine | httparse::Error::Status | httparse::Error::Token => {
            HeadFault::Bad("malformed start line")
        }
    }
}

fn version(minor: Option<u8>) -> Version {
    match minor {
        Some(1) => Version::Http11,
        _ => Version::Http10,
    }
}
