//! A prompt read and handed over, or a token generated, as a request would have it: over both legs where there are two, with partners that
//! are well. What a health page does not tell (vLLM 0.32.0 answers 200 there while it generates nothing), this does.
//!
//! An engine that fails beside one partner is asked beside another, if there is one: the first may be the one to blame.

use std::future::Future;
use std::sync::Arc;

use tokio::time::timeout;

use super::Shared;
use crate::ask::client::{Client, Trouble};
use crate::ask::legs::{Rig, Way};
use crate::ask::prompt::Prompts;
use crate::base::prng::Prng;
use crate::base::units::{Dialect, EngineId, Phase, Role};
use crate::config::topology::{EngineView, Snapshot};
use crate::fleet::breaker::Answer;
use crate::runtime::clock::MonotonicClock;
use crate::runtime::socket;
use crate::shard::ward::{serves, well};

/// A probe's prompt is short: it has to be read while the engine works.
const WORDS: u64 = 4;
/// Partners beside which it is asked.
const PARTNERS_MAX: usize = 2;

/// Asks; each answer comes within the bound of a first token. `also` are partners although no work may go to them. `seed` chooses partners,
/// words, and the rooms where SGLang's legs meet.
pub fn ask(
    shared: &Shared,
    engine: &EngineView,
    phase: Phase,
    also: &[EngineId],
    seed: u64,
) -> impl Future<Output = Answer> + use<> {
    let fleet = &shared.snapshot.fleet;
    let mut prng = Prng::new(seed);
    let ways = ways(shared, engine, phase, also, &mut prng);
    let bound = fleet.serving.prefill_timeout + fleet.engine.first_token_timeout;
    let (model, dialect) = (fleet.model.clone(), fleet.engine.dialect);
    let settings = fleet.engine.clone();
    let (snapshot, id) = (Arc::new(as_resolved(shared)), engine.id);
    let tls = shared.tls.clone();
    async move {
        let mut answer = Answer::Unasked;
        for way in ways {
            let rig = Arc::new(Rig {
                client: Client::new(&settings, tls.clone()),
                snapshot: snapshot.clone(),
                engine: id,
                way,
                clock: MonotonicClock::new(),
            });
            let room = prng.u64() >> 1;
            let mut prompts = Prompts::new(Prng::new(prng.u64()), &model, dialect, Vec::new());
            let prompt = prompts.of_words(WORDS);
            let asked = timeout(bound, rig.read(&prompt, room)).await;
            let read = asked.unwrap_or(Err(Trouble::Late(bound)));
            let hands_over = matches!(way, Way::Leg { .. });
            let heard = match read {
                Ok(read) if hands_over && !read.handed_over => Answer::Bad(phase),
                Err(Trouble::NoUsage) if hands_over => Answer::Bad(phase),
                Ok(_) => return Answer::Good,
                Err(trouble) => heard(&trouble, phase),
            };
            if heard == Answer::Good || heard == Answer::Unreachable {
                return heard;
            }
            answer = beside_another(answer, heard);
        }
        answer
    }
}

/// What follows when it was asked again. That the next partner is no better does not make good what went wrong beside one that is.
fn beside_another(before: Answer, heard: Answer) -> Answer {
    match before {
        Answer::Unasked => heard,
        _ => before,
    }
}

fn heard(trouble: &Trouble, phase: Phase) -> Answer {
    match trouble {
        // All went well; that it does not count prompts is no failure.
        Trouble::NoUsage => Answer::Good,
        Trouble::Connect(error) if socket::shortage(error).is_some() => Answer::Unasked,
        Trouble::Connect(_) | Trouble::Tls(_) => Answer::Unreachable,
        // It is at its limit, or its partner fails: this says nothing of what is suspected.
        Trouble::Status { status: 429, .. } | Trouble::Partner { .. } => Answer::Unasked,
        _ => Answer::Bad(phase),
    }
}

/// The snapshot with the addresses of today.
fn as_resolved(shared: &Shared) -> Snapshot {
    let mut snapshot = (*shared.snapshot).clone();
    for engine in &mut snapshot.engines {
        engine.addrs = (*shared.state.addresses.of(engine.id)).clone();
    }
    snapshot
}

/// How this engine is asked, beside some partners in turn where it takes one. Empty when it takes one and there is none.
fn ways(
    shared: &Shared,
    engine: &EngineView,
    phase: Phase,
    also: &[EngineId],
    prng: &mut Prng,
) -> Vec<Way> {
    let dialect = shared.snapshot.fleet.engine.dialect;
    // A lone `both` engine makes one leg of a request.
    let alone = dialect == Dialect::Openai || engine.role == Role::Both;
    if alone {
        return vec![Way::Alone];
    }
    let role = match phase {
        Phase::Prefill => Role::Decode,
        Phase::Decode => Role::Prefill,
    };
    let partners = partners(shared, engine.id, role, also, prng);
    let way = |partner| match (dialect, phase) {
        (Dialect::Sglang, _) => Way::Room { partner },
        (_, Phase::Prefill) => Way::Leg {
            fetched_by: Some(partner),
        },
        (_, Phase::Decode) => Way::Pair { producer: partner },
    };
    partners.into_iter().map(way).collect()
}

/// Some that are well, in chance's order; where none is, whoever lives.
fn partners(
    shared: &Shared,
    but: EngineId,
    role: Role,
    also: &[EngineId],
    prng: &mut Prng,
) -> Vec<EngineId> {
    let board = &shared.state.board;
    let all = || {
        let engines = shared.snapshot.present();
        engines.filter(|e| e.id != but && serves(&shared.snapshot, e, role))
    };
    let mut found: Vec<_> = all()
        .filter(|e| also.contains(&e.id))
        .map(|e| e.id)
        .collect();
    if found.is_empty() {
        found = well(&shared.snapshot, &shared.state, but)
            .filter(|e| serves(&shared.snapshot, e, role))
            .map(|e| e.id)
            .collect();
    }
    if found.is_empty() {
        found = all()
            .filter(|e| board.line(e.id).is_live())
            .map(|e| e.id)
            .collect();
    }
    for last in (1..found.len()).rev() {
        found.swap(last, prng.below(last as u64 + 1) as usize);
    }
    // One that is meant for the role before one that could serve it.
    found.sort_by_key(|id| shared.snapshot.engines[id.index()].role != role);
    found.truncate(PARTNERS_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves R-CTL-3
    #[test]
    fn a_partner_that_fails_does_not_make_a_bad_answer_good() {
        let bad = Answer::Bad(Phase::Decode);
        let rows = [
            (vec![Answer::Unasked, bad], bad),
            (vec![bad, Answer::Unasked], bad),
            (vec![Answer::Unasked, Answer::Unasked], Answer::Unasked),
        ];
        for (heard, says) in rows {
            let said = heard.iter().copied().fold(Answer::Unasked, beside_another);
            assert_eq!(said, says, "{heard:?}");
        }
    }
}
