//! What the exchanges of one shard wait for: a seat, or a place in a phase of an engine. Knows which connection holds which ticket, and
//! whom to wake.
//!
//! A grant can come from any shard. It is fetched by this one, on its mail or its next look, and lies here until its connection claims
//! it; a connection that goes away gives up its ticket or the permit that has come for it. Invariant: every ticket in a line of this
//! shard is in `tokens`; every permit in `granted` has its ticket in `tokens`.

use std::collections::BTreeMap;

use super::Shard;
use super::board::Phase;
use super::gate::{Asked, Gate, Permit, Ticket};
use crate::base::units::EngineId;
use crate::metrics::ledger::Cell;

/// What can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    Seat,
    Phase(EngineId, Phase),
}

/// A place in a line.
pub type Place = (Awaited, Ticket);

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Waits {
    /// The connection that waits.
    tokens: BTreeMap<Place, u64>,
    granted: BTreeMap<Place, Permit>,
    /// Shards that have been granted something, for the runtime to tell.
    wakes: Vec<(usize, Awaited)>,
}

impl Shard {
    /// A permit, a place in the line, or neither, for the connection behind `token`.
    pub fn ask(&mut self, line: Awaited, token: u64) -> Asked {
        let Some(gate) = self.shared.gate(line) else {
            return Asked::Full;
        };
        let mut wakes = Vec::new();
        let asked = gate.ask(self.id.index(), &mut wakes);
        self.waits.wake(line, &wakes);
        if let Asked::Waits(ticket) = asked {
            self.waits.tokens.insert((line, ticket), token);
            self.ledger.update(|tx| tx.add(line.gauge(), 1));
        }
        asked
    }

    /// The permit for a ticket, if it has come.
    pub fn claim(&mut self, place: Place) -> Option<Permit> {
        let permit = self.waits.granted.remove(&place)?;
        self.forget(place);
        Some(permit)
    }

    /// Gives up a place, and the permit if that has come.
    pub fn leave(&mut self, place: Place) {
        let (line, ticket) = place;
        self.forget(place);
        if let Some(permit) = self.waits.granted.remove(&place) {
            return self.release(line, permit);
        }
        let mut wakes = Vec::new();
        if let Some(gate) = self.shared.gate(line) {
            gate.leave(self.id.index(), ticket, &mut wakes);
        }
        self.waits.wake(line, &wakes);
    }

    pub fn release(&mut self, line: Awaited, permit: Permit) {
        let mut wakes = Vec::new();
        if let Some(gate) = self.shared.gate(line) {
            gate.release(self.id.index(), permit, &mut wakes);
        }
        self.waits.wake(line, &wakes);
    }

    /// Fetches what this shard was granted in a line: the connections that should claim.
    pub fn fetch_grants(&mut self, line: Awaited) -> Vec<u64> {
        let grants = match self.shared.gate(line) {
            Some(gate) => gate.granted(self.id.index()),
            None => Vec::new(),
        };
        let mut tokens = Vec::with_capacity(grants.len());
        for (ticket, permit) in grants {
            let place = (line, ticket);
            tokens.extend(self.waits.tokens.get(&place));
            self.waits.granted.insert(place, permit);
        }
        tokens
    }

    /// The next shard to tell, and in which line it was granted something.
    pub fn next_wake(&mut self) -> Option<(usize, Awaited)> {
        self.waits.wakes.pop()
    }

    /// The lines in which connections of this shard wait.
    pub fn lines(&self) -> Vec<Awaited> {
        let mut lines: Vec<_> = self.waits.tokens.keys().map(|place| place.0).collect();
        lines.dedup();
        lines
    }

    /// The connections that wait in a line.
    pub fn waiting(&self, line: Awaited) -> Vec<u64> {
        let waiting = self.waits.tokens.iter();
        waiting
            .filter(|(place, _)| place.0 == line)
            .map(|(_, token)| *token)
            .collect()
    }

    fn forget(&mut self, (line, ticket): Place) {
        if self.waits.tokens.remove(&(line, ticket)).is_some() {
            self.ledger.update(|tx| tx.sub(line.gauge(), 1));
        }
    }
}

impl Waits {
    fn wake(&mut self, line: Awaited, shards: &[usize]) {
        for shard in shards {
            if !self.wakes.contains(&(*shard, line)) {
                self.wakes.push((*shard, line));
            }
        }
    }
}

impl Awaited {
    const fn gauge(self) -> Cell {
        match self {
            Awaited::Seat => Cell::Queued,
            Awaited::Phase(_, Phase::Prefill) => Cell::PrefillWaiting,
            Awaited::Phase(_, Phase::Decode) => Cell::DecodeWaiting,
        }
    }
}

impl super::Shared {
    /// Who may be in; `None` where nothing is bounded.
    pub fn gate(&self, line: Awaited) -> Option<&Gate> {
        match line {
            Awaited::Seat => Some(&self.seats),
            Awaited::Phase(engine, phase) => self.phase(engine, phase),
        }
    }
}
