//! Profiles: what each engine was measured to cost (schema `narwhal.profiles`). Read as strictly as the fleet file; pure.
//!
//! Seconds and tokens throughout: `prefill(n) = a·n² + b·n + c`, `interval(kv, r) = slope·kv + request_slope·r + intercept`.
//! Invariant: `decode_min_… ≤ decode_max_…`; every duration that comes out is finite and at least 0.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use super::rows::{self, Key, Table, Want};
use super::{Errors, Format};

/// One engine's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    pub iid: String,
    pub curves: Curves,
    /// Mean absolute error of the fit, and leaving one out, as parts of 1.
    pub decode_fit_mape: Option<f64>,
    pub decode_cv_mape: Option<f64>,
    pub generation_digest: Option<String>,
}

/// What it costs, and what there is room for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Curves {
    pub ttft_a: f64,
    pub ttft_b: f64,
    pub ttft_c: f64,
    pub tpot_slope: f64,
    pub tpot_request_slope: f64,
    pub tpot_intercept: f64,
    /// What was measured: outside of it the curves are a guess.
    pub decode_min_requests: u64,
    pub decode_max_requests: u64,
    pub decode_min_kv_tokens: u64,
    pub decode_max_kv_tokens: u64,
    pub kv_capacity_tokens: u64,
}

impl Curves {
    /// Seconds to read a prompt.
    pub fn prefill_s(&self, tokens: u64) -> f64 {
        let n = tokens as f64;
        seconds((self.ttft_a * n + self.ttft_b) * n + self.ttft_c)
    }

    /// Seconds from one token to the next.
    pub fn interval_s(&self, kv_tokens: u64, requests: u64) -> f64 {
        seconds(
            self.tpot_slope * kv_tokens as f64
                + self.tpot_request_slope * requests as f64
                + self.tpot_intercept,
        )
    }

    /// KV at which `correction × interval` reaches `target_s` with so many requests, within what was measured.
    pub fn headroom_tokens(&self, correction: f64, requests: u64, target_s: f64) -> f64 {
        let (least, most) = (
            self.decode_min_kv_tokens as f64,
            self.decode_max_kv_tokens as f64,
        );
        if self.tpot_slope <= 0.0 {
            return most;
        }
        let fixed = self.tpot_request_slope * requests as f64 + self.tpot_intercept;
        ((target_s / correction - fixed) / self.tpot_slope).clamp(least, most)
    }
}

/// Reads a profile file; its name says the format.
pub fn load(path: &Path) -> Result<Vec<Profile>, Errors> {
    let file = path.display().to_string();
    let format = Format::of(path)
        .ok_or_else(|| Errors::of_file(&file, "the name must end in .json or .toml"))?;
    let text = String::from_utf8(super::read(path)?)
        .map_err(|_| Errors::of_file(&file, "is not UTF-8"))?;
    parse(&file, &text, format)
}

/// `file` is only its name in messages.
pub fn parse(file: &str, text: &str, format: Format) -> Result<Vec<Profile>, Errors> {
    let schema = ("narwhal.profiles", "profiles");
    let seen = RefCell::new(BTreeSet::new());
    rows::read((file, text, format), schema, |node, shown, faults| {
        let table = Table::read(node, shown, KEYS, faults)?;
        if let Some(iid) = table.text("iid")
            && !seen.borrow_mut().insert(iid.to_owned())
        {
            let fault = faults.add(table.at("iid"), &table.path("iid"), "given twice");
            fault.found = format!("{iid:?}");
        }
        let real = |name| table.real(name).unwrap_or(0.0);
        let count = |name| table.count(name);
        let capacity = count("kv_capacity_tokens").unwrap_or(1);
        for (low, high, otherwise) in [
            ("decode_min_requests", "decode_max_requests", 1),
            ("decode_min_kv_tokens", "decode_max_kv_tokens", capacity),
        ] {
            let most = count(high).unwrap_or(otherwise);
            if let Some(least) = count(low)
                && least > most
            {
                let fault = faults.add(table.at(low), &table.path(low), "out of range");
                fault.found = least.to_string();
                fault.allowed = format!("1 to the value of {high}, {most}");
            }
        }
        Some(Profile {
            iid: table.text("iid")?.to_owned(),
            curves: Curves {
                ttft_a: real("ttft_a"),
                ttft_b: real("ttft_b"),
                ttft_c: real("ttft_c"),
                tpot_slope: real("tpot_slope"),
                tpot_request_slope: real("tpot_request_slope"),
                tpot_intercept: real("tpot_intercept"),
                decode_min_requests: count("decode_min_requests").unwrap_or(1),
                decode_max_requests: count("decode_max_requests").unwrap_or(1),
                decode_min_kv_tokens: count("decode_min_kv_tokens").unwrap_or(1),
                decode_max_kv_tokens: count("decode_max_kv_tokens").unwrap_or(capacity),
                kv_capacity_tokens: capacity,
            },
            decode_fit_mape: table.real("decode_fit_mape"),
            decode_cv_mape: table.real("decode_cv_mape"),
            generation_digest: table.text("generation_digest").map(str::to_owned),
        })
    })
}

const COEFFICIENT: Want = Want::Real(-1e6, 1e6);
const TOKENS: Want = Want::Count(1, 1 << 50);
const ERROR: Want = Want::Real(0.0, 1e6);

const KEYS: &[Key] = &[
    Key::new("iid", Want::Text).must(),
    Key::new("ttft_a", COEFFICIENT)
        .unit("seconds per token squared")
        .must(),
    Key::new("ttft_b", COEFFICIENT)
        .unit("seconds per token")
        .must(),
    Key::new("ttft_c", COEFFICIENT).unit("seconds").must(),
    Key::new("tpot_slope", COEFFICIENT)
        .unit("seconds per KV token")
        .must(),
    Key::new("tpot_request_slope", COEFFICIENT).unit("seconds per request"),
    Key::new("tpot_intercept", COEFFICIENT)
        .unit("seconds")
        .must(),
    Key::new("kv_capacity_tokens", TOKENS).unit("tokens").must(),
    Key::new("decode_min_requests", TOKENS).unit("requests"),
    Key::new("decode_max_requests", TOKENS)
        .unit("requests")
        .must(),
    Key::new("decode_min_kv_tokens", TOKENS).unit("tokens"),
    Key::new("decode_max_kv_tokens", TOKENS).unit("tokens"),
    Key::new("decode_fit_mape", ERROR),
    Key::new("decode_cv_mape", ERROR),
    Key::new("generation_digest", Want::Text),
];

/// At most a day, longer than any request lives. What is no number is 0.
fn seconds(value: f64) -> f64 {
    if value > 0.0 {
        value.min(86_400.0)
    } else {
        0.0
    }
}

#[doc(hidden)]
pub mod fuzzing {
    use super::{Curves, parse};
    use crate::config::Format;

    /// Any text, as JSON and as TOML: profiles or faults, no panic. What is read keeps its bounds and its prices are times; faults have
    /// places inside the text and one line each.
    pub fn fuzz(data: &[u8]) {
        let text = String::from_utf8_lossy(data);
        for format in [Format::Json, Format::Toml] {
            let errors = match parse("f", &text, format) {
                Ok(profiles) => {
                    for (n, profile) in profiles.iter().enumerate() {
                        let others = &profiles[n + 1..];
                        assert!(others.iter().all(|other| other.iid != profile.iid));
                        check(&profile.curves);
                    }
                    continue;
                }
                Err(errors) => errors,
            };
            assert!(!errors.0.is_empty());
            let lines = text.bytes().filter(|b| *b == b'\n').count() + 1;
            assert!(errors.0.iter().all(|e| e.line <= lines));
            assert_eq!(errors.to_string().lines().count(), errors.0.len());
        }
    }

    fn check(curves: &Curves) {
        let (least, most) = (curves.decode_min_kv_tokens, curves.decode_max_kv_tokens);
        assert!(1 <= least && least <= most);
        assert!(1 <= curves.decode_min_requests);
        assert!(curves.decode_min_requests <= curves.decode_max_requests);
        for n in [0, 1, 4_096, 1 << 40, u64::MAX] {
            for seconds in [curves.prefill_s(n), curves.interval_s(n, n)] {
                assert!((0.0..=86_400.0).contains(&seconds), "{seconds}");
            }
            for (correction, target_s) in [(1.0, 0.05), (0.5, 0.0), (2.0, 1e9)] {
                let room = curves.headroom_tokens(correction, n, target_s);
                assert!((least as f64..=most as f64).contains(&room), "{room}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#""iid":"e0","ttft_a":1e-6,"ttft_b":0.001,"ttft_c":0.01,"tpot_slope":1e-6,"tpot_request_slope":0.001,
        "tpot_intercept":0.004,"kv_capacity_tokens":1000,"decode_max_requests":8"#;

    fn file(row: &str) -> String {
        format!(r#"{{"schema":"narwhal.profiles","schema_version":1,"profiles":[{{{row}}}]}}"#)
    }

    fn one(more: &str) -> Profile {
        let text = file(&format!("{ROW}{more}"));
        let rows = parse("p.json", &text, Format::Json).unwrap_or_else(|e| panic!("{e}"));
        rows.into_iter().next().expect("a row")
    }

    // proves R-SCH-1
    #[test]
    fn curves_follow_their_formulas() {
        let p = one("").curves;
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} {want}");
        near(p.prefill_s(1_000), 1.0 + 1.0 + 0.01);
        near(p.interval_s(1_000, 2), 0.001 + 0.002 + 0.004);
        assert_eq!((p.decode_min_kv_tokens, p.decode_max_kv_tokens), (1, 1_000));
        // 4 ms + 2 ms are fixed with two requests.
        near(p.headroom_tokens(1.0, 2, 0.006_5), 500.0);
        near(p.headroom_tokens(2.0, 2, 0.013), 500.0);
        near(p.headroom_tokens(1.0, 2, 1.0), 1_000.0);
        near(p.headroom_tokens(1.0, 2, 0.0), 1.0);
        let flat = Curves {
            tpot_slope: 0.0,
            ..p
        };
        near(flat.headroom_tokens(1.0, 2, 0.0), 1_000.0);
        let odd = Curves {
            ttft_c: f64::NAN,
            tpot_intercept: -1e6,
            ..p
        };
        assert_eq!((odd.prefill_s(1), odd.interval_s(1, 1)), (0.0, 0.0));
    }

    #[test]
    fn seeds_of_the_fuzz_body() {
        fuzzing::fuzz(file(ROW).as_bytes());
        fuzzing::fuzz(file(&format!("{ROW}}},{{{ROW}")).as_bytes());
        fuzzing::fuzz(file(&ROW.replace("1e-6", "-1e6")).as_bytes());
        for seed in ["", "[", "profiles = 5", "{\"profiles\":[[]]}"] {
            fuzzing::fuzz(seed.as_bytes());
        }
    }

    // proves R-SCH-1
    #[test]
    fn faults_are_named() {
        let rows = [
            (ROW.replace("0.001", "\"x\""), "profiles[0].ttft_b"),
            (ROW.replace("\"iid\":\"e0\",", ""), "profiles[0].iid"),
            (
                format!("{ROW},\"decode_min_requests\":9"),
                "1 to the value of decode_max_requests, 8",
            ),
            (
                format!("{ROW},\"decode_min_kv_tokens\":1001"),
                "1 to the value of decode_max_kv_tokens, 1000",
            ),
            (format!("{ROW}}},{{{ROW}"), "profiles[1].iid: given twice"),
            (format!("{ROW},\"tpot_sloppe\":1"), "tpot_slope"),
            (ROW.replace("1000", "0"), "kv_capacity_tokens"),
            (ROW.replace("0.004", "1e999"), "tpot_intercept"),
            (ROW.replace("0.004", "NaN"), "p.json"),
        ];
        for (row, want) in rows {
            let errors = parse("p.json", &file(&row), Format::Json).expect_err(want);
            assert!(errors.to_string().contains(want), "{want} in {errors}");
        }
    }
}
