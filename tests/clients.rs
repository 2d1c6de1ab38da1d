//! The clients that people have, against the running binary: the official OpenAI SDKs for Python and Node, LangChain, and curl.
//!
//! A suite is a script in the client's own language (`clients/*.py`, `clients/*.mjs`) that brings up its routers, tells scripted
//! engines what to say and asserts what the client makes of it; `clients/stage.rs` serves it. Packages are pinned and installed
//! once, under cargo's target directory (`clients/environment.rs`). Where an interpreter or the network is missing, a suite says
//! `skipped: …` and passes, unless NARWHAL_CLIENTS=all.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "clients and engines are threads of the operating system, and a test has its own clock"
)]

#[path = "clients/curl.rs"]
mod curl;
#[path = "clients/environment.rs"]
mod environment;
#[path = "clients/simulated.rs"]
mod simulated;
#[path = "clients/stage.rs"]
mod stage;

#[path = "e2e/client.rs"]
#[expect(dead_code, reason = "raw sockets are for the tests of the wire")]
mod client;
#[path = "e2e/engine.rs"]
#[expect(dead_code, reason = "the wire's tests break engines in more ways")]
mod engine;
#[path = "e2e/front.rs"]
#[expect(dead_code, reason = "suites speak to engines without TLS")]
mod front;
#[path = "recorded/mod.rs"]
#[expect(dead_code, reason = "whole recordings are compared elsewhere")]
mod recorded;
#[path = "e2e/world.rs"]
#[expect(dead_code, reason = "what a suite does not ask")]
mod world;

use std::process::Command;

use world::{Setup, in_each};

/// Both drivers, each with two shards.
fn on_both_drivers(test: impl Fn(Setup) + Sync) {
    let mut setups = Setup::all();
    setups.retain(|setup| setup.shards == 2);
    in_each(&setups, test);
}

fn python(script: &str) {
    let Some(python) = environment::python() else {
        return;
    };
    on_both_drivers(|setup| {
        let mut command = Command::new(&python);
        command.arg(environment::folder().join(script));
        stage::play(setup, command);
    });
}

// proves R-HTTP-4, R-HTTP-5, R-REQ-5, R-SSE-2, R-SSE-4, R-SSE-5, R-ASM-1, R-FLT-1, R-FLT-2
#[test]
fn openai_for_python() {
    python("openai_sync.py");
}

// proves R-HTTP-5, R-SSE-2, R-SSE-5, R-FLT-2
#[test]
fn openai_for_python_async() {
    python("openai_async.py");
}

// proves R-SSE-2, R-ASM-1
#[test]
fn langchain_for_python() {
    python("langchain_openai_chat.py");
}

// proves R-HTTP-4, R-HTTP-5, R-REQ-5, R-SSE-2, R-SSE-4, R-SSE-5, R-ASM-1, R-FLT-1, R-FLT-2
#[test]
fn openai_for_node() {
    let Some(node) = environment::node() else {
        return;
    };
    on_both_drivers(|setup| {
        let (command, _copy) = node.command("openai.mjs");
        stage::play(setup, command);
    });
}
