//! Plain socket calls that no runtime needs to know: bind, peek, last words, cut.
//!
//! Owns no descriptor. Holds the room's `unsafe`, among it turning the number of a descriptor that somebody
//! owns back into a borrow of it. Invariant: a number is used only while its owner is provably alive.

use std::any::Any;
use std::io;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::{Rc, Weak};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, SockRef, Socket, Type};

/// What this process or its machine has run out of, when that is why a connection could not even be begun: the peer has no part in it.
/// Not `EADDRNOTAVAIL`: an address without a route says it too, and ports run out towards one peer.
pub fn shortage(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE | libc::ENFILE => Some("descriptors"),
        libc::ENOMEM | libc::ENOBUFS => Some("memory"),
        _ => None,
    }
}

/// Cuts a connection whose halves are owned by futures in flight. It does not keep the connection open, and
/// does nothing once that is gone: the number may by then belong to another socket.
#[derive(Clone, Debug)]
pub struct Hangup {
    owner: Weak<dyn Any>,
    fd: RawFd,
}

impl Hangup {
    /// `owner` must keep `fd` open for as long as it has a strong reference.
    pub(super) fn new<T: Any>(owner: &Rc<T>, fd: RawFd) -> Self {
        let owner: Weak<T> = Rc::downgrade(owner);
        Hangup { owner, fd }
    }

    /// Shuts both directions down at once: the peer sees FIN, a pending read ends with `Ok(0)` and a pending
    /// write with an error. The descriptor closes when the halves are dropped.
    pub fn cut(&self) {
        if let Some(_alive) = self.owner.upgrade() {
            // The error says that the peer was faster.
            let _ = with_socket(self.fd, |s| s.shutdown(Shutdown::Both));
        }
    }

    /// Sends RST at once and throws away what was not yet sent; no FIN goes before it, as it does when the halves are dropped.
    #[expect(unsafe_code, reason = "an address without a family has no safe maker")]
    pub fn reset(&self) {
        if let Some(_alive) = self.owner.upgrade() {
            // SAFETY: zeroes are a valid address of family AF_UNSPEC, whose length is that of the family field at least.
            let none = unsafe { SockAddr::new(SockAddrStorage::zeroed(), UNSPEC_BYTES) };
            // On Linux connecting to no family disconnects, and a disconnect of TCP is a reset (connect(2)). The error says
            // that the peer was faster.
            let _ = with_socket(self.fd, |s| s.connect(&none));
        }
    }

    /// Makes the coming close send RST and throw away what was not yet sent.
    pub fn reset_on_close(&self) {
        if let Some(_alive) = self.owner.upgrade() {
            let _ = with_socket(self.fd, |s| s.set_linger(Some(Duration::ZERO)));
        }
    }
}

/// A `struct sockaddr`.
const UNSPEC_BYTES: libc::socklen_t = 16;

/// Binds and listens; `SO_REUSEADDR` is set, so that a restart need not wait for old connections.
pub fn bind(addr: SocketAddr, reuse_port: bool, backlog: u32) -> io::Result<TcpListener> {
    let socket = if reuse_port {
        bind_shared(addr)?
    } else {
        bind_alone(addr)?
    };
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Binds an address that nobody holds, then lets [`bind_shared`] of this user join. Linux looks at the option of both
/// sockets when the second binds, so there is no moment without a holder.
pub(super) fn bind_exclusively(addr: SocketAddr) -> io::Result<Socket> {
    let socket = bind_alone(addr)?;
    socket.set_reuse_port(true)?;
    Ok(socket)
}

pub(super) fn bind_shared(addr: SocketAddr) -> io::Result<Socket> {
    let socket = tcp(addr)?;
    socket.set_reuse_port(true)?;
    socket.bind(&addr.into())?;
    Ok(socket)
}

fn bind_alone(addr: SocketAddr) -> io::Result<Socket> {
    let socket = tcp(addr)?;
    socket.bind(&addr.into())?;
    Ok(socket)
}

fn tcp(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// No byte, no end and no error wait on the socket. `fd` must be open.
pub(super) fn is_quiet(fd: RawFd) -> bool {
    let mut byte = [MaybeUninit::<u8>::uninit()];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    match with_socket(fd, |s| s.recv_with_flags(&mut byte, flags)) {
        Ok(_) => false,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Sends what there is room for, without waiting. `fd` must be open.
pub(super) fn send_now(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    with_socket(fd, |s| s.send_with_flags(bytes, flags))
}

/// Runs `f` on the socket behind `fd`, which the caller's owner keeps open meanwhile.
#[expect(
    unsafe_code,
    reason = "the runtime lends its descriptor as a number only"
)]
pub(super) fn with_socket<T>(fd: RawFd, f: impl FnOnce(SockRef<'_>) -> T) -> T {
    // SAFETY: every caller holds the owner of `fd` (a half, a listener, or a strong reference just taken) for
    // the whole call, and owners close only when dropped. The borrow does not leave this function.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    f(SockRef::from(&fd))
}
