//! The two legs of an SGLang request. Owns the choice of what a leg waits for; the rooms are the world's.
//!
//! An engine's role is its disaggregation mode: `prefill` and `decode` refuse what names no room, `both` is a server of its own
//! that passes the bootstrap members over.
//!
//! Invariant: a request id is on an engine once at a time.

use super::{Engine, Job, Reply};
use crate::base::time::Instant;
use crate::base::units::{Dialect, Role};
use crate::stub::ask::{Ask, Route};
use crate::stub::handoff::Handoffs;
use crate::stub::load::{Begin, Resident};
use crate::stub::refusal::Refusal;
use crate::stub::rooms::{Party, Side};
use crate::stub::sglang;
use crate::stub::stream::Plan;

/// The host of SGLang's own warm-up requests: the leg has no partner and waits for none.
const FAKE_HOST: &str = "2.2.2.2";

/// Whether legs find their partners among `engines`: there are some of both roles.
pub(super) fn are_matched(engines: &[Engine]) -> bool {
    let has = |role| {
        let of = |e: &Engine| e.setup.dialect == Dialect::Sglang && e.setup.role == role;
        engines.iter().any(of)
    };
    has(Role::Prefill) && has(Role::Decode)
}

/// How many of a chat's first tokens are reasoning: a quarter, when the template is asked for it.
pub(super) fn reasoning(route: Route, ask: &Ask, plan: &Plan) -> u64 {
    match ask.thinking && route == Route::Chat {
        true => plan.tokens / 4,
        false => 0,
    }
}

impl Engine {
    /// The request's name: its own, or a fresh one. It is the id of the answer as well; no header is looked at.
    pub(super) fn rid(&mut self, ask: &Ask) -> String {
        let mut fresh = || format!("{:016x}{:016x}", self.prng.u64(), self.prng.u64());
        ask.rid.clone().unwrap_or_else(&mut fresh)
    }

    /// Starts a leg, or a request without legs, which is all right but for its names.
    pub(super) fn meet(
        &mut self,
        now: Instant,
        mut job: Job,
        ask: &Ask,
        handoffs: &mut Handoffs,
    ) -> Result<Reply, Refusal> {
        let rid = job.id.clone();
        if self.load.has_rid(&rid) {
            let message = format!("Duplicate request ID detected: {rid}");
            return Err(Refusal::bad(message, None));
        }
        let side = match self.setup.role {
            Role::Prefill => Some(Side::Prefill),
            Role::Decode => Some(Side::Decode),
            Role::Both => None,
        };
        let room = match (side, ask.bootstrap_room) {
            (Some(_), None) => return Err(sglang::no_room(&rid)),
            (side, room) => side.zip(room),
        };
        let (plan, profile) = (job.plan, self.setup.profile);
        let mut resident = Resident::new(self.load.clone(), plan.prompt_tokens);
        resident.hold_rid(rid.clone());
        let faked = ask.bootstrap_host.as_deref() == Some(FAKE_HOST);
        let Some((side, number)) = room.filter(|_| !faked) else {
            let begin = Begin::Read(self.unknown(&mut job));
            return Ok(self.begin(now, job, (resident, begin), None, None));
        };
        if !handoffs.rooms.matched {
            handoffs.rooms.counts.unmatched += 1;
            let begin = match side {
                Side::Prefill => Begin::ReadAndMove(self.unknown(&mut job)),
                // As if an idle engine like this one had begun with it.
                Side::Decode => Begin::FetchAfter(plan.prompt_tokens),
            };
            return Ok(self.begin(now, job, (resident, begin), None, None));
        }
        let party = Party {
            rid: rid.clone(),
            engine: self.name,
            load: self.load.clone(),
            profile,
            prompt_tokens: plan.prompt_tokens,
        };
        let wait = self.setup.room_wait;
        match handoffs.rooms.enter(now, number, side, party, wait) {
            Ok(seat) => Ok(self.begin(now, job, (resident, Begin::Meet), None, Some(seat))),
            Err(fault) => {
                let refusal = sglang::unmet_in(side, number, &rid, fault);
                Ok(self.fail(now, &job, refusal))
            }
        }
    }
}
