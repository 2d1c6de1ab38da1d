//! The cursor against the plainest reader of the grammar, and against serde_json where that one has an opinion.

use serde_json::value::RawValue;

use super::{Cursor, Kind, RawStr, Walk};
use crate::base::limits;

/// Any bytes: what is JSON, where each value ends, and what strings say.
pub fn fuzz(data: &[u8]) {
    for strict in [false, true] {
        let cursor = || {
            if strict {
                Cursor::strict(data)
            } else {
                Cursor::new(data)
            }
        };
        let mut c = cursor();
        let skipped = c.skip().and_then(|span| c.finish().map(|()| span));
        let plain = Plain { data, strict }.whole();
        assert_eq!(skipped.as_ref().ok().cloned(), plain);
        if let Err(fault) = skipped {
            assert!(fault.at <= data.len());
        }
        let mut c = cursor();
        assert_eq!(
            walk(&mut c, 0).is_some() && c.finish().is_ok(),
            plain.is_some()
        );
    }
    let theirs = std::str::from_utf8(data)
        .ok()
        .and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
    if let Some(value) = theirs {
        // It passes unpaired surrogates in values that nobody reads.
        let ours = Plain {
            data,
            strict: false,
        }
        .whole();
        let deep = depth(data) > limits::JSON_DEPTH_MAX;
        assert!(ours.is_some_and(|span| &data[span] == value.get().as_bytes()) || deep);
    }
}

/// Enters everything, where [`Cursor::skip`] passes it, and looks at every string.
fn walk(c: &mut Cursor, level: usize) -> Option<()> {
    // The cursor bounds the depth, and so this.
    assert!(level <= limits::JSON_DEPTH_MAX);
    match c.peek().ok()? {
        Kind::Object => {
            let mut walk_ = c.object().ok()?;
            while let Some(key) = c.key(&mut walk_).ok()? {
                assert!(b"{,".contains(&c.input()[walk_.before]));
                string(&key, c.input());
                walk(c, level + 1)?;
            }
        }
        Kind::Array => {
            let mut walk_ = c.array().ok()?;
            while c.item(&mut walk_).ok()? {
                if c.peek().ok()? == Kind::Number {
                    digit_items(c, &mut walk_);
                }
                walk(c, level + 1)?;
            }
        }
        Kind::String => string(&c.string().ok()?, c.input()),
        Kind::Number => {
            let at = c.pos();
            let text = c.number().ok()?;
            assert_eq!(text, &c.input()[at..c.pos()]);
        }
        _ => {
            c.skip().ok()?;
        }
    }
    Some(())
}

/// What it passes in a run are items that the usual way takes for numbers of digits, one after the other.
fn digit_items(c: &mut Cursor, within: &mut Walk) {
    let (mut plain, mut plain_walk) = (c.clone(), within.clone());
    let passed = c.digit_items(within);
    for _ in 0..passed {
        let number = plain.number().expect("passed as a number");
        assert!(number.iter().all(u8::is_ascii_digit));
        assert_eq!(plain.item(&mut plain_walk), Ok(true));
    }
    assert_eq!((plain.pos(), plain_walk.before), (c.pos(), within.before));
    assert_eq!(c.peek(), Ok(Kind::Number));
}

fn string(ours: &RawStr, input: &[u8]) {
    let quoted = &input[ours.at..=ours.at + ours.raw.len() + 1];
    assert!(quoted[0] == b'"' && quoted.last() == Some(&b'"'));
    assert_eq!(ours.escaped(), ours.raw.contains(&b'\\'));
    let mut out = Vec::new();
    ours.unescape_into(&mut out);
    if let Ok(theirs) = serde_json::from_slice::<String>(quoted) {
        assert_eq!(out, theirs.as_bytes());
        assert_eq!(ours.chars(), theirs.chars().count());
        assert!(ours.is(&theirs) && !ours.is(&format!("{theirs}x")));
    }
}

fn depth(data: &[u8]) -> usize {
    data.iter().filter(|b| matches!(b, b'{' | b'[')).count()
}

/// RFC 8259, one function a rule; `None` is a fault, a number is where the value ends.
struct Plain<'a> {
    data: &'a [u8],
    strict: bool,
}

impl Plain<'_> {
    fn whole(&self) -> Option<std::ops::Range<usize>> {
        let start = self.space(0);
        let end = self.value(start, 0)?;
        (self.space(end) == self.data.len()).then_some(start..end)
    }

    fn at(&self, at: usize) -> Option<u8> {
        self.data.get(at).copied()
    }

    fn space(&self, mut at: usize) -> usize {
        while matches!(self.at(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            at += 1;
        }
        at
    }

    fn value(&self, at: usize, level: usize) -> Option<usize> {
        match self.at(at)? {
            b'{' => self.members(at + 1, b'}', level + 1),
            b'[' => self.members(at + 1, b']', level + 1),
            b'"' => self.string(at + 1),
            b't' => self.word(at, b"true"),
            b'f' => self.word(at, b"false"),
            b'n' => self.word(at, b"null"),
            _ => self.number(at),
        }
    }

    fn word(&self, at: usize, word: &[u8]) -> Option<usize> {
        self.data[at..].starts_with(word).then_some(at + word.len())
    }

    fn members(&self, at: usize, close: u8, level: usize) -> Option<usize> {
        if level > limits::JSON_DEPTH_MAX {
            return None;
        }
        let mut at = self.space(at);
        if self.at(at)? == close {
            return Some(at + 1);
        }
        loop {
            if close == b'}' {
                at = self.string(self.word(at, b"\"")?)?;
                at = self.space(self.word(self.space(at), b":")?);
            }
            at = self.space(self.value(at, level)?);
            match self.at(at)? {
                b',' => at = self.space(at + 1),
                byte => return (byte == close).then_some(at + 1),
            }
        }
    }

    fn string(&self, mut at: usize) -> Option<usize> {
        loop {
            match self.at(at)? {
                b'"' => return Some(at + 1),
                b'\\' if self.at(at + 1)? == b'u' => {
                    let unit = self.hex(at + 2)?;
                    at += 6;
                    let low = self
                        .word(at, b"\\u")
                        .and_then(|at| self.hex(at))
                        .filter(|low| (0xdc00..0xe000).contains(low));
                    match (unit, low) {
                        (0xd800..0xdc00, Some(_)) => at += 6,
                        (0xd800..0xe000, _) if self.strict => return None,
                        _ => {}
                    }
                }
                b'\\' => {
                    let known = b"\"\\/bfnrt".contains(&self.at(at + 1)?);
                    at = known.then_some(at + 2)?;
                }
                ..0x20 => return None,
                _ => at += 1,
            }
        }
    }

    fn hex(&self, at: usize) -> Option<u32> {
        let digits = std::str::from_utf8(self.data.get(at..at + 4)?).ok()?;
        let all = digits.bytes().all(|b| b.is_ascii_hexdigit());
        all.then(|| u32::from_str_radix(digits, 16).ok())?
    }

    fn number(&self, at: usize) -> Option<usize> {
        let at = self.word(at, b"-").unwrap_or(at);
        let mut at = self.word(at, b"0").or_else(|| self.digits(at))?;
        if let Some(point) = self.word(at, b".") {
            at = self.digits(point)?;
        }
        if let Some(e) = self.word(at, b"e").or_else(|| self.word(at, b"E")) {
            let signed = self.word(e, b"+").or_else(|| self.word(e, b"-"));
            at = self.digits(signed.unwrap_or(e))?;
        }
        Some(at)
    }

    fn digits(&self, at: usize) -> Option<usize> {
        let n = self.data[at..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count();
        (n > 0).then_some(at + n)
    }
}
