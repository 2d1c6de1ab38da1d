//! What is resident on one simulated engine. Owned by its requests together: each holds a [`Resident`], and letting go of it
//! (done, or the client left) takes the request off the engine.
//!
//! Invariant: `running` = live residents; `kv_tokens` = Σ of their tokens; both 0 at rest.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use crate::base::time::Instant;
use crate::stub::profile::Profile;

/// Why an answer ended, as counted and as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stop,
    Length,
}

impl Finish {
    /// As the API spells it, in quotes.
    pub const fn word(self) -> &'static str {
        match self {
            Finish::Stop => "\"stop\"",
            Finish::Length => "\"length\"",
        }
    }
}

/// The counts of one engine.
#[derive(Debug, Default)]
pub struct Load {
    running: Cell<u64>,
    kv_tokens: Cell<u64>,
    /// When the prompts now being read are all read (serial engines).
    prefill_free: Cell<Instant>,
    /// When each waiting request starts to be read, in order.
    starts: RefCell<VecDeque<Instant>>,
    pub(super) prompt_tokens: Cell<u64>,
    pub(super) generation_tokens: Cell<u64>,
    pub(super) stopped: Cell<u64>,
    pub(super) cut: Cell<u64>,
    /// Request ids in use, of dialects that allow each once at a time.
    rids: RefCell<BTreeSet<String>>,
    /// The engine core died: all that runs fails, nothing new starts.
    dead: Cell<bool>,
}

impl Load {
    pub fn running(&self) -> u64 {
        self.running.get()
    }

    pub fn kv_tokens(&self) -> u64 {
        self.kv_tokens.get()
    }

    /// Requests whose prompt nobody has begun to read. One that left while waiting counts until its turn.
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
        };
        count.set(count.get() + 1);
    }
}

/// One request's place on an engine; dropping it gives the place back.
#[derive(Debug)]
pub struct Resident {
    load: Rc<Load>,
    tokens: u64,
    rid: Option<String>,
}

impl Resident {
    pub(super) fn new(load: Rc<Load>, prompt_tokens: u64) -> Self {
        load.running.set(load.running.get() + 1);
        load.kv_tokens.set(load.kv_tokens.get() + prompt_tokens);
        load.prompt_tokens
            .set(load.prompt_tokens.get() + prompt_tokens);
        Resident {
            load,
            tokens: prompt_tokens,
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

    /// `tokens` more were generated.
    pub(super) fn grow(&mut self, tokens: u64) {
        self.tokens += tokens;
        let load = &*self.load;
        load.kv_tokens.set(load.kv_tokens.get() + tokens);
        load.generation_tokens
            .set(load.generation_tokens.get() + tokens);
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let load = &*self.load;
        if let Some(rid) = &self.rid {
            load.rids.borrow_mut().remove(rid);
        }
        debug_assert!(load.running.get() >= 1);
        debug_assert!(load.kv_tokens.get() >= self.tokens);
        load.running.set(load.running.get() - 1);
        load.kv_tokens.set(load.kv_tokens.get() - self.tokens);
    }
}
