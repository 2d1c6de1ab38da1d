//! What prefix affinity costs: `cargo bench --bench prefix`. Hashing a body's prompt, looking its blocks up and writing them, in a small
//! table and in the largest, alone and while others write; the best of several rounds.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time;

use narwhal::base::prng::Prng;
use narwhal::base::time::Instant;
use narwhal::base::units::EngineId;
use narwhal::config::Dialect;
use narwhal::shard::prefix::Prefixes;
use narwhal::wire::openai::{self, Route, Rules};
use narwhal::wire::prefix::{BLOCK_BYTES, From, Prefix, Salt};

/// Many short ones, so that some are undisturbed.
const ROUNDS: u32 = 60;
const ENGINES: usize = 64;
const NOW: Instant = Instant::from_nanos(1_000_000_000);
/// Blocks of a prompt of 100 KB.
const BLOCKS: usize = 200;
const THREADS: usize = 4;

fn main() {
    hashing();
    for (name, capacity) in sizes() {
        table(name, *capacity);
    }
    contention();
}

/// `cargo test` runs benches too, without this flag: then one small round each is enough.
fn is_measured() -> bool {
    std::env::args().any(|arg| arg == "--bench")
}

fn say(what: std::fmt::Arguments<'_>) {
    if is_measured() {
        println!("{what}");
    }
}

/// Tables, and the tokens of each engine's cache.
fn sizes() -> &'static [(&'static str, u64)] {
    if is_measured() {
        &[("8 MiB", 1_000_000), ("32 MiB", 8_000_000)]
    } else {
        &[("small", 1_000)]
    }
}

fn hashing() {
    let line = "The quick brown fox jumps over the lazy dog, and is late for supper again.";
    let texts = [
        ("plain text", line.repeat(1_400)),
        (
            "a line feed every 76 bytes",
            format!("{line}\\n").repeat(1_400),
        ),
    ];
    let salt = Salt::new(&mut Prng::new(1));
    for (name, text) in texts {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
        let rules = Rules {
            dialect: Dialect::Vllm,
            model: "m",
            aliases: &[],
        };
        let request = openai::check(Route::Chat, body.as_bytes(), &rules).expect("a request");
        let mut prefix = Prefix::default();
        let from = From {
            salt: &salt,
            model: "m",
        };
        let ns = best(100, |_| {
            prefix.read(black_box(body.as_bytes()), &request, Route::Chat, &from);
        });
        let blocks = prefix.blocks().len();
        let rate = (blocks * BLOCK_BYTES) as f64 / ns;
        say(format_args!(
            "{ns:9.0} ns  {rate:5.1} GB/s  hashing {blocks} blocks, {name}"
        ));
        let ns = best(100, |_| {
            black_box(openai::check(
                Route::Chat,
                black_box(body.as_bytes()),
                &rules,
            ))
            .ok();
        });
        say(format_args!(
            "{ns:9.0} ns               checking the same body, for comparison"
        ));
    }
}

/// Prompts that fill the table, so that each block is a cache line of its own somewhere in it.
fn table(name: &str, capacity: u64) {
    let table = Prefixes::of(&[capacity; ENGINES], 135.0, Salt::new(&mut Prng::new(1)));
    let mut prng = Prng::new(2);
    let prompts: Vec<Vec<u64>> = (0..(table.bytes() / 16 / BLOCKS).max(1))
        .map(|_| (0..BLOCKS).map(|_| prng.u64()).collect())
        .collect();
    for (i, prompt) in prompts.iter().enumerate() {
        table.record(EngineId((i % ENGINES) as u16), prompt, 0, NOW);
    }
    let mut held = vec![0; ENGINES];
    let prompt = |i: u32| &prompts[i as usize * 7_919 % prompts.len()];
    let per_block = |ns: f64| ns / BLOCKS as f64;
    let ns = best(300, |i| table.recall(prompt(i), NOW, &mut held));
    say(format_args!(
        "{:9.1} ns  a block, recalled, {name}",
        per_block(ns)
    ));
    let ns = best(300, |_| table.recall(&prompts[0], NOW, &mut held));
    say(format_args!(
        "{:9.1} ns  a block, recalled, the same prompt again",
        per_block(ns)
    ));
    let unknown: Vec<u64> = (0..BLOCKS).map(|_| prng.u64()).collect();
    let ns = best(300, |i| {
        table.recall(&unknown[i as usize % (BLOCKS - 8)..], NOW, &mut held);
    });
    say(format_args!(
        "{ns:9.1} ns  a prompt that nobody holds, {name}"
    ));
    let ns = best(300, |i| {
        let fresh = prompt(i);
        table.record(EngineId((i % 64) as u16), fresh, 0, NOW);
    });
    say(format_args!(
        "{:9.1} ns  a block, recorded, {name}",
        per_block(ns)
    ));
}

/// One prompt that everybody reads and records, and prompts of each thread's own.
fn contention() {
    let salt = Salt::new(&mut Prng::new(1));
    let table = Prefixes::of(&[1_000_000; ENGINES], 135.0, salt);
    let mut prng = Prng::new(3);
    let shared: Vec<u64> = (0..BLOCKS).map(|_| prng.u64()).collect();
    let stop = AtomicBool::new(false);
    for others in [0, THREADS - 1] {
        stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for other in 0..others {
                let (table, shared, stop) = (&table, &shared, &stop);
                scope.spawn(move || {
                    let mut held = vec![0; ENGINES];
                    let mut prng = Prng::new(other as u64);
                    while !stop.load(Ordering::Relaxed) {
                        let own: Vec<u64> = (0..BLOCKS).map(|_| prng.u64()).collect();
                        for prompt in [shared, &own] {
                            table.recall(prompt, NOW, &mut held);
                            table.record(EngineId(other as u16), prompt, 100, NOW);
                        }
                    }
                });
            }
            let mut held = vec![0; ENGINES];
            let rounds = rounds(300, |_| {
                table.recall(&shared, NOW, &mut held);
                table.record(EngineId(9), &shared, 100, NOW);
            });
            // The best round is one in which the others did not run.
            let ns = rounds[rounds.len() / 2] / BLOCKS as f64;
            say(format_args!(
                "{ns:9.1} ns  a block, recalled and recorded, {others} other threads, median"
            ));
            stop.store(true, Ordering::Relaxed);
        });
    }
}

fn best(calls: u32, call: impl FnMut(u32)) -> f64 {
    rounds(calls, call)[0]
}

/// Nanoseconds a call, by round, the best first. Calls are numbered through.
#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn rounds(calls: u32, mut call: impl FnMut(u32)) -> Vec<f64> {
    let (rounds, calls) = if is_measured() {
        (ROUNDS, calls)
    } else {
        (1, 2)
    };
    let round = |number: u32| {
        let begun = time::Instant::now();
        (number * calls..(number + 1) * calls).for_each(&mut call);
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
    };
    let mut rounds: Vec<f64> = (0..rounds).map(round).collect();
    rounds.sort_by(f64::total_cmp);
    rounds
}
