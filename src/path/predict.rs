//! Predictive admission: would this request meet its targets if it were let in now?
//!
//! Asked when a request wants a seat, when one comes free for it, and every 100 ms while it waits. The time to first token is the price of
//! the cheapest prefill engine, the time that has passed, and what a handoff takes of late. Decode engines are checked for a slot, for room
//! in their KV cache and for the time between tokens; a request that would be alone on one is never refused by these.

use super::answer::Refusal;
use super::exchange::{Cx, Exchange};
use super::timers::Timer;
use crate::base::units::{Dialect, Role};
use crate::config::topology::Curves;
use crate::fleet::pick::{Candidate, Serves};
use crate::fleet::price::{self, Unfit};
use crate::metrics::outcome::{End, RefuseCause};
use std::time::Duration;

/// How often one that waits is priced again.
const EVERY: Duration = Duration::from_millis(100);

/// Why not, and when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdict {
    cause: RefuseCause,
    /// Seconds; `None` when coming back would not help.
    retry_after: Option<u32>,
}

impl Exchange {
    /// Whether it may be let in, after a wait or at once. If not, it is answered.
    pub fn is_promising(&mut self, cx: &mut Cx, waited: bool) -> bool {
        if !cx.shard.snapshot.is_predictive() {
            return true;
        }
        self.survey(cx);
        let Some(verdict) = self.predict(cx) else {
            return true;
        };
        self.turn_away(cx, verdict, waited);
        false
    }

    fn turn_away(&mut self, cx: &mut Cx, verdict: Verdict, waited: bool) {
        let cause = match verdict.cause {
            // Its own waiting pushed it over.
            RefuseCause::Ttft | RefuseCause::Prompt if waited => RefuseCause::Queue,
            cause => cause,
        };
        let mut refusal = Refusal::new(429, "server_overloaded_error", message(verdict));
        refusal.retry_after = verdict.retry_after;
        self.refuse(cx, refusal, End::Refused(cause));
    }

    /// It waits: it is priced again in a while.
    pub fn price_again_later(&self, cx: &mut Cx) {
        if cx.shard.snapshot.is_predictive() {
            cx.io.timers.set(Timer::Price, cx.now + EVERY);
        }
    }

    /// The while is over.
    pub fn price_again(&mut self, cx: &mut Cx) {
        // Only the time to first token grows with waiting; whether decode has room shows when a seat is there.
        if self.place_in_line.is_none() {
            return;
        }
        self.survey(cx);
        match self.ttft(cx) {
            Some(verdict) => self.turn_away(cx, verdict, true),
            None => self.price_again_later(cx),
        }
    }

    fn predict(&self, cx: &Cx) -> Option<Verdict> {
        self.ttft(cx).or_else(|| self.decode_room(cx))
    }

    fn ttft(&self, cx: &Cx) -> Option<Verdict> {
        let ask = self.asks(cx);
        // The seconds on the cheapest, and what they would be if nobody else were there. A penalty is a price, no time that passes: held
        // against the target it could keep all work from the one engine that has to show that it is well.
        let (mut price, mut cheapest, mut alone) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
        for (c, curves) in eligible(cx, Role::Prefill) {
            let seconds = price::prefill_s(curves, &c.load, &ask, c.cached_tokens, 0.0);
            if seconds + c.penalty_s < price {
                (price, cheapest) = (seconds + c.penalty_s, seconds);
            }
            alone = alone.min(price::prompt_s(curves, ask.prompt_tokens, c.cached_tokens));
        }
        if cheapest.is_infinite() {
            return None;
        }
        if cheapest <= ask.ttft_s {
            return None;
        }
        let budget = budget_s(cx);
        let handoff = cx.shard.shared.handoff_s(cx.now);
        if alone > budget {
            return Some(Verdict {
                cause: RefuseCause::Prompt,
                retry_after: None,
            });
        }
        // What it has waited already will not be there when it comes back.
        let over = (cheapest + handoff - budget).ceil().clamp(1.0, 86_400.0);
        Some(Verdict {
            cause: RefuseCause::Ttft,
            retry_after: Some(over as u32),
        })
    }

    /// Seconds that are left for reading the prompt, if its first token is to come in time.
    pub(super) fn ttft_left_s(&self, cx: &Cx) -> f64 {
        let waited = cx.now.since(self.arrived).as_secs_f64();
        budget_s(cx) - waited - cx.shard.shared.handoff_s(cx.now)
    }

    /// Something speaks against every decode engine: what speaks against the first.
    fn decode_room(&self, cx: &Cx) -> Option<Verdict> {
        let ask = self.asks(cx);
        let slot_wait_s = budget_s(cx);
        let mut first = None;
        for (c, curves) in eligible(cx, Role::Decode) {
            let unfit = price::unfit(curves, &c.load, &ask, c.correction, slot_wait_s)?;
            first.get_or_insert(unfit);
        }
        let cause = match first? {
            Unfit::Slot => RefuseCause::SlotWait,
            Unfit::Kv => RefuseCause::KvCapacity,
            Unfit::Tpot => RefuseCause::Tpot,
        };
        Some(Verdict {
            cause,
            retry_after: Some(1),
        })
    }
}

fn message(verdict: Verdict) -> &'static str {
    match verdict.cause {
        RefuseCause::SlotWait => "The wait for a place to decode would be over the target",
        RefuseCause::KvCapacity => "The engines' memory has no room for this request now",
        RefuseCause::Tpot => "The time between tokens would be over its target",
        RefuseCause::Prompt => {
            "The prompt alone is over the target for the time to first token: shorten it, or raise slo.ttft_s"
        }
        RefuseCause::Ttft | RefuseCause::Queue => {
            "The time to first token would be over its target"
        }
    }
}

/// Seconds that a first token may take.
fn budget_s(cx: &Cx) -> f64 {
    let fleet = &cx.shard.snapshot.fleet;
    fleet.slo.ttft.as_secs_f64() * (1.0 + fleet.serving.admission_margin)
}

/// Who may do the work of `role`, as the last look saw the fleet. Predictive fleets have a profile for every engine.
fn eligible<'a>(cx: &'a Cx, role: Role) -> impl Iterator<Item = (&'a Candidate, &'a Curves)> {
    let fleet = cx.shard.fleet();
    let serves = Serves::of(fleet, role);
    // Plain servers know no roles.
    let any = cx.shard.snapshot.fleet.engine.dialect == Dialect::Openai;
    let may = fleet
        .iter()
        .filter(move |c| c.available && (any || serves.at_all(c)));
    may.filter_map(|c| Some((c, c.curves.as_ref()?)))
}
