//! Which engines have become slow: windows of time, a verdict for each, and what a run of verdicts means.
//!
//! A window's score is the mean of the engine's [`pace`](super::pace) ratios in it. It is bad when it is far above the engine's own healthy
//! baseline and far above the engines of its role, too: when all are slow together, sending requests elsewhere helps nobody. Bad windows
//! in a row lead to probation (a price) and then to eviction (no new work); good ones lead back. An evicted engine gets no work that
//! could show it well again, so after some windows it is tried: on probation, where one bad window evicts it.
//!
//! The baseline follows good windows slowly, down as far as it likes, up only by the root of the band from its lowest, and never
//! outside of what the correction may say. So a slide of any slowness is noticed before the engine is three times as slow (with a
//! band of 2), and an engine that was slow from the start has no bad habit to be compared with.
//! Invariant: the last available engine of a role is not evicted.

use crate::base::time::Instant;
use crate::base::units::Role;
use crate::base::words::words;
use crate::config::checked::{DecodeCorrection, HealthRules};

words! {
    /// How an engine stands.
    #[derive(Default)]
    Health {
        #[default]
        Healthy = "healthy",
        Probation = "probation",
        Evicted = "evicted",
    }
}

/// All engines.
#[derive(Debug)]
pub struct Drift {
    rules: HealthRules,
    /// What a baseline may be.
    bounds: (f64, f64),
    engines: Vec<Watched>,
    /// When the running window began.
    opened: Option<Instant>,
}

/// What is known of an engine at a pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Since the start.
    pub heard: Heard,
    /// Live and not ejected: whether it is evicted does not matter here.
    pub available: bool,
}

/// Ratios since the start of the router: how many, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Heard {
    pub samples: u64,
    pub sum: f64,
}

/// How an engine is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    pub health: Health,
    /// Of the last window that said something.
    pub score: Option<f64>,
    pub baseline: Option<f64>,
    /// Bad windows in a row, and good ones.
    pub bad: u32,
    pub good: u32,
    /// Samples in the last window.
    pub samples: u64,
}

/// An engine stands otherwise than before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub engine: usize,
    pub from: Health,
    pub to: Health,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Bad windows in a row.
    Slow,
    /// Good windows in a row.
    Recovered,
    /// It has been out for long enough.
    Trial,
    /// No other engine of its role is left.
    Needed,
}

#[derive(Debug)]
struct Watched {
    role: Role,
    judged: Judged,
    /// As of the beginning of the window.
    heard: Heard,
    /// Windows that made the baseline, and the lowest it was.
    lessons: u32,
    lowest: f64,
    /// On probation after an eviction.
    on_trial: bool,
    windows_out: u32,
    /// Windows on probation that said nothing, since a bad one.
    silent: u32,
}

/// A good window moves the baseline by so much; the first ones weigh alike. At 30 s a window the last five minutes.
const BASELINE_ALPHA: f64 = 0.1;
const LESSONS_ALIKE: u32 = 10;

impl Drift {
    /// Engines in the order of the file.
    pub fn new(
        rules: &HealthRules,
        correction: &DecodeCorrection,
        roles: impl IntoIterator<Item = Role>,
    ) -> Self {
        Drift {
            rules: rules.clone(),
            bounds: (correction.min, correction.max),
            engines: roles.into_iter().map(Watched::new).collect(),
            opened: None,
        }
    }

    /// Other rules, and as many engines as are said: the role of each, and whether nothing is known of it from now on.
    pub fn follow(
        &mut self,
        rules: &HealthRules,
        correction: &DecodeCorrection,
        engines: impl IntoIterator<Item = (Role, bool)>,
    ) {
        self.rules = rules.clone();
        self.bounds = (correction.min, correction.max);
        for (i, (role, forget)) in engines.into_iter().enumerate() {
            match self.engines.get_mut(i) {
                Some(watched) if !forget => watched.role = role,
                Some(watched) => *watched = Watched::new(role),
                None => self.engines.push(Watched::new(role)),
            }
        }
    }

    /// What was heard of `engine` so far says nothing of it.
    pub fn pass_over(&mut self, engine: usize, heard: Heard) {
        self.engines[engine].heard = heard;
    }

    pub fn judged(&self, engine: usize) -> Judged {
        self.engines[engine].judged
    }

    /// Whether new work goes there only at a price. One on probation that was given too little to show how it is, for as long as it
    /// would have taken to become well, is given work as any other until a bad window.
    pub fn costs_more(&self, engine: usize) -> bool {
        let watched = &self.engines[engine];
        watched.judged.health == Health::Probation && watched.silent < self.rules.recovery_windows
    }

    /// A monitoring pass, with a look at each engine. Whether a window has ended; what has changed is put into `changes`. A pass that comes
    /// late ends one window, a longer one.
    pub fn pass(&mut self, now: Instant, looks: &[Look], changes: &mut Vec<Change>) -> bool {
        let opened = *self.opened.get_or_insert(now);
        let ends = now.since(opened) >= self.rules.window && now > opened;
        if ends {
            self.opened = Some(now);
            self.close(looks, changes);
        }
        self.readmit_needed(looks, changes);
        ends
    }

    fn close(&mut self, looks: &[Look], changes: &mut Vec<Change>) {
        let mut order: Vec<(usize, Option<f64>)> = Vec::with_capacity(self.engines.len());
        for (i, (watched, look)) in self.engines.iter_mut().zip(looks).enumerate() {
            let score = watched.score(look.heard, self.rules.min_samples);
            order.push((i, score));
        }
        let scores: Vec<Option<f64>> = order.iter().map(|(_, score)| *score).collect();
        // The worst first: where not all can be evicted, the best of them stays.
        let worse =
            |a: &Option<f64>, b: &Option<f64>| b.unwrap_or(0.0).total_cmp(&a.unwrap_or(0.0));
        order.sort_by(|a, b| worse(&a.1, &b.1));
        for (i, score) in order {
            let bad = score.map(|score| {
                let peers = self.peers(i, &scores);
                self.is_bad(i, score, peers)
            });
            self.step(i, bad, looks, changes);
        }
    }

    /// The median score of the other engines of its role that had one; of all others where there is none of its role.
    fn peers(&self, engine: usize, scores: &[Option<f64>]) -> Option<f64> {
        let role = self.engines[engine].role;
        let scores_of = |all: bool| -> Vec<f64> {
            let peers = self.engines.iter().zip(scores).enumerate();
            let counts = |i: usize, peer: &Watched| {
                i != engine && (all || peer.role == role) && peer.judged.health != Health::Evicted
            };
            peers
                .filter(|(i, (peer, _))| counts(*i, peer))
                .filter_map(|(_, (_, score))| *score)
                .collect()
        };
        let mut peers = scores_of(false);
        if peers.is_empty() {
            peers = scores_of(true);
        }
        peers.sort_unstable_by(f64::total_cmp);
        let upper = *peers.get(peers.len() / 2)?;
        let lower = peers[(peers.len() - 1) / 2];
        Some((lower + upper) / 2.0)
    }

    fn is_bad(&mut self, engine: usize, score: f64, peers: Option<f64>) -> bool {
        let (least, most) = self.bounds;
        let rules = &self.rules;
        let watched = &mut self.engines[engine];
        let first = score.max(least).min(most);
        let baseline = *watched.judged.baseline.get_or_insert(first);
        let is_slow = score >= rules.drift_band * baseline;
        if !is_slow && watched.judged.health == Health::Healthy {
            watched.learn(score, self.bounds, rules.drift_band);
        }
        is_slow && peers.is_none_or(|peers| score >= rules.relative_band * peers)
    }

    /// `bad` is `None` for a window that says nothing.
    fn step(
        &mut self,
        engine: usize,
        bad: Option<bool>,
        looks: &[Look],
        changes: &mut Vec<Change>,
    ) {
        let may_go = self.has_others(engine, looks);
        let rules = &self.rules;
        let watched = &mut self.engines[engine];
        if watched.judged.health == Health::Evicted {
            // Streams that were there before end in their own time, and say nothing of the engine at rest.
            watched.windows_out += 1;
            if watched.windows_out >= rules.recovery_windows {
                watched.on_trial = true;
                changes.push(watched.becomes(engine, Health::Probation, Why::Trial));
            }
            return;
        }
        let Some(bad) = bad else {
            watched.silent = watched.silent.saturating_add(1);
            return;
        };
        if bad {
            watched.silent = 0;
        }
        let judged = &mut watched.judged;
        (judged.bad, judged.good) = if bad {
            (judged.bad.saturating_add(1), 0)
        } else {
            (0, judged.good.saturating_add(1))
        };
        let evicts = watched.on_trial && bad || judged.bad >= rules.evict_windows;
        let suspects = judged.bad >= rules.probation_windows;
        let recovers = judged.good >= rules.recovery_windows;
        let change = match judged.health {
            _ if evicts && may_go => watched.becomes(engine, Health::Evicted, Why::Slow),
            Health::Healthy if suspects || evicts => {
                watched.becomes(engine, Health::Probation, Why::Slow)
            }
            Health::Probation if recovers => {
                watched.becomes(engine, Health::Healthy, Why::Recovered)
            }
            _ => return,
        };
        changes.push(change);
    }

    /// A slow engine is better than none.
    fn readmit_needed(&mut self, looks: &[Look], changes: &mut Vec<Change>) {
        for engine in 0..self.engines.len() {
            if self.engines[engine].judged.health == Health::Evicted
                && !self.has_others(engine, looks)
            {
                let watched = &mut self.engines[engine];
                watched.on_trial = true;
                changes.push(watched.becomes(engine, Health::Probation, Why::Needed));
            }
        }
    }

    /// Whether another engine of its role takes work.
    fn has_others(&self, engine: usize, looks: &[Look]) -> bool {
        let role = self.engines[engine].role;
        let others = self.engines.iter().zip(looks).enumerate();
        others.into_iter().any(|(i, (other, look))| {
            i != engine
                && other.role == role
                && look.available
                && other.judged.health != Health::Evicted
        })
    }
}

impl Watched {
    fn new(role: Role) -> Watched {
        Watched {
            role,
            judged: Judged::default(),
            heard: Heard::default(),
            lessons: 0,
            lowest: f64::INFINITY,
            on_trial: false,
            windows_out: 0,
            silent: 0,
        }
    }

    /// Of the window that ends; `None` when it had too few samples.
    fn score(&mut self, heard: Heard, samples_min: u32) -> Option<f64> {
        let before = std::mem::replace(&mut self.heard, heard);
        let samples = heard.samples.saturating_sub(before.samples);
        self.judged.samples = samples;
        if samples == 0 || samples < u64::from(samples_min) {
            return None;
        }
        let score = (heard.sum - before.sum) / samples as f64;
        let score = Some(score).filter(|score| score.is_finite() && *score > 0.0);
        self.judged.score = score.or(self.judged.score);
        score
    }

    fn learn(&mut self, score: f64, (least, most): (f64, f64), band: f64) {
        let before = self.judged.baseline.unwrap_or(score);
        let weight = BASELINE_ALPHA.max(1.0 / (f64::from(self.lessons) + 1.0));
        let next = before + weight * (score - before);
        let next = next.min(self.lowest * band.sqrt()).max(least).min(most);
        self.lessons = self.lessons.saturating_add(1);
        self.lowest = if self.lessons <= LESSONS_ALIKE {
            next
        } else {
            self.lowest.min(next)
        };
        self.judged.baseline = Some(next);
    }

    fn becomes(&mut self, engine: usize, to: Health, why: Why) -> Change {
        let from = std::mem::replace(&mut self.judged.health, to);
        match to {
            Health::Healthy => self.on_trial = false,
            Health::Evicted => self.windows_out = 0,
            Health::Probation => self.silent = 0,
        }
        if why != Why::Slow {
            (self.judged.bad, self.judged.good) = (0, 0);
        }
        Change {
            engine,
            from,
            to,
            why,
        }
    }
}
