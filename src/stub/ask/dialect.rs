//! The members that dialects do not share. Owns nothing; reads with the [`Reader`].
//!
//! Invariant: what is unknown here is never read, so its type cannot matter.

use super::reader::Reader;
use super::values::json;
use super::{Ask, Route};
use crate::base::units::Dialect;
use crate::stub::refusal::Refusal;
use crate::wire::json::{Kind, RawStr};

/// vLLM's own.
const VLLM: [&str; 5] = [
    "kv_transfer_params",
    "prompt_logprobs",
    "request_id",
    "return_token_strs",
    "stream_interval",
];

/// Of vLLM and SGLang.
const EXTENDED: [&str; 4] = [
    "add_generation_prompt",
    "ignore_eos",
    "min_tokens",
    "return_token_ids",
];

/// Whether `dialect` passes `key` over. SGLang and llama.cpp ignore what they do not know, as nearly every server of the API;
/// OpenAI itself refuses it, but is rarely what stands behind a router.
pub(super) fn unknown(dialect: Dialect, route: Route, key: RawStr<'_>) -> bool {
    let in_list = |list: &[&str]| list.iter().any(|name| key.is(name));
    match dialect {
        Dialect::Vllm => false,
        // Chats of SGLang have no ids to return.
        Dialect::Sglang => in_list(&VLLM) || (route == Route::Chat && key.is("return_token_ids")),
        Dialect::Openai => in_list(&VLLM) || in_list(&EXTENDED),
    }
}

impl<'a> Reader<'a> {
    /// Reads a member that SGLang alone has; `false` when `key` is none.
    pub(super) fn sglang_member(
        &mut self,
        route: Route,
        ask: &mut Ask,
        key: RawStr<'a>,
    ) -> Result<bool, Refusal> {
        if key.is("rid") {
            ask.rid = self.text("body.rid")?;
        } else if key.is("bootstrap_host") {
            ask.bootstrap_host = self.text("body.bootstrap_host")?;
        } else if key.is("bootstrap_port") {
            self.integer("body.bootstrap_port")?;
        } else if key.is("bootstrap_room") {
            ask.bootstrap_room = self.room()?;
        } else if key.is("chat_template_kwargs") && route == Route::Chat {
            ask.thinking = self.thinking()?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// A room's number, exactly: 63 bits do not fit in a float.
    fn room(&mut self) -> Result<Option<u64>, Refusal> {
        const LOC: &str = "body.bootstrap_room";
        if self.peek()? != Kind::Number {
            return Ok(self.integer(LOC)?.map(|n| n.unsigned_abs()));
        }
        let before = self.cursor.clone();
        let text = self.cursor.number().map_err(json)?;
        let number = std::str::from_utf8(text).ok().and_then(|t| t.parse().ok());
        if number.is_none() {
            self.cursor = before;
            let msg = "Input should be a valid integer";
            return Err(self.type_fault("int_type", LOC, msg)?);
        }
        Ok(number)
    }

    /// `enable_thinking` or `thinking`, as chat templates of reasoning models name it.
    fn thinking(&mut self) -> Result<bool, Refusal> {
        if !self.enter_object("body.chat_template_kwargs", "dict_type")? {
            return Ok(false);
        }
        let mut on = false;
        let mut walk = self.cursor.object().map_err(json)?;
        while let Some(key) = self.cursor.key(&mut walk).map_err(json)? {
            if key.is("enable_thinking") || key.is("thinking") {
                on = self.peek()? == Kind::True;
            }
            self.cursor.skip().map_err(json)?;
        }
        Ok(on)
    }
}
