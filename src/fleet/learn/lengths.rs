//! Output lengths by power-of-two buckets of prompt and cap: which bucket, what a request teaches it, and what it then says.
//!
//! With a cap what is learned is the part of it that was delivered, without one the tokens delivered. Values are `f32`: exact for
//! counts up to 16 million, and their bits stand in the order of their values.

/// Prompts from 0 tokens to 2^20 and more.
pub const PROMPTS: usize = 22;
/// No cap, then caps from 1 to 2^20 and more.
pub const CAPS: usize = 22;
pub const BUCKETS: usize = PROMPTS * CAPS;

/// Requests before a bucket speaks.
pub const SAMPLES_MIN: u64 = 3;

/// Own length past the prompt of a request without a cap, until it is learned.
pub const UNCAPPED_TOKENS: u64 = 256;

/// The bucket of a request.
pub fn bucket(prompt_tokens: u64, cap: Option<u64>) -> usize {
    let column = cap.map_or(0, |cap| 1 + power(cap.max(1), CAPS - 2));
    let row = match prompt_tokens {
        0 => 0,
        n => 1 + power(n, PROMPTS - 2),
    };
    row * CAPS + column
}

/// The least prompt and the least cap of a bucket; no cap is `None`.
pub fn floor(bucket: usize) -> (u64, Option<u64>) {
    let (row, column) = (bucket / CAPS, bucket % CAPS);
    let prompt = row.checked_sub(1).map_or(0, |power| 1 << power);
    (prompt, column.checked_sub(1).map(|power| 1 << power))
}

/// What a served request teaches its bucket. A cap of 0 leaves nothing to learn.
pub fn lesson(cap: Option<u64>, delivered: u64) -> Option<f32> {
    match cap {
        None => Some(delivered as f32),
        Some(0) => None,
        // An engine may count otherwise than its client.
        Some(cap) => Some((delivered as f64 / cap as f64).min(1.0) as f32),
    }
}

/// Own length past the prompt, by what its bucket has learned.
pub fn expected(cap: Option<u64>, learned: Option<f32>) -> u64 {
    match (cap, learned) {
        (None, None) => UNCAPPED_TOKENS,
        (None, Some(tokens)) => tokens.round() as u64,
        (Some(cap), None) => cap,
        // At most the cap, whatever rounding says.
        (Some(cap), Some(part)) => ((cap as f64 * f64::from(part)).round() as u64).min(cap),
    }
}

/// The middle one, or the mean of the two. Sorts what it is given.
pub fn median(values: &mut [f32]) -> Option<f32> {
    values.sort_unstable_by(f32::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = values[values.len() / 2 - 1];
    Some(lower + (upper - lower) / 2.0)
}

/// The whole power of two in `n`, at most `most`.
fn power(n: u64, most: usize) -> usize {
    (n.ilog2() as usize).min(most)
}
