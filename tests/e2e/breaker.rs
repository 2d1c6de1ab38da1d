//! Engines that fail are taken out and come back, and a router whose own monitoring fails holds back.

use serde_json::{Value, json};

use super::client;
use super::engine::Refusing;
use super::world::{Fleet, Setup, World, everywhere, number};

const TEXT: &str = "/v1/completions";

fn prompt() -> Value {
    json!({"model": "stub-model", "prompt": "hello there", "max_tokens": 3})
}

/// Three failures in a row and a pass every 20 ms; every pass asks whoever is out.
fn watchful(fleet: Fleet) -> Fleet {
    fleet
        .with("controller", "monitor_interval_s", 0.02)
        .with("recovery", "eject_after", 3)
        .with("recovery", "readmit_every", 1)
}

fn status(world: &World) -> Option<u16> {
    world.post(TEXT, &prompt()).status
}

fn ejected(world: &World) -> Value {
    world.state()["ejected"].take()
}

/// Asks until the router says that these are out.
fn until_ejected(world: &World, iids: &Value) {
    world.until("an ejection", |world| {
        let status = status(world);
        assert_eq!(status, Some(200), "retries hide it\n{}", world.said());
        ejected(world) == *iids
    });
}

fn legs_at(world: &World, leg: &str, engine: usize) -> usize {
    let legs = world.engines.legs(leg);
    legs.iter().filter(|seen| seen.engine == engine).count()
}

// proves R-CTL-3, R-FLT-5
#[test]
fn an_engine_that_fails_goes_out_and_comes_back() {
    let refusal = json!({"status": 500, "body": {"error": "draining"}});
    let late = json!({"chunks": [{"close": true}]});
    let no_handoff =
        json!({"body": {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}});
    // what engine of a role says, its leg
    let rows = [
        (0, "prefill", &refusal),
        (2, "decode", &refusal),
        (2, "decode", &late),
    ];
    everywhere(|setup| {
        for (engine, leg, fault) in rows {
            let world = World::start(setup, &watchful(Fleet::pairs()));
            let key = format!("{leg}@{engine}");
            world.engines.script(&json!({&*key: fault}));
            until_ejected(&world, &json!([format!("e{engine}")]));
            // From here on only probes go there.
            let tried = |world: &World| number(&world.state(), "/serving/retry_attempts");
            let before = tried(&world);
            for _ in 0..20 {
                assert_eq!(status(&world), Some(200));
            }
            assert_eq!(tried(&world), before, "{key}");
            assert_eq!(world.ask(&client::get("/ready")).status, Some(200));
            world.engines.reset();
            world.until("its return", |world| ejected(world) == json!([]));
            let seen = legs_at(&world, leg, engine);
            world.until("work for it", |world| {
                status(world) == Some(200) && legs_at(world, leg, engine) > seen
            });
            world.at_rest();
        }
        // A bad handoff is not retried: the client sees it, until the engine is out.
        let world = World::start(setup, &watchful(Fleet::pairs()));
        world.engines.script(&json!({"prefill@0": no_handoff}));
        world.until("an ejection", |world| {
            assert!(matches!(status(world), Some(200 | 502)));
            ejected(world) == json!(["e0"])
        });
    });
}

/// One that takes connections and cuts them is there: it is asked, and no request takes out the last one.
// proves R-CTL-3
#[test]
fn a_request_that_its_engine_cuts_takes_nobody_out() {
    everywhere(|setup| {
        let world = World::start(setup, &watchful(Fleet::pair()));
        let cut = json!({"raw": [{"close": true}]});
        world
            .engines
            .script(&json!({"prefill": [cut, cut, cut, cut, cut, cut, {"default": true}]}));
        world.until("a good answer", |world| status(world) == Some(200));
        assert_eq!(ejected(&world), json!([]));
    });
}

/// Engines that may serve either role have a row for each, and are asked for the one they failed in.
// proves R-CTL-3
#[test]
fn an_engine_that_fails_in_one_role_of_two_goes_out() {
    everywhere(|setup| {
        // Where the legs of a lone request go.
        for (leg, engine) in [("prefill", 0), ("decode", 1)] {
            let mut fleet = watchful(Fleet::pairs());
            for engine in fleet.file["engines"].as_array_mut().into_iter().flatten() {
                engine["pin"] = json!(false);
            }
            let world = World::start(setup, &fleet);
            let key = format!("{leg}@{engine}");
            let refusal = json!({"status": 500, "body": "no"});
            world.engines.script(&json!({&*key: refusal}));
            until_ejected(&world, &json!([format!("e{engine}")]));
        }
    });
}

/// `/health` is not asked for these, and what a client does is no evidence.
// proves R-CTL-3, R-HTTP-5
#[test]
fn what_is_no_evidence_takes_nobody_out() {
    everywhere(|setup| {
        let world = World::start(setup, &watchful(Fleet::pairs()));
        let rejection = json!({"status": 400, "body": {"error": {"message": "no"}}});
        world.engines.script(&json!({"prefill": rejection}));
        for _ in 0..20 {
            assert_eq!(status(&world), Some(400));
        }
        world.engines.reset();
        let hang = json!({"chunks": [{"hang": true}]});
        world.engines.script(&json!({"decode": hang}));
        for n in 0..10 {
            let mut client = world.connect();
            client.send(&client::post(TEXT, &prompt()));
            world.until_leg("decode", n + 1);
            client.reset();
        }
        world.engines.reset();
        world.at_rest();
        assert_eq!(ejected(&world), json!([]));
        for word in ["engine is", "engine fail"] {
            assert!(!world.said().contains(word), "{}", world.said());
        }
    });
}

// proves R-CTL-3
#[test]
fn the_last_engine_of_a_role_stays() {
    everywhere(|setup| {
        let world = World::start(setup, &watchful(Fleet::pair()));
        world
            .engines
            .script(&json!({"prefill": {"status": 500, "body": "no"}}));
        world.until("a word", |world| {
            assert_eq!(
                status(world),
                Some(503),
                "nobody is left for a second attempt"
            );
            world.said().contains("last of its role")
        });
        assert_eq!(ejected(&world), json!([]));
        world.engines.reset();
        assert_eq!(status(&world), Some(200));
    });
}

/// No pass of the monitoring is needed to see that nothing gets through.
// proves R-CTL-3
#[test]
fn an_engine_that_cannot_be_reached_goes_out_at_once() {
    everywhere(|setup| {
        let dead = Refusing::start();
        let mut fleet = watchful(Fleet::pairs()).with("controller", "monitor_interval_s", 3600.0);
        for n in [0, 1] {
            fleet.file["engines"][n]["url"] = json!(format!("http://127.0.0.1:{}", dead.port));
        }
        let world = World::start(setup, &fleet);
        // Even the last one of its role.
        world.until("nobody left", |world| {
            let status = status(world);
            assert!(matches!(status, Some(502 | 503)), "{status:?}");
            status == Some(503)
        });
        assert_eq!(ejected(&world), json!(["e0", "e1"]));
        let ready = world.ask(&client::get("/ready"));
        assert_eq!(ready.status, Some(503));
        assert_eq!(ready.json()["reason"], "no prefill engines");
    });
}

fn degraded(setup: Setup) -> World {
    let mut fleet = watchful(Fleet::pairs())
        .with("controller", "monitor_failure_limit", 2)
        .with("recovery", "state_path", "@DIR/later/state.json");
    fleet.await_ready = false;
    World::start(setup, &fleet)
}

// proves R-CTL-1, R-CTL-2, R-CTL-4
#[test]
fn a_router_that_cannot_keep_its_state_holds_back() {
    everywhere(|setup| {
        let world = degraded(setup);
        world.until("degraded", |world| {
            world.ask(&client::get("/health")).json()["status"] == "degraded"
        });
        let ready = world.ask(&client::get("/ready"));
        assert_eq!(
            (ready.status, ready.header("retry-after")),
            (Some(503), Some("1"))
        );
        assert_eq!(ready.json()["control_ready"], false);
        assert_eq!(
            ready.json()["reason"],
            "monitoring degraded: state_file not_found"
        );
        let answer = world.post(TEXT, &prompt());
        assert_eq!(
            (answer.status, answer.header("retry-after")),
            (Some(503), Some("1"))
        );
        assert_eq!(
            answer.error(),
            (json!("standby"), json!(null), json!("standby"))
        );
        assert_eq!(world.ask(&client::get("/v1/models")).status, Some(200));
        // Once the disk is there again one whole pass makes good.
        world.make_folder("later");
        world.until("ready", |world| {
            world.ask(&client::get("/ready")).status == Some(200)
        });
        assert_eq!(status(&world), Some(200));
        let written: Value = serde_json::from_str(&world.read("later/state.json")).expect("JSON");
        assert_eq!(written["schema"], "narwhal.state_file");
        world.at_rest();
    });
}

// proves R-CTL-7
#[test]
fn what_was_out_is_out_after_a_restart() {
    let file = |model: &str, version: u32| {
        json!({"schema": "narwhal.state_file", "schema_version": version, "model": model, "engines": [
            {"iid": "e0", "ejected": "stream"}, {"iid": "gone", "ejected": "stream"},
            {"iid": "e3", "held": {"process_start_s": 5.0}}]})
        .to_string()
    };
    let part = file("stub-model", 1)[..40].to_owned();
    // the file, who is out, what is said
    let rows = [
        (file("stub-model", 1), json!(["e0"]), "taken up"),
        (file("other", 1), json!([]), "of another fleet"),
        (file("stub-model", 2), json!([]), "has schema_version 2"),
        (part, json!([]), "is no state file"),
        (String::new(), json!([]), "is no state file"),
    ];
    everywhere(|setup| {
        for (text, out, said) in &rows {
            let mut fleet = Fleet::pairs()
                .with("recovery", "state_path", "@DIR/state.json")
                .with("recovery", "resume", true);
            fleet.files = vec![("state.json", text.clone())];
            let world = World::start(setup, &fleet);
            world.until(said, |world| world.said().contains(said));
            assert_eq!(ejected(&world), *out, "{said}");
            let held = world.state()["lifecycle"]["held"].take();
            let want = if *said == "taken up" {
                json!(["e3"])
            } else {
                json!([])
            };
            assert_eq!(held, want, "{said}");
            assert_eq!(status(&world), Some(200));
            if *said != "taken up" {
                // Nothing is lost of what could not be read.
                assert_eq!(world.read("state.bad"), *text);
            }
        }
    });
}

/// Asked to decode, a prefill engine never showed that it was well.
// proves R-CTL-3, R-CTL-7
#[test]
fn who_was_out_before_a_restart_comes_back_by_what_it_is_there_for() {
    let file = json!({"schema": "narwhal.state_file", "schema_version": 1, "model": "stub-model",
        "engines": [{"iid": "e0", "ejected": "stream"}, {"iid": "e2", "ejected": "stream"}]});
    everywhere(|setup| {
        let mut fleet = watchful(Fleet::pairs())
            .with("recovery", "state_path", "@DIR/state.json")
            .with("recovery", "resume", true);
        fleet.files = vec![("state.json", file.to_string())];
        let world = World::start(setup, &fleet);
        world.until("taken up", |world| world.said().contains("taken up"));
        world.until("both are back", |world| ejected(world) == json!([]));
        assert!(legs_at(&world, "prefill", 0) > 0 && legs_at(&world, "decode", 2) > 0);
        assert_eq!(legs_at(&world, "decode", 0), 0);
    });
}
