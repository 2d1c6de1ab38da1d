//! Engines that operators take out, stop and take back, one by one or all at once.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::client::{self, Answer};
use super::world::{Fleet, World, everywhere};

const TEXT: &str = "/v1/completions";
const DRAIN: &str = "/narwhal/lifecycle/drain";
const READMIT: &str = "/narwhal/lifecycle/readmit";

fn prompt(stream: bool) -> Value {
    json!({"model": "stub-model", "prompt": "hello there", "max_tokens": 3, "stream": stream})
}

fn started(second: u32) -> Value {
    let page = format!("# HELP x\nprocess_start_time_seconds {second}.5\n");
    json!({"headers": {"content-type": "text/plain"}, "body": page})
}

fn engine(world: &World, n: usize) -> Value {
    let answer = world.ask(&client::get("/narwhal/lifecycle"));
    assert_eq!(answer.status, Some(200), "{}", answer.text());
    answer.json()["engines"][n].take()
}

fn check(answer: &Answer, n: usize, name: &str) -> String {
    let word = answer.json()["engines"][n]["checks"][name].take();
    word.as_str().unwrap_or("none").to_owned()
}

fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"token_ids\":[1]}}]}}\n\n")
}

// proves R-CTL-6
#[test]
fn an_engine_drains_and_comes_back_as_a_newer_process() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        world
            .engines
            .script(&json!({"metrics": started(100), "decode": {"chunks": [
            event("a"), {"delay_ms": 300}, event("b"), "data: [DONE]\n\n"]}}));
        // A stream on one of the two decode engines.
        let mut client = world.connect();
        client.send(&client::post(TEXT, &prompt(true)));
        assert_eq!(client.begin_answer(1).status, Some(200));
        let n = world.engines.legs("decode")[0].engine;
        let iid = format!("e{n}");
        let answer = world.post(DRAIN, &json!({"engines": [iid]}));
        assert_eq!(answer.status, Some(200), "{}", answer.text());
        let row = engine(&world, n);
        assert_eq!(
            (&row["state"], &row["resident"]),
            (&json!("draining"), &json!(1))
        );
        world.until("it is empty", |world| {
            engine(world, n)["state"] == "ready_to_stop"
        });
        // The prefill engine is done with it too: its KV was fetched.
        let produced = world.engines.legs("prefill")[0].engine;
        assert_eq!(engine(&world, produced)["resident"], 0);
        while !client.buf.ends_with(b"0\r\n\r\n") && client.more(client::PATIENCE) {}
        assert!(
            client.buf.ends_with(b"0\r\n\r\n"),
            "what ran there has finished"
        );
        assert_eq!(world.state()["lifecycle"]["held"], json!([iid]));

        world.engines.reset();
        world.engines.script(&json!({"metrics": started(100)}));
        for _ in 0..10 {
            assert_eq!(world.post(TEXT, &prompt(false)).status, Some(200));
        }
        assert!(
            world
                .engines
                .legs("decode")
                .iter()
                .all(|seen| seen.engine != n)
        );

        // The same process is not taken back, nor one that is not well.
        let refused = world.post(READMIT, &json!({"engines": [iid]}));
        assert_eq!(refused.status, Some(409), "{}", refused.text());
        assert!(check(&refused, 0, "process").contains("not a newer one"));
        let health = format!("health@{n}");
        let decode = format!("decode@{n}");
        let models = format!("models@{n}");
        let sick = [
            (&health, json!({"status": 503, "body": "no"}), "health"),
            (&decode, json!({"status": 500, "body": "no"}), "handoff"),
            (
                &models,
                json!({"body": {"object": "list", "data": [{"id": "other"}]}}),
                "model",
            ),
        ];
        for (leg, step, name) in &sick {
            world.engines.reset();
            world
                .engines
                .script(&json!({"metrics": started(200), leg.as_str(): step}));
            let refused = world.post(READMIT, &json!({"engines": [iid]}));
            assert_eq!(refused.status, Some(409), "{name}: {}", refused.text());
            assert_ne!(check(&refused, 0, name), "ok");
            assert_eq!(engine(&world, n)["state"], "ready_to_stop");
        }
        world.engines.reset();
        world.engines.script(&json!({"metrics": started(200)}));
        let back = world.post(READMIT, &json!({"engines": [iid]}));
        assert_eq!(back.status, Some(200), "{}", back.text());
        assert_eq!(check(&back, 0, "process"), "ok");
        assert_eq!(check(&back, 0, "handoff"), "ok");
        assert_eq!(engine(&world, n)["state"], "serving");
        let seen = |world: &World| {
            world
                .engines
                .legs("decode")
                .iter()
                .filter(|s| s.engine == n)
                .count()
        };
        let before = seen(&world);
        world.until("work for it", |world| {
            world.post(TEXT, &prompt(false)).status == Some(200) && seen(world) > before
        });
        world.at_rest();
    });
}

// proves R-CTL-1, R-CTL-2, R-CTL-6
#[test]
fn a_wave_withdraws_the_whole_fleet() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("recovery", "engine_restart_policy", "whole_wave");
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"metrics": started(100), "decode": {"chunks": [
            event("a"), {"delay_ms": 300}, event("b"), "data: [DONE]\n\n"]}}));
        let mut client = world.connect();
        client.send(&client::post(TEXT, &prompt(true)));
        assert_eq!(client.begin_answer(1).status, Some(200));
        let one = world.post(DRAIN, &json!({"engines": ["e0"]}));
        assert_eq!(one.status, Some(409), "{}", one.text());
        assert_eq!(
            world
                .post(DRAIN, &json!({"wave": true, "deadline_s": 60}))
                .status,
            Some(200)
        );
        let health = world.ask(&client::get("/health")).json();
        assert_eq!(
            health,
            json!({"status": "maintenance", "instances": 4, "available_instances": 0})
        );
        let ready = world.ask(&client::get("/ready"));
        assert_eq!(ready.status, Some(503));
        assert_eq!(ready.json()["control_ready"], true);
        assert_eq!(ready.json()["reason"], "whole-wave maintenance");
        let refused = world.post(TEXT, &prompt(false));
        assert_eq!(refused.status, Some(503));
        assert_eq!(
            refused.error(),
            (json!("standby"), json!(null), json!("standby"))
        );
        // What streams goes on to its end.
        while !client.buf.ends_with(b"0\r\n\r\n") && client.more(client::PATIENCE) {}
        assert!(client.buf.ends_with(b"0\r\n\r\n"));
        world.until("all are empty", |world| {
            (0..4).all(|n| engine(world, n)["state"] == "ready_to_stop")
        });
        // All or none.
        world.engines.reset();
        world
            .engines
            .script(&json!({"metrics": started(200), "metrics@3": started(100)}));
        assert_eq!(
            world.post(READMIT, &json!({"wave": true})).status,
            Some(409)
        );
        assert_eq!(
            world.post(READMIT, &json!({"engines": ["e0"]})).status,
            Some(409)
        );
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(503));
        world.engines.script(&json!({"metrics@3": started(200)}));
        let back = world.post(READMIT, &json!({"wave": true}));
        assert_eq!(back.status, Some(200), "{}", back.text());
        assert_eq!(world.ask(&client::get("/ready")).status, Some(200));
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(200));
        world.at_rest();
    });
}

// proves R-CTL-6
#[test]
fn wishes_that_make_no_sense() {
    let rows = [
        (json!({"engines": ["nope"]}), 404),
        (json!({"engines": ["e0", "nope"]}), 404),
        (json!({"engines": []}), 400),
        (json!({"engines": "e0"}), 400),
        (json!({"engines": ["e0"], "wave": true}), 400),
        (json!({}), 400),
        (json!({"wave": false}), 400),
        (json!({"engines": ["e0"], "deadline_s": -1}), 400),
        (json!({"engines": ["e0"], "deadline_s": 1e9}), 400),
        (json!({"engines": ["e0"], "deadlines": 1}), 400),
        (json!([]), 400),
    ];
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        for (body, status) in &rows {
            for path in [DRAIN, READMIT] {
                let answer = world.post(path, body);
                assert_eq!(
                    answer.status,
                    Some(*status),
                    "{path} {body}: {}",
                    answer.text()
                );
            }
        }
        let long = world.post(DRAIN, &json!({"engines": ["e".repeat(70_000)]}));
        assert_eq!(long.status, Some(413));
        assert_eq!(world.ask(&client::get(DRAIN)).status, Some(405));
        assert_eq!(
            world.state()["lifecycle"]["held"],
            json!([]),
            "nothing has changed"
        );
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(200));
    });
}

fn narwhal(world: &World, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narwhal"));
    let url = format!("http://{}", world.addr);
    command.args(args).args(["--admin", &url]);
    command.output().expect("it runs")
}

// proves R-CLI-8, R-CTL-6
#[test]
fn operators_have_commands_for_it() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        world.engines.script(&json!({"metrics": started(100)}));
        let run = |args: &[&str], code: i32, words: &[&str]| {
            let ended = narwhal(&world, args);
            let shown = [&ended.stdout[..], &ended.stderr].concat();
            let shown = String::from_utf8_lossy(&shown).into_owned();
            assert_eq!(ended.status.code(), Some(code), "{args:?}: {shown}");
            for word in words {
                assert!(shown.contains(word), "{word} in {args:?}: {shown}");
            }
        };
        run(
            &["status"],
            0,
            &["ready\n", "ENGINE", "e3", "serving", "0 in flight of 768"],
        );
        run(
            &["drain", "e2", "--wait"],
            0,
            &["e2      decode   ready_to_stop", "They may be stopped"],
        );
        run(
            &["status", "--json"],
            0,
            &["\"ready_to_stop\"", "\"offered\": 0"],
        );
        run(
            &["readmit", "e2"],
            1,
            &["not a newer one", "not all of them are readmitted"],
        );
        world.engines.script(&json!({"metrics": started(200)}));
        run(&["readmit", "e2"], 0, &["e2      yes", "handoff"]);
        run(&["drain", "--wave"], 0, &["e0 ", "e3 "]);
        run(&["status"], 0, &["not ready: whole-wave maintenance"]);
        run(&["drain", "nope"], 1, &["No engine has the iid \"nope\""]);
        run(&["drain"], 2, &["IID"]);
        run(&["drain", "e0", "--wave"], 2, &["cannot be used"]);
        let nobody = Command::new(env!("CARGO_BIN_EXE_narwhal"))
            .args(["status", "--admin", "http://127.0.0.1:1"])
            .output();
        assert_eq!(nobody.expect("it runs").status.code(), Some(1));
    });
}

/// A pass would come in a minute: what operators hear is on disk by then.
// proves R-CTL-6, R-CTL-7
#[test]
fn what_is_held_is_in_the_state_file_when_it_is_told() {
    let held = |world: &World| {
        let file: Value = serde_json::from_str(&world.read("state.json")).expect("JSON");
        let engines = file["engines"].as_array().expect("engines").clone();
        let held = engines.into_iter().filter(|e| e["held"].is_object());
        held.map(|e| e["iid"].clone()).collect::<Vec<_>>()
    };
    everywhere(|setup| {
        let fleet = Fleet::pairs()
            .with("controller", "monitor_interval_s", 60)
            .with("recovery", "state_path", "@DIR/state.json");
        let world = World::start(setup, &fleet);
        world.engines.script(&json!({"metrics": started(100)}));
        let wish = json!({"engines": ["e3"]});
        assert_eq!(world.post(DRAIN, &wish).status, Some(200));
        assert_eq!(held(&world), [json!("e3")]);
        world.engines.script(&json!({"metrics": started(200)}));
        let answer = world.post(READMIT, &wish);
        assert_eq!(answer.status, Some(200), "{}", answer.text());
        assert_eq!(held(&world), Vec::<Value>::new());
    });
}
