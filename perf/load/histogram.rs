//! Durations counted in buckets that grow with them: any quantile within 1 %, whatever the spread.
//!
//! Below 128 ns each has a bucket of its own; above, 64 buckets a doubling. Invariant: `count` is the sum of all buckets.

use serde_json::{Value, json};

/// See the head of this file.
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
    sum: u128,
}

/// Bits of a value that tell its bucket, the leading one aside.
const BITS: u32 = 6;

const BUCKETS: usize = (64 - BITS as usize) << BITS;

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: vec![0; BUCKETS],
            count: 0,
            max: 0,
            sum: 0,
        }
    }
}

impl Histogram {
    pub fn add(&mut self, ns: u64) {
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.max = self.max.max(ns);
        self.sum += u128::from(ns);
    }

    /// The middle of the bucket that the quantile lies in.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(index).min(self.max);
            }
        }
        0
    }

    /// In microseconds.
    pub fn report(&self) -> Value {
        let us = |ns: u64| ns as f64 / 1e3;
        json!({
            "n": self.count,
            "mean": self.sum as f64 / 1e3 / self.count.max(1) as f64,
            "p50": us(self.quantile(0.5)),
            "p90": us(self.quantile(0.9)),
            "p99": us(self.quantile(0.99)),
            "p999": us(self.quantile(0.999)),
            "max": us(self.max),
        })
    }
}

fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(BITS + 1);
    ((shift as usize) << BITS) + (ns >> shift) as usize
}

fn middle(index: usize) -> u64 {
    // The first two rows are one bucket a nanosecond; in the others the leading bit comes back.
    let shift = (index >> BITS).saturating_sub(1) as u32;
    let low = ((index - ((shift as usize) << BITS)) as u64) << shift;
    low + (1 << shift) / 2
}

#[test]
fn quantiles_are_within_a_hundredth() {
    for ns in (0..400).chain([1_000, 123_456, 9_999_999, 1 << 40, u64::MAX >> 8]) {
        let mut one = Histogram::default();
        one.add(ns);
        one.max = u64::MAX;
        let got = one.quantile(0.5);
        assert!(got.abs_diff(ns) as f64 <= ns as f64 / 100.0, "{ns}: {got}");
    }
    let mut all = Histogram::default();
    (1..=100_000).for_each(|ns| all.add(ns));
    for (share, want) in [(0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
        let got = all.quantile(share) as f64;
        assert!((got / want - 1.0).abs() < 0.01, "{share}: {got}");
    }
    assert_eq!(Histogram::default().quantile(0.5), 0);
}
