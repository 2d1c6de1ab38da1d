//! How long a simulated engine takes. Owns the cost curves and nothing else; pure arithmetic.
//!
//! The names are those of profile files, so that a fitted profile of a real engine can be played back:
//! `ttft(n) = a·n² + b·n + c`, `interval(kv, r) = slope·kv + request_slope·r + intercept`, all in seconds.
//!
//! Invariant: 0 ≤ every duration ≤ [`DURATION_MAX`], whatever the coefficients (a negative or NaN result counts as 0).

use std::time::Duration;

/// Cost curves of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Profile {
    pub ttft_a: f64,
    pub ttft_b: f64,
    pub ttft_c: f64,
    pub tpot_slope: f64,
    pub tpot_request_slope: f64,
    pub tpot_intercept: f64,
    /// Seconds a decode leg waits for the KV of its handoff before the first token's interval. NIXL on loopback took
    /// 32 ms (vLLM 0.32.0, measured).
    pub transfer_s: f64,
    /// Prompts are read one after the other, as a busy engine does. Off for a flat latency.
    pub prefill_serial: bool,
}

impl Profile {
    /// Flat latencies, as `--ttft-ms` and `--tpot-ms` give them. Zero is "as fast as it can".
    pub fn flat(ttft_ms: f64, tpot_ms: f64) -> Self {
        Profile {
            ttft_c: ttft_ms / 1e3,
            tpot_intercept: tpot_ms / 1e3,
            ..Profile::default()
        }
    }

    /// Time to read a prompt of `tokens`, first token included.
    pub fn ttft(&self, tokens: u64) -> Duration {
        let n = tokens as f64;
        span((self.ttft_a * n + self.ttft_b) * n + self.ttft_c)
    }

    /// Time from one token to the next with `kv_tokens` and `requests` resident, the asking one included.
    pub fn interval(&self, kv_tokens: u64, requests: u64) -> Duration {
        span(
            self.tpot_slope * kv_tokens as f64
                + self.tpot_request_slope * requests as f64
                + self.tpot_intercept,
        )
    }

    /// Time that the transfer of a handoff takes.
    pub fn transfer(&self) -> Duration {
        span(self.transfer_s)
    }
}

/// A day: longer than any request lives, short enough that sums cannot overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(86_400);

fn span(seconds: f64) -> Duration {
    // `max` also turns NaN into 0.
    Duration::from_secs_f64(seconds.max(0.0).min(DURATION_MAX.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_follow_their_formulas() {
        let ms = Duration::from_millis;
        let flat = Profile::flat(40.0, 8.0);
        let curved = Profile {
            ttft_a: 1e-6,
            ttft_b: 1e-3,
            ttft_c: 0.01,
            tpot_slope: 1e-6,
            tpot_request_slope: 1e-3,
            tpot_intercept: 0.004,
            ..Profile::default()
        };
        // name, got, expected
        let rows = [
            ("flat ttft", flat.ttft(100_000), ms(40)),
            ("flat tpot", flat.interval(1_000_000, 64), ms(8)),
            ("zero", Profile::default().ttft(1), ms(0)),
            ("quadratic", curved.ttft(1_000), ms(1 + 1_000 + 10 + 999)),
            ("kv and requests", curved.interval(1_000, 2), ms(1 + 2 + 4)),
        ];
        for (name, got, expected) in rows {
            let off = got.abs_diff(expected);
            assert!(off < Duration::from_micros(1), "{name}: {got:?}");
        }
    }

    #[test]
    fn odd_coefficients_stay_in_range() {
        for c in [-1.0, f64::NAN, f64::NEG_INFINITY] {
            let p = Profile::flat(c, c);
            assert_eq!((p.ttft(1), p.interval(1, 1)), Default::default(), "{c}");
        }
        let p = Profile::flat(f64::INFINITY, 1e300);
        assert_eq!(p.ttft(1), DURATION_MAX);
        assert_eq!(p.interval(1, 1), DURATION_MAX);
    }
}
