//! All that one core owns, and the memory that shards share.
//!
//! A [`Shard`] is handed to every stage. It is not `Send`-shared: one thread owns it. What shards share is in [`Shared`]: the board, the
//! gates, the retry credits, the standing, what was learned and the engines' addresses, all atomics, and the read-only snapshot. No I/O,
//! no clock.

pub mod addresses;

pub mod board;

mod books;

pub mod budget;

pub mod connections;

pub mod counters;

pub mod gate;

pub mod journal;

pub mod learned;

pub mod memory;

pub mod next;

pub mod orphans;

pub mod prefix;

pub mod rooms;

pub mod slots;

mod sync;

pub mod shared;

pub mod waits;

pub mod ward;

#[cfg(test)]
mod gate_tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::base::limits;
use crate::base::prng::Prng;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Leg, ShardId};
use crate::config::checked;
use crate::config::topology::Snapshot;
use crate::fleet::pick::{Candidate, Rank};
use crate::fleet::price;
use crate::metrics::histogram::ShardTimes;
use crate::metrics::ledger::{Cell, ShardLedger};
use crate::metrics::standing::{self, HealthView};
use crate::path::exchange::Exchange;
use crate::wire::h1::encode;
use crate::wire::h1::head::Method;
use board::Reservation;
use counters::Counter;
use memory::Memory;
use orphans::Orphans;
use prefix::Prefixes;
use rooms::Rooms;
pub use shared::Shared;
use waits::Waits;

/// A shard's own copy of a snapshot, which its exchanges share: on its own memory node, and nobody else counts who holds it.
pub type Plan = Arc<Snapshot>;

/// One core's state.
pub struct Shard {
    pub id: ShardId,
    /// Of now; exchanges keep that of when they arrived.
    pub snapshot: Plan,
    pub shared: Arc<Shared>,
    pub ledger: Arc<ShardLedger>,
    pub times: Arc<ShardTimes>,
    pub prng: Prng,
    /// How late this shard's loop was of late, as the runtime saw it.
    pub loop_delay: Duration,
    /// The `date` field, refreshed by the runtime once a second.
    pub date: [u8; 29],
    pub rooms: Rooms,
    pub memory: Memory,
    pub journal: Option<journal::Journal>,
    /// The clock, for how long a stage of our own takes; what happens when is told with each event.
    pub clock: fn() -> Instant,
    /// By engine.
    fleet: Vec<Candidate>,
    /// Each engine has a profile, so that prompts have prices.
    is_priced: bool,
    /// The most that the cache of one engine holds.
    kv_tokens_max: u64,
    waits: Waits,
    buffers: Vec<Vec<u8>>,
    orphans: Orphans,
    counters: Vec<Counter>,
    turn: u64,
    asks: VecDeque<ControlRequest>,
    notes: VecDeque<Note>,
}

/// A request that the control thread answers.
#[derive(Clone, Debug)]
pub struct ControlRequest {
    /// The connection that asks.
    pub token: u64,
    pub method: Method,
    pub path: String,
    /// The token it came with.
    pub bearer: Option<Vec<u8>>,
    pub loopback: bool,
    /// A page in a browser asks.
    pub from_page: bool,
    /// Of a POST.
    pub body: Vec<u8>,
}

/// Something worth one line in the log, for the control thread to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The engine has no `/tokenize`: its prompts are estimated from now on.
    TokenizeMissing(EngineId),
    /// No TLS with the engine: why, in words that may be its own.
    TlsFailed { engine: EngineId, why: String },
}

/// Requests to the control thread that may wait to be fetched by the runtime.
const ASKS_MAX: usize = 64;
/// Buffers kept for the next request body or leg.
const BUFFERS_MAX: usize = 64;
impl Shard {
    pub fn new(
        id: ShardId,
        snapshot: Arc<Snapshot>,
        shared: Arc<Shared>,
        ledger: Arc<ShardLedger>,
        times: Arc<ShardTimes>,
        seed: u64,
    ) -> Self {
        let engines = snapshot.engines.len();
        Shard {
            id,
            fleet: next::candidates(&snapshot),
            is_priced: snapshot.is_profiled(),
            kv_tokens_max: next::kv_tokens_max(&snapshot),
            snapshot: next::own(&snapshot),
            shared,
            ledger,
            times,
            prng: Prng::new(seed),
            loop_delay: Duration::ZERO,
            date: encode::http_date(0),
            rooms: Rooms::new(id),
            memory: Memory::new(engines),
            journal: None,
            clock: || Instant::ZERO,
            waits: Waits::default(),
            buffers: Vec::new(),
            orphans: Orphans::default(),
            counters: vec![Counter::default(); engines],
            turn: 0,
            asks: VecDeque::new(),
            notes: VecDeque::new(),
        }
    }

    // ── engines ──

    /// Reads the board anew: what [`Shard::fleet`] hands out from now on.
    pub fn look(&mut self, now: Instant) {
        let penalty_s = self.snapshot.fleet.recovery.health.probation_penalty;
        let penalty_s = penalty_s.as_secs_f64();
        for candidate in &mut self.fleet {
            let line = self.shared.board.line(candidate.id);
            // Its place may be another's already, whom this shard does not know yet.
            let is_here = self.snapshot.engines[candidate.id.index()].is_here();
            candidate.available = is_here && line.available();
            candidate.outstanding_tokens = line.outstanding_tokens();
            candidate.load = line.load(now);
            candidate.correction = line.correction();
            candidate.cached_tokens = 0;
            candidate.remembered_tokens = 0;
            candidate.penalty_s = if line.is_on_probation() {
                penalty_s
            } else {
                0.0
            };
        }
    }

    /// The fleet as placement sees it, since the last look.
    pub fn fleet(&self) -> &[Candidate] {
        &self.fleet
    }

    /// What the last look saw, as if `reservation` were not there.
    pub fn leave_out(&mut self, reservation: &Reservation) {
        let seen = &mut self.fleet[reservation.engine.index()];
        reservation.leave_out(&mut seen.load, &mut seen.outstanding_tokens);
    }

    /// How engines are ranked for the next placement.
    pub fn rank(&mut self, ask: price::Ask) -> Rank {
        match self.snapshot.fleet.serving.placement {
            checked::Placement::Price if self.is_priced => Rank::Price(ask),
            checked::Placement::RoundRobin => {
                self.turn += 1;
                Rank::RoundRobin(self.turn - 1)
            }
            checked::Placement::Least | checked::Placement::Price => Rank::LeastTokens,
        }
    }

    /// Whether this shard is too far behind to promise anything: its loop's delay alone is a quarter of the target.
    pub fn is_saturated(&self) -> bool {
        self.loop_delay >= self.snapshot.fleet.slo.ttft / 4
    }

    pub fn any_available(&self) -> bool {
        let mut engines = self.snapshot.present();
        engines.any(|e| self.shared.board.line(e.id).available())
    }

    /// Whether prompts have prices: each engine has a profile.
    pub fn is_priced(&self) -> bool {
        self.is_priced
    }

    /// The most that the cache of one engine holds, as far as is known.
    pub fn kv_tokens_max(&self) -> u64 {
        self.kv_tokens_max
    }

    /// Who lately read which prompts; `None` where nothing is priced.
    pub fn prefixes(&self) -> Option<&Prefixes> {
        self.shared.prefixes().filter(|_| self.is_priced)
    }

    /// Head and body of a leg, as they go on the wire. No client field passes but the forwarded ones.
    pub fn leg_request(
        &mut self,
        kind: Leg,
        engine: EngineId,
        exchange: &Exchange,
        body: &[u8],
    ) -> Vec<u8> {
        let mut out = self.take_buffer();
        let engine = &self.snapshot.engines[engine.index()];
        let mut path = String::with_capacity(engine.prefix.len() + 24);
        path.push_str(&engine.prefix);
        path.push_str(match kind {
            Leg::Tokenize => "/tokenize",
            Leg::Prefill | Leg::Decode => exchange.route.path(),
        });
        let id = exchange.leg_id(kind);
        let key = self.snapshot.fleet.engine.api_key.as_ref();
        let bearer = key.map(|key| format!("Bearer {}", key.expose()));
        let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(8);
        fields.push(("content-type", b"application/json"));
        fields.push(("accept-encoding", b"identity"));
        fields.push(("x-request-id", id.as_bytes()));
        if let Some(bearer) = &bearer {
            fields.push(("authorization", bearer.as_bytes()));
        }
        for (name, value) in &exchange.forward {
            fields.push((name, value));
        }
        encode::request_head(
            &mut out,
            "POST",
            &path,
            &engine.authority,
            &fields,
            Some(body.len()),
        );
        out.extend_from_slice(body);
        out
    }

    /// A handoff made at `made` will not be fetched: its blocks stay on the producer until their lease ends, where it is known.
    pub fn orphaned(&mut self, producer: EngineId, tokens: u64, made: Instant) {
        self.count(Cell::OrphanedHandoffs);
        if let Some(lease) = self.snapshot.fleet.engine.kv_lease {
            let board = &self.shared.board;
            self.orphans.add(board, producer, tokens, made + lease);
        }
    }

    /// Forgets orphans whose lease has ended.
    pub fn end_leases(&mut self, now: Instant) {
        self.orphans.end_leases(&self.shared.board, now);
    }

    // ── what the router says of itself ──

    pub fn health(&self) -> HealthView<'static> {
        let one_leg = self.snapshot.fleet.engine.dialect == checked::Dialect::Openai;
        let engines = self.snapshot.present().map(|engine| {
            (
                engine.role,
                engine.pin,
                self.shared.board.line(engine.id).into(),
            )
        });
        HealthView {
            standing: self.shared.standing.standing(),
            why: self.shared.why(),
            fleet: standing::Fleet::look(engines, one_leg),
            epoch: None,
            holder: None,
        }
    }

    /// False when too many wait already.
    pub fn ask_control(&mut self, request: ControlRequest) -> bool {
        let room = self.asks.len() < ASKS_MAX;
        if room {
            self.asks.push_back(request);
        }
        room
    }

    /// For the runtime to pass on.
    pub fn next_ask(&mut self) -> Option<ControlRequest> {
        self.asks.pop_front()
    }

    /// For the runtime to pass on.
    pub fn next_note(&mut self) -> Option<Note> {
        self.notes.pop_front()
    }

    pub fn note(&mut self, note: Note) {
        if self.notes.len() < ASKS_MAX {
            self.notes.push_back(note);
        }
    }

    // ── buffers ──

    /// An empty buffer, with what capacity its last user left.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    pub fn give_buffer(&mut self, mut buf: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX && buf.capacity() <= limits::BUFFER_KEEP_BYTES {
            buf.clear();
            self.buffers.push(buf);
        }
    }
}
