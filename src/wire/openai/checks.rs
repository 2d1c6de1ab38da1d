//! The one walk over a request body, and each check on what it found. [`super::check`] calls them in the contract's order.

use super::input::{self, MessagesFacts, PromptFacts};
use super::value::{
    are_functions, array_len, has_member, integer, is_bool, is_integer, is_text_only, member_of,
};
use super::{Input, MEMBERS, Prompt, Refusal, Route, Rules, input_of};
use crate::wire::dialect::Dialect;
use crate::wire::json::{Cursor, Kind};
use crate::wire::splice::Layout;

/// A body after its one walk.
pub(super) struct Scanned<'a> {
    body: &'a [u8],
    pub layout: Layout,
    pub prompt: PromptFacts,
    messages: MessagesFacts,
}

impl<'a> Scanned<'a> {
    /// JSON, and an object. A byte-order mark, UTF-16 and UTF-32 fail as bytes that no JSON value starts with, or as bad UTF-8.
    pub fn read(body: &'a [u8]) -> Result<Self, Refusal> {
        if std::str::from_utf8(body).is_err() {
            return Err(BAD_JSON);
        }
        let (mut prompt, mut messages) = Default::default();
        let mut c = Cursor::strict(body);
        if c.peek() != Ok(Kind::Object) {
            return Err(BAD_JSON);
        }
        let layout = Layout::scan(&mut c, MEMBERS, |name, c| {
            match name {
                "prompt" => prompt = input::prompt(c)?,
                "messages" => messages = input::messages(c)?,
                _ => {
                    c.skip()?;
                }
            }
            Ok(())
        })
        .map_err(|_| BAD_JSON)?;
        c.finish().map_err(|_| BAD_JSON)?;
        Ok(Scanned {
            body,
            layout,
            prompt,
            messages,
        })
    }

    pub fn types(&self) -> Result<(), Refusal> {
        for (name, fits, message) in TYPES {
            if self.given(name).is_some_and(|value| !fits(value)) {
                return Err(Refusal::new("bad_type", Some(name), message));
            }
        }
        if self.prompt.wrong_type {
            return Err(Refusal::new(
                "bad_type",
                Some("prompt"),
                "`prompt` must be a string or an array",
            ));
        }
        if self.messages.wrong_type {
            return Err(Refusal::new(
                "bad_type",
                Some("messages"),
                "`messages` must be an array of objects",
            ));
        }
        if self.given("vllm_xargs").is_some_and(|v| v[0] != b'{') {
            return Err(Refusal::new(
                "bad_type",
                Some("vllm_xargs"),
                "`vllm_xargs` must be an object",
            ));
        }
        Ok(())
    }

    /// One prompt a request: a handoff carries one prompt's KV only. vLLM adds `prompt_embeds` (one, or an array of them) to the
    /// prompts of `prompt`; with embeddings alone, clients send `prompt` empty.
    pub fn prompts(&self) -> Result<(), Refusal> {
        const ONE: &str = "Only one prompt is supported per request";
        if self.prompt.many {
            return Err(Refusal::new("prompts", Some("prompt"), ONE));
        }
        let Some(embeds) = self.given("prompt_embeds") else {
            return Ok(());
        };
        let own_prompt = self.given("prompt").is_some() && !self.prompt.empty;
        if own_prompt || array_len(embeds) > 1 {
            return Err(Refusal::new("prompts", Some("prompt_embeds"), ONE));
        }
        Ok(())
    }

    pub fn widths_below_one(&self) -> Result<(), Refusal> {
        for name in ["n", "best_of"] {
            if self.given(name).is_some_and(|v| integer(v) < 1) {
                return Err(Refusal::new(
                    "width",
                    Some(name),
                    "The value must be at least 1",
                ));
            }
        }
        Ok(())
    }

    pub fn widths_above_one(&self) -> Result<(), Refusal> {
        let wide = |name| self.given(name).is_some_and(|v| integer(v) > 1);
        if wide("n") || wide("best_of") {
            return Err(Refusal {
                after_model: true,
                ..Refusal::new(
                    "width",
                    None,
                    "Only one choice is supported: `n` and `best_of` above 1 are not",
                )
            });
        }
        Ok(())
    }

    pub fn reserved(&self, route: Route, dialect: Dialect) -> Result<(), Refusal> {
        // All occurrences: whichever of them an engine reads, none holds a transfer descriptor.
        for member in self.layout.all("vllm_xargs") {
            if has_member(&self.body[member.value.clone()], RESERVED_XARGS) {
                return Err(Refusal::new(
                    "reserved",
                    Some("vllm_xargs"),
                    "`vllm_xargs` holds a member that is reserved for the router",
                ));
            }
        }
        let names: &[&[&'static str]] = match (dialect, route) {
            (Dialect::Sglang, Route::Completions) => &[RESERVED_SGLANG],
            (Dialect::Sglang, Route::Chat) => &[RESERVED_SGLANG, RESERVED_SGLANG_CHAT],
            _ => &[],
        };
        for name in names.iter().copied().flatten() {
            if self.given(name).is_some() {
                return Err(Refusal::new(
                    "reserved",
                    Some(name),
                    "The field is reserved for the router",
                ));
            }
        }
        Ok(())
    }

    /// What an assembled answer cannot hold.
    pub fn options(&self) -> Result<(), Refusal> {
        let refused = [
            ("audio", self.given("audio").is_some()),
            (
                "modalities",
                self.given("modalities").is_some_and(|v| !is_text_only(v)),
            ),
            (
                "tools",
                self.given("tools").is_some_and(|v| !are_functions(v)),
            ),
            ("prompt_logprobs", self.given("prompt_logprobs").is_some()),
        ];
        match refused.iter().find(|(_, refused)| *refused) {
            Some((name, _)) => Err(Refusal::new(
                "option",
                Some(name),
                "The value is not supported without streaming",
            )),
            None => Ok(()),
        }
    }

    /// Whether legs need the fleet's name in place of the client's.
    pub fn model(&self, rules: &Rules<'_>) -> Result<bool, Refusal> {
        let Some(Ok(given)) = self.given("model").map(|v| Cursor::new(v).string()) else {
            return Ok(true);
        };
        if given.is(rules.model) {
            return Ok(self.layout.all("model").count() > 1);
        }
        if given.is_empty() || rules.aliases.iter().any(|alias| given.is(alias)) {
            return Ok(true);
        }
        Err(UNKNOWN_MODEL)
    }

    pub fn include_usage(&self) -> bool {
        self.given("stream_options")
            .and_then(|options| member_of(options, "include_usage"))
            == Some(b"true")
    }

    pub fn cap(&self, route: Route, dialect: Dialect) -> Option<u64> {
        let completion = (route == Route::Chat || dialect == Dialect::Sglang)
            .then(|| self.given("max_completion_tokens"))
            .flatten();
        let value = completion.or_else(|| self.given("max_tokens"))?;
        Some(u64::try_from(integer(value)).unwrap_or(0))
    }

    pub fn size(&self, route: Route) -> Prompt {
        match input_of(self.body, &self.layout, route) {
            Some(Input::Prompt) => match self.prompt.counted {
                Some(tokens) => Prompt::Counted(tokens),
                None => Prompt::Text {
                    chars: self.prompt.chars,
                },
            },
            Some(Input::Messages) => Prompt::Text {
                chars: self.messages.chars,
            },
            None => Prompt::Text { chars: 0 },
        }
    }

    pub fn flag(&self, name: &str) -> bool {
        self.given(name) == Some(b"true")
    }

    fn given(&self, name: &str) -> Option<&'a [u8]> {
        self.layout.given(self.body, name)
    }
}

type Fits = fn(&[u8]) -> bool;

/// Types of scalar members, in the order in which they are checked.
const TYPES: &[(&str, Fits, &str)] = &[
    ("model", |v| v[0] == b'"', "`model` must be a string"),
    ("stream", is_bool, "`stream` must be a Boolean"),
    (
        "return_token_ids",
        is_bool,
        "`return_token_ids` must be a Boolean",
    ),
    ("n", is_integer, "`n` must be an integer"),
    ("best_of", is_integer, "`best_of` must be an integer"),
    ("max_tokens", is_integer, "`max_tokens` must be an integer"),
    (
        "max_completion_tokens",
        is_integer,
        "`max_completion_tokens` must be an integer",
    ),
];

/// Members of `vllm_xargs` that reach vLLM's transfer machinery.
const RESERVED_XARGS: &[&str] = &[
    "kv_transfer_params",
    "ec_transfer_params",
    "kv_cache_report_mode",
];

const RESERVED_SGLANG: &[&str] = &["rid", "bootstrap_host", "bootstrap_port", "bootstrap_room"];

const RESERVED_SGLANG_CHAT: &[&str] = &[
    "return_token_ids",
    "return_prompt_token_ids",
    "return_meta_info",
];

const BAD_JSON: Refusal = Refusal::new(
    "bad_json",
    None,
    "The body must be one JSON object in UTF-8, without unpaired surrogates, and not nested too deeply",
);

const UNKNOWN_MODEL: Refusal = Refusal {
    status: 404,
    code: Some("model_not_found"),
    after_model: true,
    ..Refusal::new("model", None, "The model does not exist")
};
