//! What a connection's own work costs, without sockets: `cargo bench --bench exchange`. One connection of one shard, fed in memory: the
//! bytes of a client, two legs' answers, and everything it writes taken away. Nanoseconds per unit, the best of several rounds.
//!
//! `exchange CASE UNITS` does so many units and nothing else, for whoever counts its instructions (`perf/instructions`). With `journal`
//! behind it each request leaves a row.

use std::cell::Cell;
use std::sync::Arc;
use std::time;

use narwhal::base::time::Instant;
use narwhal::base::units::{Leg, ShardId};
use narwhal::config::topology::Snapshot;
use narwhal::config::{self, Format};
use narwhal::metrics::histogram::ShardTimes;
use narwhal::metrics::journal::{Row, Sink};
use narwhal::metrics::ledger::ShardLedger;
use narwhal::path::accept::Connection;
use narwhal::path::leg::LegCommand;
use narwhal::shard::journal::Journal;
use narwhal::shard::{Shard, Shared};

const FLEET: &str = r#"
schema = "narwhal.fleet"
schema_version = 2
model = "tiny"
slo = { ttft_s = 2.0, tpot_s = 0.05 }
[serving]
admission = "open"
max_connections = SEATS
[[engines]]
iid = "p"
url = "http://10.0.0.1:8000"
role = "prefill"
pin = true
[[engines]]
iid = "d"
url = "http://10.0.0.2:8000"
role = "decode"
pin = true
"#;

/// One case: what the client asks, and how the engine writes its events.
struct Case {
    name: &'static str,
    what: &'static str,
    unit: &'static str,
    seats: usize,
    stream: bool,
    events_per_read: usize,
    /// Units that one request makes.
    units: u64,
}

const EVENTS: u64 = 64;
const CASES: [Case; 4] = [
    Case {
        name: "relay",
        what: "one event a read, relayed, ids cut; requests of 64 events and two legs included",
        unit: "event",
        seats: 64,
        stream: true,
        events_per_read: 1,
        units: EVENTS,
    },
    Case {
        name: "relay8",
        what: "eight events a read",
        unit: "event",
        seats: 64,
        stream: true,
        events_per_read: 8,
        units: EVENTS,
    },
    Case {
        name: "assemble",
        what: "one event a read, 64 assembled into an answer",
        unit: "answer",
        seats: 64,
        stream: false,
        events_per_read: 1,
        units: 1,
    },
    Case {
        name: "refuse",
        what: "429 before the body of 1 KiB",
        unit: "request",
        seats: 0,
        stream: true,
        events_per_read: 1,
        units: 1,
    },
];

const NOW: Instant = Instant::from_nanos(1_000_000_000);
const ROUNDS: usize = 7;
const REQUESTS: u64 = 400;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [case, units, journal @ ..] if !case.starts_with('-') => {
            let case = CASES.iter().find(|c| c.name == *case);
            let case = case.expect("one of the cases' names");
            let units: u64 = units.parse().expect("a count of units");
            let mut world = World::new(case);
            if matches!(journal, [word] if word == "journal") {
                let last = Last(Cell::new(Row::default()));
                world.shard.journal = Some(Journal::new(last));
            }
            for _ in 0..units.div_ceil(case.units) {
                world.request();
            }
        }
        _ => {
            // `cargo test` runs benches too, without this flag: then once each is enough.
            let measured = args.iter().any(|arg| arg == "--bench");
            CASES.iter().for_each(|case| measure(case, measured));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn measure(case: &Case, measured: bool) {
    let mut world = World::new(case);
    let (rounds, requests) = if measured { (ROUNDS, REQUESTS) } else { (1, 2) };
    let round = |world: &mut World| {
        let begun = time::Instant::now();
        (0..requests).for_each(|_| world.request());
        begun.elapsed().as_secs_f64() * 1e9 / (requests * case.units) as f64
    };
    let best = (0..rounds)
        .map(|_| round(&mut world))
        .fold(f64::MAX, f64::min);
    if measured {
        println!("{best:8.1} ns/{}  {}: {}", case.unit, case.name, case.what);
    }
}

/// A journal that keeps one row, as a queue would.
struct Last(Cell<Row>);

impl Sink for Last {
    fn put(&self, row: &Row) -> bool {
        self.0.set(*row);
        true
    }
}

/// A connection and what the other sides say to it.
struct World {
    shard: Shard,
    conn: Connection,
    upload: Vec<u8>,
    prefill: Vec<u8>,
    /// The decode leg's answer, read by read.
    decode: Vec<Vec<u8>>,
    refuses: bool,
    written: u64,
}

impl World {
    fn new(case: &Case) -> World {
        let text = FLEET.replace("SEATS", &case.seats.max(1).to_string());
        let loaded = config::parse("bench.toml", &text, Format::Toml, &|_| None);
        let fleet = loaded.unwrap_or_else(|why| panic!("{why}")).fleet;
        let snapshot = Arc::new(Snapshot::new(1, fleet));
        let shared = Arc::new(Shared::new(&snapshot, 1));
        let refuses = case.seats == 0;
        if refuses {
            // Somebody else holds all there is.
            while shared.retained.acquire(0).is_some() {}
        }
        let mut shard = Shard::new(
            ShardId(0),
            snapshot,
            shared,
            Arc::new(ShardLedger::new()),
            Arc::new(ShardTimes::new()),
            7,
        );
        let conn = Connection::new(&mut shard, NOW, 1, true);
        World {
            conn,
            shard,
            upload: upload(case.stream),
            prefill: prefill(),
            decode: decode(case.events_per_read),
            refuses,
            written: 0,
        }
    }

    /// One request and its answer.
    fn request(&mut self) {
        let before = self.written;
        self.conn.client_bytes(&mut self.shard, NOW, &self.upload);
        self.turn();
        assert!(self.written > before, "it was answered");
        assert!(self.conn.view().exchange.is_none(), "the answer is whole");
    }

    /// Until there is nothing to do.
    fn turn(&mut self) {
        loop {
            self.write();
            let Some((slot, command)) = self.conn.next_command(&self.shard) else {
                return;
            };
            let LegCommand::Open { kind, request, .. } = command else {
                continue;
            };
            assert!(!self.refuses, "a refused request has no leg");
            self.shard.give_buffer(request);
            self.conn.leg_connected(slot);
            self.conn.leg_sent(&self.shard, NOW, slot, true);
            if kind == Leg::Prefill {
                let Self { conn, shard, .. } = self;
                conn.leg_bytes(shard, NOW, slot, &self.prefill);
                continue;
            }
            for i in 0..self.decode.len() {
                assert!(self.conn.leg_reads(slot));
                let Self { conn, shard, .. } = self;
                conn.leg_bytes(shard, NOW, slot, &self.decode[i]);
                self.write();
            }
        }
    }

    /// Takes what is to be written.
    fn write(&mut self) {
        while let Some((buf, from)) = self.conn.take_output(&self.shard, NOW) {
            self.written += (buf.len() - from) as u64;
            self.conn.client_written(&mut self.shard, NOW, buf);
        }
    }
}

/// A prompt of token ids, so that nobody has to count them.
fn upload(stream: bool) -> Vec<u8> {
    let ids: Vec<String> = (1000..1180).map(|id| id.to_string()).collect();
    let body = format!(
        r#"{{"model":"tiny","prompt":[{}],"max_tokens":{EVENTS},"stream":{stream}}}"#,
        ids.join(",")
    );
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:8000\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat()
}

fn prefill() -> Vec<u8> {
    let body = r#"{"id":"cmpl-1-a1-prefill","object":"text_completion","created":1764486000,"model":"tiny","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":[11],"prompt_token_ids":null}],"usage":{"prompt_tokens":180,"total_tokens":181,"completion_tokens":1,"prompt_tokens_details":null},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2,3,4,5,6,7,8,9,10,11,12],"remote_engine_id":"6d2c9a6e","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1}}"#;
    let head = format!(
        "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 07:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: {}\r\ncontent-type: application/json\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Events as vLLM 0.32.0 writes them: one chunk each, several chunks a read.
fn decode(events_per_read: usize) -> Vec<Vec<u8>> {
    let head = "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 07:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut reads = vec![head.as_bytes().to_vec()];
    let words = [
        " the", " quick", " brown", " fox", " jumps", ",", " over\\n", " it",
    ];
    let chunks: Vec<String> = (0..EVENTS)
        .map(|n| {
            let last = n + 1 == EVENTS;
            let finish = if last { "\"length\"" } else { "null" };
            let event = format!(
                r#"data: {{"id":"cmpl-1f2e3d4c-a1-decode","object":"text_completion","created":1764486000,"model":"tiny","choices":[{{"index":0,"text":"{}","logprobs":null,"finish_reason":{finish},"stop_reason":null,"token_ids":[{}],"prompt_token_ids":null}}],"usage":null}}"#,
                words[n as usize % words.len()],
                1000 + 37 * n,
            );
            format!("{:x}\r\n{event}\n\n\r\n", event.len() + 2)
        })
        .collect();
    let group = |chunks: &[String]| chunks.concat().into_bytes();
    reads.extend(chunks.chunks(events_per_read).map(group));
    let done = "data: [DONE]\n\n";
    let end = format!("{:x}\r\n{done}\r\n0\r\n\r\n", done.len());
    if let Some(last) = reads.last_mut() {
        last.extend_from_slice(end.as_bytes());
    }
    reads
}
