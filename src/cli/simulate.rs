//! Simulated engines on a thread of their own: `narwhal engine`, and the engines of `narwhal demo`.
//!
//! Owns that thread. Its engines share one world, so a handoff that one of them made is checked when another uses it; engines of
//! other processes are known by the proof in their ids. Never on a router's shard: the two would trade places in every measurement.
//!
//! `narwhal engine` ends as vLLM does on SIGTERM: what runs is given up (200, `finish_reason: "abort"`, `[DONE]`) or, with
//! `--shutdown-timeout-s`, finishes; new requests get 500 and `/health` 200 until the port closes; then the process ends with 0.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::engine::{Alarm, Server};
use super::{Failure, flags, router};
use crate::base::prng::Prng;
use crate::base::time::Clock;
use crate::base::units::Role;
use crate::config::Format;
use crate::control::signals::Caught;
use crate::runtime::boot::{self, Driver, DriverChoice, Shards};
use crate::runtime::clock::{self, MonotonicClock};
#[cfg(feature = "rt-glommio")]
use crate::runtime::glommio::Glommio;
use crate::runtime::io::Rt;
use crate::runtime::monoio::Monoio;
use crate::runtime::topology::{self, Ask, CpuList};
use crate::stub::engine::{Engine, Setup, World};
use crate::stub::faults;
use crate::stub::profile::{self, Profile};
use crate::stub::stream::Merge;

/// Engines that run.
pub struct Simulated {
    /// Where they listen, real ports, in the order given.
    pub addresses: Vec<SocketAddr>,
    pub driver: Driver,
    thread: Shards,
}

/// Serves until a signal.
pub fn run(args: flags::Engine) -> Result<(), Failure> {
    let roles = spread(&args.role, args.listen.len(), "--role")?;
    let engines = setups(&args, &roles)?;
    let manner = Manner {
        events_per_write: usize::from(args.events_per_write),
        seed: args.seed,
        end: Some(end_on_signal(args.shutdown_timeout_s).map_err(Failure::failed)?),
    };
    let simulated = start_with(engines, router::choice(args.driver), args.cpu, manner)?;
    let mut out = io::stdout().lock();
    for (role, address) in roles.iter().zip(&simulated.addresses) {
        // A closed standard output is no reason to stop serving.
        let _ = writeln!(
            out,
            "engine {role}, {}, model {}, {}, on http://{address}",
            args.dialect,
            args.model,
            simulated.driver.name(),
        );
    }
    let _ = out.flush();
    drop(out);
    simulated.join()
}

/// How the thread as a whole behaves.
#[derive(Default)]
struct Manner {
    /// 0 is 1.
    events_per_write: usize,
    seed: Option<u64>,
    end: Option<End>,
}

/// How the process ends.
#[derive(Clone)]
struct End {
    /// Set by a signal.
    told: Arc<AtomicBool>,
    /// How long what runs may go on.
    timeout: Duration,
}

/// Starts engines, each with its own listener; returns once all accept.
pub fn start(
    engines: Vec<(SocketAddr, Setup)>,
    driver: DriverChoice,
    cpu: Option<usize>,
) -> Result<Simulated, Failure> {
    start_with(engines, driver, cpu, Manner::default())
}

fn start_with(
    engines: Vec<(SocketAddr, Setup)>,
    driver: DriverChoice,
    cpu: Option<usize>,
    manner: Manner,
) -> Result<Simulated, Failure> {
    let (driver, fallback) = boot::choose_driver(driver).map_err(Failure::failed)?;
    if let Some(why) = fallback {
        tracing::warn!("io_uring is not available, engines run on epoll: {why}");
    }
    let clock = MonotonicClock::new();
    let mut seeds = manner.seed.map_or_else(router::seeds, Prng::new);
    let mut addresses = Vec::new();
    let mut work = Vec::new();
    for (index, (listen, setup)) in engines.into_iter().enumerate() {
        let listener = bind(listen)?;
        addresses.push(listener.local_addr().map_err(Failure::failed)?);
        let setup = Setup {
            host: listen.ip().to_string(),
            // Told to peers, used by nobody.
            port: setup.port.wrapping_add(index as u16),
            seed: seeds.u64(),
            epoch_unix_s: clock::unix_seconds() - clock.now().nanos() / 1_000_000_000,
            ..setup
        };
        work.push((listener, setup));
    }
    let mut manner = Some(manner);
    let thread = boot::run_shards(&place(cpu)?, driver, |_| {
        let work = std::mem::take(&mut work);
        let manner = manner.take().unwrap_or_default();
        move || async move {
            match driver {
                Driver::IoUring | Driver::Epoll => serve::<Monoio>(work, clock, manner).await,
                #[cfg(feature = "rt-glommio")]
                Driver::Glommio => serve::<Glommio>(work, clock, manner).await,
            }
        }
    })
    .map_err(Failure::failed)?;
    if !thread.refused.is_empty() {
        tracing::warn!("the engines' thread could not be pinned to core {cpu:?}");
    }
    Ok(Simulated {
        addresses,
        driver,
        thread,
    })
}

impl Simulated {
    /// Waits for the end of the thread, which only a fault brings about.
    pub fn join(self) -> Result<(), Failure> {
        let ended = self.thread.join();
        Err(Failure::failed(match ended {
            Ok(()) => "the engines stopped listening",
            Err(_) => "the engines' thread panicked",
        }))
    }
}

/// The life of the thread: until every engine's port is closed for good.
async fn serve<R: Rt>(work: Vec<(TcpListener, Setup)>, clock: MonotonicClock, manner: Manner) {
    let now = clock.now();
    let (listeners, setups): (Vec<_>, Vec<_>) = work.into_iter().unzip();
    let world = Rc::new(RefCell::new(World {
        engines: setups.into_iter().map(|s| Engine::new(s, now)).collect(),
        ..World::default()
    }));
    let alarm = Rc::new(Alarm::default());
    if let Some(end) = manner.end {
        R::spawn(end_when_told::<R>(end, world.clone(), alarm.clone(), clock));
    }
    let mut serving = Vec::new();
    for (index, listener) in listeners.into_iter().enumerate() {
        let listener = match R::from_listener(listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!("an engine cannot serve its listener: {error}");
                process::exit(1);
            }
        };
        let server = Server {
            world: world.clone(),
            index,
            clock,
            alarm: alarm.clone(),
            events_per_write: manner.events_per_write.max(1),
        };
        // Alive until its engine is gone for good.
        let alive = Rc::new(());
        serving.push(Rc::downgrade(&alive));
        R::spawn(async move {
            server.serve::<R>(listener).await;
            drop(alive);
        });
    }
    while serving.iter().any(|alive| alive.strong_count() > 0) {
        R::sleep(10 * TICK).await;
    }
}

/// Ends the process as vLLM does, once a signal came.
async fn end_when_told<R: Rt>(
    end: End,
    world: Rc<RefCell<World>>,
    alarm: Rc<Alarm>,
    clock: MonotonicClock,
) {
    while !end.told.load(Ordering::Relaxed) {
        R::sleep(TICK).await;
    }
    let told = clock.now();
    world.borrow_mut().drain();
    while alarm.answering() > 0 && clock.now().since(told) < end.timeout {
        R::sleep(TICK).await;
    }
    world.borrow_mut().abort();
    alarm.ring();
    let given_up = clock.now();
    // Long enough for a client to see the port of an engine that takes nothing new, and no longer for one that does not read.
    while clock.now().since(told) < PORT_CLOSES
        || alarm.answering() > 0 && clock.now().since(given_up) < READERS_WAIT
    {
        R::sleep(TICK).await;
    }
    process::exit(0);
}

/// How often the thread looks for what other threads and engines did.
const TICK: Duration = Duration::from_millis(10);

/// From SIGTERM on vLLM 0.32.0 kept its port open for 0.25 s.
const PORT_CLOSES: Duration = Duration::from_millis(250);

const READERS_WAIT: Duration = Duration::from_secs(1);

/// What the flags and the files they name make of each engine.
fn setups(args: &flags::Engine, roles: &[Role]) -> Result<Vec<(SocketAddr, Setup)>, Failure> {
    let engines = args.listen.len();
    let rows = match &args.profile {
        None => None,
        Some(path) => Some(from_file(path, profile::parse)?),
    };
    let script = match &args.faults {
        None => faults::Script::default(),
        Some(path) => from_file(path, faults::parse)?,
    };
    let iids = match args.iid.as_slice() {
        [] => vec![None; engines],
        iids => spread(iids, engines, "--iid")?
            .into_iter()
            .map(Some)
            .collect(),
    };
    let setup = |(index, (listen, iid)): (usize, (&SocketAddr, &Option<String>))| {
        let mut setup = Setup {
            dialect: args.dialect,
            role: roles[index],
            model: args.model.clone(),
            profile: Profile::flat(args.ttft_ms, args.tpot_ms),
            keep_alive: args.sse_keep_alive_ms.map(Duration::from_millis),
            merge: Merge {
                share: args.merge_share,
                running_min: args.merge_running_min,
            },
            faults: script.of_engine(index),
            ..Setup::default()
        };
        if let (Some(rows), Some(path)) = (&rows, &args.profile) {
            let row = profile::choose(rows, iid.as_deref())
                .map_err(|why| Failure::config(format!("{}: {why}", path.display())))?;
            (setup.profile, setup.bounds) = (row.profile, row.bounds);
        }
        setup.profile.transfer_s = args.transfer_ms / 1e3;
        if let Some(tokens) = args.prefix_cache_tokens {
            setup.bounds.cached_tokens_max = tokens;
        }
        Ok((*listen, setup))
    };
    args.listen
        .iter()
        .zip(&iids)
        .enumerate()
        .map(setup)
        .collect()
}

/// A file, its name's format, and what `parse` makes of it.
fn from_file<T>(
    path: &Path,
    parse: impl Fn(&str, &str, Format) -> Result<T, crate::config::Errors>,
) -> Result<T, Failure> {
    let file = path.display().to_string();
    let format = Format::of(path)
        .ok_or_else(|| Failure::config(format!("{file}: the name must end in .json or .toml")))?;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|f| f.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|why| Failure::config(format!("{file}: cannot be read: {why}")))?;
    parse(&file, &text, format).map_err(Failure::config)
}

/// So that an endless file ends; what is longer than allowed is refused by its reader.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// One value for all engines, or one each.
fn spread<T: Clone>(given: &[T], engines: usize, flag: &str) -> Result<Vec<T>, Failure> {
    match given {
        [one] => Ok(vec![one.clone(); engines]),
        given if given.len() == engines => Ok(given.to_vec()),
        given => Err(Failure::config(format!(
            "{flag}: given {} times for {engines} --listen; give it once, or once per --listen",
            given.len()
        ))),
    }
}

fn bind(listen: SocketAddr) -> Result<TcpListener, Failure> {
    let named = |error: io::Error| Failure::failed(format!("listen {listen}: {error}"));
    let bound = boot::bind_shards(listen, 1).map_err(named)?;
    // One was asked for.
    bound
        .into_iter()
        .next()
        .ok_or_else(|| Failure::failed("no listener"))
}

/// Where the thread runs: on `cpu`, or where the kernel puts it.
fn place(cpu: Option<usize>) -> Result<topology::Plan, Failure> {
    let cpus = match cpu {
        None => None,
        Some(id) => Some(
            CpuList::new(vec![id])
                .ok_or_else(|| Failure::config(format!("--cpu {id}: no such core")))?,
        ),
    };
    let machine = boot::machine().map_err(Failure::failed)?;
    let ask = Ask {
        shards: Some(1),
        pin: Some(cpus.is_some()),
        cpus,
        ..Ask::default()
    };
    topology::plan(&machine, &ask).map_err(|why| Failure::config(format!("--cpu: {why}")))
}

/// From its return on, the first SIGTERM or SIGINT is told to the engines' thread; the second ends the process at once.
fn end_on_signal(timeout_s: f64) -> io::Result<End> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let end = End {
        told: Arc::default(),
        timeout: Duration::from_secs_f64(timeout_s),
    };
    let told = end.told.clone();
    let (up, is_up) = mpsc::channel();
    let wait = async move {
        let caught = Caught::new();
        let mut caught = match caught {
            Ok(caught) => {
                let _ = up.send(Ok(()));
                caught
            }
            Err(error) => return drop(up.send(Err(error))),
        };
        caught.next().await;
        told.store(true, Ordering::Relaxed);
        caught.next().await;
        process::exit(0);
    };
    thread::Builder::new()
        .name("narwhal-signals".into())
        .spawn(move || runtime.block_on(wait))?;
    is_up
        .recv()
        .map_err(|_| io::Error::other("the signals' thread ended at its start"))??;
    Ok(end)
}
