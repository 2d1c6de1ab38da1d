//! An answer that is out of our hands, but not with its client yet: the exchange is over, and what it was counts once its bytes are gone.
//!
//! What a connection may hold without a request ([`limits::BUFFER_KEEP_BYTES`]) counts as gone. More stays retained, has the request's
//! deadline, and is no served answer when its client leaves. Invariant: no request begins on the connection meanwhile.

use super::Stage;
use super::accept::Connection;
use super::timers::Timer;
use crate::base::limits;
use crate::metrics::journal::Row;
use crate::metrics::outcome::End;
use crate::shard::Shard;
use crate::shard::gate::Permit;

/// How a request ended, before it is counted.
#[derive(Debug)]
pub struct Account {
    pub end: End,
    pub unsized_offered: bool,
    pub slo_met: bool,
    pub row: Option<Box<Row>>,
}

impl Account {
    pub fn settle(self, shard: &mut Shard) {
        let Account { end, slo_met, .. } = self;
        shard.count_end(end, self.unsized_offered, slo_met);
        if let Some(mut row) = self.row {
            row.end = end;
            row.slo_met = (end == End::Served).then_some(slo_met);
            shard.end_row(row);
        }
    }

    /// The client has left without all of it.
    fn cut(&mut self) {
        if self.end == End::Served {
            self.end = End::Cancelled(Stage::Close);
            self.slo_met = false;
        }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct Tail {
    pub permit: Permit,
    pub account: Account,
}

impl Connection {
    /// The client still takes an answer, and gets no other one before.
    pub(super) fn is_behind(&self) -> bool {
        self.io.out.is_full() || self.io.tail.is_some()
    }

    /// Some of the answer has gone.
    pub(super) fn tail_went(&mut self, shard: &mut Shard) {
        if self.io.out.pending() <= limits::BUFFER_KEEP_BYTES {
            self.end_tail(shard, true);
        }
    }

    /// All of it has gone to the client, or what is left never will.
    pub(super) fn end_tail(&mut self, shard: &mut Shard, went: bool) {
        let Some(Tail {
            permit,
            mut account,
        }) = self.io.tail.take()
        else {
            return;
        };
        shard.let_go(permit);
        self.io.timers.clear(Timer::Deadline);
        if !went {
            account.cut();
        }
        account.settle(shard);
    }
}
