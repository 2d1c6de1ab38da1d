//! Traces: who asks what, and when. A trace is a function of its kind, its load and its seed; every policy gets the same one.
//!
//! Arrivals are open-loop: nobody waits for an answer before asking, and who is refused does not come back.

use std::time::Duration;

use narwhal::base::prng::Prng;
use narwhal::base::time::Instant;

use super::fleet::{CURVES, Fleet};

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    pub at: Instant,
    /// Parts of the prompt: the seed of each one's text, and its tokens. Equal parts are equal text.
    pub prompt: Vec<(u64, u64)>,
    /// Belongs to a crowd that all ask the same.
    pub crowd: bool,
    /// Tokens that the answer has, and that it may have.
    pub output: u64,
    pub cap: u64,
}

impl Request {
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt.iter().map(|(_, tokens)| tokens).sum()
    }
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Poisson arrivals.
    Steady,
    /// Poisson arrivals at 2.1 times the rate for about 2 s, then at a quarter of it for about 3 s, and so on.
    Bursty,
    /// A fifth of the prefill work comes as storms: every 10 s within half a second, prompts of 8,000 to 14,000 tokens.
    Storms,
}

#[derive(Debug)]
pub struct Trace {
    pub requests: Vec<Request>,
    /// Arrivals before this are there to fill the fleet, and are not measured.
    pub warm: Instant,
    pub end: Instant,
}

impl Trace {
    pub fn measured(&self) -> Duration {
        self.end.since(self.warm)
    }
}

/// Most that an answer may have.
pub const CAP: u64 = 1_024;
const STORM_EVERY_S: f64 = 10.0;
const STORM_SPAN_S: f64 = 0.5;
const STORM_SHARE: f64 = 0.2;

/// `load` is a multiple of what `fleet` can do.
pub fn trace(
    shape: Shape,
    fleet: &Fleet,
    load: f64,
    seconds: f64,
    warm_s: f64,
    seed: u64,
) -> Trace {
    let mut chance = Prng::new(seed ^ 0x7261_ce00);
    let chance = &mut chance;
    let capacity = fleet.capacity(&sample(shape));
    let mut requests = Vec::new();
    let storms = shape == Shape::Storms;
    let rate = capacity * load * share_of_ordinary(shape);
    let (mut at, mut burst, mut turns_at) = (0.0, false, 0.0);
    loop {
        let now_rate = match shape {
            Shape::Bursty => {
                if at >= turns_at {
                    burst = !burst;
                    turns_at = at + exponential(chance, if burst { 2.0 } else { 3.0 });
                }
                rate * if burst { 2.125 } else { 0.25 }
            }
            _ => rate,
        };
        let next = at + exponential(chance, 1.0 / now_rate);
        if shape == Shape::Bursty && next > turns_at {
            // Without memory: the next arrival is drawn anew at the turn.
            at = turns_at;
            continue;
        }
        at = next;
        if at >= seconds {
            break;
        }
        requests.push(ordinary(chance, at));
    }
    if storms {
        let size = capacity * load * (1.0 - share_of_ordinary(shape)) * STORM_EVERY_S;
        let mut from = STORM_EVERY_S / 2.0;
        while from < seconds {
            for _ in 0..size.round() as u64 {
                let at = from + STORM_SPAN_S * chance.unit();
                requests.push(stormy(chance, at));
            }
            from += STORM_EVERY_S;
        }
    }
    requests.sort_by_key(|request| request.at);
    Trace {
        requests,
        warm: instant(warm_s),
        end: instant(seconds),
    }
}

/// Of the requests; the others are a storm's.
fn share_of_ordinary(shape: Shape) -> f64 {
    if shape != Shape::Storms {
        return 1.0;
    }
    let cost = |requests: &[Request]| {
        let seconds = |r: &Request| CURVES.ttft(r.prompt_tokens()).as_secs_f64();
        requests.iter().map(seconds).sum::<f64>() / requests.len() as f64
    };
    let mut chance = Prng::new(1);
    let ordinary: Vec<Request> = (0..20_000).map(|_| ordinary(&mut chance, 0.0)).collect();
    let stormy: Vec<Request> = (0..20_000).map(|_| stormy(&mut chance, 0.0)).collect();
    let (ordinary, stormy) = (
        (1.0 - STORM_SHARE) / cost(&ordinary),
        STORM_SHARE / cost(&stormy),
    );
    ordinary / (ordinary + stormy)
}

/// Lengths as they are in such a trace.
pub fn sample(shape: Shape) -> Vec<(u64, u64)> {
    let mut chance = Prng::new(2);
    let share = share_of_ordinary(shape);
    let lengths = (0..50_000).map(|_| {
        let request = match chance.unit() < share {
            true => ordinary(&mut chance, 0.0),
            false => stormy(&mut chance, 0.0),
        };
        (request.prompt_tokens(), request.output)
    });
    lengths.collect()
}

/// Prompts with a median of 600 and a mean of 1,000 tokens, answers with 310 and 390.
fn ordinary(chance: &mut Prng, at: f64) -> Request {
    let prompt = lognormal(chance, 600.0, 1.0, 16, 12_000);
    let output = lognormal(chance, 310.0, 0.7, 2, CAP);
    Request {
        at: instant(at),
        prompt: vec![(chance.u64(), prompt)],
        crowd: false,
        output,
        cap: CAP,
    }
}

fn stormy(chance: &mut Prng, at: f64) -> Request {
    Request {
        prompt: vec![(chance.u64(), 8_000 + chance.below(6_000))],
        ..ordinary(chance, at)
    }
}

pub fn instant(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

pub fn exponential(chance: &mut Prng, mean: f64) -> f64 {
    -mean * (1.0 - chance.unit()).ln()
}

pub fn lognormal(chance: &mut Prng, median: f64, sigma: f64, least: u64, most: u64) -> u64 {
    // Box and Muller.
    let (u, v) = (1.0 - chance.unit(), chance.unit());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    ((median * (sigma * normal).exp()) as u64).clamp(least, most)
}

/// The body of a request, and its head.
pub fn bytes(request: &Request) -> Vec<u8> {
    let mut body = b"{\"model\":\"m\",\"stream\":true,\"prompt\":\"".to_vec();
    for (seed, tokens) in &request.prompt {
        text(*seed, *tokens, &mut body);
    }
    body.extend_from_slice(
        format!(
            "\",\"max_tokens\":{},\"min_tokens\":{}}}",
            request.cap,
            // The token that ends an answer comes on top.
            request.output - 1
        )
        .as_bytes(),
    );
    let mut out = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: r\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    out.extend_from_slice(&body);
    out
}

/// Four letters a token, as the simulated engines cut text.
pub fn text(seed: u64, tokens: u64, out: &mut Vec<u8>) {
    let mut chance = Prng::new(seed);
    for _ in 0..tokens {
        let mut letters = chance.u64();
        for _ in 0..4 {
            out.push(b'a' + (letters % 26) as u8);
            letters /= 26;
        }
    }
}
