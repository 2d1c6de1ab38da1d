//! Requests that carry a mark, and the one right answer to each: what an engine says to a mark, and whether what came is that.
//!
//! Marks have nine digits and are never used twice in a process; a token's id is its mark and three digits more.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use narwhal::base::prng::Prng;
use serde_json::{Value, json};

use super::client::{self, Answer, data_of};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Tokens that ids have room for. Answers of more are not checked.
pub const TOKENS_MAX: u64 = 999;

/// One request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub mark: u64,
    pub tokens: u64,
    chat: bool,
    pub stream: bool,
    /// It wants the ids.
    ids: bool,
    /// Its prompt is text, so that an engine is asked for its length.
    text: bool,
    chunked: bool,
}

/// How an answer ended that held nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Whole,
    /// A stream with an error as its last event.
    Broken,
    /// An error instead of an answer.
    Refused(u16),
}

impl Ask {
    pub fn new(chance: &mut Prng, tokens: u64) -> Ask {
        static NEXT: AtomicU64 = AtomicU64::new(100_000_000);
        let mut one_in = |n: u64| chance.below(n) == 0;
        Ask {
            mark: NEXT.fetch_add(1, Relaxed),
            tokens,
            chat: one_in(2),
            stream: !one_in(3),
            ids: one_in(4),
            text: one_in(3),
            chunked: one_in(5),
        }
    }

    /// The same as a stream.
    pub fn streamed(mut self) -> Ask {
        self.stream = true;
        self
    }

    pub fn wire(&self) -> Vec<u8> {
        let mut body =
            json!({"model": "stub-model", "max_tokens": self.tokens, "stream": self.stream});
        let text = format!("m{} of the mark", self.mark);
        match (self.chat, self.text) {
            (true, _) => body["messages"] = json!([{"role": "user", "content": text}]),
            (false, true) => body["prompt"] = json!(text),
            (false, false) => body["prompt"] = json!([self.mark, 1, 2]),
        }
        if self.ids {
            body["return_token_ids"] = json!(true);
        }
        let path = if self.chat { CHAT } else { TEXT };
        if !self.chunked {
            return client::post(path, &body);
        }
        let mut wire = client::head("POST", path, &[("transfer-encoding", "chunked")]);
        for piece in body.to_string().as_bytes().chunks(31) {
            wire.extend_from_slice(format!("{:x};a=b\r\n", piece.len()).as_bytes());
            wire.extend_from_slice(piece);
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(b"0\r\n\r\n");
        wire
    }

    /// Fails unless `answer` is this request's own, or an error that says so.
    pub fn check(&self, answer: &Answer) -> Outcome {
        let text = answer.text();
        let told = || format!("{self:?}: {:?} {text}", answer.status);
        if let Some(other) = foreign(&text, self.mark) {
            panic!("{other} in the answer to {}", told());
        }
        assert!(answer.complete, "cut off: {}", told());
        match answer.status {
            Some(200) if self.stream => self.check_stream(&text, true),
            Some(200) => {
                self.check_assembled(&answer.json());
                Outcome::Whole
            }
            Some(status) => {
                assert!(answer.json()["error"]["message"].is_string(), "{}", told());
                Outcome::Refused(status)
            }
            None => panic!("no answer: {}", told()),
        }
    }

    /// Fails unless what has come of an answer so far is how its own begins.
    pub fn check_part(&self, answer: &Answer) {
        let text = answer.text();
        if let Some(other) = foreign(&text, self.mark) {
            panic!("{other} in the answer to {self:?}: {text}");
        }
        if answer.status == Some(200) && self.stream {
            let whole = text.rfind("\n\n").map_or(0, |at| at + 2);
            self.check_stream(&text[..whole], false);
        }
    }

    fn check_stream(&self, text: &str, is_all: bool) -> Outcome {
        let mut index = 0;
        let mut last = None;
        for data in data_of(text) {
            assert_eq!(last, None, "behind the end: {data} in {text}");
            if data == "[DONE]" {
                last = Some(Outcome::Whole);
                continue;
            }
            let event: Value =
                serde_json::from_str(&data).unwrap_or_else(|e| panic!("{e}: {data}"));
            if event["error"].is_object() {
                last = Some(Outcome::Broken);
                continue;
            }
            let mut want: Value = serde_json::from_str(&event_of(self, index)).expect("ours");
            if !self.ids {
                without_ids(&mut want);
            }
            assert_eq!(event, want, "token {index} of {self:?}");
            index += 1;
        }
        if last == Some(Outcome::Whole) {
            assert_eq!(index, self.tokens, "{self:?}: {text}");
        }
        match last {
            Some(outcome) => outcome,
            None if is_all => panic!("no end: {self:?}: {text}"),
            None => Outcome::Broken,
        }
    }

    fn check_assembled(&self, answer: &Value) {
        let want: String = (0..self.tokens).map(|i| token(self.mark, i)).collect();
        let choice = &answer["choices"][0];
        let text = match self.chat {
            true => &choice["message"]["content"],
            false => &choice["text"],
        };
        assert_eq!(text, &json!(want), "{self:?}: {answer}");
        assert_eq!(answer["id"], format!("cmpl-{}", self.mark), "{answer}");
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        let ids: Vec<u64> = (0..self.tokens).map(|i| self.mark * 1000 + i).collect();
        let want = if self.ids { json!(ids) } else { Value::Null };
        assert_eq!(choice["token_ids"], want, "{self:?}: {answer}");
        let counted = &answer["usage"]["completion_tokens"];
        assert_eq!(counted, &json!(self.tokens), "{answer}");
    }
}

/// The text of a token. Some are long, so that events are cut anywhere by the reads.
pub fn token(mark: u64, index: u64) -> String {
    let again = if index % 7 == 3 { 60 } else { 1 };
    format!(" m{mark}.{index}").repeat(again)
}

/// The event of a token as an engine writes it.
pub fn event(chat: bool, mark: u64, index: u64, tokens: u64) -> String {
    let reason = if index + 1 == tokens {
        json!("length")
    } else {
        Value::Null
    };
    let mut choice =
        json!({"index": 0, "finish_reason": reason, "token_ids": [mark * 1000 + index]});
    match chat {
        true => choice["delta"] = json!({"content": token(mark, index)}),
        false => choice["text"] = json!(token(mark, index)),
    }
    let mut event = json!({"id": format!("cmpl-{mark}"), "object": "x", "choices": [choice]});
    if index == 0 {
        event["prompt_token_ids"] = json!([mark, 1, 2]);
    }
    event.to_string()
}

fn event_of(ask: &Ask, index: u64) -> String {
    event(ask.chat, ask.mark, index, ask.tokens)
}

fn without_ids(event: &mut Value) {
    for pointer in ["", "/choices/0"] {
        let object = event.pointer_mut(pointer).and_then(Value::as_object_mut);
        if let Some(object) = object {
            object.retain(|name, _| name != "token_ids" && name != "prompt_token_ids");
        }
    }
}

/// The mark that a prompt names.
pub fn mark_of(body: &Value) -> Option<u64> {
    let prompt = match &body["prompt"] {
        Value::Null => &body["messages"][0]["content"],
        prompt => prompt,
    };
    match prompt {
        Value::Array(ids) => ids.first()?.as_u64(),
        Value::String(text) => text.strip_prefix('m')?.split(' ').next()?.parse().ok(),
        _ => None,
    }
}

/// A mark, or the id of a token, that is not of `mark`.
pub fn foreign(text: &str, mark: u64) -> Option<&str> {
    let numbers = text.split(|c: char| !c.is_ascii_digit());
    let own = mark.to_string();
    numbers
        .filter(|number| matches!(number.len(), 9 | 12) && number.starts_with('1'))
        .find(|number| !number.starts_with(&own))
}

#[test]
fn what_is_foreign_is_seen() {
    let mut chance = Prng::new(1);
    for _ in 0..200 {
        let ask = Ask::new(&mut chance, 9);
        let (a, b) = (ask.mark, ask.mark + 1);
        let events = |mark: u64| -> String {
            let event = |i| format!("data: {}\n\n", event(ask.chat, mark, i, ask.tokens));
            (0..ask.tokens).map(event).collect()
        };
        assert_eq!(foreign(&events(a), a), None);
        let mixed = format!("{}{}", events(a), token(b, 3));
        assert!(foreign(&mixed, a).is_some());
        assert!(foreign(&format!("{{\"token_ids\":[{}]}}", b * 1000), a).is_some());
        let wire = ask.wire();
        let wire = String::from_utf8(wire).expect("text");
        assert!(ask.chunked || foreign(&wire, a).is_none(), "{wire}");
    }
}
