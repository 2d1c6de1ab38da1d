//! The live picture: everything that `/metrics` and `/narwhal/state` are made of, gathered once per scrape by the
//! control thread. Plain values; the two texts only render it.
//!
//! Invariant: `totals` and `times` are the sums over `shards`, and every shard's counts balance.

use std::sync::Arc;
use std::time::Duration;

use super::histogram::Times;
use super::ledger::Counts;
use super::standing::{EngineLine, Fleet, HealthView, Role, Standing};
use crate::base::words::words;

words! {
    /// Whether output lengths come from token ids of the engines.
    TokenAccounting {
        TokenIds = "token_ids",
        Unavailable = "unavailable",
    }
}

words! {
    /// `serving.admission`.
    AdmissionMode {
        Predictive = "predictive",
        Open = "open",
    }
}

words! {
    /// Whether an engine still is what its profile was measured on, by the profile's `generation_digest`.
    DigestMatch {
        Match = "match",
        Mismatch = "mismatch",
        /// The profile has no digest, or the engine could not be asked.
        Unknown = "unknown",
    }
}

words! {
    /// What became of reading the fleet file again.
    ReloadResult {
        Applied = "applied",
        /// The file is wrong, or of another fleet.
        Refused = "refused",
        /// The file is right, and it could not be done.
        Aborted = "aborted",
    }
}

/// How often the fleet file was read again, and what became of it.
#[derive(Clone, Debug, Default)]
pub struct Reloads {
    /// Of the fleet that runs: 1 at the start, one more with each that was applied.
    pub epoch: u64,
    /// Engines that have a place: those of the fleet, those that left and may still have work, and free places.
    pub places: u64,
    /// By result.
    pub counts: [u64; ReloadResult::COUNT],
    pub last: Option<Reload>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Reload {
    pub result: ReloadResult,
    /// Why nothing has changed.
    pub reason: Option<String>,
    pub at_unix_s: u64,
    pub took: Duration,
    /// Engines.
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<String>,
    /// Keys whose new values wait for a restart.
    pub restart: Vec<&'static str>,
}

/// One moment of the router.
#[derive(Clone, Debug)]
pub struct Picture<'a> {
    pub version: &'a str,
    pub router_id: &'a str,
    pub uptime: Duration,
    /// The served model first, then its aliases.
    pub models: Vec<&'a str>,
    pub token_accounting: TokenAccounting,
    pub mode: AdmissionMode,
    pub seats: Room,
    pub retained: Room,
    pub queue_limit: u64,
    pub standing: Standing,
    /// Why, when not serving.
    pub why: Option<Arc<String>>,
    pub epoch: Option<u64>,
    pub holder: Option<&'a str>,
    /// A request makes one leg (openai dialect).
    pub one_leg: bool,
    pub engines: Vec<EngineView<'a>>,
    pub reloads: Reloads,
    /// What is known of output lengths.
    pub lengths: Vec<Length>,
    pub shards: Vec<ShardView<'a>>,
    /// `None` when none is written.
    pub journal: Option<JournalView<'a>>,
    pub totals: Counts,
    pub times: Times,
}

/// What is held of something that all shards share, and how much there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    pub held: u64,
    pub limit: u64,
}

#[derive(Clone, Debug)]
pub struct EngineView<'a> {
    pub iid: &'a str,
    pub role: Role,
    pub pinned: bool,
    pub line: EngineLine,
    /// `None` without a profile.
    pub digest: Option<DigestMatch>,
    pub pace: Pace,
    pub breaker: Breaker,
}

/// What requests saw of an engine. Classes by name, in one order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Breaker {
    /// Why no work goes there, while none does.
    pub open_for: Option<&'static str>,
    pub failures: Vec<(&'static str, u64)>,
    /// Of these, in a row and up to now: phase, class, how many.
    pub in_a_row: Vec<(&'static str, &'static str, u32)>,
}

/// How fast an engine was found to be, and how it is judged for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Live ÷ profiled interval, as prices use it, and the samples since the start.
    pub correction: f64,
    pub samples: u64,
    /// The word for how it stands.
    pub health: &'static str,
    pub score: Option<f64>,
    pub baseline: Option<f64>,
    pub bad_windows: u32,
    pub good_windows: u32,
    /// Samples in the last window.
    pub window_samples: u64,
}

/// Output lengths of requests alike: from this prompt and this cap up to twice as much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    pub prompt_tokens_min: u64,
    /// `None` for requests without a cap.
    pub cap_min: Option<u64>,
    pub samples: u64,
    /// The part of the cap that was delivered, or the tokens where there is no cap; `None` before enough samples.
    pub median: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct ShardView<'a> {
    /// The CPU it is pinned to, and that CPU's NUMA node, where known.
    pub core: Option<u32>,
    pub node: Option<u32>,
    pub driver: &'a str,
    pub counts: Counts,
    pub times: Times,
}

/// How the journal is written; what shards dropped is in their counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalView<'a> {
    pub path: &'a str,
    /// Written, and waiting for that.
    pub rows: u64,
    pub waiting: u64,
    pub bytes: u64,
    /// Writes, moves and opens that failed.
    pub faults: u64,
    pub rotations: u64,
    /// Why nothing is written now.
    pub failing: Option<String>,
}

impl<'a> Picture<'a> {
    /// Fills `totals` and `times` from the shards.
    pub fn totalled(mut self) -> Picture<'a> {
        self.totals = Counts::sum(self.shards.iter().map(|s| &s.counts));
        self.times = Times::default();
        for shard in &self.shards {
            self.times.merge(&shard.times);
        }
        debug_assert!(self.totals.balanced());
        self
    }

    pub fn fleet(&self) -> Fleet {
        Fleet::look(
            self.engines.iter().map(|e| (e.role, e.pinned, e.line)),
            self.one_leg,
        )
    }

    pub fn health(&self) -> HealthView<'_> {
        HealthView {
            standing: self.standing,
            why: self.why.clone(),
            fleet: self.fleet(),
            epoch: self.epoch,
            holder: self.holder,
        }
    }
}

/// A small router with something in every corner, for the tests of both texts.
#[cfg(test)]
pub(crate) fn sample() -> Picture<'static> {
    use super::histogram::{Series, ShardTimes};
    use super::ledger::{Cell, ShardLedger};
    use super::outcome::End;

    let shard = |core: u32, rounds: u64| {
        let (ledger, times) = (ShardLedger::new(), ShardTimes::new());
        for _ in 0..rounds {
            for end in End::ALL {
                ledger.update(|t| {
                    t.offer();
                    t.end(end);
                });
            }
        }
        ledger.update(|t| {
            t.offer();
            for (i, cell) in Cell::ALL.iter().enumerate() {
                t.add(*cell, (i as u64 + 1) * rounds);
            }
        });
        for (i, series) in Series::ALL.iter().enumerate() {
            times.record(*series, Duration::from_millis(i as u64 + 1));
        }
        ShardView {
            core: Some(core),
            node: Some(0),
            driver: "epoll",
            counts: ledger.snapshot(),
            times: times.snapshot(),
        }
    };
    let engine = |iid, role, prefill, decode, live, ejected| EngineView {
        iid,
        role,
        pinned: true,
        line: EngineLine {
            prefill_requests: prefill,
            decode_requests: decode,
            outstanding_tokens: 100,
            live,
            ejected,
            evicted: ejected,
            held: false,
            on_probation: !ejected,
        },
        digest: (!ejected).then_some(DigestMatch::Mismatch),
        pace: Pace {
            correction: 1.25,
            samples: 40,
            health: "probation",
            score: Some(2.5),
            baseline: Some(1.0),
            bad_windows: 3,
            good_windows: 0,
            window_samples: 7,
        },
        breaker: Breaker {
            open_for: ejected.then_some("stream"),
            failures: vec![("timeout", 0), ("stream", 5)],
            in_a_row: vec![("decode", "timeout", 0), ("decode", "stream", 3)],
        },
    };
    let picture = Picture {
        version: "0.1.0",
        router_id: "r1",
        uptime: Duration::from_millis(1500),
        models: vec!["stub-model"],
        token_accounting: TokenAccounting::TokenIds,
        mode: AdmissionMode::Open,
        seats: Room {
            held: 3,
            limit: 768,
        },
        retained: Room {
            held: 5,
            limit: 772,
        },
        queue_limit: 4,
        standing: Standing::Serving,
        why: None,
        epoch: None,
        holder: None,
        one_leg: false,
        engines: vec![
            engine("e0", Role::Prefill, 2, 0, true, false),
            engine("e\"1\\\n", Role::Decode, 0, 3, true, true),
        ],
        reloads: Reloads {
            epoch: 3,
            places: 2,
            counts: [2, 1, 0],
            last: Some(Reload {
                result: ReloadResult::Applied,
                reason: None,
                at_unix_s: 1_700_000_000,
                took: Duration::from_millis(3),
                added: vec!["e1".to_owned()],
                removed: Vec::new(),
                changed: Vec::new(),
                restart: vec!["runtime.shards"],
            }),
        },
        lengths: vec![
            Length {
                prompt_tokens_min: 64,
                cap_min: Some(1024),
                samples: 5,
                median: Some(0.25),
            },
            Length {
                prompt_tokens_min: 64,
                cap_min: None,
                samples: 2,
                median: None,
            },
        ],
        shards: vec![shard(2, 1), shard(3, 2)],
        journal: Some(JournalView {
            path: "j.jsonl",
            rows: 11,
            waiting: 12,
            bytes: 13,
            faults: 14,
            rotations: 15,
            failing: Some("No space left on device (os error 28)".to_owned()),
        }),
        totals: Counts::default(),
        times: Times::default(),
    };
    picture.totalled()
}
