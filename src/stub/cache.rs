//! The prefix cache of one simulated engine: which leading blocks of prompts it has seen lately. Owns their hashes.
//!
//! A block's hash covers all the tokens before it, so a hit is always a whole prefix. As in vLLM the last token of a prompt is
//! computed in any case, so at most the blocks in front of it count. The least recently used block goes first, and of one prompt
//! the last block.
//!
//! Invariant: `stamps` and `order` hold the same blocks, at most `blocks_max`.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct PrefixCache {
    blocks_max: usize,
    block_tokens: usize,
    stamps: BTreeMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    next_stamp: u64,
}

impl PrefixCache {
    /// Nothing is remembered when `tokens_max` is less than a block.
    pub fn new(tokens_max: u64, block_tokens: u32) -> Self {
        let blocks_max = tokens_max / u64::from(block_tokens.max(1));
        PrefixCache {
            blocks_max: usize::try_from(blocks_max)
                .unwrap_or(usize::MAX)
                .min(BLOCKS_MAX),
            block_tokens: block_tokens.max(1) as usize,
            ..PrefixCache::default()
        }
    }

    /// How many leading tokens of the prompt `ids` are known; from now on all its whole blocks are.
    pub fn prompt(&mut self, ids: &[u32]) -> u64 {
        let hashes = self.hashes(ids);
        let known = self.known_of(&hashes, ids.len());
        // Backwards, so that of this prompt the front is the youngest.
        for hash in hashes.iter().rev() {
            self.touch(*hash);
        }
        known
    }

    /// The same, and nothing changes.
    pub fn known(&self, ids: &[u32]) -> u64 {
        self.known_of(&self.hashes(ids), ids.len())
    }

    fn known_of(&self, hashes: &[u64], tokens: usize) -> u64 {
        let whole = hashes.iter().take_while(|h| self.stamps.contains_key(h));
        let known = whole
            .count()
            .min(tokens.saturating_sub(1) / self.block_tokens.max(1));
        (known * self.block_tokens) as u64
    }

    fn hashes(&self, ids: &[u32]) -> Vec<u64> {
        if self.blocks_max == 0 {
            return Vec::new();
        }
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let blocks = ids.chunks_exact(self.block_tokens).take(self.blocks_max);
        let hashes = blocks.map(|block| {
            for id in block {
                hash = (hash ^ u64::from(*id)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            hash ^= hash >> 29;
            hash
        });
        hashes.collect()
    }

    fn touch(&mut self, hash: u64) {
        self.next_stamp += 1;
        if let Some(old) = self.stamps.insert(hash, self.next_stamp) {
            self.order.remove(&old);
        }
        self.order.insert(self.next_stamp, hash);
        if self.order.len() > self.blocks_max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.stamps.remove(&oldest);
        }
        debug_assert_eq!(self.order.len(), self.stamps.len());
    }
}

/// About 100 MB at most, whatever a file says.
const BLOCKS_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::prng::Prng;

    // proves R-CLI-3
    #[test]
    fn whole_blocks_in_front_of_the_last_token_are_known() {
        let prompt = |n: u32| -> Vec<u32> { (0..n).collect() };
        let mut other = prompt(64);
        other[20] = 7;
        // name, prompt, known
        let rows = [
            ("never seen", prompt(40), 0),
            ("the same", prompt(40), 32),
            ("longer", prompt(64), 32),
            ("all blocks but the last token's", prompt(64), 48),
            ("one more token", prompt(65), 64),
            ("another second block", other, 16),
            ("no whole block", prompt(15), 0),
            ("one block exactly", prompt(16), 0),
            ("empty", prompt(0), 0),
        ];
        let mut cache = PrefixCache::new(1_000, 16);
        for (name, ids, known) in rows {
            assert_eq!(cache.known(&ids), known, "{name}");
            assert_eq!(cache.prompt(&ids), known, "{name}");
        }
        assert_eq!(PrefixCache::new(15, 16).prompt(&prompt(40)), 0);
    }

    #[test]
    fn it_forgets_as_a_list_would() {
        let (mut prng, mut cache) = (Prng::new(1), PrefixCache::new(8 * 4, 4));
        // The plain one: prefixes in order of use.
        let mut list: Vec<Vec<u32>> = Vec::new();
        for _ in 0..2_000 {
            let ids: Vec<u32> = (0..prng.below(20))
                .map(|i| (prng.below(2) * (i / 4)) as u32)
                .collect();
            let prefixes: Vec<Vec<u32>> = (1..=ids.len() / 4)
                .take(8)
                .map(|n| ids[..4 * n].to_vec())
                .collect();
            let whole = prefixes.iter().take_while(|p| list.contains(p)).count();
            let known = whole.min(ids.len().saturating_sub(1) / 4) * 4;
            assert_eq!(cache.prompt(&ids), known as u64, "{ids:?}");
            for prefix in prefixes.iter().rev() {
                list.retain(|p| p != prefix);
                list.push(prefix.clone());
                if list.len() > 8 {
                    list.remove(0);
                }
            }
        }
    }
}
