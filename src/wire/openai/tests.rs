//! Tables of request bodies and what becomes of them, a naive judge over serde_json, and error bodies.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::base::limits;
use crate::wire::splice::fuzzing::members;

const ALIASES: [&str; 2] = ["alias", "other name"];

fn checked(route: Route, dialect: Dialect, body: &[u8]) -> Result<Request, Refusal> {
    let aliases = ALIASES.map(str::to_owned);
    let rules = Rules {
        dialect,
        model: "m",
        aliases: &aliases,
    };
    check(route, body, &rules)
}

/// A verdict in a line: `ok`, or status, type, param, code, whether it came after the model check, reason.
fn verdict(route: Route, dialect: Dialect, body: &[u8]) -> String {
    match checked(route, dialect, body) {
        Ok(_) => "ok".to_owned(),
        Err(r) => format!(
            "{} {} {} {} {} {}",
            r.status,
            r.kind,
            r.param.unwrap_or("-"),
            r.code.unwrap_or("-"),
            if r.after_model { "sized" } else { "unsized" },
            r.reason
        ),
    }
}

fn bad(param: &str, reason: &str) -> String {
    format!("400 invalid_request_error {param} - unsized {reason}")
}

// proves R-REQ-1
#[test]
fn bodies_that_are_no_json_object() {
    let nested = |n: usize| {
        let (open, close) = ("[".repeat(n), "]".repeat(n));
        format!("{{\"model\":\"m\",\"prompt\":\"hi\",\"x\":{open}{close}}}").into_bytes()
    };
    let utf16: Vec<u8> = "{\"model\":\"m\"}"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let utf32: Vec<u8> = "{\"model\":\"m\"}"
        .chars()
        .flat_map(|c| u32::from(c).to_be_bytes())
        .collect();
    let rows: Vec<(&str, Vec<u8>, bool)> = vec![
        ("empty", b"".to_vec(), false),
        ("space", b" \n".to_vec(), false),
        ("not json", b"{not json".to_vec(), false),
        ("array", b"[1]".to_vec(), false),
        ("string", b"\"x\"".to_vec(), false),
        ("null", b"null".to_vec(), false),
        ("number", b"5".to_vec(), false),
        ("open", b"{".to_vec(), false),
        ("trailing garbage", b"{} x".to_vec(), false),
        ("two objects", b"{}{}".to_vec(), false),
        ("NaN", b"{\"x\":NaN}".to_vec(), false),
        ("Infinity", b"{\"x\":-Infinity}".to_vec(), false),
        ("trailing comma", b"{\"x\":1,}".to_vec(), false),
        ("single quotes", b"{'x':1}".to_vec(), false),
        ("bad UTF-8", b"{\"prompt\":\"\xff\xfe\"}".to_vec(), false),
        ("overlong", b"{\"prompt\":\"\xc0\xaf\"}".to_vec(), false),
        (
            "surrogate bytes",
            b"{\"p\":\"\xed\xa0\xbd\"}".to_vec(),
            false,
        ),
        ("byte-order mark", b"\xef\xbb\xbf{}".to_vec(), false),
        (
            "UTF-16 mark",
            [b"\xff\xfe".to_vec(), utf16.clone()].concat(),
            false,
        ),
        ("UTF-16", utf16, false),
        ("UTF-32", utf32, false),
        (
            "lone surrogate",
            br#"{"prompt":"x \ud83d y"}"#.to_vec(),
            false,
        ),
        (
            "lone surrogate, content",
            br#"{"messages":[{"content":"\udc00"}]}"#.to_vec(),
            false,
        ),
        ("lone surrogate, key", br#"{"\ud83d":1}"#.to_vec(), false),
        (
            "surrogate pair",
            br#"{"prompt":"\ud83d\ude00"}"#.to_vec(),
            true,
        ),
        ("deepest", nested(limits::JSON_DEPTH_MAX - 1), true),
        ("too deep", nested(limits::JSON_DEPTH_MAX), false),
        ("far too deep", nested(100_000), false),
        (
            "raw control byte",
            b"{\"prompt\":\"a\x01\"}".to_vec(),
            false,
        ),
        ("object", b"{}".to_vec(), true),
        ("space around", b"\r\n {\t} \n".to_vec(), true),
        (
            "last duplicate wins",
            br#"{"model":"other","model":"m","n":2,"n":1}"#.to_vec(),
            true,
        ),
    ];
    for (name, body, ok) in rows {
        for route in [Route::Completions, Route::Chat] {
            let want = if ok {
                "ok".to_owned()
            } else {
                bad("-", "bad_json")
            };
            assert_eq!(verdict(route, Dialect::Vllm, &body), want, "{name}");
        }
    }
}

// proves R-REQ-2, R-REQ-3, R-REQ-4, R-REQ-5, R-REQ-6, R-REQ-8
#[test]
fn members_are_judged_one_by_one() {
    let ok = "ok".to_owned();
    let unknown_model = "404 invalid_request_error - model_not_found sized model".to_owned();
    let wide = "400 invalid_request_error - - sized width".to_owned();
    let rows: &[(&str, String)] = &[
        (r#""x":1"#, ok.clone()),
        (r#""model":5"#, bad("model", "bad_type")),
        (r#""model":["m"]"#, bad("model", "bad_type")),
        (r#""model":null"#, ok.clone()),
        (r#""model":"""#, ok.clone()),
        (r#""model":"alias""#, ok.clone()),
        (r#""model":"\u006d""#, ok.clone()),
        (r#""model":"M""#, unknown_model.clone()),
        (r#""model":"other""#, unknown_model),
        (r#""stream":1"#, bad("stream", "bad_type")),
        (r#""stream":"yes""#, bad("stream", "bad_type")),
        (r#""model":"other","stream":"x""#, bad("stream", "bad_type")),
        (r#""stream":null"#, ok.clone()),
        (
            r#""return_token_ids":0"#,
            bad("return_token_ids", "bad_type"),
        ),
        (r#""n":true"#, bad("n", "bad_type")),
        (r#""n":1.0"#, bad("n", "bad_type")),
        (r#""n":1e0"#, bad("n", "bad_type")),
        (r#""n":"2""#, bad("n", "bad_type")),
        (r#""n":2"#, wide.clone()),
        (r#""n":123456789012345678901234567890"#, wide.clone()),
        (r#""n":2,"model":"alias""#, wide.clone()),
        (r#""n":0"#, bad("n", "width")),
        (r#""n":-3"#, bad("n", "width")),
        (r#""n":-0"#, bad("n", "width")),
        (r#""n":0,"model":"other""#, bad("n", "width")),
        (r#""n":-123456789012345678901234567890"#, bad("n", "width")),
        (r#""n":1,"best_of":1"#, ok.clone()),
        (r#""n":null,"best_of":null"#, ok.clone()),
        (r#""best_of":"a""#, bad("best_of", "bad_type")),
        (r#""best_of":2"#, wide),
        (r#""best_of":0"#, bad("best_of", "width")),
        (r#""max_tokens":"8""#, bad("max_tokens", "bad_type")),
        (r#""max_tokens":1.0"#, bad("max_tokens", "bad_type")),
        (r#""max_tokens":true"#, bad("max_tokens", "bad_type")),
        (r#""max_tokens":0"#, ok.clone()),
        (r#""max_tokens":99999999999999999999"#, ok.clone()),
        (
            r#""max_completion_tokens":"8""#,
            bad("max_completion_tokens", "bad_type"),
        ),
        (
            r#""max_completion_tokens":[]"#,
            bad("max_completion_tokens", "bad_type"),
        ),
        (r#""prompt":5"#, bad("prompt", "bad_type")),
        (r#""prompt":{"a":1}"#, bad("prompt", "bad_type")),
        (r#""prompt":true"#, bad("prompt", "bad_type")),
        (r#""prompt":null"#, ok.clone()),
        (r#""prompt":[]"#, ok.clone()),
        (r#""prompt":["a"]"#, ok.clone()),
        (r#""prompt":["a","b"]"#, bad("prompt", "prompts")),
        (r#""prompt":["a","a"],"n":0"#, bad("prompt", "prompts")),
        (r#""prompt":[[1],[2]]"#, bad("prompt", "prompts")),
        (r#""prompt":[1,[2]]"#, bad("prompt", "prompts")),
        (r#""prompt":[[1,2]]"#, ok.clone()),
        (r#""prompt":[1,2]"#, ok.clone()),
        (r#""prompt":["a","b"],"prompt":"a""#, ok.clone()),
        (r#""prompt":"","prompt_embeds":"AAAA""#, ok.clone()),
        (r#""prompt_embeds":["AAAA"]"#, ok.clone()),
        (r#""prompt":"a","prompt_embeds":null"#, ok.clone()),
        (
            r#""prompt":"a","prompt_embeds":"AAAA""#,
            bad("prompt_embeds", "prompts"),
        ),
        (
            r#""prompt_embeds":["A","B"]"#,
            bad("prompt_embeds", "prompts"),
        ),
        (r#""messages":{"role":"user"}"#, bad("messages", "bad_type")),
        (r#""messages":"hi""#, bad("messages", "bad_type")),
        (r#""messages":["hi"]"#, bad("messages", "bad_type")),
        (r#""messages":[1]"#, bad("messages", "bad_type")),
        (r#""messages":[{},null]"#, bad("messages", "bad_type")),
        (r#""messages":[]"#, ok.clone()),
        (r#""messages":null"#, ok.clone()),
        (r#""vllm_xargs":[]"#, bad("vllm_xargs", "bad_type")),
        (r#""vllm_xargs":{"a":1}"#, ok.clone()),
        (
            r#""vllm_xargs":{"kv_transfer_params":{}}"#,
            bad("vllm_xargs", "reserved"),
        ),
        (
            r#""vllm_xargs":{"ec_transfer_params":null}"#,
            bad("vllm_xargs", "reserved"),
        ),
        (
            r#""vllm_xargs":{"kv_cache_report_mode":1}"#,
            bad("vllm_xargs", "reserved"),
        ),
        (
            r#""vllm_xargs":{"kv_transfer\u005fparams":{}}"#,
            bad("vllm_xargs", "reserved"),
        ),
        (
            r#""vllm\u005fxargs":{"kv_transfer_params":{}}"#,
            bad("vllm_xargs", "reserved"),
        ),
        (
            r#""vllm_xargs":{"kv_transfer_params":{}},"vllm_xargs":null"#,
            bad("vllm_xargs", "reserved"),
        ),
        (
            r#""vllm_xargs":{"a":{"kv_transfer_params":{}}}"#,
            ok.clone(),
        ),
        (r#""kv_transfer_params":{"x":1}"#, ok.clone()),
        (r#""audio":{"voice":"x"}"#, bad("audio", "option")),
        (r#""audio":null"#, ok.clone()),
        (
            r#""modalities":["text","audio"]"#,
            bad("modalities", "option"),
        ),
        (r#""modalities":[]"#, bad("modalities", "option")),
        (r#""modalities":"text""#, bad("modalities", "option")),
        (r#""modalities":["te\u0078t"]"#, ok.clone()),
        (r#""modalities":null"#, ok.clone()),
        (r#""modalities":["text","audio"],"stream":true"#, ok.clone()),
        (r#""tools":["f"]"#, bad("tools", "option")),
        (r#""tools":{}"#, bad("tools", "option")),
        (r#""tools":[{"type":"custom"}]"#, bad("tools", "option")),
        (
            r#""tools":[{"type":"function"},{"type":1}]"#,
            bad("tools", "option"),
        ),
        (r#""tools":[{"function":{"name":"f"}}]"#, ok.clone()),
        (r#""tools":[]"#, ok.clone()),
        (r#""tools":null"#, ok.clone()),
        (r#""tools":[{"type":"custom"}],"stream":true"#, ok.clone()),
        (r#""prompt_logprobs":0"#, bad("prompt_logprobs", "option")),
        (r#""prompt_logprobs":null"#, ok.clone()),
        (r#""prompt_logprobs":1,"stream":true"#, ok.clone()),
        (
            r#""prompt_logprobs":1,"model":"other""#,
            bad("prompt_logprobs", "option"),
        ),
        (r#""rid":"x","bootstrap_room":1"#, ok),
    ];
    for (member, want) in rows {
        for route in [Route::Completions, Route::Chat] {
            let body = format!("{{\"temperature\":0.5,{member},\"z\":[]}}");
            assert_eq!(
                verdict(route, Dialect::Vllm, body.as_bytes()),
                *want,
                "{body}"
            );
        }
    }
}

// proves R-REQ-3
#[test]
fn sglang_reserves_its_own_fields() {
    let both = [Route::Completions, Route::Chat];
    let rows: &[(&str, &str, &[Route])] = &[
        (r#""rid":"x""#, "rid", &both),
        (r#""r\u0069d":"x""#, "rid", &both),
        (r#""bootstrap_host":"h""#, "bootstrap_host", &both),
        (r#""bootstrap_port":1"#, "bootstrap_port", &both),
        (
            r#""bootstrap_room":1,"stream":true"#,
            "bootstrap_room",
            &both,
        ),
        (
            r#""return_token_ids":true"#,
            "return_token_ids",
            &[Route::Chat],
        ),
        (
            r#""return_token_ids":false"#,
            "return_token_ids",
            &[Route::Chat],
        ),
        (
            r#""return_prompt_token_ids":true"#,
            "return_prompt_token_ids",
            &[Route::Chat],
        ),
        (
            r#""return_meta_info":true"#,
            "return_meta_info",
            &[Route::Chat],
        ),
        (r#""rid":null"#, "rid", &[]),
    ];
    for (member, param, refused_on) in rows {
        for route in both {
            let body = format!("{{{member}}}");
            let want = match refused_on.contains(&route) {
                true => bad(param, "reserved"),
                false => "ok".to_owned(),
            };
            assert_eq!(
                verdict(route, Dialect::Sglang, body.as_bytes()),
                want,
                "{body}"
            );
            assert_eq!(
                verdict(route, Dialect::Openai, body.as_bytes()),
                "ok",
                "{body}"
            );
        }
    }
}

#[test]
fn facts_of_a_request() {
    let read = |route, dialect, body: &str| checked(route, dialect, body.as_bytes()).unwrap();
    let r = read(
        Route::Chat,
        Dialect::Vllm,
        r#"{"stream":true,"return_token_ids":true}"#,
    );
    assert!(r.stream && r.return_token_ids && !r.include_usage && r.cap.is_none());
    for (options, want) in [
        (r#"{"include_usage":true}"#, true),
        (r#"{"include\u005fusage":true,"x":{}}"#, true),
        (r#"{"include_usage":true,"include_usage":false}"#, false),
        (r#"{"include_usage":1}"#, false),
        ("[]", false),
        ("null", false),
    ] {
        let body = format!("{{\"stream_options\":{options}}}");
        assert_eq!(
            read(Route::Chat, Dialect::Vllm, &body).include_usage,
            want,
            "{body}"
        );
    }
    let both = r#"{"max_tokens":8,"max_completion_tokens":4}"#;
    for (route, dialect, body, want) in [
        (Route::Chat, Dialect::Vllm, both, Some(4)),
        (Route::Completions, Dialect::Vllm, both, Some(8)),
        (Route::Completions, Dialect::Sglang, both, Some(4)),
        (
            Route::Chat,
            Dialect::Vllm,
            r#"{"max_tokens":8,"max_completion_tokens":null}"#,
            Some(8),
        ),
        (
            Route::Completions,
            Dialect::Vllm,
            r#"{"max_completion_tokens":4}"#,
            None,
        ),
        (Route::Chat, Dialect::Vllm, r#"{"max_tokens":-5}"#, Some(0)),
        (
            Route::Chat,
            Dialect::Vllm,
            r#"{"max_tokens":99999999999999999999}"#,
            Some(i64::MAX as u64),
        ),
    ] {
        assert_eq!(read(route, dialect, body).cap, want, "{body}");
    }
}

// proves R-LEG-1
#[test]
fn prompts_are_counted_or_measured() {
    let text = |chars| Prompt::Text { chars };
    for (body, completions, chat) in [
        (
            r#"{"prompt":[1,2,3]}"#,
            Prompt::Counted(3),
            Prompt::Counted(3),
        ),
        (
            r#"{"prompt":[[1,99999999999999999999]]}"#,
            Prompt::Counted(2),
            Prompt::Counted(2),
        ),
        (r#"{"prompt":[]}"#, text(0), text(0)),
        (r#"{"prompt":[[]]}"#, text(0), text(0)),
        (r#"{"prompt":[1,-2]}"#, text(0), text(0)),
        (r#"{"prompt":[1,2.0]}"#, text(0), text(0)),
        (r#"{"prompt":[1,true]}"#, text(0), text(0)),
        (r#"{"prompt":[[1,"a"]]}"#, text(0), text(0)),
        (
            r#"{"prompt":"h\u00e9llo 世界 \ud83d\ude00\n"}"#,
            text(11),
            text(11),
        ),
        (r#"{"prompt":["four"]}"#, text(4), text(4)),
        (
            r#"{"prompt":"four","prompt":[7]}"#,
            Prompt::Counted(1),
            Prompt::Counted(1),
        ),
        (r#"{"messages":[],"prompt":"four"}"#, text(4), text(0)),
        (
            r#"{"messages":[{"role":"user","content":"abc"},{"content":null,"name":"zzz"}]}"#,
            text(3),
            text(3),
        ),
        (
            r#"{"messages":[{"content":[{"type":"text","text":"ab"},{"type":"image_url","image_url":{"url":"u"}},"c"]},{"content":"x","content":"yz"}]}"#,
            text(5),
            text(5),
        ),
        ("{}", text(0), text(0)),
    ] {
        for (route, want) in [(Route::Completions, completions), (Route::Chat, chat)] {
            let r = checked(route, Dialect::Vllm, body.as_bytes()).unwrap();
            assert_eq!(r.prompt, want, "{body} {route:?}");
        }
    }
    let r = checked(Route::Completions, Dialect::Vllm, br#"{"prompt":"four!"}"#).unwrap();
    assert_eq!(r.estimate(3.8), 2);
}

#[test]
fn refusals_are_compact_and_generic() {
    let mut out = Vec::new();
    let refusal = checked(Route::Chat, Dialect::Vllm, br#"{"model":"secret"}"#).unwrap_err();
    refusal.write(&mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"error":{"message":"The model does not exist","type":"invalid_request_error","param":null,"code":"model_not_found"}}"#
    );
    let mut out = Vec::new();
    write_error(
        &mut out,
        "a\"\\\n\r\t\u{1}\u{7f}\u{85}é\u{2028}",
        "t",
        Some("p"),
        None,
    );
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "{\"error\":{\"message\":\"a\\\"\\\\\\n\\r\\t\\u0001\\u007f\\u0085é\u{2028}\",\"type\":\"t\",\"param\":\"p\",\"code\":null}}"
    );
}

// proves R-FLT-2
#[test]
fn stream_errors_are_one_line() {
    let mut out = Vec::new();
    write_stream_error(&mut out, "Upstream request\nfailed", "decode", "failed");
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"error":{"message":"Upstream request\nfailed","type":"decode","code":"failed"}}"#
    );
}

// proves R-FLT-1
#[test]
fn engine_messages_in_every_shape() {
    for (body, want) in [
        (
            r#"{"error":{"message":"too long","type":"E","code":400}}"#,
            Some("too long"),
        ),
        (r#"{"error":"too long"}"#, Some("too long")),
        (r#"{"message":"too long"}"#, Some("too long")),
        (
            r#"{"object":"error","message":"too long","code":400}"#,
            Some("too long"),
        ),
        (r#"{"detail":"too long"}"#, Some("too long")),
        (
            r#"{"detail":[{"loc":["body"],"msg":"too long"},{"msg":"b"}]}"#,
            Some("too long"),
        ),
        (r#"{"error":{"code":400},"message":"outer"}"#, Some("outer")),
        (
            r#"{"error":{"mess\u0061ge":"a\u0007\n\ud83d\ude00\ud83d"}}"#,
            Some("a\u{7}\n\u{1f600}\u{fffd}\u{fffd}\u{fffd}"),
        ),
        (r#"{"error":null}"#, None),
        (r#"{"error":{"message":5}}"#, None),
        (r#"{"error":""}"#, None),
        (r#"{"detail":[]}"#, None),
        (r#"{"error":"x"#, None),
        (r#"{"error":"x"} y"#, None),
        ("[]", None),
        ("Invalid HTTP request received.", None),
        ("", None),
    ] {
        assert_eq!(engine_message(body.as_bytes()).as_deref(), want, "{body}");
    }
    assert_eq!(
        engine_message(include_bytes!(
            "../../../tests/vectors/request/bad_json_utf8.json"
        ))
        .as_deref(),
        Some("There was an error parsing the body")
    );
    let long = engine_message(include_bytes!(
        "../../../tests/vectors/request/bad_many_errors.json"
    ));
    assert_eq!(long.unwrap().len(), limits::ENGINE_MESSAGE_BYTES_MAX);
}

#[test]
fn long_messages_are_cut_before_a_character() {
    for pad in 0..5 {
        let text = format!("{}{}", "x".repeat(pad), "\u{1f600}".repeat(400));
        let body = format!("{{\"error\":{{\"message\":\"{text}\"}}}}");
        let message = engine_message(body.as_bytes()).unwrap();
        assert!(text.starts_with(&message));
        assert!(
            message.len() > limits::ENGINE_MESSAGE_BYTES_MAX - 4,
            "{pad}"
        );
        assert!(message.len() <= limits::ENGINE_MESSAGE_BYTES_MAX, "{pad}");
    }
    let mut bad = b"{\"error\":\"".to_vec();
    bad.extend(std::iter::repeat_n(0xff, 3_000));
    bad.extend(b"\"}");
    let message = engine_message(&bad).unwrap();
    assert!(message.chars().all(|c| c == '\u{fffd}'));
    assert_eq!(message.len(), limits::ENGINE_MESSAGE_BYTES_MAX / 3 * 3);
}

// proves R-FLT-3
#[test]
fn errors_inside_a_200() {
    for (body, want) in [
        (r#"{"error":{"message":"x","code":429}}"#, Some(429)),
        (r#"{"error":{"code":"429"}}"#, Some(500)),
        (r#"{"error":{"code":200}}"#, Some(500)),
        (r#"{"error":{"code":600}}"#, Some(500)),
        (r#"{"error":{"code":4e2}}"#, Some(500)),
        (r#"{"error":"x","code":404}"#, Some(404)),
        (r#"{"error":{"code":null},"code":404}"#, Some(404)),
        (r#"{"error":false}"#, Some(500)),
        (r#"{"err\u006fr":{}}"#, Some(500)),
        (r#"{"object":"error","message":"x","code":400}"#, Some(400)),
        (r#"{"object":"err\u006fr"}"#, Some(500)),
        (r#"{"error":null,"code":400}"#, None),
        (r#"{"error":{},"error":null}"#, None),
        (r#"{"object":"error","object":"chat.completion"}"#, None),
        (r#"{"object":"chat.completion","message":"x"}"#, None),
        (r#"{"choices":[{"error":{}}]}"#, None),
        ("[]", None),
        ("{", None),
    ] {
        assert_eq!(
            engine_error(body.as_bytes()).map(|e| e.status),
            want,
            "{body}"
        );
    }
}

#[test]
fn seeds_of_the_fuzz_bodies() {
    for seed in [
        "",
        "{}",
        r#"{"model":"m","prompt":["a"],"n":1}"#,
        r#"{"messages":[{"content":[{"text":"\ud800"}]}]}"#,
        r#"{"vllm_xargs":{"a":[]},"x":[[[]]]}"#,
        r#"{"error":{"message":"a\u0000b","code":400}}"#,
        "\u{feff}{}",
    ] {
        fuzzing::check_body(seed.as_bytes());
        fuzzing::engine_message(seed.as_bytes());
    }
    fuzzing::check_body(b"{\"a\":\"\xff\"}");
    fuzzing::engine_message(b"{\"error\":\"\xff\\ud800\xe2\x80\"}");
}

/// The same checks, written again over values that serde_json made.
fn naive(route: Route, dialect: Dialect, body: &str) -> Result<(), (u16, Option<&'static str>)> {
    let all: Value = serde_json::from_str(body).map_err(|_| (400, None))?;
    let map = all.as_object().ok_or((400, None))?;
    let given = |name: &str| map.get(name).filter(|v| !v.is_null());
    let refuse = |name| Err((400, Some(name)));
    let integer = |v: &Value| v.is_i64() || v.is_u64();
    type Test<'t> = &'t dyn Fn(&Value) -> bool;
    let types: [(&'static str, Test<'_>); 10] = [
        ("model", &Value::is_string),
        ("stream", &Value::is_boolean),
        ("return_token_ids", &Value::is_boolean),
        ("n", &integer),
        ("best_of", &integer),
        ("max_tokens", &integer),
        ("max_completion_tokens", &integer),
        ("prompt", &|v| v.is_string() || v.is_array()),
        ("messages", &|v| {
            v.as_array().is_some_and(|a| a.iter().all(Value::is_object))
        }),
        ("vllm_xargs", &Value::is_object),
    ];
    for (name, fits) in types {
        if given(name).is_some_and(|v| !fits(v)) {
            return refuse(name);
        }
    }
    let several = |v: &Value| {
        let list = v.as_array().filter(|list| list.len() > 1);
        list.is_some_and(|list| list.iter().any(|v| v.is_string() || v.is_array()))
    };
    if given("prompt").is_some_and(several) {
        return refuse("prompt");
    }
    for name in ["n", "best_of"] {
        if given(name).is_some_and(|v| v.as_i64().is_some_and(|n| n < 1)) {
            return refuse(name);
        }
    }
    for (name, value) in members(body.as_bytes()).unwrap_or_default() {
        let value: Value = serde_json::from_str(&value).unwrap_or_default();
        if name == "vllm_xargs"
            && (!value["kv_transfer_params"].is_null() || !value["ec_transfer_params"].is_null())
        {
            return refuse("vllm_xargs");
        }
    }
    if dialect == Dialect::Sglang {
        for name in ["rid", "bootstrap_room"] {
            if given(name).is_some() {
                return refuse(name);
            }
        }
        if route == Route::Chat && given("return_token_ids").is_some() {
            return refuse("return_token_ids");
        }
    }
    if given("stream") != Some(&Value::Bool(true)) {
        if given("audio").is_some() {
            return refuse("audio");
        }
        if given("tools").is_some_and(|v| {
            let fits =
                |t: &Value| t.is_object() && (t["type"].is_null() || t["type"] == "function");
            !v.as_array().is_some_and(|list| list.iter().all(fits))
        }) {
            return refuse("tools");
        }
    }
    if given("model").is_some_and(|v| v != "m" && v != "" && v != "alias") {
        return Err((404, None));
    }
    if ["n", "best_of"]
        .iter()
        .any(|name| given(name).is_some_and(|v| v.as_u64() > Some(1)))
    {
        return Err((400, None));
    }
    Ok(())
}

const NAMES: &str = r#"(model|stream|n|best_of|max_tokens|prompt|messages|vllm_xargs|tools|audio|rid|return_token_ids|x|\\u006e|mod\\u0065l|bootstrap_room)"#;
const VALUES: &str = r#"(true|false|null|0|1|2|-1|1\.5|"m"|"alias"|"other"|""|\[\]|\["a"\]|\["a","b"\]|\[1,2\]|\[\[1\],\[2\]\]|\{\}|\[\{\}\]|\[\{"type":"function"\}\]|\[\{"type":"x"\}\]|\{"kv_transfer_params":1\}|nul|"\\ud800")"#;

proptest! {
    // proves R-REQ-2, R-REQ-3, R-REQ-4, R-REQ-5, R-REQ-6, R-REQ-8
    #[test]
    fn judges_as_the_naive_way(
        pairs in proptest::collection::vec((NAMES, VALUES), 0..4),
        chat: bool,
        sglang: bool,
    ) {
        let route = if chat { Route::Chat } else { Route::Completions };
        let dialect = if sglang { Dialect::Sglang } else { Dialect::Vllm };
        let inner: Vec<String> = pairs.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
        let body = format!("{{{}}}", inner.join(","));
        let ours = checked(route, dialect, body.as_bytes()).map(|_| ());
        prop_assert_eq!(ours.map_err(|r| (r.status, r.param)), naive(route, dialect, &body), "{}", body);
        fuzzing::check_body(body.as_bytes());
        fuzzing::engine_message(body.as_bytes());
    }

    #[test]
    fn any_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        fuzzing::check_body(&bytes);
        fuzzing::engine_message(&bytes);
    }
}
