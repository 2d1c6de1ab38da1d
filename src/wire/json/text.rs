//! A string as it stands in JSON, escapes and all: compared, counted and unescaped where it stands. Owns no bytes.

/// A string as it stands in the input, without its quotes, escapes and all.
#[derive(Clone, Copy, Debug)]
pub struct RawStr<'a> {
    /// Bytes between the quotes.
    pub raw: &'a [u8],
    /// Offset of the opening quote.
    pub at: usize,
    pub(super) escaped: Escaped,
}

/// Whether a backslash occurs. A word wide for the reason given at [`What`](super::What).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Escaped {
    No,
    Yes,
}

impl<'a> RawStr<'a> {
    /// The content of a string that was read before.
    pub fn of(raw: &'a [u8]) -> Self {
        RawStr {
            raw,
            at: 0,
            escaped: if memchr::memchr(b'\\', raw).is_some() {
                Escaped::Yes
            } else {
                Escaped::No
            },
        }
    }

    /// Whether a backslash occurs in `raw`.
    pub fn escaped(&self) -> bool {
        self.escaped == Escaped::Yes
    }

    /// Whether the unescaped string is `name`. Compares without a buffer.
    pub fn is(&self, name: &str) -> bool {
        if !self.escaped() {
            return self.raw == name.as_bytes();
        }
        let mut want = name.as_bytes();
        for ch in self.units() {
            let mut utf8 = [0u8; 4];
            let ch = ch.encode(&mut utf8);
            match want.strip_prefix(ch) {
                Some(rest) => want = rest,
                None => return false,
            }
        }
        want.is_empty()
    }

    /// The unescaped string, when it fits into `buf`.
    pub fn short<'b>(&'b self, buf: &'b mut [u8]) -> Option<&'b [u8]> {
        if !self.escaped() {
            return Some(self.raw);
        }
        let mut len = 0;
        for ch in self.units() {
            let mut utf8 = [0u8; 4];
            let ch = ch.encode(&mut utf8);
            buf.get_mut(len..len + ch.len())?.copy_from_slice(ch);
            len += ch.len();
        }
        buf.get(..len)
    }

    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Appends the unescaped string. A lone surrogate comes out as its three generalised UTF-8 (WTF-8) bytes.
    pub fn unescape_into(&self, out: &mut Vec<u8>) {
        self.pieces(|piece| out.extend_from_slice(piece));
    }

    /// The unescaped string piece by piece, without a buffer: runs as they stand, and each escape as its UTF-8.
    pub fn pieces(&self, mut take: impl FnMut(&'_ [u8])) {
        let mut rest = self.raw;
        while self.escaped()
            && let Some(run) = memchr::memchr(b'\\', rest)
        {
            if run > 0 {
                take(&rest[..run]);
            }
            rest = &rest[run..];
            let mut units = Units { raw: rest, pos: 0 };
            // The cursor has checked the escape; what is none ends the string, as it ends the units.
            let Some(unit) = units.next() else { return };
            take(unit.encode(&mut [0u8; 4]));
            rest = &rest[units.pos..];
        }
        if !rest.is_empty() {
            take(rest);
        }
    }

    /// Characters of the unescaped string, counting each bad UTF-8 lead as one.
    pub fn chars(&self) -> usize {
        if self.escaped() {
            self.units()
                .filter(|u| u.1 || (u.0 as u8 as i8) >= -0x40)
                .count()
        } else {
            self.raw.iter().filter(|b| (**b as i8) >= -0x40).count()
        }
    }

    fn units(&self) -> Units<'_> {
        Units {
            raw: self.raw,
            pos: 0,
        }
    }
}

/// One step of unescaping: a code point made by an escape (`true`), or one raw byte (`false`; its UTF-8 is taken on trust).
#[derive(Clone, Copy)]
struct Unit(u32, bool);

impl Unit {
    fn encode(self, buf: &mut [u8; 4]) -> &[u8] {
        if !self.1 {
            buf[0] = self.0 as u8;
            return &buf[..1];
        }
        match char::from_u32(self.0) {
            Some(c) => c.encode_utf8(buf).as_bytes(),
            None => {
                // A lone surrogate: the three-byte form.
                buf[0] = 0xe0 | (self.0 >> 12) as u8;
                buf[1] = 0x80 | ((self.0 >> 6) & 0x3f) as u8;
                buf[2] = 0x80 | (self.0 & 0x3f) as u8;
                &buf[..3]
            }
        }
    }
}

struct Units<'a> {
    raw: &'a [u8],
    pos: usize,
}

impl Iterator for Units<'_> {
    type Item = Unit;

    fn next(&mut self) -> Option<Unit> {
        let byte = *self.raw.get(self.pos)?;
        self.pos += 1;
        if byte != b'\\' {
            return Some(Unit(u32::from(byte), false));
        }
        let kind = *self.raw.get(self.pos)?;
        self.pos += 1;
        let code = match kind {
            b'b' => 8,
            b'f' => 12,
            b'n' => 10,
            b'r' => 13,
            b't' => 9,
            b'u' => {
                let unit = u32::from(hex4(self.raw.get(self.pos..self.pos + 4)?)?);
                self.pos += 4;
                match self.low_surrogate(unit) {
                    Some(low) => {
                        self.pos += 6;
                        0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)
                    }
                    None => unit,
                }
            }
            other => u32::from(other),
        };
        Some(Unit(code, true))
    }
}

impl Units<'_> {
    fn low_surrogate(&self, unit: u32) -> Option<u32> {
        if !(0xd800..0xdc00).contains(&unit) {
            return None;
        }
        let hex = self.raw.get(self.pos..self.pos + 6)?.strip_prefix(b"\\u")?;
        let low = u32::from(hex4(hex)?);
        (0xdc00..0xe000).contains(&low).then_some(low)
    }
}

pub(super) fn hex4(hex: &[u8]) -> Option<u16> {
    hex.iter().try_fold(0u16, |n, b| {
        let digit = match b {
            b'0'..=b'9' => b - b'0',
            b'a'..=b'f' => b - b'a' + 10,
            b'A'..=b'F' => b - b'A' + 10,
            _ => return None,
        };
        Some(n << 4 | u16::from(digit))
    })
}
