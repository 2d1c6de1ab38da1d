//! What a request leaves in the journal. Its row is there from its head on, where there is a journal; stages note what they alone know
//! (placements, faults), and the rest is read off at the end, before anything is given back.

use super::exchange::{Cx, Exchange};
use super::fault::Cause;
use super::leg::LegFault;
use crate::base::time::Instant;
use crate::base::units::{EngineId, Leg};
use crate::config::checked::Dialect;
use crate::fleet::pick::Placement;
use crate::metrics::journal::{self, Fault, Moments, Row, Text, What};
use crate::metrics::outcome::End;
use crate::metrics::picture::TokenAccounting;
use crate::wire::h1::head;
use crate::wire::openai::Route;

impl Exchange {
    /// The head has come.
    pub fn begin_row(&mut self, cx: &mut Cx, head: &[u8]) {
        let Some(mut row) = cx.shard.begin_row() else {
            return;
        };
        if let Some(theirs) = head::field(head, "x-request-id") {
            row.client_rid.set(theirs);
        }
        row.prefill_engine = Text::EMPTY;
        row.decode_engine = Text::EMPTY;
        self.row = Some(row);
    }

    /// It is placed, maybe anew.
    pub fn note_placement(&mut self, cx: &Cx) {
        let (Some(row), Some(placement)) = (&mut self.row, self.placement) else {
            return;
        };
        let (prefill, decode) = match placement {
            Placement::TwoLegs { prefill, decode } => (Some(prefill), decode),
            Placement::OneLeg { engine } => (None, engine),
        };
        let prefill = prefill.map_or(&b""[..], |id| iid(cx, id));
        row.prefill_engine.set(prefill);
        row.decode_engine.set(iid(cx, decode));
    }

    /// A leg has failed.
    pub fn note_fault(&mut self, cx: &Cx, leg: Leg, engine: EngineId, cause: Cause) {
        let Some(row) = &mut self.row else {
            return;
        };
        row.add_fault(Fault {
            engine: Text::of(iid(cx, engine)),
            leg,
            what: what(cause),
            status: match cause {
                Cause::Status(status) => Some(status),
                _ => None,
            },
        });
    }

    /// The whole row, but for whether the targets were met.
    pub fn take_row(&mut self, cx: &Cx, end: End) -> Option<Box<Row>> {
        let mut row = self.row.take()?;
        let answered = self.relay.started() || self.head_sent || end == End::Served;
        let status = if answered { 200 } else { self.marks.status };
        row.id = self.id;
        row.shard = cx.shard.id.0;
        row.route = match self.route {
            Route::Completions => journal::Route::Completions,
            Route::Chat => journal::Route::Chat,
        };
        row.model = match self.marks.model_checked {
            true => Text::of(cx.shard.snapshot.fleet.model.as_bytes()),
            false => Text::EMPTY,
        };
        row.stream = self.request.as_ref().map(|request| request.stream);
        row.end = end;
        row.stage = self.stage;
        row.status = Some(status).filter(|status| *status != 0);
        row.attempts = self.attempt;
        row.request_bytes = self.body.len() as u64;
        let sized = reached(self.marks.sized);
        row.prompt_tokens = sized.map(|_| self.prompt_tokens);
        row.estimated = self.estimated;
        row.cached_tokens = self.handoff.cached_tokens;
        row.cap = self.request.as_ref().and_then(|request| request.cap);
        row.accounting = match (cx.shard.snapshot.fleet.engine.dialect, self.route) {
            (Dialect::Vllm, _) | (Dialect::Sglang, Route::Completions) => TokenAccounting::TokenIds,
            (Dialect::Sglang, Route::Chat) | (Dialect::Openai, _) => TokenAccounting::Unavailable,
        };
        row.output = self.relay.tokens;
        row.first_output = self.relay.first_tokens;
        row.moments = self.moments(cx.now);
        Some(row)
    }

    fn moments(&self, now: Instant) -> Moments {
        let marks = &self.marks;
        let first_token = self.relay.first_token;
        Moments {
            arrived: self.arrived,
            received: reached(marks.body_done),
            checked: reached(marks.checked),
            sized: reached(marks.sized),
            seated: reached(marks.admitted),
            placed: reached(marks.placed),
            prefilling: reached(marks.prefilling),
            prefilled: reached(marks.prefilled),
            decoding: reached(marks.decoding),
            first_token,
            last_token: first_token.map(|_| self.relay.last_token),
            ended: now,
        }
    }
}

/// A mark that was set: nothing happens in the first nanosecond of a process.
fn reached(mark: Instant) -> Option<Instant> {
    (mark > Instant::ZERO).then_some(mark)
}

fn iid<'a>(cx: &'a Cx, engine: EngineId) -> &'a [u8] {
    let view = cx.shard.snapshot.engine(engine);
    view.map_or(b"?", |engine| engine.iid.as_bytes())
}

fn what(cause: Cause) -> What {
    match cause {
        Cause::Leg(LegFault::Connect) => What::Connect,
        Cause::Leg(LegFault::Broken) => What::Broken,
        Cause::Leg(LegFault::Shortage) => What::Shortage,
        Cause::StaleSocket => What::StaleSocket,
        Cause::BadHttp => What::BadHttp,
        Cause::Timeout => What::Timeout,
        Cause::PoolStarved => What::Pool,
        Cause::Status(_) => What::Status,
        Cause::BadIds => What::BadIds,
        Cause::Termination => What::Termination,
        Cause::Abort => What::Abort,
        Cause::BadCount => What::BadAnswer,
        Cause::Handoff => What::Handoff,
        Cause::HandoffExpired => What::HandoffExpired,
        Cause::Assembly => What::Assembly,
        Cause::ResponseLimit => What::ResponseLimit,
    }
}
