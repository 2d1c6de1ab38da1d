//! Tool calls, grouped by the index that their fragments name, and the older `function_call`.
//!
//! Owns the calls' buffers and keeps them between answers; may use `stage` and `buffers`.
//! Invariant: `order` is sorted by index, holds each once, and names the first `order.len()` calls.

use crate::wire::json::{Cursor, Kind};

use super::buffers::{Budget, Joined, Kept};
use super::choice::is_word;
use super::stage::{self, Others, Staged};
use super::{Fault, Rules};

#[derive(Debug, Default)]
pub(super) struct Tools {
    calls: Vec<Call>,
    order: Vec<(u64, usize)>,
}

/// One call in the making.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) id: Joined,
    pub(super) function: FunctionCall,
    pub(super) kept: Kept,
}

/// `function` of a tool call, or `function_call` of a message.
#[derive(Debug, Default)]
pub(super) struct FunctionCall {
    seen: bool,
    pub(super) name: Joined,
    pub(super) arguments: Joined,
    pub(super) kept: Kept,
}

impl Tools {
    /// `text` is what stands between the brackets of `tool_calls`: objects and commas.
    pub(super) fn commit(
        &mut self,
        text: &[u8],
        rules: &Rules,
        others: &mut Others,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let mut rest = text;
        while !rest.is_empty() {
            let mut c = Cursor::new(rest);
            if c.peek()? != Kind::Object {
                return Err(Fault::Invalid("tool_calls"));
            }
            let span = c.skip()?;
            self.fragment(&rest[span.clone()], rules, others, budget)?;
            rest = after_comma(&rest[span.end..]);
        }
        Ok(())
    }

    fn fragment(
        &mut self,
        text: &[u8],
        rules: &Rules,
        others: &mut Others,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let [mut index, mut id, mut kind, mut function] = [Staged::Absent; 4];
        others.clear();
        let mut c = Cursor::new(text);
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            if key.is("index") {
                index = stage::index(&mut c)?;
            } else if key.is("id") {
                id = stage::string(&mut c)?;
            } else if key.is("type") {
                kind = stage::string(&mut c)?;
            } else if key.is("function") {
                function = stage::object(&mut c)?;
            } else if others.stage(&mut c, &key, rules, rules.dialect_names)? {
                return Err(Fault::Invalid("tool_calls"));
            }
        }
        let index = index.read(text, "tool_index")?.and_then(number);
        let index = index.ok_or(Fault::Invalid("tool_index"))?;
        let kind = kind.read(text, "tool_type")?;
        if kind.is_some_and(|kind| !is_word(kind, "function")) {
            return Err(Fault::Invalid("tool_type"));
        }
        let call = self.call(index, budget)?;
        call.id.append(id.read(text, "tool_id")?, budget)?;
        others.commit(text, &mut call.kept, budget)?;
        if let Some(function) = function.read(text, "function")? {
            call.function.commit(function, rules, others, budget)?;
        }
        Ok(())
    }

    fn call(&mut self, index: u64, budget: &mut Budget) -> Result<&mut Call, Fault> {
        let at = match self.order.binary_search_by_key(&index, |entry| entry.0) {
            Ok(at) => self.order[at].1,
            Err(at) => {
                if self.order.len() == CALLS_MAX {
                    return Err(Fault::TooLarge);
                }
                budget.take(size_of::<Call>())?;
                let call = self.order.len();
                if call == self.calls.len() {
                    self.calls.push(Call::default());
                }
                self.order.insert(at, (index, call));
                call
            }
        };
        Ok(&mut self.calls[at])
    }

    /// Every call needs an id and a name.
    pub(super) fn complete(&self) -> Result<(), Fault> {
        for call in self.iter() {
            if call.id.is_empty() {
                return Err(Fault::Invalid("tool_id"));
            }
            if call.function.name.is_empty() {
                return Err(Fault::Invalid("tool_name"));
            }
        }
        Ok(())
    }

    /// The calls in index order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Call> {
        self.order.iter().map(|entry| &self.calls[entry.1])
    }

    pub(super) fn clear(&mut self) {
        self.order.clear();
        self.calls.truncate(CALLS_KEPT);
        for call in &mut self.calls {
            call.id.clear();
            call.function.clear();
            call.kept.clear();
        }
    }
}

impl FunctionCall {
    /// `text` is the object.
    pub(super) fn commit(
        &mut self,
        text: &[u8],
        rules: &Rules,
        others: &mut Others,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let [mut name, mut arguments] = [Staged::Absent; 2];
        others.clear();
        let mut c = Cursor::new(text);
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            if key.is("name") {
                name = stage::string(&mut c)?;
            } else if key.is("arguments") {
                arguments = stage::string(&mut c)?;
            } else if others.stage(&mut c, &key, rules, rules.dialect_names)? {
                return Err(Fault::Invalid("function"));
            }
        }
        self.seen = true;
        self.name
            .append(name.read(text, "function_name")?, budget)?;
        self.arguments
            .append(arguments.read(text, "arguments")?, budget)?;
        others.commit(text, &mut self.kept, budget)
    }

    /// Whether any came.
    pub(super) fn seen(&self) -> bool {
        self.seen
    }

    /// A call needs a name.
    pub(super) fn complete(&self) -> Result<(), Fault> {
        if self.seen && self.name.is_empty() {
            return Err(Fault::Invalid("function_name"));
        }
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.seen = false;
        self.name.clear();
        self.arguments.clear();
        self.kept.clear();
    }
}

/// Digits only, as staged. Past 64 bits there is no such call.
fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What follows the comma between two items, or nothing at the end.
fn after_comma(rest: &[u8]) -> &[u8] {
    match rest.iter().position(|byte| *byte == b',') {
        Some(comma) => &rest[comma + 1..],
        None => &[],
    }
}

/// Calls of one answer; more are over the limit like too many bytes. Real answers have a handful.
const CALLS_MAX: usize = 4_096;

/// Calls whose buffers are kept between answers.
const CALLS_KEPT: usize = 16;
