//! Small questions to one JSON value, given as its text. The text has been checked by a cursor before, so a fault in here only
//! means "not such a value".

use crate::wire::json::{Cursor, Kind};

pub(super) fn is_bool(value: &[u8]) -> bool {
    value == b"true" || value == b"false"
}

pub(super) fn is_integer(value: &[u8]) -> bool {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    digits.iter().all(u8::is_ascii_digit)
}

/// Value of what [`is_integer`] accepts, saturating.
pub(super) fn integer(value: &[u8]) -> i64 {
    let (minus, digits) = match value.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, value),
    };
    let n = digits.iter().fold(0i64, |n, d| {
        n.saturating_mul(10).saturating_add(i64::from(d - b'0'))
    });
    if minus { -n } else { n }
}

/// Text of an object's last member `name`. The bytes have been checked, so a fault only means "not such a value".
pub(super) fn member_of<'a>(value: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut c = Cursor::new(value);
    if c.peek().ok()? != Kind::Object {
        return None;
    }
    let mut found = None;
    let mut walk = c.object().ok()?;
    while let Some(key) = c.key(&mut walk).ok()? {
        let span = c.skip().ok()?;
        if key.is(name) {
            found = value.get(span);
        }
    }
    found
}

pub(super) fn has_member(value: &[u8], names: &[&str]) -> bool {
    names.iter().any(|name| member_of(value, name).is_some())
}

/// Calls `item` with each item's text until it says stop; `false` when it did, or when the value is no array.
pub(super) fn all_items(value: &[u8], mut item: impl FnMut(&[u8]) -> bool) -> bool {
    let mut c = Cursor::new(value);
    let Ok(Kind::Array) = c.peek() else {
        return false;
    };
    let Ok(mut walk) = c.array() else {
        return false;
    };
    while let Ok(true) = c.item(&mut walk) {
        match c.skip() {
            Ok(span) if item(&value[span.clone()]) => {}
            _ => return false,
        }
    }
    true
}

pub(super) fn array_len(value: &[u8]) -> usize {
    let mut len = 0;
    all_items(value, |_| {
        len += 1;
        true
    });
    len
}

pub(super) fn is_text_only(modalities: &[u8]) -> bool {
    array_len(modalities) == 1 && all_items(modalities, |item| is_string(item, "text"))
}

/// An array of objects whose `type`, where given, is `function`.
pub(super) fn are_functions(tools: &[u8]) -> bool {
    all_items(tools, |tool| {
        let kind = member_of(tool, "type").filter(|kind| *kind != b"null");
        tool[0] == b'{' && kind.is_none_or(|kind| is_string(kind, "function"))
    })
}

pub(super) fn is_string(value: &[u8], text: &str) -> bool {
    value[0] == b'"' && Cursor::new(value).string().is_ok_and(|s| s.is(text))
}
