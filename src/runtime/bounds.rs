//! The most memory that clients and engines can make a router hold: a table by class, made of the limits that bound it. Pure.
//!
//! A row is a number of things times the most that one of them can hold, and the sum is a ceiling: no traffic takes the process over it. It
//! is no forecast, as nobody holds the largest of everything at once. What grows piece by piece counts twice, because a `Vec` doubles.
//! What the kernel keeps in socket buffers is not the process's memory and is not here. Every row is held against a
//! running router by `tests/hostile` and `scripts/bounds`.

use std::fmt;

use crate::base::limits;
use crate::config::checked::{Dialect, Fleet};
use crate::shard::prefix;

/// One class of what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub class: Class,
    /// How many there can be, and the bytes of one.
    pub count: u64,
    pub each: u64,
}

/// In the order in which a request meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The program, its allocator, the control thread, what all shards share.
    Process,
    /// Rings, free buffers, histograms, the leg that is being made.
    Shard,
    /// A client's connection without a request: its task, a head that never ends, an answer that is not taken.
    Connection,
    /// A request that is retained: its body as it comes, and its copies on the way to engines.
    Request,
    /// What its engines say: reads, heads, events that do not end, what is collected, merged and written.
    Answer,
    /// An engine's connection that waits in a pool.
    Pooled,
    /// A request that waits for the control thread, and its page.
    Page,
}

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub rows: [Row; 7],
    /// What one stream holds while its client takes nothing and its events are of ordinary size: part of the rows above.
    pub stream: u64,
}

/// What `fleet` lets be held on so many shards, by a process that may have so many descriptors open.
pub fn bounds(fleet: &Fleet, shards: usize, descriptors: u64) -> Bounds {
    let each = Each::of(fleet);
    let retained = fleet.serving.max_retained as u64;
    let (shards, engines) = (shards as u64, fleet.engines.len() as u64);
    let pooled = match fleet.engine.pool_max {
        Some(most) => engines * shards * most as u64,
        // Whoever is in a pool was the leg of a retained request.
        None => retained * each.legs,
    };
    let row = |class, count, each| Row { class, count, each };
    Bounds {
        rows: [
            row(Class::Process, 1, each.process),
            row(Class::Shard, shards, each.shard),
            row(Class::Connection, descriptors, each.connection),
            row(Class::Request, retained, each.request),
            row(Class::Answer, retained, each.answer),
            row(Class::Pooled, pooled, each.pooled),
            row(Class::Page, shards * PAGES_MAX, each.page),
        ],
        stream: each.stream,
    }
}

/// Bytes of one of each.
struct Each {
    legs: u64,
    process: u64,
    shard: u64,
    connection: u64,
    request: u64,
    answer: u64,
    pooled: u64,
    page: u64,
    stream: u64,
}

impl Each {
    fn of(fleet: &Fleet) -> Each {
        let head = fleet.runtime.max_header_bytes as u64;
        let request = fleet.serving.max_request_bytes as u64;
        let response = fleet.serving.max_response_bytes as u64;
        let engines = fleet.engines.len() as u64;
        let tls = fleet.engines.iter().any(|engine| engine.url.tls);
        let tls = u64::from(tls) * limits::TLS_CONNECTION_BYTES as u64;
        // With SGLang both are under way at once.
        let legs = match fleet.engine.dialect {
            Dialect::Sglang => 2,
            Dialect::Vllm | Dialect::Openai => 1,
        };
        // A decode leg of vLLM carries the handoff, which is part of a prefill answer.
        let handoff = match fleet.engine.dialect {
            Dialect::Vllm => response,
            Dialect::Sglang | Dialect::Openai => 0,
        };
        let leg_request = grown(request + handoff + head + LEG_EDITS);
        let inbuf = grown(head.max(limits::PIPELINE_BYTES_MAX as u64) + READ);
        let out = 2 * limits::BUFFER_KEEP_BYTES as u64;
        let upload = limits::CLIENT_BODY_READ_BYTES as u64;
        let leg_read = limits::LEG_READ_BYTES as u64 + tls;
        let leg_head = grown((limits::ENGINE_HEAD_BYTES_MAX + limits::LEG_READ_BYTES) as u64);
        let free = 2 * FREE_READS_BYTES + KEPT_BUFFERS * limits::BUFFER_KEEP_BYTES as u64;
        Each {
            legs,
            process: PROCESS + prefix::TABLE_BYTES_MAX as u64 + engines * (ENGINE + engines),
            shard: SHARD + free + leg_request + engines * PLANS,
            connection: TASK + READ + inbuf + out,
            request: EXCHANGE + head + upload + grown(upload) + grown(request) + legs * leg_request,
            answer: legs * (leg_read + leg_head)
                + RESPONSE_COPIES * response
                + grown((limits::CLIENT_BUFFER_BYTES + limits::LEG_READ_BYTES) as u64),
            pooled: LINE + tls,
            page: head + PAGE_COPIES * (PAGE + engines * PAGE_PER_ENGINE),
            stream: TASK + EXCHANGE + limits::CLIENT_WATCH_BYTES as u64 + leg_read + LINE + out,
        }
    }
}

impl Bounds {
    pub fn of(&self, class: Class) -> Row {
        self.rows[class as usize]
    }

    /// The ceiling.
    pub fn total(&self) -> u64 {
        let all = self.rows.iter().map(Row::total);
        all.fold(0, u64::saturating_add)
    }
}

impl Row {
    pub fn total(&self) -> u64 {
        self.count.saturating_mul(self.each)
    }
}

impl Class {
    /// As the log says it, one and many.
    const fn names(self) -> [&'static str; 2] {
        match self {
            Class::Process => ["process", "processes"],
            Class::Shard => ["shard", "shards"],
            Class::Connection => ["connection", "connections"],
            Class::Request => ["request", "requests"],
            Class::Answer => ["answer", "answers"],
            Class::Pooled => ["pooled engine connection", "pooled engine connections"],
            Class::Page => ["admin page", "admin pages"],
        }
    }
}

/// One line of the log.
impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {}: ", Bytes(self.total()))?;
        for (n, row) in self.rows.iter().enumerate() {
            let plus = if n > 0 { " + " } else { "" };
            let name = row.class.names()[usize::from(row.count != 1)];
            write!(f, "{plus}{} {name} × {}", row.count, Bytes(row.each))?;
        }
        let stream = Bytes(self.stream);
        write!(f, "; a stream whose client takes nothing holds {stream}")
    }
}

/// In the largest unit that keeps it whole enough, rounded up.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..0xa0_0000 => (1 << 10, "KiB"),
            0xa0_0000..0x2_8000_0000 => (1 << 20, "MiB"),
            _ => (1 << 30, "GiB"),
        };
        write!(f, "{} {name}", self.0.div_ceil(unit))
    }
}

/// The capacity of a `Vec` that so many bytes were appended to.
const fn grown(bytes: u64) -> u64 {
    2 * bytes
}

const READ: u64 = limits::CLIENT_READ_BYTES as u64;

/// The program's own pages, stacks, the control thread's sockets and pages, the allocator's segments. A router at rest has 7 to 12 MiB.
const PROCESS: u64 = 48 << 20;

/// Board, ledgers, learned values and addresses of an engine.
const ENGINE: u64 = 8 << 10;

/// A ring of 4096 entries or as many events, histograms, the allocator's heap of the thread and what it has not given back yet.
const SHARD: u64 = 16 << 20;

/// An engine in a shard's own copies of the fleet: the one of now, the next one, and one that exchanges still hold.
const PLANS: u64 = 3 << 10;

/// Free buffers of reads that a shard keeps, of each of the two sizes.
pub(super) const FREE_READS_BYTES: u64 = 8 << 20;

/// Buffers that a shard keeps for requests (`shard::BUFFERS_MAX`).
const KEPT_BUFFERS: u64 = 64;

/// A connection's task with its machine and its two leg slots, its mailbox and alarm, and the futures in their boxes. A test looks
/// at the size of the task.
const TASK: u64 = 12 << 10;

/// An exchange, the places of its members (`KNOWN_MEMBERS_MAX`), the hashes of its prompt's blocks, its assembly without the bytes.
const EXCHANGE: u64 = 48 << 10;

/// What legs add to a body beside the handoff, and the head's own words.
const LEG_EDITS: u64 = 4 << 10;

/// How often `max_response_bytes` can be in one answer, when the bound is reached by one event behind as much that is held: the
/// handoff, the event as it comes, what is held twice over (it is looked at when it is there) in a buffer that doubles, and the
/// same with the event in the client's. An assembled answer has less: the event, three times that when it is not UTF-8, the pieces,
/// the answer, its copy.
const RESPONSE_COPIES: u64 = 1 + 1 + 4 + 6;

/// A connection to an engine: the runtime's stream and its place in the pool.
const LINE: u64 = 1 << 10;

/// Asks that a shard lets wait for the control thread (`shard::ASKS_MAX`).
const PAGES_MAX: u64 = 64;

/// Such a page: as it is made, as mail, and on the way out, in buffers that double. Sizes of metrics and state, measured and doubled.
const PAGE_COPIES: u64 = 4;
const PAGE: u64 = 64 << 10;
const PAGE_PER_ENGINE: u64 = 4 << 10;

#[cfg(test)]
mod tests;
