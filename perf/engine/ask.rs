//! What a completion asks for, read by looking for its keys: bodies come from the load client, through routers that may write them anew.
//!
//! Pure. A prompt is a list of token ids, or a text that begins with a number; the first number is the request's tag.

use std::ops::Range;

use memchr::{memchr, memchr_iter, memmem};

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub tag: u64,
    pub tokens: u64,
    pub stream: bool,
    /// `return_token_ids`.
    pub ids: bool,
    /// `stream_options.include_usage`.
    pub usage: bool,
    /// The first leg of two: its answer hands the KV over.
    pub prefill: bool,
    pub prompt_tokens: u64,
    /// The list with its brackets; empty when the prompt is text.
    prompt: Range<usize>,
}

impl Ask {
    /// `None` when the prompt does not begin with a number.
    pub fn read(body: &[u8]) -> Option<Ask> {
        let at = value(body, b"\"prompt\"")?;
        let inner = at + body[at..].iter().position(u8::is_ascii_digit)?;
        let is_list = body[at] == b'[' && body.get(at + 1) != Some(&b'"');
        let end = match is_list {
            true => at + memchr(b']', &body[at..])? + 1,
            false => inner + memchr(b'"', &body[inner..])?,
        };
        let separator = if is_list { b',' } else { b' ' };
        let prompt_tokens = memchr_iter(separator, &body[inner..end]).count() as u64 + 1;
        Some(Ask {
            tag: digits(&body[inner..])?,
            tokens: value(body, b"\"max_tokens\"")
                .and_then(|at| digits(&body[at..]))
                .unwrap_or(16),
            stream: is_true(body, b"\"stream\""),
            ids: is_true(body, b"\"return_token_ids\""),
            usage: is_true(body, b"\"include_usage\""),
            prefill: is_true(body, b"\"do_remote_decode\""),
            prompt_tokens,
            prompt: if is_list { at..end } else { 0..0 },
        })
    }

    /// The prompt's ids as they were sent, where they are to be shown.
    pub fn prompt_ids<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        (self.ids && !self.prompt.is_empty()).then(|| &body[self.prompt.clone()])
    }
}

/// Where the value of a key begins; `key` with its quotes.
fn value(body: &[u8], key: &[u8]) -> Option<usize> {
    let mut at = memmem::find(body, key)? + key.len();
    while matches!(body.get(at)?, b' ' | b':') {
        at += 1;
    }
    Some(at)
}

fn is_true(body: &[u8], key: &[u8]) -> bool {
    value(body, key).is_some_and(|at| body[at..].starts_with(b"true"))
}

fn digits(bytes: &[u8]) -> Option<u64> {
    let end = bytes.iter().position(|b| !b.is_ascii_digit());
    let digits = &bytes[..end.unwrap_or(bytes.len())];
    std::str::from_utf8(digits).ok()?.parse().ok()
}
