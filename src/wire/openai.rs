//! A completion request as a router sees it: the fields it reads, the checks it makes, the error bodies it answers with.
//!
//! [`check`] walks the body once. What it returns owns no byte of the body: small facts, and the spans of the members
//! that legs edit (`wire::dialect` makes legs from the same body and these spans). Everything else in the body is the engine's business.
//!
//! The order of the checks is the contract's, and clients see it: JSON, field types (with several prompts and widths below one),
//! reserved fields, options of assembled answers, model, width. A member that is `null` is absent, and the last of several
//! counts; only the search for reserved fields looks at all of them. Messages are generic: they quote neither the client
//! nor an engine.
//!
//! Invariant: a body that passes is UTF-8, a JSON object without unpaired surrogates, at most [`limits::JSON_DEPTH_MAX`] deep.

mod checks;

mod input;

mod value;

mod error;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use error::{
    EngineError, engine_error, engine_message, write_error, write_stream_error, write_string,
};

use checks::Scanned;

use crate::wire::dialect::Dialect;
use crate::wire::splice::Layout;

#[cfg(doc)]
use crate::base::limits;

/// The two routes that complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    Completions,
    Chat,
}

/// What a request is held against.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub dialect: Dialect,
    /// The fleet's model.
    pub model: &'a str,
    /// Other names that clients may use for it.
    pub aliases: &'a [String],
}

/// A request that passed.
#[derive(Clone, Debug)]
pub struct Request {
    pub stream: bool,
    /// The client asked for token ids, so they are not cut out.
    pub return_token_ids: bool,
    /// `stream_options.include_usage` is true.
    pub include_usage: bool,
    /// Most tokens it may generate: `max_tokens`, or `max_completion_tokens` where engines let that win (chat; SGLang legs on both
    /// routes). Below 0 counts as 0, and huge ones saturate: the engine is the judge of both.
    pub cap: Option<u64>,
    pub prompt: Prompt,
    /// Spans of the members in [`MEMBERS`].
    pub layout: Layout,
    /// Legs carry the fleet's name: the client gave none, an alias, or several.
    pub(super) model_rewritten: bool,
    /// The string in `["…"]`, quotes included.
    pub(super) only_prompt: Option<Range<usize>>,
}

/// Length of the prompt, as far as the body alone tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids, counted.
    Counted(u64),
    /// Text: characters, unescaped, that an estimate would divide.
    Text { chars: u64 },
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    /// The error's `type`.
    pub kind: &'static str,
    pub param: Option<&'static str>,
    pub code: Option<&'static str>,
    pub message: &'static str,
    /// The model check was reached; before it a refusal counts in `unsized_offered`.
    pub after_model: bool,
    /// Metric label: `bad_json`, `bad_type`, `prompts`, `width`, `reserved`, `option`, `model`.
    pub reason: &'static str,
}

/// The member that a prompt is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    Prompt,
    Messages,
}

/// Checks a whole body.
pub fn check(route: Route, body: &[u8], rules: &Rules<'_>) -> Result<Request, Refusal> {
    let scanned = Scanned::read(body)?;
    scanned.types()?;
    scanned.prompts()?;
    scanned.widths_below_one()?;
    scanned.reserved(route, rules.dialect)?;
    let stream = scanned.flag("stream");
    if !stream {
        scanned.options()?;
    }
    let model_rewritten = scanned.model(rules)?;
    scanned.widths_above_one()?;
    Ok(Request {
        stream,
        return_token_ids: scanned.flag("return_token_ids"),
        include_usage: scanned.include_usage(),
        cap: scanned.cap(route, rules.dialect),
        prompt: scanned.size(route),
        only_prompt: scanned.prompt.only.clone(),
        layout: scanned.layout,
        model_rewritten,
    })
}

impl Route {
    /// The path, the engine's as well as ours.
    pub const fn path(self) -> &'static str {
        match self {
            Route::Completions => "/v1/completions",
            Route::Chat => "/v1/chat/completions",
        }
    }
}

impl Request {
    /// Where the engine reads the prompt from; `None` when the body has neither member. The route's own member first, then
    /// the other: engines judge what is on the wrong route.
    pub fn input(&self, body: &[u8], route: Route) -> Option<Input> {
        input_of(body, &self.layout, route)
    }

    /// Tokens by the estimate: characters ÷ `chars_per_token`, rounded up; the exact count when ids were given.
    pub fn estimate(&self, chars_per_token: f64) -> u64 {
        match self.prompt {
            Prompt::Counted(tokens) => tokens,
            Prompt::Text { chars } => (chars as f64 / chars_per_token).ceil() as u64,
        }
    }
}

impl Refusal {
    /// Appends its body.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_error(out, self.message, self.kind, self.param, self.code);
    }

    const fn new(reason: &'static str, param: Option<&'static str>, message: &'static str) -> Self {
        Refusal {
            status: 400,
            kind: "invalid_request_error",
            param,
            code: None,
            message,
            after_model: false,
            reason,
        }
    }
}

fn input_of(body: &[u8], layout: &Layout, route: Route) -> Option<Input> {
    let prompt = layout.given(body, "prompt").map(|_| Input::Prompt);
    let messages = layout.given(body, "messages").map(|_| Input::Messages);
    match route {
        Route::Completions => prompt.or(messages),
        Route::Chat => messages.or(prompt),
    }
}

/// Top-level members whose spans a [`Request`] keeps: what this file checks, and what any dialect edits or copies.
pub const MEMBERS: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "n",
    "best_of",
    "tools",
    "return_token_ids",
    "return_prompt_token_ids",
    "return_meta_info",
    "prompt_embeds",
    "prompt_logprobs",
    "modalities",
    "audio",
    "vllm_xargs",
    "kv_transfer_params",
    "ec_transfer_params",
    "stream_interval",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "add_special_tokens",
    "cache_salt",
    "rid",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
];

#[doc(hidden)]
pub mod fuzzing {
    //! Bodies for fuzz targets.

    use super::{Route, Rules, check};
    use crate::base::limits;
    use crate::wire::dialect::Dialect;
    use crate::wire::splice::fuzzing::members;

    /// No body panics; what passes as JSON is JSON to serde_json too, and what fails as JSON fails there too, but for what
    /// serde_json lets pass: lone surrogates, and our two limits.
    pub fn check_body(data: &[u8]) {
        for route in [Route::Completions, Route::Chat] {
            for dialect in [Dialect::Vllm, Dialect::Sglang, Dialect::Openai] {
                let rules = Rules {
                    dialect,
                    model: "m",
                    aliases: &[],
                };
                let bad_json = check(route, data, &rules).is_err_and(|r| r.reason == "bad_json");
                let theirs = members(data).filter(|_| std::str::from_utf8(data).is_ok());
                match theirs {
                    None => assert!(bad_json),
                    Some(members) => assert!(!bad_json || is_beyond(data, members.len())),
                }
            }
        }
    }

    fn is_beyond(data: &[u8], members: usize) -> bool {
        let opens = data.iter().filter(|b| **b == b'{' || **b == b'[').count();
        let escapes = data.windows(2).any(|w| w == b"\\u");
        escapes || opens > limits::JSON_DEPTH_MAX || members > limits::KNOWN_MEMBERS_MAX
    }

    /// Whatever comes in, nothing panics, and what a message says is bounded and clean once written.
    pub fn engine_message(data: &[u8]) {
        let _ = super::engine_error(data);
        let Some(message) = super::engine_message(data) else {
            return;
        };
        assert!(message.len() <= limits::ENGINE_MESSAGE_BYTES_MAX);
        let mut out = Vec::new();
        super::write_error(&mut out, &message, "t", None, None);
        assert!(!out.iter().any(u8::is_ascii_control));
        let back: serde_json::Value =
            serde_json::from_slice(&out).expect("our error bodies are JSON");
        assert_eq!(back["error"]["message"], message.as_str());
    }
}
