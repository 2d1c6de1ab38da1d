//! How long a simulated engine takes, and how much it holds. Owns the cost curves and the file they come from; pure.
//!
//! The names are those of profile files, so that a fitted profile of a real engine can be played back:
//! `ttft(n) = a·n² + b·n + c`, `interval(kv, r) = slope·kv + request_slope·r + intercept`, all in seconds.
//!
//! Invariant: 0 ≤ every duration ≤ [`DURATION_MAX`], whatever the coefficients (a negative or NaN result counts as 0).

use std::time::Duration;

use crate::config::{Errors, Format, profiles};

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

/// How much an engine takes at once. 0 is unbounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Requests that run at once (vLLM's `--max-num-seqs`); others wait.
    pub requests_max: u64,
    /// Tokens that all running requests keep; a request that finds no room waits, and one that cannot grow goes back to wait.
    pub kv_tokens_max: u64,
    /// Tokens of prompts that the prefix cache remembers. 0: there is none.
    pub cached_tokens_max: u64,
}

/// One row of a profile file.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    pub iid: String,
    pub profile: Profile,
    pub bounds: Bounds,
}

/// Reads a profile file, as `narwhal profile` writes it. `file` is only its name in messages.
pub fn parse(file: &str, text: &str, format: Format) -> Result<Vec<Named>, Errors> {
    let rows = profiles::parse(file, text, format)?;
    Ok(rows.into_iter().map(Named::from).collect())
}

impl From<profiles::Profile> for Named {
    fn from(row: profiles::Profile) -> Self {
        let curves = row.curves;
        Named {
            iid: row.iid,
            profile: Profile {
                ttft_a: curves.ttft_a,
                ttft_b: curves.ttft_b,
                ttft_c: curves.ttft_c,
                tpot_slope: curves.tpot_slope,
                tpot_request_slope: curves.tpot_request_slope,
                tpot_intercept: curves.tpot_intercept,
                transfer_s: 0.0,
                prefill_serial: true,
            },
            bounds: Bounds {
                requests_max: curves.decode_max_requests,
                kv_tokens_max: curves.kv_capacity_tokens,
                cached_tokens_max: curves.kv_capacity_tokens,
            },
        }
    }
}

/// The row for `iid`, or the only one where none is named; else what is wrong, in words.
pub fn choose<'r>(rows: &'r [Named], iid: Option<&str>) -> Result<&'r Named, String> {
    // A file may hold thousands.
    let names = || {
        let names = rows.iter().take(8).map(|row| row.iid.as_str());
        let more = (rows.len() > 8).then_some("…");
        names.chain(more).collect::<Vec<_>>()
    };
    match (rows, iid) {
        ([], _) => Err("the file holds no profile".into()),
        ([row], None) => Ok(row),
        (_, None) => Err(format!(
            "the file holds {} profiles, --iid says which: {}",
            rows.len(),
            names().join(", ")
        )),
        (rows, Some(iid)) => rows
            .iter()
            .find(|row| row.iid == iid)
            .ok_or_else(|| format!("no profile of {iid:?}, found {}", names().join(", "))),
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

    const ROW: &str = r#"{"iid":"e0","ttft_a":0.0,"ttft_b":0.001,"ttft_c":0.01,"tpot_slope":1e-9,
        "tpot_intercept":0.001,"kv_capacity_tokens":200,"tpot_request_slope":0.5,"decode_min_requests":1,
        "decode_max_requests":8,"decode_min_kv_tokens":1,"decode_max_kv_tokens":100,"decode_fit_mape":0.01,
        "decode_cv_mape":0.01,"generation_digest":"sha256:00"}"#;

    fn rows(rows: &str) -> Result<Vec<Named>, String> {
        let text =
            format!(r#"{{"schema":"narwhal.profiles","schema_version":1,"profiles":[{rows}]}}"#);
        parse("p.json", &text, Format::Json).map_err(|errors| errors.to_string())
    }

    // proves R-CLI-3
    #[test]
    fn a_profile_file_is_played_back() {
        let one = rows(ROW).unwrap();
        let row = choose(&one, None).unwrap();
        assert_eq!(row.profile.ttft(100), Duration::from_millis(110));
        assert_eq!(row.profile.interval(0, 1), Duration::from_millis(501));
        let bounds = Bounds {
            requests_max: 8,
            kv_tokens_max: 200,
            cached_tokens_max: 200,
        };
        assert_eq!((row.bounds, row.profile.prefill_serial), (bounds, true));
        let two = rows(&format!("{ROW},{}", ROW.replace("e0", "e1"))).unwrap();
        assert_eq!(choose(&two, Some("e1")).unwrap().iid, "e1");
        let why = choose(&two, None).unwrap_err();
        assert_eq!(why, "the file holds 2 profiles, --iid says which: e0, e1");
        assert_eq!(
            choose(&two, Some("e2")).unwrap_err(),
            "no profile of \"e2\", found e0, e1"
        );
        assert!(choose(&[], None).is_err());
    }

    // proves R-CLI-3
    #[test]
    fn faults_of_a_profile_file_are_named() {
        // from, to, message
        let table = [
            (
                "\"ttft_a\":0.0",
                "\"ttft_a\":\"0\"",
                "profiles[0].ttft_a: wrong type, found \"0\", allowed -1000000 to 1000000 seconds per token squared",
            ),
            (
                "ttft_b",
                "tftt_b",
                "profiles[0].tftt_b: unknown key; did you mean ttft_b?",
            ),
            (
                "\"ttft_c\":0.01,",
                "",
                "profiles[0].ttft_c: missing, allowed -1000000 to 1000000 seconds",
            ),
            (
                "\"kv_capacity_tokens\":200",
                "\"kv_capacity_tokens\":0",
                "profiles[0].kv_capacity_tokens: out of range, found 0",
            ),
            (
                "\"kv_capacity_tokens\":200",
                "\"kv_capacity_tokens\":1.5",
                "profiles[0].kv_capacity_tokens: not a whole number, found 1.5",
            ),
            (
                "\"decode_min_requests\":1",
                "\"decode_min_requests\":9",
                "profiles[0].decode_min_requests: out of range, found 9, allowed 1 to the value of decode_max_requests, 8",
            ),
            (
                "1e-9",
                "1e999",
                "profiles[0].tpot_slope: out of range, found 1e999",
            ),
        ];
        for (from, to, want) in table {
            assert!(ROW.contains(from), "{from}");
            let errors = rows(&ROW.replace(from, to)).expect_err(to);
            assert!(errors.contains(want), "{to}: {errors}");
        }
    }
}
