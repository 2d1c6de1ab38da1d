//! What stands before scripted engines when they are https: a door for each that ends TLS and passes the bytes on.
//!
//! An authority of its own signs the doors' certificates. Each connection is two threads, one a direction. How it ends is told
//! by [`How`]; a reset of the engine is a reset of the door.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{HandshakeKind, ServerConfig, ServerConnection};

use super::engine::{self, lock};

/// What a door does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Ends with `close_notify` and FIN.
    Announced,
    /// Ends with FIN alone.
    Cut,
    /// Is signed by somebody else.
    Strange,
    /// Takes connections and says nothing.
    Silent,
    /// Speaks plain HTTP.
    Plain,
}

/// All doors of one world.
pub struct Front {
    how: How,
    /// The certificate that the router is told to trust.
    pub authority: String,
    config: Arc<ServerConfig>,
    /// Handshakes that came to an end: all of a TLS session's, and those that resumed one.
    full: AtomicU64,
    resumed: AtomicU64,
    /// Connections that are not yet closed towards the router.
    passing: AtomicU64,
    ports: Mutex<Vec<u16>>,
    stopping: AtomicBool,
}

impl Front {
    pub fn new(how: How) -> Arc<Front> {
        let (authority, issuer) = sign();
        let signer = if how == How::Strange {
            sign().1
        } else {
            issuer
        };
        Arc::new(Front {
            how,
            authority,
            config: door(&signer),
            full: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            passing: AtomicU64::new(0),
            ports: Mutex::default(),
            stopping: AtomicBool::new(false),
        })
    }

    /// A door before the engine on `port`; its own port.
    pub fn open(self: &Arc<Front>, port: u16) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a door");
        let own = listener.local_addr().expect("an address").port();
        lock(&self.ports).push(own);
        let front = Arc::clone(self);
        thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                if front.stopping.load(Ordering::SeqCst) {
                    return;
                }
                if front.how == How::Silent {
                    held.push(stream);
                    continue;
                }
                let front = Arc::clone(&front);
                thread::spawn(move || front.pass(stream, port));
            }
        });
        own
    }

    /// Handshakes, full and resumed.
    pub fn handshakes(&self) -> (u64, u64) {
        let count = |of: &AtomicU64| of.load(Ordering::SeqCst);
        (count(&self.full), count(&self.resumed))
    }

    /// Whether every connection is closed.
    pub fn is_empty(&self) -> bool {
        self.passing.load(Ordering::SeqCst) == 0
    }

    /// The world is over.
    pub fn close(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for port in lock(&self.ports).drain(..) {
            // Wakes the accept.
            drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port)));
        }
    }

    fn pass(&self, mut outside: TcpStream, port: u16) -> Option<()> {
        let _ = outside.set_nodelay(true);
        if self.how == How::Plain {
            let _ = outside.read(&mut [0; 4096]).ok()?;
            let refusal = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            return outside.write_all(refusal).ok();
        }
        let mut tls = ServerConnection::new(Arc::clone(&self.config)).ok()?;
        while tls.is_handshaking() {
            tls.complete_io(&mut outside).ok()?;
        }
        let count = match tls.handshake_kind() {
            Some(HandshakeKind::Resumed) => &self.resumed,
            _ => &self.full,
        };
        count.fetch_add(1, Ordering::SeqCst);
        self.passing.fetch_add(1, Ordering::SeqCst);
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let inside = TcpStream::connect(at).expect("the engine accepts");
        let _ = inside.set_nodelay(true);
        let tls = Mutex::new(tls);
        thread::scope(|scope| {
            scope.spawn(|| self.outwards(&tls, &outside, &inside));
            inwards(&tls, &outside, &inside);
            let _ = inside.shutdown(Shutdown::Both);
        });
        self.passing.fetch_sub(1, Ordering::SeqCst);
        Some(())
    }

    /// What the engine says, encrypted, up to its end.
    fn outwards(&self, tls: &Mutex<ServerConnection>, outside: &TcpStream, inside: &TcpStream) {
        let (mut from, mut to) = (inside, outside);
        let mut some = [0; 16384];
        let end = loop {
            let n = match from.read(&mut some) {
                Ok(0) => break Ok(()),
                Ok(n) => n,
                Err(e) => break Err(e),
            };
            let mut tls = lock(tls);
            if tls.writer().write_all(&some[..n]).is_err() || send(&mut tls, &mut to).is_err() {
                break Ok(());
            }
        };
        match end {
            Err(_) => engine::reset(outside),
            Ok(()) if self.how == How::Announced => {
                let mut tls = lock(tls);
                tls.send_close_notify();
                let _ = send(&mut tls, &mut to);
            }
            Ok(()) => {}
        }
        let _ = outside.shutdown(Shutdown::Both);
    }
}

/// What the router says, decrypted, up to its end. Some of it may have come with the end of the handshake.
fn inwards(tls: &Mutex<ServerConnection>, outside: &TcpStream, inside: &TcpStream) {
    let (mut from, mut to) = (outside, inside);
    let mut some = [0; 16384];
    let mut rest = &some[..0];
    loop {
        let mut plain = Vec::new();
        {
            let mut tls = lock(tls);
            if !rest.is_empty() && !matches!(tls.read_tls(&mut rest), Ok(n) if n > 0) {
                return;
            }
            let Ok(state) = tls.process_new_packets() else {
                return;
            };
            plain.resize(state.plaintext_bytes_to_read(), 0);
            if tls.reader().read_exact(&mut plain).is_err()
                || send(&mut tls, &mut &*outside).is_err()
                || state.peer_has_closed()
            {
                return;
            }
        }
        if to.write_all(&plain).is_err() {
            return;
        }
        if rest.is_empty() {
            match from.read(&mut some) {
                Ok(n) if n > 0 => rest = &some[..n],
                _ => return,
            }
        }
    }
}

fn send(tls: &mut ServerConnection, to: &mut &TcpStream) -> std::io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(to)?;
    }
    Ok(())
}

/// An authority: its certificate, and what signs for it.
fn sign() -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    (certificate.pem(), Issuer::new(params, key))
}

/// For this machine, by number and by name.
fn door(signer: &Issuer<'static, KeyPair>) -> Arc<ServerConfig> {
    let names = ["127.0.0.1", "localhost"].map(str::to_owned);
    let params = CertificateParams::new(names).expect("two names");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, signer).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key);
    let mut config = config.expect("a server");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}
