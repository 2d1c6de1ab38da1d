//! What a seat costs: `cargo bench --bench gate`. Nanoseconds per call, the best of several rounds; a plain atomic counter beside it.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use narwhal::shard::gate::Gate;

const CALLS: u32 = 2_000_000;
const ROUNDS: usize = 7;
const SHARDS: usize = 8;

fn main() {
    let gate = Gate::new(1_000, SHARDS, 0);
    let mut wakes = Vec::new();
    report("acquire + release, own cell", || {
        if let Some(permit) = black_box(&gate).acquire(3) {
            gate.release(3, permit, &mut wakes);
        }
    });
    let lone = Gate::new(1, SHARDS, 0);
    report("acquire + release, borrowed from another cell", || {
        if let Some(permit) = black_box(&lone).acquire(3) {
            lone.release(0, permit, &mut wakes);
        }
    });
    let full = Gate::new(0, SHARDS, 0);
    report("refusal, 8 cells", || {
        assert!(black_box(&full).acquire(3).is_none())
    });
    let count = AtomicU64::new(0);
    report("one shared counter, up and down", || {
        black_box(&count).fetch_add(1, Ordering::AcqRel);
        black_box(&count).fetch_sub(1, Ordering::AcqRel);
    });
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn report(what: &str, mut call: impl FnMut()) {
    // `cargo test` runs benches too, without this flag: then once is enough.
    if !std::env::args().any(|arg| arg == "--bench") {
        return call();
    }
    let round = |call: &mut dyn FnMut()| {
        let begun = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let best = (0..ROUNDS)
        .map(|_| round(&mut call))
        .fold(f64::MAX, f64::min);
    println!("{best:7.1} ns  {what}");
}
