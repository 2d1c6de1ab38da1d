//! Whether an engine still is what its profile was measured on: its `generation_digest` against the model, version and context
//! length that the engine tells. Asked at start and whenever it answers its probes again, with questions of its own, so that neither
//! a probe nor a request waits. What it told is a word in the state and the metrics; that it differs, a line in the log.
//!
//! `generation_digest`: `sha256:` and the SHA-256, in hexadecimal, of the JSON text `[MODEL,VERSION,MAX_MODEL_LEN]` without spaces, where
//! MODEL is the id in `/v1/models`, VERSION what `/version` (vLLM) or `/server_info` (SGLang) says or null, and MAX_MODEL_LEN the
//! number in `/v1/models` or null. An engine that comes back with the same three is taken for the same.
//!
//! Invariant: at most [`ASKED_MAX`] engines are asked at once, and of each answer at most [`PAGE_BYTES_MAX`] is held.

mod pulses;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use self::pulses::Pulse;
pub use self::pulses::Pulses;
use super::port::shown;
use super::reach::{Miss, Question};
use super::{Now, Shared};
use crate::base::units::{Dialect, EngineId};
use crate::config::topology::EngineView;
use crate::metrics::picture::DigestMatch;
use crate::shard::slots::Slots;

// ── what a digest is made of ──

pub fn digest(model: &str, version: Option<&str>, len_max: Option<u64>) -> String {
    let text = json!([model, version, len_max]).to_string();
    let hash: [u8; 32] = Sha256::digest(text).into();
    format!("sha256:{}", hash.map(|b| format!("{b:02x}")).concat())
}

pub const MODELS: &str = "/v1/models";

/// Where a version is told; the first page that is there counts.
pub const fn version_pages(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Vllm => &["/version"],
        // The second one is the first's older name.
        Dialect::Sglang => &["/server_info", "/get_server_info"],
        Dialect::Openai => &[],
    }
}

/// Of what `/v1/models` lists, the model of that name; `None` also where it is no such list.
pub fn find_model<'v>(models: &'v Value, name: &str) -> Option<&'v Value> {
    let list = models["data"].as_array()?;
    list.iter().find(|model| model["id"] == name)
}

pub fn len_max(model: &Value) -> Option<u64> {
    model["max_model_len"].as_u64()
}

pub fn version(page: &Value) -> Option<String> {
    page["version"].as_str().map(str::to_owned)
}

/// Whether a status says that there is no such page for us. All but this and 200 is trouble, which passes.
pub const fn is_not_told(status: u16) -> bool {
    matches!(status, 400..=407 | 409..=428 | 430..=499 | 501)
}

// ── what is known ──

/// How each engine compares, in the order of their ids. The control thread writes, the control thread reads.
pub struct Matches(Slots<AtomicU8>);

impl Matches {
    pub fn new(engines: usize) -> Matches {
        let matches = Matches(Slots::new(0, |_| AtomicU8::default()));
        matches.grow(engines);
        matches
    }

    /// Room for so many engines.
    pub fn grow(&self, engines: usize) {
        let unknown = |_| AtomicU8::new(DigestMatch::Unknown.index() as u8);
        self.0.grow(engines, unknown);
    }

    /// Nothing is known of it, which is another one from now on.
    pub fn forget(&self, engine: EngineId) {
        self.set(engine, DigestMatch::Unknown);
    }

    pub fn of(&self, engine: EngineId) -> DigestMatch {
        let code = usize::from(self.0[engine].load(Relaxed));
        let word = DigestMatch::ALL.get(code);
        word.copied().unwrap_or(DigestMatch::Unknown)
    }

    fn set(&self, engine: EngineId, to: DigestMatch) {
        self.0[engine].store(to.index() as u8, Relaxed);
    }
}

/// What an engine was found to be.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    Generation {
        digest: String,
        version: Option<String>,
        len_max: Option<u64>,
    },
    /// It serves other models than the fleet's.
    OtherModel,
}

impl Found {
    fn is(&self, profiled: &str) -> bool {
        matches!(self, Found::Generation { digest, .. } if digest == profiled)
    }
}

/// What the log was told of an engine: each thing once.
#[derive(Default)]
struct Told {
    warned_of: Option<Found>,
}

#[derive(Debug, PartialEq)]
enum Line {
    Differs,
    MatchesAgain,
}

impl Told {
    /// What is worth a line. Nothing is where nothing was found out.
    fn learn(&mut self, found: &Found, profiled: &str) -> Option<Line> {
        if found.is(profiled) {
            return self.warned_of.take().map(|_| Line::MatchesAgain);
        }
        if self.warned_of.as_ref() == Some(found) {
            return None;
        }
        self.warned_of = Some(found.clone());
        Some(Line::Differs)
    }
}

// ── the watch ──

/// Watches every engine whose profile has a digest, for the life of the thread. One that stays in the fleet, with the same digest, is
/// watched on.
pub async fn run(mut now: Now) {
    let permits = Arc::new(Semaphore::new(ASKED_MAX));
    let mut tasks = JoinSet::new();
    let mut watched: BTreeMap<(EngineId, u64, String), AbortHandle> = BTreeMap::new();
    loop {
        let shared = now.borrow_and_update().clone();
        let mut before = std::mem::take(&mut watched);
        for engine in shared.snapshot.present() {
            let profile = engine.profile.as_ref();
            let Some(profiled) = profile.and_then(|p| p.generation_digest.clone()) else {
                continue;
            };
            let key = (engine.id, engine.since, profiled.clone());
            let task = before.remove(&key).unwrap_or_else(|| {
                let watch = Watch {
                    now: now.clone(),
                    engine: engine.clone(),
                    profiled,
                    permits: permits.clone(),
                };
                tasks.spawn(watch.run(shared.pulses.hear(engine.id)))
            });
            watched.insert(key, task);
        }
        for ((engine, ..), task) in before {
            task.abort();
            shared.digests.forget(engine);
        }
        // When this is dropped, they end.
        while tasks.try_join_next().is_some() {}
        if now.changed().await.is_err() {
            return;
        }
    }
}

/// One engine's.
struct Watch {
    now: Now,
    engine: EngineView,
    profiled: String,
    permits: Arc<Semaphore>,
}

impl Watch {
    fn shared(&self) -> Arc<Shared> {
        self.now.borrow().clone()
    }

    async fn run(self, mut pulse: watch::Receiver<Pulse>) {
        let soon = self.shared().snapshot.fleet.controller.monitor_interval;
        let soon = soon.clamp(PAUSE_MIN, PAUSE_MAX);
        let (mut told, mut pause) = (Told::default(), soon);
        loop {
            let live = pulse.borrow_and_update().live;
            let found = if live { self.look().await } else { None };
            self.show(found.as_ref(), &mut told);
            // Nobody says when an engine that lives finds its voice.
            let changed = if live && found.is_none() {
                let changed = timeout(pause, pulse.changed()).await;
                changed.map_err(|_| pause = (pause * 2).min(PAUSE_MAX))
            } else {
                Ok(pulse.changed().await)
            };
            match changed {
                Ok(Ok(())) => pause = soon,
                Ok(Err(_)) => return,
                Err(()) => {}
            }
        }
    }

    /// What the engine is now; `None` where that cannot be said.
    async fn look(&self) -> Option<Found> {
        let _permit = self.permits.acquire().await.ok()?;
        match self.ask().await {
            Ok(found) => found,
            Err(miss) => {
                tracing::debug!(iid = self.engine.iid, %miss, "engine does not tell what it is");
                None
            }
        }
    }

    async fn ask(&self) -> Result<Option<Found>, Miss> {
        let shared = self.shared();
        let fleet = &shared.snapshot.fleet;
        let models = self.page(MODELS).await?;
        let Some(models) = models.filter(|models| models["data"].is_array()) else {
            return Ok(None);
        };
        let Some(model) = find_model(&models, &fleet.model) else {
            return Ok(Some(Found::OtherModel));
        };
        let len_max = len_max(model);
        let mut told = None;
        for path in version_pages(fleet.engine.dialect) {
            told = self.page(path).await?;
            if told.is_some() {
                break;
            }
        }
        let version = told.as_ref().and_then(version);
        Ok(Some(Found::Generation {
            digest: digest(&fleet.model, version.as_deref(), len_max),
            version,
            len_max,
        }))
    }

    /// JSON of a page; `None` where there is no such page.
    async fn page(&self, path: &str) -> Result<Option<Value>, Miss> {
        let shared = self.shared();
        let engine = &shared.snapshot.fleet.engine;
        let tls = shared.tls.clone().map(TlsConnector::from);
        let question = Question {
            engine: &self.engine,
            path,
            key: engine.api_key.as_ref(),
            body_bytes_max: PAGE_BYTES_MAX,
        };
        let addresses = shared.state.addresses.of(self.engine.id);
        let reply = timeout(
            engine.health_timeout,
            question.ask(&addresses, tls.as_ref()),
        );
        let reply = reply.await.unwrap_or(Err(Miss::Late))?;
        match reply.status {
            200 => serde_json::from_slice(&reply.body)
                .map(Some)
                .map_err(|_| Miss::Garbled),
            status if is_not_told(status) => Ok(None),
            status => Err(Miss::Status(status)),
        }
    }

    /// To the state, and what is worth a line to the log.
    fn show(&self, found: Option<&Found>, told: &mut Told) {
        let to = match found {
            Some(found) if found.is(&self.profiled) => DigestMatch::Match,
            Some(_) => DigestMatch::Mismatch,
            None => DigestMatch::Unknown,
        };
        let shared = self.shared();
        shared.digests.set(self.engine.id, to);
        let Some(found) = found else { return };
        let iid = self.engine.iid.as_str();
        match (told.learn(found, &self.profiled), found) {
            (None, _) => {}
            (Some(Line::MatchesAgain), _) => {
                tracing::info!(iid, "engine is the one that was profiled again");
            }
            (Some(Line::Differs), Found::OtherModel) => {
                let model = shared.snapshot.fleet.model.as_str();
                tracing::warn!(
                    iid,
                    model,
                    "engine is not the one that was profiled: it does not serve the model"
                );
            }
            (
                Some(Line::Differs),
                Found::Generation {
                    digest,
                    version,
                    len_max,
                },
            ) => {
                let profiled = shown(&self.profiled);
                let version = shown(version.as_deref().unwrap_or("not told"));
                tracing::warn!(
                    iid,
                    profiled,
                    digest,
                    version,
                    len_max,
                    "engine is not the one that was profiled: measure it again"
                );
            }
        }
    }
}

/// What an engine that wants to come back is: whether it serves the model, and whether it is what was profiled; `None` where no
/// profile says what that was.
pub async fn check(
    shared: &Arc<Shared>,
    engine: &EngineView,
) -> (Result<(), String>, Option<Result<(), String>>) {
    let profile = engine.profile.as_ref();
    let profiled = profile.and_then(|p| p.generation_digest.clone());
    let watch = Watch {
        now: watch::channel(shared.clone()).1,
        engine: engine.clone(),
        profiled: profiled.clone().unwrap_or_default(),
        permits: Arc::new(Semaphore::new(1)),
    };
    match watch.ask().await {
        Err(miss) => (Err(miss.to_string()), None),
        // It lists no models: a token will tell.
        Ok(None) => (Ok(()), None),
        Ok(Some(Found::OtherModel)) => (Err("it does not serve the model".to_owned()), None),
        Ok(Some(found)) => {
            let compared = profiled.map(|profiled| match found.is(&profiled) {
                true => Ok(()),
                false => Err("it is not what was profiled: measure it again".to_owned()),
            });
            (Ok(()), compared)
        }
    }
}

/// Engines asked at once, which bounds what their answers take: 16 MiB.
const ASKED_MAX: usize = 32;
/// A list of some hundred adapters beside the model.
const PAGE_BYTES_MAX: usize = 512 << 10;
/// Between two questions to an engine that lives and does not tell.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
