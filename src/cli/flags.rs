//! The command line as data. Values are checked where they are used, so that a file and a flag get the same words.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::{Dialect, Driver, Role};
use crate::control::journal::FILE_BYTES_MIN;

/// The drivers that this build has.
const DRIVERS: &str = if cfg!(feature = "rt-glommio") {
    "auto|io_uring|epoll|glommio"
} else {
    "auto|io_uring|epoll"
};

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
    /// Try it: a router and simulated engines in one process.
    Demo(Demo),
    /// Stand in for a real engine on the wire.
    Engine(Engine),
    /// Measure the engines of a fleet, and write their profiles.
    Profile(Profile),
    /// Take engines out of placement, so that they can be stopped.
    Drain(Drain),
    /// Take engines back, once they are well.
    Readmit(Readmit),
    /// Show what a router does and how its engines stand.
    Status(Status),
    /// Show cores, memory nodes and network cards, and the plan of shards that `serve` would use.
    Topology(Topology),
    /// Read journals of `serve --journal`.
    Journal(Journal),
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
    #[command(flatten)]
    pub place: Place,
    /// How shards ask the kernel [default: auto].
    #[arg(long, value_name = DRIVERS)]
    pub driver: Option<String>,
    /// The name this router goes by in state and metrics [default: random].
    #[arg(long, value_name = "ID")]
    pub router_id: Option<String>,
    /// Take up what `recovery.state_path` remembers.
    #[arg(long)]
    pub resume: bool,
    #[command(flatten)]
    pub journal: JournalFile,
}

/// Where a row of each request is kept.
#[derive(Clone, Debug, Args)]
pub struct JournalFile {
    /// Write a row of each request there, JSON lines; /dev/stdout and pipes will do [default: none is written].
    #[arg(long, value_name = "PATH")]
    pub journal: Option<PathBuf>,
    /// Move the journal aside before it grows over this, 65536 or more; 0 is never.
    #[arg(long, value_name = "N", default_value_t = 256 << 20, requires = "journal")]
    #[arg(value_parser = journal_bytes)]
    pub journal_max_bytes: u64,
    /// Files kept beside it, PATH.1 the newest, 0 to 1000.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "journal")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub journal_files: u32,
    /// Rows of each shard that may wait to be written, 16 to 1000000; the next ones are dropped and counted.
    #[arg(long, value_name = "N", default_value_t = 4096, requires = "journal")]
    #[arg(value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub journal_queue: u32,
}

#[derive(Debug, Args)]
pub struct Journal {
    #[command(subcommand)]
    pub command: JournalCommand,
}

#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// Outcomes, latencies and each engine's share.
    Summarize(Summarize),
}

/// Lines that are no rows are passed over and counted. Latencies are those of served requests, percentiles within 0.4 %.
#[derive(Debug, Args)]
pub struct Summarize {
    /// Journals, rotated ones too; - is standard input.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// As one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Which router, and the right to ask it.
#[derive(Debug, Args)]
pub struct Admin {
    /// Its admin address, or its clients' port when that answers operators.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub admin: String,
    /// The file with the operators' key.
    #[arg(long, value_name = "FILE")]
    pub admin_key_file: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// New requests go elsewhere; those on the engines finish.
#[derive(Debug, Args)]
pub struct Drain {
    /// Engines by their iid.
    #[arg(value_name = "IID", required_unless_present = "wave")]
    pub engines: Vec<String>,
    /// All of them; the router answers 503 until they are readmitted.
    #[arg(long, conflicts_with = "engines")]
    pub wave: bool,
    /// Seconds after which they may be stopped whatever still runs there.
    #[arg(long, value_name = "S")]
    pub deadline_s: Option<f64>,
    /// Return once they may be stopped.
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub admin: Admin,
}

/// An engine comes back when it answers, serves the model, is what was profiled, hands KV over and is a newer process than the
/// one that was drained.
#[derive(Debug, Args)]
pub struct Readmit {
    /// Engines by their iid.
    #[arg(value_name = "IID", required_unless_present = "wave")]
    pub engines: Vec<String>,
    /// All of them, or none.
    #[arg(long, conflicts_with = "engines")]
    pub wave: bool,
    #[command(flatten)]
    pub admin: Admin,
}

#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    pub admin: Admin,
}

/// Where shards run.
#[derive(Debug, Args)]
pub struct Place {
    /// Pinned threads [default: one per core the process may use].
    #[arg(long, value_name = "N")]
    pub shards: Option<usize>,
    /// Cores to pin to, as 0-3,8.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Memory nodes: off, auto (spread over them) or the number of one.
    #[arg(long, value_name = "off|auto|N")]
    pub numa: Option<String>,
}

/// Takes the flags of `serve` that choose cores, and shows what it would make of them. Starts nothing.
#[derive(Debug, Args)]
pub struct Topology {
    #[command(flatten)]
    pub place: Place,
    /// Plan for the `runtime` section of this fleet file; flags override it.
    #[arg(long, value_name = "FILE")]
    pub fleet: Option<PathBuf>,
    /// As one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Look at the files below this directory in place of this machine's.
    #[arg(long, value_name = "DIR", hide = true)]
    pub root: Option<PathBuf>,
}

/// Loopback only, and no files. SIGTERM or Ctrl-C ends it.
#[derive(Debug, Args)]
pub struct Demo {
    /// Where clients connect on 127.0.0.1; 0 picks a free port.
    #[arg(long, value_name = "P", default_value_t = 8000)]
    pub port: u16,
    /// Simulated engines, 1 to 64: half of them prefill, half decode; a single one serves whole requests.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=64))]
    pub engines: u8,
}

/// Several `--listen` start several engines that hand KV to each other; so do engines in processes of their own.
#[derive(Debug, Args)]
pub struct Engine {
    /// Where the engine listens; may be given several times, for an engine each.
    #[arg(long, value_name = "A:P", required = true)]
    pub listen: Vec<SocketAddr>,
    /// What it speaks.
    #[arg(long, value_name = "vllm|sglang|openai", default_value_t = Dialect::Vllm)]
    pub dialect: Dialect,
    /// Its part in the fleet: once for all, or once per --listen. With sglang it is the disaggregation mode, and both is
    /// none; with the others it is shown at start and each engine answers either leg, as with vLLM and NIXL.
    #[arg(long, value_name = "prefill|decode|both", default_values_t = [Role::Both])]
    pub role: Vec<Role>,
    /// Milliseconds to read a prompt, 0 to 86400000.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true, value_parser = milliseconds)]
    pub ttft_ms: f64,
    /// Milliseconds between tokens, 0 to 86400000.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true, value_parser = milliseconds)]
    pub tpot_ms: f64,
    /// Milliseconds that the KV of a handoff takes to move, 0 to 86400000.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true, value_parser = milliseconds)]
    pub transfer_ms: f64,
    /// Times and limits from a profile file, .json or .toml, in place of --ttft-ms and --tpot-ms.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ttft_ms", "tpot_ms"])]
    pub profile: Option<PathBuf>,
    /// Which profile of the file: once for all engines, or once per --listen [default: the only one].
    #[arg(long, value_name = "IID", requires = "profile")]
    pub iid: Vec<String>,
    /// Tokens of prompts that the prefix cache remembers, 0 is none [default: the profile's kv_capacity_tokens, else 0].
    #[arg(long, value_name = "N")]
    pub prefix_cache_tokens: Option<u64>,
    /// What goes wrong on purpose: a fault script, .json or .toml.
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
    /// Where ids and chance start, for runs that can be repeated [default: random].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Milliseconds of silence after which a stream carries a comment, 1 to 86400000 [default: never].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub sse_keep_alive_ms: Option<u64>,
    /// Share of tokens that come in one event with the next, 0 to 1; a vLLM with 64 streams showed 0.1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub merge_share: f64,
    /// They do so from this many running requests on.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub merge_running_min: u64,
    /// Events that one write may hold when several are due, 1 to 4096.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4_096))]
    pub events_per_write: u16,
    /// Seconds that running requests may go on after SIGTERM, 0 to 86400; 0 ends them with finish_reason "abort".
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true, value_parser = day_seconds)]
    pub shutdown_timeout_s: f64,
    /// The model's name.
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    pub model: String,
    /// Core to pin the engines' thread to [default: not pinned].
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// How the engines ask the kernel.
    #[arg(long, value_name = DRIVERS, default_value_t = Driver::Auto)]
    pub driver: Driver,
}

/// Engines are measured one after the other. They must have no other work meanwhile.
#[derive(Debug, Args)]
pub struct Profile {
    /// The fleet file, .json or .toml.
    #[arg(long, value_name = "FILE")]
    pub fleet: PathBuf,
    /// The profile file to write, .json; rows of engines that are not measured stay.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Measure these engines only; may be given several times [default: all].
    #[arg(long, value_name = "IID")]
    pub engine: Vec<String>,
    /// Go on after a run that was interrupted or refused: points measured then are not measured again.
    #[arg(long)]
    pub resume: bool,
    /// Prompt lengths for the prefill curve, tokens [default: 32, 64, 128, … to the engine's most].
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub prompts: Vec<u64>,
    /// Context lengths of streams for the decode curve, tokens [default: 128, 1024, 8192, … and what fills the KV cache].
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub contexts: Vec<u64>,
    /// Numbers of streams at once; the greatest bounds what the router gives the engine [default: 1,2,4,8,16,32,64].
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub concurrency: Vec<u64>,
    /// Each prompt length is measured so often, and the median counts, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub repeats: u16,
    /// And each number of streams with each context length so often, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub decode_repeats: u16,
    /// Tokens of each stream that a decode point is measured on, 2 to 4096.
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=4096))]
    pub window_tokens: u16,
    /// Seconds that one point may take, 1 to 86400.
    #[arg(long, value_name = "S", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub point_timeout_s: u32,
    /// Tokens of prompt and output that one request may have [default: what the engine says].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub len_max: Option<u64>,
    /// Tokens that the engine's KV cache holds [default: what the engine says].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 50))]
    pub kv_capacity_tokens: Option<u64>,
    /// How far off the prefill curve may be on average, as a part of 1. The decode curve's limits are in the fleet file.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = share)]
    pub max_ttft_fit_mape: f64,
    /// Measure decode engines through handoffs of a prefill engine, also when they take plain requests (vllm).
    #[arg(long)]
    pub pairs: bool,
}

fn journal_bytes(text: &str) -> Result<u64, String> {
    let bytes = text
        .parse()
        .ok()
        .filter(|n| *n == 0 || *n >= FILE_BYTES_MIN);
    bytes.ok_or_else(|| format!("not 0, nor a number of bytes from {FILE_BYTES_MIN}"))
}

fn milliseconds(text: &str) -> Result<f64, String> {
    const DAY_MS: f64 = 86_400_000.0;
    let ms = text.parse().ok().filter(|ms| (0.0..=DAY_MS).contains(ms));
    ms.ok_or_else(|| format!("not a number of milliseconds from 0 to {DAY_MS}"))
}

fn day_seconds(text: &str) -> Result<f64, String> {
    const DAY_S: f64 = 86_400.0;
    let seconds = text.parse().ok().filter(|s| (0.0..=DAY_S).contains(s));
    seconds.ok_or_else(|| format!("not a number of seconds from 0 to {DAY_S}"))
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|s| (0.0..=1.0).contains(s));
    share.ok_or_else(|| "not a number from 0 to 1".to_owned())
}
