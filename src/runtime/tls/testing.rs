//! For tests: a certificate authority, and TLS servers on threads of the operating system.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};

use super::*;
use crate::config::{Format, parse};

/// Signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pub pem: String,
}

/// The server's end of a connection.
pub type ServerEnd = StreamOwned<ServerConnection, TcpStream>;

impl Authority {
    pub fn generate() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Authority {
            pem: certificate.pem(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    pub fn roots(&self) -> Roots {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        Roots(Arc::new(roots))
    }

    /// A server whose certificate is for `names`.
    pub fn server(
        &self,
        names: &[&str],
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&str],
    ) -> Arc<ServerConfig> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// A fleet of one engine.
pub fn fleet_of(url: &str) -> Snapshot {
    let file = serde_json::json!({
        "schema": "narwhal.fleet", "schema_version": 2, "model": "m",
        "engines": [{"iid": "e0", "url": url}], "slo": {"ttft_s": 1, "tpot_s": 0.1},
    });
    let loaded = parse("f", &file.to_string(), Format::Json, &|_| None).unwrap();
    Snapshot::new(1, loaded.fleet)
}

/// A client that asks for the host of `url`, and whom it expects there.
pub(in crate::runtime) fn peer(roots: &Roots, url: &str) -> Peer {
    let client = Client::new(roots, &fleet_of(url));
    client.peer(EngineId(0)).unwrap()
}

/// Serves each connection with `serve`, for as long as the test's process runs.
pub fn listen(
    config: Arc<ServerConfig>,
    serve: impl Fn(ServerEnd) -> io::Result<()> + Send + Sync + 'static,
) -> SocketAddr {
    let serve = Arc::new(serve);
    listen_raw(move |stream| {
        let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
        serve(StreamOwned::new(connection, stream))
    })
}

/// The same below TLS.
pub fn listen_raw(
    serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), serve.clone());
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || serve(stream));
        }
    });
    at
}

/// Sends back what comes until the client ends, and answers its end with an end.
pub fn echo(mut end: ServerEnd) -> io::Result<()> {
    let mut some = [0; 40_000];
    loop {
        let n = end.read(&mut some)?;
        if n == 0 {
            end.conn.send_close_notify();
            return end.flush();
        }
        end.write_all(&some[..n])?;
    }
}

/// A file with these bytes, in a place of its own; the test removes it.
pub fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("narwhal-tls-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}
