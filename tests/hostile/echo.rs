//! Engines that answer each prompt with its own mark: whatever ends up in somebody else's answer is known by it.
//!
//! A prompt names its mark, and every token of its answer, its text and its id, holds mark and place. So do ids of answers and the KV
//! parameters that the prefill leg hands over, so an engine sees it too when the legs of two requests are mixed. Each connection has
//! a thread. An engine has a mood, which the test sets while it runs, and all of them commit faults by chance.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use narwhal::base::prng::Prng;
use serde_json::{Value, json};

use super::ask;
use super::client::read_uninterrupted;
use super::engine::{lock, reset};

/// How an engine feels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mood {
    Well,
    /// Its process is gone: what was open is reset, connections are refused.
    Dead,
    /// It is stopped: the kernel takes connections and bytes for it, and it does nothing with them.
    Frozen,
    /// New work is answered 500, and its health is 200.
    Drains,
    /// Streams end with a reset after two tokens, other answers before they begin.
    Resets,
    /// Answers come a byte at a time.
    Drips,
    /// What it sends is no HTTP, or turns into no HTTP.
    Garbage,
    /// A connection that is used again is closed at that moment.
    Stale,
    /// The same, and new ones are reset once a request is there: what the last moments of a process look like.
    Leaving,
}

impl Mood {
    pub const ALL: [Mood; 9] = [
        Mood::Well,
        Mood::Dead,
        Mood::Frozen,
        Mood::Drains,
        Mood::Resets,
        Mood::Drips,
        Mood::Garbage,
        Mood::Stale,
        Mood::Leaving,
    ];
}

/// See the head of this file.
pub struct Echo {
    shared: Arc<Shared>,
    pub ports: Vec<u16>,
}

struct Shared {
    engines: Vec<Engine>,
    /// Of a thousand legs so many fail in some way.
    faults: AtomicU64,
    /// From token to token, in microseconds.
    pace_us: AtomicU64,
    chance: Mutex<Prng>,
    /// The mark of each request of the router, by its id.
    marks: Mutex<BTreeMap<String, u64>>,
    mixed: Mutex<Vec<String>>,
    stopping: AtomicBool,
}

struct Engine {
    mood: AtomicU8,
    legs: AtomicU64,
    open: Mutex<Vec<Arc<TcpStream>>>,
}

impl Echo {
    pub fn start(count: usize) -> Echo {
        let engine = |_| Engine {
            mood: AtomicU8::new(Mood::Well as u8),
            legs: AtomicU64::new(0),
            open: Mutex::default(),
        };
        let shared = Arc::new(Shared {
            engines: (0..count).map(engine).collect(),
            faults: AtomicU64::new(0),
            pace_us: AtomicU64::new(0),
            chance: Mutex::new(Prng::new(7)),
            marks: Mutex::default(),
            mixed: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let ports = (0..count).map(|index| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
            let port = listener.local_addr().expect("an address").port();
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&shared, listener, index, port));
            port
        });
        let ports = ports.collect();
        Echo { shared, ports }
    }

    pub fn set_mood(&self, engine: usize, mood: Mood) {
        let state = &self.shared.engines[engine];
        state.mood.store(mood as u8, SeqCst);
        if mood == Mood::Dead {
            for stream in lock(&state.open).drain(..) {
                reset(&stream);
                let _ = stream.shutdown(Shutdown::Both);
            }
            // Wakes the accept.
            drop(TcpStream::connect((
                Ipv4Addr::LOCALHOST,
                self.ports[engine],
            )));
        }
    }

    /// Of a thousand legs so many fail.
    pub fn set_faults(&self, thousandths: u64) {
        self.shared.faults.store(thousandths, SeqCst);
    }

    pub fn set_pace(&self, pace: Duration) {
        let us = u64::try_from(pace.as_micros()).expect("a short time");
        self.shared.pace_us.store(us, SeqCst);
    }

    /// Legs that an engine was asked for so far.
    pub fn legs(&self, engine: usize) -> u64 {
        self.shared.engines[engine].legs.load(SeqCst)
    }

    /// Fails when a leg carried what belongs to another request.
    pub fn assert_unmixed(&self) {
        let mixed = lock(&self.shared.mixed);
        assert!(mixed.is_empty(), "mixed up: {mixed:?}");
    }

    /// Forgets whose request was whose, for runs without end.
    pub fn forget(&self) {
        lock(&self.shared.marks).clear();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.shared.stopping.store(true, SeqCst);
        for engine in 0..self.ports.len() {
            self.set_mood(engine, Mood::Dead);
        }
    }
}

impl Engine {
    fn mood(&self) -> Mood {
        Mood::ALL[usize::from(self.mood.load(SeqCst))]
    }
}

/// The connection is at its end.
struct Over;

type Goes = Result<(), Over>;

fn accept(shared: &Arc<Shared>, listener: TcpListener, index: usize, port: u16) {
    let engine = &shared.engines[index];
    let mut listener = Some(listener);
    loop {
        match listener.as_ref().map(TcpListener::accept) {
            Some(Ok((stream, _))) if engine.mood() != Mood::Dead => {
                let shared = Arc::clone(shared);
                thread::spawn(move || serve(&shared, stream, index));
            }
            Some(Ok(_)) => listener = None,
            Some(Err(_)) => pause(),
            None if shared.stopping.load(SeqCst) => return,
            None if engine.mood() == Mood::Dead => pause(),
            None => listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok(),
        }
    }
}

fn pause() {
    thread::park_timeout(Duration::from_millis(1));
}

fn serve(shared: &Shared, stream: TcpStream, index: usize) {
    let _ = stream.set_nodelay(true);
    let stream = Arc::new(stream);
    let engine = &shared.engines[index];
    lock(&engine.open).push(Arc::clone(&stream));
    let mut line = Line {
        shared,
        engine,
        stream: Arc::clone(&stream),
        buf: Vec::new(),
        out: Vec::new(),
        requests: 0,
    };
    while line.exchange().is_ok() {}
    lock(&engine.open).retain(|other| !Arc::ptr_eq(other, &stream));
}

/// One connection.
struct Line<'a> {
    shared: &'a Shared,
    engine: &'a Engine,
    stream: Arc<TcpStream>,
    buf: Vec<u8>,
    out: Vec<u8>,
    requests: u64,
}

/// What goes wrong with one leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Status(u16),
    /// The connection ends before a byte of the answer, or where the answer is half out.
    Close,
    Reset,
    HalfClose,
    HalfReset,
    Garbage,
    /// Bytes behind the answer.
    Trailing,
    /// Closed behind the answer, without having said so.
    Leaves,
    BadIds,
    NoDone,
    Abort,
    /// An error in a 200.
    Error,
    /// A byte a write.
    Drips,
}

const BY_CHANCE: [Fault; 14] = [
    Fault::Status(500),
    Fault::Status(503),
    Fault::Status(429),
    Fault::Close,
    Fault::Reset,
    Fault::HalfClose,
    Fault::HalfReset,
    Fault::Garbage,
    Fault::Trailing,
    Fault::Leaves,
    Fault::BadIds,
    Fault::NoDone,
    Fault::Abort,
    Fault::Error,
];

impl Line<'_> {
    fn exchange(&mut self) -> Goes {
        let (head, body) = self.request()?;
        self.requests += 1;
        let target = head.split(' ').nth(1).unwrap_or("/");
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if !target.starts_with("/v1/") && target != "/tokenize" || target == "/v1/models" {
            return self.page(target);
        }
        self.engine.legs.fetch_add(1, SeqCst);
        let fault = self.fault();
        match fault {
            Some(Fault::Status(status)) => {
                let answer = json!({"error": {"message": "cannot schedule new futures after shutdown", "code": status}});
                return self.whole(status, &answer.to_string());
            }
            Some(Fault::Close) => return Err(Over),
            Some(Fault::Reset) => return self.broken(true),
            Some(Fault::Garbage) if self.draw(2) == 0 => {
                self.write(b"\x16\x03\x01 what?\r\n\r\n")?;
                return Err(Over);
            }
            _ => {}
        }
        let Some(mark) = ask::mark_of(&body) else {
            return self.whole(400, r#"{"error":{"message":"no mark","code":400}}"#);
        };
        self.compare(&head, &body, mark);
        if target == "/tokenize" {
            let answer = json!({"count": 3, "max_model_len": 131_072, "tokens": [1, 2, 3]});
            self.answered(fault, &answer.to_string())
        } else if body["stream"] == true {
            self.stream(&body, mark, fault)
        } else {
            let answer = json!({
                "id": format!("cmpl-{mark}"), "object": "text_completion",
                "choices": [{"index": 0, "text": ask::token(mark, 0), "finish_reason": "length"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
                "kv_transfer_params": {
                    "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [mark],
                    "remote_engine_id": format!("m{mark}"), "remote_host": "127.0.0.1", "remote_port": 5600,
                },
            });
            self.answered(fault, &answer.to_string())
        }
    }

    fn page(&mut self, target: &str) -> Goes {
        match target {
            "/health" => self.whole(200, ""),
            "/version" => self.whole(200, r#"{"version":"0.0.0-echo"}"#),
            "/v1/models" => self.whole(200, r#"{"object":"list","data":[{"id":"stub-model"}]}"#),
            _ => self.whole(404, "{}"),
        }
    }

    /// What is wrong with this leg: the engine's mood says, or chance.
    fn fault(&self) -> Option<Fault> {
        match self.engine.mood() {
            Mood::Drains => return Some(Fault::Status(500)),
            Mood::Resets => return Some(Fault::HalfReset),
            Mood::Drips => return Some(Fault::Drips),
            Mood::Garbage => return Some(Fault::Garbage),
            Mood::Stale | Mood::Leaving if self.requests > 1 => return Some(Fault::Close),
            Mood::Leaving => return Some(Fault::Reset),
            _ => {}
        }
        let rate = self.shared.faults.load(SeqCst);
        let struck = rate > 0 && self.draw(1000) < rate;
        struck.then(|| BY_CHANCE[self.draw(BY_CHANCE.len() as u64) as usize])
    }

    fn draw(&self, below: u64) -> u64 {
        lock(&self.shared.chance).below(below)
    }

    /// Whether all that this leg carries is of one request.
    fn compare(&self, head: &str, body: &Value, mark: u64) {
        let mut wrong = Vec::new();
        let handoff = &body["kv_transfer_params"];
        if let Some(from) = handoff["remote_engine_id"].as_str() {
            let blocks = json!([mark]);
            if from != format!("m{mark}") || handoff["remote_block_ids"] != blocks {
                wrong.push(format!("handoff {handoff} in a leg of {mark}"));
            }
        }
        if let Some(other) = ask::foreign(&body.to_string(), mark) {
            wrong.push(format!("{other} in a leg of {mark}"));
        }
        let lower = head.to_ascii_lowercase();
        let id = lower.split("x-request-id: ").nth(1);
        let id = id.and_then(|rest| rest.get(..36)).unwrap_or_default();
        let known = *lock(&self.shared.marks)
            .entry(id.to_owned())
            .or_insert(mark);
        if id.is_empty() || known != mark {
            wrong.push(format!("request {id:?} of {known} has a leg of {mark}"));
        }
        lock(&self.shared.mixed).extend(wrong);
    }

    fn stream(&mut self, body: &Value, mark: u64, fault: Option<Fault>) -> Goes {
        let chat = body["messages"].is_array();
        let cap = ["max_completion_tokens", "max_tokens"];
        let cap = cap.iter().find_map(|name| body[name].as_u64());
        let tokens = cap.unwrap_or(16);
        let strikes_at = match fault {
            Some(_) if self.engine.mood() == Mood::Well => self.draw(tokens + 1),
            _ => 2,
        };
        self.put(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
        if tokens > ask::TOKENS_MAX {
            return self.flood(chat, mark, tokens);
        }
        for index in 0..tokens {
            if index == strikes_at {
                match fault {
                    Some(Fault::HalfClose | Fault::HalfReset) => {
                        // In the middle of an event.
                        self.put(b"40\r\ndata: {\"id\":");
                        self.flush(false)?;
                        return self.broken(fault == Some(Fault::HalfReset));
                    }
                    Some(Fault::Garbage) => {
                        self.put(b"zz\r\n\x00\xff{{{{");
                        self.flush(false)?;
                        return Err(Over);
                    }
                    Some(Fault::BadIds) => self
                        .chunk(r#"data: {"choices":[{"index":0,"text":"x","token_ids":[1.5]}]}"#),
                    Some(Fault::Error) => {
                        self.chunk(r#"data: {"error":{"message":"secret","code":500}}"#);
                    }
                    Some(Fault::Abort) => {
                        self.chunk(r#"data: {"choices":[{"index":0,"text":"","delta":{},"finish_reason":"abort"}]}"#);
                    }
                    _ => {}
                }
            }
            let event = ask::event(chat, mark, index, tokens);
            self.chunk(&format!("data: {event}"));
            let pace = self.shared.pace_us.load(SeqCst);
            if pace > 0 || index % 4 == mark % 4 {
                self.flush(fault == Some(Fault::Drips))?;
            }
            if pace > 0 {
                thread::park_timeout(Duration::from_micros(pace));
            }
        }
        if fault != Some(Fault::NoDone) {
            self.chunk("data: [DONE]");
        }
        self.put(b"0\r\n\r\n");
        self.ends(fault)
    }

    /// More than anybody checks: the same events over and over, as fast as they are taken.
    fn flood(&mut self, chat: bool, mark: u64, tokens: u64) -> Goes {
        self.flush(false)?;
        const AT_ONCE: u64 = 64;
        for index in 0..AT_ONCE {
            let event = ask::event(chat, mark, index, tokens);
            self.chunk(&format!("data: {event}"));
        }
        let block = std::mem::take(&mut self.out);
        for _ in 0..tokens / AT_ONCE {
            self.write(&block)?;
        }
        Err(Over)
    }

    /// One JSON answer, as far as the fault lets it come.
    fn answered(&mut self, fault: Option<Fault>, body: &str) -> Goes {
        let length = body.len();
        self.put(format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n").as_bytes());
        let half = matches!(
            fault,
            Some(Fault::HalfClose | Fault::HalfReset | Fault::Garbage)
        );
        if half {
            self.put(&body.as_bytes()[..length / 2]);
            self.flush(false)?;
            return self.broken(fault == Some(Fault::HalfReset));
        }
        self.put(body.as_bytes());
        self.ends(fault)
    }

    /// The answer is made: sends what is left of it, and what comes behind it.
    fn ends(&mut self, fault: Option<Fault>) -> Goes {
        if fault == Some(Fault::Trailing) {
            self.put(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\nm");
        }
        self.flush(fault == Some(Fault::Drips))?;
        match fault {
            Some(Fault::Leaves | Fault::Trailing) => Err(Over),
            _ => Ok(()),
        }
    }

    fn whole(&mut self, status: u16, body: &str) -> Goes {
        let length = body.len();
        self.put(format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes());
        self.flush(false)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// An event as a chunk.
    fn chunk(&mut self, event: &str) {
        let size = event.len() + 2;
        self.put(format!("{size:x}\r\n{event}\n\n\r\n").as_bytes());
    }

    fn flush(&mut self, drips: bool) -> Goes {
        let out = std::mem::take(&mut self.out);
        let step = if drips { 1 } else { out.len().max(1) };
        for piece in out.chunks(step) {
            self.write(piece)?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Goes {
        self.awake()?;
        (&*self.stream).write_all(bytes).map_err(|_| Over)
    }

    fn broken(&self, by_reset: bool) -> Goes {
        if by_reset {
            reset(&self.stream);
        }
        Err(Over)
    }

    /// Waits while the engine is frozen.
    fn awake(&self) -> Goes {
        loop {
            match self.engine.mood() {
                Mood::Frozen => pause(),
                Mood::Dead => return Err(Over),
                _ => return Ok(()),
            }
        }
    }

    /// Head and body of the next request.
    fn request(&mut self) -> Result<(String, Vec<u8>), Over> {
        loop {
            if let Some(end) = memchr::memmem::find(&self.buf, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buf[..end]).into_owned();
                let length = head.split("content-length: ").nth(1);
                let length = length.and_then(|rest| rest.split("\r\n").next());
                let length: usize = length.and_then(|text| text.parse().ok()).unwrap_or(0);
                if self.buf.len() >= end + 4 + length {
                    let body = self.buf[end + 4..][..length].to_vec();
                    self.buf.drain(..end + 4 + length);
                    self.awake()?;
                    return Ok((head, body));
                }
            }
            let mut some = [0; 16_384];
            match read_uninterrupted(&mut &*self.stream, &mut some) {
                Ok(n) if n > 0 => self.buf.extend_from_slice(&some[..n]),
                _ => return Err(Over),
            }
        }
    }
}
