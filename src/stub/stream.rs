//! One streamed answer: which events are due, and their bytes. Owns its [`Resident`] place; driven by [`Stream::poll`].
//!
//! The bytes come from a [`Shape`] that a dialect prepared: an event is a few copies and its integers, no JSON is written
//! anew. The first token is due when the prompt is read; each later one an interval after the one before it, priced by
//! what is resident at that moment. A late poll finds all the events that fell due meanwhile: lateness does not add up.
//!
//! Invariant: `sent ≤ made ≤ plan.tokens`; one `Batch` event is one event of the stream, its blank line included.

mod ends;

mod event;

mod meeting;

mod shape;

pub use self::event::put_integer;
use self::event::put_usage;
pub use self::shape::{RunningUsage, Shape, Usage};
use crate::base::time::Instant;
use crate::stub::faults;
use crate::stub::load::{Begin, Finish, LOOK, Resident};
use crate::stub::profile::Profile;
use crate::stub::refusal::Refusal;
use crate::stub::rooms::Seat;
use crate::stub::text;

/// What is to be generated.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub prompt_tokens: u64,
    /// Of these the ones that were in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens in all, the end-of-sequence token included.
    pub tokens: u64,
    /// Whether the last token is the end of sequence.
    pub finish: Finish,
    /// Tokens an event carries, but the first and the last.
    pub interval: u64,
    /// Whether ids are shown.
    pub ids: bool,
}

/// Events that were due, end to end.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub bytes: Vec<u8>,
    /// Where each event ends in `bytes`.
    pub ends: Vec<usize>,
}

/// When to poll again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    At(Instant),
    /// The stream is complete; nothing comes after.
    Done,
}

/// What one look at a stream gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// One event was appended.
    Event,
    /// Nothing is due before then.
    Wait(Instant),
    Done,
}

/// Tokens that come in one event with the next, as a busy vLLM sends them (with 64 streams 948 of 9,600, measured).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Merge {
    /// Share of tokens, 0 to 1.
    pub share: f64,
    /// From so many running requests on.
    pub running_min: u64,
}

/// The state machine.
#[derive(Debug)]
pub struct Stream {
    shape: Shape,
    plan: Plan,
    profile: Profile,
    resident: Option<Resident>,
    /// How it begins when its turn comes, while it waits for that.
    begin: Option<Begin>,
    stage: Stage,
    due: Instant,
    made: u64,
    sent: u64,
    /// Tokens whose text is out; behind `sent` only where a fault holds text back.
    texts: u64,
    events: u64,
    merge: Merge,
    bad_ids: Option<(u64, faults::BadIds)>,
    empty_every: Option<u64>,
    injected: faults::Injected,
    /// The KV never came: said at once, instead of tokens.
    failed: Option<Refusal>,
    /// Where the KV is to come from, or to go, for a leg that meets another; and whether that is still to be.
    seat: Option<Seat>,
    waiting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    Tokens,
    Finish,
    Usage,
    Mark,
    Done,
}

impl Batch {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The events one by one.
    pub fn events(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends
            .iter()
            .map(move |to| &self.bytes[std::mem::replace(&mut from, *to)..*to])
    }

    fn cut(&mut self) {
        self.ends.push(self.bytes.len());
    }
}

impl Plan {
    /// The token at `index`.
    pub fn id(&self, index: u64) -> u32 {
        if index + 1 == self.tokens && self.finish == Finish::Stop {
            text::EOS
        } else {
            text::id_at(self.seed, index)
        }
    }
}

impl Stream {
    /// `first_at`: when the first token is there; `None` while it waits for its place.
    pub(super) fn new(
        shape: Shape,
        plan: Plan,
        profile: Profile,
        (resident, begin): (Resident, Begin),
        first_at: Option<Instant>,
    ) -> Self {
        debug_assert!(plan.tokens >= 1);
        debug_assert!(plan.interval >= 1);
        debug_assert_eq!(resident.is_on(), first_at.is_some());
        Stream {
            profile,
            resident: Some(resident),
            begin: first_at.is_none().then_some(begin),
            due: first_at.unwrap_or(Instant::ZERO),
            ..Stream::bare(shape, plan)
        }
    }

    /// A stream that says `refusal` at once, and ends.
    pub(super) fn failed(shape: Shape, plan: Plan, now: Instant, refusal: Refusal) -> Self {
        Stream {
            stage: Stage::Tokens,
            due: now,
            failed: Some(refusal),
            ..Stream::bare(shape, plan)
        }
    }

    fn bare(shape: Shape, plan: Plan) -> Self {
        let stage = if shape.opening.is_empty() {
            Stage::Tokens
        } else {
            Stage::Opening
        };
        Stream {
            shape,
            plan,
            profile: Profile::default(),
            resident: None,
            begin: None,
            stage,
            due: Instant::ZERO,
            made: 0,
            sent: 0,
            texts: 0,
            events: 0,
            merge: Merge::default(),
            bad_ids: None,
            empty_every: None,
            injected: faults::Injected::default(),
            failed: None,
            seat: None,
            waiting: false,
        }
    }

    /// Whether the response's head goes out with the first event, not before.
    pub fn holds_head(&self) -> bool {
        self.shape.holds_head
    }

    /// What this stream generates.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn merge(&mut self, merge: Merge) {
        self.merge = merge;
    }

    /// Takes what befalls it. The faults that lie in the events themselves are this one's to commit.
    pub(super) fn inject(&mut self, injected: faults::Injected) {
        if let Some(tokens) = injected.shape.tokens_per_event {
            self.plan.interval = tokens;
        }
        self.bad_ids = injected.shape.token_ids;
        self.empty_every = injected.shape.empty_text_every;
        self.injected = injected;
    }

    /// The rest of it, for who drives the stream.
    pub(super) fn take_injected(&mut self) -> faults::Injected {
        std::mem::take(&mut self.injected)
    }

    /// Appends the events due at `now`, at most `events_max` of them (at least one), and tells when to poll again: now, if more
    /// are due already.
    pub fn poll(&mut self, now: Instant, events_max: usize, out: &mut Batch) -> Next {
        let full = out.ends.len() + events_max.max(1);
        loop {
            match self.rest(now) {
                Some(Made::Wait(at)) => return Next::At(at),
                Some(_) => return Next::Done,
                None if out.ends.len() >= full => return Next::At(now),
                None => {
                    if self.step(&mut out.bytes) {
                        out.cut();
                    }
                }
            }
        }
    }

    /// Appends the next event if it is due at `now`.
    pub fn next(&mut self, now: Instant, out: &mut Vec<u8>) -> Made {
        loop {
            if let Some(made) = self.rest(now) {
                return made;
            }
            if self.step(out) {
                return Made::Event;
            }
        }
    }

    /// Why nothing is to be done at `now`; `None` when something is.
    fn rest(&mut self, now: Instant) -> Option<Made> {
        if self.stage == Stage::Done {
            return Some(Made::Done);
        }
        if let Some(resident) = &mut self.resident {
            if resident.load().is_dead() {
                self.fail(Refusal::core_died());
            } else if resident.load().is_aborting() {
                self.abort();
            } else if let Some(begin) = self.begin {
                match resident.first_at(now, &self.profile, begin) {
                    Some(first_at) => (self.due, self.begin) = (first_at, None),
                    None => return Some(Made::Wait(now + LOOK)),
                }
            }
        }
        if let Some(until) = self.wait(now) {
            return Some(Made::Wait(until));
        }
        (self.due > now).then_some(Made::Wait(self.due))
    }

    /// When to look again, if nothing is due at `now`.
    pub fn idle_until(&mut self, now: Instant) -> Option<Instant> {
        match self.rest(now)? {
            Made::Wait(at) => Some(at),
            Made::Event | Made::Done => None,
        }
    }

    /// One event, or one token that makes none.
    fn step(&mut self, out: &mut Vec<u8>) -> bool {
        if let Some(refusal) = self.failed.take() {
            match self.shape.fault {
                Some(write) => write(&refusal, out),
                None => refusal.event(out),
            }
            self.stage = match self.shape.fault_ends {
                true => Stage::Done,
                false => Stage::Mark,
            };
            return true;
        }
        let made = match self.stage {
            Stage::Opening => {
                out.extend_from_slice(&self.shape.opening);
                self.stage = Stage::Tokens;
                true
            }
            Stage::Tokens => self.token(out),
            Stage::Finish => {
                self.finish(out);
                true
            }
            Stage::Usage => {
                self.stage = Stage::Mark;
                if let Some(usage) = &self.shape.usage {
                    put_usage(usage, &self.plan, self.plan.tokens, out);
                }
                self.shape.usage.is_some()
            }
            Stage::Mark => {
                out.extend_from_slice(self.shape.done.as_bytes());
                self.stage = Stage::Done;
                true
            }
            Stage::Done => false,
        };
        self.events += u64::from(made);
        made
    }

    fn token(&mut self, out: &mut Vec<u8>) -> bool {
        let last = self.made + 1 == self.plan.tokens;
        let mut merged = false;
        if let Some(resident) = &mut self.resident {
            if resident.preempt() {
                self.begin = Some(Begin::Read(resident.tokens()));
                return false;
            }
            resident.grow(1);
            if last {
                resident.load().finished(self.plan.finish);
            } else {
                let load = resident.load();
                self.due = self.due + self.profile.interval(load.kv_tokens(), load.running());
                merged = self.merge.share > 0.0
                    && load.running() >= self.merge.running_min
                    && share_of(self.plan.seed ^ self.made) < self.merge.share;
            }
        }
        self.made += 1;
        let full = self.made == 1 || self.made - self.sent >= self.plan.interval && !merged;
        let silent = self.shape.skip_silent
            && !self.plan.ids
            && (self.sent..self.made).all(|i| text::is_silent(self.plan.id(i)));
        let finishes = last && self.shape.finish.is_empty();
        let made = finishes || ((last || full) && !silent);
        if made {
            self.event(finishes, out);
            self.sent = self.made;
        }
        if last {
            // The engine is done with it, whatever the reader still has to take.
            self.resident = None;
            self.stage = match (self.shape.finish.is_empty(), &self.shape.usage) {
                (false, _) => Stage::Finish,
                (true, Some(_)) => Stage::Usage,
                (true, None) => Stage::Mark,
            };
        }
        made
    }
}

/// A number in [0, 1) that looks random, the same for the same `x`.
fn share_of(x: u64) -> f64 {
    let mixed = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}
