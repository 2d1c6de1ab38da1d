//! Decode correction: how many times slower than its profile an engine generates, as a moving average of [`pace`](super::pace) ratios.
//!
//! Each sample is bounded before it is averaged: a single stall moves the average no further than a busy engine does, and one that
//! was ten times too slow is believed again after a few good samples. Invariant: a value lies within the rules' bounds.

use crate::config::checked::DecodeCorrection;

/// The average once `sample` is in. `seen`: samples before it. The first ones weigh alike, so that none is the yardstick of the next.
pub fn step(rules: &DecodeCorrection, seen: u64, value: f64, sample: f64) -> f64 {
    if !sample.is_finite() {
        return value;
    }
    let sample = bounded(rules, sample);
    let weight = rules.alpha.max(1.0 / (seen as f64 + 1.0));
    bounded(rules, value + weight * (sample - value))
}

/// What prices multiply with: 1 until enough was seen.
pub fn counts(rules: &DecodeCorrection, seen: u64, value: f64) -> f64 {
    if seen < u64::from(rules.min_samples) {
        1.0
    } else {
        value
    }
}

/// The value after a window without samples: half way back to the profile. What an engine was is no word on what it is, and one that is
/// thought slow may be given nothing that would show otherwise.
pub fn fade(rules: &DecodeCorrection, value: f64) -> f64 {
    bounded(rules, 1.0 + (value - 1.0) / 2.0)
}

/// A value learned before, and the samples that it stands for: as many as make it count, and each new one weigh as in the long run.
pub fn recalled(rules: &DecodeCorrection, value: f64) -> (u64, f64) {
    let settled = (1.0 / rules.alpha.max(1e-6)).ceil() as u64;
    (
        settled.max(u64::from(rules.min_samples)),
        bounded(rules, value),
    )
}

/// What is no number becomes a bound.
fn bounded(rules: &DecodeCorrection, value: f64) -> f64 {
    value.max(rules.min).min(rules.max)
}
