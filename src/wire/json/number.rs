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
            let mut end = start;
            while let Some(b'0'..=b'9') = self.bytes.get(end) {
                end += 1;
            }
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
        while matches!(self.bytes.get(self.pos), Some(b'0'..=b'9')) {
            self.pos += 1;
        }
    }

    fn some_digits(&mut self) -> Result<()> {
        if !matches!(self.bytes.get(self.pos), Some(b'0'..=b'9')) {
            return Err(self.fault(What::Number));
        }
        self.digits();
        Ok(())
    }
}
