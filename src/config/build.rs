//! From the file as written to the fleet that cannot be wrong: the rules that need more than one value, the environment, and
//! the small languages inside strings (addresses, CPU lists, leases).
//!
//! `engines` holds the part on engines. Every key's own kind and range was checked in `raw`; what is missing or was wrong reads as
//! its default here, so that one run finds all faults. The fleet leaves this room only when there were none.
//!
//! Pure; the environment is an argument.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::checked::{
    Controller, DecodeCorrection, Fleet, HealthRules, PhaseLimit, ProfileLimits, Recovery,
    RuntimeSettings, Serving, Slo, Tls,
};
use super::engines;
use super::fault::Faults;
use super::raw::{Raw, Scope};
use super::source::shown_text;
use super::words::{Admission, Driver, Numa, Placement, RestartPolicy, forward_header, origin};

/// Looks a variable up in the environment.
pub type Env<'a> = dyn Fn(&str) -> Option<String> + 'a;

pub(super) fn fleet(
    raw: &Raw<'_>,
    env: &Env<'_>,
    faults: &mut Faults<'_>,
    warnings: &mut Vec<String>,
) -> Fleet {
    let top = &raw.top;
    let model = top.text("model").unwrap_or_default().to_owned();
    let engine = engines::settings(top, env, faults);
    let engines = engines::engines(raw, &engine, env, faults, warnings);
    Fleet {
        model_aliases: aliases(top, &model, faults),
        model,
        slo: Slo {
            ttft: top.seconds("slo.ttft_s"),
            tpot: top.seconds("slo.tpot_s"),
        },
        serving: serving(top, faults),
        controller: controller(top, faults),
        recovery: recovery(top),
        profiles_path: path(top, "profiles.path"),
        profile_limits: ProfileLimits {
            decode_fit_mape: top.real("profiles.max_decode_fit_mape"),
            decode_cv_mape: top.real("profiles.max_decode_cv_mape"),
        },
        runtime: runtime(top, faults),
        engine,
        engines,
    }
}

fn aliases(top: &Scope<'_>, model: &str, faults: &mut Faults<'_>) -> Vec<String> {
    let mut out = Vec::new();
    for (alias, at) in top.texts("model_aliases") {
        if alias == model {
            faults
                .add(at, "model_aliases", "an alias is the model's own name")
                .found = shown_text(alias);
        }
        out.push(alias.to_owned());
    }
    out
}

fn serving(top: &Scope<'_>, faults: &mut Faults<'_>) -> Serving {
    const QUEUE_TIMEOUT: &str = "serving.queue_timeout_s";
    let max_connections = size(top, "serving.max_connections");
    let queue_capacity = size(top, "serving.queue_capacity");
    let queue_timeout = top.seconds(QUEUE_TIMEOUT);
    if queue_capacity > 0 && queue_timeout.is_zero() {
        let what = "must be positive when serving.queue_capacity is";
        let key = if top.has(QUEUE_TIMEOUT) {
            QUEUE_TIMEOUT
        } else {
            "serving.queue_capacity"
        };
        let fault = faults.add(top.at(key), QUEUE_TIMEOUT, what);
        (fault.found, fault.unit) = ("0".to_owned(), "seconds");
        fault.allowed = "more than 0, up to 86400".to_owned();
    }
    Serving {
        admission: word(top, "serving.admission", Admission::Predictive),
        admission_margin: top.real("serving.admission_margin"),
        placement: word(top, "serving.placement", Placement::Price),
        max_connections,
        queue_capacity,
        queue_timeout,
        max_retained: top
            .count("serving.max_retained")
            .map_or(max_connections + queue_capacity, as_size),
        prefill_concurrency: phase(top, "serving.prefill_concurrency"),
        decode_concurrency: phase(top, "serving.decode_concurrency"),
        max_attempts: tally(top, "serving.max_attempts"),
        retry_base: top.seconds("serving.retry_base_s"),
        retry_cap: top.seconds("serving.retry_cap_s"),
        retry_budget: top.real("serving.retry_budget"),
        retry_replenish: top.real("serving.retry_replenish"),
        max_request_bytes: size(top, "serving.max_request_bytes"),
        max_response_bytes: size(top, "serving.max_response_bytes"),
        request_timeout: top.seconds("serving.request_timeout_s"),
        prefill_timeout: top.seconds("serving.prefill_timeout_s"),
        graceful_timeout: top.seconds("serving.graceful_timeout_s"),
        drain_window: top.seconds("serving.drain_window_s"),
    }
}

fn controller(top: &Scope<'_>, faults: &mut Faults<'_>) -> Controller {
    const MIN: &str = "controller.reactive.decode_correction_min";
    const MAX: &str = "controller.reactive.decode_correction_max";
    let (min, max) = (top.real(MIN), top.real(MAX));
    if min > max {
        let fault = faults.add(top.at(MIN), MIN, format!("above {MAX}"));
        (fault.found, fault.allowed) = (min.to_string(), format!("up to {max}"));
    }
    Controller {
        monitor_interval: top.seconds("controller.monitor_interval_s"),
        monitor_failure_limit: tally(top, "controller.monitor_failure_limit"),
        decode_correction: DecodeCorrection {
            min,
            max,
            alpha: top.real("controller.reactive.decode_correction_alpha"),
            min_samples: tally(top, "controller.reactive.decode_correction_min_samples"),
        },
    }
}

fn recovery(top: &Scope<'_>) -> Recovery {
    Recovery {
        eject_after: tally(top, "recovery.eject_after"),
        readmit_every: tally(top, "recovery.readmit_every"),
        liveness_every: tally(top, "recovery.liveness_every"),
        liveness_misses: tally(top, "recovery.liveness_misses"),
        failure_quarantine: unless_zero(top.seconds("recovery.failure_quarantine_s")),
        engine_restart_policy: word(
            top,
            "recovery.engine_restart_policy",
            RestartPolicy::Individual,
        ),
        state_path: path(top, "recovery.state_path"),
        resume: top.flag("recovery.resume"),
        health: HealthRules {
            window: top.seconds("recovery.health.window_s"),
            drift_band: top.real("recovery.health.drift_band"),
            relative_band: top.real("recovery.health.relative_band"),
            min_samples: tally(top, "recovery.health.min_samples"),
            probation_windows: tally(top, "recovery.health.probation_windows"),
            evict_windows: tally(top, "recovery.health.evict_windows"),
            recovery_windows: tally(top, "recovery.health.recovery_windows"),
            probation_penalty: top.seconds("recovery.health.probation_penalty_s"),
        },
    }
}

fn runtime(top: &Scope<'_>, faults: &mut Faults<'_>) -> RuntimeSettings {
    let tls = top.has("runtime.tls").then(|| Tls {
        cert: path(top, "runtime.tls.cert").unwrap_or_default(),
        key: path(top, "runtime.tls.key").unwrap_or_default(),
    });
    RuntimeSettings {
        listen: listen(top, faults),
        admin_listen: top.text("runtime.admin_listen").and_then(|text| {
            address(
                top.at("runtime.admin_listen"),
                "runtime.admin_listen",
                text,
                faults,
            )
        }),
        admin_key_file: path(top, "runtime.admin_key_file"),
        shards: top.count("runtime.shards").map(as_size),
        cpus: parsed(top, "runtime.cpus", faults),
        numa: numa(top),
        driver: word(top, "runtime.driver", Driver::Auto),
        tls,
        api_keys_file: path(top, "runtime.api_keys_file"),
        forward_headers: names(top, "runtime.forward_headers", forward_header, faults),
        cors_origins: names(top, "runtime.cors_origins", origin, faults),
        header_timeout: top.seconds("runtime.header_timeout_s"),
        body_idle_timeout: top.seconds("runtime.body_idle_timeout_s"),
        keepalive_idle: top.seconds("runtime.keepalive_idle_s"),
        max_header_bytes: size(top, "runtime.max_header_bytes"),
        max_headers: size(top, "runtime.max_headers"),
        client_write_stall: top.seconds("runtime.client_write_stall_s"),
        client_keepalive: unless_zero(top.seconds("runtime.client_keepalive_s")),
        lease: parsed(top, "runtime.lease", faults),
    }
}

fn listen(top: &Scope<'_>, faults: &mut Faults<'_>) -> Vec<SocketAddr> {
    const LISTEN: &str = "runtime.listen";
    let texts = top.texts(LISTEN);
    if texts.is_empty() {
        let fault = faults.add(top.at(LISTEN), LISTEN, "empty");
        fault.allowed = "at least one ADDRESS:PORT".to_owned();
    }
    let mut seen: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    let mut out = Vec::with_capacity(texts.len());
    for (text, at) in texts {
        let Some(address) = address(at, LISTEN, text, faults) else {
            continue;
        };
        // Port 0 is a new port each time.
        if let Some(first) = seen.insert(address, at).filter(|_| address.port() != 0) {
            let what = format!("listed twice, first on line {}", faults.line(first));
            faults.add(at, LISTEN, what).found = shown_text(text);
        }
        out.push(address);
    }
    out
}

fn address(at: usize, key: &str, text: &str, faults: &mut Faults<'_>) -> Option<SocketAddr> {
    let address = text.parse().ok();
    if address.is_none() {
        let fault = faults.add(at, key, "not an address to listen on");
        fault.found = shown_text(text);
        fault.allowed = "IP:PORT, as in 0.0.0.0:8000 or [::]:8000".to_owned();
        if text.starts_with("localhost:") {
            fault.hint = "write 127.0.0.1 for localhost".to_owned();
        }
    }
    address
}

fn numa(top: &Scope<'_>) -> Option<Numa> {
    match top.count("runtime.numa") {
        Some(node) => u16::try_from(node).ok().map(Numa::Node),
        None => top.text("runtime.numa").and_then(|word| word.parse().ok()),
    }
}

/// A list of texts, each made fit or refused by `check`; two that become the same are a fault.
fn names(
    top: &Scope<'_>,
    key: &str,
    check: fn(&str) -> Result<String, &'static str>,
    faults: &mut Faults<'_>,
) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for (text, at) in top.texts(key) {
        match check(text) {
            Ok(name) if out.contains(&name) => {
                faults.add(at, key, "listed twice").found = shown_text(text);
            }
            Ok(name) => out.push(name),
            Err(why) => faults.add(at, key, format!("not allowed: {why}")).found = shown_text(text),
        }
    }
    out
}

/// A text with a parser of its own, whose error says what is allowed.
fn parsed<T: FromStr<Err = String>>(
    top: &Scope<'_>,
    key: &str,
    faults: &mut Faults<'_>,
) -> Option<T> {
    let text = top.text(key)?;
    match text.parse() {
        Ok(value) => Some(value),
        Err(allowed) => {
            let fault = faults.add(top.at(key), key, "malformed");
            (fault.found, fault.allowed) = (shown_text(text), allowed);
            None
        }
    }
}

/// The table admits only words that the type knows (a test compares the two), so `preset` stands for wrong files only.
pub(super) fn word<T: FromStr>(scope: &Scope<'_>, path: &str, preset: T) -> T {
    let word = scope.text(path).and_then(|word| word.parse().ok());
    word.unwrap_or(preset)
}

pub(super) fn size(top: &Scope<'_>, path: &str) -> usize {
    top.count(path).map_or(0, as_size)
}

/// No range of the table reaches past 32 bits.
fn as_size(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn tally(top: &Scope<'_>, path: &str) -> u32 {
    top.count(path)
        .map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
}

fn phase(top: &Scope<'_>, path: &str) -> PhaseLimit {
    match top.count(path) {
        None => PhaseLimit::Unset,
        Some(0) => PhaseLimit::Off,
        Some(n) => PhaseLimit::Max(as_size(n)),
    }
}

pub(super) fn path(top: &Scope<'_>, key: &str) -> Option<PathBuf> {
    top.text(key).map(PathBuf::from)
}

pub(super) fn unless_zero(time: Duration) -> Option<Duration> {
    Some(time).filter(|time| !time.is_zero())
}

pub(super) fn owned(texts: Vec<(&str, usize)>) -> Vec<String> {
    texts.into_iter().map(|(text, _)| text.to_owned()).collect()
}
