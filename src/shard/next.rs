//! The next fleet of a shard: made ready beside the one that runs, then put in its place at once.
//!
//! What is counted and learned is found by engine id and stays; what was of an engine that left is cleared for whoever gets its place.

use std::sync::Arc;

use super::counters::Counter;
use super::{Plan, Shard};
use crate::config::topology::{EngineView, Snapshot};
use crate::fleet::pick::Candidate;
use crate::fleet::price;

/// All that a shard needs for another snapshot.
pub struct Next {
    snapshot: Plan,
    fleet: Vec<Candidate>,
    counters: Vec<Counter>,
    held: Vec<u16>,
}

impl Next {
    pub fn new(snapshot: &Snapshot) -> Next {
        let engines = snapshot.engines.len();
        Next {
            fleet: candidates(snapshot),
            counters: vec![Counter::default(); engines],
            held: vec![0; engines],
            snapshot: own(snapshot),
        }
    }

    pub fn epoch(&self) -> u64 {
        self.snapshot.epoch
    }
}

pub(super) fn own(snapshot: &Snapshot) -> Plan {
    Arc::new(snapshot.clone())
}

impl Shard {
    /// From now on. Exchanges go on with what they began with, on the engines that they are placed on.
    pub fn commit(&mut self, mut next: Next) {
        let engines = next.snapshot.engines.iter().zip(&self.snapshot.engines);
        let known = next.counters.iter_mut().zip(&self.counters);
        for ((new, old), (counter, before)) in engines.zip(known) {
            if new.since == old.since {
                *counter = *before;
            }
        }
        self.counters = next.counters;
        self.memory.follow(next.held);
        self.fleet = next.fleet;
        self.is_priced = next.snapshot.is_profiled();
        self.kv_tokens_max = kv_tokens_max(&next.snapshot);
        self.snapshot = next.snapshot;
    }
}

/// Without end where an engine has no profile.
pub(super) fn kv_tokens_max(snapshot: &Snapshot) -> u64 {
    let most = |engine: &EngineView| match &engine.profile {
        Some(profile) => profile.curves.kv_capacity_tokens,
        None => u64::MAX,
    };
    snapshot.present().map(most).max().unwrap_or(u64::MAX)
}

/// The fleet before anything is known of it.
pub(super) fn candidates(snapshot: &Snapshot) -> Vec<Candidate> {
    let mut by_iid: Vec<&EngineView> = snapshot.present().collect();
    by_iid.sort_by(|a, b| a.iid.cmp(&b.iid));
    let mut orders = vec![0; snapshot.engines.len()];
    // A fleet has at most 4096 engines.
    (0u16..)
        .zip(by_iid)
        .for_each(|(n, engine)| orders[engine.id.index()] = n);
    let candidate = |engine: &EngineView| Candidate {
        id: engine.id,
        order: orders[engine.id.index()],
        role: engine.role,
        pin: engine.pin,
        curves: engine.profile.as_ref().map(|profile| profile.curves),
        available: engine.is_here(),
        outstanding_tokens: 0,
        load: price::Load::default(),
        correction: 1.0,
        penalty_s: 0.0,
        cached_tokens: 0,
        remembered_tokens: 0,
    };
    snapshot.engines.iter().map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Instant;
    use crate::base::units::{EngineId, ShardId};
    use crate::config::reload::{Change, follow};
    use crate::config::{Format, parse};
    use crate::fleet::breaker::FaultClass;
    use crate::metrics::histogram::ShardTimes;
    use crate::metrics::ledger::ShardLedger;
    use crate::shard::Shared;
    use crate::shard::board::{Charge, Phase};
    use crate::shard::gate::Asked;
    use crate::shard::waits::Awaited;

    fn fleet(iids: &str, serving: &str) -> crate::config::Fleet {
        let engine = |iid: &str| {
            format!("[[engines]]\niid = \"{iid}\"\nurl = \"http://10.0.0.1:80/{iid}\"\n")
        };
        let engines: String = iids.split(' ').map(engine).collect();
        let text = format!(
            "schema = \"narwhal.fleet\"\nschema_version = 2\nmodel = \"m\"\n{engines}[slo]\nttft_s = 1\ntpot_s = 1\n\
             [serving]\nadmission = \"open\"\n{serving}"
        );
        let loaded = parse("f.toml", &text, Format::Toml, &|_| None);
        loaded.unwrap_or_else(|why| panic!("{why}")).fleet
    }

    struct Router {
        shared: Arc<Shared>,
        shard: Shard,
    }

    impl Router {
        fn new(iids: &str, serving: &str) -> Router {
            let snapshot = Arc::new(Snapshot::new(1, fleet(iids, serving)));
            let shared = Arc::new(Shared::new(&snapshot, 1));
            let (ledger, times) = (Arc::new(ShardLedger::new()), Arc::new(ShardTimes::new()));
            let shard = Shard::new(ShardId(0), snapshot, shared.clone(), ledger, times, 1);
            Router { shared, shard }
        }

        /// As a reload does it.
        fn follow(&mut self, iids: &str, serving: &str) -> Change {
            let is_free = |engine: EngineId| self.shared.is_at_rest(engine);
            let change = follow(
                &self.shard.snapshot,
                fleet(iids, serving),
                Vec::new(),
                is_free,
            );
            let change = change.expect("a change");
            self.shared.grow(change.snapshot.engines.len());
            let next = Next::new(&change.snapshot);
            let (snapshot, added) = (&change.snapshot, &change.added);
            self.shared.follow(snapshot, added, &mut Vec::new());
            for engine in change.come() {
                self.shared.board.line(engine).set_away(false);
            }
            // A shard that has not committed yet places nothing where it knows nobody.
            let before = self.available();
            for (i, view) in self.shard.snapshot.engines.iter().enumerate() {
                assert!(view.is_here() || &before[i..=i] == ".", "{before}");
            }
            self.shard.commit(next);
            for engine in &change.removed {
                self.shared.board.line(*engine).set_away(true);
            }
            change
        }

        fn available(&mut self) -> String {
            self.shard.look(Instant::ZERO);
            let fleet = self.shard.fleet().iter();
            fleet.map(|c| if c.available { '+' } else { '.' }).collect()
        }
    }

    // proves R-CFG-7
    #[test]
    fn a_place_is_anothers_once_nothing_is_left_there() {
        let mut router = Router::new("a b", "");
        let (a, b) = (EngineId(0), EngineId(1));
        let shared = router.shared.clone();
        let board = &shared.board;
        let charge = Charge {
            tokens: 7,
            ..Charge::default()
        };
        let load = board.reserve(a, Phase::Decode, charge, Instant::ZERO);
        board.line(a).set_correction(2.0);
        board.line(a).eject(FaultClass::Stream);
        board.line(b).set_held(true);
        board
            .line(a)
            .count_failure(Phase::Decode, FaultClass::Stream);
        shared.pair_met(a, b);
        shared.pair_met(b, a);
        router.shard.counter_failed(Instant::ZERO, a);
        // Its work goes on, so whoever comes gets a place of its own.
        router.follow("b c", "");
        assert_eq!(router.available(), "..+", "b is held, as before");
        assert_eq!(shared.board.line(a).outstanding_tokens(), 7);
        board.release(load);
        let change = router.follow("b c d", "");
        assert_eq!(change.added, [a]);
        assert_eq!(router.available(), "+.+");
        let line = board.line(a);
        assert_eq!((line.correction(), line.is_ejected()), (1.0, false));
        assert_eq!(line.faults(FaultClass::Stream), 0);
        assert!(!shared.pair_has_met(a, b) && !shared.pair_has_met(b, a));
        assert_eq!(router.shard.snapshot.engines[0].iid, "d");
        // Well rested: what failed was another.
        let others = [b, EngineId(2)];
        assert_eq!(router.shard.counter(Instant::ZERO, &others), Some(a));
        let orphaned = board.hold_kv(EngineId(2), 5);
        router.follow("b d", "");
        assert!(!shared.is_at_rest(EngineId(2)), "until its lease ends");
        board.release_kv(orphaned);
        assert!(shared.is_at_rest(EngineId(2)));
    }

    // proves R-CFG-7
    #[test]
    fn who_comes_back_to_its_work_finds_it_counted() {
        let mut router = Router::new("a b", "");
        let a = EngineId(0);
        let shared = router.shared.clone();
        let charge = Charge {
            tokens: 7,
            ..Charge::default()
        };
        let load = shared
            .board
            .reserve(a, Phase::Decode, charge, Instant::ZERO);
        router.follow("b", "");
        assert_eq!(router.available(), ".+");
        let change = router.follow("a b", "");
        assert_eq!((change.added.len(), change.come()), (0, vec![a]));
        assert_eq!(router.available(), "++");
        assert_eq!(shared.board.line(a).outstanding_tokens(), 7);
        shared.board.release(load);
        assert!(shared.is_at_rest(a));
    }

    // proves R-CFG-7
    #[test]
    fn bounds_of_phases_come_and_go_with_those_inside_counted() {
        let mut router = Router::new("a", "");
        let a = EngineId(0);
        let line = Awaited::Phase(a, Phase::Decode);
        let shared = router.shared.clone();
        assert!(shared.phase(a, Phase::Decode).is_none());
        router.follow("a", "decode_concurrency = 1\n");
        let Asked::Permit(first) = router.shard.ask(line, 1) else {
            panic!("one may be in");
        };
        assert!(matches!(router.shard.ask(line, 2), Asked::Waits(_)));
        router.follow("a", "");
        assert_eq!(
            router.shard.fetch_grants(line),
            [2],
            "nobody waits any more"
        );
        let place = (line, crate::shard::gate::Ticket(0));
        let second = router.shard.claim(place).expect("its permit");
        router.follow("a", "decode_concurrency = 2\n");
        assert!(matches!(router.shard.ask(line, 3), Asked::Waits(_)));
        assert!(!shared.is_at_rest(a));
        for permit in [first, second] {
            router.shard.release(line, permit);
        }
        assert_eq!(router.shard.fetch_grants(line), [3]);
    }
}
