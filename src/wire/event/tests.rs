//! Streams by hand, streams of a real engine, and the properties of both in every split.

use proptest::prelude::*;

use super::fuzzing::oracle::naive;
use super::fuzzing::tape::{Tape, stream_bytes};
use super::fuzzing::{Told, told};
use super::*;

const NO_BOUND: usize = usize::MAX;

/// Tells `bytes` whole, byte by byte and cut at every `step`-th offset; all must agree.
fn every_split(bytes: &[u8], ids: Ids, step: usize) -> Vec<Told> {
    let (whole, end) = told([bytes], ids, NO_BOUND);
    assert_eq!(end, Ok(()));
    assert_eq!(
        told(bytes.chunks(1), ids, NO_BOUND).0,
        whole,
        "byte by byte"
    );
    for cut in (0..=bytes.len()).step_by(step) {
        let (a, b) = bytes.split_at(cut);
        assert_eq!(told([a, b], ids, NO_BOUND).0, whole, "cut at {cut}");
    }
    whole
}

fn object(value: &str) -> Told {
    Told::Object(value.as_bytes().to_vec(), value.contains('\n'))
}

fn malformed(value: &str) -> Told {
    Told::Malformed(value.as_bytes().to_vec(), value.contains('\n'))
}

fn line(text: &str) -> Told {
    Told::Line(text.as_bytes().to_vec())
}

// proves R-SSE-1, R-SSE-2
#[test]
fn streams_by_hand_in_every_split() {
    let rows: &[(&str, &str, Vec<Told>)] = &[
        (
            "plain",
            "data: {\"a\":1}\n\ndata: [DONE]\n\n",
            vec![object("{\"a\":1}"), Told::Done],
        ),
        (
            "crlf",
            "data: {\"a\":1}\r\n\r\ndata: [DONE]\r\n\r\n",
            vec![object("{\"a\":1}"), Told::Done],
        ),
        (
            "cr",
            "data: {\"a\":1}\r\rdata: [DONE]\r\r",
            vec![object("{\"a\":1}"), Told::Done],
        ),
        (
            "no blank lines",
            "data: {}\ndata: {}\ndata: [DONE]\n",
            vec![object("{}"), object("{}"), Told::Done],
        ),
        (
            "mark, no space",
            "\u{feff}data:{\"a\":1}\n\ndata:[DONE]\n\n",
            vec![object("{\"a\":1}"), Told::Done],
        ),
        (
            "two spaces",
            "data:  {\"a\":1} \n\n",
            vec![object(" {\"a\":1} ")],
        ),
        ("done padded", "data:   [DONE]  \n\n", vec![Told::Done]),
        (
            "done at the end",
            "data: {}\n\ndata: [DONE]",
            vec![object("{}"), Told::Done],
        ),
        (
            "object at the end",
            "data: {\"a\":1}",
            vec![object("{\"a\":1}")],
        ),
        ("cut object at the end", "data: {\"a\":1", vec![]),
        ("other data at the end", "data: x", vec![]),
        ("unfinished block at the end", "data: x\ndata: y\n", vec![]),
        ("comment at the end", "data: {}\n\n: x", vec![object("{}")]),
        (
            "after done",
            "data: [DONE]\n\ndata: {}\n\n: x\n",
            vec![Told::Done],
        ),
        (
            "not quite done",
            "data: [DONE]x\n\ndata: [done]\n\n",
            vec![malformed("[DONE]x"), malformed("[done]")],
        ),
        ("array", "data: [1,2]\n\n", vec![malformed("[1,2]")]),
        (
            "text, number, null",
            "data: x\n\ndata: 5\n\ndata: null\n\n",
            vec![malformed("x"), malformed("5"), malformed("null")],
        ),
        (
            "bad json between",
            "data: {}\n\ndata: {oops\n\ndata: {}\n\n",
            vec![object("{}"), malformed("{oops"), object("{}")],
        ),
        (
            "two objects on a line",
            "data: {}{}\n\n",
            vec![malformed("{}{}")],
        ),
        (
            "bare text",
            "data: {}\n\ngarbage line\n\ndata: {}\n\n",
            vec![object("{}"), object("{}")],
        ),
        (
            "empty data",
            "data:\n\ndata: \n\ndata\n\ndata:  \n\ndata: {}\n\n",
            vec![object("{}")],
        ),
        (
            "joined",
            "data: {\"a\":1,\ndata: \"b\":2\ndata:}\n\n",
            vec![object("{\"a\":1,\n\"b\":2\n}")],
        ),
        (
            "joined with gaps",
            "data: {\ndata:\ndata: }\n\n",
            vec![object("{\n\n}")],
        ),
        (
            "joined inside a string",
            "data: {\"a\":\"\ndata: \"}\n\n",
            vec![malformed("{\"a\":\"\n\"}")],
        ),
        (
            "joined malformed",
            "data: x\ndata: y\n\ndata: {}\n\n",
            vec![malformed("x\ny"), object("{}")],
        ),
        (
            "an event ends a block",
            "data: x\ndata: {}\ndata: y\n\n",
            vec![malformed("x"), object("{}"), malformed("y")],
        ),
        (
            "an event ends a joined one",
            "data: {\ndata: }\ndata: {\"a\":1}\n",
            vec![object("{\n}"), object("{\"a\":1}")],
        ),
        (
            "done ends a block",
            "data: x\ndata: [DONE]\n",
            vec![malformed("x"), Told::Done],
        ),
        (
            "comments in a block",
            "data: {\n: c\ndata: }\n\n",
            vec![line(": c"), object("{\n}")],
        ),
        (
            "lines of an event",
            ": keep\n\nid: 9\nevent: message\nretry: 10\ndata: {}\n\n:\n\n",
            vec![
                line(": keep"),
                Told::Blank,
                line("id: 9"),
                line("event: message"),
                line("retry: 10"),
                object("{}"),
                line(":"),
                Told::Blank,
            ],
        ),
        (
            "an event name for nothing",
            "event: x\ndata:\n\ndata: {}\n\n",
            vec![line("event: x"), Told::Blank, object("{}")],
        ),
        (
            "a name after its event",
            "data: {}\nevent: x\n\n",
            vec![object("{}"), line("event: x"), Told::Blank],
        ),
        (
            "a name of a malformed one",
            "event: x\ndata: y\n\n",
            vec![line("event: x"), malformed("y")],
        ),
        (
            "many blank lines",
            "\n\n\ndata: {}\n\n\n\n",
            vec![object("{}")],
        ),
        ("nothing", "", vec![]),
    ];
    for (name, input, want) in rows {
        for ids in [Ids::Expected, Ids::Absent] {
            assert_eq!(every_split(input.as_bytes(), ids, 1), *want, "{name}");
            assert_eq!(
                naive(input.as_bytes(), ids),
                *want,
                "{name}, told by the naive reader"
            );
        }
    }
}

// proves R-SSE-2
#[test]
fn bad_utf8_is_not_malformed() {
    let input =
        b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\xfe\"},\"token_ids\":[1]}]}\n\n";
    let [Told::Object(value, false)] = &every_split(input, Ids::Expected, 1)[..] else {
        panic!("one object");
    };
    assert_eq!(value[..], input[6..input.len() - 2]);
    let (a, b) = (
        &b"data: {\"a\":\"\xe4\xbd"[..],
        &b"\xa0\xe5\xa5\xbd\"}\n\n"[..],
    );
    assert_eq!(
        told([a, b], Ids::Expected, NO_BOUND).0,
        [object("{\"a\":\"你好\"}")]
    );
}

// proves R-SSE-2
#[test]
fn nesting_over_the_limit_is_malformed() {
    let nested = |n: usize| {
        let text = format!("data: {{\"z\":{}{}}}\n\n", "[".repeat(n), "]".repeat(n));
        told([text.as_bytes()], Ids::Expected, NO_BOUND).0
    };
    assert!(matches!(nested(127)[..], [Told::Object(..)]));
    assert!(matches!(nested(128)[..], [Told::Malformed(..)]));
    assert!(matches!(nested(100_000)[..], [Told::Malformed(..)]));
}

// proves R-SSE-3
#[test]
fn an_event_over_the_bound_is_refused_in_every_split() {
    // name, input, bound, items before the refusal (or all of them), refused
    let rows: &[(&str, &[u8], usize, usize, bool)] = &[
        ("fits", b"data: {\"a\":1}\n\n", 13, 1, false),
        ("one over", b"data: {\"a\":1}\n\n", 12, 0, true),
        ("unfinished", b"data: {\"a\":1234567890", 12, 0, true),
        (
            "good ones before it",
            b"data: {}\n\n: c\ndata: {\"a\":1234}\n",
            14,
            2,
            true,
        ),
        ("comment", b": 34567890123\n", 12, 0, true),
        ("joined", b"data: 12345\ndata: 12345\n\n", 16, 0, true),
        ("joined fits", b"data: 12345\ndata: 12345\n\n", 17, 1, false),
        // A line of a few bytes may be written as one of more.
        ("empty lines", b"data\ndata\ndata\ndata\n", 20, 0, true),
        (
            "joined and a comment",
            b"data: 12345\n: 567890123\n",
            12,
            0,
            true,
        ),
    ];
    for (name, input, bound, items, refused) in rows {
        let whole = told([*input], Ids::Expected, *bound);
        assert_eq!(
            (whole.0.len(), whole.1.is_err()),
            (*items, *refused),
            "{name}"
        );
        for cut in 0..=input.len() {
            let (a, b) = input.split_at(cut);
            assert_eq!(
                told([a, b], Ids::Expected, *bound),
                whole,
                "{name}, cut at {cut}"
            );
        }
        assert_eq!(
            told(input.chunks(1), Ids::Expected, *bound),
            whole,
            "{name}"
        );
    }
}

// proves R-SSE-3
#[test]
fn nothing_comes_after_a_refusal() {
    let mut stream = EventStream::new(Ids::Expected, 8);
    let mut count = 0;
    let mut sink = |_: Item<'_>| {
        count += 1;
        ControlFlow::Continue(())
    };
    assert_eq!(stream.feed(b"data: 123456789", &mut sink), Err(TooLarge));
    let gone = Ok(ControlFlow::Break(()));
    assert_eq!(stream.feed(b"\ndata: {}\n", &mut sink), gone);
    assert_eq!(stream.eof(&mut sink), gone);
    assert_eq!(count, 0);
}

#[test]
fn the_sink_may_stop_and_the_reader_may_serve_again() {
    let mut stream = EventStream::new(Ids::Expected, 1_000);
    let mut count = 0;
    let stop = |_: Item<'_>| {
        count += 1;
        ControlFlow::Break(())
    };
    let gone = Ok(ControlFlow::Break(()));
    assert_eq!(stream.feed(b"data: {}\n\ndata: {}\n\ndata: x", stop), gone);
    assert_eq!(count, 1);
    let never = |_: Item<'_>| panic!("stopped");
    assert_eq!(stream.feed(b"data: {}\n\n", never), gone);
    stream.reset(Ids::Absent, 1_000);
    let mut values = Vec::new();
    let keep = |item: Item<'_>| {
        if let Item::Object { value, .. } = item {
            values.push(value.to_vec());
        }
        ControlFlow::Continue(())
    };
    let on = Ok(ControlFlow::Continue(()));
    assert_eq!(stream.feed(b"\xef\xbb\xbfdata: {\"a\":1}\n", keep), on);
    assert_eq!(values, [b"{\"a\":1}"]);
}

// proves R-SSE-3
#[test]
fn memory_is_flat_under_one_byte_writes_and_given_back_after_a_giant() {
    let mut stream = EventStream::new(Ids::Expected, 4 << 20);
    let ignore = |_: Item<'_>| ControlFlow::Continue(());
    for _ in 0..100_000 {
        assert_eq!(stream.feed(b":", ignore), Ok(ControlFlow::Continue(())));
        assert_eq!(stream.feed(b"\n", ignore), Ok(ControlFlow::Continue(())));
    }
    assert!(stream.capacity() <= 64);
    // Complete events inside one read are not copied at all.
    let mut fresh = EventStream::new(Ids::Expected, 4 << 20);
    let _ = fresh.feed(b"data: {}\n\n: x\ndata: {}\r\n\r\ndata: [DONE]\n\n", ignore);
    assert_eq!(fresh.capacity(), 0);
    let giant = format!("data: {{\"a\":\"{}\"}}\n\n", "x".repeat(3 << 19));
    let mut seen = 0;
    for piece in giant.as_bytes().chunks(1_000) {
        let count = |item: Item<'_>| {
            seen += usize::from(matches!(item, Item::Object { .. }));
            ControlFlow::Continue(())
        };
        assert_eq!(stream.feed(piece, count), Ok(ControlFlow::Continue(())));
        assert!(stream.capacity() <= 4 << 20);
    }
    assert_eq!(seen, 1);
    assert!(stream.capacity() <= 64 << 10);
}

fn facts(value: &str, ids: Ids) -> Facts {
    let mut facts = Facts::default();
    assert!(facts.read(value.as_bytes(), ids), "{value}");
    facts
}

/// `{"choices":[{…}]}` around a choice's members.
fn choice(members: &str) -> String {
    format!("{{\"id\":\"c\",\"choices\":[{{\"index\":0,{members}}}],\"usage\":null}}")
}

// proves R-TOK-1, R-TOK-2
#[test]
fn ids_are_counted_and_judged() {
    // members of the choice, tokens, output, ids_ok
    let rows: &[(&str, u64, bool, bool)] = &[
        (r#""delta":{"content":"a"},"token_ids":[1]"#, 1, true, true),
        (
            r#""delta":{"content":"abc"},"token_ids":[1,2, 3]"#,
            3,
            true,
            true,
        ),
        (
            r#""delta":{"role":"assistant","content":""}"#,
            0,
            false,
            true,
        ),
        (r#""delta":{"content":""},"token_ids":[1]"#, 1, false, true),
        (r#""delta":{},"token_ids":[1]"#, 1, false, true),
        (r#""delta":{},"token_ids":null"#, 0, false, true),
        (r#""delta":{},"token_ids":[]"#, 0, false, true),
        (r#""delta":null,"token_ids":[2]"#, 1, false, true),
        (r#""delta":{"content":"a"}"#, 0, true, false),
        (
            r#""delta":{"content":"a"},"token_ids":null"#,
            0,
            true,
            false,
        ),
        (r#""delta":{"content":"a"},"token_ids":[ ]"#, 0, true, false),
        (r#""delta":{"reasoning":"a"}"#, 0, true, false),
        (r#""delta":{"reasoning_content":"a"}"#, 0, true, false),
        (r#""delta":{"refusal":"a"}"#, 0, true, false),
        (r#""delta":{"tool_calls":[{"index":0}]}"#, 0, true, false),
        (r#""delta":{"function_call":{"name":"f"}}"#, 0, true, false),
        (
            r#""delta":{"tool_calls":[],"function_call":{},"refusal":null}"#,
            0,
            false,
            true,
        ),
        (
            r#""delta":{"annotations":[{"t":1}],"audio":{"id":"a"}}"#,
            0,
            false,
            true,
        ),
        (r#""delta":{"content":5}"#, 0, true, false),
        (
            r#""delta":{"content":0,"reasoning":-0.0,"refusal":0e9}"#,
            0,
            false,
            true,
        ),
        (r#""delta":{"content":true}"#, 0, true, false),
        (r#""delta":{"content":false}"#, 0, false, true),
        (r#""delta":{"content":" "}"#, 0, true, false),
        (r#""delta":{"content":"a","content":null}"#, 0, false, true),
        (r#""delta":{"content":"a"},"delta":{}"#, 0, false, true),
        (r#""delta":"x","delta":null"#, 0, false, true),
        (r#""text":"a","token_ids":[1]"#, 1, true, true),
        (r#""text":"a""#, 0, true, false),
        (r#""text":"","token_ids":[1]"#, 1, false, true),
        (r#""text":5,"token_ids":[1]"#, 1, true, true),
        (
            r#""text":null,"delta":{"content":"b"},"token_ids":[2]"#,
            1,
            true,
            true,
        ),
        (
            r#""text":"a","token_ids":[123456789012345678901234567890,0]"#,
            2,
            true,
            true,
        ),
        (r#""delta":{},"token_ids":[-5]"#, 0, false, false),
        (r#""delta":{},"token_ids":[-0]"#, 0, false, false),
        (r#""delta":{},"token_ids":[1.0]"#, 0, false, false),
        (r#""delta":{},"token_ids":[1e2]"#, 0, false, false),
        (r#""delta":{},"token_ids":[true]"#, 0, false, false),
        (r#""delta":{},"token_ids":[1,null]"#, 0, false, false),
        (r#""delta":{},"token_ids":["2"]"#, 0, false, false),
        (r#""delta":{},"token_ids":[[1]]"#, 0, false, false),
        (r#""delta":{},"token_ids":{"0":2}"#, 0, false, false),
        (r#""delta":{},"token_ids":"""#, 0, false, false),
        (r#""delta":{},"token_ids":false"#, 0, false, false),
        (r#""delta":{},"token_ids":0"#, 0, false, false),
        (
            r#""delta":{},"token_ids":[true],"token_ids":[1]"#,
            1,
            false,
            true,
        ),
        (r#""delta":{},"token\u005fids":[1]"#, 1, false, true),
        (r#""d\u0065lta":{"\u0063ontent":"a"}"#, 0, true, false),
        (r#""delta":{"token_ids":[1],"content":"a"}"#, 0, true, false),
        (r#""delta":"x","token_ids":[2]"#, 1, false, false),
        (r#""delta":[]"#, 0, false, false),
        (
            r#""logprobs":{"text":"a","delta":1,"token_ids":[true]}"#,
            0,
            false,
            true,
        ),
    ];
    for (members, tokens, output, ids_ok) in rows {
        let value = choice(members);
        let expected = facts(&value, Ids::Expected);
        assert_eq!(expected.tokens, *tokens, "{members}");
        assert_eq!(expected.bears_token, *tokens > 0, "{members}");
        assert_eq!(
            (expected.output, expected.ids_ok),
            (*output, *ids_ok),
            "{members}"
        );
        let absent = facts(&value, Ids::Absent);
        assert_eq!(
            (absent.tokens, absent.ids_ok),
            (u64::from(*output), true),
            "{members}"
        );
        assert_eq!(
            (absent.bears_token, absent.output),
            (*output, *output),
            "{members}"
        );
    }
}

// proves R-TOK-2
#[test]
fn sglang_chat_counts_no_token_for_reasoning_alone() {
    let rows = [
        (r#""delta":{"reasoning":"r"}"#, 0, true),
        (r#""delta":{"reasoning_content":"r"}"#, 1, true),
        (r#""delta":{"reasoning":"r","content":"a"}"#, 1, true),
        (
            r#""delta":{"content":""},"finish_reason":"stop","matched_stop":128009"#,
            0,
            false,
        ),
        (r#""text":"a""#, 1, true),
    ];
    for (members, tokens, output) in rows {
        let facts = facts(&choice(members), Ids::AbsentSglang);
        assert_eq!((facts.tokens, facts.output), (tokens, output), "{members}");
        assert_eq!(
            (facts.bears_token, facts.ids_ok),
            (output, true),
            "{members}"
        );
    }
}

// proves R-TOK-1, R-TOK-2
#[test]
fn choices_are_judged_together() {
    let rows: &[(&str, u64, bool, bool)] = &[
        (
            r#"{"choices":[{"text":"a","token_ids":[1]},{"text":"b","token_ids":[2,3]}]}"#,
            3,
            true,
            true,
        ),
        (
            r#"{"choices":[{"text":"a","token_ids":[1]},{"text":"b"}]}"#,
            1,
            true,
            false,
        ),
        (
            r#"{"choices":[{"text":"a"}],"token_ids":[1]}"#,
            0,
            true,
            false,
        ),
        (
            r#"{"choices":[],"usage":{"completion_tokens":2}}"#,
            0,
            false,
            true,
        ),
        (r#"{"usage":{"completion_tokens":2}}"#, 0, false, true),
        (r#"{"choices":null}"#, 0, false, false),
        (r#"{"choices":{"a":1}}"#, 0, false, false),
        (r#"{"choices":""}"#, 0, false, false),
        (r#"{"choices":["x"]}"#, 0, false, false),
        (r#"{"choices":[null]}"#, 0, false, false),
        (r#"{"choices":[{"text":"a"}],"choices":[]}"#, 0, false, true),
        (
            r#"{"choices":"x","choi\u0063es":[{"text":"a","token_ids":[1]}]}"#,
            1,
            true,
            true,
        ),
        (r#"{"x":{"choices":null},"text":"a"}"#, 0, false, true),
        ("{}", 0, false, true),
    ];
    for (value, tokens, output, ids_ok) in rows {
        let expected = facts(value, Ids::Expected);
        let got = (expected.tokens, expected.output, expected.ids_ok);
        assert_eq!(got, (*tokens, *output, *ids_ok), "{value}");
        let absent = facts(value, Ids::Absent);
        assert_eq!(
            (absent.tokens, absent.ids_ok),
            (u64::from(*output), true),
            "{value}"
        );
    }
}

// proves R-FLT-3
#[test]
fn errors_in_disguise() {
    type Want = Option<(u16, Option<&'static str>)>;
    let rows: &[(&str, Want)] = &[
        (
            r#"{"error":{"message":"x","type":"T","code":429}}"#,
            Some((429, Some("x"))),
        ),
        (
            r#"{"error": {"message": "a \"b\" \u00e9", "code": 400}}"#,
            Some((400, Some(r#"a \"b\" \u00e9"#))),
        ),
        (
            r#"{"object":"error","message":"x","code":400}"#,
            Some((400, Some("x"))),
        ),
        (
            r#"{"\u006fbject":"\u0065rror","message":"x"}"#,
            Some((500, Some("x"))),
        ),
        (
            r#"{"error":{"message":"x"},"code":503}"#,
            Some((503, Some("x"))),
        ),
        (
            r#"{"error":{"code":"rate_limited"},"code":429,"message":"y"}"#,
            Some((429, Some("y"))),
        ),
        (r#"{"error":{"code":399},"code":429}"#, Some((500, None))),
        (r#"{"error":{"code":600}}"#, Some((500, None))),
        (r#"{"error":{"code":599}}"#, Some((599, None))),
        (r#"{"error":{"code":429.0}}"#, Some((500, None))),
        (r#"{"error":{"code":-429}}"#, Some((500, None))),
        (
            r#"{"error":{"code":99999999999999999999}}"#,
            Some((500, None)),
        ),
        (r#"{"error":{"code":"429"}}"#, Some((500, None))),
        (r#"{"error":{"code":true}}"#, Some((500, None))),
        (r#"{"error":"boom"}"#, Some((500, Some("boom")))),
        (r#"{"error":"","message":"y"}"#, Some((500, Some("")))),
        (r#"{"error":false}"#, Some((500, None))),
        (r#"{"error":[]}"#, Some((500, None))),
        (r#"{"error":{}}"#, Some((500, None))),
        (r#"{"error":{"message":5}}"#, Some((500, None))),
        (r#"{"choices":[],"error":{"code":500},"error":null}"#, None),
        (r#"{"error":null,"code":500,"message":"x"}"#, None),
        (r#"{"object":"errors","code":500}"#, None),
        (r#"{"object":"error","object":"text_completion"}"#, None),
        (
            r#"{"choices":[{"error":{"code":500},"object":"error"}]}"#,
            None,
        ),
    ];
    for (value, want) in rows {
        for lead in ["", "  "] {
            let value = format!("{lead}{value}");
            let error = facts(&value, Ids::Expected).error;
            let got = error.map(|e| (e.status, e.message.map(|span| value[span].to_owned())));
            let want = want.map(|(status, message)| (status, message.map(str::to_owned)));
            assert_eq!(got, want, "{value}");
        }
    }
}

// proves R-FLT-5
#[test]
fn an_abort_is_seen() {
    let rows = [
        (r#""finish_reason":"abort""#, true),
        (r#""finish_reason":"\u0061bort""#, true),
        (r#""finish_reason":"abort","finish_reason":"stop""#, false),
        (r#""finish_reason":"aborted""#, false),
        (r#""finish_reason":null"#, false),
        (r#""delta":{"finish_reason":"abort"}"#, false),
    ];
    for (members, abort) in rows {
        for ids in [Ids::Expected, Ids::Absent] {
            assert_eq!(facts(&choice(members), ids).abort, abort, "{members}");
        }
    }
    let second = r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"abort"}]}"#;
    assert!(facts(second, Ids::Expected).abort);
}

// proves R-SSE-2
#[test]
fn cuts_take_one_comma_and_nothing_else() {
    let rows = [
        (r#"{"a":1,"token_ids":[1],"b":2}"#, r#"{"a":1,"b":2}"#),
        (
            r#"{"a":1 , "token_ids" : [1] , "b":2}"#,
            r#"{"a":1  , "b":2}"#,
        ),
        (r#"{"token_ids":[1], "b":2}"#, r#"{"b":2}"#),
        (r#"{ "token_ids":[1] , "b":2}"#, r#"{ "b":2}"#),
        (r#"{"a":1, "token_ids":[1] }"#, r#"{"a":1 }"#),
        (r#"{ "token_ids":[1] }"#, r#"{  }"#),
        (r#"{"token_ids":[1],"prompt_token_ids":[2]}"#, "{}"),
        (
            r#"{"token_ids":[1],"prompt_token_ids":[2],"b":1}"#,
            r#"{"b":1}"#,
        ),
        (
            r#"{"token_ids":[1],"b":1,"prompt_token_ids":[2]}"#,
            r#"{"b":1}"#,
        ),
        (
            r#"{"a":1,"token_ids":[1],"prompt_token_ids":[2],"token_ids":null}"#,
            r#"{"a":1}"#,
        ),
        (
            r#"{"token_ids":[1],"choices":[{"token_ids":[1],"text":"a"}]}"#,
            r#"{"choices":[{"text":"a"}]}"#,
        ),
        (
            r#"{"choices":[{"text":"a","token_ids":[1]},{"prompt_token_ids":null}],"prompt_token_ids":[1,2]}"#,
            r#"{"choices":[{"text":"a"},{}]}"#,
        ),
        (r#"{"token\u005fids":[1],"x":1.0}"#, r#"{"x":1.0}"#),
        (
            r#"{"choices":[{"token_ids":[1]}],"choices":[{"token_ids":[2],"text":""}]}"#,
            r#"{"choices":[{}],"choices":[{"text":""}]}"#,
        ),
        (
            r#"{"usage":{"token_ids":[1]},"choices":[{"delta":{"token_ids":[1]}}],"x":"token_ids"}"#,
            r#"{"usage":{"token_ids":[1]},"choices":[{"delta":{"token_ids":[1]}}],"x":"token_ids"}"#,
        ),
        (
            r#"  {"seed":18446744073709551616,"x":1E400,"y":1.0,"z":-0.0,"token_ids":[]} "#,
            r#"  {"seed":18446744073709551616,"x":1E400,"y":1.0,"z":-0.0} "#,
        ),
    ];
    for (value, want) in rows {
        for ids in [Ids::Expected, Ids::Absent] {
            let facts = facts(value, ids);
            let mut out = Vec::new();
            write_event(&mut out, value.as_bytes(), false, facts.cuts());
            let want = format!("data: {want}\n\n");
            assert_eq!(String::from_utf8_lossy(&out), want, "{value}");
            out.clear();
            write_event(&mut out, value.as_bytes(), false, &[]);
            assert_eq!(out, format!("data: {value}\n\n").as_bytes());
        }
    }
}

// proves R-SSE-2
#[test]
fn joined_events_are_written_on_one_line_and_malformed_ones_as_they_came() {
    let mut out = Vec::new();
    let value = "{\"choices\":[{\"text\":\"a\",\n\"token_ids\":\n[1]}],\n\n\"b\":1}";
    write_event(
        &mut out,
        value.as_bytes(),
        true,
        facts(value, Ids::Expected).cuts(),
    );
    assert_eq!(out, b"data: {\"choices\":[{\"text\":\"a\"}],  \"b\":1}\n\n");
    out.clear();
    write_malformed(&mut out, b"{oops");
    write_malformed(&mut out, b"a\n\n: b");
    assert_eq!(out, b"data: {oops\n\ndata: a\ndata: \ndata: : b\n\n");
}

/// Name, ids, tokens, objects, comments, the statuses of errors, aborts, body.
type Vector = (
    &'static str,
    Ids,
    u64,
    usize,
    usize,
    &'static [u16],
    usize,
    &'static [u8],
);

macro_rules! vector {
    ($name:literal, $ids:ident, $tokens:literal, $objects:literal, $comments:literal, $errors:expr, $aborts:literal) => {
        (
            $name,
            Ids::$ids,
            $tokens,
            $objects,
            $comments,
            $errors,
            $aborts,
            include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/vectors/vllm/",
                $name,
                ".sse"
            )),
        )
    };
}

const VECTORS: [Vector; 16] = [
    vector!("chat_stream_logprobs", Absent, 7, 9, 0, &[], 0),
    vector!("chat_stream_return_token_ids", Expected, 32, 33, 0, &[], 0),
    vector!("chat_stream_separators", Absent, 53, 55, 0, &[], 0),
    vector!(
        "chat_stream_tools_auto_call_token_ids",
        Expected,
        65,
        67,
        0,
        &[],
        0
    ),
    vector!(
        "chat_stream_tools_interval_400_token_ids",
        Expected,
        119,
        3,
        0,
        &[],
        0
    ),
    vector!("chat_stream_unicode_token_ids", Expected, 58, 59, 0, &[], 0),
    vector!("completion_stream_logprobs", Absent, 6, 6, 0, &[], 0),
    vector!("completion_stream_n2", Absent, 12, 13, 0, &[], 0),
    vector!(
        "completion_stream_return_token_ids",
        Expected,
        6,
        7,
        0,
        &[],
        0
    ),
    vector!("completion_stream_stop_string", Absent, 4, 8, 0, &[], 0),
    vector!("completion_stream_usage", Absent, 16, 17, 0, &[], 0),
    vector!("pd_death_stream", Expected, 0, 1, 0, &[500], 0),
    vector!("shutdown_abort_stream", Absent, 2, 2, 0, &[], 1),
    vector!("timing_coalesced_stream", Absent, 89, 92, 0, &[], 0),
    vector!("x_keep_alive_comments", Absent, 3, 4, 2, &[], 0),
    vector!("x_stream_interval_3", Expected, 14, 7, 0, &[], 0),
];

// proves R-SSE-1, R-SSE-2, R-TOK-1, R-TOK-2, R-FLT-3, R-FLT-5
#[test]
fn real_streams_in_every_split() {
    for (name, ids, tokens, objects, comments, errors, aborts, body) in VECTORS {
        // A cut costs a pass: long streams are cut at a prime step that meets every kind of place.
        let items = every_split(body, ids, if body.len() < 2_048 { 1 } else { 37 });
        assert_eq!(items, naive(body, ids), "{name}");
        assert_eq!(items.last(), Some(&Told::Done), "{name}");
        let lines = items.iter().filter(|i| matches!(i, Told::Line(_))).count();
        assert_eq!(lines, comments, "{name}");
        let mut sum = (0, 0, Vec::new(), 0);
        let mut relayed = Vec::new();
        for item in &items {
            let Told::Object(value, joined) = item else {
                continue;
            };
            let mut facts = Facts::default();
            assert!(facts.read(value, ids) && facts.ids_ok && !joined, "{name}");
            sum.0 += facts.tokens;
            sum.1 += 1;
            sum.2.extend(facts.error.as_ref().map(|e| e.status));
            sum.3 += usize::from(facts.abort);
            write_event(&mut relayed, value, false, &[]);
        }
        assert_eq!(sum, (tokens, objects, errors.to_vec(), aborts), "{name}");
        // Relayed with its ids the stream is what the engine sent, but for comments.
        relayed.extend_from_slice(b"data: [DONE]\n\n");
        let sent = String::from_utf8_lossy(body).replace(": keep-alive\n\n", "");
        assert_eq!(String::from_utf8_lossy(&relayed), sent, "{name}");
    }
}

#[test]
fn fuzz_bodies_hold_on_a_few_seeds() {
    fuzzing::fuzz(b"");
    for (.., body) in VECTORS {
        for mode in 0..8u8 {
            let mut seed = vec![mode];
            seed.extend_from_slice(&body[..body.len().min(600)]);
            fuzzing::fuzz(&seed);
        }
    }
    for value in [
        &b"{\"a\":\"\\ud800\"}"[..],
        b"{\"\\ud83d\":1}",
        b"\xff",
        b"{\"token_ids\":[1",
    ] {
        fuzzing::fuzz(&[b"\0", value].concat());
        fuzzing::fuzz(&[b"\x05data:", value].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    // proves R-TOK-1, R-TOK-2, R-FLT-3, R-FLT-5, R-SSE-2
    #[test]
    fn facts_and_cuts_are_the_oracles(ids in 0..2u8, tape in proptest::collection::vec(any::<u8>(), 0..300)) {
        fuzzing::fuzz(&[&[2 | ids][..], &tape].concat());
    }

    // proves R-SSE-1, R-SSE-3
    #[test]
    fn splits_tell_what_the_whole_tells(ids in 0..2u8, tape in proptest::collection::vec(any::<u8>(), 0..400)) {
        fuzzing::fuzz(&[&[24 | ids][..], &tape].concat());
        fuzzing::fuzz(&[&[6 | ids][..], &tape].concat());
    }

    #[test]
    fn any_bytes_are_survived(mode in 0..8u8, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzzing::fuzz(&[&[mode][..], &bytes].concat());
    }

    /// Random cuts, many at once.
    #[test]
    fn random_cuts_change_nothing(
        tape in proptest::collection::vec(any::<u8>(), 0..200),
        cuts in proptest::collection::vec(0usize..2_000, 0..8),
    ) {
        let bytes = stream_bytes(&mut Tape(&tape));
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]);
        prop_assert_eq!(told(pieces, Ids::Expected, NO_BOUND).0, naive(&bytes, Ids::Expected));
    }
}
