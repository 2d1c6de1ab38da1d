//! Legs held against the contract's examples and against the naive edit; answers of a real vLLM and broken ones.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::wire::dialect::Dialect;
use crate::wire::openai::{Rules, check};

const HANDOFF: &str = r#"{"do_remote_prefill":true,"remote_block_ids":[1,2,3],"remote_engine_id":"engine-1","x":1E400}"#;

struct Legs {
    tokenize: String,
    prefill: String,
    decode: String,
}

fn legs(route: Route, body: &str, handoff: Option<&str>) -> Legs {
    let rules = Rules {
        dialect: Dialect::Vllm,
        model: "m",
        aliases: &["alias".to_owned()],
    };
    let body = body.as_bytes();
    let req = check(route, body, &rules).unwrap();
    let text = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    };
    Legs {
        tokenize: text(&|out| tokenize_body(out, body, &req, route, "m")),
        prefill: text(&|out| prefill_body(out, body, &req, "m")),
        decode: text(&|out| decode_body(out, body, &req, "m", handoff.map(str::as_bytes))),
    }
}

fn value(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

// proves R-LEG-2, R-LEG-4, R-REQ-7
#[test]
fn legs_are_the_clients_bytes_with_edits() {
    let got = legs(
        Route::Completions,
        r#" {"model":"m", "prompt":"h\u00e9\/", "seed":123456789012345678901234567890,"x":1E400,"y":-0.0} "#,
        Some(HANDOFF),
    );
    assert_eq!(
        got.prefill,
        r#" {"model":"m", "prompt":"h\u00e9\/", "seed":123456789012345678901234567890,"x":1E400,"y":-0.0,"max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true}} "#
    );
    assert_eq!(
        got.decode,
        format!(
            r#" {{"model":"m", "prompt":"h\u00e9\/", "seed":123456789012345678901234567890,"x":1E400,"y":-0.0,"stream":true,"return_token_ids":true,"stream_interval":1,"kv_transfer_params":{HANDOFF}}} "#
        )
    );
    assert_eq!(got.tokenize, r#"{"model":"m","prompt":"h\u00e9\/"}"#);
}

// proves R-LEG-2, R-LEG-4, R-CFG-2
#[test]
fn legs_by_value() {
    let rows = [
        (
            "a stream with everything that must not reach the prefill leg",
            json!({"model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true}, "min_tokens": 5,
                "n": 1, "best_of": 1, "max_tokens": 8, "max_completion_tokens": 9, "logprobs": true, "return_token_ids": false,
                "ec_transfer_params": {"a": 1}, "kv_transfer_params": {"x": 1}, "stream_interval": 4}),
            json!({"model": "m", "messages": [], "stream": false, "max_tokens": 1, "logprobs": true, "return_token_ids": false,
                "kv_transfer_params": {"do_remote_decode": true}, "stream_interval": 4}),
            json!({"model": "m", "messages": [], "stream": true, "stream_options": {"include_usage": true}, "min_tokens": 5,
                "n": 1, "best_of": 1, "max_tokens": 8, "max_completion_tokens": 9, "logprobs": true, "return_token_ids": true,
                "stream_interval": 1}),
        ),
        (
            "no model, no limit",
            json!({"prompt": "a"}),
            json!({"model": "m", "prompt": "a", "max_tokens": 1, "stream": false, "kv_transfer_params": {"do_remote_decode": true}}),
            json!({"model": "m", "prompt": "a", "stream": true, "return_token_ids": true, "stream_interval": 1}),
        ),
        (
            "an alias, nulls",
            json!({"model": "alias", "prompt": "a", "max_tokens": null, "stream": null}),
            json!({"model": "m", "prompt": "a", "max_tokens": 1, "stream": false, "kv_transfer_params": {"do_remote_decode": true}}),
            json!({"model": "m", "prompt": "a", "max_tokens": null, "stream": true, "return_token_ids": true, "stream_interval": 1}),
        ),
        (
            "an empty model and unknown fields",
            json!({"model": "", "prompt": "a", "chat_template_kwargs": {"enable_thinking": false}, "top_k": 20, "x-new": {"n": [2]}}),
            json!({"model": "m", "prompt": "a", "chat_template_kwargs": {"enable_thinking": false}, "top_k": 20, "x-new": {"n": [2]},
                "max_tokens": 1, "stream": false, "kv_transfer_params": {"do_remote_decode": true}}),
            json!({"model": "m", "prompt": "a", "chat_template_kwargs": {"enable_thinking": false}, "top_k": 20, "x-new": {"n": [2]},
                "stream": true, "return_token_ids": true, "stream_interval": 1}),
        ),
    ];
    for (name, body, prefill, decode) in rows {
        let with = |handoff| legs(Route::Chat, &body.to_string(), handoff);
        let got = with(None);
        assert_eq!(value(&got.prefill), prefill, "{name}");
        assert_eq!(value(&got.decode), decode, "{name}");
        let mut joined = decode;
        joined["kv_transfer_params"] = json!({"remote_engine_id": "e"});
        let got = with(Some(r#"{"remote_engine_id":"e"}"#));
        assert_eq!(value(&got.decode), joined, "{name}");
    }
}

// proves R-REQ-7, R-LEG-4
#[test]
fn transfer_parameters_of_a_client_never_pass() {
    for member in [
        r#""kv_transfer_params":{"remote_block_ids":[6666]}"#,
        r#""kv_transfer\u005fparams":{"remote_block_ids":[6666]}"#,
        r#""\u006bv_transfer_params":{"remote_block_ids":[6666]},"kv_transfer_params":{"remote_block_ids":[6666]}"#,
        r#""kv_transfer_params":null,"kv_transfer_params":{"remote_block_ids":[6666]}"#,
        r#""ec_transfer_params":{"remote_block_ids":[6666]}"#,
        r#""ec_transfer_p\u0061rams":{"remote_block_ids":[6666]},"ec_transfer_params":6666"#,
    ] {
        for body in [
            format!("{{{member}}}"),
            format!("{{\"prompt\":\"a\",{member}}}"),
            format!("{{{member},\"prompt\":\"a\",{member} }}"),
        ] {
            for handoff in [None, Some(HANDOFF)] {
                let got = legs(Route::Completions, &body, handoff);
                for leg in [&got.prefill, &got.decode, &got.tokenize] {
                    assert!(!leg.contains("6666"), "{body} became {leg}");
                    assert!(
                        value(&leg.replace("1E400", "1"))
                            .get("ec_transfer_params")
                            .is_none()
                    );
                }
                assert_eq!(
                    value(&got.prefill)["kv_transfer_params"],
                    json!({"do_remote_decode": true})
                );
                assert_eq!(
                    got.decode.matches("transfer").count(),
                    handoff.map_or(0, |_| 1)
                );
            }
        }
    }
}

// proves R-LEG-1
#[test]
fn tokenize_is_asked_what_counts() {
    use Route::{Chat, Completions};
    for (route, body, want) in [
        (
            Completions,
            r#"{"model":"alias","prompt":"a"}"#,
            r#"{"model":"m","prompt":"a"}"#,
        ),
        (
            Completions,
            r#"{"prompt":["a\u0020"]}"#,
            r#"{"model":"m","prompt":"a\u0020"}"#,
        ),
        (
            Completions,
            r#"{"prompt":[]}"#,
            r#"{"model":"m","prompt":[]}"#,
        ),
        (
            Completions,
            r#"{"prompt":"a","add_special_tokens":false,"tools":[],"messages":[]}"#,
            r#"{"model":"m","prompt":"a","add_special_tokens":false}"#,
        ),
        (
            Completions,
            r#"{"messages":[{"content":"a"}],"prompt":null}"#,
            r#"{"model":"m","messages":[{"content":"a"}]}"#,
        ),
        (Chat, r#"{"prompt":"a"}"#, r#"{"model":"m","prompt":"a"}"#),
        (Chat, "{}", r#"{"model":"m"}"#),
        (
            Chat,
            r#"{"chat_template":"t","chat_template_kwargs":{"a":1.0},"continue_final_message":true,"add_generation_prompt":false,"add_special_tokens":true,"tools":[{"type":"function"}],"messages":[],"tool_choice":"auto","cache_salt":"s"}"#,
            r#"{"model":"m","messages":[],"tools":[{"type":"function"}],"chat_template":"t","chat_template_kwargs":{"a":1.0},"continue_final_message":true,"add_generation_prompt":false,"add_special_tokens":true}"#,
        ),
        (
            Chat,
            r#"{"messages":[1],"messages":[],"tools":null}"#,
            r#"{"model":"m","messages":[]}"#,
        ),
    ] {
        assert_eq!(legs(route, body, None).tokenize, want, "{body}");
    }
}

// proves R-LEG-1
#[test]
fn counts_are_strict() {
    for (answer, want) in [
        (r#"{"count":42}"#, Some(42)),
        (
            r#"{"c\u006funt":0,"max_model_len":100,"tokens":[1]}"#,
            Some(0),
        ),
        (r#"{"count":1,"count":2}"#, Some(2)),
        (r#"{"count":1000000000}"#, Some(1_000_000_000)),
        (r#"{"count":1000000001}"#, None),
        (r#"{"count":99999999999999999999}"#, None),
        (r#"{"count":-1}"#, None),
        (r#"{"count":1.0}"#, None),
        (r#"{"count":"1"}"#, None),
        (r#"{"count":true}"#, None),
        (r#"{"count":null}"#, None),
        (r#"{"count":[1]}"#, None),
        (r#"{"tokens":[1]}"#, None),
        (r#"{"count":1"#, None),
        (r#"{"count":1} x"#, None),
        (r#"{"count":1,"error":"x"}"#, None),
        (r#"[{"count":1}]"#, None),
        ("", None),
    ] {
        assert_eq!(tokenize_count(answer.as_bytes()), want, "{answer}");
    }
    let real = include_bytes!("../../../../tests/vectors/request/tokenize_messages.json");
    assert_eq!(tokenize_count(real), Some(18));
    let real = include_bytes!("../../../../tests/vectors/request/tokenize_bad.json");
    assert_eq!(tokenize_count(real), None);
}

// proves R-LEG-3
#[test]
fn handoffs_are_checked_and_passed_verbatim() {
    use HandoffFault::{BlockIds, EngineId, Missing, NotObject};
    for (params, want) in [
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[1,2]}"#,
            Ok(()),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[[1],[2,3]] , "x" : 1E400}"#,
            Ok(()),
        ),
        (r#"{"remote_engine_id":"g","remote_block_ids":[]}"#, Ok(())),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[[]]}"#,
            Ok(()),
        ),
        (
            r#"{"remote_engine\u005fid":"g","remote_block_\u0069ds":[99999999999999999999]}"#,
            Ok(()),
        ),
        (
            r#"{"remote_engine_id":"","remote_engine_id":"g","remote_block_ids":[0]}"#,
            Ok(()),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[true]}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[-1]}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[1.0]}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[1e3]}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":["1"]}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[null]}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[[[1]]]}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[[1],[true]]}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":[1,[2]]}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":null}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":{}}"#,
            Err(BlockIds),
        ),
        (
            r#"{"remote_engine_id":"g","remote_block_ids":1}"#,
            Err(BlockIds),
        ),
        (r#"{"remote_engine_id":"g"}"#, Err(BlockIds)),
        (r#"{"remote_block_ids":[1]}"#, Err(EngineId)),
        (
            r#"{"remote_engine_id":"","remote_block_ids":[1]}"#,
            Err(EngineId),
        ),
        (
            r#"{"remote_engine_id":"g","remote_engine_id":null,"remote_block_ids":[1]}"#,
            Err(EngineId),
        ),
        (
            r#"{"remote_engine_id":7,"remote_block_ids":[1]}"#,
            Err(EngineId),
        ),
        (
            r#"{"x":{"remote_engine_id":"g","remote_block_ids":[1]}}"#,
            Err(EngineId),
        ),
        ("{}", Err(NotObject)),
        ("[]", Err(NotObject)),
        (r#""x""#, Err(NotObject)),
        ("true", Err(NotObject)),
        ("null", Err(Missing)),
    ] {
        for answer in [
            format!("{{\"kv_transfer_params\": {params} }}"),
            format!(
                "{{\"choices\":[{{\"kv_transfer_params\":{params}}},{{}}],\"kv_transfer_params\":null}}"
            ),
            format!(
                "{{\"kv_transfer_params\":{params},\"choices\":[{{\"kv_transfer_params\":null}},{{\"kv_transfer_params\":7}}]}}"
            ),
        ] {
            let got = prefill_answer(answer.as_bytes()).unwrap().handoff;
            let text = got.map(|span| &answer[span]);
            assert_eq!(text, want.map(|()| params), "{answer}");
        }
    }
}

#[test]
fn prefill_answers_otherwise() {
    let read = |answer: &str| prefill_answer(answer.as_bytes());
    for broken in ["", "nope", "[1]", "null", "{", "{} x", "{\"a\":NaN}"] {
        assert_eq!(read(broken), Err(NotJson), "{broken}");
    }
    let first = r#"{"choices":[{"kv_transfer_params":{}}],"kv_transfer_params":{"remote_engine_id":"g","remote_block_ids":[1]}}"#;
    assert_eq!(read(first).unwrap().handoff, Err(HandoffFault::NotObject));
    let bad_utf8 =
        b"{\"kv_transfer_params\":{\"remote_engine_id\":\"\xff\",\"remote_block_ids\":[1]}}";
    assert_eq!(
        prefill_answer(bad_utf8).unwrap().handoff,
        Err(HandoffFault::NotObject)
    );
    for (usage, want) in [
        (
            r#"{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":3,"x":null}}"#,
            (Some(7), Some(3)),
        ),
        (
            r#"{"prompt_tokens":7,"prompt_tokens_details":null}"#,
            (Some(7), None),
        ),
        (
            r#"{"prompt_tokens":7.0,"prompt_tokens_details":{"cached_tokens":-1}}"#,
            (None, None),
        ),
        (r#"{"prompt_tokens":"7"}"#, (None, None)),
        (r#"{"prompt_tokens":99999999999}"#, (None, None)),
        ("null", (None, None)),
        ("[]", (None, None)),
    ] {
        let got = read(&format!("{{\"usage\":{usage}}}")).unwrap();
        assert_eq!((got.prompt_tokens, got.cached_tokens), want, "{usage}");
    }
    let error = read(r#"{"error":{"message":"x","code":503}}"#)
        .unwrap()
        .error
        .unwrap();
    assert_eq!((error.status, error.message.as_deref()), (503, Some("x")));
    for (choices, want) in [
        (r#"[{"finish_reason":"abort"}]"#, true),
        (r#"[{"finish_reason":"abort","finish_reason":null}]"#, false),
        (
            r#"[{"finish_reason":"length"},{"finish_reason":"abort"}]"#,
            false,
        ),
        (r#"{"finish_reason":"abort"}"#, false),
    ] {
        assert_eq!(
            read(&format!("{{\"choices\":{choices}}}")).unwrap().aborted,
            want,
            "{choices}"
        );
    }
}

#[test]
fn a_real_engines_answers() {
    let rows: [(&[u8], u64, Option<u64>, bool); 4] = [
        (
            include_bytes!("../../../../tests/vectors/request/pd_completion_1_prefill.json"),
            163,
            Some(0),
            true,
        ),
        (
            include_bytes!("../../../../tests/vectors/request/pd_chat_1_prefill.json"),
            35,
            Some(0),
            true,
        ),
        (
            include_bytes!("../../../../tests/vectors/request/pd_n2_1_prefill.json"),
            164,
            Some(128),
            true,
        ),
        (
            include_bytes!(
                "../../../../tests/vectors/request/completion_kv_params_without_connector.json"
            ),
            7,
            Some(0),
            false,
        ),
    ];
    for (answer, prompt_tokens, cached_tokens, handed) in rows {
        let got = prefill_answer(answer).unwrap();
        let whole: Value = serde_json::from_slice(answer).unwrap();
        assert_eq!(got.prompt_tokens, Some(prompt_tokens));
        assert_eq!(got.cached_tokens, cached_tokens);
        assert!(got.error.is_none() && !got.aborted);
        match got.handoff {
            Ok(span) => {
                assert!(handed);
                let params: Value = serde_json::from_slice(&answer[span]).unwrap();
                assert_eq!(params, whole["kv_transfer_params"]);
            }
            Err(fault) => assert_eq!((fault, handed), (HandoffFault::Missing, false)),
        }
    }
}

const NAMES: &str = r#"(model|stream|n|best_of|max_tokens|min_tokens|prompt|messages|kv_transfer_params|kv_transfer\\u005fparams|ec_transfer_params|stream_options|stream_interval|max_completion_tokens|return_token_ids|x|\\u006e|mod\\u0065l|tools|logprobs)"#;
const VALUES: &str = r#"(true|false|null|1|8|"m"|"alias"|""|"h\\u00e9"|\[\]|\["a"\]|\[1,2\]|\{\}|\[\{"content":"a"\}\]|\{"n":2\}|-0\.0|1E400)"#;

proptest! {
    // proves R-REQ-7, R-LEG-2, R-LEG-4
    #[test]
    fn legs_are_the_naive_edit(
        pairs in proptest::collection::vec((NAMES, VALUES, "[ \n\t]{0,2}"), 0..6),
    ) {
        let inner: Vec<String> =
            pairs.iter().map(|(k, v, s)| format!("{s}\"{k}\"{s}:{v}{s}")).collect();
        fuzzing::legs(format!("{{{}}}", inner.join(",")).as_bytes());
    }

    #[test]
    fn answers_are_what_serde_json_reads(
        params in r#"(null|\{\}|\{"remote_engine_id":("g"|""|1),"remote_block_ids":(\[\]|\[1\]|\[\[1\],\[\]\]|\[1,\[2\]\]|\[-1\]|null)\})"#,
        first in r#"(null|\{\}|\{"remote_engine_id":"g","remote_block_ids":\[1\]\})"#,
        count in r#"(1|-1|1\.0|"1"|null)"#,
    ) {
        let answer = format!(
            "{{\"choices\":[{{\"kv_transfer_params\":{first}}}],\"kv_transfer_params\":{params},\"count\":{count}}}"
        );
        fuzzing::answers(answer.as_bytes());
    }

    #[test]
    fn any_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        fuzzing::legs(&bytes);
        fuzzing::answers(&bytes);
    }
}

#[test]
fn seeds_of_the_fuzz_bodies() {
    for seed in [
        "{}",
        r#"{"model":"m","prompt":["a"],"n":1,"kv_transfer\u005fparams":{}}"#,
        r#"{"prompt":"a","model":"m","model":"m"}"#,
        r#"{"count":7}"#,
        r#"{"choices":[],"kv_transfer_params":{"remote_engine_id":"g","remote_block_ids":[[1]]}}"#,
    ] {
        fuzzing::legs(seed.as_bytes());
        fuzzing::answers(seed.as_bytes());
    }
}
