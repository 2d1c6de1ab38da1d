//! Engine names to addresses, by the system's resolver, at start. Blocks its thread, so never a shard's and never the
//! control thread's loop.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use thiserror::Error;

use crate::config::topology::Snapshot;

/// Why a name led nowhere.
#[derive(Debug, Error)]
pub enum ResolveError {
    #[error("engine `{iid}`: host `{host}` does not resolve: {source}")]
    Failed {
        iid: String,
        host: String,
        source: io::Error,
    },
    #[error("engine `{iid}`: host `{host}` has no address")]
    Empty { iid: String, host: String },
}

/// Fills the addresses of every engine that is named, not numbered. An error leaves its engine without an address (its
/// probes and legs fail); whether to start all the same is the caller's choice.
pub fn fill(snapshot: &mut Snapshot) -> Vec<ResolveError> {
    let mut errors = Vec::new();
    for engine in snapshot.engines.iter_mut().filter(|e| e.is_name()) {
        match resolve(&engine.iid, &engine.host, engine.port) {
            Ok(addresses) => engine.addrs = addresses,
            Err(e) => errors.push(e),
        }
    }
    errors
}

/// The addresses of one engine, in the resolver's order, without doubles. Literals (brackets or not) need no resolver.
pub fn resolve(iid: &str, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
    let bare = host
        .strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host);
    if let Ok(literal) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(literal, port)]);
    }
    let (iid, host) = (iid.to_owned(), host.to_owned());
    let mut addresses = Vec::new();
    match (bare, port).to_socket_addrs() {
        Ok(found) => found.for_each(|a| {
            if !addresses.contains(&a) {
                addresses.push(a);
            }
        }),
        Err(source) => return Err(ResolveError::Failed { iid, host, source }),
    }
    if addresses.is_empty() {
        Err(ResolveError::Empty { iid, host })
    } else {
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_names() {
        for (host, want) in [
            ("127.0.0.1", "127.0.0.1:80"),
            ("[::1]", "[::1]:80"),
            ("::1", "[::1]:80"),
        ] {
            assert_eq!(
                resolve("e0", host, 80).unwrap(),
                [want.parse().unwrap()],
                "{host}"
            );
        }
        // A name that RFC 6761 section 6.4 keeps from ever resolving.
        let error = resolve("e7", "engine.invalid", 80).unwrap_err().to_string();
        assert!(
            error.contains("`e7`") && error.contains("`engine.invalid`"),
            "{error}"
        );
    }
}
