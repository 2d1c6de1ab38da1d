//! Fuzz bodies of the event room: any bytes in, a panic when a property is broken.
//!
//! Everything clever is compared with a plain re-implementation ([`oracle`]), in several splits; any bytes are also a tape that
//! makes structured input ([`tape`]). Not part of the interface.

use std::ops::ControlFlow;

use super::{EventStream, Facts, Ids, Item, TooLarge, write_block, write_event};
use oracle::{Truth, facts, members, naive, plain};
use tape::{Tape, event_text, stream_bytes};

pub mod alike;

pub mod oracle;

pub mod tape;

/// Any bytes, as a stream of their own or as a tape for the generators. Panics when a property is broken.
pub fn fuzz(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else {
        return;
    };
    let ids = match mode & 1 {
        0 => Ids::Expected,
        _ if rest.len() % 2 == 0 => Ids::Absent,
        _ => Ids::AbsentSglang,
    };
    if mode >> 3 & 3 == 3 {
        return check_stream(&alike::stream(&mut Tape(rest)), ids);
    }
    match mode >> 1 & 3 {
        0 => check_event(rest, ids),
        1 => check_event(event_text(&mut Tape(rest)).as_bytes(), ids),
        2 => check_stream(rest, ids),
        _ => check_stream(&stream_bytes(&mut Tape(rest)), ids),
    }
}

/// One item, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Object(Vec<u8>, bool),
    Malformed(Vec<u8>, bool),
    Done,
    Line(Vec<u8>),
    Blank,
}

/// What a stream fed in `pieces` tells, end of body included. The facts of each object are checked on the way.
pub fn told<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    ids: Ids,
    bytes_max: usize,
) -> (Vec<Told>, Result<(), TooLarge>) {
    let mut out = Vec::new();
    let mut stream = EventStream::new(ids, bytes_max);
    let mut sink = |item: Item<'_>| {
        out.push(match item {
            Item::Object {
                value,
                joined,
                facts,
                block,
            } => {
                assert_eq!(joined, value.contains(&b'\n'));
                assert_facts(value, ids, facts);
                if let Some(block) = block {
                    let (mut whole, mut plain) = (Vec::new(), Vec::new());
                    write_block(&mut whole, block, facts.cuts());
                    write_event(&mut plain, value, joined, facts.cuts());
                    assert_eq!(whole, plain);
                }
                Told::Object(value.to_vec(), joined)
            }
            Item::Malformed { value, joined } => Told::Malformed(value.to_vec(), joined),
            Item::Done => Told::Done,
            Item::Line(line) => Told::Line(line.to_vec()),
            Item::Blank => Told::Blank,
        });
        ControlFlow::Continue(())
    };
    for piece in pieces {
        if let Err(fault) = stream.feed(piece, &mut sink) {
            return (out, Err(fault));
        }
        // A carried line may have been counted with the two bytes of a mark that was none.
        assert!(stream.capacity() <= bytes_max.max(2).saturating_add(64 * 1024));
    }
    let end = stream.eof(&mut sink).map(|_| ());
    (out, end)
}

fn check_stream(bytes: &[u8], ids: Ids) {
    let want = (naive(bytes, ids), Ok(()));
    assert_eq!(told([bytes], ids, usize::MAX), want);
    assert_eq!(told(bytes.chunks(1), ids, usize::MAX), want);
    for size in [2, 3, 7, 61] {
        assert_eq!(told(bytes.chunks(size), ids, usize::MAX), want);
    }
    // With a bound every split still tells the same, the refusal included.
    let bytes_max = 4 + usize::from(bytes.first().copied().unwrap_or(0)) / 4;
    let bounded = told([bytes], ids, bytes_max);
    assert_eq!(told(bytes.chunks(1), ids, bytes_max), bounded);
    assert_eq!(told(bytes.chunks(5), ids, bytes_max), bounded);
    assert!(want.0.starts_with(&bounded.0));
}

fn check_event(value: &[u8], ids: Ids) {
    let mut ours = Facts::default();
    let read = ours.read(value, ids);
    assert_eq!(
        read,
        facts(value, ids).is_some(),
        "{}",
        String::from_utf8_lossy(value)
    );
    if read {
        assert_facts(value, ids, &ours);
    }
}

/// The facts are the oracle's, and the value without its cuts is the value without the members.
fn assert_facts(value: &[u8], ids: Ids, ours: &Facts) {
    let shown = String::from_utf8_lossy(value);
    let Some(theirs) = facts(value, ids) else {
        panic!("not an object: {shown}");
    };
    let message = |span: &std::ops::Range<usize>| plain(&value[span.clone()]);
    let told = Truth {
        tokens: ours.tokens,
        bears_token: ours.bears_token,
        output: ours.output,
        ids_ok: ours.ids_ok,
        error: ours
            .error
            .as_ref()
            .map(|e| (e.status, e.message.as_ref().map(message))),
        abort: ours.abort,
    };
    assert_eq!(told, theirs, "{shown}");
    let mut out = Vec::new();
    write_event(&mut out, value, value.contains(&b'\n'), ours.cuts());
    let line = out
        .strip_prefix(b"data: ")
        .and_then(|o| o.strip_suffix(b"\n\n"));
    let line = line.expect("written as one data line");
    assert!(!line.contains(&b'\n'));
    assert_eq!(members(line, false), members(value, true), "{shown}");
    assert!(ours.cuts().windows(2).all(|w| w[0].end <= w[1].start));
}
