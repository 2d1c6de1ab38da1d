//! The fixed parts of a stream, as a dialect prepares them. Plain values.
//!
//! Invariant: an event is `head`, the text, `middle` (or `last_open`, a word, `last_close`), the ids, `first_tail`, `close`, running
//! usage, `end` (or `last_end`), in this order.

use crate::stub::refusal::Refusal;

/// The fixed parts of a stream's events, as a dialect writes them.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// A whole event before the first token (chat's role event), or empty.
    pub opening: Vec<u8>,
    /// Up to the text.
    pub head: Vec<u8>,
    /// Around the text.
    pub text_open: &'static str,
    pub text_close: &'static str,
    /// In place of all three when there is no text.
    pub text_none: &'static str,
    /// Whether an event without text and ids is not sent at all.
    pub skip_silent: bool,
    /// From the text to the ids: for a middle event, and around the finish word of the last one.
    pub middle: Vec<u8>,
    pub last_open: &'static str,
    pub last_close: &'static str,
    /// As `middle` and `last_close` for the first token's event, where that differs (completions put the prompt's ids there).
    pub first: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether ids that are not shown have no member, instead of a `null`.
    pub no_ids: bool,
    /// Behind the ids of the first token's event.
    pub first_tail: Vec<u8>,
    /// How many tokens are reasoning, and what stands before their text.
    pub reasoning: u64,
    pub reasoning_open: &'static str,
    /// A whole event of its own for the end of the answer; then the last token's event is one like the others.
    pub finish: Vec<u8>,
    /// After the ids, to where usage may stand.
    pub close: &'static str,
    /// From there to the end of the event: for a middle event, and for the last one.
    pub end: &'static str,
    pub last_end: Vec<u8>,
    /// Running usage in each event, written before `end`.
    pub running_usage: Option<RunningUsage>,
    /// The usage event up to the completion count, and from `total_tokens`' place on.
    pub usage: Option<Usage>,
    /// The end of the stream.
    pub done: &'static str,
    /// How an error inside the stream is written, where not as vLLM does; and whether the stream ends with it.
    pub fault: Option<fn(&Refusal, &mut Vec<u8>)>,
    pub fault_ends: bool,
    /// Whether the response's head waits for the first event.
    pub holds_head: bool,
}

/// `"usage"` of an event: prompt and total and completion counts in this order, between fixed parts.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Up to the total.
    pub head: Vec<u8>,
    /// From the total to the completion count.
    pub between: &'static str,
    /// After it.
    pub tail: Vec<u8>,
}

/// Usage inside the events of tokens.
pub type RunningUsage = Usage;
