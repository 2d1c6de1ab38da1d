//! Starts real threads on this machine; the plan says how many.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::base::units::ShardId;
#[cfg(feature = "rt-glommio")]
use crate::runtime::glommio::Glommio;
use crate::runtime::io::{ReadHalf, Rt, WriteHalf};
use crate::runtime::mail::Mailbox;
use crate::runtime::monoio::Monoio;
use crate::runtime::testing::drivers;
use crate::runtime::topology::{Ask, plan};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn unpinned(shards: usize) -> Plan {
    let ask = Ask {
        shards: Some(shards),
        pin: Some(false),
        ..Ask::default()
    };
    plan(&machine().unwrap(), &ask).unwrap()
}

// proves R-SHD-3
#[test]
fn the_driver_is_settled_at_start() {
    let (epoll, why) = choose_driver(DriverChoice::Epoll).unwrap();
    assert_eq!((epoll, why.is_none()), (Driver::Epoll, true));
    let (auto, why) = choose_driver(DriverChoice::Auto).unwrap();
    if monoio::utils::detect_uring() {
        assert_eq!((auto, why.is_none()), (Driver::IoUring, true));
        assert_eq!(
            choose_driver(DriverChoice::IoUring).unwrap().0.name(),
            "io_uring"
        );
    } else {
        assert_eq!((auto.name(), why.is_some()), ("epoll", true));
        assert!(choose_driver(DriverChoice::IoUring).is_err());
    }
    match choose_driver(DriverChoice::Glommio) {
        Ok((glommio, why)) => assert_eq!((glommio.name(), why.is_none()), ("glommio", true)),
        Err(why) => assert!(
            why.to_string().starts_with("driver: glommio is not "),
            "{why}"
        ),
    }
}

#[test]
fn an_occupied_port_is_an_error() {
    let ours = bind_shards(ANY, 2).unwrap();
    let addr = ours[0].local_addr().unwrap();
    assert_eq!(
        bind_shards(addr, 2).unwrap_err().kind(),
        io::ErrorKind::AddrInUse
    );
    drop(ours);
    assert!(bind_shards(addr, 1).is_ok());
}

// proves R-SHD-1
#[test]
fn the_listeners_share_one_port() {
    let listeners = bind_shards(ANY, 4).unwrap();
    let addrs: Vec<SocketAddr> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
    assert_ne!(addrs[0].port(), 0);
    assert!(addrs.iter().all(|addr| *addr == addrs[0]));
    let clients: Vec<TcpStream> = (0..64)
        .map(|_| TcpStream::connect(addrs[0]).unwrap())
        .collect();
    let mut reached = 0;
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
        let mut queued = 0;
        while listener.accept().is_ok() {
            queued += 1;
        }
        assert!(
            queued > 0,
            "64 connections leave one of 4 listeners out once in 10^7 runs"
        );
        reached += queued;
    }
    assert_eq!(reached, clients.len());
}

// proves R-SHD-1
#[test]
fn shards_serve_from_their_own_listeners() {
    for driver in drivers() {
        match driver {
            Driver::IoUring | Driver::Epoll => shards_serve::<Monoio>(driver),
            #[cfg(feature = "rt-glommio")]
            Driver::Glommio => shards_serve::<Glommio>(driver),
        }
    }
}

fn shards_serve<R: Rt>(driver: Driver) {
    let plan = unpinned(2);
    let mut listeners = bind_shards(ANY, plan.places.len()).unwrap();
    let addr = listeners[0].local_addr().unwrap();
    let stop: Vec<_> = plan
        .places
        .iter()
        .map(|_| Arc::new(Mailbox::new(1)))
        .collect();
    let shards = run_shards(&plan, driver, |place| {
        let listener = listeners.pop().unwrap();
        let mail = Arc::clone(&stop[place.shard.index()]);
        let id = place.shard;
        move || async move {
            // State of a shard is not `Send`.
            let id = Rc::new(id);
            let listener = R::from_listener(listener).unwrap();
            R::spawn(serve::<R>(listener, id));
            mail.recv().await
        }
    })
    .unwrap();
    assert!(shards.refused.is_empty());
    let mut seen = [0; 2];
    for _ in 0..64 {
        let mut client = TcpStream::connect(addr).unwrap();
        client.write_all(b"?").unwrap();
        let mut answer = [0];
        client.read_exact(&mut answer).unwrap();
        seen[usize::from(answer[0])] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    for mail in &stop {
        mail.send(()).unwrap();
    }
    shards.join().unwrap();
}

/// Answers every connection's first byte with the number of the shard.
async fn serve<R: Rt>(listener: R::Listener, id: Rc<ShardId>) {
    while let Ok((reader, writer, _)) = R::accept(&listener).await {
        let id = Rc::clone(&id);
        R::spawn(async move {
            let (_, mut buf, _reader) = reader.read(Vec::with_capacity(1)).await;
            buf.clear();
            buf.push(id.0 as u8);
            let _ = writer.write_all(buf, 0).await;
        });
    }
}

// proves R-SHD-1
#[test]
fn a_shard_is_pinned_with_signals_blocked() {
    let whole = plan(
        &machine().unwrap(),
        &Ask {
            pin: Some(true),
            shards: Some(1),
            ..Ask::default()
        },
    );
    let whole = whole.unwrap();
    for driver in drivers() {
        is_pinned(&whole, driver);
    }
}

fn is_pinned(whole: &Plan, driver: Driver) {
    let cpu = whole.places[0].cpu.unwrap();
    let status = Arc::new(Mailbox::new(1));
    let shards = run_shards(whole, driver, |_| {
        let status = Arc::clone(&status);
        move || async move {
            let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status.send(text).unwrap();
        }
    });
    shards.unwrap().join().unwrap();
    let text = status.try_recv().unwrap();
    let field = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        line.trim().to_owned()
    };
    assert_eq!(field("Name:"), "shard-0");
    assert_eq!(field("Cpus_allowed_list:"), cpu.to_string());
    let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
    let has = |signal: i32| blocked >> (signal - 1) & 1 == 1;
    assert!(has(libc::SIGTERM) && has(libc::SIGHUP) && has(libc::SIGINT) && has(libc::SIGCHLD));
    assert!(!has(libc::SIGSEGV) && !has(libc::SIGABRT));
}

#[test]
fn a_core_that_does_not_exist_is_told_and_survived() {
    let mut one = unpinned(1);
    one.places[0].cpu = Some(1023);
    for driver in drivers() {
        let ran = Arc::new(AtomicUsize::new(0));
        let shards = run_shards(&one, driver, |_| {
            let ran = Arc::clone(&ran);
            move || async move {
                ran.fetch_add(1, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert_eq!(shards.refused, [(one.places[0].clone(), Refused::Cores)]);
        shards.join().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    }
}
