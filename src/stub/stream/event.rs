//! One event of tokens: the fixed parts of its shape with text, ids and counts between them. Allocates nothing.
//!
//! Invariant: one call appends one event, its blank line included.

use super::{Plan, Stage, Stream, Usage};
use crate::stub::load::Finish;
use crate::stub::text;

impl Stream {
    /// The event of its own that ends the answer.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&self.shape.finish);
        if self.plan.finish == Finish::Abort {
            // It was made for another end.
            for word in [Finish::Stop.word(), Finish::Length.word()] {
                if let Some(at) = memchr::memmem::rfind(&out[from..], word.as_bytes()) {
                    let at = from + at;
                    out.splice(at..at + word.len(), Finish::Abort.word().bytes());
                    break;
                }
            }
        }
        self.stage = match self.shape.usage {
            Some(_) => Stage::Usage,
            None => Stage::Mark,
        };
    }

    /// Appends the event of the tokens `sent..made`.
    pub(super) fn event(&mut self, last: bool, out: &mut Vec<u8>) {
        let shape = &self.shape;
        let (from, to) = (self.sent, self.made);
        out.extend_from_slice(&shape.head);
        let text_at = out.len();
        let open = match from < shape.reasoning {
            true => shape.reasoning_open,
            false => shape.text_open,
        };
        out.extend_from_slice(open.as_bytes());
        let bare = out.len();
        let held_back = self
            .empty_every
            .is_some_and(|n| !last && to.is_multiple_of(n));
        if !held_back {
            for i in self.texts..to {
                text::piece_json(self.plan.id(i), out);
            }
            self.texts = to;
        }
        if out.len() == bare {
            out.truncate(text_at);
            out.extend_from_slice(shape.text_none.as_bytes());
        } else {
            out.extend_from_slice(shape.text_close.as_bytes());
        }
        let first = if from == 0 {
            self.shape.first.take()
        } else {
            None
        };
        let shape = &self.shape;
        if last {
            out.extend_from_slice(shape.last_open.as_bytes());
            out.extend_from_slice(self.plan.finish.word().as_bytes());
        }
        let rest = match (&first, last) {
            (None, false) => &shape.middle[..],
            (None, true) => shape.last_close.as_bytes(),
            (Some((middle, _)), false) => middle,
            (Some((_, close)), true) => close,
        };
        out.extend_from_slice(rest);
        self.ids(from, to, out);
        if from == 0 {
            out.extend_from_slice(&shape.first_tail);
        }
        out.extend_from_slice(shape.close.as_bytes());
        if let Some(usage) = &shape.running_usage {
            put_usage(usage, &self.plan, to, out);
        }
        if last {
            out.extend_from_slice(&shape.last_end);
        } else {
            out.extend_from_slice(shape.end.as_bytes());
        }
    }

    /// The ids of the tokens `from..to`, or what stands in their place.
    fn ids(&self, from: u64, to: u64, out: &mut Vec<u8>) {
        let shape = &self.shape;
        let bad = self
            .bad_ids
            .filter(|(events, _)| self.events >= *events && (self.plan.ids || !shape.no_ids));
        if let Some((_, bad)) = bad {
            match bad.json() {
                Some(json) => out.extend_from_slice(json.as_bytes()),
                // The member's name is the last that was written.
                None => out.truncate(memchr::memmem::rfind(out, b",\"").unwrap_or(out.len())),
            }
        } else if self.plan.ids {
            out.push(b'[');
            for i in from..to {
                if i > from {
                    out.push(b',');
                }
                put_integer(u64::from(self.plan.id(i)), out);
            }
            out.push(b']');
        } else if !shape.no_ids {
            out.extend_from_slice(b"null");
        }
    }
}

/// Appends `n` in decimal.
pub fn put_integer(mut n: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

pub(super) fn put_usage(usage: &Usage, plan: &Plan, completion: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&usage.head);
    put_integer(plan.prompt_tokens + completion, out);
    out.extend_from_slice(usage.between.as_bytes());
    put_integer(completion, out);
    out.extend_from_slice(&usage.tail);
}
