//! Why this router does not serve. Several may say so at once, each takes back what it said itself, and one standing follows.
//!
//! Invariant: what stands on the gate is what follows from the causes, but for the drain at the end, which is the gate's own.

#![expect(
    clippy::disallowed_types,
    reason = "no shard sees it: those who ask are tasks of the control thread"
)]

use std::sync::Mutex;

use crate::metrics::standing::Standing;
use crate::shard::Shared;

/// Those who may hold the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The monitoring itself fails.
    Monitoring,
    /// Operators have withdrawn the whole fleet.
    Wave,
}

/// What they say; the strongest first.
#[derive(Debug, Default)]
pub struct Causes(Mutex<[Option<String>; 2]>);

impl Causes {
    /// `why` as `/ready` is to say it; `None` takes it back.
    pub fn set(&self, cause: Cause, why: Option<String>, state: &Shared) {
        let mut held = self.0.lock().unwrap_or_else(|e| e.into_inner());
        held[cause as usize] = why;
        let standings = [Standing::Degraded, Standing::Maintenance];
        let strongest = held.iter().zip(standings).find(|(why, _)| why.is_some());
        match strongest {
            Some((why, standing)) => state.stand(standing, why.clone()),
            None => state.stand(Standing::Serving, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Format, Snapshot, parse};

    // proves R-CTL-1, R-CTL-2
    #[test]
    fn the_strongest_cause_counts() {
        let text = r#"{"schema": "narwhal.fleet", "schema_version": 2, "model": "m", "slo": {"ttft_s": 1, "tpot_s": 1},
            "engines": [{"iid": "e", "url": "http://127.0.0.1:1", "role": "both"}]}"#;
        let loaded = parse("f", text, Format::Json, &|_| None).expect("a fleet");
        let state = Shared::new(&Snapshot::new(1, loaded.fleet), 1);
        let causes = Causes::default();
        let said = |state: &Shared| {
            let why = state.why().map(|why| why.to_string());
            (state.standing.standing(), why)
        };
        let why = |text: &str| Some(text.to_owned());
        causes.set(Cause::Wave, why("wave"), &state);
        assert_eq!(said(&state), (Standing::Maintenance, why("wave")));
        causes.set(Cause::Monitoring, why("disk"), &state);
        assert_eq!(said(&state), (Standing::Degraded, why("disk")));
        causes.set(Cause::Monitoring, why("net"), &state);
        assert_eq!(said(&state), (Standing::Degraded, why("net")));
        causes.set(Cause::Monitoring, None, &state);
        assert_eq!(said(&state), (Standing::Maintenance, why("wave")));
        causes.set(Cause::Wave, None, &state);
        assert_eq!(said(&state), (Standing::Serving, None));
        state.stand(Standing::Draining, None);
        causes.set(Cause::Wave, why("wave"), &state);
        assert_eq!(
            said(&state),
            (Standing::Draining, None),
            "nothing comes after it"
        );
    }
}
