//! One connection without sockets: the machine that runs on them, handed bytes in any cuts, with an engine that answers at once.
//!
//! Plays the runtime's part as `runtime::drive` does. Owns a shard, a clock that moves when told to, and a pool of one connection.

use std::sync::Arc;

use narwhal::base::time::Instant;
use narwhal::base::units::{EngineId, Leg, ShardId};
use narwhal::config::credentials::ApiKeys;
use narwhal::config::{self, Format, Snapshot};
use narwhal::metrics::histogram::ShardTimes;
use narwhal::metrics::ledger::ShardLedger;
use narwhal::metrics::standing::{Answer, Standing};
use narwhal::path::accept::{Connection, SLOTS};
use narwhal::path::leg::{LegCommand, LegFault};
use narwhal::shard::gate::Permit;
use narwhal::shard::{Shard, Shared};

use super::rows::{Then, When};

/// Limits that rows reach with few bytes. `roles` is `both`, or `pair` for two legs.
pub fn fleet_file(roles: &str, attempts: u32) -> String {
    let engine = |iid: &str, role: &str, host: u8| {
        let pin = role != "both";
        format!(
            "[[engines]]\niid = \"{iid}\"\nurl = \"http://10.0.0.{host}:8000\"\nrole = \"{role}\"\npin = {pin}\n"
        )
    };
    let (connector, engines) = match roles {
        "both" => ("none", engine("b0", "both", 1) + &engine("b1", "both", 2)),
        _ => (
            "nixl",
            engine("p0", "prefill", 1)
                + &engine("p1", "prefill", 2)
                + &engine("d0", "decode", 3)
                + &engine("d1", "decode", 4),
        ),
    };
    format!(
        r#"
        schema = "narwhal.fleet"
        schema_version = 2
        model = "stub-model"
        slo = {{ ttft_s = 2.0, tpot_s = 0.05 }}
        runtime = {{ max_header_bytes = 4096, max_headers = 32 }}
        [serving]
        admission = "open"
        max_connections = 4
        max_retained = 1
        max_request_bytes = 2048
        max_attempts = {attempts}
        retry_budget = 1000000
        retry_base_s = 0.01
        retry_cap_s = 0.01
        [engine]
        connector = "{connector}"
        {engines}"#
    )
}

/// What engines answer.
pub type Answers = Box<dyn FnMut(Leg, &[u8]) -> Reply>;

/// One answer of an engine, in the pieces that its reads bring.
pub struct Reply {
    pub pieces: Vec<Vec<u8>>,
    pub then: Then,
}

/// A leg's connection.
struct Line {
    kind: Leg,
    pieces: std::vec::IntoIter<Vec<u8>>,
    then: Then,
    over: bool,
}

pub struct Machine {
    pub shard: Shard,
    conn: Connection,
    now: Instant,
    pub answers: Answers,
    legs: [Option<Line>; SLOTS],
    /// An engine's connection waits to be used again.
    idle: bool,
    /// Everything that went to the client.
    pub got: Vec<u8>,
    /// Our side has ended.
    pub over: bool,
    /// Legs sent, by kind, and whether their connections went to the pool.
    pub legs_sent: Vec<Leg>,
    pub parked: Vec<(Leg, bool)>,
    held: Option<Permit>,
}

/// The hash of the key that opens a locked router, `strict-0123456789abcdef`.
const KEY_HASH: &str = "37350ca46b58e53296e8dcf5e8e36ac9b482512777ea39b85c71c529db678291";

impl Machine {
    pub fn new(fleet: &str, answers: Answers) -> Machine {
        Machine::behind(None, fleet, answers)
    }

    /// One whose clients need a key.
    pub fn locked(fleet: &str, answers: Answers) -> Machine {
        let keys = ApiKeys::parse("keys", KEY_HASH).expect("a hash");
        Machine::behind(Some(keys), fleet, answers)
    }

    fn behind(keys: Option<ApiKeys>, fleet: &str, answers: Answers) -> Machine {
        let loaded = config::parse("strict.toml", fleet, Format::Toml, &|_| None);
        let fleet = loaded.unwrap_or_else(|why| panic!("{why}")).fleet;
        let snapshot = Arc::new(Snapshot::new(1, fleet));
        let shared = Arc::new(Shared::new(&snapshot, 1).with_api_keys(keys));
        let ledger = Arc::new(ShardLedger::new());
        let times = Arc::new(ShardTimes::new());
        let mut shard = Shard::new(ShardId(0), snapshot, shared, ledger, times, 7);
        let now = Instant::from_nanos(1_000_000_000);
        let conn = Connection::new(&mut shard, now, 1, true);
        Machine {
            shard,
            conn,
            now,
            answers,
            legs: Default::default(),
            idle: false,
            got: Vec::new(),
            over: false,
            legs_sent: Vec::new(),
            parked: Vec::new(),
            held: None,
        }
    }

    /// A new connection; the old one's client is gone.
    pub fn reconnect(&mut self) {
        self.leave();
        self.conn = Connection::new(&mut self.shard, self.now, 1, true);
        self.legs = Default::default();
        self.idle = false;
        (self.got, self.over) = (Vec::new(), false);
        (self.legs_sent, self.parked) = (Vec::new(), Vec::new());
    }

    /// The client goes; whatever it held must be back.
    pub fn leave(&mut self) {
        if !self.conn.client_is_done() {
            self.conn.client_end(&mut self.shard, self.now);
        }
        self.pump();
        let mut turns = 0;
        while !self.conn.is_closed() {
            self.late();
            turns += 1;
            assert!(turns < 100, "it never closes: {:?}", self.conn.view());
        }
        self.release();
        let view = self.conn.view();
        assert!(view.exchange.is_none(), "{view:?}");
    }

    pub fn stand(&mut self, when: When) {
        let shared = Arc::clone(&self.shard.shared);
        self.release();
        let standing = if when == When::Standby {
            Standing::Standby
        } else {
            Standing::Serving
        };
        shared.standing.set(standing);
        for engine in 0..self.shard.snapshot.engines.len() {
            let line = shared.board.line(EngineId(engine as u16));
            line.set_live(when != When::Unserved);
        }
        if when == When::Full {
            self.held = shared.retained.acquire(0);
            assert!(self.held.is_some(), "room for the one that fills it");
        }
    }

    fn release(&mut self) {
        if let Some(permit) = self.held.take() {
            self.shard
                .shared
                .retained
                .release(0, permit, &mut Vec::new());
        }
    }

    /// The client sends, in pieces of at most `piece` bytes.
    pub fn send(&mut self, bytes: &[u8], piece: usize) {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.conn.client_is_done() {
                return;
            }
            assert!(
                self.conn.client_reads(),
                "it stops reading: {:?}",
                self.conn.view()
            );
            let n = piece.min(self.conn.client_read_bytes()).min(rest.len());
            self.conn
                .client_bytes(&mut self.shard, self.now, &rest[..n]);
            rest = &rest[n..];
            self.pump();
        }
    }

    /// The clock runs to what is due next.
    pub fn late(&mut self) {
        let due = self.conn.deadline();
        assert_ne!(due, Instant::FAR, "nothing is due: {:?}", self.conn.view());
        self.now = self.now.max(due);
        self.conn.timer(&mut self.shard, self.now);
        self.pump();
    }

    /// Whether an exchange is under way.
    pub fn is_busy(&self) -> bool {
        self.conn.view().exchange.is_some()
    }

    /// Does what is wanted until nothing more is.
    fn pump(&mut self) {
        let mut turns = 0;
        loop {
            turns += 1;
            assert!(
                turns < 100_000,
                "it never comes to rest: {:?}",
                self.conn.view()
            );
            let mut worked = false;
            while let Some((slot, command)) = self.conn.next_command(&self.shard) {
                self.command(slot, command);
                worked = true;
            }
            if !self.conn.client_is_done()
                && let Some((buf, from)) = self.conn.take_output(&self.shard, self.now)
            {
                assert!(!self.over, "output behind the end");
                self.got.extend_from_slice(&buf[from..]);
                self.conn.client_written(&mut self.shard, self.now, buf);
                worked = true;
            }
            for slot in 0..SLOTS {
                worked |= self.conn.leg_reads(slot) && self.leg_reads(slot);
            }
            if self.conn.wants_shutdown() {
                self.over = true;
                worked = true;
            }
            self.over |= self.conn.client_is_done();
            while self.shard.next_ask().is_some() {
                let answer = Answer::not_found();
                self.conn.control_answer(&mut self.shard, self.now, &answer);
                worked = true;
            }
            while self.shard.next_note().is_some() {}
            while self.shard.next_wake().is_some() {}
            if !worked {
                return;
            }
        }
    }

    fn command(&mut self, slot: usize, command: LegCommand) {
        match command {
            LegCommand::Open {
                kind,
                request,
                fresh,
                ..
            } => {
                // One that drains gives way.
                if let Some(line) = self.legs[slot].take() {
                    self.parked.push((line.kind, false));
                }
                let reused = std::mem::take(&mut self.idle) && !fresh;
                let reply = (self.answers)(kind, &request);
                self.legs_sent.push(kind);
                self.legs[slot] = Some(Line {
                    kind,
                    pieces: reply.pieces.into_iter(),
                    then: reply.then,
                    over: false,
                });
                self.shard.give_buffer(request);
                self.conn.leg_connected(slot);
                self.conn.leg_sent(&self.shard, self.now, slot, reused);
            }
            LegCommand::Close | LegCommand::Park => {
                if let Some(line) = self.legs[slot].take() {
                    let park = matches!(command, LegCommand::Park);
                    let unread = line.pieces.len() > 0;
                    // What waits unread on a parked socket is found when it is taken again.
                    self.idle = park && !unread && line.then == Then::Open;
                    self.parked.push((line.kind, self.idle));
                }
            }
        }
    }

    /// One read of a leg completes. False when nothing came.
    fn leg_reads(&mut self, slot: usize) -> bool {
        let Some(line) = self.legs[slot].as_mut() else {
            return false;
        };
        if let Some(piece) = line.pieces.next() {
            self.conn.leg_bytes(&mut self.shard, self.now, slot, &piece);
            return true;
        }
        if line.over || line.then == Then::Open {
            return false;
        }
        line.over = true;
        match line.then {
            Then::Close => self.conn.leg_eof(&mut self.shard, self.now, slot),
            _ => {
                let fault = LegFault::Broken;
                self.conn.leg_failed(&mut self.shard, self.now, slot, fault);
            }
        }
        true
    }
}
