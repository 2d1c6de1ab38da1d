//! The control thread over real sockets: its routes, its health passes, its names and its signals.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};

use super::*;
use crate::metrics::outcome::{End, RejectReason};
use crate::metrics::standing::Standing;

/// Long enough for any machine; no test waits for it unless it fails.
const LIMIT: Duration = Duration::from_secs(20);

/// A board that tells the test about every flag set.
struct Board {
    live: Vec<AtomicBool>,
    told: Mutex<Sender<(usize, bool)>>,
}

impl EngineLines for Board {
    fn count(&self) -> usize {
        self.live.len()
    }

    fn line(&self, engine: usize) -> EngineLine {
        EngineLine {
            live: self.live[engine].load(Acquire),
            ..EngineLine::default()
        }
    }

    fn set_live(&self, engine: usize, live: bool) {
        self.live[engine].store(live, Release);
        let _ = self.told.lock().unwrap().send((engine, live));
    }
}

fn shared(engines: Vec<EngineFacts>) -> (Arc<Shared>, Receiver<(usize, bool)>) {
    let (told, telling) = channel();
    let board = Board {
        live: engines.iter().map(|_| AtomicBool::new(true)).collect(),
        told: Mutex::new(told),
    };
    let shard = || ShardFacts {
        ledger: Arc::new(ShardLedger::new()),
        times: Arc::new(ShardTimes::new()),
        core: Some(0),
        node: None,
        driver: "epoll",
    };
    let shared = Shared {
        router_id: "r1".into(),
        models: vec!["stub-model".into()],
        token_accounting: TokenAccounting::TokenIds,
        mode: AdmissionMode::Open,
        limits: Limits {
            seats: 4,
            queue: 0,
            retained: 4,
        },
        one_leg: false,
        engines,
        board: Arc::new(board),
        shards: vec![shard(), shard()],
        gate: Arc::new(Gate::new()),
    };
    (Arc::new(shared), telling)
}

fn engine(iid: &str, role: Role, address: SocketAddr) -> EngineFacts {
    EngineFacts {
        iid: iid.into(),
        role,
        pinned: true,
        tls: false,
        host: address.ip().to_string(),
        port: address.port(),
        prefix: "/base".into(),
        addresses: vec![address],
    }
}

fn pair() -> Vec<EngineFacts> {
    let nowhere = "127.0.0.1:9".parse().unwrap();
    vec![
        engine("e0", Role::Prefill, nowhere),
        engine("e1", Role::Decode, nowhere),
    ]
}

/// Admin port on, probes and signals off.
fn quiet() -> Settings {
    Settings {
        admin_listen: Some("127.0.0.1:0".parse().unwrap()),
        liveness_every: 0,
        signals: false,
        ..Settings::default()
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
    let (shared, _board) = shared(pair());
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
    let (shared, _board) = shared(pair());
    let handle = start(shared.clone(), quiet()).unwrap();
    let at = handle.admin_address.unwrap();
    assert_eq!(signals::on_signal(&shared.gate), signals::Notice::Drain);
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

fn ask(asker: &Asker, path: &str, loopback: bool, bearer: Option<&str>) -> Answer {
    let (send, answered) = channel();
    asker.ask(Ask {
        method: "GET".into(),
        path: path.into(),
        loopback,
        bearer: bearer.map(|b| b.as_bytes().to_vec()),
        reply: Reply::new(move |answer| {
            let _ = send.send(answer);
        }),
    });
    answered.recv_timeout(LIMIT).unwrap()
}

// proves R-CTL-1
#[test]
fn shards_ask_for_what_they_do_not_render() {
    let (shared, _board) = shared(pair());
    let settings = Settings {
        admin_listen: None,
        admin_key: admin::AdminKey::new(b"sesame"),
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
    let asker = Asker(asks);
    let (send, answered) = channel();
    for number in 0..2 {
        let send = send.clone();
        let reply = Reply::new(move |answer| {
            let _ = send.send((number, answer.status));
        });
        let (method, path) = ("GET".into(), "/metrics".into());
        asker.ask(Ask {
            method,
            path,
            loopback: true,
            bearer: None,
            reply,
        });
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
    let (shared, _board) = shared(pair());
    let handle = start(shared, quiet()).unwrap();
    let at = handle.admin_address.unwrap();
    let mut idle: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(at).unwrap()).collect();
    idle[0].write_all(b"GET /health HT").unwrap();
    assert_eq!(fetch(at, "/health").0, 200);
    let taken = Settings {
        admin_listen: Some(at),
        ..quiet()
    };
    let refused = start(self::shared(pair()).0, taken)
        .map(|_| ())
        .unwrap_err();
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

// proves R-CTL-1, R-ADM-7
#[test]
fn probes_take_engines_out_and_bring_them_back() {
    let healthy = Arc::new(AtomicBool::new(true));
    let (good, noted) = health_server(healthy.clone());
    // Bound, and nobody accepts: a connection that is taken and never answered.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let unresolved = EngineFacts {
        addresses: vec![],
        ..engine("e2", Role::Decode, "127.0.0.1:9".parse().unwrap())
    };
    let engines = vec![
        engine("e0", Role::Prefill, good),
        engine("e1", Role::Decode, silent.local_addr().unwrap()),
        unresolved,
    ];
    let (shared, board) = shared(engines);
    let settings = Settings {
        monitor_interval: Duration::from_millis(20),
        health_timeout: Duration::from_millis(500),
        liveness_every: 1,
        liveness_misses: 2,
        ..quiet()
    };
    let handle = start(shared, settings).unwrap();
    let at = handle.admin_address.unwrap();
    let mut out = [
        board.recv_timeout(LIMIT).unwrap(),
        board.recv_timeout(LIMIT).unwrap(),
    ];
    out.sort_unstable();
    assert_eq!(out, [(1, false), (2, false)]);
    assert_eq!(fetch(at, "/ready"), {
        let no_decode = json!({"status": "not_ready", "control_ready": true, "epoch": null,
            "holder": null, "reason": "no decode engines"});
        (503, no_decode)
    });
    let head = noted.recv_timeout(LIMIT).unwrap();
    assert!(head.starts_with("GET /base/health HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("host: {good}\r\n")), "{head}");
    healthy.store(false, Release);
    assert_eq!(board.recv_timeout(LIMIT).unwrap(), (0, false));
    assert_eq!(fetch(at, "/health").1["status"], "degraded");
    healthy.store(true, Release);
    assert_eq!(board.recv_timeout(LIMIT).unwrap(), (0, true));
    handle.stop();
}
