//! The health pass: each engine is asked `GET prefix/health`, all at once, on a fresh connection each (a kept one would
//! not show that the engine still accepts). What follows from the answers is [`Liveness`], a pure rule; the rest is I/O.
//!
//! A single miss means little (a busy engine answers late while it generates well), so only a run of misses takes an
//! engine out, and one success brings it back. Breakers weigh other evidence and are not this file's.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;

use super::Shared;
use super::judge::Judge;
use super::port::shown;
use crate::config::topology::EngineView;

/// The rule. Engines count as live until they miss.
#[derive(Debug)]
pub struct Liveness {
    every: u32,
    misses_max: u32,
    engines: Vec<Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    live: bool,
    misses: u32,
}

impl Liveness {
    /// `live`: what the board says now, in its order. A `misses_max` of 0 reads as 1.
    pub fn new(live: impl IntoIterator<Item = bool>, every: u32, misses_max: u32) -> Liveness {
        let engines = live
            .into_iter()
            .map(|live| Seen { live, misses: 0 })
            .collect();
        Liveness {
            every,
            misses_max: misses_max.max(1),
            engines,
        }
    }

    /// Whether this pass (counted from 0) asks.
    pub fn due(&self, pass: u64) -> bool {
        self.every != 0 && pass.is_multiple_of(u64::from(self.every))
    }

    /// Takes one engine's answer; `Some` when its live flag changes, and to what.
    pub fn observe(&mut self, engine: usize, answered: bool) -> Option<bool> {
        let seen = self.engines.get_mut(engine)?;
        seen.misses = if answered {
            0
        } else {
            seen.misses.saturating_add(1)
        };
        let live = answered || (seen.live && seen.misses < self.misses_max);
        (live != std::mem::replace(&mut seen.live, live)).then_some(live)
    }
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
    /// An answer other than 2xx.
    Status(u16),
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
            Miss::Wire(e) => write!(f, "bad answer: {e}"),
        }
    }
}

/// Passes for the life of the thread.
pub async fn run(shared: Arc<Shared>, tls: Option<Arc<ClientConfig>>) {
    let tls = tls.map(TlsConnector::from);
    let fleet = &shared.snapshot.fleet;
    let rules = &fleet.recovery;
    let board = &shared.state.board;
    let live = shared
        .snapshot
        .engines
        .iter()
        .map(|e| board.line(e.id).is_live());
    let mut liveness = Liveness::new(live, rules.liveness_every, rules.liveness_misses);
    let began = tokio::time::Instant::now();
    let mut ticks = interval(fleet.controller.monitor_interval.max(INTERVAL_MIN));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut judge = Judge::new(&shared);
    for pass in 0u64.. {
        let tick = ticks.tick().await;
        judge.pass(&shared, tick.duration_since(began));
        if liveness.due(pass) {
            health_pass(&shared, &tls, &mut liveness).await;
        }
    }
}

/// Asks every engine, then sets the flags that change.
async fn health_pass(shared: &Shared, tls: &Option<TlsConnector>, liveness: &mut Liveness) {
    let limit = shared.snapshot.fleet.engine.health_timeout;
    let mut probes = JoinSet::new();
    for engine in shared.snapshot.engines.iter() {
        let addresses = shared.state.addresses.of(engine.id);
        let (engine, tls) = (engine.clone(), tls.clone());
        probes.spawn(async move {
            let asked = timeout(limit, probe(&engine, &addresses, tls)).await;
            (engine.id, asked.unwrap_or(Err(Miss::Late)))
        });
    }
    while let Some(probed) = probes.join_next().await {
        let Ok((id, result)) = probed else { continue };
        let iid = shared.snapshot.engine(id).map(|e| e.iid.as_str());
        let line = shared.state.board.line(id);
        match (liveness.observe(id.index(), result.is_ok()), result) {
            (Some(true), _) => {
                line.set_live(true);
                tracing::info!(iid, "engine is live again");
            }
            (Some(false), Err(miss)) => {
                line.set_live(false);
                if let Some(prefixes) = &shared.state.prefixes {
                    prefixes.forget(id);
                }
                tracing::warn!(iid, %miss, "engine is not live");
            }
            (None, Err(miss)) => tracing::debug!(iid, %miss, "health probe missed"),
            (_, Ok(())) => (),
        }
    }
}

/// One question, on the first address that takes a connection. The caller bounds the time.
async fn probe(
    engine: &EngineView,
    addresses: &[SocketAddr],
    tls: Option<TlsConnector>,
) -> Result<(), Miss> {
    let stream = connect(addresses).await?;
    if !engine.tls {
        return ask(engine, stream).await;
    }
    let wrong = |why: &str| Miss::Tls(io::Error::other(why));
    let tls = tls.ok_or_else(|| wrong("it is not set up"))?;
    let name = ServerName::try_from(engine.host.clone());
    let name = name.map_err(|_| wrong("no certificate has such a name"))?;
    ask(engine, tls.connect(name, stream).await.map_err(Miss::Tls)?).await
}

async fn ask<S>(engine: &EngineView, stream: S) -> Result<(), Miss>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(Miss::Wire)?;
    let request = Request::get(format!("{}/health", engine.prefix))
        .header(HOST, engine.authority.as_str())
        .header(USER_AGENT, concat!("narwhal/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "*/*")
        .body(Empty::new())
        .map_err(|_| Miss::Url)?;
    // The connection moves the bytes; it ends with this function, the body unread.
    let answer = tokio::select! {
        answer = sender.send_request(request) => answer.map_err(Miss::Wire)?,
        Err(e) = connection => return Err(Miss::Wire(e)),
    };
    let status = answer.status();
    if status.is_success() {
        Ok(())
    } else {
        Err(Miss::Status(status.as_u16()))
    }
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

/// An interval of zero would spin.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// An engine's answer head; hyper's own minimum.
const HEAD_BYTES_MAX: usize = 8_192;

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: misses allowed, answers (`.` ok, `x` miss), live flag after each (`l` or `d`).
    // proves R-CTL-1
    #[test]
    fn runs_of_misses_take_out_and_a_success_brings_back() {
        let rows = [
            (1, "..x.x", "lldld"),
            (2, "x.x.xx", "llllld"),
            (2, "xxx.x", "lddll"),
            (3, "xx.xxx.", "llllldl"),
            (0, "x.", "dl"),
        ];
        for (misses, answers, want) in rows {
            let mut rule = Liveness::new([true], 1, misses);
            let mut flag = true;
            let got: String = answers
                .chars()
                .map(|c| {
                    let before = flag;
                    if let Some(live) = rule.observe(0, c == '.') {
                        flag = live;
                        assert_ne!(before, flag, "changes only are told");
                    }
                    if flag { 'l' } else { 'd' }
                })
                .collect();
            assert_eq!(got, want, "{misses} {answers}");
        }
    }

    #[test]
    fn passes_that_ask() {
        let asks = |every| {
            let rule = Liveness::new([], every, 1);
            (0..7).filter(|p| rule.due(*p)).collect::<Vec<u64>>()
        };
        assert_eq!(asks(0), Vec::<u64>::new());
        assert_eq!(asks(1), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(asks(3), [0, 3, 6]);
        let mut rule = Liveness::new([false], 1, 2);
        assert_eq!(rule.observe(0, false), None, "out at the start stays out");
        assert_eq!(
            (rule.observe(0, true), rule.observe(9, true)),
            (Some(true), None)
        );
    }
}
