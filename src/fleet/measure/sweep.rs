//! Which points are measured: prompt lengths for the prefill curve, and numbers of requests × context lengths for the decode curve.
//!
//! Lengths and numbers double or more, since errors are relative. A point that the engine has no room for is left out: streams that wait
//! or are preempted would be measured as slow. Pure.
//!
//! Invariant: every point fits: prompt and output within the context, and all of them within [`KV_SHARE`] of the KV cache.

/// What an engine takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Prompt and output of one request.
    pub len_max: u64,
    pub kv_tokens: u64,
}

/// What is asked for; an empty list is the sweep's own choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    pub prompts: Vec<u64>,
    pub contexts: Vec<u64>,
    pub concurrency: Vec<u64>,
    /// Tokens of each stream that a decode point is measured on.
    pub window_tokens: u64,
}

/// Streams that run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Streams {
    pub requests: u64,
    /// Of each one's prompt.
    pub prompt_tokens: u64,
    /// Most that one may generate until all have run together for long enough.
    pub tokens_max: u64,
}

/// Of the KV cache, in percent: blocks are not filled to the last token.
pub const KV_SHARE: u64 = 90;

/// Tokens that the first stream may generate while the prompts of the others are read. Engines that reserve room for output by what is
/// asked for would take fewer streams if it were more.
const LEAD_MAX: u64 = 4_096;

/// Tokens around a window: the first of a stream, and those that are on their way when it ends.
const AROUND: u64 = 8;

const REQUESTS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Prompt lengths for the prefill curve, ascending.
pub fn prompts(wish: &Wish, room: &Room) -> Vec<u64> {
    let longest = longest_prompt(room);
    let mut lengths = wish.prompts.clone();
    if lengths.is_empty() {
        lengths.extend(doubling(32, 2, longest));
        lengths.push(longest);
    }
    lengths.retain(|n| (1..=longest).contains(n));
    ascending(lengths)
}

/// Points for the decode curve, from few short streams to many long ones.
pub fn streams(wish: &Wish, room: &Room) -> Vec<Streams> {
    let mut counts = wish.concurrency.clone();
    if counts.is_empty() {
        counts.extend(REQUESTS);
    }
    let counts = ascending(counts);
    let mut points = Vec::new();
    for (at, requests) in counts.iter().copied().enumerate() {
        // What one of them may hold, prompt and output.
        let share = (room.kv_tokens.saturating_mul(KV_SHARE) / 100) / requests.max(1);
        let most = share.min(room.len_max);
        let least = wish.window_tokens + AROUND;
        let mut contexts = wish.contexts.clone();
        if contexts.is_empty() {
            let longest = most.saturating_sub(least + LEAD_MAX.min(most / 8));
            contexts.extend(doubling(128, 8, longest));
            // The two greatest numbers go to the end of the cache: outside of what was measured the router does not believe a profile.
            if at + 2 >= counts.len() {
                contexts.push(longest);
            }
        }
        let fit = contexts
            .into_iter()
            .filter(|n| *n >= 1 && n + least <= most);
        points.extend(ascending(fit.collect()).into_iter().map(|n| Streams {
            requests,
            prompt_tokens: n,
            tokens_max: (most - n).min(wish.window_tokens + LEAD_MAX),
        }));
    }
    points
}

/// An engine refuses a prompt that leaves no room for a token.
fn longest_prompt(room: &Room) -> u64 {
    let kv = room.kv_tokens.saturating_mul(KV_SHARE) / 100;
    room.len_max.min(kv).saturating_sub(1)
}

fn doubling(from: u64, by: u64, to: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(from), move |n| n.checked_mul(by)).take_while(move |n| *n <= to)
}

fn ascending(mut values: Vec<u64>) -> Vec<u64> {
    values.retain(|n| *n > 0);
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> Wish {
        Wish {
            window_tokens: 64,
            ..Wish::default()
        }
    }

    const SMALL: Room = Room {
        len_max: 2_048,
        kv_tokens: 16_384,
    };

    // proves R-SCH-5
    #[test]
    fn lengths_double_up_to_the_engines_own() {
        let got = prompts(&wish(), &SMALL);
        assert_eq!(got, [32, 64, 128, 256, 512, 1_024, 2_047]);
        let asked = Wish {
            prompts: vec![900, 100, 100, 0, 2_048, 2_047],
            ..wish()
        };
        assert_eq!(prompts(&asked, &SMALL), [100, 900, 2_047]);
        let tight = Room {
            kv_tokens: 1_000,
            ..SMALL
        };
        assert_eq!(prompts(&wish(), &tight).last(), Some(&899));
        for room in [
            Room {
                len_max: 0,
                kv_tokens: 0,
            },
            Room {
                len_max: 1,
                kv_tokens: 1,
            },
        ] {
            assert!(prompts(&wish(), &room).is_empty());
            assert!(streams(&wish(), &room).is_empty());
        }
    }

    // proves R-SCH-5
    #[test]
    fn streams_vary_both_ways_and_fill_the_cache() {
        let points = streams(&wish(), &SMALL);
        let with = |requests: u64| -> Vec<u64> {
            let of = points.iter().filter(|p| p.requests == requests);
            of.map(|p| p.prompt_tokens).collect()
        };
        assert_eq!(with(1), [128, 1_024]);
        assert_eq!(with(8), [128, 1_024]);
        // 14,745 tokens for all: 460 each with 32, and 230 each with 64.
        assert_eq!(with(32), [128, 331]);
        assert_eq!(with(64), [128, 130]);
        let most = points.iter().map(|p| p.requests * p.prompt_tokens).max();
        assert!(most > Some(10_000), "{most:?}");
    }

    proptest::proptest! {
        #[test]
        fn every_point_fits(
            len_max in 0u64..300_000,
            kv_tokens in 0u64..3_000_000,
            window_tokens in 1u64..200,
            contexts in proptest::collection::vec(0u64..100_000, 0..4),
            concurrency in proptest::collection::vec(0u64..300, 0..4),
        ) {
            let room = Room { len_max, kv_tokens };
            let wish = Wish { prompts: Vec::new(), contexts, concurrency, window_tokens };
            for n in prompts(&wish, &room) {
                proptest::prop_assert!(n >= 1 && n < len_max && n < kv_tokens);
            }
            let points = streams(&wish, &room);
            for p in &points {
                let each = p.prompt_tokens + p.tokens_max;
                proptest::prop_assert!(p.tokens_max > window_tokens, "{p:?}");
                proptest::prop_assert!(each <= len_max && p.requests * each <= kv_tokens, "{p:?}");
            }
            proptest::prop_assert!(points.windows(2).all(|two| two[0] < two[1]));
        }
    }
}
