//! The simulated engine over loopback, on both drivers.

use std::net::SocketAddr;

use super::*;
use crate::runtime::monoio::{Monoio, Reader, Writer};
use crate::runtime::testing::{both_drivers, until};
use crate::stub::engine::{Engine, Setup};
use crate::stub::profile::Profile;

fn server(profile: Profile) -> Server {
    let clock = MonotonicClock::new();
    let setup = Setup {
        profile,
        ..Setup::default()
    };
    let world = World {
        engines: vec![Engine::new(setup, clock.now())],
        ..World::default()
    };
    Server {
        world: Rc::new(RefCell::new(world)),
        index: 0,
        clock,
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
        let reader = self.reader.take().expect("at rest");
        self.buf.reserve(4_096);
        let (got, buf, reader) = reader.read(std::mem::take(&mut self.buf)).await;
        self.buf = buf;
        self.reader = Some(reader);
        got.is_ok_and(|n| n > 0)
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
                until(|| running() == 1).await;
                if half {
                    let writer = client.writer.as_mut().expect("at rest");
                    writer.shutdown().expect("connected");
                } else {
                    client.reader = None;
                    client.writer = None;
                }
                until(|| running() == 0).await;
            }
        }
    });
}

#[test]
fn chunk_sizes_have_no_leading_zeros() {
    for n in [1, 15, 16, 255, 256, 4_096, 70_000] {
        let mut out = Vec::new();
        put_chunk(&vec![b'x'; n], &mut out);
        assert!(out.starts_with(format!("{n:x}\r\n").as_bytes()));
        assert_eq!(out.len(), format!("{n:x}").len() + 4 + n);
    }
}
