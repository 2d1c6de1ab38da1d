//! One JSON answer made of an engine's event stream, for a client that did not ask for a stream.
//!
//! Events come in one at a time. A walk over an event notes where its members stand (`stage`), and only when the object is over
//! is what stands moved into the answer's buffers (`choice`, `tools`, `logprobs`, `meta`), so a member given twice counts once,
//! the last time. Nothing is parsed into values: string pieces are joined in their escaped form, since the contents of two string
//! literals put together are the content of a literal with the joined value; numbers and unknown members keep their text.
//!
//! Owns the answer's buffers and reuses them; may use `base` and `wire::json`. Knows no token counts: bad `token_ids` and engine
//! errors are the leg's business, and are found before an event comes here.
//!
//! Invariant: bytes held ≤ `bytes_max`, and a fault once latched stays.

mod buffers;

mod stage;

mod choice;

mod tools;

mod logprobs;

mod meta;

mod write;

mod steady;

#[doc(hidden)]
pub mod fuzzing;

#[cfg(test)]
mod tests;

use crate::wire::event::Varies;
use crate::wire::json::{self, Cursor, JsonFault};

use buffers::{Budget, List};
use choice::Choice;
use meta::Meta;
use stage::{Choices, Staged, StagedChoice, Staging};
use steady::Steady;

/// Which route the client called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/completions`
    Text,
    /// `/v1/chat/completions`
    #[default]
    Chat,
}

/// What an assembly has to know beforehand.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    pub kind: Kind,
    /// The client set `return_token_ids`.
    pub keep_ids: bool,
    /// `engine.assembly_extra_fields`: members kept by last non-null value wherever they stand inside a choice.
    pub extra_fields: &'a [String],
    /// Members that the engine's dialect adds to a choice, kept alike: `matched_stop` for SGLang, none for the others.
    pub dialect_fields: &'a [&'a str],
    /// `max_response_bytes`
    pub bytes_max: usize,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The stream cannot be made into one answer. The name is the member at fault, of a closed set.
    Invalid(&'static str),
    /// More than `bytes_max` would have to be held.
    TooLarge,
}

/// Counts for an answer whose engine sent no usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// `None` when nobody counted the prompt; the member and the total are left out then.
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: u64,
}

/// One answer in the making.
#[derive(Debug, Default)]
pub struct Assembly {
    rules: Rules,
    budget: Budget,
    staging: Staging,
    meta: Meta,
    choice: Choice,
    /// Top-level `token_ids`, concatenated like those of the choice.
    token_ids: List,
    prompt_details: PromptDetails,
    /// A copy of an event that was not UTF-8, with the bad parts replaced; up to three times its size.
    mended: Vec<u8>,
    /// Where what is new in a known event goes; `None` when more than that may be new.
    steady: Option<Steady>,
    fault: Option<Fault>,
}

impl Assembly {
    pub fn new(options: Options) -> Self {
        let mut assembly = Assembly::default();
        assembly.reset(options);
        assembly
    }

    /// Makes it as new, but for the memory it keeps.
    pub fn reset(&mut self, options: Options) {
        self.rules.set(&options);
        self.budget = Budget::new(options.bytes_max);
        self.meta.clear();
        self.choice.clear();
        self.token_ids.clear();
        self.prompt_details = PromptDetails::AsSent;
        buffers::clear(&mut self.mended);
        self.steady = None;
        self.fault = None;
    }

    /// Takes one data event: a JSON object, white space of any kind between its tokens, perhaps bad UTF-8 inside its strings.
    pub fn event(&mut self, value: &[u8]) {
        self.event_known(value, None);
    }

    /// The same, of an event that may be known to differ from the last known one in `varies` alone. Of those the first is merged
    /// whole, and of the next ones what is new.
    pub fn event_known(&mut self, value: &[u8], varies: Option<&Varies>) {
        if self.fault.is_some() {
            return;
        }
        let merged = match (varies, self.steady) {
            (Some(varies), Some(steady)) if steady.fits(value, varies) => {
                self.add(value, varies, steady)
            }
            _ => self.event_whole(value, varies),
        };
        self.fault = merged.err();
    }

    fn event_whole(&mut self, value: &[u8], varies: Option<&Varies>) -> Result<(), Fault> {
        self.steady = None;
        if std::str::from_utf8(value).is_ok() {
            return self.merge(value, varies);
        }
        // Bad bytes stand only inside strings, and a quote ends any half-read character, so replacing over the whole event is
        // the same as replacing string by string.
        let mut mended = std::mem::take(&mut self.mended);
        mend(value, &mut mended);
        let merged = self.merge(&mended, None);
        self.mended = mended;
        merged
    }

    /// A data event came that was not a JSON object.
    pub fn malformed(&mut self) {
        self.fault.get_or_insert(Fault::Invalid("event"));
    }

    /// The latched fault. Events after it are accepted and ignored.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Bytes held for the answer so far.
    pub fn held_bytes(&self) -> usize {
        self.budget.held()
    }

    /// The engine's `usage.prompt_tokens_details` speaks of KV that was handed over, not of a prefix-cache hit: the answer shows
    /// the producer's (a JSON value) in its place, or none.
    pub fn replace_prompt_details(&mut self, producer: Option<&[u8]>) {
        self.prompt_details = match producer {
            Some(raw) => PromptDetails::Producer(raw.to_vec()),
            None => PromptDetails::Omit,
        };
    }

    /// Appends the JSON answer to `out`, which stays untouched when there is none.
    pub fn finish(&mut self, out: &mut Vec<u8>, counted: Usage) -> Result<(), Fault> {
        if self.fault.is_none() {
            self.fault = self.choice.complete().err();
        }
        match self.fault {
            Some(fault) => Err(fault),
            None => {
                write::answer(self, out, counted);
                Ok(())
            }
        }
    }

    /// `text` is UTF-8: the callers saw to it.
    fn merge(&mut self, text: &[u8], varies: Option<&Varies>) -> Result<(), Fault> {
        let mut c = Cursor::new(text);
        if c.peek()? != json::Kind::Object {
            return Err(Fault::Invalid("event"));
        }
        let mut walk = c.object()?;
        let mut choices = Choices::default();
        let mut choice = StagedChoice::default();
        let mut token_ids = Staged::default();
        self.meta.begin();
        while let Some(key) = c.key(&mut walk)? {
            if key.is("choices") {
                choices = stage::choices(&mut c, &self.rules, &mut self.staging, &mut choice)?;
            } else if key.is("object") {
                c.skip()?;
            } else if key.is("token_ids") {
                token_ids = stage::list(&mut c)?;
            } else if key.is("prompt_token_ids") && !self.rules.keep_ids {
                c.skip()?;
            } else {
                let value = stage::value(&mut c)?;
                self.meta.stage(&key, value, &mut self.budget)?;
            }
        }
        c.finish()?;
        self.meta.commit(text, &mut self.budget)?;
        if self.rules.keep_ids {
            let ids = token_ids.read(text, "token_ids")?;
            self.token_ids.append(ids, &mut self.budget)?;
        }
        match choices {
            Choices::None => return Ok(()),
            Choices::Bad => return Err(Fault::Invalid("choices")),
            Choices::One => {}
        }
        let Self {
            rules,
            staging,
            budget,
            ..
        } = self;
        self.choice.commit(&choice, text, rules, staging, budget)?;
        // A list at the top is added with each event.
        let lists = self.rules.keep_ids && token_ids != Staged::Absent;
        self.steady = varies
            .filter(|_| !lists)
            .and_then(|varies| Steady::of(&choice, varies, &self.rules));
        Ok(())
    }
}

impl From<JsonFault> for Fault {
    fn from(_: JsonFault) -> Self {
        Fault::Invalid("event")
    }
}

/// The options, owned: the names first of the dialect, then of the file.
#[derive(Debug, Default)]
struct Rules {
    kind: Kind,
    keep_ids: bool,
    names: Vec<String>,
    dialect_names: usize,
}

impl Rules {
    fn set(&mut self, options: &Options) {
        self.kind = options.kind;
        self.keep_ids = options.keep_ids;
        self.names.clear();
        let dialect = options.dialect_fields.iter().map(|name| name.to_string());
        self.names.extend(dialect);
        self.dialect_names = self.names.len();
        self.names.extend_from_slice(options.extra_fields);
    }
}

/// What stands as `prompt_tokens_details` in an engine's usage.
#[derive(Debug, Default)]
enum PromptDetails {
    #[default]
    AsSent,
    Omit,
    Producer(Vec<u8>),
}

/// U+FFFD for each maximal part that cannot be UTF-8 (Unicode 16, section 3.9; the same as `String::from_utf8_lossy`).
fn mend(value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for chunk in value.utf8_chunks() {
        out.extend_from_slice(chunk.valid().as_bytes());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}
