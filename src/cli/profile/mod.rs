//! `narwhal profile`: measures the engines of a fleet, one after the other, and writes their profiles.
//!
//! | file | holds |
//! |---|---|
//! | `facts` | what an engine says of itself |
//! | `sweep`, `together` | the points, one by one; streams that run together |
//! | `journal` | points on disk |
//! | `report` | what is printed of a fit |
//! | `file` | the profile file |
//!
//! How engines are asked is room `ask`. The plan, the window and the fit are pure, in `fleet::measure`. Invariant: a row is written only
//! when its fits are within the limits; rows of other engines stay.

mod facts;

mod file;

mod journal;

mod report;

mod sweep;

mod together;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use self::facts::Facts;
use self::file::{Measured, Profiles, Row};
use self::journal::{Journal, Owner};
use self::sweep::{Asked, Sweep};
use super::{Failure, flags, router};
use crate::ask::client::{Client, Trouble};
use crate::ask::legs::{Rig, Way};
use crate::ask::prompt::Prompts;
use crate::base::units::EngineId;
use crate::config::{self, Dialect, EngineView, Role, Snapshot};
use crate::control::resolve;
use crate::fleet::measure::fit::{self, DecodePoint, Fit};
use crate::fleet::measure::sweep::{Room, Wish};
use crate::runtime::clock::MonotonicClock;

/// One run of the command.
struct Task {
    snapshot: Arc<Snapshot>,
    tls: Option<Arc<ClientConfig>>,
    asked: Asked,
    args: flags::Profile,
}

pub fn run(args: flags::Profile) -> Result<(), Failure> {
    let env = |name: &str| std::env::var(name).ok();
    let loaded = config::load(&args.fleet, &env).map_err(Failure::config)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut snapshot = Snapshot::new(1, loaded.fleet);
    let chosen = choose(&snapshot, &args.engine)?;
    let mut profiles = Profiles::open(&args.out).map_err(Failure::config)?;
    for error in resolve::fill(&mut snapshot, &resolve::System) {
        tracing::warn!("{error}");
    }
    let roots = router::roots(&snapshot)?;
    let points = journal::beside(&args.out);
    let shown = points.display();
    let mut journal = Journal::open(&points, args.resume)
        .map_err(|why| Failure::failed(format!("{shown}: {why}")))?;
    let task = Task {
        snapshot: Arc::new(snapshot),
        tls: roots.map(|roots| roots.client_config()),
        asked: asked(&args),
        args,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let failures = runtime.block_on(task.all(&chosen, &mut profiles, &mut journal));
    if failures.is_empty() {
        println!("written to {}", task.args.out.display());
        return Ok(());
    }
    let again = format!("the points measured so far are in {shown}; --resume takes them up");
    Err(Failure::failed(format!("{}\n{again}", failures.join("\n"))))
}

/// The engines named, or all.
fn choose(snapshot: &Snapshot, named: &[String]) -> Result<Vec<EngineId>, Failure> {
    let all = || snapshot.engines.iter().map(|e| e.id).collect();
    if named.is_empty() {
        return Ok(all());
    }
    let find = |iid: &String| {
        let found = snapshot.by_iid(iid).map(|engine| engine.id);
        let known: Vec<&str> = snapshot.engines.iter().map(|e| e.iid.as_str()).collect();
        let known = known.join(", ");
        found.ok_or_else(|| Failure::config(format!("--engine {iid}: the fleet has {known}")))
    };
    named.iter().map(find).collect()
}

fn asked(args: &flags::Profile) -> Asked {
    Asked {
        wish: Wish {
            prompts: args.prompts.clone(),
            contexts: args.contexts.clone(),
            concurrency: args.concurrency.clone(),
            window_tokens: u64::from(args.window_tokens),
        },
        repeats: args.repeats.into(),
        decode_repeats: args.decode_repeats.into(),
        point_timeout: Duration::from_secs(args.point_timeout_s.into()),
        lease: LEASE,
    }
}

/// A vLLM producer gives up KV that nobody fetches after 30 s (0.32.0, measured); a little later it has room again.
const LEASE: Duration = Duration::from_secs(35);

impl Task {
    /// Every engine in turn. What went wrong, one line each; it does not hold up the others.
    async fn all(
        &self,
        chosen: &[EngineId],
        profiles: &mut Profiles,
        journal: &mut Journal,
    ) -> Vec<String> {
        let mut failures = Vec::new();
        for id in chosen {
            let engine = &self.snapshot.engines[id.index()];
            let written = match self.one(engine, journal).await {
                Ok(row) => profiles.put(&row),
                Err(why) => Err(why),
            };
            if let Err(why) = written {
                let why = format!("engine {}: {why}", engine.iid);
                eprintln!("profile {}: failed: {why}", engine.iid);
                failures.push(why);
            }
        }
        failures
    }

    async fn one(&self, engine: &EngineView, journal: &mut Journal) -> Result<Row, String> {
        let fleet = &self.snapshot.fleet;
        let facts = facts::of(&self.client(), engine, fleet).await;
        let facts = facts.map_err(|why| why.to_string())?;
        let room = self.room(&facts)?;
        self.say_facts(engine, &facts, &room);
        let way = self.way(engine)?;
        let mut sweep = self.sweep(engine, &facts, (room, way), journal);
        if let Err(why) = sweep.warm_up().await {
            let way = self.other_way(engine, way, &why).ok_or(why.to_string())?;
            eprintln!(
                "profile {}: it takes no plain requests ({why}): measured by {}",
                engine.iid,
                way.measures()
            );
            sweep = self.sweep(engine, &facts, (room, way), journal);
            sweep.warm_up().await.map_err(|why| why.to_string())?;
        }
        let outdated = sweep.journal.outdated(&sweep.owner);
        if outdated > 0 {
            let iid = &engine.iid;
            eprintln!(
                "profile {iid}: {outdated} points are of another generation or way, and not used"
            );
        }
        let plain = fleet.engine.dialect == Dialect::Openai;
        let mut ttft = None;
        if !engine.pin || engine.role != Role::Decode || plain {
            let points = sweep.prefill().await.map_err(|why| why.to_string())?;
            let fitted = fit::prefill(&points);
            let fitted =
                fitted.map_err(|why| format!("its prefill points make no curve: {why}"))?;
            report::prefill(&engine.iid, &points, &fitted);
            self.accept(&[
                ("prefill", "ttft_fit_mape", fitted.mape),
                ("prefill", "ttft_fit_mape", fitted.cv_mape),
            ])?;
            ttft = Some(fitted);
        }
        let mut tpot = None;
        if !engine.pin || engine.role != Role::Prefill {
            let points = sweep.decode().await.map_err(|why| why.to_string())?;
            let fitted = fit::decode(&points);
            let fitted = fitted.map_err(|why| format!("its decode points make no curve: {why}"))?;
            report::decode(&engine.iid, &points, &fitted);
            self.accept(&[
                ("decode", "decode_fit_mape", fitted.mape),
                ("decode", "decode_cv_mape", fitted.cv_mape),
            ])?;
            tpot = Some((fitted, measured(&points, &fitted)));
        }
        Ok(Row {
            iid: engine.iid.clone(),
            ttft: ttft.map_or([0.0; 3], |fit| fit.coefficients),
            tpot: tpot.map_or([0.0; 3], |(fit, _)| fit.coefficients),
            kv_capacity_tokens: room.kv_tokens,
            decode: tpot.map(|(_, measured)| measured),
            generation_digest: facts.digest,
        })
    }

    fn client(&self) -> Client {
        Client::new(&self.snapshot.fleet.engine, self.tls.clone())
    }

    fn sweep<'a>(
        &'a self,
        engine: &EngineView,
        facts: &Facts,
        (room, way): (Room, Way),
        journal: &'a mut Journal,
    ) -> Sweep<'a> {
        let fleet = &self.snapshot.fleet;
        let mut prng = router::seeds();
        let own = prng.clone();
        let _ = prng.u64();
        Sweep {
            rig: Arc::new(Rig {
                client: self.client(),
                snapshot: self.snapshot.clone(),
                engine: engine.id,
                way,
                clock: MonotonicClock::new(),
            }),
            owner: Owner {
                iid: engine.iid.clone(),
                way: way.name().to_owned(),
                generation_digest: facts.digest.clone(),
            },
            room,
            asked: &self.asked,
            prompts: Prompts::new(
                prng,
                &fleet.model,
                fleet.engine.dialect,
                facts.vocabulary.clone(),
            ),
            prng: own,
            journal,
            parked: VecDeque::new(),
        }
    }

    /// What the engine takes, as it says or as the flags say.
    fn room(&self, facts: &Facts) -> Result<Room, String> {
        let untold = |what: &str, flag: &str| format!("it does not tell {what}: give {flag}");
        let len_max = self.args.len_max.or(facts.len_max);
        let kv_tokens = self.args.kv_capacity_tokens.or(facts.kv_tokens);
        Ok(Room {
            len_max: len_max.ok_or_else(|| untold("its context length", "--len-max"))?,
            kv_tokens: kv_tokens
                .ok_or_else(|| untold("the size of its KV cache", "--kv-capacity-tokens"))?,
        })
    }

    fn way(&self, engine: &EngineView) -> Result<Way, String> {
        let first = |roles: &[Role]| {
            let mut others = self.snapshot.engines.iter().filter(|e| e.id != engine.id);
            others.find(|e| roles.contains(&e.role)).map(|e| e.id)
        };
        let needs = |role: &str| {
            format!("it is measured together with a {role} engine, and the fleet has none")
        };
        let partner = |role: Role, name: &str| first(&[role]).ok_or_else(|| needs(name));
        Ok(match (self.snapshot.fleet.engine.dialect, engine.role) {
            (Dialect::Vllm, Role::Prefill) => Way::Leg {
                fetched_by: first(&[Role::Decode]).or_else(|| first(&[Role::Both])),
            },
            (Dialect::Vllm, Role::Decode) if self.args.pairs => Way::Pair {
                producer: partner(Role::Prefill, "prefill")?,
            },
            (Dialect::Sglang, Role::Prefill) => Way::Room {
                partner: partner(Role::Decode, "decode")?,
            },
            (Dialect::Sglang, Role::Decode) => Way::Room {
                partner: partner(Role::Prefill, "prefill")?,
            },
            _ => Way::Alone,
        })
    }

    /// How else a decode engine can be asked that refuses plain requests.
    fn other_way(&self, engine: &EngineView, way: Way, why: &Trouble) -> Option<Way> {
        let refused = matches!(why, Trouble::Status { .. } | Trouble::Stream { .. });
        let strict = self.snapshot.fleet.engine.dialect == Dialect::Vllm
            && engine.role == Role::Decode
            && way == Way::Alone;
        let mut engines = self.snapshot.engines.iter();
        let producer = engines.find(|e| e.role == Role::Prefill)?.id;
        (refused && strict).then_some(Way::Pair { producer })
    }

    fn say_facts(&self, engine: &EngineView, facts: &Facts, room: &Room) {
        let iid = &engine.iid;
        eprintln!(
            "profile {iid}: {} {}, model {}, contexts to {} tokens, {} tokens of KV, generation {}",
            self.snapshot.fleet.engine.dialect,
            facts.version.as_deref().unwrap_or("of unknown version"),
            self.snapshot.fleet.model,
            room.len_max,
            room.kv_tokens,
            facts.digest,
        );
        if let Some(busy) = facts.busy.filter(|busy| *busy > 0) {
            eprintln!(
                "profile {iid}: warning: {busy} requests run or wait on it that are not ours; what is measured now is too slow"
            );
        }
    }

    /// Refuses what is off by more than its limit.
    fn accept(&self, errors: &[(&str, &str, f64)]) -> Result<(), String> {
        let limits = &self.snapshot.fleet.profile_limits;
        for (curve, name, error) in errors {
            let (limit, key) = match *name {
                "decode_fit_mape" => (limits.decode_fit_mape, "profiles.max_decode_fit_mape"),
                "decode_cv_mape" => (limits.decode_cv_mape, "profiles.max_decode_cv_mape"),
                _ => (self.args.max_ttft_fit_mape, "--max-ttft-fit-mape"),
            };
            if *error > limit {
                return Err(format!(
                    "its {curve} curve is off by {:.1} % ({name}), more than {:.1} % ({key}); no row is written. Measure while nothing \
                     else uses the engine, with more --repeats, --decode-repeats or --window-tokens, or only the range that you serve \
                     (--prompts, --contexts, --concurrency); or raise the limit",
                    error * 100.0,
                    limit * 100.0,
                ));
            }
        }
        Ok(())
    }
}

/// What the decode curve rests on.
fn measured(points: &[DecodePoint], fit: &Fit) -> Measured {
    let bounds = |of: fn(&DecodePoint) -> f64| {
        let values = || points.iter().map(of);
        let least = values().fold(f64::INFINITY, f64::min).floor();
        let most = values().fold(0.0, f64::max).ceil();
        // Both are at least 1: a stream holds a token.
        ((least as u64).max(1), (most as u64).max(1))
    };
    Measured {
        requests: bounds(|p| p.requests),
        kv_tokens: bounds(|p| p.kv_tokens),
        fit_mape: fit.mape,
        cv_mape: fit.cv_mape,
    }
}
