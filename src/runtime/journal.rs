//! The way of the journal's rows from a shard to the thread that writes them: a bounded queue of the shard's own.
//!
//! Its rows are in place from the start, so nothing is allocated and nobody waits: a row that finds the queue full goes back. Who writes
//! looks by itself now and then; once a queue is a quarter full it is woken.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use crossbeam_queue::ArrayQueue;

use crate::metrics::journal::{Row, Sink};

/// One shard's queue. Its shard puts, the writer takes.
pub struct Rows {
    queue: ArrayQueue<Row>,
    writer: OnceLock<Thread>,
    /// It was woken, and has not found the queue empty since: once is enough.
    is_woken: AtomicBool,
}

impl Rows {
    /// `capacity` rows at most wait; at least one.
    pub fn new(capacity: usize) -> Rows {
        Rows {
            queue: ArrayQueue::new(capacity.max(1)),
            writer: OnceLock::new(),
            is_woken: AtomicBool::new(false),
        }
    }

    /// Who is woken from now on. The first one stays.
    pub fn woken_by_rows(&self, writer: Thread) {
        let _ = self.writer.set(writer);
    }

    pub fn take(&self) -> Option<Row> {
        let row = self.queue.pop();
        if row.is_some() {
            return row;
        }
        // In this order: what came before wakes nobody any more and is found now, what comes later wakes.
        self.is_woken.store(false, SeqCst);
        self.queue.pop()
    }

    /// Rows that wait now.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// As a shard holds it.
pub struct Way(pub Arc<Rows>);

impl Sink for Way {
    fn put(&self, row: &Row) -> bool {
        let Rows {
            queue,
            writer,
            is_woken,
        } = &*self.0;
        let kept = queue.push(*row).is_ok();
        if queue.len() * 4 >= queue.capacity()
            && !is_woken.swap(true, SeqCst)
            && let Some(writer) = writer.get()
        {
            writer.unpark();
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::metrics::outcome::{End, InvalidReason};

    // proves R-OBS-2
    #[test]
    fn a_full_queue_gives_rows_back_and_waits_for_nobody() {
        let rows = Arc::new(Rows::new(2));
        let way = Way(rows.clone());
        let row = |end| {
            let mut row = Row::default();
            row.end = end;
            row
        };
        let ends = [
            InvalidReason::BadJson,
            InvalidReason::Model,
            InvalidReason::Width,
        ];
        let kept: Vec<bool> = ends
            .iter()
            .map(|e| way.put(&row(End::Invalid(*e))))
            .collect();
        assert_eq!((kept, rows.len()), (vec![true, true, false], 2));
        assert_eq!(rows.take().map(|row| row.end), Some(End::Invalid(ends[0])));
        assert!(way.put(&row(End::Served)));
        let rest = [rows.take(), rows.take(), rows.take()].map(|row| row.map(|row| row.end));
        assert_eq!(rest, [Some(End::Invalid(ends[1])), Some(End::Served), None]);
        assert!(rows.is_empty());
    }

    #[test]
    fn a_queue_that_fills_wakes_who_writes() {
        let rows = Arc::new(Rows::new(64));
        let own = rows.clone();
        let writer = thread::spawn(move || {
            let mut taken = 0;
            while taken < 16 {
                // Without a time: only the queue can end this.
                thread::park();
                while own.take().is_some() {
                    taken += 1;
                }
            }
            taken
        });
        rows.woken_by_rows(writer.thread().clone());
        let way = Way(rows);
        for _ in 0..16 {
            assert!(way.put(&Row::default()));
        }
        assert_eq!(writer.join().expect("no panic"), 16);
    }
}
