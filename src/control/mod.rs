//! The control thread: an ordinary tokio current-thread runtime on its own OS thread. It probes engines, answers the
//! admin routes (on `admin_listen`, and for shards that pass them on), and turns signals into a drain. It never sees a
//! client's completion byte; shards read its work through atomics only, so a stuck control thread slows no stream.
//!
//! Owns: the admin listener, the probes, the `live` flags of the board, the gate. May use base, metrics and ordinary
//! libraries. Invariant: everything it accepts is bounded (connections, asks, bytes, time).

pub mod admin;

pub mod monitor;

pub mod port;

pub mod resolve;

pub mod serve;

pub mod signals;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use crate::metrics::histogram::{ShardTimes, Times};
use crate::metrics::ledger::{Counts, ShardLedger};
use crate::metrics::picture::{
    AdmissionMode, EngineView, Limits, Picture, ShardView, TokenAccounting,
};
use crate::metrics::standing::{Answer, EngineLine, EngineLines, Fleet, Gate, HealthView, Role};

/// What control reads, and the gate it writes. Built once at start, shared by `Arc`.
pub struct Shared {
    pub router_id: String,
    /// The served model first, then its aliases.
    pub models: Vec<String>,
    pub token_accounting: TokenAccounting,
    pub mode: AdmissionMode,
    pub limits: Limits,
    /// A request makes one leg (openai dialect).
    pub one_leg: bool,
    /// In board order.
    pub engines: Vec<EngineFacts>,
    pub board: Arc<dyn EngineLines>,
    pub shards: Vec<ShardFacts>,
    pub gate: Arc<Gate>,
}

/// An engine as control needs it.
#[derive(Clone, Debug)]
pub struct EngineFacts {
    pub iid: String,
    pub role: Role,
    pub pinned: bool,
    pub tls: bool,
    /// As in the URL; an IPv6 literal with or without brackets.
    pub host: String,
    pub port: u16,
    /// Path before the API routes, without a slash at its end.
    pub prefix: String,
    /// Where the name led at start (see [`resolve`]); none when it led nowhere.
    pub addresses: Vec<SocketAddr>,
}

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
    /// What `/health` and `/ready` say; allocates nothing.
    pub fn health(&self) -> HealthView<'_> {
        let line = |(i, e): (usize, &EngineFacts)| (e.role, e.pinned, self.board.line(i));
        HealthView {
            standing: self.gate.standing(),
            why: None,
            fleet: Fleet::look(self.engines.iter().enumerate().map(line), self.one_leg),
            epoch: None,
            holder: None,
        }
    }

    /// Everything, at about one moment: each shard's ledger is consistent in itself.
    pub fn picture(&self, uptime: Duration) -> Picture<'_> {
        let health = self.health();
        let engines = self.engines.iter().enumerate();
        Picture {
            version: env!("CARGO_PKG_VERSION"),
            router_id: &self.router_id,
            uptime,
            models: self.models.iter().map(String::as_str).collect(),
            token_accounting: self.token_accounting,
            mode: self.mode,
            limits: self.limits,
            standing: health.standing,
            why: health.why,
            epoch: health.epoch,
            holder: health.holder,
            one_leg: self.one_leg,
            engines: engines.map(|(i, e)| e.view(self.board.line(i))).collect(),
            shards: self.shards.iter().map(ShardFacts::view).collect(),
            totals: Counts::default(),
            times: Times::default(),
        }
        .totalled()
    }
}

impl EngineFacts {
    fn view(&self, line: EngineLine) -> EngineView<'_> {
        EngineView {
            iid: &self.iid,
            role: self.role,
            pinned: self.pinned,
            line,
        }
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

/// What the fleet file sets for this thread.
pub struct Settings {
    pub admin_listen: Option<SocketAddr>,
    pub admin_key: Option<admin::AdminKey>,
    pub monitor_interval: Duration,
    pub health_timeout: Duration,
    /// A health pass each so many monitoring passes; 0 is off.
    pub liveness_every: u32,
    /// Misses in a row that take an engine out.
    pub liveness_misses: u32,
    /// SIGTERM and SIGINT are ours.
    pub signals: bool,
    /// Called on the control thread; must not block.
    pub on_notice: Box<dyn FnMut(signals::Notice) + Send>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            admin_listen: None,
            admin_key: None,
            monitor_interval: Duration::from_secs(1),
            health_timeout: Duration::from_secs(5),
            liveness_every: 10,
            liveness_misses: 2,
            signals: true,
            on_notice: Box::new(|_| ()),
        }
    }
}

/// A request for an admin route that came in on a data port. Its head is parsed; these routes take no body yet.
pub struct Ask {
    pub method: String,
    pub path: String,
    /// The peer's address is a loopback one.
    pub loopback: bool,
    /// What followed `Bearer ` in `authorization`.
    pub bearer: Option<Vec<u8>>,
    pub reply: Reply,
}

/// Brings the answer back: called exactly once, on the control thread, with 503 when the ask is dropped unanswered.
pub struct Reply(Option<Box<dyn FnOnce(Answer) + Send>>);

impl Reply {
    pub fn new(send: impl FnOnce(Answer) + Send + 'static) -> Reply {
        Reply(Some(Box::new(send)))
    }

    fn send(mut self, answer: Answer) {
        if let Some(send) = self.0.take() {
            send(answer);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(send) = self.0.take() {
            send(admin::busy());
        }
    }
}

/// A shard's way to ask. Cheap to clone; never blocks.
#[derive(Clone)]
pub struct Asker(mpsc::Sender<Ask>);

impl Asker {
    /// When the control thread is behind or gone, the reply is called at once with 503.
    pub fn ask(&self, ask: Ask) {
        // Dropping a refused ask answers it.
        drop(self.0.try_send(ask));
    }
}

/// The running control thread. Dropping it stops the thread as well, without waiting.
pub struct Handle {
    /// Where the admin routes are, when `admin_listen` is set.
    pub admin_address: Option<SocketAddr>,
    asks: Asker,
    stop: watch::Sender<bool>,
    thread: std::thread::JoinHandle<()>,
}

impl Handle {
    pub fn asker(&self) -> Asker {
        self.asks.clone()
    }

    /// Finishes the answers under way, then ends the thread and waits for it.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.thread.join();
    }
}

/// Starts the thread; returns once the listener is bound and the signals are caught.
pub fn start(shared: Arc<Shared>, settings: Settings) -> io::Result<Handle> {
    assert_eq!(
        shared.engines.len(),
        shared.board.count(),
        "the board has a line per engine"
    );
    let bind = |at| TcpListener::bind(at).map_err(|e| named(e, &format!("admin_listen {at}")));
    let listener = settings.admin_listen.map(bind).transpose()?;
    let admin_address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let (asks, asked) = mpsc::channel(ASKS_MAX);
    let (stop, stopped) = watch::channel(false);
    let (up, is_up) = std::sync::mpsc::sync_channel(1);
    let life = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => runtime.block_on(run(shared, settings, listener, asked, stopped, up)),
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
        asks: Asker(asks),
        stop,
        thread,
    })
}

async fn run(
    shared: Arc<Shared>,
    settings: Settings,
    listener: Option<TcpListener>,
    mut asked: mpsc::Receiver<Ask>,
    mut stopped: watch::Receiver<bool>,
    up: std::sync::mpsc::SyncSender<io::Result<()>>,
) {
    let desk = Arc::new(admin::Desk {
        shared: shared.clone(),
        policy: admin::Policy {
            on_admin_port: settings.admin_listen.is_some(),
            key: settings.admin_key,
        },
        born: Instant::now(),
    });
    let ready = prepare(listener, settings.signals);
    let (listener, caught) = match ready {
        Ok(parts) => parts,
        Err(e) => return drop(up.send(Err(e))),
    };
    let _ = up.send(Ok(()));
    let watching = monitor::Plan {
        interval: settings.monitor_interval,
        timeout: settings.health_timeout,
        every: settings.liveness_every,
        misses: settings.liveness_misses,
    };
    let watching = tokio::spawn(monitor::run(shared.clone(), watching));
    if let Some(caught) = caught {
        tokio::spawn(signals::run(
            shared.gate.clone(),
            caught,
            settings.on_notice,
        ));
    }
    let serving = listener.map(|l| tokio::spawn(serve::run(l, desk.clone(), stopped.clone())));
    loop {
        tokio::select! {
            ask = asked.recv() => match ask {
                Some(ask) => desk.answer_ask(ask),
                // Every asker is gone, the handle's too.
                None => break,
            },
            // An error means that the handle was dropped.
            _ = stopped.changed() => break,
        }
    }
    watching.abort();
    if let Some(serving) = serving {
        let _ = serving.await;
    }
}

/// What may fail, before the start counts as done.
fn prepare(
    listener: Option<TcpListener>,
    catch: bool,
) -> io::Result<(Option<tokio::net::TcpListener>, Option<signals::Caught>)> {
    let adopt = |l: TcpListener| {
        l.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(l)
    };
    let listener = listener.map(adopt).transpose()?;
    let caught = catch.then(signals::Caught::new).transpose()?;
    Ok((listener, caught))
}

fn named(e: io::Error, what: &str) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

/// Asks that may wait for this thread; the next one is answered 503 at once.
const ASKS_MAX: usize = 64;

#[cfg(test)]
mod tests;
