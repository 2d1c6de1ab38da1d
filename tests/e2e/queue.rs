//! Seats, the queue for them, and bounds on the phases of engines: who is let in, in which order, and who is sent away.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::client::{self, Client, PATIENCE};
use super::world::{Fleet, Setup, World, everywhere, number, reason};

const TEXT: &str = "/v1/completions";

fn body(prompt: usize) -> Value {
    json!({"model": "stub-model", "prompt": [prompt], "max_tokens": 1, "stream": true})
}

fn queueing(seats: usize, queue: usize) -> Fleet {
    Fleet::pair()
        .with("serving", "max_connections", seats)
        .with("serving", "queue_capacity", queue)
        .with("serving", "queue_timeout_s", 20)
        // Room beyond both, so that it is the queue that is full.
        .with("serving", "max_retained", 256)
}

fn sent(world: &World, prompt: usize) -> Client {
    let mut client = world.connect();
    client.send(&client::post(TEXT, &body(prompt)));
    client
}

fn queued(world: &World, count: u64) {
    world.until("queued", |world| {
        number(&world.state(), "/admission/queued") == count
    });
}

/// A decode leg that goes on until its client leaves.
fn endless() -> Value {
    json!({"chunks": ["data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[1]}]}\n\n", {"hang": true}]})
}

// proves R-ADM-2
#[test]
fn who_waits_is_served_in_order() {
    everywhere(|setup| {
        let world = World::start(setup, &queueing(1, 4));
        world
            .engines
            .script(&json!({"decode": [endless(), {"default": true}]}));
        let mut first = sent(&world, 1);
        assert_eq!(first.begin_answer(1).status, Some(200));
        let mut waiting = Vec::new();
        for n in 0..4 {
            waiting.push(sent(&world, 10 + n));
            queued(&world, n as u64 + 1);
        }
        let refused = world.post(TEXT, &body(99));
        assert_eq!(refused.status, Some(429), "{}", refused.text());
        assert_eq!(refused.header("retry-after"), Some("1"));
        drop(first);
        for client in &mut waiting {
            let answer = client.answer();
            assert_eq!(answer.status, Some(200), "{}", answer.text());
        }
        let prompts = world.engines.legs("prefill");
        let order: Vec<_> = prompts
            .iter()
            .map(|leg| leg.body["prompt"][0].as_u64())
            .collect();
        assert_eq!(order, [1, 10, 11, 12, 13].map(Some));
        let state = world.at_rest();
        assert_eq!(reason(&state, "rejected", "queue_full"), 1);
        assert_eq!(number(&state, "/served"), 4);
    });
}

// proves R-ADM-2, R-ADM-8
#[test]
fn a_wait_ends_with_its_time_its_deadline_its_client() {
    everywhere(|setup| {
        let fleet = queueing(1, 8).with("serving", "queue_timeout_s", 0.3);
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"decode": [endless(), {"default": true}]}));
        let mut first = sent(&world, 1);
        assert_eq!(first.begin_answer(1).status, Some(200));
        let late = world.post(TEXT, &body(2));
        assert_eq!(late.status, Some(504));
        assert_eq!(
            late.error(),
            (json!("queue_expired"), json!(null), json!(null))
        );
        // All who wait leave at once: every place is free again.
        let leaving: Vec<_> = (0..8).map(|n| sent(&world, 10 + n)).collect();
        world.until("gone", |world| {
            let state = world.state();
            number(&state, "/admission/queued") > 0
        });
        drop(leaving);
        queued(&world, 0);
        drop(first);
        assert_eq!(world.post(TEXT, &body(3)).status, Some(200));
        let state = world.at_rest();
        assert_eq!(reason(&state, "expired", "queue_expired"), 1);
        // Each that asked for a seat, however long and with what end.
        let waits = &state["serving"]["queue_wait_s"];
        let asked = number(&state, "/offered");
        assert_eq!(waits["count"], asked, "{waits}");
        assert!(waits["sum"].as_f64() >= Some(0.3), "{waits}");
        assert_eq!(number(&state, "/offered"), 11);

        let short = queueing(1, 2).with("serving", "request_timeout_s", 0.4);
        let world = World::start(setup, &short);
        world
            .engines
            .script(&json!({"prefill": {"raw": [{"hang": true}]}}));
        let (mut a, mut b) = (sent(&world, 1), sent(&world, 2));
        for client in [&mut a, &mut b] {
            let answer = client.answer();
            assert_eq!(answer.status, Some(504));
            assert_eq!(answer.error().0, json!("request_expired"));
        }
        assert_eq!(reason(&world.at_rest(), "expired", "deadline"), 2);
    });
}

/// Bursts far over what there is: the engines see no more than the seats, all of them are used, and the rest is told to come back.
// proves R-ADM-1, R-ADM-2, R-ADM-3
#[test]
fn bursts_fill_every_seat_and_no_more() {
    const SEATS: usize = 16;
    const QUEUE: usize = 24;
    const BURST: usize = 200;
    everywhere(|setup| {
        if setup.shards > 1 {
            return;
        }
        let fleet = queueing(SEATS, QUEUE);
        let setup = Setup { shards: 4, ..setup };
        let world = World::start(setup, &fleet);
        let leg = json!({"chunks": [
            "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[1]}]}\n\n", {"delay_ms": 40}, "data: [DONE]\n\n",
        ]});
        world.engines.script(&json!({"decode": leg}));
        for burst in 0..2 {
            let (served, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|scope| {
                for n in 0..BURST {
                    let (world, served, told) = (&world, &served, &told);
                    scope.spawn(move || {
                        let mut client = sent(world, n);
                        let answer = client.answer_within(PATIENCE);
                        match answer.status {
                            Some(200) if answer.complete => served.fetch_add(1, Ordering::SeqCst),
                            Some(429) => {
                                assert_eq!(answer.header("retry-after"), Some("1"));
                                told.fetch_add(1, Ordering::SeqCst)
                            }
                            other => panic!("{other:?}: {}", answer.text()),
                        };
                    });
                }
            });
            let (served, told) = (served.into_inner(), told.into_inner());
            assert_eq!(served + told, BURST);
            assert!(
                served >= SEATS + QUEUE,
                "burst {burst}: {served} were served"
            );
            world.at_rest();
        }
        let most = world.engines.most_at_once("decode");
        assert_eq!(most, SEATS, "decode legs at once");
    });
}

// proves R-ADM-11
#[test]
fn a_full_phase_waits_in_order_and_keeps_its_seat() {
    everywhere(|setup| {
        let fleet = Fleet::pair().with("serving", "decode_concurrency", 1);
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"decode": [endless(), {"default": true}]}));
        let mut first = sent(&world, 1);
        assert_eq!(first.begin_answer(1).status, Some(200));
        let mut waiting = Vec::new();
        for n in 0..3 {
            waiting.push(sent(&world, 10 + n));
            world.until("it waits", |world| {
                number(&world.state(), "/admission/phase_waiting/decode") == n as u64 + 1
            });
        }
        // Prefilled already, and in their seats.
        assert_eq!(world.engines.legs("prefill").len(), 4);
        assert_eq!(number(&world.state(), "/admission/inflight"), 4);
        // The second leaves: its place is free at once, and its handoff is an orphan.
        drop(waiting.remove(1));
        world.until("it left", |world| {
            number(&world.state(), "/admission/phase_waiting/decode") == 2
        });
        drop(first);
        for client in &mut waiting {
            assert_eq!(client.answer().status, Some(200));
        }
        let order: Vec<_> = world.engines.legs("decode");
        let order: Vec<_> = order
            .iter()
            .map(|leg| leg.body["prompt"][0].as_u64())
            .collect();
        assert_eq!(order, [1, 10, 12].map(Some));
        let state = world.at_rest();
        assert_eq!(number(&state, "/serving/orphaned_handoffs"), 1);
    });
}

/// After prefill a wait is bound by the age that the handoff may reach. It is nobody's fault: another attempt goes to the same engines.
// proves R-ADM-11, R-LEG-3
#[test]
fn a_handoff_does_not_outlive_its_lease_in_a_line() {
    everywhere(|setup| {
        for attempts in [1, 2] {
            let fleet = Fleet::pair()
                .with("serving", "decode_concurrency", 1)
                .with("serving", "max_attempts", attempts)
                .with("engine", "kv_lease_s", 0.6);
            let world = World::start(setup, &fleet);
            let decode = json!({"decode": [endless(), {"default": true}]});
            world.engines.script(&decode);
            let mut first = sent(&world, 1);
            assert_eq!(first.begin_answer(1).status, Some(200));
            let late = world.post(TEXT, &body(2));
            assert_eq!(late.status, Some(504), "{}", late.text());
            assert_eq!(late.error().0, json!("handoff_expired"));
            // Each attempt prefilled anew.
            assert_eq!(world.engines.legs("prefill").len(), 1 + attempts);
            drop(first);
            world.until("its phase is free", |world| {
                number(&world.state(), "/admission/inflight") == 0
            });
            assert_eq!(world.post(TEXT, &body(3)).status, Some(200));
            let state = world.at_rest();
            assert_eq!(reason(&state, "expired", "handoff_expired"), 1);
        }
    });
}

/// Nothing is handed over where one engine does both legs, so nothing grows old in its line.
// proves R-ADM-11, R-LEG-4
#[test]
fn a_lone_engines_own_kv_has_no_lease() {
    everywhere(|setup| {
        let mut fleet = Fleet::new(&["decode"]).with("engine", "kv_lease_s", 0.3);
        fleet.file["engines"][0]["pin"] = json!(false);
        let fleet = fleet.with("serving", "decode_concurrency", 1);
        let world = World::start(setup, &fleet);
        let slow = json!({"chunks": [
            "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[1]}]}\n\n", {"delay_ms": 700}, "data: [DONE]\n\n",
        ]});
        world
            .engines
            .script(&json!({"decode": [slow, {"default": true}]}));
        let mut first = sent(&world, 1);
        assert_eq!(first.begin_answer(1).status, Some(200));
        let second = world.post(TEXT, &body(2));
        assert_eq!(second.status, Some(200), "{}", second.text());
        drop(first);
        world.at_rest();
    });
}

/// The phase before: nothing is prefilled yet, so nothing but the deadline bounds the wait. With legs side by side the place in the decode
/// phase is held meanwhile, and given back with everything else.
// proves R-ADM-11
#[test]
fn a_full_prefill_phase_waits_too() {
    everywhere(|setup| {
        for sglang in [false, true] {
            let mut fleet = Fleet::pair().with("serving", "prefill_concurrency", 1);
            if sglang {
                fleet = fleet.with("engine", "dialect", "sglang");
                fleet.file["engine"]["connector"] = json!("mooncake");
                fleet.sglang = true;
            }
            let fleet = fleet.with("serving", "decode_concurrency", 3);
            let world = World::start(setup, &fleet);
            let hang = json!({"raw": [{"hang": true}]});
            let decode = match sglang {
                true => json!([hang, {"default": true}]),
                false => json!({"default": true}),
            };
            world
                .engines
                .script(&json!({"prefill": [hang, {"default": true}], "decode": decode}));
            let first = sent(&world, 1);
            world.until_leg("prefill", 1);
            let mut waiting: Vec<_> = (0..2)
                .map(|n| {
                    let client = sent(&world, 10 + n);
                    world.until("it waits", |world| {
                        let state = world.state();
                        number(&state, "/admission/phase_waiting/prefill") == n as u64 + 1
                    });
                    client
                })
                .collect();
            assert_eq!(world.engines.legs("prefill").len(), 1);
            drop(waiting.remove(0));
            world.until("it left", |world| {
                number(&world.state(), "/admission/phase_waiting/prefill") == 1
            });
            drop(first);
            assert_eq!(waiting[0].answer().status, Some(200), "sglang {sglang}");
            // With sglang the answer is the other leg's, and may be the first to come.
            world.until_leg("prefill", 2);
            let prompts = world.engines.legs("prefill");
            assert_eq!(prompts[1].body["prompt"][0], 11);
            assert_eq!(number(&world.at_rest(), "/cancelled"), 2);
        }
    });
}

/// A shard that was away for longer than a quarter of the target sends work away until it has caught up.
// proves R-ADM-9
#[test]
fn a_router_that_fell_behind_says_so() {
    everywhere(|setup| {
        let mut fleet = Fleet::pair();
        fleet.file["slo"]["ttft_s"] = json!(0.4);
        let world = World::start(setup, &fleet);
        let told = (0..20).any(|_| {
            world.signal("STOP");
            // Away for longer than a quarter of the target.
            thread::park_timeout(std::time::Duration::from_millis(300));
            world.signal("CONT");
            (0..20).any(|n| world.post(TEXT, &body(n)).status == Some(429))
        });
        assert!(told, "no request was sent away");
        world.until("it has caught up", |world| {
            world.post(TEXT, &body(1)).status == Some(200)
        });
        assert!(reason(&world.at_rest(), "rejected", "saturated") > 0);
    });
}

/// Profiles under which a prompt of n tokens takes n milliseconds.
fn predictive(seats: usize) -> Fleet {
    let mut fleet = queueing(seats, 4).with("serving", "admission", "predictive");
    fleet.file["slo"] = json!({"ttft_s": 1.0, "tpot_s": 0.5});
    fleet.file["profiles"] = json!({"path": "@DIR/profiles.json"});
    let row = |iid: &str| {
        json!({
            "iid": iid, "ttft_a": 0, "ttft_b": 0.001, "ttft_c": 0, "tpot_slope": 0, "tpot_intercept": 0.001,
            "kv_capacity_tokens": 100_000, "decode_max_requests": 100,
        })
    };
    fleet.profiles = json!([row("e0"), row("e1")]);
    fleet
}

fn prompt(tokens: usize) -> Value {
    json!({"model": "stub-model", "prompt": vec![7; tokens], "max_tokens": 1})
}

// proves R-ADM-4, R-SCH-1
#[test]
fn what_would_come_too_late_is_refused_in_time() {
    everywhere(|setup| {
        let world = World::start(setup, &predictive(8));
        // Too long by itself: coming back will not help.
        let long = world.post(TEXT, &prompt(1_100));
        assert_eq!(long.status, Some(429), "{}", long.text());
        assert_eq!(long.header("retry-after"), None);
        assert!(long.text().contains("shorten"), "{}", long.text());
        // Behind another one it would come too late, and later it would not.
        world
            .engines
            .script(&json!({"prefill": [{"raw": [{"hang": true}]}, {"default": true}]}));
        let mut first = world.connect();
        first.send(&client::post(TEXT, &prompt(900)));
        world.until_leg("prefill", 1);
        let behind = world.post(TEXT, &prompt(950));
        assert_eq!(behind.status, Some(429), "{}", behind.text());
        assert_eq!(behind.header("retry-after"), Some("1"));
        drop(first);
        world.until("free", |world| {
            number(&world.state(), "/admission/inflight") == 0
        });
        let answer = world.post(TEXT, &prompt(950));
        assert_eq!(answer.status, Some(200), "{}", answer.text());
        let state = world.at_rest();
        assert_eq!(number(&state, "/admission/refused"), 2);
        assert_eq!(reason(&state, "refused", "prompt"), 1);
        assert_eq!(reason(&state, "refused", "ttft"), 1);
    });
}

/// Its own waiting pushes it over the target: it leaves at that moment, not at the end of the queue's patience.
// proves R-ADM-4
#[test]
fn who_waits_too_long_to_be_in_time_is_told_at_once() {
    everywhere(|setup| {
        let world = World::start(setup, &predictive(1));
        world
            .engines
            .script(&json!({"decode": [endless(), {"default": true}]}));
        let mut first = sent(&world, 1);
        assert_eq!(first.begin_answer(1).status, Some(200));
        let begun = std::time::Instant::now();
        let waits = world.post(TEXT, &prompt(500));
        assert_eq!(waits.status, Some(429), "{}", waits.text());
        assert_eq!(waits.header("retry-after"), Some("1"));
        let after = begun.elapsed().as_secs_f64();
        assert!(after >= 0.4, "{after} s: half a second was left");
        assert_eq!(reason(&world.state(), "refused", "queue"), 1);
    });
}

/// A cap that no engine could honour weighs as much as a number can bear, and no more: two at once once overflowed a sum.
// proves R-REQ-4
#[test]
fn huge_caps_of_many_requests_at_once_are_only_numbers() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pair());
        for cap in [
            "99999999999999999999",
            "9223372036854775807",
            "4611686018427387904",
        ] {
            world.engines.reset();
            world.engines.script(&json!({"decode": endless()}));
            let request = format!("{{\"prompt\":[1],\"stream\":true,\"max_tokens\":{cap}}}");
            let mut clients: Vec<_> = (0..4)
                .map(|_| {
                    let mut client = world.connect();
                    client.send(&client::post_bytes(TEXT, request.as_bytes()));
                    client
                })
                .collect();
            for client in &mut clients {
                assert_eq!(client.begin_answer(1).status, Some(200), "{cap}");
            }
            drop(clients);
            world.at_rest();
        }
        assert!(world.is_alive());
    });
}
