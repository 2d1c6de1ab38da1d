//! Streams on their way: each event at once, framed and typed by us, and never more of them in memory than is allowed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};

use super::super::client::{self, Client, PATIENCE, data_of};
use super::super::engine::framed;
use super::super::world::{Fleet, Setup, World, everywhere, in_each, number, reason};
use super::notation::{DONE, FAILED, ch, ev, frame, said};
use super::{CHAT, TEXT, counted, event, once, refused, served};

/// An engine that sends the next piece of its stream only when it is told to.
struct Turns {
    port: u16,
    go: mpsc::Sender<String>,
}

impl Turns {
    fn start() -> Turns {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let (go, turns) = mpsc::channel::<String>();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut stream = stream;
                let _ = stream.set_nodelay(true);
                if head_of(&mut stream).starts_with("POST") {
                    let _ = play(&mut stream, &turns);
                    return;
                }
                let _ = stream
                    .write_all(b"HTTP/1.1 404 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        });
        Turns { port, go }
    }
}

/// Reads a request; its head.
fn head_of(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let lower = head.to_ascii_lowercase();
    let length = lower
        .lines()
        .find_map(|l| l.strip_prefix("content-length:"));
    let length = length
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    let _ = stream.read_exact(&mut vec![0; length]);
    head
}

fn play(stream: &mut TcpStream, turns: &mpsc::Receiver<String>) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
    while let Ok(piece) = turns.recv() {
        stream.write_all(&framed(piece.as_bytes()))?;
    }
    stream.write_all(b"0\r\n\r\n")
}

/// An engine sends no event before the client has the one before it: whatever gathers in between would hang.
// proves R-SSE-2, R-HTTP-4
#[test]
fn each_event_goes_on_by_itself() {
    everywhere(|setup| {
        let turns = Turns::start();
        let mut fleet = Fleet::new(&["both"]);
        fleet.file["engines"][0]["url"] = json!(format!("http://127.0.0.1:{}", turns.port));
        fleet.await_ready = false;
        let world = World::start(setup, &fleet);
        let mut client = world.connect();
        client.send(&client::post(TEXT, &counted(true)));
        let sizes = [1, 1, 200, 1, 7000, 1, 30, 200, 1, 16_000];
        for (n, size) in sizes.repeat(2).into_iter().enumerate() {
            let text = "x".repeat(size);
            turns.go.send(event(&text)).expect("an engine");
            let seen = format!("\"{text}\"");
            until_has(&mut client, seen.as_bytes(), &format!("event {n}"));
            if n == 0 {
                let head = String::from_utf8_lossy(&client.buf).to_lowercase();
                assert!(head.contains("content-type: text/event-stream"), "{head}");
                assert!(head.contains("cache-control: no-cache"), "{head}");
                assert!(head.contains("x-accel-buffering: no"), "{head}");
                assert!(!head.contains("content-length"), "{head}");
            }
            client.buf.clear();
            // A comment alone goes on as well.
            turns.go.send(": ping\n\n".to_owned()).expect("an engine");
            until_has(&mut client, b": ping", "a comment");
            client.buf.clear();
        }
        turns.go.send(DONE.to_owned()).expect("an engine");
        until_has(&mut client, b"[DONE]\n\n\r\n0\r\n\r\n", "the end");
    });
}

fn until_has(client: &mut Client, what: &[u8], row: &str) {
    while !client.buf.windows(what.len()).any(|w| w == what) {
        assert!(client.more(PATIENCE), "{row} does not come");
    }
}

/// An engine's word about what it sends is not passed on: a stream is a stream, and an answer is JSON.
// proves R-HTTP-4, R-SSE-2
#[test]
fn the_type_of_an_answer_is_ours() {
    everywhere(|setup| {
        let world = World::start(setup, &once(Fleet::pair()));
        let types = [
            "text/html",
            "application/json; charset=utf-8",
            "text/event-stream",
            "x",
        ];
        for media in types {
            for (framing, stream) in [
                ("chunked", true),
                ("length", true),
                ("close", false),
                ("length", false),
            ] {
                let row = format!("{media} {framing} {stream}");
                world.engines.script(&json!({"decode": {
                    "headers": {"content-type": media, "content-encoding": "identity", "x-engine": "1"},
                    "framing": framing, "chunks": [event("a"), event("b"), DONE],
                }}));
                let answer = world.post(TEXT, &counted(stream));
                served(&answer, &row);
                let typed = answer.header("content-type").unwrap_or_default();
                match stream {
                    true => assert_eq!(typed, "text/event-stream; charset=utf-8", "{row}"),
                    false => assert_eq!(typed, "application/json", "{row}"),
                }
                assert_eq!(answer.header("content-length").is_some(), !stream, "{row}");
                let chunked = answer.header("transfer-encoding") == Some("chunked");
                assert_eq!(chunked, stream, "{row}");
                assert_eq!(answer.header("x-engine"), None, "{row}");
            }
            for status in [400, 500, 503] {
                world.engines.script(&json!({"decode": {
                    "status": status, "headers": {"content-type": media}, "body": "<b>no</b>",
                }}));
                for stream in [true, false] {
                    let answer = world.post(TEXT, &counted(stream));
                    let (want, kind) = match status {
                        400 => (400, "invalid_request_error"),
                        _ => (502, "decode"),
                    };
                    refused(&answer, want, kind, media);
                    assert!(!answer.text().contains("<b>"), "{media}: {}", answer.text());
                }
            }
        }
    });
}

const LIMIT: usize = 2 << 20;

/// An event in HTTP chunks of 64 KiB, with so many bytes of data, and one token.
fn large(bytes: usize, end: &str) -> Vec<Value> {
    let (front, back) = frame(r#""delta":{"content":"|"},"finish_reason":null,"token_ids":[7]"#)
        .split_once('|')
        .map(|(front, back)| (front.to_owned(), back.to_owned()))
        .expect("two halves");
    let fill = bytes - front.len() - back.len();
    let mut items = vec![json!(format!("data: {front}"))];
    if fill >= 65_536 {
        items.push(json!({"repeat": fill / 65_536, "text": "a".repeat(65_536)}));
    }
    items.push(json!("a".repeat(fill % 65_536) + &back + end));
    items
}

/// Up to the limit an event is passed on whole; over it the failure is told, before and after output.
// proves R-SSE-3, R-ASM-3, R-FLT-2
#[test]
fn large_events_are_whole_or_told() {
    everywhere(|setup| {
        let fleet = once(Fleet::pair()).with("serving", "max_response_bytes", LIMIT);
        let world = World::start(setup, &fleet);
        let ask = |stream: bool| json!({"model": "stub-model", "messages": [{"role": "user", "content": "x"}], "stream": stream});
        let chunks = |parts: &[&[Value]]| json!({"decode": {"chunks": parts.concat()}});
        let (done, a) = ([json!(DONE)], [json!(said("a"))]);
        // In the middle of the range, and the last one that fits, `data: ` and the line's end counted.
        for bytes in [LIMIT * 3 / 4, LIMIT - 8] {
            world
                .engines
                .script(&chunks(&[&large(bytes, "\n\n"), &done]));
            let answer = world.post(CHAT, &ask(true));
            served(&answer, "streamed");
            let data = data_of(&answer.text());
            assert_eq!(data.len(), 2);
            assert_eq!(data[0].len() + ",\"token_ids\":[7]".len(), bytes);
        }
        world
            .engines
            .script(&chunks(&[&large(LIMIT * 3 / 4, "\n\n"), &done]));
        let answer = world.post(CHAT, &ask(false));
        served(&answer, "assembled");
        let content = answer.json()["choices"][0]["message"]["content"]
            .as_str()
            .map(str::len);
        assert!(content.is_some_and(|len| len > LIMIT * 3 / 4 - 300));
        let before = reason(&world.at_rest(), "failed", "response_limit");
        let mut failures = 0;
        // One too large; one whose line never ends; one in many data lines.
        let line = format!("data: {}\n", "a".repeat(1024));
        let lines = [json!({"repeat": LIMIT / 1024 + 2, "text": line})];
        let rows: [(&str, Vec<Value>); 3] = [
            ("over the limit", large(LIMIT + 1, "\n\n")),
            ("without end", large(LIMIT * 4, "")),
            ("in many lines", lines.to_vec()),
        ];
        let mut round = || {
            for (row, event) in &rows {
                for stream in [true, false] {
                    world.engines.script(&chunks(&[event, &done]));
                    refused(&world.post(CHAT, &ask(stream)), 502, "decode", row);
                    world.engines.script(&chunks(&[&a, event, &done]));
                    let late = world.post(CHAT, &ask(stream));
                    if stream {
                        served(&late, row);
                        assert!(late.text().ends_with(FAILED), "{row}");
                        assert!(!late.text().contains("DONE"), "{row}");
                    } else {
                        refused(&late, 502, "decode", row);
                    }
                    failures += 2;
                }
            }
        };
        // What an allocator keeps of the first rounds, on each shard, serves the next ones.
        (0..3).for_each(|_| round());
        let memory = resident_bytes(&world);
        (0..3).for_each(|_| round());
        let grew = resident_bytes(&world).saturating_sub(memory);
        // Which shard has had its rounds, and which pages its allocator keeps, is chance; 36 answers that left an event each would be 72 MiB.
        assert!(grew < 10 * LIMIT, "{grew} bytes stay of three rounds");
        let after = reason(&world.at_rest(), "failed", "response_limit");
        assert_eq!(after - before, failures);
    });
}

/// Many tiny pieces that are nothing cost nothing to hold, and the token behind them arrives.
// proves R-SSE-3, R-HTTP-3
#[test]
fn many_pieces_of_nothing_are_not_held() {
    const PIECES: usize = 200_000;
    let small = |byte: char| format!("1\r\n{byte}\r\n");
    let comments = [":", "\n"]
        .map(|text| small(text.chars().next().expect("one")))
        .concat();
    let empty: String = "data:\n\n".chars().map(small).collect();
    let fields: String = "id:1\n".chars().map(small).collect();
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let end = framed(format!("\n\n{}{DONE}", event("a")).as_bytes());
    let end = String::from_utf8(end).expect("UTF-8") + "0\r\n\r\n";
    // One shard: pieces are a matter of one connection.
    let setups: Vec<Setup> = Setup::all().into_iter().filter(|s| s.shards == 1).collect();
    in_each(&setups, |setup| {
        let world = World::start(setup, &once(Fleet::new(&["both"])));
        served(&world.post(TEXT, &counted(true)), "warm");
        let before = resident_bytes(&world);
        for (row, unit) in [
            ("comments", &comments),
            ("empty data", &empty),
            ("fields", &fields),
        ] {
            let count = PIECES * 6 / unit.len();
            let block = unit.repeat(500);
            world.engines.script(&json!({"decode": {"raw": [
                head, {"repeat": count / 500, "text": block}, end,
            ]}}));
            for stream in [true, false] {
                let answer = world.post(TEXT, &counted(stream));
                served(&answer, row);
                assert!(!answer.text().contains(":\n"), "{row}");
            }
        }
        let grew = resident_bytes(&world).saturating_sub(before);
        assert!(grew < 4 << 20, "{grew} bytes");
        assert_eq!(number(&world.at_rest(), "/failed"), 0);
    });
}

/// Frames without a token are held up to a bound, then the request ends.
// proves R-SSE-3
#[test]
fn frames_without_a_token_are_bounded() {
    everywhere(|setup| {
        let world = World::start(setup, &once(Fleet::pair()));
        let role = ev(&frame(
            r#""delta":{"role":"assistant"},"finish_reason":null"#,
        ));
        for (count, fits) in [(1, true), (63, true), (64, true), (65, false), (500, false)] {
            let token = ev(&ch(r#"{"content":"a"}"#));
            world
                .engines
                .script(&json!({"decode": {"chunks": [role.repeat(count), token, DONE]}}));
            for stream in [true, false] {
                let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
                body["stream"] = json!(stream);
                let answer = world.post(CHAT, &body);
                match fits {
                    true => served(&answer, &format!("{count}")),
                    false => refused(&answer, 502, "decode", &format!("{count}")),
                }
            }
        }
    });
}

/// Resident memory of the router.
pub fn resident_bytes(world: &World) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.id()));
    let status = status.expect("a process status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
    kib.expect("VmRSS") << 10
}
