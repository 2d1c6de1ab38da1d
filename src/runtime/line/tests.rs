//! Dialing several addresses, on every driver.

use std::io::{Read, Write};
use std::net::TcpListener;

use rustls::version::TLS13;

use super::*;
use crate::runtime::testing::each_driver;
use crate::runtime::tls::testing::{Authority, echo, listen, listen_raw, peer};

/// Long against any machine; a dial that waits for it has not given up on what hangs.
const BOUND: Duration = Duration::from_millis(600);

async fn try_all<R: Rt>(
    addresses: &[SocketAddr],
    tls: Option<Peer>,
) -> Result<SocketAddr, DialFault> {
    let dialed = dial::<R>(Dial {
        addresses: Arc::new(addresses.to_vec()),
        version: 7,
        bound: BOUND,
        tls,
    })
    .await?;
    assert_eq!(dialed.known, 7);
    // It is alive.
    let (at, message) = (dialed.at, b"hello".to_vec());
    let (sent, message, mut line) = dialed.send(message).await;
    sent.unwrap();
    let tap = line.lend().expect("nobody else has it");
    assert!(!line.is_whole() && line.lend().is_none());
    let buf = Vec::with_capacity(100);
    let (got, buf) = match tap {
        Tap::Plain(reader) => {
            let (got, buf, reader) = reader.read(buf).await;
            line.give_back(Tap::Plain(reader));
            (got, buf)
        }
        Tap::Tls(stream) => {
            let (got, buf, stream) = stream.read(buf).await;
            line.give_back(Tap::Tls(stream));
            (got, buf)
        }
    };
    assert!(line.is_whole());
    assert_eq!((got.unwrap(), &buf), (5, &message));
    Ok(at)
}

/// A port that nobody listens on: bound, so that nobody else gets it.
fn refusing() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, at)
}

// proves R-LEG-7
#[test]
fn the_first_address_that_answers_is_taken() {
    each_driver!(|R| {
        let echo_of = |mut stream: std::net::TcpStream| {
            let mut some = [0; 100];
            loop {
                match stream.read(&mut some)? {
                    0 => return Ok(()),
                    n => stream.write_all(&some[..n])?,
                }
            }
        };
        let (a, b) = (listen_raw(echo_of), listen_raw(echo_of));
        let (_bound, none) = refusing();
        for (addresses, want) in [
            (vec![a], Some(a)),
            (vec![a, b], Some(a)),
            (vec![none, b], Some(b)),
            (vec![none, none, a, b], Some(a)),
            (vec![none, none], None),
            (vec![], None),
        ] {
            let got = try_all::<R>(&addresses, None).await;
            assert_eq!(got.ok(), want, "{addresses:?}");
        }
    });
}

// proves R-LEG-7
#[test]
fn tls_that_fails_or_hangs_leaves_time_for_the_next_address() {
    each_driver!(|R| {
        let ours = Authority::generate();
        let peer = peer(&ours.roots(), "https://127.0.0.1");
        let server = |by: &Authority| by.server(&["127.0.0.1"], &[&TLS13], &[]);
        let good = listen(server(&ours), echo);
        let strange = listen(server(&Authority::generate()), echo);
        let (_bound, none) = refusing();
        // Accepts in the kernel, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = (silent.local_addr().unwrap(), silent);
        for addresses in [
            vec![good, strange],
            vec![strange, good],
            vec![silent.0, good],
            vec![none, silent.0, strange, good],
        ] {
            let got = try_all::<R>(&addresses, Some(peer.clone())).await;
            assert_eq!(got.ok(), Some(good), "{addresses:?}");
        }
        // What is told when none is left, and what TLS had to say outlives a plain refusal.
        for (addresses, tls) in [
            (vec![none], false),
            (vec![strange], true),
            (vec![strange, none], true),
            (vec![silent.0, strange], true),
        ] {
            let got = try_all::<R>(&addresses, Some(peer.clone())).await.err();
            let told = matches!(&got, Some(DialFault::Tls(why)) if why.contains("invalid peer certificate"));
            assert_eq!(told, tls, "{addresses:?}: {got:?}");
        }
    });
}
