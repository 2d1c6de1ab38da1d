//! The health pass: each engine is asked `GET prefix/health`, all at once, on a fresh connection each (a kept one would
//! not show that the engine still accepts). What follows from the answers is [`Liveness`], a pure rule; the rest is I/O.
//!
//! A single miss means little (a busy engine answers late while it generates well), so only a run of misses takes an
//! engine out, and one success brings it back. Breakers ([`Breakers`]) weigh what requests saw, in the same pass.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;

use super::Shared;
use super::breakers::Breakers;
use super::causes::Cause;
use super::generation::Pulses;
use super::judge::Judge;
use super::reach::{Miss, Question};
use super::remember::{Keeper, Memory};
use super::stages::{Failed, Stage, Streak, Verdict};
use crate::base::prng::Prng;
use crate::base::time::Instant;
use crate::config::topology::EngineView;
use crate::runtime::socket;

/// The rule. Engines count as live until they miss.
#[derive(Debug)]
pub struct Liveness {
    every: u32,
    misses_max: u32,
    engines: Vec<Seen>,
}

/// What an answer, or none, changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The live flag is set.
    Live,
    /// The live flag is cleared.
    Dead,
    /// It answers again, after too few misses to count as dead: it may have been restarted all the same.
    Back,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    live: bool,
    misses: u32,
}

impl Liveness {
    /// `live`: what the board says now, in its order. A `misses_max` of 0 reads as 1.
    pub fn new(live: impl IntoIterator<Item = bool>, every: u32, misses_max: u32) -> Liveness {
        let engines = live
            .into_iter()
            .map(|live| Seen { live, misses: 0 })
            .collect();
        Liveness {
            every,
            misses_max: misses_max.max(1),
            engines,
        }
    }

    /// Whether this pass (counted from 0) asks.
    pub fn due(&self, pass: u64) -> bool {
        self.every != 0 && pass.is_multiple_of(u64::from(self.every))
    }

    /// Takes one engine's answer; `Some` when that is news.
    pub fn observe(&mut self, engine: usize, answered: bool) -> Option<News> {
        let seen = self.engines.get_mut(engine)?;
        let missed = seen.misses > 0;
        seen.misses = if answered {
            0
        } else {
            seen.misses.saturating_add(1)
        };
        let live = answered || (seen.live && seen.misses < self.misses_max);
        let was_live = std::mem::replace(&mut seen.live, live);
        match (was_live, live) {
            (false, true) => Some(News::Live),
            (true, false) => Some(News::Dead),
            (true, true) if answered && missed => Some(News::Back),
            _ => None,
        }
    }
}

/// Passes for the life of the thread. What an earlier life knew is known already.
pub async fn run(
    shared: Arc<Shared>,
    tls: Option<Arc<ClientConfig>>,
    pulses: Arc<Pulses>,
    (mut breakers, mut keeper): (Breakers, Option<Keeper>),
) {
    let mut streak = Streak::new(shared.snapshot.fleet.controller.monitor_failure_limit);
    let tls = tls.map(TlsConnector::from);
    let fleet = &shared.snapshot.fleet;
    let rules = &fleet.recovery;
    let board = &shared.state.board;
    let live = shared
        .snapshot
        .engines
        .iter()
        .map(|e| board.line(e.id).is_live());
    let mut liveness = Liveness::new(live, rules.liveness_every, rules.liveness_misses);
    let began = tokio::time::Instant::now();
    let mut ticks = interval(fleet.controller.monitor_interval.max(INTERVAL_MIN));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut judge = Judge::new(&shared);
    let since = |tick: tokio::time::Instant| tick.duration_since(began);
    let (mut pass, mut unwell) = (0, None);
    loop {
        let tick = tokio::select! {
            tick = ticks.tick() => tick,
            answer = breakers.answered() => {
                let now = Instant::ZERO + since(tokio::time::Instant::now());
                breakers.take(&shared, now, answer);
                continue;
            }
            () = shared.lifecycle.changed() => {
                // A failure is told by the next pass, which tries again.
                let _ = keep(&shared, &breakers, &mut keeper).await;
                continue;
            }
        };
        judge.pass(&shared, since(tick));
        breakers.pass(&shared, Instant::ZERO + since(tick));
        // It stands until engines are asked again.
        if liveness.due(pass) {
            unwell = health_pass(&shared, &tls, &mut liveness, &pulses).await;
        }
        let kept = keep(&shared, &breakers, &mut keeper).await;
        conclude(&shared, &mut streak, unwell.or(kept.err()));
        pass += 1;
    }
}

/// Brings the state file up to date, where there is one.
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

/// Breakers as an earlier life left them, and the file that remembers, when the fleet asks for one.
pub fn recover(
    shared: &Shared,
    tls: Option<Arc<ClientConfig>>,
    prng: Prng,
) -> (Breakers, Option<Keeper>) {
    let mut breakers = Breakers::new(shared, tls, prng);
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
    shared.lifecycle.is_to_be_kept();
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
async fn health_pass(
    shared: &Shared,
    tls: &Option<TlsConnector>,
    liveness: &mut Liveness,
    pulses: &Pulses,
) -> Option<Failed> {
    let limit = shared.snapshot.fleet.engine.health_timeout;
    let mut probes = JoinSet::new();
    for engine in shared.snapshot.engines.iter() {
        let addresses = shared.state.addresses.of(engine.id);
        let (engine, tls) = (engine.clone(), tls.clone());
        probes.spawn(async move {
            let asked = timeout(limit, probe(&engine, &addresses, tls.as_ref())).await;
            (engine.id, asked.unwrap_or(Err(Miss::Late)))
        });
    }
    let mut failed = None;
    while let Some(probed) = probes.join_next().await {
        let Ok((id, result)) = probed else {
            failed = Some((Stage::Health, "panic"));
            continue;
        };
        if let Err(Miss::Connect(error)) = &result
            && let Some(class) = socket::shortage(error)
        {
            failed = Some((Stage::Health, class));
            continue;
        }
        let iid = shared.snapshot.engine(id).map(|e| e.iid.as_str());
        let line = shared.state.board.line(id);
        let news = liveness.observe(id.index(), result.is_ok());
        if let Some(news) = news {
            pulses.tell(id, news);
        }
        match (news, result) {
            (Some(News::Live), _) => {
                line.set_live(true);
                tracing::info!(iid, "engine is live again");
            }
            (Some(News::Dead), Err(miss)) => {
                line.set_live(false);
                if let Some(prefixes) = &shared.state.prefixes {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: misses allowed, answers (`.` ok, `x` miss), live flag after each (`l` or `d`; `b` when back after misses).
    // proves R-CTL-1
    #[test]
    fn runs_of_misses_take_out_and_a_success_brings_back() {
        let rows = [
            (1, "..x.x", "lldld"),
            (2, "x.x.xx", "lblbld"),
            (2, "xxx.x.", "lddllb"),
            (3, "xx..xxx.", "llbllldl"),
            (0, "x.", "dl"),
        ];
        for (misses, answers, want) in rows {
            let mut rule = Liveness::new([true], 1, misses);
            let mut flag = true;
            let got: String = answers
                .chars()
                .map(|c| {
                    let before = flag;
                    let news = rule.observe(0, c == '.');
                    flag = match news {
                        Some(News::Live) => true,
                        Some(News::Dead) => false,
                        Some(News::Back) => return 'b',
                        None => return if flag { 'l' } else { 'd' },
                    };
                    assert_ne!(before, flag, "changes only are told");
                    if flag { 'l' } else { 'd' }
                })
                .collect();
            assert_eq!(got, want, "{misses} {answers}");
        }
    }

    #[test]
    fn passes_that_ask() {
        let asks = |every| {
            let rule = Liveness::new([], every, 1);
            (0..7).filter(|p| rule.due(*p)).collect::<Vec<u64>>()
        };
        assert_eq!(asks(0), Vec::<u64>::new());
        assert_eq!(asks(1), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(asks(3), [0, 3, 6]);
        let mut rule = Liveness::new([false], 1, 2);
        assert_eq!(rule.observe(0, false), None, "out at the start stays out");
        assert_eq!(
            (rule.observe(0, true), rule.observe(9, true)),
            (Some(News::Live), None)
        );
    }
}
