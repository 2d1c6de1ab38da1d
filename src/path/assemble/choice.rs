//! The one choice of the answer: what every event's choice adds to it.
//!
//! Owns the message's buffers; may use `stage` and `buffers`. Invariant: a member that the contract does not know never gets in.

use super::buffers::{Budget, Joined, Kept, Last, List};
use super::logprobs::Logprobs;
use super::stage::{STRINGS, Staged, StagedChoice, StagedDelta, Staging};
use super::tools::{FunctionCall, Tools};
use super::{Fault, Rules};

#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) text: Joined,
    pub(super) message: Message,
    pub(super) logprobs: Logprobs,
    /// The content of the string, never empty once set.
    pub(super) finish_reason: Last,
    pub(super) stop_reason: Last,
    pub(super) token_ids: List,
    /// The last list that came.
    pub(super) prompt_token_ids: List,
    pub(super) kept: Kept,
}

#[derive(Debug, Default)]
pub(super) struct Message {
    /// By the order of [`STRINGS`].
    pub(super) strings: [Joined; STRINGS.len()],
    pub(super) tools: Tools,
    pub(super) function_call: FunctionCall,
    pub(super) kept: Kept,
}

impl Choice {
    pub(super) fn commit(
        &mut self,
        staged: &StagedChoice,
        text: &[u8],
        rules: &Rules,
        staging: &mut Staging,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        if staged.unknown {
            return Err(Fault::Invalid("choice"));
        }
        if !matches!(staged.index.read(text, "index")?, None | Some(b"0")) {
            return Err(Fault::Invalid("index"));
        }
        self.text.append(staged.text.read(text, "text")?, budget)?;
        let finish = staged.finish_reason.read(text, "finish_reason")?;
        self.finish_reason
            .set(finish.filter(|reason| !reason.is_empty()), budget)?;
        let stop = staged.stop_reason.read(text, "stop_reason")?;
        self.stop_reason.set(stop, budget)?;
        self.commit_ids(staged, text, rules, budget)?;
        staging.choice.commit(text, &mut self.kept, budget)?;
        self.message
            .commit(&staged.delta, text, rules, staging, budget)?;
        if let Some(logprobs) = staged.logprobs.read(text, "logprobs")? {
            self.logprobs
                .commit(logprobs, rules, &mut staging.inner, budget)?;
        }
        Ok(())
    }

    fn commit_ids(
        &mut self,
        staged: &StagedChoice,
        text: &[u8],
        rules: &Rules,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let ids = staged.token_ids.read(text, "token_ids")?;
        let prompt_ids = staged.prompt_token_ids.read(text, "prompt_token_ids")?;
        if !rules.keep_ids {
            return Ok(());
        }
        self.token_ids.append(ids, budget)?;
        self.prompt_token_ids.replace(prompt_ids, budget)
    }

    /// What can be told only when the stream is over.
    pub(super) fn complete(&self) -> Result<(), Fault> {
        self.message.tools.complete()?;
        self.message.function_call.complete()
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.message.clear();
        self.logprobs.clear();
        self.finish_reason.clear();
        self.stop_reason.clear();
        self.token_ids.clear();
        self.prompt_token_ids.clear();
        self.kept.clear();
    }
}

impl Message {
    fn commit(
        &mut self,
        delta: &StagedDelta,
        text: &[u8],
        rules: &Rules,
        staging: &mut Staging,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        if delta.wrong || delta.unknown {
            return Err(Fault::Invalid("delta"));
        }
        if let Staged::Is(span) = delta.role
            && !is_word(span.of(text), "assistant")
        {
            return Err(Fault::Invalid("role"));
        }
        delta.role.read(text, "role")?;
        for ((joined, piece), name) in self.strings.iter_mut().zip(delta.strings).zip(STRINGS) {
            joined.append(piece.read(text, name)?, budget)?;
        }
        staging.delta.commit(text, &mut self.kept, budget)?;
        if let Some(calls) = delta.tool_calls.read(text, "tool_calls")? {
            self.tools
                .commit(calls, rules, &mut staging.inner, budget)?;
        }
        if let Some(call) = delta.function_call.read(text, "function_call")? {
            self.function_call
                .commit(call, rules, &mut staging.inner, budget)?;
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.strings.iter_mut().for_each(Joined::clear);
        self.tools.clear();
        self.function_call.clear();
        self.kept.clear();
    }
}

/// Whether a string's raw content means `word`.
pub(super) fn is_word(raw: &[u8], word: &str) -> bool {
    crate::wire::json::RawStr::of(raw).is(word)
}
