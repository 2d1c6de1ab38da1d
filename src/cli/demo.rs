//! `narwhal demo`: a router and simulated engines in one process on loopback, without a file.
//!
//! The fleet is a text that goes through the same reader as a fleet file, and the router is the one that `serve` starts; only the
//! engines are not real. Their times are made up, near what a small model on a GPU shows to a person who watches.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process;
use std::thread;

use serde_json::json;

use super::router::{self, Plan};
use super::simulate::{self, Simulated};
use super::{Failure, flags};
use crate::base::units::Role;
use crate::config::topology::Snapshot;
use crate::config::{self, Format};
use crate::runtime::boot::DriverChoice;
use crate::stub::engine::Setup;
use crate::stub::profile::Profile;

const MODEL: &str = "demo";

/// Enough to see shards at work, on a machine of any size.
const SHARDS_MAX: usize = 4;

/// A prefill leg of a short prompt takes 40 ms and its KV moves in 5 ms; with the first token's 15 ms that is a first token
/// after 60 ms. Requests on the same engine slow each other down a little.
const PROFILE: Profile = Profile {
    ttft_a: 0.0,
    ttft_b: 0.000_1,
    ttft_c: 0.040,
    tpot_slope: 0.0,
    tpot_request_slope: 0.000_2,
    tpot_intercept: 0.015,
    transfer_s: 0.005,
    prefill_serial: true,
};

/// Tokens of an answer that no limit cuts: one to two seconds.
const ANSWER_TOKENS: (u64, u64) = (60, 120);

pub fn run(args: flags::Demo) -> Result<(), Failure> {
    let roles = roles(usize::from(args.engines));
    let engines = start_engines(roles.len())?;
    let text = fleet(&roles, &engines.addresses);
    let loaded = config::parse("the demo's fleet", &text, Format::Json, &|_| None)
        .map_err(Failure::config)?;
    let plan = Plan {
        router_id: None,
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, args.port))],
        signals: true,
        journal: None,
        again: None,
    };
    let router = router::start(Snapshot::new(1, loaded.fleet), plan).map_err(hint)?;
    watch(engines);
    if let [address] = router.addresses.as_slice() {
        // A closed standard output is no reason to stop serving.
        let _ = io::stdout().write_all(welcome(&roles, *address).as_bytes());
    }
    router.join()
}

/// Half prefill and half decode, decode first when the number is odd; a single engine does both.
fn roles(engines: usize) -> Vec<Role> {
    if engines == 1 {
        return vec![Role::Both];
    }
    let role = |index| {
        if index < engines / 2 {
            Role::Prefill
        } else {
            Role::Decode
        }
    };
    (0..engines).map(role).collect()
}

fn start_engines(count: usize) -> Result<Simulated, Failure> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let setup = Setup {
        model: MODEL.into(),
        profile: PROFILE,
        answer_tokens: Some(ANSWER_TOKENS),
        ..Setup::default()
    };
    simulate::start(vec![(any_port, setup); count], DriverChoice::Auto, None)
}

/// A fleet file in all but being a file.
fn fleet(roles: &[Role], addresses: &[SocketAddr]) -> String {
    let engine = |(index, (role, address)): (usize, (&Role, &SocketAddr))| {
        json!({
            "iid": format!("{role}-{index}"),
            "url": format!("http://{address}"),
            "role": role.name(),
        })
    };
    let engines = roles.iter().zip(addresses).enumerate().map(engine);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    json!({
        "schema": "narwhal.fleet",
        "schema_version": 2,
        "model": MODEL,
        "engines": engines.collect::<Vec<_>>(),
        "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
        // Whoever ends a demo wants it to end.
        "serving": {"admission": "open", "drain_window_s": 0.2, "graceful_timeout_s": 2.0},
        "runtime": {"shards": cores.min(SHARDS_MAX)},
    })
    .to_string()
}

/// A demo without its engines is none: their end is the process's.
fn watch(engines: Simulated) {
    thread::spawn(move || {
        if let Err(failure) = engines.join() {
            eprintln!("narwhal: {failure}");
        }
        process::exit(1);
    });
}

/// Port 8000 is a common one.
fn hint(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(why) if why.starts_with("listen ") => {
            Failure::Failed(format!("{why}; --port chooses another, 0 any free one"))
        }
        other => other,
    }
}

fn welcome(roles: &[Role], address: SocketAddr) -> String {
    let count = |role: Role| roles.iter().filter(|r| **r == role).count();
    let engines = match roles {
        [_] => "1 simulated engine".to_owned(),
        _ => format!(
            "{} prefill and {} decode engines, simulated",
            count(Role::Prefill),
            count(Role::Decode)
        ),
    };
    let curl = |option: &str, more: &str| {
        let message = r#"[{"role":"user","content":"Hello"}]"#;
        format!(
            "curl {option}http://{address}/v1/chat/completions -H 'content-type: application/json' \
             -d '{{\"model\":\"{MODEL}\",\"messages\":{message}{more}}}'"
        )
    };
    format!(
        "narwhal demo on http://{address}: {engines}\n\n\
         a streamed answer:\n  {}\n\
         an assembled one:\n  {}\n\
         the router's state:\n  http://{address}/narwhal/state\n\
         its metrics:\n  http://{address}/metrics\n\n\
         Ctrl-C ends it.\n",
        curl("-N ", r#","stream":true"#),
        curl("", ""),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fleet_is_valid_for_any_number_of_engines() {
        for count in 1..=64 {
            let roles = roles(count);
            let addresses: Vec<SocketAddr> = (1..=count as u16)
                .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
                .collect();
            let text = fleet(&roles, &addresses);
            let loaded = config::parse("f", &text, Format::Json, &|_| None)
                .unwrap_or_else(|faults| panic!("{count}: {faults}"));
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            assert!(loaded.not_used.is_empty());
            super::super::serve::supported(&loaded.fleet).expect("all of it is built");
            let has = |role| roles.contains(&role);
            let both = count == 1;
            assert_eq!(
                (has(Role::Both), has(Role::Prefill), has(Role::Decode)),
                (both, !both, !both)
            );
        }
    }
}
