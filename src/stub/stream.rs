//! One streamed answer: which events are due, and their bytes. Owns its [`Resident`] place; driven by [`Stream::poll`].
//!
//! The bytes come from a [`Shape`] that a dialect prepared: an event is a few copies and its integers, no JSON is written
//! anew. The first token is due when the prompt is read; each later one an interval after the one before it, priced by
//! what is resident at that moment. A late poll finds all the events that fell due meanwhile: lateness does not add up.
//!
//! Invariant: `sent ≤ made ≤ plan.tokens`; one `Batch` event is one event of the stream, its blank line included.

mod shape;

pub use self::shape::{RunningUsage, Shape, Usage};
use crate::base::time::Instant;
use crate::stub::load::{Finish, Resident};
use crate::stub::profile::Profile;
use crate::stub::refusal::Refusal;
use crate::stub::rooms::{Seat, Standing};
use crate::stub::sglang;
use crate::stub::text;

/// What is to be generated.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub prompt_tokens: u64,
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

/// The state machine.
#[derive(Debug)]
pub struct Stream {
    shape: Shape,
    plan: Plan,
    profile: Profile,
    resident: Option<Resident>,
    stage: Stage,
    due: Instant,
    made: u64,
    sent: u64,
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
    pub(super) fn new(
        shape: Shape,
        plan: Plan,
        profile: Profile,
        resident: Resident,
        first_at: Instant,
    ) -> Self {
        debug_assert!(plan.tokens >= 1);
        debug_assert!(plan.interval >= 1);
        let stage = if shape.opening.is_empty() {
            Stage::Tokens
        } else {
            Stage::Opening
        };
        Stream {
            shape,
            plan,
            profile,
            resident: Some(resident),
            stage,
            due: first_at,
            made: 0,
            sent: 0,
            failed: None,
            seat: None,
            waiting: false,
        }
    }

    /// A stream that says `refusal` at once, and ends.
    pub(super) fn failed(shape: Shape, plan: Plan, now: Instant, refusal: Refusal) -> Self {
        Stream {
            shape,
            plan,
            profile: Profile::default(),
            resident: None,
            stage: Stage::Tokens,
            due: now,
            made: 0,
            sent: 0,
            failed: Some(refusal),
            seat: None,
            waiting: false,
        }
    }

    /// The first token comes when the leg of `seat` has met the other.
    pub(super) fn seated(mut self, seat: Seat) -> Self {
        self.seat = Some(seat);
        self.waiting = true;
        self
    }

    /// What may end a wait early.
    pub fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref().filter(|_| self.waiting)
    }

    /// Whether the response's head goes out with the first event, not before.
    pub fn holds_head(&self) -> bool {
        self.shape.holds_head
    }

    /// What this stream generates.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Appends the events due at `now`, at most `events_max` of them (at least one), and tells when to poll again: now, if more
    /// are due already.
    pub fn poll(&mut self, now: Instant, events_max: usize, out: &mut Batch) -> Next {
        self.fail_if_dead();
        if let Some(until) = self.wait(now) {
            return Next::At(until);
        }
        let full = out.ends.len() + events_max.max(1);
        loop {
            if self.stage == Stage::Done {
                return Next::Done;
            }
            if self.due > now {
                return Next::At(self.due);
            }
            if out.ends.len() >= full {
                return Next::At(now);
            }
            self.step(out);
        }
    }

    /// Until when the other leg keeps this one waiting.
    fn wait(&mut self, now: Instant) -> Option<Instant> {
        let seat = self.seat()?;
        match seat.poll(now) {
            Standing::Waits(until) => return Some(until),
            Standing::Ready(at) => self.due = at,
            Standing::Failed(fault) => {
                let refusal = sglang::unmet(seat, fault);
                self.failed.get_or_insert(refusal);
                self.resident = None;
                self.due = now;
            }
        }
        self.waiting = false;
        None
    }

    /// One event, or one token that makes none.
    fn step(&mut self, out: &mut Batch) {
        if let Some(refusal) = self.failed.take() {
            match self.shape.fault {
                Some(write) => write(&refusal, &mut out.bytes),
                None => refusal.event(&mut out.bytes),
            }
            out.cut();
            self.stage = match self.shape.fault_ends {
                true => Stage::Done,
                false => Stage::Mark,
            };
            return;
        }
        match self.stage {
            Stage::Opening => {
                out.bytes.extend_from_slice(&self.shape.opening);
                out.cut();
                self.stage = Stage::Tokens;
            }
            Stage::Tokens => self.token(out),
            Stage::Finish => {
                if !self.shape.finish.is_empty() {
                    out.bytes.extend_from_slice(&self.shape.finish);
                    out.cut();
                }
                self.stage = Stage::Usage;
            }
            Stage::Usage => {
                if let Some(usage) = &self.shape.usage {
                    put_usage(usage, &self.plan, self.plan.tokens, &mut out.bytes);
                    out.cut();
                }
                self.stage = Stage::Mark;
            }
            Stage::Mark => {
                out.bytes.extend_from_slice(self.shape.done.as_bytes());
                out.cut();
                self.stage = Stage::Done;
            }
            Stage::Done => {}
        }
    }

    fn token(&mut self, out: &mut Batch) {
        self.made += 1;
        let last = self.made == self.plan.tokens;
        let full = self.made == 1 || self.made - self.sent >= self.plan.interval;
        if let Some(resident) = &mut self.resident {
            resident.grow(1);
            if last {
                resident.load().finished(self.plan.finish);
            } else {
                let load = resident.load();
                self.due = self.due + self.profile.interval(load.kv_tokens(), load.running());
            }
        }
        let silent = self.shape.skip_silent
            && !self.plan.ids
            && (self.sent..self.made).all(|i| text::is_silent(self.plan.id(i)));
        let finishes = last && self.shape.finish.is_empty();
        if finishes || ((last || full) && !silent) {
            self.event(finishes, &mut out.bytes);
            out.cut();
            self.sent = self.made;
        }
        if last {
            // The engine is done with it, whatever the reader still has to take.
            self.resident = None;
            self.stage = Stage::Finish;
        }
    }

    /// Appends the event of the tokens `sent..made`.
    fn event(&mut self, last: bool, out: &mut Vec<u8>) {
        let shape = &self.shape;
        let (from, to) = (self.sent, self.made);
        out.extend_from_slice(&shape.head);
        let text_at = out.len();
        let open = match from < shape.reasoning {
            true => shape.reasoning_open,
            false => shape.text_open,
        };
        out.extend_from_slice(open.as_bytes());
        let bare = out.len();
        for i in from..to {
            text::piece_json(self.plan.id(i), out);
        }
        if out.len() == bare {
            out.truncate(text_at);
            out.extend_from_slice(shape.text_none.as_bytes());
        } else {
            out.extend_from_slice(shape.text_close.as_bytes());
        }
        let first = if from == 0 {
            self.shape.first.take()
        } else {
            None
        };
        let shape = &self.shape;
        if last {
            out.extend_from_slice(shape.last_open.as_bytes());
            out.extend_from_slice(self.plan.finish.word().as_bytes());
        }
        let rest = match (&first, last) {
            (None, false) => &shape.middle[..],
            (None, true) => shape.last_close.as_bytes(),
            (Some((middle, _)), false) => middle,
            (Some((_, close)), true) => close,
        };
        out.extend_from_slice(rest);
        if self.plan.ids {
            out.push(b'[');
            for i in from..to {
                if i > from {
                    out.push(b',');
                }
                put_integer(u64::from(self.plan.id(i)), out);
            }
            out.push(b']');
        } else if !shape.no_ids {
            out.extend_from_slice(b"null");
        }
        if from == 0 {
            out.extend_from_slice(&shape.first_tail);
        }
        out.extend_from_slice(shape.close.as_bytes());
        if let Some(usage) = &shape.running_usage {
            put_usage(usage, &self.plan, to, out);
        }
        if last {
            out.extend_from_slice(&shape.last_end);
        } else {
            out.extend_from_slice(shape.end.as_bytes());
        }
    }

    fn fail_if_dead(&mut self) {
        if self.resident.as_ref().is_some_and(|r| r.load().is_dead()) {
            self.resident = None;
            self.failed = Some(Refusal::core_died());
            self.waiting = false;
            self.due = Instant::ZERO;
        }
    }
}

/// Appends `n` in decimal.
pub fn put_integer(mut n: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn put_usage(usage: &Usage, plan: &Plan, completion: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&usage.head);
    put_integer(plan.prompt_tokens + completion, out);
    out.extend_from_slice(usage.between.as_bytes());
    put_integer(completion, out);
    out.extend_from_slice(&usage.tail);
}
