//! Structured input from a tape of bytes; any bytes are a valid tape.

use std::fmt::Write as _;

/// Bytes that decide what a generator makes. Past its end it says zero, so generation ends.
pub struct Tape<'a>(pub &'a [u8]);

impl Tape<'_> {
    pub fn below(&mut self, n: usize) -> usize {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                usize::from(*byte) % n
            }
            None => 0,
        }
    }

    pub fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }
}

const SCALARS: [&str; 44] = [
    "null",
    "true",
    "false",
    "0",
    "-0.0",
    "0e5",
    "1",
    "-1",
    "1.5",
    "1E400",
    "0.10",
    "\"\"",
    "\"x\"",
    "\"abort\"",
    "\"error\"",
    "\"\\u0061bort\"",
    "\"{\\\"token_ids\\\":[1]}\"",
    "\"\\ud800\"",
    "\"h\u{e9}\u{2028}\"",
    "[]",
    "[ ]",
    "{}",
    "{ }",
    "{\"a\":1}",
    "[1]",
    "[ 7 , 8 ]",
    "[0]",
    "[1,\"2\"]",
    "[true]",
    "[[1]]",
    "[-1]",
    "[1.0]",
    "[1e2]",
    "[123456789012345678901234567890]",
    "[null]",
    "{\"0\":2}",
    "{\"token_ids\":[1],\"x\":2}",
    "400",
    "429",
    "599",
    "600",
    "-500",
    "500.0",
    "99999999999",
];
const TOP: [&str; 9] = [
    "choices",
    "id",
    "token_ids",
    "prompt_token_ids",
    "error",
    "object",
    "code",
    "message",
    "choice",
];
const CHOICE: [&str; 7] = [
    "delta",
    "text",
    "token_ids",
    "finish_reason",
    "prompt_token_ids",
    "index",
    "logprobs",
];
const DELTA: [&str; 8] = [
    "content",
    "role",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "function_call",
    "refusal",
    "token_ids",
];
const ERROR: [&str; 4] = ["code", "message", "type", "cod"];

/// An object that is nearly always an event, in any order of keys, with doubles, escaped keys and odd spacing.
pub fn event_text(tape: &mut Tape<'_>) -> String {
    let mut out = String::new();
    object(tape, &mut out, &TOP, 0);
    out
}

fn object(tape: &mut Tape<'_>, out: &mut String, names: &[&'static str], level: usize) {
    out.push('{');
    for n in 0..tape.below(6) {
        if n > 0 {
            space(tape, out);
            out.push(',');
        }
        space(tape, out);
        let key = tape.pick(names);
        let at = tape.below(4 * key.len());
        out.push('"');
        for (i, c) in key.char_indices() {
            if i == at {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            } else {
                out.push(c);
            }
        }
        out.push('"');
        space(tape, out);
        out.push(':');
        space(tape, out);
        member(tape, out, key, level);
    }
    space(tape, out);
    out.push('}');
}

fn member(tape: &mut Tape<'_>, out: &mut String, key: &str, level: usize) {
    match key {
        "choices" if level == 0 && tape.below(8) > 0 => {
            out.push('[');
            for n in 0..tape.below(4) {
                if n > 0 {
                    out.push(',');
                }
                space(tape, out);
                if tape.below(8) == 7 {
                    out.push_str(tape.pick(&SCALARS));
                } else {
                    object(tape, out, &CHOICE, 1);
                }
            }
            space(tape, out);
            out.push(']');
        }
        "delta" if tape.below(4) > 0 => object(tape, out, &DELTA, 2),
        "error" if tape.below(4) > 0 => object(tape, out, &ERROR, 2),
        "token_ids" if tape.below(2) > 0 => out.push_str(tape.pick(&["[1]", "[2,3]", "[]"])),
        _ => out.push_str(tape.pick(&SCALARS)),
    }
}

fn space(tape: &mut Tape<'_>, out: &mut String) {
    out.push_str(tape.pick(&["", "", "", "", "", " ", "\t", "  "]));
}

/// A stream of events, comments, joined lines and noise, with every line end.
pub fn stream_bytes(tape: &mut Tape<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice([&b""[..], b"\xef\xbb\xbf", b"\xef\xbb"][tape.below(3)]);
    let end = ["\n", "\r\n", "\r", "mixed"][tape.below(4)];
    for _ in 0..tape.below(12) {
        let text = match tape.below(9) {
            0 | 1 => format!("data: {}\n\n", event_text(tape)),
            2 => {
                // One event over several data lines, cut at a comma.
                let text = event_text(tape);
                format!(
                    "data: {}\n\n",
                    text.replacen(',', ",\ndata:", 1 + tape.below(3))
                )
            }
            3 => format!("data:{}\n", event_text(tape)),
            4 => tape
                .pick(&[": ping\n\n", ":\n", "event: e\n", "id\n", "retry: 10\n\n"])
                .to_owned(),
            5 => tape
                .pick(&["data:\n\n", "data: \n", "data\ndata\n\n", "data:  \u{c}\n"])
                .to_owned(),
            6 => tape
                .pick(&["data: {oops\n\n", "data: [1,2]\n", "data: x\n", "garbage\n"])
                .to_owned(),
            7 => tape
                .pick(&["\n", "\n\n", "data: {\"a\":1,\ndata: \"b\":2}\n\n"])
                .to_owned(),
            _ => tape
                .pick(&["data: x\n", "data: [DONE]", "data:   [DONE]  \n\n"])
                .to_owned(),
        };
        for c in text.bytes() {
            if c != b'\n' {
                out.push(c);
            } else if end == "mixed" {
                out.extend_from_slice(tape.pick(&["\n", "\r\n", "\r"]).as_bytes());
            } else {
                out.extend_from_slice(end.as_bytes());
            }
        }
    }
    if tape.below(8) == 7 {
        out.truncate(out.len().saturating_sub(tape.below(40)));
    }
    out
}
