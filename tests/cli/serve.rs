//! `serve`: files that are wrong, settings that are not built, addresses that are taken.

use std::net::TcpListener;

use crate::child::{Child, address, narwhal, run};
use crate::files::fleet_file;
use crate::http;

/// An engine that is not there: enough for a router to start.
pub const FLEET: &str = r#"{
  "schema": "narwhal.fleet", "schema_version": 2, "model": "m",
  "engines": [{"iid": "e0", "url": "http://127.0.0.1:9", "role": "both"}],
  "slo": {"ttft_s": 2, "tpot_s": 0.05},
  "serving": {"admission": "open"}
}"#;

// proves R-CLI-1, R-CFG-1
#[test]
fn a_broken_file_is_2_and_every_fault_is_named_with_its_place() {
    let text = FLEET
        .replace("\"ttft_s\": 2", "\"ttft_s\": -2")
        .replace("\"admission\"", "\"max_conections\": 5, \"admission\"");
    let path = fleet_file("broken", "json", &text);
    let path = path.to_str().expect("a path in UTF-8");
    let ended = run(&["serve", "--fleet", path]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    let want = [
        format!(
            "{path}:4:21: slo.ttft_s: out of range, found -2, allowed a number from 0.001 to 86400 seconds"
        ),
        format!("{path}:5:15: serving.max_conections: unknown key; did you mean max_connections?"),
    ];
    for line in want {
        assert!(ended.err.contains(&line), "{line:?} in:\n{}", ended.err);
    }
    assert_eq!(ended.out, "");
}

// proves R-CLI-1
#[test]
fn a_file_that_cannot_be_read_is_2() {
    let rows = [
        ("no-such-file.toml", "no-such-file.toml: cannot be read: "),
        (
            "fleet.yaml",
            "fleet.yaml: the name must end in .json or .toml",
        ),
    ];
    for (path, want) in rows {
        let ended = run(&["serve", "--fleet", path]);
        assert_eq!(ended.code, Some(2), "{path}");
        assert!(ended.err.contains(want), "{}", ended.err);
    }
}

// proves R-CLI-1
#[test]
fn settings_that_are_not_built_are_refused_by_name() {
    let open = "\"serving\": {\"admission\": \"open\"}";
    // what stands in the file, what stands there instead, the key that is named
    let rows: &[(&str, &str, &str)] = &[
        (
            open,
            "\"serving\": {\"admission\": \"open\"}, \"runtime\": {\"cors_origins\": [\"*\"]}",
            "runtime.cors_origins",
        ),
        (
            open,
            "\"serving\": {\"admission\": \"open\"}, \"runtime\": {\"tls\": {\"cert\": \"c\", \"key\": \"k\"}}",
            "runtime.tls",
        ),
        (
            open,
            "\"serving\": {\"admission\": \"open\"}, \"runtime\": {\"lease\": \"file:l\"}",
            "runtime.lease",
        ),
    ];
    for (index, (old, new, key)) in rows.iter().enumerate() {
        let text = FLEET.replace(old, new);
        let path = fleet_file(&format!("not-built-{index}"), "json", &text);
        let path = path.to_str().expect("a path in UTF-8");
        let ended = run(&["serve", "--fleet", path]);
        assert_eq!(ended.code, Some(2), "{key}: {}", ended.err);
        let want = format!("narwhal: {path}: {key}: ");
        assert!(ended.err.contains(&want), "{want:?} in:\n{}", ended.err);
        assert!(
            ended.err.contains("available in this version"),
            "{}",
            ended.err
        );
    }
}

// proves R-CLI-1, R-CLI-2, R-CLI-3
#[test]
fn a_taken_address_is_1_and_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = taken.local_addr().expect("it is bound");
    let (text, port) = (at.to_string(), at.port().to_string());
    let fleet = fleet_file("taken", "json", FLEET);
    let fleet = fleet.to_str().expect("a path in UTF-8");
    let rows: &[(&[&str], &str)] = &[
        (&["serve", "--fleet", fleet, "--listen", &text], "listen"),
        (
            &[
                "serve",
                "--fleet",
                fleet,
                "--listen",
                "127.0.0.1:0",
                "--admin-listen",
                &text,
            ],
            "admin_listen",
        ),
        (&["demo", "--port", &port], "listen"),
        (&["engine", "--listen", &text], "listen"),
    ];
    for (args, word) in rows {
        let ended = run(args);
        assert_eq!(ended.code, Some(1), "{args:?}: {}", ended.err);
        let want = format!("narwhal: {word} {text}: ");
        assert!(ended.err.contains(&want), "{want:?} in:\n{}", ended.err);
        assert!(ended.err.contains("in use"), "{}", ended.err);
    }
}

// proves R-CFG-1
#[test]
fn keys_that_do_nothing_are_named_once() {
    let more = r#""engine_contract": {"connector": "x"}, "_note": 1,"#;
    let text = FLEET.replace("\"slo\"", &format!("{more} \"slo\""));
    let ended = {
        let path = fleet_file("not-used", "json", &text);
        let mut command = narwhal(&["serve", "--listen", "127.0.0.1:0"]);
        command.arg("--fleet").arg(path);
        let mut child = Child::start(command);
        let at = address(&child.err_line("listening on http://"));
        assert_eq!(http::get(at, "/v1/models").status, 200);
        child.signal("TERM");
        child.err_line("draining");
        child.signal("TERM");
        child.end()
    };
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let line = "INFO not used: engine_contract.connector\n";
    assert_eq!(ended.err.matches(line).count(), 1, "{}", ended.err);
}

/// The README's own example loads, and asks for nothing that is not built.
// proves R-CFG-1
#[test]
fn the_example_of_the_readme_is_served() {
    let page = include_str!("../../README.md");
    let (_, rest) = page.split_once("```toml\n").expect("a TOML block");
    let (text, _) = rest.split_once("```").expect("its end");
    let loaded = narwhal::config::parse("README", text, narwhal::config::Format::Toml, &|_| None);
    let loaded = loaded.unwrap_or_else(|faults| panic!("{faults}"));
    assert!(loaded.not_used.is_empty());
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    narwhal::cli::serve::supported(&loaded.fleet).expect("all of it is built");
}
