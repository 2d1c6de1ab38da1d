//! How the data plane starts: the driver, one pinned thread per shard, and the listeners they share.
//!
//! Owns the threads of the shards until they end. A thread takes its place first and builds the runtime second, so that the shard's pages
//! are on its own memory node. Invariants: all shards run or none does; all run the same driver; no
//! runtime is dropped, because an operation may be in flight into one of its buffers: a shard drains, then the process
//! ends.

use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;

use io_uring::IoUring;
use monoio::time::TimeDriver;
use monoio::{IoUringDriver, LegacyDriver, Runtime, RuntimeBuilder};

use super::settle::{self, Refused};
use super::socket;
use super::topology::{CpuList, Machine, Place, Plan};

/// How a shard asks the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Driver {
    IoUring,
    Epoll,
    #[cfg(feature = "rt-glommio")]
    Glommio,
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
    /// Another runtime, for builds that have it.
    Glommio,
}

impl DriverChoice {
    /// Those that name one, as far as this build has it: what every test of a driver goes through.
    pub const NAMED: &[DriverChoice] = &[
        DriverChoice::IoUring,
        DriverChoice::Epoll,
        #[cfg(feature = "rt-glommio")]
        DriverChoice::Glommio,
    ];
}

impl Driver {
    /// Those of one runtime; the other has one.
    pub const fn is_monoio(self) -> bool {
        matches!(self, Driver::IoUring | Driver::Epoll)
    }

    /// The word in the log and on the gauge.
    pub const fn name(self) -> &'static str {
        match self {
            Driver::IoUring => "io_uring",
            Driver::Epoll => "epoll",
            #[cfg(feature = "rt-glommio")]
            Driver::Glommio => "glommio",
        }
    }
}

/// Settles the driver once, before the first shard starts, so that all shards run the same one. The reason of a fall
/// back to epoll is the second value, for the log. `MONOIO_FORCE_LEGACY_DRIVER=1` makes io_uring look refused.
pub fn choose_driver(choice: DriverChoice) -> io::Result<(Driver, Option<io::Error>)> {
    match choice {
        DriverChoice::Epoll => return Ok((Driver::Epoll, None)),
        DriverChoice::Glommio => return Ok((try_glommio()?, None)),
        DriverChoice::Auto | DriverChoice::IoUring => {}
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

#[cfg(feature = "rt-glommio")]
fn try_glommio() -> io::Result<Driver> {
    runtime(Driver::Glommio).map_err(|why| {
        let text = format!("driver: glommio is not available here: {why}");
        io::Error::new(why.kind(), text)
    })?;
    Ok(Driver::Glommio)
}

#[cfg(not(feature = "rt-glommio"))]
fn try_glommio() -> io::Result<Driver> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "driver: glommio is not in this build, which needs the feature rt-glommio for it",
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
    /// Places that the kernel refused; worth a warning, the shard runs all the same.
    pub refused: Vec<(Place, Refused)>,
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
        let (place, body, report) = (place.clone(), make(place), report.clone());
        let thread = thread::Builder::new().name(format!("shard-{}", place.shard));
        threads.push(thread.spawn(move || shard(place, driver, body, &report, &opened))?);
        gates.push(gate);
    }
    drop(report);
    let mut refused = Vec::new();
    for _ in &plan.places {
        // A thread that dies before it reports is a panic; its report is then missing.
        let report = reports
            .recv()
            .map_err(|_| io::Error::other("a shard died at start"))?;
        let (place, all) = report?;
        refused.extend(all.into_iter().map(|what| (place.clone(), what)));
    }
    // An early return above drops the gates, and every shard that waits at one ends unborn.
    for gate in &gates {
        let _ = gate.send(());
    }
    Ok(Shards { threads, refused })
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

/// What a shard's thread says once it could run.
type Report = io::Result<(Place, Vec<Refused>)>;

/// The life of a shard's thread. The place comes first: what is allocated from then on is the shard's own.
fn shard<B, Fut>(
    place: Place,
    driver: Driver,
    body: B,
    report: &mpsc::Sender<Report>,
    opened: &mpsc::Receiver<()>,
) where
    B: FnOnce() -> Fut,
    Fut: Future<Output = ()>,
{
    settle::block_signals();
    let refused = settle::take(&place);
    let mut runtime = match runtime(driver) {
        Ok(runtime) => ManuallyDrop::new(runtime),
        Err(error) => {
            let _ = report.send(Err(error));
            return;
        }
    };
    let _ = report.send(Ok((place, refused)));
    if opened.recv().is_ok() {
        runtime.block_on(async move { body().await });
    }
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
    #[cfg(feature = "rt-glommio")]
    Glommio(::glommio::LocalExecutor),
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
        #[cfg(feature = "rt-glommio")]
        Driver::Glommio => ShardRuntime::Glommio(super::glommio::executor()?),
    })
}

/// A ring whose completions wait until the thread asks for them. Without that the kernel interrupts the thread for each one that another
/// core brings about, up to a quarter of what a relayed event costs. Kernels before 6.1 refuse the first way, which also takes all that
/// has come by then at once, and those before 5.19 the second.
fn uring() -> io::Result<Runtime<TimeDriver<IoUringDriver>>> {
    let build = |ring: &io_uring::Builder| {
        RuntimeBuilder::<IoUringDriver>::new()
            .uring_builder(ring.clone())
            .with_entries(ENTRIES)
            .enable_timer()
            .build()
    };
    let mut deferred = IoUring::builder();
    deferred.setup_single_issuer().setup_defer_taskrun();
    let mut cooperative = IoUring::builder();
    cooperative.setup_coop_taskrun();
    for ring in [deferred, cooperative] {
        match build(&ring) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            built => return built,
        }
    }
    build(&IoUring::builder())
}

impl ShardRuntime {
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        match self {
            ShardRuntime::IoUring(runtime) => runtime.block_on(future),
            ShardRuntime::Epoll(runtime) => runtime.block_on(future),
            #[cfg(feature = "rt-glommio")]
            ShardRuntime::Glommio(executor) => executor.run(future),
        }
    }
}

/// Submission entries of a ring, and events of one epoll call: what one turn of a busy shard fills.
const ENTRIES: u32 = 4096;

/// Connections that wait for `accept`, each listener; the kernel lowers it to `net.core.somaxconn`, 4096 by default.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests;
