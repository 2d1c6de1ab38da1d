//! Where engines are now: the addresses of each, published by the control thread and read by shards when they dial.
//!
//! A list is replaced as a whole, and a reader gets the old or the new one without waiting for anybody. A version counts
//! the changes, so that whoever keeps connections sees with one load whether any may be to an address that is gone.
//! Invariant: whoever reads the version before a list never takes an older list for that version's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::slots::Slots;
use crate::base::units::EngineId;
use crate::config::topology::Snapshot;

/// A list for each engine of the fleet; empty while its name is not known.
#[derive(Debug)]
pub struct Addresses {
    version: AtomicU64,
    engines: Slots<ArcSwap<Vec<SocketAddr>>>,
}

impl Addresses {
    pub fn new(snapshot: &Snapshot) -> Self {
        let list = |n: usize| {
            let engine = snapshot.engines.get(n);
            ArcSwap::from_pointee(engine.map_or_else(Vec::new, |engine| engine.addrs.clone()))
        };
        Addresses {
            version: AtomicU64::new(0),
            engines: Slots::new(snapshot.engines.len(), list),
        }
    }

    /// Lists for so many engines.
    pub fn grow(&self, engines: usize) {
        self.engines.grow(engines, |_| ArcSwap::default());
    }

    /// How often any list has changed.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// In the order in which they are to be tried.
    pub fn of(&self, engine: EngineId) -> Arc<Vec<SocketAddr>> {
        self.engines[engine].load_full()
    }

    pub fn holds(&self, engine: EngineId, address: SocketAddr) -> bool {
        self.engines[engine].load().contains(&address)
    }

    /// True when these are others than before. The same ones in another order, as name servers take turns, are no change.
    pub fn publish(&self, engine: EngineId, addresses: Vec<SocketAddr>) -> bool {
        let list = &self.engines[engine];
        let known = list.load();
        let mut all = known.iter();
        let same = known.len() == addresses.len() && all.all(|known| addresses.contains(known));
        if !same {
            list.store(Arc::new(addresses));
            self.version.fetch_add(1, Ordering::Release);
        }
        !same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Format, parse};

    fn at(text: &str) -> Vec<SocketAddr> {
        text.split_whitespace()
            .map(|a| a.parse().unwrap())
            .collect()
    }

    // proves R-LEG-7
    #[test]
    fn only_another_set_is_a_change() {
        let file = r#"{"schema": "narwhal.fleet", "schema_version": 2, "model": "m",
            "slo": {"ttft_s": 2, "tpot_s": 0.05},
            "engines": [{"iid": "a", "url": "http://10.0.0.1:80"}, {"iid": "b", "url": "http://gpu:80"}]}"#;
        let fleet = parse("f", file, Format::Json, &|_| None).unwrap().fleet;
        let addresses = Addresses::new(&Snapshot::new(1, fleet));
        let (a, b) = (EngineId(0), EngineId(1));
        assert_eq!(*addresses.of(a), at("10.0.0.1:80"));
        assert!(addresses.of(b).is_empty() && addresses.version() == 0);
        // What is published, whether it is a change, what legs try then.
        let rows = [
            ("1.1.1.1:80 2.2.2.2:80", true, "1.1.1.1:80 2.2.2.2:80"),
            ("2.2.2.2:80 1.1.1.1:80", false, "1.1.1.1:80 2.2.2.2:80"),
            ("2.2.2.2:80", true, "2.2.2.2:80"),
            ("3.3.3.3:80", true, "3.3.3.3:80"),
            ("3.3.3.3:80", false, "3.3.3.3:80"),
            ("", true, ""),
        ];
        for (published, changes, now) in rows {
            let before = addresses.version();
            assert_eq!(addresses.publish(b, at(published)), changes, "{published}");
            assert_eq!(
                addresses.version() - before,
                u64::from(changes),
                "{published}"
            );
            assert_eq!(*addresses.of(b), at(now), "{published}");
            for address in at("1.1.1.1:80 3.3.3.3:80") {
                assert_eq!(addresses.holds(b, address), at(now).contains(&address));
            }
        }
        assert_eq!(
            *addresses.of(a),
            at("10.0.0.1:80"),
            "others keep what they have"
        );
    }
}
