//! Scripted engines: what a vLLM would answer, and every way in which it may fail.
//!
//! Each engine is a listener on a port of its own; each of its connections has a thread. What a leg gets is the next step of the script
//! under `LEG@ENGINE` or `LEG` (legs: prefill, decode, tokenize, health, models, version; engines count from 0), else what an engine says
//! by default.
//! A list is used up one step per request, and its last step repeats. A step is a JSON object:
//!
//! - `{"default": true}`: the default answer.
//! - `status` 200, `headers`, `framing` chunked|length|close, `chunks`, `delay_ms` before the head; or `body` (text or JSON) in one piece.
//! - `raw`: items sent as they are, head included.
//!
//! An item is a text, `{"hex": …}`, `{"delay_ms": n}`, `{"close": true}` (FIN), `{"reset": true}` (RST), `{"hang": true}` or
//! `{"repeat": n, "text": …, "delay_ms": n}`; each text is one HTTP chunk and one write.
//! Invariant: whatever waits here also watches the socket, so the moment at which the router leaves is seen and kept.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};

use super::client;

const CREATED: u64 = 1_700_000_000;
const DEFAULT_TOKENS: u64 = 16;
const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

/// Several engines that share a script and a log.
pub struct Engines {
    shared: Arc<Shared>,
    pub ports: Vec<u16>,
}

/// One leg as an engine saw it.
pub struct Seen {
    pub leg: &'static str,
    /// Which engine saw it.
    pub engine: usize,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// The body as it came.
    pub raw: Vec<u8>,
    /// The same as JSON; null when it is none.
    pub body: Value,
    /// Which connection of all, and the how-manieth request on it, from 1.
    pub connection: u64,
    pub nth: u64,
    gone: OnceLock<Instant>,
    /// The engine is done with it: all but the end of the body is out, or the router left.
    over: AtomicBool,
}

impl Seen {
    /// When the router left before the answer was complete.
    pub fn client_disconnected(&self) -> Option<Instant> {
        self.gone.get().copied()
    }
}

#[derive(Default)]
struct Shared {
    model: String,
    sglang: bool,
    script: Mutex<HashMap<String, Value>>,
    /// Steps that outlive a reset.
    standing: Mutex<HashMap<String, Value>>,
    log: Mutex<Vec<Arc<Seen>>>,
    /// Legs of each kind at work now, and the most there were.
    at_work: Mutex<HashMap<&'static str, (usize, usize)>>,
    connections: Mutex<Vec<Arc<Line>>>,
    numbers: AtomicU64,
    stopping: AtomicBool,
}

/// A connection as others see it.
struct Line {
    stream: TcpStream,
    /// It has not answered yet, or has a request again.
    busy: AtomicBool,
}

impl Engines {
    pub fn start(count: usize, model: &str, sglang: bool) -> Engines {
        let shared = Arc::new(Shared {
            model: model.to_owned(),
            sglang,
            ..Shared::default()
        });
        let ports = (0..count).map(|engine| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
            let port = listener.local_addr().expect("an address").port();
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&shared, &listener, engine, port));
            port
        });
        let ports = ports.collect();
        Engines { shared, ports }
    }

    /// Adds to the script.
    pub fn script(&self, steps: &Value) {
        let steps = steps.as_object().expect("legs and their steps");
        lock(&self.shared.script).extend(steps.clone());
    }

    /// The same for as long as the engines run.
    pub fn script_for_good(&self, steps: &Value) {
        let steps = steps.as_object().expect("legs and their steps");
        lock(&self.shared.standing).extend(steps.clone());
    }

    /// Forgets the script and the log.
    pub fn reset(&self) {
        lock(&self.shared.script).clear();
        lock(&self.shared.log).clear();
    }

    pub fn log(&self) -> Vec<Arc<Seen>> {
        lock(&self.shared.log).clone()
    }

    /// The legs of this name, in order of arrival.
    pub fn legs(&self, leg: &str) -> Vec<Arc<Seen>> {
        let mut log = self.log();
        log.retain(|seen| seen.leg == leg);
        log
    }

    /// The most legs of this name that were at work at once, from the start.
    pub fn most_at_once(&self, leg: &str) -> usize {
        lock(&self.shared.at_work)
            .get(leg)
            .map_or(0, |at_work| at_work.1)
    }

    /// Closes every connection that waits for another request, as engines do after some idle seconds.
    pub fn close_idle(&self) {
        for line in lock(&self.shared.connections).iter() {
            if !line.busy.load(Ordering::SeqCst) {
                let _ = line.stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }
}

impl Shared {
    fn begins(&self, leg: &'static str) {
        let mut at_work = lock(&self.at_work);
        let (now, most) = at_work.entry(leg).or_default();
        *now += 1;
        *most = (*most).max(*now);
    }

    fn ends(&self, seen: &Seen) {
        if !seen.over.swap(true, Ordering::SeqCst) {
            let mut at_work = lock(&self.at_work);
            at_work.entry(seen.leg).or_default().0 -= 1;
        }
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for port in &self.ports {
            // Wakes the accept.
            drop(TcpStream::connect((Ipv4Addr::LOCALHOST, *port)));
        }
        for line in lock(&self.shared.connections).iter() {
            let _ = line.stream.shutdown(Shutdown::Both);
        }
    }
}

/// A port that refuses connections for as long as this lives.
pub struct Refusing {
    _socket: Socket,
    pub port: u16,
}

impl Refusing {
    pub fn start() -> Refusing {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&any.into()).expect("a port");
        let address = socket.local_addr().expect("an address").as_socket();
        let port = address.expect("an IP address").port();
        Refusing {
            _socket: socket,
            port,
        }
    }
}

/// Closes so that the peer sees a reset.
pub fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, engine: usize, port: u16) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let Ok(clone) = stream.try_clone() else {
                return;
            };
            let line = Arc::new(Line {
                stream: clone,
                busy: AtomicBool::new(true),
            });
            lock(&shared.connections).push(Arc::clone(&line));
            let _ = stream.set_nodelay(true);
            let mut serving = Serving {
                shared: &shared,
                line: &line,
                stream,
                buf: Vec::new(),
                engine,
                port,
                number: shared.numbers.fetch_add(1, Ordering::SeqCst),
                requests: 0,
                current: None,
            };
            let _ = serving.run();
            lock(&shared.connections).retain(|other| !Arc::ptr_eq(other, &line));
        });
    }
}

/// The connection is at its end: the peer left, or the script says so.
struct Over;

/// One connection.
struct Serving<'a> {
    shared: &'a Shared,
    line: &'a Line,
    stream: TcpStream,
    buf: Vec<u8>,
    engine: usize,
    port: u16,
    number: u64,
    requests: u64,
    /// The leg that is being answered.
    current: Option<Arc<Seen>>,
}

impl Serving<'_> {
    fn run(&mut self) -> Result<(), Over> {
        loop {
            let (head, body) = self.request()?;
            self.line.busy.store(true, Ordering::SeqCst);
            self.requests += 1;
            self.answer(&head, body)?;
            if let Some(seen) = self.current.take() {
                self.shared.ends(&seen);
            }
            self.line.busy.store(false, Ordering::SeqCst);
        }
    }

    /// Head and body of the next request.
    fn request(&mut self) -> Result<(String, Vec<u8>), Over> {
        let _ = self.stream.set_read_timeout(None);
        loop {
            if let Some(end) = self.buf.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buf[..end]).into_owned();
                let length = fields(&head).get("content-length").cloned();
                let length: usize = length.and_then(|text| text.parse().ok()).unwrap_or(0);
                if self.buf.len() >= end + 4 + length {
                    let body = self.buf[end + 4..][..length].to_vec();
                    self.buf.drain(..end + 4 + length);
                    return Ok((head, body));
                }
            }
            self.read()?;
        }
    }

    /// Reads once. With a read time-out set, `Ok` may also mean that nothing came.
    fn read(&mut self) -> Result<(), Over> {
        let mut some = [0; 16384];
        match client::read_uninterrupted(&mut self.stream, &mut some) {
            Ok(n) if n > 0 => self.buf.extend_from_slice(&some[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => return Err(self.gone()),
        }
        Ok(())
    }

    fn gone(&self) -> Over {
        if let Some(seen) = &self.current {
            self.shared.ends(seen);
            let _ = seen.gone.set(Instant::now());
        }
        Over
    }

    fn wait(&mut self, time: Duration) -> Result<(), Over> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let _ = self.stream.set_read_timeout(Some(left));
            self.read()?;
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Over> {
        self.stream.write_all(bytes).map_err(|_| self.gone())
    }

    fn answer(&mut self, head: &str, raw: Vec<u8>) -> Result<(), Over> {
        let mut words = head.split(' ');
        let (_method, target) = (words.next(), words.next().unwrap_or("/"));
        let path = target.split('?').next().unwrap_or(target).to_owned();
        let body = serde_json::from_slice(&raw).unwrap_or(Value::Null);
        // There is JSON that this reader does not take; what our decode legs ask for is told by it too.
        let asks = b"\"stream_interval\":1";
        let unread = body.is_null() && raw.windows(asks.len()).any(|w| w == asks);
        let streams = body["stream"] == true || unread;
        let leg = match path.as_str() {
            "/tokenize" => Some("tokenize"),
            "/v1/completions" | "/v1/chat/completions" if streams => Some("decode"),
            "/v1/completions" | "/v1/chat/completions" => Some("prefill"),
            "/health" => Some("health"),
            "/v1/models" => Some("models"),
            "/version" => Some("version"),
            "/metrics" => Some("metrics"),
            _ => None,
        };
        if let Some(leg @ ("tokenize" | "prefill" | "decode")) = leg {
            let seen = Arc::new(Seen {
                leg,
                engine: self.engine,
                path: target.to_owned(),
                headers: fields(head),
                raw,
                body: body.clone(),
                connection: self.number,
                nth: self.requests,
                gone: OnceLock::new(),
                over: AtomicBool::new(false),
            });
            self.shared.begins(leg);
            self.current = Some(Arc::clone(&seen));
            lock(&self.shared.log).push(seen);
        }
        if let Some(step) = leg.and_then(|leg| self.step(leg))
            && step["default"] != true
        {
            return self.play(&step);
        }
        self.default_answer(&path, leg, &body)
    }

    fn step(&self, leg: &str) -> Option<Value> {
        let scripts = [&self.shared.script, &self.shared.standing];
        scripts.iter().find_map(|script| self.step_of(script, leg))
    }

    fn step_of(&self, script: &Mutex<HashMap<String, Value>>, leg: &str) -> Option<Value> {
        let mut script = lock(script);
        let here = format!("{leg}@{}", self.engine);
        let key = if script.contains_key(&here) {
            &here
        } else {
            leg
        };
        match script.get_mut(key)? {
            Value::Array(steps) if steps.len() > 1 => Some(steps.remove(0)),
            Value::Array(steps) => steps.first().cloned(),
            step => Some(step.clone()),
        }
    }

    fn play(&mut self, step: &Value) -> Result<(), Over> {
        self.wait(millis(&step["delay_ms"]))?;
        if let Some(items) = step["raw"].as_array() {
            return self.items(items, Framing::Close);
        }
        let mut headers = step["headers"].as_object().cloned().unwrap_or_default();
        let single;
        let (framing, chunks) = match &step["body"] {
            Value::Null => {
                if headers.is_empty() {
                    headers.insert("content-type".to_owned(), json!(EVENT_STREAM));
                }
                let framing = Framing::named(step["framing"].as_str());
                (framing, step["chunks"].as_array().map_or(&[][..], |v| v))
            }
            body => {
                headers
                    .entry("content-type")
                    .or_insert(json!("application/json"));
                let text = body.as_str().map_or(body.to_string(), str::to_owned);
                single = [Value::from(text)];
                (Framing::Length, &single[..])
            }
        };
        let status = step["status"].as_u64().unwrap_or(200);
        let mut head = format!("HTTP/1.1 {status} X\r\n");
        for (name, value) in &headers {
            head += &format!("{name}: {}\r\n", value.as_str().unwrap_or_default());
        }
        match framing {
            Framing::Chunked => head += "transfer-encoding: chunked\r\n",
            Framing::Close => head += "connection: close\r\n",
            Framing::Length => {
                let total: usize = chunks.iter().filter_map(bytes).map(|b| b.len()).sum();
                head += &format!("content-length: {total}\r\n");
            }
        }
        self.write((head + "\r\n").as_bytes())?;
        self.items(chunks, framing)?;
        match framing {
            Framing::Chunked => self.write(b"0\r\n\r\n"),
            Framing::Length => Ok(()),
            Framing::Close => Err(Over),
        }
    }

    fn items(&mut self, items: &[Value], framing: Framing) -> Result<(), Over> {
        for item in items {
            if let Some(count) = item["repeat"].as_u64() {
                let text = item["text"].as_str().unwrap_or_default();
                // Paced from the first, so that late wake-ups do not add up.
                let mut due = Instant::now();
                for _ in 0..count {
                    self.chunk(text.as_bytes(), framing)?;
                    due += millis(&item["delay_ms"]);
                    self.wait(due.saturating_duration_since(Instant::now()))?;
                }
            } else if let Some(bytes) = bytes(item) {
                self.chunk(&bytes, framing)?;
            } else if item["close"] == true {
                return Err(Over);
            } else if item["reset"] == true {
                reset(&self.stream);
                reset(&self.line.stream);
                return Err(Over);
            } else if item["hang"] == true {
                self.wait(Duration::from_secs(3600))?;
            } else {
                self.wait(millis(&item["delay_ms"]))?;
            }
        }
        Ok(())
    }

    fn chunk(&mut self, bytes: &[u8], framing: Framing) -> Result<(), Over> {
        // The router is free to send the next one as soon as it has this.
        if let (Some(seen), b"data: [DONE]\n\n") = (&self.current, bytes) {
            self.shared.ends(seen);
        }
        match framing {
            Framing::Chunked => self.write(&framed(bytes)),
            Framing::Length | Framing::Close => self.write(bytes),
        }
    }

    fn reply(&mut self, status: u16, media: &str, body: &str) -> Result<(), Over> {
        let length = body.len();
        self.write(
            format!("HTTP/1.1 {status} X\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes(),
        )
    }

    fn default_answer(&mut self, path: &str, leg: Option<&str>, body: &Value) -> Result<(), Over> {
        const PLAIN: &str = "text/plain";
        const JSON: &str = "application/json";
        let model = self.shared.model.clone();
        match (path, leg) {
            ("/health", _) => self.reply(200, PLAIN, ""),
            ("/version", _) => self.reply(200, JSON, r#"{"version":"0.0.0-stub"}"#),
            ("/metrics", _) => self.reply(200, PLAIN, "process_start_time_seconds 1700000000.0\n"),
            ("/v1/models", _) => {
                let card = json!({"id": model, "object": "model", "max_model_len": 131_072});
                let list = json!({"object": "list", "data": [card]});
                self.reply(200, JSON, &list.to_string())
            }
            (_, Some("tokenize")) => {
                let count = count_tokens(body);
                let tokens: Vec<u64> = (0..count).collect();
                let answer = json!({"count": count, "max_model_len": 131_072, "tokens": tokens});
                self.reply(200, JSON, &answer.to_string())
            }
            (_, Some("prefill")) => {
                let answer = self.default_prefill(path, body);
                self.reply(200, JSON, &answer.to_string())
            }
            (_, Some("decode")) => self.default_decode(path, body),
            _ => self.reply(404, JSON, r#"{"detail":"Not Found"}"#),
        }
    }

    fn default_prefill(&self, path: &str, body: &Value) -> Value {
        let chat = path.ends_with("chat/completions");
        let mut choice =
            json!({"index": 0, "logprobs": null, "finish_reason": "length", "stop_reason": null});
        if chat {
            choice["message"] = json!({"role": "assistant", "content": " w0"});
        } else {
            choice["text"] = json!(" w0");
        }
        let count = count_tokens(body);
        let mut answer = json!({
            "id": "cmpl-prefill",
            "object": if chat { "chat.completion" } else { "text_completion" },
            "created": CREATED, "model": self.shared.model, "choices": [choice],
            "usage": {"prompt_tokens": count, "completion_tokens": 1, "total_tokens": count + 1},
        });
        if !self.shared.sglang {
            answer["kv_transfer_params"] = json!({
                "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [1, 2, 3],
                "remote_engine_id": format!("engine-{}", self.port), "remote_host": "127.0.0.1",
                "remote_port": 5600, "tp_size": 1,
            });
        }
        answer
    }

    fn default_decode(&mut self, path: &str, body: &Value) -> Result<(), Over> {
        let chat = path.ends_with("chat/completions");
        let limit = |name: &str| body[name].as_u64().filter(|n| *n > 0);
        let tokens = limit("max_completion_tokens").or(limit("max_tokens"));
        let tokens = tokens.unwrap_or(DEFAULT_TOKENS);
        self.write(
            format!("HTTP/1.1 200 OK\r\ncontent-type: {EVENT_STREAM}\r\ntransfer-encoding: chunked\r\n\r\n")
                .as_bytes(),
        )?;
        let middle = event(chat, &self.shared.model, Value::Null);
        let last = event(chat, &self.shared.model, json!("length"));
        for token in 1..=tokens {
            let event = if token < tokens { &middle } else { &last };
            self.chunk(event.as_bytes(), Framing::Chunked)?;
        }
        if body["stream_options"]["include_usage"] == true {
            let count = count_tokens(body);
            let usage = json!({
                "id": "cmpl-stub", "object": object(chat), "created": CREATED, "model": self.shared.model,
                "choices": [],
                "usage": {"prompt_tokens": count, "completion_tokens": tokens, "total_tokens": count + tokens},
            });
            self.chunk(format!("data: {usage}\n\n").as_bytes(), Framing::Chunked)?;
        }
        self.chunk(b"data: [DONE]\n\n", Framing::Chunked)?;
        self.write(b"0\r\n\r\n")
    }
}

#[derive(Clone, Copy)]
enum Framing {
    Chunked,
    Length,
    Close,
}

impl Framing {
    fn named(name: Option<&str>) -> Framing {
        match name {
            None | Some("chunked") => Framing::Chunked,
            Some("length") => Framing::Length,
            Some("close") => Framing::Close,
            Some(other) => panic!("framing {other}"),
        }
    }
}

fn fields(head: &str) -> BTreeMap<String, String> {
    let lines = head.split("\r\n").skip(1);
    let pairs = lines.filter_map(|line| line.split_once(':'));
    pairs
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect()
}

fn millis(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().unwrap_or(0.0) / 1e3)
}

/// What a text or hex item sends.
fn bytes(item: &Value) -> Option<Vec<u8>> {
    if item["repeat"].is_u64() {
        return None;
    }
    if let Some(text) = item.as_str() {
        return Some(text.as_bytes().to_vec());
    }
    item["hex"].as_str().map(unhex)
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digit = |d: &u8| char::from(*d).to_digit(16).expect("hex") as u8;
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map(|p| digit(&p[0]) << 4 | digit(&p[1])).collect()
}

/// One HTTP chunk.
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut out = format!("{:x}\r\n", bytes.len()).into_bytes();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
    out
}

fn object(chat: bool) -> &'static str {
    if chat {
        "chat.completion.chunk"
    } else {
        "text_completion"
    }
}

/// One token of output.
fn event(chat: bool, model: &str, finish: Value) -> String {
    let mut choice =
        json!({"index": 0, "logprobs": null, "finish_reason": finish, "token_ids": [7]});
    if chat {
        choice["delta"] = json!({"content": " w7"});
    } else {
        choice["text"] = json!(" w7");
        choice["stop_reason"] = Value::Null;
    }
    let id = if chat { "chatcmpl-stub" } else { "cmpl-stub" };
    let event = json!({"id": id, "object": object(chat), "created": CREATED, "model": model, "choices": [choice]});
    format!("data: {event}\n\n")
}

fn count_tokens(body: &Value) -> u64 {
    let bytes = match &body["prompt"] {
        Value::Array(items) => return items.len() as u64,
        Value::String(text) => text.len(),
        Value::Null => {
            let messages = body["messages"].as_array().map_or(&[][..], |m| m);
            let texts = messages.iter().map(|m| match &m["content"] {
                Value::String(text) => text.len(),
                other => other.to_string().len(),
            });
            texts.sum()
        }
        other => other.to_string().len(),
    };
    (bytes as u64).div_ceil(4).max(1)
}
