//! Where TLS records end (RFC 8446 section 5.1: five bytes of header, the last two the length of what follows), without opening them.
//!
//! rustls keeps a record that has come in part to itself, so a connection that looks silent may have one under way. Owns a count.

/// How far into a record the bytes so far have come.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Header bytes seen, up to five, and the length they say.
    header: usize,
    length: usize,
    /// Bytes of the body still to come.
    left: usize,
}

const HEADER_BYTES: usize = 5;

impl Records {
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while let [first, rest @ ..] = bytes {
            if self.left > 0 {
                let some = self.left.min(bytes.len());
                self.left -= some;
                bytes = &bytes[some..];
                continue;
            }
            self.header += 1;
            if self.header > HEADER_BYTES - 2 {
                self.length = self.length << 8 | usize::from(*first);
            }
            if self.header == HEADER_BYTES {
                self.left = self.length;
                (self.header, self.length) = (0, 0);
            }
            bytes = rest;
        }
    }

    /// No record is under way.
    pub(super) fn at_border(&self) -> bool {
        self.header == 0 && self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves R-LEG-6
    #[test]
    fn only_the_ends_of_records_are_borders() {
        let mut bytes = Vec::new();
        let mut borders = vec![0];
        for length in [0usize, 1, 300, 5, 16_640] {
            bytes.extend_from_slice(&[23, 3, 3, (length >> 8) as u8, length as u8]);
            bytes.extend(std::iter::repeat_n(9, length));
            borders.push(bytes.len());
        }
        for step in [1, 2, 3, 7, 1_000, bytes.len()] {
            let mut records = Records::default();
            let mut at = 0;
            while at < bytes.len() {
                let next = (at + step).min(bytes.len());
                records.pass(&bytes[at..next]);
                at = next;
                assert_eq!(records.at_border(), borders.contains(&at), "{at} by {step}");
            }
        }
    }
}
