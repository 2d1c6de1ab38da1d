//! What the fields of one head say about framing and the connection, and the grammar of the few values that decide it.
//!
//! Owns the rules on Content-Length, Transfer-Encoding, Connection and Expect, and on how often Host may come. Sees fields
//! whose lines are known to be well formed. Invariant: at most one of `length` and `chunked`.

use httparse::Header;
use memchr::memchr;

use super::target::is_host;
use super::{Expect, HeadFault, Media, Version};

/// The fields of an accepted head, in order, values without the white space around them.
pub fn fields(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = head.strip_prefix(b"\r\n").unwrap_or(head);
    let mut take = move || {
        let end = memchr(b'\n', rest)?;
        let line = &rest[..end];
        rest = &rest[end + 1..];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    };
    take();
    std::iter::from_fn(move || {
        let line = take()?;
        let colon = memchr(b':', line)?;
        Some((&line[..colon], trim(&line[colon + 1..])))
    })
}

/// Value of the field `name` (lower case) in an accepted head; the first one when repeated.
pub fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let name = name.as_bytes();
    let mut all = fields(head);
    all.find(|(have, _)| have.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

/// The token of the one `authorization` field of an accepted head; the scheme's case does not matter (RFC 9110 section 11.1). Two such
/// fields are none: who stands before us may have looked at the other.
pub fn bearer(head: &[u8]) -> Option<&[u8]> {
    let given = |(name, _): &(&[u8], &[u8])| name.eq_ignore_ascii_case(b"authorization");
    let mut all = fields(head).filter(given);
    let (_, value) = all.next()?;
    match all.next() {
        None => bearer_token(value),
        Some(_) => None,
    }
}

/// The token in an `authorization` value.
pub fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    let token = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

/// `token` of RFC 9110 section 5.6.2: what methods, field names and chunk extensions are made of.
pub(in crate::wire::h1) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What a field value may hold: visible bytes, space, tab and obs-text, so no control byte (RFC 9110 section 5.5).
pub(in crate::wire::h1) fn is_field_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// What the fields of one head say about framing and the connection.
pub(super) struct Fields {
    pub(super) version: Version,
    pub(super) length: Option<u64>,
    pub(super) chunked: bool,
    close: bool,
    hosts: usize,
    host_ok: bool,
    pub(super) expect: Expect,
    pub(super) media: Media,
    media_seen: bool,
    pub(super) retry_after_s: Option<u64>,
    /// The content is in a coding, as gzip.
    pub(super) coded: bool,
}

impl Fields {
    /// Refuses what frames a body in no way or in two.
    pub(super) fn read(headers: &[Header], version: Version) -> Result<Fields, HeadFault> {
        let mut fields = Fields {
            version,
            length: None,
            chunked: false,
            close: false,
            hosts: 0,
            host_ok: true,
            expect: Expect::None,
            media: Media::Other,
            media_seen: false,
            retry_after_s: None,
            coded: false,
        };
        for header in headers {
            fields.take(header.name, header.value)?;
        }
        match (fields.chunked, fields.length, version) {
            (true, Some(_), _) => Err(HeadFault::Bad("both content-length and transfer-encoding")),
            (true, None, Version::Http10) => Err(HeadFault::Bad("transfer-encoding on HTTP/1.0")),
            _ => Ok(fields),
        }
    }

    fn take(&mut self, name: &str, value: &[u8]) -> Result<(), HeadFault> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if is("host") => {
                self.hosts += 1;
                self.host_ok = is_host(value);
            }
            6 if is("expect") => {
                for item in items(value) {
                    let known = item.eq_ignore_ascii_case(b"100-continue");
                    self.expect = match self.expect {
                        Expect::None | Expect::Continue if known => Expect::Continue,
                        _ => Expect::Other,
                    };
                }
            }
            10 if is("connection") => {
                self.close |= items(value).any(|item| item.eq_ignore_ascii_case(b"close"));
            }
            11 if is("retry-after") && self.retry_after_s.is_none() => {
                self.retry_after_s = decimal(value);
            }
            12 if is("content-type") && !self.media_seen => {
                self.media = media(value);
                self.media_seen = true;
            }
            14 if is("content-length") => {
                let length = decimal(value).ok_or(HeadFault::Bad("bad content-length"))?;
                if self.length.replace(length).is_some() {
                    return Err(HeadFault::Bad("repeated content-length"));
                }
            }
            16 if is("content-encoding") => {
                self.coded |= items(value).any(|item| !item.eq_ignore_ascii_case(b"identity"));
            }
            17 if is("transfer-encoding") => {
                if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(HeadFault::Bad("bad transfer-encoding"));
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// RFC 9112 section 3.2. HTTP/1.0 may leave Host out.
    pub(super) fn check_host(&self) -> Result<(), HeadFault> {
        match (self.hosts, self.version) {
            (0, Version::Http11) => Err(HeadFault::Bad("missing host")),
            (2.., _) => Err(HeadFault::Bad("repeated host")),
            _ if !self.host_ok => Err(HeadFault::Bad("bad host")),
            _ => Ok(()),
        }
    }

    /// HTTP/1.0 always closes: its keep-alive was never a standard, and intermediaries misread it.
    pub(super) fn keep_alive(&self) -> bool {
        self.version == Version::Http11 && !self.close
    }
}

/// `1*DIGIT` that fits; no sign, no list, no space inside.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

fn media(value: &[u8]) -> Media {
    let end = memchr(b';', value).unwrap_or(value.len());
    let name = trim(&value[..end]);
    if name.eq_ignore_ascii_case(b"text/event-stream") {
        Media::EventStream
    } else if name.eq_ignore_ascii_case(b"application/json") {
        Media::Json
    } else {
        Media::Other
    }
}

/// The items of a comma list, empty ones left out (RFC 9110 section 5.6.1).
fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|byte| *byte == b',')
        .map(trim)
        .filter(|item| !item.is_empty())
}

/// Without optional white space (space and tab only) at both ends.
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
