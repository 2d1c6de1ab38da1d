//! What all shards have learned together: how fast each engine is, and how long answers become. Atomics of a fixed size, no lock.
//!
//! Written once in at least sixteen tokens of a stream, and once by a request that was served; read by placement with one load. Two
//! writers at once may lose a sample of an average, or compute a median that lacks the other's value until the next is in: every
//! value is a mean or a middle of true samples, whichever of them won. Sums for the judgement of engines lose nothing.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use super::slots::Slots;
use crate::base::units::EngineId;
use crate::config::checked::DecodeCorrection;
use crate::fleet::learn::correction;
use crate::fleet::learn::drift::{Health, Heard, Judged};
use crate::fleet::learn::lengths;

/// See the head of this file.
#[derive(Debug)]
pub struct Learned {
    speeds: Slots<CachePadded<Speed>>,
    lengths: Box<[Bucket]>,
}

/// One engine's pace.
#[derive(Debug)]
struct Speed {
    samples: AtomicU64,
    /// Samples that an earlier life of this router stands for: they count for the average, and are not heard again. Less than none (it
    /// wraps) for those of before the average began anew.
    recalled: AtomicU64,
    /// Millionths.
    sum: AtomicU64,
    /// The moving average, an `f64`.
    value: AtomicU64,
    judged: Verdict,
}

/// How it was judged last: the control thread writes, the control thread reads.
#[derive(Debug)]
struct Verdict {
    health: AtomicU8,
    /// `f64`; not a number where there is none.
    score: AtomicU64,
    baseline: AtomicU64,
    bad: AtomicU32,
    good: AtomicU32,
    samples: AtomicU64,
}

/// The last lengths of one bucket, and their median: bits of `f32`, [`NONE`] where nothing is yet.
#[derive(Debug)]
struct Bucket {
    samples: AtomicU64,
    median: AtomicU32,
    last: [AtomicU32; KEPT],
}

/// Lengths that a median is taken of: it follows what clients ask after a few dozen requests. An odd number has a middle.
const KEPT: usize = 31;
const NONE: u32 = u32::MAX;
const MILLION: f64 = 1e6;

/// What a bucket knows, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    pub prompt_tokens_min: u64,
    pub cap_min: Option<u64>,
    pub samples: u64,
    /// The part of the cap, or tokens; `None` before enough samples.
    pub median: Option<f32>,
}

impl Learned {
    pub fn new(engines: usize) -> Self {
        Learned {
            speeds: Slots::new(engines, |_| CachePadded::new(Speed::new())),
            lengths: (0..lengths::BUCKETS).map(|_| Bucket::new()).collect(),
        }
    }

    /// Room for so many engines.
    pub fn grow(&self, engines: usize) {
        self.speeds
            .grow(engines, |_| CachePadded::new(Speed::new()));
    }

    /// Nothing is known of `engine` any more, which is another one from now on.
    pub fn forget(&self, engine: EngineId) {
        let speed = &self.speeds[engine];
        speed.samples.store(0, Relaxed);
        speed.recalled.store(0, Relaxed);
        speed.sum.store(0, Relaxed);
        speed.value.store(1f64.to_bits(), Relaxed);
        self.judge(engine, &Judged::default());
    }

    /// Its pace is learned anew. What was heard so far stays heard.
    pub fn renew(&self, engine: EngineId) {
        let speed = &self.speeds[engine];
        let heard = speed.samples.load(Relaxed);
        speed.recalled.store(0u64.wrapping_sub(heard), Relaxed);
        speed.value.store(1f64.to_bits(), Relaxed);
    }

    // ── pace ──

    /// Takes a ratio of live to profiled interval; the correction to work with from now on.
    pub fn pace(&self, engine: EngineId, rules: &DecodeCorrection, ratio: f64) -> f64 {
        let speed = &self.speeds[engine];
        let seen = speed.samples.fetch_add(1, Relaxed);
        // A ratio is at most a hundred, so this wraps after 10^11 samples: never.
        speed.sum.fetch_add((ratio * MILLION) as u64, Relaxed);
        let value = f64::from_bits(speed.value.load(Relaxed));
        let seen = seen.wrapping_add(speed.recalled.load(Relaxed));
        let value = correction::step(rules, seen, value, ratio);
        speed.value.store(value.to_bits(), Relaxed);
        correction::counts(rules, seen + 1, value)
    }

    /// A window without samples is over; the correction to work with from now on.
    pub fn fade(&self, engine: EngineId, rules: &DecodeCorrection) -> f64 {
        let speed = &self.speeds[engine];
        let value = correction::fade(rules, f64::from_bits(speed.value.load(Relaxed)));
        speed.value.store(value.to_bits(), Relaxed);
        let seen = speed.samples.load(Relaxed);
        let seen = seen.wrapping_add(speed.recalled.load(Relaxed));
        correction::counts(rules, seen, value)
    }

    /// What an earlier life of this router had learned, before any sample of this one; the correction to work with from now on.
    pub fn recall(&self, engine: EngineId, rules: &DecodeCorrection, correction: f64) -> f64 {
        let speed = &self.speeds[engine];
        let (seen, value) = correction::recalled(rules, correction);
        speed.value.store(value.to_bits(), Relaxed);
        speed.recalled.store(seen, Relaxed);
        value
    }

    pub fn heard(&self, engine: EngineId) -> Heard {
        let speed = &self.speeds[engine];
        Heard {
            samples: speed.samples.load(Relaxed),
            sum: speed.sum.load(Relaxed) as f64 / MILLION,
        }
    }

    pub fn judge(&self, engine: EngineId, judged: &Judged) {
        let to = &self.speeds[engine].judged;
        let bits = |value: Option<f64>| value.unwrap_or(f64::NAN).to_bits();
        to.health.store(judged.health.index() as u8, Relaxed);
        to.score.store(bits(judged.score), Relaxed);
        to.baseline.store(bits(judged.baseline), Relaxed);
        to.bad.store(judged.bad, Relaxed);
        to.good.store(judged.good, Relaxed);
        to.samples.store(judged.samples, Relaxed);
    }

    pub fn judged(&self, engine: EngineId) -> Judged {
        let from = &self.speeds[engine].judged;
        let value = |bits: &AtomicU64| {
            let value = f64::from_bits(bits.load(Relaxed));
            Some(value).filter(|value| !value.is_nan())
        };
        let health = Health::ALL.get(usize::from(from.health.load(Relaxed)));
        Judged {
            health: health.copied().unwrap_or_default(),
            score: value(&from.score),
            baseline: value(&from.baseline),
            bad: from.bad.load(Relaxed),
            good: from.good.load(Relaxed),
            samples: from.samples.load(Relaxed),
        }
    }

    // ── lengths ──

    /// A request was served, and delivered so many counted tokens.
    pub fn delivered(&self, prompt_tokens: u64, cap: Option<u64>, delivered: u64) {
        if let Some(lesson) = lengths::lesson(cap, delivered) {
            self.lengths[lengths::bucket(prompt_tokens, cap)].learn(lesson);
        }
    }

    /// Tokens that a request is expected to generate.
    pub fn output_tokens(&self, prompt_tokens: u64, cap: Option<u64>) -> u64 {
        let bucket = &self.lengths[lengths::bucket(prompt_tokens, cap)];
        lengths::expected(cap, bucket.median())
    }

    /// Every bucket that was taught anything.
    pub fn lengths(&self) -> impl Iterator<Item = Length> {
        self.lengths.iter().enumerate().filter_map(|(i, bucket)| {
            let samples = bucket.samples.load(Relaxed);
            let (prompt_tokens_min, cap_min) = lengths::floor(i);
            (samples > 0).then(|| Length {
                prompt_tokens_min,
                cap_min,
                samples,
                median: bucket.median(),
            })
        })
    }
}

impl Speed {
    fn new() -> Self {
        let none = || AtomicU64::new(f64::NAN.to_bits());
        Speed {
            samples: AtomicU64::new(0),
            recalled: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            value: AtomicU64::new(1f64.to_bits()),
            judged: Verdict {
                health: AtomicU8::new(0),
                score: none(),
                baseline: none(),
                bad: AtomicU32::new(0),
                good: AtomicU32::new(0),
                samples: AtomicU64::new(0),
            },
        }
    }
}

impl Bucket {
    fn new() -> Self {
        Bucket {
            samples: AtomicU64::new(0),
            median: AtomicU32::new(NONE),
            last: [const { AtomicU32::new(NONE) }; KEPT],
        }
    }

    fn learn(&self, lesson: f32) {
        let ticket = self.samples.fetch_add(1, Relaxed);
        self.last[(ticket % KEPT as u64) as usize].store(lesson.to_bits(), Relaxed);
        if ticket + 1 < lengths::SAMPLES_MIN {
            return;
        }
        let mut values = [0.0; KEPT];
        let mut count = 0;
        for bits in &self.last {
            let bits = bits.load(Relaxed);
            // Drawn by another shard, and not stored yet.
            if bits != NONE {
                values[count] = f32::from_bits(bits);
                count += 1;
            }
        }
        if let Some(median) = lengths::median(&mut values[..count]) {
            self.median.store(median.to_bits(), Relaxed);
        }
    }

    fn median(&self) -> Option<f32> {
        let bits = self.median.load(Relaxed);
        (bits != NONE).then(|| f32::from_bits(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: DecodeCorrection = DecodeCorrection {
        min: 0.5,
        max: 2.0,
        alpha: 0.2,
        min_samples: 8,
    };

    // proves R-SCH-4, R-CTL-7
    #[test]
    fn what_an_earlier_life_learned_goes_on() {
        let learned = Learned::new(2);
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} {want}");
        near(learned.recall(EngineId(0), &RULES, 1.8), 1.8);
        near(learned.pace(EngineId(0), &RULES, 1.8), 1.8);
        near(learned.pace(EngineId(0), &RULES, 0.8), 1.6);
        assert_eq!(learned.heard(EngineId(0)).samples, 2, "those of this life");
        near(learned.pace(EngineId(1), &RULES, 0.8), 1.0);
        for (odd, want) in [(0.0, 0.5), (99.0, 2.0), (-1.0, 0.5), (f64::NAN, 0.5)] {
            near(learned.recall(EngineId(1), &RULES, odd), want);
        }
    }

    /// All at once: sums lose nothing, and whatever else is lost leaves a true average and a true median.
    // proves R-SCH-4
    #[test]
    fn shards_learn_together() {
        const SHARDS: u64 = 4;
        const ROUNDS: u64 = 20_000;
        let learned = Learned::new(1);
        std::thread::scope(|scope| {
            for shard in 0..SHARDS {
                let learned = &learned;
                scope.spawn(move || {
                    for n in 0..ROUNDS {
                        let ratio = 0.8 + 0.1 * ((n + shard) % 5) as f64;
                        let value = learned.pace(EngineId(0), &RULES, ratio);
                        assert!((0.79..=1.21).contains(&value), "{value}");
                        learned.delivered(100, None, 90 + (n + shard) % 21);
                        let tokens = learned.output_tokens(100, None);
                        assert!(tokens == 256 || (90..=110).contains(&tokens), "{tokens}");
                    }
                });
            }
        });
        let heard = learned.heard(EngineId(0));
        assert_eq!(heard.samples, SHARDS * ROUNDS);
        // Each sample is cut to a millionth.
        assert!((heard.sum - heard.samples as f64).abs() < 0.1, "{heard:?}");
        let lengths: Vec<_> = learned.lengths().collect();
        assert_eq!(lengths.len(), 1);
        assert_eq!(lengths[0].samples, SHARDS * ROUNDS);
    }

    // proves R-SCH-4
    #[test]
    fn a_judgement_comes_back_as_it_was_given() {
        let learned = Learned::new(2);
        assert_eq!(learned.judged(EngineId(1)), Judged::default());
        let judged = Judged {
            health: Health::Evicted,
            score: Some(4.5),
            baseline: None,
            bad: 5,
            good: 1,
            samples: 9,
        };
        learned.judge(EngineId(0), &judged);
        assert_eq!(learned.judged(EngineId(0)), judged);
        assert_eq!(learned.judged(EngineId(1)), Judged::default());
    }
}
