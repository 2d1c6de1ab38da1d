//! What a shard asks of a runtime, completion style: a buffer goes in, the buffer comes back out.
//!
//! Owns nothing: it is the seam between the drive loop and a runtime, dispatched statically. The completion
//! form is the stricter one, so a readiness runtime satisfies it trivially and the reverse does not hold.
//! Invariants: every future owns what it uses (`'static`), so a task keeps it pinned across turns of its loop;
//! a `read` whose connection lives on is never dropped before it is ready, because under io_uring the bytes it
//! already took would be lost. To stop one, [`Hangup`] the socket, or drop future and halves together.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::task::Poll;
use std::time::Duration;

use super::socket;
pub use super::socket::Hangup;

/// A runtime, seen from one shard. All calls must come from inside it.
pub trait Rt: 'static {
    type Reader: ReadHalf;
    type Writer: WriteHalf;
    type Listener: 'static;

    /// Binds and listens. `reuse_port` lets several shards share the port.
    fn listen(addr: SocketAddr, reuse_port: bool, backlog: u32) -> io::Result<Self::Listener> {
        Self::from_listener(socket::bind(addr, reuse_port, backlog)?)
    }

    /// Takes over a listening socket that was bound before the runtime began, or inherited.
    fn from_listener(listener: TcpListener) -> io::Result<Self::Listener>;

    fn local_addr(listener: &Self::Listener) -> io::Result<SocketAddr>;

    /// The next connection, `TCP_NODELAY` set. Never drop it unready: a connection that completes meanwhile
    /// would leak its descriptor. [`Rt::stop_listening`] ends it with an error instead.
    fn accept(
        listener: &Self::Listener,
    ) -> impl Future<Output = io::Result<(Self::Reader, Self::Writer, SocketAddr)>>;

    /// Stops listening: new clients are refused, and the `accept` in flight ends with an error.
    /// The queue of the listener is lost, so accept what waits first.
    fn stop_listening(listener: &Self::Listener);

    /// A connection to `addr`, `TCP_NODELAY` set. May be dropped when its deadline passes.
    fn connect(
        addr: SocketAddr,
    ) -> impl Future<Output = io::Result<(Self::Reader, Self::Writer)>> + 'static;

    /// Takes over a connected socket, for one that another shard accepted.
    fn adopt(stream: TcpStream) -> io::Result<(Self::Reader, Self::Writer)>;

    /// Gives a connection away; no operation may be in flight on it. The reverse of [`Rt::adopt`]. Needs one more descriptor for a
    /// moment; without it the halves come back.
    fn release(
        reader: Self::Reader,
        writer: Self::Writer,
    ) -> Result<TcpStream, (Self::Reader, Self::Writer)>;

    /// Ready after `duration`, rounded up to the runtime's grain (1 ms). May be dropped at any time.
    fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static;

    /// Runs `task` on this shard until it ends by itself.
    fn spawn(task: impl Future<Output = ()> + 'static);
}

/// The receiving side of a connection.
pub trait ReadHalf: Sized + 'static {
    /// Appends to `buf`: fills the spare capacity behind `buf.len()`, never grows it. `Ok(0)` is the end of the
    /// stream; a buffer without spare capacity is `InvalidInput`, so the two are never mistaken.
    fn read(
        self,
        buf: Vec<u8>,
    ) -> impl Future<Output = (io::Result<usize>, Vec<u8>, Self)> + 'static;

    /// Whether the peer is still there and silent: false when bytes, an end of stream or an error wait.
    /// Costs one system call and blocks never; for pooled connections with no read in flight.
    fn is_quiet(&self) -> bool;

    /// A handle that cuts this connection while its halves are inside futures.
    fn hangup(&self) -> Hangup;
}

/// The sending side of a connection. Dropping it sends FIN at once, as [`WriteHalf::shutdown`] does.
pub trait WriteHalf: Sized + 'static {
    /// Sends some of `buf[from..]` and says how much: at least one byte unless there is none. One call is one
    /// step of progress, which is what a stall deadline watches.
    fn write(
        self,
        buf: Vec<u8>,
        from: usize,
    ) -> impl Future<Output = (io::Result<usize>, Vec<u8>, Self)> + 'static;

    /// Sends all of `buf[from..]` without copying it, going on where a partial send stopped.
    fn write_all(
        self,
        buf: Vec<u8>,
        from: usize,
    ) -> impl Future<Output = (io::Result<()>, Vec<u8>, Self)> + 'static {
        async move {
            let (mut writer, mut buf, mut at) = (self, buf, from);
            while at < buf.len() {
                let sent;
                (sent, buf, writer) = writer.write(buf, at).await;
                match sent {
                    Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf, writer),
                    Ok(n) => at += n,
                    Err(error) => return (Err(error), buf, writer),
                }
            }
            (Ok(()), buf, writer)
        }
    }

    /// Sends what the kernel takes at once, for last words that nobody waits for.
    fn send_now(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends FIN; the peer may still be read. At once, without waiting for the network.
    fn shutdown(&mut self) -> io::Result<()>;
}

/// Lets every other task that is ready run once.
pub async fn yield_now() {
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

#[cfg(test)]
mod tests;
