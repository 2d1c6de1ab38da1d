//! What a connection holds and waits for, as plain values: the simulator (`tests/sim`) checks them after every step.
//!
//! Reads only; no stage uses it.

use super::Stage;
use super::accept::{Connection, Front, SLOTS};
use super::leg::State;
use super::timers::Timer;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Leg};
use crate::shard::board::Phase;
use crate::shard::waits::Place;

/// One connection at one moment.
#[derive(Clone, Debug)]
pub struct View {
    pub front: Front,
    pub exchange: Option<Held>,
    pub legs: [LegView; SLOTS],
    /// Bytes gathered for the client, and in flight to it.
    pub pending: usize,
    /// An answer of before is retained until the client has it.
    pub tail: bool,
    /// Client bytes read ahead.
    pub ahead: usize,
    timers: [Instant; Timer::ALL.len()],
}

/// What the exchange holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub stage: Stage,
    pub attempt: u32,
    pub over: bool,
    pub seat: bool,
    pub retained: bool,
    pub prefill: Option<EngineId>,
    pub decode: Option<EngineId>,
    /// Its places in phases: prefill and decode.
    pub phases: [Option<EngineId>; Phase::COUNT],
    /// Where it stands in a line.
    pub place: Option<Place>,
    pub room: bool,
    /// The client has seen output.
    pub started: bool,
    /// Bytes of the request's body, and the most of any answer that is kept.
    pub body: usize,
    pub kept: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegView {
    pub state: State,
    pub kind: Option<Leg>,
    pub engine: Option<EngineId>,
}

impl Connection {
    pub fn view(&self) -> View {
        View {
            front: self.front,
            exchange: self.exchange.as_deref().map(|x| Held {
                stage: x.stage,
                attempt: x.attempt,
                over: x.is_over(),
                seat: x.seat.is_some(),
                retained: x.retained.is_some(),
                prefill: x.prefill_load.as_ref().map(|load| load.engine),
                decode: x.decode_load.as_ref().map(|load| load.engine),
                phases: [Phase::Prefill, Phase::Decode].map(|phase| x.phase_engine(phase)),
                place: x.place_in_line,
                room: x.room.is_some(),
                started: x.relay.started(),
                body: x.body.len(),
                kept: x.collected.len().max(x.prefill_answer.len()),
            }),
            legs: std::array::from_fn(|slot| LegView {
                state: self.legs[slot].state,
                kind: self.legs[slot].kind,
                engine: self.legs[slot].engine,
            }),
            pending: self.io.out.pending(),
            tail: self.io.tail.is_some(),
            ahead: self.inbuf.len(),
            timers: Timer::ALL.map(|timer| self.io.timers.at(timer)),
        }
    }
}

impl View {
    pub fn is_set(&self, timer: Timer) -> bool {
        self.at(timer) != Instant::FAR
    }

    pub fn at(&self, timer: Timer) -> Instant {
        self.timers[timer as usize]
    }

    /// Whether some leg works for the exchange.
    pub fn leg_at_work(&self) -> bool {
        self.legs
            .iter()
            .any(|leg| !matches!(leg.state, State::Idle | State::Draining))
    }
}
