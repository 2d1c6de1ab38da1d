//! Whether this router serves, and how it says so: `/health`, `/ready`, `/v1/models`, and the JSON error envelope of
//! the routes beside the completions. Pure functions of a cheap view, so a shard answers them itself on its own thread
//! and the control thread answers them on `admin_listen` with the same bytes.
//!
//! Invariant: ready = serving ∧ some engine available for each leg; `/health` is 200 in every state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::*};

use serde_json::{Value, json};

pub use crate::base::units::Role;
use crate::base::words::words;

words! {
    /// What the router as a whole is doing. Engines are another matter (see [`Fleet`]).
    Standing {
        Serving = "serving",
        /// The monitoring itself failed too often.
        Degraded = "degraded",
        /// Another router holds the lease.
        Standby = "standby",
        /// Held the lease, or should have a fresh handoff, and has not.
        Fenced = "fenced",
        /// The whole fleet is withdrawn.
        Maintenance = "maintenance",
        /// A signal asked us to stop.
        Draining = "draining",
    }
}

impl Standing {
    /// Held routers answer completions 503 `standby`.
    pub const fn is_held(self) -> bool {
        !matches!(self, Standing::Serving)
    }

    /// The control plane works, whether or not it serves now.
    pub const fn control_ready(self) -> bool {
        matches!(
            self,
            Standing::Serving | Standing::Maintenance | Standing::Draining
        )
    }
}

/// The standing as shards read it at each request: one atomic byte. Written by the control thread; draining stays.
#[derive(Debug, Default)]
pub struct Gate(AtomicU8);

impl Gate {
    pub const fn new() -> Self {
        Gate(AtomicU8::new(0))
    }

    pub fn standing(&self) -> Standing {
        let code = usize::from(self.0.load(Acquire));
        Standing::ALL
            .get(code)
            .copied()
            .unwrap_or(Standing::Serving)
    }

    /// False when the router is draining already: nothing comes after that.
    pub fn set(&self, to: Standing) -> bool {
        let code = to.index() as u8;
        let draining = Standing::Draining.index() as u8;
        let keep = |now| (now != draining).then_some(code);
        self.0.fetch_update(AcqRel, Acquire, keep).is_ok()
    }
}

/// One engine's line, as read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLine {
    pub prefill_requests: u64,
    pub decode_requests: u64,
    pub outstanding_tokens: u64,
    pub live: bool,
    pub ejected: bool,
    pub evicted: bool,
    /// Operators want it to empty.
    pub held: bool,
    pub on_probation: bool,
}

/// What the fleet can do right now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    pub instances: usize,
    /// Live, not ejected, not evicted and not held.
    pub available: usize,
    pub prefill: bool,
    pub decode: bool,
}

impl Fleet {
    /// `one_leg`: the dialect makes one leg of a request (openai), so roles do not matter. Otherwise an engine serves
    /// its role; a `both` engine and one that is not pinned serve either.
    pub fn look(
        engines: impl IntoIterator<Item = (Role, bool, EngineLine)>,
        one_leg: bool,
    ) -> Fleet {
        let mut fleet = Fleet::default();
        for (role, pinned, line) in engines {
            fleet.instances += 1;
            if !line.live || line.ejected || line.evicted || line.held {
                continue;
            }
            let either = one_leg || !pinned || role == Role::Both;
            fleet.available += 1;
            fleet.prefill |= either || role == Role::Prefill;
            fleet.decode |= either || role == Role::Decode;
        }
        fleet
    }
}

/// All that `/health` and `/ready` need.
#[derive(Clone, Debug)]
pub struct HealthView<'a> {
    pub standing: Standing,
    /// Why, when not serving; a default word is used when absent.
    pub why: Option<Arc<String>>,
    pub fleet: Fleet,
    pub epoch: Option<u64>,
    pub holder: Option<&'a str>,
}

impl HealthView<'_> {
    /// `None` when ready.
    pub fn reason(&self) -> Option<&str> {
        if self.standing.is_held() {
            let why = self.why.as_ref().map(|why| why.as_str());
            return Some(match self.standing {
                Standing::Degraded => why.unwrap_or("monitoring degraded"),
                Standing::Standby => why.unwrap_or("another router holds the lease"),
                Standing::Fenced => why.unwrap_or("lease lost"),
                Standing::Maintenance => why.unwrap_or("whole-wave maintenance"),
                Standing::Serving | Standing::Draining => "shutting down",
            });
        }
        match self.fleet {
            Fleet { available: 0, .. } => Some("no available engines"),
            Fleet { decode: false, .. } => Some("no decode engines"),
            Fleet { prefill: false, .. } => Some("no prefill engines"),
            _ => None,
        }
    }

    /// The word of `/health`.
    pub fn status(&self) -> &'static str {
        match self.standing {
            Standing::Serving if self.fleet.available == 0 => "degraded",
            Standing::Serving => "ok",
            other => other.name(),
        }
    }

    pub fn available(&self) -> usize {
        if self.standing == Standing::Maintenance {
            0
        } else {
            self.fleet.available
        }
    }
}

/// A whole small answer. The server that sends it adds framing, and drops the body for HEAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Vec<u8>,
    /// Seconds.
    pub retry_after: Option<u32>,
    pub allow: Option<&'static str>,
}

/// `www-authenticate` of every 401 (RFC 9110 section 11.6.1).
pub const CHALLENGE: &str = "Bearer";

impl Answer {
    pub fn json(status: u16, value: &Value) -> Answer {
        Answer {
            status,
            content_type: "application/json",
            body: value.to_string().into_bytes(),
            retry_after: None,
            allow: None,
        }
    }

    /// `{"error":{"message","type","param","code"}}`.
    pub fn error(status: u16, message: &str, kind: &str, code: Option<&str>) -> Answer {
        let error = json!({"message": message, "type": kind, "param": null, "code": code});
        Answer::json(status, &json!({ "error": error }))
    }

    /// 404: this router has no such route.
    pub fn not_found() -> Answer {
        Answer::error(404, "Not found", "invalid_request_error", None)
    }

    /// 405, naming the methods there are.
    pub fn not_allowed(allow: &'static str) -> Answer {
        let answer = Answer::error(405, "Method not allowed", "invalid_request_error", None);
        Answer {
            allow: Some(allow),
            ..answer
        }
    }
}

/// `GET /health`: always 200.
pub fn health(view: &HealthView<'_>) -> Answer {
    let body = json!({
        "status": view.status(),
        "instances": view.fleet.instances,
        "available_instances": view.available(),
    });
    Answer::json(200, &body)
}

/// `GET /ready`: 200, or 503 with `retry-after: 1` and the reason.
pub fn ready(view: &HealthView<'_>) -> Answer {
    let reason = view.reason();
    let body = json!({
        "status": if reason.is_none() { "ready" } else { "not_ready" },
        "control_ready": view.standing.control_ready(),
        "epoch": view.epoch,
        "holder": view.holder,
        "reason": reason,
    });
    match reason {
        None => Answer::json(200, &body),
        Some(_) => Answer {
            retry_after: Some(1),
            ..Answer::json(503, &body)
        },
    }
}

/// `GET /v1/models`: the model and its accepted names, in every state.
pub fn models<'a>(names: impl IntoIterator<Item = &'a str>) -> Answer {
    let entry = |id| json!({"id": id, "object": "model", "owned_by": "narwhal"});
    let data: Vec<Value> = names.into_iter().map(entry).collect();
    Answer::json(200, &json!({"object": "list", "data": data}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: EngineLine = EngineLine {
        prefill_requests: 0,
        decode_requests: 0,
        outstanding_tokens: 0,
        live: true,
        ejected: false,
        evicted: false,
        held: false,
        on_probation: false,
    };
    const DEAD: EngineLine = EngineLine {
        live: false,
        ..LIVE
    };
    const EJECTED: EngineLine = EngineLine {
        ejected: true,
        ..LIVE
    };
    const P: Role = Role::Prefill;
    const D: Role = Role::Decode;

    fn parse(answer: &Answer) -> Value {
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// Rows: name, engines (role, pinned, line), one-leg dialect, `/health` status, available, `/ready` reason.
    // proves R-CTL-1, R-ADM-7, R-LEG-4
    #[test]
    fn health_and_ready_by_fleet() {
        type Row = (
            &'static str,
            Vec<(Role, bool, EngineLine)>,
            bool,
            &'static str,
            usize,
            Option<&'static str>,
        );
        let none = Some("no available engines");
        let rows: Vec<Row> = vec![
            (
                "pair",
                vec![(P, true, LIVE), (D, true, LIVE)],
                false,
                "ok",
                2,
                None,
            ),
            (
                "all dead",
                vec![(P, true, DEAD), (D, true, DEAD)],
                false,
                "degraded",
                0,
                none,
            ),
            (
                "all ejected",
                vec![(P, true, EJECTED), (D, true, EJECTED)],
                false,
                "degraded",
                0,
                none,
            ),
            ("no engine at all", vec![], false, "degraded", 0, none),
            (
                "decode dead",
                vec![(P, true, LIVE), (D, true, DEAD)],
                false,
                "ok",
                1,
                Some("no decode engines"),
            ),
            (
                "prefill ejected",
                vec![(P, true, EJECTED), (D, true, LIVE)],
                false,
                "ok",
                1,
                Some("no prefill engines"),
            ),
            (
                "both serves either",
                vec![(Role::Both, true, LIVE), (D, true, DEAD)],
                false,
                "ok",
                1,
                None,
            ),
            (
                "unpinned serves either",
                vec![(P, false, LIVE), (D, true, DEAD)],
                false,
                "ok",
                1,
                None,
            ),
            (
                "dead both and unpinned serve nothing",
                vec![(P, true, LIVE), (Role::Both, true, DEAD), (D, false, DEAD)],
                false,
                "ok",
                1,
                Some("no decode engines"),
            ),
            (
                "one unpinned engine",
                vec![(D, false, LIVE)],
                false,
                "ok",
                1,
                None,
            ),
            (
                "one leg needs no prefill",
                vec![(D, true, LIVE)],
                true,
                "ok",
                1,
                None,
            ),
            (
                "one leg, dead",
                vec![(D, true, DEAD)],
                true,
                "degraded",
                0,
                none,
            ),
        ];
        for (name, engines, one_leg, status, available, reason) in rows {
            let instances = engines.len();
            let view = HealthView {
                standing: Standing::Serving,
                why: None,
                fleet: Fleet::look(engines, one_leg),
                epoch: None,
                holder: None,
            };
            let answer = health(&view);
            assert_eq!(answer.status, 200, "{name}");
            let want =
                json!({"status": status, "instances": instances, "available_instances": available});
            assert_eq!(parse(&answer), want, "{name}");
            let answer = ready(&view);
            let code = if reason.is_none() {
                (200, None)
            } else {
                (503, Some(1))
            };
            assert_eq!((answer.status, answer.retry_after), code, "{name}");
            let word = if reason.is_none() {
                "ready"
            } else {
                "not_ready"
            };
            let want = json!({"status": word, "control_ready": true, "epoch": null, "holder": null, "reason": reason});
            assert_eq!(parse(&answer), want, "{name}");
        }
    }

    /// Rows: standing, why, `/health` status, available of 2, control_ready, `/ready` reason.
    // proves R-CTL-1, R-CTL-2, R-CTL-7
    #[test]
    fn health_and_ready_by_standing() {
        type Row = (
            Standing,
            Option<&'static str>,
            &'static str,
            usize,
            bool,
            Option<&'static str>,
        );
        let why = Some("monitoring degraded: state OSError");
        let rows: [Row; 6] = [
            (Standing::Serving, None, "ok", 2, true, None),
            (Standing::Degraded, why, "degraded", 2, false, why),
            (
                Standing::Standby,
                None,
                "standby",
                2,
                false,
                Some("another router holds the lease"),
            ),
            (
                Standing::Fenced,
                None,
                "fenced",
                2,
                false,
                Some("lease lost"),
            ),
            (
                Standing::Maintenance,
                Some("wave 3"),
                "maintenance",
                0,
                true,
                Some("wave 3"),
            ),
            (
                Standing::Draining,
                None,
                "draining",
                2,
                true,
                Some("shutting down"),
            ),
        ];
        for (standing, why, status, available, control_ready, reason) in rows {
            let fleet = Fleet::look([(P, true, LIVE), (D, true, LIVE)], false);
            let view = HealthView {
                standing,
                why: why.map(|why| Arc::new(why.to_owned())),
                fleet,
                epoch: Some(7),
                holder: Some("r1"),
            };
            let body = parse(&health(&view));
            let want = json!({"status": status, "instances": 2, "available_instances": available});
            assert_eq!(body, want, "{standing:?}");
            let body = parse(&ready(&view));
            assert_eq!(body["control_ready"], control_ready, "{standing:?}");
            assert_eq!(body["reason"], json!(reason), "{standing:?}");
            assert_eq!((&body["epoch"], &body["holder"]), (&json!(7), &json!("r1")));
            assert_eq!(standing.is_held(), reason.is_some());
        }
    }

    #[test]
    fn a_draining_gate_stays_draining() {
        let gate = Gate::new();
        assert_eq!(gate.standing(), Standing::Serving);
        for standing in Standing::ALL {
            assert!(gate.set(*standing));
            assert_eq!(gate.standing(), *standing);
        }
        assert!(!gate.set(Standing::Serving));
        assert_eq!(gate.standing(), Standing::Draining);
    }

    // proves R-CTL-1
    #[test]
    fn models_lists_the_model_and_its_aliases() {
        let want = json!({"object": "list", "data": [
            {"id": "m", "object": "model", "owned_by": "narwhal"},
            {"id": "n", "object": "model", "owned_by": "narwhal"},
        ]});
        assert_eq!(parse(&models(["m", "n"])), want);
    }

    #[test]
    fn errors_have_the_envelope() {
        let answer = Answer::not_allowed("GET");
        let error = json!({"message": "Method not allowed", "type": "invalid_request_error", "param": null, "code": null});
        assert_eq!(parse(&answer), json!({ "error": error }));
        assert_eq!(
            (answer.status, answer.allow, Answer::not_found().status),
            (405, Some("GET"), 404)
        );
    }
}
