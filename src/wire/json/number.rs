//! Numbers: one at a time, and long lists of them at once.

use super::{Cursor, Result, Walk, What};

impl<'a> Cursor<'a> {
    /// Reads a number; returns its text. The caller has peeked [`Kind::Number`].
    pub fn number(&mut self) -> Result<&'a [u8]> {
        let start = self.pos;
        if self.bytes.get(self.pos) == Some(&b'-') {
            self.pos += 1;
        }
        match self.bytes.get(self.pos) {
            Some(b'0') => self.pos += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.fault(What::Number)),
        }
        if self.bytes.get(self.pos) == Some(&b'.') {
            self.pos += 1;
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.pos) {
            self.pos += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.pos) {
                self.pos += 1;
            }
            self.some_digits()?;
        }
        // `01` and `1x` end a number here and fail in whatever reads on; a digit is named for what it is.
        if let Some(b'0'..=b'9') = self.bytes.get(self.pos) {
            return Err(self.fault(What::Number));
        }
        Ok(&self.bytes[start..self.pos])
    }

    /// Passes items of an array as long as they are plain digits, from the one at the cursor on, with a comma behind each and at most one
    /// space behind that; says how many. The next item is left, and is a number: for whoever reads the usual way. For long lists of
    /// token ids, which are most of a body.
    pub fn digit_items(&mut self, walk: &mut Walk) -> u64 {
        let mut count = 0;
        let mut start = self.pos;
        loop {
            let end = start + digits_len(&self.bytes[start..]);
            // JSON has no number without digits and none with a zero in front.
            let plain = end > start && (self.bytes[start] != b'0' || end == start + 1);
            if !plain || self.bytes.get(end) != Some(&b',') {
                return count;
            }
            let next = end + 1 + usize::from(self.bytes.get(end + 1) == Some(&b' '));
            if !matches!(self.bytes.get(next), Some(b'0'..=b'9')) {
                return count;
            }
            count += 1;
            walk.before = end;
            self.pos = next;
            start = next;
        }
    }

    fn digits(&mut self) {
        self.pos += digits_len(&self.bytes[self.pos..]);
    }

    fn some_digits(&mut self) -> Result<()> {
        if !matches!(self.bytes.get(self.pos), Some(b'0'..=b'9')) {
            return Err(self.fault(What::Number));
        }
        self.digits();
        Ok(())
    }
}

/// How many digits the bytes begin with, eight at a time. A digit differs from `0` by at most 9, so adding 0x76 leaves its high bit clear;
/// the carry of what is no digit goes up only, so the lowest mark is right.
#[inline]
fn digits_len(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    let mut at = 0;
    while let Some((word, _)) = bytes[at..].split_first_chunk::<8>() {
        let off = u64::from_le_bytes(*word) ^ (ONES * u64::from(b'0'));
        let others = (off.wrapping_add(ONES * 0x76) | off) & (ONES << 7);
        if others != 0 {
            return at + others.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let tail = &bytes[at..];
    let end = tail.iter().position(|b| !b.is_ascii_digit());
    at + end.unwrap_or(tail.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::digits_len;

    proptest! {
        #[test]
        fn digits_are_counted_as_one_by_one(
            digits in "[0-9]{0,20}",
            rest in proptest::collection::vec(any::<u8>(), 0..12),
        ) {
            let bytes = [digits.as_bytes(), &rest].concat();
            let plain = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
            prop_assert_eq!(digits_len(&bytes), plain);
        }
    }

    #[test]
    fn any_byte_ends_them_but_a_digit() {
        for byte in 0..=u8::MAX {
            for at in 0..9 {
                let mut bytes = *b"0123456789";
                bytes[at] = byte;
                let want = if byte.is_ascii_digit() { 10 } else { at };
                assert_eq!(digits_len(&bytes), want, "{byte} at {at}");
            }
        }
    }
}
