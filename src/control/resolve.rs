//! Engine names to addresses: at start, and again and again while the router runs. Lookups block, so they are never a
//! shard's, and the control thread's loop leaves them to threads of their own.
//!
//! Owns what is known of each name. A change goes to the shards as a new list (`shard::addresses`); a lookup that fails
//! changes nothing. Invariant: one lookup of a name at a time, and a name in trouble is told once until it is well again.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use super::{Now, Shared};
use crate::base::limits;
use crate::base::units::EngineId;
use crate::config::topology::Snapshot;
use crate::shard::addresses::Addresses;

/// Whoever knows names. May block.
pub trait Resolver: Send + Sync + 'static {
    /// The addresses of a host, in the order in which they are to be tried.
    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver: hosts file, DNS, whatever the machine is set up for.
pub struct System;

impl Resolver for System {
    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        // The port is no part of the question.
        let found = (host, 0).to_socket_addrs()?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

impl<F> Resolver for F
where
    F: Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
{
    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        self(host)
    }
}

/// Whom the control thread asks, and how often.
#[derive(Clone)]
pub struct Names {
    pub resolver: Arc<dyn Resolver>,
    pub every: Duration,
}

impl Default for Names {
    fn default() -> Self {
        Names {
            resolver: Arc::new(System),
            every: Duration::from_secs(limits::RESOLVE_SECONDS),
        }
    }
}

/// Why a name led nowhere.
#[derive(Debug, Error)]
pub enum ResolveError {
    #[error("host `{host}` does not resolve: {source}")]
    Failed { host: String, source: io::Error },
    #[error("host `{host}` has no address")]
    Empty { host: String },
}

/// Fills the addresses of every engine that is named, not numbered. An error leaves its engines without an address (their
/// probes and legs fail) until a later lookup finds one; whether to start all the same is the caller's choice.
pub fn fill(snapshot: &mut Snapshot, resolver: &dyn Resolver) -> Vec<ResolveError> {
    fill_those(snapshot, resolver, |_| true)
}

/// The same of those that `wanted` picks.
pub fn fill_those(
    snapshot: &mut Snapshot,
    resolver: &dyn Resolver,
    wanted: impl Fn(EngineId) -> bool,
) -> Vec<ResolveError> {
    let mut errors = Vec::new();
    for (host, mut engines) in hosts(snapshot) {
        engines.retain(|(id, _)| wanted(*id));
        if engines.is_empty() {
            continue;
        }
        match resolve(resolver, &host) {
            Ok(found) => {
                for (id, port) in engines {
                    snapshot.engines[id.index()].addrs = with_port(&found, port);
                }
            }
            Err(e) => errors.push(e),
        }
    }
    errors
}

/// Looks every name up again, every `names.every`, for the life of the thread. One that takes long holds up no other, and a fleet that
/// follows leaves those alone that stay.
pub async fn run(mut now: Now, names: Names) {
    let mut tasks = JoinSet::new();
    let room = Arc::new(Semaphore::new(limits::RESOLVERS_MAX));
    let mut watched: BTreeMap<Watched, AbortHandle> = BTreeMap::new();
    loop {
        let shared = now.borrow_and_update().clone();
        let mut before = std::mem::take(&mut watched);
        for (host, engines) in hosts(&shared.snapshot) {
            let since = |id: EngineId| shared.snapshot.engines[id.index()].since;
            let key = (
                host,
                engines.iter().map(|(id, _)| (*id, since(*id))).collect(),
            );
            let task = before.remove(&key).unwrap_or_else(|| {
                let names = names.clone();
                let host = key.0.clone();
                tasks.spawn(watch(shared.clone(), names, host, engines, room.clone()))
            });
            watched.insert(key, task);
        }
        before.into_values().for_each(|task| task.abort());
        while tasks.try_join_next().is_some() {}
        // None ends by itself; when this is dropped, they are.
        if now.changed().await.is_err() {
            return;
        }
    }
}

/// A name, and who is behind it, each since when.
type Watched = (String, Vec<(EngineId, u64)>);

/// `room`: lookups that may be under way at once.
async fn watch(
    shared: Arc<Shared>,
    names: Names,
    host: String,
    engines: Vec<(EngineId, u16)>,
    room: Arc<Semaphore>,
) {
    let addresses = &shared.state.addresses;
    let mut known = Host::new(addresses, engines);
    let mut ticks = interval(names.every.max(EVERY_MIN));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once, and whoever began this has just asked.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let (resolver, name) = (names.resolver.clone(), host.clone());
        // It goes back when the lookup is over, whether anybody still waits for it or not.
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        let lookup = spawn_blocking(move || {
            let found = resolve(&*resolver, &name);
            drop(permit);
            found
        });
        // A resolver that panicked says nothing.
        if let Ok(found) = lookup.await {
            tell(&host, known.learn(addresses, found));
        }
    }
}

/// A name, as the control thread knows it.
struct Host {
    engines: Vec<(EngineId, u16)>,
    /// The last lookup failed, which was told.
    lost: bool,
}

/// What is worth a line in the log.
enum News {
    Nothing,
    Now(Vec<IpAddr>),
    Lost(ResolveError),
}

impl Host {
    /// The start has told of names that it could not resolve.
    fn new(known: &Addresses, engines: Vec<(EngineId, u16)>) -> Host {
        let lost = engines.iter().any(|(id, _)| known.of(*id).is_empty());
        Host { engines, lost }
    }

    /// Publishes what was found. What was not found changes nothing.
    fn learn(&mut self, known: &Addresses, found: Result<Vec<IpAddr>, ResolveError>) -> News {
        let was_lost = std::mem::replace(&mut self.lost, found.is_err());
        match found {
            Ok(found) => {
                let mut changed = false;
                for (id, port) in &self.engines {
                    changed |= known.publish(*id, with_port(&found, *port));
                }
                if changed || was_lost {
                    News::Now(found)
                } else {
                    News::Nothing
                }
            }
            Err(_) if was_lost => News::Nothing,
            Err(why) => News::Lost(why),
        }
    }
}

fn tell(host: &str, news: News) {
    match news {
        News::Nothing => {}
        News::Now(found) => {
            let texts: Vec<String> = found.iter().map(IpAddr::to_string).collect();
            tracing::info!("host `{host}` is at {}", texts.join(", "));
        }
        News::Lost(why) => tracing::warn!("{why}; what was known of it is kept"),
    }
}

/// Every name, once, and the engines behind it with their ports.
fn hosts(snapshot: &Snapshot) -> BTreeMap<String, Vec<(EngineId, u16)>> {
    let mut hosts: BTreeMap<String, Vec<(EngineId, u16)>> = BTreeMap::new();
    for engine in snapshot.present().filter(|e| e.is_name()) {
        let of_host = hosts.entry(engine.host.clone()).or_default();
        of_host.push((engine.id, engine.port));
    }
    hosts
}

/// The addresses of a name, at most [`limits::ADDRESSES_MAX`] and without doubles.
fn resolve(resolver: &dyn Resolver, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
    let found = resolver.resolve(host);
    let host = || host.to_owned();
    let found = found.map_err(|source| ResolveError::Failed {
        host: host(),
        source,
    })?;
    let mut addresses = Vec::new();
    for address in found {
        if addresses.len() < limits::ADDRESSES_MAX && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(ResolveError::Empty { host: host() });
    }
    Ok(addresses)
}

fn with_port(addresses: &[IpAddr], port: u16) -> Vec<SocketAddr> {
    let with_port = |ip: &IpAddr| SocketAddr::new(*ip, port);
    addresses.iter().map(with_port).collect()
}

/// An interval of zero would spin.
const EVERY_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
