//! One question to an engine: `GET` on a fresh connection (a kept one would not show that the engine still accepts), with TLS where
//! its URL says so. Knows nothing of what is asked.
//!
//! The caller bounds the time. Invariant: a head holds at most [`HEAD_BYTES_MAX`], a body what the question allows; a connection
//! ends with its question.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT};
use hyper::{Request, http};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::port::shown;
use crate::config::Secret;
use crate::config::topology::EngineView;

/// What is asked of whom.
pub struct Question<'a> {
    pub engine: &'a EngineView,
    /// Behind the prefix of the engine's URL.
    pub path: &'a str,
    pub key: Option<&'a Secret>,
    /// Of the body of a 200; with 0 none is read.
    pub body_bytes_max: usize,
}

/// What came of it.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Empty unless the status is 200.
    pub body: Vec<u8>,
}

/// Why an engine counts as not answering.
#[derive(Debug)]
pub enum Miss {
    /// Its name led nowhere.
    Unresolved,
    /// Its host or prefix does not fit a request head.
    Url,
    Connect(io::Error),
    /// Connected, and no TLS came of it.
    Tls(io::Error),
    /// Nothing within the bound.
    Late,
    /// Another answer than was asked for.
    Status(u16),
    /// More than was allowed.
    TooLarge,
    /// Not what such a page holds.
    Garbled,
    /// Not HTTP, or cut.
    Wire(hyper::Error),
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Miss::Unresolved => f.write_str("no address"),
            Miss::Url => f.write_str("unusable url"),
            Miss::Connect(e) => write!(f, "connect: {e}"),
            Miss::Tls(e) => write!(f, "TLS: {}", shown(&e.to_string())),
            Miss::Late => f.write_str("no answer in time"),
            Miss::Status(status) => write!(f, "status {status}"),
            Miss::Garbled => f.write_str("no JSON"),
            Miss::TooLarge => f.write_str("too large an answer"),
            Miss::Wire(e) => write!(f, "bad answer: {e}"),
        }
    }
}

impl Question<'_> {
    /// Asks on the first address that takes a connection.
    pub async fn ask(
        &self,
        addresses: &[SocketAddr],
        tls: Option<&TlsConnector>,
    ) -> Result<Reply, Miss> {
        let stream = connect(addresses).await?;
        if !self.engine.tls {
            return self.on(stream).await;
        }
        let wrong = |why: &str| Miss::Tls(io::Error::other(why));
        let tls = tls.ok_or_else(|| wrong("it is not set up"))?;
        let name = ServerName::try_from(self.engine.host.clone());
        let name = name.map_err(|_| wrong("no certificate has such a name"))?;
        self.on(tls.connect(name, stream).await.map_err(Miss::Tls)?)
            .await
    }

    async fn on<S>(&self, stream: S) -> Result<Reply, Miss>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(Miss::Wire)?;
        let request = self.request().map_err(|_| Miss::Url)?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(Miss::Wire)?;
            let status = answer.status().as_u16();
            let body = if status == 200 && self.body_bytes_max > 0 {
                collect(answer.into_body(), self.body_bytes_max).await?
            } else {
                Vec::new()
            };
            Ok(Reply { status, body })
        };
        // The connection moves the bytes; it ends with this function, and what is unread with it.
        tokio::select! {
            reply = exchange => reply,
            Err(e) = connection => Err(Miss::Wire(e)),
        }
    }

    fn request(&self) -> http::Result<Request<Empty<Bytes>>> {
        let mut request = Request::get(format!("{}{}", self.engine.prefix, self.path))
            .header(HOST, self.engine.authority.as_str())
            .header(USER_AGENT, concat!("narwhal/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "*/*");
        if let Some(key) = self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {}", key.expose()));
        }
        request.body(Empty::new())
    }
}

async fn collect(mut body: Incoming, bytes_max: usize) -> Result<Vec<u8>, Miss> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Miss::Wire)?.into_data() else {
            continue;
        };
        if all.len() + data.len() > bytes_max {
            return Err(Miss::TooLarge);
        }
        all.extend_from_slice(&data);
    }
    Ok(all)
}

async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, Miss> {
    let mut miss = Miss::Unresolved;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(e) => miss = Miss::Connect(e),
        }
    }
    Err(miss)
}

/// An engine's answer head; hyper's own minimum.
const HEAD_BYTES_MAX: usize = 8_192;
