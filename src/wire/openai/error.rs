//! Error bodies, ours and the engines'. Ours are one shape, compact, with control characters escaped; engines' come in five, and
//! of theirs only a bounded message and a status are taken.

use super::value::member_of;
use crate::base::limits;
use crate::wire::json::{Cursor, JsonFault, Kind, RawStr};

/// Appends `{"error":{"message":…,"type":…,"param":…,"code":…}}`.
pub fn write_error(
    out: &mut Vec<u8>,
    message: &str,
    kind: &str,
    param: Option<&str>,
    code: Option<&str>,
) {
    out.extend_from_slice(b"{\"error\":{\"message\":");
    write_string(out, message);
    out.extend_from_slice(b",\"type\":");
    write_string(out, kind);
    out.extend_from_slice(b",\"param\":");
    write_nullable(out, param);
    out.extend_from_slice(b",\"code\":");
    write_nullable(out, code);
    out.extend_from_slice(b"}}");
}

/// Appends the error that ends a stream, on one line: `{"error":{"message":…,"type":…,"code":…}}`.
pub fn write_stream_error(out: &mut Vec<u8>, message: &str, kind: &str, code: &str) {
    out.extend_from_slice(b"{\"error\":{\"message\":");
    write_string(out, message);
    out.extend_from_slice(b",\"type\":");
    write_string(out, kind);
    out.extend_from_slice(b",\"code\":");
    write_string(out, code);
    out.extend_from_slice(b"}}");
}

/// Appends `text` as a JSON string. Control characters are escaped, DEL and C1 (U+0080 to U+009F) too: error bodies end up on
/// terminals and in logs.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut copied = 0;
    for (at, c) in text.char_indices() {
        if !c.is_control() && c != '"' && c != '\\' {
            continue;
        }
        out.extend_from_slice(&text.as_bytes()[copied..at]);
        copied = at + c.len_utf8();
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            // All other control characters are below U+00A0: two hex digits hold them.
            c => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                let n = c as usize;
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[n >> 4 & 15], HEX[n & 15]]);
            }
        }
    }
    out.extend_from_slice(&text.as_bytes()[copied..]);
    out.push(b'"');
}

fn write_nullable(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => write_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// An error that an engine put into a 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineError {
    /// An integer `code` from 400 to 599, else 500.
    pub status: u16,
    pub message: Option<String>,
}

/// The message of an engine's error body, in the shapes `{"error":{"message":m}}` (vLLM), `{"error":m}`, `{"message":m}` with or
/// without `"object":"error"` (SGLang, older vLLM), `{"detail":m}` and `{"detail":[{"msg":m}]}` (FastAPI's own 400 and 422).
/// At most [`limits::ENGINE_MESSAGE_BYTES_MAX`] bytes, cut before a character; bad UTF-8 and lone surrogates become U+FFFD. Control
/// characters are still in it: [`write_error`] escapes them.
pub fn engine_message(body: &[u8]) -> Option<String> {
    read(body).ok()??.message
}

/// The error in an answer that has status 200: any non-null `error`, or `"object":"error"`. `None` when there is none, or the
/// bytes are no JSON object.
pub fn engine_error(body: &[u8]) -> Option<EngineError> {
    let found = read(body).ok()??;
    found.is_error.then(|| EngineError {
        status: found.code.unwrap_or(500),
        message: found.message,
    })
}

struct Found {
    is_error: bool,
    code: Option<u16>,
    message: Option<String>,
}

/// `Ok(None)`: JSON, but no object. Last duplicates win.
fn read(body: &[u8]) -> Result<Option<Found>, JsonFault> {
    let mut c = Cursor::new(body);
    if c.peek()? != Kind::Object {
        return Ok(None);
    }
    let mut object_is_error = false;
    let (mut error, mut message, mut detail, mut code) = (None, None, None, None);
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        if key.is("object") && c.peek()? == Kind::String {
            object_is_error = c.string()?.is("error");
            continue;
        }
        let value = &body[c.skip()?];
        if key.is("object") {
            object_is_error = false;
        } else if key.is("error") {
            error = (value != b"null").then_some(value);
        } else if key.is("message") {
            message = text(value);
        } else if key.is("detail") {
            detail = text(value).or_else(|| inner(value, "msg").and_then(text));
        } else if key.is("code") {
            code = status(value);
        }
    }
    c.finish()?;
    let within = error.and_then(|e| text(e).or_else(|| inner(e, "message").and_then(text)));
    Ok(Some(Found {
        is_error: error.is_some() || object_is_error,
        code: match error.and_then(|e| inner(e, "code")) {
            Some(own) if own != b"null" => status(own),
            _ => code,
        },
        message: within.or(message).or(detail),
    }))
}

/// Value of `name` in an object, or in the first item of an array.
fn inner<'a>(value: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut c = Cursor::new(value);
    if c.peek().ok()? != Kind::Array {
        return member_of(value, name);
    }
    let mut items = c.array().ok()?;
    c.item(&mut items).ok()?.then_some(())?;
    member_of(&value[c.skip().ok()?], name)
}

fn status(value: &[u8]) -> Option<u16> {
    let code = std::str::from_utf8(value).ok()?.parse().ok()?;
    (400..600).contains(&code).then_some(code)
}

fn text(value: &[u8]) -> Option<String> {
    let mut c = Cursor::new(value);
    if c.peek().ok()? != Kind::String {
        return None;
    }
    Some(cut(c.string().ok()?)).filter(|text| !text.is_empty())
}

fn cut(text: RawStr<'_>) -> String {
    let mut bytes = Vec::new();
    text.unescape_into(&mut bytes);
    // Four more than fit, so that a character this cuts lies wholly past the limit; the repair of bad bytes only makes it longer.
    bytes.truncate(limits::ENGINE_MESSAGE_BYTES_MAX + 4);
    let mut whole = String::from_utf8_lossy(&bytes).into_owned();
    let mut end = whole.len().min(limits::ENGINE_MESSAGE_BYTES_MAX);
    while !whole.is_char_boundary(end) {
        end -= 1;
    }
    whole.truncate(end);
    whole
}
