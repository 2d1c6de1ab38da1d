//! The judgement of engines in the monitoring pass: what shards heard of their pace goes into [`Drift`], and what it says goes to the
//! board, into the log and into what is shown. The rule is pure; this file only carries.

use std::time::Duration;

use super::Shared;
use crate::base::time::Instant;
use crate::base::units::EngineId;
use crate::config::topology::EngineView;
use crate::fleet::learn::drift::{Change, Drift, Health, Look, Why};

/// What outlives a pass.
pub struct Judge {
    drift: Drift,
    looks: Vec<Look>,
    changes: Vec<Change>,
}

impl Judge {
    pub fn new(shared: &Shared) -> Judge {
        let fleet = &shared.snapshot.fleet;
        let roles = shared.snapshot.engines.iter().map(|e| e.role);
        Judge {
            drift: Drift::new(
                &fleet.recovery.health,
                &fleet.controller.decode_correction,
                roles,
            ),
            looks: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// Another fleet: nothing is known of those that are not here, or not the same, any more.
    pub fn follow(&mut self, shared: &Shared, anew: impl Fn(&EngineView) -> bool) {
        let fleet = &shared.snapshot.fleet;
        let engines = shared.snapshot.engines.iter();
        let forgets = |engine: &EngineView| !engine.is_here() || anew(engine);
        self.drift.follow(
            &fleet.recovery.health,
            &fleet.controller.decode_correction,
            engines.clone().map(|e| (e.role, forgets(e))),
        );
        for id in engines.filter(|e| forgets(e)).map(|e| e.id) {
            self.drift
                .pass_over(id.index(), shared.state.learned.heard(id));
            let line = shared.state.board.line(id);
            line.set_on_probation(false);
            line.set_evicted(false);
        }
    }

    /// One pass, so long after the first.
    pub fn pass(&mut self, shared: &Shared, since_first: Duration) {
        let (board, learned) = (&shared.state.board, &shared.state.learned);
        // It comes back as another process, of which nothing is known.
        let held = |engine: &EngineView| board.line(engine.id).is_held();
        if shared.snapshot.present().any(held) {
            self.follow(shared, held);
        }
        self.looks.clear();
        let all = shared.snapshot.engines.iter().map(|e| e.id);
        self.looks.extend(all.map(|id| Look {
            heard: learned.heard(id),
            available: board.line(id).would_be_available(),
        }));
        let now = Instant::ZERO + since_first;
        let window_ended = self.drift.pass(now, &self.looks, &mut self.changes);
        if !window_ended && self.changes.is_empty() {
            return;
        }
        let rules = &shared.snapshot.fleet.controller.decode_correction;
        for id in shared.snapshot.present().map(|e| e.id) {
            let judged = self.drift.judged(id.index());
            let line = board.line(id);
            if window_ended && judged.samples == 0 {
                line.set_correction(learned.fade(id, rules));
            }
            learned.judge(id, &judged);
            line.set_on_probation(self.drift.costs_more(id.index()));
            line.set_evicted(judged.health == Health::Evicted);
        }
        for change in self.changes.drain(..) {
            let iid = shared.snapshot.engines[change.engine].iid.as_str();
            let judged = learned.judged(EngineId(change.engine as u16));
            let (score, baseline) = (judged.score, judged.baseline);
            let (from, to) = (change.from.name(), change.to.name());
            match change.why {
                Why::Slow => {
                    tracing::warn!(iid, from, to, score, baseline, "engine is slow");
                }
                Why::Recovered => {
                    tracing::info!(iid, from, to, score, baseline, "engine is well again");
                }
                Why::Trial => tracing::info!(iid, from, to, "engine is tried again"),
                Why::Needed => tracing::warn!(iid, from, to, "slow engine is the last of its role"),
            }
        }
    }
}
