//! Every fault of a script, as writes on a virtual clock.

use super::*;
use crate::config::Format;
use crate::stub::engine::{Engine, Incoming, Setup, World};
use crate::stub::faults;
use crate::stub::profile::Profile;

/// A world of two engines under one rule; tokens come every 10 ms, the first after 20 ms.
fn world(rule: &str) -> World {
    let text = format!(r#"{{"schema":"narwhal.faults","schema_version":1,"rules":[{rule}]}}"#);
    let script = faults::parse("f", &text, Format::Json).unwrap_or_else(|e| panic!("{rule}: {e}"));
    let setup = Setup {
        profile: Profile::flat(20.0, 10.0),
        faults: script,
        ..Setup::default()
    };
    World {
        engines: (0..2)
            .map(|_| Engine::new(setup.clone(), Instant::ZERO))
            .collect(),
        ..World::default()
    }
}

const STREAM: &str =
    r#"{"prompt":"Once upon","max_tokens":4,"stream":true,"return_token_ids":true}"#;
const CHAT: &str = r#"{"messages":[{"role":"user","content":"Say hi."}],"max_tokens":3,"stream":true,"return_token_ids":true}"#;
const PREFILL: &str = r#"{"prompt":"Once upon","max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true}}"#;

/// Every write and act with its time in milliseconds.
fn trace(world: &mut World, body: &str, how: How) -> Vec<(u64, Vec<u8>, Option<Act>)> {
    let path: &[u8] = match body {
        "" => b"/health",
        body if body.contains("messages") => b"/v1/chat/completions",
        _ => b"/v1/completions",
    };
    let incoming = Incoming {
        method: if body.is_empty() { b"GET" } else { b"POST" },
        path,
        content_type: Some(b"application/json"),
        body: body.as_bytes(),
        ..Incoming::default()
    };
    let mut now = Instant::ZERO;
    let reply = world.request(0, now, &incoming);
    let mut output = Output::new(reply, now, how);
    let mut all = Vec::new();
    loop {
        let mut out = Vec::new();
        let act = output.poll(now, &mut out);
        let ms = now.nanos() / 1_000_000;
        assert_eq!(out.is_empty(), act != Act::Send, "{act:?} at {ms}");
        match act {
            Act::Send => all.push((ms, out, None)),
            Act::Wait(at) => {
                assert!(at > now, "no progress at {now:?}");
                now = at;
            }
            Act::Turn(turn) => {
                world.turn(0, now, turn);
                all.push((ms, out, Some(act)));
            }
            _ => {
                all.push((ms, out, Some(act)));
                return all;
            }
        }
    }
}

/// The trace in words: `t` a token's event, `r` a role's, `u` usage, `e` an error, `c` a comment; times only where they jump by
/// more than a token's interval.
fn words(world: &mut World, body: &str, how: How) -> String {
    let mut last_ms = 0;
    let mut out = Vec::new();
    for (ms, bytes, act) in trace(world, body, how) {
        if ms > last_ms + 20 {
            out.push(format!("+{}", ms - last_ms));
        }
        last_ms = ms;
        out.push(match act {
            Some(Act::Done { close: false }) => "keep".into(),
            Some(Act::Done { close: true }) => "end".into(),
            Some(Act::Turn(turn)) => format!("{turn:?}").to_lowercase(),
            Some(act) => format!("{act:?}").to_lowercase(),
            None => word(&bytes),
        });
    }
    out.join(" ")
}

fn word(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if let Some(rest) = text.strip_prefix("HTTP/1.1 ") {
        let Some((_, body)) = text.split_once("\r\n\r\n") else {
            return "head/".into();
        };
        assert!(body.is_empty(), "a head goes out alone: {text}");
        return rest[..3].to_owned();
    }
    if text == "0\r\n\r\n" {
        return "last".into();
    }
    let (size, data) = text.split_once("\r\n").unwrap_or(("", &text));
    let chunk = usize::from_str_radix(size, 16);
    let data = match (chunk, data.strip_suffix("\r\n")) {
        (Ok(n), Some(inner)) if n == inner.len() => inner,
        (Ok(_), _) => return "part".into(),
        _ => &text,
    };
    match data {
        "data: [DONE]\n\n" => "done",
        d if d.starts_with(':') => "c",
        d if d.contains("\"error\"") => "e",
        d if d.contains("\"finish_reason\":\"abort\"") => "abort",
        d if d.contains("\"role\"") => "r",
        d if d.contains("\"choices\":[]") => "u",
        d if d.starts_with("data: {") => "t",
        d if d.starts_with('{') => "body",
        _ => "raw",
    }
    .into()
}

const RUN: How = How {
    epoch_unix_s: 0,
    close: false,
    headless: false,
    events_per_write: 1,
    keep_alive: None,
};

// proves R-CLI-3, R-FLT-3
#[test]
fn every_step_at_every_place() {
    // rule, stream, whole
    let rows = [
        (
            r#""keep_alive_ms":60000"#,
            "200 t t t t done last keep",
            "200 body keep",
        ),
        (r#""do":"close""#, "close", "close"),
        (r#""do":"reset""#, "reset", "reset"),
        (r#""do":"hang""#, "hang", "hang"),
        (
            r#""do":"pause","pause_ms":500"#,
            "+500 200 t t t t done last keep",
            "+500 200 body keep",
        ),
        (
            r#""do":"close","at":"in_head""#,
            "head/ close",
            "head/ close",
        ),
        (
            r#""do":"pause","pause_ms":90,"at":"in_head""#,
            "head/ +90 raw t t t t done last keep",
            "head/ +90 raw body keep",
        ),
        (r#""do":"reset","at":"event""#, "200 reset", "200 reset"),
        (r#""do":"hang","at":"event""#, "200 hang", "200 hang"),
        (
            r#""do":"close","at":"event","events":2"#,
            "200 t t close",
            "200 body keep",
        ),
        (
            r#""do":"hang","at":"event","events":2"#,
            "200 t t hang",
            "200 body keep",
        ),
        (
            r#""do":"pause","pause_ms":70,"at":"event","events":2"#,
            "200 t t +70 t t done last keep",
            "200 body keep",
        ),
        (
            r#""do":"close","at":"in_event","events":1"#,
            "200 t part close",
            "200 body keep",
        ),
        (
            r#""do":"reset","at":"in_event""#,
            "200 part reset",
            "200 body reset",
        ),
        (r#""do":"eof","at":"event""#, "200 last keep", "200 close"),
        (
            r#""do":"eof","at":"event","events":2"#,
            "200 t t last keep",
            "200 body keep",
        ),
        (
            r#""do":"eof","at":"done""#,
            "200 t t t t last keep",
            "200 body keep",
        ),
        (
            r#""do":"close","at":"done""#,
            "200 t t t t close",
            "200 body keep",
        ),
        (
            r#""do":"done","at":"event""#,
            "200 done last keep",
            "200 body keep",
        ),
        (
            r#""do":"done","at":"event","events":1"#,
            "200 t done last keep",
            "200 body keep",
        ),
        (
            r#""do":"close","at":"last""#,
            "200 t t t t done close",
            "200 body close",
        ),
        (
            r#""do":"close","at":"end""#,
            "200 t t t t done last close",
            "200 body close",
        ),
        (
            r#""do":"reset","at":"end""#,
            "200 t t t t done last reset",
            "200 body reset",
        ),
        (r#""do":"error","status":503"#, "503 e keep", "503 e keep"),
        (
            r#""do":"error_ok","status":429"#,
            "200 e keep",
            "200 e keep",
        ),
        (
            r#""do":"error","at":"event""#,
            "200 e done last keep",
            "200 e keep",
        ),
        (
            r#""do":"error","at":"event","events":3"#,
            "200 t t t e done last keep",
            "200 body keep",
        ),
        (
            r#""do":"error","at":"done""#,
            "200 t t t t e done last keep",
            "200 body keep",
        ),
        (
            r#""do":"abort","at":"event""#,
            "200 abort done last keep",
            "200 body keep",
        ),
        (
            r#""do":"abort","at":"event","events":2"#,
            "200 t t abort done last keep",
            "200 body keep",
        ),
        (
            r#""do":"insert","what":"malformed","at":"event","events":1"#,
            "200 t t t t t done last keep",
            "200 body keep",
        ),
        (
            r#""do":"insert","what":"comment","repeat":3,"at":"event""#,
            "200 c c c t t t t done last keep",
            "200 c c c body keep",
        ),
        (
            r#""do":"insert","what":"role","at":"event""#,
            "200 r t t t t done last keep",
            "200 r body keep",
        ),
        (
            r#""do":"raw","what":"bad_chunk","at":"event","events":1"#,
            "200 t raw t t t done last keep",
            "200 body keep",
        ),
        (
            r#""do":"raw","hex":"00ff","at":"event""#,
            "200 raw t t t t done last keep",
            "200 raw body keep",
        ),
        (
            r#""do":"drain","at":"event","events":2"#,
            "200 t t drain t t done last keep",
            "200 body keep",
        ),
        (r#""do":"drain""#, "500 e keep", "500 e keep"),
        (
            r#""do":"die","at":"event","events":2"#,
            "200 t t die e done last keep",
            "200 body keep",
        ),
        (r#""do":"die""#, "500 e keep", "500 e keep"),
        (
            r#""do":"restart","pause_ms":5,"at":"end""#,
            "200 t t t t done last restart(5ms) keep",
            "200 body restart(5ms) keep",
        ),
        (
            r#""do":"refuse","pause_ms":5,"at":"end""#,
            "200 t t t t done last refuse(5ms) keep",
            "200 body refuse(5ms) keep",
        ),
        (r#""framing":"length""#, "+50 200 t keep", "200 body keep"),
        (
            r#""framing":"close""#,
            "200 t t t t done close",
            "200 body close",
        ),
        (
            r#""framing":"chunked""#,
            "200 t t t t done last keep",
            "200 body last keep",
        ),
        (
            r#""tokens_per_event":2"#,
            "200 t t t done last keep",
            "200 body keep",
        ),
        (
            r#""interim":[103,100]"#,
            "103 200 t t t t done last keep",
            "103 200 body keep",
        ),
        (
            r#""keep_alive_ms":8"#,
            "200 c c t c t c t c t done last keep",
            "200 body keep",
        ),
    ];
    for (rule, stream, whole) in rows {
        let rule = format!("{{{rule}}}");
        if rule.contains("interim") {
            let all = trace(&mut world(&rule), STREAM, RUN);
            assert_eq!(
                all[0].1,
                b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
            );
            continue;
        }
        assert_eq!(words(&mut world(&rule), STREAM, RUN), stream, "{rule}");
        assert_eq!(words(&mut world(&rule), PREFILL, RUN), whole, "{rule}");
    }
}

// proves R-CLI-3
#[test]
fn a_chat_can_stop_after_its_role() {
    let mut w = world(r#"{"do":"hang","at":"event","events":1}"#);
    assert_eq!(words(&mut w, CHAT, RUN), "200 r hang");
    let mut w = world(r#"{"do":"insert","what":"silent","repeat":70,"at":"event","events":1}"#);
    let got = words(&mut w, CHAT, RUN);
    assert_eq!(
        got,
        format!("200 r{} t t t done last keep", " t".repeat(70))
    );
}

// proves R-CLI-3, R-TOK-1
#[test]
fn bad_ids_stand_where_good_ones_would() {
    for bad in faults::BadIds::ALL {
        let mut w = world(&format!(
            r#"{{"token_ids":"{bad}","at":"event","events":2,"do":"pause","pause_ms":0}}"#
        ));
        for body in [STREAM, CHAT] {
            let all = trace(&mut w, body, RUN);
            let events: Vec<String> = all
                .iter()
                .filter_map(|(_, bytes, _)| {
                    let text = String::from_utf8_lossy(bytes);
                    Some(text.split_once("data: {")?.1.trim_end().to_owned())
                })
                .collect();
            for (i, event) in events.iter().enumerate() {
                let value: serde_json::Value = serde_json::from_str(&format!("{{{event}")).unwrap();
                let ids = value["choices"][0].get("token_ids");
                let want: Option<serde_json::Value> =
                    bad.json().map(|json| serde_json::from_str(json).unwrap());
                if i >= 2 {
                    assert_eq!(ids, want.as_ref(), "{bad} {i}");
                } else if ids.is_some() {
                    assert!(ids.unwrap()[0].is_u64(), "{bad} {i}");
                }
            }
            assert!(events.len() >= 4);
        }
    }
}

// proves R-CLI-3, R-LEG-3
#[test]
fn handoffs_can_be_spoilt() {
    use serde_json::{Value, json};
    type Look = fn(&Value) -> bool;
    // how, what is seen of the parameters (the whole answer where they are missing)
    let rows: [(&str, Look); 13] = [
        ("missing", |v| v.get("kv_transfer_params").is_none()),
        ("null", |v| v["kv_transfer_params"].is_null()),
        ("text", |v| v["kv_transfer_params"] == json!("x")),
        ("list", |v| v["kv_transfer_params"] == json!([1])),
        ("empty", |v| v["kv_transfer_params"] == json!({})),
        ("engine_missing", |v| {
            v["kv_transfer_params"].get("remote_engine_id").is_none()
        }),
        ("engine_empty", |v| {
            v["kv_transfer_params"]["remote_engine_id"] == json!("")
        }),
        ("engine_number", |v| {
            v["kv_transfer_params"]["remote_engine_id"] == json!(7)
        }),
        ("engine_unknown", |v| {
            v["kv_transfer_params"]["remote_engine_id"].is_string()
        }),
        ("blocks_missing", |v| {
            v["kv_transfer_params"].get("remote_block_ids").is_none()
        }),
        ("blocks_text", |v| {
            v["kv_transfer_params"]["remote_block_ids"] == json!([["7"]])
        }),
        ("blocks_negative", |v| {
            v["kv_transfer_params"]["remote_block_ids"] == json!([[-7]])
        }),
        ("blocks_unknown", |v| {
            v["kv_transfer_params"]["remote_block_ids"] == json!([[4_294_967_294u32]])
        }),
    ];
    assert_eq!(rows.len(), faults::BadHandoff::COUNT);
    for (how, look) in rows {
        let mut w = world(&format!(r#"{{"handoff":"{how}","leg":"prefill"}}"#));
        let all = trace(&mut w, PREFILL, RUN);
        let value: Value = serde_json::from_slice(&all[1].1).unwrap();
        assert!(look(&value), "{how}: {value}");
        assert_eq!(value["usage"]["completion_tokens"], 1, "{how}");
        let length = format!("content-length: {}\r\n", all[1].1.len());
        assert!(
            String::from_utf8_lossy(&all[0].1).contains(&length),
            "{how}"
        );
        // An answer without a handoff is left alone.
        assert_eq!(words(&mut w, STREAM, RUN), "200 t t t t done last keep");
    }
}

#[test]
fn trickled_bytes_are_the_same_bytes() {
    for rule in [
        r#"{"keep_alive_ms":8}"#,
        r#"{"at":"in_event","events":1,"do":"close"}"#,
    ] {
        let joined = |all: Vec<(u64, Vec<u8>, Option<Act>)>| -> Vec<u8> {
            all.into_iter().flat_map(|(_, bytes, _)| bytes).collect()
        };
        let plain = joined(trace(&mut world(rule), STREAM, RUN));
        for size in [1, 2, 7, 100_000] {
            let rules = format!(r#"{rule},{{"write_bytes":{size}}}"#);
            let all = trace(&mut world(&rules), STREAM, RUN);
            assert!(all.iter().all(|(_, bytes, _)| bytes.len() <= size));
            assert_eq!(joined(all), plain, "{size}");
        }
    }
}

// proves R-CLI-3
#[test]
fn events_share_writes_only_when_told() {
    let mut w = world(r#"{"leg":"tokenize","do":"hang"}"#);
    let now = Instant::ZERO + Duration::from_secs(1);
    for (per_write, want) in [(1, 4), (3, 2), (100, 1)] {
        let incoming = Incoming {
            method: b"POST",
            path: b"/v1/completions",
            content_type: Some(b"application/json"),
            body: STREAM.as_bytes(),
            ..Incoming::default()
        };
        let reply = w.request(0, Instant::ZERO, &incoming);
        let how = How {
            events_per_write: per_write,
            ..RUN
        };
        let mut output = Output::new(reply, now, how);
        let mut writes = Vec::new();
        loop {
            let mut out = Vec::new();
            if output.poll(now, &mut out) != Act::Send {
                break;
            }
            writes.push(String::from_utf8(out).unwrap());
        }
        let with_tokens = writes.iter().filter(|w| w.contains("token_ids")).count();
        assert_eq!((with_tokens, writes.len()), (want, want + 3), "{per_write}");
    }
}

#[test]
fn a_dead_or_draining_engine_stays_healthy_or_not() {
    let mut w = world(r#"{"leg":"decode","nth":1,"do":"drain"}"#);
    assert_eq!(words(&mut w, STREAM, RUN), "500 e keep");
    let all = trace(&mut w, PREFILL, RUN);
    let body = String::from_utf8_lossy(&all[1].1).into_owned();
    assert!(
        body.contains("cannot schedule new futures after shutdown"),
        "{body}"
    );
    assert_eq!(words(&mut w, "", RUN), "200 keep");

    let mut w = world(r#"{"leg":"decode","nth":1,"do":"die"}"#);
    assert_eq!(words(&mut w, STREAM, RUN), "500 e keep");
    assert_eq!(words(&mut w, "", RUN), "503 keep");
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    assert!(!w.engines[0].is_closed(at(249)) && w.engines[0].is_closed(at(250)));
    w.reopened(0, at(300));
    assert_eq!(words(&mut w, STREAM, RUN), "200 t t t t done last keep");
}

#[test]
fn shutdown_ends_what_runs_as_vllm_does() {
    let body = |text: &str| text.replace("\"max_tokens\":4", "\"max_tokens\":400");
    for (request, want) in [(STREAM, "abort"), (PREFILL, "\"finish_reason\":\"abort\"")] {
        let mut w = world(r#"{"leg":"tokenize","do":"hang"}"#);
        let request = body(request);
        let incoming = Incoming {
            method: b"POST",
            path: b"/v1/completions",
            content_type: Some(b"application/json"),
            body: request.as_bytes(),
            ..Incoming::default()
        };
        let reply = w.request(0, Instant::ZERO, &incoming);
        let mut output = Output::new(reply, Instant::ZERO, RUN);
        let mut out = Vec::new();
        while output.poll(Instant::ZERO, &mut out) == Act::Send {}
        w.abort();
        while output.poll(Instant::ZERO, &mut out) == Act::Send {}
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains(want),
            "{text}"
        );
        assert_eq!(w.engines[0].load().kv_tokens(), 0);
        assert_eq!(words(&mut w, STREAM, RUN), "500 e keep");
    }
}

#[test]
fn chunk_sizes_have_no_leading_zeros() {
    for n in [1, 15, 16, 255, 256, 4_095, 4_096, 70_000, 1 << 24] {
        let mut out = b"before".to_vec();
        let room = open_chunk(&mut out);
        out.resize(out.len() + n, b'x');
        close_chunk(room, &mut out);
        let want = [
            format!("before{n:x}\r\n").into_bytes(),
            vec![b'x'; n],
            b"\r\n".to_vec(),
        ];
        assert!(out == want.concat(), "{n}");
    }
}
