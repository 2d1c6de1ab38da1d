//! Several engines and the KV between them, and what happens to an engine as a whole: death, restart, drain, a closed port.
//!
//! Invariant: an engine whose core died stays dead until [`Engine::restart`]; the port of one that died for good stays closed.

use std::rc::Rc;
use std::time::Duration;

use super::{Engine, Incoming, Reply, sglang};
use crate::base::time::Instant;
use crate::stub::cache::PrefixCache;
use crate::stub::faults::{Injected, Leg, Turn};
use crate::stub::handoff::{Handoffs, engine_name};
use crate::stub::load::Load;

/// How long after its core's death an engine still answers: vLLM 0.32.0 closed its port 0.25 s later.
pub const DEATH: Duration = Duration::from_millis(250);

/// Several engines and the KV between them.
#[derive(Debug, Default)]
pub struct World {
    pub engines: Vec<Engine>,
    pub handoffs: Handoffs,
}

impl World {
    /// A request to the engine at `index`, which exists.
    pub fn request(&mut self, index: usize, now: Instant, incoming: &Incoming<'_>) -> Reply {
        self.handoffs.rooms.matched = sglang::are_matched(&self.engines);
        self.engines[index].request(now, incoming, &mut self.handoffs)
    }

    /// A connection to the engine at `index`: what befalls it.
    pub fn accepted(&mut self, index: usize, now: Instant) -> Injected {
        let injected = self.engines[index].judge.accepted();
        for turn in injected.steps.iter().filter_map(|step| step.turn()) {
            self.turn(index, now, turn);
        }
        injected
    }

    pub fn turn(&mut self, index: usize, now: Instant, turn: Turn) {
        self.engines[index].turn(now, turn, &mut self.handoffs);
    }

    /// The port of the engine at `index` opens again: a new process, if the old one died.
    pub fn reopened(&mut self, index: usize, now: Instant) {
        let engine = &mut self.engines[index];
        engine.closed = (Instant::FAR, Instant::FAR);
        if engine.load.is_dead() {
            engine.restart(now, &mut self.handoffs);
        }
    }

    /// The process was told to end: nothing new from now on.
    pub fn drain(&mut self) {
        self.engines
            .iter_mut()
            .for_each(|engine| engine.draining = true);
    }

    /// As [`World::drain`], and what runs is given up.
    pub fn abort(&mut self) {
        self.drain();
        self.engines.iter().for_each(|engine| engine.load.abort());
    }
}

impl Engine {
    /// The engine core dies: what runs fails, what it kept for others is gone.
    pub fn kill(&mut self, handoffs: &mut Handoffs) {
        self.load.kill();
        handoffs.bury(self.name);
    }

    /// A new process in the place of the old one, under a new name.
    pub fn restart(&mut self, now: Instant, handoffs: &mut Handoffs) {
        self.kill(handoffs);
        self.name = engine_name(&mut self.prng);
        self.load = Rc::new(Load::new(self.setup.bounds));
        self.cache = PrefixCache::new(self.setup.bounds.cached_tokens_max, self.setup.block_tokens);
        self.started = now;
        self.next_block = 0;
        self.draining = false;
    }

    /// From when to when the port is closed; both far when it is not.
    pub fn closed(&self) -> (Instant, Instant) {
        self.closed
    }

    /// Whether the port is closed at `now`.
    pub fn is_closed(&self, now: Instant) -> bool {
        self.closed.0 <= now && now < self.closed.1
    }

    pub(super) fn turn(&mut self, now: Instant, turn: Turn, handoffs: &mut Handoffs) {
        match turn {
            Turn::Drain => self.draining = true,
            Turn::Die => {
                self.kill(handoffs);
                self.closed = (now + DEATH, Instant::FAR);
            }
            Turn::Restart(pause) => {
                self.kill(handoffs);
                self.closed = (now, now + pause);
            }
            Turn::Refuse(pause) => self.closed = (now, now + pause),
        }
    }

    /// What befalls a request, after what it does to the engine as a whole.
    pub(super) fn judged(&mut self, now: Instant, leg: Leg, handoffs: &mut Handoffs) -> Injected {
        let injected = self.judge.request(leg);
        for turn in injected.turns() {
            self.turn(now, turn, handoffs);
        }
        injected
    }
}
