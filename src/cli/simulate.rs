//! Simulated engines on a thread of their own: `narwhal engine`, and the engines of `narwhal demo`.
//!
//! Owns that thread. Its engines share one world, so a handoff that one of them made is checked when another uses it; engines of
//! other processes are known by the proof in their ids. Never on a router's shard: the two would trade places in every measurement.

use std::cell::RefCell;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::process;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use super::engine::Server;
use super::{Failure, flags, router};
use crate::base::time::Clock;
use crate::base::units::Role;
use crate::control::signals::Caught;
use crate::runtime::boot::{self, Driver, DriverChoice, Shards};
use crate::runtime::clock::{self, MonotonicClock};
use crate::runtime::io::Rt;
use crate::runtime::monoio::Monoio;
use crate::runtime::topology::{self, Ask, CpuList};
use crate::stub::engine::{Engine, Setup, World};
use crate::stub::profile::Profile;

/// Engines that run.
pub struct Simulated {
    /// Where they listen, real ports, in the order given.
    pub addresses: Vec<SocketAddr>,
    pub driver: Driver,
    thread: Shards,
}

/// Serves until a signal.
pub fn run(args: flags::Engine) -> Result<(), Failure> {
    let roles = roles(&args)?;
    end_on_signal().map_err(Failure::failed)?;
    let profile = Profile::flat(args.ttft_ms, args.tpot_ms);
    let setup = |(listen, role): (&SocketAddr, &Role)| {
        let setup = Setup {
            dialect: args.dialect,
            role: *role,
            model: args.model.clone(),
            profile,
            ..Setup::default()
        };
        (*listen, setup)
    };
    let engines = args.listen.iter().zip(&roles).map(setup).collect();
    let simulated = start(engines, router::choice(args.driver), args.cpu)?;
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

/// Starts engines, each with its own listener; returns once all accept.
pub fn start(
    engines: Vec<(SocketAddr, Setup)>,
    driver: DriverChoice,
    cpu: Option<usize>,
) -> Result<Simulated, Failure> {
    let (driver, fallback) = boot::choose_driver(driver).map_err(Failure::failed)?;
    if let Some(why) = fallback {
        tracing::warn!("io_uring is not available, engines run on epoll: {why}");
    }
    let clock = MonotonicClock::new();
    let mut seeds = router::seeds();
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
    let thread = boot::run_shards(&place(cpu)?, driver, |_| {
        let work = std::mem::take(&mut work);
        move || serve(work, clock)
    })
    .map_err(Failure::failed)?;
    if !thread.unpinned.is_empty() {
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

/// The life of the thread.
async fn serve(work: Vec<(TcpListener, Setup)>, clock: MonotonicClock) {
    let now = clock.now();
    let (listeners, setups): (Vec<_>, Vec<_>) = work.into_iter().unzip();
    let world = Rc::new(RefCell::new(World {
        engines: setups.into_iter().map(|s| Engine::new(s, now)).collect(),
        ..World::default()
    }));
    let mut last = None;
    for (index, listener) in listeners.into_iter().enumerate() {
        let listener = match Monoio::from_listener(listener) {
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
            events_per_write: 1,
        };
        if let Some((server, listener)) = last.replace((server, listener)) {
            Monoio::spawn(Server::serve::<Monoio>(server, listener));
        }
    }
    if let Some((server, listener)) = last {
        server.serve::<Monoio>(listener).await;
    }
}

/// One role for all engines, or one each.
fn roles(args: &flags::Engine) -> Result<Vec<Role>, Failure> {
    let (given, engines) = (args.role.len(), args.listen.len());
    match args.role.as_slice() {
        [role] => Ok(vec![*role; engines]),
        roles if given == engines => Ok(roles.to_vec()),
        _ => Err(Failure::config(format!(
            "--role: given {given} times for {engines} --listen; give it once, or once per --listen"
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

/// From its return on, SIGTERM or SIGINT ends the process with exit code 0. Streams are cut, as when an engine is killed.
fn end_on_signal() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
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
        process::exit(0);
    };
    thread::Builder::new()
        .name("narwhal-signals".into())
        .spawn(move || runtime.block_on(wait))?;
    is_up
        .recv()
        .map_err(|_| io::Error::other("the signals' thread ended at its start"))?
}
