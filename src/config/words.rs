//! Settings that are one word or one short line: enums by name, CPU lists, NUMA nodes, leases, header names, origins.
//! The command line takes the same words through the same parsers (`FromStr`).
//!
//! Pure; std only. Invariant: what a parser returns prints to text that it would take again.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::url::{Url, bracketed, host_and_port};
pub use crate::base::units::{Dialect, Role};
use crate::base::words::words;

words! {
    Admission {
        Predictive = "predictive",
        Open = "open",
    }
}

words! {
    Placement {
        Price = "price",
        Least = "least",
        RoundRobin = "round_robin",
    }
}

words! {
    /// How the KV cache moves between engines.
    Connector {
        Nixl = "nixl",
        Mooncake = "mooncake",
        None = "none",
    }
}

words! {
    RestartPolicy {
        Individual = "individual",
        WholeWave = "whole_wave",
    }
}

words! {
    /// How sockets are driven.
    Driver {
        Auto = "auto",
        IoUring = "io_uring",
        Epoll = "epoll",
        /// In builds with the feature `rt-glommio`; others refuse it at start.
        Glommio = "glommio",
    }
}

/// `off`, `auto`, or the number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    Off,
    Auto,
    Node(u16),
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "off" => Ok(Numa::Off),
            "auto" => Ok(Numa::Auto),
            node => number(node)
                .map(Numa::Node)
                .ok_or_else(|| "off, auto, or the number of a node".to_owned()),
        }
    }
}

/// CPU numbers, ascending, none twice, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<u16>);

impl CpuList {
    pub fn as_slice(&self) -> &[u16] {
        &self.0
    }
}

impl FromStr for CpuList {
    type Err = String;

    /// The kernel's list format: `0-3,8`. See cpuset(7), "List format", without strides.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let cpu = |text| number(text).filter(|cpu| *cpu <= CPU_MAX);
            match (cpu(from), cpu(to)) {
                (Some(from), Some(to)) if from <= to => cpus.extend(from..=to),
                _ => return Err(format!("numbers and ranges up to {CPU_MAX}, as in 0-3,8")),
            }
            // A list that repeats whole ranges must not grow.
            cpus.sort_unstable();
            cpus.dedup();
        }
        Ok(CpuList(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut comma = "";
        while let [first, ..] = rest {
            let run = rest.iter().zip(*first..).take_while(|(a, b)| *a == b);
            let n = run.count();
            match n {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", rest[n - 1])?,
            }
            (rest, comma) = (&rest[n..], ",");
        }
        Ok(())
    }
}

/// Where the right to serve is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    File(PathBuf),
    Etcd {
        host: String,
        port: u16,
        /// Without slashes at its ends.
        prefix: String,
    },
}

impl FromStr for Lease {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "file:PATH or etcd://HOST:PORT/PREFIX".to_owned();
        if let Some(path) = text.strip_prefix("file:") {
            // `file://host/path` would name a file called `//host/path`.
            if path.trim().is_empty() || path.starts_with("//") || path.ends_with('/') {
                return Err(form());
            }
            return Ok(Lease::File(PathBuf::from(path)));
        }
        let rest = text.strip_prefix("etcd://").ok_or_else(form)?;
        let (authority, prefix) = rest.split_once('/').ok_or_else(form)?;
        let prefix = prefix.trim_matches('/');
        let (host, port) = host_and_port(authority).map_err(|why| format!("{} ({why})", form()))?;
        if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(form());
        }
        Ok(Lease::Etcd {
            host,
            port: port.unwrap_or(ETCD_PORT),
            prefix: prefix.to_owned(),
        })
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lease::File(path) => write!(f, "file:{}", path.display()),
            Lease::Etcd { host, port, prefix } => {
                write!(f, "etcd://{}:{port}/{prefix}", bracketed(host))
            }
        }
    }
}

/// A text that must not be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself. Every caller is a place to look at when a key leaks.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The lower-case name of a client header that may reach engines, or why it may not.
pub(super) fn forward_header(name: &str) -> Result<String, &'static str> {
    // RFC 9110 section 5.6.2, token.
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        return Err("not a header name");
    }
    let name = name.to_ascii_lowercase();
    let why = match name.as_str() {
        // RFC 9110 section 7.6.1.
        "connection" | "keep-alive" | "proxy-connection" | "te" | "trailer"
        | "transfer-encoding" | "upgrade" => "it belongs to one connection only",
        "authorization"
        | "proxy-authorization"
        | "cookie"
        | "x-api-key"
        | "api-key"
        | "x-goog-api-key" => "it carries the client's credentials",
        "host" | "content-length" | "content-type" | "content-encoding" | "accept"
        | "accept-encoding" | "expect" => "legs carry their own",
        "x-request-id" => "legs carry their own; the client's goes to the journal",
        _ => return Ok(name),
    };
    Err(why)
}

/// `*`, or an origin as browsers send it: scheme, host and port, nothing behind. RFC 6454 section 6.2.
pub(super) fn origin(text: &str) -> Result<String, &'static str> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    let url = Url::parse(text)?;
    if !url.prefix.is_empty() || text.ends_with('/') {
        return Err("nothing may follow the host and port");
    }
    Ok(url.to_string())
}

/// Digits only; `u16::from_str` would also take a sign.
fn number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Highest CPU number that Linux can be built for (`CONFIG_NR_CPUS`, 8192 on x86-64).
const CPU_MAX: u16 = 8191;

const ETCD_PORT: u16 = 2379;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // proves R-CFG-6
    #[test]
    fn cpu_lists_read_as_the_kernel_writes_them() {
        for (text, cpus, printed) in [
            ("0", &[0][..], "0"),
            ("0-3,8", &[0, 1, 2, 3, 8], "0-3,8"),
            ("8, 2-3 ,3,3-4", &[2, 3, 4, 8], "2-4,8"),
            ("8191", &[8191], "8191"),
        ] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!(list.as_slice(), cpus, "{text}");
            assert_eq!(list.to_string(), printed, "{text}");
        }
        for text in [
            "", ",", "1,", "a", "-1", "3-1", "1-2-3", "+1", "8192", "0-99999", "1.5",
        ] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
    }

    // proves R-CFG-6
    #[test]
    fn leases_and_nodes() {
        let etcd = |host: &str, port, prefix: &str| Lease::Etcd {
            host: host.into(),
            port,
            prefix: prefix.into(),
        };
        for (text, want) in [
            ("file:/run/l.json", Lease::File("/run/l.json".into())),
            ("file:l.json", Lease::File("l.json".into())),
            ("etcd://e:2379/narwhal", etcd("e", 2379, "narwhal")),
            ("etcd://E/a/b/", etcd("e", 2379, "a/b")),
            ("etcd://[::1]:1/x", etcd("::1", 1, "x")),
        ] {
            let lease: Lease = text.parse().unwrap();
            assert_eq!(lease, want, "{text}");
            assert_eq!(lease.to_string().parse(), Ok(want), "{text}");
        }
        for text in [
            "",
            "file:",
            "file:///x",
            "file:d/",
            "etcd://h:1",
            "etcd://h:1/",
            "etcd:///p",
            "etcd://h:0/p",
            "http://h/p",
            "/run/lease",
        ] {
            assert!(text.parse::<Lease>().is_err(), "{text}");
        }
        assert_eq!("off".parse(), Ok(Numa::Off));
        assert_eq!("3".parse(), Ok(Numa::Node(3)));
        assert!("-1".parse::<Numa>().is_err() && "on".parse::<Numa>().is_err());
    }

    // proves R-CFG-6
    #[test]
    fn forwarded_headers_cannot_harm() {
        assert_eq!(forward_header("X-Trace"), Ok("x-trace".into()));
        for name in [
            "",
            "a b",
            "a:",
            "é",
            "Connection",
            "TE",
            "Host",
            "content-length",
            "Cookie",
            "AUTHORIZATION",
            "x-request-id",
            "expect",
            "transfer-encoding",
        ] {
            assert!(forward_header(name).is_err(), "{name}");
        }
        assert_eq!(origin("*"), Ok("*".into()));
        assert_eq!(
            origin("https://App.example:443"),
            Ok("https://app.example".into())
        );
        for text in [
            "https://a/",
            "https://a/b",
            "a.example",
            "null",
            "https://*.a",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn secrets_do_not_print() {
        assert_eq!(format!("{:?}", Some(Secret::new("k"))), "Some(***)");
    }

    proptest! {
        #[test]
        fn parsers_take_any_text(text in any::<String>(), list in "[0-9,-]{0,12}") {
            for text in [text, list] {
                if let Ok(cpus) = text.parse::<CpuList>() {
                    prop_assert_eq!(cpus.to_string().parse::<CpuList>(), Ok(cpus));
                }
                let _ = (text.parse::<Lease>(), text.parse::<Numa>(), forward_header(&text), origin(&text));
            }
        }
    }
}
