//! The load client of `perf/compare.py`: closed-loop completions over many connections, every answer checked token by token.
//!
//! Owns its connections and one thread. Knows what the simulated engine must answer to each prompt, and compares: a stream must have
//! one event per token, each with its piece of text, in order, then the last event's reason and `[DONE]`; an assembled answer must hold
//! the same text in one. Prompts differ from request to request, so a token of another stream shows too. Warms up, counts for a
//! while, and lets what is in flight finish. Prints one line of JSON: what was counted between the marks, and the clock ticks that the
//! processes given by `--watch` used meanwhile. Exit status 1 when an answer was wrong.
//!
//! Invariant: a connection has one request in flight; unread bytes per connection ≤ one read + one event.

use std::cell::{Cell, RefCell};
use std::fs;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use memchr::memmem;
use narwhal::base::time::Clock;
use narwhal::runtime::boot::{self, DriverChoice};
use narwhal::runtime::clock::MonotonicClock;
use narwhal::runtime::io::{ReadHalf, Rt, WriteHalf};
use narwhal::runtime::monoio::Monoio;
use narwhal::stub::text;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Args {
    /// Where the requests go.
    #[arg(long, value_name = "A:P")]
    target: SocketAddr,
    #[arg(long, value_name = "N", default_value_t = 64)]
    connections: u32,
    /// Tokens of each answer.
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: u64,
    /// Ask for one JSON answer instead of a stream.
    #[arg(long)]
    whole: bool,
    /// Every request is to be refused with 429, body of 1 KiB and all; one that comes first and never ends holds the only place.
    #[arg(long)]
    refused: bool,
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    model: String,
    /// The first requests are spread over this, evenly.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    stagger_ms: u64,
    /// Before the count begins.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    warm_ms: u64,
    /// How long is counted.
    #[arg(long, value_name = "MS", default_value_t = 1_500)]
    count_ms: u64,
    /// Processes whose CPU time is read at both marks.
    #[arg(long, value_name = "PID")]
    watch: Vec<u32>,
    #[arg(long)]
    epoll: bool,
}

/// From the end of the count on, answers in flight may take this long.
const DRAIN: Duration = Duration::from_secs(20);

const READ_BYTES: usize = 32 << 10;

struct Load {
    args: Args,
    next: Cell<u64>,
    events: Cell<u64>,
    requests: Cell<u64>,
    stop: Cell<bool>,
    live: Cell<u32>,
    fault: RefCell<Option<String>>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let choice = if args.epoll {
        DriverChoice::Epoll
    } else {
        DriverChoice::Auto
    };
    let runtime = boot::choose_driver(choice).and_then(|(driver, _)| boot::runtime(driver));
    let mut runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("load: {error}");
            return ExitCode::from(2);
        }
    };
    let load = Rc::new(Load {
        live: Cell::new(args.connections),
        args,
        next: Cell::default(),
        events: Cell::default(),
        requests: Cell::default(),
        stop: Cell::default(),
        fault: RefCell::default(),
    });
    runtime.block_on(measure(load))
}

async fn measure(load: Rc<Load>) -> ExitCode {
    let clock = MonotonicClock::new();
    let mut held = None;
    if load.args.refused {
        match hold(load.args.target).await {
            Ok(connection) => held = Some(connection),
            Err(error) => *load.fault.borrow_mut() = Some(format!("hold: {error}")),
        }
    }
    for index in 0..load.args.connections {
        Monoio::spawn(client(load.clone(), index));
    }
    let ms = Duration::from_millis;
    Monoio::sleep(ms(load.args.warm_ms + load.args.stagger_ms)).await;
    let marks = || {
        let ticks: Vec<(u64, u64)> = load.args.watch.iter().map(|pid| ticks(*pid)).collect();
        (clock.now(), load.events.get(), load.requests.get(), ticks)
    };
    let before = marks();
    Monoio::sleep(ms(load.args.count_ms)).await;
    let after = marks();
    load.stop.set(true);
    let end = clock.now() + DRAIN;
    while load.live.get() > 0 && clock.now() < end {
        Monoio::sleep(ms(5)).await;
    }
    drop(held);
    let mut fault = load.fault.borrow_mut();
    if load.live.get() > 0 && fault.is_none() {
        *fault = Some(format!("{} answers did not end", load.live.get()));
    }
    let ticks: Vec<_> = before
        .3
        .iter()
        .zip(&after.3)
        .map(|(a, b)| serde_json::json!({"user": b.0 - a.0, "system": b.1 - a.1}))
        .collect();
    println!(
        "{}",
        serde_json::json!({
            "seconds": after.0.since(before.0).as_secs_f64(),
            "events": after.1 - before.1,
            "requests": after.2 - before.2,
            "ticks": ticks,
            "fault": *fault,
        })
    );
    ExitCode::from(u8::from(fault.is_some()))
}

/// User and system time of a process so far, in clock ticks, all of its threads; fields 14 and 15 of proc(5)'s `stat`.
fn ticks(pid: u32) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may hold anything, so count from its closing parenthesis.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |n: usize| rest.split_ascii_whitespace().nth(n - 3);
    let number = |n| field(n).and_then(|text| text.parse().ok()).unwrap_or(0);
    (number(14), number(15))
}

/// One connection: requests one after the other until told to stop.
async fn client(load: Rc<Load>, index: u32) {
    let share = f64::from(index) / f64::from(load.args.connections);
    Monoio::sleep(Duration::from_millis(
        (load.args.stagger_ms as f64 * share) as u64,
    ))
    .await;
    let served = if load.args.refused {
        refusals(&load).await
    } else {
        requests(&load).await
    };
    if let Err(why) = served {
        load.fault.borrow_mut().get_or_insert(why);
        load.stop.set(true);
    }
    load.live.set(load.live.get() - 1);
}

async fn requests(load: &Load) -> Result<(), String> {
    let connected = Monoio::connect(load.args.target).await;
    let (mut reader, mut writer) = connected.map_err(|error| format!("connect: {error}"))?;
    let mut out = Vec::with_capacity(1_024);
    let mut buf = Vec::with_capacity(READ_BYTES);
    let mut answer = Answer::default();
    while !load.stop.get() {
        let number = load.next.replace(load.next.get() + 1);
        let prompt = format!("narwhal perf {number:010}");
        request(&load.args, &prompt, &mut out);
        let sent;
        (sent, out, writer) = writer.write_all(out, 0).await;
        sent.map_err(|error| format!("send: {error}"))?;
        answer.begin(&prompt, load.args.tokens, load.args.whole);
        while !answer.is_over() {
            let got;
            (got, buf, reader) = reader.read(buf).await;
            match got {
                Ok(0) => return Err(format!("closed after {} events", answer.events)),
                Ok(_) => {}
                Err(error) => return Err(format!("read: {error}")),
            }
            let events = answer.events;
            answer
                .bytes(&buf)
                .map_err(|why| format!("`{prompt}`, event {}: {why}", answer.events))?;
            buf.clear();
            load.events.set(load.events.get() + answer.events - events);
        }
        load.requests.set(load.requests.get() + 1);
    }
    Ok(())
}

/// A request whose body never comes.
async fn hold(target: SocketAddr) -> std::io::Result<impl Sized> {
    let (reader, writer) = Monoio::connect(target).await?;
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 1024\r\n\r\n";
    let (sent, _, writer) = writer.write_all(head.to_vec(), 0).await;
    sent?;
    // It has arrived before the others are sent.
    Monoio::sleep(Duration::from_millis(100)).await;
    Ok((reader, writer))
}

async fn refusals(load: &Load) -> Result<(), String> {
    let connected = Monoio::connect(load.args.target).await;
    let (mut reader, mut writer) = connected.map_err(|error| format!("connect: {error}"))?;
    let body = format!(
        r#"{{"model":"{}","prompt":"{:0>980}"}}"#,
        load.args.model, 7
    );
    let mut out = Vec::with_capacity(2_048);
    let mut buf = Vec::with_capacity(READ_BYTES);
    while !load.stop.get() {
        out.clear();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            load.args.target,
            body.len()
        );
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(body.as_bytes());
        let sent;
        (sent, out, writer) = writer.write_all(out, 0).await;
        sent.map_err(|error| format!("send: {error}"))?;
        while !is_whole_refusal(&buf)? {
            let got;
            (got, buf, reader) = reader.read(buf).await;
            if got.map_err(|error| format!("read: {error}"))? == 0 {
                return Err("closed".to_owned());
            }
        }
        buf.clear();
        load.requests.set(load.requests.get() + 1);
    }
    Ok(())
}

/// Whether all of a 429 with a length is there.
fn is_whole_refusal(bytes: &[u8]) -> Result<bool, String> {
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
        return Ok(false);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    if !head.starts_with("http/1.1 429") {
        return Err(format!("not refused: {head}"));
    }
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
    let length = length.ok_or("a refusal without a length")?;
    Ok(bytes.len() >= end + 4 + length)
}

fn request(args: &Args, prompt: &str, out: &mut Vec<u8>) {
    out.clear();
    let body = format!(
        r#"{{"model":"{}","prompt":"{prompt}","max_tokens":{},"ignore_eos":true,"stream":{}}}"#,
        args.model, args.tokens, !args.whole
    );
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        args.target,
        body.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body.as_bytes());
}

/// One answer as it comes in, and what it must be.
#[derive(Default)]
struct Answer {
    seed: u64,
    tokens: u64,
    whole: bool,
    /// Tokens whose text came.
    events: u64,
    stage: Stage,
    /// Bytes that are not yet used: a part of a head, of a chunk's size line, or of a trailer.
    rest: Vec<u8>,
    /// Payload that is not yet used.
    body: Vec<u8>,
    /// Room for one piece, or all of them.
    piece: Vec<u8>,
    ids: Vec<u32>,
    done: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Head,
    Size,
    /// Bytes of the chunk still to come, its line end included.
    Chunk(usize),
    /// Bytes of the body still to come.
    Length(usize),
    Trailer,
    Over,
}

impl Answer {
    fn begin(&mut self, prompt: &str, tokens: u64, whole: bool) {
        self.ids.clear();
        text::tokenize(prompt.as_bytes(), &mut self.ids);
        self.seed = text::seed(&self.ids);
        (self.tokens, self.whole) = (tokens, whole);
        (self.events, self.stage, self.done) = (0, Stage::Head, false);
    }

    fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Takes what was read.
    fn bytes(&mut self, input: &[u8]) -> Result<(), String> {
        let mut joined = std::mem::take(&mut self.rest);
        let input = if joined.is_empty() {
            input
        } else {
            joined.extend_from_slice(input);
            &joined[..]
        };
        let mut at = 0;
        while let Some(used) = self.step(&input[at..])? {
            at += used;
            if self.stage == Stage::Over {
                break;
            }
        }
        let left = &input[at..];
        if self.stage == Stage::Over {
            if !left.is_empty() {
                return Err("bytes behind the answer".to_owned());
            }
            return self.end();
        }
        self.rest = left.to_vec();
        self.payload()
    }

    /// Uses some of `input`; `None` when there is too little.
    fn step(&mut self, input: &[u8]) -> Result<Option<usize>, String> {
        match self.stage {
            Stage::Head => {
                let Some(end) = memmem::find(input, b"\r\n\r\n") else {
                    return Ok(None);
                };
                self.stage = head(&input[..end + 2])?;
                Ok(Some(end + 4))
            }
            Stage::Size => {
                let Some(end) = memchr::memchr(b'\n', input) else {
                    return Ok(None);
                };
                let line = input[..end].trim_ascii();
                let size = std::str::from_utf8(line)
                    .ok()
                    .and_then(|text| usize::from_str_radix(text, 16).ok())
                    .ok_or("a chunk without a size")?;
                self.stage = match size {
                    0 => Stage::Trailer,
                    size => Stage::Chunk(size + 2),
                };
                Ok(Some(end + 1))
            }
            Stage::Chunk(left) if !input.is_empty() => {
                let taken = left.min(input.len());
                // The last two bytes are the line end.
                let data = taken.min(left.saturating_sub(2));
                self.body.extend_from_slice(&input[..data]);
                self.stage = match left - taken {
                    0 => Stage::Size,
                    left => Stage::Chunk(left),
                };
                Ok(Some(taken))
            }
            Stage::Length(left) if !input.is_empty() => {
                let taken = left.min(input.len());
                self.body.extend_from_slice(&input[..taken]);
                self.stage = match left - taken {
                    0 => Stage::Over,
                    left => Stage::Length(left),
                };
                Ok(Some(taken))
            }
            Stage::Trailer if input.len() >= 2 => {
                if !input.starts_with(b"\r\n") {
                    return Err("no line end behind the last chunk".to_owned());
                }
                self.stage = Stage::Over;
                Ok(Some(2))
            }
            _ => Ok(None),
        }
    }

    /// Checks the events that are complete.
    fn payload(&mut self) -> Result<(), String> {
        if self.whole {
            return Ok(());
        }
        let body = std::mem::take(&mut self.body);
        let mut at = 0;
        while let Some(end) = memmem::find(&body[at..], b"\n\n") {
            self.event(&body[at..at + end])?;
            at += end + 2;
        }
        self.body = body;
        self.body.drain(..at);
        Ok(())
    }

    fn event(&mut self, event: &[u8]) -> Result<(), String> {
        let said = || String::from_utf8_lossy(event).into_owned();
        let Some(value) = event.strip_prefix(b"data: ") else {
            return Err(format!("no event: {}", said()));
        };
        if self.done {
            return Err(format!("after the end: {}", said()));
        }
        if value == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let text = memmem::find(value, TEXT).map(|at| &value[at + TEXT.len()..]);
        let Some(text) = text else {
            return Err(format!("no text: {}", said()));
        };
        if self.events == self.tokens {
            return Err(format!("a token too many: {}", said()));
        }
        self.piece.clear();
        text::piece_json(text::id_at(self.seed, self.events), &mut self.piece);
        self.piece.push(b'"');
        if !text.starts_with(&self.piece) {
            let want = String::from_utf8_lossy(&self.piece);
            return Err(format!("{want} was to come: {}", said()));
        }
        self.events += 1;
        let last = self.events == self.tokens;
        if last != (memmem::find(text, LENGTH).is_some()) {
            return Err(format!("finish reason: {}", said()));
        }
        Ok(())
    }

    /// Checks that nothing is missing.
    fn end(&mut self) -> Result<(), String> {
        self.payload()?;
        if self.whole {
            return self.assembled();
        }
        if self.events != self.tokens || !self.done || !self.body.is_empty() {
            return Err(format!(
                "ended early: [DONE] {}, {} bytes more",
                self.done,
                self.body.len()
            ));
        }
        Ok(())
    }

    fn assembled(&mut self) -> Result<(), String> {
        self.piece.clear();
        self.piece.extend_from_slice(TEXT);
        for index in 0..self.tokens {
            text::piece_json(text::id_at(self.seed, index), &mut self.piece);
        }
        self.piece.push(b'"');
        let count = format!(r#""completion_tokens":{}"#, self.tokens);
        let right = [&self.piece[..], LENGTH, count.as_bytes()]
            .iter()
            .all(|part| memmem::find(&self.body, part).is_some());
        if !right {
            return Err(String::from_utf8_lossy(&self.body).into_owned());
        }
        self.events = self.tokens;
        self.body.clear();
        Ok(())
    }
}

const TEXT: &[u8] = br#""text":""#;
const LENGTH: &[u8] = br#""finish_reason":"length""#;

/// How the body behind this head is framed.
fn head(head: &[u8]) -> Result<Stage, String> {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    if !head.starts_with("http/1.1 200 ") {
        return Err(head);
    }
    for line in head.lines() {
        match line.split_once(':') {
            Some(("transfer-encoding", how)) if how.trim() == "chunked" => return Ok(Stage::Size),
            Some(("content-length", bytes)) => {
                let bytes = bytes.trim().parse().map_err(|_| "content-length")?;
                return Ok(Stage::Length(bytes));
            }
            _ => {}
        }
    }
    Err(format!("no framing: {head}"))
}
