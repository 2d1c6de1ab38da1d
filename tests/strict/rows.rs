//! The corpus: what a row is, and how the files of `client/` and `engine/` are read. `scripts/strict` reads the same files.
//!
//! ```text
//! # A comment. A row ends where the next one begins; what belongs to a line above is indented.
//! let NAME  bytes               $NAME in bytes further down stands for them
//! row    what is odd about it
//! send   bytes, over as many lines as read well; each line adds to the one above without anything between
//! want   405 keep
//! has    allow: POST            a line of the last answer's head
//! lacks  content-length         a field that it has not
//! when   full                   the router's own state: full, standby, unserved or locked
//! why    the section of an RFC, or the rule of the contract
//! nginx  400 close @note        what another reader does where it does not do the same, and why
//! ```
//!
//! Bytes know `\r \n \t \0 \xNN \\` and `\*N(bytes)`, N times the same; blanks at the ends of a line are no bytes (write `\x20`).
//!
//! `want` is the statuses of the answers, in order, and then what becomes of the connection: `keep`, `close` (announced by
//! `connection: close`), `cut` (closed all the same) or `wait` (nothing more comes yet). `200/head` is an answer without its body,
//! `100?` may come or not, and `late` lets the clock run to what is due next. A row may send and want several times: what follows is
//! sent once what was wanted has come.
//!
//! Rows for engines have `reply` for what an engine sends instead of its own answer, `then` for what it does behind it (`open`, `close`,
//! `reset`), `leg` for whose answer it is, `where machine` for what takes too long on sockets, and a `want` of their own: see [`Outcome`].
//!
//! Owns no socket and no router. Invariant: a file that is not understood fails the test that reads it, with file and line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A row of a file, as words and texts.
#[derive(Debug, Default)]
struct Record {
    place: String,
    fields: Vec<(String, String)>,
}

/// One case for the client's side.
#[derive(Debug)]
pub struct Row {
    pub name: String,
    /// File and line.
    pub place: String,
    pub stages: Vec<Stage>,
    pub end: End,
    pub has: Vec<String>,
    pub lacks: Vec<String>,
    pub when: When,
    pub why: String,
    pub peers: Vec<Peer>,
}

#[derive(Debug)]
pub struct Stage {
    pub send: Vec<u8>,
    pub want: Vec<Want>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    Status(u16),
    /// The answer to HEAD.
    Head(u16),
    /// `100 Continue`, or not.
    MaybeContinue,
    /// The clock runs on to the next thing that is due.
    Late,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Keep,
    Close,
    Cut,
    Wait,
}

/// In what state the router is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    #[default]
    Ready,
    /// It holds as many exchanges as it may.
    Full,
    Standby,
    /// No engine is live.
    Unserved,
    /// Clients need a key.
    Locked,
}

/// What another reader of HTTP makes of a row, and why it is not what we make of it.
#[derive(Debug)]
pub struct Peer {
    pub name: String,
    pub verdict: String,
    pub why: String,
}

/// One case for the engine's side.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub place: String,
    pub leg: String,
    /// Nobody waits for a time-out of seconds on sockets.
    pub machine_only: bool,
    pub reply: Vec<u8>,
    pub then: Then,
    pub outcome: Outcome,
    pub pooled: bool,
    pub why: String,
}

/// What an engine does behind its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Open,
    Close,
    Reset,
}

/// What comes of an engine's reply, with two attempts. `pooled` or `dropped` behind it says what becomes of the engine's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is the client's answer, and its output is what `$OUT` names.
    Served,
    /// Another attempt is made, and with a single one the client gets 502.
    Retried,
    /// The same with 504.
    Retried504,
    /// The client gets this, and no other attempt is made.
    Refused(u16),
    /// A stream ends in an error event; without a stream another attempt is made.
    Cut,
    /// The same, and with a single attempt 504.
    Cut504,
}

impl Row {
    /// Whether it can be shown on a socket, where the clock is nobody's and the router is ready.
    pub fn is_for_sockets(&self) -> bool {
        let late = |stage: &Stage| stage.want.contains(&Want::Late);
        self.when == When::Ready && self.end != End::Wait && !self.stages.iter().any(late)
    }

    pub fn bytes(&self) -> usize {
        self.stages.iter().map(|stage| stage.send.len()).sum()
    }
}

/// All rows for the client's side.
pub fn client_rows() -> Vec<Row> {
    records("client").iter().map(row).collect()
}

/// All cases for the engine's side.
pub fn engine_cases() -> Vec<Case> {
    records("engine").iter().map(case).collect()
}

/// The notes that explain other readers, by name.
pub fn notes() -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder("notes.txt")).expect("the notes");
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once(' ').expect("a name and a text"));
    pairs
        .map(|(name, text)| (name.to_owned(), text.trim().to_owned()))
        .collect()
}

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/strict")
        .join(name)
}

fn records(side: &str) -> Vec<Record> {
    let entries = fs::read_dir(folder(side)).expect("the corpus");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let mut out = Vec::new();
    for file in files {
        let name = file
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(&file).expect("a file of the corpus");
        out.append(&mut read(&format!("{side}/{name}"), &text));
    }
    out
}

/// The records of one file, `let` lines put in.
fn read(file: &str, text: &str) -> Vec<Record> {
    let mut lets: Vec<(String, String)> = Vec::new();
    let mut out: Vec<Record> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let place = format!("{file}:{}", number + 1);
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with(' ') {
            let last = out.last_mut().and_then(|record| record.fields.last_mut());
            let (word, value) =
                last.unwrap_or_else(|| panic!("{place}: what does this belong to?"));
            if !matches!(word.as_str(), "send" | "reply") {
                value.push(' ');
            }
            value.push_str(&put_in(&lets, line.trim()));
            continue;
        }
        let (word, value) = line.split_once(' ').unwrap_or((line, ""));
        let value = put_in(&lets, value.trim());
        match word {
            "let" => {
                let (name, value) = value
                    .split_once(' ')
                    .unwrap_or_else(|| panic!("{place}: let what?"));
                lets.push((name.to_owned(), value.trim().to_owned()));
            }
            "row" => out.push(Record {
                place,
                fields: vec![("row".to_owned(), value)],
            }),
            _ => match out.last_mut() {
                Some(record) => record.fields.push((word.to_owned(), value)),
                None => panic!("{place}: {word} before the first row"),
            },
        }
    }
    out
}

/// Longer names first, so that `$H` does not eat `$HEAD`.
fn put_in(lets: &[(String, String)], text: &str) -> String {
    let mut names: Vec<_> = lets.iter().collect();
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    names.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("${name}"), value)
    })
}

fn row(record: &Record) -> Row {
    let place = &record.place;
    let mut row = Row {
        name: String::new(),
        place: place.clone(),
        stages: Vec::new(),
        end: End::Wait,
        has: Vec::new(),
        lacks: Vec::new(),
        when: When::Ready,
        why: String::new(),
        peers: Vec::new(),
    };
    let mut ended = false;
    for (word, value) in &record.fields {
        match word.as_str() {
            "row" => row.name.clone_from(value),
            "send" => {
                assert!(!ended, "{place}: nothing can be sent behind the end");
                row.stages.push(Stage {
                    send: unescape(place, value),
                    want: Vec::new(),
                });
            }
            "want" => {
                let stage = row.stages.last_mut();
                let stage = stage.unwrap_or_else(|| panic!("{place}: want before send"));
                assert!(stage.want.is_empty() && !ended, "{place}: want twice");
                for word in value.split_whitespace() {
                    match end(word) {
                        Some(end) => (row.end, ended) = (end, true),
                        None => stage.want.push(want(place, word)),
                    }
                }
            }
            "has" => row.has.push(value.clone()),
            "lacks" => row.lacks.push(value.clone()),
            "when" => {
                row.when = match value.as_str() {
                    "full" => When::Full,
                    "standby" => When::Standby,
                    "unserved" => When::Unserved,
                    "locked" => When::Locked,
                    _ => panic!("{place}: when {value}?"),
                };
            }
            "why" => row.why.clone_from(value),
            "nginx" | "llhttp" | "h11" => row.peers.push(peer(place, word, value)),
            _ => panic!("{place}: unknown word {word}"),
        }
    }
    assert!(ended, "{place}: what becomes of the connection?");
    row
}

fn end(word: &str) -> Option<End> {
    Some(match word {
        "keep" => End::Keep,
        "close" => End::Close,
        "cut" => End::Cut,
        "wait" => End::Wait,
        _ => return None,
    })
}

fn want(place: &str, word: &str) -> Want {
    let number = |text: &str| -> u16 {
        let status = text
            .parse()
            .ok()
            .filter(|status| (100..600).contains(status));
        status.unwrap_or_else(|| panic!("{place}: {word} is no status"))
    };
    match word.split_once('/') {
        _ if word == "late" => Want::Late,
        _ if word == "100?" => Want::MaybeContinue,
        Some((status, "head")) => Want::Head(number(status)),
        _ => Want::Status(number(word)),
    }
}

/// `400 close @note and more`.
fn peer(place: &str, name: &str, value: &str) -> Peer {
    let words: Vec<&str> = value.split_whitespace().collect();
    let is_verdict = |word: &&&str| {
        end(word).is_some()
            || matches!(**word, "ok" | "bad" | "more")
            || word.parse::<u16>().is_ok()
    };
    let count = words.iter().take_while(is_verdict).count();
    assert!(count > 0, "{place}: {name} does what?");
    Peer {
        name: name.to_owned(),
        verdict: words[..count].join(" "),
        why: words[count..].join(" "),
    }
}

fn case(record: &Record) -> Case {
    let place = &record.place;
    let mut case = Case {
        name: String::new(),
        place: place.clone(),
        leg: "decode".to_owned(),
        machine_only: false,
        reply: Vec::new(),
        then: Then::Open,
        outcome: Outcome::Served,
        pooled: false,
        why: String::new(),
    };
    let mut wanted = false;
    for (word, value) in &record.fields {
        match word.as_str() {
            "row" => case.name.clone_from(value),
            "reply" => case.reply = unescape(place, value),
            "leg" => case.leg.clone_from(value),
            "where" => {
                assert_eq!(value, "machine", "{place}: where?");
                case.machine_only = true;
            }
            "why" => case.why.clone_from(value),
            "then" => {
                case.then = match value.as_str() {
                    "open" => Then::Open,
                    "close" => Then::Close,
                    "reset" => Then::Reset,
                    _ => panic!("{place}: then {value}?"),
                };
            }
            "want" => {
                let (what, socket) = value.rsplit_once(' ').unwrap_or((value, ""));
                case.outcome = match what {
                    "served" => Outcome::Served,
                    "retried" => Outcome::Retried,
                    "retried/504" => Outcome::Retried504,
                    "cut" => Outcome::Cut,
                    "cut/504" => Outcome::Cut504,
                    _ => match want(place, what) {
                        Want::Status(status) => Outcome::Refused(status),
                        _ => panic!("{place}: want {what}?"),
                    },
                };
                case.pooled = match socket {
                    "pooled" => true,
                    "dropped" => false,
                    _ => panic!("{place}: is the connection pooled or dropped?"),
                };
                wanted = true;
            }
            _ => panic!("{place}: unknown word {word}"),
        }
    }
    assert!(wanted, "{place}: what comes of it?");
    case
}

fn unescape(place: &str, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let bad = || -> ! {
            panic!(
                "{place}: bad escape before {:?}",
                String::from_utf8_lossy(behind)
            )
        };
        let Some((&what, behind)) = rest.split_first() else {
            bad()
        };
        rest = behind;
        match what {
            b'r' => out.push(b'\r'),
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            b'0' => out.push(0),
            b'\\' => out.push(b'\\'),
            b'x' if rest.len() >= 2 => {
                let digits = std::str::from_utf8(&rest[..2]).ok();
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                out.push(byte.unwrap_or_else(|| bad()));
                rest = &rest[2..];
            }
            b'*' => {
                let open = rest
                    .iter()
                    .position(|byte| *byte == b'(')
                    .unwrap_or_else(|| bad());
                let close = rest
                    .iter()
                    .position(|byte| *byte == b')')
                    .unwrap_or_else(|| bad());
                let times = std::str::from_utf8(&rest[..open]).ok();
                let times = times.and_then(|times| times.parse().ok());
                let inner = std::str::from_utf8(&rest[open + 1..close]).unwrap_or_else(|_| bad());
                let inner = unescape(place, inner);
                out.extend(inner.repeat(times.unwrap_or_else(|| bad())));
                rest = &rest[close + 1..];
            }
            _ => bad(),
        }
    }
    out
}

#[test]
fn rows_are_read_as_written() {
    let text = "# A comment.\nlet H Host: r\\r\\n\nrow one\nsend GET / HTTP/1.1\\r\\n\n     $H\\*3(a\\t)\\r\\n\\r\\n\n\
        want 100? 200/head 404\nsend \\x41\\0\\\\\nwant late 408 cut\nwhy x\nnginx 400 close @y because\n";
    let records = read("f", text);
    let row = row(&records[0]);
    assert_eq!(row.place, "f:3");
    assert_eq!(
        row.stages[0].send,
        b"GET / HTTP/1.1\r\nHost: r\r\na\ta\ta\t\r\n\r\n"
    );
    let want = [Want::MaybeContinue, Want::Head(200), Want::Status(404)];
    assert_eq!(row.stages[0].want, want);
    assert_eq!(row.stages[1].send, b"A\0\\");
    assert_eq!(row.stages[1].want, [Want::Late, Want::Status(408)]);
    assert_eq!(row.end, End::Cut);
    assert_eq!(row.peers[0].verdict, "400 close");
    assert_eq!(row.peers[0].why, "@y because");
}

/// Every row says what it is and why, none twice, and whoever differs is explained.
#[test]
fn rows_are_well_formed() {
    let rows = client_rows();
    let cases = engine_cases();
    assert!(rows.len() >= 300, "{} rows for clients", rows.len());
    assert!(cases.len() >= 80, "{} cases for engines", cases.len());
    let mut names = BTreeMap::new();
    let client = rows.iter().map(|row| (&row.name, &row.place, &row.why));
    let engine = cases
        .iter()
        .map(|case| (&case.name, &case.place, &case.why));
    for (side, rows) in [
        ("client", client.collect::<Vec<_>>()),
        ("engine", engine.collect()),
    ] {
        for (name, place, why) in rows {
            assert!(
                !name.is_empty() && !why.is_empty(),
                "{place}: no name, or no why"
            );
            let other = names.insert((side, name.clone()), place.clone());
            assert!(other.is_none(), "{place}: {name} is also at {other:?}");
        }
    }
    let notes = notes();
    let mut used = std::collections::BTreeSet::new();
    for row in &rows {
        let mut seen = std::collections::BTreeSet::new();
        for peer in &row.peers {
            let place = &row.place;
            assert!(seen.insert(&peer.name), "{place}: {} twice", peer.name);
            assert!(
                !peer.why.is_empty(),
                "{place}: why does {} differ?",
                peer.name
            );
            for word in peer
                .why
                .split_whitespace()
                .filter_map(|w| w.strip_prefix('@')?.split([':', ';', ',']).next())
            {
                assert!(notes.contains_key(word), "{place}: no note @{word}");
                used.insert(word.to_owned());
            }
        }
    }
    let idle: Vec<_> = notes.keys().filter(|name| !used.contains(*name)).collect();
    assert!(idle.is_empty(), "notes of no row: {idle:?}");
}
