//! Legs as SGLang speaks them, prefill and decode side by side: both carry the same room of the prefill engine's bootstrap server, and
//! the engines find each other there. No handoff passes through the router.
//!
//! Bodies are the client's bytes with members edited, as for [`vllm`](super::vllm). Why each member is edited:
//!
//! - the prefill leg loses what its one token does not need, as a vLLM prefill leg does.
//! - `max_completion_tokens` is the newer name of `max_tokens`: the decode leg carries its value under the older one, which every
//!   release reads on both routes.
//! - `return_token_ids` goes to completions only: chat has no ids to return.
//! - what vLLM's engines trust (`kv_transfer_params`, `ec_transfer_params`) does not pass here either.
//!
//! A client's own `bootstrap_…` and `rid` are refused by the checks, so what stands in a leg is the router's.

use crate::wire::openai::{Request, Route};
use crate::wire::splice::{Edit, splice};

use super::vllm::with_model;

/// Where the two legs of an attempt meet.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'a> {
    /// The prefill engine's bootstrap server, as decode engines reach it.
    pub host: &'a str,
    pub port: u16,
    /// Unique among the live ones, below 2^63.
    pub room: u64,
}

/// One leg's part in its attempt.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// None when one engine does both.
    pub meeting: Option<Meeting<'a>>,
    /// The request's id on the engine.
    pub rid: &'a str,
}

/// Appends the prefill leg's body.
pub fn prefill_body(out: &mut Vec<u8>, body: &[u8], req: &Request, model: &str, part: &Part<'_>) {
    let edits = [
        ("max_tokens", Edit::Set(b"1")),
        ("stream", Edit::Set(b"false")),
        ("stream_options", Edit::Remove),
        ("min_tokens", Edit::Remove),
        ("n", Edit::Remove),
        ("best_of", Edit::Remove),
        ("max_completion_tokens", Edit::Remove),
    ];
    leg_body(out, body, req, model, part, &edits);
}

/// Appends the decode leg's body.
pub fn decode_body(
    out: &mut Vec<u8>,
    body: &[u8],
    req: &Request,
    route: Route,
    model: &str,
    part: &Part<'_>,
) {
    let mut edits = vec![
        ("stream", Edit::Set(b"true")),
        ("max_completion_tokens", Edit::Remove),
    ];
    if let Some(cap) = req.layout.given(body, "max_completion_tokens") {
        edits.push(("max_tokens", Edit::Set(cap)));
    }
    if route == Route::Completions {
        edits.push(("return_token_ids", Edit::Set(b"true")));
    }
    leg_body(out, body, req, model, part, &edits);
}

/// What both legs carry, behind what is the leg's own.
fn leg_body(
    out: &mut Vec<u8>,
    body: &[u8],
    req: &Request,
    model: &str,
    part: &Part<'_>,
    own: &[(&'static str, Edit<'_>)],
) {
    let (port, room);
    let mut edits = Vec::with_capacity(own.len() + 7);
    edits.extend_from_slice(own);
    edits.push(("kv_transfer_params", Edit::Remove));
    edits.push(("ec_transfer_params", Edit::Remove));
    if let Some(meeting) = &part.meeting {
        port = meeting.port.to_string();
        room = meeting.room.to_string();
        edits.push(("bootstrap_host", Edit::Text(meeting.host)));
        edits.push(("bootstrap_port", Edit::Set(port.as_bytes())));
        edits.push(("bootstrap_room", Edit::Set(room.as_bytes())));
    }
    edits.push(("rid", Edit::Text(part.rid)));
    edits.push(("model", Edit::Text(model)));
    splice(out, body, &req.layout, with_model(&edits, req));
}

#[doc(hidden)]
pub mod fuzzing {
    //! Bodies for fuzz targets.

    use super::*;
    use crate::wire::dialect::Dialect;
    use crate::wire::openai::{Rules, check};
    use crate::wire::splice::fuzzing::{assert_edited, members};

    /// Every body that passes makes legs that are the naive edit of it.
    pub fn legs(data: &[u8]) {
        for route in [Route::Completions, Route::Chat] {
            let rules = Rules {
                dialect: Dialect::Sglang,
                model: "m",
                aliases: &["alias".to_owned()],
            };
            if let Ok(req) = check(route, data, &rules) {
                for meets in [true, false] {
                    legs_of(data, route, &req, meets);
                }
            }
        }
    }

    fn legs_of(body: &[u8], route: Route, req: &Request, meets: bool) {
        let part = Part {
            meeting: meets.then_some(Meeting {
                host: "h\"",
                port: 8998,
                room: u64::MAX >> 1,
            }),
            rid: "r-1",
        };
        let given = members(body).expect("checked");
        let own: Vec<_> = given.iter().filter(|m| m.0 == "model").collect();
        let kept = own.len() == 1
            && serde_json::from_str::<String>(&own[0].1).is_ok_and(|model| model == "m");
        let mut both = vec![("kv_transfer_params", None), ("ec_transfer_params", None)];
        if meets {
            both.extend([
                ("bootstrap_host", Some("\"h\\\"\"")),
                ("bootstrap_port", Some("8998")),
                ("bootstrap_room", Some("9223372036854775807")),
            ]);
        }
        both.push(("rid", Some("\"r-1\"")));
        both.extend((!kept).then_some(("model", Some("\"m\""))));
        let mut out = Vec::new();
        let mut prefill = vec![
            ("max_tokens", Some("1")),
            ("stream", Some("false")),
            ("stream_options", None),
            ("min_tokens", None),
            ("n", None),
            ("best_of", None),
            ("max_completion_tokens", None),
        ];
        prefill.extend(&both);
        prefill_body(&mut out, body, req, "m", &part);
        assert_edited(body, &out, &prefill);

        let cap = given.iter().rev().find(|m| m.0 == "max_completion_tokens");
        let cap = cap.map(|m| m.1.clone()).filter(|value| value != "null");
        let mut decode = vec![("stream", Some("true")), ("max_completion_tokens", None)];
        if let Some(cap) = &cap {
            decode.push(("max_tokens", Some(cap)));
        }
        if route == Route::Completions {
            decode.push(("return_token_ids", Some("true")));
        }
        decode.extend(&both);
        out.clear();
        decode_body(&mut out, body, req, route, "m", &part);
        assert_edited(body, &out, &decode);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::dialect::Dialect;
    use crate::wire::openai::{Rules, check};

    const PART: Part = Part {
        meeting: Some(Meeting {
            host: "10.0.0.1",
            port: 8998,
            room: 77,
        }),
        rid: "id-a1-decode",
    };

    fn legs(route: Route, body: &Value, part: &Part) -> [Value; 2] {
        let text = body.to_string();
        let rules = Rules {
            dialect: Dialect::Sglang,
            model: "m",
            aliases: &[],
        };
        let req = check(route, text.as_bytes(), &rules).expect("a good body");
        let mut prefill = Vec::new();
        prefill_body(&mut prefill, text.as_bytes(), &req, "m", part);
        let mut decode = Vec::new();
        decode_body(&mut decode, text.as_bytes(), &req, route, "m", part);
        [prefill, decode].map(|leg| serde_json::from_slice(&leg).expect("JSON"))
    }

    // proves R-LEG-5
    #[test]
    fn both_legs_carry_the_room_and_the_newer_cap_is_renamed() {
        let body = json!({"model": "m", "prompt": "p", "max_tokens": 8, "max_completion_tokens": 4, "min_tokens": 2,
            "stream": true, "stream_options": {"include_usage": true}, "kv_transfer_params": {"a": 1}, "top_k": 3});
        let [prefill, decode] = legs(Route::Completions, &body, &PART);
        let room = json!({"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 77, "rid": "id-a1-decode"});
        let with_room = |mut own: Value| {
            let own_members = own.as_object_mut().expect("an object");
            own_members.extend(room.as_object().expect("an object").clone());
            own
        };
        assert_eq!(
            prefill,
            with_room(
                json!({"model": "m", "prompt": "p", "max_tokens": 1, "stream": false, "top_k": 3})
            )
        );
        assert_eq!(
            decode,
            with_room(
                json!({"model": "m", "prompt": "p", "max_tokens": 4, "min_tokens": 2, "stream": true,
                "stream_options": {"include_usage": true}, "return_token_ids": true, "top_k": 3})
            )
        );
    }

    // proves R-LEG-5
    #[test]
    fn chat_is_asked_for_no_ids_and_a_lone_leg_has_no_room() {
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": null});
        let [_, decode] = legs(Route::Chat, &chat, &PART);
        assert!(decode.get("return_token_ids").is_none());
        assert!(decode.get("max_tokens").is_none());
        let alone = Part {
            meeting: None,
            ..PART
        };
        let [_, decode] = legs(Route::Chat, &chat, &alone);
        assert_eq!(
            decode,
            json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": true, "rid": "id-a1-decode"})
        );
    }

    #[test]
    fn fuzz_seeds() {
        for seed in [
            r#"{"model":"m","prompt":"p","max_completion_tokens":4,"max_completion_tokens":null}"#,
            r#"{"model":"alias","messages":[{"role":"user","content":"x"}],"max_completion_tokens":7,"max_tokens":1}"#,
            r#"{"max_tokens":1,"prompt":[1],"model":"m","n":1,"stream":true}"#,
            r#"{"prompt":"p"}"#,
        ] {
            fuzzing::legs(seed.as_bytes());
        }
    }
}
