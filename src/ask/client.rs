//! Requests to engines, timed: one connection each, dialed before the clock starts, so that no answer pays for a connection and none
//! meets one that the engine was about to close. A tool's client, not the data path's.
//!
//! Invariants: a plain answer holds at most [`ANSWER_BYTES_MAX`], an event at most [`EVENT_BYTES_MAX`]; letting go of an answer
//! closes its connection, which takes the request off the engine.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::config::topology::EngineView;
use crate::config::{EngineSettings, Secret};
use crate::runtime::tls;
use crate::wire::openai::engine_message;

/// How to reach the engines of a fleet.
pub struct Client {
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
    key: Option<Secret>,
}

/// What goes wrong between us and an engine.
#[derive(Debug, Error)]
pub enum Trouble {
    #[error("cannot be reached: {0}")]
    Connect(io::Error),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("the exchange broke: {0}")]
    Wire(#[from] hyper::Error),
    #[error("its URL makes no request: {0}")]
    Url(#[from] hyper::http::Error),
    #[error("{path}: status {status}: {message}")]
    Status {
        path: &'static str,
        status: u16,
        message: String,
    },
    #[error("{0}: not the answer that was expected")]
    Answer(&'static str),
    /// Of a prompt whose length we do not know ourselves.
    #[error("its answer has no `usage` with the prompt's length")]
    NoUsage,
    #[error("no answer in time ({0:?})")]
    Late(Duration),
    #[error("it failed in the stream, status {status}: {message}")]
    Stream { status: u16, message: String },
    #[error("it gave the request up (finish_reason \"abort\")")]
    Abort,
    #[error("event {event} of a stream is no JSON object")]
    Malformed { event: u64 },
    #[error(
        "event {event} of a stream breaks the rule on token ids (output without a nonempty `token_ids` list of whole numbers): \
         tokens cannot be counted"
    )]
    BadIds { event: u64 },
    #[error("its stream ended without {0}")]
    Ended(&'static str),
    #[error("an answer or event is larger than {0} bytes")]
    TooLarge(usize),
    /// Of the engine that this one is measured together with.
    #[error("its partner {iid}: {why}")]
    Partner { iid: String, why: Box<Trouble> },
}

/// One connection.
pub struct Link {
    sender: SendRequest<Full<Bytes>>,
    moving: JoinHandle<()>,
}

/// An answer that is coming, and the connection that it comes on.
pub struct Coming {
    answer: Response<Incoming>,
    _link: Link,
}

const ANSWER_BYTES_MAX: usize = 16 << 20;
pub const EVENT_BYTES_MAX: usize = 1 << 20;

impl Client {
    pub fn new(settings: &EngineSettings, tls: Option<Arc<ClientConfig>>) -> Client {
        Client {
            tls: tls.map(TlsConnector::from),
            connect_timeout: settings.connect_timeout,
            key: settings.api_key.clone(),
        }
    }

    /// A fresh connection.
    pub async fn dial(&self, engine: &EngineView) -> Result<Link, Trouble> {
        let dialed = timeout(self.connect_timeout, self.dial_unbounded(engine)).await;
        dialed.unwrap_or(Err(Trouble::Late(self.connect_timeout)))
    }

    async fn dial_unbounded(&self, engine: &EngineView) -> Result<Link, Trouble> {
        let stream = connect(engine).await.map_err(Trouble::Connect)?;
        // A request is one small write.
        stream.set_nodelay(true).map_err(Trouble::Connect)?;
        let Some(tls) = self.tls.as_ref().filter(|_| engine.tls) else {
            return link(stream).await;
        };
        let name = tls::server_name(engine);
        let name = name.ok_or_else(|| Trouble::Tls(io::Error::other("no certificate fits")))?;
        link(tls.connect(name, stream).await.map_err(Trouble::Tls)?).await
    }

    /// A page, whatever its status.
    pub async fn page(
        &self,
        engine: &EngineView,
        path: &'static str,
    ) -> Result<(u16, Vec<u8>), Trouble> {
        let link = self.dial(engine).await?;
        let coming = self.ask(link, engine, path, None).await?;
        let status = coming.answer.status().as_u16();
        Ok((status, coming.collect().await?))
    }

    /// Sends a body; returns once the answer's head is there and says 2xx.
    pub async fn post(
        &self,
        link: Link,
        engine: &EngineView,
        path: &'static str,
        body: Vec<u8>,
    ) -> Result<Coming, Trouble> {
        let coming = self.ask(link, engine, path, Some(body)).await?;
        let status = coming.answer.status();
        if status.is_success() {
            return Ok(coming);
        }
        let body = coming.collect().await?;
        let message = told(engine_message(&body));
        let status = status.as_u16();
        Err(Trouble::Status {
            path,
            status,
            message,
        })
    }

    async fn ask(
        &self,
        mut link: Link,
        engine: &EngineView,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Coming, Trouble> {
        let method = match body {
            Some(_) => Method::POST,
            None => Method::GET,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", engine.prefix))
            .header(HOST, engine.authority.as_str())
            .header(USER_AGENT, concat!("narwhal/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "*/*");
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {}", key.expose()));
        }
        let request = request.body(Full::new(Bytes::from(body.unwrap_or_default())))?;
        let answer = link.sender.send_request(request).await?;
        Ok(Coming {
            answer,
            _link: link,
        })
    }
}

impl Coming {
    /// The next piece of the body; `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Trouble> {
        loop {
            let Some(frame) = self.answer.body_mut().frame().await else {
                return Ok(None);
            };
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// The whole body.
    pub async fn collect(mut self) -> Result<Vec<u8>, Trouble> {
        let mut all = Vec::new();
        while let Some(piece) = self.piece().await? {
            if all.len() + piece.len() > ANSWER_BYTES_MAX {
                return Err(Trouble::TooLarge(ANSWER_BYTES_MAX));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }
}

impl Trouble {
    /// The trouble is that engine's, not the one's that is measured.
    pub fn of_partner(self, partner: &EngineView) -> Trouble {
        Trouble::Partner {
            iid: partner.iid.clone(),
            why: Box::new(self),
        }
    }
}

/// An engine's own words, for a terminal.
pub fn told(message: Option<String>) -> String {
    let message = message.unwrap_or_else(|| "no message".to_owned());
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    message.chars().map(plain).collect()
}

impl Drop for Link {
    fn drop(&mut self) {
        // With the task goes the socket.
        self.moving.abort();
    }
}

async fn connect(engine: &EngineView) -> io::Result<TcpStream> {
    let mut last = io::Error::other("its name has no address");
    for address in &engine.addrs {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn link<S>(stream: S) -> Result<Link, Trouble>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let moving = tokio::spawn(async move {
        // What goes wrong shows on the request.
        let _ = connection.await;
    });
    Ok(Link { sender, moving })
}
