//! The steps of a fault script inside an answer: whose place is here, and what each does to what is still to come.
//!
//! Invariant: a step is done at most `repeat` times.

use super::{Act, Body, Output, Stage};
use crate::base::time::Instant;
use crate::stub::faults::{At, Do, Step};

impl Output {
    /// The step whose place is here, if it is not done.
    pub(super) fn due(&self) -> Option<usize> {
        if self.injected.steps.is_empty() {
            return None;
        }
        let at_mark = match &self.body {
            Body::Stream(stream) => stream.is_at_mark(),
            _ => false,
        };
        let here = |step: &Step| match (step.at, self.stage) {
            (At::Head, Stage::Interim) | (At::Last, Stage::Last) | (At::End, Stage::End) => true,
            (At::Event, Stage::Events) => step.events == self.events,
            (At::Done, Stage::Events) => at_mark,
            _ => false,
        };
        let steps = self.injected.steps.iter().zip(&self.done);
        steps
            .enumerate()
            .find(|(_, (step, done))| **done < step.repeat && here(step))
            .map(|(i, _)| i)
    }

    /// Keeps back the second half of what was appended from `from` on, when a step lies inside it.
    pub(super) fn cut(&mut self, at: At, from: usize, out: &mut Vec<u8>) {
        let inside =
            |step: &Step| step.at == at && (at == At::InHead || step.events == self.events);
        let steps = self.injected.steps.iter().zip(&self.done);
        let step = steps
            .enumerate()
            .find(|(_, (step, done))| **done == 0 && inside(step));
        if let Some((i, _)) = step {
            let half = from + (out.len() - from).div_ceil(2);
            self.rest = Some((out.split_off(half), i));
        }
    }

    /// Commits a step; `None` when the answer goes on at once.
    pub(super) fn commit(&mut self, index: usize, now: Instant, out: &mut Vec<u8>) -> Option<Act> {
        self.done[index] += 1;
        let step = &self.injected.steps[index];
        let stream = match &mut self.body {
            Body::Stream(stream) => Some(stream),
            _ => None,
        };
        match (step.act, stream) {
            (Do::Close, _) => return Some(Act::Close),
            (Do::Reset, _) => return Some(Act::Reset),
            (Do::Hang, _) => return Some(Act::Hang),
            (Do::Pause, _) => self.paused_until = now + step.pause,
            (Do::Eof, Some(_)) => self.stage = Stage::Last,
            // The length is told already, or the end of the connection is the end.
            (Do::Eof, None) => return Some(Act::Close),
            (Do::Error, Some(stream)) => stream.fail(step.refusal()),
            (Do::Error, None) => self.say(index),
            (Do::Done, Some(stream)) => stream.cut_short(),
            (Do::Abort, Some(stream)) => stream.abort(),
            (Do::Insert | Do::Raw, _) => {
                let step = &mut self.injected.steps[index];
                let bytes = std::mem::take(&mut step.bytes);
                match step.act {
                    Do::Raw => out.extend_from_slice(&bytes),
                    _ => self.payload(&bytes, out),
                }
                self.injected.steps[index].bytes = bytes;
                return (!out.is_empty()).then(|| self.send(now));
            }
            (Do::Drain | Do::Die | Do::Restart | Do::Refuse, _) if step.at != At::Head => {
                return step.turn().map(Act::Turn);
            }
            // At the head the engine itself has answered with it.
            _ => {}
        }
        None
    }

    /// A whole answer that says 200 and holds an error. Only its body is still to come, so it must keep its length.
    fn say(&mut self, index: usize) {
        let refusal = self.injected.steps[index].refusal();
        if let Body::Answer(answer) = &mut self.body {
            let length = answer.body.len();
            answer.body = refusal.answer().body;
            // White space behind JSON means nothing; a body that is too short for the error is cut, which is no JSON either.
            answer.body.resize(length, b' ');
        }
    }
}
