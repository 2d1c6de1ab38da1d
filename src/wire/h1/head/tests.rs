//! Tables over heads and bodies of requests, and over heads of answers. Each row runs whole, byte by byte and cut at every
//! offset, and must say the same.

use proptest::prelude::*;

use super::*;
use crate::wire::h1::body::{BodyDecoder, Step};

const LIMITS: HeadLimits = HeadLimits {
    bytes_max: 512,
    fields_max: 8,
};

/// Feeds `bytes` with the given read ends, as a connection would, and tells what came of it in one line:
/// `POST /path 1.1 keep len=5 | body` or `400`, with `...` where more bytes are waited for and `+N` for N bytes left over.
fn exchange(bytes: &[u8], ends: &[usize]) -> String {
    let (mut scanned, mut body, mut told) = (0, None, String::new());
    let (mut at, mut payload) = (0, Vec::new());
    for &end in ends {
        if body.is_none() {
            match parse_request(&bytes[..end], &mut scanned, &LIMITS) {
                Ok(None) => continue,
                Err(fault) => return fault.status().to_string(),
                Ok(Some(head)) => {
                    assert_eq!(scanned, 0);
                    told = describe(&head, bytes);
                    at = head.head_bytes;
                    body = Some(BodyDecoder::request(head.body));
                }
            }
        }
        let Some(decoder) = &mut body else { continue };
        loop {
            match decoder.next(&bytes[at..end]) {
                Ok(Step::Piece { data, used }) => {
                    assert!(!data.is_empty() && data.end <= used);
                    payload.extend_from_slice(&bytes[at..][data]);
                    at += used;
                }
                Ok(Step::More { used }) => {
                    assert_eq!(at + used, end);
                    at = end;
                    break;
                }
                Ok(Step::End { used }) => {
                    at += used;
                    break;
                }
                Err(fault) => return format!("{told} | {:?}", fault),
            }
        }
    }
    let Some(decoder) = body else {
        return "...".into();
    };
    if !payload.is_empty() {
        told += &format!(" | {}", String::from_utf8_lossy(&payload));
    }
    if !decoder.ended() {
        told += " ...";
    } else if at < bytes.len() {
        told += &format!(" +{}", bytes.len() - at);
    }
    told
}

fn describe(head: &RequestHead, bytes: &[u8]) -> String {
    let path = std::str::from_utf8(&bytes[head.path.clone()]).unwrap();
    let version = match head.version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
    };
    let mut told = format!("{:?} {path} {version}", head.method);
    told += if head.keep_alive { " keep" } else { " close" };
    match head.body {
        RequestBody::None => {}
        RequestBody::Length(length) => told += &format!(" len={length}"),
        RequestBody::Chunked => told += " chunked",
    }
    match head.expect {
        Expect::None => {}
        Expect::Continue => told += " continue",
        Expect::Other => told += " 417",
    }
    told
}

/// Whole, byte by byte, and cut once at every offset.
fn every_split(bytes: &[u8], run: impl Fn(&[u8], &[usize]) -> String) -> String {
    let len = bytes.len();
    let whole = run(bytes, &[len]);
    let single: Vec<usize> = (0..=len).collect();
    assert_eq!(run(bytes, &single), whole, "byte by byte");
    for cut in 0..len {
        assert_eq!(run(bytes, &[cut, len]), whole, "cut at {cut}");
    }
    whole
}

/// Name, bytes, what came of them. Tables keep one row a line.
type Row = (&'static str, &'static [u8], &'static str);

fn check(rows: &[Row], run: impl Fn(&[u8], &[usize]) -> String) {
    let mut names = std::collections::BTreeSet::new();
    for (name, bytes, want) in rows {
        assert!(names.insert(name), "two rows named {name}");
        assert_eq!(&every_split(bytes, &run), want, "row {name}");
    }
}

macro_rules! get {
    ($($fields:literal)*) => {
        concat!("GET / HTTP/1.1\r\n", $($fields, "\r\n",)* "\r\n").as_bytes()
    };
}

macro_rules! target {
    ($target:literal) => {
        concat!("GET ", $target, " HTTP/1.1\r\nHost: r\r\n\r\n").as_bytes()
    };
}

/// A chunked POST with this body.
macro_rules! chunked {
    ($body:literal) => {
        concat!(
            "POST / HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n",
            $body
        )
        .as_bytes()
    };
}

// proves R-HTTP-1, R-HTTP-2
#[test]
fn request_lines() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("get", b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n", "Get /health 1.1 keep"),
        ("head", b"HEAD /health HTTP/1.1\r\nHost: r\r\n\r\n", "Head /health 1.1 keep"),
        ("post", b"POST /v1/x HTTP/1.1\r\nHost: r\r\n\r\n", "Post /v1/x 1.1 keep"),
        ("options", b"OPTIONS /v1/x HTTP/1.1\r\nHost: r\r\n\r\n", "Options /v1/x 1.1 keep"),
        ("options star", b"OPTIONS * HTTP/1.1\r\nHost: r\r\n\r\n", "Options * 1.1 keep"),
        ("trace", b"TRACE / HTTP/1.1\r\nHost: r\r\n\r\n", "Other / 1.1 keep"),
        ("lower case method", b"get / HTTP/1.1\r\nHost: r\r\n\r\n", "Other / 1.1 keep"),
        ("odd token method", b"M-X!~ / HTTP/1.1\r\nHost: r\r\n\r\n", "Other / 1.1 keep"),
        ("connect", b"CONNECT r:80 HTTP/1.1\r\nHost: r\r\n\r\n", "Other r:80 1.1 close"),
        ("http/1.0", b"GET / HTTP/1.0\r\n\r\n", "Get / 1.0 close"),
        ("http/1.0 with host", b"GET / HTTP/1.0\r\nHost: r\r\n\r\n", "Get / 1.0 close"),
        ("http/1.0 keep-alive", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "Get / 1.0 close"),
        ("http/2.0", b"GET / HTTP/2.0\r\nHost: r\r\n\r\n", "505"),
        ("http/1.2", b"GET / HTTP/1.2\r\nHost: r\r\n\r\n", "Get / 1.1 keep"),
        ("http/1.9 without host", b"GET / HTTP/1.9\r\n\r\n", "400"),
        ("http/1.2 behind an empty line", b"\r\nGET /a HTTP/1.2\r\nHost: r\r\n\r\n", "Get /a 1.1 keep"),
        ("http/0.9 written out", b"GET / HTTP/0.9\r\n\r\n", "505"),
        ("http/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"),
        ("http/0.9", b"GET /\r\n\r\n", "400"),
        ("version of two digits", b"GET / HTTP/1.10\r\nHost: r\r\n\r\n", "400"),
        ("version without minor", b"GET / HTTP/1\r\nHost: r\r\n\r\n", "400"),
        ("lower case version", b"GET / http/1.1\r\nHost: r\r\n\r\n", "400"),
        ("other protocol", b"GET / ICAP/1.0\r\nHost: r\r\n\r\n", "400"),
        ("space after version", b"GET / HTTP/1.1 \r\nHost: r\r\n\r\n", "400"),
        ("two spaces before target", b"GET  / HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("two spaces before version", b"GET /  HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("tab as separator", b"GET\t/ HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("space before method", b" GET / HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("no target", b"GET HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("no method", b"/ HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("bracket in method", b"GE[T / HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("one empty line first", b"\r\nGET / HTTP/1.1\r\nHost: r\r\n\r\n", "Get / 1.1 keep"),
        ("two empty lines first", b"\r\n\r\nGET / HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("bare LF first", b"\nGET / HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("bare CR first", b"\rGET / HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("TLS hello", b"\x16\x03\x01\x02\x00\x01", "400"),
        ("nothing", b"", "..."),
        ("only an empty line", b"\r\n", "..."),
        ("no blank line yet", b"GET / HTTP/1.1\r\nHost: r\r\n", "..."),
        ("CR of the blank line", b"GET / HTTP/1.1\r\nHost: r\r\n\r", "..."),
        ("target cut", b"GET /v1", "..."),
        ("pipelined", b"GET /a HTTP/1.1\r\nHost: r\r\n\r\nGET /b HTTP/1.1\r\nHost: r\r\n\r\n",
            "Get /a 1.1 keep +28"),
        ("start line alone", b"GET / HTTP/1.0\r\n\r\n\r\n", "Get / 1.0 close +2"),
    ];
    check(rows, exchange);
}

// proves R-HTTP-1, R-HTTP-2
#[test]
fn targets() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("query", target!("/a?b=c&d"), "Get /a 1.1 keep"),
        ("fragment", target!("/a#b"), "Get /a 1.1 keep"),
        ("query with fragment", target!("/a?b#c?d"), "Get /a 1.1 keep"),
        ("fragment with query", target!("/a#b?c"), "Get /a 1.1 keep"),
        ("only a query", target!("/?a"), "Get / 1.1 keep"),
        ("escapes stay", target!("/a%2Fb"), "Get /a%2Fb 1.1 keep"),
        ("two slashes", target!("//a"), "Get //a 1.1 keep"),
        ("absolute", target!("http://r/v1/models"), "Get /v1/models 1.1 keep"),
        ("absolute with port", target!("https://r:443/a?b"), "Get /a 1.1 keep"),
        ("absolute, upper case", target!("HTTP://r/a"), "Get /a 1.1 keep"),
        ("absolute without path", target!("http://r"), "Get / 1.1 keep"),
        ("absolute, only a query", target!("http://r?/a"), "Get / 1.1 keep"),
        ("absolute without host", target!("http:///a"), "400"),
        ("absolute with user", target!("http://u@r/a"), "400"),
        ("absolute with one slash", target!("http:/a"), "400"),
        ("other scheme", target!("ftp://r/a"), "400"),
        ("relative", target!("v1/models"), "400"),
        ("query alone", target!("?a"), "400"),
        ("star on GET", target!("*"), "400"),
        ("authority on GET", target!("r:80"), "400"),
        ("UTF-8", target!("/\u{e9}"), "400"),
        ("bad UTF-8", b"GET /\xff HTTP/1.1\r\nHost: r\r\n\r\n", "400"),
        ("DEL", target!("/\x7f"), "400"),
        ("NUL", target!("/\0"), "400"),
        ("tab", target!("/a\tb"), "400"),
    ];
    check(rows, exchange);
}

// proves R-HTTP-2
#[test]
fn field_lines() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("no space after colon", get!("Host:r"), "Get / 1.1 keep"),
        ("tabs and spaces around", get!("Host: \t r \t"), "Get / 1.1 keep"),
        ("empty value", get!("Host: r" "X:"), "Get / 1.1 keep"),
        ("blank value", get!("Host: r" "X: \t "), "Get / 1.1 keep"),
        ("colons in value", get!("Host: r" "X: a:b:c"), "Get / 1.1 keep"),
        ("tab in value", get!("Host: r" "X: a\tb"), "Get / 1.1 keep"),
        ("obs-text", b"GET / HTTP/1.1\r\nHost: r\r\nX: \x80\xff\r\n\r\n", "Get / 1.1 keep"),
        ("odd token name", get!("Host: r" "!#$%&'*+-.^_`|~09: a"), "Get / 1.1 keep"),
        ("space before colon", get!("Host : r"), "400"),
        ("tab before colon", get!("Host: r" "X\t: a"), "400"),
        ("space before colon of a length", b"POST / HTTP/1.1\r\nHost: r\r\nContent-Length : 3\r\n\r\nabc", "400"),
        ("space before the first name", get!(" Host: r"), "400"),
        ("folded by space", get!("Host: r" "X: a" " b"), "400"),
        ("folded by tab", get!("Host: r" "X: a" "\tb"), "400"),
        ("folded blank line", get!("Host: r" "X: a" " "), "400"),
        ("line without colon", get!("Host: r" "X"), "400"),
        ("empty name", get!("Host: r" ": a"), "400"),
        ("space in name", get!("Host: r" "X Y: a"), "400"),
        ("slash in name", get!("Host: r" "X/Y: a"), "400"),
        ("UTF-8 in name", get!("Host: r" "\u{e9}: a"), "400"),
        ("NUL in name", get!("Host: r" "X\0: a"), "400"),
        ("NUL in value", get!("Host: r" "X: a\0b"), "400"),
        ("ESC in value", get!("Host: r" "X: \x1b"), "400"),
        ("vertical tab in value", get!("Host: r" "X: a\x0bb"), "400"),
        ("DEL in value", get!("Host: r" "X: a\x7f"), "400"),
        ("DEL deep in a long value", get!("Host: r" "X: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\x7faaaaa"), "400"),
        ("bare LF after the request line", b"GET / HTTP/1.1\nHost: r\r\n\r\n", "400"),
        ("bare LF after a field", b"GET / HTTP/1.1\r\nHost: r\n\r\n", "400"),
        ("bare LF as blank line", b"GET / HTTP/1.1\r\nHost: r\r\n\n", "400"),
        ("bare LF in a value", get!("Host: r" "X: a\nY: b"), "400"),
        ("bare LF told at once", b"GET / HTTP/1.1\n", "400"),
        ("bare CR in a value", get!("Host: r" "X: a\rb"), "400"),
        ("bare CR in a name", get!("Host: r" "X\rY: b"), "400"),
        ("bare CR told at once", b"GET / HTTP/1.1\r\nHost: r\rX", "400"),
        ("two CR before LF", b"GET / HTTP/1.1\r\nHost: r\r\r\n\r\n", "400"),
        ("CR CR LF as blank line", b"GET / HTTP/1.1\r\nHost: r\r\n\r\r\n", "400"),
    ];
    check(rows, exchange);
}

// proves R-HTTP-2
#[test]
fn hosts() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("name", get!("Host: router.example"), "Get / 1.1 keep"),
        ("underscore", get!("host: my_router"), "Get / 1.1 keep"),
        ("port", get!("HOST: r:8000"), "Get / 1.1 keep"),
        ("empty port", get!("Host: r:"), "Get / 1.1 keep"),
        ("IPv4", get!("Host: 127.0.0.1:80"), "Get / 1.1 keep"),
        ("IPv6", get!("Host: [::1]"), "Get / 1.1 keep"),
        ("IPv6 with port", get!("Host: [fe80::1]:80"), "Get / 1.1 keep"),
        ("none", get!("X: r"), "400"),
        ("no fields at all", b"GET / HTTP/1.1\r\n\r\n", "400"),
        ("empty", get!("Host:"), "400"),
        ("empty on 1.0", b"GET / HTTP/1.0\r\nHost:\r\n\r\n", "400"),
        ("repeated", get!("Host: r" "Host: s"), "400"),
        ("repeated, the same", get!("Host: r" "hOST: r"), "400"),
        ("repeated on 1.0", b"GET / HTTP/1.0\r\nHost: r\r\nHost: r\r\n\r\n", "400"),
        ("list", get!("Host: r, s"), "400"),
        ("list without space", get!("Host: r,s"), "400"),
        ("user", get!("Host: u@r"), "400"),
        ("path", get!("Host: r/a"), "400"),
        ("URL", get!("Host: http://r"), "400"),
        ("port alone", get!("Host: :80"), "400"),
        ("port no number", get!("Host: r:80a"), "400"),
        ("two ports", get!("Host: r:80:81"), "400"),
        ("IPv6 open", get!("Host: [::1"), "400"),
        ("IPv6 empty", get!("Host: []"), "400"),
        ("IPv6 with rubbish", get!("Host: [::1]x"), "400"),
        ("UTF-8", get!("Host: r\u{e9}"), "400"),
    ];
    check(rows, exchange);
}

macro_rules! post {
    ($($fields:literal)* => $body:literal) => {
        concat!("POST / HTTP/1.1\r\nHost: r\r\n", $($fields, "\r\n",)* "\r\n", $body).as_bytes()
    };
}

// proves R-HTTP-1, R-HTTP-2
#[test]
fn framing_of_requests() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("length", post!("Content-Length: 3" => "abc"), "Post / 1.1 keep len=3 | abc"),
        ("length and more", post!("content-length:3" => "abcGET"), "Post / 1.1 keep len=3 | abc +3"),
        ("length, body late", post!("Content-Length: 5" => "abc"), "Post / 1.1 keep len=5 | abc ..."),
        ("length 0", post!("Content-Length: 0" => "x"), "Post / 1.1 keep len=0 +1"),
        ("leading zeros", post!("Content-Length: 0003" => "abc"), "Post / 1.1 keep len=3 | abc"),
        ("spaces around", post!("Content-Length: \t3 \t" => "abc"), "Post / 1.1 keep len=3 | abc"),
        ("on GET", b"GET / HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\nab", "Get / 1.1 keep len=2 | ab"),
        ("on 1.0", b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab", "Post / 1.0 close len=2 | ab"),
        ("none", post!(=> "abc"), "Post / 1.1 keep +3"),
        ("2^64-1", post!("Content-Length: 18446744073709551615" => ""),
            "Post / 1.1 keep len=18446744073709551615 ..."),
        ("2^64", post!("Content-Length: 18446744073709551616" => ""), "400"),
        ("huge", post!("Content-Length: 99999999999999999999999" => ""), "400"),
        ("two lengths", post!("Content-Length: 3" "Content-Length: 4" => "abc"), "400"),
        ("the same length twice", post!("Content-Length: 3" "Content-Length: 3" => "abc"), "400"),
        ("list", post!("Content-Length: 3, 3" => "abc"), "400"),
        ("list without space", post!("Content-Length: 3,3" => "abc"), "400"),
        ("list with empty item", post!("Content-Length: 3," => "abc"), "400"),
        ("plus", post!("Content-Length: +3" => "abc"), "400"),
        ("minus", post!("Content-Length: -1" => "abc"), "400"),
        ("hex", post!("Content-Length: 0x3" => "abc"), "400"),
        ("space inside", post!("Content-Length: 3 3" => "abc"), "400"),
        ("tail", post!("Content-Length: 3a" => "abc"), "400"),
        ("fraction", post!("Content-Length: 3.0" => "abc"), "400"),
        ("quoted", post!("Content-Length: \"3\"" => "abc"), "400"),
        ("empty length", post!("Content-Length:" => "abc"), "400"),
        ("Arabic digit", post!("Content-Length: \u{0663}" => "abc"), "400"),
        ("length then coding",
            post!("Content-Length: 4" "Transfer-Encoding: chunked" => "0\r\n\r\nGET /health HTTP/1.1\r\nHost: r\r\n\r\n"),
            "400"),
        ("coding then length",
            post!("Transfer-Encoding: chunked" "Content-Length: 4" => "0\r\n\r\nGET /health HTTP/1.1\r\nHost: r\r\n\r\n"),
            "400"),
        ("coding, any case", post!("transfer-encoding:CHUNKED" => "0\r\n\r\n"), "Post / 1.1 keep chunked"),
        ("gzip, chunked", post!("Transfer-Encoding: gzip, chunked" => "0\r\n\r\n"), "400"),
        ("chunked, gzip", post!("Transfer-Encoding: chunked, gzip" => "0\r\n\r\n"), "400"),
        ("chunked twice", post!("Transfer-Encoding: chunked, chunked" => "0\r\n\r\n"), "400"),
        ("chunked with empty item", post!("Transfer-Encoding: chunked," => "0\r\n\r\n"), "400"),
        ("two fields", post!("Transfer-Encoding: chunked" "Transfer-Encoding: chunked" => "0\r\n\r\n"), "400"),
        ("gzip in a field before", post!("Transfer-Encoding: gzip" "Transfer-Encoding: chunked" => "0\r\n\r\n"),
            "400"),
        ("identity", post!("Transfer-Encoding: identity" => ""), "400"),
        ("identity in a field behind",
            post!("Transfer-Encoding: chunked" "Transfer-Encoding: identity" => "0\r\n\r\n"),
            "400"),
        ("unknown coding", post!("Transfer-Encoding: xchunked" => "0\r\n\r\n"), "400"),
        ("coding with parameter", post!("Transfer-Encoding: chunked;q=1" => "0\r\n\r\n"), "400"),
        ("quoted coding", post!("Transfer-Encoding: \"chunked\"" => "0\r\n\r\n"), "400"),
        ("empty coding", post!("Transfer-Encoding:" => ""), "400"),
        ("vertical tab coding", post!("Transfer-Encoding: \x0bchunked" => "0\r\n\r\n"), "400"),
        ("coding on 1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        ("TE is another field", post!("TE: trailers" "Content-Length: 1" => "a"), "Post / 1.1 keep len=1 | a"),
    ];
    check(rows, exchange);
}

// proves R-HTTP-1
#[test]
fn connection_and_expect() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("close", get!("Host: r" "Connection: close"), "Get / 1.1 close"),
        ("Close", get!("Host: r" "connection: Close"), "Get / 1.1 close"),
        ("keep-alive", get!("Host: r" "Connection: keep-alive"), "Get / 1.1 keep"),
        ("close in a list", get!("Host: r" "Connection: close, X-Secret" "X-Secret: 1"), "Get / 1.1 close"),
        ("close last in a list", get!("Host: r" "Connection: te ,\tclose"), "Get / 1.1 close"),
        ("close in a second field", get!("Host: r" "Connection: te" "Connection: close"), "Get / 1.1 close"),
        ("close beside keep-alive", get!("Host: r" "Connection: keep-alive, close"), "Get / 1.1 close"),
        ("close as part of a token", get!("Host: r" "Connection: enclose"), "Get / 1.1 keep"),
        ("upgrade", get!("Host: r" "Connection: upgrade" "Upgrade: h2c"), "Get / 1.1 keep"),
        ("continue", post!("Expect: 100-continue" "Content-Length: 3" => ""), "Post / 1.1 keep len=3 continue ..."),
        ("Continue, chunked", post!("Expect: 100-Continue" "Transfer-Encoding: chunked" => ""),
            "Post / 1.1 keep chunked continue ..."),
        ("continue without body", post!("Expect: 100-continue" => ""), "Post / 1.1 keep"),
        ("continue, length 0", post!("Expect: 100-continue" "Content-Length: 0" => ""), "Post / 1.1 keep len=0"),
        ("continue twice", post!("Expect: 100-continue" "Expect: 100-continue" "Content-Length: 3" => ""),
            "Post / 1.1 keep len=3 continue ..."),
        ("other expectation", post!("Expect: foo" => ""), "Post / 1.1 keep 417"),
        ("continue and other", post!("Expect: 100-continue, foo" "Content-Length: 1" => "a"),
            "Post / 1.1 keep len=1 417 | a"),
        ("other and continue", post!("Expect: foo" "Expect: 100-continue" "Content-Length: 1" => "a"),
            "Post / 1.1 keep len=1 417 | a"),
        ("empty expectation", post!("Expect:" => ""), "Post / 1.1 keep"),
        ("continue on 1.0", b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na",
            "Post / 1.0 close len=1 | a"),
        ("other on 1.0", b"POST / HTTP/1.0\r\nExpect: foo\r\n\r\n", "Post / 1.0 close"),
    ];
    check(rows, exchange);
}

// proves R-HTTP-1, R-HTTP-2
#[test]
fn chunked_requests() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("one chunk", chunked!("5\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | hello"),
        ("two chunks", chunked!("2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | hello"),
        ("empty body", chunked!("0\r\n\r\n"), "Post / 1.1 keep chunked"),
        ("hex, both cases", chunked!("a\r\n0123456789\r\nB\r\n0123456789a\r\n0\r\n\r\n"),
            "Post / 1.1 keep chunked | 01234567890123456789a"),
        ("zeros before", chunked!("0000000000000005\r\nhello\r\n00\r\n\r\n"), "Post / 1.1 keep chunked | hello"),
        ("next request behind", chunked!("1\r\na\r\n0\r\n\r\nGET"), "Post / 1.1 keep chunked | a +3"),
        ("legal bad space", chunked!("5 ;a=1\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | hello"),
        ("data that looks like framing", chunked!("7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n"),
            "Post / 1.1 keep chunked | \r\n0\r\n\r\n"),
        ("trailers dropped", chunked!("1\r\na\r\n0\r\nContent-Length: 99\r\nAuthorization: x\r\nX-A: 1\r\n\r\n"),
            "Post / 1.1 keep chunked | a"),
        ("digit then letter", chunked!("5x\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("0x5", chunked!("0x5\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("space first", chunked!(" 5\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("minus", chunked!("-5\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("plus", chunked!("+5\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("empty size", chunked!("\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("no size but an extension", chunked!(";a\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("17 digits", chunked!("00000000000000005\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("bare LF", chunked!("5\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("bare CR", chunked!("5\rhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkSize"),
        ("space behind", chunked!("5 \r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkExtension"),
        ("no CRLF after data", chunked!("5\r\nhello0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkEnd"),
        ("bare LF after data", chunked!("5\r\nhello\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkEnd"),
        ("bare CR after data", chunked!("5\r\nhello\r0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkEnd"),
        ("data too long", chunked!("4\r\nhello\r\n0\r\n\r\n"), "Post / 1.1 keep chunked | ChunkEnd"),
        ("last CRLF late", chunked!("1\r\na\r\n0\r\n"), "Post / 1.1 keep chunked | a ..."),
        ("data late", chunked!("5\r\nhel"), "Post / 1.1 keep chunked | hel ..."),
        ("largest size", chunked!("ffffffffffffffff\r\nhel"), "Post / 1.1 keep chunked | hel ..."),
    ];
    check(rows, exchange);
}

// proves R-HTTP-3
#[test]
fn limits_of_heads() {
    let line = "GET / HTTP/1.1\r\nHost: r\r\n";
    let sized = |total: usize| {
        let pad = total - line.len() - "X: \r\n\r\n".len();
        format!("{line}X: {}\r\n\r\n", "a".repeat(pad)).into_bytes()
    };
    let many = |fields: usize| format!("{line}{}\r\n", "X: a\r\n".repeat(fields - 1)).into_bytes();
    let rows: Vec<(&str, Vec<u8>, &str)> = vec![
        ("bytes at the limit", sized(512), "Get / 1.1 keep"),
        ("one byte over", sized(513), "431"),
        (
            "over, no end in sight",
            [line.as_bytes(), &[b'a'; 600]].concat(),
            "431",
        ),
        (
            "a target without end",
            [&b"GET /"[..], &[b'a'; 600]].concat(),
            "431",
        ),
        ("a method without end", vec![b'A'; 600], "431"),
        ("at the limit, no end", vec![b'A'; 512], "431"),
        ("just below the limit, no end", vec![b'A'; 511], "..."),
        (
            "body is not head",
            [&sized(512)[..], &[b'b'; 9]].concat(),
            "Get / 1.1 keep +9",
        ),
        ("fields at the limit", many(8), "Get / 1.1 keep"),
        ("one field over", many(9), "431"),
        (
            "bare LF within the limit",
            [line.as_bytes(), b"\n", &[b'a'; 600]].concat(),
            "400",
        ),
    ];
    for (name, bytes, want) in &rows {
        assert_eq!(&every_split(bytes, exchange), want, "row {name}");
    }
    // More fields than slots, whatever the limits say.
    let limits = HeadLimits {
        bytes_max: 1 << 20,
        fields_max: 1 << 20,
    };
    assert!(parse_request(&many(FIELDS_MAX), &mut 0, &limits).is_ok());
    assert_eq!(
        parse_request(&many(FIELDS_MAX + 1), &mut 0, &limits),
        Err(HeadFault::TooLarge)
    );
}

/// What an answer's head says, in one line.
fn answer(bytes: &[u8], ends: &[usize]) -> String {
    let mut scanned = 0;
    for &end in ends {
        match parse_response(&bytes[..end], &mut scanned, &LIMITS) {
            Ok(None) => {}
            Err(fault) => {
                return format!("{fault:?}")
                    .chars()
                    .take_while(|c| *c != '(')
                    .collect();
            }
            Ok(Some(head)) => {
                let keep = if head.keep_alive { "keep" } else { "close" };
                let mut told = format!("{} {keep} {:?} {:?}", head.status, head.body, head.media);
                if let Some(seconds) = head.retry_after_s {
                    told += &format!(" after={seconds}");
                }
                if head.head_bytes < bytes.len() {
                    told += &format!(" +{}", bytes.len() - head.head_bytes);
                }
                return told;
            }
        }
    }
    "...".into()
}

macro_rules! ok {
    ($($fields:literal)*) => {
        concat!("HTTP/1.1 200 OK\r\n", $($fields, "\r\n",)* "\r\n").as_bytes()
    };
}

// proves R-LEG-6
#[test]
fn heads_of_answers() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("vLLM stream",
            ok!("date: Sun, 29 Nov 2026 22:54:46 GMT" "server: uvicorn" "vary: Origin"
                "content-type: text/event-stream; charset=utf-8" "transfer-encoding: chunked"),
            "200 keep Chunked EventStream"),
        ("JSON", ok!("content-type: application/json" "content-length: 603" "connection: close"),
            "200 close Length(603) Json"),
        ("media, any case", ok!("Content-Type: Text/Event-Stream;charset=utf-8" "content-length: 1"),
            "200 keep Length(1) EventStream"),
        ("media with a tail", ok!("Content-Type: text/event-streams" "content-length: 1"),
            "200 keep Length(1) Other"),
        ("first media counts", ok!("Content-Type: text/plain" "Content-Type: application/json" "content-length: 1"),
            "200 keep Length(1) Other"),
        ("until close", ok!("content-type: application/json"), "200 close UntilClose Json"),
        ("until close, no fields", b"HTTP/1.1 200 OK\r\n\r\nabc", "200 close UntilClose Other +3"),
        ("1.0 with length", b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", "200 close Length(3) Other"),
        ("1.0 keep-alive", b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n",
            "200 close Length(3) Other"),
        ("1.0 until close", b"HTTP/1.0 200 OK\r\n\r\n", "200 close UntilClose Other"),
        ("1.0 chunked", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "Bad"),
        ("continue", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200", "100 keep None Other +12"),
        ("early hints", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", "103 keep None Other"),
        ("switching protocols", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n", "Bad"),
        ("no content", b"HTTP/1.1 204 No Content\r\n\r\n", "204 keep None Other"),
        ("no content, length 0", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", "204 keep None Other"),
        ("no content, with length", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nHTTP/", "Bad"),
        ("no content, chunked", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", "Bad"),
        ("continue with length", b"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n", "Bad"),
        ("not modified", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "304 keep None Other"),
        ("retry-after", b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n",
            "503 keep Length(0) Other after=7"),
        ("retry-after date",
            b"HTTP/1.1 503 Busy\r\nRetry-After: Sun, 29 Nov 2026 22:54:46 GMT\r\nContent-Length: 0\r\n\r\n",
            "503 keep Length(0) Other"),
        ("no reason", b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", "200 keep Length(0) Other"),
        ("no reason, no space", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "200 keep Length(0) Other"),
        ("odd reason", b"HTTP/1.1 200 \xe9\t!\r\nContent-Length: 0\r\n\r\n", "200 keep Length(0) Other"),
        ("NUL in reason", b"HTTP/1.1 200 \0\r\nContent-Length: 0\r\n\r\n", "Bad"),
        ("status 99", b"HTTP/1.1 099 X\r\n\r\n", "Bad"),
        ("status 600", b"HTTP/1.1 600 X\r\n\r\n", "Bad"),
        ("status of four digits", b"HTTP/1.1 2000 X\r\n\r\n", "Bad"),
        ("status of two digits", b"HTTP/1.1 20 X\r\n\r\n", "Bad"),
        ("status no number", b"HTTP/1.1 2x0 X\r\n\r\n", "Bad"),
        ("two spaces", b"HTTP/1.1  200 OK\r\n\r\n", "Bad"),
        ("http/2", b"HTTP/2.0 200 OK\r\n\r\n", "Version"),
        ("http/1.2", b"HTTP/1.2 200 OK\r\n\r\n", "200 close UntilClose Other"),
        ("http/0.9", b"HTTP/0.9 200 OK\r\n\r\n", "Version"),
        ("gzip", ok!("Content-Encoding: gzip" "Content-Length: 0"), "Bad"),
        ("gzip beside identity", ok!("Content-Encoding: identity, gzip" "Content-Length: 0"), "Bad"),
        ("identity", ok!("Content-Encoding: Identity" "Content-Length: 0"), "200 keep Length(0) Other"),
        ("http/3, one digit", b"HTTP/3 200 OK\r\n\r\n", "Bad"),
        ("empty line first", b"\r\nHTTP/1.1 200 OK\r\n\r\n", "Bad"),
        ("an event first", b"data: {}\n\n", "Bad"),
        ("bare LF", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "Bad"),
        ("bare CR", b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", "Bad"),
        ("folded", ok!("X: a" " b" "Content-Length: 0"), "Bad"),
        ("space before colon", ok!("Content-Length : 0"), "Bad"),
        ("NUL", ok!("X: \0" "Content-Length: 0"), "Bad"),
        ("both framings", ok!("Content-Length: 5" "Transfer-Encoding: chunked"), "Bad"),
        ("two lengths", ok!("Content-Length: 5" "Content-Length: 5"), "Bad"),
        ("listed length", ok!("Content-Length: 5, 5"), "Bad"),
        ("signed length", ok!("Content-Length: +5"), "Bad"),
        ("gzip, chunked", ok!("Transfer-Encoding: gzip, chunked"), "Bad"),
        ("gzip only", ok!("Transfer-Encoding: gzip"), "Bad"),
        ("close in a list", ok!("Connection: X-Eng, close" "X-Eng: 1" "Content-Length: 0"),
            "200 close Length(0) Other"),
        ("too many fields", ok!("a: 1" "a: 1" "a: 1" "a: 1" "a: 1" "a: 1" "a: 1" "a: 1" "a: 1"), "TooLarge"),
        ("cut", b"HTTP/1.1 200 OK\r\nContent-Le", "..."),
        ("nothing", b"", "..."),
    ];
    check(rows, answer);
    let long = [b"HTTP/1.1 200 OK\r\nX: ", &[b'a'; 600][..]].concat();
    assert_eq!(every_split(&long, answer), "TooLarge");
}

#[test]
fn fields_of_an_accepted_head() {
    let rows: &[(&str, &[u8])] = &[
        (
            "plain",
            b"GET / HTTP/1.1\r\nHost: r\r\nX-A:\t 1 \r\nx-a: 2\r\nEmpty:\r\n\r\n",
        ),
        (
            "empty line first",
            b"\r\nGET / HTTP/1.1\r\nHost: r\r\nX-A: 1\r\nx-a: 2\r\nEmpty:\r\n\r\n",
        ),
        (
            "body behind",
            b"GET / HTTP/1.1\r\nHost: r\r\nX-A: 1\r\nx-a: 2\r\nEmpty:\r\n\r\nbody: 1\r\n",
        ),
    ];
    for (name, bytes) in rows {
        let head = parse_request(bytes, &mut 0, &LIMITS).unwrap().unwrap();
        let head = &bytes[..head.head_bytes];
        assert_eq!(field(head, "x-a"), Some(&b"1"[..]), "{name}");
        assert_eq!(field(head, "empty"), Some(&b""[..]), "{name}");
        assert_eq!(field(head, "get / http/1.1"), None, "{name}");
        assert_eq!(field(head, "body"), None, "{name}");
        let names: Vec<&[u8]> = fields(head).map(|(name, _)| name).collect();
        assert_eq!(names, [&b"Host"[..], b"X-A", b"x-a", b"Empty"], "{name}");
    }
    // Bytes that were never accepted do no harm.
    for bytes in [&b""[..], b"\r\n", b"x", b"x\n", b"x\ny", b"x\r\n: \r\n"] {
        assert!(fields(bytes).count() <= 1);
    }
}

#[test]
fn bearer_tokens() {
    let rows: &[(&str, Option<&str>)] = &[
        ("Authorization: Bearer abc", Some("abc")),
        ("authorization:bearer  abc ", Some("abc")),
        ("AUTHORIZATION: BEARER a b", Some("a b")),
        ("Authorization: Bearer", None),
        ("Authorization: Bearer ", None),
        ("Authorization: Bearerabc", None),
        ("Authorization: Basic abc", None),
        ("Authorization:", None),
        ("Proxy-Authorization: Bearer abc", None),
        (
            "Authorization: Bearer abc\r\nauthorization: Bearer abc",
            None,
        ),
    ];
    for (line, token) in rows {
        let bytes = format!("GET / HTTP/1.1\r\nHost: r\r\n{line}\r\n\r\n");
        parse_request(bytes.as_bytes(), &mut 0, &LIMITS)
            .unwrap()
            .unwrap();
        assert_eq!(bearer(bytes.as_bytes()), token.map(str::as_bytes), "{line}");
    }
}

/// A head that comes byte by byte is looked through once, not once a byte.
#[test]
fn scan_goes_on_where_it_stopped() {
    let text = b"GET / HTTP/1.1\r\nHost: r\r\nX: abc\r\n\r\n";
    let mut scanned = 0;
    for end in 1..text.len() {
        assert_eq!(parse_request(&text[..end], &mut scanned, &LIMITS), Ok(None));
        assert!(end - scanned <= 1, "at {end}: {scanned}");
    }
    assert!(
        parse_request(text, &mut scanned, &LIMITS)
            .unwrap()
            .is_some()
    );
    assert_eq!(scanned, 0);
    // A caller's mistake costs a wrong answer at most.
    for mut wild in [1, 30, 1_000] {
        let _ = parse_request(text, &mut wild, &LIMITS);
    }
}

// proves R-HTTP-2, R-LEG-6
#[test]
fn fuzz_seeds() {
    let seeds: &[&[u8]] = &[
        b"",
        b"\0",
        b"\0GET / HTTP/1.1\r\nHost: r\r\nContent-Length: 3\r\n\r\nabc",
        b"\0\r\nPOST http://r HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: Chunked\r\n\r\n",
        b"\x03GET / HTTP/1.0\r\na: b\r\nc: d\r\ne: f\r\n\r\n",
        b"\0HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n",
        b"\0HTTP/1.1 200 X\r\nContent-Length: 3\r\n\r\n",
        b"\x01HTTP/1.1 200 OK\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    for seed in seeds {
        fuzz(seed);
    }
}

/// As a client's and as an engine's.
fn fuzz(data: &[u8]) {
    fuzzing::request(data);
    fuzzing::response(data);
}

/// Pieces of heads, good and bad, in any order.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"GET / HTTP/1.1\r\n"[..],
        b"POST http://r?x HTTP/1.0\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 204\r\n",
        b"Host: r\r\n",
        b"Content-Length: 3\r\n",
        b"content-length:0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"X: \xff\r\n",
        b"X : a\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b" ",
        b"\t",
        b"\0",
        b":",
        b"x",
    ]);
    prop::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat())
}

proptest! {
    // proves R-HTTP-2, R-LEG-6
    #[test]
    fn heads_hold_their_properties(mut bytes in pieces(), end in any::<bool>(), side in 0u8..2, tight in 0u8..4) {
        if end {
            bytes.extend_from_slice(b"\r\n");
        }
        // The likely start, so that more than the first line is reached.
        let start: &[u8] = if side == 0 { b"GET / HTTP/1.1\r\nHost: r\r\n" } else { b"HTTP/1.1 200 OK\r\n" };
        fuzz(&[&[tight], &bytes[..]].concat());
        fuzz(&[&[tight], start, &bytes[..]].concat());
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz(&bytes);
        let _ = fields(&bytes).count();
    }
}
