//! A connection to an engine, plain or TLS, and how it is dialed.
//!
//! Owns both halves and where they lead, but for the [`Tap`] that a read in flight has. Which of the two kinds it is is asked once an
//! operation, so a plain read is the runtime's own and nothing else. Invariant: dialing and its operations own what they use; dropped,
//! they close it.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::io::{ReadHalf, Rt, WriteHalf};
use super::pool::Idle;
use super::socket::shortage;
use super::tls::{self, Peer, TlsStream};

/// See the head of this file.
pub struct Line<R: Rt> {
    wire: Wire<R>,
    pub(super) at: SocketAddr,
    /// The version of the engines' addresses for which `at` was last seen to be one of them.
    pub(super) known: u64,
}

/// What reads is lent to the read in flight, and `None` meanwhile.
enum Wire<R: Rt> {
    Plain(Option<R::Reader>, R::Writer),
    Tls(Option<Box<TlsStream<R>>>),
}

/// The part of a line that reads, as [`ReadHalf::read`] does. Small, because it moves with every read.
pub(super) enum Tap<R: Rt> {
    Plain(R::Reader),
    Tls(Box<TlsStream<R>>),
}

/// What it takes to reach an engine.
pub(super) struct Dial {
    /// In the order in which they are tried.
    pub addresses: Arc<Vec<SocketAddr>>,
    /// Read before they were.
    pub version: u64,
    /// For all of them together. The caller cuts the last one off.
    pub bound: Duration,
    pub tls: Option<Peer>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialFault {
    /// Refused, unreachable, reset, late, or no address.
    Connect,
    /// Connected, and no TLS came of it; the words may be the peer's.
    Tls(String),
    /// Nothing was left to connect with.
    Shortage,
}

/// The first address that takes the connection, TLS included. Each but the last has an even share of the bound, so that
/// one that swallows packets leaves time for the others.
pub(super) async fn dial<R: Rt>(dial: Dial) -> Result<Line<R>, DialFault> {
    let Some((last, others)) = dial.addresses.split_last() else {
        return Err(DialFault::Connect);
    };
    let mut told = DialFault::Connect;
    for at in others {
        let share = dial.bound / u32::try_from(dial.addresses.len()).unwrap_or(u32::MAX);
        match within::<R, _>(share, connect(*at, &dial)).await {
            Some(Ok(line)) => return Ok(line),
            Some(Err(fault @ DialFault::Tls(_))) => told = fault,
            Some(Err(DialFault::Connect | DialFault::Shortage)) | None => {}
        }
    }
    // What TLS had to say is more than that the last one was not there.
    connect(*last, &dial).await.map_err(|fault| match fault {
        DialFault::Tls(_) | DialFault::Shortage => fault,
        DialFault::Connect => told,
    })
}

impl<R: Rt> Line<R> {
    /// Sends the whole request. Not while its tap is lent.
    pub(super) async fn send(self, request: Vec<u8>) -> (io::Result<()>, Vec<u8>, Self) {
        let Line { wire, at, known } = self;
        let line = |wire| Line { wire, at, known };
        match wire {
            Wire::Plain(reader, writer) => {
                let (sent, request, writer) = writer.write_all(request, 0).await;
                (sent, request, line(Wire::Plain(reader, writer)))
            }
            Wire::Tls(Some(stream)) => {
                let (sent, request, stream) = stream.write_all(request).await;
                (sent, request, line(Wire::Tls(Some(stream))))
            }
            Wire::Tls(None) => {
                let lent = io::ErrorKind::NotConnected.into();
                (Err(lent), request, line(Wire::Tls(None)))
            }
        }
    }

    /// What reads, for one read; `None` when another has it.
    pub(super) fn lend(&mut self) -> Option<Tap<R>> {
        match &mut self.wire {
            Wire::Plain(reader, _) => reader.take().map(Tap::Plain),
            Wire::Tls(stream) => stream.take().map(Tap::Tls),
        }
    }

    /// The tap that it lent.
    pub(super) fn give_back(&mut self, tap: Tap<R>) {
        match (&mut self.wire, tap) {
            (Wire::Plain(reader, _), Tap::Plain(back)) => *reader = Some(back),
            (Wire::Tls(stream), Tap::Tls(back)) => *stream = Some(back),
            _ => debug_assert!(false, "a tap of another line"),
        }
    }

    /// Whether all of it is here.
    pub(super) fn is_whole(&self) -> bool {
        match &self.wire {
            Wire::Plain(reader, _) => reader.is_some(),
            Wire::Tls(stream) => stream.is_some(),
        }
    }
}

impl<R: Rt> Idle for Line<R> {
    fn is_quiet(&self) -> bool {
        match &self.wire {
            Wire::Plain(reader, _) => reader.as_ref().is_some_and(ReadHalf::is_quiet),
            Wire::Tls(stream) => stream.as_ref().is_some_and(|stream| stream.is_quiet()),
        }
    }
}

async fn connect<R: Rt>(at: SocketAddr, dial: &Dial) -> Result<Line<R>, DialFault> {
    let connected = R::connect(at).await;
    let (reader, writer) = connected.map_err(|error| match shortage(&error) {
        Some(_) => DialFault::Shortage,
        None => DialFault::Connect,
    })?;
    let wire = match &dial.tls {
        None => Wire::Plain(Some(reader), writer),
        Some(peer) => {
            // In a box of its own: it is large, and plain connections have no use for it.
            let shaken = Box::pin(tls::handshake(reader, writer, peer.clone())).await;
            Wire::Tls(Some(shaken.map_err(|why| DialFault::Tls(why.to_string()))?))
        }
    };
    let known = dial.version;
    Ok(Line { wire, at, known })
}

/// `None` when the time is over first.
async fn within<R: Rt, T>(time: Duration, task: impl Future<Output = T>) -> Option<T> {
    let (mut task, mut timer) = (pin!(task), pin!(R::sleep(time)));
    poll_fn(|cx| {
        if let Poll::Ready(done) = task.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        timer.as_mut().poll(cx).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests;
