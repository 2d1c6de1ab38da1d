//! Where a head ends: looked for from where the last look stopped, so that a head coming byte by byte costs linear time.
//!
//! A bad first byte, a bare CR or LF and an overlong head are told at the byte that proves them. Owns nothing.
//! Invariant: `scanned` never passes a byte that may still change what came before it.

use std::ops::Range;

use memchr::memchr2;

use super::{HeadFault, HeadLimits, is_token};

/// Where the start line begins in the bytes so far, or why they can begin no head.
pub(super) type Opening = fn(&[u8]) -> Result<Option<usize>, HeadFault>;

pub(super) fn request_opening(window: &[u8]) -> Result<Option<usize>, HeadFault> {
    let start = match window {
        [b'\r', b'\n', ..] => 2,
        [b'\r'] => return Ok(None),
        _ => 0,
    };
    match window.get(start) {
        None => Ok(None),
        Some(&byte) if is_token(byte) => Ok(Some(start)),
        Some(_) => Err(HeadFault::Bad("malformed request line")),
    }
}

pub(super) fn response_opening(window: &[u8]) -> Result<Option<usize>, HeadFault> {
    match window.first() {
        None => Ok(None),
        Some(b'H') => Ok(Some(0)),
        Some(_) => Err(HeadFault::Bad("malformed status line")),
    }
}

/// Looks for the blank line, from `scanned` on; gives the span from the start line through it.
///
/// Every byte before `scanned` belongs to a line that ended in CRLF or may still do so, hence looking two bytes back
/// is enough to know an empty line.
pub(super) fn find_end(
    buf: &[u8],
    scanned: &mut usize,
    limits: &HeadLimits,
    opening: Opening,
) -> Result<Option<Range<usize>>, HeadFault> {
    let window = &buf[..buf.len().min(limits.bytes_max)];
    if let Some(start) = opening(window)? {
        let mut pos = (*scanned).clamp(start, window.len());
        while let Some(offset) = memchr2(b'\r', b'\n', &window[pos..]) {
            pos += offset;
            match window[pos..] {
                [b'\r'] => break,
                [b'\r', b'\n', ..] => {}
                [b'\r', ..] => return Err(HeadFault::Bad("bare CR in the head")),
                _ => return Err(HeadFault::Bad("bare LF in the head")),
            }
            if window[start..pos].ends_with(b"\r\n") {
                return Ok(Some(start..pos + 2));
            }
            pos += 2;
        }
        // A CR at the very end may still become a line end: it is looked at again.
        *scanned = match window[pos..] {
            [b'\r'] => pos,
            _ => window.len(),
        };
    }
    if buf.len() >= limits.bytes_max {
        return Err(HeadFault::TooLarge);
    }
    Ok(None)
}
