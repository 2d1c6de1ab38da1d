//! The runtime trait on glommio 0.9.0: its rings say when a socket is ready, and bytes move by calls that do not wait.
//!
//! Owns the halves, the listener, and what an executor is made of; here to be compared with. Both halves share one stream and its
//! descriptor. Invariants: while a half lives, its descriptor is open; an executor is only asked for where glommio would neither panic
//! nor end the process, as it does where a ring is refused.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{self, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::{TcpListener, TcpStream};
use glommio::timer::Timer;
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};
use io_uring::{IoUring, Probe, opcode};
use rlimit::Resource;

use super::clock::MonotonicClock;
use super::io::{Hangup, ReadHalf, Rt, WriteHalf};
use super::socket;
use crate::base::time::{Clock, Instant};

/// glommio, whose rings are the only way.
pub struct Glommio;

pub struct Listener {
    inner: TcpListener,
    /// Open for as long as `inner` is.
    fd: RawFd,
}

pub struct Reader(Rc<Stream>);

pub struct Writer(Rc<Stream>);

struct Stream {
    /// Borrowed within a poll only.
    inner: RefCell<TcpStream>,
    fd: RawFd,
    /// The connection goes on elsewhere, so the end of the halves is not its end.
    released: Cell<bool>,
}

impl Rt for Glommio {
    type Reader = Reader;
    type Writer = Writer;
    type Listener = Listener;

    fn from_listener(listener: net::TcpListener) -> io::Result<Listener> {
        // A ring answers EAGAIN on a non-blocking socket instead of waiting.
        listener.set_nonblocking(false)?;
        let fd = listener.as_raw_fd();
        let inner = hand_over(listener.into());
        Ok(Listener { inner, fd })
    }

    fn local_addr(listener: &Listener) -> io::Result<SocketAddr> {
        Ok(listener.inner.local_addr()?)
    }

    async fn accept(listener: &Listener) -> io::Result<(Reader, Writer, SocketAddr)> {
        loop {
            // A queue that is never empty is accepted from without a wait.
            glommio::yield_if_needed().await;
            let stream = listener.inner.accept().await?;
            // Whoever has left since has no address, and needs no answer.
            if let Ok(peer) = stream.peer_addr() {
                let (reader, writer) = split(stream)?;
                return Ok((reader, writer, peer));
            }
        }
    }

    fn stop_listening(listener: &Listener) {
        // On Linux this ends a listening socket and wakes who waits on it.
        let _ = socket::with_socket(listener.fd, |s| s.shutdown(net::Shutdown::Both));
    }

    async fn connect(addr: SocketAddr) -> io::Result<(Reader, Writer)> {
        split(TcpStream::connect(addr).await?)
    }

    fn adopt(stream: net::TcpStream) -> io::Result<(Reader, Writer)> {
        split(hand_over(stream.into()))
    }

    fn release(reader: Reader, writer: Writer) -> Result<net::TcpStream, (Reader, Writer)> {
        // A duplicate: glommio lends its descriptor to others and gives it to nobody.
        let Ok(copy) = socket::with_socket(reader.0.fd, |s| s.try_clone()) else {
            return Err((reader, writer));
        };
        debug_assert!(Rc::ptr_eq(&reader.0, &writer.0), "halves of one connection");
        writer.0.released.set(true);
        Ok(copy.into())
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static {
        Sleep::new(duration)
    }

    fn spawn(task: impl Future<Output = ()> + 'static) {
        // Into its own queue, because `spawn_local` polls the task before it returns: within the borrows of whoever spawns it.
        let queue = glommio::executor().current_task_queue();
        let spawned = glommio::spawn_local_into(task, queue);
        debug_assert!(spawned.is_ok(), "the queue that runs this exists");
        // Dropped as it is, a task is cancelled.
        let _ = spawned.map(glommio::Task::detach);
    }
}

impl ReadHalf for Reader {
    async fn read(self, mut buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>, Self) {
        let room = buf.capacity() - buf.len();
        if room == 0 {
            return (Err(io::ErrorKind::InvalidInput.into()), buf, self);
        }
        let got = poll_fn(|cx| {
            SCRATCH.with_borrow_mut(|scratch| {
                let room = room.min(scratch.len());
                let mut stream = self.0.inner.borrow_mut();
                let got = ready!(Pin::new(&mut *stream).poll_read(cx, &mut scratch[..room]));
                if let Ok(n) = got {
                    buf.extend_from_slice(&scratch[..n]);
                }
                Poll::Ready(got)
            })
        })
        .await;
        (got, buf, self)
    }

    fn is_quiet(&self) -> bool {
        socket::is_quiet(self.0.fd)
    }

    fn hangup(&self) -> Hangup {
        Hangup::new(&self.0, self.0.fd)
    }
}

impl WriteHalf for Writer {
    async fn write(self, buf: Vec<u8>, from: usize) -> (io::Result<usize>, Vec<u8>, Self) {
        if from >= buf.len() {
            return (Ok(0), buf, self);
        }
        let mut stall: Option<Arc<Stall>> = None;
        let sent = poll_fn(|cx| {
            if let Some(stall) = &stall
                && stall.goes_on(cx)
            {
                return Poll::Pending;
            }
            let mut stream = self.0.inner.borrow_mut();
            let mut stream = Pin::new(&mut *stream);
            let sent = stream.as_mut().poll_write(cx, &buf[from..]);
            if sent.is_ready() {
                return sent;
            }
            // Who waits is told through the stall.
            let waker = Waker::from(stall.insert(Stall::new(cx)).clone());
            stream.poll_write(&mut Context::from_waker(&waker), &buf[from..])
        })
        .await;
        (sent, buf, self)
    }

    fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        socket::send_now(self.0.fd, bytes)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.0.shutdown()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.0.released.get() {
            // The error says that the peer was faster.
            let _ = self.0.shutdown();
        }
    }
}

impl Stream {
    fn shutdown(&self) -> io::Result<()> {
        socket::with_socket(self.fd, |s| s.shutdown(net::Shutdown::Write))
    }
}

/// A send that waits for room, as a ring would: until the kernel says that there is. glommio tries again whenever it is polled, and what
/// trickles through would make a client that reads nothing look like one that does.
struct Stall {
    over: AtomicBool,
    task: Waker,
}

impl Stall {
    fn new(cx: &Context<'_>) -> Arc<Stall> {
        Arc::new(Stall {
            over: AtomicBool::new(false),
            task: cx.waker().clone(),
        })
    }

    fn goes_on(&self, cx: &Context<'_>) -> bool {
        !self.over.load(Ordering::Relaxed) && self.task.will_wake(cx.waker())
    }
}

impl Wake for Stall {
    fn wake(self: Arc<Self>) {
        self.over.store(true, Ordering::Relaxed);
        self.task.wake_by_ref();
    }
}

thread_local! {
    /// glommio reads into bytes that have a value, and a buffer's spare room has none: a copy of what came is less work than to
    /// write zeroes into all of it before each read.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

const SCRATCH_BYTES: usize = 65_536;

fn split(stream: TcpStream) -> io::Result<(Reader, Writer)> {
    stream.set_nodelay(true)?;
    let stream = Rc::new(Stream {
        fd: stream.as_raw_fd(),
        inner: RefCell::new(stream),
        released: Cell::new(false),
    });
    Ok((Reader(stream.clone()), Writer(stream)))
}

/// A socket becomes glommio's.
#[expect(
    unsafe_code,
    reason = "glommio takes a socket that is there already as a number only"
)]
fn hand_over<T: FromRawFd>(socket: OwnedFd) -> T {
    // SAFETY: the number is that of an open descriptor, and its owner has just given it up.
    unsafe { T::from_raw_fd(socket.into_raw_fd()) }
}

/// A timer that ends on a whole millisecond, so that those of one millisecond share a wake-up.
struct Sleep {
    timer: Timer,
    due: Instant,
    /// Whom the timer wakes. To be polled by the same task again costs glommio's timer a removal and an insertion.
    known: Option<Waker>,
}

impl Sleep {
    fn new(duration: Duration) -> Self {
        let now = MonotonicClock::new().now();
        let ns = (now + duration).nanos().div_ceil(GRAIN_NS);
        let due = Instant::from_nanos(ns.saturating_mul(GRAIN_NS));
        Sleep {
            timer: Timer::new(due.since(now)),
            due,
            known: None,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let known = self.known.as_ref();
        if known.is_some_and(|known| known.will_wake(cx.waker()))
            && MonotonicClock::new().now() < self.due
        {
            return Poll::Pending;
        }
        self.known = Some(cx.waker().clone());
        Pin::new(&mut self.timer).poll(cx).map(drop)
    }
}

const GRAIN_NS: u64 = 1_000_000;

/// The executor of this thread, which keeps the place that the thread has taken.
///
/// glommio's own depth of rings and length of turns stay. A turn ends when its timer does, after 100 ms, and one whose timer ends before
/// any task has run puts an executor that has work to sleep: a turn of 1 ms did so at the start of every five-hundredth process on a
/// crowded machine, and nothing woke it.
pub(super) fn executor() -> io::Result<LocalExecutor> {
    allow_rings()?;
    raise_memlock()?;
    let builder = LocalExecutorBuilder::new(Placement::Unbound);
    Ok(builder.io_memory(IO_MEMORY_BYTES).make()?)
}

/// Where a ring is refused glommio panics, and where the kernel lacks an operation it ends the process: what it will look for.
fn allow_rings() -> io::Result<()> {
    const ASKED: [u8; 9] = [
        opcode::OpenAt::CODE,
        opcode::Close::CODE,
        opcode::Statx::CODE,
        opcode::Fallocate::CODE,
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Send::CODE,
        opcode::Recv::CODE,
        opcode::Connect::CODE,
    ];
    let (ring, mut probe) = (IoUring::new(2)?, Probe::new());
    ring.submitter().register_probe(&mut probe)?;
    // The others are as old as the probe itself or older.
    match ASKED.iter().all(|code| probe.is_supported(*code)) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel's io_uring lacks an operation",
        )),
    }
}

/// glommio refuses to run below its bound, also on kernels that lock nothing for a ring (5.12 and later).
fn raise_memlock() -> io::Result<()> {
    let (soft, hard) = Resource::MEMLOCK.get()?;
    if soft >= MEMLOCK_BYTES {
        return Ok(());
    }
    // Above the hard limit the privilege to raise it is needed.
    let raised = Resource::MEMLOCK.set(MEMLOCK_BYTES, hard.max(MEMLOCK_BYTES));
    raised.map_err(|why| {
        let text = format!(
            "locked memory is limited to {} KiB, and it needs {} (ulimit -l): {why}",
            hard >> 10,
            MEMLOCK_BYTES >> 10,
        );
        io::Error::new(why.kind(), text)
    })
}

/// What glommio asks of RLIMIT_MEMLOCK.
const MEMLOCK_BYTES: u64 = 512 << 10;

/// The least that it takes: registered buffers are for files.
const IO_MEMORY_BYTES: usize = 64 << 10;
