//! Policies side by side, small: what `scripts/policies` runs at length.

mod sim;

use sim::drive::run;
use sim::fleet::{Fleet, Policy, Slow};
use sim::measure::Summary;
use sim::traffic::{Shape, trace};

#[test]
fn look() {
    for (shape, load) in [
        (Shape::Steady, 0.5),
        (Shape::Steady, 0.8),
        (Shape::Steady, 1.0),
        (Shape::Steady, 2.0),
        (Shape::Bursty, 0.8),
        (Shape::Bursty, 2.0),
        (Shape::Storms, 0.8),
        (Shape::Storms, 2.0),
    ] {
        let fleet = Fleet::new(4, Slow::None, 1);
        println!(
            "{shape:?} {load}, capacity {:.1}",
            fleet.capacity(&sim::traffic::sample(shape))
        );
        let trace = trace(shape, &fleet, load, 30.0, 8.0, 1);
        for policy in Policy::all(1100, 0) {
            let t = std::time::Instant::now();
            let run = run(&fleet, &policy, &trace, 4, 1);
            let s = Summary::of(&run.records, &trace);
            println!(
                "  {:20} goodput {:6.1} of {:6.1}  admitted {:5} in ttft {:.3} in tpot {:.3}  p50 {:.3} p99 {:.3} tpot99 {:.4} err {:.3}  {:?} {:?} {:.1}s",
                policy.name,
                s.goodput,
                s.offered as f64 / trace.measured().as_secs_f64(),
                s.admitted,
                s.in_ttft,
                s.in_tpot,
                s.ttft_p50_s,
                s.ttft_p99_s,
                s.tpot_p99_s,
                s.projection_error,
                run.ends,
                run.most_residents,
                t.elapsed().as_secs_f64()
            );
        }
    }
}
