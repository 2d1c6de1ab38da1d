//! Tables over the kinds of events that engines send, and the plain way as oracle.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const COUNTED: Usage = Usage {
    prompt_tokens: Some(3),
    completion_tokens: 4,
};

fn options(kind: Kind) -> Options<'static> {
    Options {
        kind,
        keep_ids: false,
        extra_fields: &[],
        dialect_fields: &[],
        bytes_max: 1 << 20,
    }
}

fn raw_answer(options: Options, events: &[&str]) -> Result<String, Fault> {
    let mut assembly = Assembly::new(options);
    for event in events {
        assembly.event(event.as_bytes());
    }
    let mut out = Vec::new();
    assembly.finish(&mut out, COUNTED)?;
    Ok(String::from_utf8(out).expect("the answer is UTF-8"))
}

fn answer(options: Options, events: &[&str]) -> Result<Value, Fault> {
    let raw = raw_answer(options, events)?;
    Ok(serde_json::from_str(&raw).expect("the answer is JSON"))
}

/// A choice's worth of event: `{"choices":[{"index":0,"delta":…}]}`.
fn delta(delta: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#)
}

fn message(deltas: &[&str]) -> Result<Value, Fault> {
    let events: Vec<String> = deltas.iter().map(|d| delta(d)).collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let mut answer = answer(options(Kind::Chat), &events)?;
    Ok(answer["choices"][0]["message"].take())
}

// proves R-ASM-1
#[test]
fn a_message_is_joined_member_by_member() {
    let call = |id, name, arguments| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let rows: &[(&str, &[&str], Value)] = &[
        ("nothing", &["{}"], json!({"content": null})),
        (
            "pieces",
            &[
                r#"{"role":"assistant","content":""}"#,
                r#"{"role":null,"content":"a"}"#,
                r#"{"content":"b"}"#,
            ],
            json!({"content": "ab"}),
        ),
        (
            "empty piece",
            &[r#"{"content":""}"#],
            json!({"content": ""}),
        ),
        (
            "null is absence",
            &[
                r#"{"content":null,"reasoning":"r","tool_calls":null,"audio":null}"#,
                "null",
            ],
            json!({"content": null, "reasoning": "r"}),
        ),
        (
            "each under its name",
            &[
                r#"{"reasoning":"a","reasoning_content":"b"}"#,
                r#"{"refusal":"c","reasoning_content":"d"}"#,
            ],
            json!({"content": null, "reasoning": "a", "reasoning_content": "bd", "refusal": "c"}),
        ),
        (
            "escapes",
            &[r#"{"cont\u0065nt":"\"\n\u00e9"}"#, r#"{"content":"\\é"}"#],
            json!({"content": "\"\né\\é"}),
        ),
        (
            "surrogates in two pieces",
            &[r#"{"content":"\ud83d"}"#, r#"{"content":"\ude00"}"#],
            json!({"content": "😀"}),
        ),
        (
            "the last of a member given twice",
            &[
                r#"{"content":5,"content":"x","content":"a"}"#,
                r#"{"content":"b","c\u006fntent":null}"#,
            ],
            json!({"content": "a"}),
        ),
        (
            "calls by index",
            &[
                r#"{"tool_calls":[{"index":7,"id":"b","type":"function","function":{"name":"get_","arguments":""}}]}"#,
                r#"{"tool_calls":[{"index":2,"id":"a","function":{"name":"f"}} , {"index":7,"id":"2","function":{"name":"x","arguments":"{\"y\":"}}]}"#,
                r#"{"tool_calls":[{"index":7,"function":{"arguments":"1}"}}]}"#,
            ],
            json!({"content": null, "tool_calls": [call("a", "f", ""), call("b2", "get_x", "{\"y\":1}")]}),
        ),
        (
            "no call",
            &[r#"{"tool_calls":[ ],"content":"b"}"#],
            json!({"content": "b"}),
        ),
        (
            "function_call",
            &[
                r#"{"function_call":{"name":"do","arguments":""}}"#,
                r#"{"function_call":{"name":"It","arguments":"{}"}}"#,
            ],
            json!({"content": null, "function_call": {"name": "doIt", "arguments": "{}"}}),
        ),
    ];
    for (name, deltas, expected) in rows {
        let mut expected = expected.clone();
        expected["role"] = json!("assistant");
        assert_eq!(message(deltas), Ok(expected), "{name}");
    }
}

// proves R-ASM-1, R-ASM-2
#[test]
fn a_choice_keeps_what_later_frames_do_not_say() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":4}}"#;
    let rows: &[(&str, Kind, &[&str], Value)] = &[
        (
            "text",
            Kind::Text,
            &[
                r#"{"choices":[{"text":"a"}]}"#,
                r#"{"choices":[{"index":0,"text":"b","delta":null}]}"#,
            ],
            json!({"index": 0, "text": "ab", "finish_reason": "stop"}),
        ),
        (
            "no text",
            Kind::Text,
            &[usage],
            json!({"index": 0, "text": "", "finish_reason": "stop"}),
        ),
        (
            "reasons",
            Kind::Text,
            &[
                r#"{"choices":[{"text":"a","finish_reason":"length","stop_reason":151643}]}"#,
                r#"{"choices":[{"finish_reason":"","stop_reason":null}]}"#,
                r#"{"choices":[{"finish_reason":null}]}"#,
                usage,
            ],
            json!({"index": 0, "text": "a", "finish_reason": "length", "stop_reason": 151643}),
        ),
        (
            "text logprobs",
            Kind::Text,
            &[
                r#"{"choices":[{"logprobs":{"tokens":["a"],"token_logprobs":[-0.1],"top_logprobs":[{"a":-0.1}],"text_offset":[0]}}]}"#,
                r#"{"choices":[{"logprobs":{"tokens":[ "b" , "c" ],"token_logprobs":[null,-1],"top_logprobs":null,"text_offset":[1,2]}}]}"#,
            ],
            json!({"index": 0, "text": "", "finish_reason": "stop", "logprobs": {
                "tokens": ["a", "b", "c"], "token_logprobs": [-0.1, null, -1], "top_logprobs": [{"a": -0.1}], "text_offset": [0, 1, 2]}}),
        ),
        (
            "chat logprobs",
            Kind::Chat,
            &[
                r#"{"choices":[{"logprobs":{"content":[{"token":"a","bytes":[97]}],"refusal":null}}]}"#,
                r#"{"choices":[{"logprobs":{"content":null,"refusal":[{"token":"n"}]}}]}"#,
                r#"{"choices":[{"logprobs":{"content":[]}}]}"#,
            ],
            json!({"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": null}, "logprobs": {
                "content": [{"token": "a", "bytes": [97]}], "refusal": [{"token": "n"}]}}),
        ),
        (
            "empty logprobs",
            Kind::Chat,
            &[r#"{"choices":[{"logprobs":{"content":null}}]}"#],
            json!({"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": null}}),
        ),
    ];
    for (name, kind, events, expected) in rows {
        let got = answer(options(*kind), events).map(|mut answer| answer["choices"][0].take());
        assert_eq!(got, Ok(expected.clone()), "{name}");
    }
}

// proves R-ASM-2, R-ASM-4
#[test]
fn metadata_keeps_its_text_and_its_order() {
    let events = [
        r#"{"id":"c1","object":"chat.completion.chunk","x":{"n":[1.0,1E400]},"tier":null,"choices":[]}"#,
        r#"{"tier":-0.0,"id":"c2","x":null,"y":123456789012345678901234567890,"i\u0064":"c3","y":null,"y":1.50}"#,
    ];
    let got = raw_answer(options(Kind::Chat), &events);
    let expected = concat!(
        r#"{"id":"c3","x":{"n":[1.0,1E400]},"tier":-0.0,"y":1.50,"object":"chat.completion","#,
        r#""choices":[{"index":0,"message":{"role":"assistant","content":null},"finish_reason":"stop"}],"#,
        r#""usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#
    );
    assert_eq!(got.as_deref(), Ok(expected));
}

// proves R-ASM-2
#[test]
fn usage_is_the_engines_or_counted() {
    let sent = r#"{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":9}}}"#;
    let unknown = Usage {
        prompt_tokens: None,
        completion_tokens: 2,
    };
    let producer = br#"{"cached_tokens":0}"#;
    type Details = Option<Option<&'static [u8]>>;
    let rows: &[(&str, &[&str], Usage, Details, Value)] = &[
        (
            "counted",
            &["{}", r#"{"usage":null}"#],
            COUNTED,
            None,
            json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}),
        ),
        (
            "prompt not counted",
            &[],
            unknown,
            None,
            json!({"completion_tokens": 2}),
        ),
        (
            "sent",
            &[sent, r#"{"usage":null}"#],
            COUNTED,
            None,
            json!({"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}}),
        ),
        (
            "details left out",
            &[sent],
            COUNTED,
            Some(None),
            json!({"prompt_tokens": 1}),
        ),
        (
            "details of the producer",
            &[sent],
            COUNTED,
            Some(Some(producer)),
            json!({"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}),
        ),
        (
            "no object",
            &[r#"{"usage":5}"#],
            COUNTED,
            Some(None),
            json!(5),
        ),
    ];
    for (name, events, counted, details, expected) in rows {
        let mut assembly = Assembly::new(options(Kind::Chat));
        for event in *events {
            assembly.event(event.as_bytes());
        }
        if let Some(details) = details {
            assembly.replace_prompt_details(*details);
        }
        let mut out = Vec::new();
        assert_eq!(assembly.finish(&mut out, *counted), Ok(()), "{name}");
        let got: Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(&got["usage"], expected, "{name}");
    }
}

// proves R-ASM-3
#[test]
fn what_cannot_be_one_answer_is_a_fault() {
    let chat: &[(&str, &str)] = &[
        ("delta", r#"{"foo":1}"#),
        ("delta", r#"{"annotations":[]}"#),
        ("delta", r#"{"audio":""}"#),
        ("delta", r#""x""#),
        ("role", r#"{"role":"user"}"#),
        ("role", r#"{"role":5}"#),
        ("content", r#"{"content":5}"#),
        ("reasoning", r#"{"reasoning":[]}"#),
        ("tool_calls", r#"{"tool_calls":{}}"#),
        ("tool_calls", r#"{"tool_calls":[1]}"#),
        (
            "tool_calls",
            r#"{"tool_calls":[{"index":0,"id":"c","extra":1}]}"#,
        ),
        (
            "tool_calls",
            r#"{"tool_calls":[{"index":0,"id":"c","custom":{"name":"n"}}]}"#,
        ),
        (
            "tool_type",
            r#"{"tool_calls":[{"index":0,"id":"c","type":"custom"}]}"#,
        ),
        (
            "tool_index",
            r#"{"tool_calls":[{"id":"c","function":{"name":"f"}}]}"#,
        ),
        ("tool_index", r#"{"tool_calls":[{"index":null,"id":"c"}]}"#),
        ("tool_index", r#"{"tool_calls":[{"index":true,"id":"c"}]}"#),
        ("tool_index", r#"{"tool_calls":[{"index":-1,"id":"c"}]}"#),
        ("tool_index", r#"{"tool_calls":[{"index":0.0,"id":"c"}]}"#),
        (
            "tool_index",
            r#"{"tool_calls":[{"index":99999999999999999999,"id":"c"}]}"#,
        ),
        (
            "tool_id",
            r#"{"tool_calls":[{"index":0,"function":{"name":"f"}}]}"#,
        ),
        ("tool_id", r#"{"tool_calls":[{"index":0,"id":7}]}"#),
        (
            "tool_name",
            r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":""}}]}"#,
        ),
        (
            "function",
            r#"{"tool_calls":[{"index":0,"id":"c","function":{"x":0}}]}"#,
        ),
        (
            "function",
            r#"{"tool_calls":[{"index":0,"id":"c","function":"f"}]}"#,
        ),
        (
            "arguments",
            r#"{"tool_calls":[{"index":0,"id":"c","function":{"arguments":{}}}]}"#,
        ),
        ("function_call", r#"{"function_call":"f"}"#),
        ("function_name", r#"{"function_call":{"arguments":"{}"}}"#),
    ];
    let chat: Vec<(&str, String)> = chat.iter().map(|row| (row.0, delta(row.1))).collect();
    let chat = chat.iter().map(|row| (Kind::Chat, row.0, &row.1[..]));
    let rows: &[(Kind, &str, &str)] = &[
        (Kind::Chat, "choices", r#"{"choices":null}"#),
        (Kind::Chat, "choices", r#"{"choices":{"a":1}}"#),
        (Kind::Chat, "choices", r#"{"choices":["x"]}"#),
        (
            Kind::Chat,
            "choices",
            r#"{"choices":[{"index":0},{"index":1}]}"#,
        ),
        (Kind::Chat, "index", r#"{"choices":[{"index":1}]}"#),
        (Kind::Chat, "index", r#"{"choices":[{"index":false}]}"#),
        (Kind::Chat, "index", r#"{"choices":[{"index":-0}]}"#),
        (Kind::Chat, "choice", r#"{"choices":[{"matched_stop":5}]}"#),
        (Kind::Chat, "choice", r#"{"choices":[{"text":"x"}]}"#),
        (
            Kind::Text,
            "choice",
            r#"{"choices":[{"delta":{"content":"b"}}]}"#,
        ),
        (Kind::Text, "text", r#"{"choices":[{"text":5}]}"#),
        (
            Kind::Text,
            "finish_reason",
            r#"{"choices":[{"finish_reason":1}]}"#,
        ),
        (
            Kind::Text,
            "token_ids",
            r#"{"choices":[{"token_ids":"1"}]}"#,
        ),
        (Kind::Text, "logprobs", r#"{"choices":[{"logprobs":[1]}]}"#),
        (
            Kind::Text,
            "logprobs",
            r#"{"choices":[{"logprobs":{"content":[]}}]}"#,
        ),
        (
            Kind::Chat,
            "logprobs",
            r#"{"choices":[{"logprobs":{"content":{"a":1}}}]}"#,
        ),
        (
            Kind::Chat,
            "logprobs",
            r#"{"choices":[{"logprobs":{"content":[],"tokens":["a"]}}]}"#,
        ),
    ];
    for (kind, member, event) in rows.iter().copied().chain(chat) {
        let fault = Fault::Invalid(member);
        assert_eq!(raw_answer(options(kind), &[event]), Err(fault), "{event}");
        // Latched: good frames after it do not help.
        let good = r#"{"choices":[],"usage":{}}"#;
        assert_eq!(
            raw_answer(options(kind), &[event, good]),
            Err(fault),
            "{event}"
        );
    }
}

// proves R-ASM-3
#[test]
fn a_malformed_event_is_latched() {
    let mut assembly = Assembly::new(options(Kind::Chat));
    assembly.event(delta(r#"{"content":"a"}"#).as_bytes());
    assert_eq!(assembly.fault(), None);
    assembly.malformed();
    assembly.event(delta(r#"{"content":"b"}"#).as_bytes());
    let mut out = Vec::new();
    let fault = Fault::Invalid("event");
    assert_eq!(assembly.finish(&mut out, COUNTED), Err(fault));
    assert_eq!(assembly.fault(), Some(fault));
    assert!(out.is_empty());

    assembly.reset(options(Kind::Chat));
    assembly.event(delta(r#"{"content":"c"}"#).as_bytes());
    assert_eq!(assembly.finish(&mut out, COUNTED), Ok(()));
    let got: Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!(got["choices"][0]["message"]["content"], "c");
}

// proves R-ASM-2, R-ASM-3
#[test]
fn named_members_stay_where_they_stood() {
    let names = ["audio".to_string(), "x".to_string(), "custom".to_string()];
    let mut with = options(Kind::Chat);
    with.extra_fields = &names;
    with.dialect_fields = &["matched_stop"];
    let events = [
        r#"{"choices":[{"x":1,"matched_stop":"a","delta":{"audio":{"id":"a"},"tool_calls":[{"index":0,"id":"c","custom":[],"function":{"name":"f","x":1.0}}]}}]}"#,
        r#"{"choices":[{"matched_stop":128009,"x":null,"logprobs":{"x":true},"delta":{"audio":1,"audio":null}}]}"#,
    ];
    let got = answer(with, &events).map(|mut answer| answer["choices"][0].take());
    let expected = json!({
        "index": 0, "finish_reason": "stop", "x": 1, "matched_stop": 128009, "logprobs": {"x": true},
        "message": {"role": "assistant", "content": null, "audio": {"id": "a"}, "tool_calls": [
            {"id": "c", "type": "function", "custom": [], "function": {"name": "f", "arguments": "", "x": 1.0}}]},
    });
    assert_eq!(got, Ok(expected));
    // The dialect's member belongs to the choice alone.
    let event = delta(r#"{"matched_stop":1}"#);
    assert_eq!(answer(with, &[&event]), Err(Fault::Invalid("delta")));
}

// proves R-TOK-3
#[test]
fn ids_come_out_only_when_asked_for() {
    let events = [
        r#"{"prompt_token_ids":[9,8],"choices":[{"text":"a","token_ids":[1,2],"prompt_token_ids":[7]}]}"#,
        r#"{"prompt_token_ids":null,"token_ids":[5],"choices":[{"text":"b","token_ids":null,"prompt_token_ids":null}]}"#,
        r#"{"choices":[{"text":"c","token_ids":[ 123456789012345678901234567890 ]}]}"#,
    ];
    let without = raw_answer(options(Kind::Text), &events).expect("an answer");
    assert!(!without.contains("token_ids"), "{without}");
    let mut keep = options(Kind::Text);
    keep.keep_ids = true;
    let with = raw_answer(keep, &events).expect("an answer");
    for part in [
        r#"{"prompt_token_ids":[9,8],"token_ids":[5],"object""#,
        r#""token_ids":[1,2,123456789012345678901234567890],"prompt_token_ids":[7]}]"#,
    ] {
        assert!(with.contains(part), "{with}");
    }
}

// proves R-SSE-2, R-ASM-1
#[test]
fn bad_utf8_is_replaced_part_by_part() {
    let rows: &[(&[u8], &str)] = &[
        (b"\xff\xfe", "\u{fffd}\u{fffd}"),
        (b"a\xe4\xbdz", "a\u{fffd}z"),
        (b"\xe4\xbd", "\u{fffd}"),
        (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
        (b"\xf0\x9f\x98", "\u{fffd}"),
        (b"\xe4\xbd\xa0", "你"),
    ];
    for (bytes, expected) in rows {
        assert_eq!(String::from_utf8_lossy(bytes), *expected);
        let event = delta(r#"{"content":"?"}"#);
        let (before, after) = event.split_once('?').expect("a mark");
        let event = [before.as_bytes(), bytes, after.as_bytes()].concat();
        let mut assembly = Assembly::new(options(Kind::Chat));
        assembly.event(&event);
        let mut out = Vec::new();
        assert_eq!(assembly.finish(&mut out, COUNTED), Ok(()));
        let got: Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(got["choices"][0]["message"]["content"], **expected);
    }
}

// proves R-ASM-3
#[test]
fn all_that_is_held_counts() {
    let pad = "y".repeat(100);
    let rows = [
        format!(r#"{{"choices":[{{"delta":{{"content":"{pad}"}}}}]}}"#),
        format!(r#"{{"choices":[{{"delta":{{"reasoning":"{pad}"}}}}]}}"#),
        format!(
            r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":0,"id":"","function":{{"name":"f","arguments":"{pad}"}}}}]}}}}]}}"#
        ),
        format!(r#"{{"choices":[{{"logprobs":{{"content":["{pad}"]}}}}]}}"#),
        format!(r#"{{"choices":[{{"token_ids":[1{}]}}]}}"#, ",2".repeat(50)),
    ];
    for event in rows {
        let mut options = options(Kind::Chat);
        options.keep_ids = true;
        options.bytes_max = 4_000;
        let mut assembly = Assembly::new(options);
        let mut events = 0;
        while assembly.fault().is_none() {
            assembly.event(event.as_bytes());
            assert!(assembly.held_bytes() <= 4_000);
            events += 1;
            assert!(events < 50, "{event}");
        }
        assert_eq!(assembly.fault(), Some(Fault::TooLarge), "{event}");
        assert!(events > 30, "{event}");
    }
}

// proves R-ASM-3
#[test]
fn replaced_values_are_given_back_and_counts_are_bounded() {
    let mut options = options(Kind::Chat);
    options.bytes_max = 1_000;
    let mut assembly = Assembly::new(options);
    for n in 0..100 {
        let value = format!(r#"{{"id":"{n}{}"}}"#, "z".repeat(600 - n));
        assembly.event(value.as_bytes());
    }
    assert_eq!(assembly.fault(), None);
    options.bytes_max = 1 << 30;
    assembly.reset(options);
    for n in 0..100 {
        assembly.event(format!(r#"{{"n{n}":null}}"#).as_bytes());
    }
    assert_eq!(assembly.fault(), Some(Fault::TooLarge));
    assembly.reset(options);
    for n in (0..5_000).rev() {
        assembly.event(delta(&format!(r#"{{"tool_calls":[{{"index":{n}}}]}}"#)).as_bytes());
    }
    assert_eq!(assembly.fault(), Some(Fault::TooLarge));
}

#[test]
fn fuzz_seeds() {
    let seeds: &[&[u8]] = &[
        b"",
        b"\x00{oops",
        b"\x00{\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n{\"a\":1E400}",
        b"\x0f{\"x\":1,\"choices\":[{\"x\":1,\"matched_stop\":2,\"text\":\"a\",\"token_ids\":[1]}]}\n{}",
        b"\x06{\"choices\":[{\"delta\":{\"audio\":1,\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"b\"}}]}}]}",
        b"\x00{\"a\":1,\"a\":2}\n[1]",
    ];
    for seed in seeds {
        fuzzing::fuzz(seed);
    }
}

/// Values that may stand anywhere.
fn any_value() -> impl Strategy<Value = String> {
    let leaves = [
        "null",
        "null",
        "1",
        "0",
        "\"\"",
        "\"a\"",
        "\"\\u00e9\\n\"",
        "[]",
        "[1, 2]",
        "{}",
        "true",
        "-1.5",
    ];
    prop::sample::select(leaves.to_vec()).prop_map(String::from)
}

/// An object of some of these members, in this order.
fn object(members: Vec<(&'static str, BoxedStrategy<String>)>) -> BoxedStrategy<String> {
    let members: Vec<_> = members
        .into_iter()
        .map(|(name, good)| {
            let good = good.prop_map(move |value| format!("\"{name}\" :{value}"));
            let bad = any_value().prop_map(move |value| format!("\"{name}\":{value}"));
            prop_oneof![20 => Just(String::new()), 200 => good, 1 => bad]
        })
        .collect();
    members
        .prop_map(|members| {
            let members: Vec<_> = members.into_iter().filter(|m| !m.is_empty()).collect();
            format!("{{{}}}", members.join(" , "))
        })
        .boxed()
}

fn pick(values: &'static [&'static str]) -> BoxedStrategy<String> {
    prop::sample::select(values).prop_map(String::from).boxed()
}

fn event(kind: Kind) -> BoxedStrategy<String> {
    let text = || pick(&["null", "\"\"", "\"a\"", "\"\\u00e9\"", "\"é\\\"\""]);
    let function = || {
        object(vec![
            ("name", text()),
            ("arguments", text()),
            ("x", pick(&["null"])),
        ])
    };
    let call = object(vec![
        ("index", pick(&["0", "1", "7"])),
        ("id", pick(&["\"i\"", "\"j\""])),
        ("type", pick(&["null", "\"function\""])),
        ("function", function()),
    ]);
    let calls = prop::collection::vec(call, 0..3).prop_map(|c| format!("[ {} ]", c.join(" ,")));
    let delta = object(vec![
        ("role", pick(&["null", "\"assistant\""])),
        ("content", text()),
        ("reasoning", text()),
        ("refusal", text()),
        (
            "tool_calls",
            prop_oneof![Just("null".to_string()), calls].boxed(),
        ),
        (
            "function_call",
            prop_oneof![3 => Just("null".to_string()), 1 => function()].boxed(),
        ),
        ("audio", pick(&["null"])),
    ]);
    let list = || pick(&["null", "[]", "[1]", "[ 2 , {} ]"]);
    let chat_logprobs = object(vec![("content", list()), ("refusal", list())]);
    let text_logprobs = object(vec![("tokens", list()), ("text_offset", list())]);
    let common = |rest: Vec<(&'static str, BoxedStrategy<String>)>| {
        let mut members = vec![
            ("index", pick(&["0"])),
            (
                "finish_reason",
                pick(&["null", "\"\"", "\"stop\"", "\"length\""]),
            ),
            ("stop_reason", pick(&["null", "5", "\"x\""])),
            ("token_ids", list()),
            ("prompt_token_ids", list()),
            ("matched_stop", pick(&["null"])),
        ];
        members.extend(rest);
        object(members)
    };
    let chat = common(vec![("delta", delta), ("logprobs", chat_logprobs)]);
    let text = common(vec![("text", text()), ("logprobs", text_logprobs)]);
    let choice = match kind {
        Kind::Chat => chat,
        Kind::Text => text,
    };
    let choices = prop_oneof![
        9 => choice.prop_map(|c| format!("[ {c} ]")),
        1 => Just("[]".to_string()),
    ];
    object(vec![
        ("id", pick(&["\"c\"", "\"d\""])),
        ("choices", choices.boxed()),
        ("usage", pick(&["null", "{\"a\":1}"])),
        ("token_ids", pick(&["null", "[4]"])),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    // proves R-ASM-1, R-ASM-2, R-ASM-3, R-ASM-4, R-TOK-3
    #[test]
    fn chat_agrees_with_the_plain_way(flags in 0u8..8, events in prop::collection::vec(event(Kind::Chat), 0..6)) {
        let mut data = vec![flags << 1];
        data.extend_from_slice(events.join("\n").as_bytes());
        fuzzing::fuzz(&data);
    }

    // proves R-ASM-1, R-ASM-2, R-ASM-3, R-ASM-4, R-TOK-3
    #[test]
    fn text_agrees_with_the_plain_way(flags in 0u8..8, events in prop::collection::vec(event(Kind::Text), 0..6)) {
        let mut data = vec![flags << 1 | 1];
        data.extend_from_slice(events.join("\n").as_bytes());
        fuzzing::fuzz(&data);
    }

    /// Any one member given twice counts by its last value, at every level.
    // proves R-ASM-1
    #[test]
    fn a_value_given_twice_counts_once(events in prop::collection::vec(event(Kind::Chat), 1..4), keep in any::<bool>()) {
        let mut once = options(Kind::Chat);
        once.keep_ids = keep;
        let doubled: Vec<String> = events.iter().map(|e| double(e)).collect();
        let doubled: Vec<&str> = doubled.iter().map(String::as_str).collect();
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        prop_assert_eq!(answer(once, &events), answer(once, &doubled));
    }
}

/// The same object with every known member written twice, in every object.
fn double(text: &str) -> String {
    fn twice(value: &Value) -> String {
        match value {
            Value::Object(map) => {
                let mut members: Vec<String> = Vec::new();
                for (key, value) in map {
                    let key = serde_json::to_string(key).expect("a key");
                    members.push(format!("{key}:{}", twice(value)));
                }
                let again = members.clone();
                members.extend(again);
                format!("{{{}}}", members.join(","))
            }
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(twice).collect();
                format!("[{}]", items.join(","))
            }
            other => other.to_string(),
        }
    }
    twice(&serde_json::from_str(text).expect("JSON"))
}
