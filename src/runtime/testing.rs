//! Runs one asynchronous test body on io_uring and on epoll. Only a test on both counts: epoll never loses the
//! bytes of a dropped read, so it cannot catch that fault.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::boot::{self, Driver};

/// Runs `body` on each driver, each on a thread and a runtime of its own. Panics when it panics or hangs.
/// Without io_uring on the machine that half is skipped and said so.
pub fn both_drivers<F, Fut>(body: F)
where
    F: Fn() -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()>,
{
    on_driver(Driver::Epoll, body.clone());
    if monoio::utils::detect_uring() {
        on_driver(Driver::IoUring, body);
    } else {
        eprintln!("skipped on io_uring: not available here");
    }
}

/// Waits until `holds` does, looking every millisecond; panics after long.
#[expect(clippy::disallowed_methods, reason = "a test's own deadline")]
pub async fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < HANG / 2, "does not come true");
        monoio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn on_driver<F, Fut>(driver: Driver, body: F)
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let (done, finished) = mpsc::channel();
    let thread = thread::spawn(move || {
        // Never dropped: an operation may be in flight, and its buffer must outlive it.
        let mut runtime =
            ManuallyDrop::new(boot::runtime(driver).expect("the driver is available"));
        runtime.block_on(async move { body().await });
        let _ = done.send(());
    });
    match finished.recv_timeout(HANG) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs on {driver:?}"),
        _ => thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

const HANG: Duration = Duration::from_secs(30);
