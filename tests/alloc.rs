//! A relayed event allocates nothing once its stream is warm, and sends no message to another thread: counted by the allocator and the
//! mailbox of a real shard that relays a real stream, on every driver. One event per engine write, each seen by the client before the
//! next is sent, so that every event is a read, a check, a cut and a write of its own. From an https engine each event is a TLS
//! record, and what rustls allocates for one is all there is. Nor does it cost an allocation to let a request in and place it.

#[path = "placement/fleet.rs"]
mod fleet;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use narwhal::config::topology::Snapshot;
use narwhal::config::{self, Format};
use narwhal::metrics::histogram::ShardTimes;
use narwhal::metrics::ledger::{Cell as LedgerCell, ShardLedger};
use narwhal::runtime::boot::{self, DriverChoice};
use narwhal::runtime::cell::{ControlPort, Mail};
use narwhal::runtime::journal::{Rows, Way};
use narwhal::runtime::mail::Mailbox;
use narwhal::runtime::serve;
use narwhal::runtime::tls::{self, Roots};
use narwhal::runtime::topology::Plan;
use narwhal::shard::journal::Journal;
use narwhal::shard::{ControlRequest, Note, Shard, Shared};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

thread_local! {
    /// Set on the shard's thread only.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
    static OF_THIS_THREAD: Cell<u64> = const { Cell::new(0) };
}
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call goes on to the system's allocator unchanged; the counter is an atomic and the flag a const
// thread local, neither of which allocates.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait asks; nothing is kept.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the trait asks; nothing is kept.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }

    // SAFETY: as the trait asks; nothing is kept.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.realloc(at, layout, size) }
    }
}

fn count() {
    let _ = OF_THIS_THREAD.try_with(|count| count.set(count.get() + 1));
    if COUNTED.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WARM: usize = 200;
const MEASURED: usize = 2_000;
/// A record's plaintext has a vector of its own within rustls 0.23.
const TLS_ALLOCATIONS: u64 = 1;
/// glommio makes an object for each wait and each timer of a turn, and splits the map of timers; 12 were counted, and turns vary.
const GLOMMIO_ALLOCATIONS: u64 = 16;

#[test]
fn admission_and_placement_allocate_nothing() {
    let now = narwhal::base::time::Instant::from_nanos(1_000_000_000);
    let mut router = fleet::Router::new(32, 1, "price");
    let shard = &mut router.shards[0];
    let prompt = "a word and another\\n".repeat(500);
    let body = format!(r#"{{"prompt":"{prompt}"}}"#);
    let long = fleet::Asking::of(body.into_bytes(), now);
    for mut asking in [fleet::Asking::new(now), long] {
        let mut once = || {
            asking.with(shard, now, |exchange, cx| {
                exchange.read_prefix(cx);
                assert!(exchange.is_promising(cx, false));
                let (rank, plan) = exchange.plan(cx).expect("engines are there");
                exchange.settle(cx, rank, plan);
                exchange.release_attempt(cx);
                exchange.reset_attempt();
                exchange.give_prefix(cx);
            });
        };
        once();
        let before = OF_THIS_THREAD.get();
        (0..100).for_each(|_| once());
        assert_eq!(OF_THIS_THREAD.get(), before);
    }
}

/// The journal's share of a request.
// proves R-OBS-2
#[test]
fn a_row_of_the_journal_allocates_nothing() {
    let mut router = fleet::Router::new(2, 1, "price");
    let shard = &mut router.shards[0];
    let rows = Arc::new(Rows::new(16));
    shard.journal = Some(Journal::new(Way(rows.clone())));
    let mut once = || {
        let mut row = shard.begin_row().expect("there is a journal");
        row.client_rid.set(&[b'x'; 200]);
        shard.end_row(row);
        assert!(rows.take().is_some());
    };
    once();
    let before = OF_THIS_THREAD.get();
    (0..100).for_each(|_| once());
    assert_eq!(OF_THIS_THREAD.get(), before);
}

// proves R-SHD-1
#[test]
fn a_relayed_event_allocates_nothing_and_crosses_no_core() {
    let (authority, server) = authority();
    for driver in DriverChoice::NAMED {
        let Ok((driver, _)) = boot::choose_driver(*driver) else {
            // A kernel that refuses io_uring leaves epoll to be counted.
            continue;
        };
        let runtime = if driver.is_monoio() {
            0
        } else {
            GLOMMIO_ALLOCATIONS
        };
        let (go, engine) = scripted_engine(|stream| stream);
        let router = Router::start(&format!("http://{engine}"), None, driver);
        let allocations = relayed(go, router);
        let most = runtime * MEASURED as u64;
        assert!(allocations <= most, "{allocations} on {}", driver.name());
        let config = server.clone();
        let (go, engine) = scripted_engine(move |stream| {
            StreamOwned::new(ServerConnection::new(config).unwrap(), stream)
        });
        let router = Router::start(&format!("https://{engine}"), Some(&authority), driver);
        let allocations = relayed(go, router);
        let most = (runtime + TLS_ALLOCATIONS) * MEASURED as u64;
        assert!(
            allocations <= most,
            "{allocations} over TLS on {}",
            driver.name()
        );
    }
}

/// The allocations of the measured events.
fn relayed(go: mpsc::SyncSender<()>, router: Router) -> u64 {
    let mut client = Client::stream(router.address);
    for _ in 0..WARM {
        go.send(()).unwrap();
        client.event();
    }
    let mail = router.mail.accepted();
    let events = router.ledger.peek(LedgerCell::EventsRelayed);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..MEASURED {
        go.send(()).unwrap();
        client.event();
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(router.mail.accepted(), mail, "messages from other threads");
    let relayed = router.ledger.peek(LedgerCell::EventsRelayed) - events;
    assert_eq!(relayed, MEASURED as u64, "one event a read");
    drop(go);
    client.end();
    allocations
}

/// Whom to trust, and a server that may be trusted then.
fn authority() -> (Roots, Arc<ServerConfig>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let file = std::env::temp_dir().join(format!("narwhal-alloc-{}.pem", std::process::id()));
    std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
    let roots = Roots::load(Some(&file)).unwrap();
    std::fs::remove_file(file).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key);
    (roots, Arc::new(config.unwrap()))
}

/// One engine that answers both legs in one: a decode-shaped leg whose events wait for their turn.
fn scripted_engine<S: Read + Write>(
    wire: impl FnOnce(TcpStream) -> S + Send + 'static,
) -> (mpsc::SyncSender<()>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (go, turns) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut stream = wire(stream);
        read_request(&mut stream);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut n = 0u64;
        while turns.recv().is_ok() {
            n += 1;
            let event = format!(
                "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
                 \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" word{n}\"}},\"logprobs\":null,\
                 \"finish_reason\":null,\"token_ids\":[{n},{n}]}}]}}\n\n"
            );
            let chunk = format!("{:x}\r\n{event}\r\n", event.len());
            stream.write_all(chunk.as_bytes()).unwrap();
        }
        let done = "data: [DONE]\n\n";
        let end = format!("{:x}\r\n{done}\r\n0\r\n\r\n", done.len());
        stream.write_all(end.as_bytes()).unwrap();
    });
    (go, address)
}

fn read_request(stream: &mut impl Read) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let mut body = vec![0; length.unwrap().trim().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
}

struct Router {
    address: SocketAddr,
    ledger: Arc<ShardLedger>,
    mail: Arc<Mailbox<Mail>>,
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
    fn start(url: &str, roots: Option<&Roots>, driver: boot::Driver) -> Router {
        let fleet = format!(
            r#"{{"schema":"narwhal.fleet","schema_version":2,"model":"m",
                "engines":[{{"iid":"e0","url":"{url}","role":"both"}}],
                "slo":{{"ttft_s":10,"tpot_s":1}},"serving":{{"admission":"open"}},
                "engine":{{"tokenize":false,"connector":"none"}}}}"#
        );
        let loaded = config::parse("test", &fleet, Format::Json, &|_| None).unwrap();
        let snapshot = Arc::new(Snapshot::new(1, loaded.fleet));
        let shared = Arc::new(Shared::new(&snapshot, 1));
        let ledger = Arc::new(ShardLedger::new());
        let mail = Arc::new(Mailbox::new(16));
        let listener = boot::bind_shards("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let address = listener[0].local_addr().unwrap();
        let plan = Plan::floating(1);
        let mut listener = Some(listener);
        boot::run_shards(&plan, driver, |place| {
            let times = Arc::new(ShardTimes::new());
            let (snapshot, shared) = (snapshot.clone(), shared.clone());
            let shard = Shard::new(place.shard, snapshot, shared, ledger.clone(), times, 1);
            let own = listener.take().unwrap();
            let mail = Arc::from([mail.clone()]);
            let tls = roots.map(|roots| tls::Client::new(roots, &shard.snapshot));
            move || async move {
                COUNTED.set(true);
                let _ = serve::shard(driver, shard, tls, own, mail, Arc::new(NoControl)).await;
            }
        })
        .unwrap();
        Router {
            address,
            ledger,
            mail,
        }
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn stream(router: SocketAddr) -> Client {
        let mut stream = TcpStream::connect(router).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        Client(BufReader::with_capacity(1 << 16, stream))
    }

    /// Reads on to the end of the next event, and sees that its ids were cut.
    fn event(&mut self) {
        let mut line = String::new();
        while !line.starts_with("data: {") {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the stream ended");
        }
        assert!(!line.contains("token_ids"), "{line}");
    }

    fn end(mut self) {
        let mut line = String::new();
        while line != "data: [DONE]\n" {
            line.clear();
            assert_ne!(
                self.0.read_line(&mut line).unwrap(),
                0,
                "the stream ended early"
            );
        }
    }
}
