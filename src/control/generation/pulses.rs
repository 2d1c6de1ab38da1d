//! The health pass tells, and who watches an engine hears.

use tokio::sync::watch;

use crate::base::units::EngineId;
use crate::control::liveness::News;
use crate::shard::slots::Slots;

/// What the health pass last saw of each engine, in the order of their ids.
pub struct Pulses(Slots<watch::Sender<Pulse>>);

#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    pub live: bool,
}

impl Pulses {
    /// Engines count as live until they miss.
    pub fn new(engines: usize) -> Pulses {
        let pulses = Pulses(Slots::new(0, |_| watch::Sender::new(Pulse { live: true })));
        pulses.grow(engines);
        pulses
    }

    /// Room for so many engines.
    pub fn grow(&self, engines: usize) {
        let live = |_| watch::Sender::new(Pulse { live: true });
        self.0.grow(engines, live);
    }

    /// It is another one from now on.
    pub fn forget(&self, engine: EngineId) {
        self.0[engine].send_replace(Pulse { live: true });
    }

    pub fn tell(&self, engine: EngineId, news: News) {
        let live = news != News::Dead;
        // Also news where the value is the same.
        self.0[engine].send_replace(Pulse { live });
    }

    pub fn hear(&self, engine: EngineId) -> watch::Receiver<Pulse> {
        self.0[engine].subscribe()
    }
}
