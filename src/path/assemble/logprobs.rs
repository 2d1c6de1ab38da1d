//! Log probabilities: each known list grows by the items of every event, as they are written.
//!
//! Owns the lists; may use `stage` and `buffers`. Invariant: a list is in the answer if and only if an array came for it.

use crate::wire::json::Cursor;

use super::buffers::{Budget, Kept, List};
use super::stage::{self, Others, Staged};
use super::{Fault, Kind, Rules};

#[derive(Debug, Default)]
pub(super) struct Logprobs {
    lists: [List; LISTS_MAX],
    pub(super) kept: Kept,
}

const CHAT: &[&str] = &["content", "refusal"];
const TEXT: &[&str] = &["tokens", "token_logprobs", "top_logprobs", "text_offset"];
const LISTS_MAX: usize = 4;

const _: () = assert!(CHAT.len() <= LISTS_MAX);
const _: () = assert!(TEXT.len() <= LISTS_MAX);

fn names(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Chat => CHAT,
        Kind::Text => TEXT,
    }
}

impl Logprobs {
    /// `text` is the object.
    pub(super) fn commit(
        &mut self,
        text: &[u8],
        rules: &Rules,
        others: &mut Others,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let names = names(rules.kind);
        let mut staged = [Staged::default(); LISTS_MAX];
        others.clear();
        let mut c = Cursor::new(text);
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            if let Some(n) = names.iter().position(|name| key.is(name)) {
                staged[n] = stage::list(&mut c)?;
            } else if others.stage(&mut c, &key, rules, rules.dialect_names)? {
                return Err(Fault::Invalid("logprobs"));
            }
        }
        for (list, items) in self.lists.iter_mut().zip(staged) {
            list.append(items.read(text, "logprobs")?, budget)?;
        }
        others.commit(text, &mut self.kept, budget)
    }

    /// Name and items of each list that came.
    pub(super) fn iter(&self, kind: Kind) -> impl Iterator<Item = (&'static str, &[u8])> {
        let lists = names(kind).iter().zip(&self.lists);
        lists.filter_map(|(name, list)| Some((*name, list.items()?)))
    }

    pub(super) fn clear(&mut self) {
        self.lists.iter_mut().for_each(List::clear);
        self.kept.clear();
    }
}
