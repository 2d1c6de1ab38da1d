//! Bodies, decoded: one pull-style decoder for both directions. It gives spans of the input, and copies and buffers nothing.
//!
//! Chunk syntax is RFC 9112 section 7.1 to the letter, because a lenient reader and a strict one see different messages:
//! 1 to 16 hex digits, extensions only as `*( BWS ";" BWS token [ BWS "=" BWS ( token / quoted-string ) ] )`, CRLF and nothing
//! else as a line end. Extensions and trailers are checked, bounded and dropped. The state is one byte-wise machine of
//! a few words, so input may be cut anywhere, at no cost; what comes whole and plain is taken in one step.
//!
//! Invariant: `data.start ≤ data.end ≤ used ≤ input.len()`, and every `next` consumes something or tells the end.

use std::ops::Range;

use super::head::{RequestBody, ResponseBody, is_field_byte, is_token};
use crate::base::limits;

#[doc(hidden)]
pub mod fuzzing;

#[cfg(test)]
mod tests;

/// Decodes one body. After the end, or after a fault, it stays there.
#[derive(Debug)]
pub struct BodyDecoder {
    state: State,
    /// Payload bytes that the length or the current chunk still announces; the chunk's size while its digits are read.
    left: u64,
    /// Bytes of the current size line, later of the trailer section, so far; 0 before each.
    line_bytes: usize,
}

/// One step of decoding. `used` input bytes are done with; the next call gets the input behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Payload: `input[data]`, never empty.
    Piece { data: Range<usize>, used: usize },
    /// The input is used up and the body goes on.
    More { used: usize },
    /// The body is complete; the bytes behind `used` belong to the next message.
    End { used: usize },
}

/// How a body broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// No hex digit, over 16 of them, or something but an extension or CRLF after them.
    ChunkSize,
    /// A bad extension, or a size line over its limit.
    ChunkExtension,
    /// No CRLF after the data of a chunk.
    ChunkEnd,
    /// A trailer line that is no field.
    Trailer,
    TrailerTooLarge,
    /// The peer closed before the end.
    Truncated,
}

impl BodyFault {
    /// The status that a client gets for such a request body.
    pub fn status(self) -> u16 {
        match self {
            BodyFault::TrailerTooLarge => 431,
            _ => 400,
        }
    }

    /// A sentence for the error body.
    pub fn message(self) -> &'static str {
        match self {
            BodyFault::ChunkSize => "bad chunk size",
            BodyFault::ChunkExtension => "bad chunk extension",
            BodyFault::ChunkEnd => "bad end of a chunk",
            BodyFault::Trailer => "malformed trailer",
            BodyFault::TrailerTooLarge => "trailer too large",
            BodyFault::Truncated => "incomplete body",
        }
    }
}

impl BodyDecoder {
    pub fn request(body: RequestBody) -> Self {
        match body {
            RequestBody::None => Self::new(State::Ended, 0),
            RequestBody::Length(0) => Self::new(State::Ended, 0),
            RequestBody::Length(length) => Self::new(State::Sized, length),
            RequestBody::Chunked => Self::new(State::SizeFirst, 0),
        }
    }

    pub fn response(body: ResponseBody) -> Self {
        match body {
            ResponseBody::None => Self::new(State::Ended, 0),
            ResponseBody::Length(0) => Self::new(State::Ended, 0),
            ResponseBody::Length(length) => Self::new(State::Sized, length),
            ResponseBody::Chunked => Self::new(State::SizeFirst, 0),
            ResponseBody::UntilClose => Self::new(State::UntilClose, 0),
        }
    }

    /// Decodes up to one piece. Call again with the rest of the input until it says [`Step::More`] or [`Step::End`].
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> Result<Step, BodyFault> {
        if self.state == State::SizeFirst
            && let Some(chunk) = whole_chunk(input)
        {
            return Ok(chunk);
        }
        self.next_of_any(input)
    }

    fn next_of_any(&mut self, input: &[u8]) -> Result<Step, BodyFault> {
        let mut used = 0;
        loop {
            match self.state {
                State::Ended => return Ok(Step::End { used }),
                State::Broken(fault) => return Err(fault),
                _ if used == input.len() => return Ok(Step::More { used }),
                State::UntilClose => return Ok(piece(used, input.len())),
                State::Sized | State::Data => {
                    let rest = (input.len() - used) as u64;
                    let take = self.left.min(rest);
                    self.left -= take;
                    if self.left == 0 {
                        self.state = match self.state {
                            State::Data => State::DataCr,
                            _ => State::Ended,
                        };
                    }
                    // `take ≤ rest`, which was a usize.
                    return Ok(piece(used, used + take as usize));
                }
                State::DataCr if input[used..].starts_with(b"\r\n") => {
                    self.state = State::SizeFirst;
                    used += 2;
                }
                state => {
                    if state == State::SizeFirst
                        && let Some((size, len)) = plain_size(&input[used..])
                    {
                        self.left = size;
                        self.state = match size {
                            0 => State::TrailerStart,
                            _ => State::Data,
                        };
                        used += len;
                        continue;
                    }
                    self.state = match self.step(input[used]) {
                        Ok(state) => state,
                        Err(fault) => {
                            self.state = State::Broken(fault);
                            return Err(fault);
                        }
                    };
                    used += 1;
                }
            }
        }
    }

    /// The peer closed its side: fine after the end, and where closing is the end.
    pub fn eof(&self) -> Result<(), BodyFault> {
        match self.state {
            State::Ended | State::UntilClose => Ok(()),
            State::Broken(fault) => Err(fault),
            _ => Err(BodyFault::Truncated),
        }
    }

    /// The body was read to its end, final chunk and trailers included.
    pub fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Bytes that are still to come, where a length tells.
    pub fn left(&self) -> Option<u64> {
        (self.state == State::Sized).then_some(self.left)
    }

    fn new(state: State, left: u64) -> Self {
        BodyDecoder {
            state,
            left,
            line_bytes: 0,
        }
    }

    /// One byte of chunk framing.
    fn step(&mut self, byte: u8) -> Result<State, BodyFault> {
        match self.state {
            State::SizeFirst | State::Size | State::SizeLf => self.size(byte),
            State::DataCr if byte == b'\r' => Ok(State::DataLf),
            State::DataLf if byte == b'\n' => Ok(State::SizeFirst),
            State::DataCr | State::DataLf => Err(BodyFault::ChunkEnd),
            State::TrailerStart
            | State::TrailerName
            | State::TrailerValue
            | State::TrailerLf
            | State::LastLf => self.trailer(byte),
            _ => {
                self.count_line()?;
                extension(self.state, byte).ok_or(BodyFault::ChunkExtension)
            }
        }
    }

    fn size(&mut self, byte: u8) -> Result<State, BodyFault> {
        self.count_line()?;
        let digit = (byte as char).to_digit(16).map(u64::from);
        match (self.state, byte, digit) {
            (State::SizeFirst, _, Some(digit)) => {
                self.left = digit;
                Ok(State::Size)
            }
            // 16 digits fill the 64 bits exactly; until here each byte of the line was a digit.
            (State::Size, _, Some(digit)) if self.line_bytes <= SIZE_DIGITS_MAX => {
                self.left = self.left << 4 | digit;
                Ok(State::Size)
            }
            (State::Size, b'\r', _) => Ok(State::SizeLf),
            (State::Size, b';', _) => Ok(State::ExtStart),
            (State::Size, b' ' | b'\t', _) => Ok(State::ExtGap),
            (State::SizeLf, b'\n', _) => {
                self.line_bytes = 0;
                Ok(match self.left {
                    0 => State::TrailerStart,
                    _ => State::Data,
                })
            }
            _ => Err(BodyFault::ChunkSize),
        }
    }

    fn trailer(&mut self, byte: u8) -> Result<State, BodyFault> {
        self.line_bytes += 1;
        if self.line_bytes > limits::TRAILER_BYTES_MAX {
            return Err(BodyFault::TrailerTooLarge);
        }
        match (self.state, byte) {
            (State::TrailerStart, b'\r') => Ok(State::LastLf),
            (State::TrailerStart | State::TrailerName, _) if is_token(byte) => {
                Ok(State::TrailerName)
            }
            (State::TrailerName, b':') => Ok(State::TrailerValue),
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, _) if is_field_byte(byte) => Ok(State::TrailerValue),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (State::LastLf, b'\n') => Ok(State::Ended),
            _ => Err(BodyFault::Trailer),
        }
    }

    fn count_line(&mut self) -> Result<(), BodyFault> {
        self.line_bytes += 1;
        if self.line_bytes > limits::CHUNK_LINE_BYTES_MAX {
            return Err(BodyFault::ChunkExtension);
        }
        Ok(())
    }
}

/// Where the decoder stands: before which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ended,
    Broken(BodyFault),
    UntilClose,
    Sized,
    /// First digit of a size.
    SizeFirst,
    /// A further digit, or what may follow the last one.
    Size,
    SizeLf,
    /// Behind white space; only `;` can follow.
    ExtGap,
    /// Behind `;`, before the name.
    ExtStart,
    ExtName,
    /// Behind white space after the name: `=` or `;`.
    ExtNameGap,
    /// Behind `=`, before the value.
    ExtEquals,
    ExtToken,
    ExtQuoted,
    /// Behind a backslash in a quoted string.
    ExtEscape,
    /// Behind the closing quote.
    ExtQuotedEnd,
    Data,
    DataCr,
    DataLf,
    /// First byte of a trailer line, or of the last CRLF.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
}

const SIZE_DIGITS_MAX: usize = 16;

/// A size line as nearly all are: some digits, CRLF, all there. Its value and length. Anything else is for the machine.
#[inline]
fn plain_size(input: &[u8]) -> Option<(u64, usize)> {
    let mut size = 0;
    for (at, byte) in input.iter().enumerate().take(PLAIN_DIGITS_MAX + 1) {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if at > 0 && input.get(at + 1) == Some(&b'\n') => return Some((size, at + 2)),
            _ => return None,
        };
        size = size << 4 | u64::from(digit);
    }
    None
}

/// A chunk as nearly all are: with a plain size, and all there, the line end behind its data too. It leaves the decoder where it was.
#[inline]
fn whole_chunk(input: &[u8]) -> Option<Step> {
    let (size, start) = plain_size(input)?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    let behind = input.get(end..)?;
    (size > 0 && behind.starts_with(b"\r\n")).then_some(Step::Piece {
        data: start..end,
        used: end + 2,
    })
}

/// Far from what overflows, and from the bound of a line.
const PLAIN_DIGITS_MAX: usize = 8;

fn piece(start: usize, end: usize) -> Step {
    Step::Piece {
        data: start..end,
        used: end,
    }
}

/// Chunk extensions, RFC 9112 section 7.1.1; `None` when the byte cannot stand there.
fn extension(state: State, byte: u8) -> Option<State> {
    let blank = byte == b' ' || byte == b'\t';
    match (state, byte) {
        (State::ExtGap, b';') => Some(State::ExtStart),
        (State::ExtGap, _) if blank => Some(State::ExtGap),
        (State::ExtStart, _) if blank => Some(State::ExtStart),
        (State::ExtStart | State::ExtName, _) if is_token(byte) => Some(State::ExtName),
        (State::ExtName | State::ExtNameGap, b'=') => Some(State::ExtEquals),
        (State::ExtName | State::ExtNameGap, b';') => Some(State::ExtStart),
        (State::ExtName | State::ExtNameGap, _) if blank => Some(State::ExtNameGap),
        (State::ExtEquals, _) if blank => Some(State::ExtEquals),
        (State::ExtEquals, b'"') => Some(State::ExtQuoted),
        (State::ExtEquals | State::ExtToken, _) if is_token(byte) => Some(State::ExtToken),
        (State::ExtQuoted, b'"') => Some(State::ExtQuotedEnd),
        (State::ExtQuoted, b'\\') => Some(State::ExtEscape),
        (State::ExtQuoted | State::ExtEscape, _) if is_field_byte(byte) => Some(State::ExtQuoted),
        (State::ExtToken | State::ExtQuotedEnd, b';') => Some(State::ExtStart),
        (State::ExtToken | State::ExtQuotedEnd, _) if blank => Some(State::ExtGap),
        (State::ExtName | State::ExtToken | State::ExtQuotedEnd, b'\r') => Some(State::SizeLf),
        _ => None,
    }
}
