//! An engine that changes its addresses while a shard runs: what the control thread publishes is what the next dial uses, and no
//! idle connection to an address that is gone is used again. A real shard on every driver, with one engine after another.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use narwhal::base::units::EngineId;
use narwhal::config::topology::Snapshot;
use narwhal::config::{self, Format};
use narwhal::metrics::histogram::ShardTimes;
use narwhal::metrics::ledger::{Cell as LedgerCell, ShardLedger};
use narwhal::runtime::boot::{self, DriverChoice};
use narwhal::runtime::cell::ControlPort;
use narwhal::runtime::mail::Mailbox;
use narwhal::runtime::serve;
use narwhal::runtime::topology::Plan;
use narwhal::shard::{ControlRequest, Note, Shard, Shared};
use socket2::{Domain, Socket, Type};

/// Long enough for any machine; no test waits for it unless it fails.
const LIMIT: Duration = Duration::from_secs(20);
const ENGINE: EngineId = EngineId(0);

// proves R-LEG-7
#[test]
fn a_dial_goes_to_where_the_engine_is_now() {
    for driver in DriverChoice::NAMED {
        let Ok((driver, _)) = boot::choose_driver(*driver) else {
            // A kernel that refuses io_uring leaves epoll to be tested.
            continue;
        };
        let (tell, told) = channel();
        let (a, b) = (Engine::start('a', &tell), Engine::start('b', &tell));
        let router = Router::start(driver);
        let mut client = Client::connect(router.address);
        let publish =
            |addresses: &[SocketAddr]| router.shared.addresses.publish(ENGINE, addresses.to_vec());
        assert_eq!(client.status(), 502, "its name is not known");
        publish(&[a.at]);
        assert_eq!(client.status(), 200, "it is known now");
        assert_eq!(next(&told), "a: connection");
        assert_eq!(next(&told), "a: request");
        router.at_rest();
        assert_eq!(client.status(), 200);
        assert_eq!(next(&told), "a: request", "its connection is used again");
        router.at_rest();
        // The same and another one, and then the other one alone.
        publish(&[a.at, b.at]);
        assert_eq!(client.status(), 200);
        assert_eq!(next(&told), "a: request", "its address is still there");
        router.at_rest();
        publish(&[b.at]);
        assert_eq!(next(&told), "a: end", "closed without being asked for");
        assert_eq!(client.status(), 200);
        assert_eq!(next(&told), "b: connection");
        assert_eq!(next(&told), "b: request");
        router.at_rest();
        // A port that refuses comes first: the connection that is there serves, and after its end the next address.
        publish(&[router.refusing(), b.at]);
        assert_eq!(client.status(), 200);
        assert_eq!(next(&told), "b: request");
        router.at_rest();
        b.close();
        assert_eq!(next(&told), "b: end");
        assert_eq!(client.status(), 200);
        assert_eq!(next(&told), "b: connection");
        assert_eq!(next(&told), "b: request");
        router.at_rest();
        publish(&[]);
        assert_eq!(next(&told), "b: end");
        assert_eq!(client.status(), 502);
        drop(client);
    }
}

/// The connection of a leg that is under way when its address goes serves that leg, and is not kept.
// proves R-LEG-7
#[test]
fn a_leg_under_way_ends_where_it_began() {
    for driver in DriverChoice::NAMED {
        let Ok((driver, _)) = boot::choose_driver(*driver) else {
            continue;
        };
        let (tell, told) = channel();
        let a = Engine::start('a', &tell);
        let router = Router::start(driver);
        router.shared.addresses.publish(ENGINE, vec![a.at]);
        let mut client = Client::connect(router.address);
        a.held.store(true, SeqCst);
        client.send();
        assert_eq!(next(&told), "a: connection");
        assert_eq!(next(&told), "a: request");
        router.shared.addresses.publish(ENGINE, Vec::new());
        a.release.send(()).unwrap();
        assert_eq!(client.answer(), 200);
        assert_eq!(next(&told), "a: end");
    }
}

fn next(told: &Receiver<String>) -> String {
    told.recv_timeout(LIMIT)
        .expect("an engine has something to tell")
}

/// Answers every request, one connection after another, and tells of connections, requests and ends in their order.
struct Engine {
    at: SocketAddr,
    streams: Receiver<TcpStream>,
    held: Arc<AtomicBool>,
    release: Sender<()>,
}

impl Engine {
    fn start(name: char, tell: &Sender<String>) -> Engine {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let ((keep, streams), (release, released)) = (channel(), channel());
        let (held, tell) = (Arc::new(AtomicBool::new(false)), tell.clone());
        let holds = held.clone();
        thread::spawn(move || {
            let tell = |what: &str| drop(tell.send(format!("{name}: {what}")));
            for stream in listener.incoming().map_while(Result::ok) {
                stream.set_nodelay(true).unwrap();
                tell("connection");
                let _ = keep.send(stream.try_clone().unwrap());
                let mut reader = BufReader::new(stream);
                while read_message(&mut reader).is_some() {
                    tell("request");
                    if holds.load(SeqCst) {
                        let _ = released.recv();
                    }
                    let _ = reader.get_mut().write_all(answer().as_bytes());
                }
                tell("end");
            }
        });
        Engine {
            at,
            streams,
            held,
            release,
        }
    }

    /// Closes its connection, as engines do after some idle seconds.
    fn close(&self) {
        let stream = self.streams.try_iter().last().expect("a connection");
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// One event and the end, in one piece.
fn answer() -> String {
    let event = r#"{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"a","finish_reason":"length","token_ids":[1]}]}"#;
    let body = format!("data: {event}\n\ndata: [DONE]\n\n");
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

/// Reads a message to its end; its first line, or `None` when the peer has ended.
fn read_message(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let line = |reader: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        let count = reader.read_line(&mut line).ok()?;
        (count > 0).then(|| line.trim_end().to_owned())
    };
    let skip = |reader: &mut BufReader<TcpStream>, count: usize| {
        let mut bytes = vec![0; count];
        reader.read_exact(&mut bytes).ok()
    };
    let first = line(reader)?;
    let (mut length, mut chunked) = (0, false);
    loop {
        let field = line(reader)?.to_ascii_lowercase();
        if let Some(value) = field.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        chunked |= field.starts_with("transfer-encoding:");
        if field.is_empty() {
            break;
        }
    }
    while chunked {
        let size = usize::from_str_radix(&line(reader)?, 16).unwrap();
        skip(reader, size + 2)?;
        chunked = size > 0;
    }
    skip(reader, length)?;
    Some(first)
}

struct Router {
    address: SocketAddr,
    shared: Arc<Shared>,
    ledger: Arc<ShardLedger>,
    refusing: (Socket, SocketAddr),
}

/// Nobody asks anything here.
struct NoControl;

impl ControlPort for NoControl {
    fn ask(&self, _: usize, _: ControlRequest) -> bool {
        false
    }

    fn note(&self, _: Note) {}
}

impl Router {
    fn start(driver: boot::Driver) -> Router {
        let fleet = r#"{"schema":"narwhal.fleet","schema_version":2,"model":"m",
            "engines":[{"iid":"e0","url":"http://engine.invalid","role":"both"}],
            "slo":{"ttft_s":10,"tpot_s":1},"serving":{"admission":"open","max_attempts":1},
            "engine":{"tokenize":false,"connector":"none"}}"#;
        let loaded = config::parse("test", fleet, Format::Json, &|_| None).unwrap();
        let snapshot = Arc::new(Snapshot::new(1, loaded.fleet));
        let shared = Arc::new(Shared::new(&snapshot, 1));
        let ledger = Arc::new(ShardLedger::new());
        let listener = boot::bind_shards("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let address = listener[0].local_addr().unwrap();
        let plan = Plan::floating(1);
        let mut listener = Some(listener);
        boot::run_shards(&plan, driver, |place| {
            let times = Arc::new(ShardTimes::new());
            let (snapshot, shared) = (snapshot.clone(), shared.clone());
            let shard = Shard::new(place.shard, snapshot, shared, ledger.clone(), times, 1);
            let own = listener.take().unwrap();
            let mail = Arc::new(Mailbox::new(16));
            move || async move {
                let (mail, control) = (Arc::from([mail]), Arc::new(NoControl));
                let _ = serve::shard(driver, shard, None, own, mail, control).await;
            }
        })
        .unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&any.into()).unwrap();
        let at = socket.local_addr().unwrap().as_socket().unwrap();
        Router {
            address,
            shared,
            ledger,
            refusing: (socket, at),
        }
    }

    /// An address where nobody listens, and nobody else will.
    fn refusing(&self) -> SocketAddr {
        self.refusing.1
    }

    /// Waits until the leg has let go of its connection, so that the next request finds it in the pool.
    #[expect(clippy::disallowed_methods, reason = "a test's own deadline")]
    fn at_rest(&self) {
        let end = Instant::now() + LIMIT;
        while self.ledger.peek(LedgerCell::LegsOpen) != 0 {
            assert!(Instant::now() < end, "the leg does not end");
            thread::yield_now();
        }
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(router: SocketAddr) -> Client {
        let stream = TcpStream::connect(router).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&mut self) {
        let body = r#"{"model":"m","prompt":[1,2],"stream":true}"#;
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// The status, once the answer is complete.
    fn answer(&mut self) -> u16 {
        let first = read_message(&mut self.0).expect("a whole answer");
        first.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn status(&mut self) -> u16 {
        self.send();
        self.answer()
    }
}
