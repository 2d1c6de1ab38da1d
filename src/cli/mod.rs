//! The commands; the only room that prints or exits. Exit codes: 0 ok, 1 failed, 2 usage or configuration.

pub mod flags;

pub mod serve;

pub mod router;

pub mod engine;

pub mod simulate;

pub mod demo;

pub mod profile;

pub mod operate;

pub mod topology;

pub mod journal;

use std::fmt;
use std::process::ExitCode;

use clap::Parser;

use flags::{Cli, Command};

/// Why a command ended badly.
#[derive(Debug)]
pub enum Failure {
    /// The command line or a file is at fault.
    Config(String),
    /// Everything was said right, and it did not work.
    Failed(String),
}

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    init_log();
    end_on_panic();
    let done = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Engine(args) => simulate::run(args),
        Command::Profile(args) => profile::run(args),
        Command::Drain(args) => operate::drain(args),
        Command::Readmit(args) => operate::readmit(args),
        Command::Status(args) => operate::status(args),
        Command::Topology(args) => topology::run(args),
        Command::Journal(args) => match args.command {
            flags::JournalCommand::Summarize(args) => journal::summarize(args),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("narwhal: {failure}");
            match failure {
                Failure::Config(_) => ExitCode::from(2),
                Failure::Failed(_) => ExitCode::FAILURE,
            }
        }
    }
}

impl Failure {
    pub fn config(why: impl fmt::Display) -> Self {
        Failure::Config(why.to_string())
    }

    pub fn failed(why: impl fmt::Display) -> Self {
        Failure::Failed(why.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Config(why) | Failure::Failed(why) => f.write_str(why),
        }
    }
}

/// A panic of any thread is the end of the process, in every build: without one of its shards a router would go on taking
/// connections that nobody serves. What panicked is said first. Release builds abort by themselves, and leave a core.
fn end_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |why| {
        say(why);
        if cfg!(panic = "unwind") {
            std::process::exit(1);
        }
    }));
}

/// Standard error, at `info` unless `NARWHAL_LOG` says otherwise (the syntax of `tracing_subscriber::EnvFilter`).
fn init_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("NARWHAL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // A second call, as in tests that run several commands, keeps the first log.
    let _ = tracing_subscriber::fmt()
        // Logs are read by machines, whatever features other crates switch on.
        .with_ansi(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .try_init();
}
