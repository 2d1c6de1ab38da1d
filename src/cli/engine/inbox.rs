//! What the client of a simulated engine sends, and whether it is still there. Owns the reading half of a connection.
//!
//! Invariant: one read is in flight whenever a future of this is polled, so that leaving is noticed at once.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use super::AHEAD_BYTES_MAX;
use crate::base::limits;
use crate::runtime::io::{ReadHalf, Rt};

/// The reading half, and what came.
pub(super) struct Inbox<I: ReadHalf> {
    pub(super) buf: Vec<u8>,
    reading: Option<Pin<Box<dyn Future<Output = Read<I>>>>>,
    /// Reader and buffer between reads.
    rest: Option<(I, Vec<u8>)>,
}

type Read<I> = (io::Result<usize>, Vec<u8>, I);

impl<I: ReadHalf> Inbox<I> {
    pub(super) fn new(reader: I) -> Self {
        Inbox {
            buf: Vec::new(),
            reading: None,
            rest: Some((reader, Vec::with_capacity(limits::CLIENT_BODY_READ_BYTES))),
        }
    }

    /// Waits for more bytes; `None` when the client is gone.
    pub(super) async fn more(&mut self) -> Option<()> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// As [`Inbox::more`], and `None` also when nothing came in time.
    pub(super) async fn more_within<R: Rt>(&mut self, limit: Duration) -> Option<()> {
        let mut limit = pin!(R::sleep(limit));
        poll_fn(|cx| match (self.poll(cx), limit.as_mut().poll(cx)) {
            (Poll::Ready(more), _) => Poll::Ready(more),
            (_, Poll::Ready(())) => Poll::Ready(None),
            _ => Poll::Pending,
        })
        .await
    }

    /// Waits for `work`, reading meanwhile; `None`, and the work is dropped, when the client is gone first.
    pub(super) async fn race<F: Future>(&mut self, work: F) -> Option<F::Output> {
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
