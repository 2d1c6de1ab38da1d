//! Engines and clients that misbehave while dozens of streams run: who has to do with them is told so, nobody else notices.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use narwhal::base::prng::Prng;
use serde_json::json;

use super::ask::{Ask, Outcome};
use super::client::Client;
use super::crowd::{Crowd, Tally, crowd};
use super::echo::{Echo, Mood};
use super::world::{Fleet, Setup, World, everywhere, number, open_connections};

/// Two pairs, whose time-outs a frozen engine meets within a second.
fn world(setup: Setup, echo: &Echo) -> World {
    let mut fleet = Fleet::pairs()
        .with("engine", "tokenize_timeout_s", 1.5)
        .with("engine", "first_token_timeout_s", 1.5)
        .with("engine", "decode_read_timeout_s", 1.5)
        .with("serving", "prefill_timeout_s", 1.5)
        .with("runtime", "client_write_stall_s", 1.0);
    fleet.ports = echo.ports.clone();
    World::start(setup, &fleet)
}

/// Raised when it is dropped, by a failure too.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A crowd that asks for as long as `during` runs.
fn crowd_during(world: &World, kind: Crowd, during: impl FnOnce()) -> Tally {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let all = scope.spawn(move || crowd(world, kind, |_| !over.load(SeqCst)));
        let ends = Raised(over);
        during();
        drop(ends);
        match all.join() {
            Ok(tally) => tally,
            Err(why) => std::panic::resume_unwind(why),
        }
    })
}

/// The first prefill and the first decode engine.
const ENGINES: [usize; 2] = [0, 2];

/// Legs that a bad engine is given before it is well again.
const LEGS: u64 = 12;

// proves R-FLT-2, R-FLT-3, R-FLT-4, R-FLT-5, R-ADM-10, R-LEG-6
#[test]
fn an_engine_in_any_mood_hurts_only_what_it_was_given() {
    everywhere(|setup| {
        let echo = Echo::start(4);
        let world = world(setup, &echo);
        echo.set_pace(Duration::from_millis(1));
        for mood in Mood::ALL {
            for engine in ENGINES {
                bad_engine(&world, &echo, mood, engine);
            }
        }
        echo.assert_unmixed();
    });
}

fn bad_engine(world: &World, echo: &Echo, mood: Mood, engine: usize) {
    let row = format!("{mood:?} engine {engine}");
    let before = world.at_rest();
    let mut given = 0;
    let tally = crowd_during(world, Crowd::POLITE, || {
        let until = |legs: u64| {
            world.until(&row, |_| echo.legs(engine) >= legs);
        };
        until(echo.legs(engine) + LEGS);
        let begun = echo.legs(engine);
        echo.set_mood(engine, mood);
        match mood {
            // They are given legs, and cannot count them.
            Mood::Dead | Mood::Frozen => {
                let retries = number(&world.state(), "/serving/retry_attempts");
                let pointer = "/serving/retry_attempts";
                world.until(&row, |world| number(&world.state(), pointer) > retries + 3);
            }
            _ => until(begun + LEGS),
        }
        echo.set_mood(engine, Mood::Well);
        given = echo.legs(engine) - begun;
        until(echo.legs(engine) + LEGS);
    });
    // Whoever had seen output when the engine failed is told so; for all others there is another engine.
    tally.assert_refusals(&row, &[]);
    let broken = tally.count(Outcome::Broken);
    let clients = Crowd::POLITE.clients as u64;
    assert!(
        broken <= given + clients,
        "{row}: {:?}, {given} legs",
        tally.outcomes
    );
    let unseen = matches!(
        mood,
        Mood::Well | Mood::Drains | Mood::Drips | Mood::Stale | Mood::Leaving
    );
    let spared = unseen || engine == ENGINES[0];
    assert!(!spared || broken == 0, "{row}: {:?}", tally.outcomes);
    // All is well with the next ones.
    let after = crowd(
        world,
        Crowd {
            seed: 2,
            ..Crowd::POLITE
        },
        |n| n < 2 * clients,
    );
    assert_eq!(
        after.count(Outcome::Whole),
        after.exchanges,
        "{row}: {:?}",
        after.outcomes
    );
    let state = world.at_rest();
    let grew = |pointer: &str| number(&state, pointer) - number(&before, pointer);
    let whole = tally.count(Outcome::Whole) + after.count(Outcome::Whole);
    assert_eq!((grew("/served"), grew("/failed")), (whole, broken), "{row}");
    if mood == Mood::Well {
        assert_eq!(grew("/serving/retry_attempts"), 0, "{row}");
    }
}

/// Clients that take nothing, and that take a byte now and then.
const MUTE: u64 = 6;

/// Tokens that nobody who reads slowly comes to the end of.
const LONG: u64 = 100_000;

// proves R-HTTP-5, R-HTTP-7, R-ADM-10
#[test]
fn clients_of_any_temper_disturb_nobody_and_blame_no_engine() {
    everywhere(|setup| {
        let echo = Echo::start(4);
        let world = world(setup, &echo);
        let leavers = Crowd {
            seed: 3,
            leave: 100,
            ..Crowd::POLITE
        };
        let mut left = 0;
        let tally = crowd_during(&world, Crowd::POLITE, || {
            // Who takes nothing is dropped, and nobody else leaves yet.
            let mute: Vec<Client> = (0..MUTE).map(|n| asks_long(&world, n)).collect();
            world.until("the mute are dropped", |world| {
                number(&world.state(), "/cancelled") == MUTE
            });
            drop(mute);
            let mut slow: Vec<Client> = (0..MUTE).map(|n| asks_long(&world, n)).collect();
            let a_while = Duration::from_secs(2);
            slow.iter().for_each(|client| {
                let bound = client.stream.set_read_timeout(Some(a_while));
                bound.expect("a time-out");
            });
            left = crowd_during(&world, leavers, || {
                // One byte now and then.
                let until = Instant::now() + Duration::from_millis(1_500);
                while Instant::now() < until {
                    for client in &mut slow {
                        let mut byte = [0];
                        let _ = std::io::Read::read(&mut client.stream, &mut byte);
                    }
                    thread::park_timeout(Duration::from_millis(100));
                }
            })
            .left;
        });
        assert_eq!(
            tally.count(Outcome::Whole),
            tally.exchanges,
            "{:?}",
            tally.outcomes
        );
        let slowest = tally.times_ms.iter().max().copied().unwrap_or(0);
        assert!(slowest < 15_000, "{setup:?}: {slowest} ms");
        let state = world.at_rest();
        assert_eq!(number(&state, "/failed"), 0, "{setup:?}: {state}");
        assert_eq!(number(&state, "/serving/retry_attempts"), 0, "{setup:?}");
        assert_eq!(state["ejected"], json!([]), "{setup:?}");
        assert!(left > 0 && number(&state, "/cancelled") > 0, "{setup:?}");
        world.until("their connections are gone", |world| {
            open_connections(world) <= 1
        });
        echo.assert_unmixed();
    });
}

fn asks_long(world: &World, seed: u64) -> Client {
    let ask = Ask::new(&mut Prng::new(seed), LONG).streamed();
    let mut client = world.connect();
    client.send(&ask.wire());
    client
}
