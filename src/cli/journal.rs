//! `narwhal journal summarize`: what the rows of one or more journals come to, as tables or as one JSON object.
//!
//! Files are read once, in pieces, in the order given; rotated ones like any other, and `-` is standard input. Lines that are no rows are
//! passed over and counted. Exit codes: 0 done, 1 a file cannot be read or none of them holds a row, 2 a wrong command line.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::{Failure, flags};
use crate::metrics::journal::read::{Facts, Lines, NoRow};
use crate::metrics::journal::summary::Summary;

const PIECE_BYTES: usize = 1 << 18;
/// What gzip files begin with (RFC 1952 section 2.3.1), and zstd ones (RFC 8878 section 3.1.1).
const PACKED: [(&[u8], &str); 2] = [(b"\x1f\x8b", "zcat"), (b"\x28\xb5\x2f\xfd", "zstdcat")];

pub fn summarize(args: flags::Summarize) -> Result<(), Failure> {
    let mut summary = Summary::default();
    let mut faults = Vec::new();
    for path in &args.files {
        if let Err(why) = read(path, &mut summary) {
            faults.push(format!("{}: {why}", path.display()));
        }
    }
    if summary.rows() > 0 {
        let text = match args.json {
            true => format!("{:#}\n", summary.json()),
            false => summary.text(),
        };
        match io::stdout().write_all(text.as_bytes()) {
            // Whoever closed the pipe has seen enough.
            Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
                faults.push(format!("the report cannot be written: {why}"));
            }
            _ => {}
        }
    } else if faults.is_empty() {
        let why = match summary.passed_over() {
            0 => "empty".to_owned(),
            n => format!(
                "{n} lines, none of them a row of `narwhal.journal` that this version reads"
            ),
        };
        let named: Vec<_> = args.files.iter().map(|f| f.display().to_string()).collect();
        faults.push(format!("{}: {why}", named.join(", ")));
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(faults.join("\nnarwhal: "))),
    }
}

fn read(path: &Path, summary: &mut Summary) -> Result<(), String> {
    let mut source: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(File::open(path).map_err(|why| why.to_string())?),
    };
    let mut lines = Lines::default();
    let mut piece = vec![0; PIECE_BYTES];
    let mut is_first = true;
    let mut take = |line: Option<&[u8]>| {
        summary.add(line.map_or(Err(NoRow::TooLong), Facts::read));
    };
    loop {
        let bytes = match source.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => &piece[..n],
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            // What was read counts all the same.
            Err(why) => {
                lines.end(take);
                return Err(why.to_string());
            }
        };
        let packed = PACKED.iter().find(|(magic, _)| bytes.starts_with(magic));
        if let (Some((_, unpack)), true) = (packed, is_first) {
            let hint = "narwhal journal summarize -";
            return Err(format!("it is compressed: `{unpack} FILE | {hint}`"));
        }
        is_first = false;
        lines.feed(bytes, &mut take);
    }
    lines.end(take);
    Ok(())
}
