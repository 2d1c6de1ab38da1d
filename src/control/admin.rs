//! The admin routes as functions: which route, who may ask, what the answer is. The server on `admin_listen` and the
//! asks of shards both come through [`Desk`]; nothing here does I/O.
//!
//! Invariant: `/health` and `/ready` are open to everyone on both ports, and so is `/v1/models` where clients need no key; the others
//! are not on the data port when `admin_listen` is set, and never shown to a peer that [`admit`] refuses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;

use super::{Ask, Now, Shared, check};
use crate::config::AdminKey;
use crate::metrics::standing::{self, Answer};
use crate::metrics::{state, text};
use crate::wire::h1::head::Method;

/// A route of this room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Health,
    Ready,
    Models,
    Metrics,
    State,
    Lifecycle,
    Drain,
    Readmit,
}

impl Route {
    /// By path; a query string is ignored.
    pub fn of(path: &str) -> Option<Route> {
        Some(match path.split(['?', '#']).next()? {
            "/health" => Route::Health,
            "/ready" => Route::Ready,
            "/v1/models" => Route::Models,
            "/metrics" => Route::Metrics,
            "/narwhal/state" => Route::State,
            "/narwhal/lifecycle" => Route::Lifecycle,
            "/narwhal/lifecycle/drain" => Route::Drain,
            "/narwhal/lifecycle/readmit" => Route::Readmit,
            _ => return None,
        })
    }

    /// Open routes are answered to anyone, and by shards themselves.
    pub const fn is_open(self) -> bool {
        matches!(self, Route::Health | Route::Ready | Route::Models)
    }
}

/// Where the request came in, from whom, with which key.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    pub door: Door,
    pub loopback: bool,
    pub bearer: Option<&'a [u8]>,
    /// It opens `/v1/*`, or nothing is needed to.
    pub is_client: bool,
    /// A page in a browser asks, whoever wrote it.
    pub from_page: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Data,
    Admin,
}

/// Who may use the guarded routes.
#[derive(Default)]
pub struct Policy {
    /// `admin_listen` is set: guarded routes are there only.
    pub on_admin_port: bool,
    pub key: Option<Arc<AdminKey>>,
}

/// `Err` is the answer instead. The rule, in order: open routes for all, and what is for clients for those · on the data port nothing
/// else when there is an admin port · loopback peers · the key, when one is set · without a key the admin port trusts whoever reaches it.
/// Who reaches a port may be a page of anybody's in an operator's browser: it changes nothing without the key.
pub fn admit(route: Route, peer: Peer<'_>, policy: &Policy) -> Result<(), Answer> {
    if route.is_open() && (route != Route::Models || peer.is_client) {
        return Ok(());
    }
    if peer.door == Door::Data && policy.on_admin_port {
        return Err(Answer::not_found());
    }
    let is_strange = peer.from_page && matches!(route, Route::Drain | Route::Readmit);
    if peer.loopback && !is_strange {
        return Ok(());
    }
    match &policy.key {
        Some(key) if peer.bearer.is_some_and(|b| key.matches(b)) => Ok(()),
        Some(_) => Err(unauthorized()),
        None if peer.door == Door::Admin && !is_strange => Ok(()),
        None => Err(forbidden()),
    }
}

/// Answers a question that may be answered.
pub fn answer(route: Route, shared: &Shared, uptime: Duration) -> Answer {
    match route {
        Route::Health => standing::health(&shared.health()),
        Route::Ready => standing::ready(&shared.health()),
        Route::Models => standing::models(shared.models()),
        Route::Metrics => Answer {
            status: 200,
            content_type: text::CONTENT_TYPE,
            body: text::render(&shared.picture(uptime)).into_bytes(),
            retry_after: None,
            allow: None,
        },
        Route::State => Answer::json(200, &state::render(&shared.picture(uptime))),
        Route::Lifecycle | Route::Drain | Route::Readmit => {
            Answer::json(200, &shared.lifecycle.shown(shared))
        }
    }
}

/// 503: the control thread is behind, or going.
pub fn busy() -> Answer {
    let message = "The control thread is busy";
    let answer = Answer::error(503, message, "server_overloaded_error", None);
    Answer {
        retry_after: Some(1),
        ..answer
    }
}

/// What is asked of this room by somebody who may.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    Show(Route),
    Drain,
    Readmit,
}

/// Where both ways in meet.
pub struct Desk {
    pub now: Now,
    pub on_admin_port: bool,
    pub asker: check::Asker,
    pub born: Instant,
}

impl Desk {
    pub fn shared(&self) -> Arc<Shared> {
        self.now.borrow().clone()
    }

    /// What is asked, when it may be; the answer instead when not.
    pub fn look(&self, method: &str, path: &str, peer: Peer<'_>) -> Result<Wish, Answer> {
        let route = Route::of(path).ok_or_else(Answer::not_found)?;
        let policy = Policy {
            on_admin_port: self.on_admin_port,
            key: self.shared().admin_key.clone(),
        };
        admit(route, peer, &policy)?;
        match (route, method) {
            (Route::Drain, "POST") => Ok(Wish::Drain),
            (Route::Readmit, "POST") => Ok(Wish::Readmit),
            (Route::Drain | Route::Readmit, _) => Err(Answer::not_allowed("POST")),
            (_, "GET" | "HEAD") => Ok(Wish::Show(route)),
            _ => Err(Answer::not_allowed(ALLOW)),
        }
    }

    /// Does it. In a task of its own: who asked may leave, and what was begun is finished.
    pub async fn serve(&self, wish: Wish, body: Bytes) -> Answer {
        let (shared, asker) = (self.shared(), self.asker.clone());
        let done = match wish {
            Wish::Show(route) => return answer(route, &shared, self.born.elapsed()),
            Wish::Drain => {
                tokio::spawn(async move { shared.lifecycle.drain(&shared, &asker, &body).await })
            }
            Wish::Readmit => {
                tokio::spawn(async move { shared.lifecycle.readmit(&shared, &asker, &body).await })
            }
        };
        done.await.unwrap_or_else(|_| busy())
    }

    pub async fn answer_ask(self: Arc<Self>, ask: Ask) {
        let Ask { request, reply } = ask;
        let bearer = request.bearer.as_deref();
        let peer = Peer {
            door: Door::Data,
            loopback: request.loopback,
            bearer,
            is_client: self.shared().state.lets_in(bearer),
            from_page: request.from_page,
        };
        // `look` knows the methods that there are by name; any other is none of them.
        let method = match request.method {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Options | Method::Other => "",
        };
        let answer = match self.look(method, &request.path, peer) {
            Ok(wish) => self.serve(wish, request.body.into()).await,
            Err(instead) => instead,
        };
        reply.send(answer);
    }
}

fn unauthorized() -> Answer {
    let message = "This route needs the admin key";
    Answer::error(
        401,
        message,
        "invalid_request_error",
        Some("invalid_api_key"),
    )
}

fn forbidden() -> Answer {
    let message = "This route is for loopback peers";
    Answer::error(403, message, "invalid_request_error", None)
}

const ALLOW: &str = "GET, HEAD";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_by_path() {
        let rows = [
            ("/health", Some(Route::Health)),
            ("/health?x=1", Some(Route::Health)),
            ("/health/", None),
            ("/ready", Some(Route::Ready)),
            ("/v1/models", Some(Route::Models)),
            ("/metrics", Some(Route::Metrics)),
            ("/narwhal/state", Some(Route::State)),
            ("/narwhal/lifecycle", Some(Route::Lifecycle)),
            ("/narwhal/lifecycle/drain?x", Some(Route::Drain)),
            ("/narwhal/lifecycle/readmit", Some(Route::Readmit)),
            ("/narwhal", None),
            ("/", None),
            ("", None),
            ("*", None),
        ];
        for (path, route) in rows {
            assert_eq!(Route::of(path), route, "{path}");
        }
    }

    /// Rows: route, door, loopback, bearer, admin port set, key set, status (0 is admitted).
    // proves R-CTL-1
    #[test]
    fn who_may_ask_what() {
        use Door::{Admin, Data};
        type Row = (Route, Door, bool, Option<&'static str>, bool, bool, u16);
        let (yes, no) = (true, false);
        let rows: &[Row] = &[
            (Route::Health, Data, no, None, no, no, 0),
            (Route::Ready, Data, no, None, yes, yes, 0),
            (Route::Models, Admin, no, None, yes, yes, 0),
            (Route::State, Data, yes, None, no, no, 0),
            (Route::State, Data, no, None, no, no, 403),
            (Route::Metrics, Data, no, Some("sesame"), no, no, 403),
            (Route::Metrics, Data, yes, None, no, yes, 0),
            (Route::Metrics, Data, no, None, no, yes, 401),
            (Route::Metrics, Data, no, Some("sesam"), no, yes, 401),
            (Route::Metrics, Data, no, Some(""), no, yes, 401),
            (Route::Metrics, Data, no, Some("sesame"), no, yes, 0),
            (Route::State, Data, yes, Some("sesame"), yes, yes, 404),
            (Route::State, Admin, no, None, yes, no, 0),
            (Route::State, Admin, no, None, yes, yes, 401),
            (Route::State, Admin, no, Some("sesame"), yes, yes, 0),
            (Route::State, Admin, yes, None, yes, yes, 0),
        ];
        for row @ (route, door, loopback, token, on_admin_port, keyed, status) in rows {
            let key = if *keyed {
                AdminKey::new(b"sesame\n").map(Arc::new)
            } else {
                None
            };
            let policy = Policy {
                on_admin_port: *on_admin_port,
                key,
            };
            let bearer = token.map(str::as_bytes);
            let peer = Peer {
                door: *door,
                loopback: *loopback,
                bearer,
                is_client: true,
                from_page: false,
            };
            let got = admit(*route, peer, &policy).map_or_else(|a| a.status, |()| 0);
            assert_eq!(got, *status, "{row:?}");
        }
    }

    /// Any page that an operator looks at could withdraw the fleet, as its browser runs where it is trusted.
    // proves R-CTL-1
    #[test]
    fn a_page_changes_nothing_without_the_key() {
        let rows = [
            (Door::Data, true, false, None, 403),
            (Door::Data, true, true, None, 401),
            (Door::Data, true, true, Some("sesame"), 0),
            (Door::Admin, false, false, None, 403),
            (Door::Admin, false, true, Some("sesame"), 0),
        ];
        for row @ (door, loopback, keyed, token, status) in rows {
            let policy = Policy {
                on_admin_port: door == Door::Admin,
                key: AdminKey::new(b"sesame").filter(|_| keyed).map(Arc::new),
            };
            let page = Peer {
                door,
                loopback,
                bearer: token.map(str::as_bytes),
                is_client: true,
                from_page: true,
            };
            let said = |route, peer| admit(route, peer, &policy).map_or_else(|a| a.status, |()| 0);
            assert_eq!(said(Route::Drain, page), status, "{row:?}");
            assert_eq!(said(Route::Readmit, page), status, "{row:?}");
            let program = Peer {
                from_page: false,
                ..page
            };
            assert_eq!(
                said(Route::Lifecycle, page),
                said(Route::Lifecycle, program)
            );
        }
    }

    /// Rows: loopback, admin key set, bearer, whether that is a client's, status (0 is admitted).
    // proves R-HTTP-6, R-CTL-1
    #[test]
    fn models_are_for_clients_and_operators() {
        let rows = [
            (false, true, None, true, 0),
            (false, true, None, false, 401),
            (false, true, Some("other"), false, 401),
            (false, true, Some("k1"), true, 0),
            (false, true, Some("sesame"), false, 0),
            (false, false, None, false, 0),
            (true, true, None, false, 0),
        ];
        for row @ (loopback, keyed, token, is_client, status) in rows {
            let policy = Policy {
                on_admin_port: true,
                key: AdminKey::new(b"sesame").filter(|_| keyed).map(Arc::new),
            };
            let peer = Peer {
                door: Door::Admin,
                loopback,
                bearer: token.map(str::as_bytes),
                is_client,
                from_page: false,
            };
            let got = admit(Route::Models, peer, &policy).map_or_else(|a| a.status, |()| 0);
            assert_eq!(got, status, "{row:?}");
        }
    }
}
