//! Engines that answer before they have read, and engines that speak before they are asked.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::json;

use super::client;
use super::client_side::single_shards;
use super::world::{Fleet, World, in_each};

const TEXT: &str = "/v1/completions";

/// A fleet of one engine, which is this: it is handed each connection.
fn engine(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> (Fleet, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::SeqCst);
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    let mut fleet = Fleet::new(&["both"]);
    fleet.file["engines"][0]["url"] = json!(format!("http://127.0.0.1:{port}"));
    fleet.await_ready = false;
    (fleet, count)
}

/// Reads up to the end of the head, or of the connection.
fn read_head(stream: &mut TcpStream) {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        seen.push(byte[0]);
    }
}

/// The answer is there before the request is out, and the engine closes with most of it unread, which resets the connection.
// proves R-LEG-6, R-FLT-1
#[test]
fn a_refusal_before_the_request_was_read_reaches_the_client() {
    const REFUSAL: &[u8] =
        b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 31\r\n\r\n\
        {\"error\":{\"message\":\"too big\"}}";
    in_each(&single_shards(), |setup| {
        let (fleet, _) = engine(|mut stream| {
            read_head(&mut stream);
            let _ = stream.write_all(REFUSAL);
        });
        let world = World::start(setup, &fleet);
        let body = json!({"prompt": [1], "max_tokens": 1, "user": "u".repeat(3 << 20)});
        for _ in 0..5 {
            let answer = world.ask(&client::post(TEXT, &body));
            assert_eq!(answer.status, Some(413), "{}", answer.text());
            assert!(answer.text().contains("too big"), "{}", answer.text());
        }
        assert_eq!(super::world::number(&world.state(), "/pools/legs_open"), 0);
    });
}
