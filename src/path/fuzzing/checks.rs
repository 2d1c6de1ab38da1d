//! What holds after every step: the books, the bounds, and that nothing waits for something that cannot come.

use super::world::World;
use crate::base::limits;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Leg};
use crate::metrics::ledger::Cell;
use crate::metrics::outcome::End;
use crate::path::accept::{Front, SLOTS};
use crate::path::leg::State;
use crate::path::timers::Timer;
use crate::shard::board::Phase;
use crate::shard::waits::Awaited;
use crate::wire::h1::head::{self, HeadLimits, RequestBody};
use crate::wire::splice::fuzzing::members;

impl World {
    pub fn check(&self) {
        self.check_books();
        self.check_bounds();
        self.check_waits();
    }

    /// offered = ends + in flight; what is held is what the one exchange holds.
    fn check_books(&self) {
        let counts = self.shard.ledger.snapshot();
        assert_eq!(counts.offered(), counts.ended() + counts.inflight());
        assert_eq!(counts.ended(), self.rows.count());
        let exchange = self.conn.exchange.as_deref();
        assert!(
            exchange.is_none_or(|x| !x.is_over()),
            "over, and still here"
        );
        let tail = self.conn.io.tail.is_some();
        assert!(!tail || exchange.is_none(), "one at a time");
        assert_eq!(counts.inflight(), u64::from(exchange.is_some() || tail));

        let shared = &self.shard.shared;
        let elsewhere =
            |line: Option<Awaited>| self.elsewhere.iter().filter(|(l, _)| *l == line).count();
        let (seats, retained) = (elsewhere(Some(Awaited::Seat)), elsewhere(None));
        let has_seat = exchange.is_some_and(|x| x.seat.is_some());
        let is_retained = exchange.is_some_and(|x| x.retained.is_some());
        let is_retained = is_retained || tail;
        assert_eq!(shared.seats.held(), seats as u64 + u64::from(has_seat));
        assert_eq!(
            shared.retained.held(),
            retained as u64 + u64::from(is_retained)
        );

        let waits = exchange.is_some_and(|x| x.place_in_line.is_some());
        assert_eq!(self.shard.lines().len(), usize::from(waits));
        for i in 0..shared.board.len() {
            for phase in [Phase::Prefill, Phase::Decode] {
                let engine = EngineId(i as u16);
                let Some(gate) = shared.phase(engine, phase) else {
                    continue;
                };
                let own = exchange.is_some_and(|x| x.is_in_phase(engine, phase));
                let others = elsewhere(Some(Awaited::Phase(engine, phase)));
                assert_eq!(gate.held(), others as u64 + u64::from(own));
            }
        }

        let on_board: u32 = (0..shared.board.len())
            .map(|i| shared.board.line(EngineId(i as u16)))
            .map(|line| line.requests(Phase::Prefill) + line.requests(Phase::Decode))
            .sum();
        let reserved = exchange.map_or(0, |x| {
            u32::from(x.prefill_load.is_some()) + u32::from(x.decode_load.is_some())
        });
        assert_eq!(on_board, reserved);
        let rooms = usize::from(exchange.is_some_and(|x| x.room.is_some()));
        assert_eq!(self.shard.rooms.live(), rooms);
    }

    fn check_bounds(&self) {
        let serving = &self.shard.snapshot.fleet.serving;
        let pending = self.conn.io.out.pending();
        // One read over the mark, and what was held before the first token.
        let most =
            limits::CLIENT_BUFFER_BYTES + 2 * (serving.max_response_bytes + limits::LEG_READ_BYTES);
        assert!(pending <= most, "{pending} bytes wait for the client");
        let ahead = self.conn.inbuf.len();
        let head = self.shard.snapshot.fleet.runtime.max_header_bytes;
        let most = limits::PIPELINE_BYTES_MAX.max(head) + limits::CLIENT_BODY_READ_BYTES;
        assert!(ahead <= most, "{ahead} bytes read ahead");
        if let Some(exchange) = self.conn.exchange.as_deref() {
            assert!(exchange.body.len() <= serving.max_request_bytes);
            let most = serving
                .max_response_bytes
                .max(limits::ENGINE_REFUSAL_BYTES_MAX);
            assert!(exchange.collected.len().max(exchange.prefill_answer.len()) <= most);
        }
    }

    fn check_waits(&self) {
        let conn = &self.conn;
        let set = |timer| conn.io.timers.at(timer) != Instant::FAR;
        for slot in 0..SLOTS {
            let leg = &conn.legs[slot];
            assert_eq!(leg.is_open(), self.legs[slot].is_some(), "slot {slot}");
            if let Some(ours) = &self.legs[slot] {
                assert_eq!(leg.engine, Some(ours.engine));
            }
            let bounded =
                set(Timer::leg(slot)) || conn.exchange.is_some() && leg.state != State::Draining;
            assert!(
                !leg.is_open() || bounded,
                "nothing ends the leg in slot {slot}"
            );
        }
        let at_work = conn
            .legs
            .iter()
            .any(|leg| leg.is_open() && leg.state != State::Draining);
        match conn.front {
            Front::Closed => {
                assert!(conn.exchange.is_none() && !at_work);
                assert!(conn.io.out.pending() == 0 || conn.client_is_done());
            }
            Front::Running if conn.exchange.is_some() => {
                assert!(set(Timer::Deadline));
                assert!(
                    at_work || set(Timer::Wait) || !self.shard.lines().is_empty(),
                    "the exchange waits for nothing"
                );
            }
            // The control thread was asked.
            Front::Running => assert!(!at_work),
            // A request for the control thread is no exchange; its body has one bound.
            Front::Body => {
                assert!(set(Timer::Client) && (conn.exchange.is_none() || set(Timer::Deadline)));
            }
            Front::Head | Front::Discard { .. } | Front::Linger => {
                assert!(conn.exchange.is_none() && !at_work);
                assert!(
                    set(Timer::Client) || set(Timer::Stall),
                    "nothing ends {:?}",
                    conn.front
                );
            }
        }
    }

    /// The client is gone and no deadline is left: nothing is held anywhere.
    pub fn check_rest(&mut self) {
        self.check();
        assert!(self.conn.is_closed(), "{:?}", self.conn.front);
        assert!(self.legs.iter().all(Option::is_none));
        assert_eq!(self.shard.ledger.snapshot().inflight(), 0);
        self.hold_permits(0);
        self.shard.end_leases(Instant::FAR);
        let shared = &self.shard.shared;
        assert_eq!((shared.seats.held(), shared.retained.held()), (0, 0));
        for i in 0..shared.board.len() {
            assert_eq!(
                shared.board.line(EngineId(i as u16)).outstanding_tokens(),
                0
            );
        }
        self.check_output();
        self.check_rows();
    }

    /// The journal has the ledger's ends.
    fn check_rows(&self) {
        let counts = self.shard.ledger.snapshot();
        for end in End::ALL {
            assert_eq!(self.rows.of(end), counts.end(end), "{end:?}");
        }
        let without_size = counts.ended() - self.rows.sized();
        assert_eq!(without_size, counts.cell(Cell::UnsizedOffered));
        assert_eq!(self.rows.slo_met(), counts.cell(Cell::SloMet));
    }

    /// An engine gets one well-formed request of ours, and nothing of the client's that it may not see.
    pub fn check_leg_request(&mut self, kind: Leg, engine: EngineId, request: &[u8]) {
        let limits = HeadLimits {
            bytes_max: 65_536,
            fields_max: 64,
        };
        let head = head::parse_request(request, &mut 0, &limits)
            .expect("our own head")
            .expect("whole");
        let body = &request[head.head_bytes..];
        assert_eq!(head.body, RequestBody::Length(body.len() as u64));
        let prefix = &self.shard.snapshot.engines[engine.index()].prefix;
        assert!(request[head.path.clone()].starts_with(prefix.as_bytes()));
        let fields: Vec<_> = head::fields(&request[..head.head_bytes]).collect();
        for stranger in ["authorization", "cookie", "expect", "transfer-encoding"] {
            assert!(
                head::field(request, stranger).is_none(),
                "{stranger} passed"
            );
        }
        let ids = fields.iter().filter(|(name, _)| *name == b"x-request-id");
        assert_eq!(ids.count(), 1);
        assert_ne!(head::field(request, "x-request-id"), Some(&b"mine"[..]));

        let members = members(body).expect("a JSON object");
        let one = |name: &str| {
            let mut all = members.iter().filter(|m| m.0 == name);
            let value = all.next().map(|m| m.1.as_str());
            assert!(
                all.next().is_none() || !OURS.contains(&name),
                "{name} twice"
            );
            value
        };
        let handoff = one("kv_transfer_params");
        assert_eq!(one("ec_transfer_params"), None);
        let exchange = self.conn.exchange.as_deref();
        let room = exchange.and_then(|x| x.room).map(|room| room.to_string());
        if kind != Leg::Tokenize {
            assert_eq!(one("bootstrap_room"), room.as_deref());
            assert_eq!(one("bootstrap_port").is_some(), room.is_some());
        }
        match kind {
            Leg::Tokenize => assert_eq!(handoff, None),
            Leg::Prefill => {
                let wanted = room.is_none().then_some("{\"do_remote_decode\":true}");
                assert_eq!(handoff, wanted);
                assert_eq!(one("max_tokens"), Some("1"));
                assert_eq!(one("stream"), Some("false"));
                for gone in ["stream_options", "min_tokens", "n", "max_completion_tokens"] {
                    assert_eq!(one(gone), None, "{gone}");
                }
            }
            Leg::Decode => {
                assert_eq!(one("stream"), Some("true"));
                if let Some(handoff) = handoff {
                    // The one that was made last, and only once. A spoiled prefill answer may have named another.
                    assert!(!self.handoff_spent, "a handoff was dispatched twice");
                    self.handoff_spent = true;
                    assert!(!handoff.contains("evil"));
                    assert!(handoff.contains("remote_engine_id"));
                }
            }
        }
    }
}

/// Members that we write.
const OURS: [&str; 9] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "max_tokens",
    "stream",
    "stream_options",
    "model",
    "rid",
    "bootstrap_room",
    "bootstrap_port",
];
