//! What engines sent to other routers and came out wrong there: the bytes, and what a client must get of them, relayed and assembled.
//!
//! Each row is played whole, byte by byte and cut at every offset against the machine in memory, and on sockets on every driver.

use serde_json::{Value, json};

use super::notation::{DONE, USAGE, ch, cut, ev, fin, frame, said, tx};

pub struct Row {
    pub name: String,
    /// Completions instead of chat.
    pub text: bool,
    /// More members of the request, each with a comma before it.
    pub ask: &'static str,
    /// What the engine sends as its body.
    pub engine: Vec<u8>,
    pub relayed: Relayed,
    pub assembled: Assembled,
    /// Of an assembled answer; null when nothing is asked of it.
    pub usage: Value,
    /// Ids counted, of the stream and of the answer alike.
    pub tokens: u64,
}

pub enum Relayed {
    /// These bytes, comments left out.
    Whole(Vec<u8>),
    /// These bytes, then the event that says that it broke.
    Broken(Vec<u8>),
    /// Nothing of it: a status and the error's type.
    Refused(u16, &'static str),
}

pub enum Assembled {
    /// The one choice.
    Choice(Value),
    /// Texts that stand in the answer as they are.
    Holds(Vec<&'static str>),
    Refused(u16, &'static str),
}

const BROKEN: Assembled = Assembled::Refused(502, "decode");

/// A chat that is relayed but for its ids, and assembled to this.
fn row(name: &str, engine: impl Into<Vec<u8>>, tokens: u64, assembled: Assembled) -> Row {
    let engine = engine.into();
    Row {
        name: name.to_owned(),
        text: false,
        ask: "",
        relayed: Relayed::Whole(cut(&engine)),
        engine,
        assembled,
        usage: Value::Null,
        tokens,
    }
}

impl Row {
    fn relayed(mut self, as_what: impl Into<Vec<u8>>) -> Row {
        self.relayed = Relayed::Whole(cut(&as_what.into()));
        self
    }

    fn broken(mut self, behind: impl Into<Vec<u8>>) -> Row {
        self.relayed = Relayed::Broken(cut(&behind.into()));
        self
    }

    fn refused(mut self, status: u16, kind: &'static str) -> Row {
        self.relayed = Relayed::Refused(status, kind);
        self.assembled = Assembled::Refused(status, kind);
        self
    }

    fn usage(mut self, usage: Value) -> Row {
        self.usage = usage;
        self
    }

    fn asks(mut self, ask: &'static str) -> Row {
        self.ask = ask;
        self
    }

    fn completion(mut self) -> Row {
        self.text = true;
        self
    }
}

/// A message with this content and reason.
fn choice(content: Value, reason: &str) -> Assembled {
    message(json!({"content": content}), reason)
}

fn message(members: Value, reason: &str) -> Assembled {
    let mut message = json!({"role": "assistant", "content": null});
    for (name, value) in members.as_object().expect("members") {
        message[name] = value.clone();
    }
    Assembled::Choice(json!({"index": 0, "message": message, "finish_reason": reason}))
}

/// The whole table.
pub fn rows() -> Vec<Row> {
    let parts = [
        characters(),
        lines(),
        fields(),
        malformed(),
        ends(),
        usage(),
        tools(),
        deltas(),
        finishes(),
        logprobs(),
        ids(),
        unsupported(),
        errors(),
        numbers(),
    ];
    parts.into_iter().flatten().collect()
}

/// Characters that a read, or an event, cuts in two.
fn characters() -> Vec<Row> {
    let whole = |text: &str| format!("{}{DONE}", said(text));
    let [before, behind] = ch(r#"{"content":"|"}"#)
        .split('|')
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .try_into()
        .expect("two halves");
    let raw = |bytes: &[u8]| {
        let event = [b"data: ", before.as_bytes(), bytes, behind.as_bytes()].concat();
        [&event[..], b"\n\n"].concat()
    };
    let broken = |parts: &[&[u8]]| {
        let events = parts.iter().map(|bytes| raw(bytes));
        [&events.collect::<Vec<_>>().concat()[..], DONE.as_bytes()].concat()
    };
    let is = |text: &str| choice(json!(text), "stop");
    vec![
        row(
            "characters of three bytes",
            whole("\u{4f60}\u{597d}"),
            1,
            is("\u{4f60}\u{597d}"),
        ),
        row(
            "characters of four bytes and of two parts",
            whole("\u{1f600}e\u{301}\u{df}"),
            1,
            is("\u{1f600}e\u{301}\u{df}"),
        ),
        row(
            "an escaped pair",
            whole(r"\ud83d\ude00"),
            1,
            is("\u{1f600}"),
        ),
        row(
            "a pair cut by the event's end",
            format!("{}{}{DONE}", said(r"\ud83d"), said(r"\ude00")),
            2,
            is("\u{1f600}"),
        ),
        row(
            "a character that never ends",
            broken(&[b"a\xe4\xbdb"]),
            1,
            is("a\u{fffd}b"),
        ),
        row(
            "a character cut by the event's end",
            broken(&[b"\xe4\xbd", b"\xa0"]),
            2,
            is("\u{fffd}\u{fffd}"),
        ),
        row(
            "no character at all",
            broken(&[b"\xff\xc0\xaf"]),
            1,
            is("\u{fffd}\u{fffd}\u{fffd}"),
        ),
    ]
}

/// Ends of lines, the mark at the front, the space behind the colon, data in several lines.
fn lines() -> Vec<Row> {
    let two = format!("{}{}{DONE}", said("a"), said("b"));
    let ab = || choice(json!("ab"), "stop");
    let bare = |text: &str| two.replace("data: ", text);
    let spaced = |text: &str| bare(text).replace(&format!("{text}[DONE]"), "data: [DONE]");
    let joined = |between: &str| {
        format!(
            "data: {{\"id\":\"c1\",\"choices\":[{{\"index\":0,\n{between}data: \"delta\":{{\"content\":\"hi\"}},\n\
             data: \"finish_reason\":null,\"token_ids\":[1,2]}}]}}\n\n{DONE}"
        )
    };
    let joins = |space: &str| {
        format!(
            "data: {{\"id\":\"c1\",\"choices\":[{{\"index\":0,{space}\"delta\":{{\"content\":\"hi\"}}, \
             \"finish_reason\":null}}]}}\n\n{DONE}"
        )
    };
    let hi = || choice(json!("hi"), "stop");
    vec![
        row("CRLF", two.replace('\n', "\r\n"), 2, ab()).relayed(two.clone()),
        row("CR", two.replace('\n', "\r"), 2, ab()).relayed(two.clone()),
        row("CRLF and LF", two.replace("\n\n", "\r\n\n"), 2, ab()).relayed(two.clone()),
        row("LF and CRLF", two.replace("\n\n", "\n\r\n"), 2, ab()).relayed(two.clone()),
        row("no blank lines", two.replace("\n\n", "\n"), 2, ab()).relayed(two.clone()),
        row("many blank lines", two.replace("\n\n", "\n\n\n\n"), 2, ab()).relayed(two.clone()),
        row("no space behind the colon", bare("data:"), 2, ab()).relayed(two.clone()),
        row("two spaces behind the colon", bare("data:  "), 2, ab()).relayed(spaced("data:  ")),
        row("a tab behind the colon", bare("data:\t"), 2, ab()).relayed(spaced("data: \t")),
        row(
            "a mark at the front",
            format!("\u{feff}{}", bare("data:")),
            2,
            ab(),
        )
        .relayed(two.clone()),
        row(
            // Only one is no part of the stream; what follows is a field that nobody knows.
            "two marks at the front",
            format!("\u{feff}\u{feff}{two}"),
            1,
            choice(json!("b"), "stop"),
        )
        .relayed(format!("{}{DONE}", said("b"))),
        row("an event in three data lines", joined(""), 2, hi()).relayed(joins(" ")),
        row("with an empty one between", joined("data:\n"), 2, hi()).relayed(joins("  ")),
        row("with others between", joined(": ping\nfoo: bar\n"), 2, hi()).relayed(joins(" ")),
    ]
}

/// Comments and fields that are no data, and data that is nothing.
fn fields() -> Vec<Row> {
    let (a, b) = (said("a"), said("b"));
    let ab = || choice(json!("ab"), "stop");
    let around = |between: &str| format!("{a}{between}{b}{DONE}");
    let kept = "id: 9\nevent: message\nretry: 10\n";
    let silent = |name: &str, between: &str| {
        row(name, around(between), 2, ab()).relayed(format!("{a}{b}{DONE}"))
    };
    vec![
        row(
            "all of them before the first token",
            format!(": keep\n\n{kept}{a}:\n\n{DONE}"),
            1,
            choice(json!("a"), "stop"),
        )
        .relayed(format!("{a}{DONE}")),
        row("fields of a later event", around(kept), 2, ab()),
        silent("a comment", ": PROCESSING\n\n"),
        silent("a comment without space", ":PROCESSING\n"),
        silent("an empty comment", ":\n\n"),
        silent("a comment that looks like the end", ": data: [DONE]\n\n"),
        silent("a comment that is the end", ":[DONE]\n\n: [DONE]\n\n"),
        silent(
            "a comment with an error",
            ": {\"error\":{\"code\":500}}\n\n",
        ),
        silent("an event without data", "event: ping\n\n"),
        silent("an event that is the end", "event: [DONE]\n\n"),
        silent(
            "unknown fields",
            "foo: bar\nnonsense\n{\"a\":1}\ndatas: {\"x\":1}\n",
        ),
        silent("a field's name in capitals", "DATA: {\"choices\":[]}\n\n"),
        silent("empty data", "data:\n\n"),
        silent("empty data with a space", "data: \n\n"),
        silent("data without a colon", "data\n\n"),
        silent("empty data twice", "data:\ndata:\n\n"),
        silent("data of blanks", "data: \t  \n\n"),
        row(
            "empty data first",
            format!("data:\n\n{a}data: \n\n{DONE}"),
            1,
            choice(json!("a"), "stop"),
        )
        .relayed(format!("{a}{DONE}")),
    ]
}

/// Data that is no JSON object among good ones: streamed as it came, and no answer is made without it.
fn malformed() -> Vec<Row> {
    let deep = format!("{{\"z\":{}{}}}", "[".repeat(129), "]".repeat(129));
    let rows = [
        ("an object that is cut", r#"{"choices":[{"#),
        ("a string that is cut", r#"{"choices":[{"index":0,"te"#),
        ("something behind the object", r#"{"choices":[]}x"#),
        ("two objects", r#"{"choices":[]}{"choices":[]}"#),
        ("no number", r#"{"x":NaN}"#),
        ("a number with a zero in front", r#"{"x":01}"#),
        ("a comma too many", r#"{"choices":[],}"#),
        ("a list", "[1,2]"),
        ("a text", "\"x\""),
        ("a word", "nonsense"),
        ("a control byte", "{\"x\":\"\u{1}\"}"),
        ("a nesting of 130", &deep),
    ];
    let made = rows.map(|(name, data)| {
        let engine = format!("{}data: {data}\n\n{}{DONE}", said("a"), said("b"));
        row(name, engine, 2, BROKEN)
    });
    let mut made = Vec::from(made);
    // A line feed is no character of a string, though it joins lines.
    let split = "data: {\"x\":\"a\ndata: b\"}\n\n";
    made.push(row(
        "a string in two lines",
        format!("{}{split}{}{DONE}", said("a"), said("b")),
        2,
        BROKEN,
    ));
    let first = format!("data: {{oops\n\n{}{DONE}", said("b"));
    made.push(row("before the first token", first, 1, BROKEN));
    made
}

/// Streams that end as they must not, and those that just do.
fn ends() -> Vec<Row> {
    let a = said("a");
    let stop = fin("\"stop\"");
    let is = || choice(json!("a"), "stop");
    let missing = |name: &str, behind: String| {
        let engine = format!("{a}{behind}");
        let shown = match behind.ends_with("\n\n") {
            true => engine.clone(),
            false => a.clone(),
        };
        row(name, engine, 1, BROKEN).broken(shown)
    };
    vec![
        missing("no end behind a finish", stop.clone()),
        missing("no end behind usage", format!("{stop}{}", ev(USAGE))),
        missing("nothing behind a token", String::new()),
        missing("half an event", "data: {\"choices\":[{".to_owned()),
        missing("half an end", "data: [DON".to_owned()),
        missing("an end with more", "data: [DONE]x\n\n".to_owned()),
        missing("an end in quotes", "data: \"[DONE]\"\n\n".to_owned()),
        missing("an end in small letters", "data: [done]\n\n".to_owned()),
        row(
            "an end without its line's end",
            format!("{a}data: [DONE]"),
            1,
            is(),
        )
        .relayed(format!("{a}{DONE}")),
        row(
            "an end among blanks",
            format!("{a}data:   [DONE] \t\n\n"),
            1,
            is(),
        )
        .relayed(format!("{a}{DONE}")),
        row(
            "more behind the end",
            format!("{a}{DONE}{}data: {{oops\n\n{DONE}", said("b")),
            1,
            is(),
        )
        .relayed(format!("{a}{DONE}")),
        row("an end and no token", DONE, 0, BROKEN).refused(502, "decode"),
        row(
            "a role, an end and no token",
            ev(&frame(r#""delta":{"role":"assistant"}"#)) + DONE,
            0,
            BROKEN,
        )
        .refused(502, "decode"),
        row(
            "a finish, an end and no token",
            format!("{stop}{DONE}"),
            0,
            BROKEN,
        )
        .refused(502, "decode"),
        row("nothing at all", "", 0, BROKEN).refused(502, "decode"),
        row("comments alone", ": a\n\n: b\n\n", 0, BROKEN).refused(502, "decode"),
        row(
            "given up by the engine",
            format!("{a}{}{DONE}", fin("\"abort\"")),
            1,
            BROKEN,
        )
        .broken(a.clone()),
        row(
            "given up before a token",
            format!("{}{DONE}", fin("\"abort\"")),
            0,
            BROKEN,
        )
        .refused(502, "decode"),
    ]
}

/// Usage in a frame of its own, in every shape, does not touch what came before.
fn usage() -> Vec<Row> {
    let head = format!("{}{}", said("a"), fin("\"length\""));
    let is = || choice(json!("a"), "length");
    let given = || json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5});
    let last = |name: &str, frame: &str| {
        row(name, format!("{head}{}{DONE}", ev(frame)), 1, is()).usage(given())
    };
    let counts = r#"{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}"#;
    let forced = format!(
        r#"{{"id":"c1","choices":[{{"index":0,"delta":{{"content":"a"}},"finish_reason":null,"token_ids":[7]}}],"usage":{counts}}}"#
    );
    let none = head.replace("}]}\n", "}],\"usage\":null}\n");
    vec![
        last("usage in a frame of its own", USAGE),
        last(
            "usage without choices",
            &format!(r#"{{"id":"c1","usage":{counts}}}"#),
        ),
        last(
            "usage beside an empty delta",
            &format!(r#"{{"choices":[{{"index":0,"delta":{{}}}}],"usage":{counts}}}"#),
        ),
        last(
            "usage beside a delta that is null",
            &format!(
                r#"{{"choices":[{{"index":0,"delta":null,"finish_reason":null}}],"usage":{counts}}}"#
            ),
        ),
        row(
            "usage in every frame, then null",
            format!(
                "{}{}{}{DONE}",
                ev(&forced),
                fin("\"length\""),
                ev(r#"{"choices":[],"usage":null}"#)
            ),
            1,
            is(),
        )
        .usage(given()),
        row(
            "usage null until the last",
            format!("{none}{}{DONE}", ev(USAGE)),
            1,
            is(),
        )
        .usage(given()),
        row("no usage", format!("{head}{DONE}"), 1, is()),
    ]
}

fn call(members: &str) -> String {
    ev(&ch(&format!(r#"{{"tool_calls":[{{{members}}}]}}"#)))
}

fn calls(calls: &[(&str, &str, &str)], reason: &str) -> Assembled {
    let call = |(id, name, arguments): &(&str, &str, &str)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let calls: Vec<Value> = calls.iter().map(call).collect();
    message(json!({"tool_calls": calls}), reason)
}

/// Calls of tools, in fragments.
fn tools() -> Vec<Row> {
    let start = |index: u32, name: &str| {
        call(&format!(
            r#""index":{index},"id":"t{index}","type":"function","function":{{"name":"{name}","arguments":""}}"#
        ))
    };
    let more = |index: u32, arguments: &str| {
        call(&format!(
            r#""index":{index},"function":{{"arguments":"{arguments}"}}"#
        ))
    };
    let end = format!("{}{DONE}", fin("\"tool_calls\""));
    let named = |index: u32, name: &str| {
        call(&format!(
            r#""index":{index},"id":"","function":{{"name":"{name}"}}"#
        ))
    };
    let two = [("t0", "f", r#"{"a":1}"#), ("t1", "g", r#"{"b":2}"#)];
    let (a, b) = (more(0, r#"{\"a\":1}"#), more(1, r#"{\"b\":2}"#));
    let null = |delta: &str| ev(&ch(delta));
    vec![
        row(
            "fragments without id go by index",
            format!("{}{}{b}{a}{end}", start(0, "f"), start(1, "g")),
            4,
            calls(&two, "tool_calls"),
        ),
        row(
            "the second call first",
            format!("{}{b}{}{a}{end}", start(1, "g"), start(0, "f")),
            4,
            calls(&two, "tool_calls"),
        ),
        row(
            "two fragments in one frame",
            format!(
                "{}{}{}{end}",
                start(0, "f"),
                start(1, "g"),
                ev(&ch(
                    r#"{"tool_calls":[{"index":1,"function":{"arguments":"{\"b\":2}"}},{"index":0,"function":{"arguments":"{\"a\":1}"}}]}"#
                ))
            ),
            3,
            calls(&two, "tool_calls"),
        ),
        row(
            "content before a call without arguments",
            format!("{}{}{end}", said("a"), start(0, "f")),
            2,
            message(
                json!({"content": "a", "tool_calls": [
                    {"id": "t0", "type": "function", "function": {"name": "f", "arguments": ""}},
                ]}),
                "tool_calls",
            ),
        ),
        row(
            "null is no call",
            format!(
                "{}{}{}{DONE}",
                null(
                    r#"{"role":"assistant","content":"a","reasoning_content":null,"tool_calls":null}"#
                ),
                null(r#"{"role":null,"content":"b","tool_calls":null}"#),
                fin("\"stop\"")
            ),
            2,
            choice(json!("ab"), "stop"),
        ),
        row(
            "nor is an empty list",
            format!("{}{DONE}", null(r#"{"content":"a","tool_calls":[]}"#)),
            1,
            choice(json!("a"), "stop"),
        ),
        row(
            "a name in two fragments",
            format!("{}{}{end}", start(0, "get_"), named(0, "weather")),
            2,
            calls(&[("t0", "get_weather", "")], "tool_calls"),
        ),
        row(
            // Every piece concatenates, streams and answers alike.
            "a name that is said again",
            format!("{}{}{end}", start(0, "f"), named(0, "f")),
            2,
            calls(&[("t0", "ff", "")], "tool_calls"),
        ),
        row(
            "a fragment behind a finish",
            format!(
                "{}{}{}{}{}{}{DONE}",
                start(0, "f"),
                fin("\"stop\""),
                more(0, r#"{\"a\""#),
                fin("\"stop\""),
                more(0, ":1}"),
                fin("\"tool_calls\"")
            ),
            3,
            calls(&[("t0", "f", r#"{"a":1}"#)], "tool_calls"),
        ),
        row("a call that nobody began", format!("{b}{end}"), 1, BROKEN),
        row(
            "a fragment without index",
            format!(
                "{}{}{end}",
                start(0, "f"),
                call(r#""function":{"arguments":"{}"}"#)
            ),
            2,
            BROKEN,
        ),
    ]
}

/// Members of a delta that are null, missing or under another name.
fn deltas() -> Vec<Row> {
    let (d, stop) = (|delta: &str| ev(&ch(delta)), fin("\"stop\""));
    let start =
        r#"{"index":0,"id":"t0","type":"function","function":{"name":"f","arguments":"{}"}}"#;
    let one = || calls(&[("t0", "f", "{}")], "tool_calls");
    let tool = fin("\"tool_calls\"");
    vec![
        row(
            "content null, then a text",
            format!(
                "{}{}{stop}{DONE}",
                d(r#"{"role":"assistant","content":null,"reasoning":"r"}"#),
                d(r#"{"content":"x"}"#)
            ),
            2,
            message(json!({"content": "x", "reasoning": "r"}), "stop"),
        ),
        row(
            "a call beside content that is null",
            format!(
                "{}{tool}{DONE}",
                d(&format!(
                    r#"{{"role":"assistant","content":null,"tool_calls":[{start}]}}"#
                ))
            ),
            1,
            one(),
        ),
        row(
            "a call and no content",
            format!(
                "{}{tool}{DONE}",
                d(&format!(r#"{{"tool_calls":[{start}]}}"#))
            ),
            1,
            one(),
        ),
        row(
            "reasoning alone",
            format!("{}{stop}{DONE}", d(r#"{"reasoning":"r"}"#)),
            1,
            message(json!({"reasoning": "r"}), "stop"),
        ),
        row(
            "reasoning_content alone",
            format!("{}{stop}{DONE}", d(r#"{"reasoning_content":"r"}"#)),
            1,
            message(json!({"reasoning_content": "r"}), "stop"),
        ),
        row(
            "both in turn",
            format!(
                "{}{}{}{}{stop}{DONE}",
                d(r#"{"reasoning":"r"}"#),
                d(r#"{"reasoning_content":"c"}"#),
                d(r#"{"reasoning":"s"}"#),
                d(r#"{"content":"x"}"#)
            ),
            4,
            message(
                json!({"content": "x", "reasoning": "rs", "reasoning_content": "c"}),
                "stop",
            ),
        ),
        row(
            "a refusal",
            format!(
                "{}{}{stop}{DONE}",
                d(r#"{"refusal":"n"}"#),
                d(r#"{"refusal":"o"}"#)
            ),
            2,
            message(json!({"refusal": "no"}), "stop"),
        ),
        row(
            "an empty text is a text",
            format!("{}{stop}{DONE}", d(r#"{"content":""}"#)),
            1,
            choice(json!(""), "stop"),
        ),
        row(
            "a role in every frame",
            format!(
                "{}{}{stop}{DONE}",
                d(r#"{"role":"assistant","content":"a"}"#),
                d(r#"{"role":"assistant","content":"b"}"#)
            ),
            2,
            choice(json!("ab"), "stop"),
        ),
        row(
            "another role",
            format!("{}{stop}{DONE}", d(r#"{"role":"user","content":"a"}"#)),
            1,
            BROKEN,
        ),
    ]
}

/// Reasons to stop, and frames behind them.
fn finishes() -> Vec<Row> {
    let start =
        call(r#""index":0,"id":"t0","type":"function","function":{"name":"f","arguments":"{}"}"#);
    let last = |stop_reason: &str| {
        let last = ev(&frame(&format!(
            r#""delta":{{}},"finish_reason":"stop"{stop_reason}"#
        )));
        format!("{}{last}{}{DONE}", said("a"), ev(USAGE))
    };
    let with = |stop_reason: Value| {
        let message = json!({"role": "assistant", "content": "a"});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop", "stop_reason": stop_reason});
        Assembled::Choice(choice)
    };
    let one = || calls(&[("t0", "f", "{}")], "tool_calls");
    vec![
        row(
            "a finish, then one that is null, then usage",
            format!(
                "{start}{}{}{}{DONE}",
                fin("\"tool_calls\""),
                fin("null"),
                ev(USAGE)
            ),
            1,
            one(),
        ),
        row(
            "a finish, then an empty one",
            format!("{start}{}{}{DONE}", fin("\"tool_calls\""), fin("\"\"")),
            1,
            one(),
        ),
        row(
            "a stop reason that is a number",
            last(r#","stop_reason":151643"#),
            1,
            with(json!(151_643)),
        ),
        row(
            "a stop reason that is a text",
            last(r#","stop_reason":",""#),
            1,
            with(json!(",")),
        ),
        row(
            "a stop reason that is null",
            last(r#","stop_reason":null"#),
            1,
            choice(json!("a"), "stop"),
        ),
        row("no stop reason", last(""), 1, choice(json!("a"), "stop")),
        row(
            "a token in the last frame",
            format!(
                "{}{}{DONE}",
                said("a"),
                ev(&frame(
                    r#""delta":{"content":"b"},"finish_reason":"length","token_ids":[8]"#
                ))
            ),
            2,
            choice(json!("ab"), "length"),
        ),
    ]
}

/// Lists beside the text, one piece a frame.
fn logprobs() -> Vec<Row> {
    let first = r#""text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-0.1],"top_logprobs":[{"a":-0.1}],"text_offset":[0]},"finish_reason":null,"token_ids":[1]"#;
    let second = r#""text":"bc","logprobs":{"tokens":["b","c"],"token_logprobs":[-0.2,-0.3],"top_logprobs":[{"b":-0.2},{"c":-0.3}],"text_offset":[1,2]},"finish_reason":"stop","token_ids":[2,3]"#;
    let spoken = |text: &str, list: &str, ids: &str| {
        ev(&frame(&format!(
            r#""delta":{{"content":"{text}"}},"logprobs":{list},"finish_reason":null,"token_ids":[{ids}]"#
        )))
    };
    let entry = |t: &str| {
        format!(
            r#"{{"token":"{t}","logprob":-0.5,"bytes":[97],"top_logprobs":[{{"token":"{t}","logprob":-0.5}}]}}"#
        )
    };
    let list = |items: &[&str]| {
        let items: Vec<String> = items.iter().map(|t| entry(t)).collect();
        format!(r#"{{"content":[{}]}}"#, items.join(","))
    };
    let chat: Value = serde_json::from_str(&list(&["a", "b", "c"])).expect("JSON");
    vec![
        row(
            "of a completion",
            format!("{}{}{DONE}", tx(first), tx(second)),
            3,
            Assembled::Choice(json!({
                "index": 0, "text": "abc", "finish_reason": "stop", "logprobs": {
                    "tokens": ["a", "b", "c"], "token_logprobs": [-0.1, -0.2, -0.3],
                    "top_logprobs": [{"a": -0.1}, {"b": -0.2}, {"c": -0.3}], "text_offset": [0, 1, 2],
                },
            })),
        )
        .completion(),
        row(
            "of a chat",
            format!(
                "{}{}{}{DONE}",
                spoken("a", &list(&["a"]), "1"),
                spoken("bc", &list(&["b", "c"]), "2,3"),
                spoken("d", "null", "4")
            ),
            4,
            Assembled::Choice(json!({
                "index": 0, "message": {"role": "assistant", "content": "abcd"}, "finish_reason": "stop",
                "logprobs": chat,
            })),
        ),
    ]
}

/// Token ids: missing, bad, several at once, shown or not.
fn ids() -> Vec<Row> {
    let a = said("a");
    let without = |choice: &str| format!("{}{DONE}", ev(&frame(choice)));
    let refused =
        |name: &str, choice: &str| row(name, without(choice), 0, BROKEN).refused(502, "decode");
    let later = |name: &str, choice: &str| {
        row(name, format!("{a}{}", without(choice)), 1, BROKEN).broken(a.clone())
    };
    let role = ev(&frame(
        r#""delta":{"role":"assistant","content":""},"finish_reason":null"#,
    ));
    let several = format!(
        "{}{}{DONE}",
        ev(&frame(
            r#""delta":{"content":"abc"},"finish_reason":null,"token_ids":[1,2,3]"#
        )),
        ev(&frame(
            r#""delta":{"content":"d"},"finish_reason":null,"token_ids":[4]"#
        ))
    );
    let shown = format!(
        "{}{}{DONE}",
        ev(
            r#"{"id":"c1","prompt_token_ids":[5,6],"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[1,2]}]}"#
        ),
        ev(&frame(
            r#""delta":{"content":"b"},"finish_reason":null,"token_ids":[3]"#
        ))
    );
    let with_ids = json!({
        "index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop", "token_ids": [1, 2, 3],
    });
    vec![
        refused("a text with none", r#""delta":{"content":"a"}"#),
        refused(
            "a text with null",
            r#""delta":{"content":"a"},"token_ids":null"#,
        ),
        refused(
            "a text with an empty list",
            r#""delta":{"content":"a"},"token_ids":[]"#,
        ),
        refused("reasoning with none", r#""delta":{"reasoning":"a"}"#),
        refused(
            "a call with none",
            r#""delta":{"tool_calls":[{"index":0,"id":"t","function":{"name":"f","arguments":""}}]}"#,
        ),
        refused(
            "a number with a point",
            r#""delta":{"content":"a"},"token_ids":[1.0]"#,
        ),
        refused(
            "a number with a sign",
            r#""delta":{"content":"a"},"token_ids":[-1]"#,
        ),
        refused(
            "a bad list without a text",
            r#""delta":{},"token_ids":["1"]"#,
        ),
        later(
            "a text with none behind a token",
            r#""delta":{"content":"b"}"#,
        ),
        later(
            "a call with none behind a token",
            r#""delta":{"tool_calls":[{"index":0}]}"#,
        ),
        later(
            "a bad list behind a token",
            r#""delta":{"content":"b"},"token_ids":[true]"#,
        ),
        row(
            "a role with none",
            format!("{role}{a}{DONE}"),
            1,
            choice(json!("a"), "stop"),
        ),
        row(
            "several in one event",
            several,
            4,
            choice(json!("abcd"), "stop"),
        ),
        row(
            "nobody asked for them",
            shown.clone(),
            3,
            choice(json!("ab"), "stop"),
        ),
        Row {
            relayed: Relayed::Whole(shown.clone().into_bytes()),
            ..row(
                "a client asked for them",
                shown,
                3,
                Assembled::Choice(with_ids),
            )
            .asks(r#","return_token_ids":true"#)
        },
        row(
            "of any size",
            format!(
                "{}{DONE}",
                ev(&frame(
                    r#""delta":{"content":"a"},"token_ids":[123456789012345678901234567890]"#
                ))
            ),
            1,
            choice(json!("a"), "stop"),
        ),
    ]
}

/// What an answer has no room for, and choices that are not the first.
fn unsupported() -> Vec<Row> {
    let with = |delta: &str| format!("{}{DONE}", ev(&ch(delta)));
    let other = |choice: &str| {
        format!(
            "{}{}{DONE}",
            said("a"),
            ev(&format!(r#"{{"choices":[{choice}]}}"#))
        )
    };
    let second = r#"{"index":1,"delta":{"content":"b"},"token_ids":[8]}"#;
    vec![
        row(
            "audio",
            with(r#"{"content":"a","audio":{"id":"a"}}"#),
            1,
            BROKEN,
        ),
        row(
            "audio that is null",
            with(r#"{"content":"a","audio":null}"#),
            1,
            choice(json!("a"), "stop"),
        ),
        row(
            "annotations",
            with(r#"{"content":"a","annotations":[{"type":"x"}]}"#),
            1,
            BROKEN,
        ),
        row(
            "no annotations",
            with(r#"{"content":"a","annotations":[]}"#),
            1,
            BROKEN,
        ),
        row(
            "a member that nobody knows",
            with(r#"{"content":"a","foo":1}"#),
            1,
            BROKEN,
        ),
        row(
            "a false one",
            with(r#"{"content":"a","foo":false}"#),
            1,
            BROKEN,
        ),
        row("the second choice", other(second), 2, BROKEN),
        row(
            "two choices",
            other(&format!("{second},{}", second.replace('1', "0"))),
            3,
            BROKEN,
        ),
    ]
}

/// Errors inside an answer of 200, as an event or as one JSON object.
fn errors() -> Vec<Row> {
    let first = |name: &str, data: &str, status: u16| {
        let kind = match status {
            400 => "invalid_request_error",
            _ => "decode",
        };
        let event = row(name, format!("{}{DONE}", ev(data)), 0, BROKEN);
        let plain = row(&format!("{name}, alone"), data, 0, BROKEN);
        [event, plain].map(|row| row.refused(status, kind))
    };
    let rows = [
        first(
            "too many requests",
            r#"{"error":{"message":"x","code":429}}"#,
            502,
        ),
        first(
            "a bad request",
            r#"{"error":{"message":"x","type":"B","code":400}}"#,
            400,
        ),
        first(
            "a bad request at the top",
            r#"{"object":"error","message":"x","code":400}"#,
            400,
        ),
        first("a time-out", r#"{"error":{"message":"x","code":408}}"#, 504),
        first(
            "a time-out of a gateway",
            r#"{"error":{"message":"x","code":504}}"#,
            504,
        ),
        first("an error that is a text", r#"{"error":"x"}"#, 502),
        first(
            "a code that is a text",
            r#"{"error":{"message":"x","code":"400"}}"#,
            502,
        ),
        first(
            "a code that is no status",
            r#"{"error":{"message":"x","code":7}}"#,
            502,
        ),
        first(
            "an unknown model",
            r#"{"error":{"message":"x","code":404}}"#,
            502,
        ),
        first(
            "an error beside choices",
            r#"{"choices":[],"error":{"message":"x","code":503}}"#,
            502,
        ),
    ];
    let a = said("a");
    let none = ev(r#"{"error":null,"choices":[]}"#);
    let late = format!("{a}{}{DONE}", ev(r#"{"error":{"message":"x","code":400}}"#));
    let mut rows: Vec<Row> = rows.into_iter().flatten().collect();
    // Of an answer the client has seen nothing: to it this is a refusal.
    let refusal = Assembled::Refused(400, "invalid_request_error");
    rows.push(row("a bad request behind a token", late, 1, refusal).broken(a.clone()));
    rows.push(row(
        "null is no error",
        format!("{none}{a}{DONE}"),
        1,
        choice(json!("a"), "stop"),
    ));
    rows
}

/// Numbers as they were written.
fn numbers() -> Vec<Row> {
    let odd = r#""seed":18446744073709551616,"t":0.1000000000000000055511151231257827,"b":{"1":-0.0},"x":1E400,"y":1.0"#;
    let engine = format!(
        r#"{{"id":"c1",{odd},"choices":[{{"index":0,"delta":{{"content":"a"}},"finish_reason":null,"token_ids":[7]}}]}}"#
    );
    vec![row(
        "of a frame",
        format!("{}{DONE}", ev(&engine)),
        1,
        Assembled::Holds(vec![odd]),
    )]
}
