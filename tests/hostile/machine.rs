//! A machine that runs out: of descriptors, of memory, and a shard that panics.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use narwhal::base::prng::Prng;
use serde_json::json;

use super::ask::{Ask, Outcome};
use super::client::{self, Client, PATIENCE};
use super::crowd::{Crowd, crowd};
use super::echo::Echo;
use super::process;
use super::world::{Fleet, Setup, World, everywhere, poll};

fn world(setup: Setup, echo: &Echo) -> World {
    let mut fleet = Fleet::pairs();
    fleet.ports = echo.ports.clone();
    World::start(setup, &fleet)
}

// proves R-HTTP-3
#[test]
fn a_router_without_descriptors_waits_for_some_without_spinning() {
    everywhere(|setup| {
        let echo = Echo::start(4);
        let world = world(setup, &echo);
        let id = world.id();
        let mut known = world.connect();
        let ask = Ask::new(&mut Prng::new(5), 5);
        known.send(&ask.wire());
        assert_eq!(ask.check(&known.answer()), Outcome::Whole);
        let most = process::descriptors(id) + 12;
        if !process::limit(id, &format!("--nofile={most}:{most}")) {
            return;
        }
        // The kernel takes connections for it; it can take only some of them from the kernel.
        let mut waiting: Vec<Client> = (0..60).map(|_| world.connect()).collect();
        for client in &mut waiting {
            client.send(&client::get("/health"));
        }
        world.until("all are used", |_| process::descriptors(id) >= most);
        let before = process::cpu(id);
        thread::park_timeout(Duration::from_millis(1_000));
        let spent = process::cpu(id) - before;
        assert!(
            spent < Duration::from_millis(300),
            "{setup:?}: {spent:?} of a second"
        );
        // Who is in is served, as far as it takes no descriptor.
        known.send(&client::get("/health"));
        assert_eq!(known.answer().status, Some(200), "{setup:?}");
        known.send(&ask.wire());
        let answer = known.answer();
        let allowed = [Some(200), Some(502), Some(503), Some(504)];
        assert!(
            allowed.contains(&answer.status),
            "{setup:?}: {}",
            answer.text()
        );
        // Those who go make room for those who wait.
        world.until("all are answered", |_| {
            waiting.retain_mut(|client| {
                client.more(Duration::from_millis(1));
                !client.buf.starts_with(b"HTTP/1.1 200 OK")
            });
            waiting.is_empty()
        });
        let tally = crowd(
            &world,
            Crowd {
                clients: 2,
                ..Crowd::POLITE
            },
            |n| n < 20,
        );
        assert_eq!(
            tally.count(Outcome::Whole),
            tally.exchanges,
            "{:?}",
            tally.outcomes
        );
        world.at_rest();
    });
}

/// A process that gets no memory ends, loudly; it never goes on with half of what it had.
// proves R-HTTP-3
#[test]
fn a_router_without_memory_serves_right_or_ends_loudly() {
    everywhere(|setup| {
        let echo = Echo::start(4);
        let world = world(setup, &echo);
        let id = world.id();
        let most = process::address_bytes(id) + (24 << 20);
        if !process::limit(id, &format!("--as={most}")) {
            return;
        }
        let text = "x".repeat(3 << 20);
        let request = client::post("/v1/completions", &json!({"prompt": text, "max_tokens": 2}));
        let half = request.len() / 2;
        let mut clients: Vec<Client> = Vec::new();
        for _ in 0..40 {
            // Nobody may answer any more.
            let Ok(stream) = std::net::TcpStream::connect(world.addr) else {
                break;
            };
            let mut client = Client {
                stream,
                buf: Vec::new(),
                eof: false,
            };
            client.send(&request[..half]);
            clients.push(client);
        }
        let ended = poll(Duration::from_millis(300), || !world.is_alive());
        if !ended {
            // It had enough: then all is as ever.
            drop(clients);
            world.at_rest();
            return;
        }
        drop(clients);
        assert_ne!(world.exit_code(), Some(0), "{setup:?}");
        assert!(
            world.said().contains("memory allocation of"),
            "{}",
            world.said()
        );
    });
}

/// Half a router is none: connections that the kernel gives to a shard without a thread would wait for ever.
// proves R-SHD-1
#[test]
fn a_shard_that_panics_ends_the_process() {
    if !cfg!(debug_assertions) {
        eprintln!("skipped: this build knows no planted faults");
        return;
    }
    everywhere(|setup| {
        let echo = Echo::start(4);
        echo.set_pace(Duration::from_millis(20));
        let last = setup.shards - 1;
        let told = told_file(setup);
        let mut fleet = Fleet::pairs();
        fleet.ports = echo.ports.clone();
        let asked = format!("{last}:{}", told.display());
        fleet.env = vec![("NARWHAL_TEST_PANIC".to_owned(), asked)];
        let world = World::start(setup, &fleet);
        let asks: Vec<Ask> = (0..8)
            .map(|n| Ask::new(&mut Prng::new(n), 900).streamed())
            .collect();
        let mut clients: Vec<Client> = asks
            .iter()
            .map(|ask| {
                let mut client = world.connect();
                client.send(&ask.wire());
                client
            })
            .collect();
        for client in &mut clients {
            assert_eq!(client.begin_answer(0).status, Some(200));
        }
        fs::write(&told, "").expect("a file");
        assert_eq!(world.exit_code(), Some(1), "{}", world.said());
        let _ = fs::remove_file(&told);
        let said = world.said();
        let words = format!("thread 'shard-{last}'");
        assert!(
            said.contains(&words) && said.contains("a test asked"),
            "{said}"
        );
        for client in &mut clients {
            assert!(client.ends_within(PATIENCE));
            let rest = String::from_utf8_lossy(&client.buf);
            assert!(!rest.contains("[DONE]"), "{rest}");
        }
        let refused = poll(PATIENCE, || {
            std::net::TcpStream::connect(world.addr).is_err()
        });
        assert!(refused, "somebody still listens");
    });
}

fn told_file(setup: Setup) -> PathBuf {
    let name = format!(
        "narwhal-panic-{}-{}-{}",
        std::process::id(),
        setup.driver,
        setup.shards
    );
    std::env::temp_dir().join(name)
}
