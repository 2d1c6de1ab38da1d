//! What an engine is told at start. Plain values; the command line and tests fill them.
//!
//! Invariant: 1 ≤ `block_tokens`, 2 ≤ `len_max` (asserted by `Engine::new`).

use std::time::Duration;

use crate::base::units::{Dialect, Role};
use crate::stub::faults::Script;
use crate::stub::profile::{Bounds, Profile};
use crate::stub::rooms;
use crate::stub::stream::Merge;

/// What an engine is told at start.
#[derive(Clone, Debug)]
pub struct Setup {
    pub dialect: Dialect,
    /// Its disaggregation mode, for SGLang; engines of the other dialects answer either leg.
    pub role: Role,
    pub model: String,
    /// Longest prompt and answer together, tokens.
    pub len_max: u64,
    /// Tokens in a KV block, and blocks. Real ones on a GPU have 16-token blocks.
    pub block_tokens: u32,
    pub blocks: u32,
    pub profile: Profile,
    pub bounds: Bounds,
    pub merge: Merge,
    /// Silence after which a stream carries a comment (vLLM's `--sse-keep-alive-interval`).
    pub keep_alive: Option<Duration>,
    /// What goes wrong on purpose.
    pub faults: Script,
    /// Whether a KV connector is there. Without one handoff parameters are ignored, as vLLM does.
    pub connector: bool,
    /// How long a leg waits for the other one of its room (SGLang).
    pub room_wait: Duration,
    /// Where the connector's side channel listens. Told to peers, used by nobody.
    pub host: String,
    pub port: u16,
    /// Bounds of an answer's natural length, tokens; by the prompt's seed. `None`: an answer ends at its limit, or after 16
    /// tokens where chat sets none.
    pub answer_tokens: Option<(u64, u64)>,
    pub seed: u64,
    /// Time of day at [`Instant::ZERO`], Unix seconds.
    pub epoch_unix_s: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            dialect: Dialect::Vllm,
            role: Role::Both,
            model: "tiny".into(),
            len_max: 131_072,
            block_tokens: 16,
            blocks: 131_072,
            profile: Profile::default(),
            bounds: Bounds::default(),
            merge: Merge::default(),
            keep_alive: None,
            faults: Script::default(),
            connector: true,
            room_wait: rooms::WAIT,
            host: "127.0.0.1".into(),
            port: 5_600,
            answer_tokens: None,
            seed: 0,
            epoch_unix_s: 1_795_992_884,
        }
    }
}
