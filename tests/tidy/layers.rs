//! Who may use whom. One row a room: the paths of other rooms it may name, the crates it may name, and whether it is pure.
//! Pure rooms take time, chance, bytes and readings as arguments; the rooms below the line do what touches the machine.
//!
//! Tests are free here: the compiler itself keeps the rooms below the line out of tests above it, as those build without them.

use super::lexer::{Line, words};
use super::paths;
use super::source::{Fault, File, Tree};

struct Room {
    name: &'static str,
    /// Prefixes of paths below `crate::`.
    may: &'static [&'static str],
    crates: &'static [&'static str],
    pure: bool,
}

/// In reading order.
const ROOMS: &[Room] = &[
    Room {
        name: "base",
        may: &[],
        crates: &[],
        pure: true,
    },
    Room {
        name: "metrics",
        may: &["base"],
        crates: &["crossbeam_utils", "serde", "serde_json"],
        pure: true,
    },
    Room {
        name: "config",
        // There is one JSON grammar in the house, and its cursor knows nothing of HTTP.
        may: &["base", "wire::json"],
        crates: &["sha2", "toml"],
        pure: true,
    },
    Room {
        name: "wire",
        may: &["base"],
        crates: &["httparse", "memchr"],
        pure: true,
    },
    Room {
        name: "fleet",
        may: &["base", "config::topology", "config::checked"],
        crates: &[],
        pure: true,
    },
    Room {
        name: "path",
        // A stage is handed the shard that runs it.
        may: &["base", "metrics", "config", "wire", "fleet", "shard"],
        crates: &["memchr", "serde_json"],
        pure: true,
    },
    Room {
        name: "shard",
        // An exchange knows the id and the fields that head a leg's request.
        may: &[
            "base",
            "metrics",
            "config",
            "wire",
            "fleet",
            "path::exchange",
        ],
        crates: &["arc_swap", "crossbeam_utils"],
        pure: true,
    },
    Room {
        name: "stub",
        may: &["base", "config", "wire"],
        crates: &["httparse", "memchr", "serde", "serde_json"],
        pure: true,
    },
    Room {
        name: "runtime",
        may: &[
            "base", "metrics", "config", "wire", "fleet", "path", "shard",
        ],
        crates: &[
            "atomic_waker",
            "core_affinity",
            "crossbeam_utils",
            "thiserror",
            "crossbeam_queue",
            "io_uring",
            "libc",
            "futures_io",
            "glommio",
            "monoio",
            "rlimit",
            "rustls",
            "rustls_native_certs",
            "socket2",
            "tracing",
        ],
        pure: false,
    },
    // A client of engines, and no data path.
    Room {
        name: "ask",
        may: &["base", "config", "wire", "runtime::clock", "runtime::tls"],
        crates: &[
            "http_body_util",
            "hyper",
            "hyper_util",
            "rustls",
            "serde_json",
            "thiserror",
            "tokio",
            "tokio_rustls",
        ],
        pure: false,
    },
    Room {
        name: "control",
        // Shards hand it what a request asked of the admin routes; it sends the answers back as mail.
        may: &[
            "base",
            "metrics",
            "config",
            "fleet::breaker",
            "fleet::learn",
            "shard",
            "ask",
            "runtime::bounds",
            "runtime::cell::ControlPort",
            "runtime::clock",
            "runtime::journal",
            "runtime::settle::descriptors",
            "runtime::socket",
            "runtime::cell::Mail",
            "runtime::cell::change",
            "runtime::mail",
            "runtime::tls::Roots",
            "wire::h1::head::Method",
            "wire::h1::head::bearer_token",
        ],
        crates: &[
            "http_body_util",
            "hyper",
            "hyper_util",
            "libc",
            "rustls",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "tokio_rustls",
            "tracing",
        ],
        pure: false,
    },
    Room {
        name: "cli",
        may: &[
            "base", "metrics", "config", "wire", "fleet", "path", "shard", "stub", "runtime",
            "ask", "control",
        ],
        crates: &[
            "clap",
            // `profile`, `drain`, `status` are clients, and no data path.
            "http_body_util",
            "hyper",
            "hyper_util",
            "libc",
            "monoio",
            "rustls",
            "serde",
            "serde_json",
            "socket2",
            "thiserror",
            "tokio",
            "tokio_rustls",
            "tracing",
            "tracing_subscriber",
        ],
        pure: false,
    },
    // `main.rs`, seen from outside the library.
    Room {
        name: "main",
        may: &["cli"],
        crates: &["mimalloc"],
        pure: false,
    },
];

/// What a pure room never names, and what it takes instead.
const IMPURE: &[(&str, &str)] = &[
    ("std::env", "an argument"),
    ("std::fs", "the bytes, as an argument"),
    ("std::io", "bytes, spans and buffers"),
    ("std::net::TcpListener", "bytes in, bytes out"),
    ("std::net::TcpStream", "bytes in, bytes out"),
    (
        "std::net::ToSocketAddrs",
        "addresses that the control thread resolved",
    ),
    ("std::net::UdpSocket", "bytes in, bytes out"),
    ("std::os", "plain values"),
    ("std::process", "a returned error"),
    ("std::sync::Barrier", "state that one shard owns"),
    ("std::sync::Condvar", "state that one shard owns"),
    (
        "std::sync::Mutex",
        "state that one shard owns, or an atomic of `shard`",
    ),
    (
        "std::sync::RwLock",
        "state that one shard owns, or a snapshot",
    ),
    ("std::sync::mpsc", "`runtime::mail`"),
    ("std::thread", "the shard's own thread, which calls in"),
    (
        "std::time::Instant",
        "`base::time::Instant`, handed in as `now`",
    ),
    (
        "std::time::SystemTime",
        "`base::time::Instant`, handed in as `now`",
    ),
];

/// Words that say the same without a path.
const IMPURE_WORDS: &[(&str, &str)] = &[
    (
        "async",
        "a machine: `handle` what happened, then ask what is wanted",
    ),
    (
        ".await",
        "a machine: `handle` what happened, then ask what is wanted",
    ),
    ("thread_local!", "state that one shard owns"),
];

/// Where a pure room does what pure rooms do not: file, path, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "src/config/mod.rs",
        "std::fs",
        "`load` reads the fleet file; `parse` takes its text",
    ),
    ("src/config/mod.rs", "std::io", "the error of that one read"),
    (
        "src/shard/sync.rs",
        "std::sync::Mutex",
        "the line of those who wait for a seat is known to all shards",
    ),
];

pub fn check(tree: &Tree) -> Vec<Fault> {
    let dependencies = dependencies(tree);
    let mut faults = Vec::new();
    let mut excused = vec![false; EXCEPTIONS.len()];
    for file in tree.program() {
        let Some(name) = room_of(&file.path) else {
            continue;
        };
        let Some(room) = ROOMS.iter().find(|room| room.name == name) else {
            faults.push(file.fault(0, format!("room `{name}` has no row in the layer table")));
            continue;
        };
        faults.extend(imports(file, room));
        faults.extend(crates(file, room, &dependencies));
        faults.extend(climbs(file));
        if room.pure {
            faults.extend(impurities(file, &mut excused));
        }
    }
    for ((path, what, _), used) in EXCEPTIONS.iter().zip(excused) {
        if let Some(file) = tree.file(path).filter(|_| !used) {
            faults.push(file.fault(0, format!("the exception for `{what}` is no longer needed")));
        }
    }
    faults
}

fn imports(file: &File, room: &Room) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (line, path) in paths::named(file.program_lines(), &["crate", "narwhal"]) {
        let inner = &path[1..];
        let own = inner.first().is_none_or(|first| first == room.name);
        let allowed = room.may.iter().any(|may| starts_with(inner, may));
        if !own && !allowed {
            let what = format!("`{}` may not use `{}`", room.name, path.join("::"));
            faults.push(file.fault(line, format!("{what}; it may use {:?}", room.may)));
        }
    }
    faults
}

fn crates(file: &File, room: &Room, dependencies: &[String]) -> Vec<Fault> {
    let roots: Vec<&str> = dependencies.iter().map(String::as_str).collect();
    let mut faults = Vec::new();
    for (line, path) in paths::named(file.program_lines(), &roots) {
        if !room.crates.contains(&path[0].as_str()) {
            let what = format!("`{}` may not use the crate `{}`", room.name, path[0]);
            faults.push(file.fault(line, format!("{what}; it may use {:?}", room.crates)));
        }
    }
    faults
}

/// `super::` out of the room hides what the table would see.
fn climbs(file: &File) -> Vec<Fault> {
    let inner = file.path.trim_start_matches("src/").trim_end_matches(".rs");
    let depth = inner.trim_end_matches("/mod").split('/').count();
    let climb = "super::".repeat(depth);
    let mut faults = Vec::new();
    for (number, line) in file.program_lines() {
        if line.code.contains(&climb) {
            faults.push(file.fault(number, "leaves its room by `super`: write `crate::`"));
        }
    }
    faults
}

fn impurities(file: &File, excused: &mut [bool]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (line, path) in paths::named(file.program_lines(), &["std"]) {
        for (banned, instead) in IMPURE {
            // Naming what holds it (`use std::time;`, `std::sync::*`) counts, as the rest of the path can come later.
            let holds = starts_with(&split(banned), path.join("::").trim_end_matches("::*"));
            if !starts_with(&path, banned) && !holds {
                continue;
            }
            let exception = EXCEPTIONS
                .iter()
                .position(|e| e.0 == file.path && e.1 == *banned);
            match exception {
                Some(at) => excused[at] = true,
                None => faults.push(file.fault(line, pure(&path.join("::"), instead))),
            }
        }
    }
    for (number, Line { code, .. }) in file.program_lines() {
        for (word, instead) in IMPURE_WORDS {
            if words(code, word).next().is_some() {
                faults.push(file.fault(number, pure(word, instead)));
            }
        }
    }
    faults
}

fn pure(what: &str, instead: &str) -> String {
    format!("a pure room never names `{what}`; it takes {instead}")
}

fn starts_with(path: &[String], prefix: &str) -> bool {
    let prefix = split(prefix);
    path.len() >= prefix.len() && path[..prefix.len()] == prefix
}

fn split(path: &str) -> Vec<String> {
    path.split("::").map(str::to_string).collect()
}

/// `None` for `lib.rs`, which holds no code.
fn room_of(path: &str) -> Option<&str> {
    let inner = path.strip_prefix("src/")?.trim_end_matches(".rs");
    let name = inner.split('/').next()?;
    (name != "lib").then_some(name)
}

/// Names of the dependencies, as code writes them.
fn dependencies(tree: &Tree) -> Vec<String> {
    let manifest = tree.texts.get("Cargo.toml").map_or("", String::as_str);
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
        } else if let (true, Some((name, _))) = (inside, line.split_once('=')) {
            names.push(name.trim().replace('-', "_"));
        }
    }
    names
}

#[test]
fn each_breach_is_seen() {
    let rows: &[(&str, &str, &str)] = &[
        (
            "src/base/time.rs",
            "use crate::wire::json;",
            "`base` may not use `crate::wire::json`",
        ),
        (
            "src/config/raw.rs",
            "use crate::wire::{h1, json};",
            "`config` may not use `crate::wire::h1`",
        ),
        (
            "src/fleet/pick.rs",
            "fn f(x: crate::config::Fleet) {}",
            "`crate::config::Fleet`",
        ),
        (
            "src/shard/mod.rs",
            "use crate::path;",
            "`shard` may not use `crate::path`",
        ),
        (
            "src/wire/sse.rs",
            "use super::super::path;",
            "leaves its room",
        ),
        (
            "src/wire/sse.rs",
            "use tokio::net;",
            "may not use the crate `tokio`",
        ),
        (
            "src/wire/sse.rs",
            "tracing::info!(\"x\");",
            "may not use the crate `tracing`",
        ),
        (
            "src/path/relay.rs",
            "let t = std::time::Instant::now();",
            "never names `std::time::Instant::now`",
        ),
        (
            "src/path/relay.rs",
            "use std::time;",
            "never names `std::time`",
        ),
        (
            "src/path/relay.rs",
            "use std::sync::{Arc, Mutex};",
            "never names `std::sync::Mutex`",
        ),
        (
            "src/path/relay.rs",
            "use std::sync::*;",
            "never names `std::sync::*`",
        ),
        (
            "src/config/raw.rs",
            "std::fs::read(p)",
            "never names `std::fs::read`",
        ),
        (
            "src/stub/load.rs",
            "async fn f() { g().await }",
            "never names `async`",
        ),
        ("src/main.rs", "use narwhal::path;", "`main` may not use"),
        ("src/extra/mod.rs", "", "room `extra` has no row"),
    ];
    for (path, code, want) in rows {
        let manifest = (
            "Cargo.toml",
            "[dependencies]\ntokio = \"1\"\ntracing = { optional = true }\n",
        );
        let found = check(&Tree::of([(*path, *code), manifest]));
        assert!(
            found.iter().any(|fault| fault.what.contains(want)),
            "{code}: {found:?}"
        );
    }
}

#[test]
fn what_is_allowed_passes() {
    let rows: &[(&str, &str)] = &[
        (
            "src/path/relay.rs",
            "use crate::base::time::Instant;\nuse std::sync::Arc;\nuse std::time::Duration;",
        ),
        (
            "src/path/relay.rs",
            "use std::{fmt, time::Duration};\nuse std::sync::atomic::{AtomicU64, Ordering};",
        ),
        (
            "src/path/relay.rs",
            "#[cfg(test)]\nmod tests {\n  use std::thread;\n  use crate::stub::engine;\n}",
        ),
        (
            "src/path/relay.rs",
            "// tokio::spawn\nself.await_head(\"std::fs::read\");",
        ),
        ("src/shard/mod.rs", "use crate::path::exchange::Exchange;"),
        ("src/runtime/clock.rs", "use std::time::Instant;"),
        ("src/wire/sse/tests.rs", "use super::super::sse;"),
    ];
    for (path, code) in rows {
        let found = check(&Tree::of([(*path, *code)]));
        assert!(found.is_empty(), "{code}: {found:?}");
    }
}

#[test]
fn a_needless_exception_is_seen() {
    let found = check(&Tree::of([("src/config/mod.rs", "use std::{fmt, fs};")]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].what.contains("`std::io` is no longer needed"));
}
