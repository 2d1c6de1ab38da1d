//! Faults that a simulated engine commits on purpose: a script of rules, each with what it matches and what it does. Pure: the
//! engine counts the requests and lends its chance; [`output`](super::output) carries a fault out, byte by byte.
//!
//! **Which requests.** `leg` and `engine` narrow a rule. Each engine counts the requests that pass those two, from 1; of them the
//! rule takes those that all of `nth`, `every`, `after`, `probability` and `count` let through. All rules that match apply.
//!
//! **Where** (`at`), for a rule that has a `do`:
//!
//! | `at` | the moment |
//! |---|---|
//! | `accept` | a connection was accepted; no request is read (such a rule has no `leg`) |
//! | `head` | the default: the request is read, nothing is answered |
//! | `in_head` | half of the head is sent |
//! | `event` | `events` events are sent (0: the head alone); of a whole answer, before its body |
//! | `in_event` | half of the event behind these is sent, inside its chunk; of a whole answer, half of the body |
//! | `done` | all but `[DONE]` is sent |
//! | `last` | `[DONE]` is sent, the last chunk is not |
//! | `end` | the answer is complete |
//!
//! **What** (`do`):
//!
//! | `do` | |
//! |---|---|
//! | `close`, `reset` | the connection ends, with FIN or RST |
//! | `hang` | nothing more comes, the connection stays |
//! | `pause` | nothing comes for `pause_ms`, then it goes on |
//! | `error` | it fails with `status` and `message`: at `head` as the answer, later as an event and `[DONE]` (whole: in a 200) |
//! | `error_ok` | (`head`) 200 with the error as plain JSON, for a stream too |
//! | `eof` | the body ends as it should, without what was still to come |
//! | `done` | `[DONE]` and the end come at once |
//! | `abort` | the next token is the last, with `finish_reason: "abort"` |
//! | `insert` | `what`, `text` or `hex` goes out as a chunk of its own, `repeat` times, then it goes on |
//! | `raw` | the same without a chunk around it |
//! | `drain` | the engine takes nothing new (500 `cannot schedule new futures after shutdown`), `/health` stays 200 |
//! | `die` | the engine core dies; the port closes 250 ms later, for good |
//! | `restart` | the engine dies, and after `pause_ms` is back as a new one on the same port |
//! | `refuse` | the port is closed for `pause_ms` |
//!
//! **Shape**, with or without a `do`: `token_ids` (bad from event `events` on), `tokens_per_event`, `empty_text_every`, `framing`,
//! `write_bytes`, `keep_alive_ms`, `interim`, `handoff`.
//!
//! Invariant: a rule does something; each key of a rule has a use in it.

mod load;

mod spoil;

use std::time::Duration;

use crate::base::prng::Prng;
use crate::base::words::words;
use crate::stub::answer::{Answer, Framing, JSON};
use crate::stub::refusal::Refusal;

pub use self::load::parse;
pub use self::spoil::{BadHandoff, BadIds, What};

words! {
    /// What a request is for.
    Leg {
        Prefill = "prefill",
        Decode = "decode",
        Tokenize = "tokenize",
        Health = "health",
        Models = "models",
        Metrics = "metrics",
        Version = "version",
        Other = "other",
    }
}

words! {
    At {
        Accept = "accept",
        Head = "head",
        InHead = "in_head",
        Event = "event",
        InEvent = "in_event",
        Done = "done",
        Last = "last",
        End = "end",
    }
}

words! {
    Do {
        Close = "close",
        Reset = "reset",
        Hang = "hang",
        Pause = "pause",
        Error = "error",
        ErrorOk = "error_ok",
        Eof = "eof",
        Done = "done",
        Abort = "abort",
        Insert = "insert",
        Raw = "raw",
        Drain = "drain",
        Die = "die",
        Restart = "restart",
        Refuse = "refuse",
    }
}

/// All rules of one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script(pub Vec<Rule>);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    pub leg: Option<Leg>,
    pub engine: Option<u64>,
    pub nth: Option<u64>,
    pub every: Option<u64>,
    pub after: u64,
    pub count: Option<u64>,
    pub probability: Option<f64>,
    pub step: Option<Step>,
    pub shape: Shape,
}

/// One thing to do at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub at: At,
    pub events: u64,
    pub act: Do,
    pub pause: Duration,
    pub status: u16,
    pub message: Option<String>,
    pub bytes: Vec<u8>,
    pub repeat: u64,
}

/// How the answer as a whole is formed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// From which event on, and how.
    pub token_ids: Option<(u64, BadIds)>,
    pub tokens_per_event: Option<u64>,
    pub empty_text_every: Option<u64>,
    pub framing: Option<Framing>,
    pub write_bytes: Option<u64>,
    pub keep_alive: Option<Duration>,
    pub interim: Vec<u16>,
    pub handoff: Option<BadHandoff>,
}

/// What befalls one request (or one connection).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Injected {
    pub steps: Vec<Step>,
    pub shape: Shape,
}

/// What the engine does as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Drain,
    Die,
    Restart(Duration),
    Refuse(Duration),
}

/// A script and how often each rule was looked at and applied.
#[derive(Clone, Debug)]
pub struct Judge {
    rules: Vec<(Rule, u64, u64)>,
    prng: Prng,
}

impl Script {
    /// The rules for the engine at `index`.
    pub fn of_engine(&self, index: usize) -> Script {
        let here = |rule: &&Rule| rule.engine.is_none_or(|engine| engine == index as u64);
        Script(self.0.iter().filter(here).cloned().collect())
    }
}

impl Judge {
    pub fn new(script: &Script, seed: u64) -> Self {
        Judge {
            rules: script.0.iter().map(|rule| (rule.clone(), 0, 0)).collect(),
            prng: Prng::new(seed ^ 0x6661_756c_7473),
        }
    }

    /// What befalls a new connection.
    pub fn accepted(&mut self) -> Injected {
        self.pick(|rule| rule.is_accept())
    }

    /// What befalls a new request.
    pub fn request(&mut self, leg: Leg) -> Injected {
        self.pick(|rule| !rule.is_accept() && rule.leg.is_none_or(|of| of == leg))
    }

    fn pick(&mut self, meant: impl Fn(&Rule) -> bool) -> Injected {
        let mut injected = Injected::default();
        for (rule, seen, applied) in &mut self.rules {
            if !meant(rule) {
                continue;
            }
            *seen += 1;
            let n = *seen;
            let takes = n > rule.after
                && rule.nth.is_none_or(|nth| n == nth)
                && rule.every.is_none_or(|every| (n - rule.after).is_multiple_of(every))
                && rule.count.is_none_or(|count| *applied < count)
                // Drawn last, so that a rule draws only for requests that it may take.
                && rule.probability.is_none_or(|p| self.prng.unit() < p);
            if takes {
                *applied += 1;
                injected.steps.extend(rule.step.clone());
                injected.shape.take(&rule.shape);
            }
        }
        injected
    }
}

impl Rule {
    fn is_accept(&self) -> bool {
        self.step.as_ref().is_some_and(|step| step.at == At::Accept)
    }
}

impl Injected {
    /// The answer that stands in for the engine's own; `refused` words a refusal.
    pub fn instead(&self, refused: impl Fn(&Refusal) -> Answer) -> Option<Answer> {
        let at_head = |step: &&Step| step.at == At::Head;
        self.steps
            .iter()
            .filter(at_head)
            .find_map(|step| match step.act {
                Do::Error => Some(refused(&step.refusal())),
                Do::ErrorOk => Some(Answer::new(200, JSON, refused(&step.refusal()).body)),
                _ => None,
            })
    }

    /// What the engine does before it looks at the request.
    pub fn turns(&self) -> impl Iterator<Item = Turn> {
        let at_head = |step: &&Step| step.at == At::Head;
        self.steps.iter().filter(at_head).filter_map(Step::turn)
    }
}

impl Step {
    pub fn refusal(&self) -> Refusal {
        Refusal::of_status(self.status, self.message.as_deref())
    }

    pub fn turn(&self) -> Option<Turn> {
        match self.act {
            Do::Drain => Some(Turn::Drain),
            Do::Die => Some(Turn::Die),
            Do::Restart => Some(Turn::Restart(self.pause)),
            Do::Refuse => Some(Turn::Refuse(self.pause)),
            _ => None,
        }
    }
}

impl Shape {
    /// What `other` says counts, where it says something.
    fn take(&mut self, other: &Shape) {
        fn later<T: Clone>(mine: &mut Option<T>, other: &Option<T>) {
            if other.is_some() {
                mine.clone_from(other);
            }
        }
        later(&mut self.token_ids, &other.token_ids);
        later(&mut self.tokens_per_event, &other.tokens_per_event);
        later(&mut self.empty_text_every, &other.empty_text_every);
        later(&mut self.framing, &other.framing);
        later(&mut self.write_bytes, &other.write_bytes);
        later(&mut self.keep_alive, &other.keep_alive);
        later(&mut self.handoff, &other.handoff);
        self.interim.extend_from_slice(&other.interim);
    }
}

#[doc(hidden)]
pub mod fuzzing {
    //! Any text, as a fault script and as a profile file: rules or faults, no panic, one line a fault.

    use super::{Judge, Leg, parse};
    use crate::config::{Errors, Format};
    use crate::stub::profile;

    pub fn fuzz(data: &[u8]) {
        let text = String::from_utf8_lossy(data);
        let lines = |errors: &Errors| {
            assert!(!errors.0.is_empty());
            assert_eq!(errors.to_string().lines().count(), errors.0.len());
        };
        for format in [Format::Json, Format::Toml] {
            match parse("f", &text, format) {
                Ok(script) => {
                    let mut judge = Judge::new(&script, 0);
                    for leg in Leg::ALL {
                        let injected = judge.request(*leg);
                        assert!(injected.steps.len() <= script.0.len());
                    }
                }
                Err(errors) => lines(&errors),
            }
            if let Err(errors) = profile::parse("f", &text, format) {
                lines(&errors);
            }
        }
    }
}

#[cfg(test)]
mod tests;
