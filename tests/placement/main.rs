//! Placement from several shards at once: a burst spreads over the fleet, whoever reads the board before whom.

mod affinity;
mod fleet;

use std::sync::Barrier;

use fleet::{Asking, Router};
use narwhal::base::time::Instant;
use narwhal::base::units::EngineId;
use narwhal::shard::Shared;
use narwhal::shard::board::Phase;

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Requests on each engine, by phase.
fn spread(shared: &Shared, engines: std::ops::Range<usize>, phase: Phase) -> Vec<u32> {
    let line = |i| shared.board.line(EngineId(i as u16));
    engines.map(|i| line(i).requests(phase)).collect()
}

// proves R-SCH-3
#[test]
fn a_burst_on_eight_shards_does_not_herd() {
    for placement in ["price", "least"] {
        let mut router = Router::new(8, 8, placement);
        for round in 1..=4 {
            let mut burst: Vec<_> = router
                .shards
                .iter_mut()
                .map(|shard| (shard, Asking::new(NOW)))
                .collect();
            // The worst of interleavings: all read the same prices before anyone reserves.
            let plans: Vec<_> = burst
                .iter_mut()
                .map(|(shard, asking)| {
                    let plan = asking.with(shard, NOW, |exchange, cx| exchange.plan(cx));
                    plan.expect("engines are there")
                })
                .collect();
            assert!(plans.iter().all(|plan| plan.1 == plans[0].1));
            for ((shard, asking), (rank, plan)) in burst.iter_mut().zip(plans) {
                asking.with(shard, NOW, |exchange, cx| exchange.settle(cx, rank, plan));
                // What is not released stays.
            }
            let shared = &router.shards[0].shared;
            assert_eq!(
                spread(shared, 0..8, Phase::Prefill),
                [round; 8],
                "{placement}"
            );
            assert_eq!(
                spread(shared, 8..16, Phase::Decode),
                [round; 8],
                "{placement}"
            );
        }
    }
}

// proves R-SCH-3
#[test]
fn threads_that_place_at_once_spread_too() {
    const EACH: u32 = 300;
    let shards = Router::new(4, 8, "price").shards;
    let shared = shards[0].shared.clone();
    let start = Barrier::new(shards.len());
    std::thread::scope(|scope| {
        for mut shard in shards {
            let start = &start;
            // Exchanges and shards stay on their thread.
            scope.spawn(move || {
                start.wait();
                for _ in 0..EACH {
                    let mut asking = Asking::new(NOW);
                    asking.with(&mut shard, NOW, |exchange, cx| {
                        let (rank, plan) = exchange.plan(cx).expect("engines are there");
                        exchange.settle(cx, rank, plan);
                    });
                }
            });
        }
    });
    for (engines, phase) in [(0..4, Phase::Prefill), (4..8, Phase::Decode)] {
        let counts = spread(&shared, engines, phase);
        assert_eq!(counts.iter().sum::<u32>(), 8 * EACH);
        // At most what shards have under way at one moment.
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(most.unwrap() - least.unwrap() <= 8, "{phase:?}: {counts:?}");
    }
}
