//! One leg on an engine's side: the request that the router wrote, and the answer as HTTP/1.1 bytes, when they are due.

use std::collections::VecDeque;

use narwhal::base::time::Instant;
use narwhal::stub::answer::stream_head;
use narwhal::stub::engine::{Incoming, Reply, World};
use narwhal::stub::stream::{Batch, Next};
use narwhal::wire::h1::head;

#[derive(Default)]
pub struct Leg {
    pub engine: usize,
    /// Tells this leg's wake-ups from those of an earlier one in the same slot.
    pub number: u32,
    pub open: bool,
    request: Vec<u8>,
    reply: Option<Reply>,
    /// Bytes of the answer that the router has not read yet.
    pub answer: VecDeque<Vec<u8>>,
    batch: Batch,
}

impl Leg {
    pub fn opens(&mut self, engine: usize, request: Vec<u8>) {
        self.close();
        self.number += 1;
        (self.engine, self.request, self.open) = (engine, request, true);
    }

    /// The request is off the engine with it.
    pub fn close(&mut self) {
        self.open = false;
        self.reply = None;
        self.answer.clear();
    }

    /// The request reaches its engine.
    pub fn arrives(&mut self, engines: &mut World, now: Instant) {
        let request = std::mem::take(&mut self.request);
        let end = request.windows(4).position(|w| w == b"\r\n\r\n");
        let end = end.expect("a router's head is whole") + 4;
        let (fields, body) = request.split_at(end);
        let path = fields.split(|b| *b == b' ').nth(1).unwrap_or(b"");
        let incoming = Incoming {
            method: b"POST",
            path,
            request_id: head::field(fields, "x-request-id"),
            content_type: head::field(fields, "content-type"),
            body,
        };
        let reply = engines.request(self.engine, now, &incoming);
        if matches!(reply, Reply::Stream(_)) {
            let mut out = Vec::new();
            let unix_s = engines.engines[self.engine].unix_s(now);
            stream_head(unix_s, false, &mut out);
            self.answer.push_back(out);
        }
        self.reply = Some(reply);
    }

    /// Makes what is due, and says when there is more.
    pub fn answers(&mut self, engines: &World, now: Instant) -> Option<Instant> {
        match self.reply.take()? {
            Reply::Whole(mut whole) => {
                if let Next::At(at) = whole.poll(now) {
                    self.reply = Some(Reply::Whole(whole));
                    return Some(at);
                }
                let answer = whole.take();
                let mut out = Vec::new();
                let unix_s = engines.engines[self.engine].unix_s(now);
                answer.head(unix_s, false, &mut out);
                out.extend_from_slice(&answer.body);
                self.answer.push_back(out);
                None
            }
            Reply::Stream(mut stream) => {
                self.batch.clear();
                let next = stream.poll(now, 64, &mut self.batch);
                let mut out = Vec::new();
                for event in self.batch.events() {
                    out.extend_from_slice(format!("{:x}\r\n", event.len()).as_bytes());
                    out.extend_from_slice(event);
                    out.extend_from_slice(b"\r\n");
                }
                let more = match next {
                    Next::Done => {
                        out.extend_from_slice(b"0\r\n\r\n");
                        None
                    }
                    Next::At(at) => {
                        self.reply = Some(Reply::Stream(stream));
                        Some(at)
                    }
                };
                if !out.is_empty() {
                    self.answer.push_back(out);
                }
                more
            }
        }
    }
}
