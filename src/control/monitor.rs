//! The health pass: each engine is asked `GET prefix/health`, all at once, on a fresh connection each (a kept one would
//! not show that the engine still accepts). What follows from the answers is [`Liveness`], a pure rule; the rest is I/O.
//!
//! A single miss means little (a busy engine answers late while it generates well), so only a run of misses takes an
//! engine out, and one success brings it back. Breakers weigh other evidence and are not this file's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;

use super::Shared;
use super::generation::Pulses;
use super::judge::Judge;
use super::reach::{Miss, Question};
use crate::config::topology::EngineView;

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

/// Passes for the life of the thread.
pub async fn run(shared: Arc<Shared>, tls: Option<TlsConnector>, pulses: Arc<Pulses>) {
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
    for pass in 0u64.. {
        let tick = ticks.tick().await;
        judge.pass(&shared, tick.duration_since(began));
        if liveness.due(pass) {
            health_pass(&shared, &tls, &mut liveness, &pulses).await;
        }
    }
}

/// Asks every engine, then sets the flags that change.
async fn health_pass(
    shared: &Shared,
    tls: &Option<TlsConnector>,
    liveness: &mut Liveness,
    pulses: &Pulses,
) {
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
    while let Some(probed) = probes.join_next().await {
        let Ok((id, result)) = probed else { continue };
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
}

/// The caller bounds the time.
async fn probe(
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
