//! What a request body asks of a simulated engine. Reads the members that matter, in any order, once; the rest is checked as
//! JSON and ignored. Of a member that comes twice the last counts (Python's `json`). `null` is the same as absent.
//!
//! Invariant: an [`Ask`] has only values of the right type; whether they make sense together is checked in `engine`.

mod dialect;
mod reader;
mod union;
mod values;

use self::reader::{Reader, Turn};
use crate::base::units::Dialect;
use crate::stub::handoff::Claim;
use crate::stub::refusal::Refusal;
use crate::stub::text;

/// Which route's body it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Completion,
    Chat,
    Tokenize,
}

/// A prompt in parts: control tokens and ids as they are, texts yet to be cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Ids(Vec<u32>),
    Text(Vec<u8>),
}

/// What the request wants with the KV of other engines.
#[derive(Clone, Debug, Default)]
pub enum Transfer {
    #[default]
    None,
    /// Prefill leg: keep it for another engine.
    Make,
    /// Decode leg: fetch it from another engine.
    Fetch(Claim),
}

/// One request.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    pub model: Option<String>,
    pub prompt: Option<Prompt>,
    pub stream: bool,
    pub stream_options: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub min_tokens: Option<i64>,
    pub n: Option<i64>,
    pub temperature: Option<f64>,
    pub prompt_logprobs: bool,
    pub ignore_eos: bool,
    pub return_token_ids: bool,
    pub return_token_strs: bool,
    pub stream_interval: Option<i64>,
    pub request_id: Option<String>,
    pub transfer: Transfer,
    /// SGLang: the request's name, and where its legs meet.
    pub rid: Option<String>,
    pub bootstrap_host: Option<String>,
    pub bootstrap_room: Option<u64>,
    /// SGLang: the chat template was asked for reasoning.
    pub thinking: bool,
}

impl Prompt {
    pub fn ids(&self) -> Vec<u32> {
        let mut out = Vec::new();
        for part in &self.0 {
            match part {
                Part::Ids(ids) => out.extend_from_slice(ids),
                Part::Text(text) => text::tokenize(text, &mut out),
            }
        }
        out
    }

    /// The text of each token; control tokens and bare ids by number.
    pub fn strs(&self) -> Vec<String> {
        let mut out = Vec::new();
        for part in &self.0 {
            match part {
                Part::Ids(ids) => out.extend(ids.iter().map(|id| format!("<|{id}|>"))),
                Part::Text(text) => {
                    out.extend(text::Pieces(text).map(|p| String::from_utf8_lossy(p).into_owned()))
                }
            }
        }
        out
    }
}

/// Reads `body`, which is UTF-8, as vLLM does.
pub fn read(route: Route, body: &[u8]) -> Result<Ask, Refusal> {
    read_in(Dialect::Vllm, route, body)
}

/// Reads `body`, which is UTF-8. Members that a dialect does not know are passed over, whatever they hold.
pub fn read_in(dialect: Dialect, route: Route, body: &[u8]) -> Result<Ask, Refusal> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    if body.is_empty() {
        return Err(Refusal::schema(
            "missing",
            "body",
            "Field required",
            "None",
            "",
        ));
    }
    let mut reader = Reader::new(dialect, body);
    let mut ask = reader.body(route).map_err(|refusal| {
        // JSON or not comes before what it holds.
        values::not_json(body).unwrap_or(refusal)
    })?;
    if route != Route::Completion
        && let Some(messages) = reader.messages.take()
    {
        ask.prompt = Some(chat_prompt(
            reader.tools.take(),
            messages,
            reader.generation_prompt,
        )?);
    }
    if ask.prompt.is_none() {
        return Err(missing_prompt(route, reader.members));
    }
    Ok(ask)
}

fn missing_prompt(route: Route, members: usize) -> Refusal {
    let loc = match route {
        Route::Completion => return no_prompt(),
        Route::Chat => "body.messages",
        Route::Tokenize => "body.prompt",
    };
    let input = format!("<dict of {members} items>");
    Refusal::schema("missing", loc, "Field required", &input, "")
}

/// One turn after the other between control tokens, tools first, as ChatML templates do.
fn chat_prompt(
    tools: Option<Vec<u8>>,
    messages: Vec<Turn>,
    generation_prompt: bool,
) -> Result<Prompt, Refusal> {
    if messages.is_empty() {
        return Err(Refusal::bad(
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
            None,
        ));
    }
    let mut parts = Vec::new();
    if let Some(tools) = tools {
        parts.extend([
            Part::Ids(vec![text::TURN_START]),
            Part::Text(tools),
            Part::Ids(vec![text::TURN_END]),
        ]);
    }
    for (mut role, content) in messages {
        role.push(b'\n');
        parts.extend([
            Part::Ids(vec![text::TURN_START]),
            Part::Text(role),
            Part::Text(content),
            Part::Ids(vec![text::TURN_END]),
        ]);
    }
    if generation_prompt {
        parts.extend([
            Part::Ids(vec![text::TURN_START]),
            Part::Text(b"assistant\n".to_vec()),
        ]);
    }
    Ok(Prompt(parts))
}

fn no_prompt() -> Refusal {
    Refusal::bad(
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
        Some("prompt"),
    )
}

#[doc(hidden)]
pub mod fuzzing {
    //! Any body is read or refused; where serde_json reads it too, the two agree on what they both know.

    use serde_json::Value;

    use super::{Dialect, Route, read, read_in};

    pub fn fuzz(data: &[u8]) {
        for route in [Route::Completion, Route::Chat, Route::Tokenize] {
            for dialect in [Dialect::Sglang, Dialect::Openai] {
                let _ = read_in(dialect, route, data);
            }
            let Ok(ask) = read(route, data) else {
                continue;
            };
            let Ok(body) = serde_json::from_slice::<Value>(data) else {
                continue;
            };
            assert!(body.is_object());
            assert_eq!(ask.model.as_deref(), body["model"].as_str());
            assert_eq!(ask.stream, body["stream"] == Value::Bool(true));
            assert_eq!(
                ask.max_tokens.map(|n| n as f64),
                body["max_tokens"]
                    .as_f64()
                    .filter(|n| n.abs() < 9e15)
                    .or(ask.max_tokens.map(|n| n as f64))
            );
            if let (Route::Completion, Value::String(prompt), Some(read)) =
                (route, &body["prompt"], &ask.prompt)
            {
                assert_eq!(read.strs().concat(), *prompt);
                assert_eq!(read.ids().len(), read.strs().len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn fuzz_seeds() {
        for seed in [
            r#"{"model":"a\u0062","prompt":"Once 🙂 \ud83d\ude42 é","max_tokens":1e3,"stream":true}"#,
            r#"{"messages":[{"role":"user","content":[{"text":"a"}]}],"stream":null,"max_tokens":5}"#,
            r#"{"prompt":[1,2],"model":"x","model":null,"kv_transfer_params":{"remote_block_ids":[[1],[-1,"x",{}]]}}"#,
            "\u{feff}{\"prompt\":\"x\"}",
            r#"{"prompt":"\ud83d"}"#,
            "[",
        ] {
            super::fuzzing::fuzz(seed.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn fuzz_members(members in prop::collection::vec(
            (
                prop::sample::select(vec!["model", "prompt", "messages", "stream", "max_tokens", "tools", "n"]),
                prop::sample::select(vec!["1", "-1.5", "null", "true", "\"x\"", "[]", "[\"y\"]", "[[1]]", "{}", "[{\"role\":1}]", "1e999"]),
            ),
            0..5,
        )) {
            let members: Vec<String> =
                members.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
            super::fuzzing::fuzz(format!("{{{}}}", members.join(",")).as_bytes());
        }
    }
}
