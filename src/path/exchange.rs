//! One client request and its answer, from the arrival of its head to its account.
//!
//! The exchange is a state without I/O: stages are methods on it, one file each, and whatever they want done is left in [`Io`]
//! (bytes for the client, commands for legs, deadlines). It holds what must come back: a retention permit, a seat, reservations on
//! the board. `account` returns them, exactly once. Invariant: `end.is_some()` ⇔ nothing is held and no leg is wanted.

use std::collections::VecDeque;
use std::fmt::Write;

use super::account::Marks;
use super::leg::LegCommand;
use super::out::ClientOut;
use super::relay::Relay;
use super::tail::Tail;
use super::timers::{Timer, Timers};
use super::wait::InPhase;
use super::{Stage, assemble};
use crate::base::time::Instant;
use crate::base::units::{EngineId, Leg};
use crate::fleet::pick::{Avoid, Placement};
use crate::metrics::journal::Row;
use crate::metrics::outcome::End;
use crate::shard::board::Phase;
use crate::shard::board::Reservation;
use crate::shard::gate::Permit;
use crate::shard::waits;
use crate::shard::{Plan, Shard};
use crate::wire::event::EventStream;
use crate::wire::openai::{Request, Route};
use crate::wire::prefix::Prefix;

/// What a stage works with.
pub struct Cx<'a> {
    pub shard: &'a mut Shard,
    pub io: &'a mut Io,
    pub now: Instant,
}

/// What stages leave for the runtime.
#[derive(Debug, Default)]
pub struct Io {
    pub out: ClientOut,
    pub timers: Timers,
    commands: VecDeque<(usize, LegCommand)>,
    /// The client speaks HTTP/1.0: no chunks, and the connection closes.
    pub http10: bool,
    /// The connection closes after this answer, and the answer says so.
    pub close: bool,
    /// The request was HEAD: heads go out without their bodies.
    pub head_only: bool,
    /// Of an exchange that is over, whose answer still lies here.
    pub tail: Option<Tail>,
}

/// See the head of this file.
pub struct Exchange {
    /// The address of its connection, for who wakes it.
    pub token: u64,
    /// The fleet file as it was when the request arrived: its bounds and time-outs hold to the end of it. Engines are looked up in the
    /// shard's own, which knows those that came since.
    pub plan: Plan,
    pub route: Route,
    pub stage: Stage,
    /// `x-request-id`; legs append their attempt and phase.
    pub id: [u8; 36],
    pub arrived: Instant,
    pub deadline: Instant,
    /// Client fields that may pass to engines.
    pub forward: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    pub request: Option<Request>,

    pub retained: Option<Permit>,
    pub seat: Option<Permit>,
    pub phases: [Option<InPhase>; Phase::COUNT],
    /// Where it waits.
    pub place_in_line: Option<waits::Place>,
    pub prefill_load: Option<Reservation>,
    pub decode_load: Option<Reservation>,

    pub prompt_tokens: u64,
    /// The size that it was let in and placed by; what is learned of its length is learned under it.
    pub sized_tokens: u64,
    /// The size is an estimate: computed usage prefers the prefill answer's count.
    pub estimated: bool,
    /// The prompt's blocks.
    pub prefix: Prefix,
    /// What is remembered that the engine that reads the prompt holds of it.
    pub remembered_tokens: u64,
    /// Engines asked for a count in this request.
    pub counters_asked: Vec<EngineId>,

    /// The stream's head went out early, to keep the client's connection alive.
    pub head_sent: bool,
    pub attempt: u32,
    /// A pooled socket was stale in this request: later legs take new ones.
    pub fresh_sockets: bool,
    pub avoid: Avoid,
    pub placement: Option<Placement>,
    /// The epoch of the fleet in which it was placed.
    pub placed_in: u64,
    /// Where the legs of this attempt meet: they run side by side. `None` when they run one after the other, or there is one.
    pub room: Option<u64>,
    pub handoff: Handoff,
    /// The engine that holds KV of ours for another to fetch.
    pub producing: Option<EngineId>,

    /// Body of the prefill leg's answer.
    pub prefill_answer: Vec<u8>,
    /// Body of a whole-JSON answer of the other legs, or of an engine's refusal.
    pub collected: Vec<u8>,
    /// What an engine said when it refused the request, made safe.
    pub refusal_message: Option<String>,
    pub events: Option<EventStream>,
    pub relay: Relay,
    pub assembly: Option<Box<assemble::Assembly>>,

    pub marks: Marks,
    /// What the journal gets at the end; `None` without one.
    pub row: Option<Box<Row>>,
    pub end: Option<End>,
}

/// The KV transfer descriptor between the legs of one attempt. Used for one decode dispatch only.
#[derive(Debug, Default)]
pub struct Handoff {
    /// Raw JSON of `kv_transfer_params`; empty when there is none.
    pub params: Vec<u8>,
    pub made: Instant,
    pub cached_tokens: Option<u64>,
    /// The request that carries it is out: the consumer frees the producer's blocks, or their lease does.
    pub dispatched: bool,
}

impl Io {
    pub fn command(&mut self, slot: usize, command: LegCommand) {
        self.commands.push_back((slot, command));
    }

    /// Whether something was decided about `slot` that the runtime has not fetched yet.
    pub fn has_command(&self, slot: usize) -> bool {
        self.commands.iter().any(|(s, _)| *s == slot)
    }

    pub fn next_command(&mut self) -> Option<(usize, LegCommand)> {
        self.commands.pop_front()
    }

    /// Bounds the leg in `slot` from now on.
    pub fn bound_leg(&mut self, slot: usize, at: Instant) {
        self.timers.set(Timer::leg(slot), at);
    }

    /// Ends a leg's connection after its answer: back to the pool, or dropped.
    pub fn end_leg(&mut self, slot: usize, park: bool) {
        self.timers.clear(Timer::leg(slot));
        self.command(
            slot,
            if park {
                LegCommand::Park
            } else {
                LegCommand::Close
            },
        );
    }

    /// Ends a leg at once; one that the runtime has not opened yet is taken back.
    pub fn close_leg(&mut self, slot: usize) {
        self.timers.clear(Timer::leg(slot));
        self.commands
            .retain(|(s, command)| *s != slot || !matches!(command, LegCommand::Open { .. }));
        self.command(slot, LegCommand::Close);
    }
}

impl Exchange {
    pub fn new(
        plan: Plan,
        token: u64,
        route: Route,
        id: [u8; 36],
        now: Instant,
        deadline: Instant,
    ) -> Self {
        Exchange {
            token,
            plan,
            route,
            stage: Stage::Parse,
            id,
            arrived: now,
            deadline,
            forward: Vec::new(),
            body: Vec::new(),
            request: None,
            retained: None,
            seat: None,
            phases: [None, None],
            place_in_line: None,
            prefill_load: None,
            decode_load: None,
            prompt_tokens: 0,
            sized_tokens: 0,
            estimated: false,
            prefix: Prefix::default(),
            remembered_tokens: 0,
            counters_asked: Vec::new(),
            head_sent: false,
            attempt: 0,
            fresh_sockets: false,
            avoid: Avoid::default(),
            placement: None,
            placed_in: 0,
            room: None,
            handoff: Handoff::default(),
            producing: None,
            prefill_answer: Vec::new(),
            collected: Vec::new(),
            refusal_message: None,
            events: None,
            relay: Relay::default(),
            assembly: None,
            marks: Marks::default(),
            row: None,
            end: None,
        }
    }

    /// The checked request. Stages after `parse` run only with one.
    pub fn request(&self) -> &Request {
        self.request
            .as_ref()
            .expect("stages after parse have a checked request")
    }

    pub fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the client asked for a stream.
    pub fn streams(&self) -> bool {
        self.request.as_ref().is_some_and(|r| r.stream)
    }

    /// A leg's own id: `<id>-a<attempt>-<leg>`; a count carries the request's.
    pub fn leg_id(&self, kind: Leg) -> String {
        let mut id = String::with_capacity(self.id.len() + 16);
        // Made from hexadecimal digits and dashes.
        id.extend(self.id.iter().map(|b| char::from(*b)));
        if kind != Leg::Tokenize {
            // Writing to a string does not fail.
            let _ = write!(id, "-a{}-{}", self.attempt, kind.name());
        }
        id
    }

    /// The slot of a leg. The prefill leg has its own where it runs beside the decode leg.
    pub fn slot(&self, kind: Leg) -> usize {
        usize::from(kind == Leg::Prefill && self.room.is_some())
    }

    /// Starts a request to `engine` in its leg's slot: head and body in one buffer.
    pub fn open_leg(
        &mut self,
        cx: &mut Cx,
        kind: Leg,
        engine: EngineId,
        body: &[u8],
        fresh: bool,
        bound: Instant,
    ) {
        let request = cx.shard.leg_request(kind, engine, self, body);
        let connect = cx.now + self.plan.fleet.engine.connect_timeout;
        let slot = self.slot(kind);
        self.marks.leg_bound[slot] = bound;
        self.marks.leg_opened[slot] = cx.now;
        cx.io.bound_leg(slot, connect.min(bound));
        let fresh = fresh || self.fresh_sockets;
        cx.io.command(
            slot,
            LegCommand::Open {
                engine,
                kind,
                request,
                fresh,
            },
        );
    }
}
