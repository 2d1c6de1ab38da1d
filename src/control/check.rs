//! Whether an engine that was held may come back: one verdict a check, all asked on fresh connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Shared;
use super::generation;
use super::inference;
use super::monitor;
use super::reach::{Miss, Question};
use crate::base::units::{Dialect, EngineId, Phase, Role};
use crate::config::topology::EngineView;
use crate::fleet::breaker::Answer;

/// How engines are asked.
#[derive(Clone)]
pub struct Asker {
    pub seed: u64,
}

/// What a check says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Well,
    /// It cannot be told, which keeps nobody out.
    Unknown(&'static str),
    Bad(String),
}

/// All of them, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checks(Vec<(&'static str, Verdict)>);

impl Checks {
    pub fn are_well(&self) -> bool {
        self.0
            .iter()
            .all(|(_, verdict)| !matches!(verdict, Verdict::Bad(_)))
    }

    /// As operators see them: `ok`, `unknown: …` or what is wrong.
    pub fn shown(&self) -> Value {
        let word = |verdict: &Verdict| match verdict {
            Verdict::Well => "ok".to_owned(),
            Verdict::Unknown(why) => format!("unknown: {why}"),
            Verdict::Bad(why) => why.clone(),
        };
        self.0
            .iter()
            .map(|(name, verdict)| (*name, word(verdict)))
            .collect()
    }
}

/// An engine, and how it is reached.
struct Engine<'a> {
    view: &'a EngineView,
    addresses: Arc<Vec<SocketAddr>>,
    tls: Option<TlsConnector>,
    key: Option<&'a crate::config::Secret>,
    bound: Duration,
}

impl Engine<'_> {
    async fn page(&self, path: &str, body_bytes_max: usize) -> Result<(u16, Vec<u8>), Miss> {
        let question = Question {
            engine: self.view,
            path,
            key: self.key,
            body_bytes_max,
        };
        let asked = timeout(self.bound, question.ask(&self.addresses, self.tls.as_ref())).await;
        let reply = asked.unwrap_or(Err(Miss::Late))?;
        Ok((reply.status, reply.body))
    }

    /// When its process began, in seconds since 1970 by its own clock (Prometheus client libraries tell it on `/metrics`). An engine
    /// that works may be late once: a page that does not come is asked for again.
    async fn process_start_s(&self) -> Option<f64> {
        for _ in 0..PAGE_TRIES {
            match self.page("/metrics", METRICS_BYTES_MAX).await {
                Ok((200, body)) => return process_start_s(&body),
                Ok((400..=499 | 501, _)) => return None,
                _ => {}
            }
        }
        None
    }
}

fn process_start_s(page: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(page).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("process_start_time_seconds "))?;
    line.trim().parse().ok().filter(|s: &f64| s.is_finite())
}

const PAGE_TRIES: u32 = 3;
/// vLLM's page is some 100 KB.
const METRICS_BYTES_MAX: usize = 8 << 20;

impl Asker {
    fn engine<'a>(&self, shared: &'a Shared, id: EngineId) -> Engine<'a> {
        let settings = &shared.snapshot.fleet.engine;
        Engine {
            view: &shared.snapshot.engines[id.index()],
            addresses: shared.state.addresses.of(id),
            tls: shared.tls.clone().map(TlsConnector::from),
            key: settings.api_key.as_ref(),
            bound: settings.health_timeout,
        }
    }

    /// Which processes these engines are.
    pub async fn process_starts(
        &self,
        shared: &Arc<Shared>,
        ids: &[EngineId],
    ) -> Vec<(EngineId, Option<f64>)> {
        let mut asking = JoinSet::new();
        for id in ids.iter().copied() {
            let (shared, asker) = (shared.clone(), self.clone());
            asking.spawn(async move { (id, asker.engine(&shared, id).process_start_s().await) });
        }
        asking.join_all().await
    }

    /// All checks of all these engines, side by side. With each the process that must be gone.
    pub async fn check(
        &self,
        shared: &Arc<Shared>,
        engines: &[(EngineId, Option<f64>)],
    ) -> Vec<(EngineId, Checks)> {
        let mut asking = JoinSet::new();
        // Those that come back together are each other's partners: nobody else may be there.
        let together: Vec<EngineId> = match engines.len() {
            1 => Vec::new(),
            _ => engines.iter().map(|(id, _)| *id).collect(),
        };
        for (id, before) in engines.iter().copied() {
            let (shared, asker) = (shared.clone(), self.clone());
            let also = together.clone();
            asking.spawn(async move { (id, asker.check_one(&shared, id, before, &also).await) });
        }
        let mut all = asking.join_all().await;
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    async fn check_one(
        &self,
        shared: &Arc<Shared>,
        id: EngineId,
        before: Option<f64>,
        also: &[EngineId],
    ) -> Checks {
        let engine = self.engine(shared, id);
        let (tls, bound) = (engine.tls.clone(), engine.bound);
        let health = monitor::probe(engine.view, &engine.addresses, tls.as_ref());
        let health = timeout(bound, health).await.unwrap_or(Err(Miss::Late));
        if let Err(miss) = health {
            return Checks(vec![("health", Verdict::Bad(miss.to_string()))]);
        }
        let process = match (before, engine.process_start_s().await) {
            (Some(before), Some(now)) if now <= before => {
                let why = "it is the process that was drained, not a newer one";
                Verdict::Bad(why.to_owned())
            }
            (Some(_), Some(_)) => Verdict::Well,
            (None, Some(_)) => Verdict::Unknown("when it was drained it did not tell its start"),
            (Some(_), None) => {
                Verdict::Bad("it does not tell its start, as it did when it was drained".into())
            }
            (None, None) => Verdict::Unknown("it does not tell its start"),
        };
        let (model, generation) = generation::check(shared, engine.view).await;
        let seed = self.seed ^ (id.index() as u64 + 1);
        let role = engine.view.role;
        let phase = if role == Role::Prefill {
            Phase::Prefill
        } else {
            Phase::Decode
        };
        let handoff = match inference::ask(shared, engine.view, phase, also, seed).await {
            Answer::Good => Verdict::Well,
            Answer::Unasked => Verdict::Unknown("no partner was there, or it failed"),
            Answer::Bad(_) => Verdict::Bad("it does not do its part of a request".into()),
            Answer::Unreachable => Verdict::Bad("it cannot be reached".into()),
        };
        let one_leg = shared.snapshot.fleet.engine.dialect == Dialect::Openai;
        let name = if one_leg { "inference" } else { "handoff" };
        let told = |told: Result<(), String>| told.map_or_else(Verdict::Bad, |()| Verdict::Well);
        Checks(vec![
            ("health", Verdict::Well),
            ("process", process),
            ("model", told(model)),
            (
                "generation",
                generation.map_or(Verdict::Unknown("no profile to compare with"), told),
            ),
            (name, handoff),
        ])
    }
}
