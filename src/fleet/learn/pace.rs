//! How fast one stream comes, against what its engine's profile says: a ratio for each segment of it.
//!
//! A segment runs from the end of one engine read to the end of a later one, and the next begins where it ends. Tokens come in groups
//! (several ids in an event, several events in a read), so whole reads are counted: the tokens of a segment are exactly those that
//! came after its first moment and up to its last, however they were grouped, and no time between segments is lost.
//! Invariant: a ratio is finite, above 0 and at most [`RATIO_MAX`].

use crate::base::time::Instant;

/// Tokens of a segment. The jitter of its two ends counts a sixteenth; two segments a second of a stream at 30 tokens a second.
pub const SEGMENT_TOKENS: u64 = 16;

/// A stall of seconds within one segment says that something was slow, not how much slower everything is.
pub const RATIO_MAX: f64 = 100.0;

/// One stream's. Costs a comparison for each read that does not end a segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    from: Option<Mark>,
    /// Some segment of it had all its tokens.
    taught: bool,
    held_up: bool,
}

/// An end of a segment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    tokens: u64,
    at: Instant,
    /// The interval that the profile gives for what the engine had to do then, seconds.
    profiled_s: f64,
}

impl Pace {
    /// A read is used up: `tokens` have come in all, the last of them at `last`. The ratio of a segment that ends here.
    pub fn read(
        &mut self,
        tokens: u64,
        last: Instant,
        profiled_s: impl FnOnce() -> f64,
    ) -> Option<f64> {
        if self.held_up || tokens == 0 {
            return None;
        }
        let Some(from) = &mut self.from else {
            self.from = Some(Mark {
                tokens,
                at: last,
                profiled_s: profiled_s(),
            });
            return None;
        };
        if last <= from.at && !self.taught {
            // What comes with the first token has waited for the prompt, not for its turn.
            from.tokens = tokens;
        }
        if tokens - from.tokens < SEGMENT_TOKENS || last <= from.at {
            return None;
        }
        let from = *from;
        let to = Mark {
            tokens,
            at: last,
            profiled_s: profiled_s(),
        };
        self.from = Some(to);
        self.taught = true;
        ratio(from, to)
    }

    /// The stream has ended well. Only one too short for a segment is judged by what it had.
    pub fn end(
        &mut self,
        tokens: u64,
        last: Instant,
        profiled_s: impl FnOnce() -> f64,
    ) -> Option<f64> {
        let from = self.from.take()?;
        if self.held_up || self.taught || tokens <= from.tokens || last <= from.at {
            return None;
        }
        let to = Mark {
            tokens,
            at: last,
            profiled_s: profiled_s(),
        };
        ratio(from, to)
    }

    /// Its client did not keep up, so the engine was not read for a while: from now on the times are not the engine's.
    pub fn held_up(&mut self) {
        self.held_up = true;
    }
}

/// Live ÷ profiled seconds from one token to the next. `None` where the profile gives no interval.
fn ratio(from: Mark, to: Mark) -> Option<f64> {
    let live_s = to.at.since(from.at).as_secs_f64() / (to.tokens - from.tokens) as f64;
    let profiled_s = (from.profiled_s + to.profiled_s) / 2.0;
    let ratio = live_s / profiled_s;
    (profiled_s > 0.0 && ratio > 0.0).then_some(ratio.min(RATIO_MAX))
}
