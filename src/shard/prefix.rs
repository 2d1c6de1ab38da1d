//! Which engine lately read which leading blocks of prompts: one table for all shards, of a fixed size, that forgets.
//!
//! As a chess program's table of positions: buckets of one cache line, each of eight entries of one word, so that an entry is never
//! torn, nothing is locked, and of two that are written at once one is lost. An entry is never wrong about what was written, only about
//! what the engine still holds, or, once in 2^29 looks, by chance. A wrong one costs the time of reading a prompt anew, and nothing else.
//!
//! ```text
//! entry   tag 32 · engine 12 · stamp 20        tag: upper half of the block's hash; the lower half chooses the bucket
//! ```
//!
//! *Age.* Each engine has a clock of its own. It goes [`LIFE`] steps in [`FORGOTTEN_AFTER`], and as many while the engine reads the
//! tokens that its KV cache holds; both add up. An entry is believed while it is younger than `LIFE`: an engine drops what it has not used
//! for longest, so what was read a whole cache ago is gone. An engine that was seen dead has lost all: its clock jumps. Stamps come
//! round after 256 lives; each record clears one more bucket of what is not believed, so only a router without traffic
//! for 42 hours can believe an old entry again.
//!
//! *Room.* An entry replaces one of the same block and engine, else one that is not believed, else the oldest in its bucket, by the
//! clocks of their engines. Prompts that are used again stay young.
//!
//! *Lookup.* The hashes are chained, so an entry says that all blocks up to its own were read: per engine the deepest counts. The walk ends
//! after [`GAP`] blocks in a row that nobody is believed to hold, as single ones may have been replaced.
//!
//! *Trust.* Not every engine keeps prefixes, and not every one that does keeps them for as long. Where prefill answers say how much was
//! held (`cached_tokens`), that over what was remembered is learned, for each engine and for the fleet; what is remembered of an
//! engine counts by its share, of one that has not told by the fleet's.
//!
//! Owns atomics only. Invariant: the table is that of the start; a reload only adds clocks.

mod clock;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use self::clock::{Clock, Trust, capacity};
use super::slots::Slots;
use crate::base::time::Instant;
use crate::base::units::EngineId;
use crate::config::topology::Snapshot;
use crate::wire::prefix::{BLOCK_BYTES, Salt};

/// What was not read again for so long is not believed, on an engine that reads nothing else; a person who answers within it finds the
/// prefix. Longer, and a cache that was flushed unseen would be believed in for longer.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Memory of the table at most, whatever the fleet holds.
pub const TABLE_BYTES_MAX: usize = 32 << 20;

/// See the head of this file.
#[derive(Debug)]
pub struct Prefixes {
    buckets: Box<[Bucket]>,
    clocks: Slots<CachePadded<Clock>>,
    /// The bucket that is cleared next.
    swept: CachePadded<AtomicUsize>,
    trust: CachePadded<Trust>,
    salt: Salt,
}

#[derive(Debug)]
#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

#[derive(Clone, Copy, Debug)]
struct Entry(u64);

const WAYS: usize = 8;
const _: () = assert!(size_of::<Bucket>() == 64);

/// Steps of a clock in which an entry grows too old.
const LIFE: u64 = 4096;
const STAMP_BITS: u32 = 20;
const STAMP_MASK: u64 = (1 << STAMP_BITS) - 1;
const ENGINE_MASK: u64 = (1 << 12) - 1;
/// An entry this much younger than before is not written again, so that a prefix that everyone uses stays in all cores' caches.
const TOUCH: u64 = LIFE / 64;
/// Blocks in a row that nobody holds.
const GAP: usize = 4;
/// Buckets that are looked into at once.
const AHEAD: usize = 8;
/// So many entries a block that fits into the fleet's caches, as buckets fill unevenly.
const SPARE: f64 = 2.0;

impl Prefixes {
    /// For a fleet whose engines have profiles; the others have no prices that a prefix could lower.
    pub fn new(snapshot: &Snapshot, salt: Salt) -> Option<Self> {
        if !snapshot.is_profiled() {
            return None;
        }
        let capacities: Vec<u64> = snapshot.engines.iter().map(capacity).collect();
        let block_tokens = BLOCK_BYTES as f64 / snapshot.fleet.engine.chars_per_token;
        Some(Prefixes::of(&capacities, block_tokens, salt))
    }

    /// `capacities`: tokens of each engine's KV cache.
    pub fn of(capacities: &[u64], block_tokens: f64, salt: Salt) -> Self {
        let tokens: f64 = capacities.iter().map(|c| *c as f64).sum();
        let buckets = SPARE * tokens / block_tokens.max(1.0) / WAYS as f64;
        let most = TABLE_BYTES_MAX / size_of::<Bucket>();
        // A huge figure becomes the highest number, and then the bound.
        let buckets = (buckets as usize).clamp(BUCKETS_MIN, most);
        let clock = |n: usize| Clock::new(capacities.get(n).copied().unwrap_or(1));
        let bucket = |_| Bucket([const { AtomicU64::new(0) }; WAYS]);
        Prefixes {
            buckets: (0..buckets.next_power_of_two().min(most))
                .map(bucket)
                .collect(),
            clocks: Slots::new(capacities.len(), clock),
            swept: CachePadded::new(AtomicUsize::new(0)),
            trust: CachePadded::new(Trust::new()),
            salt,
        }
    }

    /// Engines have come, or were measured anew; what the table remembers of those in `anew` was of others.
    pub fn follow(&self, snapshot: &Snapshot, anew: &[EngineId]) {
        self.clocks.grow(snapshot.engines.len(), |_| Clock::new(1));
        for engine in snapshot.present() {
            let clock = &self.clocks[engine.id];
            let is_new = anew.contains(&engine.id);
            clock.measure(capacity(engine), if is_new { 2 * LIFE } else { 0 });
            if is_new {
                clock.trust.forget();
            }
        }
    }

    pub fn salt(&self) -> &Salt {
        &self.salt
    }

    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Leading blocks that each engine is believed to hold, in place of what `held` said; one member an engine.
    pub fn recall(&self, blocks: &[u64], now: Instant, held: &mut [u16]) {
        held.fill(0);
        let mut missed = 0;
        let mut depth = 0;
        for blocks in blocks.chunks(AHEAD) {
            for (hash, first) in blocks.iter().zip(self.firsts(blocks)) {
                depth += 1;
                let found = self.find(*hash, first, depth, now, held);
                missed = if found { 0 } else { missed + 1 };
                if missed == GAP {
                    return;
                }
            }
        }
    }

    /// `engine` reads the prompt of these blocks, of which `new_tokens` it did not hold.
    pub fn record(&self, engine: EngineId, blocks: &[u64], new_tokens: u64, now: Instant) {
        let Some(clock) = self.clocks.get(engine.index()) else {
            return;
        };
        clock.advance(new_tokens.min(clock.capacity()));
        let stamp = clock.steps(now);
        for blocks in blocks.chunks(AHEAD) {
            for (hash, first) in blocks.iter().zip(self.firsts(blocks)) {
                let new = Entry::new(tag(*hash), engine, stamp);
                self.write(new, self.bucket(*hash), first, now);
            }
        }
        self.sweep(now);
    }

    /// `engine` said how much it held of a prompt of which so much was remembered.
    pub fn told(&self, engine: EngineId, remembered: u64, held: u64) {
        let own = self.clocks.get(engine.index()).map(|clock| &clock.trust);
        if let Some(own) = own.filter(|_| remembered > 0) {
            let share = held.min(remembered) as f64 / remembered as f64;
            own.learn(share as f32);
            self.trust.learn(share as f32);
        }
    }

    /// What it holds of what is remembered, as a part of 1; `None` before any engine told.
    pub fn trust(&self, engine: EngineId) -> Option<f64> {
        let own = self.clocks.get(engine.index())?.trust.share();
        own.or_else(|| self.trust.share())
    }

    /// The engine was seen dead: its cache is gone.
    pub fn forget(&self, engine: EngineId) {
        if let Some(clock) = self.clocks.get(engine.index()) {
            clock.advance(2 * clock.capacity());
        }
    }

    /// Entries that are believed: for tests and benches, as it reads the whole table.
    pub fn count(&self, now: Instant) -> usize {
        let entries = self.buckets.iter().flat_map(|b| &b.0);
        entries
            .filter(|slot| self.believes(Entry(slot.load(Relaxed)), now))
            .count()
    }

    /// The first word of each bucket, so that the cache misses of several overlap.
    fn firsts(&self, blocks: &[u64]) -> [u64; AHEAD] {
        let mut firsts = [0; AHEAD];
        for (first, hash) in firsts.iter_mut().zip(blocks) {
            *first = self.bucket(*hash).0[0].load(Relaxed);
        }
        firsts
    }

    /// Notes who is believed to hold a block; whether anyone is.
    fn find(&self, hash: u64, first: u64, depth: u16, now: Instant, held: &mut [u16]) -> bool {
        let mut found = false;
        for word in words(self.bucket(hash), first) {
            let entry = Entry(word);
            if entry.tag() == tag(hash)
                && let Some(held) = held.get_mut(entry.engine())
                && self.believes(entry, now)
            {
                *held = depth;
                found = true;
            }
        }
        found
    }

    fn write(&self, new: Entry, bucket: &Bucket, first: u64, now: Instant) {
        let same = words(bucket, first).position(|word| Entry(word).is_same(new));
        if let Some(way) = same {
            let slot = &bucket.0[way];
            if new.younger_by(Entry(slot.load(Relaxed))) >= TOUCH {
                slot.store(new.0, Relaxed);
            }
            return;
        }
        let (mut way, mut age_max) = (0, 0);
        for (i, word) in words(bucket, first).enumerate() {
            let age = self.age(Entry(word), now);
            if age > age_max {
                (way, age_max) = (i, age);
            }
        }
        bucket.0[way].store(new.0, Relaxed);
    }

    fn sweep(&self, now: Instant) {
        let at = self.swept.fetch_add(1, Relaxed) & (self.buckets.len() - 1);
        for slot in &self.buckets[at].0 {
            let word = slot.load(Relaxed);
            if word != 0 && !self.believes(Entry(word), now) {
                // Lost when somebody has just written there.
                let _ = slot.compare_exchange(word, 0, Relaxed, Relaxed);
            }
        }
    }

    fn believes(&self, entry: Entry, now: Instant) -> bool {
        self.age(entry, now) < LIFE
    }

    /// The highest number for none.
    fn age(&self, entry: Entry, now: Instant) -> u64 {
        match self.clocks.get(entry.engine()) {
            Some(clock) if entry.tag() != 0 => {
                let age = clock.steps(now).wrapping_sub(entry.stamp()) & STAMP_MASK;
                // Another shard's clock is ahead of this one's reading, by a prompt or a turn of its loop.
                if age > STAMP_MASK - LIFE { 0 } else { age }
            }
            _ => u64::MAX,
        }
    }

    fn bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }
}

impl Entry {
    fn new(tag: u64, engine: EngineId, stamp: u64) -> Self {
        debug_assert!(engine.index() as u64 <= ENGINE_MASK);
        Entry(tag << 32 | (engine.index() as u64 & ENGINE_MASK) << STAMP_BITS | stamp)
    }

    fn tag(self) -> u64 {
        self.0 >> 32
    }

    fn engine(self) -> usize {
        (self.0 >> STAMP_BITS & ENGINE_MASK) as usize
    }

    fn stamp(self) -> u64 {
        self.0 & STAMP_MASK
    }

    /// Of one block and engine.
    fn is_same(self, other: Entry) -> bool {
        self.0 >> STAMP_BITS == other.0 >> STAMP_BITS
    }

    fn younger_by(self, other: Entry) -> u64 {
        self.stamp().wrapping_sub(other.stamp()) & STAMP_MASK
    }
}

/// A bucket's words, of which the first was read before.
fn words(bucket: &Bucket, first: u64) -> impl Iterator<Item = u64> {
    let rest = bucket.0[1..].iter().map(|slot| slot.load(Relaxed));
    std::iter::once(first).chain(rest)
}

/// Never 0, which stands for no entry.
fn tag(hash: u64) -> u64 {
    (hash >> 32).max(1)
}

/// The smallest table: 64 KiB.
const BUCKETS_MIN: usize = 1 << 10;
