//! KV that one simulated engine made and another will fetch. Owned by the world that holds the engines, passed to each.
//!
//! A prefill leg [`Handoffs::offer`]s, a decode leg [`Handoffs::take`]s. Like a real vLLM it trusts what it is told: parameters
//! used twice, or after their lease, still decode (200, nothing detected); here they are counted, so that a test or a load
//! generator can see what a client cannot.
//! Engine ids carry their own proof (the last twelve digits are a hash of the rest), so that an engine of another process is known
//! as well, and a made-up id is an engine that cannot be reached.
//!
//! Invariant: `held_tokens(e) = Σ tokens of live offers of e`; offers leave in lease order; `used` keeps at most [`USED_MAX`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::base::prng::Prng;
use crate::base::time::Instant;
use crate::stub::rooms::Rooms;

/// How long a producer keeps blocks that nobody fetches: vLLM 0.32.0 held them for 30 s.
pub const LEASE: Duration = Duration::from_secs(30);

/// Used handoffs remembered, to count second uses. The oldest is forgotten.
pub const USED_MAX: usize = 65_536;

/// An engine's name in `kv_transfer_params`.
pub type EngineName = [u8; 36];

/// What a decode leg says that it was handed. Borrowed from its request.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    pub engine: Vec<u8>,
    pub request: Vec<u8>,
    /// The ids of all block lists, in order; one that is no nonnegative 32-bit integer is [`u32::MAX`].
    pub blocks: Vec<u32>,
    /// Of the prompt's tokens those that the producer had in its prefix cache.
    pub cached_tokens: u64,
}

/// What came of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Its first use, within its lease, with its own blocks. Also one of an engine elsewhere, which cannot be checked further.
    Right,
    /// Used before. Decodes all the same.
    Again,
    /// Its lease is over: the blocks may hold anything. Decodes all the same.
    Late,
    /// Other blocks than were offered, but ones that exist. Decodes all the same, to wrong text.
    Astray,
    /// No engine of that name can be reached: the request fails, the engine lives.
    NoEngine,
    /// Blocks that no engine has: ends the engine that asks for them.
    NoBlock,
}

/// How often each thing happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub offered: u64,
    pub right: u64,
    pub again: u64,
    pub late: u64,
    pub astray: u64,
    pub no_engine: u64,
    pub no_block: u64,
    /// Leases that ended without a use.
    pub orphaned: u64,
}

/// All handoffs of one world.
#[derive(Debug, Default)]
pub struct Handoffs {
    live: BTreeMap<Vec<u8>, Offer>,
    leases: BTreeSet<(Instant, Vec<u8>)>,
    used: BTreeSet<Vec<u8>>,
    used_order: VecDeque<Vec<u8>>,
    held: BTreeMap<EngineName, u64>,
    dead: BTreeSet<EngineName>,
    pub counts: Counts,
    /// Where legs of SGLang meet; the world's, as the handoffs are.
    pub rooms: Rooms,
}

#[derive(Debug)]
struct Offer {
    engine: EngineName,
    tokens: u64,
    blocks: Vec<u32>,
    expires: Instant,
}

impl Handoffs {
    /// A producer keeps `blocks` for `request`, from `ready_at` on for the lease.
    pub fn offer(
        &mut self,
        ready_at: Instant,
        engine: EngineName,
        request: &[u8],
        tokens: u64,
        blocks: Vec<u32>,
    ) {
        self.counts.offered += 1;
        let expires = ready_at + LEASE;
        let offer = Offer {
            engine,
            tokens,
            blocks,
            expires,
        };
        *self.held.entry(engine).or_default() += tokens;
        if let Some(old) = self.live.insert(request.to_vec(), offer) {
            self.forget(&old);
        }
        self.leases.insert((expires, request.to_vec()));
    }

    /// A decode leg fetches what it claims. `blocks_total` is how many blocks an engine has.
    pub fn take(&mut self, now: Instant, claim: &Claim, blocks_total: u32) -> Taken {
        self.expire(now);
        let taken = self.judge(claim, blocks_total);
        let count = match taken {
            Taken::Right => &mut self.counts.right,
            Taken::Again => &mut self.counts.again,
            Taken::Late => &mut self.counts.late,
            Taken::Astray => &mut self.counts.astray,
            Taken::NoEngine => &mut self.counts.no_engine,
            Taken::NoBlock => &mut self.counts.no_block,
        };
        *count += 1;
        if !matches!(taken, Taken::NoEngine | Taken::NoBlock) {
            self.release(claim);
            self.mark_used(claim);
        }
        taken
    }

    /// The decode side refused the request and tells the producer, which frees the blocks (vLLM does so on 400 and 404).
    pub fn release(&mut self, claim: &Claim) {
        if let Some(offer) = self.live.remove(&claim.request) {
            self.forget(&offer);
        }
    }

    /// Tokens that `engine` keeps for others.
    pub fn held_tokens(&mut self, now: Instant, engine: &EngineName) -> u64 {
        self.expire(now);
        self.held.get(engine).copied().unwrap_or(0)
    }

    /// `engine` is gone, with all it kept.
    pub fn bury(&mut self, engine: EngineName) {
        self.live.retain(|_, offer| offer.engine != engine);
        self.held.remove(&engine);
        self.rooms.bury(&engine);
        self.dead.insert(engine);
    }

    fn judge(&self, claim: &Claim, blocks_total: u32) -> Taken {
        let Some(engine) = known_name(&claim.engine).filter(|e| !self.dead.contains(e)) else {
            return Taken::NoEngine;
        };
        if claim.blocks.iter().any(|b| *b >= blocks_total) {
            return Taken::NoBlock;
        }
        if self.used.contains(&used_key(claim)) {
            return Taken::Again;
        }
        match self.live.get(&claim.request) {
            Some(offer) if offer.engine == engine && offer.blocks == claim.blocks => Taken::Right,
            Some(_) => Taken::Astray,
            // Ours, but no longer kept; or of another process, where we cannot look.
            None if self.held.contains_key(&engine) => Taken::Late,
            None => Taken::Right,
        }
    }

    fn mark_used(&mut self, claim: &Claim) {
        let key = used_key(claim);
        if self.used.insert(key.clone()) {
            self.used_order.push_back(key);
        }
        if self.used_order.len() > USED_MAX
            && let Some(oldest) = self.used_order.pop_front()
        {
            self.used.remove(&oldest);
        }
    }

    fn expire(&mut self, now: Instant) {
        while self.leases.first().is_some_and(|(at, _)| *at <= now) {
            let Some((at, request)) = self.leases.pop_first() else {
                return;
            };
            // A request id offered again has a later lease of its own.
            if self.live.get(&request).is_some_and(|o| o.expires == at)
                && let Some(offer) = self.live.remove(&request)
            {
                self.counts.orphaned += 1;
                self.forget(&offer);
            }
        }
    }

    fn forget(&mut self, offer: &Offer) {
        if let Some(held) = self.held.get_mut(&offer.engine) {
            *held = held.saturating_sub(offer.tokens);
        }
    }
}

/// A fresh engine name: a version 4 UUID whose last twelve digits prove the rest.
pub fn engine_name(prng: &mut Prng) -> EngineName {
    let mut name = prng.uuid();
    let proof = proof(&name);
    name[24..].copy_from_slice(&proof);
    name
}

fn known_name(name: &[u8]) -> Option<EngineName> {
    let name = EngineName::try_from(name).ok()?;
    (name[24..] == proof(&name)).then_some(name)
}

fn proof(name: &EngineName) -> [u8; 12] {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for b in &name[..23] {
        h = (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h ^= h >> 29;
    std::array::from_fn(|i| b"0123456789abcdef"[(h >> (4 * i)) as usize & 15])
}

fn used_key(claim: &Claim) -> Vec<u8> {
    [&claim.engine[..], b" ", &claim.request[..]].concat()
}
