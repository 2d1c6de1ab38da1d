//! How the data plane starts: the driver, one pinned thread per shard, and the listeners they share.
//!
//! Owns the threads of the shards until they end. Pins first and builds the runtime second, so that a shard's first
//! touch puts its pages on its own memory node. Invariants: all shards run or none does; all run the same driver; no
//! runtime is dropped, because an operation may be in flight into one of its buffers: a shard drains, then the process
//! ends.

use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;

use core_affinity::CoreId;
use io_uring::IoUring;
use monoio::time::TimeDriver;
use monoio::{IoUringDriver, LegacyDriver, Runtime, RuntimeBuilder};

use super::socket;
use super::topology::{CpuList, Machine, Place, Plan};

/// How a shard asks the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Driver {
    IoUring,
    Epoll,
}

/// What the operator wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DriverChoice {
    /// io_uring where the kernel allows it, else epoll.
    #[default]
    Auto,
    /// io_uring, or the start fails.
    IoUring,
    Epoll,
}

impl Driver {
    /// The word in the log and on the gauge.
    pub const fn name(self) -> &'static str {
        match self {
            Driver::IoUring => "io_uring",
            Driver::Epoll => "epoll",
        }
    }
}

/// Settles the driver once, before the first shard starts, so that all shards run the same one. The reason of a fall
/// back to epoll is the second value, for the log. `MONOIO_FORCE_LEGACY_DRIVER=1` makes io_uring look refused.
pub fn choose_driver(choice: DriverChoice) -> io::Result<(Driver, Option<io::Error>)> {
    if choice == DriverChoice::Epoll {
        return Ok((Driver::Epoll, None));
    }
    match (try_uring(), choice) {
        (Ok(()), _) => Ok((Driver::IoUring, None)),
        (Err(why), DriverChoice::Auto) => Ok((Driver::Epoll, Some(why))),
        (Err(why), _) => {
            let text = format!("driver: io_uring is not available here: {why}");
            Err(io::Error::new(why.kind(), text))
        }
    }
}

/// Builds a ring of full size once and lets it go unused: a limit on memory shows here and not on the third shard.
fn try_uring() -> io::Result<()> {
    if monoio::utils::detect_uring() {
        return runtime(Driver::IoUring).map(drop);
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "refused or too old (kernel.io_uring_disabled, a seccomp profile, or a kernel before 5.6)",
    ))
}

/// What this process may use of the machine it runs on.
pub fn machine() -> io::Result<Machine> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    let mask = CpuList::new(ids.into_iter().map(|core| core.id).collect());
    let mask = mask.ok_or_else(|| io::Error::other("the affinity mask cannot be read"))?;
    Ok(Machine::read("/".as_ref(), mask))
}

/// The running shards.
pub struct Shards {
    threads: Vec<thread::JoinHandle<()>>,
    /// Places whose pinning the kernel refused; worth a warning, the shard runs all the same.
    pub unpinned: Vec<Place>,
}

/// Starts one thread per place and returns once all run. `make` is called here, in order, and returns what the thread
/// calls inside its runtime; the future may own what is not `Send`. A shard ends when its future does.
pub fn run_shards<M, B, Fut>(plan: &Plan, driver: Driver, mut make: M) -> io::Result<Shards>
where
    M: FnMut(&Place) -> B,
    B: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let (report, reports) = mpsc::channel();
    let mut threads = Vec::with_capacity(plan.places.len());
    let mut gates = Vec::with_capacity(plan.places.len());
    for place in &plan.places {
        let (gate, opened) = mpsc::channel();
        let (place, body, report) = (*place, make(place), report.clone());
        let thread = thread::Builder::new().name(format!("shard-{}", place.shard));
        threads.push(thread.spawn(move || shard(place, driver, body, &report, &opened))?);
        gates.push(gate);
    }
    drop(report);
    let mut unpinned = Vec::new();
    for _ in &plan.places {
        // A thread that dies before it reports is a panic; its report is then missing.
        let report = reports
            .recv()
            .map_err(|_| io::Error::other("a shard died at start"))?;
        unpinned.extend(report?);
    }
    // An early return above drops the gates, and every shard that waits at one ends unborn.
    for gate in &gates {
        let _ = gate.send(());
    }
    Ok(Shards { threads, unpinned })
}

impl Shards {
    /// Waits until every shard has ended; the error is a panic of one.
    pub fn join(self) -> thread::Result<()> {
        self.threads
            .into_iter()
            .map(thread::JoinHandle::join)
            .fold(Ok(()), Result::and)
    }
}

/// The life of a shard's thread. Reports the place when it could not be pinned.
fn shard<B, Fut>(
    place: Place,
    driver: Driver,
    body: B,
    report: &mpsc::Sender<io::Result<Option<Place>>>,
    opened: &mpsc::Receiver<()>,
) where
    B: FnOnce() -> Fut,
    Fut: Future<Output = ()>,
{
    block_signals();
    let pinned = place
        .cpu
        .is_none_or(|id| core_affinity::set_for_current(CoreId { id }));
    let mut runtime = match runtime(driver) {
        Ok(runtime) => ManuallyDrop::new(runtime),
        Err(error) => {
            let _ = report.send(Err(error));
            return;
        }
    };
    let _ = report.send(Ok((!pinned).then_some(place)));
    if opened.recv().is_ok() {
        runtime.block_on(async move { body().await });
    }
}

/// Signals go to the control thread: on a shard they would only interrupt system calls.
/// What a fault raises on the thread itself stays deliverable.
#[expect(unsafe_code, reason = "std has no call for a thread's signal mask")]
fn block_signals() {
    const FAULTS: [i32; 6] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGABRT,
        libc::SIGTRAP,
    ];
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that the later calls read; the old mask is not asked for; all pointers
    // are to a live local.
    let failed = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in FAULTS {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut())
    };
    debug_assert_eq!(failed, 0, "the arguments are valid");
}

/// One listener for each of `shards` on the same address, the kernel spreading connections. An address in use is an
/// error even when its user shares ports too: the first socket binds alone and only then lets the others in. Port 0
/// is picked once; ask the listeners for it.
pub fn bind_shards(addr: SocketAddr, shards: usize) -> io::Result<Vec<TcpListener>> {
    let first = socket::bind_exclusively(addr)?;
    let addr = first.local_addr()?.as_socket().unwrap_or(addr);
    let mut bound = vec![first];
    for _ in 1..shards {
        bound.push(socket::bind_shared(addr)?);
    }
    // Listening last: from the first `listen` on clients come, and the spread should then be complete.
    let listening = bound.into_iter().map(|socket| {
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    });
    listening.collect()
}

/// One shard's runtime; belongs to the thread that builds it.
pub enum ShardRuntime {
    IoUring(Runtime<TimeDriver<IoUringDriver>>),
    Epoll(Runtime<TimeDriver<LegacyDriver>>),
}

/// Builds the runtime of this thread.
pub fn runtime(driver: Driver) -> io::Result<ShardRuntime> {
    Ok(match driver {
        Driver::IoUring => ShardRuntime::IoUring(uring()?),
        Driver::Epoll => ShardRuntime::Epoll(
            RuntimeBuilder::<LegacyDriver>::new()
                .with_entries(ENTRIES)
                .enable_timer()
                .build()?,
        ),
    })
}

/// A ring whose completions wait for the thread's next system call. Without that the kernel interrupts the thread for each one that
/// another core brings about, up to a quarter of what a relayed event costs. Kernels before 5.19 refuse the flag, and do without.
fn uring() -> io::Result<Runtime<TimeDriver<IoUringDriver>>> {
    let build = |ring: io_uring::Builder| {
        RuntimeBuilder::<IoUringDriver>::new()
            .uring_builder(ring)
            .with_entries(ENTRIES)
            .enable_timer()
            .build()
    };
    let mut cooperative = IoUring::builder();
    cooperative.setup_coop_taskrun();
    match build(cooperative) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => build(IoUring::builder()),
        built => built,
    }
}

impl ShardRuntime {
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        match self {
            ShardRuntime::IoUring(runtime) => runtime.block_on(future),
            ShardRuntime::Epoll(runtime) => runtime.block_on(future),
        }
    }
}

/// Submission entries of a ring, and events of one epoll call: what one turn of a busy shard fills.
const ENTRIES: u32 = 4096;

/// Connections that wait for `accept`, each listener; the kernel lowers it to `net.core.somaxconn`, 4096 by default.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests;
