//! Recorded exchanges (`tests/vectors/cases`), replayed against the binary and compared by meaning.
//!
//! Compared are: the status, `retry-after`, the media type, that there is an `x-request-id`, JSON bodies as values, errors by type, param
//! and code, streams as parsed events, what engines were asked leg by leg, and the counters before and after. Cases of one fleet run on
//! several routers at once; each router runs one at a time, so its counters are that case's.

use std::collections::VecDeque;
use std::fs;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::client::{self, Answer, Client, data_of};
use super::engine::{Seen, lock, unhex};
use super::journal::{holds_all, journaled};
use super::world::{Fleet, Setup, World};

/// Routers that share the cases of the big fleet.
const ROUTERS: usize = 6;

// proves R-REQ-1, R-REQ-2, R-REQ-3, R-REQ-4, R-REQ-5, R-REQ-6, R-LEG-1, R-LEG-2, R-LEG-3, R-LEG-4, R-SSE-1, R-SSE-2, R-SSE-3, R-SSE-4
// proves R-SSE-5, R-ASM-1, R-ASM-2, R-ASM-3, R-TOK-1, R-TOK-3, R-FLT-1, R-FLT-2, R-FLT-3, R-FLT-4, R-ADM-8, R-ADM-10, R-HTTP-4, R-SHD-3
#[test]
fn recorded_cases_on_io_uring() {
    replay("io_uring");
}

// proves R-REQ-1, R-REQ-2, R-REQ-3, R-REQ-4, R-REQ-5, R-REQ-6, R-LEG-1, R-LEG-2, R-LEG-3, R-LEG-4, R-SSE-1, R-SSE-2, R-SSE-3, R-SSE-4
// proves R-SSE-5, R-ASM-1, R-ASM-2, R-ASM-3, R-TOK-1, R-TOK-3, R-FLT-1, R-FLT-2, R-FLT-3, R-FLT-4, R-ADM-8, R-ADM-10, R-HTTP-4, R-SHD-3
#[test]
fn recorded_cases_on_epoll() {
    replay("epoll");
}

fn replay(driver: &'static str) {
    if !Setup::all().iter().any(|setup| setup.driver == driver) {
        return;
    }
    let failures = Mutex::new(Vec::new());
    let mut count = 0;
    for shards in [1, 2] {
        let setup = Setup::new(driver, shards);
        let started = Instant::now();
        thread::scope(|scope| {
            for mut recorded in recorded() {
                let cases = std::mem::take(&mut recorded.cases);
                count += cases.len();
                let routers = ROUTERS.min(cases.len().div_ceil(8));
                let cases = Arc::new(Mutex::new(slow_first(cases)));
                let recorded = Arc::new(recorded);
                for _ in 0..routers {
                    let (recorded, cases) = (Arc::clone(&recorded), Arc::clone(&cases));
                    let failures = &failures;
                    scope.spawn(move || {
                        let world = recorded.start(setup);
                        loop {
                            let Some(case) = lock(&cases).pop_front() else {
                                // Whatever they came to, each has left its row.
                                holds_all(&world);
                                return;
                            };
                            for fault in run(&case, &world) {
                                let name = case["name"].as_str().unwrap_or_default();
                                lock(failures).push(format!("{name} [{shards} shards]: {fault}"));
                            }
                        }
                    });
                }
            }
        });
        eprintln!("{setup:?}: {count} cases so far, {:?}", started.elapsed());
    }
    assert!(count > 0);
    let mut failures = lock(&failures);
    failures.sort();
    assert!(
        failures.is_empty(),
        "{} of {count} cases:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// A fleet, what is done to it before its cases, and these.
struct Recorded {
    fleet: Fleet,
    /// Requests that put the router into the state of the cases.
    after_start: Vec<Value>,
    /// In that state it is not ready.
    is_held: bool,
    cases: Vec<Value>,
}

impl Recorded {
    /// A router in the state that the cases expect.
    fn start(&self, setup: Setup) -> World {
        let world = World::start(setup, &journaled(self.fleet.clone(), &[]));
        for request in &self.after_start {
            let path = request[1].as_str().expect("a path");
            world.post(path, &request[2]);
        }
        if self.is_held {
            world.until("not ready", |world| {
                world.ask(&client::get("/ready")).status == Some(503)
            });
            let engines = self.fleet.file["engines"].as_array().map_or(0, Vec::len);
            let ill = self.fleet.script.as_object().map_or(0, |script| {
                if script.contains_key("health") {
                    engines
                } else {
                    script.len()
                }
            });
            world.until("ill engines are left out", |world| {
                let state = world.state();
                super::world::number(&state, "/health/available_instances")
                    <= (engines - ill) as u64
            });
        }
        world
    }
}

/// Every file of the folder.
fn recorded() -> Vec<Recorded> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/cases");
    let read = |name: &str| {
        fs::read_to_string(format!("{dir}/{name}")).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let legs: Value = serde_json::from_str(&read("legs.json")).expect("legs.json");
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect(dir)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".jsonl").map(str::to_owned))
        .collect();
    names.sort();
    let load = |name: String| {
        let spec: Value = serde_json::from_str(&read(&format!("{name}.fleet.json"))).expect(&name);
        let mut fleet = Fleet::new(&[]);
        fleet.file = spec["fleet"].clone();
        fleet.profiles = spec["profiles"].clone();
        fleet.script = at_engines(spec["script"].as_object().unwrap_or(&Map::new()));
        let args = spec["serve_args"].as_array().into_iter().flatten();
        fleet.args = args
            .filter_map(|arg| Some(arg.as_str()?.to_owned()))
            .collect();
        let is_held = !spec["settle_s"].is_null();
        fleet.await_ready = !is_held;
        let stub_args = spec["stub_args"].to_string();
        fleet.sglang = stub_args.contains("sglang");
        let cases = read(&format!("{name}.jsonl"));
        let cases = cases.lines().map(|line| {
            let mut case = expand(serde_json::from_str(line).expect(line));
            let seen = &mut case["expect"]["engine_requests"];
            if let Some(named) = seen.as_str() {
                *seen = expand(legs[named].clone());
                assert!(seen.is_array(), "{name}: no such legs");
            }
            case
        });
        Recorded {
            fleet,
            after_start: spec["after_start"].as_array().cloned().unwrap_or_default(),
            is_held,
            cases: cases.collect(),
        }
    };
    names.into_iter().map(load).collect()
}

/// Undoes the shortening of long values.
fn expand(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            if let Some(Value::Array(parts)) = members.get("~text") {
                let part = |n: usize| parts[n].as_str().expect("a text").to_owned();
                let count = parts[2].as_u64().expect("a count") as usize;
                return Value::String(part(0) + &part(1).repeat(count) + &part(3));
            }
            if let Some(Value::Array(parts)) = members.get("~range") {
                let part = |n: usize| parts[n].as_u64().expect("a number");
                return Value::from((part(0)..part(0) + part(1)).collect::<Vec<u64>>());
            }
            let expanded = members.into_iter().map(|(k, v)| (k, expand(v)));
            Value::Object(expanded.collect())
        }
        Value::Array(items) => {
            let mut out = Vec::new();
            for item in items {
                match item.get("~times").and_then(Value::as_array) {
                    Some(parts) => {
                        let count = parts[0].as_u64().expect("a count") as usize;
                        out.extend(vec![expand(parts[1].clone()); count]);
                    }
                    None => out.push(expand(item)),
                }
            }
            Value::Array(out)
        }
        other => other,
    }
}

/// Cases that wait for a time-out begin first, so that they run beside the others.
fn slow_first(cases: Vec<Value>) -> VecDeque<Value> {
    let slow = |case: &Value| {
        let name = case["name"].as_str().unwrap_or_default();
        ["timeout", "deadline", "keepalive", "disconnect", "504"]
            .iter()
            .any(|word| name.contains(word))
    };
    let (mut first, last): (Vec<_>, Vec<_>) = cases.into_iter().partition(slow);
    first.extend(last);
    first.into()
}

// ── one case ──

fn run(case: &Value, world: &World) -> Vec<String> {
    world.engines.reset();
    if let Some(script) = case["engine_script"].as_object() {
        world.engines.script(&at_engines(script));
    }
    let before = counters(&world.at_rest());
    let mut held = Vec::new();
    for background in case["background"].as_array().into_iter().flatten() {
        for _ in 0..background["count"].as_u64().unwrap_or(1) {
            held.push(send(world, &background["request"]));
        }
        // The engine's word that it is under way.
        let script = &case["engine_script"];
        let leg = if script["prefill"].is_null() {
            "decode"
        } else {
            "prefill"
        };
        world.until_leg(leg, held.len());
    }
    let mut mine = Vec::new();
    if !held.is_empty() {
        mine.extend(world.engines.log().iter().filter_map(request_of));
    }
    let mut client = send(world, &case["request"]);
    let answer = match case["client"]["disconnect_after_ms"].as_u64() {
        Some(_) => {
            // The recorded client left after some time; this one leaves once as much has happened.
            until_under_way(world, case, &before);
            Answer::default()
        }
        None => client.answer(),
    };
    drop(client);
    drop(held);
    let after = counters(&world.at_rest());
    let mut log = world.engines.log();
    if let Some(id) = answer.header("x-request-id") {
        // An engine may read a request that was given up after the router has forgotten it: that is a leg of the case before.
        mine.push(id.to_owned());
        log.retain(|seen| request_of(seen).is_none_or(|id| mine.contains(&id)));
    }
    compare(case, &answer, &log, &before, &after)
}

/// The id of the request that a leg belongs to, 36 characters; what follows names the leg.
fn request_of(seen: &Arc<Seen>) -> Option<String> {
    let id = seen.headers.get("x-request-id")?;
    id.get(..36).map(str::to_owned)
}

/// Waits for the last leg that the case expects, and for its tokens but the last.
fn until_under_way(world: &World, case: &Value, before: &[i64]) {
    let expect = &case["expect"];
    let legs = expect["engine_requests"].as_array().map_or(0, Vec::len);
    let tokens = expect["counters"]["decode_tokens_observed"].as_i64();
    let n = COUNTERS
        .iter()
        .position(|(name, _)| *name == "decode_tokens_observed");
    let n = n.expect("a counter");
    world.until("the leg", |world| world.engines.log().len() >= legs);
    world.until("its tokens", |world| {
        counters(&world.state())[n] - before[n] >= tokens.unwrap_or(1) - 1
    });
}

/// Scripts name engines by the ports 8101, 8102, …
fn at_engines(script: &Map<String, Value>) -> Value {
    let rename = |(key, step): (&String, &Value)| {
        let key = match key.split_once("@81") {
            Some((leg, port)) => {
                let port: usize = port.parse().expect("a port");
                format!("{leg}@{}", port - 1)
            }
            None => key.clone(),
        };
        (key, step.clone())
    };
    Value::Object(script.iter().map(rename).collect())
}

fn send(world: &World, request: &Value) -> Client {
    let body = if let Some(hex) = request["body_hex"].as_str() {
        unhex(hex)
    } else if let Some(text) = request["body_text"].as_str() {
        text.as_bytes().to_vec()
    } else if let Some(parts) = request["body_repeat"].as_array() {
        let part = |n: usize| parts[n].as_str().expect("a text").to_owned();
        let count = parts[2].as_u64().expect("a count") as usize;
        (part(0) + &part(1).repeat(count) + &part(3)).into_bytes()
    } else if request["body"].is_null() {
        Vec::new()
    } else {
        request["body"].to_string().into_bytes()
    };
    let method = request["method"].as_str().unwrap_or("POST");
    let path = request["path"].as_str().expect("a path");
    let mut fields = Map::new();
    fields.insert("content-type".to_owned(), json!("application/json"));
    for (name, value) in request["headers"].as_object().into_iter().flatten() {
        fields.insert(name.to_lowercase(), value.clone());
    }
    let mut wire = Vec::new();
    if request["chunked"] == true {
        fields.insert("transfer-encoding".to_owned(), json!("chunked"));
        for piece in body.chunks(4096) {
            wire.extend(super::engine::framed(piece));
        }
        wire.extend_from_slice(b"0\r\n\r\n");
    } else {
        if method != "GET" || !body.is_empty() {
            let length = json!(body.len().to_string());
            fields.entry("content-length").or_insert(length);
        }
        wire = body;
    }
    let fields: Vec<(&str, &str)> = fields
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
        .collect();
    let mut client = world.connect();
    client.send(&[client::head(method, path, &fields), wire].concat());
    client
}

const COUNTERS: [(&str, &str); 13] = [
    ("offered", "/offered"),
    ("unsized_offered", "/unsized_offered"),
    ("served", "/served"),
    ("failed", "/failed"),
    ("expired", "/expired"),
    ("cancelled", "/cancelled"),
    ("invalid_requests", "/invalid_requests"),
    ("rejected", "/admission/rejected"),
    ("refused", "/admission/refused"),
    ("prefill_attempts", "/serving/prefill_attempts"),
    ("decode_attempts", "/serving/decode_attempts"),
    ("retry_attempts", "/serving/retry_attempts"),
    ("decode_tokens_observed", "/serving/decode_tokens_observed"),
];

fn counters(state: &Value) -> [i64; COUNTERS.len()] {
    COUNTERS.map(|(_, pointer)| super::world::number(state, pointer) as i64)
}

// ── comparison ──

fn compare(
    case: &Value,
    got: &Answer,
    seen: &[Arc<Seen>],
    before: &[i64],
    after: &[i64],
) -> Vec<String> {
    let want = &case["expect"];
    if want["status"].as_u64() != got.status.map(u64::from) {
        let text = got.text();
        let text: String = text.chars().take(200).collect();
        return vec![format!(
            "status {:?}, want {}: {text}",
            got.status, want["status"]
        )];
    }
    let mut bad = Vec::new();
    if got.status.is_some() {
        compare_head(&want["headers"], got, &mut bad);
        let truncated = want["truncated"] == true;
        if truncated == got.complete && case["client"].is_null() {
            bad.push(format!("complete={}", got.complete));
        }
        compare_body(case, got, &mut bad);
    }
    if let Some(legs) = want["engine_requests"].as_array() {
        compare_legs(legs, seen, &mut bad);
    }
    if want["counters"].is_object() {
        compare_counters(case, before, after, &mut bad);
    }
    bad
}

fn compare_head(want: &Value, got: &Answer, bad: &mut Vec<String>) {
    let retry_after = want["retry-after"].as_str();
    if retry_after != got.header("retry-after") {
        bad.push(format!(
            "retry-after {:?}, want {retry_after:?}",
            got.header("retry-after")
        ));
    }
    let media = |text: Option<&str>| {
        let text = text.unwrap_or_default();
        let media = text.split(';').next().unwrap_or_default();
        media.trim().to_lowercase()
    };
    let (wanted, media) = (
        media(want["content-type"].as_str()),
        media(got.header("content-type")),
    );
    if !wanted.is_empty() && wanted != media {
        bad.push(format!("content-type {media}, want {wanted}"));
    }
    if !want["x-request-id"].is_null() && !got.header("x-request-id").is_some_and(is_id) {
        bad.push("no x-request-id".to_owned());
    }
    if !want["allow"].is_null() && got.header("allow").is_none_or(str::is_empty) {
        bad.push("no allow".to_owned());
    }
}

fn is_id(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (8..=64).contains(&text.len()) && text.bytes().all(legal)
}

fn compare_body(case: &Value, got: &Answer, bad: &mut Vec<String>) {
    let want = &case["expect"];
    let text = got.text();
    let parsed = || serde_json::from_str(&text).unwrap_or_else(|_| json!(text));
    if let Some(wanted) = want["events"].as_array() {
        let (mut wanted, mut events) = (wanted.clone(), events(&text));
        if !case["client"].is_null() || want["timing"] == true {
            wanted.truncate(1);
            events.truncate(1);
        }
        let (wanted, events) = (Value::Array(wanted), Value::Array(events));
        if !same(&wanted, &events) {
            bad.push(format!(
                "events {}, want {}",
                short(&events),
                short(&wanted)
            ));
        }
    } else if let Some(wanted) = want["error"].as_array() {
        let (kind, param, code) = got.error();
        let mut error = vec![kind, param, code];
        if want["error_type_only"] == true {
            error[1..].clone_from_slice(&wanted[1..]);
        }
        if error != *wanted {
            bad.push(format!(
                "error {error:?}, want {wanted:?}: {}",
                short(&parsed())
            ));
        }
    } else if !want["body_json"].is_null() {
        let wanted = &want["body_json"];
        let mut body = parsed();
        if want["subset"] == true
            && let (Some(body), Some(wanted)) = (body.as_object_mut(), wanted.as_object())
        {
            body.retain(|name, _| wanted.contains_key(name));
        }
        if !same(wanted, &body) {
            bad.push(format!("body {}, want {}", short(&body), short(wanted)));
        }
    }
}

fn compare_counters(case: &Value, before: &[i64], after: &[i64], bad: &mut Vec<String>) {
    let want = &case["expect"]["counters"];
    let loose = case["expect"]["loose"].as_array();
    let name_of_case = case["name"].as_str().unwrap_or_default();
    let partial = !case["background"].is_null() || !case["deliberate"].is_null();
    for (n, (name, _)) in COUNTERS.iter().enumerate() {
        let is_loose = loose.is_some_and(|names| names.iter().any(|l| l == name));
        if is_loose || want[name].is_null() && partial {
            continue;
        }
        let wanted = want[name].as_i64().unwrap_or(0);
        let got = after[n] - before[n];
        let right = match (*name, name_of_case.split_once("_mid")) {
            // How far such a stream got is a matter of time; at its deadline it ends for sure.
            ("decode_tokens_observed", Some(("disconnect", _))) => got >= wanted - 1,
            ("decode_tokens_observed", Some(("deadline", _))) => (1..=wanted + 3).contains(&got),
            _ => got == wanted,
        };
        if !right {
            bad.push(format!("counter {name} {got}, want {wanted}"));
        }
    }
}

fn compare_legs(want: &[Value], seen: &[Arc<Seen>], bad: &mut Vec<String>) {
    const ORDER: [&str; 3] = ["tokenize", "prefill", "decode"];
    let place = |leg: &str| ORDER.iter().position(|l| *l == leg);
    let name = |leg: &Value| leg["leg"].as_str().unwrap_or_default().to_owned();
    let mut want = want.to_vec();
    want.sort_by_key(|leg| place(&name(leg)));
    let mut seen = seen.to_vec();
    seen.sort_by_key(|leg| place(leg.leg));
    let names: (Vec<String>, Vec<String>) = (
        want.iter().map(name).collect(),
        seen.iter().map(|leg| leg.leg.to_owned()).collect(),
    );
    if names.0 != names.1 {
        return bad.push(format!("legs {:?}, want {:?}", names.1, names.0));
    }
    for (want, got) in want.iter().zip(&seen) {
        let leg = got.leg;
        let (wanted, body) = (without_identity(&want["body"]), without_identity(&got.body));
        if want["path"] != *got.path || !same(&wanted, &body) {
            bad.push(format!(
                "{leg} leg {} {}, want {} {}",
                got.path,
                short(&body),
                want["path"],
                short(&wanted)
            ));
        }
        let wanted = want["headers"]["x-request-id"].as_str().unwrap_or_default();
        let id = got.headers.get("x-request-id").map_or("", String::as_str);
        if leg != "tokenize" && wanted.contains("-a") && !is_leg_id(id, leg) {
            bad.push(format!("{leg} leg x-request-id {id:?}"));
        }
        for field in ["authorization", "cookie"] {
            if want["headers"][field].is_null() && got.headers.contains_key(field) {
                bad.push(format!("{leg} leg leaked {field}"));
            }
        }
    }
}

/// `ID-aATTEMPT-LEG`
fn is_leg_id(text: &str, leg: &str) -> bool {
    let Some(rest) = text.strip_suffix(leg).and_then(|r| r.strip_suffix('-')) else {
        return false;
    };
    rest.rsplit_once("-a").is_some_and(|(id, attempt)| {
        is_id(id) && !attempt.is_empty() && attempt.bytes().all(|b| b.is_ascii_digit())
    })
}

/// Which engine was placed shows in a body; only its shape is compared.
fn without_identity(body: &Value) -> Value {
    let mut body = body.clone();
    let Some(members) = body.as_object_mut() else {
        return body;
    };
    if let Some(handoff) = members
        .get_mut("kv_transfer_params")
        .and_then(Value::as_object_mut)
        && handoff
            .get("remote_engine_id")
            .and_then(Value::as_str)
            .is_some_and(|id| id.starts_with("engine-"))
    {
        for name in ["remote_engine_id", "remote_port"] {
            if let Some(value) = handoff.get_mut(name) {
                *value = json!("*");
            }
        }
    }
    for name in ["bootstrap_room", "bootstrap_port", "rid"] {
        if let Some(value) = members.get_mut(name) {
            *value = json!("*");
        }
    }
    body
}

/// Parsed events; an error keeps type and code only.
fn events(text: &str) -> Vec<Value> {
    let value = |data: String| {
        let Ok(value) = serde_json::from_str::<Value>(&data) else {
            return json!(data.trim());
        };
        match value["error"].as_object() {
            Some(error) => {
                let member = |name: &str| error.get(name).cloned().unwrap_or(Value::Null);
                json!({"error": {"type": member("type"), "code": member("code")}})
            }
            None => value,
        }
    };
    let events = data_of(text).into_iter().map(value);
    events.filter(|event| event != "").collect()
}

/// JSON equality by value: 1.10 is 1.1, and 1 is 1.0.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    let mut short: String = text.chars().take(600).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
