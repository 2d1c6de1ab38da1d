//! The table by hand, against a plain list of everything that was ever recorded, under hostile prompts, and from several threads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;
use crate::base::prng::Prng;

const T0: Instant = Instant::from_nanos(0);
const CAPACITY: u64 = 1_000_000;
const BLOCK_TOKENS: f64 = 128.0;

fn table(engines: usize) -> Prefixes {
    let salt = Salt::new(&mut Prng::new(1));
    Prefixes::of(&vec![CAPACITY; engines], BLOCK_TOKENS, salt)
}

fn engine(i: u16) -> EngineId {
    EngineId(i)
}

fn at(s: u64) -> Instant {
    T0 + Duration::from_secs(s)
}

/// Hashes of a prompt, told by the numbers of its blocks.
fn hashes(blocks: &[u64]) -> Vec<u64> {
    let mut chain = 7u64;
    let step = |block: &u64| {
        chain = Prng::new(chain ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64();
        chain
    };
    blocks.iter().map(step).collect()
}

fn prompt(name: u64, blocks: u64) -> Vec<u64> {
    hashes(&(0..blocks).map(|i| name << 32 | i).collect::<Vec<_>>())
}

fn recall(table: &Prefixes, blocks: &[u64], now: Instant) -> Vec<u16> {
    let mut held = vec![99; table.clocks.len()];
    table.recall(blocks, now, &mut held);
    held
}

// proves R-SCH-6
#[test]
fn each_engine_holds_what_it_read_last() {
    let t = table(3);
    let (a, b) = (prompt(1, 20), prompt(2, 5));
    assert_eq!(recall(&t, &a, T0), [0, 0, 0]);
    t.record(engine(0), &a, 0, T0);
    t.record(engine(2), &a[..7], 0, T0);
    t.record(engine(1), &b, 0, T0);
    assert_eq!(recall(&t, &a, T0), [20, 0, 7]);
    assert_eq!(recall(&t, &b, T0), [0, 5, 0]);
    let longer = [a.clone(), prompt(3, 9)].concat();
    assert_eq!(recall(&t, &longer, T0), [20, 0, 7]);
    assert_eq!(recall(&t, &a[..6], T0), [6, 0, 6]);
    assert_eq!(
        recall(&t, &a[1..], T0),
        [19, 0, 6],
        "only hashes are compared"
    );
    assert_eq!(recall(&t, &[], T0), [0, 0, 0]);
    // An engine that the table does not know: after a reload, say.
    t.record(engine(9), &b, 5, T0);
    t.forget(engine(9));
    assert_eq!(recall(&t, &b, T0), [0, 5, 0]);
}

// proves R-SCH-6
#[test]
fn a_few_lost_blocks_do_not_hide_those_behind_them() {
    let a = prompt(1, 30);
    for (lost, want) in [(GAP - 1, 30), (GAP, 10)] {
        let t = table(1);
        t.record(engine(0), &a[..10], 0, T0);
        t.record(engine(0), &a[10 + lost..], 0, T0);
        assert_eq!(recall(&t, &a, T0), [want], "{lost}");
    }
}

// proves R-SCH-6
#[test]
fn what_was_not_read_again_is_forgotten() {
    let t = table(2);
    let (a, b) = (prompt(1, 3), prompt(2, 3));
    for e in [0, 1] {
        t.record(engine(e), &a, 0, at(0));
        t.record(engine(e), &b, 0, at(0));
    }
    t.record(engine(0), &a, 0, at(500));
    assert_eq!(recall(&t, &a, at(599)), [3, 3]);
    assert_eq!(recall(&t, &b, at(599)), [3, 3]);
    assert_eq!(recall(&t, &a, at(600)), [3, 0]);
    assert_eq!(recall(&t, &b, at(600)), [0, 0]);
    assert_eq!(recall(&t, &a, at(1_101)), [0, 0]);
    assert_eq!(t.count(at(1_101)), 0);
}

// proves R-SCH-6
#[test]
fn an_engine_holds_no_more_than_its_cache() {
    let t = table(2);
    let a = prompt(1, 3);
    t.record(engine(0), &a, 10, T0);
    t.record(engine(1), &a, 10, T0);
    // Others come to engine 0, and push it out.
    for i in 0..9 {
        t.record(engine(0), &prompt(10 + i, 3), CAPACITY / 10, T0);
        assert_eq!(recall(&t, &a, T0), [3, 3], "{i}");
    }
    t.record(engine(0), &prompt(20, 3), CAPACITY / 10, T0);
    assert_eq!(recall(&t, &a, T0), [0, 3]);
    // One that is larger than the cache weighs as much as the cache.
    t.record(engine(1), &prompt(21, 3), u64::MAX, T0);
    assert_eq!(recall(&t, &a, T0), [0, 0]);
    assert_eq!(recall(&t, &prompt(21, 3), T0), [0, 3]);
}

// proves R-SCH-6
#[test]
fn an_engine_that_died_holds_nothing() {
    let t = table(2);
    let a = prompt(1, 3);
    t.record(engine(0), &a, 10, T0);
    t.record(engine(1), &a, 10, T0);
    t.forget(engine(0));
    assert_eq!(recall(&t, &a, T0), [0, 3]);
    t.record(engine(0), &a, 10, T0);
    assert_eq!(recall(&t, &a, T0), [3, 3]);
}

// proves R-SCH-6
#[test]
fn engines_are_trusted_as_far_as_they_told() {
    let t = table(3);
    let trust = |e| t.trust(engine(e));
    // A cold prompt tells nothing.
    t.told(engine(0), 0, 50);
    assert_eq!(trust(0), None);
    t.told(engine(0), 100, 100);
    assert_eq!((trust(0), trust(1)), (Some(1.0), Some(1.0)));
    // More than was remembered is no more than all.
    t.told(engine(0), 100, 900);
    assert_eq!(trust(0), Some(1.0));
    for _ in 0..40 {
        t.told(engine(1), 100, 0);
    }
    assert_eq!(trust(0), Some(1.0));
    assert!(trust(1).unwrap() < 0.01 && trust(2).unwrap() < 0.01);
    for _ in 0..20 {
        t.told(engine(1), 100, 100);
    }
    assert!(trust(1).unwrap() > 0.95);
    t.told(engine(9), 100, 100);
    assert_eq!(trust(9), None);
}

// proves R-SCH-6
#[test]
fn what_is_forgotten_does_not_come_back_when_stamps_come_round() {
    let t = table(1);
    for i in 0..4_000 {
        t.record(engine(0), &prompt(i, 2), 0, T0);
    }
    // Two lives in, a router with some work has swept the table once.
    for i in 0..t.buckets.len() as u64 {
        t.record(engine(0), &[i << 32 | 1], 0, at(1_200));
    }
    let round = 600 * (STAMP_MASK + 1) / LIFE;
    let mut held = [0];
    for i in 0..4_000 {
        t.recall(&prompt(i, 2), at(round), &mut held);
        assert_eq!(held, [0], "{i}");
    }
}

// proves R-SCH-6
#[test]
fn a_table_is_as_large_as_the_caches_of_its_fleet_within_bounds() {
    let of = |capacities: &[u64]| {
        let salt = Salt::new(&mut Prng::new(1));
        Prefixes::of(capacities, 135.0, salt).bytes()
    };
    assert_eq!(of(&[]), 64 << 10);
    assert_eq!(of(&[0, 1]), 64 << 10);
    assert_eq!(of(&[1_000_000; 64]), 8 << 20);
    assert_eq!(of(&[u64::MAX; 3]), TABLE_BYTES_MAX);
}

// proves R-SCH-6
#[test]
fn prompts_that_fall_into_one_bucket_harm_nobody_else() {
    let t = table(4);
    let a = prompt(1, 4);
    t.record(engine(3), &a, 0, T0);
    let mut prng = Prng::new(2);
    let mut told = 0u32;
    for i in 0..20_000u64 {
        // As if somebody could choose hashes: all in the bucket of one block.
        let hash = (prng.u64() & !0xffff_ffff) | (a[0] & 0xffff_ffff);
        let e = (i % 3) as u16;
        t.record(engine(e), &[hash], 0, T0);
        let held = recall(&t, &[hash], T0);
        assert_eq!(held.iter().sum::<u16>(), held[usize::from(e)]);
        told += u32::from(held[usize::from(e)]);
    }
    // The last one written is there, whoever wrote it.
    assert_eq!(told, 20_000);
    assert_eq!(recall(&t, &a[1..], T0), [0, 0, 0, 3]);
    assert!(t.count(T0) <= WAYS + 3);
}

// proves R-SCH-6
#[test]
fn a_million_prefixes_take_no_more_room_and_leave_what_is_used() {
    let t = table(4);
    let hot: Vec<Vec<u64>> = (0..64).map(|i| prompt(1 << 30 | i, 4)).collect();
    let (mut asked, mut found) = (0u32, 0u32);
    let bytes = t.bytes();
    let mut now = T0;
    for i in 0..1_000_000u64 {
        now = T0 + Duration::from_micros(100 * i);
        let e = engine((i % 4) as u16);
        t.record(e, &prompt(i, 4), 540, now);
        if i % 16 == 0 {
            let hot = &hot[(i / 16 % 64) as usize];
            let held = recall(&t, hot, now);
            let best = (0..4).max_by_key(|e| held[*e]).unwrap();
            asked += 4;
            found += u32::from(held[best]);
            t.record(engine(best as u16), hot, 540, now);
        }
        if i % 100_000 == 0 {
            assert_eq!(t.bytes(), bytes);
            assert!(t.count(now) <= t.buckets.len() * WAYS);
        }
    }
    let rate = f64::from(found) / f64::from(asked);
    assert!(rate > 0.95, "{rate}");
    assert!(t.count(now) > 0);
    assert_eq!(t.count(now + Duration::from_secs(600)), 0);
    assert_eq!(t.bytes(), bytes);
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    Read {
        engine: u16,
        prompt: usize,
        depth: usize,
        tokens: u64,
    },
    Passes {
        ms: u64,
    },
    Dies {
        engine: u16,
    },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0u16..3, 0usize..8, 1usize..12, 0u64..CAPACITY / 8)
            .prop_map(|(engine, prompt, depth, tokens)| Event::Read { engine, prompt, depth, tokens }),
        2 => (0u64..120_000).prop_map(|ms| Event::Passes { ms }),
        1 => (0u16..3).prop_map(|engine| Event::Dies { engine }),
    ]
}

/// Everything that was ever read, by whole prefixes.
#[derive(Default)]
struct Plain {
    read: BTreeMap<(u16, Vec<u64>), (f64, f64)>,
    /// By engine.
    tokens: [f64; 3],
}

impl Plain {
    /// What an engine holds of `prompt`: at most, and at least.
    fn held(&self, engine: u16, prompt: &[u64], now_s: f64) -> (usize, usize) {
        let age = |depth: usize| {
            let (then, tokens) = self.read.get(&(engine, prompt[..depth].to_vec()))?;
            let read = self.tokens[usize::from(engine)] - tokens;
            Some((now_s - then) / 600.0 + read / CAPACITY as f64)
        };
        let slack = 0.02;
        let deepest = |bound: f64| {
            let held = |depth: &usize| age(*depth).is_some_and(|age| age < bound);
            (1..=prompt.len()).rev().find(held).unwrap_or(0)
        };
        (deepest(1.0 + slack), deepest(1.0 - slack))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The table says no more than was read, and forgets nothing while there is room.
    // proves R-SCH-6
    #[test]
    fn it_remembers_as_a_plain_list(events in proptest::collection::vec(event(), 1..60)) {
        let t = table(3);
        let mut plain = Plain::default();
        let mut ms = 0;
        // Prompts that share their fronts: numbers of blocks.
        let prompts: Vec<Vec<u64>> = (0..8u64)
            .map(|p| (0..12).map(|i| if i < p { i } else { 100 * p + i }).collect())
            .collect();
        for event in events {
            let now = T0 + Duration::from_millis(ms);
            let now_s = ms as f64 / 1e3;
            match event {
                Event::Passes { ms: more } => ms += more,
                Event::Dies { engine: e } => {
                    t.forget(engine(e));
                    plain.read.retain(|(of, _), _| *of != e);
                }
                Event::Read { engine: e, prompt, depth, tokens } => {
                    let blocks = &prompts[prompt][..depth];
                    t.record(engine(e), &hashes(blocks), tokens, now);
                    plain.tokens[usize::from(e)] += tokens as f64;
                    for depth in 1..=depth {
                        let read = (now_s, plain.tokens[usize::from(e)]);
                        plain.read.insert((e, blocks[..depth].to_vec()), read);
                    }
                }
            }
            let now = T0 + Duration::from_millis(ms);
            for blocks in &prompts {
                let held = recall(&t, &hashes(blocks), now);
                for e in 0..3 {
                    let (most, least) = plain.held(e, blocks, ms as f64 / 1e3);
                    let held = usize::from(held[usize::from(e)]);
                    prop_assert!(least <= held && held <= most, "{} {} {} {}", e, least, held, most);
                }
            }
        }
    }
}

/// Writers of one engine each, over prompts of their own and some that all read, in a table that is far too small; a reader that knows
/// who can hold what.
// proves R-SCH-6
#[test]
fn no_entry_is_read_as_somebody_elses() {
    const THREADS: u16 = 4;
    const PROMPTS: u64 = 600;
    let t = table(usize::from(THREADS));
    let mine = |e: u16, i: u64| prompt(u64::from(e) * PROMPTS + i, 16);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|e| {
                let t = &t;
                scope.spawn(move || {
                    for round in 0..8 {
                        for i in 0..PROMPTS {
                            t.record(engine(e), &mine(e, i), 100, at(round));
                        }
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut found = 0;
            let mut prng = Prng::new(3);
            while !done.load(Relaxed) || found == 0 {
                let e = prng.below(u64::from(THREADS)) as u16;
                let held = recall(&t, &mine(e, prng.below(PROMPTS)), at(8));
                for (of, depth) in held.iter().enumerate() {
                    assert!(*depth == 0 || of == usize::from(e), "{e}: {held:?}");
                }
                found += u32::from(held[usize::from(e)]);
            }
            found
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
    // Every word is one that a writer made.
    let tags: BTreeSet<(usize, u64)> = (0..THREADS)
        .flat_map(|e| {
            (0..PROMPTS)
                .flat_map(move |i| mine(e, i))
                .map(move |h| (usize::from(e), tag(h)))
        })
        .collect();
    for slot in t.buckets.iter().flat_map(|b| &b.0) {
        let entry = Entry(slot.load(Relaxed));
        assert!(entry.0 == 0 || tags.contains(&(entry.engine(), entry.tag())));
    }
}
