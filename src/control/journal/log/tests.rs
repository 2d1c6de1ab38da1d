//! The log over files in memory, with disks that are full, read-only or take a few bytes at a time; and over real ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use crate::base::prng::Prng;

const PATH: &str = "j";

/// Files by number, and the names that lead to them.
#[derive(Default)]
struct World {
    files: Vec<Vec<u8>>,
    names: BTreeMap<PathBuf, usize>,
    /// Bytes that still fit.
    room: usize,
    /// Bytes of one write at most.
    piece: usize,
    no_moves: bool,
    no_opens: bool,
}

#[derive(Clone, Default)]
struct Played(Rc<RefCell<World>>);

struct PlayedFile(Played, usize);

const FULL: i32 = 28;
const READ_ONLY: i32 = 30;

fn os(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl io::Write for PlayedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let world = &mut *self.0.0.borrow_mut();
        let n = bytes.len().min(world.piece).min(world.room);
        if n == 0 {
            return Err(os(FULL));
        }
        world.room -= n;
        world.files[self.1].extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Files for Played {
    type File = PlayedFile;

    fn open(&mut self, path: &Path) -> io::Result<Opened<PlayedFile>> {
        let world = &mut *self.0.borrow_mut();
        if world.no_opens {
            return Err(os(READ_ONLY));
        }
        let next = world.files.len();
        let number = *world.names.entry(path.to_owned()).or_insert(next);
        if number == next {
            world.files.push(Vec::new());
        }
        let last = world.files[number].last();
        Ok(Opened {
            is_torn: last.is_some_and(|b| *b != b'\n'),
            is_regular: true,
            file: PlayedFile(self.clone(), number),
        })
    }

    fn len(&mut self, file: &PlayedFile) -> io::Result<u64> {
        Ok(self.0.borrow().files[file.1].len() as u64)
    }

    fn is_there(&mut self, path: &Path) -> bool {
        self.0.borrow().names.contains_key(path)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        if world.no_moves {
            return Err(os(READ_ONLY));
        }
        let number = world.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        world.names.insert(to.to_owned(), number);
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world
            .names
            .remove(path)
            .map(drop)
            .ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync(&mut self, _: &PlayedFile) -> io::Result<()> {
        Ok(())
    }
}

impl Played {
    fn new() -> Played {
        let played = Played::default();
        played.with(|world| (world.room, world.piece) = (usize::MAX, usize::MAX));
        played
    }

    fn with<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        f(&mut self.0.borrow_mut())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.with(|world| {
            let number = world.names.get(Path::new(name))?;
            Some(String::from_utf8(world.files[*number].clone()).unwrap())
        })
    }

    fn names(&self) -> Vec<String> {
        self.with(|world| {
            world
                .names
                .keys()
                .map(|name| name.display().to_string())
                .collect()
        })
    }

    fn log(&self, file_bytes_max: u64, files_kept: u32) -> Log<Played> {
        let rotation = Rotation {
            path: PATH.into(),
            file_bytes_max,
            files_kept,
        };
        Log::open(self.clone(), rotation).unwrap()
    }
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

const WELL: Done = Done {
    moves: Turn::Same,
    writes: Turn::Same,
};

fn put(log: &mut Log<Played>, line: &str, now: Instant) -> Done {
    log.pending().extend_from_slice(line.as_bytes());
    log.pending().push(b'\n');
    log.write(now)
}

// proves R-OBS-2
#[test]
fn files_are_moved_aside_before_they_grow_over_their_size() {
    let played = Played::new();
    let mut log = played.log(8, 2);
    for n in 1..=7 {
        assert_eq!(put(&mut log, &format!("{n}{n}{n}"), at(n)), WELL);
    }
    let text = |name| played.text(name).unwrap_or_default();
    assert_eq!(
        (text("j"), text("j.1"), text("j.2")),
        ("777\n".into(), "555\n666\n".into(), "333\n444\n".into())
    );
    assert_eq!(played.names(), ["j", "j.1", "j.2"], "no more than are kept");
    assert_eq!(
        log.counts,
        Counts {
            bytes: 28,
            faults: 0,
            rotations: 3
        }
    );
    // A line that is longer than a file has one of its own.
    put(&mut log, "a long line", at(8));
    put(&mut log, "b", at(9));
    assert_eq!(
        (text("j"), text("j.1")),
        ("b\n".into(), "a long line\n".into())
    );
}

#[test]
fn nothing_is_kept_or_nothing_is_moved() {
    let played = Played::new();
    let mut log = played.log(8, 0);
    for n in 0..4 {
        put(&mut log, "xxx", at(n));
    }
    assert_eq!(
        (played.names(), played.text("j")),
        (vec!["j".to_owned()], Some("xxx\nxxx\n".into()))
    );
    let played = Played::new();
    let mut log = played.log(0, 3);
    for n in 0..400 {
        put(&mut log, "xxx", at(n));
    }
    assert_eq!((played.names().len(), log.rotates()), (1, false));
}

/// A full disk: the line that was begun is ended once there is room, and what waits is bounded by who hands it in.
// proves R-OBS-2
#[test]
fn a_full_disk_tears_no_line_and_is_told_once() {
    let played = Played::new();
    let mut log = played.log(0, 0);
    put(&mut log, "first", at(0));
    played.with(|world| world.room = 3);
    let failed = Done {
        writes: Turn::Failed(FULL),
        ..WELL
    };
    assert_eq!(put(&mut log, "second", at(1)), failed);
    assert_eq!(played.text("j").unwrap(), "first\nsec");
    assert!(!log.is_empty() && log.is_failing() && log.has_room());
    for ms in [2, 500, 1_001, 1_500, 2_001] {
        assert_eq!(put(&mut log, "more", at(ms)), WELL, "nothing new at {ms}");
    }
    assert_eq!(log.counts.faults, 3, "one a second");
    log.pending().resize(BATCH_BYTES, b'x');
    assert!(!log.has_room());
    played.with(|world| world.room = usize::MAX);
    assert_eq!(log.write(at(2_002)), WELL, "too early");
    let recovered = Done {
        writes: Turn::Recovered,
        ..WELL
    };
    assert_eq!(log.write(at(3_002)), recovered);
    let text = played.text("j").unwrap();
    assert!(
        text.starts_with("first\nsecond\nmore\nmore\nmore\nmore\nmore\nxxx"),
        "{text:.60}"
    );
    assert!(log.is_empty() && !log.is_failing());
    // The next time is told again.
    played.with(|world| world.room = 0);
    assert_eq!(put(&mut log, "z", at(4_000)), failed);
    played.with(|world| world.room = usize::MAX);
    log.hurry();
    assert_eq!(
        log.write(at(4_001)),
        recovered,
        "who is in a hurry does not wait"
    );
}

// proves R-OBS-2
#[test]
fn a_file_that_was_moved_by_others_is_left_to_them() {
    let played = Played::new();
    let mut log = played.log(0, 0);
    put(&mut log, "one", at(0));
    played
        .clone()
        .rename(Path::new("j"), Path::new("aside"))
        .unwrap();
    put(&mut log, "two", at(1));
    log.reopen();
    put(&mut log, "three", at(2));
    let text = |name| played.text(name).unwrap_or_default();
    assert_eq!(
        (text("aside"), text("j")),
        ("one\ntwo\n".into(), "three\n".into())
    );
    // Nothing was moved: the same file goes on.
    log.reopen();
    put(&mut log, "four", at(3));
    assert_eq!(text("j"), "three\nfour\n");
}

/// A line that was begun in the file that was moved is whole in the next one.
#[test]
fn a_line_that_was_begun_elsewhere_is_written_again() {
    let played = Played::new();
    let mut log = played.log(0, 0);
    played.with(|world| world.room = 6);
    log.pending().extend_from_slice(b"one\ntwo\nthree\n");
    log.write(at(0));
    played
        .clone()
        .rename(Path::new("j"), Path::new("aside"))
        .unwrap();
    played.with(|world| world.room = usize::MAX);
    log.reopen();
    assert_eq!(log.write(at(1)).writes, Turn::Recovered);
    let text = |name| played.text(name).unwrap_or_default();
    assert_eq!(
        (text("aside"), text("j")),
        ("one\ntw".into(), "two\nthree\n".into())
    );
}

// proves R-OBS-2
#[test]
fn what_cannot_be_moved_or_opened_keeps_no_line_back() {
    let played = Played::new();
    let mut log = played.log(8, 2);
    put(&mut log, "111", at(0));
    put(&mut log, "222", at(1));
    played.with(|world| world.no_moves = true);
    let failed = Done {
        moves: Turn::Failed(READ_ONLY),
        ..WELL
    };
    assert_eq!(put(&mut log, "333", at(2)), failed);
    assert_eq!(put(&mut log, "444", at(3)), WELL, "told once");
    assert_eq!(played.text("j").unwrap(), "111\n222\n333\n444\n");
    played.with(|world| (world.no_moves, world.no_opens) = (false, true));
    assert_eq!(put(&mut log, "555", at(1_100)), WELL, "still");
    // It is moved now, and the next one cannot be opened: rows go to where they went.
    assert_eq!(played.text("j.1").unwrap(), "111\n222\n333\n444\n555\n");
    played.with(|world| world.no_opens = false);
    assert_eq!(
        put(&mut log, "666", at(2_200)),
        Done {
            moves: Turn::Recovered,
            ..WELL
        }
    );
    assert_eq!(played.names(), ["j", "j.1"], "moved once");
    assert_eq!(played.text("j").unwrap(), "666\n");
    assert_eq!((log.counts.rotations, log.counts.faults), (1, 2));
}

/// A move that fails half-way pushes nothing out when it is tried again.
#[test]
fn tries_to_move_lose_no_old_file() {
    let played = Played::new();
    let mut log = played.log(4, 3);
    for n in 1..=4 {
        put(&mut log, &format!("{n}{n}{n}"), at(n));
    }
    assert_eq!(played.names(), ["j", "j.1", "j.2", "j.3"]);
    // As if the last step of a move had failed.
    played
        .clone()
        .rename(Path::new("j.2"), Path::new("j.3"))
        .unwrap();
    played
        .clone()
        .rename(Path::new("j.1"), Path::new("j.2"))
        .unwrap();
    put(&mut log, "555", at(9));
    let text = |name| played.text(name).unwrap_or_default();
    assert_eq!(
        [text("j"), text("j.1"), text("j.2"), text("j.3")],
        ["555\n", "444\n", "333\n", "222\n"]
    );
}

#[test]
fn a_torn_end_is_a_line_of_its_own() {
    let played = Played::new();
    played.log(0, 0).pending();
    played.with(|world| world.files[0] = b"whole\ntor".to_vec());
    let mut log = played.log(0, 0);
    put(&mut log, "next", at(0));
    assert_eq!(played.text("j").unwrap(), "whole\ntor\nnext\n");
    // A whole one gets nothing.
    let mut log = played.log(0, 0);
    put(&mut log, "last", at(0));
    assert_eq!(played.text("j").unwrap(), "whole\ntor\nnext\nlast\n");
}

/// Whatever happens in between: all lines are there in the end, in order and whole, but those whose beginning went to a file that was moved.
// proves R-OBS-2
#[test]
fn chance_loses_no_line() {
    for seed in 0..300 {
        let mut chance = Prng::new(seed);
        let played = Played::new();
        let mut log = played.log([0, 40, 400][seed as usize % 3], 1_000);
        let mut now = 0;
        let mut written = 0;
        for _ in 0..200 {
            match chance.below(12) {
                0 => played.with(|world| world.room = chance.below(30) as usize),
                1 => played.with(|world| world.no_moves = chance.below(2) == 0),
                2 => played.with(|world| world.no_opens = chance.below(2) == 0),
                3 => log.reopen(),
                4 => played.with(|world| world.piece = 1 + chance.below(20) as usize),
                5 => now += chance.below(1_500),
                _ => {
                    log.pending()
                        .extend_from_slice(format!("line {written}\n").as_bytes());
                    written += 1;
                    log.write(at(now));
                }
            }
        }
        played.with(|world| {
            (world.room, world.no_moves, world.no_opens) = (usize::MAX, false, false);
        });
        log.hurry();
        log.write(at(now));
        assert!(log.is_empty(), "seed {seed}");
        let all: String = played.with(|world| {
            let texts = world
                .files
                .iter()
                .map(|file| String::from_utf8_lossy(file).into_owned() + "\n");
            texts.collect()
        });
        let whole = |line: &&str| {
            line.strip_prefix("line ")
                .is_some_and(|n| n.parse::<usize>().is_ok())
        };
        let lines: Vec<&str> = all.lines().collect();
        let count = lines.iter().filter(|line| whole(line)).count();
        assert!(count >= written, "seed {seed}: {count} of {written}");
        for n in 0..written {
            assert!(
                lines.contains(&format!("line {n}").as_str()),
                "seed {seed}: line {n}"
            );
        }
    }
}
