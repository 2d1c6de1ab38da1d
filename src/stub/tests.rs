//! The simulated engine against what a real one sent, on a virtual clock.

mod dialects;
mod skeleton;

use std::time::Duration;

use super::answer::{Answer, stream_head};
use super::engine::{Engine, Incoming, Reply, Setup, World};
use super::handoff::{Counts, LEASE};
use super::profile::Profile;
use super::stream::{Batch, Next, Stream};
use super::text::{self, Check};
use crate::base::time::Instant;
use crate::wire::json::{Cursor, Kind};

const T0: Instant = Instant::ZERO;

fn ms(n: u64) -> Instant {
    T0 + Duration::from_millis(n)
}

fn world(profile: Profile) -> World {
    let setup = |seed| Setup {
        profile,
        seed,
        len_max: 2_048,
        ..Setup::default()
    };
    World {
        engines: (1..=2).map(|s| Engine::new(setup(s), T0)).collect(),
        ..World::default()
    }
}

fn post<'a>(path: &'a str, body: &'a str) -> Incoming<'a> {
    Incoming {
        method: b"POST",
        path: path.as_bytes(),
        content_type: Some(b"application/json"),
        body: body.as_bytes(),
        ..Incoming::default()
    }
}

fn get(path: &str) -> Incoming<'_> {
    Incoming {
        method: b"GET",
        path: path.as_bytes(),
        ..Incoming::default()
    }
}

fn whole(reply: Reply) -> Answer {
    match reply {
        Reply::Whole(w) => w.take(),
        Reply::Stream(s) => panic!("a stream: {s:?}"),
    }
}

fn stream(reply: Reply) -> Stream {
    match reply {
        Reply::Stream(s) => *s,
        Reply::Whole(w) => panic!("whole: {w:?}"),
    }
}

/// Every event with the time at which it fell due.
fn run(mut stream: Stream) -> Vec<(Instant, String)> {
    let (mut now, mut out, mut batch) = (T0, Vec::new(), Batch::default());
    loop {
        batch.clear();
        let next = stream.poll(now, 1, &mut batch);
        out.extend(
            batch
                .events()
                .map(|e| (now, String::from_utf8(e.to_vec()).unwrap())),
        );
        match next {
            Next::At(at) => {
                assert!(
                    at > now || !batch.bytes.is_empty(),
                    "no progress at {now:?}"
                );
                now = at.max(now);
            }
            Next::Done => return out,
        }
    }
}

fn events(reply: Reply) -> Vec<String> {
    run(stream(reply)).into_iter().map(|(_, e)| e).collect()
}

/// The text and the ids of a stream's events, and what kind of usage came last.
fn read(events: &[String]) -> (String, Vec<u32>, serde_json::Value) {
    let (mut text, mut ids, mut usage) = (String::new(), Vec::new(), serde_json::Value::Null);
    for event in events {
        let data = event.strip_prefix("data: ").unwrap();
        if data == "[DONE]\n\n" {
            continue;
        }
        let value: serde_json::Value = serde_json::from_str(data).unwrap();
        let choice = &value["choices"][0];
        for piece in [&choice["text"], &choice["delta"]["content"]] {
            text.push_str(piece.as_str().unwrap_or(""));
        }
        for id in choice["token_ids"].as_array().into_iter().flatten() {
            ids.push(id.as_u64().unwrap() as u32);
        }
        if value["usage"].is_object() {
            usage = value["usage"].clone();
        }
    }
    (text, ids, usage)
}

/// Member names in order and kinds of values; a list shows its first item.
fn skeleton(json: &[u8]) -> String {
    fn value(c: &mut Cursor<'_>, out: &mut String) {
        match c.peek().unwrap() {
            Kind::Object => {
                out.push('{');
                let mut walk = c.object().unwrap();
                while let Some(key) = c.key(&mut walk).unwrap() {
                    out.push_str(std::str::from_utf8(key.raw).unwrap());
                    out.push(':');
                    value(c, out);
                    out.push(' ');
                }
                out.push('}');
            }
            Kind::Array => {
                out.push('[');
                let mut walk = c.array().unwrap();
                let mut first = true;
                while c.item(&mut walk).unwrap() {
                    let mut item = String::new();
                    value(c, &mut item);
                    if std::mem::take(&mut first) {
                        out.push_str(&item);
                    }
                }
                out.push(']');
            }
            kind => {
                c.skip().unwrap();
                out.push_str(match kind {
                    Kind::String => "s",
                    Kind::Number => "n",
                    Kind::True | Kind::False => "b",
                    _ => "null",
                });
            }
        }
    }
    let (mut c, mut out) = (Cursor::new(json), String::new());
    value(&mut c, &mut out);
    c.finish().unwrap();
    out
}

/// Head and body of a recorded response; chunks joined, and how many there were.
fn recorded(bytes: &[u8]) -> (String, Vec<u8>, usize) {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut rest = &bytes[end..];
    if !head.contains("chunked") {
        return (head, rest.to_vec(), 0);
    }
    let (mut body, mut chunks) = (Vec::new(), 0);
    loop {
        let line = rest.windows(2).position(|w| w == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return (head, body, chunks);
        }
        body.extend_from_slice(&rest[line + 2..][..size]);
        rest = &rest[line + 2 + size + 2..];
        chunks += 1;
    }
}

/// Skeletons of a stream's events, a run of equal ones shown once.
fn event_skeletons<'a>(events: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut out: Vec<String> = events
        .into_iter()
        .map(|e| match e.strip_prefix("data: ").unwrap().trim_end() {
            "[DONE]" => "[DONE]".into(),
            data => skeleton(data.as_bytes()),
        })
        .collect();
    out.dedup();
    out
}

macro_rules! vector {
    ($name:literal) => {
        &include_bytes!(concat!(
            "../../tests/vectors/vllm/skeleton/",
            $name,
            ".http"
        ))[..]
    };
}

const HELLO: &str = r#""messages":[{"role":"user","content":"Say hello."}]"#;

// proves R-CLI-3
#[test]
fn streams_have_the_members_of_the_real_ones() {
    // A prompt whose answer has no empty token.
    let hi = r#""messages":[{"role":"user","content":"Say hi."}]"#;
    let chat = |more: &str| format!(r#"{{"model":"tiny",{hi},"stream":true{more}}}"#);
    let text = |more: &str| format!(r#"{{"prompt":"Once upon","stream":true{more}}}"#);
    let usage = r#","stream_options":{"include_usage":true}"#;
    let running = r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    // recorded, path, body
    let rows = [
        (
            vector!("chat_stream_return_token_ids_no_think"),
            "/v1/chat/completions",
            chat(r#","return_token_ids":true"#),
        ),
        (
            vector!("completion_stream_return_token_ids"),
            "/v1/completions",
            text(&format!(
                r#","return_token_ids":true,"max_tokens":6{usage}"#
            )),
        ),
        (
            vector!("completion_stream_continuous_usage"),
            "/v1/completions",
            text(&format!(r#","max_tokens":6{running}"#)),
        ),
        (
            vector!("request_connection_close_stream"),
            "/v1/completions",
            text(r#","max_tokens":2"#),
        ),
    ];
    for (bytes, path, body) in rows {
        let (_, recorded, chunks) = recorded(bytes);
        let recorded = String::from_utf8(recorded).unwrap();
        let theirs: Vec<&str> = recorded.split_inclusive("\n\n").collect();
        assert_eq!(theirs.len(), chunks, "an event is a chunk");
        let ours = events(world(Profile::default()).request(0, T0, &post(path, &body)));
        assert!(ours.iter().all(|e| e.ends_with("\n\n")));
        assert_eq!(
            event_skeletons(ours.iter().map(String::as_str)),
            event_skeletons(theirs),
            "{body}"
        );
    }
}

// proves R-CLI-3
#[test]
fn a_chat_of_one_token_has_its_usage_event() {
    let (_, recorded, _) = recorded(vector!("chat_stream_max_tokens_1"));
    let recorded = String::from_utf8(recorded).unwrap();
    let theirs = event_skeletons(recorded.split_inclusive("\n\n"));
    let body = format!(
        r#"{{{HELLO},"max_tokens":1,"stream":true,"stream_options":{{"include_usage":true}}}}"#
    );
    let ours =
        events(world(Profile::default()).request(0, T0, &post("/v1/chat/completions", &body)));
    let ours = event_skeletons(ours.iter().map(String::as_str));
    // The one token of the real model was `<think>`, which has no text.
    let theirs: Vec<String> = theirs
        .iter()
        .map(|s| s.replace("delta:{}", "delta:{content:s }"))
        .collect();
    assert_eq!(ours, theirs);
}

// proves R-CLI-3, R-LEG-2
#[test]
fn whole_answers_have_the_members_of_the_real_ones() {
    let ids = r#"{"prompt":"Once upon","max_tokens":4,"return_token_ids":true}"#;
    let chat = format!("{{{HELLO}}}");
    let prefill = r#"{"prompt":"Once upon","max_tokens":1,"stream":false,
        "kv_transfer_params":{"do_remote_decode":true}}"#;
    let strs = r#"{"prompt":"Once upon","return_token_strs":true}"#;
    // recorded, request
    let rows = [
        (
            vector!("completion_return_token_ids"),
            post("/v1/completions", ids),
        ),
        (
            vector!("chat_no_think"),
            post("/v1/chat/completions", &chat),
        ),
        (
            vector!("pd_max_tokens_1_1_prefill"),
            post("/v1/completions", prefill),
        ),
        (vector!("tokenize_messages"), post("/tokenize", &chat)),
        (vector!("tokenize_prompt_strs"), post("/tokenize", strs)),
        (vector!("get_models"), get("/v1/models")),
        (vector!("get_version"), get("/version")),
        (vector!("get_health"), get("/health")),
        (
            vector!("get_method_not_allowed"),
            get("/v1/chat/completions"),
        ),
    ];
    for (bytes, incoming) in rows {
        let (head, body, _) = recorded(bytes);
        let answer = whole(world(Profile::default()).request(0, T0, &incoming));
        if !body.is_empty() || !answer.body.is_empty() {
            assert_eq!(skeleton(&answer.body), skeleton(&body), "{incoming:?}");
        }
        assert_eq!(plain_head(&answer, false), without_length(&head));
    }
}

#[test]
fn heads_are_those_of_uvicorn() {
    // recorded, close
    let rows = [
        (vector!("completion_stream_return_token_ids"), false),
        (vector!("request_connection_close_stream"), true),
    ];
    for (bytes, close) in rows {
        let mut ours = Vec::new();
        let theirs = recorded(bytes).0;
        let unix_s = if close { 1_795_992_898 } else { 1_795_992_886 };
        stream_head(unix_s, close, &mut ours);
        assert_eq!(String::from_utf8(ours).unwrap(), theirs);
    }
    let closing = plain_head(&Answer::unparsable(), true);
    assert!(closing.ends_with("vary: Origin\r\nconnection: close\r\n\r\n"));
}

fn plain_head(answer: &Answer, close: bool) -> String {
    let mut out = Vec::new();
    answer.head(0, close, &mut out);
    without_length(&String::from_utf8(out).unwrap())
}

/// Date and length differ from run to run.
fn without_length(head: &str) -> String {
    head.split_inclusive("\r\n")
        .map(|line| match line.split_once(": ") {
            Some((name @ ("date" | "content-length"), _)) => format!("{name}: *\r\n"),
            _ => line.to_owned(),
        })
        .collect()
}

#[test]
fn answers_are_complete_in_order_and_the_same_for_the_same_seed() {
    let ask = |stream: bool, interval: u64| {
        format!(
            r#"{{"prompt":[5,6,7],"max_tokens":300,"stream":{stream},"stream_interval":{interval},
                "return_token_ids":true}}"#
        )
    };
    let mut first = None;
    for interval in [1, 2, 4, 7, 400] {
        let body = ask(true, interval);
        let mut w = world(Profile::default());
        let got = events(w.request(0, T0, &post("/v1/completions", &body)));
        let again =
            events(world(Profile::default()).request(0, T0, &post("/v1/completions", &body)));
        assert_eq!(got, again);
        assert_eq!(got.len() as u64, 2 + 299u64.div_ceil(interval));
        let (text, ids, _) = read(&got);
        let mut check = Check::default();
        assert!(ids.iter().all(|id| check.id(*id)));
        assert_eq!(check.tokens, 300);
        assert!(Check::default().text(text.as_bytes()));
        assert_eq!(
            first.get_or_insert((text.clone(), ids.clone())),
            &(text, ids)
        );
    }
    let answer =
        whole(world(Profile::default()).request(0, T0, &post("/v1/completions", &ask(false, 1))));
    let value: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let (text, ids) = first.unwrap();
    assert_eq!(value["choices"][0]["text"], text);
    assert_eq!(value["choices"][0]["token_ids"], serde_json::json!(ids));
    assert_eq!(
        value["choices"][0]["prompt_token_ids"],
        serde_json::json!([5, 6, 7])
    );
    // Another seed has another id and fingerprint, and the same words.
    let mut w = world(Profile::default());
    let other = events(w.request(1, T0, &post("/v1/completions", &ask(true, 1))));
    assert_eq!(read(&other).0, text);
}

#[test]
fn silent_tokens_are_empty_events_or_none() {
    // A prompt whose answer begins two places before the silent one.
    let seed_of = |n: u32| text::seed(&[n]);
    let n = (0..)
        .find(|n| text::is_silent(text::id_at(seed_of(*n), 2)))
        .unwrap();
    // path, ids shown, events of 5 tokens, what the third shows
    let rows = [
        ("/v1/completions", false, 5, Some(r#""text":"","#)),
        ("/v1/completions", true, 5, Some(r#""text":"","#)),
    ];
    for (path, ids, count, silent) in rows {
        let body =
            format!(r#"{{"prompt":[{n}],"max_tokens":5,"stream":true,"return_token_ids":{ids}}}"#);
        let got = events(world(Profile::default()).request(0, T0, &post(path, &body)));
        assert_eq!(got.len(), count + 1, "{path} {ids}");
        assert!(silent.is_none_or(|s| got[2].contains(s)), "{path} {ids}");
    }
    // Chat: the same words somewhere in a long answer.
    for ids in [false, true] {
        let body =
            format!(r#"{{{HELLO},"max_tokens":128,"stream":true,"return_token_ids":{ids}}}"#);
        let got =
            events(world(Profile::default()).request(0, T0, &post("/v1/chat/completions", &body)));
        let empty = got.iter().filter(|e| e.contains(r#""delta":{},"#)).count();
        assert_eq!((got.len(), empty), if ids { (130, 2) } else { (128, 0) });
        assert!(Check::default().text(read(&got).0.as_bytes()));
    }
}

#[test]
fn lengths_and_ends() {
    let natural = |low, high| Setup {
        answer_tokens: Some((low, high)),
        len_max: 100,
        ..Setup::default()
    };
    // name, setup, chat, members, tokens, finish
    let rows = [
        (
            "default of completions",
            Setup::default(),
            false,
            "",
            16,
            "length",
        ),
        ("default of chat", Setup::default(), true, "", 17, "stop"),
        (
            "limit",
            Setup::default(),
            true,
            r#","max_tokens":3"#,
            3,
            "length",
        ),
        (
            "newer limit wins",
            Setup::default(),
            true,
            r#","max_tokens":3,"max_completion_tokens":5"#,
            5,
            "length",
        ),
        ("natural end", natural(5, 5), false, "", 6, "stop"),
        (
            "cut before it",
            natural(5, 5),
            false,
            r#","max_tokens":5"#,
            5,
            "length",
        ),
        (
            "not before the least",
            natural(5, 5),
            false,
            r#","max_tokens":50,"min_tokens":9"#,
            10,
            "stop",
        ),
        (
            "end ignored",
            natural(5, 5),
            false,
            r#","max_tokens":50,"ignore_eos":true"#,
            50,
            "length",
        ),
        (
            "shortened to what fits",
            natural(200, 200),
            false,
            r#","max_tokens":5000"#,
            98,
            "length",
        ),
        (
            "to the end of the model",
            natural(200, 200),
            true,
            "",
            89,
            "length",
        ),
        (
            "null is absent",
            Setup::default(),
            false,
            r#","max_tokens":null"#,
            16,
            "length",
        ),
        (
            "the last one counts",
            Setup::default(),
            false,
            r#","max_tokens":1,"max_tokens":2"#,
            2,
            "length",
        ),
    ];
    for (name, setup, chat, members, tokens, finish) in rows {
        let (path, what) = match chat {
            true => ("/v1/chat/completions", HELLO),
            false => ("/v1/completions", r#""prompt":[1,2]"#),
        };
        let body = format!("{{{what}{members}}}");
        let mut engine = Engine::new(setup, T0);
        let answer = whole(engine.request(T0, &post(path, &body), &mut Default::default()));
        let value: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(
            value["usage"]["completion_tokens"], tokens,
            "{name}: {value}"
        );
        assert_eq!(value["choices"][0]["finish_reason"], finish, "{name}");
    }
}

#[test]
fn events_fall_due_by_the_profile() {
    let profile = Profile {
        transfer_s: 0.032,
        ..Profile::flat(40.0, 10.0)
    };
    let mut w = world(profile);
    let body =
        r#"{"prompt":"Once","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}"#;
    let due: Vec<Instant> = run(stream(w.request(0, T0, &post("/v1/completions", body))))
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    // Three tokens, then usage and the mark with the last of them.
    assert_eq!(due, [ms(40), ms(50), ms(60), ms(60), ms(60)]);

    // A late poll finds all that is due; how many it takes is the caller's choice.
    for (events_max, expected) in [(1, 1), (2, 2), (100, 3)] {
        let mut s = stream(w.request(0, T0, &post("/v1/completions", body)));
        let mut batch = Batch::default();
        assert_eq!(s.poll(ms(39), 9, &mut batch), Next::At(ms(40)));
        assert!(batch.ends.is_empty());
        let next = s.poll(ms(55), events_max, &mut batch);
        assert_eq!(batch.ends.len(), expected.min(2));
        let more = if expected < 2 { ms(55) } else { ms(60) };
        assert_eq!(
            next,
            if batch.ends.len() < 2 {
                Next::At(ms(55))
            } else {
                Next::At(more)
            }
        );
    }

    // Whole: ready when the last token is. Decode leg: an interval and the transfer, no prompt to read.
    let Reply::Whole(answer) = w.request(
        0,
        T0,
        &post("/v1/completions", r#"{"prompt":"O","max_tokens":3}"#),
    ) else {
        panic!("a stream");
    };
    assert_eq!(answer.ready_at, ms(60));
    drop(answer);
    let parameters = prefill(&mut w, T0, "p");
    let decode = decode_body("p", &parameters);
    let due: Vec<Instant> = run(stream(w.request(1, T0, &post("/v1/completions", &decode))))
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    assert_eq!(due[..2], [ms(42), ms(52)]);
}

#[test]
fn residents_price_the_interval_and_leave_nothing_behind() {
    let profile = Profile {
        tpot_request_slope: 0.001,
        ttft_b: 0.001,
        prefill_serial: true,
        ..Profile::default()
    };
    let mut w = world(profile);
    let body = r#"{"prompt":[1,2,3],"max_tokens":4,"stream":true}"#;
    let mut a = stream(w.request(0, T0, &post("/v1/completions", body)));
    let mut b = stream(w.request(0, T0, &post("/v1/completions", body)));
    assert_eq!(w.engines[0].load().running(), 2);
    assert_eq!(w.engines[0].load().kv_tokens(), 6);
    assert_eq!(
        w.engines[0].load().waiting(T0),
        1,
        "prompts are read one by one"
    );
    let text = String::from_utf8(whole(w.request(0, T0, &get("/metrics"))).body).unwrap();
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 1.0\n",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 1.0\n",
        "\nprocess_start_time_seconds 1795992884.0\n",
        "num_gpu_blocks=\"131072\"",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }

    let mut batch = Batch::default();
    assert_eq!(
        a.poll(ms(3), 9, &mut batch),
        Next::At(ms(5)),
        "two at 1 ms each"
    );
    assert_eq!(b.poll(ms(3), 9, &mut batch), Next::At(ms(6)));
    drop(b); // its client left
    assert_eq!(w.engines[0].load().running(), 1);
    assert_eq!(a.poll(ms(5), 9, &mut batch), Next::At(ms(6)), "alone again");
    assert_eq!(a.poll(ms(7), 9, &mut batch), Next::Done);
    let load = w.engines[0].load();
    assert_eq!(
        (load.running(), load.kv_tokens(), load.waiting(ms(7))),
        (0, 0, 0)
    );
    let text = String::from_utf8(whole(w.request(0, ms(7), &get("/metrics"))).body).unwrap();
    assert!(text.contains("vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny\"} 4.0\n"));
    assert!(text.contains("finished_reason=\"length\",model_name=\"tiny\"} 1.0\n"));
}

/// Runs a prefill leg on engine 0; returns its `kv_transfer_params`.
fn prefill(w: &mut World, now: Instant, prompt: &str) -> String {
    let body = format!(
        r#"{{"prompt":"{prompt}","max_tokens":1,"stream":false,"kv_transfer_params":{{"do_remote_decode":true}}}}"#
    );
    let incoming = Incoming {
        request_id: Some(b"r-a1-prefill"),
        ..post("/v1/completions", &body)
    };
    let answer = whole(w.request(0, now, &incoming));
    let value: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(value["id"], "cmpl-r-a1-prefill");
    value["kv_transfer_params"].to_string()
}

fn decode_body(prompt: &str, parameters: &str) -> String {
    format!(
        r#"{{"prompt":"{prompt}","max_tokens":3,"stream":true,"return_token_ids":true,"stream_interval":1,
            "kv_transfer_params":{parameters}}}"#
    )
}

// proves R-CLI-3, R-LEG-2, R-LEG-4
#[test]
fn handoffs_decode_and_their_misuse_is_seen_or_counted() {
    let one = Counts {
        offered: 1,
        ..Counts::default()
    };
    type Edit = fn(&mut World, &mut serde_json::Value, &mut Instant);
    // name, what is done between the legs, decodes, counts
    let rows: [(&str, Edit, bool, Counts); 8] = [
        ("right", |_, _, _| {}, true, Counts { right: 1, ..one }),
        (
            "host and port are not looked at",
            |_, p, _| p["remote_host"] = serde_json::Value::Null,
            true,
            Counts { right: 1, ..one },
        ),
        (
            "used again",
            |w, p, now| {
                let body = decode_body("x", &p.to_string());
                drop(w.request(1, *now, &post("/v1/completions", &body)));
            },
            true,
            Counts {
                right: 1,
                again: 1,
                ..one
            },
        ),
        (
            "after its lease",
            |_, _, now| *now = *now + LEASE,
            true,
            Counts {
                late: 1,
                orphaned: 1,
                ..one
            },
        ),
        (
            "other blocks",
            |_, p, _| p["remote_block_ids"] = serde_json::json!([[7]]),
            true,
            Counts { astray: 1, ..one },
        ),
        (
            "unknown engine",
            |_, p, _| p["remote_engine_id"] = "00000000-0000-4000-8000-000000000000".into(),
            false,
            Counts {
                no_engine: 1,
                ..one
            },
        ),
        (
            "dead engine",
            |w, _, now| w.engines[0].restart(*now, &mut w.handoffs),
            false,
            Counts {
                no_engine: 1,
                ..one
            },
        ),
        (
            "blocks that nobody has",
            |_, p, _| p["remote_block_ids"] = serde_json::json!([[99_999_999]]),
            false,
            Counts { no_block: 1, ..one },
        ),
    ];
    for (name, edit, decodes, counts) in rows {
        let mut w = world(Profile::default());
        let mut now = T0;
        let text = prefill(&mut w, now, "Once upon a time");
        let producer = *w.engines[0].name();
        assert_eq!(w.handoffs.held_tokens(now, &producer), 4);
        let mut parameters = serde_json::from_str(&text).unwrap();
        edit(&mut w, &mut parameters, &mut now);
        let body = decode_body("Once upon a time", &parameters.to_string());
        let got: Vec<String> = events(w.request(1, now, &post("/v1/completions", &body)));
        assert_eq!(w.handoffs.counts, counts, "{name}");
        assert_eq!(got.last().unwrap(), "data: [DONE]\n\n", "{name}");
        assert_eq!(got.len(), if decodes { 4 } else { 2 }, "{name}: {got:?}");
        if decodes {
            assert_eq!(w.handoffs.held_tokens(now, &producer), 0, "{name}");
        }
        let health = whole(w.request(1, now, &get("/health"))).status;
        let dead = counts.no_block == 1;
        assert_eq!(health, if dead { 503 } else { 200 }, "{name}");
        if counts.no_engine == 1 {
            let (_, theirs, _) = recorded(vector!("pd_bad_engine_id_stream"));
            assert_eq!(got.concat().as_bytes(), theirs, "{name}");
        }
    }
}

// proves R-LEG-4
#[test]
fn a_dead_engine_ends_what_runs_on_it() {
    let mut w = world(Profile::flat(0.0, 10.0));
    let body = r#"{"prompt":"x","max_tokens":9,"stream":true}"#;
    let mut running = stream(w.request(1, T0, &post("/v1/completions", body)));
    let Reply::Whole(waiting) = w.request(1, T0, &post("/v1/completions", r#"{"prompt":"x"}"#))
    else {
        panic!("a stream");
    };
    let mut batch = Batch::default();
    running.poll(ms(0), 9, &mut batch);
    let mut bad: serde_json::Value = serde_json::from_str(&prefill(&mut w, T0, "p")).unwrap();
    bad["remote_block_ids"] = serde_json::json!([-1]);
    let body = decode_body("p", &bad.to_string()).replace(r#""stream":true"#, r#""stream":false"#);
    let answer = whole(w.request(1, ms(1), &post("/v1/completions", &body)));
    assert_eq!(answer.status, 500);

    batch.clear();
    assert_eq!(running.poll(ms(1), 9, &mut batch), Next::Done);
    let text = String::from_utf8(batch.bytes.clone()).unwrap();
    assert_eq!(
        text,
        "data: {\"error\": {\"message\": \"EngineCore encountered an issue. See stack trace (above) for the root cause.\", \
         \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n"
    );
    assert_eq!(waiting.take().status, 500);
    let status = |w: &mut World, i: &Incoming<'_>| whole(w.request(1, ms(2), i)).status;
    let ask = post("/v1/completions", r#"{"prompt":"x"}"#);
    assert_eq!(status(&mut w, &ask), 500);
    assert_eq!(status(&mut w, &get("/v1/models")), 200);
    assert_eq!(w.engines[1].load().running(), 0);
    w.engines[1].restart(ms(3), &mut w.handoffs);
    assert_eq!(status(&mut w, &ask), 200);
    assert_eq!(status(&mut w, &get("/health")), 200);
}

#[test]
fn refused_decode_legs_free_the_producer_and_a_missing_connector_ignores() {
    let mut w = world(Profile::default());
    let parameters = prefill(&mut w, T0, "p");
    let producer = *w.engines[0].name();
    let body = decode_body("p", &parameters).replace(r#""max_tokens":3"#, r#""max_tokens":-4"#);
    let answer = whole(w.request(1, T0, &post("/v1/completions", &body)));
    assert_eq!(answer.status, 400);
    assert_eq!(w.handoffs.held_tokens(T0, &producer), 0);

    let setup = Setup {
        connector: false,
        ..Setup::default()
    };
    w.engines[0] = Engine::new(setup, T0);
    for parameters in [
        r#"{"do_remote_decode":true}"#,
        r#"{"do_remote_prefill":true,"remote_engine_id":"x","remote_request_id":"y","remote_block_ids":[]}"#,
    ] {
        let body = format!(r#"{{"prompt":"p","kv_transfer_params":{parameters}}}"#);
        let answer = whole(w.request(0, T0, &post("/v1/completions", &body)));
        let value: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(
            (answer.status, &value["kv_transfer_params"]),
            (200, &serde_json::Value::Null)
        );
    }
}

/// Bodies a router can send wrong, and what vLLM said to them, word for word where the words were recorded.
#[test]
fn bad_requests_are_refused_as_recorded() {
    const C: &str = "/v1/completions";
    const H: &str = "/v1/chat/completions";
    let bad = |message: &str, kind: &str, param: &str, code: u16| {
        let message = serde_json::Value::from(message);
        let param = if param.is_empty() {
            "null".into()
        } else {
            format!("\"{param}\"")
        };
        (
            code,
            format!(
                r#"{{"error":{{"message":{message},"type":"{kind}","param":{param},"code":{code}}}}}"#
            ),
        )
    };
    let value = |message: &str, param: &str| bad(message, "BadRequestError", param, 400);
    let schema = |detail: &str, param: &str| {
        bad(
            &format!("1 validation error:\n  {{{detail}}}"),
            "Bad Request",
            param,
            400,
        )
    };
    let no_prompt = || {
        value(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            "prompt",
        )
    };
    let unknown = || {
        bad(
            "The model `no-such-model` does not exist. Valid aliases: tiny.",
            "NotFoundError",
            "model",
            404,
        )
    };
    let rows = [
        (
            C,
            r#"{"prompt":"x","stream_options":{"include_usage":true}}"#,
            value(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
                "stream_options",
            ),
        ),
        (
            C,
            r#"{"prompt":"x","prompt_logprobs":1,"stream":true}"#,
            value(
                "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)",
                "prompt_logprobs",
            ),
        ),
        (
            C,
            r#"{"prompt":"x","max_tokens":0}"#,
            value(
                "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
                "max_tokens",
            ),
        ),
        (
            C,
            r#"{"prompt":"x","max_tokens":-4}"#,
            value(
                "max_tokens must be at least 1, got -4. (parameter=max_tokens, value=-4)",
                "max_tokens",
            ),
        ),
        (
            H,
            r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":100000}"#,
            value(
                "max_tokens=100000 cannot be greater than max_model_len=2048. Please request fewer output tokens. (parameter=max_tokens, value=100000)",
                "max_tokens",
            ),
        ),
        (
            C,
            r#"{"prompt":"x","n":0}"#,
            value("n must be at least 1, got 0.", ""),
        ),
        (
            C,
            r#"{"prompt":"x","temperature":-1}"#,
            value(
                "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
                "temperature",
            ),
        ),
        (
            C,
            r#"{"model":"no-such-model","prompt":"x","stream":true}"#,
            unknown(),
        ),
        (
            H,
            r#"{"model":"no-such-model","messages":[{"role":"user","content":"x"}]}"#,
            unknown(),
        ),
        (
            "/tokenize",
            r#"{"model":"no-such-model","prompt":"x"}"#,
            unknown(),
        ),
        (C, r#"{"prompt":""}"#, no_prompt()),
        (C, r#"{"model":"tiny","max_tokens":2}"#, no_prompt()),
        (
            C,
            r#"{"prompt":[]}"#,
            value("You must pass at least one prompt", ""),
        ),
        (
            H,
            r#"{"messages":[]}"#,
            value(
                "Cannot apply chat template to an empty conversation. Provide at least one message.",
                "",
            ),
        ),
        (
            H,
            r#"{"model":"tiny"}"#,
            schema(
                "'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'",
                "body.messages",
            ),
        ),
        (
            C,
            r#"{"prompt":"x","kv_transfer_params":"yes"}"#,
            schema(
                "'type': 'dict_type', 'loc': 'body.kv_transfer_params', 'msg': 'Input should be a valid dictionary', 'input': 'yes'",
                "body.kv_transfer_params",
            ),
        ),
        (
            C,
            r#"{"prompt":"x","max_tokens":"many"}"#,
            schema(
                "'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'many'",
                "body.max_tokens",
            ),
        ),
        (
            C,
            r#"{"prompt":"x","stream":"perhaps"}"#,
            schema(
                "'type': 'bool_parsing', 'loc': 'body.stream', 'msg': 'Input should be a valid boolean, unable to interpret input', 'input': 'perhaps'",
                "body.stream",
            ),
        ),
        (
            C,
            "[1, 2, 3]",
            schema(
                "'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary or object to extract fields from', 'input': '<list of 3 items>'",
                "body",
            ),
        ),
        (
            C,
            "",
            schema(
                "'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'",
                "body",
            ),
        ),
        (
            C,
            r#"{"prompt":["a","b"]}"#,
            value("The simulated engine takes one prompt a request", "prompt"),
        ),
        (
            C,
            r#"{"prompt":"x","n":2}"#,
            value(
                "The simulated engine makes one choice a request (parameter=n)",
                "n",
            ),
        ),
        (
            C,
            r#"{"prompt":"x","max_tokens":2,"min_tokens":3}"#,
            value(
                "min_tokens must be less than or equal to max_tokens=2, got 3. (parameter=min_tokens, value=3)",
                "min_tokens",
            ),
        ),
    ];
    for (path, body, (status, expected)) in rows {
        let answer = whole(world(Profile::default()).request(0, T0, &post(path, body)));
        let text = String::from_utf8(answer.body).unwrap();
        assert_eq!((answer.status, text), (status, expected), "{body}");
    }
    let long = format!(r#"{{"prompt":[{}1]}}"#, "5,".repeat(2_099));
    let cut = r#"{"prompt":"Once"#;
    let mut w = world(Profile::default());
    let mut ask = |incoming: &Incoming<'_>| {
        let answer = whole(w.request(0, T0, incoming));
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let (status, text) = ask(&post(C, &long));
    assert!(
        status == 400 && text.contains("your prompt contains 2100 input tokens, which"),
        "{text}"
    );
    let (status, text) = ask(&post(C, cut));
    assert!(
        status == 400 && text.contains("'type': 'json_invalid'"),
        "{text}"
    );
    let (status, text) = ask(&Incoming {
        body: b"{\"prompt\":\"\xff\"}",
        ..post(C, "")
    });
    assert_eq!(
        (status, text.as_str()),
        (400, r#"{"detail":"There was an error parsing the body"}"#)
    );
    let (status, text) = ask(&Incoming {
        content_type: Some(b"text/plain"),
        ..post(C, "{}")
    });
    assert!(
        status == 400 && text.contains("Unsupported Media Type"),
        "{text}"
    );
    assert_eq!(
        ask(&get("/v1/nothing_here")),
        (404, r#"{"detail":"Not Found"}"#.into())
    );
    assert_eq!(
        ask(&Incoming {
            method: b"HEAD",
            ..get("/health")
        })
        .0,
        405
    );
    assert_eq!(
        ask(&Incoming {
            content_type: Some(b"Application/JSON; charset=utf-8"),
            ..post(C, r#"{"prompt":"x"}"#)
        })
        .0,
        200
    );
}

#[test]
fn a_prompt_counts_the_same_on_every_route_and_in_every_form() {
    let mut w = world(Profile::default());
    let mut count = |path: &str, body: &str, at: &str| {
        let answer = whole(w.request(0, T0, &post(path, body)));
        let value: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        value
            .pointer(at)
            .unwrap_or_else(|| panic!("{value}"))
            .as_u64()
            .unwrap()
    };
    let usage = "/usage/prompt_tokens";
    let parts = r#"{"messages":[{"content":[{"type":"text","text":"Say hello."}],"role":"user"}]}"#;
    let tools =
        r#"{"tools":[{"type":"function"}],"messages":[{"role":"user","content":"Say hello."}]}"#;
    let hello = format!("{{{HELLO}}}");
    let n = count("/tokenize", &hello, "/count");
    assert_eq!(
        n, 11,
        "1, us er + newline in two, three of ten bytes, 2, and 1 with three for the answer"
    );
    assert_eq!(count("/v1/chat/completions", &hello, usage), n);
    assert_eq!(count("/tokenize", parts, "/count"), n);
    assert!(count("/tokenize", tools, "/count") > n);
    assert_eq!(
        count(
            "/v1/completions",
            r#"{"prompt":["Once upon a time"]}"#,
            usage
        ),
        4
    );
    assert_eq!(
        count(
            "/tokenize",
            r#"{"prompt":"Once upon \u0061 time"}"#,
            "/count"
        ),
        4
    );
    assert_eq!(
        count("/v1/completions", r#"{"prompt":[[1,2,3]]}"#, usage),
        3
    );
    assert_eq!(
        count("/v1/completions?x=1", "\u{feff}{\"prompt\":[1,2]}", usage),
        2
    );
}

/// Whatever the body, an answer and no panic; a stream ends.
#[test]
fn any_body_gets_an_answer() {
    let seeds = [
        r#"{"prompt":"x","stream":true,"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1,-2],3,"x"]}}"#,
        r#"{"messages":[{"role":"user","content":[{"text":"a"},1,null]},{"content":null}],"tools":{},"max_tokens":2}"#,
    ];
    let mut w = world(Profile::default());
    for seed in seeds {
        for cut in 0..seed.len() {
            for body in [
                seed[..cut].to_owned(),
                format!("{}9{}", &seed[..cut], &seed[cut + 1..]),
            ] {
                for path in ["/v1/completions", "/v1/chat/completions", "/tokenize"] {
                    match w.request(0, T0, &post(path, &body)) {
                        Reply::Whole(answer) => assert!(answer.take().status >= 200),
                        Reply::Stream(s) => assert!(run(*s).len() >= 2),
                    }
                }
            }
        }
    }
    assert_eq!(w.engines[0].load().running(), 0);
}

/// Everything that one stream sent, polled together with others on one clock; with the time of its first token and of its end.
fn together(streams: Vec<Stream>, until: Instant) -> Vec<(Option<Instant>, Option<Instant>, u64)> {
    let mut all: Vec<_> = streams
        .into_iter()
        .map(|s| (Some(s), None, None, 0))
        .collect();
    let mut now = T0;
    while now <= until && all.iter().any(|a| a.0.is_some()) {
        let mut next = Instant::FAR;
        for (slot, first, end, events) in &mut all {
            let Some(stream) = slot else { continue };
            let mut batch = Batch::default();
            let at = stream.poll(now, 1, &mut batch);
            *events += batch.ends.len() as u64;
            if !batch.ends.is_empty() && first.is_none() {
                *first = Some(now);
            }
            match at {
                Next::At(at) => next = next.min(at),
                Next::Done => {
                    *end = Some(now);
                    *slot = None;
                }
            }
        }
        now = next.max(now);
    }
    all.into_iter().map(|a| (a.1, a.2, a.3)).collect()
}

fn bounded(requests_max: u64, kv_tokens_max: u64) -> World {
    let mut profile = Profile::flat(10.0, 10.0);
    profile.prefill_serial = true;
    let setup = Setup {
        profile,
        bounds: super::profile::Bounds {
            requests_max,
            kv_tokens_max,
            cached_tokens_max: 0,
        },
        ..Setup::default()
    };
    World {
        engines: vec![Engine::new(setup, T0)],
        ..World::default()
    }
}

const FIVE: &str = r#"{"prompt":[1,2,3,4,5],"max_tokens":5,"stream":true,"return_token_ids":true}"#;

// proves R-CLI-3
#[test]
fn requests_beyond_the_bound_wait_in_line() {
    let mut w = bounded(2, 0);
    let streams = (0..4)
        .map(|_| stream(w.request(0, T0, &post("/v1/completions", FIVE))))
        .collect();
    assert_eq!(
        (w.engines[0].load().running(), w.engines[0].load().in_line()),
        (2, 2)
    );
    let got = together(streams, ms(1_000));
    // Two run to their ends, tokens at 10 to 50 and 20 to 60; then the others.
    assert_eq!((got[0].0, got[0].1), (Some(ms(10)), Some(ms(50))));
    assert_eq!((got[1].0, got[1].1), (Some(ms(20)), Some(ms(60))));
    assert!(
        got[2].0 >= Some(ms(60)) && got[2].0 <= Some(ms(62)),
        "{got:?}"
    );
    assert!(
        got[3].0 >= Some(ms(70)) && got[3].0 <= Some(ms(73)),
        "{got:?}"
    );
    assert!(got.iter().all(|g| g.2 == 6));
    let load = w.engines[0].load();
    assert_eq!(
        (load.running(), load.in_line(), load.kv_tokens()),
        (0, 0, 0)
    );
}

// proves R-CLI-3
#[test]
fn a_full_cache_makes_requests_wait_and_growing_ones_step_back() {
    // Room for one prompt and what it generates: the second waits.
    let mut w = bounded(0, 10);
    let ask = |w: &mut World| stream(w.request(0, T0, &post("/v1/completions", FIVE)));
    let streams = vec![ask(&mut w), ask(&mut w)];
    assert_eq!(w.engines[0].load().in_line(), 1);
    let got = together(streams, ms(1_000));
    assert!(got[1].0 > got[0].1 && got[1].1.is_some(), "{got:?}");

    // Room for both prompts, not for both answers: the younger gives way, and both end whole.
    let mut w = bounded(0, 14);
    let streams = vec![ask(&mut w), ask(&mut w)];
    assert_eq!(w.engines[0].load().in_line(), 0);
    let got = together(streams, ms(1_000));
    assert!(got.iter().all(|g| g.2 == 6), "{got:?}");
    assert!(got[1].1 > got[0].1, "{got:?}");
    let page = whole(w.request(0, ms(999), &get("/metrics"))).body;
    let page = String::from_utf8(page).unwrap();
    let preempted = page
        .lines()
        .find(|l| l.starts_with("vllm:num_preemptions_total{"))
        .unwrap();
    assert!(!preempted.ends_with(" 0.0"), "{preempted}");
    let load = w.engines[0].load();
    assert_eq!(
        (load.running(), load.in_line(), load.kv_tokens()),
        (0, 0, 0)
    );

    // A request that alone is more than there is room for runs all the same; one that leaves the line is gone from it.
    let mut w = bounded(1, 4);
    let (first, second) = (ask(&mut w), ask(&mut w));
    assert_eq!(w.engines[0].load().in_line(), 1);
    drop(second);
    assert_eq!(w.engines[0].load().in_line(), 0);
    assert_eq!(together(vec![first], ms(1_000))[0].2, 6);

    // A whole answer waits as well.
    let mut w = bounded(1, 0);
    let first = ask(&mut w);
    let body = FIVE.replace("\"stream\":true", "\"stream\":false");
    let Reply::Whole(mut second) = w.request(0, T0, &post("/v1/completions", &body)) else {
        panic!("a stream");
    };
    assert_eq!(second.poll(ms(5)), Next::At(ms(6)));
    drop(first);
    // The first prompt is still being read: nobody takes that back.
    assert_eq!(second.poll(ms(7)), Next::At(ms(60)));
    assert_eq!(second.poll(ms(60)), Next::Done);
    assert_eq!(second.take().status, 200);
    assert_eq!(w.engines[0].load().running(), 0);
}

// proves R-CLI-3
#[test]
fn a_known_prefix_is_read_faster_and_told() {
    let profile = Profile {
        ttft_b: 0.001,
        ..Profile::default()
    };
    let setup = Setup {
        profile,
        bounds: super::profile::Bounds {
            cached_tokens_max: 1_000,
            ..Default::default()
        },
        ..Setup::default()
    };
    let mut w = World {
        engines: (0..2).map(|_| Engine::new(setup.clone(), T0)).collect(),
        ..World::default()
    };
    let prompt: Vec<u32> = (300..400).collect();
    let body = format!(
        r#"{{"prompt":{prompt:?},"max_tokens":1,"kv_transfer_params":{{"do_remote_decode":true}}}}"#
    );
    for (cached, first) in [(0, 100), (96, 4)] {
        let Reply::Whole(answer) = w.request(0, T0, &post("/v1/completions", &body)) else {
            panic!("a stream");
        };
        assert_eq!(answer.ready_at, ms(first));
        let value: serde_json::Value = serde_json::from_slice(&answer.take().body).unwrap();
        assert_eq!(
            value["usage"]["prompt_tokens_details"]["cached_tokens"],
            cached
        );
        let handoff = &value["kv_transfer_params"];
        assert_eq!(handoff["remote_prefill_cached_tokens"], cached);
        // The decode side tells what the producer had, not what was moved.
        let decode = format!(
            r#"{{"prompt":{prompt:?},"max_tokens":2,"stream":true,"stream_options":{{"include_usage":true}},"kv_transfer_params":{handoff}}}"#
        );
        let got = events(w.request(1, T0, &post("/v1/completions", &decode)));
        let usage = read(&got).2;
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached);
    }
}

// proves R-CLI-3
#[test]
fn busy_engines_merge_tokens_and_lose_none() {
    let ask = r#"{"prompt":[9],"max_tokens":400,"stream":true,"return_token_ids":true}"#;
    for (running_min, merges) in [(1, true), (2, false)] {
        let setup = Setup {
            merge: super::stream::Merge {
                share: 0.1,
                running_min,
            },
            ..Setup::default()
        };
        let mut w = World {
            engines: vec![Engine::new(setup, T0)],
            ..World::default()
        };
        let got = events(w.request(0, T0, &post("/v1/completions", ask)));
        let (text, ids, _) = read(&got);
        let mut check = Check::default();
        assert!(ids.iter().all(|id| check.id(*id)) && Check::default().text(text.as_bytes()));
        assert_eq!(ids.len(), 400);
        let merged = 401 - got.len();
        assert_eq!(merges, (20..60).contains(&merged), "{merged}");
        assert_eq!(!merges, merged == 0);
    }
}
