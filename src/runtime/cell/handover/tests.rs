//! Two shards on one thread: what the one accepts goes to the other, through every state of the other's mailbox.

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;

use super::*;
use crate::base::units::ShardId;
use crate::config::topology::Snapshot;
use crate::config::{Format, parse};
use crate::metrics::histogram::ShardTimes;
use crate::metrics::ledger::ShardLedger;
use crate::runtime::cell::ControlPort;
use crate::runtime::mail::Mailbox;
use crate::runtime::testing::{each_driver, until};
use crate::shard::{ControlRequest, Note, Shard, Shared};

/// Nobody asks anything here.
struct NoControl;

impl ControlPort for NoControl {
    fn ask(&self, _: usize, _: ControlRequest) -> bool {
        false
    }

    fn note(&self, _: Note) {}
}

struct Two<R: Rt> {
    shared: Arc<Shared>,
    cells: [Rc<ShardCell<R>>; 2],
    mail: Arc<[Arc<Mailbox<Mail>>]>,
}

impl<R: Rt> Two<R> {
    fn new(mailbox: usize) -> Two<R> {
        let file = r#"{"schema": "narwhal.fleet", "schema_version": 2, "model": "m",
            "engines": [{"iid": "e0", "url": "http://10.0.0.1:80"}],
            "slo": {"ttft_s": 2, "tpot_s": 0.05}, "serving": {"admission": "open"}}"#;
        let fleet = parse("f", file, Format::Json, &|_| None).unwrap().fleet;
        let snapshot = Arc::new(Snapshot::new(1, fleet));
        let shared = Arc::new(Shared::new(&snapshot, 2));
        let mail: Arc<[_]> = (0..2).map(|_| Arc::new(Mailbox::new(mailbox))).collect();
        let cell = |id| {
            let (ledger, times) = (Arc::new(ShardLedger::new()), Arc::new(ShardTimes::new()));
            let (snapshot, shared) = (snapshot.clone(), shared.clone());
            let shard = Shard::new(ShardId(id), snapshot, shared, ledger, times, 1);
            ShardCell::new(shard, None, mail.clone(), Arc::new(NoControl))
        };
        let cells = [cell(0), cell(1)];
        Two {
            shared,
            cells,
            mail,
        }
    }

    /// A client whose connection shard 0 has accepted.
    async fn accept(&self) -> TcpStream {
        let listener = R::listen("127.0.0.1:0".parse().unwrap(), false, 8).unwrap();
        let client = TcpStream::connect(R::local_addr(&listener).unwrap()).unwrap();
        let (reader, writer, peer) = R::accept(&listener).await.unwrap();
        self.cells[0].admit(reader, writer, peer);
        client
    }

    /// Shard 1 reads its mail.
    fn deliver(&self) {
        while let Some(letter) = self.mail[1].try_recv() {
            self.cells[1].on_mail(letter, &[]);
        }
    }

    fn cell(&self, shard: usize, cell: LedgerCell) -> u64 {
        self.cells[shard].shard.borrow().ledger.peek(cell)
    }

    fn counts(&self) -> (u64, u64) {
        (self.shared.connections.of(0), self.shared.connections.of(1))
    }

    async fn until_open(&self, zero: u64, one: u64) {
        let open = |shard| self.cell(shard, LedgerCell::ConnectionsOpen);
        // Both, because a task that has not begun yet is in the second only.
        let now = || ((open(0), open(1)), self.counts());
        until::<R>(|| now() == ((zero, one), (zero, one))).await;
    }
}

// proves R-SHD-4
#[test]
fn a_connection_goes_to_the_shard_that_has_fewer() {
    each_driver!(|R| {
        let two = Two::<R>::new(16);
        let mut clients = Vec::new();
        // 1, 2, and the third is more than one above the mean.
        for _ in 0..3 {
            clients.push(two.accept().await);
        }
        assert_eq!(two.counts(), (2, 1), "it is counted before it has arrived");
        assert!(!two.shared.connections.are_none());
        two.deliver();
        two.until_open(2, 1).await;
        let told = |shard| {
            [
                LedgerCell::ConnectionsAccepted,
                LedgerCell::ConnectionsMoved,
                LedgerCell::ConnectionsKept,
            ]
            .map(|cell| two.cell(shard, cell))
        };
        assert_eq!((told(0), told(1)), ([2, 1, 0], [1, 0, 0]));
        drop(clients);
        two.until_open(0, 0).await;
        assert!(two.shared.connections.are_none());
    });
}

// proves R-SHD-4
#[test]
fn a_full_mailbox_leaves_it_where_it_came() {
    each_driver!(|R| {
        let two = Two::<R>::new(1);
        two.mail[1]
            .send(Mail::Connection {
                stream: two.accept().await,
                peer: "127.0.0.1:1".parse().unwrap(),
            })
            .unwrap();
        let clients = [two.accept().await, two.accept().await];
        two.until_open(3, 0).await;
        assert_eq!(two.cell(0, LedgerCell::ConnectionsKept), 1);
        assert_eq!(
            (
                two.mail[1].refused(),
                two.cell(0, LedgerCell::ConnectionsMoved)
            ),
            (1, 0)
        );
        // The stream that filled it goes with the letter.
        let _ = two.mail[1].try_recv();
        drop(clients);
        two.until_open(0, 0).await;
    });
}

/// The end of the other shard, before and after the connection is on its way.
// proves R-SHD-4
#[test]
fn a_shard_that_closes_is_given_none_and_ends_what_it_got() {
    each_driver!(|R| {
        for close_first in [true, false] {
            let two = Two::<R>::new(16);
            let mut clients = vec![two.accept().await, two.accept().await];
            if close_first {
                two.mail[1].send(Mail::Close).unwrap();
                two.deliver();
                clients.push(two.accept().await);
                assert_eq!(two.counts(), (3, 0));
            } else {
                // It reads that it is to close, and only then the connection.
                two.mail[1].send(Mail::Close).unwrap();
                clients.push(two.accept().await);
                assert_eq!(two.counts(), (2, 1));
                two.deliver();
                two.until_open(2, 1).await;
                // It was idle, so it is told the end at once.
                let mut client = clients.pop().unwrap();
                client.set_nonblocking(true).unwrap();
                until::<R>(|| matches!(client.read(&mut [0]), Ok(0))).await;
            }
            drop(clients);
            two.until_open(0, 0).await;
        }
    });
}

/// Answers of the control thread are told once; connections may stay.
// proves R-SHD-4
#[test]
fn handovers_leave_room_for_other_mail() {
    each_driver!(|R| {
        let two = Two::<R>::new(1024);
        for _ in 0..HANDOVERS_MAX {
            two.mail[1]
                .send(Mail::Granted(crate::shard::waits::Awaited::Seat))
                .unwrap();
        }
        let clients = [two.accept().await, two.accept().await, two.accept().await];
        two.until_open(3, 0).await;
        assert_eq!(
            (
                two.cell(0, LedgerCell::ConnectionsKept),
                two.mail[1].refused()
            ),
            (1, 0)
        );
        drop(clients);
        two.until_open(0, 0).await;
    });
}
