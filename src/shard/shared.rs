//! The memory that the shards of a router share: the board, the gates, the addresses, the counts of connections, what was learned, the
//! retry credits and the standing. All atomics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::addresses::Addresses;
use super::board::{Board, Phase};
use super::budget::Credits;
use super::connections::Connections;
use super::gate::Gate;
use super::learned::Learned;
use super::prefix::Prefixes;
use super::slots::Slots;
use super::waits::Awaited;
use crate::base::prng::Prng;
use crate::base::time::Instant;
use crate::base::units::EngineId;
use crate::config::ApiKeys;
use crate::config::checked::PhaseLimit;
use crate::config::topology::Snapshot;
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
    /// Places in the phases of each engine, where they are or were bounded.
    phases: Slots<[OnceLock<Gate>; Phase::COUNT]>,
    pub retries: Credits,
    /// From the dispatch of a decode leg to its first token, smoothed: nanoseconds, 0 at the start.
    handoff_ns: AtomicU64,
    /// When that was last heard of.
    handoff_at: AtomicU64,
    pub standing: standing::Gate,
    /// Why it is what it is, in words for operators.
    why: ArcSwapOption<String>,
    /// Pairs of engines that have completed a handoff: row producer, column consumer.
    met: Slots<Met>,
    /// Which engines lately read which prompts; from when something is priced on.
    prefixes: OnceLock<Prefixes>,
    salt: Salt,
    /// What clients are let in by; `None` where nobody is asked, as the flag says.
    api_keys: ArcSwapOption<ApiKeys>,
    asks_for_keys: AtomicBool,
    shards: usize,
}

/// A bit for each engine.
#[derive(Debug)]
struct Met([AtomicU64; 64]);

impl Shared {
    pub fn new(snapshot: &Snapshot, shards: usize) -> Self {
        let serving = &snapshot.fleet.serving;
        let engines = snapshot.engines.len();
        let shared = Shared {
            board: Board::new(engines),
            addresses: Addresses::new(snapshot),
            connections: Connections::new(shards),
            learned: Learned::new(engines),
            retained: Gate::new(serving.max_retained, shards, 0),
            seats: Gate::new(serving.max_connections, shards, serving.queue_capacity),
            phases: Slots::new(engines, |_| Default::default()),
            handoff_ns: AtomicU64::new(0),
            handoff_at: AtomicU64::new(0),
            retries: Credits::new(serving.retry_budget),
            standing: standing::Gate::new(),
            why: ArcSwapOption::empty(),
            met: Slots::new(engines, |_| Met::default()),
            prefixes: OnceLock::new(),
            salt: Salt::new(&mut Prng::new(0)),
            api_keys: ArcSwapOption::empty(),
            asks_for_keys: AtomicBool::new(false),
            shards,
        };
        shared.bound_phases(snapshot, &mut Vec::new());
        shared.remember_prompts(snapshot, &[]);
        shared
    }

    /// Prompts are hashed with words that `prng` draws: outside of tests, with chance that nobody knows.
    pub fn salted(mut self, snapshot: &Snapshot, prng: &mut Prng) -> Self {
        self.salt = Salt::new(prng);
        self.prefixes = OnceLock::new();
        self.remember_prompts(snapshot, &[]);
        self
    }

    /// Clients need one of these keys.
    pub fn with_api_keys(self, keys: Option<ApiKeys>) -> Self {
        self.replace_api_keys(keys);
        self
    }

    // ── another fleet ──

    /// Room for so many engines.
    pub fn grow(&self, engines: usize) {
        self.board.grow(engines);
        self.addresses.grow(engines);
        self.learned.grow(engines);
        self.phases.grow(engines, |_| Default::default());
        self.met.grow(engines, |_| Met::default());
    }

    /// Whether nothing that requests have put there is left of an engine.
    pub fn is_at_rest(&self, engine: EngineId) -> bool {
        let gates = self.phases[engine].iter().filter_map(OnceLock::get);
        let mut gates = gates.map(|gate| gate.held() as usize + gate.waiting());
        self.board.line(engine).is_at_rest() && gates.all(|inside| inside == 0)
    }

    /// `snapshot` from now on, in which `added` are new: their lines begin anew, and no work goes there yet. `wakes` gets the shards that
    /// were granted something by higher limits.
    pub fn follow(
        &self,
        snapshot: &Snapshot,
        added: &[EngineId],
        wakes: &mut Vec<(usize, Awaited)>,
    ) {
        let serving = &snapshot.fleet.serving;
        for engine in added {
            self.board.line(*engine).begin_anew();
            self.learned.forget(*engine);
            self.forget_pairs(*engine);
            let addrs = snapshot.engines[engine.index()].addrs.clone();
            self.addresses.publish(*engine, addrs);
        }
        let mut seats = Vec::new();
        self.seats.set_room(serving.queue_capacity);
        self.seats.set_limit(serving.max_connections, &mut seats);
        wakes.extend(seats.into_iter().map(|shard| (shard, Awaited::Seat)));
        // Nobody waits for this one.
        let limit = serving.max_retained;
        self.retained.set_limit(limit, &mut Vec::new());
        self.bound_phases(snapshot, wakes);
        self.retries.set_most(serving.retry_budget);
        self.remember_prompts(snapshot, added);
    }

    /// Each phase of each engine has the bound that the fleet gives it. One that had a bound and has none keeps a gate that is always
    /// open, so that those inside are counted.
    fn bound_phases(&self, snapshot: &Snapshot, wakes: &mut Vec<(usize, Awaited)>) {
        let serving = &snapshot.fleet.serving;
        for engine in snapshot.present() {
            let decodes = match (serving.decode_concurrency, &engine.profile) {
                (PhaseLimit::Unset, Some(profile)) if snapshot.is_predictive() => {
                    usize::try_from(profile.curves.decode_max_requests).ok()
                }
                (limit, _) => limit.max(),
            };
            let bounds = [
                (Phase::Prefill, serving.prefill_concurrency.max()),
                (Phase::Decode, decodes),
            ];
            for (phase, bound) in bounds {
                let place = &self.phases[engine.id][phase as usize];
                let Some(gate) = place.get() else {
                    if let Some(most) = bound {
                        place.get_or_init(|| Gate::new(most, self.shards, usize::MAX));
                    }
                    continue;
                };
                let mut granted = Vec::new();
                gate.set_limit(bound.unwrap_or(usize::MAX), &mut granted);
                let line = Awaited::Phase(engine.id, phase);
                wakes.extend(granted.into_iter().map(|shard| (shard, line)));
            }
        }
    }

    /// Nobody waits for the phases of an engine any more.
    pub fn open_phases(&self, engine: EngineId, wakes: &mut Vec<(usize, Awaited)>) {
        for phase in Phase::ALL {
            if let Some(gate) = self.phase(engine, phase) {
                let mut granted = Vec::new();
                gate.set_limit(usize::MAX, &mut granted);
                let line = Awaited::Phase(engine, phase);
                wakes.extend(granted.into_iter().map(|shard| (shard, line)));
            }
        }
    }

    /// What was heard of an engine's pace was against another profile, or of another process.
    pub fn renew_pace(&self, engine: EngineId) {
        self.learned.renew(engine);
        self.board.line(engine).set_correction(1.0);
    }

    fn remember_prompts(&self, snapshot: &Snapshot, added: &[EngineId]) {
        match self.prefixes.get() {
            Some(prefixes) => prefixes.follow(snapshot, added),
            None => {
                if let Some(prefixes) = Prefixes::new(snapshot, self.salt.clone()) {
                    self.prefixes.get_or_init(|| prefixes);
                }
            }
        }
    }

    pub fn prefixes(&self) -> Option<&Prefixes> {
        self.prefixes.get()
    }

    /// The gate of a phase of an engine; `None` where that never had a bound.
    pub fn phase(&self, engine: EngineId, phase: Phase) -> Option<&Gate> {
        self.phases[engine][phase as usize].get()
    }

    // ── keys ──

    pub fn has_api_keys(&self) -> bool {
        self.asks_for_keys.load(Ordering::Acquire)
    }

    /// Whether `bearer` opens `/v1/*`.
    pub fn lets_in(&self, bearer: Option<&[u8]>) -> bool {
        if !self.has_api_keys() {
            return true;
        }
        match &*self.api_keys.load() {
            Some(keys) => bearer.is_some_and(|key| keys.open_to(key)),
            None => true,
        }
    }

    /// From the next request on these keys are the ones, or nobody is asked for any.
    pub fn replace_api_keys(&self, keys: Option<ApiKeys>) {
        let asks = keys.is_some();
        self.api_keys.store(keys.map(Arc::new));
        self.asks_for_keys.store(asks, Ordering::Release);
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
        let (row, bit) = self.met(producer, consumer);
        row.load(Ordering::Relaxed) & bit != 0
    }

    pub fn pair_met(&self, producer: EngineId, consumer: EngineId) {
        let (row, bit) = self.met(producer, consumer);
        if row.load(Ordering::Relaxed) & bit == 0 {
            row.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn met(&self, producer: EngineId, consumer: EngineId) -> (&AtomicU64, u64) {
        let at = consumer.index();
        (&self.met[producer].0[at / 64], 1 << (at % 64))
    }

    fn forget_pairs(&self, engine: EngineId) {
        for row in &self.met[engine].0 {
            row.store(0, Ordering::Relaxed);
        }
        for producer in self.met.iter() {
            let at = engine.index();
            producer.0[at / 64].fetch_and(!(1 << (at % 64)), Ordering::Relaxed);
        }
    }
}

impl Default for Met {
    fn default() -> Self {
        Met(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}
