//! The simulated engine over loopback, on both drivers.

use std::io::ErrorKind;
use std::net::SocketAddr;

use super::*;
use crate::config::Format;
use crate::runtime::monoio::{Monoio, Reader, Writer};
use crate::runtime::testing::{both_drivers, until};
use crate::stub::engine::{Engine, Setup};
use crate::stub::faults;
use crate::stub::profile::Profile;

fn server(profile: Profile) -> Server {
    with(Setup {
        profile,
        ..Setup::default()
    })
}

/// An engine under one rule.
fn faulty(rule: &str) -> Server {
    let text = format!(r#"{{"schema":"narwhal.faults","schema_version":1,"rules":[{rule}]}}"#);
    with(Setup {
        faults: faults::parse("f", &text, Format::Json).expect("a right script"),
        ..Setup::default()
    })
}

fn with(setup: Setup) -> Server {
    let clock = MonotonicClock::new();
    let world = World {
        engines: vec![Engine::new(setup, clock.now())],
        ..World::default()
    };
    Server {
        world: Rc::new(RefCell::new(world)),
        index: 0,
        clock,
        alarm: Rc::default(),
        events_per_write: 1,
    }
}

fn start(server: &Server) -> SocketAddr {
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = Monoio::listen(any, false, 64).expect("a free port");
    let addr = Monoio::local_addr(&listener).expect("bound");
    Monoio::spawn(server.clone().serve::<Monoio>(listener));
    addr
}

fn request(path: &str, body: &str, more: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: e\r\nContent-Type: application/json\r\n{more}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

struct Client {
    reader: Option<Reader>,
    writer: Option<Writer>,
    buf: Vec<u8>,
}

impl Client {
    async fn new(addr: SocketAddr) -> Self {
        let (reader, writer) = Monoio::connect(addr).await.expect("it listens");
        Client {
            reader: Some(reader),
            writer: Some(writer),
            buf: Vec::new(),
        }
    }

    async fn send(&mut self, bytes: Vec<u8>) {
        let writer = self.writer.take().expect("at rest");
        let (sent, _, writer) = writer.write_all(bytes, 0).await;
        sent.expect("it reads");
        self.writer = Some(writer);
    }

    /// Reads until `end` is there; returns everything through it.
    async fn until(&mut self, end: &str) -> String {
        loop {
            let end = end.as_bytes();
            if let Some(at) = self.buf.windows(end.len()).position(|w| w == end) {
                let rest = self.buf.split_off(at + end.len());
                let all = std::mem::replace(&mut self.buf, rest);
                return String::from_utf8(all).expect("text");
            }
            assert!(self.more().await, "ended before {end:?}: {:?}", self.buf);
        }
    }

    async fn more(&mut self) -> bool {
        self.read().await.is_ok_and(|n| n > 0)
    }

    async fn read(&mut self) -> io::Result<usize> {
        let reader = self.reader.take().expect("at rest");
        self.buf.reserve(4_096);
        let (got, buf, reader) = reader.read(std::mem::take(&mut self.buf)).await;
        self.buf = buf;
        self.reader = Some(reader);
        got
    }

    /// Reads to the end; how that came.
    async fn end(&mut self) -> Result<(), ErrorKind> {
        loop {
            match self.read().await {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error.kind()),
            }
        }
    }
}

const STREAM: &str = r#"{"prompt":"x","max_tokens":3,"stream":true,"return_token_ids":true}"#;

// proves R-CLI-3
#[test]
fn answers_one_request_after_the_other() {
    both_drivers(|| async {
        let server = server(Profile::default());
        let mut client = Client::new(start(&server)).await;
        // A stream, and a page asked for before it ended.
        let mut both = request("/v1/completions", STREAM, "X-Request-Id: r1\r\n");
        both.extend_from_slice(b"GET /version HTTP/1.1\r\nHost: e\r\n\r\n");
        client.send(both).await;
        let stream = client.until("0\r\n\r\n").await;
        assert!(stream.starts_with("HTTP/1.1 200 OK\r\ndate: "), "{stream}");
        assert_eq!(stream.matches(r#"data: {"id":"cmpl-r1","#).count(), 3);
        assert!(stream.ends_with("\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"));
        let page = client.until(r#"{"version":"0.32.0"}"#).await;
        assert!(page.contains("\r\ncontent-length: 20\r\n"));

        // A chunked body byte by byte, after `100 Continue`; then a close on request.
        let head = "POST /tokenize HTTP/1.1\r\nHost: e\r\nContent-Type: application/json\r\n\
                    Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(head.into()).await;
        assert_eq!(
            client.until("\r\n\r\n").await,
            "HTTP/1.1 100 Continue\r\n\r\n"
        );
        for byte in b"7\r\n{\"promp\r\n8\r\nt\":\"xx\"}\r\n0\r\n\r\n" {
            client.send(vec![*byte]).await;
        }
        client.until(r#"{"count":1,"#).await;
        client.until("}").await;
        client
            .send(b"HEAD /health HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n".to_vec())
            .await;
        let page = client.until("\r\n\r\n").await;
        assert!(page.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"));
        assert!(page.contains("connection: close\r\n"));
        assert!(!client.more().await);
    });
}

#[test]
fn what_is_no_http_is_told_and_closed() {
    both_drivers(|| async {
        let server = server(Profile::default());
        let mut client = Client::new(start(&server)).await;
        client
            .send(b"POST /v1/completions HTTP/1.1\r\nContent-Length: abc\r\n\r\n".to_vec())
            .await;
        let answer = client.until("Invalid HTTP request received.").await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"));
        assert!(!client.more().await);
    });
}

#[test]
fn a_client_that_leaves_stops_its_request() {
    both_drivers(|| async {
        let server = server(Profile::flat(0.0, 3_600_000.0));
        let addr = start(&server);
        let running = || server.world.borrow().engines[0].load().running();
        for body in [
            STREAM,
            &STREAM.replace(r#""stream":true"#, r#""stream":false"#),
        ] {
            // Gone; and only its sending side shut.
            for half in [false, true] {
                let mut client = Client::new(addr).await;
                client.send(request("/v1/completions", body, "")).await;
                until::<Monoio>(|| running() == 1).await;
                if half {
                    let writer = client.writer.as_mut().expect("at rest");
                    writer.shutdown().expect("connected");
                } else {
                    client.reader = None;
                    client.writer = None;
                }
                until::<Monoio>(|| running() == 0).await;
            }
        }
    });
}

// proves R-CLI-3
#[test]
fn connections_end_as_a_script_says() {
    const RESET: Result<(), ErrorKind> = Err(ErrorKind::ConnectionReset);
    // rule, events that come, how it ends
    let rows = [
        (r#"{"do":"close"}"#, 0, Ok(())),
        (r#"{"do":"reset"}"#, 0, RESET),
        (r#"{"at":"accept","do":"close"}"#, 0, Ok(())),
        (r#"{"at":"accept","do":"reset"}"#, 0, RESET),
        (r#"{"at":"event","events":2,"do":"close"}"#, 2, Ok(())),
        (r#"{"at":"event","events":2,"do":"reset"}"#, 2, RESET),
        (r#"{"at":"in_head","do":"close"}"#, 0, Ok(())),
        (r#"{"at":"end","do":"close"}"#, 4, Ok(())),
        (r#"{"framing":"close"}"#, 4, Ok(())),
        (r#"{"framing":"close","write_bytes":1}"#, 4, Ok(())),
    ];
    for (rule, events, end) in rows {
        both_drivers(move || async move {
            let mut client = Client::new(start(&faulty(rule))).await;
            if !rule.contains("accept") {
                client.send(request("/v1/completions", STREAM, "")).await;
            }
            if events > 0 && end.is_err() {
                // A reset throws away what was not read yet.
                client.until(r#""index":0,"text""#).await;
            }
            let got = client.end().await;
            assert_eq!(got, end, "{rule}");
            if end.is_ok() {
                let text = String::from_utf8_lossy(&client.buf).into_owned();
                assert_eq!(text.matches("data: ").count(), events, "{rule}: {text}");
            }
        });
    }
}

// proves R-CLI-3
#[test]
fn a_hung_answer_waits_for_its_client() {
    both_drivers(|| async {
        let server =
            faulty(r#"{"at":"event","events":1,"do":"hang"},{"leg":"health","keep_alive_ms":1}"#);
        let addr = start(&server);
        let mut client = Client::new(addr).await;
        client.send(request("/v1/completions", STREAM, "")).await;
        client.until("\n\n\r\n").await;
        assert_eq!(server.alarm.answering(), 1);
        drop(client);
        until::<Monoio>(|| server.alarm.answering() == 0).await;
        assert_eq!(server.world.borrow().engines[0].load().running(), 0);
    });
}

// proves R-CLI-3
#[test]
fn comments_come_in_silence() {
    both_drivers(|| async {
        let server = with(Setup {
            profile: Profile::flat(20.0, 0.0),
            keep_alive: Some(Duration::from_millis(2)),
            ..Setup::default()
        });
        let mut client = Client::new(start(&server)).await;
        client.send(request("/v1/completions", STREAM, "")).await;
        let all = client.until("0\r\n\r\n").await;
        let (before, after) = all.split_once("data: ").expect("an event");
        assert!(
            before.matches("\r\ne\r\n: keep-alive\n\n\r\n").count() >= 1,
            "{before}"
        );
        assert!(!after.contains("keep-alive"), "{after}");
    });
}

// proves R-CLI-3
#[test]
fn a_port_closes_and_comes_back_as_a_new_engine() {
    both_drivers(|| async {
        let server = faulty(r#"{"leg":"health","nth":2,"do":"restart","pause_ms":60}"#);
        let addr = start(&server);
        let name = || *server.world.borrow().engines[0].name();
        let before = name();
        let health = b"GET /health HTTP/1.1\r\nHost: e\r\n\r\n";
        let mut idle = Client::new(addr).await;
        idle.send(health.to_vec()).await;
        idle.until("200 OK").await;
        let mut client = Client::new(addr).await;
        client.send(health.to_vec()).await;
        client.until("503 ").await;
        // Closed to new clients and to idle ones.
        assert_eq!(idle.end().await, Ok(()));
        while Monoio::connect(addr).await.is_ok() {}
        until::<Monoio>(|| name() != before).await;
        let mut client = Client::new(addr).await;
        client.send(health.to_vec()).await;
        client.until("200 OK").await;
    });
}

// proves R-CLI-3
#[test]
fn an_engine_that_is_told_to_end_gives_up_what_runs() {
    both_drivers(|| async {
        let server = server(Profile::flat(0.0, 3_600_000.0));
        let addr = start(&server);
        let mut client = Client::new(addr).await;
        client.send(request("/v1/completions", STREAM, "")).await;
        client.until("\n\n\r\n").await;
        server.world.borrow_mut().abort();
        server.alarm.ring();
        let rest = client.until("0\r\n\r\n").await;
        assert!(rest.contains(r#""finish_reason":"abort""#), "{rest}");
        assert!(rest.contains("data: [DONE]"), "{rest}");
        client.send(request("/v1/completions", STREAM, "")).await;
        client
            .until("cannot schedule new futures after shutdown")
            .await;
    });
}
