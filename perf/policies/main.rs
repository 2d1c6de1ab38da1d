//! Policies side by side at length: the runs of `tests/policies`, longer, over more loads and seeds, as a table and as plots.
//! `scripts/policies` builds and starts it.
//!
//! Everything is simulated and seeded: the same numbers come out on every machine.

#[path = "../../tests/policies/sim/mod.rs"]
mod sim;

mod plot;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use sim::drive::run;
use sim::fleet::{Fleet, MARGIN, Policy, Slow, seats};
use sim::measure::Summary;
use sim::shared::{self, CACHED_TOKENS, Common};
use sim::traffic::{self, Shape, Trace};

/// One row: a trace, a load, a policy.
#[derive(Clone, Debug)]
pub struct Row {
    pub trace: &'static str,
    pub load: f64,
    pub policy: &'static str,
    pub seats: usize,
    /// Over all seeds.
    pub offered: f64,
    pub capacity: f64,
    /// Part of the prompt tokens that an all-knowing placement finds in caches; 0 where prompts have nothing in common.
    pub all_knowing: f64,
    pub summary: Summary,
}

/// What is asked, and of what fleet.
#[derive(Clone, Copy, Debug)]
enum Scene {
    Apart(Shape, Slow),
    Shared(Common),
}

/// The traces and their loads.
const TRACES: [(&str, Scene, &[f64]); 8] = [
    ("steady", Scene::Apart(Shape::Steady, Slow::None), LOADS),
    ("bursty", Scene::Apart(Shape::Bursty, Slow::None), LOADS),
    ("storms", Scene::Apart(Shape::Storms, Slow::None), LOADS),
    ("slow", Scene::Apart(Shape::Steady, Slow::Known(2.5)), LOADS),
    (
        "sick",
        Scene::Apart(Shape::Steady, Slow::Unknown(1.8)),
        LOADS,
    ),
    ("prompts", Scene::Shared(Common::Prompts), SHARED_LOADS),
    (
        "conversations",
        Scene::Shared(Common::Sessions),
        SHARED_LOADS,
    ),
    ("crowd", Scene::Shared(Common::Crowd), &[0.8]),
];
const LOADS: &[f64] = &[0.5, 0.8, 1.0, 2.0];
/// Of what the fleet could do without caches.
const SHARED_LOADS: &[f64] = &[0.8, 2.0, 3.0];
const PAIRS: usize = 4;
const SHARDS: usize = 4;

#[derive(Clone, Debug)]
struct Args {
    out: Option<PathBuf>,
    seconds: f64,
    warm_s: f64,
    seeds: u64,
    trace: Option<String>,
    load: Option<f64>,
    policy: Option<String>,
    seats: Option<usize>,
    margin: f64,
}

const USAGE: &str = "policies [--out DIR] [--seconds N] [--seeds N] [--trace NAME] [--load X] [--policy NAME] [--seats N] [--margin X]";

fn args() -> Option<Args> {
    let mut args = Args {
        out: None,
        seconds: 80.0,
        warm_s: 20.0,
        seeds: 1,
        trace: None,
        load: None,
        policy: None,
        seats: None,
        margin: MARGIN,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--out" => args.out = Some(value.into()),
            "--seconds" => args.seconds = value.parse().ok().filter(|s| *s > args.warm_s)?,
            "--seeds" => args.seeds = value.parse().ok().filter(|n| *n > 0)?,
            "--trace" => args.trace = Some(value),
            "--load" => args.load = Some(value.parse().ok()?),
            "--policy" => args.policy = Some(value),
            "--seats" => args.seats = Some(value.parse().ok()?),
            "--margin" => args.margin = value.parse().ok()?,
            _ => return None,
        }
    }
    Some(args)
}

fn main() -> ExitCode {
    let Some(args) = args() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let rows = rows(&args);
    println!("{}", table::markdown(&rows));
    let Some(out) = &args.out else {
        return ExitCode::SUCCESS;
    };
    let files = [
        ("goodput.csv", table::csv(&rows)),
        (
            "goodput.md",
            format!("{}\n{}", table::side_by_side(&rows), table::markdown(&rows)),
        ),
        ("goodput.svg", plot::goodput(&rows)),
    ];
    let written = std::fs::create_dir_all(out).and_then(|()| {
        let mut files = files.iter();
        files.try_for_each(|(name, text)| std::fs::write(out.join(name), text))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("policies: {}: {why}", out.display());
            ExitCode::FAILURE
        }
    }
}

/// A case of the table: all seeds of it are one row.
struct Case {
    name: &'static str,
    scene: Scene,
    load: f64,
    policy: usize,
    /// With the seats that turn out to have been best for this very trace.
    hindsight: bool,
}

/// Seats that are tried for that, as parts of those that all others have.
const HINDSIGHT: [f64; 4] = [0.5, 0.57, 0.65, 0.75];
/// From this load on, it is: below, seats refuse nobody.
const HINDSIGHT_LOAD: f64 = 1.0;

fn rows(args: &Args) -> Vec<Row> {
    let mut cases = Vec::new();
    for (name, scene, loads) in TRACES {
        for load in args.load.map_or(loads.to_vec(), |load| vec![load]) {
            for (policy, named) in Policy::all(1, 0).iter().enumerate() {
                let traced = args.trace.as_deref().is_none_or(|t| t == name);
                let asked = args
                    .policy
                    .as_deref()
                    .is_none_or(|p| named.name.starts_with(p));
                let apart = matches!(scene, Scene::Apart(..));
                for hindsight in [false, true] {
                    let tunes = apart && load >= HINDSIGHT_LOAD && named.placement == "price";
                    let tunes = tunes && named.admission == "open";
                    if traced && asked && (tunes || !hindsight) {
                        cases.push(Case {
                            name,
                            scene,
                            load,
                            policy,
                            hindsight,
                        });
                    }
                }
            }
        }
    }
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut rows = Vec::new();
        while let Some((i, case)) =
            Some(next.fetch_add(1, Relaxed)).and_then(|i| Some((i, cases.get(i)?)))
        {
            let row = row(args, case);
            eprintln!("{} of {}", i + 1, cases.len());
            rows.push((i, row));
        }
        rows
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut rows: Vec<(usize, Row)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let rows = threads
            .into_iter()
            .map(|thread| thread.join().expect("no run panics"));
        rows.flatten().collect()
    });
    rows.sort_by_key(|(i, _)| *i);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn row(args: &Args, case: &Case) -> Row {
    let lengths = match case.scene {
        Scene::Apart(shape, _) => traffic::sample(shape),
        Scene::Shared(common) => shared::sample(common),
    };
    let (mut sums, mut capacity, mut known, mut seats_of) = (Vec::new(), 0.0, 0.0, 0);
    for seed in 1..=args.seeds {
        let (fleet, trace) = scene(args, case, seed);
        capacity = fleet.capacity(&lengths);
        seats_of = match case.scene {
            Scene::Apart(..) => seats(capacity, &lengths),
            // Caches take the load off the prefill engines.
            Scene::Shared(_) => seats(fleet.generates(&lengths), &lengths),
        };
        let policy = policy(args, case, seats_of);
        let records = run(&fleet, &policy, &trace, SHARDS, seed);
        let mut summary = Summary::of(&records, &trace);
        if case.hindsight {
            for part in HINDSIGHT {
                let seats = (seats_of as f64 * part) as usize;
                let policy = Policy {
                    seats,
                    ..policy.clone()
                };
                let records = run(&fleet, &policy, &trace, SHARDS, seed);
                let other = Summary::of(&records, &trace);
                if other.goodput > summary.goodput {
                    summary = other;
                }
            }
        }
        sums.push(summary);
        if let Scene::Shared(_) = case.scene {
            known += shared::all_knowing(&fleet, &trace) / args.seeds as f64;
        }
    }
    let summary = Summary::mean(&sums);
    Row {
        trace: case.name,
        load: case.load,
        policy: match case.hindsight {
            true => "open, price, best seats in hindsight",
            false => Policy::all(1, 0)[case.policy].name,
        },
        seats: policy(args, case, seats_of).seats,
        offered: summary.offered as f64 / (args.seconds - args.warm_s),
        capacity,
        all_knowing: known,
        summary,
    }
}

fn scene(args: &Args, case: &Case, seed: u64) -> (Fleet, Trace) {
    let (load, seconds, warm_s) = (case.load, args.seconds, args.warm_s);
    match case.scene {
        Scene::Apart(shape, slow) => {
            let fleet = Fleet::new(PAIRS, slow, seed);
            let trace = traffic::trace(shape, &fleet, load, seconds, warm_s, seed);
            (fleet, trace)
        }
        Scene::Shared(common) => {
            let mut fleet = Fleet::new(PAIRS, Slow::None, seed);
            fleet.cached_tokens = CACHED_TOKENS;
            let trace = shared::trace(common, &fleet, load, seconds, warm_s, seed);
            (fleet, trace)
        }
    }
}

fn policy(args: &Args, case: &Case, seats: usize) -> Policy {
    let mut policy = Policy::all(args.seats.unwrap_or(seats), 0)[case.policy].clone();
    policy.margin = args.margin;
    policy
}
