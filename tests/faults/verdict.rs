//! Whether an answer is the right one for a row.

use serde_json::Value;

use super::notation::FAILED;
use super::streams::{Assembled, Relayed, Row};

/// What a client got, however it was played.
pub struct Got<'a> {
    pub status: u16,
    /// Of the head, in small letters.
    pub content_type: &'a str,
    pub has_length: bool,
    pub body: &'a [u8],
    pub tokens: u64,
}

impl Row {
    /// The request's body.
    pub fn request(&self, stream: bool) -> String {
        let prompt = match self.text {
            true => r#""prompt":[1,2,3]"#,
            false => r#""messages":[{"role":"user","content":"hi"}]"#,
        };
        format!(
            r#"{{"model":"stub-model",{prompt},"stream":{stream}{}}}"#,
            self.ask
        )
    }

    pub fn path(&self) -> &'static str {
        match self.text {
            true => "/v1/completions",
            false => "/v1/chat/completions",
        }
    }

    /// What is wrong with it, if anything is.
    pub fn judge(&self, stream: bool, got: &Got) -> Result<(), String> {
        let text = String::from_utf8_lossy(got.body);
        let verdict = match stream {
            true => self.judge_stream(got),
            false => self.judge_answer(got),
        };
        let counted = got.tokens == self.tokens;
        let verdict = verdict.and_then(|()| match counted {
            true => Ok(()),
            false => Err(format!("{} tokens, not {}", got.tokens, self.tokens)),
        });
        verdict.map_err(|why| {
            let mode = if stream { "relayed" } else { "assembled" };
            format!("{}, {mode}: {why}\n{} {text}", self.name, got.status)
        })
    }

    fn judge_stream(&self, got: &Got) -> Result<(), String> {
        let (bytes, end) = match &self.relayed {
            Relayed::Whole(bytes) => (bytes, ""),
            Relayed::Broken(bytes) => (bytes, FAILED),
            Relayed::Refused(status, kind) => return judge_refusal(got, *status, kind),
        };
        if got.status != 200 {
            return Err("no stream".to_owned());
        }
        if !got.content_type.starts_with("text/event-stream") || got.has_length {
            return Err(format!("its head: {}", got.content_type));
        }
        judge_lines(got.body)?;
        let want = [bytes, end.as_bytes()].concat();
        match without_comments(got.body) == want {
            true => Ok(()),
            false => Err(format!("not {}", String::from_utf8_lossy(&want))),
        }
    }

    fn judge_answer(&self, got: &Got) -> Result<(), String> {
        if let Assembled::Refused(status, kind) = &self.assembled {
            return judge_refusal(got, *status, kind);
        }
        if got.status != 200 || got.content_type != "application/json" {
            return Err(format!("no answer in JSON: {}", got.content_type));
        }
        let text = std::str::from_utf8(got.body).map_err(|_| "not UTF-8")?;
        let want = match &self.assembled {
            Assembled::Choice(want) => want,
            Assembled::Holds(texts) => {
                let missing = texts.iter().find(|held| !text.contains(**held));
                return missing.map_or(Ok(()), |held| Err(format!("without {held}")));
            }
            Assembled::Refused(..) => return Ok(()),
        };
        let answer: Value = serde_json::from_str(text).map_err(|why| why.to_string())?;
        if answer["choices"] != Value::from(vec![want.clone()]) {
            return Err(format!("not {want}"));
        }
        if !self.usage.is_null() && answer["usage"] != self.usage {
            return Err(format!("not {}", self.usage));
        }
        // The engine's own word wins, where it gave one.
        let says = self.engine.windows(9).any(|w| w == b"\"usage\":{");
        if !says && answer["usage"]["completion_tokens"] != self.tokens {
            return Err("its own count is wrong".to_owned());
        }
        Ok(())
    }
}

fn judge_refusal(got: &Got, status: u16, kind: &str) -> Result<(), String> {
    let error: Value = serde_json::from_slice(got.body).unwrap_or(Value::Null);
    let is_it = got.status == status && error["error"]["type"] == kind;
    match is_it && got.content_type == "application/json" {
        true => Ok(()),
        false => Err(format!("not {status} {kind}: {}", got.content_type)),
    }
}

/// Lines of a stream are what they may be, and no event is empty.
fn judge_lines(body: &[u8]) -> Result<(), String> {
    let mut data = false;
    let Some(body) = body.strip_suffix(b"\n\n") else {
        return Err("it ends within an event".to_owned());
    };
    for line in body.split(|b| *b == b'\n') {
        let starts = |with: &str| line.starts_with(with.as_bytes());
        if line.is_empty() && !data {
            return Err("an event of nothing".to_owned());
        }
        if starts("data: :") {
            return Err("a comment as data".to_owned());
        }
        let known = ["data: ", ":", "event: ", "id: ", "retry: "];
        if !line.is_empty() && !known.iter().any(|with| starts(with)) {
            return Err(format!("a line: {}", line.escape_ascii()));
        }
        data = starts("data: ") || data && !line.is_empty();
    }
    Ok(())
}

/// Comments go out with the read that brought them, so where they stand is a matter of reads.
fn without_comments(body: &[u8]) -> Vec<u8> {
    let lines = body.split_inclusive(|b| *b == b'\n');
    lines
        .filter(|line| !line.starts_with(b":"))
        .collect::<Vec<_>>()
        .concat()
}
