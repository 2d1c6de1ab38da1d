//! Lines of an event stream: where they end, and which field each one is.
//!
//! Owns the bytes of an unfinished line between two reads; knows nothing of what data means (see [`super::event`]).
//! Grammar: WHATWG HTML, server-sent events, "interpreting an event stream", over bytes: LF, CRLF and CR end a line, one
//! leading byte order mark is ignored. A CR ends its line at once, so that a stream of bare CRs is not a line late; the LF of a
//! CRLF is swallowed whenever it comes. A complete line inside one read is handed out where it stands; only a line cut by
//! the network is copied, and its carried part is never looked at again for a line end.
//!
//! Invariant: no byte of `carry` but those after `taken` ends a line; `carry.len() ≤` the bound given to [`Lines::next`].

use memchr::memchr2;

/// A line, or what has come of it, passed the bound. The stream is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// Splits what is fed into lines.
#[derive(Debug, Default)]
pub struct Lines {
    carry: Vec<u8>,
    /// `carry` holds a line that was handed out: drop it before the next one.
    taken: bool,
    /// The last byte was a CR: a following LF belongs to it.
    cr: bool,
    bom: Bom,
}

/// How much of a leading byte order mark has been seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Bom {
    #[default]
    Start,
    One,
    Two,
    Past,
}

/// What one line is. Names that the grammar does not know are ignored, as it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// The value of a data field: at most one space after the colon is stripped.
    Data(&'a [u8]),
    /// A comment, or an `event`, `id` or `retry` field.
    Kept,
    Blank,
    Ignored,
}

impl<'a> Field<'a> {
    pub fn of(line: &'a [u8]) -> Self {
        if let Some(value) = line.strip_prefix(b"data:") {
            return Field::Data(value.strip_prefix(b" ").unwrap_or(value));
        }
        let name = match line.iter().position(|b| *b == b':') {
            Some(0) => return Field::Kept,
            Some(colon) => &line[..colon],
            None => line,
        };
        match name {
            b"" => Field::Blank,
            b"data" => Field::Data(b""),
            b"event" | b"id" | b"retry" => Field::Kept,
            _ => Field::Ignored,
        }
    }
}

impl Lines {
    /// The next complete line of `piece`, without its terminator, and `piece` moved past it. `None`: all of `piece` is taken.
    /// A line of more than `bytes_max` bytes, finished or not, is [`TooLarge`].
    #[inline]
    pub fn next<'s, 'p: 's>(
        &'s mut self,
        piece: &mut &'p [u8],
        bytes_max: usize,
    ) -> Result<Option<&'s [u8]>, TooLarge> {
        if self.taken {
            self.drop_carry();
        }
        if self.cr || self.bom != Bom::Past {
            self.edges(piece);
        }
        let rest = *piece;
        let end = memchr2(b'\n', b'\r', rest);
        let len = end.unwrap_or(rest.len());
        if len > bytes_max.saturating_sub(self.carry.len()) {
            return Err(TooLarge);
        }
        let Some(end) = end else {
            append_bounded(&mut self.carry, rest, bytes_max);
            *piece = &[];
            return Ok(None);
        };
        *piece = &rest[end + 1..];
        if rest[end] == b'\r' {
            self.cr = true;
        }
        if self.carry.is_empty() {
            return Ok(Some(&rest[..end]));
        }
        append_bounded(&mut self.carry, &rest[..end], bytes_max);
        self.taken = true;
        Ok(Some(&self.carry))
    }

    /// Nothing of a line is held, and the next byte begins one.
    #[inline]
    pub fn at_start(&mut self) -> bool {
        if self.taken {
            self.drop_carry();
        }
        self.carry.is_empty() && !self.cr && self.bom == Bom::Past
    }

    /// The body ended: the last line, if it had no terminator.
    pub fn last(&mut self) -> Option<&[u8]> {
        if self.taken {
            self.drop_carry();
        }
        self.taken = true;
        (!self.carry.is_empty()).then_some(&self.carry)
    }

    /// Forgets the stream, keeps a buffer of ordinary size.
    pub fn reset(&mut self) {
        self.drop_carry();
        self.cr = false;
        self.bom = Bom::Start;
    }

    /// Bytes of memory held.
    pub fn capacity(&self) -> usize {
        self.carry.capacity()
    }

    /// Swallows the LF of a CRLF, and a byte order mark at the very start, both of which may be cut.
    fn edges(&mut self, piece: &mut &[u8]) {
        while self.bom != Bom::Past {
            let Some(first) = piece.first() else { return };
            let (want, next, seen): (u8, Bom, &[u8]) = match self.bom {
                Bom::Start => (0xef, Bom::One, b""),
                Bom::One => (0xbb, Bom::Two, b"\xef"),
                Bom::Two => (0xbf, Bom::Past, b"\xef\xbb"),
                Bom::Past => return,
            };
            if *first == want {
                self.bom = next;
                *piece = &piece[1..];
            } else {
                // No mark after all: what looked like one begins the first line.
                self.bom = Bom::Past;
                self.carry.extend_from_slice(seen);
            }
        }
        if self.cr
            && let Some(first) = piece.first()
        {
            self.cr = false;
            if *first == b'\n' {
                *piece = &piece[1..];
            }
        }
    }

    fn drop_carry(&mut self) {
        self.taken = false;
        clear_bounded(&mut self.carry);
    }
}

/// Bytes of capacity that a buffer keeps after a giant line. A guess: engines' events are under 1 KiB, first events of
/// long prompts with their token ids some hundred KiB.
const KEEP_BYTES: usize = 64 * 1024;

/// Empties a buffer and gives back what a giant line made it grow by.
pub(super) fn clear_bounded(buf: &mut Vec<u8>) {
    buf.clear();
    if buf.capacity() > KEEP_BYTES {
        buf.shrink_to(KEEP_BYTES);
    }
}

/// Appends; doubles the capacity like a `Vec`, but never past `bytes_max`, which the caller has checked against.
pub(super) fn append_bounded(buf: &mut Vec<u8>, more: &[u8], bytes_max: usize) {
    let need = buf.len() + more.len();
    if need > buf.capacity() {
        let want = need.max((2 * buf.capacity()).min(bytes_max));
        buf.reserve_exact(want - buf.len());
    }
    buf.extend_from_slice(more);
}

#[doc(hidden)]
pub mod fuzzing {
    //! Lines found by the plainest reader, and the same in every cut.

    use super::{Field, Lines, TooLarge};

    /// Any bytes: whole, byte by byte and cut at every offset give the lines of the plain reader; so does a bound, up to the refusal.
    pub fn fuzz(data: &[u8]) {
        // Every cut is square in the length.
        let data = &data[..data.len().min(256)];
        let want = plain(data);
        assert_eq!(told([data], usize::MAX), (want.clone(), Ok(())));
        assert_eq!(told(data.chunks(1), usize::MAX), (want.clone(), Ok(())));
        for at in 0..=data.len() {
            let (a, b) = data.split_at(at);
            assert_eq!(told([a, b], usize::MAX).0, want, "cut at {at}");
        }
        let bytes_max = 3 + usize::from(data.first().copied().unwrap_or(0) % 32);
        let fits = want.iter().take_while(|line| line.len() <= bytes_max);
        let fits = fits.count();
        for size in [1, 2, 5, data.len().max(1)] {
            let (lines, end) = told(data.chunks(size), bytes_max);
            assert_eq!(lines, want[..fits]);
            assert_eq!(end.is_ok(), fits == want.len());
        }
        for line in &want {
            if let Field::Data(value) = Field::of(line) {
                assert!(line.ends_with(value) && line.starts_with(b"data"));
            }
        }
    }

    fn told<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
        bytes_max: usize,
    ) -> (Vec<Vec<u8>>, Result<(), TooLarge>) {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        for mut piece in pieces {
            loop {
                match lines.next(&mut piece, bytes_max) {
                    Ok(Some(line)) => out.push(line.to_vec()),
                    Ok(None) => break,
                    Err(fault) => return (out, Err(fault)),
                }
            }
        }
        out.extend(lines.last().map(<[u8]>::to_vec));
        (out, Ok(()))
    }

    /// LF, CRLF and CR made one, a mark dropped, split; nothing behind the last line end is no line. A stream that is
    /// half a mark and ends says nothing.
    fn plain(data: &[u8]) -> Vec<Vec<u8>> {
        if b"\xef\xbb".starts_with(data) {
            return Vec::new();
        }
        let data = data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data);
        let mut lines = vec![Vec::new()];
        for (i, byte) in data.iter().enumerate() {
            match byte {
                b'\n' if i > 0 && data[i - 1] == b'\r' => {}
                b'\n' | b'\r' => lines.push(Vec::new()),
                byte => lines.last_mut().expect("never empty").push(*byte),
            }
        }
        if lines.last().is_some_and(Vec::is_empty) {
            lines.pop();
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut splitter = Lines::default();
        let mut out = Vec::new();
        for piece in pieces {
            let mut piece = *piece;
            while let Some(line) = splitter.next(&mut piece, 1_000).unwrap() {
                out.push(line.to_vec());
            }
        }
        if let Some(line) = splitter.last() {
            out.push([b"<eof>", line].concat());
        }
        out
    }

    // proves R-SSE-1
    #[test]
    fn lines_end_at_lf_crlf_and_cr_in_every_split() {
        let rows: &[(&str, &[u8], &[&str])] = &[
            ("lf", b"a\nb\n\nc\n", &["a", "b", "", "c"]),
            ("crlf", b"a\r\nb\r\n\r\nc\r\n", &["a", "b", "", "c"]),
            ("cr", b"a\rb\r\rc\r", &["a", "b", "", "c"]),
            (
                "mixed",
                b"a\r\n\n\r\rb\n\rc",
                &["a", "", "", "", "b", "", "<eof>c"],
            ),
            ("mark", b"\xef\xbb\xbfa\n", &["a"]),
            ("mark alone", b"\xef\xbb\xbf", &[]),
            ("mark then crlf", b"\xef\xbb\xbf\r\n\r\n", &["", ""]),
            (
                "separators",
                "\u{2028}\u{2029}\u{85}\u{b}\u{c}\n".as_bytes(),
                &["\u{2028}\u{2029}\u{85}\u{b}\u{c}"],
            ),
            ("nothing", b"", &[]),
        ];
        for (name, input, want) in rows {
            let want: Vec<Vec<u8>> = want.iter().map(|l| l.as_bytes().to_vec()).collect();
            assert_eq!(lines(&[input]), want, "{name}, whole");
            let bytes: Vec<&[u8]> = input.chunks(1).collect();
            assert_eq!(lines(&bytes), want, "{name}, byte by byte");
            for cut in 0..=input.len() {
                let (a, b) = input.split_at(cut);
                assert_eq!(lines(&[a, b"", b]), want, "{name}, cut at {cut}");
            }
        }
    }

    // proves R-SSE-1
    #[test]
    fn only_one_whole_mark_at_the_start_is_ignored() {
        for cut in 0..=4 {
            let input = b"\xef\xbb\xbf\xef\xbb\xbfa\n";
            let (a, b) = input.split_at(cut);
            assert_eq!(lines(&[a, b]), [b"\xef\xbb\xbfa".to_vec()]);
            let input = b"\xef\xbb:\n\xef\xbb\xbf\n";
            let (a, b) = input.split_at(cut);
            assert_eq!(
                lines(&[a, b]),
                [b"\xef\xbb:".to_vec(), b"\xef\xbb\xbf".to_vec()]
            );
        }
        assert_eq!(lines(&[b"\xef", b"\n"]), [b"\xef".to_vec()]);
    }

    // proves R-SSE-1
    #[test]
    fn fields_by_name() {
        let rows: &[(&[u8], Field<'_>)] = &[
            (b"", Field::Blank),
            (b":", Field::Kept),
            (b": data: x", Field::Kept),
            (b"data:", Field::Data(b"")),
            (b"data", Field::Data(b"")),
            (b"data: ", Field::Data(b"")),
            (b"data:x", Field::Data(b"x")),
            (b"data: x ", Field::Data(b"x ")),
            (b"data:  x", Field::Data(b" x")),
            (b"data:\tx", Field::Data(b"\tx")),
            (b"data :x", Field::Ignored),
            (b"Data: x", Field::Ignored),
            (b" data: x", Field::Ignored),
            (b"database: x", Field::Ignored),
            (b"event: a", Field::Kept),
            (b"id", Field::Kept),
            (b"retry:1", Field::Kept),
            (b"garbage line", Field::Ignored),
        ];
        for (line, want) in rows {
            assert_eq!(Field::of(line), *want, "{}", String::from_utf8_lossy(line));
        }
    }

    // proves R-SSE-1
    #[test]
    fn lines_are_those_of_the_plain_reader() {
        let mut prng = crate::base::prng::Prng::new(1);
        for _ in 0..3_000 {
            let mut data =
                [&b""[..], b"\xef\xbb\xbf", b"\xef\xbb"][prng.below(3) as usize].to_vec();
            for _ in 0..prng.below(24) {
                data.push(b"a:\r\n\r\n \xbf"[prng.below(8) as usize]);
            }
            fuzzing::fuzz(&data);
        }
    }

    // proves R-SSE-3
    #[test]
    fn a_line_over_the_bound_is_refused_finished_or_not() {
        let ok = |pieces: &[&[u8]]| {
            let mut splitter = Lines::default();
            pieces.iter().all(|piece| {
                let mut piece = *piece;
                loop {
                    match splitter.next(&mut piece, 4) {
                        Ok(Some(_)) => {}
                        Ok(None) => return splitter.capacity() <= 8,
                        Err(TooLarge) => return false,
                    }
                }
            })
        };
        assert!(ok(&[b"abcd\nabcd\n"]) && ok(&[b"ab", b"cd"]) && ok(&[b"ab", b"cd\n", b"abcd"]));
        assert!(!ok(&[b"abcde\n"]) && !ok(&[b"abcde"]) && !ok(&[b"ab", b"cde"]));
        assert!(!ok(&[b"ab", b"cde\n"]) && !ok(&[b"abcd", b"e"]));
    }

    #[test]
    fn whole_lines_are_not_copied_and_giants_are_given_back() {
        let mut splitter = Lines::default();
        let mut piece: &[u8] = b"data: a\n\ndata: b\n\n";
        while splitter.next(&mut piece, 100).unwrap().is_some() {}
        assert_eq!(splitter.capacity(), 0);
        let giant = vec![b'x'; 1 << 20];
        let mut piece = &giant[..];
        assert_eq!(splitter.next(&mut piece, 1 << 20), Ok(None));
        let mut piece: &[u8] = b"\n";
        assert_eq!(
            splitter.next(&mut piece, 1 << 20).unwrap().map(<[u8]>::len),
            Some(1 << 20)
        );
        assert_eq!(splitter.next(&mut piece, 1 << 20), Ok(None));
        assert!(splitter.capacity() <= KEEP_BYTES);
    }
}
