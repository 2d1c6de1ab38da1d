//! The growing parts of an answer, all in raw JSON, and the budget they are charged to.
//!
//! Owns bytes; may use nothing else of the room. Invariant: what the buffers hold ≤ `Budget::held` ≤ `Budget::max`.

use super::Fault;

/// What may still be held.
#[derive(Debug, Default)]
pub(super) struct Budget {
    held: usize,
    max: usize,
}

impl Budget {
    pub(super) fn new(max: usize) -> Self {
        Budget { held: 0, max }
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        match self.held.checked_add(bytes) {
            Some(held) if held <= self.max => {
                self.held = held;
                Ok(())
            }
            _ => Err(Fault::TooLarge),
        }
    }

    pub(super) fn give(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.held);
        self.held -= bytes;
    }
}

/// A string in pieces: the content of a literal, escapes and all. Absent until the first piece, be it empty.
#[derive(Debug, Default)]
pub(super) struct Joined {
    raw: Vec<u8>,
    seen: bool,
}

impl Joined {
    pub(super) fn append(
        &mut self,
        piece: Option<&[u8]>,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        if let Some(piece) = piece {
            budget.take(piece.len())?;
            self.raw.extend_from_slice(piece);
            self.seen = true;
        }
        Ok(())
    }

    /// The content, or `None` when no string came.
    pub(super) fn content(&self) -> Option<&[u8]> {
        self.seen.then_some(&self.raw)
    }

    /// Whether there is anything in it.
    pub(super) fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    pub(super) fn clear(&mut self) {
        clear(&mut self.raw);
        self.seen = false;
    }
}

/// An array in pieces: the items with their commas. Absent until the first piece, be it empty.
#[derive(Debug, Default)]
pub(super) struct List {
    raw: Vec<u8>,
    seen: bool,
}

impl List {
    /// `items` is what stands between the brackets of an array, without white space around.
    pub(super) fn append(
        &mut self,
        items: Option<&[u8]>,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let Some(items) = items else { return Ok(()) };
        self.seen = true;
        if items.is_empty() {
            return Ok(());
        }
        let comma = !self.raw.is_empty();
        budget.take(items.len() + usize::from(comma))?;
        if comma {
            self.raw.push(b',');
        }
        self.raw.extend_from_slice(items);
        Ok(())
    }

    /// Holds these items instead of those before.
    pub(super) fn replace(
        &mut self,
        items: Option<&[u8]>,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        if items.is_some() {
            budget.give(self.raw.len());
            self.raw.clear();
        }
        self.append(items, budget)
    }

    /// The items, or `None` when no array came.
    pub(super) fn items(&self) -> Option<&[u8]> {
        self.seen.then_some(&self.raw)
    }

    pub(super) fn clear(&mut self) {
        clear(&mut self.raw);
        self.seen = false;
    }
}

/// A value of which the last non-null one counts. Empty when none came.
#[derive(Debug, Default)]
pub(super) struct Last {
    raw: Vec<u8>,
}

impl Last {
    pub(super) fn set(&mut self, value: Option<&[u8]>, budget: &mut Budget) -> Result<(), Fault> {
        let Some(value) = value else { return Ok(()) };
        // Engines repeat most of these on each event.
        if self.raw == value {
            return Ok(());
        }
        budget.give(self.raw.len());
        self.raw.clear();
        budget.take(value.len())?;
        self.raw.extend_from_slice(value);
        Ok(())
    }

    pub(super) fn value(&self) -> Option<&[u8]> {
        (!self.raw.is_empty()).then_some(&self.raw)
    }

    pub(super) fn clear(&mut self) {
        clear(&mut self.raw);
    }
}

/// Members kept by name (an index into the rules' names), each by its last non-null value.
#[derive(Debug, Default)]
pub(super) struct Kept {
    members: Vec<(usize, Last)>,
}

impl Kept {
    pub(super) fn set(
        &mut self,
        name: usize,
        value: &[u8],
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        // The file's list is short, and so is this.
        let at = self.members.iter().position(|member| member.0 == name);
        let at = at.unwrap_or_else(|| {
            self.members.push((name, Last::default()));
            self.members.len() - 1
        });
        self.members[at].1.set(Some(value), budget)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.members
            .iter()
            .filter_map(|(name, last)| Some((*name, last.value()?)))
    }

    pub(super) fn clear(&mut self) {
        self.members.clear();
    }
}

/// Empties a buffer; one that grew far beyond the usual gives its memory back.
pub(super) fn clear(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(KEPT_BYTES_MAX);
}

/// Bytes that each buffer may keep between answers: a long answer's content fits, a guess.
const KEPT_BYTES_MAX: usize = 65_536;
