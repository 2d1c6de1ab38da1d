//! The memory that the shards of a router share: the board, the gates, the addresses, the counts of connections, what was learned, the
//! retry credits and the standing. All atomics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};

use super::addresses::Addresses;
use super::board::{Board, Phase};
use super::budget::Credits;
use super::connections::Connections;
use super::gate::Gate;
use super::learned::Learned;
use super::prefix::Prefixes;
use crate::base::prng::Prng;
use crate::base::time::Instant;
use crate::base::units::EngineId;
use crate::config::ApiKeys;
use crate::config::checked::PhaseLimit;
use crate::config::topology::{EngineView, Snapshot};
use crate::metrics::standing::{self, Standing};
use crate::wire::prefix::Salt;

/// What all shards of a router share.
#[derive(Debug)]
pub struct Shared {
    pub board: Board,
    pub addresses: Addresses,
    pub connections: Connections,
    pub learned: Learned,
    /// R-ADM-1: exchanges from the arrival of their head to the end of their answer.
    pub retained: Gate,
    /// Requests in flight past admission.
    pub seats: Gate,
    /// Places in the phases of each engine, where they are bounded.
    pub phases: Box<[[Option<Gate>; Phase::COUNT]]>,
    pub retries: Credits,
    /// From the dispatch of a decode leg to its first token, smoothed: nanoseconds, 0 at the start.
    handoff_ns: AtomicU64,
    /// When that was last heard of.
    handoff_at: AtomicU64,
    pub standing: standing::Gate,
    /// Why it is what it is, in words for operators.
    why: ArcSwapOption<String>,
    /// Pairs of engines that have completed a handoff: row producer, column consumer.
    met: Box<[AtomicBool]>,
    /// Which engines lately read which prompts; `None` where nothing is priced.
    pub prefixes: Option<Prefixes>,
    /// What clients are let in by; `None` where nobody is asked.
    api_keys: Option<ArcSwap<ApiKeys>>,
}

impl Shared {
    pub fn new(snapshot: &Snapshot, shards: usize) -> Self {
        let serving = &snapshot.fleet.serving;
        let engines = snapshot.engines.len();
        let gate = |max: usize| Gate::new(max, shards, usize::MAX);
        let phases = |engine: &EngineView| {
            let decodes = match (serving.decode_concurrency, &engine.profile) {
                (PhaseLimit::Unset, Some(profile)) if snapshot.is_predictive() => {
                    usize::try_from(profile.curves.decode_max_requests).ok()
                }
                (limit, _) => limit.max(),
            };
            [
                serving.prefill_concurrency.max().map(gate),
                decodes.map(gate),
            ]
        };
        Shared {
            board: Board::new(engines),
            addresses: Addresses::new(snapshot),
            connections: Connections::new(shards),
            learned: Learned::new(engines),
            retained: Gate::new(serving.max_retained, shards, 0),
            seats: Gate::new(serving.max_connections, shards, serving.queue_capacity),
            phases: snapshot.engines.iter().map(phases).collect(),
            handoff_ns: AtomicU64::new(0),
            handoff_at: AtomicU64::new(0),
            retries: Credits::new(serving.retry_budget),
            standing: standing::Gate::new(),
            why: ArcSwapOption::empty(),
            met: (0..engines * engines)
                .map(|_| AtomicBool::new(false))
                .collect(),
            prefixes: Prefixes::new(snapshot, Salt::new(&mut Prng::new(0))),
            api_keys: None,
        }
    }

    /// Prompts are hashed with words that `prng` draws: outside of tests, with chance that nobody knows.
    pub fn salted(mut self, snapshot: &Snapshot, prng: &mut Prng) -> Self {
        self.prefixes = Prefixes::new(snapshot, Salt::new(prng));
        self
    }

    /// Clients need one of these keys.
    pub fn with_api_keys(mut self, keys: Option<ApiKeys>) -> Self {
        self.api_keys = keys.map(ArcSwap::from_pointee);
        self
    }

    pub fn has_api_keys(&self) -> bool {
        self.api_keys.is_some()
    }

    /// Whether `bearer` opens `/v1/*`.
    pub fn lets_in(&self, bearer: Option<&[u8]>) -> bool {
        match &self.api_keys {
            Some(keys) => bearer.is_some_and(|key| keys.load().open_to(key)),
            None => true,
        }
    }

    /// From the next request on these keys are the ones. Where clients need none that stays so.
    pub fn replace_api_keys(&self, keys: ApiKeys) {
        if let Some(ours) = &self.api_keys {
            ours.store(Arc::new(keys));
        }
    }

    /// Where the shards run, one after the other.
    pub fn on_nodes(mut self, nodes: impl IntoIterator<Item = Option<usize>>) -> Self {
        self.connections = self.connections.on_nodes(nodes);
        self
    }

    /// Why completions are refused now; `None` while serving.
    pub fn held(&self) -> Option<Standing> {
        Some(self.standing.standing()).filter(|standing| standing.is_held())
    }

    /// The same for requests that were taken in already: a router that drains finishes those.
    pub fn stopped(&self) -> Option<Standing> {
        self.held()
            .filter(|standing| *standing != Standing::Draining)
    }

    /// Serves or holds back from now on, unless it drains already.
    pub fn stand(&self, standing: Standing, why: Option<String>) {
        self.why.store(why.map(Arc::new));
        if !self.standing.set(standing) {
            self.why.store(None);
        }
    }

    pub fn why(&self) -> Option<Arc<String>> {
        self.why.load_full()
    }

    pub fn is_draining(&self) -> bool {
        self.standing.standing() == Standing::Draining
    }

    /// A decode leg brought its first token so long after its KV was there for it.
    pub fn note_handoff(&self, delay: Duration, now: Instant) {
        const ALPHA: f64 = 0.2;
        // Two at once may lose one of them: it is an average.
        let old_s = self.handoff_s(now);
        let next_s = old_s + ALPHA * (delay.as_secs_f64() - old_s);
        let (ns, at) = ((next_s * 1e9) as u64, now.nanos());
        self.handoff_ns.store(ns, Ordering::Relaxed);
        self.handoff_at.store(at, Ordering::Relaxed);
    }

    /// What a handoff takes, in seconds. It fades while nobody says anew: what was slow once must not keep all those away that
    /// would show that it no longer is.
    pub fn handoff_s(&self, now: Instant) -> f64 {
        const HALVED_AFTER_S: f64 = 10.0;
        let at = Instant::from_nanos(self.handoff_at.load(Ordering::Relaxed));
        let halvings = now.since(at).as_secs_f64() / HALVED_AFTER_S;
        self.handoff_ns.load(Ordering::Relaxed) as f64 / 1e9 * (-halvings).exp2()
    }

    pub fn pair_has_met(&self, producer: EngineId, consumer: EngineId) -> bool {
        self.met[producer.index() * self.board.len() + consumer.index()].load(Ordering::Relaxed)
    }

    pub fn pair_met(&self, producer: EngineId, consumer: EngineId) {
        let met = &self.met[producer.index() * self.board.len() + consumer.index()];
        if !met.load(Ordering::Relaxed) {
            met.store(true, Ordering::Relaxed);
        }
    }
}
