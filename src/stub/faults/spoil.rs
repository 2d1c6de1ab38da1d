//! The bad bytes themselves: events, ids and handoffs as no engine should send them. Pure.
//!
//! Invariant: what is not spoilt on purpose stays as it was, byte for byte.

use crate::base::words::words;
use crate::wire::json::Cursor;

words! {
    /// Bytes that are often wanted.
    What {
        Malformed = "malformed",
        InvalidUtf8 = "invalid_utf8",
        Oversized = "oversized",
        Role = "role",
        Silent = "silent",
        Comment = "comment",
        BadChunk = "bad_chunk",
    }
}

words! {
    /// In the place of a list of ids.
    BadIds {
        Missing = "missing",
        Null = "null",
        Empty = "empty",
        Text = "text",
        Float = "float",
        Negative = "negative",
        Boolean = "boolean",
        Nested = "nested",
        Object = "object",
        Number = "number",
    }
}

words! {
    /// In the place of a handoff.
    BadHandoff {
        Missing = "missing",
        Null = "null",
        Text = "text",
        List = "list",
        Empty = "empty",
        EngineMissing = "engine_missing",
        EngineEmpty = "engine_empty",
        EngineNumber = "engine_number",
        EngineUnknown = "engine_unknown",
        BlocksMissing = "blocks_missing",
        BlocksText = "blocks_text",
        BlocksNegative = "blocks_negative",
        BlocksUnknown = "blocks_unknown",
    }
}

impl What {
    /// `size` is how long an oversized event is.
    pub fn bytes(self, size: usize) -> Vec<u8> {
        let choice = |inside: &str| {
            format!("data: {{\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,{inside}}}]}}\n\n").into_bytes()
        };
        match self {
            What::Malformed => b"data: {\"choices\":[{\n\n".to_vec(),
            What::InvalidUtf8 => {
                let mut bytes = choice(r#""delta":{"content":"?"},"text":"?","token_ids":[300]"#);
                bytes
                    .iter_mut()
                    .filter(|b| **b == b'?')
                    .for_each(|b| *b = 0xff);
                bytes
            }
            What::Oversized => {
                let text = "x".repeat(size);
                choice(&format!(
                    r#""delta":{{"content":"{text}"}},"text":"{text}","token_ids":[300]"#
                ))
            }
            What::Role => {
                choice(r#""delta":{"role":"assistant","content":""},"finish_reason":null"#)
            }
            What::Silent => choice(r#""delta":{},"text":"","finish_reason":null"#),
            What::Comment => b": a comment\n\n".to_vec(),
            What::BadChunk => b"zz\r\n".to_vec(),
        }
    }
}

impl BadIds {
    /// What stands in the place of the list; `None` where the member itself is missing.
    pub fn json(self) -> Option<&'static str> {
        Some(match self {
            BadIds::Missing => return None,
            BadIds::Null => "null",
            BadIds::Empty => "[]",
            BadIds::Text => r#"["7"]"#,
            BadIds::Float => "[7.0]",
            BadIds::Negative => "[-7]",
            BadIds::Boolean => "[true]",
            BadIds::Nested => "[[7]]",
            BadIds::Object => r#"{"0":7}"#,
            BadIds::Number => "7",
        })
    }
}

impl BadHandoff {
    /// Spoils the parameters in a whole answer; one without any is left alone.
    pub fn spoil(self, body: &mut Vec<u8>) {
        const NAME: &str = r#""kv_transfer_params":"#;
        let Some((from, to)) = member(body, NAME).filter(|(from, _)| body[*from] == b'{') else {
            return;
        };
        let mut put = |from: usize, to: usize, new: &str| {
            body.splice(from..to, new.bytes());
        };
        match self {
            // The comma in front goes with it.
            BadHandoff::Missing => put(from - NAME.len() - 1, to, ""),
            BadHandoff::Null => put(from, to, "null"),
            BadHandoff::Text => put(from, to, r#""x""#),
            BadHandoff::List => put(from, to, "[1]"),
            BadHandoff::Empty => put(from, to, "{}"),
            _ => self.spoil_member(body),
        }
    }

    fn spoil_member(self, body: &mut Vec<u8>) {
        const ENGINE: &str = r#""remote_engine_id":"#;
        const BLOCKS: &str = r#""remote_block_ids":"#;
        let (name, new) = match self {
            BadHandoff::EngineMissing => (ENGINE, None),
            BadHandoff::EngineEmpty => (ENGINE, Some(r#""""#)),
            BadHandoff::EngineNumber => (ENGINE, Some("7")),
            BadHandoff::EngineUnknown => {
                (ENGINE, Some(r#""00000000-0000-4000-8000-000000000000""#))
            }
            BadHandoff::BlocksMissing => (BLOCKS, None),
            BadHandoff::BlocksText => (BLOCKS, Some(r#"[["7"]]"#)),
            BadHandoff::BlocksNegative => (BLOCKS, Some("[[-7]]")),
            BadHandoff::BlocksUnknown => (BLOCKS, Some("[[4294967294]]")),
            _ => return,
        };
        let Some((from, to)) = member(body, name) else {
            return;
        };
        let (range, new) = match new {
            Some(new) => (from..to, new),
            // Neither is the last member: the comma behind goes with it.
            None => (from - name.len()..to + 1, ""),
        };
        body.splice(range, new.bytes());
    }
}

/// Where the value of the last member called `name` (quotes and colon included) lies. For JSON of our own.
fn member(body: &[u8], name: &str) -> Option<(usize, usize)> {
    let at = memchr::memmem::rfind(body, name.as_bytes())? + name.len();
    let mut cursor = Cursor::new(&body[at..]);
    let span = cursor.skip().ok()?;
    Some((at + span.start, at + span.end))
}
