//! What went wrong in routers and proxies elsewhere, and must come out right here: a table of streams, and tests of everything else.
//!
//! The table is the one that `tests/faults` cuts at every offset in memory; here it goes over sockets, on every driver.

#[path = "../../faults/notation.rs"]
mod notation;
#[path = "../../faults/streams.rs"]
mod streams;
#[path = "../../faults/verdict.rs"]
mod verdict;

mod bodies;
mod framing;
mod front;
mod legs;
mod load;
mod relay;

use serde_json::{Value, json};

use self::verdict::Got;
use super::client::{self, Answer};
use super::world::{Fleet, World, everywhere, number};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A completion of three tokens whose prompt needs no count.
fn counted(stream: bool) -> Value {
    json!({"model": "stub-model", "prompt": [1, 2, 3], "max_tokens": 3, "stream": stream})
}

/// One token of a completion.
fn event(text: &str) -> String {
    notation::tx(&format!(
        r#""text":"{text}","finish_reason":null,"token_ids":[1]"#
    ))
}

/// One attempt, and nothing is paid for another.
fn once(fleet: Fleet) -> Fleet {
    fleet.with("serving", "max_attempts", 1)
}

fn served(answer: &Answer, row: &str) {
    assert_eq!(answer.status, Some(200), "{row}: {}", answer.text());
    assert!(answer.complete, "{row}: cut");
}

fn refused(answer: &Answer, status: u16, kind: &str, row: &str) {
    assert_eq!(answer.status, Some(status), "{row}: {}", answer.text());
    let error = answer.json()["error"].take();
    assert_eq!(error["type"], kind, "{row}: {}", answer.text());
    assert_eq!(
        answer.header("content-type"),
        Some("application/json"),
        "{row}"
    );
    assert!(answer.complete, "{row}: cut");
}

fn hex(bytes: &[u8]) -> Value {
    let digits: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    json!({"hex": digits})
}

// proves R-SSE-1, R-SSE-2, R-SSE-3, R-SSE-4, R-SSE-5, R-ASM-1, R-ASM-2, R-ASM-3, R-TOK-1, R-TOK-2, R-TOK-3, R-FLT-1, R-FLT-2, R-FLT-3
// proves R-SHD-3
#[test]
fn streams_that_go_wrong_elsewhere() {
    let rows = streams::rows();
    everywhere(|setup| {
        let world = World::start(setup, &once(Fleet::pair()));
        let observed = |world: &World| number(&world.at_rest(), "/serving/decode_tokens_observed");
        let mut client = world.connect();
        let mut before = observed(&world);
        for row in &rows {
            let bytes = &row.engine;
            let (half, rest) = bytes.split_at(bytes.len() / 2);
            let plays: [Vec<Value>; 3] = [
                vec![hex(bytes)],
                bytes.iter().map(|b| hex(&[*b])).collect(),
                vec![hex(half), json!({"delay_ms": 3}), hex(rest)],
            ];
            for (n, play) in plays.into_iter().enumerate() {
                // An empty chunk would be the last one.
                let play: Vec<Value> = play.into_iter().filter(|item| item["hex"] != "").collect();
                for stream in [true, false] {
                    world.engines.script(&json!({"decode": {"chunks": play}}));
                    client.send(&client::post_bytes(
                        row.path(),
                        row.request(stream).as_bytes(),
                    ));
                    let answer = client.answer();
                    let after = observed(&world);
                    let got = Got {
                        status: answer.status.unwrap_or(0),
                        content_type: answer.header("content-type").unwrap_or_default(),
                        has_length: answer.header("content-length").is_some(),
                        body: &answer.body,
                        tokens: after - before,
                    };
                    assert!(answer.complete, "{}", row.name);
                    if let Err(why) = row.judge(stream, &got) {
                        panic!("play {n}: {why}");
                    }
                    before = after;
                }
            }
        }
    });
}
