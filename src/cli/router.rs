//! A router as one thing: shards, the control thread, and the way down. `serve` and `demo` both start one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Failure;
use crate::base::prng::Prng;
use crate::config::topology::Snapshot;
use crate::config::{ApiKeys, checked};
use crate::control::journal;
use crate::control::port::Port;
use crate::control::reload::{Again, Read};
use crate::control::signals::Notice;
use crate::control::{self, Handle, Settings, ShardFacts};
use crate::metrics::histogram::ShardTimes;
use crate::metrics::ledger::ShardLedger;
use crate::runtime::boot::{self, Driver, DriverChoice, Shards};
use crate::runtime::bounds;
use crate::runtime::cell::change::Told;
use crate::runtime::cell::{ControlPort, Mail};
use crate::runtime::clock::MonotonicClock;
use crate::runtime::journal::{Rows, Way};
use crate::runtime::mail::Mailbox;
use crate::runtime::serve;
use crate::runtime::settle;
use crate::runtime::tls::{self, Roots};
use crate::runtime::topology::{self, Ask, CpuList, Machine, Numa, PlanError};
use crate::shard::{self, Shard, Shared};

/// What the caller decides beside the fleet.
#[derive(Default)]
pub struct Plan {
    pub router_id: Option<String>,
    pub listen: Vec<SocketAddr>,
    /// SIGTERM and SIGINT drain this router and end the process.
    pub signals: bool,
    pub journal: Option<Journal>,
    /// How the fleet file is read again on SIGHUP, where there is one.
    pub again: Option<Arc<Read>>,
}

/// A journal that is asked for.
#[derive(Debug)]
pub struct Journal {
    pub rotation: journal::Rotation,
    /// Rows of each shard that may wait.
    pub queue_rows: usize,
}

/// A running router.
pub struct Router {
    /// Where it listens, real ports.
    pub addresses: Vec<SocketAddr>,
    pub admin_address: Option<SocketAddr>,
    shards: Shards,
    /// Its end would end the answers to admin routes.
    _control: Handle,
}

/// Messages a shard may have waiting from the control thread.
const MAIL_MAX: usize = 1024;

/// Letters to one shard about another fleet that may be unanswered.
const LETTERS_MAX: usize = 16;

/// Starts everything; returns once clients are accepted.
pub fn start(snapshot: Snapshot, plan: Plan) -> Result<Router, Failure> {
    // The first clock of the process sets zero for all of them.
    let _zero = MonotonicClock::new();
    let runtime = snapshot.fleet.runtime.clone();
    let (driver, fallback) =
        boot::choose_driver(choice(runtime.driver)).map_err(Failure::failed)?;
    let (machine, places) = place_shards(&runtime)?;
    let count = places.places.len();
    let snapshot = Arc::new(snapshot);
    let mut seeds = seeds();
    let nodes = places.places.iter().map(|place| place.node);
    let api_keys = runtime.api_keys_file.as_deref().map(ApiKeys::load);
    let api_keys = api_keys.transpose().map_err(Failure::config)?;
    let shared = Shared::new(&snapshot, count)
        .on_nodes(nodes)
        .with_api_keys(api_keys);
    let shared = Arc::new(shared.salted(&snapshot, &mut seeds));
    let router_id = plan
        .router_id
        .unwrap_or_else(|| String::from_utf8_lossy(&seeds.uuid()).into_owned());

    let (mut listeners, addresses) = bind(&plan.listen, count)?;
    let mail: Arc<[_]> = (0..count)
        .map(|_| Arc::new(Mailbox::new(MAIL_MAX)))
        .collect();
    let facts = places.places.iter().map(|place| facts(place, driver));
    let facts: Vec<_> = facts.collect();
    let (queues, journal) = start_journal(plan.journal, &router_id, count)?;
    let way_down = WayDown {
        mail: mail.clone(),
        shared: shared.clone(),
        journal: journal.clone(),
    };
    let roots = roots(&snapshot)?;
    let mut control = control::Shared::new(router_id, &snapshot, &shared, facts.clone());
    control.journal = journal;
    let mut settings = settings(&snapshot.fleet, roots.as_ref(), plan.signals, way_down)?;
    settings.seed = seeds.u64();
    let (tell, told) = mpsc::channel(LETTERS_MAX * count);
    settings.again = plan.again.map(|read| again(read, &mail, told));
    let control = control::start(Arc::new(control), settings).map_err(Failure::failed)?;
    let port = Port::new(control.asker(), mail.clone(), tell, control.now());
    let port: Arc<dyn ControlPort> = Arc::new(port);

    let shards = boot::run_shards(&places, driver, |place| {
        let index = place.shard.index();
        let (id, snapshot, shared) = (place.shard, snapshot.clone(), shared.clone());
        let (ledger, times) = (facts[index].ledger.clone(), facts[index].times.clone());
        let seed = seeds.u64();
        let own = std::mem::take(&mut listeners[index]);
        let (mail, port) = (mail.clone(), port.clone());
        let tls = roots.as_ref().map(|r| tls::Client::new(r, &snapshot));
        let rows = queues.get(index).cloned();
        move || async move {
            // Made here, so that its memory is its thread's.
            let mut shard = Shard::new(id, snapshot, shared, ledger, times, seed);
            shard.journal = rows.map(|rows| shard::journal::Journal::new(Way(rows)));
            if let Err(error) = serve::shard(driver, shard, tls, own, mail, port).await {
                tracing::error!("a shard cannot serve its listeners: {error}");
                process::exit(1);
            }
        }
    })
    .map_err(Failure::failed)?;
    say_bounds(&snapshot.fleet, count);
    say(
        driver,
        fallback,
        (&machine, &places),
        &shards,
        &addresses,
        control.admin_address,
    );
    Ok(Router {
        addresses,
        admin_address: control.admin_address,
        shards,
        _control: control,
    })
}

/// A queue for each shard and the thread that empties them, where a journal is asked for.
fn start_journal(
    asked: Option<Journal>,
    router_id: &str,
    shards: usize,
) -> Result<(Vec<Arc<Rows>>, Option<journal::Handle>), Failure> {
    let Some(asked) = asked else {
        return Ok((Vec::new(), None));
    };
    let queues: Vec<_> = (0..shards)
        .map(|_| Arc::new(Rows::new(asked.queue_rows)))
        .collect();
    let handle = journal::start(router_id, asked.rotation, queues.clone());
    Ok((queues, Some(handle.map_err(Failure::config)?)))
}

fn again(read: Arc<Read>, mail: &Arc<[Arc<Mailbox<Mail>>]>, told: mpsc::Receiver<Told>) -> Again {
    let mail = mail.clone();
    Again { read, mail, told }
}

fn settings(
    fleet: &checked::Fleet,
    roots: Option<&Roots>,
    signals: bool,
    way_down: WayDown,
) -> Result<Settings, Failure> {
    let mut settings = Settings::of(fleet).map_err(Failure::config)?;
    settings.signals = signals;
    settings.tls = roots.map(Roots::client_config);
    settings.on_notice = Box::new(move |notice, fleet| way_down.on_notice(notice, fleet));
    Ok(settings)
}

/// Whom https engines are trusted by; `None` when there is none.
pub(super) fn roots(snapshot: &Snapshot) -> Result<Option<Roots>, Failure> {
    Roots::of(snapshot).map_err(|why| match why.kind() {
        io::ErrorKind::InvalidInput => Failure::config(why),
        _ => Failure::config(format!("engine.tls_ca_file: {why}")),
    })
}

impl Router {
    /// Serves until the process ends. A shard that panics takes the process with it.
    pub fn join(self) -> Result<(), Failure> {
        self.shards
            .join()
            .map_err(|_| Failure::failed("a shard panicked"))
    }
}

/// From the first signal to the end of the process.
struct WayDown {
    mail: Arc<[Arc<Mailbox<Mail>>]>,
    shared: Arc<Shared>,
    journal: Option<journal::Handle>,
}

impl WayDown {
    /// Called on the control thread; must not block it.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of its own waits for the end of the process"
    )]
    fn on_notice(&self, notice: Notice, fleet: &checked::Fleet) {
        if notice == Notice::End {
            tracing::info!("ending at once");
            process::exit(0);
        }
        let (window, grace) = (fleet.serving.drain_window, fleet.serving.graceful_timeout);
        tracing::info!("draining: new work is answered 503 for {window:?}");
        let (mail, shared) = (self.mail.clone(), self.shared.clone());
        let journal = self.journal.clone();
        let spawned = thread::Builder::new()
            .name("narwhal-drain".into())
            .spawn(move || {
                let until = Instant::now() + grace.max(window);
                thread::sleep(window);
                tell(&mail, || Mail::Close, until);
                // Those on their way from one shard to another too.
                let gone = |until: Instant| {
                    while !shared.connections.are_none() && Instant::now() < until {
                        thread::sleep(DRAIN_LOOK);
                    }
                    shared.connections.are_none()
                };
                if !gone(until) {
                    // Each gets an end, and a row in the journal.
                    tracing::warn!("requests that are still under way end now");
                    let last = Instant::now() + EXPIRE_MAX;
                    tell(&mail, || Mail::Expire, last);
                    gone(last);
                }
                let kept = journal.is_none_or(|journal| journal.flush(FLUSH_MAX));
                if !kept {
                    tracing::error!("the last rows of the journal could not be written");
                }
                tracing::info!("drained");
                process::exit(0);
            });
        if spawned.is_err() {
            process::exit(1);
        }
    }
}

/// A letter to every shard; a full mailbox is tried again.
#[expect(clippy::disallowed_methods, reason = "as above")]
fn tell(mail: &[Arc<Mailbox<Mail>>], letter: impl Fn() -> Mail, until: Instant) {
    for mailbox in mail {
        while mailbox.offer(letter()).is_err() && Instant::now() < until {
            thread::sleep(DRAIN_LOOK);
        }
    }
}

/// How long clients may take for the end of what is cut off.
const EXPIRE_MAX: Duration = Duration::from_secs(2);
/// How long a disk may keep the end waiting.
const FLUSH_MAX: Duration = Duration::from_secs(3);
const DRAIN_LOOK: Duration = Duration::from_millis(10);

pub(super) fn choice(driver: checked::Driver) -> DriverChoice {
    match driver {
        checked::Driver::Auto => DriverChoice::Auto,
        checked::Driver::IoUring => DriverChoice::IoUring,
        checked::Driver::Epoll => DriverChoice::Epoll,
        checked::Driver::Glommio => DriverChoice::Glommio,
    }
}

fn place_shards(runtime: &checked::RuntimeSettings) -> Result<(Machine, topology::Plan), Failure> {
    let machine = boot::machine().map_err(Failure::failed)?;
    let plan = ask(runtime.shards, runtime.cpus.as_ref(), runtime.numa)
        .and_then(|ask| topology::plan(&machine, &ask))
        .map_err(Failure::config)?;
    Ok((machine, plan))
}

/// What the operator's words come to. A core that no plan can have is told here.
pub(super) fn ask(
    shards: Option<usize>,
    cpus: Option<&checked::CpuList>,
    numa: Option<checked::Numa>,
) -> Result<Ask, PlanError> {
    let list = |list: &checked::CpuList| {
        let ids: Vec<_> = list.as_slice().iter().map(|id| usize::from(*id)).collect();
        let last = ids.last().copied().unwrap_or_default();
        CpuList::new(ids).ok_or(PlanError::OutsideMask(last))
    };
    Ok(Ask {
        shards,
        cpus: cpus.map(list).transpose()?,
        numa: match numa {
            None | Some(checked::Numa::Off) => Numa::Off,
            Some(checked::Numa::Auto) => Numa::Auto,
            Some(checked::Numa::Node(node)) => Numa::Node(usize::from(node)),
        },
        pin: None,
    })
}

/// Every shard gets its own listener on every address.
type Bound = (Vec<Vec<TcpListener>>, Vec<SocketAddr>);

fn bind(listen: &[SocketAddr], shards: usize) -> Result<Bound, Failure> {
    let mut by_shard: Vec<Vec<TcpListener>> = (0..shards).map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for addr in listen {
        let named = |error: io::Error| Failure::failed(format!("listen {addr}: {error}"));
        let bound = boot::bind_shards(*addr, shards).map_err(named)?;
        addresses.push(bound[0].local_addr().map_err(named)?);
        for (own, listener) in by_shard.iter_mut().zip(bound) {
            own.push(listener);
        }
    }
    Ok((by_shard, addresses))
}

fn facts(place: &topology::Place, driver: Driver) -> ShardFacts {
    ShardFacts {
        ledger: Arc::new(ShardLedger::new()),
        times: Arc::new(ShardTimes::new()),
        core: place.cpu.and_then(|cpu| u32::try_from(cpu).ok()),
        node: place.node.and_then(|node| u32::try_from(node).ok()),
        driver: driver.name(),
    }
}

/// Ids must differ between routers and runs, so the seed is the system's own randomness (of the hasher std seeds from it).
pub(super) fn seeds() -> Prng {
    use std::hash::{BuildHasher, RandomState};
    Prng::new(RandomState::new().hash_one(process::id()))
}

/// The ceiling on what clients and engines can make us hold, and how many descriptors it is for.
fn say_bounds(fleet: &checked::Fleet, shards: usize) {
    match settle::descriptors() {
        Ok(descriptors) => {
            let most = bounds::bounds(fleet, shards, descriptors);
            tracing::info!("memory: {most}");
        }
        Err(why) => tracing::warn!("memory: no ceiling is known: open files: {why}"),
    }
}

fn say(
    driver: Driver,
    fallback: Option<io::Error>,
    (machine, plan): (&Machine, &topology::Plan),
    shards: &Shards,
    addresses: &[SocketAddr],
    admin: Option<SocketAddr>,
) {
    for fault in &machine.faults {
        tracing::warn!("{fault}; counts as not known");
    }
    for warning in &plan.warnings {
        tracing::warn!("{warning}");
    }
    for (place, what) in &shards.refused {
        tracing::warn!("shard {}: the kernel refuses {what}", place.shard);
    }
    if let Some(why) = fallback {
        tracing::warn!("io_uring is not available, running on epoll: {why}");
    }
    let (shards, driver) = (plan.places.len(), driver.name());
    tracing::info!("{shards} shards on {driver}, cores {}", plan.cores());
    if let Some(admin) = admin {
        tracing::info!("admin routes on http://{admin}");
    }
    for address in addresses {
        tracing::info!("listening on http://{address}");
    }
}
