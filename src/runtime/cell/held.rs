//! Connections to each engine that this shard's legs hold, and the legs that wait for one because there are as many as there may be.
//!
//! Invariant: a leg that holds a connection is counted until the connection is parked or gone.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use crate::base::units::EngineId;

/// See the head of this file.
pub struct Held {
    engines: RefCell<Vec<Of>>,
    /// For one engine at once; 0 is unbounded.
    most: Cell<usize>,
}

/// One engine's.
#[derive(Default)]
struct Of {
    legs: usize,
    waiting: Vec<Waker>,
}

impl Held {
    pub fn new(engines: usize, most: usize) -> Held {
        Held {
            engines: RefCell::new((0..engines).map(|_| Of::default()).collect()),
            most: Cell::new(most),
        }
    }

    /// Another fleet: more engines, another bound. Whoever waits looks again.
    pub fn follow(&self, engines: usize, most: usize) {
        self.most.set(most);
        let mut all = self.engines.borrow_mut();
        if all.len() < engines {
            all.resize_with(engines, Of::default);
        }
        for waker in all.iter_mut().flat_map(|of| of.waiting.drain(..)) {
            waker.wake();
        }
    }

    /// Whether no leg has anything to do with `engine` here.
    pub fn is_done_with(&self, engine: EngineId) -> bool {
        let all = self.engines.borrow();
        let of = all.get(engine.index());
        of.is_none_or(|of| of.legs == 0 && of.waiting.is_empty())
    }

    /// Whether a leg may hold one more connection to `engine`; it does from then on.
    pub fn take(&self, engine: EngineId) -> bool {
        let room = self.has_room(engine);
        self.engines.borrow_mut()[engine.index()].legs += usize::from(room);
        room
    }

    pub fn has_room(&self, engine: EngineId) -> bool {
        let most = self.most.get();
        most == 0 || self.engines.borrow()[engine.index()].legs < most
    }

    /// A leg's connection is parked or gone.
    pub fn let_go(&self, engine: EngineId) {
        let of = &mut self.engines.borrow_mut()[engine.index()];
        debug_assert!(of.legs > 0, "a connection is let go once");
        of.legs -= 1;
        for waker in of.waiting.drain(..) {
            waker.wake();
        }
    }

    /// Wakes `waker` when a connection to `engine` is let go.
    pub fn wait_for(&self, engine: EngineId, waker: &Waker) {
        let waiting = &mut self.engines.borrow_mut()[engine.index()].waiting;
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }
}
