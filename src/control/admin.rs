//! The admin routes as functions: which route, who may ask, what the answer is. The server on `admin_listen` and the
//! asks of shards both come through [`Desk`]; nothing here does I/O but
//! reading the key file at start.
//!
//! Invariant: `/health`, `/ready` and `/v1/models` are open to everyone on both ports; the others are not on the data
//! port when `admin_listen` is set, and never shown to a peer that [`admit`] refuses.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Ask, Shared};
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
    pub key: Option<AdminKey>,
}

/// The content of `admin_key_file`, without surrounding white space.
pub struct AdminKey(Vec<u8>);

impl AdminKey {
    /// `None` when nothing is left: an empty key would let everyone in.
    pub fn new(content: &[u8]) -> Option<AdminKey> {
        let key = content.trim_ascii();
        (!key.is_empty()).then(|| AdminKey(key.to_vec()))
    }

    /// Errors name the file.
    pub fn load(path: &Path) -> io::Result<AdminKey> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let empty = || {
            named(io::Error::new(
                io::ErrorKind::InvalidData,
                "the admin key is empty",
            ))
        };
        AdminKey::new(&std::fs::read(path).map_err(named)?).ok_or_else(empty)
    }

    /// Takes as long as `given` is, wherever the first difference lies, and tells nothing about our length.
    pub fn matches(&self, given: &[u8]) -> bool {
        let mut different = usize::from(given.len() != self.0.len());
        for (byte, ours) in given.iter().zip(self.0.iter().cycle()) {
            different |= usize::from(std::hint::black_box(byte ^ ours));
        }
        std::hint::black_box(different) == 0
    }
}

/// The token in an `authorization` value; the scheme's case does not matter (RFC 9110 section 11.1).
pub fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| rest.trim_ascii())
}

/// `Err` is the answer instead. The rule, in order: open routes for all · on the data port nothing else when there is an
/// admin port · loopback peers · the key, when one is set · without a key the admin port trusts whoever reaches it.
pub fn admit(route: Route, peer: Peer<'_>, policy: &Policy) -> Result<(), Answer> {
    if route.is_open() {
        return Ok(());
    }
    if peer.door == Door::Data && policy.on_admin_port {
        return Err(Answer::not_found());
    }
    if peer.loopback {
        return Ok(());
    }
    match &policy.key {
        Some(key) if peer.bearer.is_some_and(|b| key.matches(b)) => Ok(()),
        Some(_) => Err(unauthorized()),
        None if peer.door == Door::Admin => Ok(()),
        None => Err(forbidden()),
    }
}

/// Answers a request that may be answered.
pub fn answer(method: &str, route: Route, shared: &Shared, uptime: Duration) -> Answer {
    if !matches!(method, "GET" | "HEAD") {
        return Answer::not_allowed(ALLOW);
    }
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

/// Where both ways in meet.
pub struct Desk {
    pub shared: Arc<Shared>,
    pub policy: Policy,
    pub born: Instant,
}

impl Desk {
    pub fn serve(&self, method: &str, path: &str, peer: Peer<'_>) -> Answer {
        let Some(route) = Route::of(path) else {
            return Answer::not_found();
        };
        match admit(route, peer, &self.policy) {
            Ok(()) => answer(method, route, &self.shared, self.born.elapsed()),
            Err(instead) => instead,
        }
    }

    pub fn answer_ask(&self, ask: Ask) {
        let Ask { request, reply } = ask;
        let given = request.authorization.as_deref().and_then(bearer);
        let peer = Peer {
            door: Door::Data,
            loopback: request.loopback,
            bearer: given,
        };
        // `answer` knows the two methods that there are by name; any other is none of them.
        let method = match request.method {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post | Method::Options | Method::Other => "",
        };
        reply.send(self.serve(method, &request.path, peer));
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
                AdminKey::new(b"sesame\n")
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
            };
            let got = admit(*route, peer, &policy).map_or_else(|a| a.status, |()| 0);
            assert_eq!(got, *status, "{row:?}");
        }
    }

    #[test]
    fn keys_compare_whole() {
        let key = AdminKey::new(b" abc\r\n").unwrap();
        for (given, same) in [
            ("abc", true),
            ("ab", false),
            ("abcd", false),
            ("abcabc", false),
            ("abd", false),
            ("", false),
        ] {
            assert_eq!(key.matches(given.as_bytes()), same, "{given}");
        }
        assert!(AdminKey::new(b" \n").is_none());
    }

    #[test]
    fn bearer_values() {
        let rows: [(&[u8], Option<&[u8]>); 6] = [
            (b"Bearer abc", Some(b"abc")),
            (b"bearer  abc ", Some(b"abc")),
            (b"BEARER ", Some(b"")),
            (b"Bearer", None),
            (b"Basic abc", None),
            (b"", None),
        ];
        for (value, token) in rows {
            assert_eq!(bearer(value), token);
        }
    }
}
