//! Streams that other routers got wrong, against the connection machine in memory: in one piece, byte by byte, and cut at every offset.
//!
//! The same table is played on sockets by the tests of the running binary (`tests/e2e`). Owns nothing.

#[path = "../placement/fleet.rs"]
mod fleet;

mod later;
mod machine;
mod memory;
mod notation;
mod streams;
mod verdict;

use machine::{Answer, Machine};
use streams::Row;
use verdict::Got;

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";

/// The engine's answer in one chunk, with a length, a chunk for every byte, and until it closes.
fn framings(body: &[u8]) -> [(Vec<u8>, bool); 4] {
    let head = |more: &str| format!("{HEAD}{more}\r\n").into_bytes();
    let chunk = |bytes: &[u8]| {
        let size = format!("{:x}\r\n", bytes.len());
        [size.as_bytes(), bytes, b"\r\n"].concat()
    };
    let chunked = || head("Transfer-Encoding: chunked\r\n");
    let last = b"0\r\n\r\n".to_vec();
    let one = match body {
        [] => Vec::new(),
        _ => chunk(body),
    };
    let each: Vec<u8> = body.chunks(1).flat_map(chunk).collect();
    let length = format!("Content-Length: {}\r\n", body.len());
    [
        ([chunked(), one, last.clone()].concat(), false),
        ([head(&length), body.to_vec()].concat(), false),
        ([chunked(), each, last].concat(), false),
        ([head(""), body.to_vec()].concat(), true),
    ]
}

fn request(row: &Row, stream: bool) -> Vec<u8> {
    let (path, body) = (row.path(), row.request(stream));
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: r\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn judge(row: &Row, stream: bool, how: &str, answer: &Answer) -> Result<(), String> {
    let field = |name: &str| answer.head.lines().find_map(|line| line.strip_prefix(name));
    let got = Got {
        status: answer.status,
        content_type: field("content-type: ").unwrap_or_default(),
        has_length: field("content-length: ").is_some(),
        body: &answer.body,
        tokens: answer.tokens,
    };
    let verdict = row.judge(stream, &got);
    verdict.map_err(|why| format!("{how}: {why}"))
}

/// Rows are shared between as many threads as there are cores. Of each, the first fault is told.
fn each_row(what: impl Fn(&mut Machine, &Row) -> Result<(), String> + Sync) {
    let rows = streams::rows();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = &|first: usize| {
        let mut machine = Machine::new();
        let mine = rows.iter().skip(first).step_by(threads);
        let verdicts = mine.map(|row| what(&mut machine, row).err());
        verdicts.flatten().collect::<Vec<_>>()
    };
    let faults: Vec<String> = std::thread::scope(|scope| {
        let parts = (0..threads).map(|first| scope.spawn(move || part(first)));
        let parts: Vec<_> = parts.collect();
        let joined = parts.into_iter().map(|part| part.join());
        joined
            .flat_map(|part| part.expect("a part is played"))
            .collect()
    });
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n\n"));
}

// proves R-SSE-1, R-SSE-2, R-SSE-3, R-SSE-4, R-SSE-5, R-ASM-1, R-ASM-2, R-ASM-3, R-TOK-1, R-TOK-2, R-TOK-3, R-FLT-1, R-FLT-2, R-FLT-3
#[test]
fn every_framing_gives_the_right_answer() {
    each_row(|machine, row| {
        for stream in [true, false] {
            let request = request(row, stream);
            for (n, (wire, ends)) in framings(&row.engine).iter().enumerate() {
                let whole = machine.ask(&request, [&wire[..]], *ends);
                judge(row, stream, &format!("framing {n}, whole"), &whole)?;
                let bytes = machine.ask(&request, wire.chunks(1), *ends);
                judge(row, stream, &format!("framing {n}, byte by byte"), &bytes)?;
            }
        }
        Ok(())
    });
}

// proves R-SSE-1, R-SSE-2, R-SSE-3, R-SSE-5, R-ASM-1, R-ASM-2, R-ASM-3, R-TOK-1, R-TOK-2, R-FLT-2, R-FLT-3, R-LEG-6
#[test]
fn every_cut_gives_the_right_answer() {
    each_row(|machine, row| {
        for stream in [true, false] {
            let request = request(row, stream);
            let [(wire, ends), ..] = framings(&row.engine);
            for at in 1..wire.len() {
                let (first, rest) = wire.split_at(at);
                let answer = machine.ask(&request, [first, rest], ends);
                judge(row, stream, &format!("cut at {at}"), &answer)?;
            }
        }
        Ok(())
    });
}

/// Lines beside the data are kept for their event up to a bound, and one line may not be over it either.
// proves R-SSE-3
#[test]
fn long_lines_beside_the_data_are_dropped() {
    use notation::{DONE, said};
    let (a, b) = (said("a"), said("b"));
    let long = "x".repeat(40_000);
    // What stands between two events, and whether it goes on.
    let rows = [
        (format!(": {}\n\n", "x".repeat(30_000)), true),
        (format!(": {long}\n\n"), false),
        (format!("id: {long}\n"), false),
        (format!("event: {long}\n: {long}\n"), false),
        (format!("id: {}\n", "x".repeat(1000)).repeat(40), false),
    ];
    let mut machine = Machine::new();
    let row = &streams::rows()[0];
    for (between, passes) in rows {
        let engine = format!("{a}{between}{b}{DONE}");
        let [(wire, ends), ..] = framings(engine.as_bytes());
        for piece in [wire.len(), 1, 777, 30_000] {
            let answer = machine.ask(&request(row, true), wire.chunks(piece), ends);
            let text = String::from_utf8_lossy(&answer.body);
            let kept = text.matches('x').count();
            assert_eq!(kept > 20_000, passes, "{kept}");
            assert!(kept <= 32_768, "{kept}");
            assert!(text.ends_with(DONE));
            assert_eq!(answer.tokens, 2);
        }
    }
}

/// An engine that goes before the end of its body, at whatever byte, was no success: only the terminator is one.
// proves R-SSE-5, R-FLT-2, R-FLT-3
#[test]
fn no_end_is_ever_made_up() {
    let engine = [
        notation::said("a"),
        notation::said("b"),
        notation::DONE.to_owned(),
    ]
    .concat();
    let row = &streams::rows()[0];
    let mut machine = Machine::new();
    let [(wire, _), (sized, _), _, (open, _)] = framings(engine.as_bytes());
    for (n, wire) in [wire, sized, open].iter().enumerate() {
        for stream in [true, false] {
            for at in 0..wire.len() {
                let answer = machine.ask(&request(row, stream), [&wire[..at]], true);
                let text = String::from_utf8_lossy(&answer.body);
                // The terminator's line was there, and only framing is missing. A body that ends with its connection is whole then, so
                // its last line needs no end.
                let sent = String::from_utf8_lossy(&wire[..at]);
                let whole = sent.contains("data: [DONE]\n") || n == 2 && sent.ends_with("[DONE]");
                match (stream, answer.status) {
                    (true, 200) if whole => assert!(text.ends_with(notation::DONE), "{at}: {text}"),
                    (true, 200) => assert!(text.ends_with(notation::FAILED), "{at}: {text}"),
                    (false, 200) => assert!(whole, "{at}: {text}"),
                    (_, status) => assert!(status == 502 && !whole, "{at}: {status} {text}"),
                }
            }
        }
    }
}
