//! Names with a resolver of the test's own, alone and behind a running control thread.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};

use serde_json::json;

use super::*;
use crate::config::{Format, parse};
use crate::control::{self, Settings};
use crate::shard;

/// Long enough for any machine; no test waits for it unless it fails.
const LIMIT: Duration = Duration::from_secs(20);

fn snapshot(urls: &[&str]) -> Snapshot {
    let engine = |(n, url): (usize, &&str)| json!({"iid": format!("e{n}"), "url": url});
    let file = json!({
        "schema": "narwhal.fleet", "schema_version": 2, "model": "m",
        "engines": urls.iter().enumerate().map(engine).collect::<Vec<_>>(),
        "slo": {"ttft_s": 1, "tpot_s": 0.1},
        "serving": {"admission": "open"},
        "recovery": {"liveness_every": 0},
    });
    let loaded = parse("f", &file.to_string(), Format::Json, &|_| None).unwrap();
    Snapshot::new(1, loaded.fleet)
}

fn shared(snapshot: Snapshot) -> Arc<Shared> {
    let state = Arc::new(shard::Shared::new(&snapshot, 1));
    Arc::new(Shared::new(
        "r".into(),
        &Arc::new(snapshot),
        &state,
        Vec::new(),
    ))
}

fn settings(resolver: impl Resolver) -> Settings {
    Settings {
        admin_listen: None,
        admin_key: None,
        again: None,
        seed: 1,
        signals: false,
        names: Names {
            resolver: Arc::new(resolver),
            every: Duration::ZERO,
        },
        tls: None,
        on_notice: Box::new(|_, _| ()),
    }
}

fn ips(text: &str) -> Vec<IpAddr> {
    let words = text.split_whitespace();
    words.map(|word| word.parse().unwrap()).collect()
}

fn sockets(text: &str) -> Vec<SocketAddr> {
    let words = text.split_whitespace();
    words.map(|word| word.parse().unwrap()).collect()
}

fn unknown() -> io::Error {
    io::Error::other("no such name")
}

// proves R-LEG-7
#[test]
fn names_are_asked_once_each_and_numbers_never() {
    let urls = [
        "http://gpu:1",
        "http://10.0.0.9:2",
        "https://gpu",
        "http://[::1]:3",
        "http://gone:4",
        "http://empty:5",
    ];
    let mut snapshot = snapshot(&urls);
    let (asked, questions) = channel();
    let resolver = move |host: &str| {
        asked.send(host.to_owned()).unwrap();
        match host {
            "gpu" => Ok(ips("10.0.0.1 fd00::1 10.0.0.1")),
            "empty" => Ok(Vec::new()),
            _ => Err(unknown()),
        }
    };
    let errors = fill(&mut snapshot, &resolver);
    let errors: Vec<String> = errors.iter().map(ResolveError::to_string).collect();
    assert_eq!(
        errors,
        [
            "host `empty` has no address",
            "host `gone` does not resolve: no such name",
        ]
    );
    assert_eq!(
        questions.try_iter().collect::<Vec<_>>(),
        ["empty", "gone", "gpu"]
    );
    let of = |n: usize| snapshot.engines[n].addrs.clone();
    assert_eq!(of(0), sockets("10.0.0.1:1 [fd00::1]:1"));
    assert_eq!(of(1), sockets("10.0.0.9:2"));
    assert_eq!(of(2), sockets("10.0.0.1:443 [fd00::1]:443"));
    assert_eq!(of(3), sockets("[::1]:3"));
    assert!(of(4).is_empty() && of(5).is_empty());
}

#[test]
fn a_name_keeps_so_many_addresses() {
    let resolver = |_: &str| Ok((0..=255).map(|n| IpAddr::from([10, 0, 0, n])).collect());
    let found = resolve(&resolver, "many").unwrap();
    assert_eq!(found.len(), limits::ADDRESSES_MAX);
    assert_eq!(found[0], ips("10.0.0.0")[0]);
}

// proves R-LEG-7
#[test]
fn a_lookup_that_fails_keeps_what_was_known_and_is_told_once() {
    let shared = shared(snapshot(&["http://gpu:1", "http://gpu:2"]));
    let known = &shared.state.addresses;
    let mut host = Host::new(known, vec![(EngineId(0), 1), (EngineId(1), 2)]);
    // What a lookup finds, what is told, what is known then of the first engine.
    let rows = [
        ("", "", ""), // The start has told.
        ("1.1.1.1", "now", "1.1.1.1:1"),
        ("1.1.1.1", "", "1.1.1.1:1"),
        ("", "lost", "1.1.1.1:1"),
        ("", "", "1.1.1.1:1"),
        ("1.1.1.1", "now", "1.1.1.1:1"),
        ("2.2.2.2 1.1.1.1", "now", "2.2.2.2:1 1.1.1.1:1"),
        ("1.1.1.1 2.2.2.2", "", "2.2.2.2:1 1.1.1.1:1"),
        ("", "lost", "2.2.2.2:1 1.1.1.1:1"),
        ("3.3.3.3", "now", "3.3.3.3:1"),
    ];
    for (n, (finds, told, then)) in rows.iter().enumerate() {
        let found = resolve(&|_: &str| Ok(ips(finds)), "gpu");
        let news = match host.learn(known, found) {
            News::Nothing => "",
            News::Now(_) => "now",
            News::Lost(_) => "lost",
        };
        assert_eq!(news, *told, "row {n}");
        assert_eq!(*known.of(EngineId(0)), sockets(then), "row {n}");
        let second = sockets(&then.replace(":1 ", ":2 ").replace(":1", ":2"));
        assert_eq!(*known.of(EngineId(1)), second, "row {n}");
    }
}

/// Waits until a lookup that began after this call has been learned: lookups of a name follow each other.
fn after_a_lookup(lookups: &Receiver<()>) {
    while lookups.try_recv().is_ok() {}
    for _ in 0..3 {
        lookups.recv_timeout(LIMIT).expect("names are asked again");
    }
}

// proves R-LEG-7
#[test]
fn the_control_thread_asks_again_and_publishes() {
    const ANSWERS: [&str; 4] = ["", "10.0.0.1 10.0.0.2", "", "10.0.0.2"];
    let mut snapshot = snapshot(&["http://gpu:1", "http://10.0.0.9:2"]);
    let now = Arc::new(AtomicUsize::new(0));
    let (asked, lookups) = channel();
    let resolver = {
        let now = now.clone();
        move |_: &str| {
            let _ = asked.send(());
            match ANSWERS[now.load(SeqCst)] {
                "" => Err(unknown()),
                answer => Ok(ips(answer)),
            }
        }
    };
    assert_eq!(fill(&mut snapshot, &resolver).len(), 1);
    let shared = shared(snapshot);
    let handle = control::start(shared.clone(), settings(resolver)).unwrap();
    let known = &shared.state.addresses;
    let wants = [
        "",
        "10.0.0.1:1 10.0.0.2:1",
        "10.0.0.1:1 10.0.0.2:1",
        "10.0.0.2:1",
    ];
    for (answer, want) in wants.iter().enumerate() {
        now.store(answer, SeqCst);
        after_a_lookup(&lookups);
        assert_eq!(*known.of(EngineId(0)), sockets(want), "answer {answer}");
    }
    assert_eq!(known.version(), 2, "two of the answers were changes");
    assert_eq!(*known.of(EngineId(1)), sockets("10.0.0.9:2"));
    handle.stop();
}

// proves R-LEG-7
#[test]
fn a_resolver_that_hangs_holds_nothing_up() {
    let mut snapshot = snapshot(&["http://gpu:1"]);
    fill(&mut snapshot, &|_: &str| Ok(ips("10.0.0.1")));
    let (asked, lookups) = channel();
    // Nobody else comes.
    let barrier = std::sync::Barrier::new(2);
    let resolver = move |_: &str| {
        let _ = asked.send(());
        barrier.wait();
        Err(unknown())
    };
    let shared = shared(snapshot);
    let handle = control::start(shared.clone(), settings(resolver)).unwrap();
    lookups.recv_timeout(LIMIT).expect("it is asked");
    let (send, answered) = channel();
    let request = crate::shard::ControlRequest {
        token: 0,
        method: crate::wire::h1::head::Method::Get,
        path: "/health".into(),
        bearer: None,
        loopback: true,
        from_page: false,
        body: Vec::new(),
    };
    let reply = control::Reply::new(move |answer| {
        let _ = send.send(answer.status);
    });
    handle.asker().ask(control::Ask { request, reply });
    assert_eq!(answered.recv_timeout(LIMIT), Ok(200));
    handle.stop();
    assert_eq!(
        *shared.state.addresses.of(EngineId(0)),
        sockets("10.0.0.1:1")
    );
}

// proves R-LEG-7
#[test]
fn the_system_knows_this_machine() {
    let found = System.resolve("localhost").unwrap();
    assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
    // A name that RFC 6761 section 6.4 keeps from ever resolving.
    assert!(System.resolve("engine.invalid").is_err());
}
