//! Legs as vLLM speaks them (0.32, NIXL): the prefill leg asks for one token and a handoff, the decode leg carries the handoff.
//!
//! Bodies are the client's bytes with members edited, never serialised again: pure functions of the body and the spans
//! that [`check`](crate::wire::openai::check) kept. Why each member is edited:
//!
//! - `stream_options` without `stream` is a 400, and `max_completion_tokens` wins over `max_tokens`: both leave the prefill leg.
//! - `min_tokens` above 1 is refused beside `max_tokens: 1`; `n` above 1 would leave the other children's blocks to the lease.
//! - `kv_transfer_params` and `ec_transfer_params` are trusted by engines (wrong block ids end a decode engine), so a client's own never
//!   pass, whatever their spelling and however often they occur.
//! - `stream_interval: 1` and `return_token_ids`, so that every token is seen, in time and by number.
//!
//! Answers are distrusted: strict JSON, typed members, digits only where a count or a block id stands.
//!
//! Invariant: a handoff that comes out of [`prefill_answer`] is UTF-8 and a JSON object, so the decode leg it goes into stays JSON.

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::base::limits;
use crate::wire::json::{Cursor, JsonFault, Kind};
use crate::wire::openai::{EngineError, Input, Request, Route, engine_error, write_string};
use crate::wire::splice::{Edit, splice};

/// Appends the prefill leg's body.
pub fn prefill_body(out: &mut Vec<u8>, body: &[u8], req: &Request, model: &str) {
    let edits = [
        ("max_tokens", Edit::Set(b"1")),
        ("stream", Edit::Set(b"false")),
        (
            "kv_transfer_params",
            Edit::Set(b"{\"do_remote_decode\":true}"),
        ),
        ("ec_transfer_params", Edit::Remove),
        ("stream_options", Edit::Remove),
        ("min_tokens", Edit::Remove),
        ("n", Edit::Remove),
        ("best_of", Edit::Remove),
        ("max_completion_tokens", Edit::Remove),
        ("model", Edit::Text(model)),
    ];
    splice(out, body, &req.layout, with_model(&edits, req));
}

/// Appends the decode leg's body. No handoff when the engine that prefilled decodes too, or when one leg does both.
pub fn decode_body(
    out: &mut Vec<u8>,
    body: &[u8],
    req: &Request,
    model: &str,
    handoff: Option<&[u8]>,
) {
    let edits = [
        ("stream", Edit::Set(b"true")),
        ("return_token_ids", Edit::Set(b"true")),
        ("stream_interval", Edit::Set(b"1")),
        (
            "kv_transfer_params",
            handoff.map_or(Edit::Remove, Edit::Set),
        ),
        ("ec_transfer_params", Edit::Remove),
        ("model", Edit::Text(model)),
    ];
    splice(out, body, &req.layout, with_model(&edits, req));
}

/// Appends what `POST /tokenize` is asked: the model, the prompt or the messages, and what changes their count. A body with
/// neither asks with neither, and the engine says what is missing.
pub fn tokenize_body(out: &mut Vec<u8>, body: &[u8], req: &Request, route: Route, model: &str) {
    const WITH_MESSAGES: &[&str] = &[
        "messages",
        "tools",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "add_generation_prompt",
        "add_special_tokens",
    ];
    const WITH_PROMPT: &[&str] = &["prompt", "add_special_tokens"];
    let names = match req.input(body, route) {
        Some(Input::Messages) => WITH_MESSAGES,
        Some(Input::Prompt) => WITH_PROMPT,
        None => &[],
    };
    out.extend_from_slice(b"{\"model\":");
    write_string(out, model);
    for name in names {
        let only = req.only_prompt.clone().filter(|_| *name == "prompt");
        let value = match only {
            Some(span) => body.get(span),
            None => req.layout.given(body, name),
        };
        if let Some(value) = value {
            out.push(b',');
            write_string(out, name);
            out.push(b':');
            out.extend_from_slice(value);
        }
    }
    out.push(b'}');
}

/// The `count` of a `/tokenize` answer: an integer of digits only, at most [`limits::PROMPT_TOKENS_MAX`], in a JSON object that is
/// no error.
pub fn tokenize_count(answer: &[u8]) -> Option<u64> {
    let mut c = Cursor::new(answer);
    if c.peek().ok()? != Kind::Object {
        return None;
    }
    let mut count = None;
    let mut walk = c.object().ok()?;
    while let Some(key) = c.key(&mut walk).ok()? {
        let span = c.skip().ok()?;
        if key.is("count") {
            count = digits(&answer[span]);
        }
    }
    c.finish().ok()?;
    count.filter(|n| *n <= limits::PROMPT_TOKENS_MAX && engine_error(answer).is_none())
}

/// What a prefill answer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefillAnswer {
    /// Span of the `kv_transfer_params` value, which goes to the decode leg as it is.
    pub handoff: Result<Range<usize>, HandoffFault>,
    /// `usage.prompt_tokens`.
    pub prompt_tokens: Option<u64>,
    /// `usage.prompt_tokens_details.cached_tokens`: what this engine had of the prompt. The decode leg's own figure is not that.
    pub cached_tokens: Option<u64>,
    /// The answer is an error in a 200.
    pub error: Option<EngineError>,
    /// `finish_reason` is `abort`: the engine is shutting down, and its handoff is worth nothing.
    pub aborted: bool,
}

/// Why a handoff cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffFault {
    /// Absent or null in `choices[0]` and at the top.
    Missing,
    /// Not a nonempty object (of UTF-8).
    NotObject,
    /// `remote_engine_id` is not a nonempty string.
    EngineId,
    /// `remote_block_ids` is not a list of nonnegative integers, nor a list of such lists.
    BlockIds,
}

/// The answer is not one JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotJson;

/// Reads the answer of a prefill leg.
pub fn prefill_answer(answer: &[u8]) -> Result<PrefillAnswer, NotJson> {
    let found = Found::read(answer).map_err(|_| NotJson)?.ok_or(NotJson)?;
    let handoff = match found.choice_params.or(found.top_params) {
        None => Err(HandoffFault::Missing),
        Some(span) => check_handoff(&answer[span.clone()]).map(|()| span),
    };
    Ok(PrefillAnswer {
        handoff,
        prompt_tokens: found.prompt_tokens,
        cached_tokens: found.cached_tokens,
        error: found.error.then(|| engine_error(answer)).flatten(),
        aborted: found.aborted,
    })
}

/// The edits, without the last (the model's) when the client's own name is the fleet's: its bytes then stay.
pub(super) fn with_model<'s, 'e>(
    edits: &'s [(&'static str, Edit<'e>)],
    req: &Request,
) -> &'s [(&'static str, Edit<'e>)] {
    let kept = edits.len() - usize::from(!req.model_rewritten);
    &edits[..kept]
}

#[derive(Default)]
struct Found {
    choice_params: Option<Range<usize>>,
    top_params: Option<Range<usize>>,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    aborted: bool,
    /// It has what an error has, if not more.
    error: bool,
}

impl Found {
    /// `Ok(None)`: JSON, but no object. Last duplicates win.
    fn read(answer: &[u8]) -> Result<Option<Found>, JsonFault> {
        let mut found = Found::default();
        let mut c = Cursor::new(answer);
        if c.peek()? != Kind::Object {
            return Ok(None);
        }
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            if key.is("choices") {
                (found.choice_params, found.aborted) = (None, false);
                found.choices(&mut c)?;
            } else if key.is("usage") {
                (found.prompt_tokens, found.cached_tokens) = (None, None);
                found.usage(&mut c)?;
            } else if key.is("kv_transfer_params") {
                found.top_params = non_null(&mut c)?;
            } else if key.is("object") && c.peek()? == Kind::String {
                found.error |= c.string()?.is("error");
            } else {
                found.error |= key.is("error");
                c.skip()?;
            }
        }
        c.finish()?;
        Ok(Some(found))
    }

    /// The first choice counts; the others are passed.
    fn choices(&mut self, c: &mut Cursor<'_>) -> Result<(), JsonFault> {
        if c.peek()? != Kind::Array {
            return c.skip().map(|_| ());
        }
        let mut first = true;
        let mut items = c.array()?;
        while c.item(&mut items)? {
            if !std::mem::take(&mut first) || c.peek()? != Kind::Object {
                c.skip()?;
                continue;
            }
            let mut walk = c.object()?;
            while let Some(key) = c.key(&mut walk)? {
                if key.is("kv_transfer_params") {
                    self.choice_params = non_null(c)?;
                } else if key.is("finish_reason") {
                    let string = c.peek()? == Kind::String;
                    self.aborted = string && c.clone().string()?.is("abort");
                    c.skip()?;
                } else {
                    c.skip()?;
                }
            }
        }
        Ok(())
    }

    fn usage(&mut self, c: &mut Cursor<'_>) -> Result<(), JsonFault> {
        if c.peek()? != Kind::Object {
            return c.skip().map(|_| ());
        }
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            if key.is("prompt_tokens") {
                self.prompt_tokens = tokens(c)?;
            } else if key.is("prompt_tokens_details") && c.peek()? == Kind::Object {
                let mut details = c.object()?;
                while let Some(key) = c.key(&mut details)? {
                    let count = tokens(c)?;
                    if key.is("cached_tokens") {
                        self.cached_tokens = count;
                    }
                }
            } else {
                c.skip()?;
            }
        }
        Ok(())
    }
}

/// Passes a value; its span unless it is null.
fn non_null(c: &mut Cursor<'_>) -> Result<Option<Range<usize>>, JsonFault> {
    let kind = c.peek()?;
    let span = c.skip()?;
    Ok((kind != Kind::Null).then_some(span))
}

/// Passes a value; its number when it is a plausible count.
fn tokens(c: &mut Cursor<'_>) -> Result<Option<u64>, JsonFault> {
    let span = c.skip()?;
    Ok(digits(&c.input()[span]).filter(|n| *n <= limits::PROMPT_TOKENS_MAX))
}

/// A number of digits only that fits.
fn digits(value: &[u8]) -> Option<u64> {
    value.iter().try_fold(0u64, |n, b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

fn check_handoff(value: &[u8]) -> Result<(), HandoffFault> {
    if std::str::from_utf8(value).is_err() {
        return Err(HandoffFault::NotObject);
    }
    // The whole answer has been checked, so a fault only says that the value is no object.
    let ids = handoff_ids(value).ok().flatten();
    let (engine, blocks) = ids.ok_or(HandoffFault::NotObject)?;
    if !engine {
        Err(HandoffFault::EngineId)
    } else if !blocks {
        Err(HandoffFault::BlockIds)
    } else {
        Ok(())
    }
}

/// Whether the engine id and the block ids hold; `None` unless it is a nonempty object.
fn handoff_ids(value: &[u8]) -> Result<Option<(bool, bool)>, JsonFault> {
    let mut c = Cursor::new(value);
    if c.peek()? != Kind::Object {
        return Ok(None);
    }
    let (mut empty, mut engine, mut blocks) = (true, false, false);
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        empty = false;
        if key.is("remote_engine_id") {
            engine = c.peek()? == Kind::String && !c.clone().string()?.is_empty();
            c.skip()?;
        } else if key.is("remote_block_ids") {
            blocks = block_ids(&mut c)?;
        } else {
            c.skip()?;
        }
    }
    Ok((!empty).then_some((engine, blocks)))
}

/// Passes a value; whether it is a list of nonnegative integers, or a list of such lists (one a KV cache group). Not both mixed.
fn block_ids(c: &mut Cursor<'_>) -> Result<bool, JsonFault> {
    if c.peek()? != Kind::Array {
        c.skip()?;
        return Ok(false);
    }
    let (mut ids, mut lists, mut others) = (0u64, 0u64, 0u64);
    let mut walk = c.array()?;
    while c.item(&mut walk)? {
        match c.peek()? {
            Kind::Number => {
                ids += c.digit_items(&mut walk);
                match c.number()?.iter().all(u8::is_ascii_digit) {
                    true => ids += 1,
                    false => others += 1,
                }
            }
            Kind::Array => {
                lists += 1;
                let mut group = c.array()?;
                while c.item(&mut group)? {
                    c.digit_items(&mut group);
                    let span = c.skip()?;
                    others += u64::from(!c.input()[span].iter().all(u8::is_ascii_digit));
                }
            }
            _ => {
                c.skip()?;
                others += 1;
            }
        }
    }
    Ok(others == 0 && (ids == 0 || lists == 0))
}

#[doc(hidden)]
pub mod fuzzing {
    //! Bodies for fuzz targets.

    use super::*;
    use crate::wire::dialect::Dialect;
    use crate::wire::openai::{Rules, check};
    use crate::wire::splice::fuzzing::{assert_edited, members};

    const HANDOFF: &str = r#"{"remote_engine_id":"e","remote_block_ids":[[1,2],[3]]}"#;

    /// Every body that passes makes legs that are the naive edit of it.
    pub fn legs(data: &[u8]) {
        for route in [Route::Completions, Route::Chat] {
            let rules = Rules {
                dialect: Dialect::Vllm,
                model: "m",
                aliases: &["alias".to_owned()],
            };
            let Ok(req) = check(route, data, &rules) else {
                continue;
            };
            legs_of(data, route, &req);
        }
    }

    fn legs_of(body: &[u8], route: Route, req: &Request) {
        // The model stays when it is there once and equal; written again over itself it is the same value.
        let given = members(body).expect("checked");
        let own: Vec<_> = given.iter().filter(|m| m.0 == "model").collect();
        let kept = own.len() == 1
            && serde_json::from_str::<String>(&own[0].1).is_ok_and(|model| model == "m");
        let model = ("model", Some("\"m\""));
        let mut prefill = vec![
            ("max_tokens", Some("1")),
            ("stream", Some("false")),
            ("kv_transfer_params", Some("{\"do_remote_decode\":true}")),
            ("ec_transfer_params", None),
            ("stream_options", None),
            ("min_tokens", None),
            ("n", None),
            ("best_of", None),
            ("max_completion_tokens", None),
        ];
        prefill.extend((!kept).then_some(model));
        let mut out = Vec::new();
        prefill_body(&mut out, body, req, "m");
        assert_edited(body, &out, &prefill);
        for handoff in [None, Some(HANDOFF)] {
            let mut decode = vec![
                ("stream", Some("true")),
                ("return_token_ids", Some("true")),
                ("stream_interval", Some("1")),
                ("kv_transfer_params", handoff),
                ("ec_transfer_params", None),
            ];
            decode.extend((!kept).then_some(model));
            out.clear();
            decode_body(&mut out, body, req, "m", handoff.map(str::as_bytes));
            assert_edited(body, &out, &decode);
        }
        out.clear();
        tokenize_body(&mut out, body, req, route, "m");
        let asked = members(&out).expect("the question is an object");
        for (name, value) in &asked[1..] {
            let mine = given
                .iter()
                .rev()
                .find(|m| m.0 == *name)
                .expect("the client's own");
            assert!(mine.1 == *value || name == "prompt" && mine.1.contains(value.as_str()));
        }
    }

    /// No answer panics; a handoff that passes is what serde_json finds there, and a count what it reads.
    pub fn answers(data: &[u8]) {
        let value = serde_json::from_slice::<serde_json::Value>(data).ok();
        if let (Some(count), Some(value)) = (tokenize_count(data), &value) {
            assert_eq!(value["count"].as_u64(), Some(count));
        }
        let Ok(answer) = prefill_answer(data) else {
            return;
        };
        if let (Ok(span), Some(value)) = (answer.handoff, &value) {
            let ours: serde_json::Value =
                serde_json::from_slice(&data[span]).expect("a handoff is JSON");
            let first = &value["choices"][0]["kv_transfer_params"];
            let theirs = if first.is_null() {
                &value["kv_transfer_params"]
            } else {
                first
            };
            assert_eq!(&ours, theirs);
            assert!(
                ours["remote_engine_id"]
                    .as_str()
                    .is_some_and(|id| !id.is_empty())
            );
            assert!(ours["remote_block_ids"].is_array());
        }
    }
}
