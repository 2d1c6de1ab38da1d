//! How the data plane starts: the driver, one pinned thread per shard, and the listeners they share.

use std::future::Future;
use std::io;

use monoio::time::TimeDriver;
use monoio::{IoUringDriver, LegacyDriver, Runtime, RuntimeBuilder};

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

/// Settles the driver once, before the first shard starts, so that all shards run the same one.
pub fn choose_driver(choice: DriverChoice) -> io::Result<Driver> {
    let works = || monoio::utils::detect_uring();
    match choice {
        DriverChoice::Epoll => Ok(Driver::Epoll),
        DriverChoice::Auto if works() => Ok(Driver::IoUring),
        DriverChoice::Auto => Ok(Driver::Epoll),
        DriverChoice::IoUring if works() => Ok(Driver::IoUring),
        DriverChoice::IoUring => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "io_driver io_uring: the kernel refuses it (kernel.io_uring_disabled, or a seccomp profile)",
        )),
    }
}

/// One shard's runtime; belongs to the thread that builds it.
pub enum ShardRuntime {
    IoUring(Runtime<TimeDriver<IoUringDriver>>),
    Epoll(Runtime<TimeDriver<LegacyDriver>>),
}

/// Builds the runtime of this thread.
pub fn runtime(driver: Driver) -> io::Result<ShardRuntime> {
    Ok(match driver {
        Driver::IoUring => ShardRuntime::IoUring(
            RuntimeBuilder::<IoUringDriver>::new()
                .with_entries(ENTRIES)
                .enable_timer()
                .build()?,
        ),
        Driver::Epoll => ShardRuntime::Epoll(
            RuntimeBuilder::<LegacyDriver>::new()
                .with_entries(ENTRIES)
                .enable_timer()
                .build()?,
        ),
    })
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
