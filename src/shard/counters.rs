//! Which engine is asked to count a prompt, and which ones are left alone for a while because they could not.

use std::time::Duration;

use super::Shard;
use crate::base::time::Instant;
use crate::base::units::EngineId;
use crate::fleet::pick;

/// How asking an engine for token counts has gone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counter {
    failures: u32,
    /// Left alone until then.
    until: Instant,
}

const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

impl Shard {
    /// The engine to ask for a token count: least busy, not asked yet, rested ones first.
    pub fn counter(&mut self, now: Instant, asked: &[EngineId]) -> Option<EngineId> {
        self.look(now);
        let fleet = self.fleet();
        let fresh = |id: EngineId| !asked.contains(&id);
        let rested = |id: EngineId| fresh(id) && self.counters[id.index()].until <= now;
        pick::least_busy(fleet, rested).or_else(|| pick::least_busy(fleet, fresh))
    }

    pub fn counter_answered(&mut self, engine: EngineId) {
        self.counters[engine.index()] = Counter::default();
    }

    /// It is left alone for 1 s, doubling to 30 s.
    pub fn counter_failed(&mut self, now: Instant, engine: EngineId) {
        let counter = &mut self.counters[engine.index()];
        let pause = BACKOFF * 2u32.pow(counter.failures.min(5));
        counter.failures += 1;
        counter.until = now + pause.min(BACKOFF_MAX);
    }
}
