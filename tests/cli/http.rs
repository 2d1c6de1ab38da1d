//! One request, one connection, one answer. Strict where it matters: a body that breaks off is a failed test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::child::PATIENCE;

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

pub fn get(at: SocketAddr, path: &str) -> Answer {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n");
    exchange(at, head.as_bytes())
}

pub fn post(at: SocketAddr, path: &str, body: &Value) -> Answer {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    exchange(at, request.as_bytes())
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The data of an event stream that ended as it must.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        let text = std::str::from_utf8(&self.body).expect("UTF-8");
        let whole = text.strip_suffix("data: [DONE]\n\n");
        let whole = whole.unwrap_or_else(|| panic!("no [DONE] at the end of {text}"));
        let event = |event: &str| {
            let data = event.strip_prefix("data: ").unwrap_or(event);
            serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"))
        };
        whole.split_terminator("\n\n").map(event).collect()
    }
}

fn exchange(at: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE).expect("it listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a time-out that is not zero");
    stream.write_all(request).expect("it reads");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("it answers and closes");
    let end = all.windows(4).position(|w| w == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(&all)));
    let rest = &all[end + 4..];
    let head = String::from_utf8_lossy(&all[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
    let length = head.split("content-length: ").nth(1).map(|rest| {
        let digits = rest.split("\r\n").next().unwrap_or("");
        digits.parse::<usize>().expect("a length")
    });
    let body = match length {
        Some(length) => {
            assert_eq!(rest.len(), length, "{head}");
            rest.to_vec()
        }
        None if head.contains("transfer-encoding: chunked") => chunks(rest),
        None => rest.to_vec(),
    };
    Answer {
        status: status.expect("a status"),
        head,
        body,
    }
}

fn chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest
            .windows(2)
            .position(|w| w == b"\r\n")
            .expect("a whole body");
        let size = std::str::from_utf8(&rest[..end]).expect("digits");
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        let data = end + 2;
        body.extend_from_slice(&rest[data..data + size]);
        assert_eq!(&rest[data + size..data + size + 2], b"\r\n");
        rest = &rest[data + size + 2..];
        if size == 0 {
            assert!(rest.is_empty(), "bytes behind the last chunk");
            return body;
        }
    }
}
