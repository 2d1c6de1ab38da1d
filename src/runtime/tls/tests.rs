//! Streams against a rustls server on a thread, on every driver; and whom we trust.

use std::io::Read;
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::channel;

use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, ProtocolVersion};

use super::testing::*;
use super::*;
use crate::runtime::testing::{each_driver, until};

type Stream<R> = Box<TlsStream<R>>;

const BOTH: [&rustls::SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
const URL: &str = "https://127.0.0.1";

async fn dial<R: Rt>(at: SocketAddr, peer: Peer) -> io::Result<Stream<R>> {
    let (reader, writer) = R::connect(at).await?;
    handshake::<R>(reader, writer, peer).await
}

/// Reads `count` bytes through buffers of `room`.
async fn read_exactly<R: Rt>(
    mut stream: Stream<R>,
    count: usize,
    room: usize,
) -> (Vec<u8>, Stream<R>) {
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        let buf = Vec::with_capacity(room);
        let (got, buf, back) = stream.read(buf).await;
        stream = back;
        assert_eq!(got.unwrap(), buf.len());
        assert!(!buf.is_empty(), "an end after {}", all.len());
        all.extend_from_slice(&buf);
    }
    (all, stream)
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

// proves R-LEG-7
#[test]
fn what_goes_out_comes_back_in_any_size_and_version() {
    each_driver!(|R| {
        let authority = Authority::generate();
        let roots = authority.roots();
        let rows = [
            (&BOTH[..], ProtocolVersion::TLSv1_3),
            (&BOTH[1..], ProtocolVersion::TLSv1_2),
        ];
        for (versions, version) in rows {
            for alpn in [&[][..], &["http/1.1"], &["h2", "http/1.1"]] {
                let server = authority.server(&["127.0.0.1"], versions, alpn);
                let at = listen(server, echo);
                let mut stream = dial::<R>(at, peer(&roots, URL)).await.unwrap();
                assert_eq!(stream.tls.protocol_version(), Some(version));
                for (size, room) in [(1, 1), (100, 7), (16_384, 16_384), (300_000, 5_000)] {
                    let sent = bytes(size);
                    let (done, sent, back) = stream.write_all(sent).await;
                    done.unwrap();
                    let (got, back) = read_exactly(back, size, room).await;
                    assert!(got == sent, "{version:?} {size} {room}");
                    stream = back;
                }
                assert!(stream.is_quiet());
            }
        }
    });
}

/// How an answer may end on the wire, and how it is to be read.
// proves R-LEG-7, R-FLT-4
#[test]
fn only_an_announced_end_is_an_end() {
    each_driver!(|R| {
        let authority = Authority::generate();
        let roots = authority.roots();
        for versions in [&BOTH[..], &BOTH[1..]] {
            for announced in [true, false] {
                let server = authority.server(&["127.0.0.1"], versions, &[]);
                let at = listen(server, move |mut end| {
                    let mut some = [0; 9];
                    end.read_exact(&mut some)?;
                    end.write_all(b"the answer")?;
                    if announced {
                        end.conn.send_close_notify();
                    }
                    end.flush()?;
                    end.sock.shutdown(Shutdown::Write)
                });
                let stream = dial::<R>(at, peer(&roots, URL)).await.unwrap();
                let (sent, _, stream) = stream.write_all(b"a request".to_vec()).await;
                sent.unwrap();
                let (got, stream) = read_exactly(stream, 10, 100).await;
                assert_eq!(got, b"the answer");
                until::<R>(|| !stream.is_quiet()).await;
                let (end, buf, stream) = stream.read(Vec::with_capacity(10)).await;
                match announced {
                    true => assert_eq!(end.unwrap(), 0),
                    false => assert_eq!(end.unwrap_err().kind(), ErrorKind::UnexpectedEof),
                }
                assert!(buf.is_empty());
                let (full, _, _) = stream.read(Vec::new()).await;
                assert_eq!(full.unwrap_err().kind(), ErrorKind::InvalidInput);
            }
        }
    });
}

/// Bytes that no key of ours opens, behind an answer that came whole.
// proves R-LEG-7
#[test]
fn a_forged_record_is_a_fault_after_what_came_before_it() {
    each_driver!(|R| {
        let authority = Authority::generate();
        let roots = authority.roots();
        let server = authority.server(&["127.0.0.1"], &BOTH, &[]);
        let at = listen(server, |mut end| {
            end.write_all(b"true")?;
            end.flush()?;
            end.sock.write_all(b"\x17\x03\x03\x00\x20")?;
            end.sock.write_all(&[7; 32])?;
            // The client says what it thinks of it.
            let told = end.read(&mut [0; 9]);
            assert!(told.is_err(), "{told:?}");
            Ok(())
        });
        let stream = dial::<R>(at, peer(&roots, URL)).await.unwrap();
        let (got, stream) = read_exactly(stream, 4, 100).await;
        assert_eq!(got, b"true");
        let (fault, buf, _) = stream.read(Vec::with_capacity(10)).await;
        assert_eq!(fault.unwrap_err().kind(), ErrorKind::InvalidData);
        assert!(buf.is_empty());
    });
}

/// TLS 1.3 lets the peer ask for new keys at any time, and asks us for an answer.
// proves R-LEG-7
#[test]
fn new_keys_on_the_way_change_nothing() {
    each_driver!(|R| {
        let authority = Authority::generate();
        let roots = authority.roots();
        let server = authority.server(&["127.0.0.1"], &[&TLS13], &[]);
        let at = listen(server, |mut end| {
            let mut some = [0; 3];
            for _ in 0..5 {
                end.read_exact(&mut some)?;
                end.conn.refresh_traffic_keys().map_err(io::Error::other)?;
                end.write_all(&some)?;
            }
            Ok(())
        });
        let mut stream = dial::<R>(at, peer(&roots, URL)).await.unwrap();
        for round in 0..5u8 {
            let (sent, sent_bytes, back) = stream.write_all(vec![round; 3]).await;
            sent.unwrap();
            let (got, back) = read_exactly(back, 3, 100).await;
            assert_eq!(got, sent_bytes);
            stream = back;
        }
    });
}

// proves R-LEG-7
#[test]
fn a_second_connection_resumes_and_another_shards_does_not() {
    each_driver!(|R| {
        let authority = Authority::generate();
        let roots = authority.roots();
        let server = authority.server(&["127.0.0.1"], &BOTH, &["http/1.1"]);
        let at = listen(server, echo);
        let fleet = fleet_of(URL);
        let mut kinds = Vec::new();
        for client in [Client::new(&roots, &fleet), Client::new(&roots, &fleet)] {
            for _ in 0..2 {
                let stream = dial::<R>(at, client.peer(EngineId(0)).unwrap())
                    .await
                    .unwrap();
                let (sent, _, stream) = stream.write_all(b"x".to_vec()).await;
                sent.unwrap();
                // Tickets come with the first answer.
                let (_, stream) = read_exactly(stream, 1, 100).await;
                kinds.push(stream.tls.handshake_kind().unwrap());
            }
        }
        let (full, resumed) = (HandshakeKind::Full, HandshakeKind::Resumed);
        assert_eq!(kinds, [full, resumed, full, resumed]);
    });
}

// proves R-LEG-7
#[test]
fn our_end_is_announced() {
    each_driver!(|R| {
        let authority = Authority::generate();
        let roots = authority.roots();
        let server = authority.server(&["127.0.0.1"], &BOTH, &[]);
        let (told, ends) = channel();
        let at = listen(server, move |mut end| {
            let mut all = Vec::new();
            // rustls answers an end that was not announced with an error.
            let _ = told.send(end.read_to_end(&mut all).is_ok());
            Ok(())
        });
        let stream = dial::<R>(at, peer(&roots, URL)).await.unwrap();
        let (sent, _, stream) = stream.write_all(b"x".to_vec()).await;
        sent.unwrap();
        drop(stream);
        let mut end = None;
        until::<R>(|| {
            end = ends.try_recv().ok();
            end.is_some()
        })
        .await;
        assert_eq!(end, Some(true));
    });
}

/// Who may not be at the other end, and a word of the reason.
// proves R-LEG-7
#[test]
fn who_is_not_the_engine_is_refused() {
    each_driver!(|R| {
        let ours = Authority::generate();
        let server = |by: &Authority, names: &[&str]| by.server(names, &BOTH, &["http/1.1"]);
        let good = listen(server(&ours, &["127.0.0.1", "gpu.example", "::1"]), echo);
        let strange = listen(server(&Authority::generate(), &["127.0.0.1"]), echo);
        let h2 = listen(ours.server(&["127.0.0.1"], &BOTH, &["h2"]), echo);
        let plain = listen_raw(|mut stream| {
            let _ = stream.read(&mut [0; 1000])?;
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        });
        let gone = listen_raw(|mut stream| stream.read(&mut [0; 1000]).map(drop));
        let rows = [
            (good, "https://127.0.0.1", ""),
            (good, "https://gpu.example", ""),
            (good, "https://GPU.example", ""),
            (good, "https://[::1]", ""),
            (good, "https://other.example", "not valid for name"),
            (good, "https://127.0.0.2", "not valid for name"),
            (strange, "https://127.0.0.1", "invalid peer certificate"),
            (h2, "https://127.0.0.1", "NoApplicationProtocol"),
            (plain, "https://127.0.0.1", "corrupt message"),
            (gone, "https://127.0.0.1", "closed"),
        ];
        for (at, url, why) in rows {
            let dialed = dial::<R>(at, peer(&ours.roots(), url)).await;
            let said = dialed.err().map(|e| e.to_string()).unwrap_or_default();
            assert_eq!(said.is_empty(), why.is_empty(), "{url}: {said}");
            assert!(said.contains(why), "{url}: {said}, wanted {why}");
        }
    });
}

// proves R-LEG-7
#[test]
fn a_file_of_roots_is_read_whole_or_named() {
    let one = Authority::generate().pem;
    let broken = one.replacen("MI", "!!", 1);
    // Its name, its text, how many certificates or what is said.
    let rows = [
        ("one", one.clone(), Ok(1)),
        (
            "two",
            format!("# ours\n{one}\n{}", Authority::generate().pem),
            Ok(2),
        ),
        ("none", String::new(), Err("no certificate")),
        ("text", "hello".to_owned(), Err("no certificate")),
        ("broken", broken, Err("broken")),
    ];
    for (name, text, want) in rows {
        let path = file(name, &text);
        match (Roots::load(Some(&path)), want) {
            (Ok(roots), Ok(count)) => assert_eq!(roots.0.len(), count, "{name}"),
            (Err(why), Err(words)) => {
                let why = why.to_string();
                assert!(why.contains(words) && why.contains(name), "{name}: {why}");
            }
            (got, want) => panic!("{name}: {want:?}, {:?}", got.map(|roots| roots.0.len())),
        }
        std::fs::remove_file(path).unwrap();
    }
    let missing = Roots::load(Some(Path::new("no/such/file"))).map(drop);
    assert!(missing.unwrap_err().to_string().contains("no/such/file"));
}

#[test]
fn hosts_are_names_or_addresses() {
    for (url, want) in [
        ("https://127.0.0.1", Some("127.0.0.1")),
        ("https://[::1]:9", Some("::1")),
        ("https://GPU.example/p", Some("gpu.example")),
        ("https://under_score", Some("under_score")),
    ] {
        let fleet = fleet_of(url);
        let name = server_name(&fleet.engines[0]);
        assert_eq!(name.as_ref().map(|n| n.to_str()).as_deref(), want, "{url}");
    }
    let client = Client::new(&Authority::generate().roots(), &fleet_of("http://h"));
    assert!(client.peer(EngineId(0)).is_none() && client.peer(EngineId(1)).is_none());
}
