//! Help, versions, and what a command line is refused for.

use crate::child::run;
use crate::files::fleet_file;
use crate::serve::FLEET;

/// A command and what its help must name.
const COMMANDS: &[(&[&str], &[&str])] = &[
    (&[], &["serve", "demo", "engine", "profile", "topology"]),
    (
        &["serve"],
        &[
            "--fleet",
            "--listen",
            "--admin-listen",
            "--shards",
            "--cpus",
            "--numa",
            "--driver",
            "--router-id",
            "--journal",
            "--journal-max-bytes",
            "--journal-files",
            "--journal-queue",
        ],
    ),
    (&["demo"], &["--port", "--engines"]),
    (&["journal"], &["summarize"]),
    (&["journal", "summarize"], &["FILE", "--json"]),
    (
        &["topology"],
        &["--shards", "--cpus", "--numa", "--fleet", "--json"],
    ),
    (
        &["profile"],
        &[
            "--fleet",
            "--out",
            "--resume",
            "--prompts",
            "--contexts",
            "--concurrency",
        ],
    ),
    (
        &["engine"],
        &[
            "--listen",
            "--dialect",
            "--role",
            "--ttft-ms",
            "--tpot-ms",
            "--model",
            "--driver",
        ],
    ),
];

// proves R-CLI-1, R-CLI-2, R-CLI-3, R-CLI-7
#[test]
fn every_command_tells_its_help_and_its_version() {
    for (command, flags) in COMMANDS {
        for flag in ["--help", "-h"] {
            let ended = run(&[command, &[flag][..]].concat());
            assert_eq!((ended.code, &ended.err[..]), (Some(0), ""), "{command:?}");
            for name in *flags {
                assert!(
                    ended.out.contains(name),
                    "{command:?}: {name}: {}",
                    ended.out
                );
            }
        }
        for flag in ["--version", "-V"] {
            let ended = run(&[command, &[flag][..]].concat());
            assert_eq!(ended.code, Some(0), "{command:?}");
            assert!(ended.out.starts_with("narwhal"), "{}", ended.out);
            let version = env!("CARGO_PKG_VERSION");
            assert!(ended.out.trim_end().ends_with(version), "{}", ended.out);
        }
    }
}

/// Flags of the contract that are not built are not offered.
// proves R-CLI-1
#[test]
fn what_is_not_built_is_not_offered() {
    let fleet = fleet_file("not-built", "json", FLEET);
    let fleet = fleet.to_str().expect("a path in UTF-8");
    let rows: &[&[&str]] = &[&["serve", "--fleet", fleet, "--standby-of", "http://h"]];
    for args in rows {
        let ended = run(args);
        assert_eq!(ended.code, Some(2), "{args:?}");
        assert!(ended.err.contains("unexpected argument"), "{}", ended.err);
    }
}

// proves R-CLI-1, R-CLI-2, R-CLI-3
#[test]
fn a_wrong_command_line_is_2_and_says_what_is_wrong() {
    let fleet = fleet_file("usage", "json", FLEET);
    let fleet = fleet.to_str().expect("a path in UTF-8");
    let on_any = ["engine", "--listen", "127.0.0.1:0"];
    let with = |more: &[&'static str]| [&on_any[..], more].concat();
    let serve = |more: &[&'static str]| [&["serve", "--fleet", fleet][..], more].concat();
    // the arguments, and pieces of the answer
    let rows: Vec<(Vec<&str>, &[&str])> = vec![
        (vec![], &["Usage: narwhal <COMMAND>"]),
        (vec!["serv"], &["unrecognized subcommand 'serv'", "'serve'"]),
        (vec!["serve"], &["--fleet <FILE>"]),
        (vec!["serve", "--flee", "f"], &["'--flee'", "'--fleet'"]),
        (
            serve(&["--listen", "localhost:1"]),
            &["'localhost:1'", "--listen"],
        ),
        (
            serve(&["--shards", "0"]),
            &["shards: 0 is outside 1 to 1024"],
        ),
        (serve(&["--cpus", "3-1"]), &["--cpus 3-1: ", "0-3,8"]),
        (serve(&["--numa", "on"]), &["--numa on: ", "off, auto"]),
        (
            serve(&["--driver", "uring"]),
            &["--driver uring: ", "io_uring, epoll"],
        ),
        (
            vec!["demo", "--port", "70000"],
            &["'70000'", "--port <P>", "0..=65535"],
        ),
        (
            vec!["demo", "--engines", "0"],
            &["'0'", "--engines <N>", "1..=64"],
        ),
        (vec!["demo", "--engines", "65"], &["'65'", "1..=64"]),
        (vec!["engine"], &["--listen <A:P>"]),
        (
            with(&["--role", "decoder"]),
            &["'decoder'", "prefill, decode, both"],
        ),
        (
            with(&["--role", "prefill", "--role", "decode"]),
            &["--role: given 2 times for 1 --listen"],
        ),
        (with(&["--dialect", "sglang2"]), &["'sglang2'", "sglang"]),
        (with(&["--dialect", "tgi"]), &["'tgi'", "vllm"]),
        (
            with(&["--driver", "kqueue"]),
            &["'kqueue'", "auto, io_uring, epoll"],
        ),
        (
            with(&["--ttft-ms", "-1"]),
            &["'-1'", "milliseconds from 0 to 86400000"],
        ),
        (
            with(&["--ttft-ms", "nan"]),
            &["'nan'", "milliseconds from 0 to 86400000"],
        ),
        (
            with(&["--tpot-ms", "1e9"]),
            &["'1e9'", "milliseconds from 0 to 86400000"],
        ),
        (with(&["--cpu", "99999"]), &["--cpu 99999: no such core"]),
    ];
    for (args, want) in rows {
        let ended = run(&args);
        assert_eq!(ended.code, Some(2), "{args:?}: {}{}", ended.out, ended.err);
        assert_eq!(ended.out, "", "{args:?}");
        for piece in want {
            assert!(
                ended.err.contains(piece),
                "{args:?}: {piece:?} in:\n{}",
                ended.err
            );
        }
    }
}
