//! What comes back from a leg: the tokens of a stream, counted by their ids, and what a whole answer says.
//!
//! Invariant: every event was held against the rules on token ids; one that breaks them is an error, never a count.

use std::ops::ControlFlow;

use serde_json::Value;
use tokio::task::JoinHandle;

use super::client::{Coming, EVENT_BYTES_MAX, Trouble, told};
use crate::config::Dialect;
use crate::wire::dialect::vllm;
use crate::wire::event::{EventStream, Facts, Ids, Item};
use crate::wire::openai::engine_message;

/// Tokens of one stream, as they come.
pub struct Tokens {
    coming: Coming,
    events: EventStream,
    seen: u64,
    usage: Option<Usage>,
    /// Keeps the other leg alive.
    _beside: Option<Beside>,
}

/// The engine's own count of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
}

/// The other leg of a room, read to its end beside ours.
pub struct Beside(pub JoinHandle<()>);

/// What one read brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    pub tokens: u64,
    pub done: bool,
}

impl Tokens {
    pub fn new(coming: Coming, dialect: Dialect, beside: Option<Beside>) -> Tokens {
        let ids = match dialect {
            Dialect::Openai => Ids::Absent,
            Dialect::Vllm | Dialect::Sglang => Ids::Expected,
        };
        Tokens {
            coming,
            events: EventStream::new(ids, EVENT_BYTES_MAX),
            seen: 0,
            usage: None,
            _beside: beside,
        }
    }

    /// What the engine counted, once it has said so.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Waits for the next read. After `done` nothing comes.
    pub async fn next(&mut self) -> Result<Step, Trouble> {
        let piece = self.coming.piece().await?;
        let (mut step, mut trouble) = (Step::default(), None);
        let (seen, usage) = (&mut self.seen, &mut self.usage);
        let sink = |item: Item<'_>| {
            match item {
                Item::Object { value, facts, .. } => {
                    *seen += 1;
                    trouble = trouble_of(value, facts, *seen);
                    step.tokens += facts.tokens;
                    if let Some(found) = usage_of(value) {
                        *usage = Some(found);
                    }
                }
                Item::Malformed { .. } => trouble = Some(Trouble::Malformed { event: *seen + 1 }),
                Item::Done => step.done = true,
                Item::Line(_) | Item::Blank => {}
            }
            match trouble {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        };
        let fed = match &piece {
            Some(piece) => self.events.feed(piece, sink),
            None => self.events.eof(sink),
        };
        let _ = fed.map_err(|_| Trouble::TooLarge(EVENT_BYTES_MAX))?;
        match trouble {
            Some(trouble) => Err(trouble),
            None if piece.is_none() && !step.done => Err(Trouble::Ended("[DONE]")),
            None => Ok(step),
        }
    }
}

fn trouble_of(value: &[u8], facts: &Facts, event: u64) -> Option<Trouble> {
    if let Some(error) = &facts.error {
        return Some(Trouble::Stream {
            status: error.status,
            message: told(engine_message(value)),
        });
    }
    if facts.abort {
        return Some(Trouble::Abort);
    }
    (!facts.ids_ok).then_some(Trouble::BadIds { event })
}

/// The handoff of a prefill answer; `None` when the engine makes none.
pub fn handoff(answer: &[u8]) -> Result<Option<&[u8]>, Trouble> {
    const WHAT: &str = "the answer of a prefill leg";
    let found = vllm::prefill_answer(answer).map_err(|_| Trouble::Answer(WHAT))?;
    if let Some(error) = found.error {
        return Err(Trouble::Stream {
            status: error.status,
            message: told(engine_message(answer)),
        });
    }
    if found.aborted {
        return Err(Trouble::Abort);
    }
    match found.handoff {
        Ok(span) => Ok(Some(&answer[span])),
        Err(vllm::HandoffFault::Missing) => Ok(None),
        Err(_) => Err(Trouble::Answer("a handoff")),
    }
}

/// `usage` of an answer or an event that has one.
pub fn usage_of(value: &[u8]) -> Option<Usage> {
    // Nearly every event has none, or null.
    let named = value.windows(7).any(|w| w == b"\"usage\"");
    let value: Value = named
        .then(|| serde_json::from_slice(value).ok())
        .flatten()?;
    let usage = &value["usage"];
    Some(Usage {
        prompt_tokens: usage["prompt_tokens"].as_u64().filter(|n| *n > 0)?,
        cached_tokens: usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or(0),
    })
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.abort();
    }
}
