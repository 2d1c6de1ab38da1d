//! What clients ask, and what a healthy engine would answer: the text of an answer is a function of its prompt alone.

use narwhal::base::prng::Prng;
use narwhal::base::units::Dialect;
use narwhal::stub::ask::{self, Route};
use narwhal::stub::text;

use crate::plan::{Plan, on, pick};

/// One request, ready to be sent.
#[derive(Debug)]
pub struct Asked {
    pub bytes: Vec<u8>,
    pub what: What,
    pub is_head: bool,
}

#[derive(Debug)]
pub enum What {
    /// A completion that a healthy engine answers.
    Good(Box<Want>),
    /// A completion that is refused with this status by us or by the engine, whatever it says, if nothing refuses it earlier.
    Wrong(u16),
    /// Another route: one of these statuses.
    Other(&'static [u16]),
    /// A head that is refused, and the connection with it.
    NotHttp,
}

/// The one right answer.
#[derive(Debug, Default)]
pub struct Want {
    pub chat: bool,
    pub stream: bool,
    pub shows_ids: bool,
    pub ids: Vec<u32>,
    pub text: Vec<u8>,
    /// Its legs have no ids: usage counts events with output, and a token may have none.
    pub counts_events: bool,
    /// Tokens of a prompt that came in ids: known whatever engines count.
    pub prompt_tokens: Option<u64>,
}

pub fn request(c: &mut Prng, plan: &Plan, last: bool) -> Asked {
    if on(c, plan.people.odd) {
        return odd(c, plan);
    }
    let chat = on(c, 50);
    let body = good_body(c, plan, chat);
    let mut want = want(&body, chat);
    want.counts_events = chat && plan.snapshot.fleet.engine.dialect == Dialect::Sglang;
    framed(c, plan, chat, body, What::Good(Box::new(want)), last)
}

fn want(body: &str, chat: bool) -> Want {
    let route = if chat { Route::Chat } else { Route::Completion };
    let asked = ask::read(route, body.as_bytes()).expect("a good body");
    let prompt = asked.prompt.as_ref().expect("it has a prompt").ids();
    let tokens = asked.max_completion_tokens.filter(|_| chat);
    let tokens = tokens.or(asked.max_tokens).expect("it has a limit");
    let seed = text::seed(&prompt);
    let ids: Vec<u32> = (0..tokens as u64).map(|i| text::id_at(seed, i)).collect();
    let mut said = Vec::new();
    ids.iter().for_each(|id| text::piece_text(*id, &mut said));
    Want {
        chat,
        stream: asked.stream,
        shows_ids: asked.return_token_ids,
        ids,
        counts_events: false,
        text: said,
        prompt_tokens: body.contains("\"prompt\":[").then_some(prompt.len() as u64),
    }
}

fn good_body(c: &mut Prng, plan: &Plan, chat: bool) -> String {
    let mut members = Vec::new();
    if chat {
        let turns = 1 + c.below(3);
        let turns: Vec<String> = (0..turns)
            .map(|_| format!(r#"{{"role":"user","content":"{}"}}"#, words(c)))
            .collect();
        members.push(format!("\"messages\":[{}]", turns.join(",")));
    } else {
        let prompt = match c.below(4) {
            0 => format!("{:?}", ids(c)),
            1 => format!("[{:?}]", ids(c)),
            2 => format!(" [\"{}\"]", words(c)),
            _ => format!("\"{}\"", words(c)),
        };
        members.push(format!("\"prompt\":{prompt}"));
    }
    let tokens = match on(c, plan.people.long_answers) {
        true => 200 + c.below(400),
        false => up_to(c, &[3, 12, 40]),
    };
    match chat && on(c, 50) {
        true => members.push(format!(
            "\"max_completion_tokens\":{tokens},\"max_tokens\":9999"
        )),
        false => members.push(format!("\"max_tokens\":{tokens}")),
    }
    if !on(c, plan.people.assembled) {
        members.push("\"stream\":true".into());
    }
    // Plain servers have no ids, and SGLang none for chats.
    let ids = match plan.snapshot.fleet.engine.dialect {
        Dialect::Vllm => true,
        Dialect::Sglang => !chat,
        Dialect::Openai => false,
    };
    let extras = [
        ("\"model\":\"m\"", 50),
        ("\"return_token_ids\":true", if ids { 25 } else { 0 }),
        ("\"temperature\":0.10", 20),
        ("\"kv_transfer_params\":{\"evil\":1}", 15),
        ("\"ec_transfer_params\":{\"evil\":2}", 10),
        ("\"x\":[1,{\"y\":\"\\\"\"}]", 20),
        ("\"min_tokens\":0", 10),
    ];
    for (extra, percent) in extras {
        if on(c, percent) {
            members.push(extra.into());
        }
    }
    let turn = c.below(members.len() as u64) as usize;
    members.rotate_left(turn);
    format!("{{{}}}", members.join(", "))
}

/// From 1 to one of `most`.
fn up_to(c: &mut Prng, most: &[u64]) -> u64 {
    let most = pick(c, most);
    1 + c.below(most)
}

fn ids(c: &mut Prng) -> Vec<u32> {
    let n = up_to(c, &[2, 20, 200]);
    (0..n).map(|_| c.below(40_000) as u32).collect()
}

fn words(c: &mut Prng) -> String {
    let n = up_to(c, &[2, 10, 80, 600]);
    let word = |c: &mut Prng| {
        pick(
            c,
            &[
                "Once", "upon ", "a\\n", "é", "日本", "\\u00e9", "🙂", "time ",
            ],
        )
    };
    (0..n).map(|_| word(c)).collect()
}

fn framed(c: &mut Prng, plan: &Plan, chat: bool, body: String, what: What, last: bool) -> Asked {
    let route = if chat {
        "/v1/chat/completions"
    } else {
        "/v1/completions"
    };
    let http10 = on(c, plan.people.http10);
    let mut head = match http10 {
        true => format!("POST {route} HTTP/1.0\r\n"),
        false => format!(
            "POST {route}{} HTTP/1.1\r\nhost: r\r\n",
            pick(c, &["", "?q=1"])
        ),
    };
    head.push_str(pick(
        c,
        &[
            "",
            "",
            "x-request-id: mine\r\ntraceparent: 00-x\r\n",
            "authorization: Bearer evil\r\n",
        ],
    ));
    if last && on(c, 20) {
        head.push_str("connection: close\r\n");
    }
    if !http10 && on(c, 5) {
        head.push_str("expect: 100-continue\r\n");
    }
    let mut bytes = head.into_bytes();
    if !http10 && on(c, 20) {
        bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        let size = 1 + c.below(100) as usize;
        for chunk in body.as_bytes().chunks(size) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
    } else {
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body.as_bytes());
    }
    Asked {
        bytes,
        what,
        is_head: false,
    }
}

fn wrong(bytes: &[u8], status: u16) -> Asked {
    Asked {
        bytes: bytes.to_vec(),
        what: What::Wrong(status),
        is_head: false,
    }
}

/// Requests that are not answered with tokens.
fn odd(c: &mut Prng, plan: &Plan) -> Asked {
    const WRONG: [(&str, u16); 11] = [
        ("{\"prompt\":7}", 400),
        ("{\"prompt\":\"a\",\"modalities\":[\"audio\"]}", 400),
        ("{\"prompt\":\"a\",\"stream\":tru", 400),
        ("[]", 400),
        ("{\"prompt\":[\"a\",\"b\"],\"max_tokens\":1}", 400),
        ("{\"prompt\":\"a\",\"n\":2}", 400),
        ("{\"prompt\":\"a\",\"model\":\"other\"}", 404),
        (
            "{\"prompt\":\"a\",\"vllm_xargs\":{\"kv_transfer_params\":1}}",
            400,
        ),
        // The engine's own verdicts: on either leg, and on the second one alone.
        (
            "{\"prompt\":[1,2],\"temperature\":-1,\"stream\":true,\"max_tokens\":3}",
            400,
        ),
        ("{\"prompt\":[1,2],\"max_tokens\":0,\"stream\":true}", 400),
        ("{\"prompt\":[1,2],\"max_tokens\":-1}", 400),
    ];
    const OTHER: [(&str, &[u16]); 7] = [
        ("GET /health HTTP/1.1\r\nhost: r\r\n\r\n", &[200]),
        ("GET /ready HTTP/1.1\r\nhost: r\r\n\r\n", &[200, 503]),
        ("HEAD /v1/models HTTP/1.1\r\nhost: r\r\n\r\n", &[200]),
        ("GET /metrics HTTP/1.1\r\nhost: r\r\n\r\n", &[404, 503]),
        ("GET /nothing HTTP/1.1\r\nhost: r\r\n\r\n", &[404]),
        ("GET /v1/completions HTTP/1.1\r\nhost: r\r\n\r\n", &[405]),
        (
            "POST /narwhal/x HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\n\r\n{}",
            &[404, 503],
        ),
    ];
    const NOT_HTTP: [&str; 4] = [
        "POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        "\u{1}\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : r\r\n\r\n",
    ];
    match c.below(12) {
        10 => {
            let bytes = b"POST /v1/completions HTTP/1.1\r\nhost: r\r\nexpect: much\r\ncontent-length: 2\r\n\r\n{}";
            wrong(bytes, 417)
        }
        11 => {
            let bytes = b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n5x\r\n";
            wrong(bytes, 400)
        }
        0..=4 => {
            let verdicts = plan.snapshot.fleet.engine.dialect == Dialect::Vllm;
            let rows = if verdicts {
                WRONG.len()
            } else {
                WRONG.len() - 3
            };
            let (body, status) = pick(c, &WRONG[..rows]);
            framed(c, plan, false, body.into(), What::Wrong(status), false)
        }
        5..=8 => {
            let (text, statuses) = pick(c, &OTHER);
            Asked {
                bytes: text.as_bytes().to_vec(),
                what: What::Other(statuses),
                is_head: text.starts_with("HEAD"),
            }
        }
        _ => Asked {
            bytes: pick(c, &NOT_HTTP).as_bytes().to_vec(),
            what: What::NotHttp,
            is_head: false,
        },
    }
}
