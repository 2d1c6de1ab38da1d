//! The simulated fleet: what its engines cost, what the router was told of them, and how much they can do.
//!
//! The curves are those of a model of 8 billion parameters (grouped-query attention, 32 layers of 8 KV heads of 128) in 16 bits on one
//! GPU with 80 GB, 3.35 TB/s and about 990 TFLOP/s:
//!
//! - prefill: 16 GFLOP a token at 40 % of the peak, 40 µs; attention adds 262 kFLOP times the square of the length, 0.7 ns; 5 ms fixed;
//! - decode: 16 GB of weights at 60 % of the bandwidth, 8 ms; 131 kB of KV a token, 40 ns; 30 µs a request for sampling and the like;
//! - memory: 50 GB are left for KV, 400,000 tokens; 256 requests at once.
//!
//! Engines are not quite what was measured: each is up to 3 % off its profile, either way.

use std::sync::Arc;

use narwhal::base::prng::Prng;
use narwhal::base::units::Role;
use narwhal::config::{self, Format, Snapshot};
use narwhal::stub::engine::Setup;
use narwhal::stub::profile::{Bounds, Profile};
use narwhal::stub::stream::Merge;

/// What clients are promised.
pub const TTFT_S: f64 = 1.0;
pub const TPOT_S: f64 = 0.025;
/// What the router is told of it: four parts in a hundred less. Whoever fills engines to a target exactly has half of the answers a little
/// over it.
const TPOT_TOLD_S: f64 = 0.96 * TPOT_S;

pub const REQUESTS_MAX: u64 = 256;
pub const KV_TOKENS: u64 = 400_000;
/// An engine's curves are off its profile by so much at most.
const FIT_ERROR: f64 = 0.03;
/// So much of the first token's target is kept in hand for that: without it a queue that is as long as the target allows has half of
/// those at its end a few milliseconds late.
pub const MARGIN: f64 = -FIT_ERROR;

pub const CURVES: Profile = Profile {
    ttft_a: 0.7e-9,
    ttft_b: 40e-6,
    ttft_c: 0.005,
    tpot_slope: 40e-9,
    tpot_request_slope: 30e-6,
    tpot_intercept: 0.008,
    transfer_s: 0.010,
    prefill_serial: true,
};

/// One engine.
#[derive(Clone, Debug)]
pub struct Machine {
    pub role: Role,
    /// What it takes.
    pub truth: Profile,
    /// What its profile says.
    pub measured: Profile,
}

/// The engines in the order of the fleet file: prefill and decode by turns.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub machines: Vec<Machine>,
    /// Tokens that the prefix cache of a prefill engine remembers; 0: it has none.
    pub cached_tokens: u64,
}

/// The first prefill and the first decode engine may be slower than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slow {
    None,
    /// So many times as slow, and their profiles say so.
    Known(f64),
    /// Nobody knows.
    Unknown(f64),
}

impl Fleet {
    /// So many prefill engines and as many decode engines.
    pub fn new(pairs: usize, slow: Slow, seed: u64) -> Fleet {
        let mut chance = Prng::new(seed ^ 0xf1ee7);
        let machines = (0..2 * pairs).map(|i| {
            let role = [Role::Prefill, Role::Decode][i % 2];
            let (times, known) = match slow {
                Slow::Known(times) if i < 2 => (times, true),
                Slow::Unknown(times) if i < 2 => (times, false),
                _ => (1.0, true),
            };
            let off = 1.0 + FIT_ERROR * (2.0 * chance.unit() - 1.0);
            Machine {
                role,
                truth: slower(&CURVES, times * off),
                measured: slower(&CURVES, if known { times } else { 1.0 }),
            }
        });
        Fleet {
            machines: machines.collect(),
            cached_tokens: 0,
        }
    }

    pub fn of(&self, role: Role) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(move |m| m.role == role)
    }

    /// What the simulated engines are told.
    pub fn setups(&self, seed: u64) -> Vec<Setup> {
        let setup = |(i, machine): (usize, &Machine)| Setup {
            model: "m".into(),
            role: machine.role,
            profile: machine.truth,
            bounds: match machine.role {
                // Prompts are read one at a time, and their KV moves on.
                Role::Prefill => Bounds {
                    cached_tokens_max: self.cached_tokens,
                    ..Bounds::default()
                },
                _ => Bounds {
                    requests_max: REQUESTS_MAX,
                    kv_tokens_max: KV_TOKENS,
                    cached_tokens_max: 0,
                },
            },
            // An answer is as long as the client's `min_tokens` says.
            answer_tokens: Some((0, 0)),
            // About four tokens an event: what an event costs the simulation says nothing of policies.
            merge: Merge {
                share: 0.75,
                running_min: 0,
            },
            blocks: 1 << 20,
            seed: seed ^ ((i as u64) << 40),
            ..Setup::default()
        };
        self.machines.iter().enumerate().map(setup).collect()
    }

    fn profiles(&self) -> String {
        let row = |(i, machine): (usize, &Machine)| {
            let p = &machine.measured;
            let kv_tokens = match machine.role {
                Role::Prefill if self.cached_tokens > 0 => self.cached_tokens,
                _ => KV_TOKENS,
            };
            format!(
                r#"{{"iid":"e{i}","ttft_a":{:e},"ttft_b":{:e},"ttft_c":{:e},"tpot_slope":{:e},"tpot_request_slope":{:e},
                "tpot_intercept":{:e},"kv_capacity_tokens":{kv_tokens},"decode_max_requests":{REQUESTS_MAX}}}"#,
                p.ttft_a, p.ttft_b, p.ttft_c, p.tpot_slope, p.tpot_request_slope, p.tpot_intercept,
            )
        };
        let rows: Vec<String> = self.machines.iter().enumerate().map(row).collect();
        let rows = rows.join(",");
        format!(r#"{{"schema":"narwhal.profiles","schema_version":1,"profiles":[{rows}]}}"#)
    }

    /// The fleet file with a policy in it, read as `serve` reads it.
    pub fn snapshot(&self, policy: &Policy) -> Arc<Snapshot> {
        let mut text = format!(
            "schema = \"narwhal.fleet\"\nschema_version = 2\nmodel = \"m\"\nslo = {{ ttft_s = {TTFT_S:?}, tpot_s = {TPOT_TOLD_S:?} }}\n\
             [serving]\nadmission = \"{}\"\nplacement = \"{}\"\nmax_connections = {}\nqueue_capacity = {}\nqueue_timeout_s = {TTFT_S:?}\n\
             decode_concurrency = {REQUESTS_MAX}\nadmission_margin = {:?}\n\
             [engine]\ntokenize = false\nchars_per_token = 4.0\nfirst_token_timeout_s = 60.0\ndecode_read_timeout_s = 60.0\n",
            policy.admission, policy.placement, policy.seats, policy.queue, policy.margin,
        );
        for (i, machine) in self.machines.iter().enumerate() {
            text.push_str(&format!(
                "[[engines]]\niid = \"e{i}\"\nurl = \"http://10.0.0.{}:8000\"\nrole = \"{}\"\npin = true\n",
                i + 1,
                machine.role.name(),
            ));
        }
        let loaded = config::parse("fleet.toml", &text, Format::Toml, &|_| None);
        let fleet = loaded.unwrap_or_else(|why| panic!("{why}\n{text}")).fleet;
        let rows = config::profiles::parse("profiles.json", &self.profiles(), Format::Json);
        let rows = rows.unwrap_or_else(|why| panic!("{why}"));
        Arc::new(Snapshot::new(1, fleet).with_profiles(rows))
    }

    /// Requests a second that it can serve within the targets, of lengths like these `(prompt, output)`: what the prefill engines read, or
    /// what the decode engines generate, whichever is less. From what engines take, not from what their profiles say.
    pub fn capacity(&self, lengths: &[(u64, u64)]) -> f64 {
        let read = self
            .of(Role::Prefill)
            .map(|m| 1.0 / mean(lengths, |prompt, _| m.truth.ttft(prompt).as_secs_f64()));
        read.sum::<f64>().min(self.generates(lengths))
    }

    /// Requests a second that the decode engines can take, each as full as the target for the time between tokens, its slots and its KV
    /// allow.
    pub fn generates(&self, lengths: &[(u64, u64)]) -> f64 {
        let output = mean(lengths, |_, output| output as f64);
        // What a resident holds, seen at any moment: long answers are seen more often.
        let held = mean(lengths, |p, o| o as f64 * (p as f64 + o as f64 / 2.0)) / output;
        let of = |m: &Machine| {
            let interval = |n: u64| m.truth.interval((n as f64 * held) as u64, n).as_secs_f64();
            let fits = |n: &u64| interval(*n) <= TPOT_S && *n as f64 * held <= KV_TOKENS as f64;
            let most = (1..=REQUESTS_MAX).take_while(fits).last().unwrap_or(1);
            most as f64 / (interval(most) * output)
        };
        self.of(Role::Decode).map(of).sum()
    }
}

fn mean(lengths: &[(u64, u64)], of: impl Fn(u64, u64) -> f64) -> f64 {
    let values = lengths.iter().map(|(prompt, output)| of(*prompt, *output));
    values.sum::<f64>() / lengths.len() as f64
}

/// Seats for so many requests a second: those that are in flight when each takes as long as both targets let it (Little's law). All
/// policies get the same.
pub fn seats(rate: f64, lengths: &[(u64, u64)]) -> usize {
    let output = mean(lengths, |_, output| output as f64);
    (rate * (TTFT_S + output * TPOT_S)).ceil() as usize
}

/// What the fleet file says of admission and placement.
#[derive(Clone, Debug)]
pub struct Policy {
    pub name: &'static str,
    pub admission: &'static str,
    pub placement: &'static str,
    /// Requests in flight at once, and those that may wait for a seat.
    pub seats: usize,
    pub queue: usize,
    /// `serving.admission_margin`.
    pub margin: f64,
}

impl Policy {
    /// The four that are compared, with the same bounds.
    pub fn all(seats: usize, queue: usize) -> [Policy; 4] {
        [
            ("predictive, price", "predictive", "price"),
            ("open, price", "open", "price"),
            ("open, least", "open", "least"),
            ("open, round robin", "open", "round_robin"),
        ]
        .map(|(name, admission, placement)| Policy {
            name,
            admission,
            placement,
            seats,
            queue,
            margin: MARGIN,
        })
    }
}

fn slower(curves: &Profile, times: f64) -> Profile {
    Profile {
        ttft_a: curves.ttft_a * times,
        ttft_b: curves.ttft_b * times,
        ttft_c: curves.ttft_c * times,
        tpot_slope: curves.tpot_slope * times,
        tpot_request_slope: curves.tpot_request_slope * times,
        tpot_intercept: curves.tpot_intercept * times,
        ..*curves
    }
}
