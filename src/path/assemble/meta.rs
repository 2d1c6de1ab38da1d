//! Top-level members that the router does not interpret (`id`, `created`, `model`, `usage`, whatever an engine adds): in the
//! order of their first appearance, each by its last non-null value, in its own text.
//!
//! Owns names and values; may use `stage` and `buffers`. Invariant: names are distinct when unescaped, and at most [`NAMES_MAX`].

use crate::wire::json::RawStr;

use super::Fault;
use super::buffers::{self, Budget, Last};
use super::stage::Staged;

#[derive(Debug, Default)]
pub(super) struct Meta {
    members: Vec<Member>,
    /// Members in use; the rest keep their buffers for a later answer.
    used: usize,
    /// Where the next name is expected: engines write each event in the same order.
    next: usize,
    unescaped: Vec<u8>,
}

#[derive(Debug, Default)]
struct Member {
    /// As it goes out.
    key: Vec<u8>,
    /// As it is compared.
    name: Vec<u8>,
    value: Last,
    staged: Staged,
}

impl Meta {
    /// A new event.
    pub(super) fn begin(&mut self) {
        self.next = 0;
        for member in &mut self.members[..self.used] {
            member.staged = Staged::Absent;
        }
    }

    /// Notes a member of the event. Within one event the last of a name counts.
    pub(super) fn stage(
        &mut self,
        key: &RawStr,
        value: Staged,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let at = self.find_or_add(key, budget)?;
        self.members[at].staged = value;
        self.next = at + 1;
        Ok(())
    }

    pub(super) fn commit(&mut self, text: &[u8], budget: &mut Budget) -> Result<(), Fault> {
        for member in &mut self.members[..self.used] {
            let value = member.staged.read(text, "event")?;
            member.value.set(value, budget)?;
        }
        Ok(())
    }

    fn find_or_add(&mut self, key: &RawStr, budget: &mut Budget) -> Result<usize, Fault> {
        self.unescaped.clear();
        let name = if key.escaped() {
            key.unescape_into(&mut self.unescaped);
            &self.unescaped[..]
        } else {
            key.raw
        };
        let members = &self.members[..self.used];
        if members.get(self.next).is_some_and(|m| m.name == name) {
            return Ok(self.next);
        }
        if let Some(at) = members.iter().position(|m| m.name == name) {
            return Ok(at);
        }
        if self.used == NAMES_MAX {
            return Err(Fault::TooLarge);
        }
        budget.take(key.raw.len() + name.len())?;
        if self.used == self.members.len() {
            self.members.push(Member::default());
        }
        let member = &mut self.members[self.used];
        member.key.extend_from_slice(key.raw);
        member.name.extend_from_slice(name);
        self.used += 1;
        Ok(self.used - 1)
    }

    /// Name, raw name and raw value of each member that has one.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], &[u8])> {
        let members = self.members[..self.used].iter();
        members.filter_map(|m| Some((&m.name[..], &m.key[..], m.value.value()?)))
    }

    pub(super) fn value(&self, name: &str) -> Option<&[u8]> {
        let mut members = self.members[..self.used].iter();
        members.find(|m| m.name == name.as_bytes())?.value.value()
    }

    pub(super) fn clear(&mut self) {
        for member in &mut self.members[..self.used] {
            buffers::clear(&mut member.key);
            buffers::clear(&mut member.name);
            member.value.clear();
            member.staged = Staged::Absent;
        }
        buffers::clear(&mut self.unescaped);
        self.used = 0;
    }
}

/// Distinct top-level names of one answer; more are over the limit like too many bytes. vLLM 0.32.0 has 13.
const NAMES_MAX: usize = 64;
