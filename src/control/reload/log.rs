//! What became of each attempt to read the fleet file again: a line in the log, counts, and the last one for the state.

#![expect(
    clippy::disallowed_types,
    reason = "no shard sees it: those who ask are tasks of the control thread"
)]

use std::sync::Mutex;
use std::time::Duration;

use super::Failed;
use crate::base::units::EngineId;
use crate::config::checked::Fleet;
use crate::config::reload::Change;
use crate::config::topology::Snapshot;
use crate::metrics::picture::{Reload, ReloadResult, Reloads};
use crate::runtime::bounds::bounds;
use crate::runtime::clock::unix_seconds;
use crate::runtime::settle::descriptors;

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Log(Mutex<Reloads>);

/// What has changed, by names.
#[derive(Clone, Debug, Default)]
pub struct Done {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<String>,
    pub restart: Vec<&'static str>,
}

impl Done {
    pub fn of(old: &Snapshot, change: &Change) -> Done {
        let names = |snapshot: &Snapshot, ids: &[EngineId]| {
            let iid = |id: &EngineId| snapshot.engine(*id).map(|engine| engine.iid.clone());
            ids.iter().filter_map(iid).collect()
        };
        Done {
            added: names(&change.snapshot, &change.come()),
            removed: names(old, &change.removed),
            changed: names(&change.snapshot, &change.changed),
            restart: change.restart.clone(),
        }
    }
}

impl Log {
    pub fn note(&self, done: Result<Done, Failed>, took: Duration) {
        let (result, reason, done) = match done {
            Ok(done) => (ReloadResult::Applied, None, done),
            Err(why) => {
                let result = match why.is_refusal() {
                    true => ReloadResult::Refused,
                    false => ReloadResult::Aborted,
                };
                (result, Some(why.to_string()), Done::default())
            }
        };
        match &reason {
            None => say(&done, took),
            Some(why) => tracing::error!("SIGHUP: nothing has changed: {why}"),
        }
        let mut log = self.0.lock().unwrap_or_else(|e| e.into_inner());
        log.counts[result.index()] += 1;
        log.last = Some(Reload {
            result,
            reason,
            at_unix_s: unix_seconds(),
            took,
            added: done.added,
            removed: done.removed,
            changed: done.changed,
            restart: done.restart,
        });
    }

    /// Beside what runs.
    pub fn shown(&self, snapshot: &Snapshot) -> Reloads {
        let log = self.0.lock().unwrap_or_else(|e| e.into_inner());
        Reloads {
            epoch: snapshot.epoch,
            places: snapshot.engines.len() as u64,
            ..log.clone()
        }
    }
}

/// The ceiling on memory, where the new fleet has another one.
pub fn say_ceiling(before: &Fleet, now: &Fleet, shards: usize) {
    let Ok(most_open) = descriptors() else {
        return;
    };
    let [before, now] = [before, now].map(|fleet| bounds(fleet, shards, most_open));
    if now != before {
        tracing::info!("memory: {now}");
    }
}

fn say(done: &Done, took: Duration) {
    let mut words = Vec::new();
    for (what, names) in [
        ("added", &done.added),
        ("removed", &done.removed),
        ("changed", &done.changed),
    ] {
        if !names.is_empty() {
            words.push(format!("{what} {}", names.join(", ")));
        }
    }
    let engines = match words.is_empty() {
        true => "the same engines".to_owned(),
        false => words.join("; "),
    };
    tracing::info!("SIGHUP: the fleet file counts from now on ({engines}; in {took:.1?})");
    if !done.restart.is_empty() {
        let keys = done.restart.join(", ");
        tracing::warn!("SIGHUP: needs a restart, and stays as it is: {keys}");
    }
}
