//! The trait's promises, on every driver.

#![expect(
    clippy::disallowed_methods,
    reason = "the sleep under test is held against the real clock"
)]

use std::future::poll_fn;
use std::net;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use monoio::join;
use socket2::{Domain, Socket, Type};

use super::*;
use crate::runtime::testing::{each_driver, until};

/// Both directions of a connection.
type Halves<R> = (<R as Rt>::Reader, <R as Rt>::Writer);

/// A connected pair over loopback, both ends on the trait.
async fn pair<R: Rt>() -> (Halves<R>, Halves<R>) {
    let listener = R::listen(ANY, false, 16).unwrap();
    let dial = R::connect(R::local_addr(&listener).unwrap());
    let (near, far) = join!(dial, R::accept(&listener));
    let (reader, writer, _) = far.unwrap();
    (near.unwrap(), (reader, writer))
}

async fn polled_once<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

async fn read_all<T: ReadHalf>(mut reader: T) -> (io::Result<usize>, Vec<u8>) {
    let mut buf = Vec::new();
    loop {
        buf.reserve(65_536);
        let got;
        (got, buf, reader) = reader.read(buf).await;
        if !matches!(got, Ok(n) if n > 0) {
            return (got, buf);
        }
    }
}

/// Writes until the peer's side answers that nobody is there any more.
async fn writes_fail<R: Rt>(mut writer: R::Writer) {
    let start = Instant::now();
    while start.elapsed() < LONG {
        let sent;
        (sent, _, writer) = writer.write(vec![0], 0).await;
        if sent.is_err() {
            return;
        }
        R::sleep(Duration::from_millis(1)).await;
    }
    panic!("the peer's descriptor stays open");
}

// proves R-SHD-3
#[test]
fn echoes_and_appends() {
    each_driver!(|R| {
        let ((r, w), (fr, fw)) = pair::<R>().await;
        let (sent, _, _w) = w.write_all(b"xxhello".to_vec(), 2).await;
        sent.unwrap();
        let mut buf = Vec::with_capacity(64);
        buf.extend_from_slice(b"> ");
        let (n, buf, _fr) = fr.read(buf).await;
        assert_eq!((n.unwrap(), &buf[..]), (5, &b"> hello"[..]));
        let (sent, buf, _fw) = fw.write_all(buf, 0).await;
        sent.unwrap();
        assert_eq!(buf, b"> hello");
        let (n, back, _r) = r.read(Vec::with_capacity(64)).await;
        assert_eq!((n.unwrap(), &back[..]), (7, &b"> hello"[..]));
    });
}

#[test]
fn a_full_buffer_is_not_an_end() {
    each_driver!(|R| {
        let ((r, _w), (_fr, fw)) = pair::<R>().await;
        let (sent, _, fw) = fw.write_all(b"abcdef".to_vec(), 0).await;
        sent.unwrap();
        let mut buf = Vec::with_capacity(4);
        let room = buf.capacity();
        let (n, kept, r) = r.read(buf).await;
        assert_eq!(n.unwrap(), room, "reads up to the capacity, never grows");
        assert_eq!(kept.capacity(), room);
        buf = kept;
        let (n, kept, r) = r.read(buf).await;
        assert_eq!(n.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(kept, b"abcd");
        buf = kept;
        buf.clear();
        let (n, buf, r) = r.read(buf).await;
        assert_eq!((n.unwrap(), &buf[..]), (2, &b"ef"[..]));
        drop(fw);
        let (n, _, _r) = r.read(Vec::with_capacity(1)).await;
        assert_eq!(n.unwrap(), 0);
    });
}

// proves R-HTTP-7
#[test]
fn a_slow_reader_gets_every_byte_of_partial_writes() {
    each_driver!(|R| {
        let ((r, w), (fr, fw)) = pair::<R>().await;
        drop((r, fw));
        let sent: Vec<u8> = (0..BIG as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let (first, body, w) = w.write(sent.clone(), 0).await;
        let first = first.unwrap();
        assert!(
            0 < first && first < BIG,
            "one send is one step, here {first} bytes"
        );
        let write = async {
            let (all, body, writer) = w.write_all(body, first).await;
            all.unwrap();
            drop(writer);
            body
        };
        let (body, (end, got)) = join!(write, read_all(fr));
        assert_eq!(end.unwrap(), 0);
        assert!(got == sent && body == sent);
    });
}

// proves R-HTTP-5
#[test]
fn dropping_a_pending_read_with_its_halves_closes_at_once() {
    each_driver!(|R| {
        for parked in [false, true] {
            let ((r, w), (fr, fw)) = pair::<R>().await;
            {
                let mut read = pin!(r.read(Vec::with_capacity(16)));
                assert!(!polled_once(read.as_mut()).await);
                if parked {
                    // The operation is in the kernel, not only in the queue.
                    R::sleep(Duration::from_millis(1)).await;
                }
                drop(w);
            }
            let start = Instant::now();
            let (n, _, _fr) = fr.read(Vec::with_capacity(16)).await;
            assert_eq!(n.unwrap(), 0);
            assert!(
                start.elapsed() < Duration::from_millis(500),
                "{:?}",
                start.elapsed()
            );
            writes_fail::<R>(fw).await;
            assert!(
                start.elapsed() < Duration::from_millis(500),
                "{:?}",
                start.elapsed()
            );
        }
    });
}

// proves R-HTTP-5
#[test]
fn a_cut_ends_what_is_in_flight() {
    each_driver!(|R| {
        let ((r, w), (fr, _fw)) = pair::<R>().await;
        let hangup = r.hangup();
        let mut read = pin!(r.read(Vec::with_capacity(16)));
        let mut write = pin!(w.write_all(vec![7; BIG], 0));
        assert!(!polled_once(read.as_mut()).await);
        assert!(!polled_once(write.as_mut()).await);
        R::sleep(Duration::from_millis(1)).await;
        hangup.cut();
        let (n, _, r) = read.await;
        assert_eq!(n.unwrap(), 0);
        let (sent, _, w) = write.await;
        assert!(sent.is_err());
        drop((r, w));
        hangup.cut();
        let (end, got) = read_all(fr).await;
        // The bytes that were on the way arrive, then the end.
        assert!(matches!(end, Ok(0)), "{end:?}");
        assert!(got.len() < BIG);
    });
}

#[test]
fn a_reset_is_seen_as_one() {
    each_driver!(|R| {
        let ((r, w), (fr, _fw)) = pair::<R>().await;
        r.hangup().reset_on_close();
        let mut read = pin!(fr.read(Vec::with_capacity(16)));
        assert!(!polled_once(read.as_mut()).await);
        // Without the FIN that a dropped writer sends first.
        drop(R::release(r, w).ok().unwrap());
        let (n, _, _fr) = read.await;
        assert_eq!(n.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn shutdown_sends_fin_and_still_reads() {
    each_driver!(|R| {
        let ((r, mut w), (fr, fw)) = pair::<R>().await;
        w.shutdown().unwrap();
        let (n, _, _fr) = fr.read(Vec::with_capacity(16)).await;
        assert_eq!(n.unwrap(), 0);
        let (sent, _, _fw) = fw.write_all(b"late".to_vec(), 0).await;
        sent.unwrap();
        let (n, buf, _r) = r.read(Vec::with_capacity(16)).await;
        assert_eq!((n.unwrap(), &buf[..]), (4, &b"late"[..]));
    });
}

// proves R-LEG-4
#[test]
fn quiet_means_open_and_silent() {
    each_driver!(|R| {
        let ((r, _w), (_fr, fw)) = pair::<R>().await;
        assert!(r.is_quiet());
        let (sent, _, fw) = fw.write_all(b"x".to_vec(), 0).await;
        sent.unwrap();
        until::<R>(|| !r.is_quiet()).await;
        let (n, _, r) = r.read(Vec::with_capacity(16)).await;
        assert_eq!(n.unwrap(), 1);
        assert!(r.is_quiet());
        drop(fw);
        until::<R>(|| !r.is_quiet()).await;

        let ((r, _w), (fr, fw)) = pair::<R>().await;
        fr.hangup().reset_on_close();
        drop(R::release(fr, fw).ok().unwrap());
        until::<R>(|| !r.is_quiet()).await;
    });
}

#[test]
fn a_refused_dial_says_so() {
    each_driver!(|R| {
        // Bound but not listening: nobody else can take the port meanwhile.
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held.bind(&ANY.into()).unwrap();
        let addr = held.local_addr().unwrap().as_socket().unwrap();
        let error = R::connect(addr).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_dropped_dial_leaves_no_socket() {
    each_driver!(|R| {
        // A full accept queue swallows the SYN, so the dial hangs.
        let listener = socket::bind(ANY, false, 0).unwrap();
        let addr = listener.local_addr().unwrap();
        let fill: Vec<Socket> = (0..4).map(|_| half_open(addr)).collect();
        // One fits the queue. Asked again until true, because the table is not read atomically.
        until::<R>(|| dialling(addr) == 3).await;
        {
            let mut dial = pin!(R::connect(addr));
            assert!(!polled_once(dial.as_mut()).await);
            until::<R>(|| dialling(addr) == 4).await;
            assert!(!polled_once(dial.as_mut()).await);
        }
        until::<R>(|| dialling(addr) == 3).await;
        drop(fill);
    });
}

fn half_open(addr: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_nonblocking(true).unwrap();
    let _ = socket.connect(&addr.into());
    socket
}

/// Sockets of this host that wait for an answer of `addr` (state 02 is SYN_SENT).
fn dialling(addr: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let rest = format!("0100007F:{:04X} 02", addr.port());
    table.lines().filter(|line| line.contains(&rest)).count()
}

// proves R-CTL-7
#[test]
fn stop_listening_ends_the_accept() {
    each_driver!(|R| {
        let listener = R::listen(ANY, false, 16).unwrap();
        let addr = R::local_addr(&listener).unwrap();
        let mut accept = pin!(R::accept(&listener));
        assert!(!polled_once(accept.as_mut()).await);
        R::sleep(Duration::from_millis(1)).await;
        R::stop_listening(&listener);
        assert!(accept.await.is_err());
        let error = R::connect(addr).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    });
}

// proves R-SHD-4
#[test]
fn a_connection_moves_between_owners() {
    each_driver!(|R| {
        for nonblocking in [false, true] {
            let ((r, w), (fr, fw)) = pair::<R>().await;
            let moved = R::release(r, w).ok().unwrap();
            moved.set_nonblocking(nonblocking).unwrap();
            let (r, w) = R::adopt(moved).unwrap();
            let mut read = pin!(r.read(Vec::with_capacity(16)));
            assert!(!polled_once(read.as_mut()).await);
            R::sleep(Duration::from_millis(1)).await;
            let (sent, _, _fw) = fw.write_all(b"ping".to_vec(), 0).await;
            sent.unwrap();
            let (n, buf, _r) = read.await;
            assert_eq!((n.unwrap(), &buf[..]), (4, &b"ping"[..]));
            let (sent, _, _w) = w.write_all(buf, 0).await;
            sent.unwrap();
            let (n, _, _fr) = fr.read(Vec::with_capacity(16)).await;
            assert_eq!(n.unwrap(), 4);
        }
    });
}

/// The habit that keeps bytes: the read stays pinned while deadlines come and go.
#[test]
fn a_kept_read_loses_nothing_to_timers() {
    each_driver!(|R| {
        let ((_r, w), (fr, _fw)) = pair::<R>().await;
        let send = async {
            let mut w = w;
            for i in 0..MESSAGES {
                let sent;
                (sent, _, w) = w.write_all(i.to_be_bytes().to_vec(), 0).await;
                sent.unwrap();
                if i % 3 == 0 {
                    R::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let receive = async {
            let mut got = Vec::new();
            let mut lost_races = 0;
            let mut read = pin!(fr.read(Vec::with_capacity(4)));
            let mut tick = pin!(R::sleep(Duration::from_millis(1)));
            while got.len() < 4 * MESSAGES as usize {
                let event = poll_fn(|cx| {
                    if let Poll::Ready(done) = read.as_mut().poll(cx) {
                        return Poll::Ready(Some(done));
                    }
                    tick.as_mut().poll(cx).map(|()| None)
                });
                match event.await {
                    Some((n, mut buf, fr)) => {
                        assert_ne!(n.unwrap(), 0);
                        got.append(&mut buf);
                        read.set(fr.read(buf));
                    }
                    None => {
                        lost_races += 1;
                        tick.set(R::sleep(Duration::from_millis(1)));
                    }
                }
            }
            assert!(lost_races > 0);
            got
        };
        let ((), got) = join!(send, receive);
        let expected: Vec<u8> = (0..MESSAGES).flat_map(u32::to_be_bytes).collect();
        assert_eq!(got, expected);
    });
}

#[test]
fn sleeps_at_least_as_long_as_asked() {
    each_driver!(|R| {
        let start = Instant::now();
        R::sleep(Duration::from_micros(2500)).await;
        assert!(start.elapsed() >= Duration::from_micros(2500));
    });
}

// proves R-SHD-1
#[test]
fn who_waits_uses_no_core() {
    each_driver!(|R| {
        let Some(before) = on_core() else {
            return eprintln!("skipped: this kernel does not count a thread's time");
        };
        R::sleep(Duration::from_millis(300)).await;
        let used = on_core().unwrap() - before;
        assert!(used < Duration::from_millis(100), "{used:?}");
    });
}

/// The time that this thread has been on a core (`/proc/PID/schedstat` in proc(5)).
fn on_core() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns = text.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(ns))
}

const ANY: SocketAddr = SocketAddr::V4(net::SocketAddrV4::new(net::Ipv4Addr::LOCALHOST, 0));
const BIG: usize = 16 << 20;
const LONG: Duration = Duration::from_secs(10);
const MESSAGES: u32 = 300;
