//! How values spread, in bounded memory: counts in buckets that are narrow everywhere, for quantiles of files of any length.
//!
//! Below [`EXACT`] microseconds a bucket holds one value; above, each doubling has half as many buckets, so a bucket is at most a 128th of
//! its values wide, and a quantile read as its middle is off by a 256th (0.4 %) at most. Least, greatest, sum and count are exact.
//!
//! Invariant: count = Σ buckets, and least ≤ every quantile ≤ greatest.

/// See the head of this file. The vector grows to the greatest bucket that is used, [`BUCKETS_MAX`] at most.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    least: u64,
    greatest: u64,
}

/// Values that have a bucket each.
pub const EXACT: u64 = 1 << BITS;
/// What is over it counts as this: 2^42 microseconds, 51 days.
pub const VALUE_MAX: u64 = 1 << 42;

const BITS: u32 = 8;
const HALF: u64 = EXACT / 2;
pub const BUCKETS_MAX: usize = bucket_of(VALUE_MAX) + 1;

impl Spread {
    pub fn add(&mut self, value: u64) {
        let value = value.min(VALUE_MAX);
        let bucket = bucket_of(value);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.least = if self.count == 0 {
            value
        } else {
            self.least.min(value)
        };
        self.greatest = self.greatest.max(value);
        self.count += 1;
        self.sum += u128::from(value);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// `None` without values, like the others.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    pub fn greatest(&self) -> Option<u64> {
        (self.count > 0).then_some(self.greatest)
    }

    /// The value that a share `q` of all are no greater than (nearest rank).
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (bucket, n) in self.buckets.iter().enumerate() {
            below += n;
            if *n > 0 && below >= rank {
                return Some(middle(bucket).clamp(self.least, self.greatest));
            }
        }
        self.greatest()
    }
}

const fn bucket_of(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    // 1 for the first doubling above the exact ones.
    let doublings = (63 - BITS - value.leading_zeros() + 1) as u64;
    let within = (value >> doublings) - HALF;
    (EXACT + (doublings - 1) * HALF + within) as usize
}

/// Of the values of a bucket.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket;
    }
    let doublings = (bucket - EXACT) / HALF + 1;
    let within = (bucket - EXACT) % HALF;
    let low = (within + HALF) << doublings;
    low + (1 << doublings) / 2
}

const _: () = assert!(BUCKETS_MAX < 5_000);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        let mut last = 0;
        for value in (0..100_000).chain((0..40).map(|n| (1 << 17) << (n / 2))) {
            let bucket = bucket_of(value);
            assert!(bucket == last || bucket == last + 1 || value >= 1 << 17);
            last = bucket;
            assert_eq!(bucket_of(middle(bucket)), bucket, "{value}");
        }
    }

    #[test]
    fn nothing_and_too_much() {
        let mut spread = Spread::default();
        assert_eq!((spread.quantile(0.5), spread.mean()), (None, None));
        spread.add(u64::MAX);
        assert_eq!(spread.quantile(0.5), Some(VALUE_MAX));
        assert_eq!(spread.buckets.len(), BUCKETS_MAX);
    }

    proptest! {
        /// The oracle sorts.
        #[test]
        fn quantiles_are_near_the_sorted_ones(
            values in prop::collection::vec(0u64..1 << 40, 1..300),
            small in prop::collection::vec(0u64..300, 0..300),
        ) {
            let mut all: Vec<u64> = values.into_iter().chain(small).collect();
            let mut spread = Spread::default();
            all.iter().for_each(|value| spread.add(*value));
            all.sort_unstable();
            prop_assert_eq!(spread.count(), all.len() as u64);
            prop_assert_eq!(spread.greatest(), all.last().copied());
            let sum: u128 = all.iter().map(|v| u128::from(*v)).sum();
            prop_assert_eq!(spread.mean(), Some(sum as f64 / all.len() as f64));
            for q in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let rank = ((q * all.len() as f64).ceil().max(1.0) as usize) - 1;
                let (want, got) = (all[rank], spread.quantile(q).unwrap());
                prop_assert!(got.abs_diff(want) <= want / 256 + 1, "{} for {}", got, want);
                prop_assert!(want >= EXACT || got == want);
            }
        }
    }
}
