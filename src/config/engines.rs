//! The engines of a fleet and how they are spoken to: URLs, keys from the environment, and the rules on dialect, connector,
//! roles and bootstrap servers. The part of `build` that knows what engines can do.
//!
//! Pure; the environment is an argument. Invariant: a key's text gets into no message.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::build::{Env, owned, path, size, unless_zero, word};
use super::checked::{Engine, EngineSettings};
use super::fault::Faults;
use super::raw::{Raw, Scope};
use super::source::shown_text;
use super::url::{Url, bracketed, host_and_port};
use super::words::{Connector, Dialect, Role, Secret};

pub(super) fn engines(
    raw: &Raw<'_>,
    settings: &EngineSettings,
    env: &Env<'_>,
    faults: &mut Faults<'_>,
    warnings: &mut Vec<String>,
) -> Vec<Engine> {
    if raw.top.has("engines") && !(1..=ENGINES_MAX).contains(&raw.engines_listed) {
        let fault = faults.add(raw.top.at("engines"), "engines", "wrong number of engines");
        (fault.found, fault.allowed) = (
            raw.engines_listed.to_string(),
            format!("1 to {ENGINES_MAX}"),
        );
    }
    let mut iids: BTreeMap<&str, usize> = BTreeMap::new();
    let mut engines = Vec::with_capacity(raw.engines.len());
    for scope in &raw.engines {
        let iid = scope.text("engines[].iid").unwrap_or_default();
        let at = scope.at("engines[].iid");
        if iid.len() > IID_BYTES_MAX || iid.chars().any(char::is_control) {
            let fault = faults.add(at, &scope.shown("engines[].iid"), "not usable as a name");
            fault.found = shown_text(iid);
            fault.allowed = format!("at most {IID_BYTES_MAX} bytes without control characters");
        }
        if let Some(first) = iids.insert(iid, at).filter(|_| !iid.is_empty()) {
            let what = format!("used twice, first on line {}", faults.line(first));
            faults.add(at, &scope.shown("engines[].iid"), what).found = shown_text(iid);
        }
        engines.push(engine(scope, settings, env, faults));
    }
    combinations(raw, settings, &engines, faults);
    warn(settings, &engines, warnings);
    engines
}

fn engine(
    scope: &Scope<'_>,
    settings: &EngineSettings,
    env: &Env<'_>,
    faults: &mut Faults<'_>,
) -> Engine {
    let url = url(scope, env, faults);
    let role = word(scope, "engines[].role", Role::Decode);
    let pin = scope.flag("engines[].pin");
    let mut bootstrap_host = None;
    if let Some(text) = scope.text("engines[].bootstrap_host") {
        match host_and_port(text) {
            Ok((host, None)) => bootstrap_host = Some(host),
            other => {
                let why = other.err().unwrap_or("the port belongs in bootstrap_port");
                let at = scope.at("engines[].bootstrap_host");
                let shown = scope.shown("engines[].bootstrap_host");
                faults.add(at, &shown, format!("bad host: {why}")).found = shown_text(text);
            }
        }
    }
    let mut bootstrap_port = scope
        .count("engines[].bootstrap_port")
        .and_then(|port| u16::try_from(port).ok());
    // An unpinned engine may be asked to prefill when no other can.
    if settings.dialect == Dialect::Sglang
        && (role == Role::Prefill || role == Role::Decode && !pin)
    {
        bootstrap_host.get_or_insert_with(|| url.host.clone());
        bootstrap_port.get_or_insert(SGLANG_BOOTSTRAP_PORT);
    }
    Engine {
        iid: scope.text("engines[].iid").unwrap_or_default().to_owned(),
        url,
        role,
        pin,
        bootstrap_host,
        bootstrap_port,
        attestation_url: scope.text("engines[].attestation_url").map(str::to_owned),
    }
}

/// The URL as written or, when it is exactly `${NAME}`, from the environment.
fn url(scope: &Scope<'_>, env: &Env<'_>, faults: &mut Faults<'_>) -> Url {
    let nowhere = Url {
        tls: false,
        host: String::new(),
        port: 80,
        prefix: String::new(),
    };
    let Some(text) = scope.text("engines[].url") else {
        return nowhere;
    };
    let (at, shown) = (scope.at("engines[].url"), scope.shown("engines[].url"));
    let variable = text
        .strip_prefix("${")
        .and_then(|rest| rest.strip_suffix('}'));
    let value = match variable {
        Some(name) if is_variable(name) => match env(name) {
            Some(value) if !value.trim().is_empty() => value.trim().to_owned(),
            blank => {
                let what = if blank.is_some() {
                    "is blank"
                } else {
                    "is not set"
                };
                faults.add(
                    at,
                    &shown,
                    format!("the environment variable {name} {what}"),
                );
                return nowhere;
            }
        },
        _ if text.contains("${") => {
            let fault = faults.add(at, &shown, "a variable must be the whole value");
            (fault.found, fault.allowed) = (shown_text(text), "${NAME}".to_owned());
            return nowhere;
        }
        _ => text.to_owned(),
    };
    match Url::parse(&value) {
        Ok(url) => url,
        Err(why) => {
            let fault = faults.add(at, &shown, format!("bad url: {why}"));
            // What stands before an `@` may be a password.
            if !value.contains('@') {
                fault.found = shown_text(&value);
            }
            if let Some(name) = variable {
                fault.hint = format!("it comes from the environment variable {name}");
            }
            nowhere
        }
    }
}

pub(super) fn settings(top: &Scope<'_>, env: &Env<'_>, faults: &mut Faults<'_>) -> EngineSettings {
    let dialect = dialect(top, faults);
    let own = match dialect {
        Dialect::Vllm => Connector::Nixl,
        Dialect::Sglang => Connector::Mooncake,
        Dialect::Openai => Connector::None,
    };
    let connector = word(top, "engine.connector", own);
    EngineSettings {
        dialect,
        connector,
        api_key: api_key(top, env, faults),
        tokenize: top.flag("engine.tokenize"),
        tokenize_timeout: top.seconds("engine.tokenize_timeout_s"),
        chars_per_token: top.real("engine.chars_per_token"),
        first_token_timeout: top.seconds("engine.first_token_timeout_s"),
        first_token_timeout_set: top.has("engine.first_token_timeout_s"),
        decode_read_timeout: unless_zero(top.seconds("engine.decode_read_timeout_s")),
        connect_timeout: top.seconds("engine.connect_timeout_s"),
        pool_timeout: top.seconds("engine.pool_timeout_s"),
        pool_max: Some(size(top, "engine.pool_max")).filter(|max| *max > 0),
        health_timeout: top.seconds("engine.health_timeout_s"),
        kv_lease: unless_zero(top.seconds("engine.kv_lease_s")),
        assembly_extra_fields: owned(top.texts("engine.assembly_extra_fields")),
        tls_ca_file: path(top, "engine.tls_ca_file"),
    }
}

fn dialect(top: &Scope<'_>, faults: &mut Faults<'_>) -> Dialect {
    let backend = top.text("engine.backend");
    let dialect = top.text("engine.dialect");
    if let (true, Some(backend), Some(dialect)) = (top.has("engine.backend"), backend, dialect)
        && backend != dialect
    {
        let fault = faults.add(
            top.at("engine.dialect"),
            "engine.dialect",
            "it is another name of engine.backend, and both are given and differ",
        );
        fault.found = format!("{dialect:?} and {backend:?}");
    }
    dialect
        .or(backend)
        .and_then(|word| Dialect::from_str(word).ok())
        .unwrap_or(Dialect::Vllm)
}

/// The key itself never gets into a message, nor does a value that may be the key written in the wrong place.
fn api_key(top: &Scope<'_>, env: &Env<'_>, faults: &mut Faults<'_>) -> Option<Secret> {
    const KEY: &str = "engine.engine_api_key_env";
    let name = top.text(KEY)?;
    let what = if !is_variable(name) {
        "not the name of an environment variable".to_owned()
    } else {
        match env(name).as_deref().map(str::trim) {
            None => format!("the environment variable {name} is not set"),
            Some("") => format!("the environment variable {name} is blank"),
            Some(key) if key.bytes().all(|b| b.is_ascii_graphic()) => {
                return Some(Secret::new(key));
            }
            Some(_) => {
                format!("the environment variable {name} holds characters that no bearer key may")
            }
        }
    };
    faults.add(top.at(KEY), KEY, what);
    None
}

/// The rules on dialect, connector, roles and bootstrap servers.
fn combinations(
    raw: &Raw<'_>,
    settings: &EngineSettings,
    engines: &[Engine],
    faults: &mut Faults<'_>,
) {
    const CONNECTOR: &str = "engine.connector";
    let (dialect, connector) = (settings.dialect, settings.connector);
    let spoken: &[Connector] = match dialect {
        Dialect::Vllm => &[Connector::Nixl, Connector::None],
        // Its bootstrap fields are the same over both.
        Dialect::Sglang => &[Connector::Mooncake, Connector::Nixl, Connector::None],
        Dialect::Openai => &[Connector::None],
    };
    if !spoken.contains(&connector) {
        let what = format!("the {dialect} dialect does not speak it");
        let fault = faults.add(raw.top.at(CONNECTOR), CONNECTOR, what);
        fault.found = shown_text(connector.name());
        let names: Vec<&str> = spoken.iter().map(|c| c.name()).collect();
        fault.allowed = names.join(", ");
    }
    for (scope, engine) in raw.engines.iter().zip(engines) {
        let (at, shown) = (scope.at("engines[].role"), scope.shown("engines[].role"));
        let role = engine.role;
        if dialect == Dialect::Openai && role == Role::Prefill {
            let fault = faults.add(at, &shown, "the openai dialect has no prefill leg");
            (fault.found, fault.allowed) = (shown_text(role.name()), "decode, both".to_owned());
        } else if dialect != Dialect::Openai && connector == Connector::None && role != Role::Both {
            let fault = faults.add(at, &shown, "engine.connector none moves no KV cache");
            (fault.found, fault.allowed) = (shown_text(role.name()), "both".to_owned());
        }
    }
    if dialect == Dialect::Sglang {
        bootstraps(raw, engines, faults);
    }
}

/// Two prefill engines cannot share a bootstrap server.
fn bootstraps(raw: &Raw<'_>, engines: &[Engine], faults: &mut Faults<'_>) {
    let mut seen: BTreeMap<(&str, u16), &str> = BTreeMap::new();
    for (scope, engine) in raw.engines.iter().zip(engines) {
        let (Some(host), Some(port)) = (&engine.bootstrap_host, engine.bootstrap_port) else {
            continue;
        };
        if engine.role != Role::Prefill || host.is_empty() {
            continue;
        }
        if let Some(first) = seen.insert((host, port), &engine.iid) {
            let key = "engines[].bootstrap_port";
            let what = format!("the same bootstrap server as engine {first:?}");
            let fault = faults.add(scope.at(key), &scope.shown(key), what);
            fault.found = format!("{}:{port}", bracketed(host));
            fault.hint = "give each prefill engine its own bootstrap_port".to_owned();
        }
    }
}

/// What is allowed and yet most likely not meant.
fn warn(settings: &EngineSettings, engines: &[Engine], warnings: &mut Vec<String>) {
    let can = |role| {
        let both = |e: &&Engine| e.role == Role::Both || e.role == role || !e.pin;
        settings.dialect == Dialect::Openai || engines.iter().any(|e| both(&e))
    };
    for role in [Role::Prefill, Role::Decode] {
        if !can(role) {
            warnings.push(format!(
                "engines: none can {role}; every request will get a 503"
            ));
        }
    }
    if settings.tls_ca_file.is_some() && !engines.iter().any(|engine| engine.url.tls) {
        warnings.push("engine.tls_ca_file: no engine is https".to_owned());
    }
    let mut urls: BTreeMap<String, &str> = BTreeMap::new();
    for (i, engine) in engines.iter().enumerate() {
        if let Some(first) = urls.insert(engine.url.to_string(), &engine.iid) {
            warnings.push(format!(
                "engines[{i}].url: the same as that of engine {first:?}"
            ));
        }
        if engine.url.prefix.ends_with("/v1") {
            warnings.push(format!(
                "engines[{i}].url: ends in /v1, and legs add /v1/… to it"
            ));
        }
        if settings.dialect != Dialect::Sglang && engine.bootstrap_port.is_some() {
            let dialect = settings.dialect;
            warnings.push(format!(
                "engines[{i}].bootstrap_port: the {dialect} dialect has no use for it"
            ));
        }
    }
}

/// A name that a shell could set: letters, digits and underscores, no digit first. POSIX.1-2017, 3.235.
fn is_variable(name: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    name.bytes().all(word) && !name.is_empty() && !name.starts_with(|ch: char| ch.is_ascii_digit())
}

/// Engine numbers are 16 bits; the board has a cache line for each.
pub(super) const ENGINES_MAX: usize = 4096;

/// An `iid` becomes a metric label and a header value's part.
const IID_BYTES_MAX: usize = 128;

/// Default of `--disaggregation-bootstrap-port` in SGLang's server arguments.
const SGLANG_BOOTSTRAP_PORT: u16 = 8998;
