//! A journal that checks what it gets: each row makes a line that reads as what it is, and is counted by its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::metrics::journal::line::{LINE_BYTES_MAX, Writer};
use crate::metrics::journal::read::Facts;
use crate::metrics::journal::stamp::{Anchor, UnixMicros};
use crate::metrics::journal::{Row, Sink};
use crate::metrics::outcome::End;

/// What came, by end and in all.
pub struct Rows {
    ends: [AtomicU64; End::COUNT],
    sized: AtomicU64,
    slo_met: AtomicU64,
}

impl Default for Rows {
    fn default() -> Self {
        Rows {
            ends: [const { AtomicU64::new(0) }; End::COUNT],
            sized: AtomicU64::new(0),
            slo_met: AtomicU64::new(0),
        }
    }
}

impl Rows {
    pub fn of(&self, end: End) -> u64 {
        self.ends[end.index()].load(Relaxed)
    }

    pub fn count(&self) -> u64 {
        End::ALL.iter().map(|end| self.of(*end)).sum()
    }

    /// With a model.
    pub fn sized(&self) -> u64 {
        self.sized.load(Relaxed)
    }

    pub fn slo_met(&self) -> u64 {
        self.slo_met.load(Relaxed)
    }
}

/// As a shard holds it.
pub struct Book(pub Arc<Rows>);

impl Sink for Book {
    fn put(&self, row: &Row) -> bool {
        check(row);
        self.0.ends[row.end.index()].fetch_add(1, Relaxed);
        self.0
            .sized
            .fetch_add(u64::from(!row.model.is_empty()), Relaxed);
        let met = row.slo_met == Some(true);
        self.0.slo_met.fetch_add(u64::from(met), Relaxed);
        true
    }
}

fn check(row: &Row) {
    let anchor = Anchor {
        unix: UnixMicros(1_800_000_000_000_000),
        now: row.moments.ended,
    };
    let mut line = Vec::new();
    Writer::new("r").write(&mut line, row, &anchor);
    assert!(line.len() <= LINE_BYTES_MAX);
    let facts = Facts::read(line.trim_ascii_end()).expect("a row");
    assert_eq!(facts.outcome, row.end.name());
    assert!(facts.ttft.unwrap_or(0) <= facts.total);
    match row.end {
        End::Served => {
            assert!(row.status == Some(200) && row.attempts > 0);
            assert!(facts.ttft.is_some() && facts.decode_engine.is_some());
        }
        // Who has gone was told nothing, or is within a stream.
        End::Cancelled(_) => assert!(matches!(row.status, None | Some(200))),
        _ => assert!(row.status.is_some()),
    }
}
