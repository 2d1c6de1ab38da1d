//! What a client received, read back as it comes: answers in order, each framed and whole, and at the end each judged against what was
//! asked and how the router says that it ended.

use narwhal::metrics::outcome::{End, ExpireReason, InvalidReason};
use narwhal::wire::h1::body::{BodyDecoder, Step};
use narwhal::wire::h1::head::{self, HeadLimits, Media, ResponseBody};
use serde_json::Value;

use crate::requests::{Asked, Want, What};

/// One answer, as far as it came.
#[derive(Debug)]
pub struct Seen {
    pub status: u16,
    pub media: Media,
    pub keep_alive: bool,
    pub has_id: bool,
    pub payload: Vec<u8>,
    pub whole: bool,
}

#[derive(Debug, Default)]
pub struct Answers {
    pub seen: Vec<Seen>,
    head: Vec<u8>,
    body: Option<BodyDecoder>,
    /// The body ends with the connection.
    until_close: bool,
    pub bytes: usize,
}

impl Answers {
    /// How many are whole.
    pub fn whole(&self) -> usize {
        self.seen.iter().filter(|seen| seen.whole).count()
    }

    pub fn feed(&mut self, bytes: &[u8], asked: &[Asked]) {
        const LIMITS: HeadLimits = HeadLimits {
            bytes_max: 4_096,
            fields_max: 32,
        };
        self.bytes += bytes.len();
        let mut at = 0;
        loop {
            if let Some(decoder) = self.body.as_mut() {
                let seen = self.seen.last_mut().expect("a body has its head");
                match decoder.next(&bytes[at..]).expect("our own framing") {
                    Step::Piece { data, used } => {
                        seen.payload.extend_from_slice(&bytes[at..][data]);
                        at += used;
                        continue;
                    }
                    Step::More { used } => {
                        assert_eq!(at + used, bytes.len());
                        return;
                    }
                    Step::End { used } => {
                        at += used;
                        seen.whole = true;
                        self.body = None;
                    }
                }
            }
            self.head.extend_from_slice(&bytes[at..]);
            if self.head.is_empty() {
                return;
            }
            if let Some(last) = self.seen.last() {
                assert!(last.keep_alive, "bytes behind the last answer");
            }
            let parsed = head::parse_response(&self.head, &mut 0, &LIMITS);
            let Some(head) = parsed.expect("our own heads are well formed") else {
                return;
            };
            let fields: Vec<u8> = self.head.drain(..head.head_bytes).collect();
            if head.status >= 200 {
                // Who refuses half a head cannot know that it would be HEAD.
                let early = matches!(head.status, 400 | 408 | 431) && !head.keep_alive;
                let is_head = asked.get(self.seen.len()).is_some_and(|a| a.is_head) && !early;
                let framing = if is_head {
                    ResponseBody::None
                } else {
                    head.body
                };
                self.until_close = framing == ResponseBody::UntilClose;
                self.body = Some(BodyDecoder::response(framing));
                self.seen.push(Seen {
                    status: head.status,
                    media: head.media,
                    keep_alive: head.keep_alive,
                    has_id: head::field(&fields, "x-request-id").is_some(),
                    payload: Vec::new(),
                    whole: false,
                });
            }
            let rest = std::mem::take(&mut self.head);
            return self.feed_rest(&rest, asked);
        }
    }

    /// What came behind a head in the same read.
    fn feed_rest(&mut self, rest: &[u8], asked: &[Asked]) {
        self.bytes -= rest.len();
        self.feed(rest, asked);
    }

    /// The router closed in good order.
    pub fn fin(&mut self) {
        if self.until_close
            && let Some(seen) = self.seen.last_mut()
        {
            seen.whole = true;
        }
    }

    pub fn half_a_head(&self) -> bool {
        !self.head.is_empty()
    }
}

/// How one client's connection went.
pub struct Story<'a> {
    pub asked: &'a [Asked],
    pub answers: &'a Answers,
    pub ends: &'a [End],
    pub ends_at_once: bool,
    /// It stayed, and took all that was written to it.
    pub polite: bool,
}

/// Returns how many were served, whole.
pub fn judge(story: &Story) -> u64 {
    let mut ends = story.ends.iter();
    let mut served = 0;
    for (i, seen) in story.answers.seen.iter().enumerate() {
        assert!(seen.whole || i + 1 == story.answers.seen.len());
        assert!(
            seen.whole || !story.polite,
            "half an answer to a client that reads"
        );
        let Some(asked) = story.asked.get(i) else {
            // Said to what never became a request.
            assert!(matches!(seen.status, 400 | 408 | 431), "{seen:?}");
            continue;
        };
        match &asked.what {
            // A head that is too large or too slow for this fleet comes before any route.
            _ if matches!(seen.status, 408 | 431) && !seen.has_id => assert!(!seen.keep_alive),
            What::NotHttp => assert_eq!((seen.status, seen.keep_alive), (400, false)),
            What::Other(statuses) => {
                assert!(statuses.contains(&seen.status), "{statuses:?} {seen:?}");
            }
            What::Wrong(_) | What::Good(_) => {
                let end = *ends.next().expect("an answer to a completion is an end");
                if !story.ends_at_once {
                    // Who reads too slowly is cut off, also behind an end that was well.
                    let cut = matches!(end, End::Cancelled(_)) || !story.polite;
                    completion(&asked.what, seen, end, cut);
                }
                served += u64::from(end == End::Served);
            }
        }
    }
    assert!(!story.polite || !story.answers.half_a_head(), "half a head");
    for end in ends {
        assert!(!story.polite, "{end:?} without an answer");
    }
    served
}

fn completion(what: &What, seen: &Seen, end: End, cut: bool) {
    assert!(seen.has_id, "{seen:?}");
    if let What::Wrong(status) = what {
        assert!(end != End::Served, "a wrong request was served: {seen:?}");
        // Behind comments to a client that waits, the head is out already.
        let is_early = seen.media == Media::EventStream;
        if matches!(end, End::Invalid(reason) if reason != InvalidReason::BodyIdle) && !is_early {
            let too_large = end == End::Invalid(InvalidReason::TooLarge);
            assert_eq!(seen.status, if too_large { 413 } else { *status });
        }
    }
    let statuses: &[u16] = match end {
        End::Served | End::Cancelled(_) => &[200],
        End::Failed(_) => &[502, 503, 504],
        End::Rejected(_) => &[429, 503],
        End::Refused(_) => &[429],
        End::Expired(_) => &[504],
        End::Invalid(_) => &[400, 404, 408, 413, 417, 422, 431],
    };
    let is_stream = seen.media == Media::EventStream;
    if !is_stream {
        assert!(statuses.contains(&seen.status), "{end:?} {seen:?}");
    }
    if let (What::Good(want), true) = (what, is_stream) {
        assert!(want.stream, "a stream instead of a whole answer");
        return stream(want, seen, end, cut);
    }
    if !seen.whole {
        return;
    }
    match what {
        _ if is_stream => {
            let mut events = events(seen, cut).into_iter();
            assert!(events.all(|event| event["error"].is_object()));
        }
        What::Good(want) if seen.status == 200 => assembled(want, seen, end),
        _ => {
            let value: Value = serde_json::from_slice(&seen.payload).expect("JSON");
            assert!(value["error"]["message"].is_string(), "{value}");
            assert!(value["error"]["type"].is_string(), "{value}");
            assert_ne!(end, End::Served);
        }
    }
}

fn assembled(want: &Want, seen: &Seen, end: End) {
    assert_eq!(end, End::Served);
    assert!(!want.stream, "a whole answer instead of a stream");
    let value: Value = serde_json::from_slice(&seen.payload).expect("JSON");
    let choice = &value["choices"][0];
    let text = match want.chat {
        true => &choice["message"]["content"],
        false => &choice["text"],
    };
    let text = text.as_str().unwrap_or("");
    assert_eq!(text.as_bytes(), want.text, "the assembled text");
    assert_eq!(choice["finish_reason"], "length");
    let tokens = &value["usage"]["completion_tokens"];
    assert!(want.counts_events || *tokens == want.ids.len(), "{tokens}");
    if let Some(tokens) = want.prompt_tokens {
        assert_eq!(value["usage"]["prompt_tokens"], tokens);
    }
    let ids = choice.get("token_ids").filter(|ids| !ids.is_null());
    assert_eq!(ids.is_some(), want.shows_ids, "{choice}");
    if let Some(ids) = ids {
        let ids: Vec<u32> = serde_json::from_value(ids.clone()).expect("ids");
        assert_eq!(ids, want.ids);
    }
}

/// The events of a stream, each of them JSON; what was cut off in the middle of one is left out.
fn events(seen: &Seen, cut: bool) -> Vec<Value> {
    let mut out = Vec::new();
    for line in seen.payload.split_inclusive(|byte| *byte == b'\n') {
        let Some(line) = line.strip_suffix(b"\n") else {
            // Whoever was cut off on HTTP/1.0 cannot tell.
            assert!(!seen.whole || cut, "half a line at the end");
            break;
        };
        if line.is_empty() || line == b": keep-alive" {
            continue;
        }
        let data = line.strip_prefix(b"data: ").expect("a line of data");
        if data == b"[DONE]" {
            out.push(Value::from("[DONE]"));
        } else {
            out.push(serde_json::from_slice(data).expect("an event is JSON"));
        }
    }
    out
}

/// What a stream's events say.
#[derive(Default)]
struct Said {
    text: Vec<u8>,
    ids: Vec<u32>,
    finish: Option<String>,
}

/// A stream that is served holds all of the text and ends with `[DONE]`; any other one holds a beginning of it and ends with an error.
fn stream(want: &Want, seen: &Seen, end: End, cut: bool) {
    assert_eq!(seen.status, 200);
    let all = events(seen, cut);
    let is_last = |event: &Value| event == "[DONE]" || event["error"].is_object();
    let (last, events) = match all.split_last() {
        Some((last, events)) if is_last(last) => (Some(last), events),
        _ => (None, &all[..]),
    };
    let mut said = Said::default();
    for event in events {
        assert!(event.is_object(), "{event} before the end");
        said.event(want, event);
    }
    assert!(want.text.starts_with(&said.text), "text out of place");
    assert!(want.ids.starts_with(&said.ids), "ids out of place");
    let Some(last) = last else {
        assert!(!seen.whole || cut, "{end:?}: a stream without an end");
        return;
    };
    if end == End::Served {
        assert_eq!(last, "[DONE]");
        assert!(said.text == want.text, "text is missing at the end");
        assert_eq!(said.finish.as_deref(), Some("length"));
        assert!(!want.shows_ids || said.ids == want.ids);
        return;
    }
    let error = &last["error"];
    assert!(error["message"].is_string(), "{end:?}: {last}");
    let expired = end == End::Expired(ExpireReason::Deadline);
    assert!(!expired || error["code"] == "expired" || error["type"] == "request_expired");
    let cancelled = matches!(end, End::Cancelled(_));
    assert!(!cancelled, "nobody was there: {last}");
}

impl Said {
    fn event(&mut self, want: &Want, event: &Value) {
        assert!(event["error"].is_null(), "an engine's error was passed on");
        assert!(want.shows_ids || event.get("prompt_token_ids").is_none());
        let Some(choice) = event["choices"].get(0) else {
            return;
        };
        let text = match want.chat {
            true => &choice["delta"]["content"],
            false => &choice["text"],
        };
        self.text
            .extend_from_slice(text.as_str().unwrap_or("").as_bytes());
        assert!(
            want.shows_ids || choice.get("token_ids").is_none(),
            "{choice}"
        );
        for id in choice["token_ids"].as_array().into_iter().flatten() {
            self.ids.push(id.as_u64().expect("an id") as u32);
        }
        if let Some(word) = choice["finish_reason"].as_str() {
            self.finish = Some(word.to_string());
        }
    }
}
