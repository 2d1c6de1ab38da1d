//! TLS to https engines: rustls turns bytes into bytes, and our own halves move them, completion style as everywhere here.
//!
//! Owns the trust that a shard dials with ([`Client`]) and, for one connection, its TLS state, its halves and the records
//! on their way ([`TlsStream`]). A leg does one thing at a time, so one operation owns the whole stream. Invariants: both
//! halves are here between operations; an end of stream without the peer's `close_notify` is an error, since anybody on
//! the way could have sent it (RFC 8446 section 6.1).

use std::io::{self, BufRead, ErrorKind, Write};
use std::mem;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use self::records::Records;
use super::io::{ReadHalf, Rt, WriteHalf};
use crate::base::limits;
use crate::base::units::EngineId;
use crate::config::topology::{EngineView, Presence, Snapshot};

mod records;

/// Whose signature under an engine's certificate counts.
#[derive(Clone)]
pub struct Roots(Arc<RootCertStore>);

/// What one shard speaks TLS with. Its store of TLS sessions to resume is its own.
pub struct Client {
    config: Arc<ClientConfig>,
    /// By engine; `None` for those that are not https.
    names: Vec<Option<ServerName<'static>>>,
}

/// Who must be at the other end.
#[derive(Clone)]
pub(super) struct Peer {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// One connection to an https engine.
pub(super) struct TlsStream<R: Rt> {
    tls: ClientConnection,
    reader: Option<R::Reader>,
    writer: Option<R::Writer>,
    /// Records as they came; the first `taken` bytes are rustls's already.
    inbound: Vec<u8>,
    taken: usize,
    /// How far into a record rustls's bytes go.
    records: Records,
    /// Records on their way out; empty between operations.
    outbound: Vec<u8>,
    /// The last read filled its buffer, so rustls may hold more.
    more: bool,
    /// The peer said `close_notify`.
    closed: bool,
    /// Found behind bytes that went out first.
    fault: Option<io::Error>,
}

impl Roots {
    /// The certificates of `ca_file` and no others; without one, those that the system trusts.
    pub fn load(ca_file: Option<&Path>) -> io::Result<Roots> {
        let mut roots = RootCertStore::empty();
        let Some(path) = ca_file else {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map(|e| format!(": {e}"));
                let why = why.unwrap_or_default();
                return Err(io::Error::other(format!(
                    "the system has no CA certificates, and the file names none{why}"
                )));
            }
            return Ok(Roots(Arc::new(roots)));
        };
        let named = |why: &dyn std::fmt::Display| {
            let text = format!("{}: {why}", path.display());
            io::Error::new(ErrorKind::InvalidData, text)
        };
        let certificates = CertificateDer::pem_file_iter(path).map_err(|e| named(&e))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|e| named(&e))?;
            roots.add(certificate).map_err(|e| named(&e))?;
        }
        if roots.is_empty() {
            return Err(named(&"no certificate in it"));
        }
        Ok(Roots(Arc::new(roots)))
    }

    /// As the fleet says; `None` when no engine is https. An https engine that no certificate can be for is an error.
    pub fn of(snapshot: &Snapshot) -> io::Result<Option<Roots>> {
        // Those that leave too: a leg that is placed there may have to connect.
        let known = |engine: &&EngineView| engine.tls && engine.presence != Presence::Gone;
        if !snapshot.engines.iter().any(|engine| known(&engine)) {
            return Ok(None);
        }
        let mut https = snapshot.present().filter(|engine| engine.tls);
        if let Some(engine) = https.find(|engine| server_name(engine).is_none()) {
            let (iid, host) = (&engine.iid, &engine.host);
            let why = format!("engine {iid}: no certificate can be for the host `{host}`");
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        Roots::load(snapshot.fleet.engine.tls_ca_file.as_deref()).map(Some)
    }

    /// TLS 1.2 and 1.3 with these roots, HTTP/1.1 in it. Each has a store of its own of TLS sessions to resume.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has suites for both versions");
        let roots = builder.with_root_certificates(self.0.clone());
        let mut config = roots.with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

impl Client {
    pub fn new(roots: &Roots, snapshot: &Snapshot) -> Client {
        let name = |engine: &EngineView| engine.tls.then(|| server_name(engine)).flatten();
        Client {
            config: roots.client_config(),
            names: snapshot.engines.iter().map(name).collect(),
        }
    }

    pub(super) fn peer(&self, engine: EngineId) -> Option<Peer> {
        let name = self.names.get(engine.index())?.clone()?;
        Some(Peer {
            config: self.config.clone(),
            name,
        })
    }
}

/// What an engine's certificate must be for: the host of its URL, a name or an address. `None` when no certificate can.
pub fn server_name(engine: &EngineView) -> Option<ServerName<'static>> {
    ServerName::try_from(engine.host.clone()).ok()
}

/// TLS on a fresh connection. The caller bounds the time.
pub(super) async fn handshake<R: Rt>(
    reader: R::Reader,
    writer: R::Writer,
    peer: Peer,
) -> io::Result<Box<TlsStream<R>>> {
    let tls = ClientConnection::new(peer.config, peer.name).map_err(io::Error::other)?;
    let mut stream = Box::new(TlsStream {
        tls,
        reader: Some(reader),
        writer: Some(writer),
        inbound: Vec::with_capacity(limits::TLS_READ_BYTES),
        taken: 0,
        records: Records::default(),
        outbound: Vec::new(),
        more: false,
        closed: false,
        fault: None,
    });
    loop {
        stream.flush().await?;
        if !stream.tls.is_handshaking() {
            return Ok(stream);
        }
        if stream.fill().await? == 0 {
            let why = "the peer closed the connection during the handshake";
            return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
        }
        if let Err(why) = stream.feed() {
            // The peer is told what we hold against it.
            let _ = stream.flush().await;
            return Err(why);
        }
    }
}

impl<R: Rt> TlsStream<R> {
    /// As [`ReadHalf::read`]; `Ok(0)` only for an end that the peer announced.
    pub(super) async fn read(
        mut self: Box<Self>,
        mut buf: Vec<u8>,
    ) -> (io::Result<usize>, Vec<u8>, Box<Self>) {
        let got = self.read_into(&mut buf).await;
        (got, buf, self)
    }

    /// As [`WriteHalf::write_all`], from the start.
    pub(super) async fn write_all(
        mut self: Box<Self>,
        request: Vec<u8>,
    ) -> (io::Result<()>, Vec<u8>, Box<Self>) {
        let sent = self.write_from(&request).await;
        (sent, request, self)
    }

    /// Whether the peer is still there and silent, as far as we know without decrypting.
    pub(super) fn is_quiet(&self) -> bool {
        let nothing_left =
            !self.more && self.taken == self.inbound.len() && self.records.at_border();
        let well = !self.closed && self.fault.is_none();
        nothing_left && well && self.reader.as_ref().is_some_and(ReadHalf::is_quiet)
    }

    async fn read_into(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        if buf.len() == buf.capacity() {
            return Err(ErrorKind::InvalidInput.into());
        }
        loop {
            let got = self.decrypt(buf);
            if got > 0 {
                return Ok(got);
            }
            // What rustls wants said: an alert to a peer at fault, or new keys that the peer asked for.
            let flushed = self.flush().await;
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
            if self.closed {
                return Ok(0);
            }
            flushed?;
            if self.fill().await? == 0 {
                let why = "the peer closed the connection without close_notify";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
            }
        }
    }

    async fn write_from(&mut self, request: &[u8]) -> io::Result<()> {
        for piece in request.chunks(limits::TLS_WRITE_BYTES) {
            let mut rest = piece;
            while !rest.is_empty() {
                match self.tls.writer().write(rest)? {
                    0 => return Err(ErrorKind::WriteZero.into()),
                    n => rest = &rest[n..],
                }
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Moves plaintext behind `buf`, as much as has come and there is room for, and says how much. A fault that follows
    /// it is kept for the next call.
    fn decrypt(&mut self, buf: &mut Vec<u8>) -> usize {
        let from = buf.len();
        loop {
            let room = buf.capacity() - buf.len();
            if room == 0 {
                break;
            }
            // Nothing there reads as `WouldBlock`, the announced end as an empty piece.
            let mut plain = self.tls.reader();
            let piece = plain.fill_buf().unwrap_or_default();
            let some = &piece[..piece.len().min(room)];
            let count = some.len();
            buf.extend_from_slice(some);
            plain.consume(count);
            if count > 0 {
                continue;
            }
            if self.fault.is_some() {
                break;
            }
            match self.feed() {
                Ok(true) => {}
                Ok(false) => break,
                // One more round: what rustls opened before it came to the fault.
                Err(fault) => self.fault = Some(fault),
            }
        }
        self.more = buf.len() == buf.capacity();
        buf.len() - from
    }

    /// Hands records to rustls until there is plaintext (true) or all are taken.
    fn feed(&mut self) -> io::Result<bool> {
        while self.taken < self.inbound.len() {
            let count = self.tls.read_tls(&mut &self.inbound[self.taken..])?;
            self.records
                .pass(&self.inbound[self.taken..self.taken + count]);
            self.taken += count;
            let invalid = |fault| io::Error::new(ErrorKind::InvalidData, fault);
            let state = self.tls.process_new_packets().map_err(invalid)?;
            self.closed |= state.peer_has_closed();
            if state.plaintext_bytes_to_read() > 0 {
                return Ok(true);
            }
            if count == 0 {
                // It takes nothing more: the peer spoke on after it had announced the end.
                break;
            }
        }
        Ok(false)
    }

    /// Reads from the socket; 0 is its end.
    async fn fill(&mut self) -> io::Result<usize> {
        self.inbound.drain(..self.taken);
        self.taken = 0;
        let Some(reader) = self.reader.take() else {
            return Err(ErrorKind::NotConnected.into());
        };
        let (got, inbound, reader) = reader.read(mem::take(&mut self.inbound)).await;
        (self.inbound, self.reader) = (inbound, Some(reader));
        got
    }

    /// Sends what rustls has to send.
    async fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.outbound)?;
        }
        if self.outbound.is_empty() {
            return Ok(());
        }
        let Some(writer) = self.writer.take() else {
            return Err(ErrorKind::NotConnected.into());
        };
        let (sent, mut outbound, writer) = writer.write_all(mem::take(&mut self.outbound), 0).await;
        outbound.clear();
        if outbound.capacity() > limits::TLS_READ_BYTES {
            // A large request was in it; the answers that follow need none.
            outbound = Vec::new();
        }
        (self.outbound, self.writer) = (outbound, Some(writer));
        sent
    }
}

impl<R: Rt> Drop for TlsStream<R> {
    /// Announces the end (RFC 8446 section 6.1 asks for it), where that costs no wait and no operation is cut in half.
    fn drop(&mut self) {
        let Some(writer) = &self.writer else { return };
        if self.tls.is_handshaking() || !self.outbound.is_empty() {
            return;
        }
        self.tls.send_close_notify();
        while self.tls.wants_write() && self.tls.write_tls(&mut self.outbound).is_ok() {}
        // The socket closes next: who does not get to read this sees that.
        let _ = writer.send_now(&self.outbound);
    }
}

#[cfg(test)]
pub mod testing;

#[cfg(test)]
mod tests;
