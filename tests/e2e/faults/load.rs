//! Many at once: who gets how much, and what is held for those who do not read.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::client::{self, Client, PATIENCE, get, head};
use super::super::world::{Fleet, Setup, World, everywhere, in_each, number};
use super::notation::DONE;
use super::relay::resident_bytes;
use super::{TEXT, counted, event, once, served};

const HELD: usize = 40;

/// One of four equal engines breaks every stream for a while. Afterwards nothing is left that would keep work away from it, or
/// draw it there.
// proves R-SCH-2, R-ADM-10
#[test]
fn work_spreads_evenly_after_an_engine_came_back() {
    let body = |n: usize, stream: bool| {
        let mut body = counted(stream);
        body["max_tokens"] = json!([1, 40, 3, 15][n % 4]);
        body
    };
    everywhere(|setup| {
        let fleet = Fleet::new(&["both"; 4]).with("serving", "max_attempts", 3);
        let world = World::start(setup, &fleet);
        world
            .engines
            .script_for_good(&json!({"decode@2": {"raw": [{"reset": true}]}}));
        thread::scope(|scope| {
            for worker in 0..8 {
                let world = &world;
                scope.spawn(move || {
                    let mut client = world.connect();
                    for n in worker..worker + 10 {
                        client.send(&client::post(TEXT, &body(n, n % 3 != 0)));
                        served(&client.answer(), "three others could serve");
                    }
                });
            }
        });
        world.at_rest();
        world.engines.reset();
        // It is back. One after the other, so that who gets what is no matter of time.
        let endless = json!({"chunks": [event("a"), {"hang": true}]});
        world
            .engines
            .script_for_good(&json!({"decode@2": endless, "decode": endless}));
        let clients: Vec<Client> = (0..HELD)
            .map(|n| {
                let mut client = world.connect();
                client.send(&client::post(TEXT, &body(n, true)));
                assert_eq!(client.begin_answer(1).status, Some(200));
                client
            })
            .collect();
        let mut counts = [0; 4];
        for leg in world.engines.legs("decode") {
            counts[leg.engine] += 1;
        }
        assert_eq!(counts.iter().sum::<usize>(), HELD);
        let even = |n: &usize| (1..=HELD * 4 / 10).contains(n);
        assert!(counts.iter().all(even), "{counts:?}");
        drop(clients);
        world.at_rest();
    });
}

const STALLED: usize = 40;
/// The stated window of a stream: the client's buffer, one read of the engine and what assembling the answer takes around them.
const WINDOW_BYTES: usize = 256 << 10;

/// Streams that nobody reads stop their engines, hold their window and no more, and slow nobody down.
// proves R-HTTP-7
#[test]
fn streams_that_nobody_reads_hold_their_window() {
    // A stream is one shard's, whatever others there are.
    let setups: Vec<Setup> = Setup::all().into_iter().filter(|s| s.shards == 1).collect();
    in_each(&setups, |setup| {
        let fleet = once(Fleet::pair())
            .with("serving", "max_connections", 200)
            .with("engine", "decode_read_timeout_s", 0);
        let world = World::start(setup, &fleet);
        served(&world.post(TEXT, &counted(true)), "warm");
        let big = json!({"chunks": [{"repeat": 50_000, "text": event(&"x".repeat(4000))}, DONE]});
        let mut steps = vec![big; STALLED];
        steps.push(json!({"default": true}));
        world.engines.script(&json!({"decode": steps}));
        let before = resident_bytes(&world);
        let clients: Vec<Client> = (0..STALLED)
            .map(|_| {
                let mut client = world.connect();
                // Little is on its way that the kernel holds.
                let small = socket2::SockRef::from(&client.stream);
                small.set_recv_buffer_size(16 << 10).expect("a size");
                client.send(&client::post(TEXT, &counted(true)));
                client
            })
            .collect();
        world.until("all stream", |world| {
            number(&world.state(), "/serving/streams_active") == STALLED as u64
        });
        let relayed = |world: &World| {
            let shards = world.state()["shards"].take();
            let shards = shards.as_array().map_or(&[][..], |shards| shards).iter();
            shards
                .map(|shard| number(shard, "/events_relayed"))
                .sum::<u64>()
        };
        let (mut last, mut since) = (0, Instant::now());
        world.until("all stall", |world| {
            let now = relayed(world);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            last > 0 && since.elapsed() > Duration::from_millis(200)
        });
        let held = resident_bytes(&world).saturating_sub(before);
        assert!(
            held < STALLED * WINDOW_BYTES,
            "{} bytes each",
            held / STALLED
        );
        for _ in 0..10 {
            let begun = Instant::now();
            served(&world.post(TEXT, &counted(true)), "among them");
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{:?}",
                begun.elapsed()
            );
        }
        drop(clients);
        let state = world.at_rest();
        assert_eq!(number(&state, "/cancelled"), STALLED as u64);
    });
}

/// A client that has sent all of its body is not slow, however slowly an engine reads it.
// proves R-HTTP-3
#[test]
fn a_slow_engine_is_not_the_clients_fault() {
    let answer = format!("{}{DONE}", event("a"));
    everywhere(|setup| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let answer = answer.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let answer = answer.clone();
                thread::spawn(move || {
                    let mut stream = stream;
                    let small = socket2::SockRef::from(&stream);
                    let _ = small.set_recv_buffer_size(16 << 10);
                    let (mut all, mut some) = (Vec::new(), vec![0; 128 << 10]);
                    while !all[all.len().saturating_sub(400)..]
                        .windows(7)
                        .any(|w| w == b"\"end\":1")
                    {
                        match stream.read(&mut some) {
                            Ok(n) if n > 0 => all.extend_from_slice(&some[..n]),
                            _ => return,
                        }
                        if all.starts_with(b"GET") {
                            let _ =
                                stream.write_all(b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n");
                            all.clear();
                        }
                        thread::park_timeout(Duration::from_millis(30));
                    }
                    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
                    let _ = stream.write_all((head.to_owned() + &answer).as_bytes());
                });
            }
        });
        let mut fleet = once(Fleet::new(&["both"]))
            .with("runtime", "body_idle_timeout_s", 0.3)
            .with("runtime", "header_timeout_s", 0.3)
            .with("runtime", "client_write_stall_s", 0.3);
        fleet.file["engines"][0]["url"] = json!(format!("http://127.0.0.1:{port}"));
        fleet.await_ready = false;
        let world = World::start(setup, &fleet);
        let body = format!(
            "{{\"prompt\":[1],\"stream\":true,\"pad\":\"{}\",\"end\":1}}",
            "x".repeat(3 << 20)
        );
        let begun = Instant::now();
        let mut client = world.connect();
        client.send(&client::post_bytes(TEXT, body.as_bytes()));
        served(&client.answer_within(PATIENCE), "a slow engine");
        assert!(
            begun.elapsed() > Duration::from_millis(600),
            "{:?}: the engine was not slow",
            begun.elapsed()
        );
    });
}

const REQUESTS: usize = 12_500;

/// Whatever clients make up (models, paths, methods, ids), the set of series stays the same.
// proves R-OBS-1
#[test]
fn clients_make_no_labels() {
    let names = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut names: Vec<String> = lines
            .filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()))
            .collect();
        names.sort();
        names
    };
    let methods = ["GET", "POST", "PUT", "DELETE", "BREW"];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        served(&world.post(TEXT, &counted(false)), "warm");
        let metrics = || world.ask(&get("/metrics")).text();
        let before = metrics();
        let state = |value: &Value| value.to_string().len();
        let size = state(&world.at_rest());
        let mut client = world.connect();
        for first in (0..REQUESTS).step_by(50) {
            let mut wire = Vec::new();
            for n in first..first + 50 {
                match n % 2 {
                    0 => {
                        let body = format!(r#"{{"model":"made-up-{n}","prompt":"x"}}"#);
                        wire.extend(client::post_bytes(TEXT, body.as_bytes()));
                    }
                    _ => {
                        let id = format!("id-{n}");
                        let fields = [("x-request-id", id.as_str()), ("content-length", "0")];
                        let method = methods[n / 2 % methods.len()];
                        wire.extend(head(method, &format!("/made/up/{n}"), &fields));
                    }
                }
            }
            client.send(&wire);
            for n in first..first + 50 {
                let answer = client.answer();
                assert_eq!(answer.status, Some(404), "{n}: {}", answer.text());
            }
        }
        let after = metrics();
        assert_eq!(names(&before), names(&after));
        assert!(!after.contains("made"), "{after}");
        // The state grows by digits alone.
        assert!(state(&world.at_rest()) < size + 400);
    });
}
