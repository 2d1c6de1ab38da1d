//! Comments to a client that waits for its stream, so that nobody on the way takes the connection for dead (`client_keepalive_s`).
//!
//! From the moment the request is checked: once nothing was sent for that long, status and headers go out if they have not, and then a
//! comment each time. Retries go on behind them, since the client has seen no output; a failure that is final is told in the stream.
//! Comments stand between events, never inside one, and are not written to a client that does not read.

use super::accept::Connection;
use super::answer;
use super::exchange::{Cx, Exchange};
use super::timers::Timer;
use crate::base::time::Instant;
use crate::shard::Shard;

/// What vLLM 0.32.0 sends for the same purpose (`--sse-keep-alive-interval`).
const COMMENT: &[u8] = b": keep-alive\n\n";

impl Connection {
    /// The timer went off: a comment is due, or output went out since it was set.
    pub(super) fn keep_alive(&mut self, shard: &mut Shard, now: Instant) {
        let Some(exchange) = self.exchange.as_mut().filter(|x| !x.is_over()) else {
            return;
        };
        let Some(every) = exchange.plan.fleet.runtime.client_keepalive else {
            return;
        };
        let silent_since = self.last_sent.max(exchange.marks.body_done);
        let mut next = silent_since + every;
        if next <= now {
            if self.io.out.pending() == 0 {
                exchange.comment(&mut Cx {
                    shard,
                    io: &mut self.io,
                    now,
                });
            }
            next = now + every;
        }
        self.io.timers.set(Timer::KeepAlive, next);
    }
}

impl Exchange {
    /// The request is checked: from here on its client may wait.
    pub fn begin_keep_alive(&self, cx: &mut Cx) {
        if let (Some(every), true) = (self.plan.fleet.runtime.client_keepalive, self.streams()) {
            cx.io.timers.set(Timer::KeepAlive, cx.now + every);
        }
    }

    fn comment(&mut self, cx: &mut Cx) {
        if !self.relay.started() && !self.head_sent {
            self.head_sent = true;
            answer::write_stream_head(cx.io, &self.id, &cx.shard.date);
        }
        answer::stream_body(cx.io).extend_from_slice(COMMENT);
    }
}
