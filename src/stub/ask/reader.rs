//! Reads the members of a body, one by one, into an [`Ask`]. Owns a cursor over the body; each fault is worded as pydantic
//! words it, as far as one line goes.
//!
//! Invariant: `member` leaves the cursor anywhere; `body` puts it behind the member's value, which it has checked whole.

use super::dialect::unknown;
use super::values::{DICT, LIST, STRING, json};
use super::{Ask, Part, Prompt, Route, Transfer, no_prompt};
use crate::base::units::Dialect;
use crate::stub::handoff::Claim;
use crate::stub::refusal::Refusal;
use crate::wire::json::{Cursor, Kind, RawStr};

/// A message's role and content.
pub(super) type Turn = (Vec<u8>, Vec<u8>);

pub(super) struct Reader<'a> {
    dialect: Dialect,
    pub(super) cursor: Cursor<'a>,
    pub(super) members: usize,
    pub(super) messages: Option<Vec<Turn>>,
    pub(super) tools: Option<Vec<u8>>,
    pub(super) generation_prompt: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(dialect: Dialect, body: &'a [u8]) -> Self {
        Reader {
            dialect,
            cursor: Cursor::new(body),
            members: 0,
            messages: None,
            tools: None,
            generation_prompt: true,
        }
    }

    /// Reads the whole body.
    pub(super) fn body(&mut self, route: Route) -> Result<Ask, Refusal> {
        let mut ask = Ask::default();
        if self.peek()? != Kind::Object {
            let input = self.input()?;
            self.finish()?;
            let msg = "Input should be a valid dictionary or object to extract fields from";
            return Err(Refusal::schema(
                "model_attributes_type",
                "body",
                msg,
                &input,
                "",
            ));
        }
        // A wrong type is told only when the whole body is JSON.
        let mut wrong = None;
        let mut walk = self.cursor.object().map_err(json)?;
        while let Some(key) = self.cursor.key(&mut walk).map_err(json)? {
            self.members += 1;
            let before = self.cursor.clone();
            self.cursor.skip().map_err(json)?;
            let after = std::mem::replace(&mut self.cursor, before);
            if let Err(refusal) = self.member_in(route, &mut ask, key) {
                wrong.get_or_insert(refusal);
            }
            self.cursor = after;
        }
        self.finish()?;
        wrong.map_or(Ok(ask), Err)
    }

    /// As [`Reader::member`], for what this dialect knows.
    fn member_in(&mut self, route: Route, ask: &mut Ask, key: RawStr<'a>) -> Result<(), Refusal> {
        if unknown(self.dialect, route, key)
            || (self.dialect == Dialect::Sglang && self.sglang_member(route, ask, key)?)
        {
            return Ok(());
        }
        self.member(route, ask, key)
    }

    fn member(&mut self, route: Route, ask: &mut Ask, key: RawStr<'a>) -> Result<(), Refusal> {
        let null = self.peek()? == Kind::Null;
        let is = |name| key.is(name);
        if is("model") {
            ask.model = self.text("body.model")?;
        } else if is("prompt") && route != Route::Chat {
            ask.prompt = if null { None } else { Some(self.prompt()?) };
        } else if is("messages") && route != Route::Completion {
            self.messages = if null { None } else { Some(self.messages()?) };
        } else if is("tools") {
            let input = self.cursor.input();
            let span = self.cursor.skip().map_err(json)?;
            self.tools = (!null).then(|| input[span].to_vec());
        } else if is("add_generation_prompt") {
            self.generation_prompt = self.flag("body.add_generation_prompt")?.unwrap_or(true);
        } else if is("stream") {
            ask.stream = self.flag("body.stream")?.unwrap_or(false);
        } else if is("stream_options") {
            ask.stream_options = !null;
            self.stream_options(ask)?;
        } else if is("max_tokens") {
            ask.max_tokens = self.integer("body.max_tokens")?;
        } else if is("max_completion_tokens") && route == Route::Chat {
            ask.max_completion_tokens = self.integer("body.max_completion_tokens")?;
        } else if is("min_tokens") {
            ask.min_tokens = self.integer("body.min_tokens")?;
        } else if is("n") {
            ask.n = self.integer("body.n")?;
        } else if is("temperature") {
            ask.temperature = self.number("body.temperature")?;
        } else if is("prompt_logprobs") {
            ask.prompt_logprobs = self.integer("body.prompt_logprobs")?.is_some();
        } else if is("ignore_eos") {
            ask.ignore_eos = self.flag("body.ignore_eos")?.unwrap_or(false);
        } else if is("return_token_ids") {
            ask.return_token_ids = self.flag("body.return_token_ids")?.unwrap_or(false);
        } else if is("return_token_strs") {
            ask.return_token_strs = self.flag("body.return_token_strs")?.unwrap_or(false);
        } else if is("stream_interval") {
            ask.stream_interval = self.integer("body.stream_interval")?;
        } else if is("request_id") {
            ask.request_id = self.text("body.request_id")?;
        } else if is("kv_transfer_params") {
            ask.transfer = self.transfer()?;
        }
        Ok(())
    }

    fn stream_options(&mut self, ask: &mut Ask) -> Result<(), Refusal> {
        if !self.enter_object("body.stream_options", "model_attributes_type")? {
            return Ok(());
        }
        let mut walk = self.cursor.object().map_err(json)?;
        while let Some(key) = self.cursor.key(&mut walk).map_err(json)? {
            if key.is("include_usage") {
                let loc = "body.stream_options.include_usage";
                ask.include_usage = self.flag(loc)?.unwrap_or(false);
            } else if key.is("continuous_usage_stats") {
                let loc = "body.stream_options.continuous_usage_stats";
                ask.continuous_usage = self.flag(loc)?.unwrap_or(false);
            } else {
                self.cursor.skip().map_err(json)?;
            }
        }
        Ok(())
    }

    fn transfer(&mut self) -> Result<Transfer, Refusal> {
        if !self.enter_object("body.kv_transfer_params", "dict_type")? {
            return Ok(Transfer::None);
        }
        let (mut make, mut fetch) = (false, false);
        let (mut engine, mut request, mut blocks) = (None, None, None);
        let mut cached_tokens = 0;
        let mut walk = self.cursor.object().map_err(json)?;
        while let Some(key) = self.cursor.key(&mut walk).map_err(json)? {
            let kind = self.peek()?;
            if key.is("do_remote_decode") {
                make = kind == Kind::True;
            } else if key.is("do_remote_prefill") {
                fetch = kind == Kind::True;
            } else if kind == Kind::String {
                let mut value = Vec::new();
                self.cursor
                    .string()
                    .map_err(json)?
                    .unescape_into(&mut value);
                if key.is("remote_engine_id") {
                    engine = Some(value);
                } else if key.is("remote_request_id") {
                    request = Some(value);
                }
                continue;
            } else if key.is("remote_block_ids") && kind == Kind::Array {
                blocks = Some(self.blocks()?);
                continue;
            } else if key.is("remote_prefill_cached_tokens") && kind == Kind::Number {
                cached_tokens = self.number("")?.unwrap_or(0.0).max(0.0) as u64;
                continue;
            }
            self.cursor.skip().map_err(json)?;
        }
        Ok(match (fetch, engine, request, blocks) {
            (true, Some(engine), Some(request), Some(blocks)) => Transfer::Fetch(Claim {
                engine,
                request,
                blocks,
                cached_tokens,
            }),
            // Without all it needs vLLM warns in its log, and decodes alone.
            (true, ..) => Transfer::None,
            (false, ..) if make => Transfer::Make,
            (false, ..) => Transfer::None,
        })
    }

    /// A list of ids, or of lists of ids.
    fn blocks(&mut self) -> Result<Vec<u32>, Refusal> {
        let mut out = Vec::new();
        let mut outer = self.cursor.array().map_err(json)?;
        while self.cursor.item(&mut outer).map_err(json)? {
            if self.peek()? != Kind::Array {
                out.push(self.block()?);
                continue;
            }
            let mut inner = self.cursor.array().map_err(json)?;
            while self.cursor.item(&mut inner).map_err(json)? {
                out.push(self.block()?);
            }
        }
        Ok(out)
    }

    fn block(&mut self) -> Result<u32, Refusal> {
        let input = self.cursor.input();
        let span = self.cursor.skip().map_err(json)?;
        Ok(std::str::from_utf8(&input[span])
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(u32::MAX))
    }

    fn prompt(&mut self) -> Result<Prompt, Refusal> {
        match self.peek()? {
            Kind::String => {
                let mut text = Vec::new();
                self.cursor.string().map_err(json)?.unescape_into(&mut text);
                if text.is_empty() {
                    return Err(no_prompt());
                }
                Ok(Prompt(vec![Part::Text(text)]))
            }
            Kind::Array => self.prompt_list(),
            _ => Err(self.prompt_faults()?),
        }
    }

    /// `[1, 2]`, `["a"]` or `[[1, 2]]`. More than one prompt would make more than one choice, which this engine does not.
    fn prompt_list(&mut self) -> Result<Prompt, Refusal> {
        let mut ids = Vec::new();
        let mut prompt = None;
        let mut prompts = 0;
        let start = self.cursor.clone();
        let mut walk = self.cursor.array().map_err(json)?;
        while self.cursor.item(&mut walk).map_err(json)? {
            match self.peek()? {
                Kind::String => {
                    prompts += 1;
                    prompt = Some(self.prompt()?);
                }
                Kind::Array => {
                    prompts += 1;
                    let mut ids = Vec::new();
                    let mut inner = self.cursor.array().map_err(json)?;
                    while self.cursor.item(&mut inner).map_err(json)? {
                        match self.prompt_id("") {
                            Ok(id) => ids.push(id),
                            Err(_) => {
                                self.cursor = start;
                                return Err(self.prompt_faults()?);
                            }
                        }
                    }
                    prompt = Some(Prompt(vec![Part::Ids(ids)]));
                }
                _ => match self.prompt_id("") {
                    Ok(id) => ids.push(id),
                    Err(_) => {
                        self.cursor = start;
                        return Err(self.prompt_faults()?);
                    }
                },
            }
        }
        match (prompts, prompt, ids.is_empty()) {
            (0, _, false) => Ok(Prompt(vec![Part::Ids(ids)])),
            (1, Some(prompt), true) => Ok(prompt),
            (0, _, true) => Err(Refusal::bad("You must pass at least one prompt", None)),
            _ => Err(Refusal::bad(
                "The simulated engine takes one prompt a request",
                Some("prompt"),
            )),
        }
    }

    pub(super) fn prompt_id(&mut self, loc: &str) -> Result<u32, Refusal> {
        let value = match self.peek()? {
            Kind::Number => self.integer(loc)?,
            _ => None,
        };
        match value {
            None => Err(self.type_fault("int_type", loc, "Input should be a valid integer")?),
            Some(n) => u32::try_from(n).map_err(|_| {
                let msg = "Input should be greater than or equal to 0";
                let more = ", 'ctx': {'ge': 0}";
                Refusal::schema("greater_than_equal", loc, msg, &n.to_string(), more)
            }),
        }
    }

    fn messages(&mut self) -> Result<Vec<Turn>, Refusal> {
        let loc = "body.messages";
        if self.peek()? != Kind::Array {
            return Err(self.type_fault("list_type", loc, LIST)?);
        }
        let mut out = Vec::new();
        let mut walk = self.cursor.array().map_err(json)?;
        while self.cursor.item(&mut walk).map_err(json)? {
            let loc = format!("body.messages.{}", out.len());
            if !self.enter_object(&loc, "dict_type")? {
                return Err(Refusal::schema("dict_type", &loc, DICT, "None", ""));
            }
            let (mut role, mut content) = (Vec::new(), Vec::new());
            let mut message = self.cursor.object().map_err(json)?;
            while let Some(key) = self.cursor.key(&mut message).map_err(json)? {
                let kind = self.peek()?;
                if key.is("role") && kind == Kind::String {
                    role.clear();
                    self.cursor.string().map_err(json)?.unescape_into(&mut role);
                } else if key.is("content") {
                    content.clear();
                    self.content(&loc, &mut content)?;
                } else {
                    self.cursor.skip().map_err(json)?;
                }
            }
            out.push((role, content));
        }
        Ok(out)
    }

    /// A string, or a list of parts whose texts count.
    fn content(&mut self, loc: &str, out: &mut Vec<u8>) -> Result<(), Refusal> {
        match self.peek()? {
            Kind::Null => {
                self.cursor.skip().map_err(json)?;
            }
            Kind::String => self.cursor.string().map_err(json)?.unescape_into(out),
            Kind::Array => {
                let mut walk = self.cursor.array().map_err(json)?;
                while self.cursor.item(&mut walk).map_err(json)? {
                    if self.peek()? != Kind::Object {
                        self.cursor.skip().map_err(json)?;
                        continue;
                    }
                    let mut part = self.cursor.object().map_err(json)?;
                    while let Some(key) = self.cursor.key(&mut part).map_err(json)? {
                        if key.is("text") && self.peek()? == Kind::String {
                            self.cursor.string().map_err(json)?.unescape_into(out);
                        } else {
                            self.cursor.skip().map_err(json)?;
                        }
                    }
                }
            }
            _ => {
                let loc = format!("{loc}.content");
                return Err(self.type_fault("string_type", &loc, STRING)?);
            }
        }
        Ok(())
    }
}
