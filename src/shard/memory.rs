//! A shard's room for recalling prompts: what engines hold of the one at hand, and the hashes of those in flight. Reused, so that a
//! request allocates none of it once the shard is warm.

use super::Shard;
use crate::base::time::Instant;
use crate::base::units::{Dialect, EngineId, Role};
use crate::wire::prefix::Prefix;

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Memory {
    /// Leading blocks, by engine.
    held: Vec<u16>,
    spare: Vec<Prefix>,
}

/// As many prompts may leave their room for others; 16 KiB each at most.
const SPARE_MAX: usize = 64;

impl Memory {
    pub fn new(engines: usize) -> Self {
        Memory {
            held: vec![0; engines],
            spare: Vec::new(),
        }
    }

    /// Another fleet: room for what its engines hold.
    pub fn follow(&mut self, held: Vec<u16>) {
        self.held = held;
    }

    /// For a prompt; with what room the last one left.
    pub fn take(&mut self) -> Prefix {
        self.spare.pop().unwrap_or_default()
    }

    pub fn give(&mut self, mut prefix: Prefix) {
        if prefix.has_room() && self.spare.len() < SPARE_MAX {
            prefix.clear();
            self.spare.push(prefix);
        }
    }
}

impl Shard {
    /// What of a prompt of so many tokens engines are believed to hold: into what the last look saw.
    pub fn recall(&mut self, prefix: &Prefix, prompt_tokens: u64, now: Instant) {
        // As `prefixes`, of one part of this shard while another is written to.
        let Some(prefixes) = self.shared.prefixes().filter(|_| self.is_priced) else {
            return;
        };
        prefixes.recall(prefix.blocks(), now, &mut self.memory.held);
        let engine = &self.snapshot.fleet.engine;
        for (candidate, blocks) in self.fleet.iter_mut().zip(&self.memory.held) {
            let blocks = usize::from(*blocks);
            let tokens = prefix.tokens(blocks, prompt_tokens, engine.chars_per_token);
            // Where a leg does both halves, no answer tells, and none is waited for.
            let never_tells = candidate.role == Role::Both || engine.dialect == Dialect::Openai;
            let trust = prefixes.trust(candidate.id);
            let told = |untold| (tokens as f64 * trust.unwrap_or(untold)) as u64;
            candidate.remembered_tokens = told(1.0);
            candidate.cached_tokens = told(if never_tells { 1.0 } else { 0.0 });
        }
    }

    /// What the last recall remembered of the prompt on one engine, trusted or not.
    pub fn remembered_tokens(&self, prefix: &Prefix, prompt_tokens: u64, engine: EngineId) -> u64 {
        let blocks = self
            .memory
            .held
            .get(engine.index())
            .map_or(0, |n| usize::from(*n));
        let chars_per_token = self.snapshot.fleet.engine.chars_per_token;
        prefix.tokens(blocks, prompt_tokens, chars_per_token)
    }
}
