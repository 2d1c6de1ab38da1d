//! `narwhal serve`: a fleet file and flags become a running router.
//!
//! Says what it will do before it does it: what of the file is not used, which driver runs, where shards are, where it listens, and the
//! most memory that clients and engines can make it hold. What this version does not do yet is refused here by name, never passed over.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use super::Failure;
use super::flags;
use super::router::{self, Plan};
use crate::config::checked::Fleet;
use crate::config::profiles;
use crate::config::topology::Snapshot;
use crate::config::{self, AdminKey, Admission, ApiKeys, CpuList, Numa, Profile};
use crate::control::journal::Rotation;
use crate::control::reload::Reading;
use crate::control::resolve;

/// Where clients connect unless told otherwise. Loopback: being seen from outside is a decision.
const LISTEN: &str = "127.0.0.1:8000";

pub fn run(args: flags::Serve) -> Result<(), Failure> {
    let args = Arc::new(args);
    let first = read(&args)?;
    for warning in &first.warnings {
        tracing::warn!("{warning}");
    }
    if !first.not_used.is_empty() {
        tracing::info!("not used: {}", first.not_used.join(", "));
    }
    let mut snapshot = Snapshot::new(1, first.fleet).with_profiles(first.profiles);
    for error in resolve::fill(&mut snapshot, &resolve::System) {
        tracing::warn!("{error}; legs and probes of its engines fail until it does");
    }
    let plan = Plan {
        router_id: args.router_id.clone(),
        listen: listen(&snapshot.fleet),
        signals: true,
        journal: journal(args.journal.clone()),
        again: Some(Arc::new(move || {
            reading(&args).map_err(|why| why.to_string())
        })),
    };
    router::start(snapshot, plan)?.join()
}

/// The fleet file and the profiles it names, as the command line has them.
struct Files {
    fleet: Fleet,
    profiles: Vec<Profile>,
    warnings: Vec<String>,
    not_used: Vec<String>,
}

fn read(args: &flags::Serve) -> Result<Files, Failure> {
    let env = |name: &str| std::env::var(name).ok();
    let loaded = config::load(&args.fleet, &env).map_err(Failure::config)?;
    let mut fleet = loaded.fleet;
    override_runtime(&mut fleet, args)?;
    fleet.recovery.resume |= args.resume;
    supported(&fleet)
        .map_err(|why| Failure::config(format!("{}: {}", args.fleet.display(), why)))?;
    Ok(Files {
        profiles: profiles(&fleet, &args.fleet)?,
        fleet,
        warnings: loaded.warnings,
        not_used: loaded.not_used,
    })
}

/// The same for a router that runs, with the keys that it lets clients and operators in by.
fn reading(args: &flags::Serve) -> Result<Reading, Failure> {
    let Files {
        fleet,
        profiles,
        warnings,
        ..
    } = read(args)?;
    let runtime = &fleet.runtime;
    let api_keys = runtime.api_keys_file.as_deref().map(ApiKeys::load);
    let admin_key = runtime.admin_key_file.as_deref().map(AdminKey::load);
    Ok(Reading {
        api_keys: api_keys.transpose().map_err(Failure::config)?,
        admin_key: admin_key.transpose().map_err(Failure::config)?,
        fleet,
        profiles,
        warnings,
    })
}

/// Reads the profiles that the fleet names. Predictive admission needs one for every engine.
fn profiles(fleet: &Fleet, file: &Path) -> Result<Vec<Profile>, Failure> {
    let path = fleet.profiles_path.as_deref();
    let profiles = path.map(profiles::load).transpose();
    let profiles = profiles.map_err(Failure::config)?.unwrap_or_default();
    let has_one = |iid: &str| profiles.iter().any(|profile| profile.iid == iid);
    let missing = fleet.engines.iter().filter(|e| !has_one(&e.iid));
    let missing: Vec<_> = missing.map(|e| e.iid.as_str()).collect();
    if fleet.serving.admission == Admission::Predictive && !missing.is_empty() {
        let file = file.display();
        let out = path.unwrap_or(Path::new("profiles.json")).display();
        return Err(Failure::config(format!(
            "{file}: serving.admission: `predictive` (the default) needs a profile for every engine, and profiles.path has none for {}: \
             measure them with `narwhal profile --fleet {file} --out {out}`{}, or write \"open\"",
            missing.join(", "),
            if path.is_none() {
                " and set profiles.path to that file"
            } else {
                ""
            },
        )));
    }
    Ok(profiles)
}

fn journal(args: flags::JournalFile) -> Option<router::Journal> {
    Some(router::Journal {
        rotation: Rotation {
            path: args.journal?,
            file_bytes_max: args.journal_max_bytes,
            files_kept: args.journal_files,
        },
        queue_rows: args.journal_queue as usize,
    })
}

fn listen(fleet: &Fleet) -> Vec<SocketAddr> {
    match fleet.runtime.listen.as_slice() {
        [] => LISTEN.parse().into_iter().collect(),
        given => given.to_vec(),
    }
}

fn override_runtime(fleet: &mut Fleet, args: &flags::Serve) -> Result<(), Failure> {
    let runtime = &mut fleet.runtime;
    if !args.listen.is_empty() {
        runtime.listen = args.listen.clone();
    }
    runtime.admin_listen = args.admin_listen.or(runtime.admin_listen);
    let place = args.place.parsed()?;
    runtime.shards = place.shards.or(runtime.shards);
    runtime.cpus = place.cpus.or(runtime.cpus.take());
    runtime.numa = place.numa.or(runtime.numa);
    if let Some(text) = &args.driver {
        runtime.driver = parsed("driver", text)?;
    }
    Ok(())
}

/// Where shards are to run, as the command line says it.
pub struct Asked {
    pub shards: Option<usize>,
    pub cpus: Option<CpuList>,
    pub numa: Option<Numa>,
}

impl flags::Place {
    pub fn parsed(&self) -> Result<Asked, Failure> {
        let (cpus, numa) = (self.cpus.as_deref(), self.numa.as_deref());
        Ok(Asked {
            shards: self.shards,
            cpus: cpus.map(|text| parsed("cpus", text)).transpose()?,
            numa: numa.map(|text| parsed("numa", text)).transpose()?,
        })
    }
}

fn parsed<T: FromStr<Err: Display>>(flag: &str, text: &str) -> Result<T, Failure> {
    let told = |why| Failure::config(format!("--{flag} {text}: {why}"));
    text.parse().map_err(told)
}

/// What a file may ask and this version cannot do. Serving as if it had not been asked would be worse than not serving.
pub fn supported(fleet: &Fleet) -> Result<(), String> {
    let runtime = &fleet.runtime;
    let asks = [
        (
            !runtime.cors_origins.is_empty(),
            "runtime.cors_origins: CORS is not available in this version; leave it empty",
        ),
        (
            runtime.tls.is_some(),
            "runtime.tls: HTTPS to clients is not available in this version",
        ),
        (
            runtime.lease.is_some(),
            "runtime.lease: leases are not available in this version",
        ),
    ];
    match asks.iter().find(|(asked, _)| *asked) {
        Some((_, why)) => Err((*why).to_owned()),
        None => Ok(()),
    }
}
