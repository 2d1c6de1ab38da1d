//! The fleet file: read once, checked once, wrong nowhere after.
//!
//! text → `source` (a tree that knows its places) → `raw` (each value against its row in `keys`) → `build` and `engines` (rules
//! that need several values) → [`checked`] (a [`Fleet`] that cannot be wrong) → [`topology`] (the [`Snapshot`] that shards hold).
//! Every fault of a file is reported at once, with file, line, column, key, value, unit and range.
//!
//! May use `base` and the JSON cursor of `wire` (pure, see `source`). Its one act of I/O is reading the file in [`load`];
//! [`parse`] is pure, the environment included. Paths inside the file are kept as written: relative ones start at the
//! working directory.

use std::path::Path;

use fault::Faults;

pub(crate) mod fault;

pub mod keys;

pub(crate) mod source;

mod raw;

mod url;

mod words;

pub mod checked;

pub mod credentials;

mod build;

mod engines;

pub mod topology;

pub mod reload;

pub(crate) mod rows;

pub mod profiles;

#[cfg(test)]
mod tests;

pub use build::Env;
pub use checked::{
    Controller, DecodeCorrection, Engine, EngineSettings, Fleet, HealthRules, PhaseLimit, Recovery,
    RuntimeSettings, Serving, Slo, Tls,
};
pub use credentials::{AdminKey, ApiKeys};
pub use fault::{ConfigError, Errors};
pub use profiles::{Curves, Profile};
pub use source::Format;
pub use topology::{EngineView, Presence, Snapshot};
pub use url::Url;
pub use words::{
    Admission, Connector, CpuList, Dialect, Driver, Lease, Numa, Placement, RestartPolicy, Role,
    Secret,
};

/// A fleet, and what there is to say about its file.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub fleet: Fleet,
    /// Keys of the existing router that are accepted and do nothing here, each once, in file order.
    pub not_used: Vec<String>,
    /// What is allowed and yet most likely not meant.
    pub warnings: Vec<String>,
}

/// Reads and checks a fleet file; its name says the format.
pub fn load(path: &Path, env: &Env<'_>) -> Result<Loaded, Errors> {
    let file = path.display().to_string();
    let format = Format::of(path)
        .ok_or_else(|| Errors::of_file(&file, "the name must end in .json or .toml"))?;
    parse_bytes(&file, &read(path)?, format, env)
}

/// Checks the text of a fleet file. `file` is only its name in messages.
pub fn parse(file: &str, text: &str, format: Format, env: &Env<'_>) -> Result<Loaded, Errors> {
    if text.len() > FILE_BYTES_MAX {
        return Err(Errors::of_file(
            file,
            format!("longer than {FILE_BYTES_MAX} bytes"),
        ));
    }
    // Editors on Windows put a byte order mark first.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut faults = Faults::new(file, text);
    let root = match source::read(text, format) {
        Ok(root) => root,
        Err(fault) => {
            faults.add(fault.at, "", fault.what);
            return Err(faults.into_errors());
        }
    };
    let raw = raw::read(&root, format, &mut faults);
    let mut warnings = Vec::new();
    let fleet = build::fleet(&raw, env, &mut faults, &mut warnings);
    if faults.is_empty() {
        Ok(Loaded {
            fleet,
            not_used: raw.not_used,
            warnings,
        })
    } else {
        Err(faults.into_errors())
    }
}

impl Loaded {
    /// The one line that tells about keys without use here; `None` when there are none.
    pub fn not_used_line(&self) -> Option<String> {
        (!self.not_used.is_empty()).then(|| format!("not used: {}", self.not_used.join(", ")))
    }
}

impl Format {
    pub fn of(path: &Path) -> Option<Format> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "json" => Some(Format::Json),
            "toml" => Some(Format::Toml),
            _ => None,
        }
    }
}

fn parse_bytes(file: &str, bytes: &[u8], format: Format, env: &Env<'_>) -> Result<Loaded, Errors> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(file, text, format, env),
        Err(fault) => {
            // The bytes before the fault are UTF-8.
            let sound = std::str::from_utf8(&bytes[..fault.valid_up_to()]).unwrap_or("");
            let mut faults = Faults::new(file, sound);
            faults.add(sound.len(), "", "not UTF-8");
            Err(faults.into_errors())
        }
    }
}

/// The room's only I/O: what is in a file. Reads one byte more than allowed at most, so that an endless file ends. Errors name the file.
fn read(path: &Path) -> Result<Vec<u8>, Errors> {
    use std::io::Read;
    let told = |why: String| Errors::of_file(&path.display().to_string(), why);
    let mut bytes = Vec::new();
    let bound = FILE_BYTES_MAX as u64 + 1;
    let read = std::fs::File::open(path).and_then(|file| file.take(bound).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() <= FILE_BYTES_MAX => Ok(bytes),
        Ok(_) => Err(told(format!("longer than {FILE_BYTES_MAX} bytes"))),
        Err(why) => Err(told(format!("cannot be read: {why}"))),
    }
}

/// Bytes of a fleet file; 4096 engines take about one.
const FILE_BYTES_MAX: usize = 4 << 20;

#[doc(hidden)]
pub mod fuzzing {
    use super::credentials::ApiKeys;
    use super::{Format, parse_bytes};

    pub use super::profiles::fuzzing::fuzz as fuzz_profiles;
    pub use super::url::fuzzing::fuzz as fuzz_url;

    /// Any text as a file of client keys: as many keys as there are different hashes, or one line for each that is none. Nobody gets in by
    /// the file itself.
    pub fn fuzz_keys(data: &[u8]) {
        let text = String::from_utf8_lossy(data);
        let lines = text.split('\n').map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let first = |line: &str| line.split_ascii_whitespace().next().map(str::to_owned);
        let words: Vec<String> = lines.filter_map(first).collect();
        let is_hash = |word: &str| {
            let hex = word.strip_prefix("sha256:").unwrap_or(word);
            hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())
        };
        let wrong = words.iter().filter(|word| !is_hash(word)).count();
        match ApiKeys::parse("f", &text) {
            Ok(keys) => {
                let hash = |word: &String| word[word.len() - 64..].to_ascii_lowercase();
                let mut hashes: Vec<String> = words.iter().map(hash).collect();
                hashes.sort_unstable();
                hashes.dedup();
                assert_eq!((wrong, keys.count()), (0, hashes.len()));
                assert!(words.iter().all(|word| !keys.open_to(word.as_bytes())));
            }
            Err(errors) => {
                assert!(wrong > 0 || words.is_empty());
                assert_eq!(errors.to_string().lines().count(), errors.0.len());
                // It may be a key.
                let said = errors.to_string();
                assert!(
                    words
                        .iter()
                        .all(|word| word.len() < 12 || !said.contains(word.as_str()))
                );
            }
        }
    }

    /// Any text, as JSON and as TOML: a fleet or faults, no panic; faults have places inside the text and one line each.
    pub fn fuzz(data: &[u8]) {
        let env = |name: &str| (name != "UNSET").then(|| format!("http://{name}"));
        for format in [Format::Json, Format::Toml] {
            match parse_bytes("f", data, format, &env) {
                Ok(loaded) => {
                    let fleet = &loaded.fleet;
                    assert!(!fleet.engines.is_empty() && fleet.serving.max_retained >= 1);
                    assert!(
                        fleet.serving.queue_capacity == 0 || !fleet.serving.queue_timeout.is_zero()
                    );
                    assert!(fleet.engines.iter().all(|e| !e.url.host.is_empty()));
                }
                Err(errors) => {
                    assert!(!errors.0.is_empty());
                    let lines = data.iter().filter(|b| **b == b'\n').count() + 1;
                    assert!(errors.0.iter().all(|e| e.line <= lines));
                    assert_eq!(errors.to_string().lines().count(), errors.0.len());
                }
            }
        }
    }
}
