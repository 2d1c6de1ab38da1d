//! The engines' sockets: HTTP/1.1 as a simulated engine serves it, around the pure core, with faults mixed in.
//!
//! A host is one accepted connection. It reads all the time, so a router that leaves is noticed, and with the reply the request is off
//! the engine.

use std::time::Duration;

use narwhal::base::time::Instant;
use narwhal::base::units::Dialect;
use narwhal::stub::answer::{Answer, JSON, stream_head};
use narwhal::stub::engine::{Incoming, Reply};
use narwhal::stub::stream::{Batch, Next};
use narwhal::wire::h1::body::{BodyDecoder, Step};
use narwhal::wire::h1::head::{self, HeadLimits, RequestHead};

use crate::faults::Fault;
use crate::net::{Ending, Got, Link, Wake};
use crate::world::World;

pub struct Host {
    pub wake_at: Instant,
    pub engine: usize,
    pub link: Link,
    inbuf: Vec<u8>,
    head: Option<(RequestHead, Vec<u8>, BodyDecoder, Vec<u8>)>,
    pub job: Option<Job>,
    /// To be written, and how far it is.
    out: Vec<u8>,
    idle_until: Instant,
    pub closed: bool,
}

/// One request and its answer.
pub struct Job {
    reply: Option<Reply>,
    fault: Option<Fault>,
    /// Bytes of the answer after which it is cut, and that have gone out.
    cut_at: usize,
    sent: usize,
    /// Where in the stream the fault strikes.
    strikes_at: usize,
    events: usize,
    /// Framed by closing.
    until_close: bool,
    closes: bool,
    ready_at: Instant,
    finished: bool,
    /// It carries a handoff, or generates for a client.
    pub decodes: bool,
}

/// As uvicorn does.
const IDLE: Duration = Duration::from_secs(5);
const NEVER: usize = usize::MAX;

impl World {
    pub fn new_host(&mut self, conn: usize, engine: usize) -> Link {
        let h = self.hosts.len();
        let link = self
            .net
            .link(&mut self.chance, Wake::Conn(conn), Wake::Host(h));
        self.hosts.push(Host {
            wake_at: Instant::FAR,
            engine,
            link,
            inbuf: Vec::new(),
            head: None,
            job: None,
            out: Vec::new(),
            idle_until: self.now + IDLE,
            closed: false,
        });
        self.poke(Wake::Host(h), self.now + IDLE);
        link
    }

    pub fn host_turn(&mut self, h: usize) {
        if self.hosts[h].closed {
            return;
        }
        if let Some(until) = self.engine_is_frozen(self.hosts[h].engine) {
            return self.poke(Wake::Host(h), until);
        }
        if !self.host_reads(h) {
            return self.host_closes(h, Ending::Fin);
        }
        for _ in 0..4 {
            if self.hosts[h].job.is_none() && !self.host_takes(h) {
                break;
            }
            self.host_answers(h);
            if !self.host_writes(h) {
                return;
            }
        }
        if self.hosts[h].closed {
            return;
        }
        let host = &self.hosts[h];
        if host.job.is_none() && host.head.is_none() && host.inbuf.is_empty() {
            let until = host.idle_until;
            if until <= self.now {
                self.trace.step(self.now, Wake::Host(h), "idle close", 0);
                return self.host_closes(h, Ending::Fin);
            }
            self.poke(Wake::Host(h), until);
        }
    }

    /// False when the router is gone.
    fn host_reads(&mut self, h: usize) -> bool {
        let host = &mut self.hosts[h];
        loop {
            let got = self.net.read(
                &mut self.chance,
                self.now,
                host.link.up,
                65_536,
                &mut host.inbuf,
            );
            match got {
                Got::Bytes(_) => {}
                Got::Nothing => break,
                Got::End(_) => return false,
            }
        }
        let at = self.net.readable_at(host.link.up);
        if at != Instant::FAR {
            self.poke(Wake::Host(h), at);
        }
        true
    }

    /// Whether a whole request is there; it is a job then.
    fn host_takes(&mut self, h: usize) -> bool {
        const LIMITS: HeadLimits = HeadLimits {
            bytes_max: 1 << 17,
            fields_max: 100,
        };
        let host = &mut self.hosts[h];
        if host.head.is_none() {
            if host.inbuf.is_empty() {
                return false;
            }
            let parsed = head::parse_request(&host.inbuf, &mut 0, &LIMITS);
            let parsed = parsed.expect("a router's head is well formed");
            let Some(head) = parsed else { return false };
            let bytes: Vec<u8> = host.inbuf.drain(..head.head_bytes).collect();
            let decoder = BodyDecoder::request(head.body);
            host.head = Some((head, bytes, decoder, Vec::new()));
        }
        let (head, bytes, mut decoder, mut body) = host.head.take().expect("set just above");
        let mut pos = 0;
        loop {
            match decoder
                .next(&host.inbuf[pos..])
                .expect("a router's framing")
            {
                Step::Piece { data, used } => {
                    body.extend_from_slice(&host.inbuf[pos..][data]);
                    pos += used;
                }
                Step::More { used } => {
                    host.inbuf.drain(..pos + used);
                    host.head = Some((head, bytes, decoder, body));
                    return false;
                }
                Step::End { used } => {
                    host.inbuf.drain(..pos + used);
                    break;
                }
            }
        }
        self.host_begins(h, &head, &bytes, &body);
        true
    }

    fn host_begins(&mut self, h: usize, head: &RequestHead, bytes: &[u8], body: &[u8]) {
        let engine = self.hosts[h].engine;
        let path = &bytes[head.path.clone()];
        let path = path.strip_prefix(b"/base".as_slice()).unwrap_or(path);
        let tokenizes = path == b"/tokenize";
        let mut fault = self.plan.faults.of_answer(&mut self.chance);
        if self.engine_winds_down(engine) {
            fault = Some(Fault::Status500);
        }
        if let Some(fault) = fault {
            self.cover.faults[fault as usize] += 1;
        }
        let incoming = Incoming {
            method: b"POST",
            path,
            request_id: head::field(bytes, "x-request-id"),
            content_type: head::field(bytes, "content-type"),
            body,
        };
        let reply = self.engines.request(engine, self.now, &incoming);
        let is_stream = matches!(reply, Reply::Stream(_));
        self.room_changes();
        let (reply, replaced) = self.replaced(reply, fault, is_stream);
        let slow = match fault {
            Some(Fault::Slow) => Duration::from_millis(self.chance.below(3_000)),
            _ => Duration::ZERO,
        };
        let cut = matches!(
            fault,
            Some(Fault::CutFin | Fault::CutReset | Fault::CutHang)
        );
        let cut_at = match cut {
            true => self.chance.below(if is_stream { 3_000 } else { 700 }) as usize,
            false => NEVER,
        };
        let strikes_at = self.chance.below(6) as usize;
        let until_close = fault == Some(Fault::UntilClose);
        self.trace.step(
            self.now,
            Wake::Host(h),
            "asked",
            fault.map_or(99, |f| f as u64),
        );
        self.trace
            .say(|| format!("{}", String::from_utf8_lossy(body)));
        let host = &mut self.hosts[h];
        host.job = Some(Job {
            reply,
            fault,
            cut_at,
            sent: 0,
            strikes_at,
            events: 0,
            until_close,
            closes: until_close || fault == Some(Fault::Closes) || !head.keep_alive,
            ready_at: self.now + slow,
            finished: false,
            decodes: is_stream && !tokenizes,
        });
        let unix_s = self.engines.engines[engine].unix_s(self.now);
        let host = &mut self.hosts[h];
        let job = host.job.as_mut().expect("set just above");
        if fault == Some(Fault::Interim) {
            host.out.extend_from_slice(
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n",
            );
        }
        if let Some(answer) = replaced {
            put_answer(&answer, unix_s, job, &mut host.out);
        } else if is_stream {
            if until_close {
                host.out.extend_from_slice(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
                );
            } else {
                stream_head(unix_s, job.closes, &mut host.out);
            }
        }
    }

    /// The fault's answer instead of the engine's.
    fn replaced(
        &mut self,
        reply: Reply,
        fault: Option<Fault>,
        is_stream: bool,
    ) -> (Option<Reply>, Option<Answer>) {
        let error = |status: u16| {
            let body = format!(
                r#"{{"error":{{"message":"said by the engine","type":"X","param":null,"code":{status}}}}}"#
            );
            Answer::new(status, JSON, body.into_bytes())
        };
        let answer = match fault {
            Some(Fault::Status500) => error(500),
            Some(Fault::Status503) => error(503),
            Some(Fault::Status429) => error(429),
            Some(Fault::Status400) => error(400),
            Some(Fault::Status404) => error(404),
            Some(Fault::ErrorObject) => {
                let answer = error(503);
                Answer::new(200, JSON, answer.body)
            }
            Some(Fault::NoHandoff) if !is_stream => {
                Answer::new(200, JSON, br#"{"id":"x","choices":[]}"#.to_vec())
            }
            Some(Fault::Garbage) => Answer::new(0, JSON, b"\x16\x03\x01 what?\r\n\r\n".to_vec()),
            _ => return (Some(reply), None),
        };
        (None, Some(answer))
    }

    /// Makes what is due of the answer.
    fn host_answers(&mut self, h: usize) {
        let host = &mut self.hosts[h];
        let Some(job) = host.job.as_mut() else {
            return;
        };
        if job.finished || !host.out.is_empty() {
            return;
        }
        if job.ready_at > self.now {
            let at = job.ready_at;
            return self.poke(Wake::Host(h), at);
        }
        match job.reply.take() {
            None => job.finished = true,
            Some(Reply::Whole(mut whole)) => {
                if let Next::At(at) = whole.poll(self.now) {
                    job.reply = Some(Reply::Whole(whole));
                    job.ready_at = at;
                    return self.poke(Wake::Host(h), at);
                }
                let answer = whole.take();
                let unix_s = self.engines.engines[host.engine].unix_s(self.now);
                put_answer(&answer, unix_s, job, &mut host.out);
            }
            Some(Reply::Stream(mut stream)) => {
                let mut batch = Batch::default();
                let most = 1 + self.chance.below(40) as usize;
                let next = stream.poll(self.now, most, &mut batch);
                let mut over = false;
                for event in batch.events() {
                    over = over || put_event(event, job, &mut host.out);
                }
                match next {
                    Next::Done => over = true,
                    Next::At(at) => {
                        let slow = match job.fault {
                            Some(Fault::Slow) => Duration::from_millis(self.chance.below(700)),
                            _ => Duration::ZERO,
                        };
                        job.ready_at = at + slow;
                    }
                }
                if over {
                    job.finished = true;
                    if !job.until_close {
                        host.out.extend_from_slice(b"0\r\n\r\n");
                    }
                } else {
                    job.reply = Some(Reply::Stream(stream));
                    let at = job.ready_at;
                    if host.out.is_empty() {
                        self.poke(Wake::Host(h), at);
                    }
                }
            }
        }
    }

    /// Writes what there is room for. False when the socket is closed.
    fn host_writes(&mut self, h: usize) -> bool {
        let host = &mut self.hosts[h];
        let Some(job) = host.job.as_mut() else {
            return true;
        };
        let Some(room) = self.net.room(host.link.down, self.now) else {
            self.host_closes(h, Ending::Reset);
            return false;
        };
        let n = room.min(host.out.len()).min(job.cut_at - job.sent);
        if n > 0 {
            self.net
                .write(&mut self.chance, self.now, host.link.down, &host.out[..n]);
            host.out.drain(..n);
            job.sent += n;
            self.trace
                .step(self.now, Wake::Host(h), "answered", n as u64);
        }
        if job.sent == job.cut_at {
            match job.fault {
                Some(Fault::CutFin) => self.host_closes(h, Ending::Fin),
                Some(Fault::CutReset) => self.host_closes(h, Ending::Reset),
                // Silent from here on; the request stays on the engine.
                _ => return false,
            }
            return false;
        }
        if !host.out.is_empty() {
            // The pipe's reader wakes its writer.
            return true;
        }
        if job.finished {
            let (closes, fault) = (job.closes, job.fault);
            if fault == Some(Fault::TrailingBytes) {
                self.net
                    .write(&mut self.chance, self.now, host.link.down, b"HTTP/1.1 408");
            }
            host.job = None;
            let short = self.plan.faults.strikes(&mut self.chance, Fault::ShortIdle);
            self.cover.faults[Fault::ShortIdle as usize] += u64::from(short);
            let patience = match short {
                true => Duration::from_micros(self.chance.below(30_000)),
                false => IDLE,
            };
            let host = &mut self.hosts[h];
            host.idle_until = self.now + patience;
            if closes || fault == Some(Fault::Garbage) {
                self.host_closes(h, Ending::Fin);
                return false;
            }
        } else if job.ready_at <= self.now {
            self.poke(Wake::Host(h), self.now);
        } else {
            let at = job.ready_at;
            self.poke(Wake::Host(h), at);
        }
        true
    }

    pub fn host_closes(&mut self, h: usize, ending: Ending) {
        let host = &mut self.hosts[h];
        if host.closed {
            return;
        }
        host.closed = true;
        host.job = None;
        self.room_changes();
        let host = &mut self.hosts[h];
        let link = host.link;
        self.trace.step(self.now, Wake::Host(h), "host closed", 0);
        self.net
            .close(&mut self.chance, self.now, link.up, link.down, ending);
    }

    /// Legs that wait for each other look again.
    fn room_changes(&mut self) {
        if self.plan.snapshot.fleet.engine.dialect != Dialect::Sglang {
            return;
        }
        for other in 0..self.hosts.len() {
            if let Some(job) = self.hosts[other].job.as_mut().filter(|job| !job.finished) {
                job.ready_at = job.ready_at.min(self.now);
                self.poke(Wake::Host(other), self.now);
            }
        }
    }

    /// Whether the answer to the router on `link` is over, on the engine's side.
    pub fn host_of(&self, link: Link) -> Option<&Host> {
        self.hosts.iter().rev().find(|host| host.link == link)
    }
}

impl Host {
    /// All of the last answer has been written.
    pub fn has_answered(&self) -> bool {
        let whole = |job: &Job| job.finished && self.out.is_empty();
        self.job.as_ref().is_none_or(whole)
    }

    /// A stream for a client runs on the engine.
    pub fn generates(&self) -> bool {
        let runs = |job: &Job| job.decodes && !job.finished && job.reply.is_some();
        !self.closed && self.job.as_ref().is_some_and(runs)
    }
}

fn put_answer(answer: &Answer, unix_s: u64, job: &mut Job, out: &mut Vec<u8>) {
    if answer.status > 0 && !job.until_close {
        answer.head(unix_s, job.closes, out);
    } else if answer.status > 0 {
        let head = format!(
            "HTTP/1.1 {} X\r\ncontent-type: application/json\r\n\r\n",
            answer.status
        );
        out.extend_from_slice(head.as_bytes());
    }
    out.extend_from_slice(&answer.body);
    job.finished = true;
}

/// Writes one event as a chunk, or what the fault makes of it. True when the stream is over with it.
fn put_event(event: &[u8], job: &mut Job, out: &mut Vec<u8>) -> bool {
    let at = job.events;
    job.events += 1;
    let until_close = job.until_close;
    let mut put = |text: &[u8]| {
        if until_close {
            return out.extend_from_slice(text);
        }
        out.extend_from_slice(format!("{:x}\r\n", text.len()).as_bytes());
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    };
    let is_done = event.starts_with(b"data: [DONE]");
    if at == 0 && job.fault == Some(Fault::EarlyDone) {
        put(b"data: [DONE]\n\n");
        return true;
    }
    if is_done && job.fault == Some(Fault::NoDone) {
        return true;
    }
    if at == job.strikes_at || is_done && at < job.strikes_at {
        match job.fault {
            Some(Fault::ErrorEvent) => {
                put(b"data: {\"error\": {\"message\": \"x\", \"code\": 500}}\n\n");
                put(b"data: [DONE]\n\n");
                return true;
            }
            Some(Fault::BadIds) => put(
                b"data: {\"choices\":[{\"index\":0,\"text\":\"zz\",\"delta\":{\"content\":\"zz\"},\"token_ids\":[1.5]}]}\n\n",
            ),
            Some(Fault::Abort) => {
                put(b"data: {\"choices\":[{\"index\":0,\"text\":\"\",\"delta\":{},\"finish_reason\":\"abort\"}]}\n\n");
                put(b"data: [DONE]\n\n");
                return true;
            }
            Some(Fault::ManyHeld) => {
                for _ in 0..66 {
                    put(b"data: {\"choices\":[]}\n\n");
                }
            }
            Some(Fault::LargeEvent) => {
                let text = format!("data: {{\"choices\":[],\"x\":\"{}\"}}\n\n", "y".repeat(5_000));
                put(text.as_bytes());
            }
            Some(Fault::OddMember) => {
                put(b"data: {\"choices\":[{\"index\":0,\"novelty\":1,\"delta\":{}}]}\n\n");
            }
            _ => {}
        }
    }
    put(event);
    is_done
}
