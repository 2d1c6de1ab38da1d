//! Policies side by side on simulated fleets, small: does prediction pay, and does placement by price? `scripts/policies` runs the same at
//! length, over more loads and seeds, and draws it.
//!
//! Goodput counts requests that met both targets. Every policy has the same seats and gets the same trace.

#[expect(dead_code, reason = "the long runs use the rest")]
mod sim;

use std::thread;

use sim::drive::run;
use sim::fleet::{Fleet, Policy, Slow, seats};
use sim::measure::{Record, Summary};
use sim::shared::{self, CACHED_TOKENS, Common};
use sim::traffic::{Shape, Trace, sample, trace};

const PAIRS: usize = 4;
const SHARDS: usize = 4;
const SEED: u64 = 1;

/// A fleet, a trace for it, and the seats that every policy gets.
fn scene(shape: Shape, slow: Slow, load: f64) -> (Fleet, Trace, usize) {
    let fleet = Fleet::new(PAIRS, slow, SEED);
    let lengths = sample(shape);
    let seats = seats(fleet.capacity(&lengths), &lengths);
    // Two storms, some bursts.
    let trace = trace(shape, &fleet, load, 22.0, 6.0, SEED);
    (fleet, trace, seats)
}

/// What each of the four makes of it, predictive admission first.
fn compare(shape: Shape, slow: Slow, load: f64) -> Vec<Summary> {
    let (fleet, trace, seats) = scene(shape, slow, load);
    let policies = Policy::all(seats, 0);
    let one = |policy: &Policy| {
        let records = run(&fleet, policy, &trace, SHARDS, SEED);
        let summary = Summary::of(&records, &trace);
        println!("{shape:?} {slow:?} {load} {}: {summary:?}", policy.name);
        summary
    };
    thread::scope(|scope| {
        let runs = policies.iter().map(|policy| scope.spawn(|| one(policy)));
        let runs: Vec<_> = runs.collect();
        let join = |run: thread::ScopedJoinHandle<_>| run.join().expect("a run ends");
        runs.into_iter().map(join).collect()
    })
}

/// Of the fleet's capacity: predictive admission is as good as the best of the others, and `clearly` better by so many times.
fn pays(shape: Shape, slow: Slow, load: f64, clearly: f64) {
    let all = compare(shape, slow, load);
    let (predictive, others) = all.split_first().expect("four policies");
    let best = others.iter().map(|s| s.goodput).fold(0.0, f64::max);
    let name = format!("{shape:?} {slow:?} {load}");
    assert!(best > 0.0 || load > 1.0, "{name}: nothing to compare with");
    assert!(
        predictive.goodput >= clearly * best,
        "{name}: {} beside {best}",
        predictive.goodput
    );
    assert!(predictive.in_ttft >= 0.95, "{name}: {}", predictive.in_ttft);
    assert!(
        predictive.projection_error < 0.1,
        "{name}: {}",
        predictive.projection_error
    );
}

// proves R-ADM-4, R-ADM-5, R-SCH-2
#[test]
fn prediction_pays_on_steady_traffic() {
    pays(Shape::Steady, Slow::None, 0.8, 0.98);
    pays(Shape::Steady, Slow::None, 2.0, 1.2);
}

// proves R-ADM-4, R-ADM-5, R-SCH-2
#[test]
fn prediction_pays_in_bursts() {
    pays(Shape::Bursty, Slow::None, 0.5, 0.98);
    pays(Shape::Bursty, Slow::None, 2.0, 1.2);
}

// proves R-ADM-4, R-ADM-5, R-SCH-2
#[test]
fn prediction_pays_in_storms_of_long_prompts() {
    pays(Shape::Storms, Slow::None, 0.8, 0.98);
    pays(Shape::Storms, Slow::None, 2.0, 1.2);
}

// proves R-ADM-4, R-ADM-5, R-SCH-2
#[test]
fn prediction_pays_beside_a_slow_engine() {
    pays(Shape::Steady, Slow::Known(2.5), 0.8, 0.98);
    pays(Shape::Steady, Slow::Known(2.5), 2.0, 1.2);
}

/// Placement alone, in a fleet that is not full: by price no worse than by tokens, and both better than by turns.
// proves R-SCH-2
#[test]
fn placement_by_price_pays() {
    for slow in [Slow::None, Slow::Known(2.5)] {
        let [_, price, least, by_turns] = &compare(Shape::Steady, slow, 0.8)[..] else {
            panic!("four policies");
        };
        assert!(price.goodput >= 0.98 * least.goodput.max(by_turns.goodput));
        assert!(price.ttft_p50_s <= 1.02 * least.ttft_p50_s);
        assert!(price.ttft_p50_s < 0.8 * by_turns.ttft_p50_s);
        if slow != Slow::None {
            assert!(
                price.goodput > 1.05 * least.goodput,
                "it knows the slow one"
            );
        }
    }
}

/// Whether prices count what engines hold of a prompt.
const AFFINITY: bool = false;

/// Prompts with much in common: what placement by price and by tokens make of them, and what an all-knowing one finds in caches.
fn compare_shared(common: Common, load: f64) -> (Vec<Record>, [Summary; 2], f64) {
    let mut fleet = Fleet::new(PAIRS, Slow::None, SEED);
    fleet.cached_tokens = CACHED_TOKENS;
    let trace = shared::trace(common, &fleet, load, 30.0, 10.0, SEED);
    let lengths = shared::sample(common);
    let seats = seats(fleet.generates(&lengths), &lengths);
    let policies = Policy::all(seats, 0);
    let of = |policy: &Policy| run(&fleet, policy, &trace, SHARDS, SEED);
    let (price, least) = thread::scope(|scope| {
        let least = scope.spawn(|| of(&policies[2]));
        (of(&policies[0]), least.join().expect("a run ends"))
    });
    let all_knowing = shared::all_knowing(&fleet, &trace);
    let summaries = [Summary::of(&price, &trace), Summary::of(&least, &trace)];
    println!("{common:?} {load}: {all_knowing} {summaries:?}");
    (price, summaries, all_knowing)
}

// proves R-SCH-6
#[test]
fn prompts_go_where_they_are_known() {
    for (common, load) in [(Common::Prompts, 2.0), (Common::Sessions, 2.0)] {
        let (_, [price, least], all_knowing) = compare_shared(common, load);
        assert!(all_knowing > 0.5, "{common:?}: prompts have much in common");
        if AFFINITY {
            let part = price.cached / all_knowing;
            assert!(part >= 0.9, "{common:?}: {part} of what is to be had");
            assert!(price.cached > 1.1 * least.cached, "{common:?}");
            assert!(price.ttft_p50_s < 0.95 * least.ttft_p50_s, "{common:?}");
            assert!(price.goodput >= 0.98 * least.goodput, "{common:?}");
        }
    }
}

// proves R-SCH-6
#[test]
fn a_crowd_on_one_prompt_overloads_nobody() {
    let (records, [price, _], _) = compare_shared(Common::Crowd, 0.6);
    let crowd: Vec<&Record> = records.iter().filter(|r| r.crowd).collect();
    assert!(crowd.len() > 50, "a crowd: {}", crowd.len());
    let late = records.iter().filter(|r| r.is_admitted() && !r.in_ttft());
    assert_eq!(late.count(), 0, "nobody waits for one engine: {price:?}");
    for engine in (0..2 * PAIRS).step_by(2) {
        let there = crowd.iter().filter(|r| r.engine == engine).count();
        assert!(
            there * 2 <= crowd.len(),
            "{engine}: {there} of {}",
            crowd.len()
        );
    }
}

// proves R-SCH-3
#[test]
fn a_burst_on_eight_shards_spreads() {
    let fleet = Fleet::new(8, Slow::None, SEED);
    let mut crowd = trace(Shape::Steady, &fleet, 0.5, 20.0, 1.0, SEED);
    // All at once, all alike.
    crowd.requests.truncate(64);
    for request in &mut crowd.requests {
        (request.at, request.prompt, request.output) = (crowd.warm, vec![(1, 1_000)], 100);
    }
    let policy = &Policy::all(1_000, 0)[0];
    let records = run(&fleet, policy, &crowd, 8, SEED);
    let on = |engine: usize| records.iter().filter(|r| r.engine == engine).count();
    for engine in (0..16).step_by(2) {
        assert!((7..=9).contains(&on(engine)), "{engine}: {}", on(engine));
    }
}

#[test]
fn same_seed_same_records() {
    let (fleet, mut trace, seats) = scene(Shape::Bursty, Slow::None, 1.5);
    trace.requests.truncate(600);
    let policy = &Policy::all(seats, 0)[0];
    let one = run(&fleet, policy, &trace, SHARDS, SEED);
    let two = run(&fleet, policy, &trace, SHARDS, SEED);
    assert!(one == two, "the same trace gives other records");
    trace.requests.remove(0);
    let other = run(&fleet, policy, &trace, SHARDS, SEED);
    assert!(one != other);
}
