//! A raw HTTP/1.1 client: sends any bytes, reads answers strictly enough to tell a whole one from a cut one.
//!
//! Every wait has a deadline; one that passes reads as the end of the connection, and the answer as incomplete.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::engine;

/// How long a test waits for bytes that must come.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Client {
    pub stream: TcpStream,
    /// Bytes read and not used.
    pub buf: Vec<u8>,
    pub eof: bool,
}

#[derive(Debug, Default, Clone)]
pub struct Answer {
    /// `None` when no whole head came.
    pub status: Option<u16>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the framing says that nothing is missing.
    pub complete: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Null when it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// `type`, `param` and `code` of an error.
    pub fn error(&self) -> (Value, Value, Value) {
        let error = self.json()["error"].take();
        let member = |name: &str| error[name].clone();
        (member("type"), member("param"), member("code"))
    }
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("the router accepts");
        stream.set_nodelay(true).expect("nodelay");
        Client {
            stream,
            buf: Vec::new(),
            eof: false,
        }
    }

    /// Sends; a router that has closed already is no error here.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Reads once, for at most `wait`. False when nothing came.
    pub fn more(&mut self, wait: Duration) -> bool {
        if self.eof || wait.is_zero() {
            return false;
        }
        self.stream
            .set_read_timeout(Some(wait.max(Duration::from_millis(1))))
            .expect("a time-out");
        let mut some = [0; 65536];
        match read_uninterrupted(&mut self.stream, &mut some) {
            Ok(n) if n > 0 => {
                self.buf.extend_from_slice(&some[..n]);
                true
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
            _ => {
                self.eof = true;
                false
            }
        }
    }

    /// The next answer, to a request that was not HEAD.
    pub fn answer(&mut self) -> Answer {
        self.answer_within(PATIENCE)
    }

    pub fn answer_within(&mut self, patience: Duration) -> Answer {
        let until = Instant::now() + patience;
        let Some(mut answer) = self.head(until) else {
            return Answer::default();
        };
        self.body(&mut answer, until, usize::MAX);
        answer
    }

    /// The head of the next answer, and no body.
    pub fn answer_to_head(&mut self) -> Answer {
        let mut answer = self.head(Instant::now() + PATIENCE).unwrap_or_default();
        answer.complete = answer.status.is_some();
        answer
    }

    /// The next answer up to `bytes_min` bytes of its body.
    pub fn begin_answer(&mut self, bytes_min: usize) -> Answer {
        let until = Instant::now() + PATIENCE;
        let Some(mut answer) = self.head(until) else {
            return Answer::default();
        };
        if bytes_min > 0 {
            self.body(&mut answer, until, bytes_min);
        }
        answer
    }

    /// Reads until the connection ends, at most `patience`: whether it did.
    pub fn ends_within(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while self.more(left(until)) {}
        self.eof
    }

    /// Says that nothing more will come.
    pub fn half_close(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Leaves with a reset.
    pub fn reset(self) {
        engine::reset(&self.stream);
    }

    fn head(&mut self, until: Instant) -> Option<Answer> {
        let end = self.find(b"\r\n\r\n", until)?;
        let head = String::from_utf8_lossy(&self.buf[..end]).into_owned();
        self.buf.drain(..end + 4);
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let pairs = lines.filter_map(|line| line.split_once(':'));
        let headers =
            pairs.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        Some(Answer {
            status: Some(status),
            headers: headers.collect(),
            ..Answer::default()
        })
    }

    fn body(&mut self, answer: &mut Answer, until: Instant, enough: usize) {
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.complete = self.chunks(&mut answer.body, until, enough).is_some();
        } else if let Some(length) = answer.header("content-length") {
            let length: usize = length.parse().expect("a length");
            while self.buf.len() < length && self.more(left(until)) {}
            answer.complete = self.buf.len() >= length;
            answer.body = self.buf.drain(..length.min(self.buf.len())).collect();
        } else if answer
            .status
            .is_some_and(|s| s >= 200 && s != 204 && s != 304)
        {
            while answer.body.len() + self.buf.len() < enough && self.more(left(until)) {}
            answer.body.append(&mut self.buf);
            answer.complete = self.eof;
        } else {
            answer.complete = true;
        }
    }

    /// `None` when the connection ended too early, or `enough` came.
    fn chunks(&mut self, body: &mut Vec<u8>, until: Instant, enough: usize) -> Option<()> {
        loop {
            let end = self.find(b"\r\n", until)?;
            let line = String::from_utf8_lossy(&self.buf[..end]).into_owned();
            let size = usize::from_str_radix(&line, 16).expect("a chunk size");
            while self.buf.len() < end + 2 + size + 2 {
                if !self.more(left(until)) {
                    let from = (end + 2).min(self.buf.len());
                    let to = (end + 2 + size).min(self.buf.len());
                    body.extend_from_slice(&self.buf[from..to]);
                    return None;
                }
            }
            body.extend_from_slice(&self.buf[end + 2..][..size]);
            assert_eq!(&self.buf[end + 2 + size..][..2], b"\r\n", "a chunk's end");
            self.buf.drain(..end + 2 + size + 2);
            if size == 0 {
                return Some(());
            }
            if body.len() >= enough {
                return None;
            }
        }
    }

    fn find(&mut self, what: &[u8], until: Instant) -> Option<usize> {
        loop {
            if let Some(at) = self.buf.windows(what.len()).position(|w| w == what) {
                return Some(at);
            }
            if !self.more(left(until)) {
                return None;
            }
        }
    }
}

/// Reads once. A process that was stopped and goes on finds its bounded reads interrupted (signal(7)): that is no end.
pub fn read_uninterrupted(stream: &mut impl Read, some: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match stream.read(some) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// A POST with a sized JSON body.
pub fn post(path: &str, body: &Value) -> Vec<u8> {
    post_bytes(path, body.to_string().as_bytes())
}

pub fn post_bytes(path: &str, body: &[u8]) -> Vec<u8> {
    let mut out = head("POST", path, &[("content-length", &body.len().to_string())]);
    out.extend_from_slice(body);
    out
}

pub fn get(path: &str) -> Vec<u8> {
    head("GET", path, &[])
}

/// A head with a Host field and these.
pub fn head(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = format!("{method} {path} HTTP/1.1\r\nhost: router\r\n");
    for (name, value) in fields {
        out += &format!("{name}: {value}\r\n");
    }
    (out + "\r\n").into_bytes()
}

/// The values of an event stream's data, in order, without looking into them.
pub fn data_of(text: &str) -> Vec<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = Vec::new();
    let mut data: Vec<&str> = Vec::new();
    for line in lines.split('\n').chain([""]) {
        if line.is_empty() {
            if !data.is_empty() {
                out.push(data.join("\n"));
            }
            data.clear();
        } else if let Some(value) = line.strip_prefix("data:") {
            data.push(value.strip_prefix(' ').unwrap_or(value));
        }
    }
    out
}
