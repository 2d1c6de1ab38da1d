//! The state file (`recovery.state_path`): what a router that starts anew must not have to learn again. Written by the monitoring
//! pass when it has changed, as a whole; read at start with `recovery.resume`.
//!
//! ```json
//! {"schema": "narwhal.state_file", "schema_version": 1, "model": "m", "engines": [
//!   {"iid": "e0", "ejected": "stream", "correction": 1.25}]}
//! ```
//!
//! Engines are known by `iid`: those that the fleet no longer has are forgotten, new ones begin anew.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::disk;
use crate::base::units::EngineId;
use crate::fleet::breaker::FaultClass;

/// What is in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    schema: String,
    schema_version: u32,
    model: String,
    /// The whole fleet is withdrawn.
    #[serde(default)]
    pub wave: bool,
    engines: Vec<Engine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    iid: String,
    /// The class of failure that it is out for.
    #[serde(skip_serializing_if = "Option::is_none")]
    ejected: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correction: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
}

/// Operators held it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The process that must be gone before it comes back.
    pub process_start_s: Option<f64>,
}

impl Engine {
    pub fn ejected(&self) -> Option<FaultClass> {
        self.ejected.as_deref()?.parse().ok()
    }
}

const SCHEMA: &str = "narwhal.state_file";
const VERSION: u32 = 1;
const BYTES_MAX: u64 = 16 << 20;

/// Why a file is not used.
#[derive(Debug)]
pub enum Unusable {
    Io(io::Error),
    Garbled(String),
    Version(u32),
    Model(String),
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unusable::Io(error) => write!(f, "cannot be read: {error}"),
            Unusable::Garbled(why) => write!(f, "is no state file: {why}"),
            Unusable::Version(n) => {
                write!(f, "has schema_version {n}; this version writes {VERSION}")
            }
            Unusable::Model(model) => write!(f, "is of another fleet, with model {model:?}"),
        }
    }
}

impl Memory {
    /// What there is to remember now.
    pub fn of(shared: &Shared, ejected: impl Fn(EngineId) -> Option<FaultClass>) -> Memory {
        let engine = |e: &crate::config::EngineView| {
            let correction = shared.state.board.line(e.id).correction();
            Engine {
                iid: e.iid.clone(),
                ejected: ejected(e.id).map(|class| class.name().to_owned()),
                correction: (correction != 1.0).then_some(correction),
                held: shared
                    .lifecycle
                    .remembered(e.id)
                    .map(|process_start_s| Held { process_start_s }),
            }
        };
        Memory {
            schema: SCHEMA.to_owned(),
            schema_version: VERSION,
            model: shared.snapshot.fleet.model.clone(),
            wave: shared.lifecycle.is_wave(),
            engines: shared.snapshot.present().map(engine).collect(),
        }
    }

    /// Reads a file; `None` when there is none.
    pub fn load(path: &Path, model: &str) -> Result<Option<Memory>, Unusable> {
        use std::io::Read;
        let mut text = String::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        match read {
            Ok(_) => Memory::parse(&text, model).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Unusable::Io(error)),
        }
    }

    fn parse(text: &str, model: &str) -> Result<Memory, Unusable> {
        #[derive(Deserialize)]
        struct Head {
            schema: String,
            schema_version: u32,
        }
        let garbled = |why: serde_json::Error| Unusable::Garbled(why.to_string());
        let head: Head = serde_json::from_str(text).map_err(garbled)?;
        if head.schema != SCHEMA {
            return Err(Unusable::Garbled(format!("schema {:?}", head.schema)));
        }
        if head.schema_version != VERSION {
            return Err(Unusable::Version(head.schema_version));
        }
        let memory: Memory = serde_json::from_str(text).map_err(garbled)?;
        if memory.model != model {
            return Err(Unusable::Model(memory.model));
        }
        Ok(memory)
    }

    /// What it says of each engine of the fleet.
    pub fn recall<'a>(
        &'a self,
        shared: &'a Shared,
    ) -> impl Iterator<Item = (EngineId, &'a Engine)> + 'a {
        shared.snapshot.present().filter_map(|view| {
            let told = self.engines.iter().find(|e| e.iid == view.iid)?;
            Some((view.id, told))
        })
    }
}

/// Keeps the file up to date.
pub struct Keeper {
    path: PathBuf,
    written: Option<Memory>,
    writing: Option<(Memory, JoinHandle<io::Result<()>>)>,
}

/// A disk that takes longer is a failed stage; the write goes on, and the next one waits for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

impl Keeper {
    pub fn new(path: PathBuf) -> Keeper {
        Keeper {
            path,
            written: None,
            writing: None,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One pass; with `Ok`, this is what is in the file. The error is a class of failure, for `/ready`.
    pub async fn pass(&mut self, memory: Memory) -> Result<(), &'static str> {
        let by = Instant::now() + WRITE_TIMEOUT;
        // One that took too long comes first.
        self.finish(by).await?;
        if self.written.as_ref() == Some(&memory) {
            return Ok(());
        }
        let (path, now) = (self.path.clone(), memory.clone());
        let write = spawn_blocking(move || {
            let text = serde_json::to_string(&now).map_err(io::Error::other)?;
            disk::replace(&path, &text)
        });
        self.writing = Some((memory, write));
        self.finish(by).await
    }

    /// Waits for the write under way, if any.
    async fn finish(&mut self, by: Instant) -> Result<(), &'static str> {
        let Some((_, write)) = self.writing.as_mut() else {
            return Ok(());
        };
        let Ok(ended) = timeout_at(by, write).await else {
            return Err("timeout");
        };
        let memory = self.writing.take().map(|(memory, _)| memory);
        match ended.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(()) => {
                self.written = memory;
                Ok(())
            }
            Err(error) => {
                // Told each time it fails: the router is about to hold back for it.
                tracing::warn!("state file {}: {error}", self.path.display());
                Err(class(&error))
            }
        }
    }
}

fn class(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "full",
        io::ErrorKind::ReadOnlyFilesystem => "read_only",
        io::ErrorKind::PermissionDenied => "permission",
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "not_found",
        _ => "io",
    }
}
