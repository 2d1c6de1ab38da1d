//! Streams whose events are alike, as engines write them, and almost alike: what the short way must take and what it must leave.

use super::tape::{Tape, event_text};

/// `T` stands for a string, `L` for a list of ids.
const EVENTS: [&str; 8] = [
    r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":T,"logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":L,"prompt_token_ids":null}],"usage":null}"#,
    r#"{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":T,"reasoning":null},"finish_reason":null,"token_ids":L}]}"#,
    r#"{"choices":[{"token_ids":L,"index":0,"text":T}]}"#,
    r#"{"choices":[{"prompt_token_ids":null,"token_ids":L,"delta":{"content":T}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":T}}]}"#,
    r#" { "choices" : [ { "text" : T , "token_ids" : L , "x" : [ {} ] } ] } "#,
    r#"{"choices":[{"text":T,"token_ids":L,"text":T}]}"#,
    r#"{"choices":[{"text":T,"token_ids":L},{"text":"b","token_ids":[7]}],"error":null}"#,
];
const TEXTS: [&str; 12] = [
    r#"" a""#,
    r#""hello""#,
    r#""""#,
    r#""\n""#,
    r#""\u00e9é""#,
    r#""\"}],\"""#,
    r#""\ud800""#,
    r#""\x""#,
    "\"\t\"",
    "null",
    r#""a""b""#,
    r#""unfinished"#,
];
const LISTS: [&str; 14] = [
    "[1]",
    "[15339]",
    "[1,2]",
    "[1, 2]",
    "[1,  2]",
    "[0]",
    "[00]",
    "[-1]",
    "[1.0]",
    "[]",
    "[1,]",
    "null",
    "[99999999999999999999999]",
    "[1",
];

/// A stream of such events.
pub fn stream(tape: &mut Tape<'_>) -> Vec<u8> {
    let free = event_text(tape);
    let event = match tape.below(9) {
        8 => free.as_str(),
        n => EVENTS[n],
    };
    let mut out = Vec::new();
    for _ in 0..2 + tape.below(8) {
        // Ordinary ones most of the time, or nothing would ever be alike.
        let texts = if tape.below(4) == 0 { TEXTS.len() } else { 2 };
        let text = TEXTS[tape.below(texts)];
        let lists = if tape.below(4) == 0 { LISTS.len() } else { 3 };
        let list = LISTS[tape.below(lists)];
        let mut bytes = event.replace('T', text).replace('L', list).into_bytes();
        if tape.below(6) == 0 && !bytes.is_empty() {
            let at = (256 * tape.below(256) + tape.below(256)) % bytes.len();
            let byte = br#"{}[]:,"\ x1"#[tape.below(11)];
            match tape.below(3) {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        if tape.below(8) == 0 {
            // A data line that is no event, in front of one that is.
            out.extend_from_slice([&b"data:\n"[..], b"data: x\n", b"data: {}\n"][tape.below(3)]);
        }
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&bytes);
        out.extend_from_slice(b"\n\n");
    }
    out
}
