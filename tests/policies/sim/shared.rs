//! Traces whose prompts have much in common, and what a placement that knows every cache would get out of them.

use narwhal::base::prng::Prng;
use narwhal::base::units::Role;
use narwhal::stub::cache::PrefixCache;
use narwhal::stub::text as vocabulary;

use super::fleet::Fleet;
use super::traffic::{CAP, Request, Trace, exponential, instant, lognormal, text};

/// What prompts have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    /// Many users on 80 system prompts of 3,000 to 6,000 tokens, some much more in use than others. No engine can hold all of them.
    Prompts,
    /// Talks of about ten turns, each with all that was said before it in its prompt, up to 16,000 tokens.
    Sessions,
    /// [`Common::Prompts`], and in the middle of it for 3 s a crowd on one prompt that is new: more than one engine
    /// could read even if it had it.
    Crowd,
}

/// Tokens that the prefix cache of a prefill engine remembers.
pub const CACHED_TOKENS: u64 = 200_000;
const SYSTEM_PROMPTS: u64 = 80;
const CROWD_SPAN_S: f64 = 3.0;
const SESSION_TOKENS_MAX: u64 = 16_000;

/// `load` is a multiple of what the fleet could do if nothing were cached. The crowd comes on top, at five times that.
pub fn trace(
    common: Common,
    fleet: &Fleet,
    load: f64,
    seconds: f64,
    warm_s: f64,
    seed: u64,
) -> Trace {
    let rate = load * capacity(common, fleet);
    let mut chance = Prng::new(seed ^ 0x5aed);
    let mut requests = match common {
        Common::Prompts | Common::Crowd => prompts(&mut chance, rate, seconds),
        Common::Sessions => conversations(&mut chance, rate, seconds),
    };
    if common == Common::Crowd {
        let rate = 5.0 * capacity(common, fleet);
        let from = (warm_s + seconds) / 2.0;
        let prompt = (chance.u64(), 3_000);
        for _ in 0..(CROWD_SPAN_S * rate) as u64 {
            let at = from + CROWD_SPAN_S * chance.unit();
            let mut request = on_prompt(&mut chance, at, prompt);
            request.crowd = true;
            requests.push(request);
        }
    }
    requests.sort_by_key(|request| request.at);
    Trace {
        requests,
        warm: instant(warm_s),
        end: instant(seconds),
    }
}

/// Requests a second without any cache.
pub fn capacity(common: Common, fleet: &Fleet) -> f64 {
    fleet.capacity(&sample(common))
}

pub fn sample(common: Common) -> Vec<(u64, u64)> {
    let mut chance = Prng::new(3);
    let requests = match common {
        Common::Prompts | Common::Crowd => prompts(&mut chance, 100.0, 100.0),
        Common::Sessions => conversations(&mut chance, 100.0, 400.0),
    };
    let lengths = requests.iter().map(|r| (r.prompt_tokens(), r.output));
    lengths.collect()
}

fn prompts(chance: &mut Prng, rate: f64, seconds: f64) -> Vec<Request> {
    let system: Vec<(u64, u64)> = (0..SYSTEM_PROMPTS)
        .map(|i| (0x5e7 + i, 3_000 + 38 * (i * 37 % SYSTEM_PROMPTS)))
        .collect();
    // The n-th is used 1 / n as often as the first.
    let weights = (1..=SYSTEM_PROMPTS).map(|n| 1.0 / n as f64);
    let total: f64 = weights.sum();
    let mut requests = Vec::new();
    let mut at = 0.0;
    loop {
        at += exponential(chance, 1.0 / rate);
        if at >= seconds {
            return requests;
        }
        let mut left = chance.unit() * total;
        let used = system.iter().zip(1..).find(|(_, n)| {
            left -= 1.0 / f64::from(*n);
            left < 0.0
        });
        let prompt = used.map_or(system[0], |(prompt, _)| *prompt);
        requests.push(on_prompt(chance, at, prompt));
    }
}

fn on_prompt(chance: &mut Prng, at: f64, prompt: (u64, u64)) -> Request {
    let question = lognormal(chance, 150.0, 0.8, 8, 4_000);
    Request {
        at: instant(at),
        prompt: vec![prompt, (chance.u64(), question)],
        crowd: false,
        output: lognormal(chance, 60.0, 0.7, 2, CAP),
        cap: CAP,
    }
}

/// `rate`: of turns, once as many conversations end as begin.
fn conversations(chance: &mut Prng, rate: f64, seconds: f64) -> Vec<Request> {
    const TURNS: f64 = 10.0;
    let mut requests = Vec::new();
    let mut begins = 0.0;
    loop {
        begins += exponential(chance, TURNS / rate);
        if begins >= seconds {
            return requests;
        }
        let mut at = begins;
        let mut prompt = vec![(chance.u64(), lognormal(chance, 800.0, 0.6, 50, 4_000))];
        loop {
            prompt.push((chance.u64(), lognormal(chance, 120.0, 0.8, 8, 2_000)));
            let output = lognormal(chance, 80.0, 0.6, 2, CAP);
            let request = Request {
                at: instant(at),
                prompt: prompt.clone(),
                crowd: false,
                output,
                cap: CAP,
            };
            let is_long = request.prompt_tokens() > SESSION_TOKENS_MAX;
            if at >= seconds || is_long {
                break;
            }
            requests.push(request);
            if chance.unit() < 1.0 / TURNS {
                break;
            }
            // The answer is read, and another question is asked.
            prompt.push((chance.u64(), output));
            at += 0.015 * output as f64 + exponential(chance, 6.0);
        }
    }
}

/// The part of the prompt tokens of the measured requests that are in a cache when each prompt goes where it is read soonest, with every
/// cache and every backlog known as it is.
pub fn all_knowing(fleet: &Fleet, trace: &Trace) -> f64 {
    struct Engine {
        cache: PrefixCache,
        free_s: f64,
    }
    let readers: Vec<_> = fleet.of(Role::Prefill).collect();
    let mut engines: Vec<Engine> = readers
        .iter()
        .map(|_| Engine {
            cache: PrefixCache::new(fleet.cached_tokens, 16),
            free_s: 0.0,
        })
        .collect();
    let (mut cached, mut total) = (0, 0);
    for request in &trace.requests {
        let mut bytes = Vec::new();
        for (seed, tokens) in &request.prompt {
            text(*seed, *tokens, &mut bytes);
        }
        let mut ids = Vec::new();
        vocabulary::tokenize(&bytes, &mut ids);
        let now = request.at.nanos() as f64 / 1e9;
        let prices = engines.iter().zip(&readers).map(|(engine, machine)| {
            let unknown = ids.len() as u64 - engine.cache.known(&ids);
            engine.free_s.max(now) + machine.truth.ttft(unknown).as_secs_f64()
        });
        let best = prices.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((best, done)) = best else { return 0.0 };
        let engine = &mut engines[best];
        engine.free_s = done;
        let known = engine.cache.prompt(&ids);
        if request.at >= trace.warm && request.at < trace.end {
            cached += known;
            total += ids.len() as u64;
        }
    }
    cached as f64 / (total as f64).max(1.0)
}
