//! The health pass: each engine is asked `GET prefix/health`, all at once, on a fresh connection each (a kept one would
//! not show that the engine still accepts). What follows from the answers is [`Liveness`], a pure rule; the rest is I/O.
//!
//! A single miss means little (a busy engine answers late while it generates well), so only a run of misses takes an
//! engine out, and one success brings it back. Breakers ([`Breakers`]) weigh what requests saw, in the same pass.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;

use super::breakers::Breakers;
use super::causes::Cause;
use super::judge::Judge;
use super::liveness::{Liveness, News};
use super::reach::{Miss, Question};
use super::remember::{Keeper, Memory};
use super::stages::{Failed, Stage, Streak, Verdict, conclusion};
use super::{Now, Shared};
use crate::base::prng::Prng;
use crate::base::time::Instant;
use crate::config::topology::EngineView;
use crate::runtime::socket;

/// What goes on from pass to pass.
struct Monitor {
    shared: Arc<Shared>,
    breakers: Breakers,
    judge: Judge,
    keeper: Option<Keeper>,
    liveness: Liveness,
    streak: Streak,
    ticks: Interval,
    /// What the last health pass could not do.
    unwell: Option<Failed>,
    passes: u64,
}

/// Passes for the life of the thread. What an earlier life knew is known already.
pub async fn run(mut now: Now, (breakers, keeper): (Breakers, Option<Keeper>)) {
    let shared = now.borrow_and_update().clone();
    let fleet = &shared.snapshot.fleet;
    let board = &shared.state.board;
    let engines = shared.snapshot.engines.iter();
    let live = engines.map(|e| board.line(e.id).is_live());
    let rules = &fleet.recovery;
    let began = tokio::time::Instant::now();
    let mut monitor = Monitor {
        breakers,
        judge: Judge::new(&shared),
        keeper,
        liveness: Liveness::new(live, rules.liveness_every, rules.liveness_misses),
        streak: Streak::new(fleet.controller.monitor_failure_limit),
        ticks: ticks(&shared),
        unwell: None,
        passes: 0,
        shared,
    };
    let since = |tick: tokio::time::Instant| tick.duration_since(began);
    loop {
        let kept = monitor.shared.clone();
        let tick = tokio::select! {
            // Before anything else is said of engines by their ids.
            biased;
            Ok(()) = now.changed() => {
                let next = now.borrow_and_update().clone();
                monitor.follow(next);
                continue;
            }
            answer = monitor.breakers.answered() => {
                let at = Instant::ZERO + since(tokio::time::Instant::now());
                monitor.breakers.take(&monitor.shared, at, answer);
                continue;
            }
            () = kept.lifecycle.changed() => {
                // A failure is told by the next pass, which tries again.
                let _ = monitor.keep().await;
                continue;
            }
            tick = monitor.ticks.tick() => tick,
        };
        monitor.pass(&now, since(tick)).await;
    }
}

async fn keep(
    shared: &Shared,
    breakers: &Breakers,
    keeper: &mut Option<Keeper>,
) -> Result<(), Failed> {
    let Some(keeper) = keeper else { return Ok(()) };
    let changes = shared.lifecycle.changes();
    let memory = Memory::of(shared, |id| breakers.out(id));
    let kept = keeper.pass(memory).await;
    shared.lifecycle.tried(changes);
    kept.map_err(|class| (Stage::StateFile, class))
}

fn ticks(shared: &Shared) -> Interval {
    let every = shared.snapshot.fleet.controller.monitor_interval;
    let mut ticks = interval(every.max(INTERVAL_MIN));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Monitor {
    async fn pass(&mut self, now: &Now, since: Duration) {
        let shared = self.shared.clone();
        self.judge.pass(&shared, since);
        self.breakers.pass(&shared, Instant::ZERO + since);
        let asks = self.liveness.due(self.passes);
        if asks {
            let mut probing = pin!(health_pass(&shared, now, &mut self.liveness));
            self.unwell = loop {
                tokio::select! {
                    unwell = &mut probing => break unwell,
                    // An operator waits for it, and an engine may take its time.
                    () = shared.lifecycle.changed() => {
                        let _ = keep(&shared, &self.breakers, &mut self.keeper).await;
                    }
                }
            };
        }
        let kept = self.keep().await;
        self.passes += 1;
        if let Some(failed) = conclusion(asks, self.unwell, kept) {
            conclude(&shared, &mut self.streak, failed);
        }
    }

    /// Brings the state file up to date, where there is one.
    async fn keep(&mut self) -> Result<(), Failed> {
        keep(&self.shared, &self.breakers, &mut self.keeper).await
    }

    /// Another fleet. An engine that stays is known as before.
    fn follow(&mut self, next: Arc<Shared>) {
        let before = std::mem::replace(&mut self.shared, next);
        let shared = &self.shared;
        let anew = |engine: &EngineView| !is_the_same(&before, engine);
        for engine in shared.snapshot.engines.iter().filter(|e| anew(e)) {
            // What a late answer said was of who was there before.
            shared.state.board.line(engine.id).set_live(true);
        }
        self.breakers.follow(shared, anew);
        // Its pace was held against another profile.
        let measured_anew = |engine: &EngineView| {
            let known = before.snapshot.engine(engine.id);
            known.is_some_and(|known| known.profile != engine.profile)
        };
        let judge_anew = |engine: &EngineView| anew(engine) || measured_anew(engine);
        self.judge.follow(shared, judge_anew);
        let (rules, controller) = {
            let fleet = &shared.snapshot.fleet;
            (&fleet.recovery, &fleet.controller)
        };
        let engines = shared.snapshot.engines.iter();
        self.liveness.follow(
            engines.map(anew),
            rules.liveness_every,
            rules.liveness_misses,
        );
        if rules.liveness_every == 0 {
            // Nobody asks any more: what was heard last stands for nothing.
            self.unwell = None;
            for engine in &shared.snapshot.engines {
                shared.state.board.line(engine.id).set_live(true);
            }
        }
        self.streak.set_limit(controller.monitor_failure_limit);
        if controller.monitor_interval != before.snapshot.fleet.controller.monitor_interval {
            self.ticks = ticks(shared);
        }
        let path = self.keeper.as_ref().map(Keeper::path);
        if path != rules.state_path.as_deref() {
            self.keeper = rules.state_path.clone().map(Keeper::new);
            shared.lifecycle.is_to_be_kept(self.keeper.is_some());
        }
    }
}

/// Whether the engine was there already, and is no other one in its place.
fn is_the_same(before: &Shared, engine: &EngineView) -> bool {
    let known = before.snapshot.engine(engine.id);
    known.is_some_and(|known| known.since == engine.since)
}

/// Breakers as an earlier life left them, and the file that remembers, when the fleet asks for one.
pub fn recover(shared: &Shared, prng: Prng) -> (Breakers, Option<Keeper>) {
    let mut breakers = Breakers::new(shared, prng);
    let keeper = keeper(shared, &mut breakers);
    (breakers, keeper)
}

fn keeper(shared: &Shared, breakers: &mut Breakers) -> Option<Keeper> {
    let recovery = &shared.snapshot.fleet.recovery;
    let path = recovery.state_path.clone()?;
    if recovery.resume {
        match Memory::load(&path, &shared.snapshot.fleet.model) {
            Ok(None) => tracing::info!("state file {}: none yet", path.display()),
            Ok(Some(memory)) => {
                breakers.recall(shared, &memory);
                recall(shared, &memory);
                tracing::info!("state file {}: taken up", path.display());
            }
            Err(why) => {
                let (bad, shown) = (path.with_extension("bad"), path.display());
                let kept = std::fs::rename(&path, &bad);
                let kept =
                    kept.map_or_else(|e| e.to_string(), |()| format!("kept as {}", bad.display()));
                tracing::warn!("state file {shown} {why}: starting without it ({kept})");
            }
        }
    }
    shared.lifecycle.is_to_be_kept(true);
    Some(Keeper::new(path))
}

/// What is not the breakers'.
fn recall(shared: &Shared, memory: &Memory) {
    for (id, told) in memory.recall(shared) {
        if let Some(correction) = told.correction {
            let rules = &shared.snapshot.fleet.controller.decode_correction;
            let correction = shared.state.learned.recall(id, rules, correction);
            shared.state.board.line(id).set_correction(correction);
        }
        if let Some(held) = &told.held {
            shared.lifecycle.recall(shared, id, held.process_start_s);
        }
    }
    if memory.wave {
        shared.lifecycle.recall_wave(shared);
    }
}

/// What a pass means for the router.
fn conclude(shared: &Shared, streak: &mut Streak, failed: Option<Failed>) {
    match streak.pass(failed) {
        Some(Verdict::Degraded((stage, class))) => {
            let why = format!("monitoring degraded: {stage} {class}");
            if shared.state.why().is_none_or(|said| *said != why) {
                tracing::error!("{why}");
            }
            shared
                .causes
                .set(Cause::Monitoring, Some(why), &shared.state);
        }
        Some(Verdict::Well) => {
            tracing::info!("monitoring works again");
            shared.causes.set(Cause::Monitoring, None, &shared.state);
        }
        None => {}
    }
}

/// Asks every engine, then sets the flags that change. The failure, if any, is ours: then nothing is known of the engine.
async fn health_pass(shared: &Shared, now: &Now, liveness: &mut Liveness) -> Option<Failed> {
    let tls = shared.tls.clone().map(TlsConnector::from);
    let limit = shared.snapshot.fleet.engine.health_timeout;
    let mut probes = JoinSet::new();
    for engine in shared.snapshot.present() {
        let addresses = shared.state.addresses.of(engine.id);
        let (engine, tls) = (engine.clone(), tls.clone());
        probes.spawn(async move {
            let asked = timeout(limit, probe(&engine, &addresses, tls.as_ref())).await;
            (engine, asked.unwrap_or(Err(Miss::Late)))
        });
    }
    let mut failed = None;
    while let Some(probed) = probes.join_next().await {
        let Ok((engine, result)) = probed else {
            failed = Some((Stage::Health, "panic"));
            continue;
        };
        if !is_the_same(&now.borrow(), &engine) {
            // Another one is in its place by now.
            continue;
        }
        if let Err(Miss::Connect(error)) = &result
            && let Some(class) = socket::shortage(error)
        {
            failed = Some((Stage::Health, class));
            continue;
        }
        let (id, iid) = (engine.id, engine.iid.as_str());
        let line = shared.state.board.line(id);
        liveness.believe(id.index(), line.is_live());
        let news = liveness.observe(id.index(), result.is_ok());
        if let Some(news) = news {
            shared.pulses.tell(id, news);
        }
        match (news, result) {
            (Some(News::Live), _) => {
                line.set_live(true);
                tracing::info!(iid, "engine is live again");
            }
            (Some(News::Dead), Err(miss)) => {
                line.set_live(false);
                if let Some(prefixes) = shared.state.prefixes() {
                    prefixes.forget(id);
                }
                tracing::warn!(iid, %miss, "engine is not live");
            }
            (_, Err(miss)) => tracing::debug!(iid, %miss, "health probe missed"),
            (_, Ok(())) => (),
        }
    }
    failed
}

/// The caller bounds the time.
pub(super) async fn probe(
    engine: &EngineView,
    addresses: &[SocketAddr],
    tls: Option<&TlsConnector>,
) -> Result<(), Miss> {
    let question = Question {
        engine,
        path: "/health",
        key: None,
        body_bytes_max: 0,
    };
    match question.ask(addresses, tls).await?.status {
        200..=299 => Ok(()),
        status => Err(Miss::Status(status)),
    }
}

/// An interval of zero would spin.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
