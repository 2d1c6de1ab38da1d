//! What it means for requests that the router holds back: new ones and waiting ones are sent away, what decodes finishes.

use serde_json::{Value, json};

use super::client;
use super::world::{Fleet, World, everywhere, number, reason};

const TEXT: &str = "/v1/completions";

fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"token_ids\":[1]}}]}}\n\n")
}

/// A page that tells when the process began.
fn started(second: u32) -> Value {
    let page = format!("process_start_time_seconds {second}.5\n");
    json!({"headers": {"content-type": "text/plain"}, "body": page})
}

fn prompt(stream: bool) -> Vec<u8> {
    let body =
        json!({"model": "stub-model", "prompt": "hello there", "max_tokens": 3, "stream": stream});
    client::post(TEXT, &body)
}

/// How a router comes to hold back, and what it says of it.
struct Cause {
    comes: fn(&World),
    goes: fn(&World),
    status: &'static str,
    control_ready: bool,
    reason: &'static str,
}

const WAVE: Cause = Cause {
    comes: |world| wish(world, "drain", &json!({"wave": true})),
    goes: |world| {
        world.engines.script(&json!({"metrics": started(200)}));
        wish(world, "readmit", &json!({"wave": true}));
    },
    status: "maintenance",
    control_ready: true,
    reason: "whole-wave maintenance",
};

/// The folder of its state file is gone when there is something to write.
const NO_DISK: Cause = Cause {
    comes: |world| {
        world.remove_folder("later");
        wish(world, "drain", &json!({"engines": ["e3"]}));
    },
    goes: |world| world.make_folder("later"),
    status: "degraded",
    control_ready: false,
    reason: "monitoring degraded: state_file not_found",
};

fn wish(world: &World, what: &str, body: &Value) {
    let answer = world.post(&format!("/narwhal/lifecycle/{what}"), body);
    assert_eq!(answer.status, Some(200), "{}", answer.text());
}

// proves R-CTL-1, R-CTL-2, R-CTL-4, R-CTL-6
#[test]
fn a_router_that_holds_back_lets_go_of_who_waits_and_keeps_what_decodes() {
    everywhere(|setup| {
        for cause in [WAVE, NO_DISK] {
            let mut fleet = Fleet::pairs()
                .with("serving", "max_connections", 1)
                .with("serving", "queue_capacity", 4)
                .with("serving", "queue_timeout_s", 20)
                .with("controller", "monitor_interval_s", 0.02)
                .with("controller", "monitor_failure_limit", 2)
                .with("recovery", "state_path", "@DIR/later/state.json");
            fleet.files = vec![("later/kept", String::new())];
            let world = World::start(setup, &fleet);
            world.engines.script(&json!({"metrics": started(100), "decode": [{"chunks": [
                event("a"), {"delay_ms": 1500}, event("b"), "data: [DONE]\n\n"]}, {"default": true}]}));
            let mut runs = world.connect();
            runs.send(&prompt(true));
            assert_eq!(runs.begin_answer(1).status, Some(200));
            let mut waits = world.connect();
            waits.send(&prompt(false));
            world.until("it waits", |world| {
                number(&world.state(), "/admission/queued") == 1
            });
            (cause.comes)(&world);
            for (client, what) in [(&mut waits, "waiting"), (&mut world.connect(), "new")] {
                if what == "new" {
                    client.send(&prompt(false));
                }
                let answer = client.answer();
                let said = (answer.status, answer.header("retry-after"));
                assert_eq!(said, (Some(503), Some("1")), "{what} {}", cause.status);
                assert_eq!(
                    answer.error(),
                    (json!("standby"), json!(null), json!("standby"))
                );
            }
            let health = world.ask(&client::get("/health"));
            assert_eq!(health.status, Some(200));
            assert_eq!(health.json()["status"], cause.status);
            let ready = world.ask(&client::get("/ready"));
            assert_eq!(
                (ready.status, ready.header("retry-after")),
                (Some(503), Some("1"))
            );
            let ready = ready.json();
            assert_eq!(
                (&ready["reason"], &ready["control_ready"]),
                (&json!(cause.reason), &json!(cause.control_ready))
            );
            assert_eq!(world.ask(&client::get("/v1/models")).status, Some(200));
            // Nobody else is hurt by it.
            while !runs.buf.ends_with(b"0\r\n\r\n") && runs.more(client::PATIENCE) {}
            assert!(runs.buf.ends_with(b"0\r\n\r\n"), "the stream is cut");
            let text = String::from_utf8_lossy(&runs.buf);
            assert!(text.contains("\"b\"") && text.contains("[DONE]"), "{text}");
            (cause.goes)(&world);
            world.until("ready", |world| {
                world.ask(&client::get("/ready")).status == Some(200)
            });
            assert_eq!(world.ask(&prompt(false)).status, Some(200));
            let state = world.at_rest();
            assert_eq!(reason(&state, "rejected", "standby"), 2);
            assert_eq!(number(&state, "/served"), 2);
        }
    });
}
