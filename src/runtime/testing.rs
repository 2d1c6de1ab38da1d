//! Runs one asynchronous test body on every driver: io_uring, epoll, and glommio in builds that have it. Only a test on all of them
//! counts: neither epoll nor glommio ever loses the bytes of a dropped read, so they cannot catch that fault.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::boot::{self, Driver, DriverChoice};
use super::io::Rt;

/// Runs a body, generic over its runtime, on each driver, each on a thread and a runtime of its own. Panics when it panics or hangs.
macro_rules! each_driver {
    (|$rt:ident| $body:block) => {{
        // A body may need no more of the runtime than to run on it.
        #[allow(clippy::extra_unused_type_parameters)]
        async fn body<$rt: $crate::runtime::io::Rt>() $body
        $crate::runtime::testing::both_drivers(body::<$crate::runtime::monoio::Monoio>);
        #[cfg(feature = "rt-glommio")]
        $crate::runtime::testing::on_glommio(body::<$crate::runtime::glommio::Glommio>);
    }};
}

pub(crate) use each_driver;

/// Runs `body` on each driver of monoio.
pub fn both_drivers<F, Fut>(body: F)
where
    F: Fn() -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()>,
{
    for driver in drivers() {
        if driver.is_monoio() {
            on_driver(driver, body.clone());
        }
    }
}

#[cfg(feature = "rt-glommio")]
pub fn on_glommio<F, Fut>(body: F)
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    if drivers().contains(&Driver::Glommio) {
        on_driver(Driver::Glommio, body);
    }
}

/// What this machine allows. What it does not is skipped, and said so.
pub fn drivers() -> Vec<Driver> {
    let tried = DriverChoice::NAMED
        .iter()
        .map(|choice| boot::choose_driver(*choice));
    tried
        .filter_map(|tried| tried.map_err(|why| eprintln!("skipped: {why}")).ok())
        .map(|(driver, _)| driver)
        .collect()
}

/// Waits until `holds` does, looking every millisecond; panics after long.
#[expect(clippy::disallowed_methods, reason = "a test's own deadline")]
pub async fn until<R: Rt>(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < HANG / 2, "does not come true");
        R::sleep(Duration::from_millis(1)).await;
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
