//! The clock, the connections and the engines. One connection a request; what a shard wants is done at once, a leg's request takes
//! [`HOP`] to its engine. Same trace, same policy: same records.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use narwhal::base::prng::Prng;
use narwhal::base::time::Instant;
use narwhal::base::units::{EngineId, Leg as Kind, Role, ShardId};
use narwhal::config::Snapshot;
use narwhal::metrics::histogram::ShardTimes;
use narwhal::metrics::ledger::{Cell, Counts, ShardLedger};
use narwhal::metrics::outcome::End;
use narwhal::path::accept::{Connection, SLOTS};
use narwhal::path::leg::LegCommand;
use narwhal::shard::{Shard, Shared};
use narwhal::stub::engine::{self, Engine};

use super::fleet::{Fleet, Policy};
use super::leg::Leg;
use super::measure::Record;
use super::traffic::{Request, Trace, bytes};

/// From the router to an engine.
const HOP: Duration = Duration::from_micros(100);
/// How often shards look around, as the runtime's do.
const HOUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Arrival(usize),
    /// A request reaches its engine.
    Ask(usize, usize, u32),
    /// An engine has something for a leg.
    Answer(usize, usize, u32),
    Timer(usize),
    Look(usize),
    House,
}

struct Conn {
    shard: usize,
    machine: Connection,
    legs: [Leg; SLOTS],
    /// Bytes of the request, and how many were read.
    upload: Vec<u8>,
    sent: usize,
    /// The last bytes of the answer so far.
    tail: Vec<u8>,
    wake_at: Instant,
}

struct World<'t> {
    now: Instant,
    agenda: BinaryHeap<Reverse<(Instant, u64, Wake)>>,
    entries: u64,
    requests: &'t [Request],
    snapshot: Arc<Snapshot>,
    shared: Arc<Shared>,
    shards: Vec<Shard>,
    engines: engine::World,
    conns: Vec<Option<Box<Conn>>>,
    open: usize,
    records: Vec<Record>,
    /// Which shard a client comes to.
    dice: Prng,
}

/// Plays `trace` against a router of `shards` shards with `policy`.
pub fn run(fleet: &Fleet, policy: &Policy, trace: &Trace, shards: usize, seed: u64) -> Vec<Record> {
    let mut world = World::new(fleet, policy, trace, shards, seed);
    while let Some(Reverse((at, _, wake))) = world.agenda.pop() {
        world.now = at;
        world.turn(wake);
    }
    world.rest()
}

impl<'t> World<'t> {
    fn new(fleet: &Fleet, policy: &Policy, trace: &'t Trace, shards: usize, seed: u64) -> Self {
        let snapshot = fleet.snapshot(policy);
        let shared = Arc::new(Shared::new(&snapshot, shards));
        let shard = |id: usize| {
            Shard::new(
                ShardId(id as u16),
                snapshot.clone(),
                shared.clone(),
                Arc::new(ShardLedger::new()),
                Arc::new(ShardTimes::new()),
                seed ^ (id as u64) << 32,
            )
        };
        let mut engines = engine::World::default();
        let setups = fleet.setups(seed).into_iter();
        engines.engines = setups.map(|s| Engine::new(s, Instant::ZERO)).collect();
        let mut world = World {
            now: Instant::ZERO,
            agenda: BinaryHeap::new(),
            entries: 0,
            requests: &trace.requests,
            shards: (0..shards).map(shard).collect(),
            snapshot,
            shared,
            engines,
            conns: Vec::with_capacity(trace.requests.len()),
            open: 0,
            records: Vec::with_capacity(trace.requests.len()),
            dice: Prng::new(seed ^ 0xd1ce),
        };
        if let Some(first) = trace.requests.first() {
            world.plan(first.at, Wake::Arrival(0));
            world.plan(first.at, Wake::House);
        }
        world
    }

    fn plan(&mut self, at: Instant, wake: Wake) {
        self.entries += 1;
        self.agenda.push(Reverse((at, self.entries, wake)));
    }

    fn turn(&mut self, wake: Wake) {
        match wake {
            Wake::Arrival(i) => {
                if let Some(next) = self.requests.get(i + 1) {
                    self.plan(next.at, Wake::Arrival(i + 1));
                }
                self.arrives(i);
            }
            Wake::House => {
                for shard in 0..self.shards.len() {
                    self.shards[shard].end_leases(self.now);
                    self.pass_on(shard);
                }
                if self.open > 0 || self.conns.len() < self.requests.len() {
                    self.plan(self.now + HOUSE, Wake::House);
                }
            }
            Wake::Ask(c, slot, number) => {
                let Some(conn) = self.conns[c].as_mut() else {
                    return;
                };
                let leg = &mut conn.legs[slot];
                if leg.open && leg.number == number {
                    leg.arrives(&mut self.engines, self.now);
                    self.answers(c, slot);
                    self.pump(c);
                }
            }
            Wake::Answer(c, slot, number) => {
                let conn = self.conns[c].as_ref();
                let live = |c: &Conn| c.legs[slot].open && c.legs[slot].number == number;
                if conn.is_some_and(|conn| live(conn)) {
                    self.answers(c, slot);
                    self.pump(c);
                }
            }
            Wake::Timer(c) => {
                let Some(conn) = self.conns[c].as_mut() else {
                    return;
                };
                if conn.wake_at != self.now {
                    return;
                }
                conn.wake_at = Instant::FAR;
                if conn.machine.deadline() <= self.now {
                    let shard = &mut self.shards[conn.shard];
                    conn.machine.timer(shard, self.now);
                }
                self.pump(c);
            }
            Wake::Look(c) => {
                let Some(conn) = self.conns[c].as_mut() else {
                    return;
                };
                let shard = &mut self.shards[conn.shard];
                conn.machine.look(shard, self.now);
                self.pump(c);
            }
        }
    }

    fn arrives(&mut self, i: usize) {
        let request = &self.requests[i];
        let shard = self.dice.below(self.shards.len() as u64) as usize;
        let machine = Connection::new(&mut self.shards[shard], self.now, i as u64 + 1, true);
        self.records.push(Record {
            at: request.at,
            prompt: request.prompt_tokens(),
            crowd: request.crowd,
            cached: 0,
            output: request.output,
            status: 0,
            first: None,
            end: None,
            projected_s: 0.0,
            engine: usize::MAX,
        });
        self.conns.push(Some(Box::new(Conn {
            shard,
            machine,
            legs: Default::default(),
            upload: bytes(request),
            sent: 0,
            tail: Vec::new(),
            wake_at: Instant::FAR,
        })));
        self.open += 1;
        self.pump(i);
    }

    /// Its prompt goes to an engine: what its placement counted on, seconds from its arrival to its first token.
    fn projects(&mut self, c: usize, engine: EngineId) {
        let record = &mut self.records[c];
        let waited = self.now.since(record.at).as_secs_f64();
        let backlog = self.shared.board.line(engine).load(self.now).backlog_s;
        record.engine = engine.index();
        record.projected_s = waited + backlog + self.shared.handoff_s(self.now);
    }

    fn answers(&mut self, c: usize, slot: usize) {
        let conn = self.conns[c].as_mut().expect("looked at just now");
        let leg = &mut conn.legs[slot];
        if let Some(at) = leg.answers(&self.engines, self.now) {
            let wake = Wake::Answer(c, slot, leg.number);
            self.plan(at, wake);
        }
    }

    /// Does all that a connection wants.
    fn pump(&mut self, c: usize) {
        loop {
            let mut moved = self.commands(c) | self.writes(c) | self.reads(c);
            for slot in 0..SLOTS {
                moved |= self.reads_leg(c, slot);
            }
            if !moved {
                break;
            }
        }
        let conn = self.conns[c].as_mut().expect("whoever pumps is there");
        let shard = &mut self.shards[conn.shard];
        let over = conn.machine.wants_shutdown() || conn.machine.client_is_done();
        if over {
            conn.machine.client_end(shard, self.now);
        }
        let (shard, closed) = (conn.shard, conn.machine.is_closed());
        if closed {
            self.conns[c] = None;
            self.open -= 1;
        } else {
            let at = conn.machine.deadline();
            if at < conn.wake_at {
                conn.wake_at = at.max(self.now);
                let at = conn.wake_at;
                self.plan(at, Wake::Timer(c));
            }
        }
        self.pass_on(shard);
    }

    fn commands(&mut self, c: usize) -> bool {
        let mut moved = false;
        loop {
            let conn = self.conns[c].as_mut().expect("whoever pumps is there");
            let shard = &mut self.shards[conn.shard];
            let Some((slot, command)) = conn.machine.next_command(shard) else {
                return moved;
            };
            moved = true;
            let leg = &mut conn.legs[slot];
            match command {
                LegCommand::Close | LegCommand::Park => leg.close(),
                LegCommand::Open {
                    engine,
                    kind,
                    request,
                    ..
                } => {
                    leg.opens(engine.index(), request);
                    conn.machine.leg_connected(slot);
                    conn.machine.leg_sent(shard, self.now, slot, false);
                    let wake = Wake::Ask(c, slot, leg.number);
                    self.plan(self.now + HOP, wake);
                    if kind == Kind::Prefill {
                        self.projects(c, engine);
                    }
                }
            }
        }
    }

    /// What goes to the client.
    fn writes(&mut self, c: usize) -> bool {
        let conn = self.conns[c].as_mut().expect("whoever pumps is there");
        let shard = &mut self.shards[conn.shard];
        let Some((buf, from)) = conn.machine.take_output(shard, self.now) else {
            return false;
        };
        let record = &mut self.records[c];
        let bytes = &buf[from..];
        if record.status == 0 {
            let status = bytes.get(9..12).and_then(|s| std::str::from_utf8(s).ok());
            record.status = status.and_then(|s| s.parse().ok()).expect("a status");
            // The head comes with the first token, not before.
            record.first = (record.status == 200).then_some(self.now);
        }
        conn.tail.extend_from_slice(bytes);
        let spare = conn.tail.len().saturating_sub(DONE.len());
        conn.tail.drain(..spare);
        if record.status == 200 && conn.tail == DONE {
            record.end = Some(self.now);
        }
        conn.machine.client_written(shard, self.now, buf);
        true
    }

    /// What comes from the client.
    fn reads(&mut self, c: usize) -> bool {
        let conn = self.conns[c].as_mut().expect("whoever pumps is there");
        let left = conn.upload.len() - conn.sent;
        if left == 0 || !conn.machine.client_reads() {
            return false;
        }
        let n = left.min(conn.machine.client_read_bytes());
        let shard = &mut self.shards[conn.shard];
        let bytes = &conn.upload[conn.sent..conn.sent + n];
        conn.machine.client_bytes(shard, self.now, bytes);
        conn.sent += n;
        if conn.sent == conn.upload.len() {
            (conn.upload, conn.sent) = (Vec::new(), 0);
        }
        true
    }

    fn reads_leg(&mut self, c: usize, slot: usize) -> bool {
        let conn = self.conns[c].as_mut().expect("whoever pumps is there");
        if !conn.machine.leg_reads(slot) {
            return false;
        }
        let Some(bytes) = conn.legs[slot].answer.pop_front() else {
            return false;
        };
        let engine = conn.legs[slot].engine;
        if self.snapshot.engines[engine].role == Role::Prefill {
            self.records[c].cached += cached_tokens(&bytes);
        }
        let shard = &mut self.shards[conn.shard];
        conn.machine.leg_bytes(shard, self.now, slot, &bytes);
        true
    }

    /// Hands on what one shard has for another.
    fn pass_on(&mut self, shard: usize) {
        while self.shards[shard].next_note().is_some() {}
        while let Some((to, line)) = self.shards[shard].next_wake() {
            for token in self.shards[to].fetch_grants(line) {
                self.plan(self.now, Wake::Look(token as usize - 1));
            }
        }
    }

    /// Everybody has gone: nothing is held anywhere, and the router counted what clients saw.
    fn rest(self) -> Vec<Record> {
        assert_eq!(self.open, 0, "requests that never end");
        let count = |of: &dyn Fn(&Counts) -> u64| {
            let shards = self.shards.iter().map(|shard| shard.ledger.snapshot());
            shards.map(|counts| of(&counts)).sum::<u64>()
        };
        let seen = |of: fn(&Record) -> bool| self.records.iter().filter(|r| of(r)).count() as u64;
        assert_eq!(count(&Counts::ended), self.records.len() as u64, "ends");
        assert_eq!(count(&|c| c.end(End::Served)), seen(|r| r.end.is_some()));
        // The router's targets are a little tighter than the clients'.
        let met = count(&|c| c.cell(Cell::SloMet));
        assert!(met <= seen(Record::is_good), "within both targets");
        let gates = [self.shared.seats.held(), self.shared.retained.held()];
        assert_eq!(gates, [0, 0], "permits");
        for engine in &self.snapshot.engines {
            let left = self.shared.board.line(engine.id).outstanding_tokens();
            assert_eq!(left, 0, "tokens on the board");
        }
        self.records
    }
}

/// How a whole stream ends.
const DONE: &[u8] = b"data: [DONE]\n\n\r\n0\r\n\r\n";

/// What a prefill engine says it knew of the prompt.
fn cached_tokens(answer: &[u8]) -> u64 {
    let name = b"\"cached_tokens\":";
    let at = answer.windows(name.len()).position(|w| w == name);
    let digits = at.map_or(&answer[..0], |at| &answer[at + name.len()..]);
    let digits = digits.iter().take_while(|b| b.is_ascii_digit());
    digits.fold(0, |n, digit| n * 10 + u64::from(digit - b'0'))
}
