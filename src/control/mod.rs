//! The control thread: an ordinary tokio current-thread runtime on its own OS thread. It probes engines, looks their names
//! up, answers the admin routes (on `admin_listen`, and for shards that pass them on), and turns signals into a drain. It never
//! sees a client's completion byte; shards read its work through atomics only, so a stuck control thread slows no stream.
//!
//! Owns: the admin listener, the probes, the `live` flags of the board, the engines' addresses, the gate. May use what is above
//! the line and ordinary libraries. Invariant: everything it accepts is bounded (connections, asks, bytes, time).

pub mod admin;

mod asks;

mod breakers;

mod check;

pub mod causes;

pub mod disk;

pub mod generation;

mod inference;

pub mod journal;

pub mod judge;

mod lifecycle;

pub mod liveness;

pub mod monitor;

pub mod port;

mod reach;

pub mod reload;

mod remember;

pub mod resolve;

pub mod serve;

mod settings;

pub mod signals;

pub mod stages;

mod view;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::sync::{mpsc, watch};

pub use self::asks::{Ask, Asker, Reply};
pub use self::settings::Settings;
use crate::base::limits;
use crate::base::prng::Prng;
use crate::base::units::Dialect;
use crate::config::AdminKey;
use crate::config::checked::Admission;
use crate::config::topology::{self, Snapshot};
use crate::metrics::histogram::{ShardTimes, Times};
use crate::metrics::ledger::{Counts, ShardLedger};
use crate::metrics::picture::{AdmissionMode, Picture, ShardView};
use crate::metrics::standing::{self, HealthView};
use crate::shard;

/// What control reads of the router, and the few flags of it that it writes. Each reload makes another one, which differs in the fleet
/// alone: whoever goes on for longer than a moment looks for the one of now ([`Now`]).
#[derive(Clone)]
pub struct Shared {
    pub router_id: Arc<str>,
    pub snapshot: Arc<Snapshot>,
    pub state: Arc<shard::Shared>,
    pub shards: Arc<[ShardFacts]>,
    pub digests: Arc<generation::Matches>,
    pub causes: Arc<causes::Causes>,
    pulses: Arc<generation::Pulses>,
    pub journal: Option<journal::Handle>,
    lifecycle: Arc<lifecycle::Lifecycle>,
    reloads: Arc<reload::Log>,
    admin_key: Option<Arc<AdminKey>>,
    /// How https engines are asked; without it they are not live.
    tls: Option<Arc<ClientConfig>>,
}

/// The router as it is, reloads included.
pub type Now = watch::Receiver<Arc<Shared>>;

/// A shard as control needs it.
#[derive(Clone, Debug)]
pub struct ShardFacts {
    pub ledger: Arc<ShardLedger>,
    pub times: Arc<ShardTimes>,
    pub core: Option<u32>,
    pub node: Option<u32>,
    pub driver: &'static str,
}

impl Shared {
    pub fn new(
        router_id: String,
        snapshot: &Arc<Snapshot>,
        state: &Arc<shard::Shared>,
        shards: Vec<ShardFacts>,
    ) -> Shared {
        let engines = snapshot.engines.len();
        Shared {
            router_id: router_id.into(),
            snapshot: snapshot.clone(),
            state: state.clone(),
            shards: shards.into(),
            digests: Arc::new(generation::Matches::new(engines)),
            causes: Arc::default(),
            pulses: Arc::new(generation::Pulses::new(engines)),
            journal: None,
            lifecycle: Arc::default(),
            reloads: Arc::default(),
            admin_key: None,
            tls: None,
        }
    }

    /// What `/health` and `/ready` say; allocates nothing.
    pub fn health(&self) -> HealthView<'_> {
        let engine = |e: &topology::EngineView| (e.role, e.pin, self.state.board.line(e.id).into());
        let engines = self.snapshot.present().map(engine);
        HealthView {
            standing: self.state.standing.standing(),
            why: self.state.why(),
            fleet: standing::Fleet::look(engines, self.one_leg()),
            epoch: None,
            holder: None,
        }
    }

    /// The served model first, then its aliases.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let fleet = &self.snapshot.fleet;
        std::iter::once(&fleet.model)
            .chain(&fleet.model_aliases)
            .map(String::as_str)
    }

    /// Everything, at about one moment: each shard's ledger is consistent in itself.
    pub fn picture(&self, uptime: Duration) -> Picture<'_> {
        let health = self.health();
        let fleet = &self.snapshot.fleet;
        let engine = |e| view::engine(e, self);
        Picture {
            version: env!("CARGO_PKG_VERSION"),
            router_id: &self.router_id,
            uptime,
            models: self.models().collect(),
            token_accounting: view::token_accounting(fleet),
            mode: match fleet.serving.admission {
                Admission::Predictive => AdmissionMode::Predictive,
                Admission::Open => AdmissionMode::Open,
            },
            seats: view::room(&self.state.seats),
            retained: view::room(&self.state.retained),
            queue_limit: fleet.serving.queue_capacity as u64,
            standing: health.standing,
            why: health.why,
            epoch: health.epoch,
            holder: health.holder,
            one_leg: self.one_leg(),
            engines: self.snapshot.present().map(engine).collect(),
            reloads: self.reloads.shown(&self.snapshot),
            lengths: self.state.learned.lengths().map(view::length).collect(),
            shards: self.shards.iter().map(ShardFacts::view).collect(),
            journal: self.journal.as_ref().map(journal::Handle::view),
            totals: Counts::default(),
            times: Times::default(),
        }
        .totalled()
    }

    fn one_leg(&self) -> bool {
        self.snapshot.fleet.engine.dialect == Dialect::Openai
    }
}

impl ShardFacts {
    fn view(&self) -> ShardView<'_> {
        ShardView {
            core: self.core,
            node: self.node,
            driver: self.driver,
            counts: self.ledger.snapshot(),
            times: self.times.snapshot(),
        }
    }
}

/// The running control thread. Dropping it stops the thread as well, without waiting.
pub struct Handle {
    /// Where the admin routes are, when `admin_listen` is set.
    pub admin_address: Option<SocketAddr>,
    now: Now,
    asks: Asker,
    stop: watch::Sender<bool>,
    thread: std::thread::JoinHandle<()>,
}

impl Handle {
    pub fn asker(&self) -> Asker {
        self.asks.clone()
    }

    pub fn now(&self) -> Now {
        self.now.clone()
    }

    /// Finishes the answers under way, then ends the thread and waits for it.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.thread.join();
    }
}

/// Starts the thread; returns once the listener is bound and the signals are caught.
pub fn start(shared: Arc<Shared>, mut settings: Settings) -> io::Result<Handle> {
    assert_eq!(
        shared.snapshot.engines.len(),
        shared.state.board.len(),
        "the board has a line per engine"
    );
    let bind = |at| TcpListener::bind(at).map_err(|e| named(e, &format!("admin_listen {at}")));
    let listener = settings.admin_listen.map(bind).transpose()?;
    let admin_address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let shared = Arc::new(Shared {
        admin_key: settings.admin_key.take().map(Arc::new),
        tls: settings.tls.take(),
        ..(*shared).clone()
    });
    let (current, now) = watch::channel(shared);
    let (asks, asked) = mpsc::channel(ASKS_MAX);
    let (stop, stopped) = watch::channel(false);
    let (up, is_up) = std::sync::mpsc::sync_channel(1);
    let life = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Some more, for the files that are read and written: no lookup may keep them waiting.
            .max_blocking_threads(limits::RESOLVERS_MAX + FILES_MAX)
            .build();
        match runtime {
            Ok(runtime) => {
                runtime.block_on(run(current, settings, listener, asked, stopped, up));
                // A lookup under way may take as long as its name server likes.
                runtime.shutdown_background();
            }
            Err(e) => drop(up.send(Err(e))),
        }
    };
    let thread = std::thread::Builder::new()
        .name("narwhal-control".into())
        .spawn(life)?;
    let gone = || io::Error::other("the control thread ended at its start");
    is_up.recv().map_err(|_| gone())??;
    Ok(Handle {
        admin_address,
        now,
        asks: Asker::new(asks),
        stop,
        thread,
    })
}

async fn run(
    current: watch::Sender<Arc<Shared>>,
    settings: Settings,
    listener: Option<TcpListener>,
    mut asked: mpsc::Receiver<Ask>,
    mut stopped: watch::Receiver<bool>,
    up: std::sync::mpsc::SyncSender<io::Result<()>>,
) {
    #[expect(clippy::disallowed_methods, reason = "the uptime begins here")]
    let desk = Arc::new(admin::Desk {
        now: current.subscribe(),
        asker: check::Asker {
            seed: settings.seed,
        },
        on_admin_port: settings.admin_listen.is_some(),
        born: Instant::now(),
    });
    let ready = prepare(listener, settings.signals);
    let (listener, caught) = match ready {
        Ok(parts) => parts,
        Err(e) => return drop(up.send(Err(e))),
    };
    // Before anything is served: who is out stays out.
    let known = monitor::recover(&current.borrow(), Prng::new(settings.seed));
    let _ = up.send(Ok(()));
    let watching = tokio::spawn(monitor::run(current.subscribe(), known));
    let comparing = tokio::spawn(generation::run(current.subscribe()));
    let naming = tokio::spawn(resolve::run(current.subscribe(), settings.names.clone()));
    // Whoever follows it does so to the end.
    let current = Arc::new(current);
    if let Some(caught) = caught {
        let reloader = reload::Reloader::new(current.clone(), settings.again, settings.names);
        tokio::spawn(reload::run(reloader, caught.again));
        let journal = current.borrow().journal.clone();
        if let Some(journal) = journal {
            tokio::spawn(journal.follow(caught.moved));
        }
        let now = current.subscribe();
        tokio::spawn(signals::run(now, caught.down, settings.on_notice));
    }
    let serving = listener.map(|l| tokio::spawn(serve::run(l, desk.clone(), stopped.clone())));
    loop {
        tokio::select! {
            ask = asked.recv() => match ask {
                Some(ask) => drop(tokio::spawn(desk.clone().answer_ask(ask))),
                // Every asker is gone, the handle's too.
                None => break,
            },
            // An error means that the handle was dropped.
            _ = stopped.changed() => break,
        }
    }
    watching.abort();
    comparing.abort();
    naming.abort();
    if let Some(serving) = serving {
        let _ = serving.await;
    }
}

/// The signals that are ours.
struct Signals {
    down: signals::Caught,
    again: tokio::signal::unix::Signal,
    /// The same signal, for the journal.
    moved: tokio::signal::unix::Signal,
}

/// What may fail, before the start counts as done.
fn prepare(
    listener: Option<TcpListener>,
    catch: bool,
) -> io::Result<(Option<tokio::net::TcpListener>, Option<Signals>)> {
    let adopt = |l: TcpListener| {
        l.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(l)
    };
    let listener = listener.map(adopt).transpose()?;
    let caught = || {
        Ok::<_, io::Error>(Signals {
            down: signals::Caught::new()?,
            again: reload::catch()?,
            moved: reload::catch()?,
        })
    };
    let caught = catch.then(caught).transpose()?;
    Ok((listener, caught))
}

fn named(e: io::Error, what: &str) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

/// Files at work at once: the state file, and those that are read again.
const FILES_MAX: usize = 4;
/// Asks that may wait for this thread; the next one is answered 503 at once.
const ASKS_MAX: usize = 64;

#[cfg(test)]
mod tests;
