//! The thread that writes the journal: takes rows out of the shards' queues, makes lines of them and appends them to a file (`log`).
//!
//! A thread of its own, because disks wait: neither a shard nor the control thread does. It looks every [`LOOK_EVERY`], and is woken when a
//! queue fills; so what a crash loses is the rows of that time, and a row that a full queue turned away was counted by its shard.
//!
//! Owns the file, the thread, and the counts that state and metrics show.

mod disk;

mod log;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::signal::unix::Signal;

use self::disk::Disk;
pub use self::log::{FILE_BYTES_MIN, Rotation};
use self::log::{Log, Turn};
use crate::base::time::Clock;
use crate::metrics::journal::line::Writer;
use crate::metrics::journal::stamp::{Anchor, UnixMicros};
use crate::metrics::picture::JournalView;
use crate::runtime::clock::{MonotonicClock, unix_micros};
use crate::runtime::journal::Rows;

/// The running journal. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    wishes: Sender<Wish>,
    writer: Thread,
    facts: Arc<Facts>,
}

/// What the thread is asked for.
enum Wish {
    Reopen,
    /// Everything that waits, to the disk; then say so.
    Flush(SyncSender<()>),
}

/// What others see of it.
struct Facts {
    path: String,
    queues: Vec<Arc<Rows>>,
    rows: AtomicU64,
    /// Lines that are not all with the kernel yet.
    gathered: AtomicU64,
    bytes: AtomicU64,
    faults: AtomicU64,
    rotations: AtomicU64,
    /// The operating system's number for why nothing is written now; 0 while it is.
    failing: AtomicI32,
}

/// Time between two looks at the queues.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);
/// And at a pipe that is full.
const PIPE_LOOK_EVERY: Duration = Duration::from_millis(10);
/// What went wrong without a number of the operating system's.
const NO_NUMBER: i32 = -1;

/// Opens the file and starts the thread. One queue a shard.
pub fn start(router_id: &str, rotation: Rotation, queues: Vec<Arc<Rows>>) -> io::Result<Handle> {
    let path = rotation.path.clone();
    let asked = rotation.file_bytes_max > 0;
    let log = Log::open(Disk, rotation).map_err(explained(&path))?;
    if asked && !log.rotates() {
        let why = if disk::is_stream(&path) {
            "it is no file"
        } else {
            "it is a link"
        };
        tracing::warn!("--journal {}: not rotated, as {why}", path.display());
    }
    tracing::info!("journal of all requests in {}", path.display());
    let facts = Arc::new(Facts {
        path: path.display().to_string(),
        queues,
        rows: AtomicU64::new(0),
        gathered: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        faults: AtomicU64::new(0),
        rotations: AtomicU64::new(0),
        failing: AtomicI32::new(0),
    });
    let (wishes, wished) = channel();
    let life = Life {
        log,
        wished,
        facts: facts.clone(),
        writer: Writer::new(router_id),
        clock: MonotonicClock::new(),
    };
    let thread = thread::Builder::new().name("narwhal-journal".into());
    let thread = thread.spawn(move || life.run())?;
    let writer = thread.thread().clone();
    for queue in &facts.queues {
        queue.woken_by_rows(writer.clone());
    }
    Ok(Handle {
        wishes,
        writer,
        facts,
    })
}

/// An error that says what to do about it.
fn explained(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| {
        let hint = match error.raw_os_error() {
            Some(libc::ENXIO) => " (nobody reads this pipe)",
            Some(libc::ENOENT) => " (the folder must be there)",
            _ => "",
        };
        io::Error::new(
            error.kind(),
            format!("--journal {}: {error}{hint}", path.display()),
        )
    }
}

impl Handle {
    /// The path is opened anew: somebody has moved the file.
    pub fn reopen(&self) {
        self.wish(Wish::Reopen);
    }

    /// Waits until what has ended is written, `most` at the longest. False when it was not.
    pub fn flush(&self, most: Duration) -> bool {
        let (tell, told) = sync_channel(1);
        self.wish(Wish::Flush(tell));
        told.recv_timeout(most).is_ok()
    }

    /// Opens anew on each signal, for the life of the process.
    pub async fn follow(self, mut again: Signal) {
        while again.recv().await.is_some() {
            self.reopen();
        }
    }

    pub fn view(&self) -> JournalView<'_> {
        let facts = &self.facts;
        let failing = match facts.failing.load(Relaxed) {
            0 => None,
            number => Some(why(number)),
        };
        let queued = facts.queues.iter().map(|queue| queue.len() as u64);
        JournalView {
            path: &facts.path,
            rows: facts.rows.load(Relaxed),
            waiting: queued.sum::<u64>() + facts.gathered.load(Relaxed),
            bytes: facts.bytes.load(Relaxed),
            faults: facts.faults.load(Relaxed),
            rotations: facts.rotations.load(Relaxed),
            failing,
        }
    }

    fn wish(&self, wish: Wish) {
        // A thread that has ended took the process with it.
        let _ = self.wishes.send(wish);
        self.writer.unpark();
    }
}

fn why(number: i32) -> String {
    match number {
        0 | NO_NUMBER => "it takes nothing".to_owned(),
        number => io::Error::from_raw_os_error(number).to_string(),
    }
}

/// All that the thread has.
struct Life {
    log: Log<Disk>,
    wished: Receiver<Wish>,
    facts: Arc<Facts>,
    writer: Writer,
    clock: MonotonicClock,
}

impl Life {
    fn run(mut self) {
        let mut flushes = Vec::new();
        let mut is_wanted = true;
        while is_wanted {
            is_wanted = self.hear(&mut flushes);
            let more = self.take_rows();
            self.write();
            let is_done = !more && self.log.is_empty();
            if is_done && !flushes.is_empty() {
                self.log.sync();
            }
            for tell in flushes.drain(..flushes.len() * usize::from(is_done)) {
                // Who asked may have stopped waiting.
                let _ = tell.send(());
            }
            match (self.log.is_empty(), self.log.is_failing()) {
                (true, _) if more => {}
                (true, _) | (false, true) => thread::park_timeout(LOOK_EVERY),
                (false, false) => thread::park_timeout(PIPE_LOOK_EVERY),
            }
        }
    }

    /// Whether anybody is left who could want something.
    fn hear(&mut self, flushes: &mut Vec<SyncSender<()>>) -> bool {
        loop {
            match self.wished.try_recv() {
                Ok(Wish::Reopen) => self.log.reopen(),
                Ok(Wish::Flush(tell)) => {
                    self.log.hurry();
                    flushes.push(tell);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// As many rows as one write takes, from each shard in turn. Whether there may be more.
    fn take_rows(&mut self) -> bool {
        let anchor = Anchor {
            unix: UnixMicros(unix_micros()),
            now: self.clock.now(),
        };
        let mut any = true;
        while any {
            any = false;
            for queue in &self.facts.queues {
                if !self.log.has_room() {
                    return true;
                }
                if let Some(row) = queue.take() {
                    self.writer.write(self.log.pending(), &row, &anchor);
                    self.facts.gathered.fetch_add(1, Relaxed);
                    any = true;
                }
            }
        }
        false
    }

    fn write(&mut self) {
        let done = self.log.write(self.clock.now());
        let (facts, counts) = (&self.facts, &self.log.counts);
        if self.log.is_empty() {
            let written = facts.gathered.swap(0, Relaxed);
            facts.rows.fetch_add(written, Relaxed);
        }
        facts.bytes.store(counts.bytes, Relaxed);
        facts.faults.store(counts.faults, Relaxed);
        facts.rotations.store(counts.rotations, Relaxed);
        let path = &facts.path;
        match done.writes {
            Turn::Same => {}
            Turn::Failed(number) => {
                let number = if number == 0 { NO_NUMBER } else { number };
                facts.failing.store(number, Relaxed);
                let why = why(number);
                tracing::error!(
                    "journal {path}: {why}: rows wait, and are dropped when there are too many; tried again every second"
                );
            }
            Turn::Recovered => {
                facts.failing.store(0, Relaxed);
                tracing::info!("journal {path}: it is written again");
            }
        }
        match done.moves {
            Turn::Same => {}
            Turn::Failed(number) => {
                let why = why(number);
                tracing::error!(
                    "journal {path}: not moved aside or opened anew: {why}: rows go to the file that is open; tried again every second"
                );
            }
            Turn::Recovered => tracing::info!("journal {path}: it is another file now"),
        }
    }
}

#[cfg(test)]
mod tests;
