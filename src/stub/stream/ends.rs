//! How a stream ends before its time: it fails, is cut short or given up.
//!
//! Invariant: afterwards it holds no place on the engine, and what is left of it is due at once.

use super::{Stage, Stream};
use crate::base::time::Instant;
use crate::stub::load::Finish;
use crate::stub::refusal::Refusal;

impl Stream {
    /// Whether only the end mark is left.
    pub fn is_at_mark(&self) -> bool {
        self.stage == Stage::Mark && self.failed.is_none()
    }

    /// The request fails: an error event and the end mark are all that comes.
    pub fn fail(&mut self, refusal: Refusal) {
        self.end_at(Stage::Tokens);
        self.failed = Some(refusal);
    }

    /// The end mark is all that comes.
    pub fn cut_short(&mut self) {
        self.end_at(Stage::Mark);
        self.failed = None;
    }

    /// The engine gives the request up: the next token is the last, and its event says so.
    pub fn abort(&mut self) {
        let runs = matches!(self.stage, Stage::Opening | Stage::Tokens) && self.failed.is_none();
        if runs && self.plan.finish != Finish::Abort {
            let stage = self.stage;
            self.plan.tokens = self.made + 1;
            self.plan.finish = Finish::Abort;
            self.end_at(stage);
        }
    }

    fn end_at(&mut self, stage: Stage) {
        (self.resident, self.begin, self.waiting) = (None, None, false);
        self.stage = stage;
        self.due = Instant::ZERO;
    }
}
