//! The thread over real files: what is put into queues is in the file, also while the disk says no.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use super::*;
use crate::base::time::Instant;
use crate::metrics::journal::{Row, Sink};
use crate::runtime::journal::Way;

/// Long enough for any machine; no test waits for it unless it fails.
const LIMIT: Duration = Duration::from_secs(20);

/// A folder of its own, gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("narwhal-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn rotation(&self, file_bytes_max: u64) -> Rotation {
        Rotation {
            path: self.0.join("j.jsonl"),
            file_bytes_max,
            files_kept: 100,
        }
    }

    /// Rows of a file, each with the number that was put into it.
    fn rows(&self, name: &str) -> Vec<u64> {
        let text = fs::read_to_string(self.0.join(name)).unwrap();
        let row = |line| serde_json::from_str::<Value>(line).expect(line);
        text.lines()
            .map(|line| row(line)["request_bytes"].as_u64().unwrap())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn row(n: u64) -> Row {
    let mut row = Row::default();
    row.request_bytes = n;
    let now = MonotonicClock::new().now();
    row.moments.arrived = now;
    row.moments.ended = now;
    row
}

// proves R-OBS-2
#[test]
fn rows_of_all_shards_come_to_the_file() {
    let folder = Folder::new("rows");
    let queues: Vec<_> = (0..2).map(|_| Arc::new(Rows::new(64))).collect();
    let handle = start("r1", folder.rotation(0), queues.clone()).unwrap();
    let before = unix_micros();
    for n in 0..50 {
        assert!(Way(queues[n as usize % 2].clone()).put(&row(n)));
    }
    assert!(handle.flush(LIMIT));
    let mut got = folder.rows("j.jsonl");
    got.sort_unstable();
    assert_eq!(got, (0..50).collect::<Vec<_>>());
    let mode = fs::metadata(folder.0.join("j.jsonl"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "for its user alone");
    let view = handle.view();
    assert_eq!(
        (view.rows, view.waiting, view.faults, view.failing),
        (50, 0, 0, None)
    );
    assert_eq!(
        view.bytes,
        fs::metadata(folder.0.join("j.jsonl")).unwrap().len()
    );
    // By the world's clock.
    let text = fs::read_to_string(folder.0.join("j.jsonl")).unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let arrived = first["arrived_at"].as_str().unwrap();
    let arrived = crate::metrics::journal::stamp::parse(arrived.as_bytes())
        .unwrap()
        .0;
    assert!(
        (before - 1_000_000..=unix_micros()).contains(&arrived),
        "{arrived} {before}"
    );
    assert_eq!(first["router_id"], "r1");
}

// proves R-OBS-2
#[test]
fn full_files_are_moved_and_all_rows_are_there() {
    let folder = Folder::new("rotated");
    let queues = vec![Arc::new(Rows::new(4096))];
    let handle = start("r", folder.rotation(20_000), queues.clone()).unwrap();
    for n in 0..300 {
        assert!(Way(queues[0].clone()).put(&row(n)));
        if n % 10 == 9 {
            assert!(handle.flush(LIMIT));
        }
    }
    let files = handle.view().rotations;
    assert!(files > 5, "{files}");
    let mut all = folder.rows("j.jsonl");
    for n in 1..=files {
        let name = format!("j.jsonl.{n}");
        assert!(fs::metadata(folder.0.join(&name)).unwrap().len() <= 20_000);
        all = [folder.rows(&name), all].concat();
    }
    assert_eq!(
        all,
        (0..300).collect::<Vec<_>>(),
        "in order, newest in the file itself"
    );
}

// proves R-OBS-2
#[test]
fn a_disk_that_is_full_is_tried_again() {
    let folder = Folder::new("full");
    let path = folder.0.join("j.jsonl");
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let queues = vec![Arc::new(Rows::new(16))];
    let handle = start("r", folder.rotation(0), queues.clone()).unwrap();
    assert!(Way(queues[0].clone()).put(&row(1)));
    assert!(
        !handle.flush(Duration::from_millis(300)),
        "nothing can be written"
    );
    let view = handle.view();
    assert!(
        view.faults > 0
            && view
                .failing
                .is_some_and(|why| why.contains("No space left"))
    );
    // The disk is another one now.
    fs::remove_file(&path).unwrap();
    handle.reopen();
    assert!(handle.flush(LIMIT));
    assert_eq!(
        (folder.rows("j.jsonl"), handle.view().failing),
        (vec![1], None)
    );
}

#[test]
fn what_cannot_be_opened_is_told_with_what_to_do() {
    let folder = Folder::new("not-opened");
    let at = |path: PathBuf| Rotation {
        path,
        ..folder.rotation(0)
    };
    let told = |path: PathBuf| start("r", at(path), Vec::new()).err().unwrap().to_string();
    let missing = told(folder.0.join("no/j.jsonl"));
    assert!(
        missing.contains("the folder must be there") && missing.contains("--journal"),
        "{missing}"
    );
    assert!(told(folder.0.clone()).contains("s a directory"));
    let pipe = folder.0.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|made| made.success()));
    assert!(told(pipe).contains("nobody reads this pipe"));
}

/// No moment of the process's clock is its first one.
#[test]
fn the_clock_has_begun() {
    assert!(MonotonicClock::new().now() > Instant::ZERO);
}
