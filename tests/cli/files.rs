//! Files for commands to read, each test's own.

use std::fs;
use std::path::PathBuf;

/// Writes a fleet file of this name; `extension` says how it is read.
pub fn fleet_file(name: &str, extension: &str, text: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cli");
    fs::create_dir_all(&folder).expect("the folder for tests");
    let path = folder.join(format!("{name}.{extension}"));
    fs::write(&path, text).expect("a file in the folder for tests");
    path
}
