//! How the tables of faults write what an engine sends.

/// The stream's end.
pub const DONE: &str = "data: [DONE]\n\n";

/// A frame that holds usage and no choice.
pub const USAGE: &str = r#"{"id":"c1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;

/// How a stream that broke after output ends.
pub const FAILED: &str = "data: {\"error\":{\"message\":\"Upstream request failed\",\"type\":\"decode\",\"code\":\"failed\"}}\n\n";

/// An event of one data line.
pub fn ev(data: &str) -> String {
    format!("data: {data}\n\n")
}

/// A frame of a chat with these members of its choice.
pub fn frame(choice: &str) -> String {
    format!(
        r#"{{"id":"c1","object":"chat.completion.chunk","created":1,"model":"stub-model","choices":[{{"index":0,{choice}}}]}}"#
    )
}

/// A frame of a chat with one token.
pub fn ch(delta: &str) -> String {
    frame(&format!(
        r#""delta":{delta},"finish_reason":null,"token_ids":[7]"#
    ))
}

/// One token that is this text.
pub fn said(text: &str) -> String {
    ev(&ch(&format!(r#"{{"content":"{text}"}}"#)))
}

/// The last frame of a choice; the reason as JSON.
pub fn fin(reason: &str) -> String {
    ev(&frame(&format!(r#""delta":{{}},"finish_reason":{reason}"#)))
}

/// A frame of a completion with these members of its choice.
pub fn tx(choice: &str) -> String {
    ev(&format!(
        r#"{{"id":"c1","object":"text_completion","created":1,"model":"stub-model","choices":[{{"index":0,{choice}}}]}}"#
    ))
}

/// What a client that did not ask for ids sees of it: plain text replacement, for tables in which ids stand behind a comma.
pub fn cut(engine: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = engine;
    while !rest.is_empty() {
        let marks: [&[u8]; 2] = [b",\"token_ids\":[", b",\"prompt_token_ids\":["];
        if marks.iter().any(|mark| rest.starts_with(mark)) {
            let end = rest.iter().position(|b| *b == b']').expect("a list's end");
            rest = &rest[end + 1..];
        } else {
            out.push(rest[0]);
            rest = &rest[1..];
        }
    }
    out
}
