//! The client leaves: in every phase, in every way, and ten thousand times at random.

use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use narwhal::base::prng::Prng;
use serde_json::{Value, json};

use super::client::{self, Client, PATIENCE};
use super::world::{Fleet, Setup, World, number, open_connections, poll, reason};

const TEXT: &str = "/v1/completions";

/// How soon an engine's leg must be closed after its client left.
const SOON: Duration = Duration::from_millis(100);
/// The machine may stall for longer than that, a router never should: it has this many tries.
const TRIES: usize = 4;

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Fin,
    Reset,
    HalfClose,
}

impl Leave {
    const ALL: [Leave; 3] = [Leave::Fin, Leave::Reset, Leave::HalfClose];

    fn go(self, client: Client) -> Option<Client> {
        match self {
            Leave::Fin => {
                let _ = client.stream.shutdown(Shutdown::Both);
                None
            }
            Leave::Reset => {
                client.reset();
                None
            }
            // Kept open: it is the router that ends it.
            Leave::HalfClose => {
                client.half_close();
                Some(client)
            }
        }
    }
}

struct Phase {
    name: &'static str,
    /// The stage under which it is counted.
    stage: &'static str,
    script: fn() -> Value,
    stream: bool,
    /// The leg that runs when the client leaves, and how many of its kind there are by then.
    leg: Option<(&'static str, usize)>,
    /// Bytes of the answer's body to await first.
    answer_bytes: usize,
}

fn event(text: &str) -> String {
    format!(
        "data: {{\"id\":\"c\",\"object\":\"text_completion\",\"created\":1,\"model\":\"stub-model\",\
         \"choices\":[{{\"index\":0,\"text\":\"{text}\",\"finish_reason\":null,\"token_ids\":[1]}}]}}\n\n"
    )
}

fn phases() -> Vec<Phase> {
    vec![
        Phase {
            name: "tokenize",
            stage: "admit",
            script: || json!({"tokenize": {"chunks": [{"hang": true}]}}),
            stream: true,
            leg: Some(("tokenize", 1)),
            answer_bytes: 0,
        },
        Phase {
            name: "prefill",
            stage: "prefill",
            script: || json!({"prefill": {"raw": [{"hang": true}]}}),
            stream: true,
            leg: Some(("prefill", 1)),
            answer_bytes: 0,
        },
        Phase {
            name: "prefill, a part of its answer is there",
            stage: "prefill",
            script: || json!({"prefill": {"chunks": ["{\"id\":", {"hang": true}]}}),
            stream: false,
            leg: Some(("prefill", 1)),
            answer_bytes: 0,
        },
        Phase {
            name: "decode, before its head",
            stage: "decode",
            script: || json!({"decode": {"raw": [{"hang": true}]}}),
            stream: true,
            leg: Some(("decode", 1)),
            answer_bytes: 0,
        },
        Phase {
            name: "decode, before the first token",
            stage: "decode",
            script: || json!({"decode": {"chunks": [": wait\n\n", {"hang": true}]}}),
            stream: true,
            leg: Some(("decode", 1)),
            answer_bytes: 0,
        },
        Phase {
            name: "mid-stream, silent engine",
            stage: "relay",
            script: || json!({"decode": {"chunks": [event("a"), event("b"), {"hang": true}]}}),
            stream: true,
            leg: Some(("decode", 1)),
            answer_bytes: 1,
        },
        Phase {
            name: "mid-stream, busy engine",
            stage: "relay",
            script: || json!({"decode": {"chunks": [{"repeat": 1_000_000, "text": event("a"), "delay_ms": 1}]}}),
            stream: true,
            leg: Some(("decode", 1)),
            answer_bytes: 2000,
        },
        Phase {
            name: "retry, in the second attempt",
            stage: "prefill",
            script: || json!({"prefill": [{"status": 500, "body": "x"}, {"raw": [{"hang": true}]}]}),
            stream: true,
            leg: Some(("prefill", 2)),
            answer_bytes: 0,
        },
    ]
}

// proves R-HTTP-5, R-ADM-10
#[test]
fn a_client_that_leaves_frees_its_engine_at_once() {
    for setup in Setup::all() {
        let world = World::start(setup, &Fleet::pairs());
        for phase in phases() {
            for leave in Leave::ALL {
                leave_in(&world, setup, &phase, leave);
            }
        }
        // None of it is evidence against an engine.
        assert_eq!(world.state()["ejected"], json!([]), "{setup:?}");
    }
}

fn leave_in(world: &World, setup: Setup, phase: &Phase, leave: Leave) {
    let row = format!("{setup:?}, {}, {leave:?}", phase.name);
    let mut slowest = Duration::ZERO;
    for _ in 0..TRIES {
        let before = world.at_rest();
        world.engines.reset();
        world.engines.script(&(phase.script)());
        let mut client = world.connect();
        client.send(&request(phase.stream, 8));
        if let Some((leg, count)) = phase.leg {
            world.until_leg(leg, count);
        }
        if phase.answer_bytes > 0 {
            let answer = client.begin_answer(phase.answer_bytes);
            assert_eq!(answer.status, Some(200), "{row}");
        }
        let left = Instant::now();
        let kept = leave.go(client);
        let mut gone = None;
        if let Some((leg, _)) = phase.leg {
            let closed = poll(PATIENCE, || {
                let legs = world.engines.legs(leg);
                gone = legs.last().and_then(|leg| leg.client_disconnected());
                gone.is_some()
            });
            assert!(closed, "{row}: the leg stays open");
        }
        check_cancelled(world, &before, phase.stage, &row);
        if let Some(mut kept) = kept {
            assert!(kept.ends_within(PATIENCE), "{row}: half-closed for good");
        }
        slowest = gone.map_or(Duration::ZERO, |gone| gone.saturating_duration_since(left));
        if slowest <= SOON {
            return;
        }
    }
    panic!("{row}: the leg was closed after {slowest:?}, {TRIES} times");
}

/// One more is cancelled, in this stage, and everything it held is free.
fn check_cancelled(world: &World, before: &Value, stage: &str, row: &str) {
    let after = world.at_rest();
    let grew = |pointer: &str| number(&after, pointer) - number(before, pointer);
    assert_eq!(
        (grew("/offered"), grew("/cancelled")),
        (1, 1),
        "{row}: {}",
        after["outcome_reasons"]
    );
    let reasons = after["outcome_reasons"]["cancelled"].as_object();
    for word in reasons.expect("reasons").keys() {
        let more = reason(&after, "cancelled", word) - reason(before, "cancelled", word);
        if word != stage {
            assert_eq!(more, 0, "{row}: cancelled in {word}");
        }
    }
}

// proves R-HTTP-5, R-ADM-10
#[test]
fn a_client_that_leaves_while_it_uploads_is_counted() {
    super::world::everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        let whole = request(true, 8);
        let head = whole
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .expect("a head")
            + 4;
        let chunked = [
            client::head("POST", TEXT, &[("transfer-encoding", "chunked")]),
            b"10\r\n{\"model\"".to_vec(),
        ]
        .concat();
        for leave in Leave::ALL {
            for sent in [
                &whole[..head],
                &whole[..head + 5],
                &whole[..whole.len() - 1],
                &chunked,
            ] {
                let row = format!("{leave:?} after {} bytes", sent.len());
                let before = world.at_rest();
                let mut client = world.connect();
                client.send(sent);
                world.until("offered", |world| {
                    number(&world.state(), "/offered") > number(&before, "/offered")
                });
                let kept = leave.go(client);
                world.until("cancelled", |world| {
                    number(&world.state(), "/cancelled") > number(&before, "/cancelled")
                });
                check_cancelled(&world, &before, "parse", &row);
                if let Some(mut kept) = kept {
                    assert!(kept.ends_within(PATIENCE), "{row}");
                }
            }
        }
        assert!(world.engines.log().is_empty(), "no engine was asked");
    });
}

/// Nothing was sent to such a client, so only its engine and the counters tell.
// proves R-HTTP-5, R-ADM-10
#[test]
fn a_client_of_an_assembled_answer_leaves_in_the_middle() {
    super::world::everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for leave in Leave::ALL {
            let before = world.at_rest();
            world.engines.reset();
            world.engines.script(&json!({
                "decode": {"chunks": [event("a"), event("b"), {"hang": true}]},
            }));
            let mut client = world.connect();
            client.send(&request(false, 8));
            world.until("output", |world| {
                let pointer = "/serving/decode_tokens_observed";
                number(&world.state(), pointer) == number(&before, pointer) + 2
            });
            let kept = leave.go(client);
            world.until("the leg is closed", |world| {
                let legs = world.engines.legs("decode");
                legs.last()
                    .is_some_and(|leg| leg.client_disconnected().is_some())
            });
            check_cancelled(&world, &before, "assemble", &format!("{leave:?}"));
            drop(kept);
        }
    });
}

// proves R-HTTP-5, R-FLT-4, R-ADM-10
#[test]
fn a_client_leaves_between_two_attempts() {
    super::world::everywhere(|setup| {
        // A pause that is long enough to be met in all but one of some hundred tries.
        let fleet = Fleet::pairs().with("serving", "retry_base_s", 20.0);
        let fleet = fleet.with("serving", "retry_cap_s", 20.0);
        let world = World::start(setup, &fleet);
        for leave in Leave::ALL {
            let met = (0..TRIES).any(|_| {
                let before = world.at_rest();
                world.engines.reset();
                world.engines.script(&json!({
                    "prefill": [{"status": 500, "body": "x"}, {"raw": [{"hang": true}]}],
                }));
                let mut client = world.connect();
                client.send(&request(true, 8));
                let pointer = "/serving/retry_attempts";
                world.until("a retry", |world| {
                    number(&world.state(), pointer) > number(&before, pointer)
                });
                let kept = leave.go(client);
                let after = world.at_rest();
                drop(kept);
                let second = world.engines.legs("prefill").len() > 1;
                if !second {
                    check_cancelled(&world, &before, "place", &format!("{leave:?}"));
                    assert_eq!(number(&after, "/admission/inflight"), 0);
                }
                !second
            });
            assert!(met, "the pause was never met");
        }
    });
}

/// A client that has pipelined all the router reads ahead can still be seen to leave.
// proves R-HTTP-5
#[test]
fn a_client_with_a_full_pipeline_leaves() {
    super::world::everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for leave in [Leave::Reset, Leave::Fin] {
            let before = world.at_rest();
            world.engines.reset();
            world
                .engines
                .script(&json!({"decode": {"chunks": [event("a"), {"hang": true}]}}));
            let mut client = world.connect();
            client.send(&request(true, 8));
            client.begin_answer(1);
            let more = client::get("/health");
            let more = more.repeat(80_000 / more.len());
            client.send(&more);
            leave.go(client);
            world.until("the leg is closed", |world| {
                let legs = world.engines.legs("decode");
                legs.last()
                    .is_some_and(|leg| leg.client_disconnected().is_some())
            });
            check_cancelled(&world, &before, "relay", &format!("{leave:?}"));
        }
    });
}

// ── at random ──

const EXCHANGES: usize = 10_000;
const CLIENTS: usize = 4;

/// Exchanges cut anywhere: while the request is sent, while the answer comes, or not at all.
// proves R-ADM-10, R-HTTP-5
#[test]
fn ten_thousand_exchanges_cut_at_random_leave_nothing_behind() {
    let started = Instant::now();
    let setups = Setup::all();
    let each = EXCHANGES / setups.len() / CLIENTS;
    for (n, setup) in setups.into_iter().enumerate() {
        let world = World::start(setup, &Fleet::pairs());
        let served: u64 = thread::scope(|scope| {
            let clients = (0..CLIENTS).map(|client| {
                let world = &world;
                let seed = (n * CLIENTS + client) as u64 + 1;
                scope.spawn(move || cut_at_random(world, &mut Prng::new(seed), each))
            });
            let clients: Vec<_> = clients.collect();
            clients
                .into_iter()
                .map(|c| c.join().expect("a client"))
                .sum()
        });
        // Every gauge 0, and offered = the sum of the ends.
        let state = world.at_rest();
        let offered = number(&state, "/offered");
        assert!(offered <= (each * CLIENTS) as u64, "{setup:?}");
        assert!(
            offered > (each * CLIENTS / 2) as u64,
            "{setup:?}: {offered}"
        );
        assert!(number(&state, "/served") >= served, "{setup:?}");
        assert!(served > 0 && number(&state, "/cancelled") > 0, "{setup:?}");
        assert_eq!(number(&state, "/failed"), 0, "{setup:?}: {state}");
        assert_eq!(state["ejected"], json!([]), "{setup:?}");
        world.until("clients' connections are gone", |world| {
            open_connections(world) <= 1
        });
    }
    eprintln!("{EXCHANGES} exchanges cut in {:?}", started.elapsed());
}

/// How many answers were read to their end.
fn cut_at_random(world: &World, chance: &mut Prng, exchanges: usize) -> u64 {
    let mut whole = 0;
    let mut kept: Option<Client> = None;
    for _ in 0..exchanges {
        let mut below = |n: u64| chance.below(n);
        let tokens = 1 + below(64);
        let wire = request(below(2) == 0, tokens);
        let mut client = kept.take().unwrap_or_else(|| world.connect());
        // Of a fifth, only a part is sent.
        let sent = match below(5) {
            0 => 1 + below(wire.len() as u64 - 1) as usize,
            _ => wire.len(),
        };
        client.send(&wire[..sent]);
        let leave = Leave::ALL[below(3) as usize];
        match below(4) {
            0 => {}
            1 => {
                client.more(Duration::from_micros(below(3000)));
            }
            2 if sent == wire.len() => {
                client.begin_answer(1 + below(4000) as usize);
            }
            _ if sent == wire.len() => {
                let answer = client.answer();
                assert_eq!(answer.status, Some(200), "{}", answer.text());
                assert!(answer.complete);
                whole += 1;
                if below(2) == 0 {
                    kept = Some(client);
                    continue;
                }
            }
            _ => {}
        }
        leave.go(client);
    }
    whole
}

fn request(stream: bool, tokens: u64) -> Vec<u8> {
    let body = json!({"model": "stub-model", "prompt": "hello there", "max_tokens": tokens, "stream": stream});
    client::post(TEXT, &body)
}
