//! What is told once, and what real sockets make of engines of each kind.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use super::*;
use crate::config::topology::{Profile, Snapshot};
use crate::config::{Format, parse};
use crate::control::{Settings, resolve, start};
use crate::shard;

#[test]
fn a_digest_tells_models_versions_and_lengths_apart() {
    let rows = [
        ("m", Some("1"), Some(8)),
        ("m", Some("1"), None),
        ("m", None, Some(8)),
        ("m", Some("2"), Some(8)),
        ("m\",\"1", None, None),
        ("n", Some("1"), Some(8)),
    ];
    let digests: BTreeSet<_> = rows.iter().map(|(m, v, l)| digest(m, *v, *l)).collect();
    assert_eq!(digests.len(), rows.len());
    // `printf '["m","1",8]' | sha256sum`
    assert_eq!(
        digest("m", Some("1"), Some(8)),
        "sha256:a77bec214dba02e2d80ed0f7a065ad4a0921e1664b2a6e9a4a7efb76b118cd94"
    );
}

/// Rows: what is found one after the other (`p` as profiled, `a` and `b` others, `x` another model), and what is said of each
/// (`!` a warning, `=` all is well again, `.` nothing).
// proves R-SCH-1
#[test]
fn each_change_is_told_once() {
    let found = |c| match c {
        'x' => Found::OtherModel,
        c => Found::Generation {
            digest: c.to_string(),
            version: None,
            len_max: None,
        },
    };
    for (finds, want) in [
        ("ppp", "..."),
        ("paap", ".!.="),
        ("aabxxa", "!.!!.!"),
        ("apa", "!=!"),
    ] {
        let mut told = Told::default();
        let said = finds.chars().map(|c| match told.learn(&found(c), "p") {
            Some(Line::Differs) => '!',
            Some(Line::MatchesAgain) => '=',
            None => '.',
        });
        assert_eq!(said.collect::<String>(), want, "{finds}");
    }
}

#[test]
fn what_is_not_told_and_what_is_trouble() {
    for status in [400, 401, 403, 404, 405, 410, 499, 501] {
        assert!(is_not_told(status), "{status}");
    }
    for status in [0, 100, 204, 302, 408, 429, 500, 502, 503, 504] {
        assert!(!is_not_told(status), "{status}");
    }
}

/// Long enough for any machine; no test waits for it unless it fails.
const LIMIT: Duration = Duration::from_secs(20);

type Pages = BTreeMap<&'static str, (u16, String)>;

/// An engine of these pages, each answer on a connection of its own; others are 404. Tells the path and key of each question.
struct Engine {
    at: SocketAddr,
    pages: watch::Sender<Pages>,
    asked: Receiver<(String, Option<String>)>,
}

impl Engine {
    fn start(pages: Pages) -> Engine {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let (pages, own) = watch::channel(pages);
        let (tell, asked) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if answer(&mut stream.unwrap(), &own, &tell).is_none() {
                    return;
                }
            }
        });
        Engine { at, pages, asked }
    }

    fn say(&self, path: &'static str, status: u16, body: &str) {
        let page = (status, body.to_owned());
        self.pages
            .send_modify(|pages| drop(pages.insert(path, page)));
    }

    /// The next question but those for its health.
    fn question(&self) -> (String, Option<String>) {
        self.asked.recv_timeout(LIMIT).unwrap()
    }
}

/// `None` when nobody listens any more.
fn answer(
    stream: &mut (impl Read + Write),
    pages: &watch::Receiver<Pages>,
    tell: &Sender<(String, Option<String>)>,
) -> Option<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let page = pages.borrow().get(path.as_str()).cloned();
    let (status, body) = page.unwrap_or((404, "{}".into()));
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    if path.ends_with("/health") {
        return Some(());
    }
    let key = head.lines().find_map(|l| l.strip_prefix("authorization: "));
    tell.send((path, key.map(str::to_owned))).ok()
}

/// A router with one engine, `probed` every 10 ms or never.
fn router(dialect: &str, at: SocketAddr, profiled: Option<&str>, probed: bool) -> Arc<Shared> {
    let file = json!({
        "schema": "narwhal.fleet", "schema_version": 2, "model": "m",
        "engines": [{"iid": "e0", "url": format!("http://{at}/base"), "role": "both"}],
        "slo": {"ttft_s": 1, "tpot_s": 0.1},
        "serving": {"admission": "open"},
        "engine": {
            "dialect": dialect, "connector": "none", "health_timeout_s": 5, "engine_api_key_env": "KEY",
        },
        "controller": {"monitor_interval_s": 0.01},
        "recovery": {"liveness_every": u8::from(probed), "liveness_misses": 2},
    });
    let key = |_: &str| Some("sesame".to_owned());
    let loaded = parse("f", &file.to_string(), Format::Json, &key).unwrap();
    let profile = Profile {
        iid: "e0".into(),
        generation_digest: profiled.map(str::to_owned),
        ..Profile::default()
    };
    let snapshot = Snapshot::new(1, loaded.fleet).with_profiles(vec![profile]);
    let state = Arc::new(shard::Shared::new(&snapshot, 1));
    Arc::new(Shared::new(
        "r".into(),
        &Arc::new(snapshot),
        &state,
        Vec::new(),
    ))
}

fn quiet() -> Settings {
    Settings {
        admin_listen: None,
        admin_key: None,
        again: None,
        seed: 1,
        signals: false,
        names: resolve::Names::default(),
        tls: None,
        on_notice: Box::new(|_, _| ()),
    }
}

#[expect(clippy::disallowed_methods, reason = "a test's own deadline")]
fn until(what: &str, come: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !come() {
        assert!(Instant::now() < end, "{what} did not come about");
        // A pause between two looks; nobody wakes it.
        thread::park_timeout(Duration::from_millis(1));
    }
}

fn pages<const N: usize>(rows: [(&'static str, u16, &str); N]) -> Pages {
    let row = |(path, status, body): (_, _, &str)| (path, (status, body.to_owned()));
    rows.map(row).into()
}

const LIST: &str = r#"{"data":[{"id":"adapter"},{"id":"m","max_model_len":8}]}"#;
const NO_LENGTH: &str = r#"{"data":[{"id":"m"}]}"#;
const TWO: &str = r#"{"version":"2","more":[1]}"#;

/// Rows: dialect, pages, version and length of the profile's digest, what it comes to.
// proves R-SCH-1
#[test]
fn engines_of_each_kind_are_compared() {
    const M: &str = "/base/v1/models";
    const V: &str = "/base/version";
    const S: &str = "/base/server_info";
    const OLD: &str = "/base/get_server_info";
    let (same, other) = (DigestMatch::Match, DigestMatch::Mismatch);
    let rows = [
        (
            "vllm",
            pages([(M, 200, LIST), (V, 200, TWO)]),
            (Some("2"), Some(8)),
            same,
        ),
        (
            "vllm",
            pages([(M, 200, LIST), (V, 200, TWO)]),
            (Some("1"), Some(8)),
            other,
        ),
        (
            "vllm",
            pages([(M, 200, LIST), (V, 200, TWO)]),
            (Some("2"), Some(9)),
            other,
        ),
        (
            "vllm",
            pages([(M, 200, LIST), (V, 403, "no")]),
            (None, Some(8)),
            same,
        ),
        ("vllm", pages([(M, 200, LIST)]), (None, Some(8)), same),
        (
            "vllm",
            pages([(M, 200, r#"{"data":[{"id":"n"}]}"#)]),
            (None, None),
            other,
        ),
        (
            "vllm",
            pages([(M, 200, r#"{"data":[]}"#)]),
            (None, None),
            other,
        ),
        (
            "sglang",
            pages([(M, 200, LIST), (S, 200, TWO), (OLD, 500, "")]),
            (Some("2"), Some(8)),
            same,
        ),
        (
            "sglang",
            pages([(M, 200, LIST), (OLD, 200, TWO)]),
            (Some("2"), Some(8)),
            same,
        ),
        (
            "sglang",
            pages([(M, 200, LIST), (V, 200, TWO)]),
            (Some("2"), Some(8)),
            other,
        ),
        (
            "openai",
            pages([(M, 200, NO_LENGTH), (V, 500, "")]),
            (None, None),
            same,
        ),
    ];
    for (n, (dialect, pages, (version, len_max), want)) in rows.into_iter().enumerate() {
        let engine = Engine::start(pages);
        let shared = router(
            dialect,
            engine.at,
            Some(&digest("m", version, len_max)),
            false,
        );
        assert_eq!(shared.digests.of(EngineId(0)), DigestMatch::Unknown);
        let handle = start(shared.clone(), quiet()).unwrap();
        until(&format!("row {n}"), || {
            shared.digests.of(EngineId(0)) == want
        });
        assert_eq!(
            engine.question(),
            (M.to_owned(), Some("Bearer sesame".into()))
        );
        handle.stop();
    }
}

/// Unknown stays unknown while an engine cannot be heard, and it is asked again until it can be.
// proves R-SCH-1
#[test]
fn what_an_engine_does_not_say_is_neither() {
    const M: &str = "/base/v1/models";
    const V: &str = "/base/version";
    let large = format!(
        r#"{{"data":[{{"id":"m"}}],"x":"{}"}}"#,
        "x".repeat(PAGE_BYTES_MAX)
    );
    let deep = "[".repeat(10_000);
    let rows = [
        pages([(M, 401, "{}")]),
        pages([(M, 503, LIST)]),
        pages([(M, 204, "")]),
        pages([(M, 200, "")]),
        pages([(M, 200, "{\"data\":[")]),
        pages([(M, 200, r#"{"data":{"id":"n"}}"#)]),
        pages([(M, 200, &large)]),
        pages([(M, 200, &deep)]),
        pages([(M, 200, LIST), (V, 500, TWO)]),
    ];
    for (n, pages) in rows.into_iter().enumerate() {
        let engine = Engine::start(pages);
        let shared = router(
            "vllm",
            engine.at,
            Some(&digest("m", Some("2"), Some(8))),
            false,
        );
        let handle = start(shared.clone(), quiet()).unwrap();
        let known = || shared.digests.of(EngineId(0)) != DigestMatch::Unknown;
        // The second time it is asked for its models, the first answer has been weighed.
        for _ in 0..2 {
            while engine.question().0 != M {}
            assert!(!known(), "row {n}");
        }
        engine.say(M, 200, LIST);
        engine.say(V, 200, TWO);
        until(&format!("row {n}"), known);
        assert_eq!(
            shared.digests.of(EngineId(0)),
            DigestMatch::Match,
            "row {n}"
        );
        handle.stop();
    }
}

/// Once at start, once for each time it comes back, and never for engines without a digest.
// proves R-SCH-1
#[test]
fn an_engine_is_asked_when_it_comes_back() {
    let engine = Engine::start(pages([
        ("/base/health", 200, ""),
        ("/base/v1/models", 200, LIST),
        ("/base/version", 200, TWO),
    ]));
    let of = |shared: &Shared| shared.digests.of(EngineId(0));
    let idle = start(router("vllm", engine.at, None, true), quiet()).unwrap();
    let shared = router(
        "vllm",
        engine.at,
        Some(&digest("m", Some("2"), Some(8))),
        true,
    );
    let handle = start(shared.clone(), quiet()).unwrap();
    let asked = || [engine.question().0, engine.question().0];
    let both = ["/base/v1/models", "/base/version"];
    assert_eq!(asked(), both);
    until("a match", || of(&shared) == DigestMatch::Match);
    engine.say("/base/health", 500, "");
    until("gone", || of(&shared) == DigestMatch::Unknown);
    engine.say("/base/version", 200, r#"{"version":"3"}"#);
    engine.say("/base/health", 200, "");
    until("another", || of(&shared) == DigestMatch::Mismatch);
    assert_eq!(asked(), both);
    assert!(
        engine.asked.try_recv().is_err(),
        "asked more often than that"
    );
    idle.stop();
    handle.stop();
}
