//! The buffer that one leg's reads go through: small while a read brings little, large while reads fill it.
//!
//! Owns the buffer between two reads, and the count that decides its size. Free buffers of both sizes are the shard's
//! ([`FreeBuffers`]), so that a change of size costs no allocation once there are some. Bound: one buffer of
//! [`limits::LEG_READ_BYTES`] a leg; a stream that has only single events for a while holds one of [`limits::LEG_READ_SMALL_BYTES`].

use std::cell::RefCell;
use std::mem;

use super::bounds::FREE_READS_BYTES;
use crate::base::limits;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    /// Without capacity while a read has it, or before the first one.
    buf: Vec<u8>,
    /// The next read gets a large one.
    large: bool,
    /// Reads into a large one that would have fitted into a small one, since the last that would not.
    little: u8,
}

impl ReadBuffer {
    /// An empty buffer for the next read.
    #[inline]
    pub(super) fn take(&mut self, free: &RefCell<FreeBuffers>) -> Vec<u8> {
        if self.buf.capacity() != size(self.large) {
            self.exchange(&mut free.borrow_mut());
        }
        mem::take(&mut self.buf)
    }

    /// The buffer is back, with what was read.
    #[inline]
    pub(super) fn back(&mut self, mut buf: Vec<u8>) {
        if buf.len() == buf.capacity() {
            (self.large, self.little) = (true, 0);
        } else if self.large {
            self.little = match buf.len() < limits::LEG_READ_SMALL_BYTES {
                true => self.little + 1,
                false => 0,
            };
            self.large = self.little < LITTLE_MAX;
        }
        buf.clear();
        self.buf = buf;
    }

    /// Its leg is over.
    pub(super) fn give(&mut self, free: &RefCell<FreeBuffers>) {
        free.borrow_mut().give(mem::take(self).buf);
    }

    #[cold]
    fn exchange(&mut self, free: &mut FreeBuffers) {
        free.give(mem::take(&mut self.buf));
        self.buf = free.take(self.large);
        self.little = 0;
    }
}

/// A shard's buffers that no leg has.
#[derive(Debug, Default)]
pub struct FreeBuffers {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
}

impl FreeBuffers {
    fn take(&mut self, large: bool) -> Vec<u8> {
        let free = if large {
            &mut self.large
        } else {
            &mut self.small
        };
        free.pop()
            .unwrap_or_else(|| Vec::with_capacity(size(large)))
    }

    /// Keeps an empty buffer that was taken here, while there are few.
    fn give(&mut self, buf: Vec<u8>) {
        debug_assert!(buf.is_empty());
        let (free, most) = if buf.capacity() == size(true) {
            (&mut self.large, LARGE_MAX)
        } else if buf.capacity() == size(false) {
            (&mut self.small, SMALL_MAX)
        } else {
            return;
        };
        if free.len() < most {
            free.push(buf);
        }
    }
}

fn size(large: bool) -> usize {
    if large {
        limits::LEG_READ_BYTES
    } else {
        limits::LEG_READ_SMALL_BYTES
    }
}

/// Little reads before a large buffer is given up. A guess: engines that gather events do so for many writes in a row.
const LITTLE_MAX: u8 = 8;

/// Free buffers kept per shard, 8 MiB of each size; more legs than this at once allocate theirs.
const LARGE_MAX: usize = FREE_READS_BYTES as usize / limits::LEG_READ_BYTES;
const SMALL_MAX: usize = FREE_READS_BYTES as usize / limits::LEG_READ_SMALL_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use limits::{LEG_READ_BYTES as LARGE, LEG_READ_SMALL_BYTES as SMALL};

    /// Plays reads of so many bytes, or as many as fit; the sizes of the buffers that they got.
    fn sizes(buffer: &mut ReadBuffer, free: &RefCell<FreeBuffers>, reads: &[usize]) -> Vec<usize> {
        let sizes = reads.iter().map(|bytes| {
            let mut buf = buffer.take(free);
            let size = buf.capacity();
            assert!(buf.is_empty());
            buf.resize((*bytes).min(size), 0);
            buffer.back(buf);
            size
        });
        sizes.collect()
    }

    #[test]
    fn grows_when_filled_and_shrinks_after_a_while() {
        let (mut buffer, free) = <(ReadBuffer, RefCell<FreeBuffers>)>::default();
        let got = sizes(&mut buffer, &free, &[200, SMALL - 1, SMALL, 200]);
        assert_eq!(got, [SMALL, SMALL, SMALL, LARGE]);
        // One read that needs it starts the count again.
        let little = [200; LITTLE_MAX as usize - 1];
        let reads = [&little[1..], &[SMALL], &little].concat();
        let got = sizes(&mut buffer, &free, &reads);
        assert!(got.iter().all(|size| *size == LARGE));
        let got = sizes(&mut buffer, &free, &[200, 200, LARGE]);
        assert_eq!(got, [LARGE, SMALL, SMALL]);
        let got = sizes(&mut buffer, &free, &[LARGE, LARGE, 0]);
        assert_eq!(got, [LARGE; 3]);
    }

    #[test]
    fn buffers_go_round_and_few_are_kept() {
        let free = RefCell::new(FreeBuffers::default());
        let mut buffers: Vec<ReadBuffer> = Vec::new();
        buffers.resize_with(SMALL_MAX + 1, ReadBuffer::default);
        for buffer in &mut buffers {
            let buf = buffer.take(&free);
            buffer.back(buf);
        }
        buffers.iter_mut().for_each(|buffer| buffer.give(&free));
        assert_eq!(free.borrow().small.len(), SMALL_MAX);
        assert_eq!(buffers[0].buf.capacity(), 0);
        let at = free.borrow().small.last().map(|buf| buf.as_ptr());
        assert_eq!(Some(buffers[0].take(&free).as_ptr()), at);
        // Given while a read has it: there is nothing to keep.
        buffers[0].give(&free);
        assert_eq!(free.borrow().small.len(), SMALL_MAX - 1);
    }
}
