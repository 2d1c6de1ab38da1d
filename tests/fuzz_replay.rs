//! Fuzz corpora on stable: every recorded input through its target's body, then a short seeded walk of mutations around them.
//!
//! The table is the targets' list; each has one row, one file in `tests/fuzz/targets` and one folder in `tests/fuzz/corpus`. An input
//! that breaks a body is named when the test fails, and kept under a telling name once its fault is mended. Only reads files.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use narwhal::base::prng::Prng;
use narwhal::{config, metrics, path, stub, wire};

type Body = fn(&[u8]);

const TARGETS: [(&str, Body); 23] = [
    ("assembly", path::assemble::fuzzing::fuzz),
    ("body_framing", wire::h1::body::fuzzing::fuzz),
    ("client_keys", config::fuzzing::fuzz_keys),
    ("engine_message", wire::openai::fuzzing::engine_message),
    ("engine_url", config::fuzzing::fuzz_url),
    ("event_facts", wire::event::fuzzing::fuzz),
    ("fault_script", stub::faults::fuzzing::fuzz),
    ("fleet_file", config::fuzzing::fuzz),
    ("journal_lines", metrics::journal::read::fuzzing::fuzz),
    ("json", wire::json::fuzzing::fuzz),
    ("leg_answers", wire::dialect::vllm::fuzzing::answers),
    ("legs", wire::dialect::vllm::fuzzing::legs),
    ("legs_beside", wire::dialect::sglang::fuzzing::legs),
    ("legs_plain", wire::dialect::openai::fuzzing::legs),
    ("path", path::fuzzing::fuzz),
    ("profile_file", config::fuzzing::fuzz_profiles),
    ("prompt_prefix", wire::prefix::fuzzing::fuzz),
    ("request_checks", wire::openai::fuzzing::check_body),
    ("request_head", wire::h1::head::fuzzing::request),
    ("response_head", wire::h1::head::fuzzing::response),
    ("splice", wire::splice::fuzzing::edits),
    ("sse_lines", wire::sse::fuzzing::fuzz),
    ("stub_request", stub::ask::fuzzing::fuzz),
];

/// Time of a target's walk; `FUZZ_SECONDS` in the environment makes it longer.
const WALK: Duration = Duration::from_millis(1500);
/// Bytes that a walk lets an input grow to.
const INPUT_BYTES_MAX: usize = 4096;
/// What a target may keep here; more belongs into a working corpus.
const CORPUS_FILES_MAX: usize = 60;

#[test]
fn every_target_has_its_file_and_its_corpus() {
    let table: BTreeSet<String> = TARGETS.iter().map(|row| row.0.to_owned()).collect();
    let files = names(&root().join("targets"), |path| path.extension().is_some());
    assert_eq!(files, table, "tests/fuzz/targets and the table differ");
    let folders = names(&root().join("corpus"), Path::is_dir);
    assert_eq!(folders, table, "tests/fuzz/corpus and the table differ");
    for name in &table {
        let count = corpus(name).len();
        assert!(count > 0, "{name}: an empty corpus");
        assert!(count <= CORPUS_FILES_MAX, "{name}: {count} files");
    }
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for name in &table {
        let file = root().join("targets").join(format!("{name}.rs"));
        assert!(fs::read_to_string(file).unwrap().lines().count() < 10);
        assert!(
            manifest.contains(&format!("path = \"targets/{name}.rs\"")),
            "{name}"
        );
    }
}

/// One test a target, so that they run side by side.
macro_rules! replay {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($name)),*];
            assert_eq!(replayed.to_vec(), TARGETS.map(|row| row.0));
        }
    };
}

replay! {
    assembly body_framing client_keys engine_message engine_url event_facts fault_script fleet_file journal_lines json leg_answers legs
    legs_beside legs_plain path profile_file prompt_prefix request_checks request_head response_head splice sse_lines stub_request
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long to walk is wall time; what is walked is not"
)]
fn replay(name: &str) {
    let (_, body) = TARGETS.iter().find(|row| row.0 == name).expect("a row");
    let seeds = corpus(name);
    for (file, data) in &seeds {
        hold(*body, data, &file.display().to_string());
    }
    let seconds = std::env::var("FUZZ_SECONDS").ok();
    let walk = seconds
        .and_then(|s| s.parse().ok())
        .map_or(WALK, Duration::from_secs);
    let end = Instant::now() + walk;
    let mut prng = Prng::new(name.bytes().map(u64::from).sum());
    let mut runs = 0;
    while Instant::now() < end {
        let data = mutate(&mut prng, &seeds);
        hold(*body, &data, &format!("{name}, run {runs}"));
        runs += 1;
    }
    println!("{name}: {} files, {runs} runs", seeds.len());
}

/// Names what broke a body: a file can be made of it.
fn hold(body: Body, data: &[u8], what: &str) {
    if let Err(fault) = panic::catch_unwind(AssertUnwindSafe(|| body(data))) {
        eprintln!("{what} broke on {}", data.escape_ascii());
        panic::resume_unwind(fault);
    }
}

/// A seed with up to eight changes: bytes, bits, runs taken out or doubled, pieces of another seed.
fn mutate(prng: &mut Prng, seeds: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    let mut below = |n: usize| prng.below(n as u64) as usize;
    let mut data = seeds[below(seeds.len())].1.clone();
    for _ in 0..=below(8) {
        let at = below(data.len() + 1);
        let run = below(32).min(data.len() - at);
        match below(7) {
            0 if at < data.len() => data[at] = below(256) as u8,
            1 if at < data.len() => data[at] ^= 1 << below(8),
            2 => {
                data.drain(at..at + run);
            }
            3 => {
                let piece = data[at..at + run].to_vec();
                data.splice(at..at, piece);
            }
            4 => data.insert(at, b"\0\n\r \"\\{}[],:0-.e\xff"[below(17)]),
            5 => {
                let other = &seeds[below(seeds.len())].1;
                let from = below(other.len() + 1);
                let to = (from + below(64)).min(other.len());
                data.splice(at..at + run, other[from..to].iter().copied());
            }
            _ => data.truncate(at.max(1)),
        }
    }
    data.truncate(INPUT_BYTES_MAX);
    data
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz")
}

fn names(folder: &Path, wanted: impl Fn(&Path) -> bool) -> BTreeSet<String> {
    let paths = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    paths
        .filter(|path| wanted(path))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect()
}

/// The files of a corpus, in the order of their names.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(root().join("corpus").join(name));
    let mut files: Vec<_> = entries
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}
