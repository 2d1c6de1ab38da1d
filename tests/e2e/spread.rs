//! Where connections are: the kernel spreads them by a hash, the router evens them out, and none is lost on its way.

use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use super::client::{self, Client, PATIENCE};
use super::world::{Fleet, Setup, World, in_each, number, open_connections};

const CLIENTS: usize = 32;

/// Both drivers, with 4 and with 8 shards, which may be more than there are cores.
fn many_shards() -> Vec<Setup> {
    let drivers = Setup::all().into_iter().filter(|setup| setup.shards == 1);
    let many = drivers.flat_map(|setup| [4, 8].map(|shards| Setup::new(setup.driver, shards)));
    many.collect()
}

fn request() -> Vec<u8> {
    let body = json!({"model": "stub-model", "prompt": [1, 2, 3], "max_tokens": 2});
    client::post("/v1/completions", &body)
}

fn of_shards(state: &Value, pointer: &str) -> Vec<u64> {
    let shards = state["shards"].as_array().expect("shards").iter();
    shards.map(|shard| number(shard, pointer)).collect()
}

// proves R-SHD-4, R-OBS-2
#[test]
fn kept_connections_spread_over_the_shards() {
    in_each(&many_shards(), |setup| {
        let world = World::start(setup, &Fleet::new(&["both"]));
        for _ in 0..3 {
            let mut clients: Vec<Client> = (0..CLIENTS).map(|_| world.connect()).collect();
            for client in &mut clients {
                client.send(&request());
            }
            for client in &mut clients {
                let answer = client.answer();
                assert_eq!(answer.status, Some(200), "{}", answer.text());
            }
            // Who asks has a connection too.
            let state = world.state();
            let open = of_shards(&state, "/connections/open");
            assert_eq!(open.iter().sum::<u64>(), CLIENTS as u64 + 1, "{open:?}");
            let most = open.iter().max().copied().unwrap_or(0) as usize;
            assert!(most * setup.shards <= 2 * CLIENTS, "{open:?}");
            // They are kept, wherever they are.
            for client in &mut clients {
                client.send(&request());
                assert_eq!(client.answer().status, Some(200));
            }
            drop(clients);
            world.until("only who asks is left", |world| {
                open_connections(world) == 1
            });
        }
        let state = world.state();
        let sum = |pointer| of_shards(&state, pointer).iter().sum::<u64>();
        assert!(sum("/connections/moved") > 0, "no hash is that even");
        assert_eq!(sum("/connections/kept"), 0);
    });
}

/// Clients that come all the time, while the router goes down: each is served, told the end or refused, and the process ends.
// proves R-SHD-4
#[test]
fn no_connection_is_lost_on_the_way_down() {
    in_each(&many_shards(), |setup| {
        let fleet = Fleet::new(&["both"])
            .with("serving", "drain_window_s", 0.2)
            .with("serving", "graceful_timeout_s", 3600.0);
        let world = World::start(setup, &fleet);
        let addr = world.addr;
        thread::scope(|scope| {
            let come = || {
                let mut seen = 0;
                let until = Instant::now() + PATIENCE;
                // Refused at last: nobody listens any more.
                while std::net::TcpStream::connect(addr).is_ok_and(|stream| {
                    let mut client = Client {
                        stream,
                        buf: Vec::new(),
                        eof: false,
                    };
                    client.send(&request());
                    let answer = client.answer();
                    assert!(
                        matches!(answer.status, None | Some(200 | 503)),
                        "{answer:?}"
                    );
                    assert!(answer.status.is_some() || client.eof, "it is left hanging");
                    true
                }) {
                    seen += 1;
                    assert!(Instant::now() < until, "it listens for ever");
                }
                seen
            };
            let all: Vec<_> = (0..4).map(|_| scope.spawn(come)).collect();
            let mut kept: Vec<Client> = (0..CLIENTS).map(|_| world.connect()).collect();
            world.signal("TERM");
            for client in &mut kept {
                assert_eq!(client.answer().status, None);
                assert!(client.eof, "it is told the end");
            }
            drop(kept);
            for come in all {
                assert!(come.join().expect("no panic") > 0);
            }
        });
        // Long before its time is over.
        assert_eq!(world.exit_code(), Some(0));
        assert!(world.said().contains("drained"), "{}", world.said());
    });
}
