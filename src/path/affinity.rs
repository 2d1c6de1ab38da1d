//! Prefix affinity: what of a prompt engines are believed to hold, from its reading to the prices, and what they said of it themselves.
//!
//! The prompt's blocks are hashed once, when its size is known. Each look at the fleet recalls who read them lately, and prices count what
//! is left to read. The engine that is to read the prompt is remembered when its load is reserved: from then on the backlog says how long
//! the others would wait for it there. A leg that fails undoes nothing: if the engine is down it is forgotten whole, else the next
//! prompt of its kind that goes there finds it cold, once.

use super::exchange::{Cx, Exchange};
use crate::base::units::EngineId;
use crate::fleet::pick::Placement;
use crate::metrics::ledger::Cell;
use crate::wire::prefix::From;

impl Exchange {
    /// The prompt's size is known: what its blocks are.
    pub fn read_prefix(&mut self, cx: &mut Cx) {
        if cx.shard.prefixes().is_none() {
            return;
        }
        self.prefix = cx.shard.memory.take();
        let (Some(prefixes), Some(request)) = (cx.shard.prefixes(), &self.request) else {
            return;
        };
        let from = From {
            salt: prefixes.salt(),
            model: &cx.shard.snapshot.fleet.model,
        };
        self.prefix.read(&self.body, request, self.route, &from);
    }

    /// Reads the board anew, and what of this prompt engines hold.
    pub fn survey(&self, cx: &mut Cx) {
        cx.shard.look(cx.now);
        cx.shard.recall(&self.prefix, self.prompt_tokens, cx.now);
    }

    /// The load of an attempt is reserved: the engine that reads the prompt will hold it.
    pub fn remember(&mut self, cx: &mut Cx) {
        let Some(prefixes) = cx.shard.prefixes() else {
            return;
        };
        let (engine, output_tokens) = match self.placement {
            Some(Placement::TwoLegs { prefill, .. }) => (prefill, 0),
            // What it generates takes its place in the same cache.
            Some(Placement::OneLeg { engine }) => (engine, self.output_tokens(cx)),
            None => return,
        };
        let cached = cx.shard.fleet()[engine.index()].cached_tokens;
        let new_tokens =
            (self.prompt_tokens - cached.min(self.prompt_tokens)).saturating_add(output_tokens);
        prefixes.record(engine, self.prefix.blocks(), new_tokens, cx.now);
        self.remembered_tokens =
            cx.shard
                .remembered_tokens(&self.prefix, self.prompt_tokens, engine);
        cx.shard.ledger.update(|tx| {
            tx.add(Cell::PrefixLookups, 1);
            tx.add(Cell::PrefixPromptTokens, self.prompt_tokens);
            tx.add(Cell::PrefixBelievedTokens, cached);
        });
    }

    /// The engine that read the prompt says how much of it it held.
    pub fn compare_belief(&self, cx: &Cx, engine: EngineId, cached_tokens: Option<u64>) {
        let (Some(prefixes), Some(held)) = (cx.shard.prefixes(), cached_tokens) else {
            return;
        };
        prefixes.told(engine, self.remembered_tokens, held);
        cx.shard.ledger.update(|tx| {
            tx.add(Cell::PrefixComparedTokens, self.remembered_tokens);
            tx.add(Cell::PrefixHeldTokens, held);
        });
    }

    pub fn give_prefix(&mut self, cx: &mut Cx) {
        cx.shard.memory.give(std::mem::take(&mut self.prefix));
    }
}
