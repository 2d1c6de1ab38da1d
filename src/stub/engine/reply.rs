//! What an engine answers: a whole answer with the time it is ready, or a stream to poll. Owns the request's place on the engine.
//!
//! Invariant: a whole answer that runs holds its place until it is taken or dropped.

use std::time::Duration;

use super::dialect;
use crate::base::time::Instant;
use crate::base::units::Dialect;
use crate::stub::answer::Answer;
use crate::stub::faults::Injected;
use crate::stub::load::{Begin, Finish, LOOK, Resident};
use crate::stub::profile::Profile;
use crate::stub::refusal::Refusal;
use crate::stub::rooms::Seat;
use crate::stub::stream::{Next, Plan, Stream};

/// What comes back.
#[derive(Debug)]
pub enum Reply {
    Whole(Whole),
    /// 200 and its head go out at once, before the first event.
    Stream(Box<Stream>),
}

/// An answer in one piece.
#[derive(Debug)]
pub struct Whole {
    /// Known once it runs; until then when to look again.
    pub ready_at: Instant,
    pub(super) answer: Answer,
    pub(super) pending: Option<Box<Pending>>,
    aborted: bool,
    pub(super) dialect: Dialect,
    /// Where it meets the other leg, and how long it takes from there.
    pub(super) meets: Option<Box<(Seat, Duration)>>,
    injected: Box<Injected>,
}

/// What still runs behind a whole answer.
#[derive(Debug)]
pub(super) struct Pending {
    plan: Plan,
    profile: Profile,
    resident: Resident,
    begin: Begin,
    waits: bool,
}

impl Reply {
    /// The reply with what befalls it. The parts that lie in its content are done here, the rest is the driver's.
    pub(super) fn with(mut self, injected: Injected) -> Reply {
        match &mut self {
            Reply::Whole(whole) => {
                if let Some(bad) = injected.shape.handoff {
                    bad.spoil(&mut whole.answer.body);
                }
                *whole.injected = injected;
            }
            Reply::Stream(stream) => stream.inject(injected),
        }
        self
    }

    /// Takes what is left for the driver to do.
    pub fn take_injected(&mut self) -> Injected {
        match self {
            Reply::Whole(whole) => std::mem::take(&mut *whole.injected),
            Reply::Stream(stream) => stream.take_injected(),
        }
    }
}

impl Whole {
    pub(super) fn running(
        answer: Answer,
        dialect: Dialect,
        mut pending: Pending,
        first_at: Option<Instant>,
        seat: Option<Seat>,
    ) -> Self {
        pending.waits = first_at.is_none();
        let ready_at = pending.ready_at(Instant::ZERO, first_at);
        let rest = pending.ready_at(Instant::ZERO, None).since(Instant::ZERO);
        if first_at.is_some() {
            pending.resident.grow(pending.plan.tokens);
        }
        Whole {
            ready_at,
            answer,
            pending: Some(Box::new(pending)),
            aborted: false,
            dialect,
            meets: seat.map(|seat| Box::new((seat, rest))),
            injected: Box::default(),
        }
    }

    /// How its engine keeps it; `None` when that is no matter at `now`.
    pub(super) fn stands(&mut self, now: Instant) -> Option<Next> {
        if let Some(pending) = &mut self.pending {
            let load = pending.resident.load();
            if load.is_dead() {
                return Some(Next::Done);
            }
            if load.is_aborting() && (pending.waits || self.ready_at > now) {
                self.aborted = true;
                return Some(Next::Done);
            }
            if pending.waits {
                let first_at = pending
                    .resident
                    .first_at(now, &pending.profile, pending.begin);
                if first_at.is_none() {
                    return Some(Next::At(now + LOOK));
                }
                pending.waits = false;
                pending.resident.grow(pending.plan.tokens);
                self.ready_at = pending.ready_at(now, first_at);
            }
        }
        None
    }

    /// The answer, once it is ready; an engine that died meanwhile answers 500. One that the engine gave up says so; where a real
    /// one holds the tokens made so far, this one holds all.
    pub fn take(mut self) -> Answer {
        let Some(pending) = self.pending else {
            return self.answer;
        };
        let load = pending.resident.load();
        if load.is_dead() {
            return dialect::refused(self.dialect, &Refusal::core_died());
        }
        if self.aborted {
            let (old, new) = (pending.plan.finish.word(), Finish::Abort.word());
            let old = format!("\"finish_reason\":{old}");
            if let Some(at) = memchr::memmem::rfind(&self.answer.body, old.as_bytes()) {
                let new = format!("\"finish_reason\":{new}");
                self.answer
                    .body
                    .splice(at..at + old.len(), new.into_bytes());
            }
        } else {
            load.finished(pending.plan.finish);
        }
        self.answer
    }
}

impl Pending {
    pub(super) fn new(plan: Plan, profile: Profile, resident: Resident, begin: Begin) -> Self {
        Pending {
            plan,
            profile,
            resident,
            begin,
            waits: true,
        }
    }

    /// The first token and an interval for each other one, priced by what is resident at the start.
    pub(super) fn ready_at(&self, now: Instant, first_at: Option<Instant>) -> Instant {
        let load = self.resident.load();
        // Its own tokens are not yet counted when it starts.
        let interval = self.profile.interval(load.kv_tokens(), load.running());
        let rest = interval
            .as_nanos()
            .saturating_mul(u128::from(self.plan.tokens - 1));
        first_at.unwrap_or(now) + Duration::from_nanos(u64::try_from(rest).unwrap_or(u64::MAX))
    }
}

pub(super) fn at_once(now: Instant, answer: Answer) -> Reply {
    Reply::Whole(Whole {
        ready_at: now,
        answer,
        pending: None,
        aborted: false,
        dialect: Dialect::Vllm,
        meets: None,
        injected: Box::default(),
    })
}
