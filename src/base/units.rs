//! Ids as types, so that a shard, an engine and a slot never trade places; and what engines are.

use std::fmt;

use super::words::words;

words! {
    /// Which leg an engine serves.
    Role {
        Prefill = "prefill",
        Decode = "decode",
        /// One decode-shaped leg, without a prefill leg and a handoff.
        Both = "both",
    }
}

words! {
    /// Engine families. The fleet file names one for all its engines.
    Dialect {
        /// Legs in sequence: the prefill answer carries the handoff.
        Vllm = "vllm",
        /// Both legs at once, joined by a bootstrap room.
        Sglang = "sglang",
        /// Any server of the OpenAI API: one leg, no token ids.
        Openai = "openai",
    }
}

/// Number of a shard, 0 up to the shard count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// Index of an engine in the current fleet snapshot (and of its line on the load board).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u16);

/// What an engine does for a request: it reads the prompt, or generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Prefill,
    Decode,
}

impl Phase {
    pub const COUNT: usize = 2;
    pub const ALL: [Phase; Phase::COUNT] = [Phase::Prefill, Phase::Decode];

    /// As in metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// Which of the engine requests of an attempt this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leg {
    /// `POST /tokenize`: counts the prompt.
    Tokenize,
    /// Reads the prompt and makes the KV cache.
    Prefill,
    /// Generates the tokens; on a `role: both` engine it contains the prefill.
    Decode,
}

impl Leg {
    /// The word used in leg ids, metric labels and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Leg::Tokenize => "tokenize",
            Leg::Prefill => "prefill",
            Leg::Decode => "decode",
        }
    }
}

impl EngineId {
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ShardId {
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
