//! The deterministic simulator: whole routers, of one to four shards, against simulated engines and clients, over a network and a clock
//! that one seed drives. The code under test is the very code that runs on sockets; only the runtime is played (`conn.rs`).
//!
//! ```text
//! cargo test --no-default-features --test sim                       thousands of seeds
//! NARWHAL_SIM_SEED=7 cargo test --no-default-features --test sim replay -- --nocapture    one seed, step by step
//! scripts/sim --minutes 10                                          a wide sweep
//! scripts/sim --planted                                             are planted faults found?
//! ```
//!
//! A seed that fails prints the command that replays it. Same seed, same trace.

mod answers;
mod checks;
mod client;
mod conn;
mod control;
mod faults;
mod host;
mod net;
mod plan;
mod queue;
mod reload;
mod requests;
mod trace;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;

use narwhal::metrics::outcome::{End, FailReason, Stage};

use faults::Fault;
use plan::{Hook, Plan};
use world::{Cover, World};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 6_000;

/// Seeds within which a fault in the runtime's part is found.
const HOOKED_WITHIN: u64 = 300;

/// One whole run: its digest, and what it came by.
fn run(seed: u64, hook: Option<Hook>) -> (u64, Cover) {
    let mut plan = Plan::new(seed);
    plan.hook = hook;
    let mut world = World::new(plan, false);
    world.run();
    (world.trace.digest(), world.cover)
}

/// The last lines of the run, and why it failed.
fn replay_lines(seed: u64, hook: Option<Hook>) -> (Vec<String>, Option<String>) {
    let mut plan = Plan::new(seed);
    plan.hook = hook;
    let mut world = World::new(plan, true);
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let why = outcome.err().map(|why| {
        let text = why.downcast_ref::<String>().cloned();
        let text = text.or_else(|| why.downcast_ref::<&str>().map(|s| s.to_string()));
        text.unwrap_or_default()
    });
    (std::mem::take(&mut world.trace.lines), why)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = text.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Runs the seeds on as many threads as there are cores. Panics with the lowest one that was seen to fail.
fn sweep(from: u64, seeds: u64) -> Cover {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let failed = AtomicBool::new(false);
    let part = &|first: u64| {
        let mut cover = Cover::default();
        for seed in (first..from + seeds).step_by(threads as usize) {
            if failed.load(Relaxed) {
                break;
            }
            match catch_unwind(|| run(seed, None)) {
                Ok((_, more)) => cover.add(&more),
                Err(_) => {
                    failed.store(true, Relaxed);
                    return Err(seed);
                }
            }
        }
        Ok(cover)
    };
    let parts: Vec<Result<Cover, u64>> = std::thread::scope(|scope| {
        let parts = (0..threads).map(|n| scope.spawn(move || part(from + n)));
        let parts: Vec<_> = parts.collect();
        let join = |part: ScopedJoinHandle<_>| part.join().expect("a sweep catches its panics");
        parts.into_iter().map(join).collect()
    });
    if let Some(seed) = parts.iter().filter_map(|part| part.as_ref().err()).min() {
        fails(*seed);
    }
    let mut all = Cover::default();
    parts.iter().flatten().for_each(|cover| all.add(cover));
    all
}

fn fails(seed: u64) -> ! {
    let (lines, why) = replay_lines(seed, None);
    let tail = lines.len().saturating_sub(40);
    panic!(
        "seed {seed}: {}\n{}\nreplay it with: NARWHAL_SIM_SEED={seed} cargo test --no-default-features --test sim replay -- --nocapture",
        why.unwrap_or_default(),
        lines[tail..].join("\n"),
    );
}

// proves R-HTTP-5, R-HTTP-7, R-ADM-1, R-ADM-2, R-ADM-10, R-ADM-11, R-LEG-4, R-SSE-5, R-FLT-2, R-CTL-3, R-CTL-6, R-CFG-7
#[test]
fn seeds_hold() {
    if number("NARWHAL_SIM_SEED").is_some() {
        return;
    }
    let from = number("NARWHAL_SIM_FROM").unwrap_or(0);
    let seeds = number("NARWHAL_SIM_SEEDS").unwrap_or(SEEDS);
    let cover = sweep(from, seeds);
    println!("seeds {from}..{} hold, {} steps", from + seeds, cover.steps);
    if seeds >= SEEDS {
        reaches(&cover);
    }
}

/// The seeds come by what they are meant to come by: an end or a fault that no seed reaches is not tested by any.
fn reaches(cover: &Cover) {
    for end in End::ALL {
        let count = cover.ends[end.index()];
        assert_eq!(count > 0, !OUT_OF_REACH.contains(&end), "{end:?}: {count}");
    }
    for (fault, count) in Fault::ALL.iter().zip(cover.faults) {
        assert!(count > 0, "no seed has {fault:?}");
    }
    let Cover {
        served_whole,
        waits,
        queued,
        reused,
        stale,
        most_seats,
        ..
    } = *cover;
    println!(
        "{served_whole} answers whole, {queued} came in from a line, {waits} waits for a connection, {reused} pooled sockets, {stale} of them stale"
    );
    assert!(served_whole > 0 && queued > 0 && waits > 0 && stale > 0 && most_seats > 8);
    assert!(cover.freezes > 0 && cover.winds_down > 0 && cover.steps_of_date > 0);
    let (out, back, stops) = (cover.ejections, cover.readmissions, cover.stops);
    println!(
        "{out} ejections, {back} of them ended by a good answer, {stops} engines drained and stopped"
    );
    assert!(out > 100 && back > 100 && stops > 100);
    let (added, returned) = (cover.added, cover.returned);
    println!(
        "{added} engines came to the fleet file as new ones, {returned} to what they had left"
    );
    assert!(added > 100 && returned > 100);
}

/// Ends that no simulated world can come to, yet.
const OUT_OF_REACH: [End; 4] = [
    End::Failed(FailReason::Internal),
    End::Cancelled(Stage::Accept),
    End::Cancelled(Stage::Account),
    End::Cancelled(Stage::Close),
];

/// Prints one seed's run, when one is asked for.
#[test]
fn replay() {
    let Some(seed) = number("NARWHAL_SIM_SEED") else {
        return;
    };
    println!("{:#?}", Plan::new(seed));
    let (lines, why) = replay_lines(seed, None);
    for line in &lines {
        println!("{line}");
    }
    assert_eq!(why, None, "seed {seed}");
}

#[test]
fn same_seed_same_trace() {
    let digests: Vec<u64> = (0..20).map(|seed| run(seed, None).0).collect();
    for (seed, digest) in (0..).zip(&digests) {
        assert_eq!(run(seed, None).0, *digest, "seed {seed}");
    }
    let mut distinct = digests.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), digests.len());
}

/// The first seed that sees the fault.
fn found(hook: Hook) -> Option<u64> {
    (0..HOOKED_WITHIN).find(|seed| catch_unwind(|| run(*seed, Some(hook))).is_err())
}

#[test]
fn faults_in_the_runtimes_part_are_found() {
    for hook in Hook::ALL {
        let seed = found(hook);
        println!("{hook:?}: {seed:?}");
        assert!(seed.is_some(), "{hook:?} within {HOOKED_WITHIN} seeds");
    }
}

#[test]
fn a_failing_seed_tells_how_to_replay_it() {
    let seed = found(Hook::LeakSeat).expect("found, as the test above says");
    let (lines, why) = replay_lines(seed, Some(Hook::LeakSeat));
    assert!(why.is_some_and(|why| why.contains("Seat")));
    assert!(lines.iter().any(|line| line.contains("client end")));
}
