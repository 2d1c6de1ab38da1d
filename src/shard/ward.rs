//! What breakers do to the board: what shards saw of engines goes to the rule ([`Breaker`]), and its verdicts go back.
//!
//! No I/O, no clock, no log: each step is carried out on the board and handed on, so that whoever drives this tells it, and asks what the
//! rule wants to know. Invariant: after a pass, an engine is ejected on the board exactly when the rule has it out.

use super::Shared;
use crate::base::time::Instant;
use crate::base::units::{Dialect, EngineId, Phase, Role};
use crate::config::topology::{EngineView, Snapshot};
use crate::fleet::breaker::{Answer, Breaker, FaultClass, Look, Rules, Step};

/// The breakers of a fleet.
#[derive(Debug)]
pub struct Ward {
    rule: Breaker,
    looks: Vec<Look>,
}

impl Ward {
    pub fn new(snapshot: &Snapshot) -> Ward {
        Ward {
            rule: Breaker::new(rules(snapshot), snapshot.engines.len()),
            looks: Vec::new(),
        }
    }

    /// Another fleet: nothing is known of those that are not here, or not the same, any more.
    pub fn follow(&mut self, snapshot: &Snapshot, anew: impl Fn(&EngineView) -> bool) {
        let engines = snapshot.engines.iter();
        let forget = engines.map(|engine| !engine.is_here() || anew(engine));
        self.rule.follow(rules(snapshot), forget);
    }

    /// One pass; what follows is added to `steps`.
    pub fn pass(
        &mut self,
        snapshot: &Snapshot,
        state: &Shared,
        now: Instant,
        steps: &mut Vec<Step>,
    ) {
        let begun = steps.len();
        let board = &state.board;
        for engine in snapshot.present() {
            let at = engine.id.index();
            match (self.rule.out(at), board.line(engine.id).ejected_for()) {
                // A shard saw that nothing gets through.
                (None, Some(class)) => {
                    steps.extend(self.rule.take_out(now, at, (class, shows(engine))));
                }
                // An operator took it back.
                (Some(_), None) => drop(self.rule.take_in(at)),
                _ => {}
            }
        }
        self.looks.clear();
        let look = |engine: &EngineView| Look {
            rows: board.line(engine.id).rows(),
            // Of those that left nothing is asked any more.
            held: board.line(engine.id).is_held() || !engine.is_here(),
        };
        self.looks.extend(snapshot.engines.iter().map(look));
        self.rule.pass(now, &self.looks, steps);
        for step in &steps[begun..] {
            carry_out(snapshot, state, step);
        }
    }

    /// Takes the answer to question `number`; what follows.
    pub fn take(
        &mut self,
        snapshot: &Snapshot,
        state: &Shared,
        now: Instant,
        (engine, number): (EngineId, u64),
        answer: Answer,
    ) -> Option<Step> {
        let view = &snapshot.engines[engine.index()];
        let spared = can_be_spared(snapshot, state, view);
        let asked = (engine.index(), number);
        let step = self.rule.answered(now, asked, answer, spared)?;
        carry_out(snapshot, state, &step);
        Some(step)
    }

    /// Why an engine is out.
    pub fn out(&self, id: EngineId) -> Option<FaultClass> {
        self.rule.out(id.index())
    }

    /// Takes out who was out in an earlier life of this router, if it can be spared.
    pub fn recall(
        &mut self,
        snapshot: &Snapshot,
        state: &Shared,
        id: EngineId,
        class: FaultClass,
    ) -> Option<Step> {
        let view = &snapshot.engines[id.index()];
        if !class.is_unreachable() && !can_be_spared(snapshot, state, view) {
            return None;
        }
        let suspicion = (class, shows(view));
        let step = self.rule.take_out(Instant::ZERO, id.index(), suspicion)?;
        carry_out(snapshot, state, &step);
        Some(step)
    }
}

/// What an engine has to show before it comes back, when nobody knows any more in which phase it failed: what it is there for.
fn shows(engine: &EngineView) -> Phase {
    match engine.role {
        Role::Prefill => Phase::Prefill,
        Role::Decode | Role::Both => Phase::Decode,
    }
}

fn rules(snapshot: &Snapshot) -> Rules {
    let recovery = &snapshot.fleet.recovery;
    Rules {
        eject_after: recovery.eject_after,
        readmit_every: recovery.readmit_every,
        quarantine: recovery.failure_quarantine.unwrap_or_default(),
    }
}

fn carry_out(snapshot: &Snapshot, state: &Shared, step: &Step) {
    let line = |engine: usize| state.board.line(snapshot.engines[engine].id);
    match *step {
        Step::Ask(..) => {}
        Step::Eject(engine, class) => {
            line(engine).eject(class);
            if let Some(prefixes) = state.prefixes() {
                prefixes.forget(snapshot.engines[engine].id);
            }
        }
        Step::Spare(engine, _) | Step::Clear(engine, _) => line(engine).forgive(),
        Step::Readmit(engine, _) => {
            line(engine).forgive();
            line(engine).set_ejected(false);
        }
    }
}

/// Engines that new work may go to, other than this one.
pub fn well<'a>(
    snapshot: &'a Snapshot,
    state: &Shared,
    but: EngineId,
) -> impl Iterator<Item = &'a EngineView> {
    let available = move |e: &&EngineView| e.id != but && state.board.line(e.id).available();
    snapshot.present().filter(available)
}

/// Whether others can do all that this engine does.
pub fn can_be_spared(snapshot: &Snapshot, state: &Shared, engine: &EngineView) -> bool {
    [Role::Prefill, Role::Decode]
        .into_iter()
        .filter(|role| serves(snapshot, engine, *role))
        .all(|role| well(snapshot, state, engine.id).any(|e| serves(snapshot, e, role)))
}

/// Whether an engine may be given legs of this role.
pub fn serves(snapshot: &Snapshot, engine: &EngineView, role: Role) -> bool {
    let one_leg = snapshot.fleet.engine.dialect == Dialect::Openai;
    one_leg || !engine.pin || engine.role == Role::Both || engine.role == role
}
