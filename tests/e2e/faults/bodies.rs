//! Request bodies: what is refused, by which member, and what reaches both legs exactly as it was sent.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::client;
use super::super::world::{Fleet, World, everywhere, number};
use super::notation::{DONE, ch, ev, said};
use super::{CHAT, TEXT, refused, served};

/// The legs of the last request as their engines read them, with the length that each was announced with.
fn legs(world: &World) -> [String; 2] {
    ["prefill", "decode"].map(|leg| {
        let legs = world.engines.legs(leg);
        let seen = legs.last().expect("a leg");
        let length = seen.headers.get("content-length").map(String::as_str);
        // The scripted engine reads no byte more or less than this.
        assert_eq!(length, Some(&*seen.raw.len().to_string()), "{leg}");
        assert!(!seen.headers.contains_key("transfer-encoding"), "{leg}");
        String::from_utf8(seen.raw.clone()).expect("UTF-8")
    })
}

/// Half a pair is refused by name, and a whole one reaches engines as it was written, however the body was cut on its way.
// proves R-REQ-1, R-REQ-7
#[test]
fn surrogates_are_whole_or_refused() {
    let body = |text: &str| {
        format!(r#"{{"model":"stub-model","messages":[{{"role":"user","content":"{text}"}}]}}"#)
    };
    let lone = [
        r"x \ud83d y",
        r"\ude00",
        r"\ude00\ud83d",
        r"\ud83d\u0041",
        r"\ud83d\\ude00",
        r"\uD83D\n",
        r"\ud83d",
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for text in lone {
            let answer = world.ask(&client::post_bytes(CHAT, body(text).as_bytes()));
            refused(&answer, 400, "invalid_request_error", text);
            assert_eq!(answer.error().1, Value::Null, "{text}");
        }
        assert!(world.engines.log().is_empty());
        let text = r"\ud83d\ude00 \uD83D\uDE00 \u00e9 \\ud83d";
        let wire = client::post_bytes(CHAT, body(text).as_bytes());
        let at = wire
            .windows(2)
            .position(|two| two == b"\\u")
            .expect("an escape");
        for cut in at..at + 12 {
            let mut client = world.connect();
            client.send(&wire[..cut]);
            // On its way by itself.
            client.more(Duration::from_millis(2));
            client.send(&wire[cut..]);
            served(&client.answer(), "a pair");
            for leg in legs(&world) {
                assert!(leg.contains(text), "{leg}");
            }
        }
        // As a member's name too, where nobody looks for text.
        let named = r#"{"prompt":[1],"\ud83d":1}"#;
        let answer = world.ask(&client::post_bytes(TEXT, named.as_bytes()));
        refused(&answer, 400, "invalid_request_error", named);
    });
}

/// Numbers, escapes, spaces, order and members that nobody knows: both legs have them as they were written.
// proves R-REQ-7, R-LEG-2, R-LEG-4
#[test]
fn what_is_not_ours_is_not_touched() {
    let kept = [
        r#""seed":18446744073709551616"#,
        r#""temperature":0.1000000000000000055511151231257827"#,
        r#""logit_bias":{"1":-0.0}"#,
        r#""x":1E400"#,
        r#""y":1.0"#,
        r#""z" :  -0e-7 "#,
        r#""chat_template_kwargs":{"enable_thinking":false}"#,
        r#""top_k":20"#,
        r#""guided_json":{"type":"object","properties":{"a":{"type":"integer"}}}"#,
        r#""x-new":{"a":[1]}"#,
        r#""\u0061bc":"\u0061\/\t\"""#,
        r#""stop":["\n\n",  "\u0000"]"#,
        "\"t\"\n:\t[ 1 ,2,\r\n{ } ]",
        r#""twice":1,"twice":2"#,
        r#""":"an empty name""#,
        r#""return_token_ids":true"#,
        r#""user":"naïve 😀""#,
        r#""inner":{"stream":true,"kv_transfer_params":1,"max_tokens":7}"#,
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for (path, input) in [
            (TEXT, r#""prompt": [1,  2]"#),
            (CHAT, r#""messages":[ {"role":"user","content":"\u0061"} ]"#),
        ] {
            for stream in ["true", "false"] {
                let body = format!("{{ {} , {input},\"stream\":{stream}}}", kept.join(","));
                let answer = world.ask(&client::post_bytes(path, body.as_bytes()));
                served(&answer, &body);
                let [prefill, decode] = legs(&world);
                for text in kept {
                    assert!(prefill.contains(text) && decode.contains(text), "{text}");
                }
                let inside = |leg: &str| leg.find("\"seed\"") < leg.find("\"twice\"");
                assert!(inside(&prefill) && inside(&decode), "order");
                assert!(prefill.contains(input) && decode.contains(input));
            }
        }
    });
}

/// A thousand levels are refused as fast as any other body, and so is what an engine sends.
// proves R-REQ-1, R-SSE-2, R-ASM-3
#[test]
fn nesting_costs_nothing() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair().with("serving", "max_attempts", 1));
        let deep = |open: &str, close: &str, levels: usize| {
            format!(
                r#"{{"prompt":[1],"z":{}1{}}}"#,
                open.repeat(levels),
                close.repeat(levels)
            )
        };
        for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[[{\"\":", "}]]")] {
            let levels = 100_000;
            let body = deep(open, close, levels);
            let begun = Instant::now();
            let answer = world.ask(&client::post_bytes(TEXT, body.as_bytes()));
            refused(&answer, 400, "invalid_request_error", open);
            assert_eq!(answer.error().1, Value::Null);
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{:?}",
                begun.elapsed()
            );
            // Never closed.
            let answer = world.ask(&client::post_bytes(TEXT, open.repeat(levels).as_bytes()));
            refused(&answer, 400, "invalid_request_error", open);
        }
        // The contract's bound, the object itself counted.
        for (levels, fine) in [(127, true), (128, false)] {
            let answer = world.ask(&client::post_bytes(TEXT, deep("[", "]", levels).as_bytes()));
            assert_eq!(
                answer.status == Some(200),
                fine,
                "{levels}: {}",
                answer.text()
            );
        }
        let frame = format!(r#"{{"z":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        let play = json!({"decode": {"chunks": [said("a"), ev(&frame), said("b"), DONE]}});
        let mut ask = json!({"messages": [{"role": "user", "content": "x"}]});
        world.engines.script(&play);
        refused(&world.post(CHAT, &ask), 502, "decode", "a deep frame");
        ask["stream"] = json!(true);
        let answer = world.post(CHAT, &ask);
        served(&answer, "a deep frame");
        assert!(answer.text().contains(&frame), "as it came");
        let inside = ch(&format!(
            r#"{{"content":"b","z":{}{}}}"#,
            "[".repeat(99_999),
            "]".repeat(99_999)
        ));
        world
            .engines
            .script(&json!({"decode": {"chunks": [said("a"), ev(&inside), DONE]}}));
        served(&world.post(CHAT, &ask), "a deep delta");
        assert!(world.is_alive());
    });
}

/// Every wrong shape is the client's fault, and names the member where there is one.
// proves R-REQ-1, R-REQ-2, R-REQ-5, R-REQ-6, R-REQ-8
#[test]
fn wrong_shapes_name_their_member() {
    // Route, body, status, `param`.
    let rows: &[(&str, &str, u16, Option<&str>)] = &[
        (CHAT, "", 400, None),
        (CHAT, " \n", 400, None),
        (CHAT, "[]", 400, None),
        (CHAT, "\"x\"", 400, None),
        (CHAT, "null", 400, None),
        (CHAT, "5", 400, None),
        (CHAT, "{", 400, None),
        (CHAT, "{}x", 400, None),
        (CHAT, "{}{}", 400, None),
        (CHAT, "{},", 400, None),
        (CHAT, "\u{feff}{}", 400, None),
        (CHAT, "{}\0", 400, None),
        (CHAT, "{\"a\":NaN}", 400, None),
        (CHAT, "{\"a\":Infinity}", 400, None),
        (CHAT, "{\"a\":-Infinity}", 400, None),
        (CHAT, "{'a':1}", 400, None),
        (CHAT, "{\"a\":1,}", 400, None),
        (CHAT, "{\"a\":.5}", 400, None),
        (CHAT, "{\"a\":1 \"b\":2}", 400, None),
        (CHAT, "{\"messages\":[1]}", 400, Some("messages")),
        (CHAT, "{\"messages\":{}}", 400, Some("messages")),
        (CHAT, "{\"messages\":\"x\"}", 400, Some("messages")),
        (CHAT, "{\"messages\":[{},null]}", 400, Some("messages")),
        (TEXT, "{\"prompt\":5}", 400, Some("prompt")),
        (TEXT, "{\"prompt\":{}}", 400, Some("prompt")),
        (TEXT, "{\"prompt\":true}", 400, Some("prompt")),
        (TEXT, "{\"prompt\":[\"a\",\"b\"]}", 400, Some("prompt")),
        (
            TEXT,
            "{\"prompt\":\"a\",\"max_tokens\":1.0}",
            400,
            Some("max_tokens"),
        ),
        (
            TEXT,
            "{\"prompt\":\"a\",\"max_tokens\":true}",
            400,
            Some("max_tokens"),
        ),
        (
            TEXT,
            "{\"prompt\":\"a\",\"max_tokens\":\"1\"}",
            400,
            Some("max_tokens"),
        ),
        (
            TEXT,
            "{\"prompt\":\"a\",\"max_tokens\":1e2}",
            400,
            Some("max_tokens"),
        ),
        (TEXT, "{\"prompt\":\"a\",\"stream\":1}", 400, Some("stream")),
        (
            TEXT,
            "{\"prompt\":\"a\",\"stream\":\"true\"}",
            400,
            Some("stream"),
        ),
        (
            TEXT,
            "{\"prompt\":\"a\",\"\\u0073tream\":1}",
            400,
            Some("stream"),
        ),
        (TEXT, "{\"prompt\":\"a\",\"model\":5}", 400, Some("model")),
        (TEXT, "{\"prompt\":\"a\",\"model\":\"other\"}", 404, None),
        (TEXT, "{\"prompt\":\"a\",\"n\":2}", 400, None),
        (TEXT, "{\"prompt\":\"a\",\"best_of\":2}", 400, None),
        (TEXT, "{\"prompt\":\"a\",\"n\":true}", 400, Some("n")),
        (TEXT, "{\"prompt\":\"a\",\"n\":0}", 400, Some("n")),
        (TEXT, "{\"prompt\":\"a\",\"n\":1.0}", 400, Some("n")),
        (TEXT, "{\"prompt\":\"a\",\"n\":-1}", 400, Some("n")),
        (
            TEXT,
            "{\"prompt\":\"a\",\"best_of\":false}",
            400,
            Some("best_of"),
        ),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        let mut client = world.connect();
        for (path, body, status, param) in rows {
            client.send(&client::post_bytes(path, body.as_bytes()));
            let answer = client.answer();
            refused(&answer, *status, "invalid_request_error", body);
            if *status == 400 && !["\"n\":2", "best_of\":2"].iter().any(|w| body.contains(w)) {
                assert_eq!(answer.error().1, json!(param), "{body}: {}", answer.text());
            }
        }
        let state = world.at_rest();
        assert_eq!(number(&state, "/invalid_requests"), rows.len() as u64);
        assert!(world.engines.log().is_empty());
        assert_eq!(number(&state, "/failed"), 0);
    });
}

/// An empty object lacks a prompt, which engines judge in their own words; the model is the fleet's.
// proves R-REQ-5, R-FLT-1
#[test]
fn an_empty_object_is_for_engines_to_judge() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        world.engines.script(&json!({
            "tokenize": {"status": 400, "body": {"error": {"message": "prompt missing", "code": 400}}},
        }));
        for path in [TEXT, CHAT] {
            let answer = world.ask(&client::post_bytes(path, b"{}"));
            refused(&answer, 400, "invalid_request_error", path);
        }
    });
}
