//! The connection machine with one engine behind it, all in memory: what a client gets for what an engine sends, in which pieces ever.
//!
//! Plays the runtime's part without a clock: every read that is asked for completes at once. Invariant: after each exchange everything
//! that it held is back, and the books balance.

use std::sync::Arc;

use narwhal::base::time::Instant;
use narwhal::base::units::ShardId;
use narwhal::config::topology::Snapshot;
use narwhal::config::{self, Format};
use narwhal::metrics::histogram::ShardTimes;
use narwhal::metrics::ledger::{Cell, ShardLedger};
use narwhal::path::accept::Connection;
use narwhal::path::leg::LegCommand;
use narwhal::shard::{Shard, Shared};

pub struct Machine {
    shard: Shard,
    ledger: Arc<ShardLedger>,
    now: Instant,
    connections: u64,
}

/// What the client got.
pub struct Answer {
    pub status: u16,
    pub head: String,
    /// Without framing.
    pub body: Vec<u8>,
    /// Ids that were counted.
    pub tokens: u64,
}

/// One engine for both legs, prompts estimated: one leg a request, and one attempt.
const FLEET: &str = r#"{"schema":"narwhal.fleet","schema_version":2,"model":"stub-model",
    "engines":[{"iid":"e0","url":"http://10.0.0.1:8000","role":"both"}],"slo":{"ttft_s":10,"tpot_s":1},
    "serving":{"admission":"open","max_attempts":1},"engine":{"tokenize":false,"connector":"none"},
    "recovery":{"eject_after":1000000}}"#;

impl Machine {
    pub fn new() -> Machine {
        let loaded = config::parse("fleet.json", FLEET, Format::Json, &|_| None);
        let fleet = loaded.unwrap_or_else(|why| panic!("{why}")).fleet;
        let snapshot = Arc::new(Snapshot::new(1, fleet));
        let shared = Arc::new(Shared::new(&snapshot, 1));
        let ledger = Arc::new(ShardLedger::new());
        let times = Arc::new(ShardTimes::new());
        let shard = Shard::new(ShardId(0), snapshot, shared, ledger.clone(), times, 7);
        Machine {
            shard,
            ledger,
            now: Instant::from_nanos(1_000_000_000),
            connections: 0,
        }
    }

    /// One request on a connection of its own; the engine's answer comes in these pieces and ends with `ends`.
    pub fn ask<'a>(
        &mut self,
        request: &[u8],
        pieces: impl IntoIterator<Item = &'a [u8]>,
        ends: bool,
    ) -> Answer {
        let before = self.ledger.peek(Cell::DecodeTokensObserved);
        self.connections += 1;
        let mut conn = Connection::new(&mut self.shard, self.now, self.connections, true);
        let mut received = Vec::new();
        assert!(conn.client_reads(), "a new connection is read");
        conn.client_bytes(&mut self.shard, self.now, request);
        let mut leg = false;
        self.pump(&mut conn, &mut received, &mut leg);
        if leg {
            conn.leg_connected(0);
            conn.leg_sent(&self.shard, self.now, 0, false);
        }
        for piece in pieces {
            if !leg {
                break;
            }
            assert!(
                conn.leg_reads(0),
                "the client takes all: the engine is read"
            );
            conn.leg_bytes(&mut self.shard, self.now, 0, piece);
            self.pump(&mut conn, &mut received, &mut leg);
        }
        if leg && ends {
            conn.leg_eof(&mut self.shard, self.now, 0);
            self.pump(&mut conn, &mut received, &mut leg);
        }
        assert!(conn.view().exchange.is_none(), "no end");
        conn.client_end(&mut self.shard, self.now);
        self.pump(&mut conn, &mut received, &mut leg);
        if leg {
            // It was only to be kept.
            conn.leg_eof(&mut self.shard, self.now, 0);
            self.pump(&mut conn, &mut received, &mut leg);
        }
        assert!(conn.is_closed(), "a connection that stays");
        self.check_rest();
        let (status, head, body) = parse(&received);
        Answer {
            status,
            head,
            body,
            tokens: self.ledger.peek(Cell::DecodeTokensObserved) - before,
        }
    }

    /// Does what is wanted.
    fn pump(&mut self, conn: &mut Connection, received: &mut Vec<u8>, leg: &mut bool) {
        while let Some((slot, command)) = conn.next_command(&self.shard) {
            assert_eq!(slot, 0, "one leg");
            match command {
                LegCommand::Open { request, .. } => {
                    self.shard.give_buffer(request);
                    *leg = true;
                }
                LegCommand::Close | LegCommand::Park => *leg = false,
            }
        }
        if let Some((buf, from)) = conn.take_output(&self.shard, self.now) {
            received.extend_from_slice(&buf[from..]);
            conn.client_written(&mut self.shard, self.now, buf);
        }
        let _ = conn.wants_shutdown();
    }

    fn check_rest(&self) {
        for gauge in Cell::ALL.iter().filter(|cell| cell.is_gauge()) {
            assert_eq!(self.ledger.peek(*gauge), 0, "{gauge:?}");
        }
        assert_eq!(self.ledger.peek_inflight(), 0);
    }
}

/// Status, head and body of the one answer.
fn parse(wire: &[u8]) -> (u16, String, Vec<u8>) {
    let end = wire.windows(4).position(|w| w == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {}", wire.escape_ascii()));
    let head = String::from_utf8_lossy(&wire[..end]).to_lowercase();
    let mut rest = &wire[end + 4..];
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.expect("a status");
    if !head.contains("transfer-encoding: chunked") {
        let length = head
            .lines()
            .find_map(|l| l.strip_prefix("content-length: "));
        assert_eq!(length, Some(&*rest.len().to_string()), "{head}");
        return (status, head, rest.to_vec());
    }
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n").expect("a size");
        let size = std::str::from_utf8(&rest[..end]).expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a size");
        body.extend_from_slice(&rest[end + 2..][..size]);
        assert_eq!(&rest[end + 2 + size..][..2], b"\r\n");
        rest = &rest[end + 2 + size + 2..];
        if size == 0 {
            assert!(rest.is_empty(), "more behind the answer");
            return (status, head, body);
        }
    }
}
