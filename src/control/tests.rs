//! The control thread over real sockets: its routes, its health passes, its names and its signals.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use super::*;
use crate::base::units::EngineId;
use crate::config::AdminKey;
use crate::config::{Format, parse};
use crate::metrics::outcome::{End, RejectReason};
use crate::metrics::standing::{Answer, Standing};
use crate::shard::ControlRequest;
use crate::wire::h1::head::Method;

/// Long enough for any machine; no test waits for it unless it fails.
const LIMIT: Duration = Duration::from_secs(20);

/// A router of two shards; rows are iid, role and `host:port` of its engines.
fn shared(engines: &[(&str, &str, String)], liveness_every: u32) -> Arc<Shared> {
    let engine = |(iid, role, at): &(&str, &str, String)| json!({"iid": iid, "url": format!("http://{at}/base"), "role": role, "pin": true});
    let file = json!({
        "schema": "narwhal.fleet",
        "schema_version": 2,
        "model": "stub-model",
        "engines": engines.iter().map(engine).collect::<Vec<_>>(),
        "slo": {"ttft_s": 1, "tpot_s": 0.1},
        "serving": {"admission": "open", "max_connections": 4},
        "engine": {"health_timeout_s": 0.5},
        "controller": {"monitor_interval_s": 0.02},
        "recovery": {"liveness_every": liveness_every, "liveness_misses": 2},
    });
    let loaded = parse("f", &file.to_string(), Format::Json, &|_| None).unwrap();
    let snapshot = Snapshot::new(1, loaded.fleet);
    let state = shard::Shared::new(&snapshot, 2);
    let shard = || ShardFacts {
        ledger: Arc::new(ShardLedger::new()),
        times: Arc::new(ShardTimes::new()),
        core: Some(0),
        node: None,
        driver: "epoll",
    };
    Arc::new(Shared::new(
        "r1".into(),
        &Arc::new(snapshot),
        &Arc::new(state),
        vec![shard(), shard()],
    ))
}

/// Two engines that nobody probes.
pub(super) fn pair() -> Arc<Shared> {
    let at = |port| format!("127.0.0.1:{port}");
    shared(&[("e0", "prefill", at(9)), ("e1", "decode", at(10))], 0)
}

/// Admin port on, signals off.
fn quiet() -> Settings {
    Settings {
        admin_listen: Some("127.0.0.1:0".parse().unwrap()),
        admin_key: None,
        again: None,
        signals: false,
        names: resolve::Names::default(),
        seed: 1,
        tls: None,
        on_notice: Box::new(|_, _| ()),
    }
}

fn exchange(at: SocketAddr, head: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "{head}\r\nhost: t\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn fetch(at: SocketAddr, path: &str) -> (u16, Value) {
    let (status, _, body) = exchange(at, &format!("GET {path} HTTP/1.1"));
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

// proves R-CTL-1, R-OBS-1, R-OBS-2
#[test]
fn the_admin_port_answers_every_route() {
    let shared = pair();
    shared.shards[1].ledger.update(|t| {
        t.offer();
        t.end(End::Rejected(RejectReason::Seats));
    });
    let handle = start(shared.clone(), quiet()).unwrap();
    let at = handle.admin_address.unwrap();
    let want = json!({"status": "ok", "instances": 2, "available_instances": 2});
    assert_eq!(fetch(at, "/health?x=1"), (200, want));
    assert_eq!(fetch(at, "/ready").1["status"], "ready");
    assert_eq!(fetch(at, "/v1/models").1["data"][0]["id"], "stub-model");
    let state = fetch(at, "/narwhal/state").1;
    assert_eq!(
        (&state["offered"], &state["admission"]["rejected"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(state["shards"].as_array().unwrap().len(), 2);
    let (status, head, text) = exchange(at, "GET /metrics HTTP/1.1");
    assert_eq!(status, 200);
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(
        text.contains("\nnarwhal_rejected_total{reason=\"seats\"} 1\n"),
        "{text}"
    );
    let (status, body) = fetch(at, "/nope");
    assert_eq!(
        (status, &body["error"]["type"]),
        (404, &json!("invalid_request_error"))
    );
    let (status, head, _) = exchange(at, "POST /health HTTP/1.1");
    assert!(
        status == 405 && head.contains("\r\nallow: get, head"),
        "{head}"
    );
    let (status, head, body) = exchange(at, "HEAD /health HTTP/1.1");
    assert!(
        status == 200 && head.contains("content-length: ") && body.is_empty(),
        "{head}"
    );
    handle.stop();
}

// proves R-CTL-1, R-CTL-7
#[test]
fn a_drain_shows_on_ready_at_once() {
    let shared = pair();
    let handle = start(shared.clone(), quiet()).unwrap();
    let at = handle.admin_address.unwrap();
    assert_eq!(
        signals::on_signal(&shared.state.standing),
        signals::Notice::Drain
    );
    let (status, head, body) = exchange(at, "GET /ready HTTP/1.1");
    assert!(
        status == 503 && head.contains("\r\nretry-after: 1"),
        "{head}"
    );
    assert!(body.contains("shutting down"), "{body}");
    assert_eq!(fetch(at, "/health").0, 200);
    assert_eq!(shared.health().standing, Standing::Draining);
    handle.stop();
}

fn request(path: &str, loopback: bool, bearer: Option<&str>) -> ControlRequest {
    ControlRequest {
        token: 0,
        method: Method::Get,
        path: path.into(),
        bearer: bearer.map(|b| b.as_bytes().to_vec()),
        loopback,
        from_page: false,
        body: Vec::new(),
    }
}

fn ask(asker: &Asker, path: &str, loopback: bool, bearer: Option<&str>) -> Answer {
    let (send, answered) = channel();
    let request = request(path, loopback, bearer);
    let reply = Reply::new(move |answer| {
        let _ = send.send(answer);
    });
    asker.ask(Ask { request, reply });
    answered.recv_timeout(LIMIT).unwrap()
}

// proves R-CTL-1
#[test]
fn shards_ask_for_what_they_do_not_render() {
    let shared = pair();
    let settings = Settings {
        admin_listen: None,
        admin_key: AdminKey::new(b"sesame"),
        ..quiet()
    };
    let handle = start(shared, settings).unwrap();
    let asker = handle.asker();
    assert_eq!(ask(&asker, "/narwhal/state", true, None).status, 200);
    assert_eq!(ask(&asker, "/metrics", false, Some("sesame")).status, 200);
    assert_eq!(ask(&asker, "/metrics", false, Some("other")).status, 401);
    assert_eq!(ask(&asker, "/narwhal/nothing", true, None).status, 404);
    handle.stop();
    let late = ask(&asker, "/narwhal/state", true, None);
    assert_eq!(
        (late.status, late.retry_after),
        (503, Some(1)),
        "answered though nobody is there"
    );
}

#[test]
fn a_stuck_control_thread_blocks_no_shard() {
    let (asks, mut stuck) = mpsc::channel(1);
    let asker = Asker::new(asks);
    let (send, answered) = channel();
    for number in 0..2 {
        let send = send.clone();
        let reply = Reply::new(move |answer| {
            let _ = send.send((number, answer.status));
        });
        let request = request("/metrics", true, None);
        asker.ask(Ask { request, reply });
    }
    assert_eq!(
        answered.recv_timeout(LIMIT).unwrap(),
        (1, 503),
        "the queue holds one"
    );
    drop(stuck.try_recv());
    assert_eq!(
        answered.recv_timeout(LIMIT).unwrap(),
        (0, 503),
        "dropped, and answered so"
    );
}

#[test]
fn idle_peers_do_not_keep_others_out() {
    let handle = start(pair(), quiet()).unwrap();
    let at = handle.admin_address.unwrap();
    let mut idle: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(at).unwrap()).collect();
    idle[0].write_all(b"GET /health HT").unwrap();
    assert_eq!(fetch(at, "/health").0, 200);
    let taken = Settings {
        admin_listen: Some(at),
        ..quiet()
    };
    let refused = start(pair(), taken).map(|_| ()).unwrap_err();
    assert!(
        refused.to_string().contains(&format!("admin_listen {at}")),
        "{refused}"
    );
    handle.stop();
}

/// An engine that answers its health route with `healthy`, and notes the heads it was sent.
fn health_server(healthy: Arc<AtomicBool>) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (note, noted) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                head.push(byte[0]);
            }
            let status = if healthy.load(Acquire) {
                "200 OK"
            } else {
                "500 Oops"
            };
            let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            if note.send(String::from_utf8(head).unwrap()).is_err() {
                return;
            }
        }
    });
    (at, noted)
}

/// Asks until the answer is as wanted. The probes' own interval is what it waits for.
#[expect(clippy::disallowed_methods, reason = "a test's own deadline")]
fn until(at: SocketAddr, path: &str, want: impl Fn(&(u16, Value)) -> bool) {
    let end = Instant::now() + LIMIT;
    let mut last = fetch(at, path);
    while !want(&last) {
        assert!(Instant::now() < end, "still {last:?}");
        last = fetch(at, path);
    }
}

// proves R-CTL-1, R-ADM-7
#[test]
fn probes_take_engines_out_and_bring_them_back() {
    let healthy = Arc::new(AtomicBool::new(true));
    let (good, noted) = health_server(healthy.clone());
    // Bound, and nobody accepts: a connection that is taken and never answered.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let engines = [
        ("e0", "prefill", good.to_string()),
        ("e1", "decode", silent.local_addr().unwrap().to_string()),
        // A name that was left without an address.
        ("e2", "decode", "engine.invalid:80".to_owned()),
    ];
    let shared = shared(&engines, 1);
    let handle = start(shared.clone(), quiet()).unwrap();
    let at = handle.admin_address.unwrap();
    let no_decode = json!({"status": "not_ready", "control_ready": true, "epoch": null,
        "holder": null, "reason": "no decode engines"});
    until(at, "/ready", |got| *got == (503, no_decode.clone()));
    let live = |i| shared.state.board.line(EngineId(i)).is_live();
    assert_eq!([live(0), live(1), live(2)], [true, false, false]);
    let head = noted.recv_timeout(LIMIT).unwrap();
    assert!(head.starts_with("GET /base/health HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("host: {good}\r\n")), "{head}");
    healthy.store(false, Release);
    until(at, "/health", |got| got.1["status"] == "degraded");
    healthy.store(true, Release);
    until(at, "/health", |got| got.1["available_instances"] == 1);
    handle.stop();
}

#[test]
fn the_key_file_is_read_whole_or_named() {
    let dir = std::env::temp_dir().join(format!("narwhal-key-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("key");
    std::fs::write(&file, "sesame\n").unwrap();
    assert!(AdminKey::load(&file).unwrap().matches(b"sesame"));
    std::fs::write(&file, " \n").unwrap();
    for path in [file, dir.join("none")] {
        let error = AdminKey::load(&path).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
