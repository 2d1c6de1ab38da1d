//! Requests that are to be refused: 429, told before a body of 1 KiB, on a connection that stays.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use memchr::memmem;
use narwhal::runtime::io::{ReadHalf, Rt, WriteHalf};
use serde_json::Value;

use super::{Load, Seen};

pub async fn measure<R: Rt>(load: &Rc<Load>) -> Value {
    let held = hold::<R>(load.args.target).await;
    if let Err(error) = &held {
        load.fail(format!("hold: {error}"));
    }
    for index in 0..load.args.connections {
        load.start::<R>(index, refusals::<R>(load.clone()));
    }
    let report = load.count::<R>().await;
    drop(held);
    report
}

/// A request whose body never comes: it keeps the only place.
async fn hold<R: Rt>(target: SocketAddr) -> std::io::Result<impl Sized> {
    let (reader, writer) = R::connect(target).await?;
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 1024\r\n\r\n";
    let (sent, _, writer) = writer.write_all(head.to_vec(), 0).await;
    sent?;
    // It has arrived before the others are sent.
    R::sleep(Duration::from_millis(100)).await;
    Ok((reader, writer))
}

async fn refusals<R: Rt>(load: Rc<Load>) -> Result<(), String> {
    let connected = R::connect(load.args.target).await;
    let (mut reader, mut writer) = connected.map_err(|error| format!("connect: {error}"))?;
    let body = format!(
        r#"{{"model":"{}","prompt":"{:0>980}"}}"#,
        load.args.model, 7
    );
    let mut out = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        load.args.target,
        body.len()
    )
    .into_bytes();
    let mut buf = Vec::with_capacity(4 << 10);
    while !load.stop.get() {
        let seen = Seen::new(&load);
        let sent;
        (sent, out, writer) = writer.write_all(out, 0).await;
        sent.map_err(|error| format!("send: {error}"))?;
        while !is_whole(&buf)? {
            let got;
            (got, buf, reader) = reader.read(buf).await;
            if got.map_err(|error| format!("read: {error}"))? == 0 {
                return Err("closed".to_owned());
            }
        }
        buf.clear();
        seen.end();
    }
    Ok(())
}

/// Whether all of a 429 with a length is there.
fn is_whole(bytes: &[u8]) -> Result<bool, String> {
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
        return Ok(false);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    if !head.starts_with("http/1.1 429") {
        return Err(format!("not refused: {head}"));
    }
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
    let length = length.ok_or("a refusal without a length")?;
    Ok(bytes.len() >= end + 4 + length)
}
