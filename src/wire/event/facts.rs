//! What one data event means to a router: its tokens, whether the ids may be believed, an error in disguise, and what to cut.
//!
//! Owns nothing but what it found; the walk itself is in [`super::reader`].
//!
//! Invariant: `cuts` are sorted, disjoint, inside the value; the value without them is valid JSON.

use std::ops::Range;

use super::reader::Reader;
use super::shape::Spots;

/// Whether the leg's events carry token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Every choice with output must carry a good `token_ids`.
    Expected,
    /// The openai dialect: an event with output counts one token, and no shape is refused here.
    Absent,
    /// SGLang chat: the same, but an event whose only output is under `reasoning` counts no token, though it bears one.
    /// SGLang has no such member (it says `reasoning_content`); recorded counts of routers in front of it leave it out.
    AbsentSglang,
}

/// An error that came as an event, or as the body of a 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineError {
    /// The integer `code` (in `error`, else at top level) when it is 400 to 599; anything else is 500.
    pub status: u16,
    /// The message as it stands in the value: between its quotes, escapes and all.
    pub message: Option<Range<usize>>,
}

/// What one JSON object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Ids counted over all choices; on legs without ids 1 for an event with output.
    pub tokens: u64,
    /// Some choice carries a nonempty valid `token_ids`; on legs without ids: the event has output.
    pub bears_token: bool,
    /// Some choice has text, content, reasoning, calls or a refusal.
    pub output: bool,
    /// The ids and the shapes around them are as they must be.
    pub ids_ok: bool,
    pub error: Option<EngineError>,
    /// Some choice finished because the engine gave it up.
    pub abort: bool,
    pub(super) cuts: Vec<Range<usize>>,
    pub(super) varies: Option<Varies>,
}

/// The parts of an event that differ from the one before it of the same shape. All its other bytes are the same, so are its kinds of
/// values, and it has one choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Varies {
    /// A string that is not empty, with its quotes: the choice's only output.
    pub text: Range<usize>,
    /// The ids of the choice, with their brackets; empty when it has none.
    pub ids: Range<usize>,
}

impl Facts {
    /// Where `token_ids` and `prompt_token_ids` stand in the value, each with one comma: sorted, disjoint.
    pub fn cuts(&self) -> &[Range<usize>] {
        &self.cuts
    }

    /// What is new in an event that was known by its shape; `None` for one that was read whole.
    pub fn varies(&self) -> Option<&Varies> {
        self.varies.as_ref()
    }

    /// Reads `value`. `false`: it is not one JSON object (white space around it apart), and the facts mean nothing.
    pub fn read(&mut self, value: &[u8], ids: Ids) -> bool {
        self.read_spots(value, ids, &mut Spots::default())
    }

    /// The same, and where the parts stand that vary from event to event.
    pub(super) fn read_spots(&mut self, value: &[u8], ids: Ids, spots: &mut Spots) -> bool {
        self.cuts.clear();
        self.error = None;
        self.varies = None;
        let trimmed = value.trim_ascii_start();
        if trimmed.first() != Some(&b'{') {
            return false;
        }
        let lead = value.len() - trimmed.len();
        let reader = Reader::new(trimmed.trim_ascii_end(), &mut self.cuts, spots);
        let Ok((seen, error)) = reader.event() else {
            return false;
        };
        self.error = error;
        if lead > 0 {
            self.shift(lead);
            for span in [&mut spots.text, &mut spots.list] {
                *span = span.start + lead..span.end + lead;
            }
        }
        self.output = seen.output;
        self.abort = seen.abort;
        match ids {
            Ids::Expected => {
                self.tokens = seen.tokens;
                self.bears_token = seen.tokens > 0;
                self.ids_ok = !seen.fault;
            }
            Ids::Absent => {
                self.tokens = u64::from(seen.output);
                self.bears_token = seen.output;
                self.ids_ok = true;
            }
            Ids::AbsentSglang => {
                self.tokens = u64::from(seen.spoken);
                self.bears_token = seen.output;
                self.ids_ok = true;
            }
        }
        true
    }

    fn shift(&mut self, lead: usize) {
        let message = self.error.as_mut().and_then(|e| e.message.as_mut());
        for span in self.cuts.iter_mut().chain(message) {
            *span = span.start + lead..span.end + lead;
        }
    }
}
