//! One answer as it comes in, checked token by token: every one there, once, in order, and this request's own.
//!
//! Framing is read by the router's own decoder, which takes the strict side everywhere. Pieces that hold whole events are read where
//! they lie. Invariant: bytes kept between reads ≤ one event, of an assembled answer all of it.

use memchr::{memchr, memmem};
use narwhal::wire::h1::body::{BodyDecoder, Step};
use narwhal::wire::h1::head::{self, HeadLimits, ResponseBody};

use super::stamp;

/// See the head of this file.
pub struct Answer {
    want: Want,
    /// Tokens whose text came.
    pub tokens: u64,
    head: Option<BodyDecoder>,
    scanned: usize,
    /// Payload that is not yet used.
    rest: Vec<u8>,
    done: bool,
    over: bool,
    /// Where the text lay in the last event: mostly the next one's place too.
    text_at: usize,
    /// From write to `now`, of each token of this read.
    pub under_way_ns: Vec<u64>,
}

/// What is to come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want {
    pub tag: u64,
    pub tokens: u64,
    pub whole: bool,
}

const TEXT: &[u8] = b"\"text\":\"";
const LENGTH: &[u8] = b"\"finish_reason\":\"length\"";

impl Answer {
    pub fn new() -> Answer {
        Answer {
            want: Want::default(),
            tokens: 0,
            head: None,
            scanned: 0,
            rest: Vec::new(),
            done: false,
            over: false,
            text_at: 0,
            under_way_ns: Vec::new(),
        }
    }

    pub fn begin(&mut self, want: Want) {
        self.want = want;
        (self.tokens, self.head, self.scanned) = (0, None, 0);
        (self.done, self.over) = (false, false);
        self.rest.clear();
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The bytes of an answer in one.
    pub fn body(&self) -> &[u8] {
        &self.rest
    }

    /// Takes what was read, and says how much of it is used.
    pub fn bytes(&mut self, input: &[u8], now_ns: u64) -> Result<usize, String> {
        self.under_way_ns.clear();
        let mut at = 0;
        if self.head.is_none() {
            let limits = &HeadLimits::ENGINE;
            let head = head::parse_response(input, &mut self.scanned, limits);
            let Some(head) = head.map_err(|why| format!("head: {why:?}"))? else {
                return Ok(0);
            };
            at = head.head_bytes;
            if head.status != 200 {
                return Err(String::from_utf8_lossy(input).into_owned());
            }
            if head.body == ResponseBody::UntilClose {
                return Err("no framing".to_owned());
            }
            self.head = Some(BodyDecoder::response(head.body));
        }
        loop {
            let step = self.head.as_mut().map(|body| body.next(&input[at..]));
            let step = step.ok_or("no head")?;
            match step.map_err(|why| why.message())? {
                Step::Piece { data, used } => {
                    self.payload(&input[at..][data], now_ns)?;
                    at += used;
                }
                Step::More { used } => return Ok(at + used),
                Step::End { used } => {
                    self.over = true;
                    self.end(now_ns)?;
                    return Ok(at + used);
                }
            }
        }
    }

    fn payload(&mut self, data: &[u8], now_ns: u64) -> Result<(), String> {
        if self.want.whole {
            self.rest.extend_from_slice(data);
            return Ok(());
        }
        if self.rest.is_empty() {
            let used = self.events(data, now_ns)?;
            self.rest.extend_from_slice(&data[used..]);
            return Ok(());
        }
        let mut rest = std::mem::take(&mut self.rest);
        rest.extend_from_slice(data);
        let used = self.events(&rest, now_ns);
        self.rest = rest;
        self.rest.drain(..used?);
        Ok(())
    }

    /// Checks the events that are complete, and says how many bytes they have.
    fn events(&mut self, data: &[u8], now_ns: u64) -> Result<usize, String> {
        let mut used = 0;
        while let Some(line) = memchr(b'\n', &data[used..]) {
            let end = used + line;
            match data.get(end + 1) {
                Some(b'\n') => {}
                Some(_) => return Err(format!("a line of its own: {}", said(&data[used..]))),
                None => break,
            }
            self.event(&data[used..end], now_ns)?;
            used = end + 2;
        }
        Ok(used)
    }

    fn event(&mut self, event: &[u8], now_ns: u64) -> Result<(), String> {
        let Some(value) = event.strip_prefix(b"data: ") else {
            return Err(format!("no event: {}", said(event)));
        };
        if self.done {
            return Err(format!("after the end: {}", said(event)));
        }
        if value == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let at = self.text_at;
        if !value.get(at..).is_some_and(|rest| rest.starts_with(TEXT)) {
            match memmem::find(value, TEXT) {
                Some(at) => self.text_at = at,
                // The usage, which a router may have asked for.
                None if memmem::find(value, b"\"choices\":[]").is_some() => return Ok(()),
                None => return Err(format!("no text: {}", said(event))),
            }
        }
        let text = &value[self.text_at + TEXT.len()..];
        self.token(text, now_ns)?;
        let rest = &text[stamp::TEXT_BYTES..];
        let is_last = self.tokens == self.want.tokens;
        if rest.first() != Some(&b'"') || is_last != memmem::find(rest, LENGTH).is_some() {
            return Err(format!("text or finish reason: {}", said(event)));
        }
        Ok(())
    }

    /// Checks the next token's text, which `text` begins with.
    fn token(&mut self, text: &[u8], now_ns: u64) -> Result<(), String> {
        let Some(stamp) = stamp::read(text) else {
            return Err(format!("no token: {}", said(text)));
        };
        if stamp.tag != self.want.tag {
            return Err(format!("a token of {}", stamp.tag));
        }
        if stamp.number != self.tokens || self.tokens == self.want.tokens {
            return Err(format!("token {} came", stamp.number));
        }
        self.tokens += 1;
        self.under_way_ns
            .push(stamp::since(stamp.written_ns, now_ns));
        Ok(())
    }

    /// Checks that nothing is missing.
    fn end(&mut self, now_ns: u64) -> Result<(), String> {
        if self.want.whole {
            return self.assembled(now_ns);
        }
        if self.tokens != self.want.tokens || !self.done || !self.rest.is_empty() {
            let left = self.rest.len();
            return Err(format!("ended early: [DONE] {}, {left} bytes", self.done));
        }
        Ok(())
    }

    fn assembled(&mut self, now_ns: u64) -> Result<(), String> {
        let body = std::mem::take(&mut self.rest);
        let at = memmem::find(&body, TEXT).ok_or_else(|| format!("no text: {}", said(&body)))?;
        let mut text = &body[at + TEXT.len()..];
        while self.tokens < self.want.tokens {
            self.token(text, now_ns)?;
            text = &text[stamp::TEXT_BYTES..];
        }
        let count = format!("\"completion_tokens\":{}", self.want.tokens);
        let right = text.first() == Some(&b'"')
            && memmem::find(text, LENGTH).is_some()
            && memmem::find(text, count.as_bytes()).is_some();
        if !right {
            return Err(format!("assembled: {}", said(&body)));
        }
        self.rest = body;
        Ok(())
    }
}

/// The beginning of what came, for a fault's text.
fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(600)]).into_owned()
}
