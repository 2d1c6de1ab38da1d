//! The profile file: rows of engines that were measured take the place of their old ones, other rows stay as they are, byte for byte.
//!
//! Written beside and renamed, so that a reader sees the old file or the new one. Invariant: what is written is what
//! `config::profiles` reads.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::config::Format;
use crate::config::profiles;
use crate::control::disk;

/// One engine's row, with the names of the file. Its own type, so that the file's shape is in one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub iid: String,
    pub ttft: [f64; 3],
    pub tpot: [f64; 3],
    pub kv_capacity_tokens: u64,
    pub decode: Option<Measured>,
    pub generation_digest: String,
}

/// What the decode curve rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub requests: (u64, u64),
    pub kv_tokens: (u64, u64),
    pub fit_mape: f64,
    pub cv_mape: f64,
}

/// The rows of a file.
#[derive(Debug)]
pub struct Profiles {
    path: PathBuf,
    rows: Vec<(String, Box<RawValue>)>,
}

#[derive(Deserialize)]
struct Top {
    profiles: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Named {
    iid: String,
}

impl Profiles {
    /// What is there already; a file that is none is refused before anything is measured.
    pub fn open(path: &Path) -> Result<Profiles, String> {
        let shown = path.display();
        if Format::of(path) != Some(Format::Json) {
            return Err(format!("--out {shown}: the name must end in .json"));
        }
        let mut rows = Vec::new();
        if path.exists() {
            profiles::load(path).map_err(|why| format!("--out: {why}"))?;
            let text = fs::read_to_string(path).map_err(|why| format!("--out {shown}: {why}"))?;
            let text = text.trim_start_matches('\u{feff}');
            let bad = |why: serde_json::Error| format!("--out {shown}: {why}");
            let top: Top = serde_json::from_str(text).map_err(bad)?;
            for row in top.profiles {
                let named: Named = serde_json::from_str(row.get()).map_err(bad)?;
                rows.push((named.iid, row));
            }
        }
        let path = path.to_owned();
        Ok(Profiles { path, rows })
    }

    /// Puts a row in, and the file on disk.
    pub fn put(&mut self, row: &Row) -> Result<(), String> {
        let raw = RawValue::from_string(row.json()).map_err(|why| why.to_string())?;
        match self.rows.iter_mut().find(|(iid, _)| *iid == row.iid) {
            Some(old) => old.1 = raw,
            None => self.rows.push((row.iid.clone(), raw)),
        }
        let text = self.text();
        let name = self.path.display().to_string();
        profiles::parse(&name, &text, Format::Json)
            .map_err(|why| format!("what was measured makes no profile: {why}"))?;
        disk::replace(&self.path, &text).map_err(|why| format!("{name}: {why}"))
    }

    fn text(&self) -> String {
        let rows: Vec<&str> = self.rows.iter().map(|(_, raw)| raw.get()).collect();
        format!(
            "{{\"schema\": \"narwhal.profiles\", \"schema_version\": 1, \"profiles\": [\n  {}\n]}}\n",
            rows.join(",\n  ")
        )
    }
}

impl Row {
    /// In the order in which a person reads it.
    fn json(&self) -> String {
        let [a, b, c] = self.ttft;
        let [slope, request_slope, intercept] = self.tpot;
        let mut members = vec![
            ("iid", json!(self.iid)),
            ("ttft_a", json!(a)),
            ("ttft_b", json!(b)),
            ("ttft_c", json!(c)),
            ("tpot_slope", json!(slope)),
            ("tpot_request_slope", json!(request_slope)),
            ("tpot_intercept", json!(intercept)),
            ("kv_capacity_tokens", json!(self.kv_capacity_tokens)),
        ];
        match &self.decode {
            // The engine is kept from decoding; the key must be there.
            None => members.push(("decode_max_requests", json!(1))),
            Some(of) => members.extend([
                ("decode_min_requests", json!(of.requests.0)),
                ("decode_max_requests", json!(of.requests.1)),
                ("decode_min_kv_tokens", json!(of.kv_tokens.0)),
                ("decode_max_kv_tokens", json!(of.kv_tokens.1)),
                ("decode_fit_mape", json!(of.fit_mape)),
                ("decode_cv_mape", json!(of.cv_mape)),
            ]),
        }
        members.push(("generation_digest", json!(self.generation_digest)));
        let members: Vec<String> = members
            .iter()
            .map(|(name, value)| format!("\"{name}\": {value}"))
            .collect();
        format!("{{{}}}", members.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    // proves R-SCH-1, R-CLI-5
    #[test]
    fn rows_are_replaced_by_name_and_others_stay_as_they_were() {
        let folder = std::env::temp_dir().join(format!("narwhal-file-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the test");
        let path = folder.join("p.json");
        let other = r#"{"iid":"x","_by":"hand", "ttft_a":1e-09,"ttft_b":0.10,"ttft_c":0,"tpot_slope":0,
            "tpot_intercept":1,"kv_capacity_tokens":9,"decode_max_requests":3}"#;
        let old = format!(
            r#"{{"schema":"narwhal.profiles","schema_version":1,"profiles":[{},{other}]}}"#,
            other.replace("\"x\"", "\"e0\"")
        );
        fs::write(&path, old).expect("a file");
        let row = Row {
            iid: "e0".into(),
            ttft: [1.0 / 3e9, 2.0 / 3e5, 0.1],
            tpot: [1.0 / 7e7, 0.0, 1.0 / 3e2],
            kv_capacity_tokens: 4_096,
            decode: Some(Measured {
                requests: (1, 64),
                kv_tokens: (130, 4_000),
                fit_mape: 1.0 / 70.0,
                cv_mape: 0.02,
            }),
            generation_digest: "sha256:ab".into(),
        };
        let mut file = Profiles::open(&path).expect("a profile file");
        file.put(&row).expect("written");
        let alone = Row {
            iid: "p0".into(),
            decode: None,
            ..row.clone()
        };
        file.put(&alone).expect("written");
        let text = fs::read_to_string(&path).expect("text");
        assert!(text.contains(other), "{text}");
        // By value, whatever shape the reader gives a row: to the last digit.
        let read: Value = serde_json::from_str(&text).expect("JSON");
        let of = |i: usize, name: &str| read["profiles"][i][name].clone();
        assert_eq!(
            (of(0, "iid"), of(1, "iid"), of(2, "iid")),
            (json!("e0"), json!("x"), json!("p0"))
        );
        let digits =
            |i: usize, name: &str| of(i, name).to_string().parse::<f64>().expect("a number");
        assert_eq!(digits(0, "ttft_a"), 1.0 / 3e9);
        assert_eq!(digits(0, "tpot_intercept"), 1.0 / 3e2);
        assert_eq!(of(2, "decode_fit_mape"), Value::Null);
        assert_eq!(profiles::load(&path).expect("a profile file").len(), 3);

        let bad = [
            ("p.toml", "", "must end in .json"),
            ("q.json", "{}", "schema"),
            ("r.json", "[", "--out"),
        ];
        for (name, text, want) in bad {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            let why = Profiles::open(&path).expect_err(want);
            assert!(why.contains(want), "{why}");
        }
        fs::remove_dir_all(&folder).expect("the test's own folder");
    }
}
