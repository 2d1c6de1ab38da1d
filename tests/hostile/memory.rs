//! What hostile peers make a router hold, against what `runtime::bounds` says it may: clients that take nothing of large streams, heads
//! and bodies that never end, requests and answers of one byte a segment, events of more than a MiB.
//!
//! `scripts/bounds` does the same with ten thousand of each.

use std::thread;
use std::time::Duration;

use narwhal::base::prng::Prng;
use narwhal::config::{self, Format, checked};
use narwhal::runtime::bounds::{Bounds, Class, bounds};
use serde_json::{Value, json};

use super::ask::{Ask, Outcome};
use super::client::{self, Client};
use super::crowd::{Crowd, crowd};
use super::echo::{Echo, Mood};
use super::process;
use super::world::{Fleet, Setup, World, in_each, number, poll};

/// One shard on each driver.
fn drivers(test: impl Fn(Setup) + Sync) {
    let setups: Vec<_> = Setup::all().into_iter().filter(|s| s.shards == 1).collect();
    in_each(&setups, test);
}

fn checked(file: &Value) -> checked::Fleet {
    let loaded = config::parse("f.json", &file.to_string(), Format::Json, &|_| None);
    loaded.unwrap_or_else(|why| panic!("{why}")).fleet
}

/// Holds a router's memory against what so many of `each` may take, and says both.
fn assert_within(what: &str, world: &World, file: &Value, before: u64, count: u64, each: Each) {
    let table = bounds(&checked(file), 1, count + 10);
    let now = process::resident_bytes(world.id());
    let each = each(&table);
    // What a shard keeps for the next ones is not theirs.
    let most = before + table.of(Class::Shard).each + count * each;
    println!(
        "{what}: {count} take {} KiB each, {} allowed; {} MiB resident, at most {}",
        (now.saturating_sub(before) / count) >> 10,
        each >> 10,
        now >> 20,
        most >> 20
    );
    assert!(
        now <= most,
        "{what}: {} MiB, at most {}",
        now >> 20,
        most >> 20
    );
    assert!(now <= table.total(), "{what}: over the ceiling");
}

/// Bytes of one, by the table.
type Each = fn(&Bounds) -> u64;

fn stream(table: &Bounds) -> u64 {
    table.stream
}

fn connection(table: &Bounds) -> u64 {
    table.of(Class::Connection).each
}

fn request(table: &Bounds) -> u64 {
    connection(table) + table.of(Class::Request).each
}

fn answer(table: &Bounds) -> u64 {
    request(table) + table.of(Class::Answer).each
}

const READERS: u64 = 200;

// proves R-HTTP-7, R-HTTP-3
#[test]
fn readers_that_take_nothing_cost_what_is_said() {
    drivers(|setup| {
        let echo = Echo::start(2);
        let mut fleet = Fleet::new(&["both", "both"]).with("serving", "max_connections", 1_000);
        fleet.ports = echo.ports.clone();
        let world = World::start(setup, &fleet);
        let before = process::resident_bytes(world.id());
        let mut chance = Prng::new(3);
        let clients: Vec<Client> = (0..READERS)
            .map(|_| {
                let mut client = world.connect();
                client.send(&Ask::new(&mut chance, 200_000).streamed().wire());
                client
            })
            .collect();
        world.until("all streams run", |world| {
            number(&world.state(), "/serving/streams_active") == READERS
        });
        settle(&world);
        assert_within("slow readers", &world, &fleet.file, before, READERS, stream);
        // Others are served as ever.
        let few = Crowd {
            clients: 4,
            ..Crowd::POLITE
        };
        let tally = crowd(&world, few, |n| n < 40);
        assert_eq!(
            tally.count(Outcome::Whole),
            tally.exchanges,
            "{:?}",
            tally.outcomes
        );
        drop(clients);
        world.at_rest();
    });
}

const WRITERS: u64 = 400;

// proves R-HTTP-3
#[test]
fn writers_that_never_end_cost_what_is_said() {
    drivers(|setup| {
        let echo = Echo::start(2);
        let mut fleet = Fleet::new(&["both", "both"])
            .with("serving", "max_connections", 1_000)
            .with("serving", "max_request_bytes", 262_144)
            .with("serving", "max_response_bytes", 262_144);
        fleet.ports = echo.ports.clone();
        let world = World::start(setup, &fleet);
        let start = process::resident_bytes(world.id());
        // Heads, each a KiB short of the limit.
        let head = [
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n".to_vec(),
            b"x-a: 0123456789abcdef0123456789abcdef\r\n".repeat(90),
            b"x-b: ".to_vec(),
            vec![b'y'; 60_000],
        ]
        .concat();
        let send = |bytes: &[u8]| {
            let mut client = world.connect();
            client.send(bytes);
            client
        };
        let mut heads: Vec<Client> = (0..WRITERS).map(|_| send(&head)).collect();
        settle(&world);
        assert_within(
            "slow heads",
            &world,
            &fleet.file,
            start,
            WRITERS,
            connection,
        );
        // A byte now and then does not make it more.
        for client in &mut heads {
            client.send(b"z");
        }
        assert_eq!(world.ask(&client::get("/health")).status, Some(200));
        drop(heads);
        // Bodies, each a byte short of its length.
        let body = json!({"prompt": "x".repeat(200_000)}).to_string();
        let whole = client::post_bytes("/v1/completions", body.as_bytes());
        let bodies: Vec<Client> = (0..WRITERS)
            .map(|_| send(&whole[..whole.len() - 1]))
            .collect();
        world.until("all are retained", |world| {
            number(&world.state(), "/admission/retained") == WRITERS
        });
        settle(&world);
        assert_within("slow bodies", &world, &fleet.file, start, WRITERS, request);
        drop(bodies);
        world.at_rest();
    });
}

/// Waits until the memory no longer changes.
fn settle(world: &World) {
    let mut last = 0;
    poll(Duration::from_secs(5), || {
        thread::park_timeout(Duration::from_millis(100));
        let now = process::resident_bytes(world.id());
        now == std::mem::replace(&mut last, now)
    });
}

// proves R-SSE-1, R-HTTP-3
#[test]
fn one_byte_a_segment_is_as_good_as_one_segment() {
    drivers(|setup| {
        let echo = Echo::start(2);
        echo.set_mood(0, Mood::Drips);
        echo.set_mood(1, Mood::Drips);
        let mut fleet = Fleet::new(&["both", "both"]);
        fleet.ports = echo.ports.clone();
        let world = World::start(setup, &fleet);
        thread::scope(|scope| {
            for n in 0..6 {
                let world = &world;
                scope.spawn(move || {
                    let ask = Ask::new(&mut Prng::new(n), 8);
                    let mut client = world.connect();
                    for byte in ask.wire() {
                        client.send(&[byte]);
                    }
                    assert_eq!(ask.check(&client.answer()), Outcome::Whole);
                });
            }
        });
        assert_eq!(number(&world.at_rest(), "/served"), 6);
    });
}

const LARGE: u64 = 12;

// proves R-SSE-3, R-HTTP-7
#[test]
fn large_events_cost_what_is_said() {
    drivers(|setup| {
        let fleet = Fleet::new(&["both", "both"])
            .with("serving", "max_connections", LARGE)
            .with("serving", "max_response_bytes", 2 << 20);
        let world = World::start(setup, &fleet);
        let before = process::resident_bytes(world.id());
        let text = "a".repeat(3 << 19);
        let event = format!(
            "data: {}\n\n",
            json!({"id": "c", "choices": [{"index": 0, "text": text, "token_ids": [1]}]})
        );
        let chunks = json!([{"repeat": 8, "text": event}, "data: [DONE]\n\n"]);
        world.engines.script(&json!({"decode": {"chunks": chunks}}));
        let ask = |stream: bool| {
            let body = json!({"model": "stub-model", "prompt": [1, 2], "stream": stream});
            client::post("/v1/completions", &body)
        };
        // Nobody reads yet.
        let mut clients: Vec<Client> = (0..LARGE)
            .map(|_| {
                let mut client = world.connect();
                client.send(&ask(true));
                client
            })
            .collect();
        world.until("all begin", |world| {
            number(&world.state(), "/serving/streams_active") == LARGE
        });
        settle(&world);
        assert_within("large events", &world, &fleet.file, before, LARGE, answer);
        for client in &mut clients {
            let answer = client.answer();
            let head = &answer.text()[..40.min(answer.body.len())];
            assert_eq!(answer.status, Some(200), "{head}");
            assert!(
                answer.complete && answer.body.len() > 24 << 19,
                "{}",
                answer.body.len()
            );
        }
        drop(clients);
        // Two of them are more than an assembled answer may be.
        let answer = world.post("/v1/completions", &json!({"prompt": [1, 2]}));
        assert_eq!(answer.status, Some(502), "{}", answer.text());
        world.at_rest();
    });
}
