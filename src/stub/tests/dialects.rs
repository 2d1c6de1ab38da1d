//! The dialects of SGLang and of plain OpenAI servers, on a virtual clock.

use serde_json::{Value, json};

use super::*;
use crate::base::units::{Dialect, Role};
use crate::stub::rooms;

const C: &str = "/v1/completions";
const H: &str = "/v1/chat/completions";

/// Engines of one world, a dialect and a role each, seeded alike.
fn world_of(dialect: Dialect, roles: &[Role], profile: Profile) -> World {
    let setup = |(seed, role): (usize, &Role)| Setup {
        dialect,
        role: *role,
        profile,
        seed: seed as u64,
        len_max: 2_048,
        ..Setup::default()
    };
    let setups = roles.iter().enumerate().map(setup);
    World {
        engines: setups.map(|s| Engine::new(s, T0)).collect(),
        ..World::default()
    }
}

fn pair(profile: Profile) -> World {
    world_of(Dialect::Sglang, &[Role::Prefill, Role::Decode], profile)
}

fn alone(dialect: Dialect) -> World {
    world_of(dialect, &[Role::Both], Profile::default())
}

/// A leg's body, as a router sends it.
fn leg(what: &str, stream: bool, max_tokens: u32, room: u64, rid: &str) -> String {
    format!(
        r#"{{"model":"m",{what},"max_tokens":{max_tokens},"stream":{stream},"return_token_ids":true,"bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":{room},"rid":"{rid}"}}"#
    )
}

fn body_of(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|e| panic!("{e}: {answer:?}"))
}

/// The data of events, without ids that differ from run to run.
fn plain(events: &[String]) -> Vec<String> {
    let data = events.iter().map(|e| {
        let data = e
            .strip_prefix("data: ")
            .unwrap()
            .strip_suffix("\n\n")
            .unwrap();
        data.to_owned()
    });
    data.collect()
}

/// When a reply is ready, without waking: polled at each of `times`.
fn ready_at(reply: &mut Reply, times: &[u64]) -> Option<u64> {
    times.iter().copied().find(|t| match reply {
        Reply::Whole(whole) => whole.poll(ms(*t)) == Next::Done,
        Reply::Stream(stream) => {
            let mut batch = Batch::default();
            stream.poll(ms(*t), 1, &mut batch);
            !batch.ends.is_empty()
        }
    })
}

// proves R-CLI-3, R-LEG-5
#[test]
fn sglang_streams_are_what_its_models_serialise_to() {
    // One token; `e`, the envelope.
    let chat = r#"{"id":"r","object":"chat.completion.chunk","created":1795992884,"model":"m","choices":["#;
    let text =
        r#"{"id":"r","object":"text_completion","created":1795992884,"model":"m","choices":["#;
    let role = format!(
        r#"{chat}{{"index":0,"delta":{{"reasoning_content":null,"role":"assistant","content":""}},"logprobs":null,"finish_reason":null,"matched_stop":null}}]}}"#
    );
    let end = |reason: &str, stop: &str| {
        format!(
            r#"{chat}{{"index":0,"delta":{{"reasoning_content":null}},"logprobs":null,"finish_reason":"{reason}","matched_stop":{stop}}}]}}"#
        )
    };
    let word = format!(
        r#"{chat}{{"index":0,"delta":{{"reasoning_content":null,"content":"W"}},"logprobs":null,"finish_reason":null,"matched_stop":null}}]"#
    );
    let thought = word.replace(
        r#""reasoning_content":null,"content":"W""#,
        r#""reasoning_content":"W""#,
    );
    let run = |tokens: u64| {
        format!(
            r#","usage":{{"prompt_tokens":9,"total_tokens":{},"completion_tokens":{tokens},"prompt_tokens_details":null,"reasoning_tokens":0}}}}"#,
            9 + tokens
        )
    };
    let done = || "[DONE]".to_owned();
    let hi = r#""messages":[{"role":"user","content":"Hi."}]"#;
    // name, path, members, events
    let rows = [
        (
            "chat, cut",
            H,
            format!(r#"{hi},"max_tokens":1,"return_token_ids":true"#),
            vec![role.clone(), format!("{word}}}"), end("length", "null"), done()],
        ),
        (
            "chat, ended, usage",
            H,
            format!(r#"{hi},"max_tokens":99,"stream_options":{{"include_usage":true,"continuous_usage_stats":false}},"kv_transfer_params":7"#),
            {
                let mut events = vec![role.clone()];
                events.extend(vec![format!("{word}}}"); 1]);
                events.push(end("stop", "2"));
                events.push(format!("{chat}]{}", run(2)));
                events.push(done());
                events
            },
        ),
        (
            "chat, running usage",
            H,
            format!(r#"{hi},"max_tokens":1,"stream_options":{{"include_usage":true,"continuous_usage_stats":true}}"#),
            vec![
                role.clone(),
                format!("{word}{}", run(1)),
                end("length", "null"),
                format!("{chat}]{}", run(1)),
                done(),
            ],
        ),
        (
            "chat, thinking",
            H,
            format!(r#"{hi},"max_tokens":4,"ignore_eos":true,"chat_template_kwargs":{{"enable_thinking":true}}"#),
            vec![
                role,
                format!("{thought}}}"),
                format!("{word}}}"),
                format!("{word}}}"),
                format!("{word}}}"),
                end("length", "null"),
                done(),
            ],
        ),
        (
            "completion",
            C,
            r#""prompt":[5,6],"max_tokens":2,"max_completion_tokens":1,"ignore_eos":true"#.into(),
            vec![
                format!(r#"{text}{{"index":0,"text":"W","logprobs":null,"finish_reason":null,"matched_stop":null}}],"usage":null}}"#),
                format!(r#"{text}{{"index":0,"text":"W","logprobs":null,"finish_reason":"length","matched_stop":null}}],"usage":null}}"#),
                done(),
            ],
        ),
        (
            "completion, ids and usage",
            C,
            r#""prompt":[5,6],"max_tokens":9,"return_token_ids":true,"stream_options":{"include_usage":true}"#.into(),
            vec![
                format!(r#"{text}{{"index":0,"text":"W","logprobs":null,"finish_reason":null,"matched_stop":null,"token_ids":[9],"prompt_token_ids":[5,6]}}],"usage":null}}"#),
                format!(r#"{text}{{"index":0,"text":"","logprobs":null,"finish_reason":"stop","matched_stop":2,"token_ids":[2]}}],"usage":null}}"#),
                format!(r#"{text}],"usage":{{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"reasoning_tokens":0}}}}"#),
                done(),
            ],
        ),
    ];
    for (name, path, members, expected) in rows {
        let mut w = alone(Dialect::Sglang);
        w.engines[0] = Engine::new(
            Setup {
                dialect: Dialect::Sglang,
                answer_tokens: Some((1, 1)),
                ..Setup::default()
            },
            T0,
        );
        let body = format!(r#"{{"model":"m",{members},"rid":"r","stream":true}}"#);
        let reply = stream(w.request(0, T0, &post(path, &body)));
        assert!(reply.holds_head());
        let got = plain(
            &super::run(reply)
                .into_iter()
                .map(|(_, e)| e)
                .collect::<Vec<_>>(),
        );
        let got: Vec<String> = got.iter().map(|e| wordless(e)).collect();
        assert_eq!(got, expected, "{name}");
    }
}

/// Texts of one word become `W`, ids of words `9`.
fn wordless(event: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(event) else {
        return event.to_owned();
    };
    let choice = &value["choices"][0];
    let delta = &choice["delta"];
    let mut out = event.to_owned();
    for text in [
        &choice["text"],
        &delta["content"],
        &delta["reasoning_content"],
    ] {
        if let Some(text) = text.as_str().filter(|t| !t.is_empty()) {
            out = out.replacen(&Value::from(text).to_string(), "\"W\"", 1);
        }
    }
    if let Some(id) = choice["token_ids"][0].as_u64().filter(|id| *id > 2) {
        out = out.replacen(&format!("[{id}]"), "[9]", 1);
    }
    out
}

// proves R-CLI-3, R-LEG-5
#[test]
fn sglang_answers_whole_requests() {
    // path, members, answer without ids and times
    let rows = [
        (
            C,
            r#""prompt":[5,6],"max_tokens":1,"return_token_ids":true"#,
            r#"{"id":s object:s created:n model:s choices:[{index:n text:s logprobs:null finish_reason:s matched_stop:null token_ids:[n] prompt_token_ids:[n] }] usage:{prompt_tokens:n total_tokens:n completion_tokens:n prompt_tokens_details:null reasoning_tokens:n } metadata:{weight_version:s } }"#,
        ),
        (
            C,
            r#""prompt":[5,6],"max_tokens":1"#,
            r#"{"id":s object:s created:n model:s choices:[{index:n text:s logprobs:null finish_reason:s matched_stop:null }] usage:{prompt_tokens:n total_tokens:n completion_tokens:n prompt_tokens_details:null reasoning_tokens:n } metadata:{weight_version:s } }"#,
        ),
        (
            H,
            r#""messages":[{"role":"user","content":"Hi."}],"max_tokens":40,"return_token_ids":true"#,
            r#"{"id":s object:s created:n model:s choices:[{index:n message:{role:s content:s reasoning_content:null tool_calls:null } logprobs:null finish_reason:s matched_stop:n }] usage:{prompt_tokens:n total_tokens:n completion_tokens:n prompt_tokens_details:null reasoning_tokens:n } metadata:{weight_version:s } }"#,
        ),
        (
            H,
            r#""messages":[{"role":"user","content":"Hi."}],"max_tokens":8,"chat_template_kwargs":{"thinking":true}"#,
            r#"{"id":s object:s created:n model:s choices:[{index:n message:{role:s content:s reasoning_content:s tool_calls:null } logprobs:null finish_reason:s matched_stop:null }] usage:{prompt_tokens:n total_tokens:n completion_tokens:n prompt_tokens_details:null reasoning_tokens:n } metadata:{weight_version:s } }"#,
        ),
    ];
    for (path, members, expected) in rows {
        let mut w = alone(Dialect::Sglang);
        w.engines[0] = Engine::new(
            Setup {
                dialect: Dialect::Sglang,
                answer_tokens: Some((20, 20)),
                ..Setup::default()
            },
            T0,
        );
        let body = format!("{{{members}}}");
        let answer = whole(w.request(0, T0, &post(path, &body)));
        assert_eq!(
            skeleton(&answer.body),
            expected.replacen("\"id\"", "id", 1),
            "{members}"
        );
        let value = body_of(&answer);
        assert_eq!(value["model"], "default");
        assert_eq!(value["id"].as_str().unwrap().len(), 32);
        let message = &value["choices"][0]["message"];
        let text = [
            &message["reasoning_content"],
            &message["content"],
            &value["choices"][0]["text"],
        ];
        let text: String = text.iter().filter_map(|t| t.as_str()).collect();
        assert!(Check::default().text(text.as_bytes()), "{text}");
    }
}

// proves R-CLI-3, R-LEG-5
#[test]
fn legs_meet_in_their_room() {
    let profile = Profile {
        transfer_s: 0.004,
        ..Profile::flat(10.0, 3.0)
    };
    let prompt = r#""prompt":"Once upon a time""#;
    let room = (1u64 << 63) - 25;
    for decode_first in [false, true] {
        let mut w = pair(profile);
        let prefill = leg(prompt, false, 1, room, "a-prefill");
        let decode = leg(prompt, true, 5, room, "a-decode");
        let bodies = [(0, &prefill), (1, &decode)];
        let order = if decode_first { [1, 0] } else { [0, 1] };
        let mut replies = Vec::new();
        for (i, which) in order.into_iter().enumerate() {
            let (engine, body) = bodies[which];
            let mut reply = w.request(engine, ms(20 * i as u64), &post(C, body));
            if i == 0 {
                assert_eq!(ready_at(&mut reply, &[0, 5, 15, 19]), None, "alone");
            }
            replies.push((engine, reply));
        }
        replies.sort_by_key(|(engine, _)| *engine);
        let [(_, mut p), (_, mut d)] = <[_; 2]>::try_from(replies).unwrap();
        // Both there at 20; read at 30, moved at 34.
        assert_eq!(ready_at(&mut p, &[20, 33, 34]), Some(34));
        assert_eq!(ready_at(&mut d, &[20, 33, 34]), Some(34));
        let answer = body_of(&whole(p));
        assert_eq!(answer["usage"]["completion_tokens"], 1);
        assert_eq!(answer["id"], "a-prefill");
        let rest = super::run(stream(d));
        assert_eq!(rest.last().unwrap().0, ms(34 + 4 * 3));
        assert_eq!(rest.len(), 5, "one was read above: {rest:?}");
        assert!(w.handoffs.rooms.is_empty());
        assert_eq!(w.handoffs.rooms.counts.met, 1);
        assert!(w.engines.iter().all(|e| e.load().running() == 0));
    }
}

/// The room is one's own: what comes of it when the other leg does not come, leaves, or another is there.
// proves R-CLI-3, R-LEG-5
#[test]
fn legs_that_do_not_meet_fail_as_sglang_words_it() {
    const WAIT_MS: u64 = rooms::WAIT.as_millis() as u64;
    type Act = fn(&mut World, &mut Vec<Reply>);
    fn enter(w: &mut World, engine: usize, rid: &str) -> Reply {
        let body = leg(r#""prompt":"x""#, engine == 1, 4, 7, rid);
        w.request(engine, T0, &post(C, &body))
    }
    let words = |what: &str, owner: &str, rid: &str, why: &str| {
        format!(
            "{what} failed for request rank=0 {owner}.rid='{rid}' {owner}.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): {why}"
        )
    };
    // name, which leg is looked at, what happens, when, message
    let rows: [(&str, usize, Act, u64, String); 8] = [
        (
            "prefill alone",
            0,
            |_, _| {},
            WAIT_MS,
            words(
                "Prefill bootstrap",
                "req",
                "r",
                "Request 7 timed out after 300.0s in KVPoll.Bootstrapping",
            ),
        ),
        (
            "decode alone",
            1,
            |_, _| {},
            WAIT_MS,
            words(
                "Decode transfer",
                "decode_req.req",
                "r",
                "Request 7 timed out after 300.0s in KVPoll.WaitingForInput",
            ),
        ),
        (
            "decode left",
            0,
            |w, _| drop(enter(w, 1, "s")),
            1,
            words("Prefill transfer", "req", "r", "Aborted by AbortReq."),
        ),
        (
            "prefill left",
            1,
            |w, _| drop(enter(w, 0, "s")),
            1,
            words(
                "Decode transfer",
                "decode_req.req",
                "r",
                "Aborted by AbortReq.",
            ),
        ),
        (
            "prefill died",
            1,
            |w, keep| {
                keep.push(enter(w, 0, "s"));
                w.engines[0].kill(&mut w.handoffs);
            },
            1,
            words(
                "Decode transfer",
                "decode_req.req",
                "r",
                "Failed to get kvcache from prefill instance, it might be dead",
            ),
        ),
        (
            "decode died",
            0,
            |w, keep| {
                keep.push(enter(w, 1, "s"));
                w.engines[1].kill(&mut w.handoffs);
            },
            1,
            words(
                "Prefill transfer",
                "req",
                "r",
                "Decode instance could be dead",
            ),
        ),
        (
            "taken, prefill",
            0,
            |w, keep| {
                let first = std::mem::replace(&mut keep[0], enter(w, 0, "s"));
                keep.push(first);
            },
            0,
            words(
                "Prefill bootstrap",
                "req",
                "s",
                "Request 7 is already in this room",
            ),
        ),
        (
            "taken, decode",
            1,
            |w, keep| {
                let first = std::mem::replace(&mut keep[0], enter(w, 1, "s"));
                keep.push(first);
            },
            0,
            words(
                "Decode transfer",
                "decode_req.req",
                "s",
                "Request 7 is already in this room",
            ),
        ),
    ];
    for (name, engine, act, at, message) in rows {
        let mut w = pair(Profile::flat(50.0, 1.0));
        let mut replies = vec![enter(&mut w, engine, "r")];
        if at > 0 {
            assert_eq!(ready_at(&mut replies[0], &[0]), None, "{name}");
        }
        act(&mut w, &mut replies);
        let mut reply = replies.swap_remove(0);
        if engine == 0 {
            assert_eq!(ready_at(&mut reply, &[at]), Some(at), "{name}");
            let answer = whole(reply);
            let expected = json!({"object": "error", "message": message, "type": "500", "param": null, "code": 500});
            assert_eq!((answer.status, body_of(&answer)), (500, expected), "{name}");
        } else {
            let mut batch = Batch::default();
            assert_eq!(
                stream(reply).poll(ms(at), 9, &mut batch),
                Next::Done,
                "{name}"
            );
            let got = String::from_utf8(batch.bytes).unwrap();
            let expected = format!(
                "data: {{\"error\": {{\"object\": \"error\", \"message\": {}, \"type\": \"INTERNAL_SERVER_ERROR\", \"param\": null, \"code\": 500}}}}\n\ndata: [DONE]\n\n",
                Value::from(message)
            );
            assert_eq!(got, expected, "{name}");
        }
        drop(replies);
        assert!(w.handoffs.rooms.is_empty(), "{name}");
    }
}

#[test]
fn legs_whose_partner_is_elsewhere_are_believed() {
    let profile = Profile {
        transfer_s: 0.004,
        ..Profile::flat(10.0, 3.0)
    };
    // role, stream, first output at
    for (role, stream) in [(Role::Prefill, false), (Role::Decode, true)] {
        let mut w = world_of(Dialect::Sglang, &[role, role], profile);
        let body = leg(r#""prompt":"x""#, stream, 4, 7, "r");
        let mut reply = w.request(0, T0, &post(C, &body));
        assert_eq!(ready_at(&mut reply, &[0, 13, 14]), Some(14), "{role}");
        assert_eq!(w.handoffs.rooms.counts.unmatched, 1);
    }
    // SGLang's warm-up: no partner, no wait.
    let mut w = pair(profile);
    let body = leg(r#""prompt":"x""#, false, 1, 0, "r").replace("127.0.0.1", "2.2.2.2");
    let mut reply = w.request(0, T0, &post(C, &body));
    assert_eq!(ready_at(&mut reply, &[9, 10]), Some(10));
}

// proves R-CLI-3
#[test]
fn sglang_refuses_in_its_own_shape() {
    let flat = |message: &str, kind: &str| json!({"object": "error", "message": message, "type": kind, "param": null, "code": 400});
    // name, role, path, body, answer
    let rows = [
        (
            "no room",
            Role::Decode,
            C,
            r#"{"prompt":"x","rid":"r"}"#,
            flat(
                "Invalid request: Disaggregated request received without bootstrap room id. req.rid='r'",
                "BadRequestError",
            ),
        ),
        (
            "a name in use",
            Role::Both,
            C,
            r#"{"prompt":"x","rid":"busy","stream":true}"#,
            flat("Duplicate request ID detected: busy", "BadRequestError"),
        ),
        (
            "too long together",
            Role::Both,
            C,
            r#"{"prompt":"x","max_tokens":2048}"#,
            flat(
                "Requested token count exceeds the model's maximum context length of 2048 tokens. You requested a total of 2049 tokens: 1 tokens from the input messages and 2048 tokens for the completion.",
                "BadRequestError",
            ),
        ),
    ];
    for (name, role, path, body, expected) in rows {
        let mut w = world_of(Dialect::Sglang, &[role], Profile::flat(1.0, 1.0));
        let busy = r#"{"prompt":"x","rid":"busy","stream":true}"#;
        let busy = (role == Role::Both).then(|| w.request(0, T0, &post(C, busy)));
        let answer = whole(w.request(0, T0, &post(path, body)));
        assert_eq!((answer.status, body_of(&answer)), (400, expected), "{name}");
        drop(busy);
        assert_eq!(w.engines[0].load().running(), 0, "{name}");
    }
    let mut w = alone(Dialect::Sglang);
    // path, body, status, members
    let rows = [
        (
            C,
            r#"{"prompt":7}"#,
            400,
            "{object:s message:s type:s param:s code:n }",
        ),
        (
            C,
            r#"{"prompt":"x","bootstrap_room":"7"}"#,
            400,
            "{object:s message:s type:s param:s code:n }",
        ),
        (
            C,
            r#"{"prompt":"x","bootstrap_room":-7}"#,
            400,
            "{object:s message:s type:s param:s code:n }",
        ),
        (
            C,
            r#"{"prompt":"x","bootstrap_room":9223372036854775807}"#,
            200,
            "",
        ),
        (C, r#"{"prompt":"x","stream_options":{}}"#, 200, ""),
        (C, r#"{"prompt":"x","model":"anything"}"#, 200, ""),
        ("/nothing", "{}", 404, "{detail:s }"),
    ];
    for (path, body, status, members) in rows {
        let answer = whole(w.request(0, T0, &post(path, body)));
        assert_eq!(answer.status, status, "{body}");
        if status != 200 {
            assert_eq!(skeleton(&answer.body), members, "{body}");
        }
    }
}

// proves R-CLI-3
#[test]
fn pages_of_each_dialect() {
    let hello = format!("{{{HELLO}}}");
    let prompt = r#"{"prompt":"Once upon a time"}"#;
    let sglang = Dialect::Sglang;
    // dialect, request, status, members of the answer
    let rows = [
        (sglang, get("/health"), 200, ""),
        (sglang, get("/health_generate"), 200, ""),
        (sglang, get("/version"), 404, "{detail:s }"),
        (
            sglang,
            get("/v1/models"),
            200,
            "{object:s data:[{id:s object:s created:n owned_by:s root:s parent:null max_model_len:n }] }",
        ),
        (
            sglang,
            get("/get_model_info"),
            200,
            "{model_path:s tokenizer_path:s is_generation:b weight_version:s }",
        ),
        (
            sglang,
            post("/tokenize", &hello),
            200,
            "{tokens:[n] count:n max_model_len:n }",
        ),
        (
            sglang,
            post("/v1/tokenize", prompt),
            200,
            "{tokens:[n] count:n max_model_len:n }",
        ),
        (Dialect::Openai, get("/health"), 200, "{status:s }"),
        (
            Dialect::Openai,
            get("/v1/models"),
            200,
            "{object:s data:[{id:s object:s created:n owned_by:s }] }",
        ),
        (
            Dialect::Openai,
            post("/tokenize", prompt),
            404,
            "{error:{message:s type:s param:null code:s } }",
        ),
        (
            Dialect::Openai,
            get("/version"),
            404,
            "{error:{message:s type:s param:null code:s } }",
        ),
        (
            Dialect::Openai,
            get(C),
            405,
            "{error:{message:s type:s param:null code:s } }",
        ),
    ];
    for (dialect, incoming, status, members) in rows {
        let answer = whole(alone(dialect).request(0, T0, &incoming));
        assert_eq!(answer.status, status, "{incoming:?}");
        let got = match answer.body.is_empty() {
            true => String::new(),
            false => skeleton(&answer.body),
        };
        assert_eq!(got, members, "{incoming:?}");
    }
    let mut w = pair(Profile::default());
    for (engine, mode) in ["prefill", "decode"].into_iter().enumerate() {
        let info = body_of(&whole(w.request(engine, T0, &get("/server_info"))));
        assert_eq!(info["disaggregation_mode"], mode);
        assert_eq!(info["internal_states"][0]["disaggregation_mode"], mode);
        let text = String::from_utf8(whole(w.request(engine, T0, &get("/metrics"))).body).unwrap();
        let line = format!(
            "sglang:num_running_reqs{{engine_type=\"{mode}\",model_name=\"tiny\",pp_rank=\"0\",tp_rank=\"0\"}} 0.0\n"
        );
        assert!(text.contains(&line), "{text}");
    }
    let text =
        String::from_utf8(whole(alone(Dialect::Openai).request(0, T0, &get("/metrics"))).body);
    assert!(text.unwrap().contains("llamacpp:requests_processing 0.0\n"));
    // A prompt counts as it does when it is answered.
    let count = |path: &str, at: &str| {
        let answer = whole(alone(sglang).request(0, T0, &post(path, &hello)));
        body_of(&answer).pointer(at).unwrap().as_u64().unwrap()
    };
    assert_eq!(
        count("/tokenize", "/count"),
        count(H, "/usage/prompt_tokens")
    );
}

// proves R-CLI-3
#[test]
fn openai_streams_have_the_published_objects() {
    let hi = r#""messages":[{"role":"user","content":"Hi."}]"#;
    let usage = r#""stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    let chat = "{id:s object:s created:n model:s system_fingerprint:s choices:[";
    let role =
        "{index:n delta:{role:s content:s refusal:null } logprobs:null finish_reason:null }]";
    let word = "{index:n delta:{content:s } logprobs:null finish_reason:null }]";
    let end = "{index:n delta:{} logprobs:null finish_reason:s }]";
    let text = "{index:n text:s logprobs:null finish_reason:null }]";
    let text_end = "{index:n text:s logprobs:null finish_reason:s }]";
    let counts = "] usage:{prompt_tokens:n total_tokens:n completion_tokens:n } }";
    // Members of vLLM are passed over, of any type.
    let foreign =
        r#""return_token_ids":true,"stream_interval":"x","kv_transfer_params":7,"min_tokens":[]"#;
    let rows = [
        (
            H,
            format!("{hi},{foreign}"),
            vec![
                format!("{role} }}"),
                format!("{word} }}"),
                format!("{end} }}"),
            ],
        ),
        (
            H,
            format!("{hi},{usage}"),
            vec![
                format!("{role} usage:null }}"),
                format!("{word} usage:null }}"),
                format!("{end} usage:null }}"),
                counts.into(),
            ],
        ),
        (
            C,
            r#""prompt":"x""#.into(),
            vec![format!("{text} }}"), format!("{text_end} }}")],
        ),
        (
            C,
            format!(r#""prompt":"x",{usage}"#),
            vec![
                format!("{text} usage:null }}"),
                format!("{text_end} usage:null }}"),
                counts.into(),
            ],
        ),
    ];
    for (path, members, expected) in rows {
        let body = format!(r#"{{{members},"stream":true,"max_tokens":5}}"#);
        let got = events(alone(Dialect::Openai).request(0, T0, &post(path, &body)));
        let mut expected: Vec<String> = expected.iter().map(|e| format!("{chat}{e}")).collect();
        expected.push("[DONE]".into());
        let skeletons = event_skeletons(got.iter().map(String::as_str));
        assert_eq!(skeletons, expected, "{members}");
        assert!(!got.concat().contains("token_ids"));
    }
}

// proves R-CLI-3
#[test]
fn openai_answers_and_refuses_in_the_published_shape() {
    let error = |message: &str, kind: &str, param: Value, code: Value| json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
    let rows = [
        (
            r#"{"prompt":"x","model":"other"}"#,
            404,
            error(
                "The model `other` does not exist. Valid aliases: tiny.",
                "invalid_request_error",
                "model".into(),
                "model_not_found".into(),
            ),
        ),
        (
            r#"{"prompt":"x","stream_options":{}}"#,
            400,
            error(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
                "invalid_request_error",
                "stream_options".into(),
                Value::Null,
            ),
        ),
        (
            r#"{"prompt":"x","max_tokens":0}"#,
            400,
            error(
                "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
                "invalid_request_error",
                "max_tokens".into(),
                Value::Null,
            ),
        ),
    ];
    for (body, status, expected) in rows {
        let answer = whole(alone(Dialect::Openai).request(0, T0, &post(C, body)));
        assert_eq!(
            (answer.status, body_of(&answer)),
            (status, expected),
            "{body}"
        );
    }
    let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(9_000));
    let answer = body_of(&whole(alone(Dialect::Openai).request(
        0,
        T0,
        &post(C, &long),
    )));
    assert_eq!(answer["error"]["code"], "context_length_exceeded");
    let answer = body_of(&whole(alone(Dialect::Openai).request(0, T0, &post(C, "{"))));
    assert_eq!(answer["error"]["type"], "invalid_request_error");

    let chat = format!(r#"{{{HELLO},"max_tokens":3}}"#);
    let answer = whole(alone(Dialect::Openai).request(0, T0, &post(H, &chat)));
    assert_eq!(
        skeleton(&answer.body),
        "{id:s object:s created:n model:s choices:[{index:n message:{role:s content:s refusal:null } logprobs:null finish_reason:s }] \
         usage:{prompt_tokens:n completion_tokens:n total_tokens:n } system_fingerprint:s }"
    );

    // The core dies under a stream: an error, and nothing after it.
    let mut w = world_of(Dialect::Openai, &[Role::Both], Profile::flat(0.0, 10.0));
    let body = r#"{"prompt":"x","max_tokens":9,"stream":true}"#;
    let mut running = stream(w.request(0, T0, &post(C, body)));
    let mut batch = Batch::default();
    running.poll(T0, 9, &mut batch);
    w.engines[0].kill(&mut w.handoffs);
    batch.clear();
    assert_eq!(running.poll(ms(1), 9, &mut batch), Next::Done);
    let text = String::from_utf8(batch.bytes).unwrap();
    assert!(
        text.starts_with("data: {\"error\":{\"message\":\"EngineCore"),
        "{text}"
    );
    assert_eq!(text.matches("data: ").count(), 1);
    assert_eq!(whole(w.request(0, T0, &get("/health"))).status, 503);
}

/// Whatever the body, an answer and no panic; a stream ends.
#[test]
fn any_body_gets_an_answer_in_any_dialect() {
    let seed = r#"{"prompt":"x","stream":true,"rid":"a","bootstrap_host":"2.2.2.2","bootstrap_room":3,"messages":[{"content":"a"}],"chat_template_kwargs":{"thinking":true}}"#;
    for dialect in [Dialect::Sglang, Dialect::Openai] {
        let mut w = world_of(dialect, &[Role::Prefill, Role::Both], Profile::default());
        for cut in 0..seed.len() {
            let changed = format!("{}9{}", &seed[..cut], &seed[cut + 1..]);
            for body in [&seed[..cut], &changed] {
                for (engine, path) in [(0, C), (1, H), (1, "/tokenize")] {
                    match w.request(engine, T0, &post(path, body)) {
                        Reply::Whole(answer) => assert!(answer.take().status >= 200),
                        Reply::Stream(s) => assert!(super::run(*s).len() >= 2),
                    }
                }
            }
        }
        assert!(w.engines.iter().all(|e| e.load().running() == 0));
    }
}
