//! The cases for the engine's side: what an engine sends instead of an answer, in every cut, for streams and whole answers, with two
//! attempts and with one. What the client sees is the answer or another engine's, never a mixture, and the next request gets its own.

use narwhal::base::units::Leg;
use serde_json::{Value, json};

use super::answers;
use super::client::{self, data_of};
use super::client_side::single_shards;
use super::machine::{Machine, Reply, fleet_file};
use super::rows::{Case, Outcome, Then, engine_cases};
use super::world::{Fleet, World, in_each};

/// Output of a case's reply, and of everybody else's.
const REPLY_TEXT: &str = "AB";
const OTHER_TEXT: &str = " w7 w7";

const TEXT: &str = "/v1/completions";

/// Replies up to here are cut at every offset.
const CUT_BYTES_MAX: usize = 900;

/// A stream as engines send it: two tokens, and its end.
pub fn default_stream() -> Vec<u8> {
    let event = |finish: Value| {
        let choice = json!({"index": 0, "text": " w7", "token_ids": [7], "finish_reason": finish});
        let event = json!({"id": "c", "object": "text_completion", "created": 1, "model": "stub-model", "choices": [choice]});
        format!("data: {event}\n\n")
    };
    let chunk = |text: String| format!("{:x}\r\n{text}\r\n", text.len());
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let events = chunk(event(Value::Null)) + &chunk(event(json!("length")));
    (head.to_owned() + &events + &chunk("data: [DONE]\n\n".to_owned()) + "0\r\n\r\n").into_bytes()
}

fn default_prefill() -> Vec<u8> {
    let handoff = json!({"remote_engine_id": "e", "remote_block_ids": [1]});
    let body = json!({"choices": [{"index": 0, "text": " w0"}], "kv_transfer_params": handoff})
        .to_string();
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

fn request(stream: bool) -> Vec<u8> {
    let body = json!({"model": "stub-model", "prompt": [1], "max_tokens": 2, "stream": stream});
    client::post(TEXT, &body)
}

/// What a client saw: status, output, and whether an error event ended it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: u16,
    text: String,
    cut: bool,
    kind: Value,
}

fn seen(status: u16, body: &[u8], stream: bool) -> Seen {
    let text = String::from_utf8_lossy(body).into_owned();
    let mut seen = Seen {
        status,
        text: String::new(),
        cut: false,
        kind: Value::Null,
    };
    if status != 200 {
        let error: Value = serde_json::from_str(&text).unwrap_or_default();
        seen.kind = error["error"]["type"].clone();
    } else if stream {
        let data = data_of(&text);
        for event in &data {
            let event: Value = serde_json::from_str(event).unwrap_or_default();
            seen.text += event["choices"][0]["text"].as_str().unwrap_or_default();
            seen.cut |= event["error"]["code"] == "failed";
        }
        let ended = data.last().is_some_and(|last| last == "[DONE]");
        assert_ne!(ended, seen.cut, "an end in two ways, or in none: {text}");
    } else {
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        seen.text = answer["choices"][0]["text"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
    }
    seen
}

/// What this case comes to for a client with or without a stream, and the legs of its kind that are sent.
fn expected(case: &Case, stream: bool, attempts: u32) -> (Seen, usize) {
    let answer = |status: u16, text: &str, cut: bool, kind: Value| Seen {
        status,
        text: text.to_owned(),
        cut,
        kind,
    };
    let retried = |status: u16| match attempts {
        1 => (answer(status, "", false, json!(case.leg)), 1),
        _ => (answer(200, OTHER_TEXT, false, Value::Null), 2),
    };
    match case.outcome {
        Outcome::Served if case.leg == "decode" => (answer(200, REPLY_TEXT, false, Value::Null), 1),
        Outcome::Served => (answer(200, OTHER_TEXT, false, Value::Null), 1),
        Outcome::Retried => retried(502),
        Outcome::Retried504 => retried(504),
        Outcome::Cut | Outcome::Cut504 if stream => (answer(200, "A", true, Value::Null), 1),
        Outcome::Cut => retried(502),
        Outcome::Cut504 => retried(504),
        Outcome::Refused(status @ (400 | 413 | 422)) => {
            (answer(status, "", false, json!("invalid_request_error")), 1)
        }
        Outcome::Refused(status) => (answer(status, "", false, json!(case.leg)), 1),
    }
}

fn kind(case: &Case) -> Leg {
    match case.leg.as_str() {
        "prefill" => Leg::Prefill,
        "decode" => Leg::Decode,
        other => panic!("{}: a leg {other}?", case.place),
    }
}

fn roles(case: &Case) -> &'static str {
    if kind(case) == Leg::Prefill {
        "pair"
    } else {
        "both"
    }
}

/// The pieces of a reply.
#[derive(Clone, Copy, Debug)]
enum Pace {
    Pieces(usize),
    Cut(usize),
}

fn split(bytes: &[u8], pace: Pace) -> Vec<Vec<u8>> {
    let pieces: Vec<&[u8]> = match pace {
        Pace::Pieces(n) => bytes.chunks(n.min(bytes.len()).max(1)).collect(),
        Pace::Cut(at) => vec![&bytes[..at], &bytes[at..]],
    };
    let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
    pieces.map(<[u8]>::to_vec).collect()
}

// proves R-LEG-6, R-FLT-1, R-FLT-2, R-FLT-4, R-SSE-5
#[test]
fn cases_hold_on_the_machine_in_every_cut() {
    let cases = engine_cases();
    let part = |roles: &str, attempts: u32| {
        let nobody = |_: Leg, _: &[u8]| -> Reply { panic!("no case") };
        let mut machine = Machine::new(&fleet_file(roles, attempts), Box::new(nobody));
        let mut faults = Vec::new();
        for case in cases.iter().filter(|case| self::roles(case) == roles) {
            for stream in [true, false] {
                if let Err(what) = in_every_cut(&mut machine, case, stream, attempts) {
                    let how = format!("stream {stream}, {attempts} attempts");
                    faults.push(format!("{} {} ({how}): {what}", case.place, case.name));
                }
            }
        }
        faults
    };
    let faults: Vec<String> = std::thread::scope(|scope| {
        let worlds = [("both", 1), ("both", 2), ("pair", 1), ("pair", 2)];
        let parts = worlds.map(|(roles, attempts)| scope.spawn(move || part(roles, attempts)));
        let faults = parts.map(|part| part.join().expect("a part of the cases"));
        faults.concat()
    });
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// One fault a case is enough.
fn in_every_cut(
    machine: &mut Machine,
    case: &Case,
    stream: bool,
    attempts: u32,
) -> Result<(), String> {
    for piece in [usize::MAX, 1, 2, 7, 61] {
        on_machine(machine, case, Pace::Pieces(piece), stream, attempts)?;
    }
    if stream && attempts > 1 && case.reply.len() <= CUT_BYTES_MAX {
        for cut in 1..case.reply.len() {
            on_machine(machine, case, Pace::Cut(cut), stream, attempts)?;
        }
    }
    Ok(())
}

fn on_machine(
    machine: &mut Machine,
    case: &Case,
    pace: Pace,
    stream: bool,
    attempts: u32,
) -> Result<(), String> {
    let mut first = Some(Reply {
        pieces: split(&case.reply, pace),
        then: case.then,
    });
    let kind = kind(case);
    let answers = move |leg: Leg, _: &[u8]| {
        if leg == kind
            && let Some(reply) = first.take()
        {
            return reply;
        }
        let whole = if leg == Leg::Prefill {
            default_prefill()
        } else {
            default_stream()
        };
        Reply {
            pieces: vec![whole],
            then: Then::Open,
        }
    };
    machine.reconnect();
    machine.answers = Box::new(answers);
    machine.send(&request(stream), usize::MAX);
    let mut turns = 0;
    while machine.is_busy() {
        machine.late();
        turns += 1;
        assert!(turns < 50, "{}: it is never answered", case.place);
    }
    let (answer, used) =
        answers::next(&machine.got, false, machine.over)?.ok_or("no whole answer")?;
    let (want, legs) = expected(case, stream, attempts);
    let have = seen(answer.status, &answer.body, stream);
    if have != want {
        return Err(format!("{pace:?}: {have:?}"));
    }
    let sent = machine.legs_sent.iter().filter(|leg| **leg == kind).count();
    if sent != legs {
        return Err(format!("{pace:?}: {sent} legs"));
    }
    // The next request may come before the rest of that reply, and has nothing to do with it.
    machine.send(&request(stream), usize::MAX);
    let (answer, behind) =
        answers::next(&machine.got[used..], false, machine.over)?.ok_or("no second answer")?;
    let have = seen(answer.status, &answer.body, stream);
    if have.status != 200 || have.text != OTHER_TEXT || used + behind != machine.got.len() {
        return Err(format!("{pace:?}: the second answer is {have:?}"));
    }
    machine.leave();
    let parked = machine.parked.iter().find(|(leg, _)| *leg == kind);
    match parked {
        Some((_, pooled)) if *pooled == case.pooled => Ok(()),
        other => Err(format!("{pace:?}: pooled is {other:?}")),
    }
}

// proves R-LEG-6, R-FLT-1, R-FLT-2, R-FLT-4, R-SSE-5, R-SHD-3
#[test]
fn cases_hold_on_sockets() {
    let cases = engine_cases();
    in_each(&single_shards(), |setup| {
        let mut faults = Vec::new();
        for (roles, fleet) in [
            ("both", Fleet::new(&["both", "both"])),
            ("pair", Fleet::pairs()),
        ] {
            let world = World::start(setup, &fleet);
            for case in cases
                .iter()
                .filter(|case| self::roles(case) == roles && !case.machine_only)
            {
                for piece in [usize::MAX, 1] {
                    // What is left of an answer has 250 ms to come, which a starved machine may take: a kept connection is looked for
                    // again. One that is kept and should not be fails at once.
                    let mut held = on_sockets(&world, case, piece);
                    for _ in 0..2 {
                        if held.as_ref().is_err_and(|what| what == NOT_KEPT) {
                            held = on_sockets(&world, case, piece);
                        }
                    }
                    if let Err(what) = held {
                        faults.push(format!(
                            "{} {} (pieces of {piece}): {what}",
                            case.place, case.name
                        ));
                    }
                }
            }
        }
        assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
    });
}

const NOT_KEPT: &str = "not kept";

fn on_sockets(world: &World, case: &Case, piece: usize) -> Result<(), String> {
    let small = if case.reply.len() > 3000 {
        piece.max(61)
    } else {
        piece
    };
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let pieces = split(&case.reply, Pace::Pieces(small));
    let mut raw: Vec<Value> = pieces
        .iter()
        .map(|piece| json!({"hex": hex(piece)}))
        .collect();
    match case.then {
        Then::Open => {}
        Then::Close => raw.push(json!({"close": true})),
        Then::Reset => raw.push(json!({"reset": true})),
    }
    world.engines.reset();
    world
        .engines
        .script(&json!({case.leg.clone(): [{"raw": raw}, {"default": true}]}));
    let mut client = world.connect();
    client.send(&request(true));
    let answer = client.answer();
    if !answer.complete {
        return Err(format!("cut: {}", answer.text()));
    }
    let (want, legs) = expected(case, true, 2);
    let have = seen(answer.status.unwrap_or(0), &answer.body, true);
    let sent = world.engines.legs(&case.leg).len();
    if have != want || sent != legs {
        return Err(format!("{sent} legs, {have:?}"));
    }
    // Whether the connection was kept is known once the leg has ended.
    world.at_rest();
    client.send(&request(true));
    let answer = client.answer();
    let have = seen(answer.status.unwrap_or(0), &answer.body, true);
    if have.status != 200 || have.text != OTHER_TEXT {
        return Err(format!("the second answer is {have:?}"));
    }
    let log = world.engines.legs(&case.leg);
    let (first, rest) = log.split_first().ok_or("no leg")?;
    let pooled = rest.iter().any(|leg| leg.connection == first.connection);
    if pooled != case.pooled {
        return Err(if pooled { "kept" } else { NOT_KEPT }.to_owned());
    }
    Ok(())
}
