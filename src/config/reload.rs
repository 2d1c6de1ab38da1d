//! A fleet file that is read again while a router runs: what of it takes effect at once, what has to wait for the next start, and what
//! becomes of each engine. Pure.
//!
//! An engine is who it was when iid and URL are the same; with another URL it is another engine, and the one before leaves. Each has a
//! place (its id) for life: counts, gates and learned values are found by it, and so are the legs under way when it leaves. Its place
//! is given to another one only when nothing refers to it any more; if it comes back before, it finds its place as it left it, so that
//! what still runs there is counted.
//!
//! Invariant: `changed` and `keep` go by one table, so that a key that is named as waiting for a restart has kept its old value.

use super::checked::Fleet;
use super::engines::ENGINES_MAX;
use super::profiles::Profile;
use super::topology::{EngineView, Presence, Snapshot};
use crate::base::units::EngineId;

/// What a reload does with a key whose value is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It counts from the reload on.
    Live,
    /// It counts from the next start on; the rest of the file counts at once.
    Restart,
    /// A router for another fleet: nothing of the file counts.
    Refused,
}

impl Effect {
    pub const fn name(self) -> &'static str {
        match self {
            Effect::Live => "live",
            Effect::Restart => "restart",
            Effect::Refused => "refused",
        }
    }

    /// By the key's path. Keys of a section that is listed are, too.
    pub fn of(path: &str) -> Effect {
        let path = match path {
            "engine.dialect" => "engine.backend",
            path => path,
        };
        let within = |keys: &[&str]| {
            keys.iter().any(|key| {
                let rest = path.strip_prefix(key);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        if within(restart::KEYS) {
            Effect::Restart
        } else if within(refused::KEYS) {
            Effect::Refused
        } else {
            Effect::Live
        }
    }
}

/// Keys by their place in [`Fleet`].
macro_rules! held {
    ($(#[$doc:meta])* $name:ident { $($key:literal = $($field:ident).+;)+ }) => {
        $(#[$doc])*
        mod $name {
            use super::Fleet;

            pub const KEYS: &[&str] = &[$($key),+];

            pub fn changed(old: &Fleet, new: &Fleet) -> Vec<&'static str> {
                let rows = [$(($key, old.$($field).+ != new.$($field).+)),+];
                rows.iter().filter(|row| row.1).map(|row| row.0).collect()
            }

            pub fn keep(old: &Fleet, new: &mut Fleet) {
                $(new.$($field).+.clone_from(&old.$($field).+);)+
            }
        }
    };
}

held! {
    /// The process is built around these: its threads, its sockets, what it does at its start.
    restart {
        "recovery.resume" = recovery.resume;
        "runtime.listen" = runtime.listen;
        "runtime.admin_listen" = runtime.admin_listen;
        "runtime.shards" = runtime.shards;
        "runtime.cpus" = runtime.cpus;
        "runtime.numa" = runtime.numa;
        "runtime.driver" = runtime.driver;
        "runtime.tls" = runtime.tls;
        "runtime.lease" = runtime.lease;
    }
}

held! {
    /// Requests under way were checked and spliced for these, and what was learned was learned of them.
    #[expect(dead_code, reason = "a file in which they differ does not count, so there is nothing to keep")]
    refused {
        "model" = model;
        "engine.backend" = engine.dialect;
        "engine.connector" = engine.connector;
    }
}

/// What follows from a file that was read again.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The fleet from now on. Addresses of added engines that have names are still missing.
    pub snapshot: Snapshot,
    pub added: Vec<EngineId>,
    /// Engines that had left, and whose places are not free yet.
    pub returned: Vec<EngineId>,
    pub removed: Vec<EngineId>,
    /// The same engines with another role, pin, bootstrap server or profile.
    pub changed: Vec<EngineId>,
    /// Keys whose new value waits for a restart.
    pub restart: Vec<&'static str>,
}

/// Why nothing follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// These make it another fleet.
    OtherFleet(Vec<&'static str>),
    /// More engines than places: those that left still have work.
    NoPlace,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::OtherFleet(keys) => {
                let keys = keys.join(", ");
                write!(
                    f,
                    "{keys}: another fleet than the one that runs; that needs a restart"
                )
            }
            Refusal::NoPlace => write!(
                f,
                "engines: more than {ENGINES_MAX}, with those that left and still have work"
            ),
        }
    }
}

/// From the fleet that runs to the one that was read. `is_free` says whether nothing refers any more to the place of an engine that left.
pub fn follow(
    old: &Snapshot,
    mut fleet: Fleet,
    profiles: Vec<Profile>,
    is_free: impl Fn(EngineId) -> bool,
) -> Result<Change, Refusal> {
    let refused = refused::changed(&old.fleet, &fleet);
    if !refused.is_empty() {
        return Err(Refusal::OtherFleet(refused));
    }
    let restart = restart::changed(&old.fleet, &fleet);
    restart::keep(&old.fleet, &mut fleet);
    // Ids and profiles as at a start; then each engine moves to its place.
    let read = Snapshot::new(old.epoch + 1, fleet).with_profiles(profiles);
    let mut change = Change {
        snapshot: Snapshot {
            engines: old.engines.clone(),
            epoch: read.epoch,
            fleet: read.fleet,
        },
        added: Vec::new(),
        returned: Vec::new(),
        removed: Vec::new(),
        changed: Vec::new(),
        restart,
    };
    for engine in &mut change.snapshot.engines {
        if engine.presence == Presence::Leaving && is_free(engine.id) {
            engine.presence = Presence::Gone;
        }
    }
    let new = change.keep(old, read.engines);
    for view in new {
        change.add(view)?;
    }
    Ok(change)
}

impl Change {
    /// Those that have a place already keep it, the others leave. Who is new is handed back.
    fn keep(&mut self, old: &Snapshot, views: Vec<EngineView>) -> Vec<EngineView> {
        let engines = &mut self.snapshot.engines;
        let mut stays = vec![false; engines.len()];
        let mut new = Vec::new();
        for view in views {
            let has_a_place = |known: &&EngineView| {
                known.is_same_as(&view) && engines[known.id.index()].presence != Presence::Gone
            };
            let Some(known) = old.engines.iter().find(has_a_place) else {
                new.push(view);
                continue;
            };
            let view = EngineView {
                id: known.id,
                since: known.since,
                addrs: known.addrs.clone(),
                ..view
            };
            stays[known.id.index()] = true;
            if !known.is_here() {
                self.returned.push(known.id);
                engines[known.id.index()] = view;
            } else if view != *known {
                self.changed.push(known.id);
                engines[known.id.index()] = view;
            }
        }
        for (engine, stays) in engines.iter_mut().zip(stays) {
            if engine.is_here() && !stays {
                engine.presence = Presence::Leaving;
                self.removed.push(engine.id);
            }
        }
        new
    }

    /// All that are in the fleet and were not.
    pub fn come(&self) -> Vec<EngineId> {
        self.added.iter().chain(&self.returned).copied().collect()
    }

    /// A new engine gets the first free place.
    fn add(&mut self, view: EngineView) -> Result<(), Refusal> {
        let engines = &mut self.snapshot.engines;
        let free = engines.iter().position(|e| e.presence == Presence::Gone);
        let place = free.unwrap_or(engines.len());
        if place >= ENGINES_MAX {
            return Err(Refusal::NoPlace);
        }
        let view = EngineView {
            id: EngineId(place as u16),
            since: self.snapshot.epoch,
            ..view
        };
        self.added.push(view.id);
        match engines.get_mut(place) {
            Some(slot) => *slot = view,
            None => engines.push(view),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
