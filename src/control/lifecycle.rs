//! Engines that operators take out to stop them, and take back: drain, readmit, and how things stand.
//!
//! A held engine gets no new legs; resident ones finish. It comes back by the operator's word alone, and only when it is well: it answers,
//! serves the model, is what its profile was measured on, hands KV over, and is another process than the one that was drained. A wave
//! is all engines at once, and holds the router too.
//!
//! Owns which engines are held. Invariant: an engine is held here exactly when its line on the board says so.

#![expect(
    clippy::disallowed_types,
    reason = "no shard sees it: those who ask are tasks of the control thread"
)]

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::Shared;
use super::causes::Cause;
use super::check::{self, Checks};
use crate::base::units::EngineId;
use crate::config::RestartPolicy;
use crate::config::topology::EngineView;
use crate::metrics::standing::Answer;

/// What is held.
#[derive(Debug)]
pub struct Lifecycle {
    held: Mutex<Held>,
    /// How many of its changes are in the state file, or could not be brought there; all of them where there is none.
    tried: watch::Sender<u64>,
    /// Something has changed that is to be kept.
    changed: Notify,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Lifecycle {
            held: Mutex::default(),
            tried: watch::Sender::new(u64::MAX),
            changed: Notify::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Held {
    engines: Vec<(EngineId, Hold)>,
    /// The fleet of the last reload: whoever drains all may still look at the one before.
    present: Vec<EngineId>,
    wave: bool,
    /// How often something was drained: what was checked before the last time says nothing of it.
    drains: u64,
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    since: Instant,
    /// From when on it may be stopped whatever still runs there.
    deadline: Option<Instant>,
    /// The process that is to go, in seconds of its own clock; `None` when it does not say.
    process_start_s: Option<f64>,
}

/// The body of `drain` and of `readmit`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    engines: Option<Vec<String>>,
    wave: Option<bool>,
    deadline_s: Option<f64>,
}

/// Whom a wish is about.
struct Named {
    engines: Vec<EngineId>,
    wave: bool,
    deadline: Option<Duration>,
}

const DEADLINE_MAX_S: f64 = 86_400.0;
/// Longer than a write of the state file may take (`remember`).
const KEEP_TIMEOUT: Duration = Duration::from_secs(3);

fn bad(message: &str) -> Answer {
    Answer::error(400, message, "invalid_request_error", None)
}

fn conflict(message: &str) -> Answer {
    Answer::error(409, message, "invalid_request_error", Some("conflict"))
}

impl Wish {
    fn read(shared: &Shared, body: &[u8]) -> Result<Named, Answer> {
        let wish: Wish = serde_json::from_slice(body)
            .map_err(|why| bad(&format!("The body is not what is expected: {why}")))?;
        let deadline = match wish.deadline_s {
            None => None,
            Some(s) if (0.0..=DEADLINE_MAX_S).contains(&s) => Some(Duration::from_secs_f64(s)),
            Some(_) => {
                return Err(bad(
                    "deadline_s must be a number of seconds from 0 to 86400",
                ));
            }
        };
        let all = || shared.snapshot.present().map(|e| e.id).collect();
        let (engines, wave) = match (wish.engines, wish.wave.unwrap_or(false)) {
            (None, true) => (all(), true),
            (Some(iids), false) if !iids.is_empty() => {
                let find = |iid: &String| {
                    let engine = shared.snapshot.by_iid(iid);
                    engine.map(|e| e.id).ok_or_else(|| {
                        let message = format!("No engine has the iid {iid:?}");
                        let code = Some("engine_not_found");
                        Answer::error(404, &message, "invalid_request_error", code)
                    })
                };
                let mut ids = iids.iter().map(find).collect::<Result<Vec<_>, _>>()?;
                ids.sort_unstable();
                ids.dedup();
                (ids, false)
            }
            _ => return Err(bad("Either `engines`, a list of iids, or `wave`: true")),
        };
        Ok(Named {
            engines,
            wave,
            deadline,
        })
    }
}

impl Lifecycle {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// No new legs to these engines. Said again, it sets the deadline anew.
    pub async fn drain(&self, shared: &Arc<Shared>, asker: &check::Asker, body: &[u8]) -> Answer {
        let named = match Wish::read(shared, body) {
            Ok(named) => named,
            Err(answer) => return answer,
        };
        let policy = shared.snapshot.fleet.recovery.engine_restart_policy;
        if policy == RestartPolicy::WholeWave && !named.wave {
            return conflict(
                "recovery.engine_restart_policy is whole_wave: engines are drained together, with `wave`: true",
            );
        }
        // Out of placement first; who they are is asked while they empty.
        let now = Instant::now();
        self.hold(shared, &named, now);
        let starts = asker.process_starts(shared, &named.engines).await;
        self.remember_starts(starts);
        self.keep().await;
        Answer::json(200, &self.shown(shared))
    }

    fn remember_starts(&self, starts: Vec<(EngineId, Option<f64>)>) {
        let mut held = self.held();
        for (id, start) in starts {
            if let Some((_, hold)) = held.engines.iter_mut().find(|(e, _)| *e == id) {
                hold.process_start_s = hold.process_start_s.or(start);
            }
        }
    }

    /// What has changed goes to the state file before operators are told that it is so. A disk that does not take it is the monitoring
    /// pass's to tell.
    async fn keep(&self) {
        let change = {
            let mut held = self.held();
            held.changes += 1;
            held.changes
        };
        self.changed.notify_one();
        let mut tried = self.tried.subscribe();
        let waited = timeout(KEEP_TIMEOUT, tried.wait_for(|tried| *tried >= change)).await;
        if waited.is_err() {
            tracing::warn!("the state file does not say yet what is held");
        }
    }

    /// Whether there is a state file; nothing of this life is in it yet.
    pub fn is_to_be_kept(&self, kept: bool) {
        self.tried.send_replace(if kept { 0 } else { u64::MAX });
    }

    /// Waits until the state file is behind.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// How many changes there were; to be handed to [`Lifecycle::tried`] once they are in the file or cannot be.
    pub fn changes(&self) -> u64 {
        self.held().changes
    }

    pub fn tried(&self, changes: u64) {
        self.tried.send_if_modified(|tried| {
            let later = *tried < changes;
            *tried = (*tried).max(changes);
            later
        });
    }

    fn hold(&self, shared: &Shared, named: &Named, now: Instant) {
        let mut held = self.held();
        held.drains += 1;
        let mut engines = named.engines.clone();
        if named.wave {
            engines.extend(&held.present);
            engines.sort_unstable();
            engines.dedup();
        }
        for id in &engines {
            if shared.state.board.line(*id).is_away() {
                // It left just now.
                continue;
            }
            let deadline = named.deadline.map(|after| now + after);
            match held.engines.iter_mut().find(|(e, _)| e == id) {
                Some((_, hold)) => hold.deadline = deadline,
                None => {
                    let hold = Hold {
                        since: now,
                        deadline,
                        process_start_s: None,
                    };
                    held.engines.push((*id, hold));
                    tracing::info!(iid = iid(shared, *id), "engine drains");
                }
            }
            shared.state.board.line(*id).set_held(true);
        }
        if named.wave {
            held.wave = true;
            let why = "whole-wave maintenance".to_owned();
            shared.causes.set(Cause::Wave, Some(why), &shared.state);
        }
    }

    /// Takes engines back, those that pass all checks; a wave all or none.
    pub async fn readmit(&self, shared: &Arc<Shared>, asker: &check::Asker, body: &[u8]) -> Answer {
        let named = match Wish::read(shared, body) {
            Ok(named) => named,
            Err(answer) => return answer,
        };
        if self.held().wave && !named.wave {
            return conflict("The whole fleet is withdrawn: readmit it with `wave`: true");
        }
        let (before, drains): (Vec<_>, u64) = {
            let held = self.held();
            let start = |id: &EngineId| held.engines.iter().find(|(e, _)| e == id);
            let of = |id: &EngineId| (*id, start(id).and_then(|(_, hold)| hold.process_start_s));
            (named.engines.iter().map(of).collect(), held.drains)
        };
        let checked = asker.check(shared, &before).await;
        if self.held().drains != drains {
            return conflict(
                "Something was drained, or engines came or left, meanwhile: ask again",
            );
        }
        let all_well = checked.iter().all(|(_, checks)| checks.are_well());
        for (id, checks) in &checked {
            if checks.are_well() && (all_well || !named.wave) {
                self.release(shared, *id);
            }
        }
        if named.wave && all_well {
            self.held().wave = false;
            shared.causes.set(Cause::Wave, None, &shared.state);
        }
        self.keep().await;
        let status = if all_well { 200 } else { 409 };
        let row = |(id, checks): &(EngineId, Checks)| {
            let in_service = checks.are_well() && (all_well || !named.wave);
            json!({"iid": iid(shared, *id), "readmitted": in_service, "checks": checks.shown()})
        };
        let rows: Vec<Value> = checked.iter().map(row).collect();
        Answer::json(status, &json!({"engines": rows}))
    }

    fn release(&self, shared: &Shared, id: EngineId) {
        self.held().engines.retain(|(e, _)| *e != id);
        shared.state.renew_pace(id);
        shared.state.board.line(id).readmit();
        tracing::info!(iid = iid(shared, id), "engine is readmitted");
    }

    /// `GET /narwhal/lifecycle`, and what the state says of it.
    pub fn shown(&self, shared: &Shared) -> Value {
        let (held, now) = (self.held(), Instant::now());
        let row = |view: &EngineView| {
            let line = shared.state.board.line(view.id);
            let resident = line.resident();
            let hold = held.engines.iter().find(|(e, _)| *e == view.id);
            let mut row = json!({"iid": view.iid, "role": view.role.name(), "resident": resident});
            row["state"] = json!(match hold {
                None if line.available() => "serving",
                None => "out",
                Some((_, hold)) if hold.may_stop(resident, now) => "ready_to_stop",
                Some(_) => "draining",
            });
            if let Some((_, hold)) = hold {
                let left = |at: Instant| at.saturating_duration_since(now).as_secs_f64();
                row["held_s"] = json!(now.saturating_duration_since(hold.since).as_secs_f64());
                row["deadline_in_s"] = json!(hold.deadline.map(left));
            }
            row
        };
        let policy = shared.snapshot.fleet.recovery.engine_restart_policy;
        let rows: Vec<Value> = shared.snapshot.present().map(row).collect();
        json!({"policy": policy.name(), "wave": held.wave, "engines": rows})
    }

    /// What a file is to remember of an engine: whether it is held, and which process was.
    pub fn remembered(&self, id: EngineId) -> Option<Option<f64>> {
        let held = self.held();
        let found = held.engines.iter().find(|(e, _)| *e == id);
        found.map(|(_, hold)| hold.process_start_s)
    }

    pub fn is_wave(&self) -> bool {
        self.held().wave
    }

    /// Engines have left, and others come. What was checked before says nothing of them; those that come to a fleet that is withdrawn come
    /// to it as they would be taken into it.
    pub fn follow(&self, shared: &Shared, removed: &[EngineId], added: &[EngineId]) {
        let mut held = self.held();
        held.engines.retain(|(engine, _)| !removed.contains(engine));
        held.present = shared.snapshot.present().map(|e| e.id).collect();
        held.drains += u64::from(!removed.is_empty() || !added.is_empty());
        let wave = held.wave;
        drop(held);
        for engine in added.iter().filter(|_| wave) {
            self.recall(shared, *engine, None);
        }
    }

    /// Takes up what an earlier life of this router held.
    pub fn recall(&self, shared: &Shared, id: EngineId, process_start_s: Option<f64>) {
        let hold = Hold {
            since: Instant::now(),
            deadline: None,
            process_start_s,
        };
        self.held().engines.push((id, hold));
        shared.state.board.line(id).set_held(true);
    }

    pub fn recall_wave(&self, shared: &Shared) {
        self.held().wave = true;
        let why = "whole-wave maintenance".to_owned();
        shared.causes.set(Cause::Wave, Some(why), &shared.state);
    }
}

impl Hold {
    fn may_stop(&self, resident: u32, now: Instant) -> bool {
        resident == 0 || self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

fn iid(shared: &Shared, id: EngineId) -> &str {
    let engine = shared.snapshot.engine(id);
    engine.map_or("of a later fleet", |engine| engine.iid.as_str())
}
