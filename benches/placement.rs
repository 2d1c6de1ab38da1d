//! What it costs to let a request in and place it: `cargo bench --bench placement`. 64 engines with profiles, predictive admission, while
//! another thread reserves and releases load on all of them. Nanoseconds per request, the best of several rounds.

#[path = "../tests/placement/fleet.rs"]
mod fleet;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time;

use fleet::{Asking, Router};
use narwhal::base::prng::Prng;
use narwhal::base::time::Instant;
use narwhal::base::units::EngineId;
use narwhal::shard::Shared;
use narwhal::shard::board::{Charge, Phase};

const CALLS: u32 = 100_000;
const ROUNDS: usize = 9;
const NOW: Instant = Instant::from_nanos(1_000_000_000);

fn main() {
    for writers in [0, 1] {
        let mut router = Router::new(32, 2, "price");
        let stop = Arc::new(AtomicBool::new(false));
        let write = |seed| {
            let (shared, stop) = (router.shards[0].shared.clone(), stop.clone());
            std::thread::spawn(move || write(&shared, &stop, seed))
        };
        let writing: Vec<_> = (0..writers).map(write).collect();
        let shard = &mut router.shards[0];
        let mut asking = Asking::new(NOW);
        report(
            &format!("admit + place + release, 64 engines, {writers} other writers"),
            || {
                asking.with(shard, NOW, |exchange, cx| {
                    assert!(exchange.is_promising(cx, false));
                    let (rank, plan) = exchange.plan(cx).expect("engines are there");
                    exchange.settle(cx, rank, plan);
                    exchange.release_attempt(cx);
                    exchange.reset_attempt();
                });
            },
        );
        stop.store(true, Ordering::Relaxed);
        let writes: Vec<_> = writing
            .into_iter()
            .map(|w| w.join().expect("it ends"))
            .collect();
        println!("{:>10} writes by others", writes.iter().sum::<u64>());
    }
}

/// Another shard: legs come and go on every engine.
fn write(shared: &Shared, stop: &AtomicBool, seed: u64) -> u64 {
    let mut chance = Prng::new(seed);
    let charge = Charge {
        tokens: 500,
        prefill_ns: 1_000,
        output_tokens: 10,
    };
    let mut writes = 0;
    while !stop.load(Ordering::Relaxed) {
        let engine = EngineId(chance.below(64) as u16);
        let phase = if engine.0 < 32 {
            Phase::Prefill
        } else {
            Phase::Decode
        };
        let load = shared.board.reserve(engine, phase, charge, NOW);
        shared.board.release(load);
        writes += 1;
    }
    writes
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn report(what: &str, mut call: impl FnMut()) {
    // `cargo test` runs benches too, without this flag: then once is enough.
    if !std::env::args().any(|arg| arg == "--bench") {
        return call();
    }
    let round = |call: &mut dyn FnMut()| {
        let begun = time::Instant::now();
        (0..CALLS).for_each(|_| call());
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let best = (0..ROUNDS)
        .map(|_| round(&mut call))
        .fold(f64::MAX, f64::min);
    println!("{best:7.1} ns  {what}");
}
