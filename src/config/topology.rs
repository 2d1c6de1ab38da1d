//! What shards hold of the fleet: one read-only snapshot per epoch, with everything that a request needs worked out beforehand.
//!
//! It is made at start, with the addresses of names as they were then; `shard::addresses` holds those of now. A reload makes the next one
//! (`config::reload`), in which engines keep their ids. Exchanges keep the one they began with. Pure. Invariant: `engines[i].id ==
//! EngineId(i)`, and those of them that are here are the fleet's.

use std::net::SocketAddr;

use super::checked::{Engine, Fleet};
pub use super::profiles::{Curves, Profile};
use super::words::{Admission, Dialect, Role};
use crate::base::units::EngineId;

/// Everything a request needs to know of the fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub epoch: u64,
    pub fleet: Fleet,
    /// By id; after reloads also those that left, whose legs may still run. See [`Snapshot::present`].
    pub engines: Vec<EngineView>,
}

/// Whether an engine belongs to the fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    #[default]
    Here,
    /// It gets no new leg; what runs there finishes.
    Leaving,
    /// Its place is free.
    Gone,
}

/// One engine, as legs need it.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineView {
    pub id: EngineId,
    pub presence: Presence,
    /// The epoch in which it came.
    pub since: u64,
    pub iid: String,
    pub role: Role,
    pub pin: bool,
    /// Where it was at start; empty when its name did not resolve then.
    pub addrs: Vec<SocketAddr>,
    /// The `Host` field's value.
    pub authority: String,
    /// The name that a certificate must carry.
    pub host: String,
    pub port: u16,
    pub prefix: String,
    pub tls: bool,
    /// Where decode engines meet this prefill engine (SGLang).
    pub bootstrap: Option<(String, u16)>,
    pub attestation_url: Option<String>,
    /// What it was measured to cost.
    pub profile: Option<Profile>,
}

impl Snapshot {
    /// Literal addresses are filled in at once; names wait for whoever resolves them.
    pub fn new(epoch: u64, fleet: Fleet) -> Self {
        // An SGLang engine is started for one role and answers the other's legs wrongly, without an error.
        let fixed = fleet.engine.dialect == Dialect::Sglang;
        let view = |(i, engine)| {
            let view = EngineView::new(EngineId(i), engine);
            EngineView {
                pin: view.pin || fixed,
                since: epoch,
                ..view
            }
        };
        // The file holds at most 4096 engines, so the number fits.
        let engines = (0u16..).zip(&fleet.engines).map(view).collect();
        Snapshot {
            epoch,
            fleet,
            engines,
        }
    }

    pub fn engine(&self, id: EngineId) -> Option<&EngineView> {
        self.engines.get(id.index())
    }

    /// Gives engines their profiles, by name; those of no engine are passed over.
    pub fn with_profiles(mut self, profiles: Vec<Profile>) -> Self {
        for profile in profiles {
            let mut here = self.engines.iter_mut().filter(|e| e.is_here());
            if let Some(engine) = here.find(|e| e.iid == profile.iid) {
                engine.profile = Some(profile);
            }
        }
        self
    }

    /// The engines of the fleet, without those that left.
    pub fn present(&self) -> impl Iterator<Item = &EngineView> + Clone {
        self.engines.iter().filter(|engine| engine.is_here())
    }

    /// Whether each engine has one.
    pub fn is_profiled(&self) -> bool {
        self.present().all(|engine| engine.profile.is_some())
    }

    pub fn is_predictive(&self) -> bool {
        self.fleet.serving.admission == Admission::Predictive
    }

    /// Where decode engines meet this prefill engine (SGLang).
    pub fn bootstrap(&self, id: EngineId) -> Option<(&str, u16)> {
        let (host, port) = self.engine(id)?.bootstrap.as_ref()?;
        Some((host, *port))
    }

    /// For operators' requests and reloads; legs know the id.
    pub fn by_iid(&self, iid: &str) -> Option<&EngineView> {
        self.present().find(|engine| engine.iid == iid)
    }
}

impl EngineView {
    pub fn new(id: EngineId, engine: &Engine) -> Self {
        let url = &engine.url;
        EngineView {
            id,
            presence: Presence::Here,
            since: 0,
            iid: engine.iid.clone(),
            role: engine.role,
            pin: engine.pin,
            addrs: url
                .ip()
                .map(|ip| SocketAddr::new(ip, url.port))
                .into_iter()
                .collect(),
            authority: url.authority(),
            host: url.host.clone(),
            port: url.port,
            prefix: url.prefix.clone(),
            tls: url.tls,
            bootstrap: engine.bootstrap_host.clone().zip(engine.bootstrap_port),
            attestation_url: engine.attestation_url.clone(),
            profile: None,
        }
    }

    pub fn is_here(&self) -> bool {
        self.presence == Presence::Here
    }

    /// Whether it is the same engine: by name and URL.
    pub fn is_same_as(&self, other: &EngineView) -> bool {
        let url = |e: &EngineView| (e.tls, e.port, e.host.clone(), e.prefix.clone());
        self.iid == other.iid && url(self) == url(other)
    }

    /// Whether the engine's name needs resolving.
    pub fn is_name(&self) -> bool {
        self.host.parse::<std::net::IpAddr>().is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Format, parse};

    const FILE: &str = r#"{
        "schema": "narwhal.fleet", "schema_version": 2, "model": "m",
        "slo": {"ttft_s": 2, "tpot_s": 0.05},
        "engines": [
            {"iid": "a", "url": "http://10.0.0.1:8000/p", "role": "prefill", "pin": true},
            {"iid": "b", "url": "https://[::1]"},
            {"iid": "c", "url": "https://gpu.example", "role": "both"}
        ]}"#;

    // proves R-CFG-2
    #[test]
    fn a_snapshot_holds_what_legs_need() {
        let fleet = parse("f", FILE, Format::Json, &|_| None).unwrap().fleet;
        let snapshot = Snapshot::new(7, fleet);
        assert_eq!((snapshot.epoch, snapshot.engines.len()), (7, 3));
        for (i, view) in snapshot.engines.iter().enumerate() {
            assert_eq!(view.id.index(), i);
            assert_eq!(snapshot.engine(view.id), Some(view));
            assert_eq!(snapshot.by_iid(&view.iid), Some(view));
            assert_eq!(view.is_name(), view.addrs.is_empty());
        }
        let [a, b, c] = snapshot.engines.as_slice() else {
            panic!("three engines");
        };
        assert_eq!(a.addrs, ["10.0.0.1:8000".parse().unwrap()]);
        assert_eq!(
            (a.authority.as_str(), a.prefix.as_str(), a.tls),
            ("10.0.0.1:8000", "/p", false)
        );
        assert!(a.pin && a.role == Role::Prefill);
        assert_eq!(b.addrs, ["[::1]:443".parse().unwrap()]);
        assert_eq!(
            (b.authority.as_str(), b.tls, b.role),
            ("[::1]", true, Role::Decode)
        );
        assert_eq!((c.host.as_str(), c.port), ("gpu.example", 443));
        assert_eq!(snapshot.engine(EngineId(3)), None);
        assert_eq!(snapshot.by_iid("d"), None);
    }
}
