//! Files as the operating system has them, for a [`Log`](super::log::Log).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::log::{Files, Opened};

pub struct Disk;

/// Rows name clients' ids and engines: for the router's own user.
const MODE: u32 = 0o600;

impl Files for Disk {
    type File = File;

    fn open(&mut self, path: &Path) -> io::Result<Opened<File>> {
        let mut how = OpenOptions::new();
        // A pipe that nobody reads is an error, and a full one takes nothing, instead of a wait.
        how.append(true).mode(MODE).custom_flags(libc::O_NONBLOCK);
        // What is there and no file is only written to; reading would make us our own pipe's reader.
        let is_file = !fs::metadata(path).is_ok_and(|found| !found.is_file());
        if is_file {
            how.read(true).create(true);
        }
        let file = how.open(path)?;
        // A link's target stays where it is, and so does the link.
        let is_regular = fs::symlink_metadata(path)?.is_file();
        Ok(Opened {
            is_regular,
            is_torn: is_file && is_torn(&file)?,
            file,
        })
    }

    fn len(&mut self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn is_there(&mut self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_data()
    }
}

fn is_torn(file: &File) -> io::Result<bool> {
    let len = file.metadata()?.len();
    let mut last = [b'\n'];
    if len > 0 {
        file.read_exact_at(&mut last, len - 1)?;
    }
    Ok(last != *b"\n")
}

/// Whether writing there can wait for somebody: a pipe, a terminal.
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| {
        let kind = found.file_type();
        kind.is_fifo() || kind.is_char_device() || kind.is_socket()
    })
}
