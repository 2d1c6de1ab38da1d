//! How long things took, per shard: time to first token, time per output token, queue wait, request duration, loop
//! delay, and the router's own overhead by stage. Fixed buckets of relaxed atomics with one writer; readers copy and
//! merge them. No lock, no allocation, no resizing; a value past the last bound is counted in the open bucket.
//!
//! Invariant: BOUNDS_NS ascends, and count = Σ buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::base::words::words;

words! {
    /// What is timed.
    Series {
        /// Arrival of the head to the first token-bearing event.
        Ttft = "ttft",
        /// Mean time per output token after the first, one value per request.
        Tpot = "tpot",
        QueueWait = "queue_wait",
        /// Arrival of the head to the end of the answer.
        Duration = "request_duration",
        /// How late a shard's loop turned.
        LoopDelay = "loop_delay",
        Parse = "parse",
        Admit = "admit",
        Place = "place",
        /// A leg's connection, pooled or fresh.
        Connect = "connect",
        /// An engine's read until its bytes are ready for the client; one in 64 is timed.
        Relay = "relay",
    }
}

impl Series {
    /// The stages of the router's own overhead, one label each.
    pub const STAGES: [Series; 5] = [
        Series::Parse,
        Series::Admit,
        Series::Place,
        Series::Connect,
        Series::Relay,
    ];

    /// The bounds its text shows, as indices into [`BOUNDS_NS`]: user-visible times from 1 ms up, overhead and loop
    /// delay from 1 µs to 1 s. What lies below the first is in it, what lies above the last in `+Inf`.
    pub const fn bounds_shown(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Series::Ttft | Series::Tpot | Series::QueueWait | Series::Duration => MILLI..=KILO,
            _ => 0..=UNIT,
        }
    }
}

/// Upper bounds of the buckets, nanoseconds: 1, 1.5, 2, 3, 5, 7 per decade, 1 µs to 1000 s. The widest step is 3 to 5,
/// so a quantile read from them is off by two thirds of its value at worst.
pub const BOUNDS_NS: [u64; 55] = bounds();

/// All histograms of one shard.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ShardTimes {
    series: [Histogram; Series::COUNT],
}

impl ShardTimes {
    pub fn new() -> Self {
        Self::default()
    }

    /// Only for the owning shard's thread.
    pub fn record(&self, series: Series, took: Duration) {
        self.series[series.index()].record(took);
    }

    pub fn snapshot(&self) -> Times {
        Times {
            series: std::array::from_fn(|i| self.series[i].snapshot()),
        }
    }
}

/// A copy of a shard's histograms, or of several merged.
#[derive(Clone, Debug, Default)]
pub struct Times {
    series: [Distribution; Series::COUNT],
}

impl Times {
    pub fn of(&self, series: Series) -> &Distribution {
        &self.series[series.index()]
    }

    pub fn merge(&mut self, other: &Times) {
        for (a, b) in self.series.iter_mut().zip(&other.series) {
            a.merge(b);
        }
    }
}

/// One writer, many readers.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Histogram {
    pub fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = &self.buckets[bucket_of(ns)];
        bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
        self.sum_ns
            .store(self.sum_ns.load(Relaxed).saturating_add(ns), Relaxed);
    }

    pub fn snapshot(&self) -> Distribution {
        Distribution {
            buckets: std::array::from_fn(|i| self.buckets[i].load(Relaxed)),
            sum_ns: self.sum_ns.load(Relaxed),
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    buckets: [u64; BUCKETS],
    sum_ns: u64,
}

impl Distribution {
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// Values at or under the bound with this index.
    pub fn count_le(&self, bound: usize) -> u64 {
        self.buckets.iter().take(bound + 1).sum()
    }

    pub fn merge(&mut self, other: &Distribution) {
        for (a, b) in self.buckets.iter_mut().zip(&other.buckets) {
            *a = a.wrapping_add(*b);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Seconds under which a share `q` of the values lies, straight within a bucket; `None` without values. Values past
    /// the last bound read as the last bound.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let count = self.count();
        let rank = (q.clamp(0.0, 1.0) * count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            if *n > 0 && below + n >= rank {
                let low = i.checked_sub(1).map_or(0, |j| BOUNDS_NS[j]);
                let high = BOUNDS_NS.get(i).copied().unwrap_or(low);
                let share = (rank - below) as f64 / *n as f64;
                return Some((low as f64 + (high - low) as f64 * share) / 1e9);
            }
            below += n;
        }
        None
    }
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution {
            buckets: [0; BUCKETS],
            sum_ns: 0,
        }
    }
}

fn bucket_of(ns: u64) -> usize {
    BOUNDS_NS.partition_point(|bound| *bound < ns)
}

const fn bounds() -> [u64; 55] {
    let steps = [10, 15, 20, 30, 50, 70];
    let (mut out, mut i, mut decade) = ([0; 55], 0, 100);
    while i < out.len() {
        out[i] = steps[i % 6] * decade;
        i += 1;
        if i % 6 == 0 {
            decade *= 10;
        }
    }
    out
}

const BUCKETS: usize = BOUNDS_NS.len() + 1;
const MILLI: usize = 18;
const UNIT: usize = 36;
const KILO: usize = 54;

const _: () = assert!(BOUNDS_NS[0] == 1_000 && BOUNDS_NS[MILLI] == 1_000_000);
const _: () = assert!(BOUNDS_NS[UNIT] == 1_000_000_000 && BOUNDS_NS[KILO] == 1_000_000_000_000);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_ascend_and_hold_their_own_value() {
        assert!(BOUNDS_NS.windows(2).all(|w| w[0] < w[1]));
        for (i, bound) in BOUNDS_NS.iter().enumerate() {
            assert_eq!(bucket_of(*bound), i, "le is inclusive");
            assert_eq!(bucket_of(bound + 1), i + 1);
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn quantiles_of_known_values() {
        let h = Histogram::default();
        assert_eq!(h.snapshot().quantile(0.5), None);
        h.record(Duration::MAX);
        assert_eq!(h.snapshot().quantile(0.5), Some(1000.0));
        let h = Histogram::default();
        (0..90).for_each(|_| h.record(Duration::from_millis(10)));
        (0..10).for_each(|_| h.record(Duration::from_secs(2)));
        let d = h.snapshot();
        assert_eq!((d.count(), d.sum_seconds()), (100, 20.9));
        assert!(d.quantile(0.5).unwrap() <= 0.010 && d.quantile(0.89).unwrap() <= 0.010);
        assert!(d.quantile(0.91).unwrap() > 1.5 && d.quantile(1.0).unwrap() == 2.0);
    }

    proptest! {
        /// The oracle counts plainly; merging two shards must equal recording into one.
        #[test]
        fn buckets_match_a_plain_count(values in prop::collection::vec(0u64..2_000_000_000_000, 1..200), cut in 0usize..200) {
            let (a, b) = (Histogram::default(), Histogram::default());
            for (i, ns) in values.iter().enumerate() {
                if i < cut { &a } else { &b }.record(Duration::from_nanos(*ns));
            }
            let mut d = a.snapshot();
            d.merge(&b.snapshot());
            prop_assert_eq!(d.count(), values.len() as u64);
            for (i, bound) in BOUNDS_NS.iter().enumerate() {
                prop_assert_eq!(d.count_le(i), values.iter().filter(|v| *v <= bound).count() as u64);
            }
            let mut sorted = values.clone();
            sorted.sort_unstable();
            for q in [0.0, 0.5, 0.9, 0.99, 1.0] {
                let rank = ((q * sorted.len() as f64).ceil().max(1.0) as usize) - 1;
                let bucket = bucket_of(sorted[rank]);
                let low = bucket.checked_sub(1).map_or(0, |j| BOUNDS_NS[j]) as f64 / 1e9;
                let high = BOUNDS_NS.get(bucket).map_or(low, |b| *b as f64 / 1e9);
                let got = d.quantile(q).unwrap();
                prop_assert!(got >= low && got <= high, "q {} got {} not in {}..{}", q, got, low, high);
            }
        }
    }
}
