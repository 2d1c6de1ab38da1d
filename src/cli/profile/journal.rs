//! Points as they are measured, one JSON line each, so that what took an hour is not measured twice. Owns the file beside the output.
//!
//! A point is taken up again only for the same engine, measured in the same way, of the same generation. A last line that was cut off, as
//! by a kill, is dropped. Invariant: what is in memory is on disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What was measured. `repeat` counts from 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Point {
    Prefill {
        asked_tokens: u64,
        repeat: u32,
        tokens: u64,
        seconds: f64,
    },
    Decode {
        requests: u64,
        prompt_tokens: u64,
        repeat: u32,
        kv_tokens: f64,
        interval_s: f64,
    },
}

/// Whose point it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Owner {
    pub iid: String,
    pub way: String,
    pub generation_digest: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    owner: Owner,
    #[serde(flatten)]
    point: Point,
}

pub struct Journal {
    file: File,
    lines: Vec<Line>,
}

const FILE_BYTES_MAX: u64 = 64 << 20;

/// Where the points of an output are.
pub fn beside(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".points.jsonl");
    PathBuf::from(name)
}

impl Journal {
    /// Starts anew, or goes on with what is there.
    pub fn open(path: &Path, resume: bool) -> io::Result<Journal> {
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(!resume)
            .open(path)?;
        let mut text = Vec::new();
        (&mut file).take(FILE_BYTES_MAX).read_to_end(&mut text)?;
        let mut lines = Vec::new();
        let mut good = 0;
        for line in text.split_inclusive(|b| *b == b'\n') {
            let Some(whole) = line.strip_suffix(b"\n") else {
                break;
            };
            let line_no = lines.len() + 1;
            let read = serde_json::from_slice(whole).map_err(|why| {
                let text = format!("line {line_no} is no point: {why}");
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            lines.push(read);
            good += line.len() as u64;
        }
        // The cursor stands at the end of what was read.
        file.set_len(good)?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(good))?;
        Ok(Journal { file, lines })
    }

    /// Points of an engine.
    pub fn of(&self, owner: &Owner) -> impl Iterator<Item = &Point> {
        let own = self.lines.iter().filter(move |line| line.owner == *owner);
        own.map(|line| &line.point)
    }

    /// Points of the same engine that do not count any more.
    pub fn outdated(&self, owner: &Owner) -> usize {
        let same = self.lines.iter().filter(|line| line.owner.iid == owner.iid);
        same.filter(|line| line.owner != *owner).count()
    }

    pub fn add(&mut self, owner: &Owner, point: Point) -> io::Result<()> {
        let owner = owner.clone();
        let line = Line { owner, point };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        self.file.write_all(&text)?;
        self.file.sync_data()?;
        self.lines.push(line);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves R-CLI-5
    #[test]
    fn points_survive_and_a_torn_line_does_not() {
        let folder = std::env::temp_dir().join(format!("narwhal-journal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        let path = folder.join("p.json.points.jsonl");
        let owner = |generation: &str| Owner {
            iid: "e0".into(),
            way: "alone".into(),
            generation_digest: generation.into(),
        };
        let point = |repeat| Point::Prefill {
            asked_tokens: 32,
            repeat,
            tokens: 32,
            seconds: 0.1 + f64::from(repeat) / 3.0,
        };
        let decode = Point::Decode {
            requests: 8,
            prompt_tokens: 100,
            repeat: 0,
            kv_tokens: 1_053.25,
            interval_s: 1.0 / 3.0,
        };
        let mut journal = Journal::open(&path, false).expect("a journal");
        for (generation, point) in [("a", point(0)), ("b", point(1)), ("a", decode)] {
            journal.add(&owner(generation), point).expect("on disk");
        }
        drop(journal);
        let text = std::fs::read(&path).expect("lines");
        // Cut anywhere: whole lines count, and what is added later stands on a line of its own.
        for cut in (0..text.len()).rev() {
            std::fs::write(&path, &text[..cut]).expect("a cut");
            let whole = text[..cut].iter().filter(|b| **b == b'\n').count();
            let mut journal = Journal::open(&path, true).expect("a journal");
            assert_eq!(journal.lines.len(), whole, "{cut}");
            journal.add(&owner("a"), decode).expect("on disk");
            let journal = Journal::open(&path, true).expect("a journal");
            assert_eq!(journal.of(&owner("a")).last(), Some(&decode));
            assert_eq!(journal.outdated(&owner("a")), usize::from(whole >= 2));
        }
        std::fs::write(&path, "{}\n").expect("a file");
        let why = Journal::open(&path, true).err().expect("no point");
        assert!(why.to_string().contains("line 1 is no point"), "{why}");
        let fresh = Journal::open(&path, false).expect("a journal");
        assert_eq!(fresh.lines.len(), 0);
        std::fs::remove_dir_all(&folder).expect("the test's own folder");
    }
}
