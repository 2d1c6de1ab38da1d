//! What an engine refuses before it starts, and how long an answer becomes. Pure; reads the setup, changes nothing.
//!
//! Invariant: of a plan that passed, `prompt_tokens + tokens ≤ len_max`, `tokens ≥ 1`, `interval ≥ 1`.

use super::Engine;
use crate::base::units::{Dialect, Role};
use crate::stub::ask::{Ask, Prompt, Route};
use crate::stub::load::Finish;
use crate::stub::refusal::Refusal;
use crate::stub::stream::Plan;
use crate::stub::{sglang, text};

impl Engine {
    /// Everything that vLLM refuses before it starts, in its order: the schema's cross-checks, the model, the prompt, the limits.
    pub(super) fn check(&self, route: Route, ask: &Ask) -> Result<(Plan, Vec<u32>), Refusal> {
        let sglang = self.setup.dialect == Dialect::Sglang;
        if ask.stream_options && !ask.stream && !sglang {
            return Err(Refusal::bad(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
                Some("stream_options"),
            ));
        }
        if ask.prompt_logprobs && ask.stream {
            return Err(Refusal::bad(
                "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)",
                Some("prompt_logprobs"),
            ));
        }
        let model = ask.model.as_deref().filter(|_| !sglang);
        if let Some(model) = model.filter(|m| *m != self.setup.model) {
            return Err(Refusal::unknown_model(model, &self.setup.model));
        }
        let ids = ask.prompt.as_ref().map(Prompt::ids).unwrap_or_default();
        let mut plan = Plan {
            seed: text::seed(&ids),
            prompt_tokens: ids.len() as u64,
            cached_tokens: 0,
            tokens: 1,
            finish: Finish::Length,
            interval: 1,
            ids: ask.return_token_ids,
        };
        if route == Route::Tokenize {
            return Ok((plan, ids));
        }
        self.check_prompt(route, plan.prompt_tokens)?;
        if let Some(n) = ask.n.filter(|n| *n < 1) {
            let message = format!("n must be at least 1, got {n}.");
            return Err(Refusal::bad(message, None));
        }
        if ask.n.is_some_and(|n| n > 1) {
            let message = "The simulated engine makes one choice a request (parameter=n)";
            return Err(Refusal::bad(message, Some("n")));
        }
        if let Some(t) = ask.temperature.filter(|t| *t < 0.0) {
            let message = format!("temperature must be non-negative, got {t:?}.");
            return Err(Refusal::value(&message, "temperature", &format!("{t:?}")));
        }
        if let Some(i) = ask.stream_interval.filter(|i| *i < 1) {
            let message = format!("stream_interval must be at least 1, got {i}.");
            return Err(Refusal::value(&message, "stream_interval", &i.to_string()));
        }
        plan.interval = ask.stream_interval.unwrap_or(1).max(1) as u64;
        (plan.tokens, plan.finish) = self.length(route, ask, &plan)?;
        if sglang && self.setup.role == Role::Prefill {
            // Whatever was asked for: the rest is the decode engine's.
            (plan.tokens, plan.finish) = (1, Finish::Length);
        }
        Ok((plan, ids))
    }

    fn check_prompt(&self, route: Route, tokens: u64) -> Result<(), Refusal> {
        let len_max = self.setup.len_max;
        if tokens == 0 {
            return Err(Refusal::bad(
                "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
                Some("prompt"),
            ));
        }
        if tokens < len_max {
            return Ok(());
        }
        let least = if route == Route::Chat {
            "at least "
        } else {
            ""
        };
        let message = format!(
            "This model's maximum context length is {len_max} tokens. However, your prompt contains {least}{tokens} input tokens, \
             which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
        );
        Err(Refusal::value(
            &message,
            "input_tokens",
            &tokens.to_string(),
        ))
    }

    /// How many tokens the answer has, and why it ends.
    fn length(&self, route: Route, ask: &Ask, plan: &Plan) -> Result<(u64, Finish), Refusal> {
        let asked = match route {
            // SGLang has the older limit win.
            Route::Chat if self.setup.dialect == Dialect::Sglang => {
                ask.max_tokens.or(ask.max_completion_tokens)
            }
            Route::Chat => ask.max_completion_tokens.or(ask.max_tokens),
            _ => Some(ask.max_tokens.unwrap_or(16)),
        };
        let room = self.setup.len_max - plan.prompt_tokens;
        let limit = match asked {
            Some(n) if n < 1 => {
                let message = format!("max_tokens must be at least 1, got {n}.");
                return Err(Refusal::value(&message, "max_tokens", &n.to_string()));
            }
            Some(n) if self.setup.dialect == Dialect::Sglang && n as u64 > room => {
                return Err(sglang::too_many(self.setup.len_max, plan.prompt_tokens, n));
            }
            Some(n) if route == Route::Chat && n as u64 > self.setup.len_max => {
                let message = format!(
                    "max_tokens={n} cannot be greater than max_model_len={}. Please request fewer output tokens.",
                    self.setup.len_max
                );
                return Err(Refusal::value(&message, "max_tokens", &n.to_string()));
            }
            Some(n) => room.min(n as u64),
            None => room,
        };
        let least = match ask.min_tokens {
            Some(n) if n < 0 => {
                let message = format!("min_tokens must be greater than or equal to 0, got {n}.");
                return Err(Refusal::value(&message, "min_tokens", &n.to_string()));
            }
            Some(n) if n as u64 > limit => {
                let message = format!(
                    "min_tokens must be less than or equal to max_tokens={limit}, got {n}."
                );
                return Err(Refusal::value(&message, "min_tokens", &n.to_string()));
            }
            n => n.unwrap_or(0) as u64,
        };
        let natural = match (ask.ignore_eos, self.setup.answer_tokens, asked) {
            (true, ..) => None,
            (_, Some((low, high)), _) => Some(low + plan.seed % (high.saturating_sub(low) + 1)),
            (_, None, Some(_)) => None,
            (_, None, None) => Some(16),
        };
        // The end-of-sequence token comes after the natural length, and counts.
        Ok(match natural.map(|n| n.max(least) + 1) {
            Some(n) if n <= limit => (n, Finish::Stop),
            _ => (limit, Finish::Length),
        })
    }
}
