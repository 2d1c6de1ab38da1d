//! Breakers in the monitoring pass: what the [`Ward`] wants to know is asked, and it is told what came of it.
//!
//! Questions run beside the passes and have a bound each. Invariant: none outlives this value.

use tokio::task::{Id, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Shared;
use super::inference;
use super::monitor;
use super::reach::Miss;
use super::remember::Memory;
use crate::base::prng::Prng;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Phase};
use crate::config::topology::EngineView;
use crate::fleet::breaker::{Answer, FaultClass, Question, Step};
use crate::runtime::socket;
use crate::shard::ward::Ward;

/// The answer to the question of that number.
pub type Heard = ((EngineId, u64), Answer);

/// What outlives a pass.
pub struct Breakers {
    ward: Ward,
    asking: JoinSet<Heard>,
    /// Which question a task asks.
    asked: Vec<(Id, (EngineId, u64))>,
    prng: Prng,
}

impl Breakers {
    /// `prng` names the rooms where SGLang's legs meet.
    pub fn new(shared: &Shared, prng: Prng) -> Breakers {
        Breakers {
            ward: Ward::new(&shared.snapshot),
            asking: JoinSet::new(),
            asked: Vec::new(),
            prng,
        }
    }

    /// Another fleet: nothing is known of those that are not here, or not the same, any more.
    pub fn follow(&mut self, shared: &Shared, anew: impl Fn(&EngineView) -> bool) {
        self.ward.follow(&shared.snapshot, anew);
    }

    /// One pass.
    pub fn pass(&mut self, shared: &Shared, now: Instant) {
        let mut steps = Vec::new();
        self.ward
            .pass(&shared.snapshot, &shared.state, now, &mut steps);
        for step in steps {
            tell(shared, &step);
            if let Step::Ask(engine, question, number) = step {
                let engine = &shared.snapshot.engines[engine];
                self.ask(shared, engine, question, number);
            }
        }
    }

    /// Waits for the answer to a question, for ever when none is under way.
    pub async fn answered(&mut self) -> Heard {
        loop {
            match self.asking.join_next_with_id().await {
                Some(Ok((task, answer))) => {
                    self.asked.retain(|(asks, _)| *asks != task);
                    return answer;
                }
                // A panic in a question is a fault of ours: nothing is known, and the engine is asked again.
                Some(Err(error)) => {
                    tracing::error!(%error, "a probe failed");
                    let is_it = |(task, _): &(Id, _)| *task == error.id();
                    if let Some(at) = self.asked.iter().position(is_it) {
                        return (self.asked.swap_remove(at).1, Answer::Unasked);
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    pub fn take(&mut self, shared: &Shared, now: Instant, (asked, answer): Heard) {
        let (snapshot, state) = (&shared.snapshot, &shared.state);
        let step = self.ward.take(snapshot, state, now, asked, answer);
        if let Some(step) = step {
            tell(shared, &step);
        }
    }

    /// Why an engine is out.
    pub fn out(&self, id: EngineId) -> Option<FaultClass> {
        self.ward.out(id)
    }

    /// Takes up where an earlier life of this router ended.
    pub fn recall(&mut self, shared: &Shared, memory: &Memory) {
        for (id, told) in memory.recall(shared) {
            let Some(class) = told.ejected() else {
                continue;
            };
            let (snapshot, state) = (&shared.snapshot, &shared.state);
            if let Some(step) = self.ward.recall(snapshot, state, id, class) {
                tell(shared, &step);
            }
        }
    }

    fn ask(&mut self, shared: &Shared, engine: &EngineView, question: Question, number: u64) {
        let (id, asks) = (engine.id, (engine.id, number));
        let fleet = &shared.snapshot.fleet;
        let task = match question {
            Question::Health => {
                let (engine, addresses) = (engine.clone(), shared.state.addresses.of(id));
                let tls = shared.tls.clone().map(TlsConnector::from);
                let bound = fleet.engine.health_timeout;
                self.asking.spawn(async move {
                    let probe = monitor::probe(&engine, &addresses, tls.as_ref());
                    let heard = timeout(bound, probe).await.unwrap_or(Err(Miss::Late));
                    (asks, heard_health(&heard))
                })
            }
            Question::Inference(phase) => {
                let seed = self.prng.u64();
                let answer = inference::ask(shared, engine, phase, &[], seed);
                self.asking.spawn(async move { (asks, answer.await) })
            }
        };
        self.asked.push((task.id(), asks));
    }
}

/// Into the log.
fn tell(shared: &Shared, step: &Step) {
    let iid = |engine: usize| shared.snapshot.engines[engine].iid.as_str();
    match *step {
        Step::Ask(..) => {}
        Step::Eject(e, class) => {
            tracing::warn!(iid = iid(e), class = class.name(), "engine is ejected");
        }
        Step::Spare(e, class) => {
            let (iid, class) = (iid(e), class.name());
            tracing::warn!(iid, class, "engine fails, and is the last of its role");
        }
        Step::Clear(e, class) => {
            let (iid, class) = (iid(e), class.name());
            tracing::info!(iid, class, "engine failed requests and is well");
        }
        Step::Readmit(e, class) => {
            tracing::info!(iid = iid(e), class = class.name(), "engine is back");
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
