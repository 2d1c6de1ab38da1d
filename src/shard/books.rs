//! What a shard counts of its requests, and how long its own stages take.

use super::Shard;
use super::gate::Permit;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Phase};
use crate::fleet::breaker::FaultClass;
use crate::metrics::histogram::Series;
use crate::metrics::ledger::Cell;
use crate::metrics::outcome::End;

impl Shard {
    pub fn count_offered(&self) {
        self.ledger.update(|tx| tx.offer());
    }

    /// An engine failed a request in this phase. One that takes no connection goes out at once, before more requests find it out for
    /// themselves; the control thread sees that it is out and asks it back. What else it may be, control verifies first.
    pub fn blame(&self, engine: EngineId, phase: Phase, class: FaultClass) {
        let line = self.shared.board.line(engine);
        let row = line.count_failure(phase, class);
        if class.is_unreachable() && row >= self.snapshot.fleet.recovery.eject_after {
            line.eject(class);
        }
    }

    pub fn count(&self, cell: Cell) {
        self.ledger.update(|tx| tx.add(cell, 1));
    }

    pub fn count_events(&self, events: u64, tokens: u64) {
        self.ledger.update(|tx| {
            tx.add(Cell::EngineReads, 1);
            tx.add(Cell::EventsRelayed, events);
            tx.add(Cell::DecodeTokensObserved, tokens);
        });
    }

    pub fn count_write(&self, bytes: usize) {
        self.ledger.update(|tx| {
            tx.add(Cell::ClientWrites, 1);
            tx.add(Cell::BytesRelayed, bytes as u64);
        });
    }

    /// A leg slot opens or is given up; it may have been open before.
    pub fn count_legs(&self, opens: bool, was_open: bool) {
        match (opens, was_open) {
            (true, false) => self.ledger.update(|tx| tx.add(Cell::LegsOpen, 1)),
            (false, true) => self.ledger.update(|tx| tx.sub(Cell::LegsOpen, 1)),
            _ => {}
        }
    }

    pub fn count_end(&self, end: End, unsized_offered: bool, slo_met: bool) {
        self.ledger.update(|tx| {
            tx.end(end);
            tx.add(Cell::UnsizedOffered, u64::from(unsized_offered));
            tx.add(Cell::SloMet, u64::from(slo_met));
        });
    }

    /// Gives back the retention of a request that is over.
    pub fn let_go(&self, permit: Permit) {
        // Nobody waits for this one.
        let shard = self.id.index();
        self.shared.retained.release(shard, permit, &mut Vec::new());
    }

    // ── our own time ──

    pub fn tick(&self) -> Instant {
        (self.clock)()
    }

    /// A stage that began at `began` is done.
    pub fn took(&self, stage: Series, began: Instant) {
        self.times.record(stage, self.tick().since(began));
    }
}
