//! What a router learns from the ids it counts: an engine that turns slow is corrected for, priced, evicted, tried and taken back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::client;
use super::world::{Fleet, World, everywhere, number};

/// Milliseconds between tokens: as profiled, and twelve times as slow.
const WELL_MS: u64 = 5;
const SLOW_MS: u64 = 60;
const TOKENS: u64 = 6;
const CAP: u64 = 64;

fn answer(interval_ms: u64) -> Value {
    let event = "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1]}]}\n\n";
    json!({"chunks": [
        event, {"repeat": TOKENS - 1, "text": event, "delay_ms": interval_ms}, "data: [DONE]\n\n",
    ]})
}

/// Engines that are judged by windows of a moment.
fn fleet(roles: &[&str]) -> Fleet {
    let mut fleet = Fleet::new(roles)
        // Both get work, however slow one is.
        .with("serving", "placement", "round_robin")
        .with("controller", "monitor_interval_s", 0.02)
        .with(
            "controller",
            "reactive",
            json!({"decode_correction_alpha": 0.5, "decode_correction_min_samples": 2}),
        )
        .with(
            "recovery",
            "health",
            json!({
                "window_s": 0.4, "min_samples": 1, "drift_band": 3.0, "relative_band": 2.0,
                "probation_windows": 2, "evict_windows": 4, "recovery_windows": 4,
            }),
        );
    fleet.file["profiles"] = json!({"path": "@DIR/profiles.json"});
    let row = |iid: &str| {
        json!({
            "iid": iid, "ttft_a": 0.0, "ttft_b": 0.0, "ttft_c": 0.001, "tpot_slope": 0.0,
            "tpot_intercept": WELL_MS as f64 / 1e3, "kv_capacity_tokens": 100_000,
            "decode_max_requests": 64,
        })
    };
    let rows = (0..roles.len()).map(|n| row(&format!("e{n}")));
    fleet.profiles = rows.collect();
    fleet
}

/// What the state says of the engine that turns slow.
fn judged(state: &Value) -> &Value {
    &state["learned"]["engines"][1]
}

fn correction(engine: &Value) -> f64 {
    engine["correction"].as_f64().expect("a number")
}

fn health(world: &World, word: &str) {
    let what = format!("e1 {word}");
    world.until(&what, |world| judged(&world.state())["health"] == word);
}

fn legs_on_e1(world: &World) -> usize {
    let legs = world.engines.legs("decode");
    legs.iter().filter(|leg| leg.engine == 1).count()
}

fn served(world: &World, more: u64) {
    let before = number(&world.state(), "/served");
    world.until("served", |world| {
        number(&world.state(), "/served") >= before + more
    });
}

// proves R-SCH-4, R-TOK-2, R-OBS-1, R-OBS-2
#[test]
fn an_engine_that_turns_slow_goes_and_comes_back() {
    everywhere(|setup| {
        let world = World::start(setup, &fleet(&["prefill", "decode", "decode"]));
        let well = json!({"decode@1": answer(WELL_MS), "decode@2": answer(WELL_MS)});
        world.engines.script(&well);
        let stop = AtomicBool::new(false);
        let body =
            json!({"model": "stub-model", "prompt": [1, 2], "max_tokens": CAP, "stream": true});
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let answer = world.post("/v1/completions", &body);
                        assert_eq!(answer.status, Some(200), "{}", answer.text());
                    }
                });
            }
            // Whatever fails, the clients end.
            let ended = Ended(&stop);
            story(&world, &well);
            drop(ended);
        });
        let said = world.said();
        for words in [
            "engine is slow",
            "engine is tried again",
            "engine is well again",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        world.at_rest();
    });
}

struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn story(world: &World, well: &Value) {
    world.until("a baseline", |world| {
        judged(&world.state())["baseline"].is_number()
    });
    world.engines.script(&json!({"decode@1": answer(SLOW_MS)}));
    world.until("corrected", |world| {
        correction(judged(&world.state())) > 1.8
    });
    health(world, "probation");
    let state = world.state();
    assert_eq!(state["probation"], json!(["e1"]));
    assert_eq!(state["evicted"], json!([]));
    health(world, "evicted");
    let metrics = world.ask(&client::get("/metrics")).text();
    let state = world.state();
    if judged(&state)["health"] == "evicted" {
        let score = judged(&state)["score"].as_f64();
        assert!(score > Some(3.0), "{score:?}");
        assert!(
            metrics.contains("narwhal_evicted{iid=\"e1\"} 1\n"),
            "{metrics}"
        );
        assert!(
            metrics.contains("narwhal_drift_bad_windows{iid=\"e1\"} "),
            "{metrics}"
        );
        assert_eq!(number(&state, "/health/available_instances"), 2);
        assert_eq!(state["ejected"], json!([]), "another cause");
    }
    // Requests that were placed before go their way; then there is none.
    served(world, 8);
    let before = legs_on_e1(world);
    served(world, 8);
    let after = legs_on_e1(world);
    let state = world.state();
    if judged(&state)["health"] == "evicted" {
        assert_eq!(before, after, "work for an engine that is out");
    }
    world.engines.script(well);
    // On trial, and then for good.
    health(world, "probation");
    health(world, "healthy");
    let state = world.state();
    assert_eq!(
        (&state["probation"], &state["evicted"]),
        (&json!([]), &json!([]))
    );
    // Two tokens of prompt and a cap of 64: six of them come.
    let lengths = state["learned"]["output_lengths"].as_array();
    let [length] = lengths.map_or(&[][..], Vec::as_slice) else {
        panic!("one bucket: {lengths:?}");
    };
    assert_eq!(length["prompt_tokens_min"], 2);
    assert_eq!(
        (&length["cap_min"], &length["tokens"]),
        (&json!(CAP), &json!(null))
    );
    assert_eq!(length["fraction"], TOKENS as f64 / CAP as f64);
    assert!(number(length, "/samples") >= 16);
}

/// An engine that has been found slow beyond every target is asked for nothing beside other work. Alone it takes what comes, and so it
/// can show that it is well.
// proves R-ADM-5, R-SCH-4
#[test]
fn what_was_learned_refuses_nobody_for_ever() {
    everywhere(|setup| {
        let mut fleet = fleet(&["both"])
            .with("serving", "admission", "predictive")
            .with("serving", "placement", "price");
        fleet.file["slo"] = json!({"ttft_s": 1.0, "tpot_s": 0.02});
        fleet.file["controller"]["reactive"]["decode_correction_max"] = json!(100.0);
        // More than any budget.
        fleet.file["recovery"]["health"]["probation_penalty_s"] = json!(3600.0);
        let world = World::start(setup, &fleet);
        let body =
            json!({"model": "stub-model", "prompt": [1, 2], "max_tokens": CAP, "stream": true});
        let engine = |world: &World| world.state()["learned"]["engines"][0].clone();
        let one_by_one = |what: &str, come: &dyn Fn(&Value) -> bool| {
            world.until(what, |world| {
                let answer = world.post("/v1/completions", &body);
                assert_eq!(answer.status, Some(200), "{}", answer.text());
                come(&engine(world))
            });
        };
        world.engines.script(&json!({"decode": answer(WELL_MS)}));
        one_by_one("a baseline", &|engine| engine["baseline"].is_number());
        world.engines.script(&json!({"decode": answer(SLOW_MS)}));
        one_by_one("on probation", &|engine| {
            engine["health"] == "probation" && correction(engine) > 8.0
        });
        // It is the last of its role.
        assert_eq!(beside(&world, &body), Some(429));
        assert_eq!(number(&world.state(), "/outcome_reasons/refused/tpot"), 1);
        one_by_one("alone, and served", &|_| true);
        world.engines.script(&json!({"decode": answer(WELL_MS)}));
        one_by_one("well again", &|engine| {
            engine["health"] == "healthy" && correction(engine) < 3.0
        });
        assert_eq!(beside(&world, &body), Some(200));
        world.at_rest();
    });
}

/// The status of a request that comes while another one is there.
fn beside(world: &World, body: &Value) -> Option<u16> {
    let event = "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1]}]}\n\n";
    let endless = json!({"chunks": [event, {"hang": true}]});
    world
        .engines
        .script(&json!({"decode": [endless, answer(WELL_MS)]}));
    let mut first = world.connect();
    first.send(&client::post("/v1/completions", body));
    assert_eq!(first.begin_answer(1).status, Some(200));
    world.post("/v1/completions", body).status
}
