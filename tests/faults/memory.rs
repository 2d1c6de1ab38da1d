//! What is remembered of prompts keeps its size whatever clients ask, and keeps what is asked again.

use std::time::Duration;

use narwhal::base::prng::Prng;
use narwhal::base::time::Instant;
use narwhal::base::units::EngineId;
use narwhal::shard::prefix::Prefixes;
use narwhal::wire::prefix::Salt;

/// Two KiB of text.
const BLOCKS: usize = 4;
const BLOCK_TOKENS: u64 = 135;
const HOT: u64 = 64;
const ENGINES: usize = 4;

fn prompt(name: u64) -> [u64; BLOCKS] {
    let mut prng = Prng::new(name);
    std::array::from_fn(|_| prng.u64())
}

// proves R-SCH-6
#[test]
fn a_flood_of_prompts_takes_no_room_from_those_that_come_back() {
    let table = Prefixes::of(
        &[500_000; ENGINES],
        BLOCK_TOKENS as f64,
        Salt::new(&mut Prng::new(1)),
    );
    let bytes = table.bytes();
    let mut held = vec![0; ENGINES];
    let (mut asked, mut found) = (0u64, 0u64);
    let mut now = Instant::from_nanos(1_000_000_000);
    for cold in 0..1_000_000u64 {
        now = now + Duration::from_micros(100);
        // Each goes where it was, else anywhere, as placement would send it.
        let mut place = |name: u64| {
            let blocks = prompt(name);
            table.recall(&blocks, now, &mut held);
            let best = (0..ENGINES).max_by_key(|engine| held[*engine]).unwrap_or(0);
            let known = u64::from(held[best]);
            let engine = match known {
                0 => (name % ENGINES as u64) as usize,
                _ => best,
            };
            let new = (BLOCKS as u64 - known) * BLOCK_TOKENS;
            table.record(EngineId(engine as u16), &blocks, new, now);
            known == BLOCKS as u64
        };
        place(1 << 32 | cold);
        if cold % 4 == 0 {
            let round = cold / 4;
            let hit = place(round % HOT);
            if round >= HOT {
                asked += 1;
                found += u64::from(hit);
            }
        }
        if cold % 100_000 == 0 {
            assert_eq!(table.bytes(), bytes);
        }
    }
    let rate = found as f64 / asked as f64;
    assert!(rate > 0.95, "{rate}");
    assert_eq!(table.bytes(), bytes);
    // What nobody asks for again is not believed for ever.
    assert!(table.count(now) > 0);
    assert_eq!(table.count(now + Duration::from_secs(660)), 0);
}
