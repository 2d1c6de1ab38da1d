//! Mixed load with faults for as long as one likes: memory and descriptors stay flat, the account stays exact, and nobody waits longer in
//! the end than in the beginning.
//!
//! Some seconds here; `scripts/soak --minutes N` runs the same and prints each window. `NARWHAL_SOAK_SECONDS` is how long.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use narwhal::base::prng::Prng;
use serde_json::Value;

use super::ask::Outcome;
use super::crowd::{Crowd, Tally, crowd};
use super::echo::{Echo, Mood};
use super::engine::lock;
use super::process;
use super::world::{Fleet, Setup, World, ends, in_each, number, poll};

const SECONDS: f64 = 5.0;

/// The run is cut into so many; the first ones warm up.
const WINDOWS: u32 = 12;
const WARM: usize = 3;

/// What memory may grow by from the first window that counts to the last, by the line through all of them.
const GROWTH_BYTES_MAX: f64 = 8.0 * 1024.0 * 1024.0;

/// Descriptors of the process when all is quiet, above what it began with: connections to engines that are still young.
const DESCRIPTORS_MORE: usize = 8;

/// How much slower the last windows may be than the first ones: so many times, and so many milliseconds on top, which is an engine that
/// freezes, tried three times.
const DRIFT_MAX: f64 = 2.0;
const DRIFT_MS: f64 = 1_500.0;

const CROWD: Crowd = Crowd {
    clients: 24,
    seed: 5,
    tokens_max: 40,
    leave: 12,
    dawdle: 5,
    pipeline: 8,
    patience: Duration::from_secs(60),
    ids: false,
};

#[derive(Clone, Copy, Debug)]
struct Window {
    resident: u64,
    descriptors: usize,
    exchanges: u64,
    p50_ms: u32,
    p99_ms: u32,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.resident as f64 / (1 << 20) as f64;
        let Window {
            descriptors,
            exchanges,
            p50_ms,
            p99_ms,
            ..
        } = self;
        write!(
            f,
            "{mib:.1} MiB, {descriptors} descriptors, {exchanges} exchanges, p50 {p50_ms} ms, p99 {p99_ms} ms"
        )
    }
}

// proves R-ADM-10, R-HTTP-3
#[test]
fn load_without_end_changes_nothing() {
    let told = std::env::var("NARWHAL_SOAK_SECONDS").ok();
    let seconds = told.map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    let setups: Vec<_> = Setup::all().into_iter().filter(|s| s.shards == 2).collect();
    in_each(&setups, |setup| {
        soak(setup, Duration::from_secs_f64(seconds))
    });
}

fn soak(setup: Setup, time: Duration) {
    let echo = Echo::start(4);
    echo.set_faults(15);
    let mut fleet = Fleet::pairs()
        .with("engine", "tokenize_timeout_s", 0.5)
        .with("engine", "first_token_timeout_s", 0.5)
        .with("engine", "decode_read_timeout_s", 0.5)
        .with("serving", "prefill_timeout_s", 0.5)
        .with("serving", "max_attempts", 3);
    fleet.ports = echo.ports.clone();
    let world = World::start(setup, &fleet);
    let begun_with = process::descriptors(world.id());
    let over = AtomicBool::new(false);
    let current = Mutex::new(Tally::default());
    let mut windows = Vec::new();
    let mut all = Tally::default();
    thread::scope(|scope| {
        let (world, echo, over, current) = (&world, &echo, &over, &current);
        scope.spawn(move || weather(echo, over, time / 40));
        scope.spawn(move || {
            let mut seed = 0;
            while !over.load(SeqCst) {
                seed += 1;
                let until = Instant::now() + time / (4 * WINDOWS);
                let some = crowd(world, Crowd { seed, ..CROWD }, |_| Instant::now() < until);
                lock(current).add(some);
            }
        });
        for n in 1..=WINDOWS {
            thread::park_timeout(time / WINDOWS);
            let tally = std::mem::take(&mut *lock(current));
            let window = look(world, &tally);
            println!("{} {n:2}/{WINDOWS}: {window}", setup.driver);
            windows.push(window);
            all.add(tally);
            echo.assert_unmixed();
            echo.forget();
        }
        over.store(true, SeqCst);
    });
    all.add(std::mem::take(&mut *lock(&current)));
    all.assert_refusals(setup.driver, &[502, 503, 504]);
    let state = world.at_rest();
    assert_account(&state, &all);
    flat_memory(setup, &windows[WARM..]);
    no_drift(setup, &windows[WARM..]);
    flat_descriptors(setup, &windows[WARM..]);
    // Engines close what is idle, and so does the router.
    let mut open = 0;
    poll(Duration::from_secs(10), || {
        open = process::descriptors(world.id());
        open <= begun_with + DESCRIPTORS_MORE
    });
    println!(
        "{setup:?}: {} exchanges, {:?}, descriptors {begun_with} to {open}",
        all.exchanges, all.outcomes
    );
    assert!(
        open <= begun_with + DESCRIPTORS_MORE,
        "{setup:?}: {begun_with} to {open} descriptors"
    );
}

/// Each engine has a bad time now and then, one at a time.
fn weather(echo: &Echo, over: &AtomicBool, spell: Duration) {
    let mut chance = Prng::new(9);
    while !over.load(SeqCst) {
        thread::park_timeout(spell);
        let engine = chance.below(4) as usize;
        let mood = Mood::ALL[chance.below(Mood::ALL.len() as u64) as usize];
        echo.set_mood(engine, mood);
        thread::park_timeout(spell.min(Duration::from_millis(800)));
        echo.set_mood(engine, Mood::Well);
    }
}

fn look(world: &World, tally: &Tally) -> Window {
    let mut times = tally.times_ms.clone();
    times.sort_unstable();
    let at = |share: f64| {
        let index = (times.len() as f64 * share) as usize;
        times
            .get(index.min(times.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    };
    Window {
        resident: process::resident_bytes(world.id()),
        descriptors: process::descriptors(world.id()),
        exchanges: tally.exchanges,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
    }
}

/// What the router counted is what its clients saw; who left may have been anything but failed by an engine without retry.
fn assert_account(state: &Value, all: &Tally) {
    let served = number(state, "/served");
    let whole = all.count(Outcome::Whole);
    assert!(
        served >= whole && served <= whole + all.left,
        "{served} and {whole}"
    );
    assert_eq!(number(state, "/offered"), ends(state));
    assert!(number(state, "/offered") >= all.exchanges - all.left);
    assert_eq!(number(state, "/invalid_requests"), 0, "{state}");
}

/// Descriptors may be that many more in the last windows than in the first: pools keep what was used within four seconds.
const DESCRIPTORS_DRIFT: usize = 400;

fn flat_descriptors(setup: Setup, windows: &[Window]) {
    let most = |windows: &[Window]| windows.iter().map(|w| w.descriptors).max().unwrap_or(0);
    let (first, last) = windows.split_at(windows.len() / 2);
    let (first, last) = (most(first), most(last));
    println!("{setup:?}: at most {first} descriptors in the first half, {last} in the second");
    assert!(last <= first + DESCRIPTORS_DRIFT, "{setup:?}: {windows:?}");
}

/// The slope of the line through all windows, over all of them.
fn flat_memory(setup: Setup, windows: &[Window]) {
    let points: Vec<(f64, f64)> = (0..)
        .map(f64::from)
        .zip(windows.iter().map(|w| w.resident as f64))
        .collect();
    let grown = slope(&points) * (points.len() - 1) as f64;
    println!("{setup:?}: memory grows by {:.0} KiB", grown / 1024.0);
    assert!(grown <= GROWTH_BYTES_MAX, "{setup:?}: {windows:?}");
}

/// Of the least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let products = points.iter().map(|p| (p.0 - x) * (p.1 - y));
    let squares = points.iter().map(|p| (p.0 - x) * (p.0 - x));
    products.sum::<f64>() / squares.sum::<f64>()
}

/// The last third against the first.
fn no_drift(setup: Setup, windows: &[Window]) {
    let third = windows.len() / 3;
    let mean = |windows: &[Window]| {
        let sum: u32 = windows.iter().map(|w| w.p99_ms).sum();
        f64::from(sum) / windows.len() as f64
    };
    let (first, last) = (
        mean(&windows[..third]),
        mean(&windows[windows.len() - third..]),
    );
    println!("{setup:?}: p99 {first:.0} ms in the beginning, {last:.0} ms in the end");
    assert!(
        last <= DRIFT_MAX * first + DRIFT_MS,
        "{setup:?}: {windows:?}"
    );
}

#[test]
fn a_slope_is_seen() {
    let line = |slope: f64| -> Vec<(f64, f64)> {
        let noise = [3.0, -1.0, 0.0, 2.0, -4.0, 1.0, 0.0, -1.0];
        (0..)
            .map(f64::from)
            .zip(noise)
            .map(|(x, n)| (x, 100.0 + slope * x + n))
            .collect()
    };
    assert!(slope(&line(0.0)).abs() < 1.0);
    assert!((slope(&line(50.0)) - 50.0).abs() < 1.0);
    assert!((slope(&line(-7.0)) + 7.0).abs() < 1.0);
}
