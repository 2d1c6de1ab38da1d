//! What is learned, against plain code that works everything out anew from a log of what happened, on a clock of its own.

use std::time::Duration;

use proptest::prelude::*;

use super::correction;
use super::drift::{Change, Drift, Health, Heard, Look, Why};
use super::lengths;
use super::pace::{Pace, RATIO_MAX, SEGMENT_TOKENS};
use crate::base::time::Instant;
use crate::base::units::{EngineId, Role};
use crate::config::checked::{DecodeCorrection, HealthRules};
use crate::shard::learned::Learned;

const MS: u64 = 1_000_000;

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

fn near(got: f64, want: f64) -> bool {
    (got - want).abs() <= 1e-9 * want.abs().max(1.0)
}

// ── pace and correction ──

/// A read: nanoseconds since the one before, and the tokens of it (0: none was whole).
type Read = (u64, u64);

const RULES: DecodeCorrection = DecodeCorrection {
    min: 0.5,
    max: 2.0,
    alpha: 0.2,
    min_samples: 8,
};

/// The ratios of one stream, as it is run.
fn ratios(reads: &[Read], profiled_s: f64, ends: bool) -> Vec<f64> {
    let (mut pace, mut now, mut last, mut tokens) = (Pace::default(), 0, 0, 0);
    let mut out = Vec::new();
    for (after, more) in reads {
        now += after;
        tokens += more;
        if *more > 0 {
            last = now;
        }
        out.extend(pace.read(tokens, at(last), || profiled_s));
    }
    if ends {
        out.extend(pace.end(tokens, at(last), || profiled_s));
    }
    out
}

/// The same from the log of tokens: one time each, looked at as a whole.
fn ratios_of_log(reads: &[Read], profiled_s: f64, ends: bool) -> Vec<f64> {
    let mut times = Vec::new();
    let mut last_of_read = Vec::new();
    let mut now = 0;
    for (after, more) in reads {
        now += after;
        times.extend((0..*more).map(|_| now));
        last_of_read.push(times.len());
    }
    let mut out = Vec::new();
    let Some(first) = times.first().copied() else {
        return out;
    };
    let mut begin = times.iter().filter(|t| **t == first).count();
    let mut begin_at = first;
    for end in last_of_read {
        if end < begin + SEGMENT_TOKENS as usize || times[end - 1] == begin_at {
            continue;
        }
        let live = (times[end - 1] - begin_at) as f64 / 1e9 / (end - begin) as f64;
        out.push((live / profiled_s).min(RATIO_MAX));
        (begin, begin_at) = (end, times[end - 1]);
    }
    if ends && out.is_empty() && begin < times.len() {
        let live = (times[times.len() - 1] - first) as f64 / 1e9 / (times.len() - begin) as f64;
        out.push((live / profiled_s).min(RATIO_MAX));
    }
    out
}

/// An average that starts as a plain mean and goes on exponentially, worked out from the whole list.
fn average(samples: &[f64], rules: &DecodeCorrection) -> f64 {
    if samples.len() < rules.min_samples as usize {
        return 1.0;
    }
    let plain = ((1.0 / rules.alpha).floor() as usize).clamp(1, samples.len());
    let cut = |s: &f64| s.clamp(rules.min, rules.max);
    let mut value = samples[..plain].iter().map(cut).sum::<f64>() / plain as f64;
    for sample in samples[plain..].iter().map(cut) {
        value = (1.0 - rules.alpha) * value + rules.alpha * sample;
    }
    value
}

fn reads() -> impl Strategy<Value = Vec<Read>> {
    let after = prop_oneof![Just(0), 1..40 * MS, 1..3_000 * MS];
    let tokens = prop_oneof![Just(0), Just(1), 1..5u64, 1..60u64];
    prop::collection::vec((after, tokens), 0..120)
}

proptest! {
    // proves R-SCH-4, R-TOK-2
    #[test]
    fn correction_is_what_the_log_of_tokens_says(
        streams in prop::collection::vec((reads(), any::<bool>(), 1e-4..0.1f64), 1..12),
        alpha in 0.01..1.0f64,
        min_samples in 1..20u32,
    ) {
        let rules = DecodeCorrection { alpha, min_samples, ..RULES };
        let learned = Learned::new(2);
        let (mut samples, mut got) = (Vec::new(), 1.0);
        for (reads, ends, profiled_s) in &streams {
            let ratios = ratios(reads, *profiled_s, *ends);
            let want = ratios_of_log(reads, *profiled_s, *ends);
            prop_assert_eq!(ratios.len(), want.len());
            for (ratio, want) in ratios.iter().zip(&want) {
                prop_assert!(near(*ratio, *want), "{} {}", ratio, want);
                prop_assert!(ratio.is_finite() && *ratio > 0.0);
                got = learned.pace(EngineId(1), &rules, *ratio);
            }
            samples.extend(want);
            prop_assert!(near(got, average(&samples, &rules)), "{} {:?}", got, samples);
        }
        let heard = learned.heard(EngineId(1));
        prop_assert_eq!(heard.samples, samples.len() as u64);
        let sum: f64 = samples.iter().sum();
        prop_assert!((heard.sum - sum).abs() <= 1e-6 * (samples.len() + 1) as f64 + 1e-9 * sum);
        prop_assert_eq!(learned.heard(EngineId(0)), Heard::default());
    }

    // proves R-SCH-4
    #[test]
    fn an_even_pace_reads_the_same_however_its_tokens_are_grouped(
        groups in prop::collection::vec(1..50u64, 2..100),
        interval_ms in 1..200u64,
    ) {
        // A group comes when its last token is made.
        let reads: Vec<Read> = groups.iter().map(|n| (n * interval_ms * MS, *n)).collect();
        for ratio in ratios(&reads, 0.02, true) {
            prop_assert!(near(ratio, interval_ms as f64 / 20.0), "{}", ratio);
        }
    }
}

// proves R-SCH-4
#[test]
fn odd_streams_teach_nothing_or_what_is_true() {
    let steady = |n: usize| vec![(10 * MS, 1); n];
    // name, reads, whether it ends well, ratios against 10 ms
    let rows: &[(&str, Vec<Read>, bool, usize)] = &[
        ("one token", steady(1), true, 0),
        ("two tokens", steady(2), true, 1),
        ("too short, and cut", steady(16), false, 0),
        ("short", steady(16), true, 1),
        (
            "one segment and a rest that is dropped",
            steady(20),
            true,
            1,
        ),
        ("three segments", steady(49), true, 3),
        ("a burst in one read", vec![(MS, 500)], true, 0),
        ("a burst in many", vec![(0, 80); 50], true, 0),
        ("no token at all", vec![(MS, 0); 50], true, 0),
    ];
    for (name, reads, ends, want) in rows {
        let ratios = ratios(reads, 0.01, *ends);
        assert_eq!(ratios.len(), *want, "{name}");
        assert!(ratios.iter().all(|r| near(*r, 1.0)), "{name}: {ratios:?}");
    }
    for profiled_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(ratios(&steady(100), profiled_s, true).is_empty());
    }
    let stall = [steady(20), vec![(3_600_000 * MS, 16)]].concat();
    assert_eq!(ratios(&stall, 0.01, true).last(), Some(&RATIO_MAX));
    let mut pace = Pace::default();
    assert_eq!(pace.read(1, at(MS), || 0.01), None);
    pace.held_up();
    assert_eq!(pace.read(100, at(MS * 100), || 0.01), None);
    assert_eq!(pace.end(200, at(MS * 200), || 0.01), None);
}

// proves R-SCH-4
#[test]
fn a_tenfold_change_saturates_and_comes_back() {
    let learned = Learned::new(1);
    let feed = |ratio: f64, samples: usize| {
        (0..samples).fold(1.0, |_, _| learned.pace(EngineId(0), &RULES, ratio))
    };
    assert_eq!(feed(1.0, 7), 1.0);
    assert!(near(feed(1.0, 10), 1.0));
    assert!(feed(10.0, 30) > 1.99);
    assert!(feed(1.0, 12) < 1.1, "what saturated is soon believed again");
    assert!(feed(0.1, 30) < 0.51);
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0] {
        let value = feed(odd, 1);
        assert!((0.5..=2.0).contains(&value), "{odd}: {value}");
    }
    // Without traffic the benefit of the doubt.
    let faded = (0..20).fold(0.0, |_, _| learned.fade(EngineId(0), &RULES));
    assert!((faded - 1.0).abs() < 1e-3);
    assert_eq!(correction::counts(&RULES, 7, 2.0), 1.0);
}

// ── drift ──

const SECOND: u64 = 1_000 * MS;

fn rules() -> HealthRules {
    HealthRules {
        window: Duration::from_secs(30),
        drift_band: 2.0,
        relative_band: 1.5,
        min_samples: 3,
        probation_windows: 3,
        evict_windows: 5,
        recovery_windows: 3,
        probation_penalty: Duration::from_secs(1),
    }
}

/// Engines judged on a clock of its own; what happened is kept.
struct Court {
    drift: Drift,
    now: u64,
    heard: Vec<Heard>,
    available: Vec<bool>,
    changes: Vec<Change>,
}

impl Court {
    fn new(rules: &HealthRules, roles: &[Role]) -> Court {
        let mut court = Court {
            drift: Drift::new(rules, &RULES, roles.iter().copied()),
            now: 0,
            heard: vec![Heard::default(); roles.len()],
            available: vec![true; roles.len()],
            changes: Vec::new(),
        };
        court.pass();
        court
    }

    fn pass(&mut self) -> bool {
        let look = |(heard, available): (&Heard, &bool)| Look {
            heard: *heard,
            available: *available,
        };
        let looks: Vec<Look> = self.heard.iter().zip(&self.available).map(look).collect();
        let changes = &mut self.changes;
        self.drift.pass(at(self.now), &looks, changes)
    }

    /// A window in which engines have ten samples of this ratio; evicted ones have none, nor do those at 0.
    fn window(&mut self, ratios: &[f64]) -> String {
        for (engine, ratio) in ratios.iter().enumerate() {
            if *ratio > 0.0 && self.drift.judged(engine).health != Health::Evicted {
                self.heard[engine].samples += 10;
                self.heard[engine].sum += 10.0 * ratio;
            }
        }
        for _ in 0..30 {
            self.now += SECOND;
            self.pass();
        }
        self.standing()
    }

    fn windows(&mut self, count: usize, ratios: &[f64]) -> String {
        (0..count).fold(String::new(), |_, _| self.window(ratios))
    }

    fn standing(&self) -> String {
        let engines = 0..self.heard.len();
        engines
            .map(|engine| match self.drift.judged(engine).health {
                Health::Healthy => 'h',
                Health::Probation => 'p',
                Health::Evicted => 'e',
            })
            .collect()
    }
}

const DECODES: [Role; 3] = [Role::Decode; 3];

// proves R-SCH-4
#[test]
fn a_slow_engine_is_priced_evicted_tried_and_taken_back() {
    let mut court = Court::new(&rules(), &DECODES);
    assert_eq!(court.windows(5, &[1.0, 1.0, 1.0]), "hhh");
    let slow = [10.0, 1.0, 1.0];
    assert_eq!(court.windows(2, &slow), "hhh");
    assert_eq!(court.window(&slow), "phh");
    assert_eq!(court.window(&slow), "phh");
    assert_eq!(court.window(&slow), "ehh");
    assert_eq!(court.windows(2, &slow), "ehh");
    assert_eq!(court.window(&slow), "phh", "a trial");
    assert_eq!(court.window(&slow), "ehh", "one bad window ends it");
    assert_eq!(court.windows(3, &slow), "phh");
    let well = [1.0; 3];
    assert_eq!(court.windows(2, &well), "phh");
    assert_eq!(court.window(&well), "hhh");
    let why: Vec<Why> = court.changes.iter().map(|change| change.why).collect();
    use Why::{Recovered, Slow, Trial};
    assert_eq!(why, [Slow, Slow, Trial, Slow, Trial, Recovered]);
    // Well again, it has its full measure of patience.
    assert_eq!(court.windows(2, &slow), "hhh");
}

// proves R-SCH-4
#[test]
fn windows_that_say_nothing_and_good_ones_between() {
    let mut court = Court::new(&rules(), &DECODES);
    court.windows(3, &[1.0; 3]);
    let (slow, silent) = ([10.0, 1.0, 1.0], [0.0, 1.0, 1.0]);
    court.windows(2, &slow);
    assert_eq!(court.windows(50, &silent), "hhh");
    assert_eq!(court.window(&slow), "phh", "nothing was said in between");
    court.window(&slow);
    assert_eq!(court.window(&[1.0; 3]), "phh");
    assert_eq!(
        court.windows(4, &slow),
        "phh",
        "a good one starts the count anew"
    );
    assert_eq!(court.window(&slow), "ehh");
    let few = HealthRules {
        min_samples: 11,
        ..rules()
    };
    let mut court = Court::new(&few, &DECODES);
    court.windows(3, &[1.0; 3]);
    assert_eq!(court.windows(9, &slow), "hhh");
    assert_eq!(court.drift.judged(0).score, None);
}

// proves R-SCH-4
#[test]
fn what_befalls_all_evicts_nobody() {
    let mut court = Court::new(&rules(), &DECODES);
    court.windows(5, &[1.0, 1.1, 0.9]);
    assert_eq!(court.windows(40, &[8.0, 9.0, 8.5]), "hhh");
    // Nor does it become the habit that later slowness is measured by.
    assert!(court.drift.judged(0).baseline < Some(1.1));
    // One that is alone in its role is held against all that generate.
    let mut court = Court::new(&rules(), &[Role::Decode, Role::Prefill, Role::Prefill]);
    court.windows(5, &[1.0; 3]);
    assert_eq!(court.windows(40, &[10.0, 10.0, 10.0]), "hhh");
    assert_eq!(court.windows(40, &[10.0, 1.0, 1.0]), "phh");
}

// proves R-SCH-4
#[test]
fn one_on_probation_that_is_given_nothing_is_tried() {
    let mut court = Court::new(&rules(), &[Role::Both; 3]);
    court.windows(5, &[1.0; 3]);
    assert_eq!(court.windows(3, &[10.0, 1.0, 1.0]), "phh");
    // Too dear to be used: it could stay so for ever.
    for n in 1..=3 {
        assert!(court.drift.costs_more(0));
        assert_eq!(court.window(&[0.0, 1.0, 1.0]), "phh", "{n}");
    }
    assert!(!court.drift.costs_more(0));
    // Still slow: dear again. And then well.
    assert_eq!(court.window(&[10.0, 1.0, 1.0]), "phh");
    assert!(court.drift.costs_more(0));
    court.windows(3, &[0.0, 1.0, 1.0]);
    assert_eq!(court.windows(3, &[1.0; 3]), "hhh");
    assert!(!court.drift.costs_more(0));
}

// proves R-SCH-4
#[test]
fn the_last_of_a_role_stays() {
    let mut court = Court::new(&rules(), &[Role::Decode, Role::Decode, Role::Both]);
    court.windows(5, &[1.0; 3]);
    court.available[1] = false;
    assert_eq!(court.windows(9, &[10.0, 0.0, 1.0]), "phh", "alone");
    court.available[1] = true;
    assert_eq!(court.window(&[10.0, 1.0, 1.0]), "ehh", "no longer");
    // The other one dies: back at once, in the next pass, not at the next window.
    court.available[1] = false;
    court.now += SECOND;
    court.pass();
    assert_eq!(court.standing(), "phh");
    assert_eq!(court.changes.last().map(|c| c.why), Some(Why::Needed));
    // Two slow ones, and the others die: the worse one goes.
    let mut court = Court::new(&rules(), &[Role::Decode; 5]);
    let two = [8.0, 30.0, 1.0, 1.0, 1.0];
    court.windows(5, &[1.0; 5]);
    assert_eq!(court.windows(4, &two), "pphhh");
    court.available[2..].fill(false);
    assert_eq!(court.window(&two), "pehhh");
}

// proves R-SCH-4
#[test]
fn a_slow_slide_is_noticed_before_it_is_far() {
    for growth in [1.001f64, 1.003, 1.01, 1.05] {
        let mut court = Court::new(&rules(), &DECODES);
        court.windows(20, &[1.0; 3]);
        let mut ratio = 1.0;
        while court.window(&[ratio, 1.0, 1.0]) != "ehh" {
            ratio *= growth;
            assert!(
                ratio < 2.0 * 1.4143 * growth.powi(6),
                "{growth}: unnoticed at {ratio}"
            );
        }
        assert!(ratio > 1.9, "{growth}: {ratio}");
    }
    // One that was slow when the router began is held to what a correction may make up for.
    let mut court = Court::new(&rules(), &DECODES);
    assert_eq!(court.windows(5, &[10.0, 1.0, 1.0]), "ehh");
    // Noise around a good engine is no drift, and a faster engine is what later ones are measured by.
    let mut court = Court::new(&rules(), &DECODES);
    for n in 0..200 {
        let noise = [0.8, 1.3, 1.0, 1.6, 0.7][n % 5];
        assert_eq!(court.window(&[noise, 1.0, 1.0]), "hhh", "{n}");
    }
    court.windows(50, &[0.5, 1.0, 1.0]);
    assert!(court.drift.judged(0).baseline < Some(0.6));
    assert_eq!(court.windows(5, &[1.6, 1.0, 1.0]), "ehh");
}

// proves R-SCH-4
#[test]
fn clocks_that_stand_still_or_jump_and_numbers_that_are_none() {
    let mut court = Court::new(&rules(), &DECODES);
    court.windows(3, &[1.0; 3]);
    for _ in 0..1_000 {
        court.heard[0].samples += 10;
        court.heard[0].sum += 500.0;
        assert!(!court.pass(), "no time has passed");
    }
    // One pass after an hour ends one window.
    court.now += 3_600 * SECOND;
    assert!(court.pass() && !court.pass());
    assert_eq!(
        (court.standing().as_str(), court.drift.judged(0).bad),
        ("hhh", 1)
    );
    for sum in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0] {
        court.heard[1] = Heard {
            samples: court.heard[1].samples + 10,
            sum,
        };
        court.now += 30 * SECOND;
        court.pass();
        let judged = court.drift.judged(1);
        assert!(judged.score.is_some_and(f64::is_finite), "{sum}");
        assert!(judged.baseline.is_some_and(f64::is_finite), "{sum}");
    }
    let mut none = Court::new(&rules(), &[]);
    assert_eq!(none.windows(2, &[]), "");
}

/// Standings after each window, from the samples of each window and engine: every one worked out from its whole history.
fn standings(windows: &[Vec<Vec<f64>>], engines: usize, rules: &HealthRules) -> Vec<String> {
    let mut health = vec!['h'; engines];
    let mut since = vec![0usize; engines];
    let mut trial = vec![false; engines];
    let mut verdicts: Vec<Vec<char>> = vec![Vec::new(); engines];
    let mut lessons: Vec<Vec<f64>> = vec![Vec::new(); engines];
    let mut first: Vec<Option<f64>> = vec![None; engines];
    let mut out = Vec::new();
    for window in windows {
        let mean = |samples: &Vec<f64>| {
            let enough = samples.len() >= rules.min_samples as usize;
            enough.then(|| samples.iter().sum::<f64>() / samples.len() as f64)
        };
        let scores: Vec<Option<f64>> = window.iter().map(mean).collect();
        let mut order: Vec<usize> = (0..engines).collect();
        order.sort_by(|a, b| {
            let of = |i: &usize| scores[*i].unwrap_or(0.0);
            of(b).total_cmp(&of(a)).then(a.cmp(b))
        });
        for i in order {
            let mut others: Vec<f64> = (0..engines)
                .filter(|j| *j != i && health[*j] != 'e')
                .filter_map(|j| scores[j])
                .collect();
            others.sort_by(f64::total_cmp);
            let n = others.len();
            let middle = (n > 0).then(|| (others[n / 2] + others[(n - 1) / 2]) / 2.0);
            let verdict = scores[i].map_or('-', |score| {
                let first = *first[i].get_or_insert(score.clamp(RULES.min, RULES.max));
                let usual = usual(&lessons[i], rules.drift_band).unwrap_or(first);
                let own = score >= 2.0 * usual;
                if !own && health[i] == 'h' {
                    lessons[i].push(score);
                }
                match own && middle.is_none_or(|middle| score >= 1.5 * middle) {
                    true => 'x',
                    false => '.',
                }
            });
            let others_left = (0..engines).any(|j| j != i && health[j] != 'e');
            if health[i] == 'e' {
                since[i] += 1;
                if since[i] == rules.recovery_windows as usize {
                    (health[i], trial[i]) = ('p', true);
                    verdicts[i].clear();
                }
                continue;
            }
            if verdict == '-' {
                continue;
            }
            verdicts[i].push(verdict);
            let run =
                |what: char| verdicts[i].iter().rev().take_while(|v| **v == what).count() as u32;
            let out_with_it = run('x') >= rules.evict_windows || trial[i] && verdict == 'x';
            if out_with_it && others_left {
                (health[i], since[i]) = ('e', 0);
            } else if run('x') >= rules.probation_windows || out_with_it {
                health[i] = 'p';
            } else if health[i] == 'p' && run('.') >= rules.recovery_windows {
                (health[i], trial[i]) = ('h', false);
                verdicts[i].clear();
            }
        }
        out.push(health.iter().collect());
    }
    out
}

/// A baseline from all lessons.
fn usual(lessons: &[f64], band: f64) -> Option<f64> {
    let mut usual = None;
    let mut history: Vec<f64> = Vec::new();
    for (n, score) in lessons.iter().enumerate() {
        let next = match usual {
            None => *score,
            Some(usual) if n < 10 => (usual * n as f64 + score) / (n + 1) as f64,
            Some(usual) => 0.9 * usual + 0.1 * score,
        };
        let low = match history.len() {
            0 => f64::INFINITY,
            n if n <= 10 => history[n - 1],
            _ => history[9..].iter().copied().fold(f64::INFINITY, f64::min),
        };
        let next = next.min(low * band.sqrt()).clamp(RULES.min, RULES.max);
        history.push(next);
        usual = Some(next);
    }
    usual
}

proptest! {
    // proves R-SCH-4
    #[test]
    fn drift_is_what_the_log_of_samples_says(
        engines in 1..5usize,
        speeds in prop::collection::vec(
            (1..20usize, prop::collection::vec(prop_oneof![Just(1.0), Just(3.0), 0.2..12.0f64], 4)),
            1..8,
        ),
        noise in prop::collection::vec((0..8usize, 0.9..1.1f64), 64),
        runs in (1..4u32, 1..6u32, 1..4u32),
    ) {
        let (probation_windows, evict_windows, recovery_windows) = runs;
        let rules = HealthRules { probation_windows, evict_windows, recovery_windows, ..rules() };
        let mut court = Court::new(&rules, &vec![Role::Decode; engines]);
        let (mut log, mut turn) = (Vec::new(), 0);
        for (count, speeds) in &speeds {
            for _ in 0..*count {
                let window: Vec<Vec<f64>> = (0..engines).map(|engine| {
                    turn += 1;
                    let (samples, noise) = noise[turn * 7 % noise.len()];
                    vec![speeds[engine] * noise; samples]
                }).collect();
                for (engine, samples) in window.iter().enumerate() {
                    // Spread over the window, a pass after each.
                    for ratio in samples {
                        court.heard[engine].samples += 1;
                        court.heard[engine].sum += ratio;
                    }
                }
                court.now += 29 * SECOND;
                prop_assert!(!court.pass());
                court.now += SECOND;
                prop_assert!(court.pass());
                log.push(window);
                let want = standings(&log, engines, &rules);
                prop_assert_eq!(Some(&court.standing()), want.last(), "after {:?}", want);
                prop_assert!(court.standing().contains(['h', 'p']), "somebody is left");
            }
        }
    }
}

// ── lengths ──

// proves R-SCH-4, R-ADM-5
#[test]
fn buckets_are_powers_of_two() {
    let rows = [
        (0, None, (0, None)),
        (1, Some(0), (1, Some(1))),
        (1, Some(1), (1, Some(1))),
        (2, Some(3), (2, Some(2))),
        (4_095, Some(4_096), (2_048, Some(4_096))),
        (u64::MAX, Some(u64::MAX), (1 << 20, Some(1 << 20))),
        (1 << 20, Some((1 << 20) - 1), (1 << 20, Some(1 << 19))),
    ];
    for (prompt, cap, want) in rows {
        let bucket = lengths::bucket(prompt, cap);
        assert!(bucket < lengths::BUCKETS);
        assert_eq!(lengths::floor(bucket), want, "{prompt} {cap:?}");
    }
    for bucket in 0..lengths::BUCKETS {
        let (prompt, cap) = lengths::floor(bucket);
        assert_eq!(lengths::bucket(prompt, cap), bucket);
    }
}

// proves R-SCH-4, R-ADM-5
#[test]
fn lengths_speak_from_the_third_request_on() {
    let learned = Learned::new(0);
    assert_eq!(learned.output_tokens(100, Some(1_000)), 1_000);
    assert_eq!(learned.output_tokens(100, None), 256);
    for (delivered, want) in [(100, 1_000), (300, 1_000), (200, 200), (400, 250)] {
        learned.delivered(100, Some(1_000), delivered);
        assert_eq!(learned.output_tokens(100, Some(1_000)), want);
    }
    assert_eq!(learned.output_tokens(100, None), 256, "another bucket");
    assert_eq!(
        learned.output_tokens(128, Some(1_000)),
        1_000,
        "another bucket"
    );
    assert_eq!(learned.output_tokens(64, Some(512)), 128, "the same one");
    for _ in 0..3 {
        learned.delivered(100, None, 7);
        // More than was asked for is all of it; nothing is nothing.
        learned.delivered(5, Some(10), 11);
        learned.delivered(5, Some(1_000), 0);
        learned.delivered(5, Some(0), 9);
    }
    assert_eq!(learned.output_tokens(100, None), 7);
    assert_eq!(learned.output_tokens(5, Some(10)), 10);
    assert_eq!(learned.output_tokens(5, Some(1_000)), 0);
    assert_eq!(learned.output_tokens(5, Some(0)), 0);
    assert_eq!(learned.output_tokens(5, Some(u64::MAX)), u64::MAX);
    let known: Vec<_> = learned.lengths().collect();
    assert_eq!(known.len(), 4);
    let first = known.iter().find(|length| length.cap_min.is_none());
    assert_eq!(
        first.map(|l| (l.prompt_tokens_min, l.samples, l.median)),
        Some((64, 3, Some(7.0)))
    );
}

proptest! {
    // proves R-SCH-4, R-ADM-5
    #[test]
    fn lengths_are_what_the_log_of_requests_says(
        log in prop::collection::vec(
            (prop_oneof![0..40u64, any::<u64>()], prop::option::of(prop_oneof![0..100u64, any::<u64>()]), 0..200u64),
            1..300,
        ),
    ) {
        let learned = Learned::new(0);
        let power = |n: u64| n.checked_ilog2().unwrap_or(0).min(20);
        let alike = |a: (u64, Option<u64>), b: (u64, Option<u64>)| {
            (a.0 == 0) == (b.0 == 0) && power(a.0) == power(b.0) && a.1.map(power) == b.1.map(power)
        };
        for (i, (prompt, cap, delivered)) in log.iter().enumerate() {
            let seen = log[..i].iter().filter(|(p, c, _)| *c != Some(0) && alike((*p, *c), (*prompt, *cap)));
            let mut seen: Vec<f64> = seen
                .map(|(_, cap, delivered)| match cap {
                    None => *delivered as f64,
                    Some(cap) => (*delivered as f64 / *cap as f64).min(1.0),
                })
                .collect();
            let many = seen.len();
            let mut last = seen.split_off(many.saturating_sub(31));
            last.sort_by(f64::total_cmp);
            let middle = |v: &[f64]| (v[v.len() / 2] + v[(v.len() - 1) / 2]) / 2.0;
            let want = match (many < 3, cap) {
                (true, cap) => cap.map_or(256.0, |cap| cap as f64),
                (false, None) => middle(&last),
                (false, Some(cap)) => middle(&last) * *cap as f64,
            };
            let got = learned.output_tokens(*prompt, *cap) as f64;
            prop_assert!((got - want).abs() <= 1.0 + 1e-6 * want, "{} {}", got, want);
            learned.delivered(*prompt, *cap, *delivered);
        }
    }
}
