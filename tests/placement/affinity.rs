//! Prefix affinity on a virtual clock: shards that place by price, and prefill engines that read one prompt after the other and keep what
//! they read in a cache of bounded size (`stub::cache`), of which the router knows only what it believes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use narwhal::base::prng::Prng;
use narwhal::base::time::Instant;
use narwhal::base::units::EngineId;
use narwhal::fleet::pick::Placement;
use narwhal::fleet::price;
use narwhal::stub::cache::PrefixCache;

use super::fleet::{Asking, Router};

/// Engines that prefill, and what became of the prompts that they were sent.
struct Sim {
    router: Router,
    engines: Vec<Engine>,
    /// Being read: until when, by number.
    reading: BinaryHeap<Reverse<(Instant, usize)>>,
    asked: Vec<Option<(Asking, EngineId, u64)>>,
    /// Engines say how much they held.
    tells: bool,
    seen: Seen,
}

struct Engine {
    cache: PrefixCache,
    free_at: Instant,
    prompts: u32,
}

#[derive(Default, Debug)]
struct Seen {
    prompt_tokens: u64,
    believed_tokens: u64,
    cached_tokens: u64,
    /// Seconds to the end of each prompt's reading.
    waits: Vec<f64>,
}

impl Sim {
    fn new(engines: usize, shards: usize, placement: &str, cache_tokens: u64) -> Sim {
        let engine = |_| Engine {
            cache: PrefixCache::new(cache_tokens, 16),
            free_at: Instant::ZERO,
            prompts: 0,
        };
        Sim {
            router: Router::with_cache(engines, shards, placement, cache_tokens),
            engines: (0..engines).map(engine).collect(),
            reading: BinaryHeap::new(),
            asked: Vec::new(),
            tells: true,
            seen: Seen::default(),
        }
    }

    /// A prompt comes to a shard at `now`; which engine reads it.
    fn ask(&mut self, shard: usize, ids: &[u32], now: Instant) -> usize {
        self.until(now);
        let body = format!(r#"{{"model":"m","prompt":{ids:?},"max_tokens":16}}"#);
        let mut asking = Asking::of(body.into_bytes(), now);
        let shard = &mut self.router.shards[shard];
        let placement = asking.with(shard, now, |exchange, cx| {
            exchange.prompt_tokens = ids.len() as u64;
            exchange.read_prefix(cx);
            let (rank, plan) = exchange.plan(cx).expect("engines are there");
            exchange.settle(cx, rank, plan);
            exchange.placement
        });
        let Some(Placement::TwoLegs { prefill, .. }) = placement else {
            panic!("two legs");
        };
        let curves = shard.fleet()[prefill.index()].curves;
        let curves = curves.expect("it has a profile");
        let engine = &mut self.engines[prefill.index()];
        let cached = engine.cache.prompt(ids);
        let seconds = price::prompt_s(&curves, ids.len() as u64, cached);
        engine.free_at = engine.free_at.max(now) + Duration::from_secs_f64(seconds);
        engine.prompts += 1;
        self.seen.prompt_tokens += ids.len() as u64;
        self.seen.believed_tokens += shard.fleet()[prefill.index()].cached_tokens;
        self.seen.cached_tokens += cached;
        self.seen
            .waits
            .push(engine.free_at.since(now).as_secs_f64());
        self.reading
            .push(Reverse((engine.free_at, self.asked.len())));
        self.asked.push(Some((asking, prefill, cached)));
        prefill.index()
    }

    /// What was read by then goes on, and its decoding ends at once.
    fn until(&mut self, now: Instant) {
        while let Some(Reverse((at, number))) =
            self.reading.peek().copied().filter(|r| r.0.0 <= now)
        {
            self.reading.pop();
            let (mut asking, engine, cached) = self.asked[number].take().expect("it ends once");
            let shard = &mut self.router.shards[0];
            asking.with(shard, at, |exchange, cx| {
                exchange.compare_belief(cx, engine, self.tells.then_some(cached));
                exchange.release_prefill(cx);
                exchange.release_attempt(cx);
                exchange.give_prefix(cx);
            });
        }
    }

    fn prompts(&self) -> Vec<u32> {
        self.engines.iter().map(|e| e.prompts).collect()
    }

    fn mean_wait_s(&self) -> f64 {
        self.seen.waits.iter().sum::<f64>() / self.seen.waits.len() as f64
    }
}

fn at(s: f64) -> Instant {
    Instant::from_nanos(1_000_000_000) + Duration::from_secs_f64(s)
}

fn ids(name: u64, tokens: u64) -> Vec<u32> {
    let mut prng = Prng::new(name);
    (0..tokens).map(|_| prng.below(100_000) as u32).collect()
}

/// People who go on with long conversations: in all, so many tokens could be held.
fn conversations(sim: &mut Sim) -> (u64, u32) {
    const PEOPLE: u64 = 20;
    const TURNS: u64 = 8;
    let mut prng = Prng::new(4);
    let (mut could, mut moved) = (0, 0);
    let mut turns: Vec<(u64, u64, u64)> = Vec::new();
    for person in 0..PEOPLE {
        let mut ms = prng.below(4_000);
        for turn in 0..TURNS {
            turns.push((ms, person, turn));
            ms += 2_000 + prng.below(4_000);
        }
    }
    turns.sort_unstable();
    let mut homes = vec![None; PEOPLE as usize];
    for (ms, person, turn) in turns {
        let prompt: Vec<u32> = (0..=turn)
            .flat_map(|t| ids(person << 8 | t, 1_500))
            .collect();
        let engine = sim.ask(prng.below(2) as usize, &prompt, at(ms as f64 / 1e3));
        could += 1_500 * turn / 16 * 16;
        let home = homes[person as usize].replace(engine);
        moved += u32::from(home.is_some_and(|home| home != engine));
    }
    (could, moved)
}

// proves R-SCH-6
#[test]
fn conversations_stay_where_their_prefix_is() {
    let run = |placement| {
        let mut sim = Sim::new(2, 2, placement, 400_000);
        let (could, moved) = conversations(&mut sim);
        (sim.seen.cached_tokens as f64 / could as f64, moved, sim)
    };
    let (held, moved, price) = run("price");
    assert!(held > 0.9, "{held}");
    // Seven of eight turns of 20 people.
    assert!(moved <= 14, "{moved} of 140");
    let error = price.seen.believed_tokens as f64 / price.seen.cached_tokens as f64;
    assert!((0.9..1.05).contains(&error), "{error}");
    // Both engines work.
    let prompts = price.prompts();
    assert!(prompts.iter().all(|n| *n > 20), "{prompts:?}");
    for other in ["least", "round_robin"] {
        // Half the conversation before is there by chance.
        let (theirs, _, other_sim) = run(other);
        assert!(theirs < held - 0.1, "{other} {theirs} {held}");
        let (ours, theirs) = (price.mean_wait_s(), other_sim.mean_wait_s());
        assert!(ours < 0.8 * theirs, "{other}: {ours} {theirs}");
    }
}

// proves R-SCH-6
#[test]
fn many_users_of_a_few_long_fronts_find_them() {
    const FRONTS: u64 = 12;
    // Three engines that hold five fronts each: all but none to spare.
    let run = |placement, seed| {
        let mut sim = Sim::new(3, 2, placement, 48_000);
        let mut prng = Prng::new(seed);
        let mut could = 0;
        let mut seen = [false; FRONTS as usize];
        for i in 0..500 {
            let front = prng.below(FRONTS);
            let prompt = [ids(front, 8_000), ids(1_000 + i, 100)].concat();
            could += 8_000 * u64::from(std::mem::replace(&mut seen[front as usize], true));
            sim.ask(prng.below(2) as usize, &prompt, at(i as f64 * 0.05));
        }
        sim.seen.cached_tokens as f64 / could as f64
    };
    // Which fronts meet first on an engine is chance, and where six do one has to move on.
    let seeds = 1..=8;
    let least = seeds.clone().map(|seed| run("least", seed)).sum::<f64>() / 8.0;
    assert!(least < 0.7, "{least}");
    let price: Vec<f64> = seeds.map(|seed| run("price", seed)).collect();
    assert!(price.iter().all(|held| *held > 0.8), "{price:?}");
    assert!(price.iter().sum::<f64>() / 8.0 > 0.95, "{price:?}");
}

// proves R-SCH-6
#[test]
fn a_crowd_on_one_prompt_spreads() {
    let mut sim = Sim::new(4, 4, "price", 400_000);
    let prompt = ids(1, 16_000);
    // Long known to one engine, which has told.
    sim.ask(0, &prompt, at(0.0));
    sim.ask(0, &prompt, at(30.0));
    // A cold reading takes about a second, a warm one 10 ms: 600 within a second and a half.
    for i in 0..600 {
        sim.ask(i % 4, &prompt, at(60.0 + i as f64 * 0.002_5));
    }
    let cold = 0.01 + 16_000.0 * 5e-5 + 1e-9 * 16_000f64.powi(2);
    let longest = sim.seen.waits.iter().copied().fold(0.0, f64::max);
    // Nobody waits longer than for reading it cold, and a little.
    assert!(longest < 1.2 * cold, "{longest} {cold}");
    let prompts = sim.prompts();
    assert!(prompts.iter().all(|n| *n >= 60), "{prompts:?}");
}

// proves R-SCH-6
#[test]
fn engines_that_never_tell_are_gone_back_to_and_promised_nothing() {
    let mut sim = Sim::new(2, 1, "price", 400_000);
    sim.tells = false;
    let (mine, yours) = (ids(1, 8_000), ids(2, 8_000));
    // At once, so that each gets an engine of its own.
    let homes = [sim.ask(0, &mine, at(0.0)), sim.ask(0, &yours, at(0.0))];
    assert_ne!(homes[0], homes[1]);
    for turn in 1..4 {
        let now = at(20.0 * f64::from(turn));
        assert_eq!(sim.ask(0, &mine, now), homes[0]);
        assert_eq!(sim.ask(0, &yours, now), homes[1]);
    }
    assert_eq!(sim.seen.believed_tokens, 0);
}

// proves R-SCH-6
#[test]
fn engines_that_do_not_tell_or_keep_nothing_are_not_believed() {
    // whether they tell, what they keep, what is believed in the end
    for (tells, cache_tokens, believed) in [
        (true, 400_000, true),
        (false, 400_000, false),
        (true, 0, false),
    ] {
        let mut sim = Sim::new(2, 1, "price", 400_000);
        sim.tells = tells;
        for engine in &mut sim.engines {
            engine.cache = PrefixCache::new(cache_tokens, 16);
        }
        for i in 0..4 {
            sim.ask(0, &ids(1, 8_000), at(10.0 * f64::from(i)));
        }
        let before = sim.seen.believed_tokens;
        sim.ask(0, &ids(1, 8_000), at(50.0));
        assert_eq!(
            sim.seen.believed_tokens > before,
            believed,
            "{tells} {cache_tokens}"
        );
    }
}

// proves R-SCH-6
#[test]
fn an_engine_that_died_is_no_home() {
    let mut sim = Sim::new(2, 1, "price", 400_000);
    let prompt = ids(1, 8_000);
    let home = sim.ask(0, &prompt, at(0.0));
    assert_eq!(sim.ask(0, &prompt, at(5.0)), home);
    assert_eq!(sim.ask(0, &prompt, at(10.0)), home);
    let shared = sim.router.shards[0].shared.clone();
    let other = 1 - home;
    let warm = [prompt.clone(), ids(2, 500)].concat();
    shared.board.line(EngineId(home as u16)).set_live(false);
    assert_eq!(sim.ask(0, &prompt, at(20.0)), other);
    shared
        .prefixes()
        .expect("it has profiles")
        .forget(EngineId(home as u16));
    shared.board.line(EngineId(home as u16)).set_live(true);
    assert_eq!(sim.ask(0, &warm, at(30.0)), other);
}
