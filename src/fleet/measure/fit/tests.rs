//! Curves that are known come back from points with noise; points that make no curve are named; a plain reference agrees.

use super::*;
use crate::base::prng::Prng;

const LENGTHS: [f64; 10] = [
    32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0,
];

fn prefill_points(c: [f64; 3], noise: f64, prng: &mut Prng) -> Vec<PrefillPoint> {
    let point = |n: f64| {
        let exact = c[0] * n * n + c[1] * n + c[2];
        PrefillPoint {
            tokens: n,
            seconds: exact * (1.0 + noise * (2.0 * prng.unit() - 1.0)),
        }
    };
    LENGTHS.map(point).to_vec()
}

fn decode_points(c: [f64; 3], noise: f64, prng: &mut Prng) -> Vec<DecodePoint> {
    let mut points = Vec::new();
    for requests in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0] {
        for context in [128.0, 1024.0, 8192.0] {
            let kv_tokens = requests * (context + 32.0);
            let exact = c[0] * kv_tokens + c[1] * requests + c[2];
            points.push(DecodePoint {
                requests,
                kv_tokens,
                interval_s: exact * (1.0 + noise * (2.0 * prng.unit() - 1.0)),
            });
        }
    }
    points
}

fn near(got: [f64; 3], want: [f64; 3], within: f64) {
    for (got, want) in got.iter().zip(want) {
        assert!((got / want - 1.0).abs() <= within, "{got} for {want}");
    }
}

proptest::proptest! {
    /// Where each term matters somewhere in the sweep, noise of 0.3 % moves no coefficient by 5 %.
    // proves R-SCH-5
    #[test]
    fn known_curves_come_back(
        seed in 0u64..,
        c in 0.002f64..0.5,
        // How many times the constant the two terms come to at the longest prompt.
        b in 2.0f64..40.0,
        a in 1.0f64..30.0,
        requests in 0.5f64..8.0,
        kv in 0.5f64..8.0,
    ) {
        let mut prng = Prng::new(seed);
        let n = LENGTHS[9];
        // None may drown in the others.
        let (a, kv) = (a.max(b / 2.0), kv.max(requests / 2.0));
        let requests = requests.max(kv / 4.0);
        let want = [a * c / (n * n), b * c / n, c];
        let found = prefill(&prefill_points(want, 0.003, &mut prng)).expect("a fit");
        near(found.coefficients, want, 0.05);
        proptest::prop_assert!(found.mape < 0.006 && found.cv_mape < 0.012, "{found:?}");

        let want = [kv * c / 526_336.0, requests * c / 64.0, c];
        let found = decode(&decode_points(want, 0.003, &mut prng)).expect("a fit");
        near(found.coefficients, want, 0.05);
        proptest::prop_assert!(found.mape < 0.006 && found.cv_mape < 0.012, "{found:?}");
    }

    /// No walk along any single or paired direction improves what was found, and nothing is negative: the optimum.
    #[test]
    fn nothing_near_is_better(points in proptest::collection::vec((1.0f64..64.0, 1.0f64..1e5, 1e-4f64..1.0), 4..12)) {
        let rows: Vec<Row> = points.iter().map(|p| Row::new([p.1, p.0, 1.0], p.2)).collect();
        let found = best(&rows);
        let squares = |c: &[f64; 3]| rows.iter().map(|r| r.error(c).powi(2)).sum::<f64>();
        let least = squares(&found);
        proptest::prop_assert!(found.iter().all(|c| *c >= 0.0));
        let scale = [1e-5, 1e-2, 1.0];
        for step in [1e-1, 1e-3] {
            for moves in 0..27 {
                let signs = [moves % 3, moves / 3 % 3, moves / 9].map(|m| f64::from(m) - 1.0);
                let mut other = found;
                for i in 0..3 {
                    other[i] = (found[i] + signs[i] * step * found[i].max(1e-3 * scale[i])).max(0.0);
                }
                proptest::prop_assert!(squares(&other) >= least * (1.0 - 1e-9), "{other:?} beats {found:?}");
            }
        }
    }
}

// proves R-SCH-5
#[test]
fn a_term_that_is_not_there_is_nothing() {
    let mut prng = Prng::new(3);
    let flat = prefill(&prefill_points([0.0, 0.0, 0.02], 0.01, &mut prng)).expect("a fit");
    assert!((flat.coefficients[2] / 0.02 - 1.0).abs() < 0.02, "{flat:?}");
    assert!(flat.coefficients.iter().all(|c| *c >= 0.0));
    // It falls with length: the best curve that does not fall is flat.
    let falling: Vec<PrefillPoint> = LENGTHS
        .iter()
        .map(|n| PrefillPoint {
            tokens: *n,
            seconds: 1.0 - n * 3e-5,
        })
        .collect();
    let found = prefill(&falling).expect("a fit");
    assert_eq!(found.coefficients[..2], [0.0, 0.0], "{found:?}");
    assert!(
        found.mape > 0.05,
        "and its error tells of it: {}",
        found.mape
    );
}

// proves R-SCH-5
#[test]
fn leaving_one_out_shows_what_the_fit_hides() {
    let mut prng = Prng::new(5);
    let mut points = prefill_points([1e-9, 1e-5, 0.01], 0.0, &mut prng);
    let clean = prefill(&points).expect("a fit");
    assert!(clean.cv_mape < 1e-6, "{clean:?}");
    near(clean.coefficients, [1e-9, 1e-5, 0.01], 1e-6);
    points[9].seconds *= 2.0;
    let bent = prefill(&points).expect("a fit");
    assert!(bent.cv_mape > 1.5 * bent.mape, "{bent:?}");
}

// proves R-SCH-5
#[test]
fn points_that_make_no_curve_are_named() {
    let at = |n: f64| PrefillPoint {
        tokens: n,
        seconds: 0.1,
    };
    let few = |what, found, least| FitFault::TooFew { what, found, least };
    let rows = [
        ("none", vec![], few("prompt lengths", 0, 4)),
        ("one length", vec![at(8.0); 9], few("prompt lengths", 1, 4)),
        (
            "three",
            vec![at(8.0), at(9.0), at(10.0)],
            few("prompt lengths", 3, 4),
        ),
        (
            "no number",
            vec![at(1.0), at(f64::NAN)],
            FitFault::Unusable(1),
        ),
        ("infinite", vec![at(f64::INFINITY)], FitFault::Unusable(0)),
        ("empty prompt", vec![at(0.0)], FitFault::Unusable(0)),
        (
            "no time",
            vec![PrefillPoint {
                tokens: 1.0,
                seconds: 0.0,
            }],
            FitFault::Unusable(0),
        ),
        (
            "all but equal",
            [0.0, 1.0, 2.0, 3.0].map(|i| at(1e6 + i)).to_vec(),
            FitFault::Alike("prompt lengths that differ more"),
        ),
    ];
    for (name, points, want) in rows {
        assert_eq!(prefill(&points), Err(want), "{name}");
    }
    let at = |requests: f64, kv_tokens: f64| DecodePoint {
        requests,
        kv_tokens,
        interval_s: 0.01,
    };
    let counts = [1.0, 2.0, 4.0, 8.0, 16.0];
    let rows = [
        ("none", vec![], few("points", 0, 4)),
        (
            "one number of requests",
            counts.map(|i| at(2.0, 100.0 * i)).to_vec(),
            few("numbers of requests at once", 1, 2),
        ),
        (
            "one context length",
            counts.map(|r| at(r, r * 500.0)).to_vec(),
            FitFault::Alike("several context lengths at the same number of requests"),
        ),
        (
            "no number",
            vec![at(1.0, 1.0), at(1.0, f64::NAN)],
            FitFault::Unusable(1),
        ),
    ];
    for (name, points, want) in rows {
        assert_eq!(decode(&points), Err(want), "{name}");
    }
    for fault in [
        few("points", 1, 4),
        FitFault::Unusable(2),
        FitFault::Alike("x"),
    ] {
        assert!(!fault.to_string().is_empty());
    }
}

#[test]
fn the_median_is_the_middle_one() {
    let rows: [(&[f64], f64); 5] = [
        (&[], 0.0),
        (&[2.0], 2.0),
        (&[3.0, 1.0], 2.0),
        (&[9.0, 1.0, 2.0], 2.0),
        (&[1.0, 1.0, 4.0, 100.0], 2.5),
    ];
    for (values, want) in rows {
        assert_eq!(median(values), want, "{values:?}");
    }
}
