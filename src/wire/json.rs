//! A strict JSON cursor over raw bytes: it checks the grammar, and hands out where things stand instead of what they are.
//!
//! Narwhal splices requests and cuts events, so it needs the byte span of every member it may remove, and the text of every
//! number it passes on. A DOM or a tape keeps neither. The cursor walks the bytes once; a caller enters the objects and
//! arrays it cares for and skips the rest, and everything skipped is checked all the same.
//!
//! Grammar: RFC 8259, nothing more (no `NaN`, no trailing comma, no control byte inside a string). Nesting over
//! [`limits::JSON_DEPTH_MAX`] is a fault. Strings are not checked for UTF-8 here: engines' events may hold bad bytes that must go
//! through untouched; a request body is checked whole before. An unpaired surrogate escape is a fault only in [`Cursor::strict`].
//!
//! Invariant: `open(depth) ≤ key ≤ value.start ≤ value.end ≤ pos ≤ len`.

use std::ops::Range;

use crate::base::limits;

#[doc(hidden)]
pub mod fuzzing;

mod number;
mod text;

pub use text::RawStr;
use text::{Escaped, hex4};

/// Where and why the bytes are not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonFault {
    /// Offset of the first byte that cannot be right.
    pub at: usize,
    pub what: What,
}

/// What was wrong at that byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// A word wide, as `Escaped` is: a byte here makes the compiler copy results piece by piece, and reading such pieces back stalls the
// processor (store forwarding). On a token event of 250 bytes that cost half of all time.
#[repr(u64)]
pub enum What {
    /// The input ended inside a value, or no value was there.
    End,
    /// A byte that cannot stand here.
    Byte,
    /// A number that breaks the grammar (`01`, `1.`, `+1`).
    Number,
    /// A bad escape, or a control byte inside a string.
    String,
    /// An unpaired surrogate escape (strict cursors only).
    Surrogate,
    /// Nested deeper than the limit.
    Depth,
    /// Something but white space after the value.
    Trailing,
}

type Result<T> = std::result::Result<T, JsonFault>;

/// What kind of value comes next, told by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    Number,
    True,
    False,
    Null,
}

/// One object or array being walked.
#[derive(Clone, Debug)]
pub struct Walk {
    first: bool,
    /// Offset of the comma before the current member; the opening bracket for the first.
    pub before: usize,
}

/// The cursor. `Copy`-cheap state: a caller may clone it to look ahead.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    depth: usize,
    strict: bool,
}

impl<'a> Cursor<'a> {
    /// Takes unpaired surrogate escapes as they are (engine bytes).
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor {
            bytes,
            pos: 0,
            depth: 0,
            strict: false,
        }
    }

    /// Refuses unpaired surrogate escapes (client bytes).
    pub fn strict(bytes: &'a [u8]) -> Self {
        Cursor {
            strict: true,
            ..Cursor::new(bytes)
        }
    }

    /// Offset of the next unread byte.
    pub fn pos(&self) -> usize {
        self.pos
    }

    /// The whole input.
    pub fn input(&self) -> &'a [u8] {
        self.bytes
    }

    /// Skips white space and tells the kind of the next value by its first byte; consumes nothing of it.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Kind> {
        self.space();
        match self.bytes.get(self.pos) {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't') => Ok(Kind::True),
            Some(b'f') => Ok(Kind::False),
            Some(b'n') => Ok(Kind::Null),
            Some(_) => Err(self.fault(What::Byte)),
            None => Err(self.fault(What::End)),
        }
    }

    /// Only white space may be left.
    pub fn finish(mut self) -> Result<()> {
        self.space();
        if self.pos == self.bytes.len() {
            Ok(())
        } else {
            Err(self.fault(What::Trailing))
        }
    }

    /// Checks and passes one whole value; returns its span.
    pub fn skip(&mut self) -> Result<Range<usize>> {
        let kind = self.peek()?;
        let start = self.pos;
        match kind {
            Kind::Object | Kind::Array => self.skip_nested()?,
            _ => self.skip_scalar(kind)?,
        }
        Ok(start..self.pos)
    }

    /// Enters an object. The caller has peeked [`Kind::Object`].
    #[inline(always)]
    pub fn object(&mut self) -> Result<Walk> {
        self.enter(b'{')
    }

    /// Enters an array. The caller has peeked [`Kind::Array`].
    #[inline(always)]
    pub fn array(&mut self) -> Result<Walk> {
        self.enter(b'[')
    }

    /// The next key of `walk`, with the colon passed, or `None` at the object's end (passed too).
    #[inline(always)]
    pub fn key(&mut self, walk: &mut Walk) -> Result<Option<RawStr<'a>>> {
        if !self.next_in(walk, b'}')? {
            return Ok(None);
        }
        if self.bytes.get(self.pos) != Some(&b'"') {
            return Err(self.fault_here());
        }
        let key = self.string()?;
        self.space();
        self.expect(b':')?;
        Ok(Some(key))
    }

    /// Whether `walk` has another item; at the array's end it is passed and `false` comes back.
    #[inline(always)]
    pub fn item(&mut self, walk: &mut Walk) -> Result<bool> {
        self.next_in(walk, b']')
    }

    /// Reads a string. The caller has peeked [`Kind::String`].
    ///
    /// Most strings of an event are keys and words under 16 bytes without escapes. Those are read here, inlined, so that the
    /// result stays in registers; everything else is read out of line.
    #[inline(always)]
    pub fn string(&mut self) -> Result<RawStr<'a>> {
        let at = self.pos;
        self.expect(b'"')?;
        let start = self.pos;
        let end = start + plain_len(&self.bytes[start..]);
        if self.bytes.get(end) != Some(&b'"') {
            self.pos = end;
            return self.string_rest(at);
        }
        self.pos = end + 1;
        Ok(RawStr {
            raw: &self.bytes[start..end],
            at,
            escaped: Escaped::No,
        })
    }

    /// Reads on in a string that is not plain up to its end, from the byte that told so. `at`: its opening quote.
    #[cold]
    #[inline(never)]
    fn string_rest(&mut self, at: usize) -> Result<RawStr<'a>> {
        let mut escaped = Escaped::No;
        loop {
            match self.bytes.get(self.pos) {
                None => return Err(self.fault(What::End)),
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = Escaped::Yes;
                    self.escape()?;
                }
                Some(..0x20) => return Err(self.fault(What::String)),
                Some(_) => self.pos += plain_len(&self.bytes[self.pos..]),
            }
        }
        let raw = &self.bytes[at + 1..self.pos];
        self.pos += 1;
        Ok(RawStr { raw, at, escaped })
    }

    #[inline(always)]
    fn enter(&mut self, open: u8) -> Result<Walk> {
        if self.depth == limits::JSON_DEPTH_MAX {
            return Err(self.fault(What::Depth));
        }
        let before = self.pos;
        self.expect(open)?;
        self.depth += 1;
        Ok(Walk {
            first: true,
            before,
        })
    }

    /// Moves to the next member or item; `false` when the closing bracket was passed.
    #[inline(always)]
    fn next_in(&mut self, walk: &mut Walk, close: u8) -> Result<bool> {
        self.space();
        match self.bytes.get(self.pos) {
            None => return Err(self.fault(What::End)),
            Some(b) if *b == close => {
                self.pos += 1;
                self.depth -= 1;
                return Ok(false);
            }
            Some(b',') if !walk.first => {
                walk.before = self.pos;
                self.pos += 1;
                self.space();
                // A closing bracket after a comma is a fault: what follows must be a value.
                match self.bytes.get(self.pos) {
                    None => return Err(self.fault(What::End)),
                    Some(b) if *b == close => return Err(self.fault(What::Byte)),
                    Some(_) => {}
                }
            }
            Some(_) if walk.first => {}
            Some(_) => return Err(self.fault(What::Byte)),
        }
        walk.first = false;
        Ok(true)
    }

    fn skip_scalar(&mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::String => self.string().map(|_| ()),
            Kind::Number => self.number().map(|_| ()),
            Kind::True => self.word(b"true"),
            Kind::False => self.word(b"false"),
            Kind::Null => self.word(b"null"),
            Kind::Object | Kind::Array => unreachable!("only scalars come here"),
        }
    }

    /// One bit a level tells objects from arrays; no recursion, so depth costs no stack.
    fn skip_nested(&mut self) -> Result<()> {
        let floor = self.depth;
        let mut objects = [0u64; limits::JSON_DEPTH_MAX.div_ceil(64)];
        let mut walk = Walk {
            first: true,
            before: self.pos,
        };
        loop {
            // A value starts here.
            match self.peek()? {
                kind @ (Kind::Object | Kind::Array) => {
                    let object = kind == Kind::Object;
                    walk = self.enter(if object { b'{' } else { b'[' })?;
                    let (word, bit) = ((self.depth - 1) / 64, 1u64 << ((self.depth - 1) % 64));
                    objects[word] = if object {
                        objects[word] | bit
                    } else {
                        objects[word] & !bit
                    };
                }
                kind => {
                    if kind == Kind::Number && !self.is_object(&objects) {
                        self.digit_items(&mut walk);
                    }
                    self.skip_scalar(kind)?;
                }
            }
            // Pass closing brackets, then the key when the value to come is a member.
            loop {
                let more = if self.is_object(&objects) {
                    self.key(&mut walk)?.is_some()
                } else {
                    self.item(&mut walk)?
                };
                if more {
                    break;
                }
                if self.depth == floor {
                    return Ok(());
                }
                walk.first = false;
            }
        }
    }

    /// Whether the innermost level is an object; there is one.
    #[inline(always)]
    fn is_object(&self, objects: &[u64]) -> bool {
        let level = self.depth - 1;
        objects[level / 64] >> (level % 64) & 1 == 1
    }

    /// At a backslash. Passes one escape, or a surrogate pair of them.
    fn escape(&mut self) -> Result<()> {
        self.pos += 1;
        match self.bytes.get(self.pos) {
            None => Err(self.fault(What::End)),
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.pos += 1;
                Ok(())
            }
            Some(b'u') => {
                let unit = self.unit()?;
                if self.strict && (0xd800..0xe000).contains(&unit) {
                    let low = unit < 0xdc00
                        && self.bytes.get(self.pos) == Some(&b'\\')
                        && self.bytes.get(self.pos + 1) == Some(&b'u');
                    if !low {
                        return Err(self.fault(What::Surrogate));
                    }
                    self.pos += 1;
                    if !(0xdc00..0xe000).contains(&self.unit()?) {
                        return Err(self.fault(What::Surrogate));
                    }
                }
                Ok(())
            }
            Some(_) => Err(self.fault(What::String)),
        }
    }

    /// At the `u` of an escape. Passes it and its four digits.
    fn unit(&mut self) -> Result<u16> {
        self.pos += 1;
        let Some(hex) = self.bytes.get(self.pos..self.pos + 4) else {
            self.pos = self.bytes.len();
            return Err(self.fault(What::End));
        };
        let unit = hex4(hex).ok_or(self.fault(What::String))?;
        self.pos += 4;
        Ok(unit)
    }

    fn word(&mut self, word: &[u8]) -> Result<()> {
        let rest = &self.bytes[self.pos..];
        if rest.starts_with(word) {
            self.pos += word.len();
            Ok(())
        } else if word.starts_with(rest) {
            self.pos = self.bytes.len();
            Err(self.fault(What::End))
        } else {
            Err(self.fault(What::Byte))
        }
    }

    #[inline(always)]
    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.bytes.get(self.pos) == Some(&byte) {
            self.pos += 1;
            Ok(())
        } else {
            Err(self.fault_here())
        }
    }

    #[inline(always)]
    fn space(&mut self) {
        while matches!(self.bytes.get(self.pos), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.pos += 1;
        }
    }

    fn fault_here(&self) -> JsonFault {
        self.fault(if self.pos < self.bytes.len() {
            What::Byte
        } else {
            What::End
        })
    }

    fn fault(&self, what: What) -> JsonFault {
        JsonFault { at: self.pos, what }
    }
}

/// Bytes before the first quote, backslash or control byte; all of them when there is none. Eight at a time: the classic
/// borrow trick marks bytes that are zero or small, and its lowest mark is never a false one.
#[inline(always)]
fn plain_len(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let mut at = 0;
    while let Some((word, _)) = bytes[at..].split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (ONES * b'"' as u64);
        let slash = word ^ (ONES * b'\\' as u64);
        let small = word.wrapping_sub(ONES * 0x20) & !word;
        let hit = (quote.wrapping_sub(ONES) & !quote) | (slash.wrapping_sub(ONES) & !slash) | small;
        if hit & HIGH != 0 {
            return at + (hit & HIGH).trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let special = |b: &u8| matches!(*b, b'"' | b'\\' | ..0x20);
    let tail = &bytes[at..];
    at + tail.iter().position(special).unwrap_or(tail.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(bytes: &[u8]) -> Result<Range<usize>> {
        let mut c = Cursor::new(bytes);
        let span = c.skip()?;
        c.finish()?;
        Ok(span)
    }

    #[test]
    fn accepts_and_refuses_by_the_grammar() {
        let rows: &[(&str, bool)] = &[
            ("{}", true),
            ("[]", true),
            (" [1, 2.5e-3 , -0] ", true),
            (r#"{"a":{"b":[true,false,null]},"c":"\u00e9\n"}"#, true),
            (r#""\ud800""#, true),
            ("", false),
            ("[1,]", false),
            ("{,}", false),
            (r#"{"a":1,}"#, false),
            (r#"{"a" 1}"#, false),
            (r#"{a:1}"#, false),
            ("01", false),
            ("1.", false),
            ("+1", false),
            ("-", false),
            ("1e", false),
            ("NaN", false),
            ("Infinity", false),
            ("nul", false),
            ("[1 2]", false),
            ("[1]]", false),
            ("[}", false),
            ("{]", false),
            ("\"a\nb\"", false),
            (r#""\x""#, false),
            (r#""\u12g4""#, false),
            (r#"{"a":1}{"#, false),
            ("[[],{}", false),
        ];
        for (text, ok) in rows {
            assert_eq!(whole(text.as_bytes()).is_ok(), *ok, "{text}");
        }
    }

    #[test]
    fn a_run_of_digits_ends_before_what_is_odd() {
        // an array, and how many of its first items are passed at once
        let rows: &[(&str, u64)] = &[
            ("[1]", 0),
            ("[1,2]", 1),
            ("[1, 22,333]", 2),
            ("[1,  2]", 0),
            ("[1 ,2]", 0),
            ("[0,10,0]", 2),
            ("[1,01,2]", 1),
            ("[1,2,-3]", 1),
            ("[1,2.5,3]", 1),
            ("[1,2,]", 1),
            ("[1,2,null]", 1),
            ("[1,2,[3,4]]", 1),
            ("[1,2", 1),
            ("[1,", 0),
        ];
        for (text, want) in rows {
            let mut c = Cursor::new(text.as_bytes());
            let mut walk = c.array().unwrap();
            assert!(c.item(&mut walk).unwrap());
            assert_eq!(c.digit_items(&mut walk), *want, "{text}");
            assert_eq!(c.peek(), Ok(Kind::Number), "{text}");
        }
        super::fuzzing::fuzz(b"[[1,2,3],{\"a\":[4, 5,6.5,7]},8,9]");
    }

    #[test]
    fn depth_is_bounded_without_stack() {
        let nest = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        assert!(whole(&nest(128)).is_ok());
        assert_eq!(whole(&nest(129)).unwrap_err().what, What::Depth);
        assert_eq!(whole(&vec![b'['; 1_000_000]).unwrap_err().what, What::Depth);
        let mixed = [b"{\"a\":[".repeat(64), b"]}".repeat(64)].concat();
        assert!(whole(&mixed).is_ok());
    }

    #[test]
    fn strict_refuses_lone_surrogates_only() {
        for (text, ok) in [
            (r#""\ud83d\ude00""#, true),
            (r#""\ud83d""#, false),
            (r#""\ude00""#, false),
            (r#""\ud83d\u0041""#, false),
            (r#""\ud83dx""#, false),
            (r#""\uD83D\uDE00""#, true),
        ] {
            assert_eq!(Cursor::strict(text.as_bytes()).skip().is_ok(), ok, "{text}");
            assert!(Cursor::new(text.as_bytes()).skip().is_ok(), "{text}");
        }
    }

    #[test]
    fn keys_compare_unescaped() {
        let mut c = Cursor::new(br#"{"kv_transfer\u005fparams":1,"a\/b":2,"\ud83d\ude00":3}"#);
        let mut w = c.object().unwrap();
        let k = c.key(&mut w).unwrap().unwrap();
        assert!(
            k.is("kv_transfer_params")
                && !k.is("kv_transfer_param")
                && !k.is("kv_transfer_params2")
        );
        c.skip().unwrap();
        assert!(c.key(&mut w).unwrap().unwrap().is("a/b"));
        c.skip().unwrap();
        let k = c.key(&mut w).unwrap().unwrap();
        assert!(k.is("\u{1f600}"));
        assert_eq!(k.chars(), 1);
        c.skip().unwrap();
        assert!(c.key(&mut w).unwrap().is_none());
        c.finish().unwrap();
    }

    #[test]
    fn plain_len_finds_the_first_special_byte() {
        for len in 0..40 {
            for at in 0..=len {
                for special in [b'"', b'\\', 0, 0x1f] {
                    // 0x21, 0x23, 0x5d and 0xff are neighbours that a borrow could mark.
                    for fill in [b'a', b'!', b'#', b']', b' ', 0x7f, 0x80, 0xff, 0xa2, 0xdc] {
                        let mut bytes = vec![fill; len];
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte = special;
                        }
                        assert_eq!(plain_len(&bytes), at, "{bytes:?}");
                    }
                }
            }
        }
    }

    proptest! {
        /// The cursor agrees with serde_json on what is JSON, and never panics.
        #[test]
        fn agrees_with_serde_json(text in r#"([\[\]{},:"\\ntrue0-9.eE+ -]|null|true|\\u[0-9a-f]{4}|é){0,24}"#) {
            let ours = whole(text.as_bytes()).is_ok();
            // serde_json refuses lone surrogates and huge exponents; `RawValue` checks the grammar and the former only.
            let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            if theirs {
                prop_assert!(ours, "{text}");
            }
            if ours && !text.contains("\\u") {
                prop_assert!(theirs, "{text}");
            }
        }

        #[test]
        fn unescapes_as_serde_json(s in any::<String>()) {
            let text = serde_json::to_string(&s).unwrap();
            let mut c = Cursor::new(text.as_bytes());
            let raw = c.string().unwrap();
            let mut out = Vec::new();
            raw.unescape_into(&mut out);
            prop_assert_eq!(&out, s.as_bytes());
            prop_assert!(raw.is(&s));
            prop_assert_eq!(raw.chars(), s.chars().count());
        }

        #[test]
        fn any_bytes_are_read_as_the_plain_reader_does(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            fuzzing::fuzz(&bytes);
        }

        #[test]
        fn texts_are_read_as_the_plain_reader_does(text in r#"([\[\]{},:"\\ntrue0-9.eE+ -]|null|\\u[dD][89c-f][0-9a-f]{2}|"a":|é){0,24}"#) {
            fuzzing::fuzz(text.as_bytes());
        }
    }
}
