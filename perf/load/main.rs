//! The load client of the performance suite: closed-loop completions over many connections, every answer checked token by token.
//!
//! Owns its connections and one thread. It warms up, counts between two marks, and lets what is in flight finish. Prints one line of JSON:
//! what was counted, how long things took, and what the processes given by `--watch` used meanwhile. Exit status 1 when an answer was
//! wrong. What it can do is a mode each, a file each.
//!
//! Invariant: a connection has one request in flight.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use narwhal::runtime::boot;
use narwhal::runtime::io::Rt;
use narwhal::runtime::monoio::Monoio;
use serde_json::{Value, json};

use self::answer::Want;
use self::client::Client;
use self::histogram::Histogram;
use self::watch::Used;

mod answer;

mod client;

mod histogram;

mod hold;

mod refused;

mod request;

mod single;

mod watch;

#[path = "../driver.rs"]
mod driver;

#[allow(dead_code, reason = "this end reads")]
#[path = "../stamp.rs"]
mod stamp;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// Where the requests go.
    #[arg(long, value_name = "A:P")]
    target: SocketAddr,
    #[arg(long, value_enum, default_value_t = Mode::Closed)]
    mode: Mode,
    #[arg(long, value_name = "N", default_value_t = 64)]
    connections: u32,
    /// Tokens of each answer.
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: u64,
    /// Token ids of each prompt.
    #[arg(long, value_name = "N", default_value_t = 180)]
    prompt_tokens: u64,
    /// The prompt as a text of numbers, for routers that take no ids.
    #[arg(long)]
    text: bool,
    /// Ask for one JSON answer instead of a stream.
    #[arg(long)]
    whole: bool,
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    model: String,
    /// Engines that the mode `single` also asks itself, for comparison: the one, or prefill and decode.
    #[arg(long, value_name = "A:P[,A:P]", value_delimiter = ',')]
    reference: Vec<SocketAddr>,
    /// Tokens that a held stream gets (mode `hold`).
    #[arg(long, value_name = "N", default_value_t = 2)]
    held_tokens: u64,
    /// The first requests are spread over this, evenly.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    stagger_ms: u64,
    /// Before the count begins.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    warm_ms: u64,
    /// How long is counted.
    #[arg(long, value_name = "MS", default_value_t = 1_500)]
    count_ms: u64,
    /// Stops after so many requests, however long they take, instead (mode `closed`).
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Processes whose CPU and memory are read at both marks.
    #[arg(long, value_name = "PID")]
    watch: Vec<u32>,
    #[arg(long, value_name = "io_uring|epoll|auto", default_value = "auto")]
    driver: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Requests one after the other on every connection.
    Closed,
    /// Every request is to be refused with 429, body of 1 KiB and all; one that comes first and never ends holds the only place.
    Refused,
    /// Opens a stream on every connection and keeps it while the engine is silent.
    Hold,
    /// One request at a time, in turn with the engines asked directly.
    Single,
}

/// What all connections share.
pub struct Load {
    args: Args,
    next: Cell<u64>,
    tokens: Cell<u64>,
    /// Reads that brought a token.
    reads: Cell<u64>,
    requests: Cell<u64>,
    stop: Cell<bool>,
    live: Cell<u32>,
    fault: RefCell<Option<String>>,
    times: RefCell<Times>,
}

/// Between the marks, in nanoseconds.
#[derive(Default)]
pub struct Times {
    /// From request to first token.
    ttft: Histogram,
    /// From token to token, as they are read.
    gap: Histogram,
    /// From the engine's write to the client's read.
    relay: Histogram,
    /// From request to the end of its answer.
    total: Histogram,
}

impl Times {
    /// Adds them to a report.
    fn tell(&self, mut report: Value) -> Value {
        for (name, times) in [
            ("ttft", &self.ttft),
            ("gap", &self.gap),
            ("relay", &self.relay),
            ("total", &self.total),
        ] {
            report[name] = times.report();
        }
        report
    }
}

/// From the end of the count on, answers in flight may take this long.
const DRAIN: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = driver::choose(&args.driver).and_then(boot::runtime);
    let mut runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("load: {error}");
            return ExitCode::from(2);
        }
    };
    let load = Rc::new(Load::new(args));
    let report = runtime.block_on(async {
        match load.args.mode {
            Mode::Closed => closed::<Monoio>(&load).await,
            Mode::Refused => refused::measure::<Monoio>(&load).await,
            Mode::Hold => hold::measure::<Monoio>(&load).await,
            Mode::Single => single::measure::<Monoio>(&load).await,
        }
    });
    println!("{report}");
    ExitCode::from(u8::from(!report["fault"].is_null()))
}

/// Requests one after the other on every connection.
async fn closed<R: Rt>(load: &Rc<Load>) -> Value {
    for index in 0..load.args.connections {
        load.start::<R>(index, stream_after_stream::<R>(load.clone()));
    }
    if load.args.requests.is_none() {
        return load.count::<R>().await;
    }
    let before = load.mark();
    while load.live.get() > 0 {
        R::sleep(Duration::from_millis(5)).await;
    }
    let times = load.times.take();
    times.tell(load.report(&before, &load.mark()))
}

async fn stream_after_stream<R: Rt>(load: Rc<Load>) -> Result<(), String> {
    let mut client = Client::<R>::connect(load.args.target).await?;
    while !load.stop.get() && load.next.get() < load.args.requests.unwrap_or(u64::MAX) {
        let want = load.want();
        let mut seen = Seen::new(&load);
        request::completion(&load.args, want.tag, &mut client.out);
        client.exchange(want, |tokens| seen.tokens(tokens)).await?;
        seen.end();
    }
    Ok(())
}

/// One request's moments.
pub struct Seen<'a> {
    load: &'a Load,
    sent_ns: u64,
    last_ns: u64,
}

impl<'a> Seen<'a> {
    pub fn new(load: &'a Load) -> Seen<'a> {
        Seen {
            load,
            sent_ns: stamp::now_ns(),
            last_ns: 0,
        }
    }

    /// Takes what one read brought.
    fn tokens(&mut self, read: client::Read) {
        let mut times = self.load.times.borrow_mut();
        for under_way in read.under_way_ns {
            match self.last_ns {
                0 => times.ttft.add(read.at_ns - self.sent_ns),
                last => times.gap.add(read.at_ns - last),
            }
            self.last_ns = read.at_ns;
            times.relay.add(*under_way);
        }
        let count = read.under_way_ns.len() as u64;
        self.load.tokens.set(self.load.tokens.get() + count);
        let reads = self.load.reads.get() + u64::from(count > 0);
        self.load.reads.set(reads);
    }

    fn end(&self) {
        let total = stamp::now_ns() - self.sent_ns;
        self.load.times.borrow_mut().total.add(total);
        self.load.requests.set(self.load.requests.get() + 1);
    }
}

impl Load {
    fn new(args: Args) -> Load {
        Load {
            args,
            next: Cell::default(),
            tokens: Cell::default(),
            reads: Cell::default(),
            requests: Cell::default(),
            stop: Cell::default(),
            live: Cell::default(),
            fault: RefCell::default(),
            times: RefCell::default(),
        }
    }

    /// What the next request is answered with.
    fn want(&self) -> Want {
        let number = self.next.replace(self.next.get() + 1);
        Want {
            // Seven digits, so that all requests have the same length.
            tag: 1_000_000 + number % 9_000_000,
            tokens: self.args.tokens,
            whole: self.args.whole,
        }
    }

    /// Starts a connection's task, in its turn.
    fn start<R: Rt>(
        self: &Rc<Load>,
        index: u32,
        task: impl Future<Output = Result<(), String>> + 'static,
    ) {
        self.live.set(self.live.get() + 1);
        let load = self.clone();
        R::spawn(async move {
            let share = f64::from(index) / f64::from(load.args.connections);
            let wait = (load.args.stagger_ms as f64 * share) as u64;
            if wait > 0 {
                R::sleep(Duration::from_millis(wait)).await;
            }
            if let Err(why) = task.await {
                load.fail(why);
            }
            load.live.set(load.live.get() - 1);
        });
    }

    fn fail(&self, why: String) {
        self.fault.borrow_mut().get_or_insert(why);
        self.stop.set(true);
    }

    /// Warms up, counts, and waits for what is in flight.
    async fn count<R: Rt>(&self) -> Value {
        let ms = Duration::from_millis;
        R::sleep(ms(self.args.warm_ms + self.args.stagger_ms)).await;
        *self.times.borrow_mut() = Times::default();
        let before = self.mark();
        R::sleep(ms(self.args.count_ms)).await;
        let after = self.mark();
        let times = self.times.take();
        self.stop.set(true);
        self.drain::<R>().await;
        times.tell(self.report(&before, &after))
    }

    async fn drain<R: Rt>(&self) {
        let end = stamp::now_ns() + DRAIN.as_nanos() as u64;
        while self.live.get() > 0 && stamp::now_ns() < end {
            R::sleep(Duration::from_millis(5)).await;
        }
        if self.live.get() > 0 {
            self.fail(format!("{} answers did not end", self.live.get()));
        }
    }

    fn mark(&self) -> Mark {
        let watched = self.args.watch.iter().map(|pid| Used::of(*pid)).collect();
        Mark {
            at_ns: stamp::now_ns(),
            tokens: self.tokens.get(),
            reads: self.reads.get(),
            requests: self.requests.get(),
            own: Used::of(std::process::id()),
            watched,
        }
    }

    fn report(&self, before: &Mark, after: &Mark) -> Value {
        let pairs = before.watched.iter().zip(&after.watched);
        let watched: Vec<Value> = pairs.map(|(a, b)| Used::report(*a, *b)).collect();
        json!({
            "seconds": (after.at_ns - before.at_ns) as f64 / 1e9,
            "events": after.tokens - before.tokens,
            "reads": after.reads - before.reads,
            "requests": after.requests - before.requests,
            "own": Used::report(before.own, after.own),
            "watched": watched,
            "fault": *self.fault.borrow(),
        })
    }
}

struct Mark {
    at_ns: u64,
    tokens: u64,
    reads: u64,
    requests: u64,
    own: Used,
    watched: Vec<Used>,
}
