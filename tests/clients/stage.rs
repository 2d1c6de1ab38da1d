//! A suite in another language, and what it may ask of the test: routers, scripts for their engines, what those saw, the state.
//!
//! Both sides speak in JSON lines over the suite's standard input and output, one question (`do`) and one reply at a time.
//! Invariant: a suite is bounded in time, ends with `done`, and ran at least one test; nothing of it outlives [`play`].

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::recorded;
use super::simulated::{Simulated, fleet};
use super::world::{Setup, World, number, poll};

/// How long a suite may run.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs a suite to its end. Nothing of this machine's settings reaches it.
pub fn play(setup: Setup, mut command: Command) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path);
    command.env("HOME", env!("CARGO_TARGET_TMPDIR"));
    command.envs([("LANG", "C.UTF-8"), ("PYTHONDONTWRITEBYTECODE", "1")]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn();
    let mut suite = Suite(child.expect("the suite starts"));
    let mut replies = suite.0.stdin.take().expect("it is piped");
    let asked = lines(suite.0.stdout.take().expect("it is piped"));
    let said = lines(suite.0.stderr.take().expect("it is piped"));
    let until = Instant::now() + LIMIT;
    let left = || until.saturating_duration_since(Instant::now());
    let mut stage = Stage {
        setup,
        worlds: Vec::new(),
    };
    let mut tests = 0;
    let mut failed = 0;
    while let Ok(line) = asked.recv_timeout(left()) {
        let ask: Value = serde_json::from_str(&line).expect("a question in JSON");
        if ask["do"] == "done" {
            tests += ask["tests"].as_u64().expect("a count");
            failed += ask["failed"].as_u64().expect("a count");
        }
        let reply = stage.reply(&ask);
        // A suite that is gone says so by its end.
        let _ = writeln!(replies, "{reply}");
    }
    drop(replies);
    let mut status = None;
    let ended = poll(left(), || {
        status = suite.0.try_wait().ok().flatten();
        status.is_some()
    });
    drop(suite);
    let said: Vec<String> = said.iter().collect();
    let said = said.join("\n");
    assert!(ended, "not done after {LIMIT:?}: {said}");
    let passed = status.is_some_and(|status| status.success());
    assert!(passed && failed == 0, "{failed} failed, {status:?}\n{said}");
    assert_ne!(tests, 0, "no test was run: {said}");
}

/// A process that ends with its test.
struct Suite(Child);

impl Drop for Suite {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines of a pipe, read by a thread.
fn lines(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (tell, told) = mpsc::channel();
    let lines = BufReader::new(pipe).lines();
    thread::spawn(move || {
        lines
            .map_while(Result::ok)
            .try_for_each(|line| tell.send(line))
    });
    told
}

struct Stage {
    setup: Setup,
    /// A router goes before its engines.
    worlds: Vec<(World, Option<Simulated>)>,
}

impl Stage {
    fn reply(&mut self, ask: &Value) -> Value {
        let text = |name: &str| ask[name].as_str().unwrap_or_default();
        match text("do") {
            "start" => return self.start(ask),
            "recorded" => return recorded(text("name")),
            "done" => return Value::Null,
            _ => {}
        }
        let at = ask["world"].as_u64().expect("a world") as usize;
        let world = &self.worlds[at].0;
        match text("do") {
            "script" => {
                world.engines.reset();
                world.engines.script(&ask["legs"]);
                Value::Null
            }
            "legs" => legs(world, text("leg")),
            "rest" => world.at_rest(),
            // Waits until a counter of the state has come this far.
            "until" => {
                let least = ask["least"].as_u64().expect("a number");
                world.until(text("counter"), |world| {
                    number(&world.state(), text("counter")) >= least
                });
                Value::Null
            }
            // Waits until the router has left its last leg of this kind.
            "left" => {
                world.until("the leg is closed", |world| {
                    let legs = world.engines.legs(text("leg"));
                    let last = legs.last();
                    last.is_some_and(|leg| leg.client_disconnected().is_some())
                });
                Value::Null
            }
            other => panic!("`{other}` is nothing to ask for"),
        }
    }

    /// A router, with scripted engines or simulated ones.
    fn start(&mut self, ask: &Value) -> Value {
        let (world, simulated) = if ask["simulated"] == true {
            let (world, engines) = Simulated::routed(self.setup);
            (world, Some(engines))
        } else {
            let roles = ask["roles"].as_array().expect("roles").iter();
            let roles: Vec<&str> = roles.filter_map(Value::as_str).collect();
            let mut fleet = fleet(&roles);
            for (key, value) in ask["serving"].as_object().into_iter().flatten() {
                fleet = fleet.with("serving", key, value.clone());
            }
            fleet.await_ready = ["prefill", "decode"]
                .iter()
                .all(|role| roles.contains(role));
            (World::start(self.setup, &fleet), None)
        };
        let engines: Vec<String> = simulated
            .iter()
            .flat_map(|simulated| &simulated.addresses)
            .map(|address| format!("http://{address}"))
            .collect();
        let url = format!("http://{}", world.addr);
        self.worlds.push((world, simulated));
        json!({"world": self.worlds.len() - 1, "url": url, "engines": engines})
    }
}

/// What the engines saw of a leg's kind.
fn legs(world: &World, leg: &str) -> Value {
    let legs = world.engines.legs(leg).into_iter();
    legs.map(|leg| json!({"path": leg.path, "headers": leg.headers, "body": leg.body}))
        .collect()
}

/// A recorded stream in chunks for a script, with a token id wherever the engine would have had one, or a recorded answer.
fn recorded(name: &str) -> Value {
    let body = recorded::body(&format!("pairs/{name}"));
    let body = String::from_utf8(body).expect("UTF-8");
    if !name.contains("stream") {
        return serde_json::from_str(&body).expect(name);
    }
    let events = body.split_inclusive("\n\n");
    events
        .map(|event| json!(event.replace("\"token_ids\":null", "\"token_ids\":[7]")))
        .collect()
}
