//! What the client received, read back with the house's own parser: answers in order, each whole and framed, no token id that was not
//! asked for, and no stream that ends without its end.

use serde_json::Value;

use super::world::World;
use crate::metrics::outcome::Outcome;
use crate::wire::h1::body::{BodyDecoder, Step};
use crate::wire::h1::head::{self, HeadLimits, Media, Method, RequestHead, ResponseBody};
use crate::wire::json::Cursor;

/// A request, as the client meant it.
struct Asked {
    method: Method,
    completion: bool,
    ids: bool,
}

impl World {
    /// To be called once the connection is closed.
    pub fn check_output(&self) {
        let asked = self.asked();
        let mut rest = &self.client.received[..];
        let mut served = 0;
        let mut answers = 0;
        while !rest.is_empty() {
            let Some(head) = response_head(rest) else {
                assert!(self.client.torn, "half a head");
                break;
            };
            if head.status < 200 {
                rest = &rest[head.head_bytes..];
                continue;
            }
            let request = asked.get(answers);
            answers += 1;
            if request.is_none() {
                assert!(
                    matches!(head.status, 400 | 408 | 431 | 505),
                    "{} to no request",
                    head.status
                );
                assert!(!head.keep_alive);
            }
            let bodiless = request.is_some_and(|r| r.method == Method::Head);
            let framing = if bodiless {
                ResponseBody::None
            } else {
                head.body
            };
            let text = &rest[head.head_bytes..];
            let (body, used, mut whole) = read_body(framing, text);
            whole &= framing != ResponseBody::UntilClose || !self.client.torn;
            let fields = &rest[..head.head_bytes];
            if let Some(request) = request.filter(|r| r.completion && !bodiless) {
                assert!(head::field(fields, "x-request-id").is_some() || head.status >= 400);
                served += usize::from(check_completion(request, &head, &body, whole));
            } else if whole && head.media == Media::Json && !bodiless {
                assert!(serde_json::from_slice::<Value>(&body).is_ok());
            }
            rest = &text[used..];
            if !whole {
                assert!(self.client.torn, "half a body");
                break;
            }
            if !head.keep_alive {
                assert!(
                    rest.is_empty(),
                    "bytes behind the last answer: {}",
                    String::from_utf8_lossy(&self.client.received)
                );
            }
        }
        let counted = self.shard.ledger.snapshot().outcome(Outcome::Served);
        assert!(served as u64 <= counted);
        if !self.client.torn {
            assert_eq!(served as u64, counted);
        }
    }

    /// The requests in what the client sent, as far as they are well formed.
    fn asked(&self) -> Vec<Asked> {
        let runtime = &self.shard.snapshot.fleet.runtime;
        let limits = HeadLimits {
            bytes_max: runtime.max_header_bytes,
            fields_max: runtime.max_headers,
        };
        let mut rest = &self.client.sent[..];
        let mut asked = Vec::new();
        while let Ok(Some(head)) = head::parse_request(rest, &mut 0, &limits) {
            let (body, used) = request_body(&head, &rest[head.head_bytes..]);
            let value: Value = serde_json::from_slice(&body).unwrap_or_default();
            let path = &rest[head.path.clone()];
            asked.push(Asked {
                method: head.method,
                completion: path.starts_with(b"/v1/c"),
                ids: value["return_token_ids"] == true,
            });
            let Some(used) = used else { break };
            rest = &rest[head.head_bytes + used..];
        }
        asked
    }
}

/// Whether this is the whole answer of a request that was served.
fn check_completion(request: &Asked, head: &head::ResponseHead, body: &[u8], whole: bool) -> bool {
    if head.media == Media::EventStream {
        assert_eq!(head.status, 200);
        return check_stream(request, body, whole);
    }
    if !whole || head.status == 204 {
        return false;
    }
    let mut json = Cursor::new(body);
    assert!(json.skip().is_ok() && json.finish().is_ok());
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        // Half a surrogate pair is JSON, and was the engine's.
        assert!(head.status == 200 && body.windows(3).any(|w| w.eq_ignore_ascii_case(b"\\ud")));
        return true;
    };
    if head.status != 200 {
        assert!(value["error"]["message"].is_string() && value["error"]["type"].is_string());
        return false;
    }
    assert!(value["choices"][0].is_object() && value["usage"].is_object());
    check_ids(request, &value);
    true
}

/// Lines that are events are JSON or as malformed as the engine sent them; the last one ends the stream.
fn check_stream(request: &Asked, body: &[u8], whole: bool) -> bool {
    let mut last = Last::Nothing;
    for line in body.split(|byte| *byte == b'\n') {
        assert!(!line.contains(&b'\r'));
        if line.is_empty() || line.starts_with(b":") {
            continue;
        }
        let Some(data) = line.strip_prefix(b"data: ") else {
            let fields: [&[u8]; 4] = [b"id", b"event", b"retry", b"data"];
            assert!(!whole || fields.iter().any(|name| line.starts_with(name)));
            continue;
        };
        assert!(
            last != Last::Done && last != Last::Error,
            "more behind the end"
        );
        last = Last::Event;
        if data == b"[DONE]" {
            last = Last::Done;
        } else if let Ok(value) = serde_json::from_slice::<Value>(data)
            && value.is_object()
        {
            check_ids(request, &value);
            // An engine's is never passed on, so this one is ours.
            if value["error"].is_object() {
                last = Last::Error;
            }
        }
    }
    assert!(
        !whole || matches!(last, Last::Done | Last::Error),
        "a stream without an end"
    );
    whole && last == Last::Done
}

#[derive(PartialEq, Eq)]
enum Last {
    Nothing,
    Event,
    Done,
    Error,
}

fn check_ids(request: &Asked, value: &Value) {
    if request.ids {
        return;
    }
    let choices = value["choices"].as_array().into_iter().flatten();
    for place in choices.chain([value]) {
        for name in ["token_ids", "prompt_token_ids"] {
            assert!(place.get(name).is_none(), "{name} was not asked for");
        }
    }
}

fn response_head(bytes: &[u8]) -> Option<head::ResponseHead> {
    let limits = HeadLimits {
        bytes_max: 4096,
        fields_max: 32,
    };
    head::parse_response(bytes, &mut 0, &limits).expect("our own heads are well formed")
}

/// Payload, bytes used, and whether that was all.
fn read_body(framing: ResponseBody, bytes: &[u8]) -> (Vec<u8>, usize, bool) {
    let mut decoder = BodyDecoder::response(framing);
    let (mut payload, mut at) = (Vec::new(), 0);
    loop {
        match decoder.next(&bytes[at..]).expect("our own framing") {
            Step::Piece { data, used } => {
                payload.extend_from_slice(&bytes[at..][data]);
                at += used;
            }
            Step::More { used } => {
                let whole = framing == ResponseBody::UntilClose;
                return (payload, at + used, whole);
            }
            Step::End { used } => return (payload, at + used, true),
        }
    }
}

/// The payload, and the bytes used when it is whole.
fn request_body(head: &RequestHead, bytes: &[u8]) -> (Vec<u8>, Option<usize>) {
    let mut decoder = BodyDecoder::request(head.body);
    let (mut payload, mut at) = (Vec::new(), 0);
    loop {
        match decoder.next(&bytes[at..]) {
            Ok(Step::Piece { data, used }) => {
                payload.extend_from_slice(&bytes[at..][data]);
                at += used;
            }
            Ok(Step::End { used }) => return (payload, Some(at + used)),
            Ok(Step::More { .. }) | Err(_) => return (payload, None),
        }
    }
}
