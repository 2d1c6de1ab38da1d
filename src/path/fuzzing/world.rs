//! What stands around one connection: a shard, a client's socket, engines' sockets and a clock, all in memory. Plays the runtime's part:
//! fetches commands, carries bytes, arms the one timer. Reads are honoured as the runtime would: once asked for, they may
//! complete later, whatever was decided meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::fleets::snapshots;
use super::peers;
use super::rows::{Book, Rows};
use super::tape::Tape;
use crate::base::limits;
use crate::base::time::Instant;
use crate::base::units::{EngineId, ShardId};
use crate::metrics::histogram::ShardTimes;
use crate::metrics::ledger::ShardLedger;
use crate::metrics::standing::{self, Standing};
use crate::path::accept::{Connection, Front, SLOTS};
use crate::path::leg::{LegCommand, LegFault};
use crate::shard::board;
use crate::shard::gate::{Gate, Permit};
use crate::shard::journal::Journal;
use crate::shard::waits::Awaited;
use crate::shard::{Shard, Shared};

pub struct World {
    pub shard: Shard,
    pub conn: Connection,
    pub now: Instant,
    pub client: Client,
    pub legs: [Option<Leg>; SLOTS],
    /// Permits that other connections hold; without a line, of retention.
    pub elsewhere: Vec<(Option<Awaited>, Permit)>,
    /// Handoffs made, by number; the last one may be dispatched once.
    pub handoffs: u32,
    pub handoff_spent: bool,
    asked: u32,
    /// What the journal got.
    pub rows: Arc<Rows>,
    digest: u64,
}

#[derive(Default)]
pub struct Client {
    /// What it has yet to send, and what it has sent.
    upload: Vec<u8>,
    pub sent: Vec<u8>,
    pub received: Vec<u8>,
    /// The write in flight, and how far it has come.
    pub writing: Option<(Vec<u8>, usize)>,
    reading: Option<usize>,
    pub gone: bool,
    /// When it last took a byte.
    pub took: Instant,
    /// The machine ended our side.
    pub shutdown: bool,
    /// Output was lost: what the client has may stop anywhere.
    pub torn: bool,
}

pub struct Leg {
    pub engine: EngineId,
    phase: Phase,
    reused: bool,
    pub answer: peers::Answer,
    at: usize,
    reading: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Dialing,
    Sending,
    Answering,
}

impl World {
    pub fn new(fleet: usize) -> Self {
        let snapshot = snapshots()[fleet].clone();
        let shared = Arc::new(Shared::new(&snapshot, 1));
        let mut shard = Shard::new(
            ShardId(0),
            snapshot,
            shared,
            Arc::new(ShardLedger::new()),
            Arc::new(ShardTimes::new()),
            7,
        );
        let rows = Arc::<Rows>::default();
        shard.journal = Some(Journal::new(Book(rows.clone())));
        let now = Instant::from_nanos(1_000_000_000);
        let conn = Connection::new(&mut shard, now, 1, true);
        World {
            shard,
            conn,
            now,
            client: Client::default(),
            legs: Default::default(),
            elsewhere: Vec::new(),
            handoffs: 0,
            handoff_spent: true,
            asked: 0,
            rows,
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    pub fn is_closed(&self) -> bool {
        self.conn.is_closed()
    }

    /// Something is still to come of what the client has asked.
    pub fn is_busy(&self) -> bool {
        self.conn.exchange.is_some() || self.client.writing.is_some()
    }

    pub fn trace(&self) -> u64 {
        self.digest
    }

    fn note(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    // ── the runtime's part ──

    /// Does what is wanted, in the runtime's order.
    pub fn pump(&mut self, tape: &mut Tape) {
        let mut turns = 0;
        self.tell_of_grants();
        while let Some((slot, command)) = self.conn.next_command(&self.shard) {
            turns += 1;
            assert!(turns < 100, "commands without end");
            self.command(slot, command, tape);
            self.tell_of_grants();
        }
        if self.client.writing.is_none()
            && !self.conn.client_is_done()
            && let Some((buf, from)) = self.conn.take_output(&self.shard, self.now)
        {
            assert!(from < buf.len(), "an empty write");
            self.client.took = self.now;
            self.note(&buf[from..]);
            self.client.writing = Some((buf, from));
        }
        for (slot, leg) in self.legs.iter_mut().enumerate() {
            let wanted = self.conn.leg_reads(slot);
            if let Some(leg) = leg {
                leg.reading |= wanted;
            } else {
                assert!(!wanted, "a read of a leg that is not there");
            }
        }
        if self.client.reading.is_none() && self.conn.client_reads() {
            self.client.reading = Some(self.conn.client_read_bytes());
        }
        if self.conn.wants_shutdown() {
            assert!(!self.client.shutdown && self.client.writing.is_none());
            self.client.shutdown = true;
        }
        if self.conn.client_is_done() {
            self.client.torn |= self.client.writing.is_some() || self.conn.io.out.pending() > 0;
            self.client.writing = None;
            self.client.reading = None;
        }
        while self.shard.next_ask().is_some() {
            self.asked += 1;
        }
        while self.shard.next_note().is_some() {}
    }

    fn tell_of_grants(&mut self) {
        while let Some((to, line)) = self.shard.next_wake() {
            assert_eq!(to, 0);
            self.look(line);
        }
    }

    /// The connection is told to look at what its shard was granted in a line.
    fn look(&mut self, line: Awaited) {
        if !self.shard.fetch_grants(line).is_empty() {
            self.note(b"look");
            self.conn.look(&mut self.shard, self.now);
        }
    }

    /// What a shard does by itself now and then.
    pub fn look_around(&mut self) {
        for line in self.shard.lines() {
            self.look(line);
            if self.shard.shared.held().is_some() {
                self.conn.look(&mut self.shard, self.now);
            }
        }
    }

    fn command(&mut self, slot: usize, command: LegCommand, tape: &mut Tape) {
        match command {
            LegCommand::Open {
                engine,
                kind,
                request,
                fresh,
            } => {
                assert!(!self.conn.client_is_done(), "a leg for nobody");
                self.note(b"open");
                self.note(&request);
                self.check_leg_request(kind, engine, &request);
                let answer = peers::answer(tape, kind, &request, &mut self.handoffs);
                if kind == crate::base::units::Leg::Prefill {
                    self.handoff_spent = false;
                }
                let reused = !fresh && tape.below(4) == 3;
                self.legs[slot] = Some(Leg {
                    engine,
                    phase: if reused {
                        Phase::Sending
                    } else {
                        Phase::Dialing
                    },
                    reused,
                    answer,
                    at: 0,
                    reading: false,
                });
                self.shard.give_buffer(request);
                if tape.below(32) == 31 {
                    // Its name has no address.
                    self.legs[slot] = None;
                    self.conn
                        .leg_failed(&mut self.shard, self.now, slot, LegFault::Connect);
                }
            }
            LegCommand::Close => {
                self.note(b"close");
                self.legs[slot] = None;
            }
            LegCommand::Park => {
                self.note(b"park");
                let leg = self.legs[slot].take();
                // What was spoiled may have ended anywhere.
                if let Some(leg) = leg.filter(|leg| !leg.answer.wild) {
                    assert!(
                        leg.at == leg.answer.bytes.len() && !leg.answer.closes,
                        "a socket is reused only after the answer's last byte"
                    );
                }
            }
        }
    }

    // ── the client ──

    pub fn upload(&mut self, bytes: &[u8]) {
        self.client.upload.extend_from_slice(bytes);
    }

    /// One read of up to `most` bytes completes.
    pub fn deliver(&mut self, most: usize) {
        if self.client.gone || self.client.upload.is_empty() {
            return;
        }
        let Some(room) = self.client.reading.take() else {
            return;
        };
        let n = most.min(room).min(self.client.upload.len());
        let piece: Vec<u8> = self.client.upload.drain(..n).collect();
        if !matches!(self.conn.front, Front::Linger | Front::Closed) {
            self.client.sent.extend_from_slice(&piece);
        }
        self.note(b"read");
        self.conn.client_bytes(&mut self.shard, self.now, &piece);
    }

    /// The client takes up to `most` bytes of what is written to it.
    pub fn client_takes(&mut self, most: usize) {
        if self.client.gone {
            return;
        }
        let Some((buf, from)) = self.client.writing.take() else {
            return;
        };
        let n = most.min(buf.len() - from);
        self.client.received.extend_from_slice(&buf[from..from + n]);
        self.client.took = self.now;
        if from + n < buf.len() {
            self.conn.client_progress(&self.shard, self.now);
            self.client.writing = Some((buf, from + n));
        } else {
            self.note(b"written");
            self.conn.client_written(&mut self.shard, self.now, buf);
        }
    }

    /// The client goes: seen by the read when one waits, and by the write otherwise.
    pub fn client_leaves(&mut self) {
        self.client.gone = true;
        self.client.torn = true;
        self.note(b"gone");
        if self.client.reading.take().is_some() {
            self.conn.client_end(&mut self.shard, self.now);
        } else if self.client.writing.take().is_some() {
            self.conn.client_broken(&mut self.shard, self.now);
        }
    }

    // ── engines ──

    /// The leg's connection gets one step further: connected, sent, or up to `most` bytes of its answer.
    pub fn leg_step(&mut self, slot: usize, most: usize) {
        let Some(phase) = self.legs[slot].as_ref().map(|leg| leg.phase) else {
            return;
        };
        if phase != Phase::Answering {
            self.note(b"step");
        }
        let Some(leg) = self.legs[slot].as_mut() else {
            return;
        };
        match phase {
            Phase::Dialing => {
                leg.phase = Phase::Sending;
                if self.conn.leg_may_go(&mut self.shard, self.now, slot) {
                    self.conn.leg_connected(slot);
                }
            }
            Phase::Sending => {
                leg.phase = Phase::Answering;
                let reused = leg.reused;
                self.conn.leg_sent(&self.shard, self.now, slot, reused);
            }
            Phase::Answering if leg.at == leg.answer.bytes.len() => {
                if leg.answer.closes {
                    self.leg_eof(slot);
                }
            }
            Phase::Answering if leg.reading => {
                leg.reading = false;
                let n = most
                    .min(limits::LEG_READ_BYTES)
                    .min(leg.answer.bytes.len() - leg.at);
                let piece = leg.answer.bytes[leg.at..leg.at + n].to_vec();
                leg.at += n;
                self.leg_bytes(slot, &piece);
            }
            Phase::Answering => {}
        }
    }

    pub fn leg_raw(&mut self, slot: usize, bytes: &[u8]) {
        if let Some(leg) = self.legs[slot].as_mut()
            && leg.phase == Phase::Answering
            && leg.reading
            && !bytes.is_empty()
        {
            leg.reading = false;
            leg.answer.wild = true;
            self.leg_bytes(slot, bytes);
        }
    }

    fn leg_bytes(&mut self, slot: usize, bytes: &[u8]) {
        self.note(b"leg");
        self.conn.leg_bytes(&mut self.shard, self.now, slot, bytes);
    }

    pub fn leg_eof(&mut self, slot: usize) {
        if let Some(leg) = self.legs[slot].as_mut()
            && leg.phase == Phase::Answering
            && leg.reading
        {
            leg.reading = false;
            leg.answer.wild = true;
            self.note(b"eof");
            self.conn.leg_eof(&mut self.shard, self.now, slot);
        }
    }

    pub fn leg_breaks(&mut self, slot: usize) {
        let Some(leg) = self.legs[slot].as_mut() else {
            return;
        };
        let fault = match leg.phase {
            Phase::Dialing => LegFault::Connect,
            Phase::Answering if leg.reading => LegFault::Broken,
            // A send that fails is told by the read after it.
            _ => return,
        };
        leg.reading = false;
        leg.answer.wild = true;
        self.note(b"broken");
        self.conn.leg_failed(&mut self.shard, self.now, slot, fault);
    }

    pub fn flip_engine(&mut self, engine: usize, live: bool) {
        let engines = self.shard.snapshot.engines.len();
        let line = self
            .shard
            .shared
            .board
            .line(EngineId((engine % engines) as u16));
        line.set_live(live);
    }

    // ── the rest of the router ──

    pub fn hold_permits(&mut self, choice: usize) {
        let shared = self.shard.shared.clone();
        let gate = |line: Option<Awaited>| match line {
            Some(line) => shared.gate(line),
            None => Some(&shared.retained),
        };
        if choice == 0 {
            for (line, permit) in std::mem::take(&mut self.elsewhere) {
                let mut wakes = Vec::new();
                if let Some(gate) = gate(line) {
                    gate.release(0, permit, &mut wakes);
                }
                if let (Some(line), false) = (line, wakes.is_empty()) {
                    self.look(line);
                }
            }
            return;
        }
        let line = match choice {
            1 => Some(Awaited::Seat),
            2 => None,
            _ => Some(Awaited::Phase(EngineId(0), board::Phase::Decode)),
        };
        let permit = gate(line).and_then(|gate: &Gate| gate.acquire(0));
        self.elsewhere.extend(permit.map(|permit| (line, permit)));
    }

    pub fn stand(&mut self, to: Standing) {
        self.shard.shared.standing.set(to);
    }

    /// The control thread answers what was asked, if anything was.
    pub fn control_answers(&mut self) {
        if self.asked > 0 {
            self.asked -= 1;
            let answer = standing::Answer::not_found();
            self.conn.control_answer(&mut self.shard, self.now, &answer);
        }
    }

    pub fn close_when_idle(&mut self) {
        if !self.conn.client_is_done() {
            self.conn.close_when_idle(&mut self.shard, self.now);
        }
    }

    // ── the clock ──

    /// Whether anything was due at all.
    pub fn run_to_deadline(&mut self) -> bool {
        let due = self.conn.deadline();
        if due == Instant::FAR {
            return false;
        }
        self.now = self.now.max(due);
        self.timer();
        true
    }

    pub fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        if self.conn.deadline() <= self.now {
            self.timer();
        }
    }

    fn timer(&mut self) {
        self.note(b"timer");
        self.conn.timer(&mut self.shard, self.now);
        assert!(
            self.conn.deadline() > self.now,
            "a timer that is never served"
        );
        let closed = self.conn.client_is_done();
        let waits = self.client.writing.is_some() && !self.client.gone;
        if closed && waits {
            // At its deadline a request leaves a client that does not read one second.
            let patience = self.now.since(self.client.took);
            assert!(
                patience >= Duration::from_secs(1),
                "a client that reads was cut after {patience:?}"
            );
        }
    }
}
