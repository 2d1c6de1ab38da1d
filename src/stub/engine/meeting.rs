//! When an answer is ready, where that depends on another leg. Reads rooms; owns nothing.
//!
//! Invariant: a [`Whole`] without a seat is ready at `ready_at`, as it was made.

use super::{Whole, dialect};
use crate::base::time::Instant;
use crate::stub::rooms::{Seat, Standing};
use crate::stub::sglang;
use crate::stub::stream::Next;

impl Whole {
    /// Whether it is ready, or when to ask again: then, or when [`Whole::seat`] has changed.
    pub fn poll(&mut self, now: Instant) -> Next {
        if let Some(next) = self.stands(now) {
            return next;
        }
        if let Some((seat, rest)) = self.meets.as_deref() {
            match seat.poll(now) {
                Standing::Waits(until) => return Next::At(until),
                Standing::Ready(at) => self.ready_at = at + *rest,
                Standing::Failed(fault) => {
                    self.answer = dialect::refused(self.dialect, &sglang::unmet(seat, fault));
                    self.pending = None;
                    self.meets = None;
                    self.ready_at = now;
                }
            }
        }
        match self.ready_at > now {
            true => Next::At(self.ready_at),
            false => Next::Done,
        }
    }

    /// What may end a wait early.
    pub fn seat(&self) -> Option<&Seat> {
        self.meets.as_deref().map(|(seat, _)| seat)
    }
}
