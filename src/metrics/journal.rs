//! The journal: what one completion request came to, as one row. A shard fills a [`Row`] while the request runs and hands it to a
//! [`Sink`] at its end; elsewhere it becomes a line of JSON (`line`), as the table of members says (`members`), and is read again (`read`,
//! `summary`).
//!
//! A row has one size whatever a client or a fleet file says: its texts are cut at [`TEXT_BYTES_MAX`]. It holds names of engines and not
//! their numbers, so that it means the same after the fleet has changed. Knows no clock: moments are those of the shard, and `line` is told
//! when that is.
//!
//! Invariant: a row stands for one offered request that has ended, and `end` is what the ledger was told.

pub mod line;

pub mod members;

pub mod read;

pub mod report;

pub mod spread;

pub mod stamp;

pub mod summary;

use super::outcome::{End, Stage};
use super::picture::TokenAccounting;
use crate::base::time::Instant;
use crate::base::units::Leg;
use crate::base::words::words;

/// What every line says it is.
pub const SCHEMA: &str = "narwhal.journal";
/// Members may be added within a version; what changes its meaning makes a new one.
pub const SCHEMA_VERSION: u32 = 1;

/// Bytes of a text of a row. Names of engines are that long at most, ids and models mostly shorter.
pub const TEXT_BYTES_MAX: usize = 128;

/// Faults of one request that its row has room for: one for each of three attempts and three counts.
pub const FAULTS_MAX: usize = 6;

words! {
    /// The two routes that complete.
    Route {
        Completions = "completions",
        Chat = "chat",
    }
}

words! {
    /// What went wrong with a leg.
    What {
        Connect = "connect",
        Broken = "broken",
        BadHttp = "bad_http",
        Timeout = "timeout",
        /// An error status, or an error object in a 200.
        Status = "status",
        /// A count that is none.
        BadAnswer = "bad_answer",
        BadIds = "bad_ids",
        Termination = "termination",
        Abort = "abort",
        Handoff = "handoff",
        Assembly = "assembly",
        ResponseLimit = "response_limit",
        // From here on the engine has no part in it (see `is_ours`).
        /// This process had no descriptor or memory for the connection.
        Shortage = "shortage",
        /// A kept connection that had died meanwhile.
        StaleSocket = "stale_socket",
        /// No connection within `pool_timeout_s`.
        Pool = "pool",
        /// The handoff grew old here.
        HandoffExpired = "handoff_expired",
    }
}

impl What {
    /// It says nothing about the engine.
    pub const fn is_ours(self) -> bool {
        self.index() >= What::Shortage.index()
    }
}

/// Where rows go. Never waits.
pub trait Sink {
    /// False when there is no room: the row is lost, and the caller counts it.
    fn put(&self, row: &Row) -> bool;
}

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The router's own id of the request.
    pub id: [u8; 36],
    pub client_rid: Text,
    pub shard: u16,
    pub route: Route,
    /// Empty before the model check.
    pub model: Text,
    pub stream: Option<bool>,
    pub end: End,
    /// The stage it ended in.
    pub stage: Stage,
    /// Of the answer, as far as there was one.
    pub status: Option<u16>,
    pub slo_met: Option<bool>,
    pub attempts: u32,
    pub request_bytes: u64,
    pub prompt_tokens: Option<u64>,
    pub estimated: bool,
    pub cached_tokens: Option<u64>,
    pub cap: Option<u64>,
    pub accounting: TokenAccounting,
    /// Ids of the last attempt, or events with output where there are no ids; and those of the first event among them.
    pub output: u64,
    pub first_output: u64,
    /// Of the last attempt; empty where there was none.
    pub prefill_engine: Text,
    pub decode_engine: Text,
    pub moments: Moments,
    faults: [Fault; FAULTS_MAX],
    faults_len: u8,
}

/// When things happened. Of an attempt, those of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    pub arrived: Instant,
    /// The body was whole, and the request was found right.
    pub received: Option<Instant>,
    pub checked: Option<Instant>,
    pub sized: Option<Instant>,
    pub seated: Option<Instant>,
    pub placed: Option<Instant>,
    pub prefilling: Option<Instant>,
    pub prefilled: Option<Instant>,
    pub decoding: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
    pub ended: Instant,
}

/// A leg that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub engine: Text,
    pub leg: Leg,
    pub what: What,
    /// With [`What::Status`].
    pub status: Option<u16>,
}

impl Row {
    /// Empty, for another request.
    pub fn clear(&mut self) {
        self.client_rid = Text::EMPTY;
        self.faults_len = 0;
    }

    /// One more; what has no room is left out.
    pub fn add_fault(&mut self, fault: Fault) {
        if let Some(place) = self.faults.get_mut(usize::from(self.faults_len)) {
            *place = fault;
            self.faults_len += 1;
        }
    }

    pub fn faults(&self) -> &[Fault] {
        &self.faults[..usize::from(self.faults_len)]
    }
}

impl Default for Row {
    fn default() -> Self {
        const NONE: Fault = Fault {
            engine: Text::EMPTY,
            leg: Leg::Tokenize,
            what: What::Connect,
            status: None,
        };
        Row {
            id: [b'0'; 36],
            client_rid: Text::EMPTY,
            shard: 0,
            route: Route::Completions,
            model: Text::EMPTY,
            stream: None,
            end: End::Served,
            stage: Stage::Parse,
            status: None,
            slo_met: None,
            attempts: 0,
            request_bytes: 0,
            prompt_tokens: None,
            estimated: false,
            cached_tokens: None,
            cap: None,
            accounting: TokenAccounting::Unavailable,
            output: 0,
            first_output: 0,
            prefill_engine: Text::EMPTY,
            decode_engine: Text::EMPTY,
            moments: Moments::default(),
            faults: [NONE; FAULTS_MAX],
            faults_len: 0,
        }
    }
}

/// A short text of a peer or a file, without a place on the heap. What is over the bound is cut, and remembered to have been.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    len: u8,
    cut: bool,
}

impl Text {
    pub const EMPTY: Text = Text {
        bytes: [0; TEXT_BYTES_MAX],
        len: 0,
        cut: false,
    };

    /// Keeps `bytes` as they are, in any encoding.
    pub fn set(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(TEXT_BYTES_MAX);
        self.bytes[..kept].copy_from_slice(&bytes[..kept]);
        // At most 128, which a byte holds.
        self.len = kept as u8;
        self.cut = kept < bytes.len();
    }

    pub fn of(bytes: &[u8]) -> Text {
        let mut text = Text::EMPTY;
        text.set(bytes);
        text
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The end is missing.
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.bytes().escape_ascii().to_string())
    }
}

const _: () = assert!(TEXT_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(FAULTS_MAX <= u8::MAX as usize);
