//! The simulated engine on sockets: HTTP/1.1 as uvicorn serves it, around [`stub::engine`](crate::stub::engine).
//!
//! Owns its connections; shares the world of engines with the other listeners of its thread, and borrows it only between awaits.
//! A connection is one task. It keeps a read in flight all the time, so that a client that leaves (or shuts its sending side, which
//! vLLM takes for the same) is noticed at once: then the task ends, and with the reply the request on the engine.
//! Every event is a chunk, and by default a write, of its own; head, `[DONE]` and the last chunk too.
//!
//! Invariant: bytes read ahead ≤ [`AHEAD_BYTES_MAX`] + one read; body ≤ [`BODY_BYTES_MAX`].

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::base::limits;
use crate::base::time::{Clock, Instant};
use crate::runtime::clock::MonotonicClock;
use crate::runtime::io::{ReadHalf, Rt, WriteHalf};
use crate::stub::answer::{Answer, stream_head};
use crate::stub::engine::{Incoming, Reply, Whole, World};
use crate::stub::rooms::Seat;
use crate::stub::stream::{Batch, Next, Stream};
use crate::wire::h1::body::{BodyDecoder, Step};
use crate::wire::h1::encode;
use crate::wire::h1::head::{self, Expect, HeadLimits, Method, RequestHead};

#[cfg(test)]
mod tests;

/// One engine of a world, and how it writes.
#[derive(Clone)]
pub struct Server {
    pub world: Rc<RefCell<World>>,
    /// Which of the world's engines.
    pub index: usize,
    pub clock: MonotonicClock,
    /// Events, each a chunk, that one write may hold. A quiet vLLM sends 1; a busy one was seen to send 103.
    pub events_per_write: usize,
}

/// Idle connections are closed after this, as uvicorn does (5.0 s, measured).
pub const IDLE: Duration = Duration::from_secs(5);

/// Pipelined bytes read while an answer runs. Past it the socket is not read, and leaving is seen at the next write.
pub const AHEAD_BYTES_MAX: usize = limits::PIPELINE_BYTES_MAX;

/// Bytes of a request body. uvicorn has no bound; this one is far above any router's.
pub const BODY_BYTES_MAX: usize = 64 << 20;

impl Server {
    /// Serves until the listener is stopped. Connections go on by themselves.
    pub async fn serve<R: Rt>(self, listener: R::Listener) {
        loop {
            match R::accept(&listener).await {
                Ok((reader, writer, _)) => R::spawn(self.clone().connection::<R>(reader, writer)),
                // What accept says of a listener that listens no more.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                // Out of descriptors, or the client left the queue.
                Err(_) => R::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn connection<R: Rt>(self, reader: R::Reader, writer: R::Writer) {
        let mut connection = Connection::<R> {
            server: self,
            inbox: Inbox::new(reader),
            writer: Some(writer),
            out: Vec::with_capacity(1_024),
        };
        // Ended by the client, by idleness, or after an answer that closes: all the same from here.
        while connection.exchange().await.is_some() {}
    }
}

struct Connection<R: Rt> {
    server: Server,
    inbox: Inbox<R::Reader>,
    /// Away only while a write has it, and for good once a write failed.
    writer: Option<R::Writer>,
    /// What is written next. Empty between writes.
    out: Vec<u8>,
}

impl<R: Rt> Connection<R> {
    /// One request and its answer; `None` ends the connection.
    async fn exchange(&mut self) -> Option<()> {
        let Some(head) = self.head().await? else {
            return self.refuse().await;
        };
        let head_bytes: Vec<u8> = self.inbox.buf.drain(..head.head_bytes).collect();
        if head.expect == Expect::Continue {
            self.out.extend_from_slice(encode::CONTINUE);
            self.send().await?;
        }
        let Some(body) = self.body(&head).await? else {
            return self.refuse().await;
        };
        let incoming = Incoming {
            method: head_bytes
                .trim_ascii_start()
                .split(|b| *b == b' ')
                .next()
                .unwrap_or(b""),
            path: &head_bytes[head.path.clone()],
            request_id: head::field(&head_bytes, "x-request-id"),
            content_type: head::field(&head_bytes, "content-type"),
            body: &body,
        };
        let server = &self.server;
        let now = server.clock.now();
        let reply = server
            .world
            .borrow_mut()
            .request(server.index, now, &incoming);
        let close = !head.keep_alive;
        match reply {
            Reply::Whole(whole) => {
                self.whole(whole, close, head.method == Method::Head)
                    .await?
            }
            Reply::Stream(stream) => self.stream(*stream, close).await?,
        }
        (!close).then_some(())
    }

    /// The next head; inner `None` when the bytes are none.
    async fn head(&mut self) -> Option<Option<RequestHead>> {
        const LIMITS: HeadLimits = HeadLimits {
            // A header of 70 kB passes through uvicorn.
            bytes_max: 1 << 17,
            fields_max: head::FIELDS_MAX,
        };
        if self.inbox.buf.is_empty() {
            self.inbox.more_within::<R>(IDLE).await?;
        }
        let mut scanned = 0;
        loop {
            match head::parse_request(&self.inbox.buf, &mut scanned, &LIMITS) {
                Ok(Some(head)) => return Some(Some(head)),
                Ok(None) => self.inbox.more().await?,
                Err(_) => return Some(None),
            }
        }
    }

    /// The whole body; inner `None` when its framing is broken or it is too large.
    async fn body(&mut self, head: &RequestHead) -> Option<Option<Vec<u8>>> {
        let mut decoder = BodyDecoder::request(head.body);
        let mut body = Vec::new();
        loop {
            match decoder.next(&self.inbox.buf) {
                Ok(Step::Piece { data, used }) => {
                    if body.len() + data.len() > BODY_BYTES_MAX {
                        return Some(None);
                    }
                    body.extend_from_slice(&self.inbox.buf[data]);
                    self.inbox.buf.drain(..used);
                }
                Ok(Step::More { used }) => {
                    self.inbox.buf.drain(..used);
                    self.inbox.more().await?;
                }
                Ok(Step::End { used }) => {
                    self.inbox.buf.drain(..used);
                    return Some(Some(body));
                }
                Err(_) => return Some(None),
            }
        }
    }

    async fn whole(&mut self, mut whole: Whole, close: bool, headless: bool) -> Option<()> {
        while let Next::At(at) = whole.poll(self.server.clock.now()) {
            self.wait(at, whole.seat()).await?;
        }
        let answer = whole.take();
        answer.head(self.unix_s(), close, &mut self.out);
        if !headless {
            self.out.extend_from_slice(&answer.body);
        }
        self.send().await
    }

    async fn stream(&mut self, mut stream: Stream, close: bool) -> Option<()> {
        stream_head(self.unix_s(), close, &mut self.out);
        if !stream.holds_head() {
            self.send().await?;
        }
        let per_write = self.server.events_per_write.max(1);
        let mut batch = Batch::default();
        loop {
            batch.clear();
            let now = self.server.clock.now();
            let next = stream.poll(now, per_write.max(EVENTS_PER_TURN), &mut batch);
            let mut events = batch.events().peekable();
            let mut held = 0;
            while let Some(event) = events.next() {
                put_chunk(event, &mut self.out);
                held += 1;
                if held == per_write || events.peek().is_none() {
                    self.send().await?;
                    held = 0;
                }
            }
            match next {
                Next::At(at) if at > now => self.wait(at, stream.seat()).await?,
                // More is due: the others first.
                Next::At(_) => yield_now().await,
                Next::Done => break,
            }
        }
        self.out.extend_from_slice(encode::LAST_CHUNK);
        self.send().await
    }

    /// Answers what is no HTTP, and ends the connection.
    async fn refuse(&mut self) -> Option<()> {
        let answer = Answer::unparsable();
        answer.head(self.unix_s(), true, &mut self.out);
        self.out.extend_from_slice(&answer.body);
        self.send().await?;
        None
    }

    /// Writes `out` and empties it; `None` when the client is gone.
    async fn send(&mut self) -> Option<()> {
        let writer = self.writer.take()?;
        let write = writer.write_all(std::mem::take(&mut self.out), 0);
        let (sent, out, writer) = self.inbox.race(write).await?;
        sent.ok()?;
        self.out = out;
        self.out.clear();
        self.writer = Some(writer);
        Some(())
    }

    /// Waits for a time, or for a change of what the leg of `seat` waits for.
    async fn wait(&mut self, at: Instant, seat: Option<&Seat>) -> Option<()> {
        let left = at.since(self.server.clock.now());
        if left.is_zero() {
            return Some(());
        }
        let Some(seat) = seat else {
            return self.inbox.race(R::sleep(left)).await;
        };
        let mut sleep = pin!(R::sleep(left));
        let mut changed = pin!(seat.changed());
        let either = poll_fn(|cx| {
            let done = changed.as_mut().poll(cx).is_ready() || sleep.as_mut().poll(cx).is_ready();
            if done { Poll::Ready(()) } else { Poll::Pending }
        });
        self.inbox.race(either).await
    }

    fn unix_s(&self) -> u64 {
        let server = &self.server;
        server.world.borrow().engines[server.index].unix_s(server.clock.now())
    }
}

/// What the client sends, and whether it is still there. One read is in flight whenever a future of this is polled.
struct Inbox<I: ReadHalf> {
    buf: Vec<u8>,
    reading: Option<Pin<Box<dyn Future<Output = Read<I>>>>>,
    /// Reader and buffer between reads.
    rest: Option<(I, Vec<u8>)>,
}

type Read<I> = (io::Result<usize>, Vec<u8>, I);

impl<I: ReadHalf> Inbox<I> {
    fn new(reader: I) -> Self {
        Inbox {
            buf: Vec::new(),
            reading: None,
            rest: Some((reader, Vec::with_capacity(limits::CLIENT_BODY_READ_BYTES))),
        }
    }

    /// Waits for more bytes; `None` when the client is gone.
    async fn more(&mut self) -> Option<()> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// As [`Inbox::more`], and `None` also when nothing came in time.
    async fn more_within<R: Rt>(&mut self, limit: Duration) -> Option<()> {
        let mut limit = pin!(R::sleep(limit));
        poll_fn(|cx| match (self.poll(cx), limit.as_mut().poll(cx)) {
            (Poll::Ready(more), _) => Poll::Ready(more),
            (_, Poll::Ready(())) => Poll::Ready(None),
            _ => Poll::Pending,
        })
        .await
    }

    /// Waits for `work`, reading meanwhile; `None`, and the work is dropped, when the client is gone first.
    async fn race<F: Future>(&mut self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            while self.buf.len() < AHEAD_BYTES_MAX {
                match self.poll(cx) {
                    Poll::Ready(Some(())) => {}
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Pending => break,
                }
            }
            work.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// Ready with `Some` when bytes were added to `buf`, with `None` when none will come any more.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        if let Some((reader, buf)) = self.rest.take() {
            self.reading = Some(Box::pin(reader.read(buf)));
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Ready(None);
        };
        let Poll::Ready((got, mut buf, reader)) = reading.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.reading = None;
        match got {
            Ok(n) if n > 0 => {
                self.buf.extend_from_slice(&buf);
                buf.clear();
                self.rest = Some((reader, buf));
                Poll::Ready(Some(()))
            }
            // End of stream or an error: the reader is dropped, and every later poll says the same.
            _ => Poll::Ready(None),
        }
    }
}

/// Events taken from a stream before other connections get their turn.
const EVENTS_PER_TURN: usize = 32;

/// Appends one chunk, its size without leading zeros, as uvicorn writes it.
fn put_chunk(data: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - data.len().leading_zeros())
        .div_ceil(4)
        .max(1);
    for i in (0..digits).rev() {
        out.push(HEX[(data.len() >> (4 * i)) & 15]);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Lets every other task that is ready run once.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
