//! What a real vLLM said, through the router.
//!
//! The recordings (`tests/vectors/vllm`) were made with token ids asked for on some streams only. Where a stream has none, they are
//! added before it is replayed: a router of token accounts asks for them, and refuses a stream that has output without.

use serde_json::{Value, json};

use super::client::data_of;
use super::recorded::{self, as_streamed, body, comparable};
use super::world::{Fleet, Setup, World, everywhere, number};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

// proves R-LEG-3, R-LEG-4, R-SSE-2, R-SSE-4, R-ASM-1
#[test]
fn two_recorded_legs_give_the_recorded_text() {
    let rows = [
        (CHAT, "chat_stream"),
        (CHAT, "chat_stream_tools"),
        (TEXT, "completion_stream"),
        (TEXT, "completion_short"),
        (TEXT, "completion_token_ids"),
        (TEXT, "eos_at_once"),
        (TEXT, "reuse"),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &tiny(Fleet::pair()));
        for (path, name) in rows {
            let prefill = json_body(&format!("pd/{name}_1_prefill"));
            let recorded = body(&format!("pd/{name}_2_decode"));
            let recorded = String::from_utf8(recorded).expect("UTF-8");
            world.engines.reset();
            world.engines.script(&json!({
                "tokenize": {"body": count_of(&prefill)},
                "prefill": {"body": prefill.to_string()},
                "decode": {"chunks": with_ids(&recorded)},
            }));

            let streamed = world.post(path, &request(path, true));
            assert_eq!(streamed.status, Some(200), "{name}: {}", streamed.text());
            assert!(streamed.complete, "{name}");
            let got = said(parsed(&streamed.text()));
            assert_eq!(got, said(parsed(&recorded)), "{name}");
            assert_ne!(name == "eos_at_once", !got.is_empty(), "{name}");

            let assembled = world.post(path, &request(path, false));
            assert_eq!(assembled.status, Some(200), "{name}: {}", assembled.text());
            assert_eq!(said(vec![as_delta(assembled.json())]), got, "{name}");

            for leg in world.engines.legs("decode") {
                let handoff = &leg.body["kv_transfer_params"];
                assert_eq!(*handoff, prefill["kv_transfer_params"], "{name}");
            }
        }
    });
}

/// The decode leg of these was asked for one answer; its stream is that answer in one event.
// proves R-LEG-3, R-LEG-4, R-ASM-1, R-ASM-2
#[test]
fn a_pairs_recorded_answer_comes_out_as_it_was() {
    let rows = [
        (CHAT, "chat"),
        (CHAT, "chat_tools_named"),
        (TEXT, "completion"),
        (TEXT, "completion_echo"),
        (TEXT, "completion_logprobs"),
        (TEXT, "max_tokens_1"),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &tiny(Fleet::pair()));
        for (path, name) in rows {
            let prefill = json_body(&format!("pd/{name}_1_prefill"));
            let answer = json_body(&format!("pd/{name}_2_decode"));
            let tokens = answer["usage"]["completion_tokens"].as_u64();
            let mut event = as_delta(answer.clone());
            event["choices"][0]["token_ids"] = (0..tokens.expect("a count")).collect();
            let event = format!("data: {event}\n\n");
            world.engines.reset();
            world.engines.script(&json!({
                "tokenize": {"body": count_of(&prefill)},
                "prefill": {"body": prefill.to_string()},
                "decode": {"chunks": [event, "data: [DONE]\n\n"]},
            }));
            let got = world.post(path, &request(path, false));
            assert_eq!(got.status, Some(200), "{name}: {}", got.text());
            assert_eq!(comparable(got.json()), comparable(answer), "{name}");
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/served"), rows.len() as u64);
    });
}

// proves R-SSE-2, R-SSE-4, R-SSE-5, R-TOK-2
#[test]
fn recorded_streams_come_out_event_for_event() {
    let paired = recorded::pairs();
    let mut names: Vec<&str> = paired.iter().map(|(_, stream, _)| *stream).collect();
    names.extend([
        "completion_stream_logprobs",
        "chat_stream_unicode",
        "chat_stream_no_think",
        "chat_stream_no_reasoning",
        "chat_stream_json_schema",
        "completion_stream_unicode",
        "completion_stream_unicode_cut",
        "completion_stream_continuous_usage",
        "chat_stream_logprobs",
    ]);
    everywhere(|setup| {
        let world = World::start(setup, &tiny(Fleet::new(&["both"])));
        for name in &names {
            let recorded = body(&format!("pairs/{name}"));
            let recorded = String::from_utf8(recorded).expect("UTF-8");
            let chunks = with_ids(&recorded);
            world.engines.reset();
            world.engines.script(&json!({"decode": {"chunks": chunks}}));
            let path = path_of(name);
            let before = number(&world.at_rest(), "/serving/decode_tokens_observed");
            let got = world.post(path, &request(path, true));
            assert_eq!(got.status, Some(200), "{name}: {}", got.text());
            assert!(got.complete, "{name}");
            // Byte for byte: what was cut are these members, each with its comma.
            let want = cut(&cut(&recorded, "prompt_token_ids"), "token_ids");
            assert_eq!(got.text(), want, "{name}");
            let after = number(&world.at_rest(), "/serving/decode_tokens_observed");
            let ids = chunks.iter().map(|c| c.matches("\"token_ids\":[").count());
            assert_eq!(after - before, ids.sum::<usize>() as u64, "{name}");
        }
    });
}

// proves R-SSE-2, R-TOK-2, R-TOK-3
#[test]
fn recorded_ids_are_cut_unless_asked_for() {
    let names = [
        "completion_stream_return_token_ids",
        "chat_stream_return_token_ids",
        "chat_stream_return_token_ids_no_think",
        "chat_stream_unicode_token_ids",
        "chat_stream_tools_auto_call_token_ids",
        "chat_stream_tools_interval_400_token_ids",
    ];
    everywhere(|setup| {
        let world = World::start(setup, &tiny(Fleet::new(&["both"])));
        for name in names {
            let recorded = body(&format!("pairs/{name}"));
            let chunks = pieces(&recorded, 700);
            world.engines.reset();
            world.engines.script(&json!({"decode": {"chunks": chunks}}));
            let path = path_of(name);
            let recorded = recorded::events(&recorded).into_iter();
            let recorded = recorded.map(|event| serde_json::from_slice(&event).expect(name));
            let recorded: Vec<Value> = recorded.chain([json!("[DONE]")]).collect();

            let mut asks = request(path, true);
            asks["return_token_ids"] = json!(true);
            let got = world.post(path, &asks);
            assert_eq!(parsed(&got.text()), recorded, "{name}");

            let got = world.post(path, &request(path, true));
            let want: Vec<Value> = recorded.iter().cloned().map(without_ids).collect();
            assert_eq!(parsed(&got.text()), want, "{name}");
            assert!(!got.text().contains("token_ids"), "{name}");

            let ids = recorded.iter().filter_map(ids_of).flatten();
            let ids: Vec<Value> = ids.collect();
            let mut asks = request(path, false);
            asks["return_token_ids"] = json!(true);
            let got = world.post(path, &asks);
            assert_eq!(got.json()["choices"][0]["token_ids"], json!(ids), "{name}");
        }
    });
}

// proves R-ASM-1, R-ASM-2
#[test]
fn recorded_streams_assemble_to_the_engines_own_answer() {
    everywhere(|setup| {
        let world = World::start(setup, &tiny(Fleet::new(&["both"])));
        for (full, stream, differs) in recorded::pairs() {
            let engine = json_body(&format!("pairs/{full}"));
            let tokens = engine["usage"]["completion_tokens"].as_u64();
            let recorded = body(&format!("pairs/{stream}"));
            let recorded = String::from_utf8(recorded).expect("UTF-8");
            let mut chunks = with_ids(&recorded);
            spread_ids(&mut chunks, tokens.expect("a count") as usize);
            world.engines.reset();
            world.engines.script(&json!({
                "tokenize": {"body": count_of(&engine)},
                "decode": {"chunks": chunks},
            }));
            let path = path_of(stream);
            let got = world.post(path, &request(path, false));
            assert_eq!(got.status, Some(200), "{stream}: {}", got.text());
            let want = as_streamed(comparable(engine), differs);
            assert_eq!(comparable(got.json()), want, "{stream}");
        }
    });
}

/// A stream without ids from an engine that should send them: tokens that nobody can count.
// proves R-TOK-1, R-FLT-4
#[test]
fn a_recorded_stream_without_ids_fails() {
    everywhere(|setup| {
        for fleet in [Fleet::new(&["both", "both"]), Fleet::pairs()] {
            let world = World::start(setup, &tiny(fleet));
            let recorded = body("pairs/completion_stream");
            world
                .engines
                .script(&json!({"decode": {"chunks": pieces(&recorded, 4000)}}));
            for stream in [true, false] {
                let got = world.post(TEXT, &request(TEXT, stream));
                assert_eq!(got.status, Some(502), "{}", got.text());
                assert_eq!(got.error(), (json!("decode"), json!(null), json!("decode")));
            }
            let state = world.at_rest();
            assert_eq!(number(&state, "/serving/decode_tokens_observed"), 0);
            assert_eq!(number(&state, "/outcome_reasons/failed/decode"), 2);
        }
    });
}

// proves R-FLT-1, R-FLT-3, R-FLT-4
#[test]
fn recorded_refusals_and_errors_become_the_contracts_answers() {
    let too_long = json_body("pd/too_long")["error"]["message"].clone();
    let failed = |phase: &str| (502, json!(phase), json!(phase), Value::Null);
    // Where the recording is played, its name, and the answer: status, type, code, the engine's message.
    let rows = [
        (
            "prefill",
            "too_long",
            (
                400,
                json!("invalid_request_error"),
                json!(null),
                too_long.clone(),
            ),
        ),
        (
            "decode",
            "too_long",
            (400, json!("invalid_request_error"), json!(null), too_long),
        ),
        ("prefill", "queue_full", failed("prefill")),
        ("prefill", "draining", failed("prefill")),
        ("decode", "queue_full", failed("decode")),
        ("decode", "draining", failed("decode")),
        ("decode", "decode_refused", failed("decode")),
        ("decode", "bad_engine_id_stream", failed("decode")),
        ("decode", "death_stream", failed("decode")),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &tiny(Fleet::pairs()));
        for (leg, name, (status, kind, code, message)) in &rows {
            let bytes = recorded::whole(&format!("pd/{name}"));
            world.engines.reset();
            world
                .engines
                .script(&json!({*leg: {"raw": pieces(&bytes, 50)}}));
            for stream in [true, false] {
                let got = world.post(CHAT, &request(CHAT, stream));
                let row = format!("{leg} {name} stream={stream}: {}", got.text());
                assert_eq!(got.status, Some(*status), "{row}");
                let error = got.json()["error"].clone();
                assert_eq!((&error["type"], &error["code"]), (kind, code), "{row}");
                if message.is_string() {
                    assert_eq!(error["message"], *message, "{row}");
                }
            }
        }
        world.at_rest();
    });
}

/// A recorded engine that is told to stop ends its streams with `abort` and `[DONE]`: a failure, before output and after it.
// proves R-FLT-2, R-FLT-5
#[test]
fn a_recorded_abort_is_a_failure() {
    let recorded = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/vectors/vllm/shutdown_abort_stream.sse"
    ));
    let chunks = with_ids(&recorded.expect("a recording"));
    everywhere(|setup: Setup| {
        let world = World::start(setup, &tiny(Fleet::new(&["both", "both"])));
        world.engines.script(&json!({"decode": {"chunks": chunks}}));
        let got = world.post(TEXT, &request(TEXT, true));
        assert_eq!(got.status, Some(200), "{}", got.text());
        assert!(got.complete);
        let last = parsed(&got.text()).pop().expect("an event");
        assert_eq!(last["error"]["type"], "decode");
        assert_eq!(last["error"]["code"], "failed");
        assert!(!got.text().contains("[DONE]"));
        let got = world.post(TEXT, &request(TEXT, false));
        assert_eq!(got.status, Some(502), "{}", got.text());
        assert_eq!(number(&world.at_rest(), "/failed"), 2);
    });
}

fn tiny(mut fleet: Fleet) -> Fleet {
    fleet.file["model"] = json!("tiny");
    fleet
}

fn path_of(stream: &str) -> &'static str {
    if stream.contains("chat") { CHAT } else { TEXT }
}

/// Engines here answer by script, so the request may be any.
fn request(path: &str, stream: bool) -> Value {
    let mut request = json!({"model": "tiny", "stream": stream});
    if path == CHAT {
        request["messages"] = json!([{"role": "user", "content": "Say it."}]);
    } else {
        request["prompt"] = json!("Say it.");
    }
    request
}

fn json_body(name: &str) -> Value {
    serde_json::from_slice(&body(name)).expect(name)
}

/// A `/tokenize` answer with the prompt length of `answer`.
fn count_of(answer: &Value) -> Value {
    json!({"count": answer["usage"]["prompt_tokens"], "max_model_len": 2048, "tokens": []})
}

/// The recorded events, one chunk each, with a token id wherever there is output.
fn with_ids(stream: &str) -> Vec<String> {
    let events = stream.split_inclusive("\n\n").map(|event| {
        let Some(Ok(value)) = event
            .strip_prefix("data: ")
            .map(serde_json::from_str::<Value>)
        else {
            return event.to_owned();
        };
        let choice = &value["choices"][0];
        let full = |v: &Value| v.as_str().map_or(!v.is_null(), |text| !text.is_empty());
        let delta = choice["delta"].as_object();
        let output = full(&choice["text"])
            || delta.is_some_and(|d| d.iter().any(|(k, v)| k != "role" && full(v)));
        let ends = full(&choice["finish_reason"]);
        let has = ids_of(&value).is_some_and(|ids| !ids.is_empty());
        if has || !output && !ends {
            return event.to_owned();
        }
        let added = event.replacen(",\"token_ids\":null", ",\"token_ids\":[7]", 1);
        assert!(added != event || !output, "no place for ids: {event}");
        added
    });
    events.collect()
}

/// Gives the last event with ids as many that all together are `total`.
fn spread_ids(chunks: &mut [String], total: usize) {
    const ONE: &str = "\"token_ids\":[7]";
    let have: usize = chunks.iter().filter(|chunk| chunk.contains(ONE)).count();
    let last = chunks.iter_mut().rev().find(|chunk| chunk.contains(ONE));
    if let (Some(last), Some(more)) = (last, total.checked_sub(have)) {
        let ids = vec!["7"; more + 1].join(",");
        *last = last.replacen(ONE, &format!("\"token_ids\":[{ids}]"), 1);
    }
}

/// Bytes as script items of at most `size` bytes.
fn pieces(bytes: &[u8], size: usize) -> Vec<Value> {
    let hex = |piece: &[u8]| piece.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let pieces = bytes.chunks(size);
    pieces.map(|piece| json!({"hex": hex(piece)})).collect()
}

/// A text without the members of this name, whose values are null or flat lists, and the commas before them.
fn cut(text: &str, name: &str) -> String {
    let member = format!(",\"{name}\":");
    let mut parts = text.split(&member);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let value = if part.starts_with("null") {
            "null".len()
        } else {
            part.find(']').expect("a list") + 1
        };
        out += &part[value..];
    }
    out
}

fn parsed(stream: &str) -> Vec<Value> {
    let data = data_of(stream).into_iter();
    data.map(|data| serde_json::from_str(&data).unwrap_or(json!(data)))
        .collect()
}

fn ids_of(event: &Value) -> Option<Vec<Value>> {
    event["choices"][0]["token_ids"].as_array().cloned()
}

fn without_ids(mut event: Value) -> Value {
    for path in ["", "/choices/0"] {
        if let Some(object) = event.pointer_mut(path).and_then(Value::as_object_mut) {
            object.retain(|name, _| name != "token_ids" && name != "prompt_token_ids");
        }
    }
    event
}

/// A whole answer as one event of a stream would have it.
fn as_delta(mut answer: Value) -> Value {
    let chat = answer["object"] == "chat.completion";
    if chat {
        answer["object"] = json!("chat.completion.chunk");
        let mut message = answer["choices"][0]["message"].take();
        for (n, call) in message["tool_calls"]
            .as_array_mut()
            .into_iter()
            .flatten()
            .enumerate()
        {
            call["index"] = json!(n);
        }
        answer["choices"][0]["delta"] = message;
        let choice = answer["choices"][0].as_object_mut();
        choice.map(|choice| choice.remove("message"));
    }
    answer
}

/// Everything that is said in the first choice: each string under its name, and calls.
fn said(events: Vec<Value>) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut add = |name: String, value: &Value| {
        let Some(text) = value.as_str().filter(|text| !text.is_empty()) else {
            return;
        };
        match out.iter_mut().find(|(known, _)| *known == name) {
            Some((_, said)) => said.push_str(text),
            None => out.push((name, text.to_owned())),
        }
    };
    for event in events {
        let choice = &event["choices"][0];
        add("text".to_owned(), &choice["text"]);
        for name in ["content", "reasoning"] {
            add(name.to_owned(), &choice["delta"][name]);
        }
        for call in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            for name in ["name", "arguments"] {
                add(format!("{name} {}", call["index"]), &call["function"][name]);
            }
        }
    }
    out.sort();
    out
}
