//! An engine's clock, by which what is remembered of it grows old, and how far it is to be trusted. See the head of `prefix`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use super::{FORGOTTEN_AFTER, LIFE, STAMP_MASK};
use crate::base::time::Instant;
use crate::config::topology::EngineView;

/// One engine's.
#[derive(Debug)]
pub(super) struct Clock {
    /// Tokens that it read, as far as this router knows, and what its deaths count for.
    tokens: AtomicU64,
    capacity_tokens: AtomicU64,
    /// Bits of an `f64`.
    steps_per_token: AtomicU64,
    pub trust: Trust,
}

/// Bits of an `f32`: what was held of what was remembered; not a number before anyone told.
#[derive(Debug)]
pub(super) struct Trust(AtomicU32);

/// Of its KV cache, in tokens.
pub(super) fn capacity(engine: &EngineView) -> u64 {
    let profile = engine.profile.as_ref();
    profile.map_or(1, |profile| profile.curves.kv_capacity_tokens)
}

impl Clock {
    pub fn new(capacity: u64) -> CachePadded<Clock> {
        CachePadded::new(Clock {
            tokens: AtomicU64::new(0),
            capacity_tokens: AtomicU64::new(capacity),
            steps_per_token: AtomicU64::new(rate(capacity).to_bits()),
            trust: Trust::new(),
        })
    }

    pub fn capacity(&self) -> u64 {
        self.capacity_tokens.load(Relaxed)
    }

    fn rate(&self) -> f64 {
        f64::from_bits(self.steps_per_token.load(Relaxed))
    }

    /// It holds so much from now on, and stands so many steps later, or where it stood.
    pub fn measure(&self, capacity: u64, steps: u64) {
        if capacity == self.capacity() && steps == 0 {
            return;
        }
        let stood = self.tokens.load(Relaxed) as f64 * self.rate();
        let tokens = (stood + steps as f64) / rate(capacity);
        self.capacity_tokens.store(capacity, Relaxed);
        self.steps_per_token
            .store(rate(capacity).to_bits(), Relaxed);
        self.tokens.store(tokens.ceil() as u64, Relaxed);
    }

    pub fn advance(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
    }

    pub fn steps(&self, now: Instant) -> u64 {
        const STEP_NS: u64 = FORGOTTEN_AFTER.as_nanos() as u64 / LIFE;
        let read = self.tokens.load(Relaxed) as f64 * self.rate();
        (read as u64).wrapping_add(now.nanos() / STEP_NS) & STAMP_MASK
    }
}

impl Trust {
    pub fn new() -> Self {
        Trust(AtomicU32::new(f32::NAN.to_bits()))
    }

    pub fn share(&self) -> Option<f64> {
        let share = f32::from_bits(self.0.load(Relaxed));
        (!share.is_nan()).then_some(f64::from(share))
    }

    pub fn forget(&self) {
        self.0.store(f32::NAN.to_bits(), Relaxed);
    }

    /// Two at once may lose one of them: it is an average.
    pub fn learn(&self, share: f32) {
        const ALPHA: f32 = 0.2;
        let old = f32::from_bits(self.0.load(Relaxed));
        let new = if old.is_nan() {
            share
        } else {
            old + ALPHA * (share - old)
        };
        self.0.store(new.to_bits(), Relaxed);
    }
}

/// Steps of a clock in which an engine reads as much as its cache holds make a life.
fn rate(capacity: u64) -> f64 {
    LIFE as f64 / capacity.max(1) as f64
}
