//! Lines of a stream that wait for the event they stand before: comments, and `event`, `id` and `retry` fields.
//!
//! Invariants: at most [`limits::CLIENT_BUFFER_BYTES`] wait; each line is looked at once, whatever comes behind it.

use crate::base::limits;

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Fields {
    lines: Vec<u8>,
    /// Bytes at the front of blocks that are over.
    settled: usize,
    /// A field is among those, or among the lines behind them.
    settled_field: bool,
    field: bool,
}

impl Fields {
    /// Fields without events would gather without end: they are dropped at the bound, and a line over it is none to keep.
    pub fn push(&mut self, line: &[u8]) {
        if self.lines.len() + line.len() > limits::CLIENT_BUFFER_BYTES {
            self.clear();
        }
        if line.len() > limits::CLIENT_BUFFER_BYTES {
            return;
        }
        self.field |= !line.starts_with(b":");
        self.lines.extend_from_slice(line);
        self.lines.push(b'\n');
    }

    /// A block without data dispatches nothing, so its `event:` must not name the next one; `id` and `retry` outlive it.
    pub fn end_block(&mut self) {
        if std::mem::take(&mut self.field) {
            let (mut from, mut to) = (self.settled, self.settled);
            while from < self.lines.len() {
                let rest = &self.lines[from..];
                let len = memchr::memchr(b'\n', rest).map_or(rest.len(), |n| n + 1);
                let names = rest[..len].strip_prefix(b"event");
                if !matches!(names, Some([b':' | b'\n', ..])) {
                    self.settled_field |= rest[0] != b':';
                    self.lines.copy_within(from..from + len, to);
                    to += len;
                }
                from += len;
            }
            self.lines.truncate(to);
        }
        self.settled = self.lines.len();
    }

    /// Comments alone need not wait: they keep the connection alive, and belong to no event.
    pub fn are_comments(&self) -> bool {
        !self.lines.is_empty() && !self.field && !self.settled_field
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub fn append_to(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.lines);
        self.clear();
    }

    fn clear(&mut self) {
        self.lines.clear();
        self.settled = 0;
        (self.settled_field, self.field) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What it would be if all lines were looked at each time.
    #[derive(Default)]
    struct Plain(Vec<Vec<u8>>);

    impl Plain {
        fn push(&mut self, line: &[u8]) {
            let held: usize = self.0.iter().map(|line| line.len() + 1).sum();
            if held + line.len() > limits::CLIENT_BUFFER_BYTES {
                self.0.clear();
            }
            self.0.push(line.to_vec());
        }

        fn end_block(&mut self) {
            self.0
                .retain(|line| line != b"event" && !line.starts_with(b"event:"));
        }

        fn are_comments(&self) -> bool {
            !self.0.is_empty() && self.0.iter().all(|line| line.starts_with(b":"))
        }
    }

    proptest! {
        // proves R-SSE-3
        #[test]
        fn it_is_what_the_plain_way_makes_of_it(steps in proptest::collection::vec(0usize..8, 0..60)) {
            let lines: [&[u8]; 6] = [b":", b": c", b"id: 1", b"event", b"event: x", b"events"];
            let (mut fields, mut plain) = (Fields::default(), Plain::default());
            for step in steps {
                match lines.get(step) {
                    Some(line) => {
                        fields.push(line);
                        plain.push(line);
                    }
                    None if step == 6 => {
                        fields.end_block();
                        plain.end_block();
                    }
                    None => {
                        let mut out = Vec::new();
                        fields.append_to(&mut out);
                        let want: Vec<u8> = plain.0.drain(..).flat_map(|line| [line, b"\n".to_vec()].concat()).collect();
                        prop_assert_eq!(out, want);
                    }
                }
                prop_assert_eq!(fields.are_comments(), plain.are_comments());
                prop_assert_eq!(fields.is_empty(), plain.0.is_empty());
            }
        }
    }

    /// Blank lines between fields were a walk over all of them each: 320 KB cost a shard three seconds.
    // proves R-LEG-6
    #[test]
    fn blank_lines_cost_nothing() {
        let mut fields = Fields::default();
        for _ in 0..2_000_000 {
            fields.push(b"id");
            fields.end_block();
        }
        assert!(fields.lines.len() <= limits::CLIENT_BUFFER_BYTES);
    }
}
