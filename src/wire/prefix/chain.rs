//! Chained hashes over fixed-size blocks of a byte string that comes in pieces.
//!
//! ```text
//! hash[0] = H(seed, block[0])    hash[i] = H(hash[i − 1], block[i])
//! ```
//!
//! So a hash stands for all bytes up to the end of its block, and two prompts share their first hashes exactly as far as they share whole
//! blocks. `H` is the folded 64 × 64 → 128 bit multiplication of wyhash (Wang Yi, public domain) in four lanes, keyed with words drawn at
//! random when the process starts: nobody outside can build two prompts that share a hash, and if they could, a leg would go to an
//! engine that has to read the prompt after all. What it costs: `benches/prefix.rs`.
//!
//! Owns one block of bytes. Invariant: `fill < BLOCK_BYTES` between calls.

use crate::base::prng::Prng;

/// Bytes of a block.
///
/// A block is what one entry of the table stands for and what one cache miss of a lookup finds; half a block is what is lost on average
/// where two prompts part. 512 bytes are some 135 tokens of English, 8 of vLLM's blocks: 5 ms of reading at 30,000 tokens a second,
/// which is below what a backlog can tell, and 100 KB of prompt are 200 lookups.
pub const BLOCK_BYTES: usize = 512;

/// Blocks of one prompt that are looked at: a mebibyte of text, or 262,144 token ids.
pub const BLOCKS_MAX: usize = 2048;

/// Words that nobody outside the process knows. The same for all shards, or they would not know each other's hashes.
#[derive(Clone, Debug)]
pub struct Salt([u64; 2 * LANES + 2]);

const LANES: usize = 4;
const LANE_BYTES: usize = 16;

/// The string as it comes in.
pub(super) struct Chain<'a> {
    salt: &'a Salt,
    hash: u64,
    block: [u8; BLOCK_BYTES],
    fill: usize,
    blocks: &'a mut Vec<u64>,
    /// Bytes since the seed, those past the last block that is looked at included.
    bytes: u64,
}

impl Salt {
    pub fn new(prng: &mut Prng) -> Self {
        Salt(std::array::from_fn(|_| prng.u64()))
    }

    fn block(&self, hash: u64, block: &[u8; BLOCK_BYTES]) -> u64 {
        let key = &self.0;
        let mut lanes: [u64; LANES] = std::array::from_fn(|i| hash ^ key[LANES + i]);
        for row in block.as_chunks::<{ LANES * LANE_BYTES }>().0 {
            for (i, lane) in lanes.iter_mut().enumerate() {
                let (a, b) = (word(row, LANE_BYTES * i), word(row, LANE_BYTES * i + 8));
                *lane = fold(a ^ key[i], b ^ *lane);
            }
        }
        let [a, b, c, d] = lanes;
        fold(
            fold(a ^ key[2 * LANES], b) ^ key[2 * LANES + 1],
            fold(c ^ key[0], d) ^ hash,
        )
    }
}

impl<'a> Chain<'a> {
    pub fn new(salt: &'a Salt, blocks: &'a mut Vec<u64>) -> Self {
        blocks.clear();
        Chain {
            salt,
            hash: salt.0[2 * LANES],
            block: [0; BLOCK_BYTES],
            fill: 0,
            blocks,
            bytes: 0,
        }
    }

    /// Takes the next bytes of the string.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if self.is_full() {
            return;
        }
        if self.fill > 0 {
            let room = &mut self.block[self.fill..];
            let take = bytes.len().min(room.len());
            room[..take].copy_from_slice(&bytes[..take]);
            self.fill += take;
            bytes = &bytes[take..];
            if self.fill < BLOCK_BYTES {
                return;
            }
            self.fill = 0;
            self.hash = self.salt.block(self.hash, &self.block);
            self.blocks.push(self.hash);
        }
        let (whole, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        for block in whole {
            if self.is_full() {
                return;
            }
            self.hash = self.salt.block(self.hash, block);
            self.blocks.push(self.hash);
        }
        self.block[..rest.len()].copy_from_slice(rest);
        self.fill = rest.len();
    }

    /// What came so far seeds the string that begins here.
    pub fn seed(&mut self) {
        self.block[self.fill..].fill(0);
        self.hash = self.salt.block(self.hash ^ self.bytes, &self.block);
        self.blocks.clear();
        (self.fill, self.bytes) = (0, 0);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_full(&self) -> bool {
        self.blocks.len() == BLOCKS_MAX
    }
}

fn word(row: &[u8; LANES * LANE_BYTES], at: usize) -> u64 {
    let bytes = std::array::from_fn(|i| row[at + i]);
    u64::from_le_bytes(bytes)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}
