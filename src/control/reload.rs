//! SIGHUP: the fleet file is read again, with the files it names, and what is in it takes effect while requests go on.
//!
//! ```text
//! read and check ─► what follows ─► survey ─► look up names ─► prepare on every shard ─► commit
//!       └───────────────┴─── a fault: nothing has changed ──────────────┘
//! ```
//!
//! Reading may wait for a disk and names for a server, so both are done on threads of their own. Until the commit nothing that a request
//! could see is touched: a shard that cannot get ready in time ends the attempt everywhere. From the commit on nothing can fail. Engines
//! that come take work of each shard from its own commit on, those that left no more once all have committed: there is never nobody.
//!
//! Invariant: one attempt at a time; a signal that comes meanwhile is one more attempt afterwards.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::resolve::{self, Names};
use crate::base::units::EngineId;
use crate::config::reload::{self, Change, Refusal};
use crate::config::topology::{Presence, Profile, Snapshot};
use crate::config::{AdminKey, ApiKeys, checked::Fleet};
use crate::runtime::cell::Mail;
use crate::runtime::cell::change::{Coming, Letter, Step, Told};
use crate::runtime::mail::Mailbox;
use crate::runtime::tls::Roots;

mod log;

pub use log::Log;

/// What a router is told that can read its file again.
pub struct Again {
    pub read: Arc<Read>,
    /// Of all shards, by number.
    pub mail: Arc<[Arc<Mailbox<Mail>>]>,
    /// What they answer.
    pub told: mpsc::Receiver<Told>,
}

/// Reads and checks everything; the error says where the fault is. May block.
pub type Read = dyn Fn() -> Result<Reading, String> + Send + Sync;

/// What was read.
pub struct Reading {
    pub fleet: Fleet,
    pub profiles: Vec<Profile>,
    pub api_keys: Option<ApiKeys>,
    pub admin_key: Option<AdminKey>,
    pub warnings: Vec<String>,
}

/// Why nothing has changed.
#[derive(Debug, Error)]
pub enum Failed {
    #[error("{0}")]
    Unreadable(String),
    #[error("{0}")]
    Refused(Refusal),
    #[error("engine.tls_ca_file: {0}")]
    Roots(io::Error),
    #[error("the router is going down")]
    GoingDown,
    #[error("shard {0} was not ready in {1:?}")]
    Unready(usize, Duration),
    #[error("it panicked: {0}")]
    Panicked(tokio::task::JoinError),
}

impl Failed {
    /// Whether the file is to blame, and not this process.
    fn is_refusal(&self) -> bool {
        use Failed::{Refused, Roots, Unreadable};
        matches!(self, Unreadable(_) | Refused(_) | Roots(_))
    }
}

/// How long a shard may take to get ready: one that stands still for so long has worse troubles.
const PREPARE_MAX: Duration = Duration::from_secs(5);
/// Until a full mailbox is tried again.
const MAILBOX_PAUSE: Duration = Duration::from_millis(1);

/// Caught from here on; not caught, it would end the process. Within a tokio runtime.
pub fn catch() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Follows the signal for the life of the process. Signals that come during an attempt are one.
pub async fn run(mut reloader: Reloader, mut caught: Signal) {
    while caught.recv().await.is_some() {
        reloader.reload().await;
    }
}

/// Owns the one place where the router as it is is replaced.
pub struct Reloader {
    current: Arc<watch::Sender<Arc<Shared>>>,
    again: Option<Again>,
    names: Names,
    round: u64,
    /// How long a shard may take.
    patience: Duration,
}

impl Reloader {
    pub fn new(
        current: Arc<watch::Sender<Arc<Shared>>>,
        again: Option<Again>,
        names: Names,
    ) -> Reloader {
        Reloader {
            current,
            again,
            names,
            round: 0,
            patience: PREPARE_MAX,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "how long it took is told")]
    async fn reload(&mut self) {
        let Some(mut again) = self.again.take() else {
            tracing::warn!("SIGHUP: there is no fleet file to read again");
            return;
        };
        let began = Instant::now();
        self.round += 1;
        let done = self.attempt(&mut again).await;
        self.again = Some(again);
        let log = self.current.borrow().reloads.clone();
        log.note(done, began.elapsed());
    }

    async fn attempt(&self, again: &mut Again) -> Result<log::Done, Failed> {
        let old = self.current.borrow().clone();
        if old.state.is_draining() {
            return Err(Failed::GoingDown);
        }
        let read = again.read.clone();
        let reading = spawn_blocking(move || read()).await;
        let reading = reading.map_err(Failed::Panicked)?;
        let reading = reading.map_err(Failed::Unreadable)?;
        for warning in &reading.warnings {
            tracing::warn!("{warning}");
        }
        let free = self.survey(again, &old).await?;
        let is_free = |engine: EngineId| free.contains(&engine);
        let (fleet, profiles) = (reading.fleet, reading.profiles);
        let change = reload::follow(&old.snapshot, fleet, profiles, is_free);
        let mut change = change.map_err(Failed::Refused)?;
        let (snapshot, roots) = self.look_up(&change).await?;
        change.snapshot = snapshot;
        let next = Shared {
            snapshot: Arc::new(change.snapshot.clone()),
            admin_key: reading.admin_key.map(Arc::new),
            tls: roots.as_ref().map(Roots::client_config),
            ..(*old).clone()
        };
        next.make_room();
        let coming = Coming {
            snapshot: next.snapshot.clone(),
            roots,
        };
        self.prepare(again, coming).await?;
        next.state.replace_api_keys(reading.api_keys);
        self.commit(again, &old.snapshot, next, &change).await;
        log::say_ceiling(
            &old.snapshot.fleet,
            &change.snapshot.fleet,
            again.mail.len(),
        );
        Ok(log::Done::of(&old.snapshot, &change))
    }

    /// Engines that left and are done with: nothing of them is on the board, and no shard holds a connection to them.
    async fn survey(&self, again: &mut Again, old: &Shared) -> Result<Vec<EngineId>, Failed> {
        let left = old.snapshot.engines.iter();
        let left = left.filter(|engine| engine.presence == Presence::Leaving);
        let mut free: Vec<EngineId> = left.map(|engine| engine.id).collect();
        free.retain(|engine| old.state.is_at_rest(*engine));
        if free.is_empty() {
            return Ok(free);
        }
        let asked = Step::Survey(free.clone().into());
        let busy = again.all_ready(self.round, asked, self.patience).await?;
        // What moved from one count to another in between is seen by the second look.
        free.retain(|engine| !busy.contains(engine) && old.state.is_at_rest(*engine));
        Ok(free)
    }

    /// Addresses of engines that come, and whom https engines are trusted by.
    async fn look_up(&self, change: &Change) -> Result<(Snapshot, Option<Roots>), Failed> {
        let mut snapshot = change.snapshot.clone();
        let come = change.come();
        let resolver = self.names.resolver.clone();
        let looked_up = spawn_blocking(move || {
            let comes = |engine: EngineId| come.contains(&engine);
            let lost = resolve::fill_those(&mut snapshot, &*resolver, comes);
            let roots = Roots::of(&snapshot);
            (snapshot, lost, roots)
        });
        let (snapshot, lost, roots) = looked_up.await.map_err(Failed::Panicked)?;
        for error in lost {
            tracing::warn!("{error}; legs and probes of its engines fail until it does");
        }
        Ok((snapshot, roots.map_err(Failed::Roots)?))
    }

    async fn prepare(&self, again: &mut Again, coming: Coming) -> Result<(), Failed> {
        let step = Step::Prepare(Arc::new(coming));
        let ready = again.all_ready(self.round, step, self.patience).await;
        if ready.is_err() {
            // Who is ready forgets it. One that gets ready later keeps it until the next attempt, and does nothing with it.
            for mailbox in again.mail.iter() {
                let _ = mailbox.send(again.letter(self.round, Step::Drop));
            }
        }
        ready.map(|_| ())
    }

    /// All are ready. Who comes may be given work before who leaves may not: at no moment is there nobody.
    async fn commit(&self, again: &mut Again, old: &Snapshot, next: Shared, change: &Change) {
        let state = next.state.clone();
        let mut granted = Vec::new();
        state.follow(&next.snapshot, &change.added, &mut granted);
        next.forget(&change.added);
        let measured_anew = |engine: &&EngineId| {
            let profile = |of: &Snapshot| of.engine(**engine).and_then(|e| e.profile.clone());
            profile(&next.snapshot) != profile(old)
        };
        let known = change.changed.iter().chain(&change.returned);
        for engine in known.filter(measured_anew) {
            state.renew_pace(*engine);
        }
        for engine in &change.returned {
            let addrs = next.snapshot.engines[engine.index()].addrs.clone();
            state.addresses.publish(*engine, addrs);
            // Who was drained and then taken out of the file is no longer drained.
            state.board.line(*engine).set_held(false);
        }
        for engine in change.come() {
            state.board.line(engine).set_away(false);
        }
        let all: Vec<usize> = (0..again.mail.len()).collect();
        again.send(self.round, &Step::Commit, &all).await;
        {
            let mut told = pin!(again.gather(self.round, all));
            if timeout(self.patience, &mut told).await.is_err() {
                tracing::warn!("a shard stands still and has not taken over the new fleet yet");
                told.await;
            }
        }
        for engine in &change.removed {
            state.board.line(*engine).set_away(true);
            // Who waits there looks for another.
            state.open_phases(*engine, &mut granted);
        }
        for (shard, line) in granted {
            // A full mailbox is no loss: each shard looks by itself, a little later.
            let _ = again.mail[shard].send(Mail::Granted(line));
        }
        let lifecycle = next.lifecycle.clone();
        lifecycle.follow(&next, &change.removed, &change.come());
        self.current.send_replace(Arc::new(next));
    }
}

impl Shared {
    /// What is found by engine id has a place for each.
    fn make_room(&self) {
        let engines = self.snapshot.engines.len();
        self.state.grow(engines);
        self.digests.grow(engines);
        self.pulses.grow(engines);
    }

    fn forget(&self, added: &[EngineId]) {
        for engine in added {
            self.digests.forget(*engine);
            self.pulses.forget(*engine);
        }
    }
}

impl Again {
    fn letter(&self, round: u64, step: Step) -> Mail {
        Mail::Fleet(Letter { round, step })
    }

    /// Every shard has done it, within a bound; the engines that they named.
    async fn all_ready(
        &mut self,
        round: u64,
        step: Step,
        bound: Duration,
    ) -> Result<Vec<EngineId>, Failed> {
        let mut missing: Vec<usize> = (0..self.mail.len()).collect();
        let mut busy = Vec::new();
        let all = async {
            self.send(round, &step, &missing.clone()).await;
            while !missing.is_empty() {
                let told = self.hear(round).await;
                missing.retain(|shard| *shard != told.shard);
                busy.extend(told.busy);
            }
        };
        match timeout(bound, all).await {
            Ok(()) => Ok(busy),
            Err(_) => {
                let first = missing.first().copied().unwrap_or(0);
                Err(Failed::Unready(first, bound))
            }
        }
    }

    async fn send(&self, round: u64, step: &Step, to: &[usize]) {
        for shard in to {
            while self.mail[*shard]
                .offer(self.letter(round, step.clone()))
                .is_err()
            {
                sleep(MAILBOX_PAUSE).await;
            }
        }
    }

    async fn gather(&mut self, round: u64, mut missing: Vec<usize>) {
        while !missing.is_empty() {
            let told = self.hear(round).await;
            missing.retain(|shard| *shard != told.shard);
        }
    }

    /// The next answer of this round; those of earlier ones are late.
    async fn hear(&mut self, round: u64) -> Told {
        loop {
            match self.told.recv().await {
                Some(told) if told.round == round => return told,
                Some(_) => {}
                // Nobody is left to tell anything: the process is about to end.
                None => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests;
