//! A value for each engine's place, in pieces that are made when they are first needed and then stay: readers need no lock, and what they
//! were handed stays where it is while others are added.
//!
//! Invariant: all below `len` are there; there is never less than there was.

use std::ops::Index;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::units::EngineId;

/// See the head of this file.
#[derive(Debug)]
pub struct Slots<T> {
    pieces: Box<[OnceLock<Box<[T]>>]>,
    len: AtomicUsize,
}

const PIECE: usize = 64;
/// Engine ids end at 4096.
const PIECES: usize = 64;

impl<T> Slots<T> {
    /// `make` is called with each number once; those of a whole piece are made at once.
    pub fn new(len: usize, make: impl FnMut(usize) -> T) -> Self {
        let slots = Slots {
            pieces: (0..PIECES).map(|_| OnceLock::new()).collect(),
            len: AtomicUsize::new(0),
        };
        slots.grow(len, make);
        slots
    }

    /// So that there are at least `len`. One thread at a time.
    pub fn grow(&self, len: usize, mut make: impl FnMut(usize) -> T) {
        assert!(len <= PIECE * PIECES, "engine ids end");
        for (n, piece) in self.pieces.iter().enumerate().take(len.div_ceil(PIECE)) {
            piece.get_or_init(|| (n * PIECE..(n + 1) * PIECE).map(&mut make).collect());
        }
        self.len.fetch_max(len, Ordering::Relaxed);
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, index: usize) -> Option<&T> {
        if index < self.len() {
            self.at(index)
        } else {
            None
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|index| self.at(index))
    }

    #[inline]
    fn at(&self, index: usize) -> Option<&T> {
        self.pieces.get(index / PIECE)?.get()?.get(index % PIECE)
    }
}

/// Of an engine that a snapshot holds.
impl<T> Index<EngineId> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, engine: EngineId) -> &T {
        let slot = self.at(engine.index());
        slot.expect("slots are made before the snapshot that needs them")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays() {
        let slots = Slots::new(2, |n| n);
        assert_eq!((slots.len(), slots[EngineId(1)]), (2, 1));
        assert_eq!((slots.get(2), slots.get(64)), (None, None));
        let first = std::ptr::from_ref(&slots[EngineId(0)]);
        slots.grow(65, |n| 100 * n);
        assert_eq!((slots.len(), slots[EngineId(64)]), (65, 6400));
        slots.grow(3, |_| unreachable!());
        assert_eq!((slots.len(), slots[EngineId(1)]), (65, 1));
        assert!(std::ptr::eq(first, &slots[EngineId(0)]));
        assert_eq!(slots.iter().count(), 65);
        assert!(Slots::new(0, |n| n).is_empty());
    }
}
