//! Bytes on their way to the client: two buffers that change places, and the chunk that is being filled.
//!
//! Stages append; the runtime takes everything that has gathered as one write and brings the buffer back. While one write is
//! in flight the next gathers in the other buffer, so a slow client makes writes larger, not more. A stream's
//! payload goes into one open chunk, sealed when the buffer is taken: one engine read is at most one client write.
//! Bound: engines are not read while [`ClientOut::is_full`]; what is held stays under [`limits::CLIENT_BUFFER_BYTES`] plus one read.

use crate::base::limits;
use crate::wire::h1::encode;

/// Output of one client connection.
#[derive(Debug, Default)]
pub struct ClientOut {
    buf: Vec<u8>,
    spare: Vec<u8>,
    /// Where the open chunk's reserved size line stands in `buf`.
    chunk: Option<usize>,
    /// Bytes at the front of `buf` that are no output: what a first chunk's size line did not need.
    skip: usize,
    in_flight: usize,
}

impl ClientOut {
    /// Outside of any chunk: heads, whole answers, the last chunk.
    pub fn plain(&mut self) -> &mut Vec<u8> {
        self.seal();
        &mut self.buf
    }

    /// Inside the open chunk, opening one when there is none.
    pub fn chunked(&mut self) -> &mut Vec<u8> {
        if self.chunk.is_none() {
            self.chunk = Some(encode::chunk_begin(&mut self.buf));
        }
        &mut self.buf
    }

    /// All that has gathered, and the offset where it begins; `None` while a write is in flight or nothing waits.
    pub fn take(&mut self) -> Option<(Vec<u8>, usize)> {
        if self.in_flight > 0 || self.buf.is_empty() {
            return None;
        }
        self.seal();
        let from = std::mem::take(&mut self.skip);
        if from == self.buf.len() {
            self.buf.clear();
            return None;
        }
        let full = std::mem::replace(&mut self.buf, std::mem::take(&mut self.spare));
        self.in_flight = full.len() - from;
        Some((full, from))
    }

    /// The taken buffer is written, or lost with its connection.
    pub fn written(&mut self, mut buf: Vec<u8>) {
        self.in_flight = 0;
        buf.clear();
        if buf.capacity() > limits::BUFFER_KEEP_BYTES {
            buf.shrink_to(limits::BUFFER_KEEP_BYTES);
        }
        if self.buf.is_empty() {
            // The same one again: it is in the processor's cache.
            std::mem::swap(&mut self.buf, &mut buf);
        }
        self.spare = buf;
    }

    /// Bytes gathered and in flight.
    pub fn pending(&self) -> usize {
        self.buf.len() - self.skip + self.in_flight
    }

    /// Bytes that a write has now.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn is_full(&self) -> bool {
        self.pending() >= limits::CLIENT_BUFFER_BYTES
    }

    /// Forgets what has gathered: the client is gone.
    pub fn discard(&mut self) {
        self.buf.clear();
        self.chunk = None;
        self.skip = 0;
    }

    /// Ends the open chunk.
    fn seal(&mut self) {
        if let Some(mark) = self.chunk.take() {
            self.skip += encode::chunk_seal(&mut self.buf, mark);
        }
    }
}
