//! Profiles whose digest is held against the engines that are there: at start, and when one comes back as another.

use serde_json::{Value, json};

use super::client;
use super::world::{Fleet, World, everywhere, number};

/// What the scripted engines say: `printf '["stub-model","0.0.0-stub",131072]' | sha256sum`.
const RIGHT: &str = "sha256:bc74fcb232a85d65ece324264e9f881eeeaccaf84e13b77c8546aa1c3be0384c";
const WRONG: &str = "sha256:00";

/// Engines that are probed often, and their profiles' digests.
fn fleet(digests: &[(&str, Option<&str>)]) -> Fleet {
    let roles: Vec<&str> = digests.iter().map(|(role, _)| *role).collect();
    let mut fleet = Fleet::new(&roles)
        .with("controller", "monitor_interval_s", 0.02)
        .with("recovery", "liveness_every", 1)
        .with("recovery", "liveness_misses", 2);
    fleet.file["profiles"] = json!({"path": "@DIR/profiles.json"});
    let row = |(n, (_, digest)): (usize, &(&str, Option<&str>))| {
        let mut row = json!({
            "iid": format!("e{n}"), "ttft_a": 0.0, "ttft_b": 0.0, "ttft_c": 0.001, "tpot_slope": 0.0,
            "tpot_intercept": 0.001, "kv_capacity_tokens": 100_000, "decode_max_requests": 64,
        });
        if let Some(digest) = digest {
            row["generation_digest"] = json!(digest);
        }
        row
    };
    fleet.profiles = digests.iter().enumerate().map(row).collect();
    fleet
}

fn word(state: &Value, engine: usize) -> &Value {
    &state["health"]["engines"][engine]["profile"]["digest"]
}

fn until_word(world: &World, engine: usize, want: &str) {
    world.until(&format!("e{engine}: {want}"), |world| {
        word(&world.state(), engine) == want
    });
}

fn warnings(world: &World) -> usize {
    let said = world.said();
    let lines = said.lines().filter(|line| line.contains("WARN"));
    let lines = lines.filter(|line| line.contains("not the one that was profiled"));
    lines.filter(|line| line.contains("e1")).count()
}

fn served(world: &World) {
    let body = json!({"model": "stub-model", "prompt": [1, 2], "max_tokens": 2, "stream": true});
    let answer = world.post("/v1/completions", &body);
    assert_eq!(answer.status, Some(200), "{}", answer.text());
}

// proves R-SCH-1, R-OBS-1, R-OBS-2
#[test]
fn a_profile_of_another_engine_shows_and_refuses_nobody() {
    everywhere(|setup| {
        let engines = [
            ("prefill", Some(RIGHT)),
            ("decode", Some(WRONG)),
            ("decode", None),
        ];
        let world = World::start(setup, &fleet(&engines));
        until_word(&world, 0, "match");
        until_word(&world, 1, "mismatch");
        assert_eq!(word(&world.state(), 2), "unknown");
        let metrics = world.ask(&client::get("/metrics")).text();
        for line in [
            "narwhal_profile_digest{iid=\"e0\",digest=\"match\"} 1\n",
            "narwhal_profile_digest{iid=\"e0\",digest=\"mismatch\"} 0\n",
            "narwhal_profile_digest{iid=\"e1\",digest=\"mismatch\"} 1\n",
            "narwhal_profile_digest{iid=\"e2\",digest=\"unknown\"} 1\n",
        ] {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
        world.until("a warning", |world| warnings(world) == 1);
        let said = world.said();
        assert_eq!(said.matches("not the one").count(), 1, "{said}");
        served(&world);
        assert_eq!(number(&world.at_rest(), "/health/available_instances"), 3);
    });
}

// proves R-SCH-1
#[test]
fn an_engine_that_restarts_as_another_is_told_apart() {
    everywhere(|setup| {
        let engines = [("prefill", Some(RIGHT)), ("decode", Some(RIGHT))];
        let world = World::start(setup, &fleet(&engines));
        let gone = json!({"raw": [{"close": true}]});
        let model =
            |name: &str| json!({"body": {"data": [{"id": name, "max_model_len": 131_072}]}});
        let restart = |script: Value| {
            world.engines.script(&json!({"health@1": gone}));
            until_word(&world, 1, "unknown");
            assert_eq!(word(&world.state(), 0), "match");
            world.engines.script(&script);
            world
                .engines
                .script(&json!({"health@1": {"default": true}}));
        };
        for engine in [0, 1] {
            until_word(&world, engine, "match");
        }
        restart(json!({"models@1": model("another-model")}));
        until_word(&world, 1, "mismatch");
        world.until("a warning", |world| warnings(world) == 1);
        // The same one once more: nothing new.
        restart(json!({}));
        until_word(&world, 1, "mismatch");
        assert_eq!(warnings(&world), 1);
        restart(json!({
            "models@1": model("stub-model"), "version@1": {"body": {"version": "0.0.1"}},
        }));
        until_word(&world, 1, "mismatch");
        world.until("another warning", |world| warnings(world) == 2);
        restart(json!({"version@1": {"default": true}}));
        until_word(&world, 1, "match");
        // So quickly that only one probe missed it.
        world.engines.script(&json!({
            "version@1": {"body": {"version": "0.0.2"}}, "health@1": [gone, {"default": true}],
        }));
        until_word(&world, 1, "mismatch");
        world.until("a third warning", |world| warnings(world) == 3);
        world.until("all well", |world| {
            world
                .said()
                .contains("engine is the one that was profiled again")
        });
        served(&world);
        world.at_rest();
    });
}
