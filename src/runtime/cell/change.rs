//! Another fleet, as a shard takes it on: made ready beside the one that runs, then put in its place within one turn of its loop.
//!
//! The control thread sends letters and each is answered ([`Told`]). Nothing changes before the commit; a shard that is told to drop
//! what it has made ready, or to make something else ready, is as it was. Letters of a round that is over change nothing.

use std::sync::Arc;

use super::super::io::Rt;
use super::super::tls::{self, Roots};
use super::ShardCell;
use crate::base::units::EngineId;
use crate::config::topology::{EngineView, Snapshot};
use crate::shard::next::Next;

/// What the control thread says. Rounds are numbered and never begin again.
#[derive(Clone, Debug)]
pub struct Letter {
    pub round: u64,
    pub step: Step,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// Which of these engines does a leg of this shard still have to do with?
    Survey(Arc<[EngineId]>),
    Prepare(Arc<Coming>),
    Commit,
    Drop,
}

/// What is to run.
#[derive(Clone)]
pub struct Coming {
    pub snapshot: Arc<Snapshot>,
    /// Whom https engines are trusted by; `None` without such engines.
    pub roots: Option<Roots>,
}

/// A shard has done what a letter said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub shard: usize,
    pub round: u64,
    /// Engines of a survey that are not done with.
    pub busy: Vec<EngineId>,
}

/// Made ready.
pub(super) struct Ready {
    round: u64,
    next: Next,
    tls: Option<tls::Client>,
}

impl<R: Rt> ShardCell<R> {
    pub(super) fn on_fleet(&self, Letter { round, step }: Letter) {
        let mut busy = Vec::new();
        match step {
            Step::Survey(engines) => {
                let mut engines = engines.to_vec();
                engines.retain(|engine| !self.held.is_done_with(*engine));
                busy = engines;
            }
            Step::Prepare(coming) => {
                let roots = coming.roots.as_ref();
                let ready = Ready {
                    round,
                    tls: roots.map(|roots| tls::Client::new(roots, &coming.snapshot)),
                    next: Next::new(&coming.snapshot),
                };
                *self.next.borrow_mut() = Some(ready);
            }
            Step::Commit => self.commit(round),
            Step::Drop => self.drop_ready(round),
        }
        self.control.told(super::Told {
            shard: self.own,
            round,
            busy,
        });
    }

    fn commit(&self, round: u64) {
        let Some(ready) = self.next.take().filter(|ready| ready.round == round) else {
            return;
        };
        let mut shard = self.shard.borrow_mut();
        shard.commit(ready.next);
        *self.tls.borrow_mut() = ready.tls;
        let snapshot = &shard.snapshot;
        let most = snapshot.fleet.engine.pool_max.unwrap_or(0);
        self.held.follow(snapshot.engines.len(), most);
        let mut pool = self.pool.borrow_mut();
        pool.set_per_engine_max(most);
        // Nobody will use the connections to those that left.
        pool.retain(|engine, _| snapshot.engine(engine).is_some_and(EngineView::is_here));
    }

    fn drop_ready(&self, round: u64) {
        let mut next = self.next.borrow_mut();
        if next.as_ref().is_some_and(|ready| ready.round == round) {
            *next = None;
        }
    }
}

impl std::fmt::Debug for Coming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "epoch {}", self.snapshot.epoch)
    }
}
