//! The short way of a stream's ordinary events: all but a text and its ids is the same as in the event before, and was merged with it.
//!
//! Merging an event again changes nothing but what is joined: its strings, its ids, log probabilities and calls. So where an event has
//! no log probabilities and no calls, the next one that differs in its text and its ids alone adds these two and nothing else. Owns
//! where they go.
//!
//! Invariant: what [`Assembly::add`] leaves is what merging the whole event would have left.

use super::stage::{Span, Staged, StagedChoice};
use super::{Assembly, Fault, Rules};
use crate::wire::event::Varies;

/// Where the text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steady {
    Text,
    /// One of the message's strings, by its place in `stage::STRINGS`.
    Message(usize),
}

impl Steady {
    /// Where the parts of a merged event that vary went, if nothing else in it is joined.
    pub(super) fn of(choice: &StagedChoice, varies: &Varies, rules: &Rules) -> Option<Steady> {
        let delta = &choice.delta;
        let joined = [choice.logprobs, delta.tool_calls, delta.function_call];
        if joined != [Staged::Absent; 3] {
            return None;
        }
        let ids = match varies.ids.is_empty() {
            true => Staged::Absent,
            false => Staged::Is(Span::new(varies.ids.start + 1, varies.ids.end - 1)),
        };
        if rules.keep_ids && choice.token_ids != ids {
            return None;
        }
        let text = Staged::Is(Span::new(varies.text.start + 1, varies.text.end - 1));
        // The other strings are empty or not there, since the text is the only output; empty ones add nothing.
        if choice.text == text {
            return Some(Steady::Text);
        }
        let string = delta.strings.iter().position(|string| *string == text);
        string.map(Steady::Message)
    }

    /// Bad UTF-8 is mended the long way.
    pub(super) fn fits(self, value: &[u8], varies: &Varies) -> bool {
        std::str::from_utf8(&value[varies.text.clone()]).is_ok()
    }
}

impl Assembly {
    /// Adds what is new in an event of the same shape.
    pub(super) fn add(
        &mut self,
        value: &[u8],
        varies: &Varies,
        steady: Steady,
    ) -> Result<(), Fault> {
        let text = &value[varies.text.start + 1..varies.text.end - 1];
        let joined = match steady {
            Steady::Text => &mut self.choice.text,
            Steady::Message(n) => &mut self.choice.message.strings[n],
        };
        joined.append(Some(text), &mut self.budget)?;
        if self.rules.keep_ids && !varies.ids.is_empty() {
            let ids = &value[varies.ids.start + 1..varies.ids.end - 1];
            self.choice.token_ids.append(Some(ids), &mut self.budget)?;
        }
        Ok(())
    }
}
