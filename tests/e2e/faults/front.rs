//! The rest of the front: methods, slow peers, back-off, health, shutdown, and sockets that died while nobody looked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::client::{self, Client, PATIENCE, get, head};
use super::super::world::{Fleet, Setup, World, everywhere, in_each, number, poll, reason};
use super::notation::DONE;
use super::{CHAT, TEXT, counted, event, refused, served};

/// Preflights need no key, HEAD is GET without a body, and what is not served says what is.
// proves R-HTTP-1
#[test]
fn methods_are_answered_and_the_connection_kept() {
    let none: &[(&str, &str)] = &[];
    let origin: &[(&str, &str)] = &[
        ("origin", "https://a.example"),
        ("access-control-request-method", "POST"),
    ];
    let rows = [
        ("OPTIONS", CHAT, origin, 204),
        ("OPTIONS", TEXT, origin, 204),
        ("OPTIONS", "*", none, 204),
        ("HEAD", "/health", none, 200),
        ("HEAD", "/v1/models", none, 200),
        ("GET", TEXT, none, 405),
        ("TRACE", "/", none, 404),
        ("TRACE", "/health", none, 405),
        ("PATCH", CHAT, none, 405),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        let mut client = world.connect();
        for (method, path, fields, status) in rows {
            let row = format!("{method} {path}");
            client.send(&head(method, path, fields));
            let answer = match method {
                "HEAD" => client.answer_to_head(),
                _ => client.answer(),
            };
            assert_eq!(answer.status, Some(status), "{row}: {}", answer.text());
            assert_eq!(
                answer.header("allow").is_some(),
                matches!(status, 204 | 405),
                "{row}"
            );
            assert!(
                !answer.text().to_lowercase().contains("origin:"),
                "{row}: echoed"
            );
            if method == "HEAD" {
                client.send(&get(path));
                let whole = client.answer();
                assert_eq!(
                    answer.header("content-length"),
                    whole.header("content-length"),
                    "{row}"
                );
                assert_eq!(
                    answer.header("content-type"),
                    whole.header("content-type"),
                    "{row}"
                );
            }
        }
        assert_eq!(number(&world.at_rest(), "/offered"), 0);
    });
}

/// Hundreds of peers that say little hold nothing that others need, and each is closed at its own limit.
// proves R-HTTP-3, R-ADM-1
#[test]
fn slow_peers_hold_no_seat() {
    const EACH: usize = 100;
    everywhere(|setup| {
        let fleet = Fleet::pair()
            .with("serving", "max_connections", 2)
            .with("serving", "max_retained", EACH + 2)
            .with("runtime", "header_timeout_s", 1.5)
            .with("runtime", "body_idle_timeout_s", 1.5)
            .with("runtime", "keepalive_idle_s", 1.5);
        let world = World::start(setup, &fleet);
        let open = |wire: &[u8]| -> Vec<Client> {
            let opened = (0..EACH).map(|_| {
                let mut client = world.connect();
                client.send(wire);
                client
            });
            opened.collect()
        };
        let mut heads = open(b"POST /v1/completions HTTP/1.1\r\nho");
        let mut bodies = open(&head("POST", TEXT, &[("content-length", "1000")]));
        let mut idle = open(&get("/health"));
        for client in &mut idle {
            assert_eq!(client.answer().status, Some(200));
        }
        for n in 0..10 {
            served(&world.post(TEXT, &counted(n % 2 == 0)), "good traffic");
        }
        assert_eq!(
            number(&world.state(), "/admission/inflight"),
            0,
            "a seat for a slow one"
        );
        for client in heads.iter_mut().chain(&mut bodies) {
            let answer = client.answer();
            refused(&answer, 408, "invalid_request_error", "slow");
            assert!(client.ends_within(PATIENCE));
        }
        for client in &mut idle {
            assert!(client.ends_within(PATIENCE));
            assert!(client.buf.is_empty(), "an answer to nothing");
        }
        let state = world.at_rest();
        assert_eq!(reason(&state, "invalid_requests", "body_idle"), EACH as u64);
        assert_eq!(number(&state, "/served"), 10);
    });
}

/// A byte now and then does not move the clock of a head.
// proves R-HTTP-3
#[test]
fn a_dribbled_head_ends_at_its_time() {
    everywhere(|setup| {
        let world = World::start(
            setup,
            &Fleet::pair().with("runtime", "header_timeout_s", 0.4),
        );
        let mut clients: Vec<Client> = (0..8).map(|_| world.connect()).collect();
        let begun = Instant::now();
        for byte in get("/health").iter().take(20) {
            for client in &mut clients {
                client.send(&[*byte]);
                client.more(Duration::from_millis(5));
            }
        }
        for client in &mut clients {
            refused(&client.answer(), 408, "invalid_request_error", "dribbled");
        }
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    });
}

/// Whoever is sent away is told when to come back where that helps, in JSON, under an id.
// proves R-ADM-1, R-ADM-2, R-ADM-7, R-CTL-2
#[test]
fn who_is_sent_away_is_told_when_to_come_back() {
    let endless = || json!({"chunks": [event("a"), {"hang": true}]});
    let away = |world: &World, status: u16, kind: &str, after: Option<&str>, row: &str| {
        for stream in [true, false] {
            let answer = world.post(TEXT, &counted(stream));
            refused(&answer, status, kind, row);
            assert_eq!(answer.header("retry-after"), after, "{row}");
            let id = answer.header("x-request-id");
            assert!(id.is_some_and(|id| id.len() == 36), "{row}: {id:?}");
        }
    };
    everywhere(|setup| {
        let busy = |fleet: &Fleet| {
            let world = World::start(setup, fleet);
            world.engines.script(&json!({"decode": endless()}));
            let mut client = world.connect();
            client.send(&client::post(TEXT, &counted(true)));
            assert_eq!(client.begin_answer(1).status, Some(200));
            (world, client)
        };
        let small = Fleet::pair().with("serving", "max_connections", 1);
        let (world, _client) = busy(&small.clone().with("serving", "max_retained", 1));
        away(
            &world,
            429,
            "server_overloaded_error",
            Some("1"),
            "retention",
        );
        let (world, _client) = busy(&small);
        away(&world, 429, "server_overloaded_error", Some("1"), "seats");
        let queue = small
            .with("serving", "queue_capacity", 1)
            .with("serving", "queue_timeout_s", 30)
            .with("serving", "max_retained", 50);
        let (world, _client) = busy(&queue);
        let mut waiting = world.connect();
        waiting.send(&client::post(TEXT, &counted(true)));
        world.until("it waits", |world| {
            number(&world.state(), "/admission/queued") == 1
        });
        away(&world, 429, "server_overloaded_error", Some("1"), "queue");
        // No engine of a role.
        let mut alone = Fleet::pair();
        alone.file["engines"]
            .as_array_mut()
            .expect("engines")
            .truncate(1);
        alone.await_ready = false;
        let world = World::start(setup, &alone);
        away(
            &world,
            503,
            "backend_unavailable",
            Some("1"),
            "no decode engine",
        );
        // A router that is going.
        let world = World::start(setup, &Fleet::pair().with("serving", "drain_window_s", 20));
        world.signal("TERM");
        world.until("it drains", |world| world.said().contains("draining"));
        away(&world, 503, "standby", Some("1"), "draining");
        world.signal("TERM");
    });
}

/// An engine that answers its probes late or not every time, and generates well, stays.
// proves R-CTL-1, R-CTL-3
#[test]
fn late_probes_do_not_take_a_working_engine_out() {
    everywhere(|setup| {
        let mut fleet = Fleet::pairs().with("engine", "health_timeout_s", 0.15);
        fleet.file["controller"] = json!({"monitor_interval_s": 0.05});
        fleet.file["recovery"] =
            json!({"liveness_every": 1, "liveness_misses": 3, "eject_after": 3});
        let world = World::start(setup, &fleet);
        // Three of ten are missed, never three in a row.
        let (late, good) = (json!({"delay_ms": 400, "body": ""}), json!({"body": ""}));
        let order = [
            &late, &good, &good, &late, &late, &good, &good, &good, &good, &good,
        ];
        for engine in 0..4 {
            let key = format!("health@{engine}");
            world.engines.script(&json!({key: order.repeat(20)}));
        }
        let live = |world: &World| number(&world.state(), "/health/available_instances");
        for n in 0..30 {
            served(
                &world.post(TEXT, &counted(n % 2 == 0)),
                "while probes are late",
            );
            assert_eq!(live(&world), 4);
            thread::park_timeout(Duration::from_millis(20));
        }
        // All probes late for good: engines without a sign of life go, and what is left of a role still serves.
        world.engines.script(&json!({"health@3": late}));
        world.until("one is out", |world| live(world) < 4);
        for _ in 0..5 {
            served(&world.post(TEXT, &counted(true)), "without it");
        }
        world.engines.reset();
        world.until("it is back", |world| live(world) == 4);
    });
}

/// A signal while streams run, requests wait and connections idle: everything is finished or told, nothing is refused at the door.
// proves R-CTL-7, R-CTL-2, R-ADM-2
#[test]
fn a_signal_under_load_loses_nothing() {
    const STREAMS: usize = 50;
    const WAITING: usize = 10;
    everywhere(|setup| {
        let fleet = Fleet::pair()
            .with("serving", "max_connections", STREAMS)
            .with("serving", "queue_capacity", WAITING)
            .with("serving", "queue_timeout_s", 20)
            .with("serving", "max_retained", 200)
            .with("serving", "drain_window_s", 1.5);
        let world = World::start(setup, &fleet);
        let slow = json!({"chunks": [event("a"), {"delay_ms": 1200}, event("b"), DONE]});
        let mut steps = vec![slow; STREAMS];
        steps.push(json!({"default": true}));
        world.engines.script(&json!({"decode": steps}));
        let begin = |count: usize| -> Vec<Client> {
            let begun = (0..count).map(|_| {
                let mut client = world.connect();
                client.send(&client::post(TEXT, &counted(true)));
                client
            });
            begun.collect()
        };
        let mut streams = begin(STREAMS);
        world.until_leg("decode", STREAMS);
        let mut waiting = begin(WAITING);
        world.until("they wait", |world| {
            number(&world.state(), "/admission/queued") == WAITING as u64
        });
        let mut idle: Vec<Client> = (0..10)
            .map(|_| {
                let mut client = world.connect();
                client.send(&get("/health"));
                assert_eq!(client.answer().status, Some(200));
                client
            })
            .collect();
        world.signal("TERM");
        let unready = poll(PATIENCE, || world.ask(&get("/ready")).status == Some(503));
        assert!(unready);
        // A balancer has not heard of it yet.
        let since = Instant::now();
        let mut late = 0;
        while since.elapsed() < Duration::from_millis(600) {
            refused(&world.post(TEXT, &counted(true)), 503, "standby", "late");
            late += 1;
        }
        assert!(late > 5);
        for client in streams.iter_mut().chain(&mut waiting) {
            let answer = client.answer();
            served(&answer, "begun before");
            assert!(answer.text().ends_with(DONE));
        }
        for client in &mut idle {
            assert!(client.ends_within(PATIENCE));
            assert!(client.buf.is_empty());
        }
        assert_eq!(world.exit_code(), Some(0), "{}", world.said());
    });
}

/// Engines close idle sockets whenever they like, also just as one is used again: no client hears of it.
// proves R-LEG-6, R-FLT-4
#[test]
fn sockets_that_die_between_requests_are_no_ones_fault() {
    const ROUNDS: usize = 150;
    let setups: Vec<Setup> = Setup::all().into_iter().filter(|s| s.shards == 1).collect();
    in_each(&setups, |setup| {
        let fleet = Fleet::pair().with("serving", "max_attempts", 3);
        let world = World::start(setup, &fleet);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let closer = scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    world.engines.close_idle();
                    thread::park_timeout(Duration::from_micros(700));
                }
            });
            let mut client = world.connect();
            let body = json!({"prompt": "hello", "max_tokens": 2});
            let statuses: Vec<Value> = (0..ROUNDS)
                .map(|n| {
                    let mut body = body.clone();
                    body["stream"] = json!(n % 2 == 0);
                    client.send(&client::post(TEXT, &body));
                    json!(client.answer().status)
                })
                .collect();
            done.store(true, Ordering::SeqCst);
            closer.join().expect("it closes");
            let bad = statuses.iter().filter(|status| **status != 200).count();
            assert_eq!(bad, 0, "{}", world.state()["outcome_reasons"]);
        });
        assert_eq!(world.at_rest()["ejected"], json!([]));
    });
}
