//! What an engine answers to all but completions and `/tokenize`. Reads the load; draws a random id for `/v1/models`.
//!
//! Invariant: every path known here is answered to GET only.

use super::Engine;
use crate::base::time::Instant;
use crate::stub::answer::{Answer, JSON};
use crate::stub::handoff::Handoffs;
use crate::stub::vllm::pages;

impl Engine {
    /// Everything that is no completion and no `/tokenize`.
    pub(super) fn page(
        &mut self,
        now: Instant,
        path: &[u8],
        method: &[u8],
        handoffs: &mut Handoffs,
    ) -> Answer {
        let known: &[&[u8]] = &[
            b"/health",
            b"/ping",
            b"/version",
            b"/metrics",
            b"/v1/models",
            b"/load",
        ];
        if !known.contains(&path) {
            return Answer::detail(404, "Not Found", None);
        }
        if method != b"GET" {
            return Answer::detail(405, "Method Not Allowed", Some("GET"));
        }
        match path {
            b"/version" => pages::version(),
            b"/v1/models" => {
                let permission = format!("{:016x}", self.prng.u64());
                pages::models(
                    &self.setup.model,
                    &permission,
                    self.unix_s(now),
                    self.setup.len_max,
                )
            }
            b"/metrics" => pages::metrics(&self.setup.model, &self.gauges(now, handoffs)),
            // Server load tracking is off, as it comes.
            b"/load" => Answer::new(200, JSON, br#"{"server_load":0}"#.to_vec()),
            _ if self.load.is_dead() => Answer::new(503, "", Vec::new()),
            _ => Answer::new(200, "", Vec::new()),
        }
    }

    fn gauges(&self, now: Instant, handoffs: &mut Handoffs) -> pages::Gauges {
        let load = &self.load;
        let waiting = load.waiting(now);
        let kv_tokens = load.kv_tokens() + handoffs.held_tokens(now, &self.name);
        pages::Gauges {
            start_unix_s: self.setup.epoch_unix_s as f64 + self.started.nanos() as f64 / 1e9,
            running: load.running() - waiting,
            waiting,
            kv_tokens,
            kv_tokens_max: u64::from(self.setup.blocks) * u64::from(self.setup.block_tokens),
            block_tokens: self.setup.block_tokens,
            blocks: self.setup.blocks,
            prompt_tokens: load.prompt_tokens.get(),
            generation_tokens: load.generation_tokens.get(),
            stopped: load.stopped.get(),
            cut: load.cut.get(),
            handoffs_used_again: handoffs.counts.again,
            handoffs_late: handoffs.counts.late,
            handoffs_astray: handoffs.counts.astray,
            handoffs_orphaned: handoffs.counts.orphaned,
        }
    }
}
