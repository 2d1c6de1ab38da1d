//! The fleet as the rest of the program sees it: it cannot be wrong. Made by `build` alone, from a file that passed every check.
//!
//! Fields carry no unit in their names, as their types do: a time is a `Duration`, a size counts what its text says. Where 0
//! means "off" in the file, `None` does here.
//!
//! Pure; std only. Invariants: at least one engine; `iid`s are unique; `queue_timeout > 0` when `queue_capacity > 0`;
//! `max_retained ≥ 1`; a dialect's connector is one that it speaks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::url::Url;
pub use super::words::{
    Admission, Connector, CpuList, Dialect, Driver, Lease, Numa, Placement, RestartPolicy, Role,
    Secret,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    pub model: String,
    /// Without `model`.
    pub model_aliases: Vec<String>,
    pub engines: Vec<Engine>,
    pub slo: Slo,
    pub serving: Serving,
    pub engine: EngineSettings,
    pub controller: Controller,
    pub recovery: Recovery,
    pub profiles_path: Option<PathBuf>,
    pub profile_limits: ProfileLimits,
    pub runtime: RuntimeSettings,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    pub iid: String,
    pub url: Url,
    pub role: Role,
    pub pin: bool,
    /// Set on every SGLang engine that may prefill.
    pub bootstrap_host: Option<String>,
    /// Set on every SGLang engine that may prefill.
    pub bootstrap_port: Option<u16>,
    pub attestation_url: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Slo {
    pub ttft: Duration,
    pub tpot: Duration,
}

/// Bound on one phase of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseLimit {
    /// The file says nothing: off, or for decode under predictive admission the profile's `decode_max_requests`.
    Unset,
    Off,
    Max(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    pub admission: Admission,
    pub admission_margin: f64,
    pub placement: Placement,
    pub max_connections: usize,
    pub queue_capacity: usize,
    pub queue_timeout: Duration,
    pub max_retained: usize,
    pub prefill_concurrency: PhaseLimit,
    pub decode_concurrency: PhaseLimit,
    pub max_attempts: u32,
    pub retry_base: Duration,
    pub retry_cap: Duration,
    /// Credits.
    pub retry_budget: f64,
    /// Credits per served request.
    pub retry_replenish: f64,
    pub max_request_bytes: usize,
    pub max_response_bytes: usize,
    pub request_timeout: Duration,
    pub prefill_timeout: Duration,
    pub graceful_timeout: Duration,
    pub drain_window: Duration,
}

/// What holds for every engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSettings {
    pub dialect: Dialect,
    pub connector: Connector,
    pub api_key: Option<Secret>,
    pub tokenize: bool,
    pub tokenize_timeout: Duration,
    pub chars_per_token: f64,
    pub first_token_timeout: Duration,
    /// Whether the file sets it: if not, a new pair of engines gets at least 10 s.
    pub first_token_timeout_set: bool,
    pub decode_read_timeout: Option<Duration>,
    pub connect_timeout: Duration,
    pub pool_timeout: Duration,
    /// `None` is unbounded.
    pub pool_max: Option<usize>,
    pub health_timeout: Duration,
    pub kv_lease: Option<Duration>,
    pub assembly_extra_fields: Vec<String>,
    /// `None`: https engines are trusted as the system trusts.
    pub tls_ca_file: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Controller {
    pub monitor_interval: Duration,
    pub monitor_failure_limit: u32,
    pub decode_correction: DecodeCorrection,
}

/// Live ÷ profiled decode interval.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeCorrection {
    pub min: f64,
    pub max: f64,
    pub alpha: f64,
    pub min_samples: u32,
}

/// Counts `…_every` are monitoring passes, 0 = never.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    pub eject_after: u32,
    pub readmit_every: u32,
    pub liveness_every: u32,
    pub liveness_misses: u32,
    pub failure_quarantine: Option<Duration>,
    pub engine_restart_policy: RestartPolicy,
    pub state_path: Option<PathBuf>,
    pub resume: bool,
    pub health: HealthRules,
}

#[derive(Clone, Debug, PartialEq)]
pub struct HealthRules {
    pub window: Duration,
    pub drift_band: f64,
    pub relative_band: f64,
    pub min_samples: u32,
    pub probation_windows: u32,
    pub evict_windows: u32,
    pub recovery_windows: u32,
    pub probation_penalty: Duration,
}

/// How far off a measured curve may be, as parts of 1.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileLimits {
    pub decode_fit_mape: f64,
    pub decode_cv_mape: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeSettings {
    pub listen: Vec<SocketAddr>,
    pub admin_listen: Option<SocketAddr>,
    pub admin_key_file: Option<PathBuf>,
    pub shards: Option<usize>,
    pub cpus: Option<CpuList>,
    /// `None` when the file says nothing, which differs from `off`: a CPU list over several nodes is then questioned.
    pub numa: Option<Numa>,
    pub driver: Driver,
    pub tls: Option<Tls>,
    pub api_keys_file: Option<PathBuf>,
    /// Lower-case.
    pub forward_headers: Vec<String>,
    pub cors_origins: Vec<String>,
    pub header_timeout: Duration,
    pub body_idle_timeout: Duration,
    pub keepalive_idle: Duration,
    pub max_header_bytes: usize,
    pub max_headers: usize,
    pub client_write_stall: Duration,
    pub client_keepalive: Option<Duration>,
    pub lease: Option<Lease>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl EngineSettings {
    /// How old a handoff may be when decode is dispatched: the producer's lease less a sixth of it, for clocks and transfer.
    pub fn handoff_bound(&self) -> Option<Duration> {
        self.kv_lease.map(|lease| lease - lease / 6)
    }
}

impl PhaseLimit {
    pub const fn max(self) -> Option<usize> {
        match self {
            PhaseLimit::Max(n) => Some(n),
            PhaseLimit::Unset | PhaseLimit::Off => None,
        }
    }
}
