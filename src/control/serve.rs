//! The HTTP server on `admin_listen`: hyper's, bounded in connections, head bytes and time, so that neither load on the
//! data ports nor an idle peer here keeps a probe from its answer. Bodies are read of POST alone, up to a bound.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, ORIGIN, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::admin::{Desk, Door, Peer};
use crate::base::limits;
use crate::metrics::standing::{Answer, CHALLENGE};
use crate::wire::h1::head::bearer_token;

/// Accepts until told to stop, then lets the answers under way finish.
pub async fn run(listener: TcpListener, desk: Arc<Desk>, mut stopped: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            _ = stopped.changed() => break,
            // Ended connections are forgotten as they end.
            Some(_) = open.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                open.spawn(connection(
                    stream,
                    peer,
                    permit,
                    desk.clone(),
                    stopped.clone(),
                ));
            }
            Err(e) => {
                tracing::warn!(error = %e, "admin accept failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    while open.join_next().await.is_some() {}
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = room
        .clone()
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    _permit: OwnedSemaphorePermit,
    desk: Arc<Desk>,
    mut stopped: watch::Receiver<bool>,
) {
    let loopback = peer.ip().to_canonical().is_loopback();
    let service = service_fn(|request: Request<Incoming>| {
        let desk = desk.clone();
        async move { Ok::<_, Infallible>(respond(&desk, request, loopback).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    // A peer's faults end its own connection and are nobody else's business: the results are dropped.
    tokio::select! {
        _ = served.as_mut() => return,
        _ = sleep(LIFE_MAX) => (),
        _ = stopped.changed() => (),
    }
    served.as_mut().graceful_shutdown();
    let _ = timeout(CLOSE_TIMEOUT, served).await;
}

async fn respond(desk: &Desk, request: Request<Incoming>, loopback: bool) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let mut given = head.headers.get_all(AUTHORIZATION).iter();
    // Two are none, as on the data port.
    let bearer = match (given.next(), given.next()) {
        (Some(value), None) => bearer_token(value.as_bytes()),
        _ => None,
    };
    let peer = Peer {
        door: Door::Admin,
        loopback,
        bearer,
        is_client: desk.shared().state.lets_in(bearer),
        from_page: head.headers.contains_key(ORIGIN) || head.headers.contains_key("sec-fetch-site"),
    };
    let (method, path) = (head.method.as_str(), head.uri.path());
    // Who may not ask is not listened to, and nobody for long.
    let wish = match desk.look(method, path, peer) {
        Ok(wish) => wish,
        Err(instead) => return into_response(instead),
    };
    let body = match head.method {
        Method::POST => {
            let body = Limited::new(body, limits::CONTROL_BODY_BYTES_MAX).collect();
            match timeout(HEAD_TIMEOUT, body).await {
                Ok(Ok(body)) => body.to_bytes(),
                _ => return into_response(too_large()),
            }
        }
        // What comes with anything else is not for us.
        _ => Bytes::new(),
    };
    into_response(desk.serve(wish, body).await)
}

fn too_large() -> Answer {
    let message = "The request body is over the limit, or did not come";
    Answer::error(413, message, "request_too_large", None)
}

fn into_response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = answer.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if answer.status == 401 {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
    }
    if let Some(methods) = answer.allow {
        headers.insert(ALLOW, HeaderValue::from_static(methods));
    }
    response
}

/// Connections at once; the next ones wait in the listen queue. A guess: probes and scrapers are a handful.
const CONNECTIONS_MAX: usize = 256;
/// hyper's own minimum.
const HEAD_BYTES_MAX: usize = 8_192;
/// For a head, and for a kept connection to send its next one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is asked to end after this, so that a peer that never reads gives its place back.
const LIFE_MAX: Duration = Duration::from_secs(300);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// After a failed accept (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
