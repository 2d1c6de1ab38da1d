//! A stream whose leg meets another before its first token. Reads rooms; owns nothing.
//!
//! Invariant: while it waits, no event is due.

use super::Stream;
use crate::base::time::Instant;
use crate::stub::rooms::{Seat, Standing};
use crate::stub::sglang;

impl Stream {
    /// The first token comes when the leg of `seat` has met the other.
    pub(in crate::stub) fn seated(mut self, seat: Seat) -> Self {
        self.seat = Some(seat);
        self.waiting = true;
        self
    }

    /// What may end a wait early.
    pub fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref().filter(|_| self.waiting)
    }

    /// Until when the other leg keeps this one waiting.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Instant> {
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
}
