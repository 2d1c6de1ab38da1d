//! The runtime trait on monoio 0.2.4, both drivers: a stream is the same type on io_uring and on epoll.
//!
//! Owns the halves and the listener. Each half keeps the number of its descriptor beside the shared stream,
//! which monoio lends to nobody. Invariant: while a half lives, its descriptor is open.

use std::future::Future;
use std::io;
use std::net::{self, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use monoio::buf::{IoBuf, IoBufMut};
use monoio::io::{AsyncReadRent, AsyncWriteRent, OwnedReadHalf, OwnedWriteHalf, Splitable};
use monoio::net::{TcpListener, TcpStream};

use super::io::{Hangup, ReadHalf, Rt, WriteHalf};
use super::socket;

/// monoio, whichever driver the thread runs.
pub struct Monoio;

pub struct Reader {
    half: OwnedReadHalf<TcpStream>,
    fd: RawFd,
}

pub struct Writer {
    half: OwnedWriteHalf<TcpStream>,
    fd: RawFd,
}

impl Rt for Monoio {
    type Reader = Reader;
    type Writer = Writer;
    type Listener = TcpListener;

    fn from_listener(listener: net::TcpListener) -> io::Result<TcpListener> {
        listener.set_nonblocking(monoio::utils::is_legacy())?;
        TcpListener::from_std(listener)
    }

    fn local_addr(listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    async fn accept(listener: &TcpListener) -> io::Result<(Reader, Writer, SocketAddr)> {
        let (stream, peer) = listener.accept().await?;
        let (reader, writer) = split(stream)?;
        Ok((reader, writer, peer))
    }

    fn stop_listening(listener: &TcpListener) {
        // On Linux this ends a listening socket and wakes who waits on it.
        let _ = socket::with_socket(listener.as_raw_fd(), |s| s.shutdown(net::Shutdown::Both));
    }

    async fn connect(addr: SocketAddr) -> io::Result<(Reader, Writer)> {
        split(TcpStream::connect_addr(addr).await?)
    }

    fn adopt(stream: net::TcpStream) -> io::Result<(Reader, Writer)> {
        // io_uring answers EAGAIN on a non-blocking socket instead of waiting; epoll needs one.
        stream.set_nonblocking(monoio::utils::is_legacy())?;
        split(TcpStream::from_std(stream)?)
    }

    fn release(reader: Reader, writer: Writer) -> Result<net::TcpStream, (Reader, Writer)> {
        // A duplicate, because monoio's own way out panics when a cancelled operation still holds the stream.
        let Ok(copy) = socket::with_socket(reader.fd, |s| s.try_clone()) else {
            return Err((reader, writer));
        };
        // Two halves of one stream always meet; of two streams they would be dropped, and each sends FIN.
        let stream = reader.half.reunite(writer.half);
        debug_assert!(stream.is_ok(), "the halves are of one connection");
        Ok(copy.into())
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static {
        monoio::time::sleep(duration)
    }

    fn spawn(task: impl Future<Output = ()> + 'static) {
        drop(monoio::spawn(task));
    }
}

impl ReadHalf for Reader {
    async fn read(mut self, buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>, Self) {
        let len = buf.len();
        if len == buf.capacity() {
            return (Err(io::ErrorKind::InvalidInput.into()), buf, self);
        }
        let mut slice = buf.slice_mut(len..);
        loop {
            let got;
            (got, slice) = self.half.read(slice).await;
            if !interrupted(&got) {
                return (got, slice.into_inner(), self);
            }
        }
    }

    fn is_quiet(&self) -> bool {
        socket::is_quiet(self.fd)
    }

    fn hangup(&self) -> Hangup {
        Hangup::new(&self.half.0, self.fd)
    }
}

impl WriteHalf for Writer {
    async fn write(mut self, buf: Vec<u8>, from: usize) -> (io::Result<usize>, Vec<u8>, Self) {
        if from >= buf.len() {
            return (Ok(0), buf, self);
        }
        let mut slice = buf.slice(from..);
        loop {
            let sent;
            (sent, slice) = self.half.write(slice).await;
            if !interrupted(&sent) {
                return (sent, slice.into_inner(), self);
            }
        }
    }

    fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        socket::send_now(self.fd, bytes)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        socket::with_socket(self.fd, |s| s.shutdown(net::Shutdown::Write))
    }
}

/// Nothing was done and nothing is wrong: the process was stopped and goes on (signal(7)).
fn interrupted(done: &io::Result<usize>) -> bool {
    matches!(done, Err(error) if error.kind() == io::ErrorKind::Interrupted)
}

fn split(stream: TcpStream) -> io::Result<(Reader, Writer)> {
    stream.set_nodelay(true)?;
    let fd = stream.as_raw_fd();
    let (reader, writer) = stream.into_split();
    Ok((Reader { half: reader, fd }, Writer { half: writer, fd }))
}
