//! KV that nobody will fetch, on the board until its engine lets go of it. Owns the receipt for it.

use std::sync::atomic::Ordering;

use super::Board;
use crate::base::units::EngineId;

/// KV that stays on an engine though no request is there.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "held KV has to be released"]
pub struct KvHold {
    engine: EngineId,
    tokens: u64,
}

impl Board {
    pub fn hold_kv(&self, engine: EngineId, tokens: u64) -> KvHold {
        let held = &self.line(engine).orphaned_tokens;
        held.fetch_add(tokens, Ordering::Relaxed);
        KvHold { engine, tokens }
    }

    pub fn release_kv(&self, hold: KvHold) {
        let held = &self.line(hold.engine).orphaned_tokens;
        let before = held.fetch_sub(hold.tokens, Ordering::Relaxed);
        assert!(
            before >= hold.tokens,
            "more tokens came back than were held"
        );
    }
}
