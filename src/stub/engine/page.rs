//! What an engine answers to all but completions and `/tokenize`. Reads the load; draws a random id for `/v1/models`.
//!
//! Invariant: every path known here is answered to GET only.

use super::Engine;
use crate::base::time::Instant;
use crate::base::units::Dialect;
use crate::stub::answer::{Answer, JSON};
use crate::stub::faults::Leg;
use crate::stub::handoff::Handoffs;
use crate::stub::vllm::pages;
use crate::stub::{openai, sglang};

const VLLM: [&[u8]; 6] = [
    b"/health",
    b"/ping",
    b"/version",
    b"/metrics",
    b"/v1/models",
    b"/load",
];

/// No `/version`: SGLang tells it in `/server_info`.
const SGLANG: [&[u8]; 9] = [
    b"/health",
    b"/health_generate",
    b"/ping",
    b"/metrics",
    b"/v1/models",
    b"/model_info",
    b"/get_model_info",
    b"/server_info",
    b"/get_server_info",
];

const OPENAI: [&[u8]; 3] = [b"/health", b"/metrics", b"/v1/models"];

/// What a page is called in fault scripts.
pub(super) fn leg(path: &[u8]) -> Leg {
    match path {
        b"/health" | b"/ping" | b"/health_generate" => Leg::Health,
        b"/v1/models" => Leg::Models,
        b"/metrics" => Leg::Metrics,
        b"/version" => Leg::Version,
        _ => Leg::Other,
    }
}

impl Engine {
    /// Everything that is no completion and no `/tokenize`.
    pub(super) fn page(
        &mut self,
        now: Instant,
        path: &[u8],
        method: &[u8],
        handoffs: &mut Handoffs,
    ) -> Answer {
        let known: &[&[u8]] = match self.setup.dialect {
            Dialect::Vllm => &VLLM,
            Dialect::Sglang => &SGLANG,
            Dialect::Openai => &OPENAI,
        };
        if !known.contains(&path) {
            return self.no_path();
        }
        if method != b"GET" {
            return self.no_method("GET");
        }
        match self.setup.dialect {
            Dialect::Vllm => self.vllm_page(now, path, handoffs),
            Dialect::Sglang => self.sglang_page(now, path, handoffs),
            Dialect::Openai => self.openai_page(now, path, handoffs),
        }
    }

    fn vllm_page(&mut self, now: Instant, path: &[u8], handoffs: &mut Handoffs) -> Answer {
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

    fn sglang_page(&self, now: Instant, path: &[u8], handoffs: &mut Handoffs) -> Answer {
        use sglang::pages;
        let setup = &self.setup;
        match path {
            b"/v1/models" => pages::models(&setup.model, self.unix_s(now), setup.len_max),
            b"/model_info" | b"/get_model_info" => pages::model_info(&setup.model),
            b"/server_info" | b"/get_server_info" => {
                let gauges = self.gauges(now, handoffs);
                pages::server_info(&setup.model, setup.role, setup.len_max, setup.port, &gauges)
            }
            b"/metrics" => {
                let gauges = self.gauges(now, handoffs);
                pages::metrics(&setup.model, setup.role, &gauges, &handoffs.rooms.counts)
            }
            _ if self.load.is_dead() => Answer::new(503, "", Vec::new()),
            _ => Answer::new(200, "", Vec::new()),
        }
    }

    fn openai_page(&self, now: Instant, path: &[u8], handoffs: &mut Handoffs) -> Answer {
        match path {
            b"/v1/models" => openai::models(&self.setup.model, self.unix_s(now)),
            b"/metrics" => openai::metrics(&self.gauges(now, handoffs)),
            _ => openai::health(self.load.is_dead()),
        }
    }

    fn gauges(&self, now: Instant, handoffs: &mut Handoffs) -> pages::Gauges {
        let load = &self.load;
        let waiting = load.waiting(now);
        let kv_tokens = load.kv_tokens() + handoffs.held_tokens(now, &self.name);
        pages::Gauges {
            start_unix_s: self.setup.epoch_unix_s as f64 + self.started.nanos() as f64 / 1e9,
            running: load.running() - waiting,
            waiting: waiting + load.in_line(),
            preempted: load.preempted.get(),
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
