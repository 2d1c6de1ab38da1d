//! The same requests, to a real vLLM and to the simulated one: the same shapes, member for member.
//!
//! An answer is told in lines: its head, then each event or the body, a member a line. What the model makes of a request (texts,
//! ids, counts, and the names of one process) is told by its JSON type, all else by its value; events alike in a row are told once.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::*;

/// Members that the model, the clock or the process decide.
const LOOSE: &[&str] = &[
    "id",
    "created",
    "root",
    "text",
    "content",
    "reasoning",
    "token_ids",
    "prompt_token_ids",
    "tokens",
    "token_strs",
    "count",
    "max_model_len",
    "system_fingerprint",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "cached_tokens",
    "created_cache_tokens",
    "reasoning_tokens",
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_num_tokens",
    "remote_prefill_cached_tokens",
];

// proves R-CLI-3, R-LEG-2, R-LEG-4
#[test]
fn the_same_requests_have_the_same_shapes() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/vllm");
    let requests = std::fs::read(vectors.join("skeleton/requests.json")).unwrap();
    let requests: Vec<Value> = serde_json::from_slice(&requests).unwrap();
    let mut world = world(Profile::default());
    let mut handoffs = BTreeMap::new();
    let mut faults = String::new();
    for request in &requests {
        let name = request["answer"].as_str().unwrap();
        let theirs = std::fs::read(vectors.join(format!("{name}.http"))).unwrap();
        let ours = answered(&mut world, request, &mut handoffs);
        let (theirs, ours) = (told(&theirs), told(&ours));
        if theirs != ours {
            let path = request["path"].as_str().unwrap();
            faults += &format!("\n{name}, {path}: `-` as recorded, `+` as simulated\n");
            faults += &difference(&theirs, &ours);
        }
    }
    assert!(requests.len() >= 60);
    assert!(faults.is_empty(), "{faults}");
}

/// Every byte that the simulated engine answers, framed as the recordings are. Decode legs use the handoff of their own prefill leg.
fn answered(world: &mut World, request: &Value, handoffs: &mut BTreeMap<String, Value>) -> Vec<u8> {
    let name = request["answer"].as_str().unwrap();
    let (pair, decode) = match name.split_once("_1_prefill") {
        Some((pair, _)) => (pair, false),
        None => (
            name.split("_2_decode").next().unwrap(),
            name.contains("_2_decode"),
        ),
    };
    let mut body = request.get("body").cloned();
    if let (true, Some(body)) = (decode, &mut body) {
        body["kv_transfer_params"] = handoffs[pair].clone();
    }
    let bytes: Vec<u8> = match (&body, request["body_latin1"].as_str()) {
        (Some(body), _) => body.to_string().into_bytes(),
        (None, Some(text)) => text.chars().map(|c| c as u8).collect(),
        (None, None) => Vec::new(),
    };
    let header = |name: &str| request["headers"].get(name).map(Value::as_str);
    let content_type = header("Content-Type").unwrap_or(Some("application/json"));
    let incoming = Incoming {
        method: request["method"].as_str().unwrap().as_bytes(),
        path: request["path"].as_str().unwrap().as_bytes(),
        request_id: header("X-Request-Id").flatten().map(str::as_bytes),
        content_type: content_type.map(str::as_bytes),
        body: &bytes,
    };
    let close = header("Connection").flatten() == Some("close");
    let mut out = Vec::new();
    match world.request(usize::from(decode), T0, &incoming) {
        Reply::Whole(whole) => {
            let answer = whole.take();
            answer.head(0, close, &mut out);
            if incoming.method != b"HEAD" {
                out.extend_from_slice(&answer.body);
            }
            if name.ends_with("_1_prefill") {
                let answer: Value = serde_json::from_slice(&answer.body).unwrap();
                handoffs.insert(pair.to_owned(), answer["kv_transfer_params"].clone());
            }
        }
        Reply::Stream(stream) => {
            stream_head(0, close, &mut out);
            for (_, event) in run(*stream) {
                out.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
            }
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }
    out
}

/// An answer in lines.
fn told(bytes: &[u8]) -> Vec<String> {
    let (head, body, chunks) = recorded(bytes);
    let mut out: Vec<String> = without_length(&head).lines().map(str::to_owned).collect();
    if chunks == 0 {
        if !body.is_empty() {
            tell("", "", &mut Cursor::new(&body), &mut out);
        }
        return out;
    }
    let body = String::from_utf8(body).unwrap();
    let mut before = Vec::new();
    for event in body.split_inclusive("\n\n") {
        let data = event.strip_prefix("data: ").expect("an event of data");
        let mut lines = vec!["event:".to_owned()];
        match data.trim_end() {
            "[DONE]" => lines.push("  [DONE]".into()),
            data => tell("  ", "", &mut Cursor::new(data.as_bytes()), &mut lines),
        }
        // A token without text, somewhere: the words decide whether there is one.
        let silent = lines.iter().any(|l| l.ends_with(".delta: {}"))
            && lines.iter().any(|l| l.ends_with(".finish_reason: null"));
        if lines != before && !silent {
            out.extend_from_slice(&lines);
            before = lines;
        }
    }
    out
}

/// Appends a line for each value at the cursor; `at` is where it stands, `key` the last name on the way.
fn tell(at: &str, key: &str, c: &mut Cursor<'_>, out: &mut Vec<String>) {
    let loose = LOOSE.contains(&key);
    let before = c.clone();
    match c.peek().unwrap() {
        Kind::Object => {
            let (mut walk, rows) = (c.object().unwrap(), out.len());
            while let Some(name) = c.key(&mut walk).unwrap() {
                let name = std::str::from_utf8(name.raw).unwrap();
                tell(&format!("{at}.{name}"), name, c, out);
            }
            if out.len() == rows {
                out.push(format!("{at}: {{}}"));
            }
        }
        Kind::Array if loose => {
            *c = before;
            let mut kinds = skeleton_of(c);
            kinds.dedup();
            out.push(format!("{at}: {kinds:?}"));
        }
        Kind::Array => {
            let (mut walk, mut items) = (c.array().unwrap(), 0);
            while c.item(&mut walk).unwrap() {
                tell(&format!("{at}[{items}]"), "", c, out);
                items += 1;
            }
            if items == 0 {
                out.push(format!("{at}: []"));
            }
        }
        kind => {
            let span = c.skip().unwrap();
            let text = std::str::from_utf8(&c.input()[span]).unwrap();
            // The model thought before it spoke; the simulated one has no reasoning.
            if at.ends_with(".message.reasoning") {
                return;
            }
            let at = at.replace(".delta.reasoning", ".delta.content");
            out.push(match kind {
                // Nor did it speak, cut while it thought.
                Kind::Null if at.ends_with(".message.content") => {
                    format!("{at}: {:?}", Kind::String)
                }
                Kind::String | Kind::Number if loose => format!("{at}: {kind:?}"),
                // Messages count tokens.
                Kind::String if key == "message" => {
                    let words = text.split(|c: char| c.is_ascii_digit());
                    let words: Vec<&str> = words.filter(|w| !w.is_empty()).collect();
                    format!("{at}: {}", words.join("#"))
                }
                _ => format!("{at}: {text}"),
            });
        }
    }
}

/// The kinds of all values below the array at the cursor.
fn skeleton_of(c: &mut Cursor<'_>) -> Vec<Kind> {
    let mut out = Vec::new();
    let mut walk = c.array().unwrap();
    while c.item(&mut walk).unwrap() {
        let kind = c.peek().unwrap();
        out.push(kind);
        if kind == Kind::Array {
            // Two deep is as deep as lists of ids go.
            let mut inner = c.array().unwrap();
            while c.item(&mut inner).unwrap() {
                out.push(c.peek().unwrap());
                c.skip().unwrap();
            }
        } else {
            c.skip().unwrap();
        }
    }
    out
}

/// Lines of `a` and `b` side by side, common ones once and only near a difference.
fn difference(a: &[String], b: &[String]) -> String {
    // Longest common subsequences of all tails.
    let mut common = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = match a[i] == b[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut rows) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            rows.push((' ', &a[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            rows.push(('-', &a[i]));
            i += 1;
        } else {
            rows.push(('+', &b[j]));
            j += 1;
        }
    }
    let near = |at: usize| {
        let from = at.saturating_sub(2);
        rows[from..rows.len().min(at + 3)]
            .iter()
            .any(|(mark, _)| *mark != ' ')
    };
    let shown = rows.iter().enumerate().filter(|(at, _)| near(*at));
    shown
        .map(|(_, (mark, line))| format!("  {mark} {line}\n"))
        .collect()
}

#[test]
fn differences_are_shown_where_they_are() {
    let answer = |body: &str| told(format!("HTTP/1.1 200 OK\r\nvary: x\r\n\r\n{body}").as_bytes());
    let a = answer(r#"{"id":"x","n":1,"choices":[{"text":"a","finish_reason":null}],"usage":{}}"#);
    // body, difference
    let rows = [
        (
            r#"{"id":"y","n":1,"choices":[{"text":"b","finish_reason":null}],"usage":{}}"#,
            "",
        ),
        (
            r#"{"id":7,"n":1,"choices":[{"text":"b","finish_reason":null}],"usage":{}}"#,
            "    vary: x\n    \n  - .id: String\n  + .id: Number\n    .n: 1\n    .choices[0].text: String\n",
        ),
        (
            r#"{"id":"y","n":1,"choices":[{"finish_reason":null,"text":"b"}],"usage":{}}"#,
            "    .id: String\n    .n: 1\n  - .choices[0].text: String\n    .choices[0].finish_reason: null\n  \
             + .choices[0].text: String\n    .usage: {}\n",
        ),
        (
            r#"{"id":"y","n":2,"choices":[{"text":"b","finish_reason":null}]}"#,
            "    \n    .id: String\n  - .n: 1\n  + .n: 2\n    .choices[0].text: String\n    \
             .choices[0].finish_reason: null\n  - .usage: {}\n",
        ),
    ];
    for (body, expected) in rows {
        assert_eq!(difference(&a, &answer(body)), expected, "{body}");
    }
}
