//! The engine of the performance suite: answers completions with the bytes of vLLM 0.32, as cheaply as it can, because it shares a core
//! with the load client. `narwhal engine` is the one that behaves like an engine; this one only writes like one.
//!
//! Owns its connections; one thread. A request's answer depends on its bytes alone, so every listener serves every role. Tokens carry
//! their number, their request and when they were written (`stamp.rs`). Events of one stream go out one a write or several; at once,
//! or at a pace, each stream on its own or all together as an engine's steps make them; or some and then none while the client stays.
//!
//! Invariant: a connection has one request in flight; a request has at most [`REQUEST_BYTES_MAX`].

use std::cell::Cell;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use narwhal::runtime::boot;
use narwhal::runtime::io::{ReadHalf, Rt, WriteHalf};
use narwhal::runtime::monoio::Monoio;
use narwhal::wire::h1::body::{BodyDecoder, Step};
use narwhal::wire::h1::head::{self, Expect, HeadLimits, RequestBody, RequestHead};

use self::answer::Stream;
use self::ask::Ask;

mod answer;

mod ask;

#[path = "../driver.rs"]
mod driver;

#[allow(dead_code, reason = "this end writes")]
#[path = "../stamp.rs"]
mod stamp;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Args {
    /// May be given several times; port 0 picks one.
    #[arg(long, value_name = "A:P", required = true)]
    listen: Vec<SocketAddr>,
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    model: String,
    /// Events, each a chunk, that one write holds.
    #[arg(long, value_name = "N", default_value_t = 1)]
    events_per_write: u64,
    /// From token to token; 0 writes as fast as the connection takes it.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    tpot_ms: f64,
    /// All streams write on the same tick, as one step of an engine makes them.
    #[arg(long)]
    together: bool,
    /// Streams write so many tokens and then nothing until the client leaves.
    #[arg(long, value_name = "N")]
    hold_after: Option<u64>,
    #[arg(long, value_name = "io_uring|epoll|auto", default_value = "auto")]
    driver: String,
}

struct Engine {
    args: Args,
    requests: Cell<u64>,
    /// When the process began, for the common tick.
    zero_ns: u64,
}

const READ_BYTES: usize = 4 << 10;

const REQUEST_BYTES_MAX: usize = 1 << 20;

const BACKLOG: u32 = 4_096;

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = driver::choose(&args.driver).and_then(boot::runtime);
    let mut runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("engine: {error}");
            return ExitCode::from(2);
        }
    };
    let engine = Rc::new(Engine {
        args,
        requests: Cell::new(0),
        zero_ns: stamp::now_ns(),
    });
    match runtime.block_on(serve::<Monoio>(engine)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engine: {error}");
            ExitCode::from(2)
        }
    }
}

async fn serve<R: Rt>(engine: Rc<Engine>) -> std::io::Result<()> {
    let mut listeners = Vec::new();
    for at in &engine.args.listen {
        let listener = R::listen(*at, false, BACKLOG)?;
        println!("engine: listening on {}", R::local_addr(&listener)?);
        listeners.push(listener);
    }
    let last = listeners.pop();
    for listener in listeners {
        R::spawn(accept::<R>(engine.clone(), listener));
    }
    if let Some(listener) = last {
        accept::<R>(engine, listener).await;
    }
    Ok(())
}

async fn accept<R: Rt>(engine: Rc<Engine>, listener: R::Listener) {
    loop {
        match R::accept(&listener).await {
            Ok((reader, writer, _)) => {
                let connection = Connection::<R> {
                    engine: engine.clone(),
                    reader: Some(reader),
                    writer: Some(writer),
                    inbox: Vec::with_capacity(READ_BYTES),
                    out: Vec::with_capacity(1 << 10),
                    stream: Stream::default(),
                };
                R::spawn(connection.serve());
            }
            // Out of descriptors, or the client left the queue.
            Err(_) => R::sleep(Duration::from_millis(10)).await,
        }
    }
}

struct Connection<R: Rt> {
    engine: Rc<Engine>,
    /// Both are away only while an operation has them.
    reader: Option<R::Reader>,
    writer: Option<R::Writer>,
    inbox: Vec<u8>,
    out: Vec<u8>,
    stream: Stream,
}

impl<R: Rt> Connection<R> {
    async fn serve(mut self) {
        while self.exchange().await.is_some() {}
    }

    /// One request and its answer; `None` ends the connection.
    async fn exchange(&mut self) -> Option<()> {
        let head = self.head().await?;
        if head.expect == Expect::Continue {
            self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.send().await?;
        }
        let at = head.head_bytes;
        match head.body {
            RequestBody::None => self.answer(&head, at..at).await?,
            RequestBody::Length(bytes) => {
                let end = at.checked_add(usize::try_from(bytes).ok()?)?;
                while self.inbox.len() < end {
                    self.more().await?;
                }
                self.answer(&head, at..end).await?;
                self.inbox.drain(..end);
                return head.keep_alive.then_some(());
            }
            RequestBody::Chunked => self.unchunk(at).await?,
        }
        if head.body == RequestBody::Chunked {
            self.answer(&head, at..self.inbox.len()).await?;
            self.inbox.clear();
        } else {
            self.inbox.drain(..at);
        }
        head.keep_alive.then_some(())
    }

    async fn head(&mut self) -> Option<RequestHead> {
        const LIMITS: HeadLimits = HeadLimits {
            bytes_max: 1 << 16,
            fields_max: head::FIELDS_MAX,
        };
        let mut scanned = 0;
        loop {
            match head::parse_request(&self.inbox, &mut scanned, &LIMITS) {
                Ok(Some(head)) => return Some(head),
                Ok(None) => self.more().await?,
                Err(_) => return None,
            }
        }
    }

    /// Replaces a chunked body behind `at` by what it holds. Who sends one waits for its answer, so nothing lies behind it.
    async fn unchunk(&mut self, at: usize) -> Option<()> {
        let mut decoder = BodyDecoder::request(RequestBody::Chunked);
        let (mut body, mut seen) = (Vec::new(), at);
        loop {
            match decoder.next(&self.inbox[seen..]).ok()? {
                Step::Piece { data, used } => {
                    body.extend_from_slice(&self.inbox[seen..][data]);
                    seen += used;
                }
                Step::More { used } => {
                    seen += used;
                    self.more().await?;
                }
                Step::End { .. } => break,
            }
        }
        self.inbox.truncate(at);
        self.inbox.extend_from_slice(&body);
        Some(())
    }

    async fn answer(&mut self, head: &RequestHead, body: std::ops::Range<usize>) -> Option<()> {
        let engine = self.engine.clone();
        let path = &self.inbox[head.path.clone()];
        if path != b"/v1/completions" {
            answer::probe(path, &engine.args.model, &mut self.out);
            return self.send().await;
        }
        let body = &self.inbox[body];
        let Some(ask) = Ask::read(body) else {
            answer::refuse(&mut self.out);
            return self.send().await;
        };
        let number = engine.requests.replace(engine.requests.get() + 1);
        if ask.prefill {
            answer::prefill(&ask, &engine.args.model, number, &mut self.out);
            return self.send().await;
        }
        if !ask.stream {
            let pace = Duration::from_secs_f64(engine.args.tpot_ms * ask.tokens as f64 / 1e3);
            if !pace.is_zero() {
                R::sleep(pace).await;
            }
            answer::whole(&ask, body, &engine.args.model, number, &mut self.out);
            return self.send().await;
        }
        let prompt = ask.prompt_ids(body);
        self.stream.begin(&ask, prompt, &engine.args.model, number);
        self.stream.head(&mut self.out);
        self.send().await?;
        self.events(&ask).await
    }

    /// All events of a stream, and its end.
    async fn events(&mut self, ask: &Ask) -> Option<()> {
        let engine = self.engine.clone();
        let most = engine.args.hold_after.unwrap_or(ask.tokens);
        let mut pace = Pace::new(&engine);
        while self.stream.made < ask.tokens.min(most) {
            let left = ask.tokens.min(most) - self.stream.made;
            let count = left.min(engine.args.events_per_write);
            pace.wait::<R>(count).await;
            self.stream.write(count, stamp::now_ns(), &mut self.out);
            // What is sent comes back, ready for the next events of the same size.
            let writer = self.writer.take()?;
            let (sent, out, writer) = writer.write_all(std::mem::take(&mut self.out), 0).await;
            (self.out, self.writer) = (out, Some(writer));
            sent.ok()?;
        }
        if most < ask.tokens {
            self.inbox.clear();
            while self.more().await.is_some() {
                self.inbox.clear();
            }
            return None;
        }
        self.out.clear();
        self.stream.done(&mut self.out);
        self.send().await?;
        self.out.extend_from_slice(b"0\r\n\r\n");
        self.send().await
    }

    /// Reads some; `None` when the client is gone.
    async fn more(&mut self) -> Option<()> {
        if self.inbox.len() == self.inbox.capacity() {
            if self.inbox.len() >= REQUEST_BYTES_MAX {
                return None;
            }
            self.inbox.reserve(self.inbox.len());
        }
        let reader = self.reader.take()?;
        let (got, inbox, reader) = reader.read(std::mem::take(&mut self.inbox)).await;
        (self.inbox, self.reader) = (inbox, Some(reader));
        got.ok().filter(|n| *n > 0).map(drop)
    }

    /// Writes `out` and empties it.
    async fn send(&mut self) -> Option<()> {
        let writer = self.writer.take()?;
        let (sent, out, writer) = writer.write_all(std::mem::take(&mut self.out), 0).await;
        (self.out, self.writer) = (out, Some(writer));
        self.out.clear();
        sent.ok()
    }
}

/// When the next event of a stream is due.
struct Pace {
    every_ns: u64,
    due_ns: u64,
}

impl Pace {
    /// The first token of a stream of its own pace is due at once, of a common one at the next tick.
    fn new(engine: &Engine) -> Pace {
        let (now, zero) = (stamp::now_ns(), engine.zero_ns);
        let every_ns = (engine.args.tpot_ms * 1e6) as u64;
        let due_ns = match engine.args.together {
            true if every_ns > 0 => zero + (now - zero).div_ceil(every_ns) * every_ns,
            _ => now,
        };
        Pace { every_ns, due_ns }
    }

    async fn wait<R: Rt>(&mut self, events: u64) {
        if self.every_ns == 0 {
            return;
        }
        let now = stamp::now_ns();
        if self.due_ns > now {
            R::sleep(Duration::from_nanos(self.due_ns - now)).await;
        }
        self.due_ns += self.every_ns * events;
    }
}
