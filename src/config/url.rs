//! Addresses of engines: `http[s]://host[:port][/prefix]` and nothing else. Pure; std only.
//!
//! Strict on purpose: what is accepted here is written into a request line and a `Host` field unchecked later, so no user
//! info, query, fragment, white space or control byte may pass. RFC 3986 section 3, narrowed.
//! Invariant: `prefix` is empty or starts with `/` and does not end with one; `host` holds no bracket.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    pub tls: bool,
    /// A lower-case name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    pub port: u16,
    /// Path before the engine's own paths, without a slash at its end; empty when there is none.
    pub prefix: String,
}

impl Url {
    /// The reason is a phrase that fits behind `bad url: `.
    pub fn parse(text: &str) -> Result<Url, &'static str> {
        if let Some(why) = text.bytes().find_map(stray) {
            return Err(why);
        }
        let (scheme, rest) = text
            .split_once("://")
            .ok_or("it must start with http:// or https://")?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err("it must start with http:// or https://"),
        };
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (host, port) = host_and_port(authority)?;
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        Ok(Url {
            tls,
            host,
            port,
            prefix: prefix(path)?,
        })
    }

    /// The `Host` field: brackets around IPv6, no port when it is the scheme's own. RFC 9110 section 7.2.
    pub fn authority(&self) -> String {
        let own = if self.tls { 443 } else { 80 };
        let host = bracketed(&self.host);
        if self.port == own {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }

    /// The address when the host is one, so that no name needs resolving.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`; the host comes back lower-case and without brackets.
pub(super) fn host_and_port(text: &str) -> Result<(String, Option<u16>), &'static str> {
    if let Some(why) = text.bytes().find_map(stray) {
        return Err(why);
    }
    if text.contains('@') {
        return Err("user names and passwords are not allowed");
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("a `[` without its `]`")?;
        let ip: Ipv6Addr = host
            .parse()
            .map_err(|_| "what stands in brackets is not an IPv6 address")?;
        return match rest.strip_prefix(':') {
            Some(digits) => Ok((ip.to_string(), Some(port(digits)?))),
            None if rest.is_empty() => Ok((ip.to_string(), None)),
            None => Err("only a port may follow the `]`"),
        };
    }
    let (host, port) = match text.split_once(':') {
        Some((_, digits)) if digits.contains(':') => return Err("an IPv6 address needs brackets"),
        Some((host, digits)) => (host, Some(port(digits)?)),
        None => (text, None),
    };
    Ok((name(host)?, port))
}

/// Brackets around an IPv6 address.
pub(super) fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

/// Digits only (no sign, which `u16::from_str` would take), 1 to 65535.
fn port(digits: &str) -> Result<u16, &'static str> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err("the port is not a number");
    }
    match digits.parse() {
        Ok(0) | Err(_) => Err("the port is not in 1 to 65535"),
        Ok(port) => Ok(port),
    }
}

/// A DNS name (underscores pass, as container networks use them) or an IPv4 address.
fn name(host: &str) -> Result<String, &'static str> {
    if host.is_empty() {
        return Err("the host is missing");
    }
    let labels = host.strip_suffix('.').unwrap_or(host);
    let sound = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if labels.len() > 253 || !labels.split('.').all(sound) {
        return Err("the host is neither a name nor an address");
    }
    // A name never ends in a number, so 10.0.0.256 and 10.1 are slips of the hand. WHATWG URL, "ends in a number".
    let last = labels.rsplit('.').next().unwrap_or("");
    if last.bytes().all(|b| b.is_ascii_digit()) && host.parse::<Ipv4Addr>().is_err() {
        return Err("the host is neither a name nor an address");
    }
    Ok(host.to_ascii_lowercase())
}

fn prefix(path: &str) -> Result<String, &'static str> {
    let path = path.trim_end_matches('/');
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let mut hex = || bytes.next().is_some_and(|b| b.is_ascii_hexdigit());
                if !(hex() && hex()) {
                    return Err("a `%` in the path is not followed by two hex digits");
                }
            }
            b'/' | b'-' | b'.' | b'_' | b'~' | b':' | b'@' => {}
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' => {}
            b if b.is_ascii_alphanumeric() => {}
            _ => return Err("a character that may not stand in a path"),
        }
    }
    let sound = |segment: &str| !matches!(segment, "" | "." | "..");
    if !path.split('/').skip(1).all(sound) {
        return Err("the path holds `//`, `/./` or `/../`");
    }
    Ok(path.to_owned())
}

fn stray(byte: u8) -> Option<&'static str> {
    match byte {
        b'?' => Some("a query is not allowed"),
        b'#' => Some("a fragment is not allowed"),
        b'\\' => Some("a backslash is not allowed"),
        b if b <= b' ' || b == 0x7f => Some("white space and control characters are not allowed"),
        b if !b.is_ascii() => Some("only ASCII is allowed (write the name in its xn-- form)"),
        _ => None,
    }
}

#[doc(hidden)]
pub mod fuzzing {
    use super::Url;

    /// Whatever parses prints to something that parses to the same, and is fit for a request head.
    pub fn fuzz(data: &[u8]) {
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        if let Ok(url) = Url::parse(text) {
            assert_eq!(Url::parse(&url.to_string()).as_ref(), Ok(&url));
            assert!(url.authority().bytes().all(|b| b.is_ascii_graphic()));
            assert!(url.prefix.bytes().all(|b| b.is_ascii_graphic()));
            assert!(url.prefix.is_empty() || url.prefix.starts_with('/'));
            assert!(!url.prefix.ends_with('/') && url.port != 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // proves R-CFG-2
    #[test]
    fn parses_engine_urls() {
        // text → host, port, prefix, Host field
        let rows: &[(&str, &str, u16, &str, &str)] = &[
            (
                "http://127.0.0.1:8101",
                "127.0.0.1",
                8101,
                "",
                "127.0.0.1:8101",
            ),
            ("http://gpu-1", "gpu-1", 80, "", "gpu-1"),
            (
                "https://GPU-1.example",
                "gpu-1.example",
                443,
                "",
                "gpu-1.example",
            ),
            ("https://h:80/", "h", 80, "", "h:80"),
            ("http://h:80", "h", 80, "", "h"),
            (
                "http://vllm_0:8000/a/b%20c/",
                "vllm_0",
                8000,
                "/a/b%20c",
                "vllm_0:8000",
            ),
            ("http://[::1]:8000/v", "::1", 8000, "/v", "[::1]:8000"),
            ("http://[FE80::0:1]", "fe80::1", 80, "", "[fe80::1]"),
            (
                "HTTP://svc.ns.svc.cluster.local.:1",
                "svc.ns.svc.cluster.local.",
                1,
                "",
                "svc.ns.svc.cluster.local.:1",
            ),
        ];
        for (text, host, port, prefix, field) in rows {
            let url = Url::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(
                (url.host.as_str(), url.port, url.prefix.as_str()),
                (*host, *port, *prefix)
            );
            assert_eq!(url.authority(), *field, "{text}");
            assert_eq!(url.tls, text.starts_with("https"), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        let rows: &[(&str, &str)] = &[
            ("", "it must start with http:// or https://"),
            ("h:80", "it must start with http:// or https://"),
            ("ftp://h", "it must start with http:// or https://"),
            ("http://", "the host is missing"),
            ("http:///p", "the host is missing"),
            ("http://:80", "the host is missing"),
            ("http://u:p@h", "user names and passwords are not allowed"),
            ("http://h?x", "a query is not allowed"),
            ("http://h/#x", "a fragment is not allowed"),
            ("http://h\\x", "a backslash is not allowed"),
            (
                "http://h /x",
                "white space and control characters are not allowed",
            ),
            (
                "http://h\r\nx",
                "white space and control characters are not allowed",
            ),
            (
                "http://é",
                "only ASCII is allowed (write the name in its xn-- form)",
            ),
            ("http://h:", "the port is not a number"),
            ("http://h:+80", "the port is not a number"),
            ("http://h:0", "the port is not in 1 to 65535"),
            ("http://h:65536", "the port is not in 1 to 65535"),
            ("http://::1", "an IPv6 address needs brackets"),
            ("http://[::1", "a `[` without its `]`"),
            ("http://[::1]8", "only a port may follow the `]`"),
            (
                "http://[h]",
                "what stands in brackets is not an IPv6 address",
            ),
            (
                "http://[fe80::1%25eth0]",
                "what stands in brackets is not an IPv6 address",
            ),
            (
                "http://10.0.0.256",
                "the host is neither a name nor an address",
            ),
            ("http://10.1", "the host is neither a name nor an address"),
            ("http://-a", "the host is neither a name nor an address"),
            ("http://a..b", "the host is neither a name nor an address"),
            ("http://a*b", "the host is neither a name nor an address"),
            (
                "http://h/%2",
                "a `%` in the path is not followed by two hex digits",
            ),
            ("http://h/a\"b", "a character that may not stand in a path"),
            ("http://h/a//b", "the path holds `//`, `/./` or `/../`"),
            ("http://h/a/../b", "the path holds `//`, `/./` or `/../`"),
        ];
        for (text, why) in rows {
            assert_eq!(Url::parse(text), Err(*why), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn prints_what_it_parsed(text in r"(https?|HTTP)://[a-z0-9.:\[\]@%/_-]{0,20}") {
            fuzzing::fuzz(text.as_bytes());
        }

        #[test]
        fn never_panics(text in any::<String>()) {
            fuzzing::fuzz(text.as_bytes());
        }
    }
}
