//! Breakers in the monitoring pass: what shards saw goes to the rule ([`Breaker`]), what it wants to know is asked, and its verdicts
//! go to the board and into the log.
//!
//! Questions run beside the passes and have a bound each. Invariant: at most one question an engine is under way, and none outlives
//! this value.

use std::sync::Arc;

use rustls::ClientConfig;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Shared;
use super::inference;
use super::monitor;
use super::reach::Miss;
use super::remember::Memory;
use crate::base::prng::Prng;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Phase, Role};
use crate::config::topology::EngineView;
use crate::fleet::breaker::{Answer, Breaker, FaultClass, Look, Question, Rules, Step};
use crate::runtime::socket;

/// What outlives a pass.
pub struct Breakers {
    rule: Breaker,
    looks: Vec<Look>,
    steps: Vec<Step>,
    asking: JoinSet<((usize, u64), Answer)>,
    tls: Option<Arc<ClientConfig>>,
    prng: Prng,
}

impl Breakers {
    /// `prng` names the rooms where SGLang's legs meet.
    pub fn new(shared: &Shared, tls: Option<Arc<ClientConfig>>, prng: Prng) -> Breakers {
        let recovery = &shared.snapshot.fleet.recovery;
        let rules = Rules {
            eject_after: recovery.eject_after,
            readmit_every: recovery.readmit_every,
            quarantine: recovery.failure_quarantine.unwrap_or_default(),
        };
        Breakers {
            rule: Breaker::new(rules, shared.snapshot.engines.len()),
            looks: Vec::new(),
            steps: Vec::new(),
            asking: JoinSet::new(),
            tls,
            prng,
        }
    }

    /// One pass.
    pub fn pass(&mut self, shared: &Shared, now: Instant) {
        let board = &shared.state.board;
        for engine in &shared.snapshot.engines {
            let (at, is_out) = (engine.id.index(), board.line(engine.id).is_ejected());
            match self.rule.out(at) {
                // A shard saw that nothing gets through.
                None if is_out => {
                    self.steps
                        .extend(self.rule.take_out(now, at, FaultClass::Connection))
                }
                // An operator took it back.
                Some(_) if !is_out => drop(self.rule.take_in(at)),
                _ => {}
            }
        }
        self.looks.clear();
        let look = |engine: &EngineView| Look {
            rows: board.line(engine.id).rows(),
            held: board.line(engine.id).is_held(),
        };
        self.looks.extend(shared.snapshot.engines.iter().map(look));
        self.rule.pass(now, &self.looks, &mut self.steps);
        self.carry_out(shared);
    }

    /// Waits for the answer to a question, for ever when none is under way.
    pub async fn answered(&mut self) -> ((usize, u64), Answer) {
        loop {
            match self.asking.join_next().await {
                Some(Ok(answer)) => return answer,
                // A panic in a question is a fault of ours; the engine stays as it is, and is asked again after a restart.
                Some(Err(error)) => tracing::error!(%error, "a probe failed"),
                None => std::future::pending().await,
            }
        }
    }

    pub fn take(&mut self, shared: &Shared, now: Instant, (asked, answer): ((usize, u64), Answer)) {
        let view = &shared.snapshot.engines[asked.0];
        let spared = can_be_spared(shared, view);
        let step = self.rule.answered(now, asked, answer, spared);
        self.steps.extend(step);
        self.carry_out(shared);
    }

    /// Why an engine is out.
    pub fn out(&self, id: EngineId) -> Option<FaultClass> {
        self.rule.out(id.index())
    }

    /// Takes up where an earlier life of this router ended.
    pub fn recall(&mut self, shared: &Shared, memory: &Memory) {
        for (id, told) in memory.recall(shared) {
            let view = &shared.snapshot.engines[id.index()];
            if let Some(class) = told.ejected()
                && (class.is_unreachable() || can_be_spared(shared, view))
            {
                let step = self.rule.take_out(Instant::ZERO, id.index(), class);
                self.steps.extend(step);
                self.carry_out(shared);
            }
        }
    }

    fn carry_out(&mut self, shared: &Shared) {
        for step in std::mem::take(&mut self.steps) {
            let (Step::Ask(engine, ..)
            | Step::Eject(engine, _)
            | Step::Spare(engine, _)
            | Step::Clear(engine, _)
            | Step::Readmit(engine, _)) = step;
            let view = &shared.snapshot.engines[engine];
            let (iid, line) = (view.iid.as_str(), shared.state.board.line(view.id));
            match step {
                Step::Ask(_, question, number) => self.ask(shared, view, question, number),
                Step::Eject(_, class) => {
                    line.set_ejected(true);
                    if let Some(prefixes) = &shared.state.prefixes {
                        prefixes.forget(view.id);
                    }
                    tracing::warn!(iid, class = class.name(), "engine is ejected");
                }
                Step::Spare(_, class) => {
                    line.forgive();
                    let class = class.name();
                    tracing::warn!(iid, class, "engine fails, and is the last of its role");
                }
                Step::Clear(_, class) => {
                    line.forgive();
                    tracing::info!(
                        iid,
                        class = class.name(),
                        "engine failed requests and is well"
                    );
                }
                Step::Readmit(_, class) => {
                    line.forgive();
                    line.set_ejected(false);
                    tracing::info!(iid, class = class.name(), "engine is back");
                }
            }
        }
    }

    fn ask(&mut self, shared: &Shared, engine: &EngineView, question: Question, number: u64) {
        let (id, asked) = (engine.id, (engine.id.index(), number));
        let fleet = &shared.snapshot.fleet;
        match question {
            Question::Health => {
                let (engine, addresses) = (engine.clone(), shared.state.addresses.of(id));
                let tls = self.tls.clone().map(TlsConnector::from);
                let bound = fleet.engine.health_timeout;
                self.asking.spawn(async move {
                    let probe = monitor::probe(&engine, &addresses, tls.as_ref());
                    let heard = timeout(bound, probe).await.unwrap_or(Err(Miss::Late));
                    (asked, heard_health(&heard))
                });
            }
            Question::Inference(phase) => {
                let (tls, seed) = (self.tls.clone(), self.prng.u64());
                let answer = inference::ask(shared, engine, phase, &[], tls, seed);
                self.asking.spawn(async move { (asked, answer.await) });
            }
        }
    }
}

fn heard_health(asked: &Result<(), Miss>) -> Answer {
    match asked {
        Ok(()) => Answer::Good,
        Err(Miss::Connect(error)) if socket::shortage(error).is_some() => Answer::Unasked,
        Err(Miss::Unresolved | Miss::Connect(_) | Miss::Tls(_)) => Answer::Unreachable,
        Err(_) => Answer::Bad(Phase::Decode),
    }
}

/// Engines that new work may go to, other than this one.
pub(super) fn well(shared: &Shared, but: EngineId) -> impl Iterator<Item = &EngineView> {
    let available = move |e: &&EngineView| e.id != but && shared.state.board.line(e.id).available();
    shared.snapshot.engines.iter().filter(available)
}

/// Whether others can do all that this engine does.
fn can_be_spared(shared: &Shared, engine: &EngineView) -> bool {
    [Role::Prefill, Role::Decode]
        .into_iter()
        .filter(|role| serves(shared, engine, *role))
        .all(|role| well(shared, engine.id).any(|e| serves(shared, e, role)))
}

/// Whether an engine may be given legs of this role.
pub(super) fn serves(shared: &Shared, engine: &EngineView, role: Role) -> bool {
    shared.one_leg() || !engine.pin || engine.role == Role::Both || engine.role == role
}
