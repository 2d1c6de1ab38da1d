//! Parts of the live picture, made of what control reads: plain values out of atomics.

use super::Shared;
use crate::base::units::Dialect;
use crate::config::checked::Fleet;
use crate::config::topology;
use crate::metrics::picture::{EngineView, Length, Pace, Room, TokenAccounting};
use crate::shard;
use crate::shard::gate;

pub fn engine<'a>(engine: &'a topology::EngineView, shared: &Shared) -> EngineView<'a> {
    let state = &shared.state;
    let line = state.board.line(engine.id);
    let judged = state.learned.judged(engine.id);
    let profile = engine.profile.as_ref();
    EngineView {
        iid: &engine.iid,
        role: engine.role,
        pinned: engine.pin,
        line: line.into(),
        digest: profile.map(|_| shared.digests.of(engine.id)),
        pace: Pace {
            correction: line.correction(),
            samples: state.learned.heard(engine.id).samples,
            health: judged.health.name(),
            score: judged.score,
            baseline: judged.baseline,
            bad_windows: judged.bad,
            good_windows: judged.good,
            window_samples: judged.samples,
        },
    }
}

pub fn length(known: shard::learned::Length) -> Length {
    Length {
        prompt_tokens_min: known.prompt_tokens_min,
        cap_min: known.cap_min,
        samples: known.samples,
        median: known.median.map(f64::from),
    }
}

pub fn token_accounting(fleet: &Fleet) -> TokenAccounting {
    match fleet.engine.dialect {
        Dialect::Vllm | Dialect::Sglang => TokenAccounting::TokenIds,
        Dialect::Openai => TokenAccounting::Unavailable,
    }
}

pub fn room(gate: &gate::Gate) -> Room {
    Room {
        held: gate.held(),
        limit: gate.limit(),
    }
}
