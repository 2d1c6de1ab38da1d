//! The command line as data. Values are checked where they are used, so that a file and a flag get the same words.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// A thread-per-core router for LLM inference engines.
#[derive(Debug, Parser)]
#[command(name = "narwhal", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Route requests to a fleet of engines.
    Serve(Serve),
}

/// Flags override the `runtime` section of the fleet file.
#[derive(Debug, Args)]
pub struct Serve {
    /// The fleet file, .json or .toml.
    #[arg(long, value_name = "FILE")]
    pub fleet: PathBuf,
    /// Where clients connect; may be given several times [default: 127.0.0.1:8000].
    #[arg(long, value_name = "A:P")]
    pub listen: Vec<SocketAddr>,
    /// Where the admin routes live, apart from the clients' port.
    #[arg(long, value_name = "A:P")]
    pub admin_listen: Option<SocketAddr>,
    /// Pinned threads [default: one per core the process may use].
    #[arg(long, value_name = "N")]
    pub shards: Option<usize>,
    /// Cores to pin to, as 0-3,8.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Memory nodes: off, auto (spread over them) or the number of one.
    #[arg(long, value_name = "off|auto|N")]
    pub numa: Option<String>,
    /// How shards ask the kernel [default: auto].
    #[arg(long, value_name = "auto|io_uring|epoll")]
    pub driver: Option<String>,
    /// The name this router goes by in state and metrics [default: random].
    #[arg(long, value_name = "ID")]
    pub router_id: Option<String>,
}
