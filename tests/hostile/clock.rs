//! Who reads the time of day: it may step, forwards and backwards, so nothing that waits, ages or expires may look at it.

use std::fs;
use std::path::Path;

/// The readers of the wall clock, each with what for.
const READERS: &[(&str, &str)] = &[
    (
        "src/cli/simulate.rs",
        "the dates in a simulated engine's answers",
    ),
    (
        "src/control/reload/log.rs",
        "when the fleet file was read, for people",
    ),
    ("src/runtime/cell.rs", "the `date` field"),
    ("src/runtime/clock.rs", "is the clock"),
];

/// The words by which it can be read.
const WORDS: [&str; 4] = [
    "SystemTime",
    "UNIX_EPOCH",
    "unix_seconds()",
    "CLOCK_REALTIME",
];

// proves R-ADM-8
#[test]
fn the_time_of_day_is_read_where_it_is_meant_and_nowhere_else() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    look(root, &root.join("src"), &mut found);
    found.sort();
    found.dedup();
    let readers: Vec<&str> = READERS.iter().map(|(path, _)| *path).collect();
    assert_eq!(found, readers);
}

fn look(root: &Path, folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            look(root, &path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            if code
                .into_iter()
                .any(|line| WORDS.iter().any(|word| line.contains(word)))
            {
                let path = path.strip_prefix(root).expect("below the root");
                found.push(path.display().to_string());
            }
        }
    }
}
