//! The shadow ledger: what must hold after every step, over all shards, and what must be left at the end: nothing.
//!
//! It keeps sums of what connections hold, and compares them with what the router's own counters say. A step changes one connection, so
//! a step costs the same however many there are.

use std::sync::Arc;
use std::time::Duration;

use narwhal::base::limits;
use narwhal::base::time::Instant;
use narwhal::base::units::Leg;
use narwhal::metrics::ledger::Cell;
use narwhal::metrics::outcome::{End, Outcome};
use narwhal::path::accept::Front;
use narwhal::path::leg::State;
use narwhal::path::peek::View;
use narwhal::path::timers::Timer;
use narwhal::shard::Shared;
use narwhal::shard::board::Phase;
use narwhal::shard::waits::Awaited;

use crate::answers::{Story, judge};
use crate::world::{World, engine_id};

/// Sums over all connections of all shards.
#[derive(Debug)]
pub struct Books {
    pub seats: u64,
    pub retained: u64,
    prefills: Vec<u32>,
    decodes: Vec<u32>,
    /// Places in the phases of each engine.
    pub phases: Vec<[u64; Phase::COUNT]>,
}

impl Books {
    pub fn new(shared: &Arc<Shared>) -> Self {
        let engines = shared.board.len();
        Books {
            seats: 0,
            retained: 0,
            prefills: vec![0; engines],
            decodes: vec![0; engines],
            phases: vec![[0; Phase::COUNT]; engines],
        }
    }

    fn enter(&mut self, view: &View) {
        self.retained += u64::from(view.tail);
        if let Some(held) = view.exchange {
            self.seats += u64::from(held.seat);
            self.retained += u64::from(held.retained);
            held.prefill.inspect(|e| self.prefills[e.index()] += 1);
            held.decode.inspect(|e| self.decodes[e.index()] += 1);
            for (phase, engine) in held.phases.into_iter().enumerate() {
                engine.inspect(|e| self.phases[e.index()][phase] += 1);
            }
        }
    }

    fn strike(&mut self, view: &View) {
        self.retained -= u64::from(view.tail);
        if let Some(held) = view.exchange {
            self.seats -= u64::from(held.seat);
            self.retained -= u64::from(held.retained);
            held.prefill.inspect(|e| self.prefills[e.index()] -= 1);
            held.decode.inspect(|e| self.decodes[e.index()] -= 1);
            for (phase, engine) in held.phases.into_iter().enumerate() {
                engine.inspect(|e| self.phases[e.index()][phase] -= 1);
            }
        }
    }
}

impl World {
    /// After every step of a connection.
    pub fn check_turn(&mut self, c: usize) {
        let conn = &mut self.conns[c];
        let shard = conn.shard;
        let view = conn.machine.view();
        let before = std::mem::replace(&mut conn.view, view);
        self.books.strike(&before);
        self.books.enter(&self.conns[c].view);
        self.check_ends(c, shard);
        self.check_permits();
        let after = self.conns[c].view.clone();
        crate::queue::check(self, &before, &after);
        self.check_placed(&before, &after);
        self.check_fleet(shard, &before, &after);
        self.check_waits(c);
        self.check_bounds(c);
        if self.trace.steps.is_multiple_of(32) {
            self.check_engines();
            self.check_leavers();
        }
    }

    /// R-HTTP-5: who left 100 ms ago has no request any more. A shard that does not run is excused for that long. In the runtime's
    /// order a client's read comes behind those of its legs, and where turns come late as well, so does the client's.
    fn check_leavers(&self) {
        if self.plan.runtime_order && self.plan.lag > Duration::from_micros(5) {
            return;
        }
        for conn in &self.conns {
            let (Some(link), Front::Running) = (conn.link, conn.view.front) else {
                continue;
            };
            let Some(at) = self.net.ended_at(link.up) else {
                continue;
            };
            let at = at.max(self.shards[conn.shard].stalled_until);
            let late = self.now.since(at + self.plan.lag * 64);
            assert!(
                late < Duration::from_millis(100),
                "a client left {late:?} ago"
            );
        }
    }

    /// offered = ends + in flight, and each end belongs to the connection that stepped.
    fn check_ends(&mut self, c: usize, shard: usize) {
        let sim = &mut self.shards[shard];
        let counts = sim.ledger.snapshot();
        assert!(counts.balanced(), "offered is not ends plus in flight");
        let ended = counts.ended() - sim.counts.ended();
        if ended > 0 {
            self.conns[c].ends_at_once |= ended > 1;
            for end in End::ALL {
                for _ in sim.counts.end(end)..counts.end(end) {
                    self.conns[c].ends.push(end);
                    self.cover.ends[end.index()] += 1;
                    self.trace.say(|| format!("{end:?}"));
                }
            }
        }
        sim.counts = counts;
        let running =
            |c: &crate::conn::Conn| c.shard == shard && (c.view.exchange.is_some() || c.view.tail);
        let live = self.conns.iter().filter(|conn| running(conn)).count();
        assert_eq!(sim.counts.inflight(), live as u64, "in flight");
        let over = self.conns[c].view.exchange.is_some_and(|x| x.over);
        assert!(!over, "over, and still here");
    }

    /// Seats, retention and the board are what live exchanges hold, and never over their limits.
    fn check_permits(&mut self) {
        let shared = &self.shared;
        assert_eq!(shared.retained.held(), self.books.retained, "retention");
        assert!(shared.retained.held() <= shared.retained.limit());
        self.cover.most_seats = self.cover.most_seats.max(self.books.seats);
        for i in 0..shared.board.len() {
            let line = shared.board.line(engine_id(i));
            let on_board = (line.requests(Phase::Prefill), line.requests(Phase::Decode));
            let held = (self.books.prefills[i], self.books.decodes[i]);
            assert_eq!(on_board, held, "reservations on engine {i}");
        }
    }

    /// Nobody waits for what cannot come.
    fn check_waits(&mut self, c: usize) {
        let conn = &self.conns[c];
        let view = &conn.view;
        for (slot, leg) in view.legs.iter().enumerate() {
            let open = leg.state != State::Idle;
            assert_eq!(open, conn.legs[slot].engine.is_some(), "slot {slot}");
            if !open {
                continue;
            }
            assert_eq!(leg.engine, conn.legs[slot].engine);
            let bounded = view.is_set(Timer::leg(slot))
                || view.exchange.is_some() && leg.state != State::Draining;
            assert!(bounded, "nothing ends the leg in slot {slot}");
            if leg.state == State::Draining {
                continue;
            }
            let held = view.exchange.expect("a leg at work has its exchange");
            let needs_seat = leg.kind != Some(Leg::Tokenize);
            assert!(held.seat || !needs_seat, "a leg without a seat");
            self.cover.waits += u64::from(leg.state == State::Waiting);
        }
        let at_work = view.leg_at_work();
        match view.front {
            Front::Closed => assert!(view.exchange.is_none() && !at_work),
            Front::Running if view.exchange.is_some() => {
                assert!(view.is_set(Timer::Deadline));
                let line = view.exchange.and_then(|held| held.place);
                let seated = !matches!(line, Some((Awaited::Seat, _))) || view.is_set(Timer::Wait);
                assert!(seated, "nothing ends the wait for a seat");
                let waits = view.is_set(Timer::Wait) || line.is_some();
                assert!(at_work || waits, "the exchange waits for nothing");
            }
            Front::Running => assert!(view.is_set(Timer::Client), "control never answers"),
            // A request for the control thread is no exchange; its body has one bound.
            Front::Body => {
                let bounded = view.exchange.is_none() || view.is_set(Timer::Deadline);
                assert!(view.is_set(Timer::Client) && bounded);
            }
            Front::Head | Front::Discard { .. } | Front::Linger => {
                assert!(view.exchange.is_none() && !at_work);
                let bounded = view.is_set(Timer::Client) || view.is_set(Timer::Stall);
                assert!(bounded, "nothing ends {:?}", view.front);
            }
        }
        assert!(
            conn.is_writing() || view.pending == 0 || conn.link.is_none(),
            "output lies about"
        );
    }

    fn check_bounds(&self, c: usize) {
        let view = &self.conns[c].view;
        let fleet = &self.plan.snapshot.fleet;
        let response = fleet.serving.max_response_bytes;
        // One read over the mark, or one assembled answer, and what was held before the first token.
        let most = limits::CLIENT_BUFFER_BYTES
            + 2 * limits::LEG_READ_BYTES
            + 4_096
            + response.min(1 << 17);
        assert!(
            view.pending <= most,
            "{} bytes wait for the client",
            view.pending
        );
        let ahead = limits::PIPELINE_BYTES_MAX.max(fleet.runtime.max_header_bytes);
        assert!(view.ahead <= ahead + limits::CLIENT_BODY_READ_BYTES);
        if let Some(held) = view.exchange {
            assert!(held.body <= fleet.serving.max_request_bytes);
            assert!(held.kept <= response.max(limits::ENGINE_REFUSAL_BYTES_MAX));
        }
    }

    /// On the engines: no more streams run for this router than it has seats out, and no handoff was used twice.
    pub fn check_engines(&self) {
        let resident = self
            .hosts
            .iter()
            .filter(|host| host.generates() && !self.net.is_deaf(host.link.down));
        let drains = |c: &crate::conn::Conn| {
            let legs = c.view.legs.iter();
            legs.filter(|leg| leg.state == State::Draining).count()
        };
        let draining: usize = self.conns.iter().map(drains).sum();
        let count = resident.count();
        assert!(
            count as u64 <= self.books.seats + draining as u64,
            "{count} streams on the engines, {} seats are out",
            self.books.seats
        );
        let handoffs = self.engines.handoffs.counts;
        assert_eq!(
            (handoffs.again, handoffs.astray, handoffs.no_block),
            (0, 0, 0)
        );
        // A handoff's age counts from when its answer is read: a shard that does not run meanwhile cannot know. Nor can it know that
        // an engine stands still that has been asked.
        let bound = self.plan.snapshot.fleet.engine.kv_lease.is_some();
        let held_up = self.plan.chaos.stalls + self.plan.chaos.freezes > 0;
        let on_time = handoffs.late == 0 || held_up;
        assert!(on_time || !bound, "a handoff was used after its lease");
        let deaths = self.plan.chaos.deaths + self.plan.chaos.outages;
        assert!(deaths > 0 || handoffs.no_engine == 0);
    }

    /// A handoff rides on one decode leg, and nothing of the client's own on any.
    pub fn check_leg_request(&mut self, _c: usize, kind: Leg, request: &[u8]) {
        let text = String::from_utf8_lossy(request);
        assert!(!text.contains("evil"), "a client's own passed: {text}");
        let [name, room] = ["\"remote_request_id\":\"", "\"bootstrap_room\":"];
        let handed = text.find(name).map(|at| at + name.len());
        assert!(
            handed.is_none() || kind == Leg::Decode,
            "a handoff on another leg"
        );
        // A room is a handoff that the legs make among themselves.
        let met = text.find(room).filter(|_| kind == Leg::Decode);
        let Some(at) = handed.or(met.map(|at| at + room.len())) else {
            return;
        };
        let rest = &text.as_bytes()[at..];
        let ends = |b: &u8| matches!(b, b'"' | b',' | b'}');
        let id = rest.split(ends).next().unwrap_or(rest);
        assert!(
            self.handoffs.insert(id.to_vec()),
            "a handoff was dispatched twice"
        );
    }

    /// A socket goes to the pool only after the last byte of its answer.
    pub fn check_park(&self, c: usize, slot: usize) {
        let Some(link) = self.conns[c].legs[slot].link else {
            return;
        };
        let host = self.host_of(link).expect("an engine is at the other end");
        let quiet = host.has_answered() || self.net.is_deaf(link.up);
        assert!(quiet, "a socket is pooled in the middle of an answer");
    }

    /// Everybody has left and nobody wants to wake up: nothing is held anywhere, and what clients got is right.
    pub fn check_rest(&mut self) {
        for c in 0..self.conns.len() {
            assert!(
                self.conns[c].closed,
                "conn {c} never ends: {:?}",
                self.conns[c].view
            );
        }
        for shard in 0..self.shards.len() {
            let sim = &mut self.shards[shard];
            sim.shard.end_leases(Instant::FAR);
            let counts = sim.ledger.snapshot();
            assert_eq!(counts.inflight(), 0);
            let gauges = [
                Cell::StreamsActive,
                Cell::LegsOpen,
                Cell::Queued,
                Cell::PrefillWaiting,
                Cell::DecodeWaiting,
            ];
            for gauge in gauges {
                assert_eq!(counts.cell(gauge), 0, "{}", gauge.name());
            }
            assert_eq!(sim.shard.rooms.live(), 0);
            assert!(
                sim.held.iter().all(|held| *held == 0),
                "engine connections are held"
            );
        }
        let shared = &self.shared;
        assert_eq!((shared.seats.held(), shared.retained.held()), (0, 0));
        let phase = |i| [Phase::Prefill, Phase::Decode].map(|p| shared.phase(engine_id(i), p));
        let gates = (0..shared.board.len()).flat_map(phase).flatten();
        for gate in gates.chain([&shared.seats]) {
            assert_eq!((gate.held(), gate.waiting()), (0, 0));
        }
        for i in 0..shared.board.len() {
            let left = shared.board.line(engine_id(i)).outstanding_tokens();
            assert_eq!(left, 0, "tokens on engine {i}");
        }
        self.check_engines();
        self.check_clients();
        self.check_control();
    }

    fn check_clients(&mut self) {
        let mut seen = 0;
        for client in &self.clients {
            let conn = &self.conns[client.conn];
            let polite = !client.rude && client.gone;
            seen += judge(&Story {
                asked: &client.asked,
                answers: &client.answers,
                ends: &conn.ends,
                ends_at_once: conn.ends_at_once,
                polite,
            });
        }
        let counted: u64 = self
            .shards
            .iter()
            .map(|sim| sim.counts.outcome(Outcome::Served))
            .sum();
        assert!(seen <= counted, "{seen} served answers, {counted} counted");
        self.cover.served_whole = seen;
    }
}
