//! Parts of the live picture, made of what control reads: plain values out of atomics.

use super::Shared;
use crate::base::units::{Dialect, Phase};
use crate::config::checked::Fleet;
use crate::config::topology;
use crate::fleet::breaker::FaultClass;
use crate::metrics::picture::{Breaker, EngineView, Length, Pace, Room, TokenAccounting};
use crate::shard;
use crate::shard::board::Line;
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
        breaker: breaker(line),
    }
}

fn breaker(line: &Line) -> Breaker {
    let (totals, rows) = (line.failures(), line.rows());
    let of = |class: &FaultClass| (class.name(), totals[class.index()]);
    let row = |phase: &Phase| {
        let (name, row) = (phase.name(), rows[*phase as usize]);
        let all = FaultClass::ALL.iter();
        all.map(move |class| (name, class.name(), row[class.index()]))
    };
    Breaker {
        open_for: line.ejected_for().map(FaultClass::name),
        failures: FaultClass::ALL.iter().map(of).collect(),
        in_a_row: Phase::ALL.iter().flat_map(row).collect(),
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
