//! What is resident on one simulated engine. Owned by its requests together: each holds a [`Resident`], and letting go of it
//! (done, or the client left) takes the request off the engine.
//!
//! As in vLLM a request that finds no room waits in line, first come first served, and is never refused: room is a place among the
//! running and KV for its prompt and one token more. One whose next token finds no room gives up all it holds and goes back to
//! the head of the line, to read everything anew (preemption); the oldest never does, so somebody always goes on. A request
//! alone always runs.
//!
//! Invariant: `running` = residents on the engine; `kv_tokens` = Σ of their tokens; both 0 at rest, and the line empty.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use crate::base::time::Instant;
use crate::stub::profile::{Bounds, Profile};

/// Why an answer ended, as counted and as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stop,
    Length,
    /// The engine gave it up: it shuts down, or was told to. Not counted (vLLM 0.32.0 does not).
    Abort,
}

impl Finish {
    /// As the API spells it, in quotes.
    pub const fn word(self) -> &'static str {
        match self {
            Finish::Stop => "\"stop\"",
            Finish::Length => "\"length\"",
            Finish::Abort => "\"abort\"",
        }
    }
}

/// The counts of one engine.
#[derive(Debug, Default)]
pub struct Load {
    bounds: Bounds,
    running: Cell<u64>,
    kv_tokens: Cell<u64>,
    /// When the prompts now being read are all read (serial engines).
    prefill_free: Cell<Instant>,
    /// When each waiting request starts to be read, in order.
    starts: RefCell<VecDeque<Instant>>,
    /// Tickets of those that wait for room, in order.
    line: RefCell<VecDeque<u64>>,
    /// Tickets of those that run, kept only where KV is bounded.
    on: RefCell<BTreeSet<u64>>,
    next_ticket: Cell<u64>,
    pub(super) preempted: Cell<u64>,
    pub(super) prompt_tokens: Cell<u64>,
    pub(super) generation_tokens: Cell<u64>,
    pub(super) stopped: Cell<u64>,
    pub(super) cut: Cell<u64>,
    /// Request ids in use, of dialects that allow each once at a time.
    rids: RefCell<BTreeSet<String>>,
    /// The engine core died: all that runs fails, nothing new starts.
    dead: Cell<bool>,
    /// The process shuts down and gives up what runs.
    aborting: Cell<bool>,
}

/// How a request begins once it has its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Begin {
    /// So many tokens of its prompt are read.
    Read(u64),
    /// They are read, and their KV moves to an engine that cannot be seen.
    ReadAndMove(u64),
    /// Its KV comes from another engine.
    Fetch,
    /// The same, once an idle engine like this one has read so many tokens.
    FetchAfter(u64),
    /// Another leg decides.
    Meet,
}

/// How long after a look at the line the next one is worth it. An engine steps about as often.
pub(super) const LOOK: Duration = Duration::from_millis(1);

impl Load {
    pub(super) fn new(bounds: Bounds) -> Self {
        Load {
            bounds,
            ..Load::default()
        }
    }

    pub fn running(&self) -> u64 {
        self.running.get()
    }

    pub fn kv_tokens(&self) -> u64 {
        self.kv_tokens.get()
    }

    /// Requests that wait for room.
    pub fn in_line(&self) -> u64 {
        self.line.borrow().len() as u64
    }

    /// Requests on the engine whose prompt nobody has begun to read. One that left while waiting counts until its turn.
    pub fn waiting(&self, now: Instant) -> u64 {
        let mut starts = self.starts.borrow_mut();
        while starts.front().is_some_and(|at| *at <= now) {
            starts.pop_front();
        }
        self.running.get().min(starts.len() as u64)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.get()
    }

    pub(super) fn has_rid(&self, rid: &str) -> bool {
        self.rids.borrow().contains(rid)
    }

    pub(super) fn kill(&self) {
        self.dead.set(true);
    }

    pub fn is_aborting(&self) -> bool {
        self.aborting.get()
    }

    pub(super) fn abort(&self) {
        self.aborting.set(true);
    }

    /// When the first token of a prompt of `tokens` is there.
    pub(super) fn read_prompt(&self, now: Instant, profile: &Profile, tokens: u64) -> Instant {
        let cost = profile.ttft(tokens);
        if !profile.prefill_serial {
            return now + cost;
        }
        let start = self.prefill_free.get().max(now);
        if start > now {
            self.starts.borrow_mut().push_back(start);
        }
        self.prefill_free.set(start + cost);
        start + cost
    }

    pub(super) fn finished(&self, finish: Finish) {
        let count = match finish {
            Finish::Stop => &self.stopped,
            Finish::Length => &self.cut,
            Finish::Abort => return,
        };
        count.set(count.get() + 1);
    }
}

/// One request's place on an engine, or in line for one; dropping it gives the place back.
#[derive(Debug)]
pub struct Resident {
    load: Rc<Load>,
    /// What it holds on the engine, or will hold at first.
    tokens: u64,
    ticket: u64,
    on: bool,
    rid: Option<String>,
}

impl Resident {
    /// Takes the last place in line; [`Resident::first_at`] moves it up.
    pub(super) fn new(load: Rc<Load>, prompt_tokens: u64) -> Self {
        let ticket = load.next_ticket.get();
        load.next_ticket.set(ticket + 1);
        load.line.borrow_mut().push_back(ticket);
        load.prompt_tokens
            .set(load.prompt_tokens.get() + prompt_tokens);
        Resident {
            load,
            tokens: prompt_tokens,
            ticket,
            on: false,
            rid: None,
        }
    }

    /// Takes `rid`, which nobody has, for as long as this is resident.
    pub(super) fn hold_rid(&mut self, rid: String) {
        debug_assert!(self.rid.is_none());
        let fresh = self.load.rids.borrow_mut().insert(rid.clone());
        debug_assert!(fresh);
        self.rid = Some(rid);
    }

    pub(super) fn load(&self) -> &Load {
        &self.load
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// When the first token is there, for a request that gets its place now; `None` while it waits.
    pub(super) fn first_at(
        &mut self,
        now: Instant,
        profile: &Profile,
        begin: Begin,
    ) -> Option<Instant> {
        if !self.on && !self.enter() {
            return None;
        }
        let load = &*self.load;
        Some(match begin {
            Begin::Read(tokens) => load.read_prompt(now, profile, tokens),
            Begin::ReadAndMove(tokens) => {
                load.read_prompt(now, profile, tokens) + profile.transfer()
            }
            Begin::Fetch => {
                let interval = profile.interval(load.kv_tokens(), load.running());
                now + profile.transfer() + interval
            }
            Begin::FetchAfter(tokens) => now + profile.ttft(tokens) + profile.transfer(),
            Begin::Meet => now,
        })
    }

    fn enter(&mut self) -> bool {
        let load = &*self.load;
        let mut line = load.line.borrow_mut();
        let Bounds {
            requests_max,
            kv_tokens_max,
            ..
        } = load.bounds;
        let running = load.running.get();
        let place = requests_max == 0 || running < requests_max;
        let room = kv_tokens_max == 0 || load.kv_tokens.get() + self.tokens < kv_tokens_max;
        if line.front() != Some(&self.ticket) || !(running == 0 || place && room) {
            return false;
        }
        line.pop_front();
        load.running.set(running + 1);
        load.kv_tokens.set(load.kv_tokens.get() + self.tokens);
        if kv_tokens_max > 0 {
            load.on.borrow_mut().insert(self.ticket);
        }
        self.on = true;
        true
    }

    /// `tokens` more were generated.
    pub(super) fn grow(&mut self, tokens: u64) {
        self.tokens += tokens;
        let load = &*self.load;
        load.kv_tokens.set(load.kv_tokens.get() + tokens);
        load.generation_tokens
            .set(load.generation_tokens.get() + tokens);
    }

    /// Goes back to the head of the line when there is no room for another token.
    pub(super) fn preempt(&mut self) -> bool {
        let load = &*self.load;
        let full = load.bounds.kv_tokens_max > 0
            && load.kv_tokens.get() >= load.bounds.kv_tokens_max
            && load.on.borrow().first() != Some(&self.ticket);
        if full {
            self.leave();
            self.load.line.borrow_mut().push_front(self.ticket);
            self.load.preempted.set(self.load.preempted.get() + 1);
        }
        full
    }

    /// What it holds, or will hold.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    fn leave(&mut self) {
        let load = &*self.load;
        debug_assert!(load.running.get() >= 1);
        debug_assert!(load.kv_tokens.get() >= self.tokens);
        load.running.set(load.running.get() - 1);
        load.kv_tokens.set(load.kv_tokens.get() - self.tokens);
        load.on.borrow_mut().remove(&self.ticket);
        self.on = false;
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        if let Some(rid) = &self.rid {
            self.load.rids.borrow_mut().remove(rid);
        }
        if self.on {
            self.leave();
        } else {
            self.load.line.borrow_mut().retain(|t| *t != self.ticket);
        }
    }
}
