//! A shard's side of the journal: rows that are filled while requests run, and where they go at the end.
//!
//! Rows are kept for the next requests, so a shard that has warmed up allocates none. A row that finds no room is counted and lost: nothing
//! here waits. Without a journal none of this is there.

use super::Shard;
use crate::metrics::journal::{Row, Sink};
use crate::metrics::ledger::Cell;

/// See the head of this file.
pub struct Journal {
    sink: Box<dyn Sink + Send>,
    #[expect(clippy::vec_box, reason = "requests hold them by a pointer")]
    free: Vec<Box<Row>>,
}

/// Rows kept: 1.6 KiB each. More requests than that at once are seldom, and those take new ones.
const FREE_MAX: usize = 1024;

impl Journal {
    pub fn new(sink: impl Sink + Send + 'static) -> Journal {
        Journal {
            sink: Box::new(sink),
            free: Vec::new(),
        }
    }
}

impl Shard {
    /// A row for a request that arrives; `None` without a journal.
    pub fn begin_row(&mut self) -> Option<Box<Row>> {
        let journal = self.journal.as_mut()?;
        let mut row = journal.free.pop().unwrap_or_default();
        row.clear();
        Some(row)
    }

    /// The request has ended, and its row is full.
    pub fn end_row(&mut self, row: Box<Row>) {
        let Some(journal) = self.journal.as_mut() else {
            return;
        };
        let kept = journal.sink.put(&row);
        if journal.free.len() < FREE_MAX {
            journal.free.push(row);
        }
        if !kept {
            self.count(Cell::JournalDropped);
        }
    }
}

const _: () = assert!(size_of::<Row>() <= 1_792);
