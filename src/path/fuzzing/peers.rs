//! What clients and engines say: tables of the good, the odd and the hostile, put together as the tape decides.

use super::tape::Tape;
use crate::base::units::Leg;

// ── the client ──

/// One request, head and body.
pub fn request(tape: &mut Tape) -> Vec<u8> {
    let (route, body) = match tape.below(2) {
        0 => ("/v1/completions", pick_body(tape, &TEXTS)),
        _ => ("/v1/chat/completions", pick_body(tape, &CHATS)),
    };
    let mut out = match tape.below(20) {
        0..=8 => framed(&format!("POST {route} HTTP/1.1\r\nhost: r\r\n"), &body),
        9 => chunked(tape, route, &body),
        10 => framed(
            &format!("POST {route}?q=1 HTTP/1.1\r\nHost: r\r\nConnection: close\r\n"),
            &body,
        ),
        11 => framed(&format!("POST {route} HTTP/1.0\r\n"), &body),
        12 => framed(
            &format!("POST {route} HTTP/1.1\r\nhost: r\r\nexpect: 100-continue\r\n"),
            &body,
        ),
        13 => framed(
            &format!(
                "POST {route} HTTP/1.1\r\nhost: r\r\nauthorization: Bearer client\r\ncookie: c=1\r\n\
                 x-request-id: mine\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
            ),
            &body,
        ),
        14 => framed(
            &format!("POST {route} HTTP/1.1\r\nhost: r\r\n"),
            &vec![b'x'; 2049 + 700 * tape.below(8)],
        ),
        15 => format!(
            "{} / HTTP/1.1\r\nhost: r\r\n\r\n",
            tape.pick(&["GET", "TRACE", "OPTIONS"])
        )
        .into_bytes(),
        _ => tape.pick(&SIMPLE).as_bytes().to_vec(),
    };
    tape.spoil(&mut out);
    out
}

fn pick_body(tape: &mut Tape, from: &[&str]) -> Vec<u8> {
    let mut body = tape.pick(from).as_bytes().to_vec();
    tape.spoil(&mut body);
    body
}

fn framed(head: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{head}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn chunked(tape: &mut Tape, route: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {route} HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut out = head.into_bytes();
    chunks(&mut out, body, [4096, 1, 16, 100][tape.below(4)]);
    out.extend_from_slice(tape.pick(&[
        b"0\r\n\r\n".as_slice(),
        b"000;a=b\r\nX-T: 1\r\n\r\n",
        b"5x\r\n",
        b"0\r\nbad trailer\r\n\r\n",
    ]));
    out
}

fn chunks(out: &mut Vec<u8>, body: &[u8], size: usize) {
    for chunk in body.chunks(size) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
}

const SIMPLE: [&str; 12] = [
    "GET /health HTTP/1.1\r\nhost: r\r\n\r\n",
    "HEAD /v1/models HTTP/1.1\r\nhost: r\r\n\r\n",
    "GET /ready HTTP/1.1\r\nhost: r\r\n\r\n",
    "GET /metrics HTTP/1.1\r\nhost: r\r\n\r\n",
    "GET /v1/completions HTTP/1.1\r\nhost: r\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nhost: r\r\n\r\n",
    "POST /narwhal/lifecycle/drain HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\n\r\n{}",
    "POST /v1/completions HTTP/1.1\r\nhost: r\r\nexpect: much\r\ncontent-length: 2\r\n\r\n{}",
    "POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "HEAD /v1/chat/completions HTTP/1.1\r\nhost: r\r\n\r\n",
    "GET /nothing HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    "POST /health HTTP/1.1\r\nhost: r\r\ncontent-length: 3\r\n\r\nabc",
];

/// `evil` marks what may never reach an engine as it is.
const TEXTS: [&str; 12] = [
    r#"{"model":"m","prompt":"hi","stream":true}"#,
    r#"{"prompt":[1,2,3],"stream":true,"max_tokens":4}"#,
    r#"{"prompt":"hi"}"#,
    r#"{"prompt":[[7,8]],"return_token_ids":true,"stream":true}"#,
    r#"{"prompt":"hi","return_token_ids":true}"#,
    r#"{"kv_transfer\u005fparams":{"evil":1},"prompt":"hi","stream":true,"kv_transfer_params":{"evil":2}}"#,
    r#"{"prompt":["s"],"stream":true,"ec_transfer_params":{"evil":3},"stream_options":{"include_usage":true},"min_tokens":2}"#,
    r#"{"prompt":"hi","n":2}"#,
    r#"{"prompt":["a","b"]}"#,
    r#"{"model":"alias","prompt":"hi","temperature":0.10,"x":{"kv_transfer_params":1}}"#,
    r#"{"prompt":"hi","stream":tru"#,
    r#"{"model":"other","prompt":"hi","stream":true}"#,
];

const CHATS: [&str; 10] = [
    r#"{"messages":[{"role":"user","content":"hi"}],"stream":true}"#,
    r#"{"messages":[{"role":"user","content":"hi"}]}"#,
    r#"{"model":"alias","messages":[],"max_completion_tokens":9,"return_token_ids":true}"#,
    r#"{"messages":[{"role":"user","content":"h\u00e9"}],"stream":true,"return_token_ids":true,"stream":true}"#,
    r#"{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function"}]}"#,
    r#"{"messages":[],"stream":true,"\u006bv_transfer_params":{"evil":1},"vllm_xargs":null}"#,
    r#"{"messages":[],"vllm_xargs":{"kv_transfer_params":{"evil":1}}}"#,
    r#"{"messages":[1]}"#,
    r#"{"messages":[],"stream":true,"x":"\ud83d"}"#,
    r#"[]"#,
];

// ── engines ──

/// What an engine answers to one leg.
pub struct Answer {
    pub bytes: Vec<u8>,
    /// It closes after them.
    pub closes: bool,
    /// Spoiled, or more than its framing says: nothing is claimed about it.
    pub wild: bool,
}

pub fn answer(tape: &mut Tape, kind: Leg, request: &[u8], handoffs: &mut u32) -> Answer {
    let chat = request.windows(6).take(120).any(|w| w == b"/chat/");
    let (status, media, body) = match kind {
        Leg::Tokenize => whole(tape, r#"{"count":5,"max_model_len":2048}"#, &COUNTS),
        Leg::Prefill => {
            *handoffs += 1;
            let good = prefilled(tape, *handoffs);
            whole(tape, &good, &PREFILLS)
        }
        Leg::Decode => stream(tape, chat),
    };
    let mut answer = framed_answer(tape, status, media, &body);
    answer.wild |= tape.spoil(&mut answer.bytes);
    answer
}

type Whole = (u16, &'static str, Vec<u8>);

/// Seven times in eight the good answer.
fn whole(tape: &mut Tape, good: &str, bad: &[(u16, &str)]) -> Whole {
    let (status, body) = match tape.below(8) {
        7 => tape.pick(bad),
        6 => tape.pick(&REFUSALS),
        _ => (200, good),
    };
    (status, "application/json", body.as_bytes().to_vec())
}

fn prefilled(tape: &mut Tape, handoff: u32) -> String {
    let params = format!(
        r#"{{"do_remote_prefill":true,"remote_engine_id":"e-{handoff}","remote_block_ids":[[1,2],[3]],"remote_port":5600}}"#
    );
    match tape.below(3) {
        0 => format!(r#"{{"id":"c","choices":[],"kv_transfer_params":{params}}}"#),
        1 => format!(
            r#"{{"choices":[{{"index":0,"kv_transfer_params":{params}}}],"usage":{{"prompt_tokens":6,"prompt_tokens_details":{{"cached_tokens":4}}}}}}"#
        ),
        _ => format!(
            r#"{{"kv_transfer_params":null,"choices":[{{"text":"x","kv_transfer_params": {params} }}]}}"#
        ),
    }
}

const COUNTS: [(u16, &str); 7] = [
    (404, r#"{"detail":"Not Found"}"#),
    (501, ""),
    (200, r#"{"count":-1}"#),
    (200, r#"{"count":99999999999999999999}"#),
    (200, r#"{"count":5,"error":{"code":400,"message":"no"}}"#),
    (200, r#"{"count":5"#),
    (200, "[5]"),
];

const PREFILLS: [(u16, &str); 8] = [
    (200, r#"{"choices":[]}"#),
    (
        200,
        r#"{"kv_transfer_params":{"remote_engine_id":"","remote_block_ids":[1]}}"#,
    ),
    (
        200,
        r#"{"kv_transfer_params":{"remote_engine_id":"e","remote_block_ids":[-1]}}"#,
    ),
    (
        200,
        r#"{"error":{"message":"out of \"memory\"\n","code":503}}"#,
    ),
    (200, r#"{"object":"error","message":"bad","code":400}"#),
    (
        200,
        r#"{"choices":[{"finish_reason":"abort"}],"kv_transfer_params":{"remote_engine_id":"e","remote_block_ids":[1]}}"#,
    ),
    (200, "data: {}\n\ndata: [DONE]\n\n"),
    (200, ""),
];

const REFUSALS: [(u16, &str); 8] = [
    (
        500,
        r#"{"error":{"message":"x","type":"InternalServerError","code":500}}"#,
    ),
    (503, ""),
    (
        400,
        r#"{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}"#,
    ),
    (422, "{\"message\":\"\u{1}\u{2028}\"}"),
    (413, "no"),
    (408, "{}"),
    (401, r#"{"error":"Unauthorized"}"#),
    (307, ""),
];

/// A decode leg's answer.
fn stream(tape: &mut Tape, chat: bool) -> Whole {
    let flavour = tape.below(16);
    if flavour == 15 {
        return whole(tape, r#"{"error":{"message":"x","code":429}}"#, &REFUSALS);
    }
    let mut text = String::new();
    if flavour >= 8 {
        text.push_str(tape.pick(&["\u{feff}", ": ping\n\n", "id: 1\nevent: x\n", "\n"]));
    }
    let (good, odd): (&[&str], &[&str]) = if chat {
        (&CHAT_EVENTS, &CHAT_ODD)
    } else {
        (&TEXT_EVENTS, &TEXT_ODD)
    };
    for _ in 0..=tape.below(5) {
        match (flavour, tape.below(8)) {
            (4.., 6) => text.push_str(tape.pick(&LINES)),
            (4.., 7) => text.push_str(tape.pick(odd)),
            _ => text.push_str(tape.pick(good)),
        }
    }
    match flavour {
        14 => {}
        13 => text.insert_str(0, "data: [DONE]\n\n"),
        12 => text.push_str("data: [DONE]\n\nafter: the end\n\ndata: {}\n\n"),
        11 => {
            // Many events without a token, or one that is too large.
            let held = "data: {\"choices\":[]}\n\n".repeat(60 + tape.below(16));
            let large = format!(
                "data: {{\"x\":\"{}\"}}\n\n",
                "y".repeat(4000 + tape.below(200))
            );
            text.insert_str(0, tape.pick(&[&held as &str, &large]));
            text.push_str("data: [DONE]\n\n");
        }
        9 => {
            // More than a client's buffer holds.
            text.push_str(&good[0].repeat(tape.below(256) + 200));
            text.push_str("data: [DONE]\n\n");
        }
        10 => text = text.replace('\n', tape.pick(&["\r\n", "\r"])) + "data: [DONE]\r\r",
        _ => text.push_str("data: [DONE]\n\n"),
    }
    (200, "text/event-stream; charset=utf-8", text.into_bytes())
}

const TEXT_EVENTS: [&str; 5] = [
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1],\"finish_reason\":null}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"text\":\"bc\", \"token_ids\" : [ 2,3 ] ,\"logprobs\":null}],\"usage\":null}\n\n",
    "data: {\"choices\":[{\"index\":0,\"prompt_token_ids\":[9],\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n",
    "data: {\"choices\":[{\"text\":\"x\",\ndata: \"token_ids\":[4]}]}\n\n",
];

const CHAT_EVENTS: [&str; 5] = [
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"token_ids\":[1],\"finish_reason\":null}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"prompt_token_ids\":[5,6]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"t\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},\"token_ids\":[2]}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"reasoning\":\"r\"},\"token_ids\":[3]}]}\n\n",
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
];

const TEXT_ODD: [&str; 8] = [
    "data: {\"choices\":[{\"text\":\"a\"}]}\n\n",
    "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[1.5]}]}\n\n",
    "data: {\"choices\":[{\"text\":\"\",\"token_ids\":[1],\"finish_reason\":\"abort\"}]}\n\n",
    "data: {\"error\":{\"message\":\"x\",\"code\":400}}\n\n",
    "data: {\"object\":\"error\",\"message\":\"x\"}\n\n",
    "data: {\"choices\":null}\n\n",
    "data: {\"choices\":[{\"index\":1,\"text\":\"a\",\"token_ids\":[1]}]}\n\n",
    "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[1],\"new\":0}]}\n\n",
];

const CHAT_ODD: [&str; 8] = [
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"token_ids\":null}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\\ud83d\"},\"token_ids\":[1]}]}\n\n",
    "data: {\"choices\":[{\"delta\":7}]}\n\n",
    "data: {\"error\":\"x\",\"code\":503}\n\n",
    "data: {\"choices\":[{\"delta\":{\"audio\":{}},\"token_ids\":[1]}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{}}]},\"token_ids\":[1]}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"\\u0074oken_ids\":[1],\"token_ids\":[2]}]}\n\n",
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"abort\"}]}\n\n",
];

const LINES: [&str; 10] = [
    ": ping\n\n",
    ":\n",
    "event: message\nid: 7\n",
    "retry: 10\n\n",
    "data:\n\n",
    "data: {oops\n\n",
    "data: [1]\ndata: 2\n\n",
    "data:{\"choices\":[]}\n",
    "garbage\n\n",
    "data: {\"token_ids\":[1]}\n\n",
];

/// Sized, chunked or ended by closing, behind interim answers now and then.
fn framed_answer(tape: &mut Tape, status: u16, media: &str, body: &[u8]) -> Answer {
    let mut out = Vec::new();
    let framing = tape.below(12);
    if framing == 11 {
        out.extend_from_slice(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n",
        );
    }
    let version = if framing == 10 { "1.0" } else { "1.1" };
    let head = format!("HTTP/{version} {status} X\r\ncontent-type: {media}\r\n");
    out.extend_from_slice(head.as_bytes());
    let closes = match framing {
        0..=4 | 11 => {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            chunks(&mut out, body, [4096, 1, 50, 200, 16][tape.below(5)]);
            out.extend_from_slice(tape.pick(&[b"0\r\n\r\n".as_slice(), b"0\r\nx-t: 1\r\n\r\n"]));
            false
        }
        5..=7 => {
            out.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
            out.extend_from_slice(body);
            false
        }
        8 => {
            // It promises more than it sends, and goes quiet.
            out.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len() + 5).as_bytes());
            out.extend_from_slice(body);
            false
        }
        _ => {
            out.extend_from_slice(b"connection: close\r\n\r\n");
            out.extend_from_slice(body);
            true
        }
    };
    Answer {
        bytes: out,
        closes,
        wild: false,
    }
}
