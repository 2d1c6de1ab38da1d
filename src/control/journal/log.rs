//! The file of the journal: whole lines go in, a batch at a time; it is moved aside when it is full, and opened anew when somebody else has
//! moved it.
//!
//! A disk that takes nothing stops nobody: what could not be written stays, tries are a second apart, and whoever hands lines in sees that
//! there is no room. A part of a line that went out is followed by its rest, so a full disk tears no line; where the rest cannot go to the
//! same file, the line is written again whole. A file that ends in a torn line (a crash) gets a line feed first.
//!
//! Owns the open file. Time is an argument. Invariant: `pending` holds whole lines, and what is before `done` is on its way to the disk.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::base::time::Instant;
use crate::metrics::journal::line::LINE_BYTES_MAX;

/// What a log does with files. Played by tests.
pub trait Files {
    type File: io::Write;
    /// For appending, and made if it is not there. Never waits for a reader.
    fn open(&mut self, path: &Path) -> io::Result<Opened<Self::File>>;
    /// Bytes of the file now, when it is one that can be moved aside; whoever shortened it meanwhile is believed.
    fn len(&mut self, file: &Self::File) -> io::Result<u64>;
    fn is_there(&mut self, path: &Path) -> bool;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    fn sync(&mut self, file: &Self::File) -> io::Result<()>;
}

/// A file that was opened.
pub struct Opened<F> {
    pub file: F,
    /// The path is the file itself: no pipe, terminal or link, all of which stay where they are.
    pub is_regular: bool,
    /// It does not end with a line feed.
    pub is_torn: bool,
}

/// Where, and how much is kept.
#[derive(Clone, Debug)]
pub struct Rotation {
    pub path: PathBuf,
    /// The file is moved aside before it would grow over this; 0 is never.
    pub file_bytes_max: u64,
    /// Files kept beside it: `PATH.1` is the last one that was moved.
    pub files_kept: u32,
}

/// What came of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// As it should, or it is too early to try again.
    Same,
    /// It went wrong for the first time in a row; the operating system's number.
    Failed(i32),
    /// It goes again.
    Recovered,
}

/// What came of both parts of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Moving files aside and opening others.
    pub moves: Turn,
    pub writes: Turn,
}

/// Tries that are kept apart after one has failed.
#[derive(Debug, Default)]
struct Tries {
    failing: bool,
    not_before: Instant,
}

/// See the head of this file.
pub struct Log<F: Files> {
    files: F,
    rotation: Rotation,
    file: F::File,
    is_regular: bool,
    len: u64,
    pending: Vec<u8>,
    done: usize,
    /// Somebody has moved the file, or we did and could not open another.
    wants_open: bool,
    moves: Tries,
    writes: Tries,
    pub counts: Counts,
}

/// Of the life of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub bytes: u64,
    /// Writes, moves and opens that failed.
    pub faults: u64,
    pub rotations: u64,
}

/// The least that a file may be bound to; a write is shorter, so no file grows over its bound while it can be moved.
pub const FILE_BYTES_MIN: u64 = 65_536;
/// Bytes that are gathered for one write, but for the line that crosses them.
pub const BATCH_BYTES: usize = 49_152;
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl<F: Files> Log<F> {
    pub fn open(mut files: F, rotation: Rotation) -> io::Result<Log<F>> {
        let opened = files.open(&rotation.path)?;
        let len = files.len(&opened.file)?;
        let mut log = Log {
            files,
            rotation,
            file: opened.file,
            is_regular: opened.is_regular,
            len,
            pending: Vec::with_capacity(BATCH_BYTES + LINE_BYTES_MAX + 1),
            done: 0,
            wants_open: false,
            moves: Tries::default(),
            writes: Tries::default(),
            counts: Counts::default(),
        };
        log.mend(opened.is_torn);
        Ok(log)
    }

    /// Whether files are moved aside at all.
    pub fn rotates(&self) -> bool {
        self.is_regular && self.rotation.file_bytes_max > 0
    }

    /// Lines go in here while there is room.
    pub fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    pub fn has_room(&self) -> bool {
        self.pending.len() < BATCH_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The path is opened anew before the next write, and what was not written by then goes there.
    pub fn reopen(&mut self) {
        self.wants_open = true;
        self.hurry();
    }

    /// The next try is not put off.
    pub fn hurry(&mut self) {
        self.moves.not_before = Instant::ZERO;
        self.writes.not_before = Instant::ZERO;
    }

    /// Whether nothing can be written now.
    pub fn is_failing(&self) -> bool {
        self.writes.failing
    }

    /// Does what there is to do. What is wrong with moving and opening keeps no lines from the file that is there.
    pub fn write(&mut self, now: Instant) -> Done {
        let mut done = Done {
            moves: Turn::Same,
            writes: Turn::Same,
        };
        if self.moves.not_before <= now {
            let moved = self.move_on();
            done.moves = self.moves.turn(now, &moved);
            self.counts.faults += u64::from(moved.is_err());
        }
        if self.writes.not_before <= now {
            let put = self.put();
            done.writes = self.writes.turn(now, &put);
            self.counts.faults += u64::from(put.is_err());
        }
        done
    }

    /// To the disk itself, as far as it has come.
    pub fn sync(&mut self) {
        // A pipe has no disk.
        let _ = self.files.sync(&self.file);
    }

    /// Opens anew where that was asked for, and moves a full file aside.
    fn move_on(&mut self) -> io::Result<()> {
        let grown = self.len + (self.pending.len() - self.done) as u64;
        let is_full = self.rotates() && self.len > 0 && grown > self.rotation.file_bytes_max;
        if !self.wants_open && is_full && self.done == 0 {
            // Whoever moved or removed it did our work.
            if self.files.is_there(&self.rotation.path) {
                self.move_aside()?;
                self.counts.rotations += 1;
            }
            self.wants_open = true;
        }
        if self.wants_open {
            self.open_again()?;
        }
        Ok(())
    }

    /// `PATH.1` becomes `PATH.2`, and so on; the last one goes.
    fn move_aside(&mut self) -> io::Result<()> {
        let path = &self.rotation.path;
        let kept = self.rotation.files_kept;
        if kept == 0 {
            return self.files.remove(path);
        }
        // Up to the first number that is free: where a move fails half-way, the next try pushes nothing further.
        let in_the_way = |n: &u32| self.files.is_there(&numbered(path, *n));
        let free = (1..kept).take_while(in_the_way).count() as u32 + 1;
        for n in (1..free).rev() {
            self.files
                .rename(&numbered(path, n), &numbered(path, n + 1))?;
        }
        self.files.rename(path, &numbered(path, 1))
    }

    fn open_again(&mut self) -> io::Result<()> {
        let opened = self.files.open(&self.rotation.path)?;
        self.len = self.files.len(&opened.file)?;
        self.file = opened.file;
        self.is_regular = opened.is_regular;
        self.wants_open = false;
        // A line that was begun in the other file begins again here.
        let begun = self.pending[..self.done].iter().rposition(|b| *b == b'\n');
        self.pending.drain(..begun.map_or(0, |at| at + 1));
        self.done = 0;
        self.mend(opened.is_torn);
        Ok(())
    }

    fn mend(&mut self, is_torn: bool) {
        if is_torn {
            self.pending.insert(0, b'\n');
        }
    }

    fn put(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        while self.done < self.pending.len() {
            match io::Write::write(&mut self.file, &self.pending[self.done..]) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.done += n;
                    self.counts.bytes += n as u64;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A pipe that is full: whoever reads it takes his time.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => result = Err(error),
            }
            break;
        }
        if let Ok(len) = self.files.len(&self.file) {
            self.len = len;
        }
        if result.is_ok() {
            self.pending.clear();
            self.done = 0;
        }
        result
    }
}

impl Tries {
    fn turn(&mut self, now: Instant, result: &io::Result<()>) -> Turn {
        match (result, self.failing) {
            (Ok(()), false) => Turn::Same,
            (Ok(()), true) => {
                self.failing = false;
                Turn::Recovered
            }
            (Err(error), failing) => {
                self.failing = true;
                self.not_before = now + RETRY_AFTER;
                match failing {
                    true => Turn::Same,
                    false => Turn::Failed(error.raw_os_error().unwrap_or_default()),
                }
            }
        }
    }
}

const _: () = assert!(BATCH_BYTES + LINE_BYTES_MAX < FILE_BYTES_MIN as usize);

fn numbered(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests;
