//! A fault script's text to rules. Owns which keys there are, their ranges, and which of them go together.
//!
//! Invariant: as in the parent; every fault of the file is told at once.

use std::str::FromStr;
use std::time::Duration;

use super::{At, BadHandoff, BadIds, Do, Leg, Rule, Script, Shape, Step, What};
use crate::config::fault::Faults;
use crate::config::rows::{self, Key, Table, Want};
use crate::config::source::{Node, Value};
use crate::config::{Errors, Format};
use crate::stub::answer::Framing;

/// Reads a fault script (schema `narwhal.faults`). `file` is only its name in messages.
pub fn parse(file: &str, text: &str, format: Format) -> Result<Script, Errors> {
    rows::read((file, text, format), ("narwhal.faults", "rules"), rule).map(Script)
}

const COUNT: Want = Want::Count(1, 1 << 40);
const FROM_ZERO: Want = Want::Count(0, 1 << 40);
const DAY_MS: u64 = 86_400_000;

const KEYS: &[Key] = &[
    Key::new("leg", Want::Word(Leg::WORDS)),
    Key::new("engine", Want::Count(0, 4_095)),
    Key::new("nth", COUNT).unit("requests"),
    Key::new("every", COUNT).unit("requests"),
    Key::new("after", FROM_ZERO).unit("requests"),
    Key::new("count", COUNT).unit("times"),
    Key::new("probability", Want::Real(0.0, 1.0)),
    Key::new("at", Want::Word(At::WORDS)),
    Key::new("events", FROM_ZERO).unit("events"),
    Key::new("do", Want::Word(Do::WORDS)),
    Key::new("pause_ms", Want::Count(0, DAY_MS)).unit("milliseconds"),
    Key::new("status", Want::Count(400, 599)),
    Key::new("message", Want::Text),
    Key::new("what", Want::Word(What::WORDS)),
    Key::new("text", Want::Text),
    Key::new("hex", Want::Text),
    Key::new("size_bytes", Want::Count(1, 1 << 28)).unit("bytes"),
    Key::new("repeat", COUNT).unit("times"),
    Key::new("token_ids", Want::Word(BadIds::WORDS)),
    Key::new("tokens_per_event", COUNT).unit("tokens"),
    Key::new("empty_text_every", COUNT).unit("tokens"),
    Key::new("framing", Want::Word(Framing::WORDS)),
    Key::new("write_bytes", COUNT).unit("bytes"),
    Key::new("keep_alive_ms", Want::Count(1, DAY_MS)).unit("milliseconds"),
    Key::new("interim", Want::List),
    Key::new("handoff", Want::Word(BadHandoff::WORDS)),
];

/// Keys that shape an answer: with one of them a rule needs no `do`.
const SHAPES: &[&str] = &[
    "token_ids",
    "tokens_per_event",
    "empty_text_every",
    "framing",
    "write_bytes",
    "keep_alive_ms",
    "interim",
    "handoff",
];

fn rule(node: &Node, shown: &str, faults: &mut Faults<'_>) -> Option<Rule> {
    let table = Table::read(node, shown, KEYS, faults)?;
    together(&table, faults);
    let act: Option<Do> = word(&table, "do");
    let step = act.map(|act| step(&table, act, faults));
    let ms = |name| table.count(name).map(Duration::from_millis);
    Some(Rule {
        leg: word(&table, "leg"),
        engine: table.count("engine"),
        nth: table.count("nth"),
        every: table.count("every"),
        after: table.count("after").unwrap_or(0),
        count: table.count("count"),
        probability: table.real("probability"),
        step,
        shape: Shape {
            token_ids: word(&table, "token_ids")
                .map(|bad| (table.count("events").unwrap_or(0), bad)),
            tokens_per_event: table.count("tokens_per_event"),
            empty_text_every: table.count("empty_text_every"),
            framing: word(&table, "framing"),
            write_bytes: table.count("write_bytes"),
            keep_alive: ms("keep_alive_ms"),
            interim: interim(&table, faults),
            handoff: word(&table, "handoff"),
        },
    })
}

fn step(table: &Table<'_>, act: Do, faults: &mut Faults<'_>) -> Step {
    Step {
        at: word(table, "at").unwrap_or(At::Head),
        events: table.count("events").unwrap_or(0),
        act,
        pause: Duration::from_millis(table.count("pause_ms").unwrap_or(0)),
        status: table.count("status").map_or(500, |status| status as u16),
        message: table.text("message").map(str::to_owned),
        bytes: payload(table, faults),
        repeat: table.count("repeat").unwrap_or(1),
    }
}

fn payload(table: &Table<'_>, faults: &mut Faults<'_>) -> Vec<u8> {
    if let Some(what) = word::<What>(table, "what") {
        let size = table.count("size_bytes").unwrap_or(OVERSIZED_BYTES);
        return what.bytes(usize::try_from(size).unwrap_or(usize::MAX));
    }
    let Some(hex) = table.text("hex") else {
        return table.text("text").unwrap_or("").as_bytes().to_vec();
    };
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let bytes: Option<Vec<u8>> = hex
        .as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [a, b] => Some(digit(*a)? << 4 | digit(*b)?),
            _ => None,
        })
        .collect();
    bytes.unwrap_or_else(|| {
        let fault = faults.add(table.at("hex"), &table.path("hex"), "not hexadecimal");
        fault.allowed = "two digits for each byte, nothing between".into();
        Vec::new()
    })
}

/// Longer than a router takes by default (16 MiB).
const OVERSIZED_BYTES: u64 = 20 << 20;

fn interim(table: &Table<'_>, faults: &mut Faults<'_>) -> Vec<u16> {
    let mut out = Vec::new();
    for node in table.list("interim") {
        match &node.value {
            Value::Number(text) if matches!(text.as_str(), "100" | "102" | "103") => {
                out.extend(text.parse::<u16>());
            }
            _ => {
                let fault = faults.add(node.at, &table.path("interim"), "no interim status");
                (fault.found, fault.allowed) = (node.shown(), "100, 102 or 103".into());
            }
        }
    }
    out
}

/// A key without the one that gives it a meaning is a slip.
fn together(table: &Table<'_>, faults: &mut Faults<'_>) {
    let mut fault = |name: &str, what: &str| {
        let fault = faults.add(table.at(name), &table.path(name), "has no effect");
        fault.hint = what.to_owned();
    };
    let act: Option<Do> = word(table, "do");
    let at: Option<At> = word(table, "at");
    if act.is_none() && !SHAPES.iter().any(|name| table.has(name)) {
        fault(
            "do",
            &format!("give a rule `do`, or one of {}", SHAPES.join(", ")),
        );
    }
    let is = |acts: &[Do]| act.is_some_and(|act| acts.contains(&act));
    for (name, may, needs) in needs(table, act, at) {
        if table.has(name) && !may {
            fault(name, needs);
        }
    }
    let payloads = ["what", "text", "hex"]
        .iter()
        .filter(|name| table.has(name))
        .count();
    if is(&[Do::Insert, Do::Raw]) && payloads != 1 {
        fault("do", "give exactly one of `what`, `text`, `hex`");
    }
    let ends = is(&[
        Do::Close,
        Do::Reset,
        Do::Hang,
        Do::Refuse,
        Do::Restart,
        Do::Die,
    ]);
    if at == Some(At::Accept) && (!ends || table.has("leg")) {
        fault(
            "at",
            "a new connection has no leg, and can be closed, reset or hung, or end the engine",
        );
    }
    if is(&[Do::ErrorOk]) && !matches!(at, None | Some(At::Head)) {
        fault("at", "error_ok is an answer of its own, at head");
    }
    let bare = matches!(
        at,
        None | Some(At::Head | At::InHead | At::End | At::Accept)
    );
    if is(&[Do::Eof, Do::Done, Do::Abort, Do::Insert]) && bare {
        fault(
            "at",
            "it needs a place inside the body: event, in_event, done or last",
        );
    }
}

/// Keys that mean something only beside another: whether they may stand here, and what they need.
fn needs(
    table: &Table<'_>,
    act: Option<Do>,
    at: Option<At>,
) -> [(&'static str, bool, &'static str); 10] {
    let is = |acts: &[Do]| act.is_some_and(|act| acts.contains(&act));
    let inserts = is(&[Do::Insert, Do::Raw]);
    // key, whether it may stand here, what it needs
    [
        ("at", act.is_some(), "it needs `do`"),
        (
            "events",
            matches!(at, Some(At::Event | At::InEvent)) || table.has("token_ids"),
            "it needs `at` event or in_event, or `token_ids`",
        ),
        (
            "pause_ms",
            is(&[Do::Pause, Do::Restart, Do::Refuse]),
            "it needs `do` pause, restart or refuse",
        ),
        (
            "status",
            is(&[Do::Error, Do::ErrorOk]),
            "it needs `do` error or error_ok",
        ),
        (
            "message",
            is(&[Do::Error, Do::ErrorOk]),
            "it needs `do` error or error_ok",
        ),
        ("what", inserts, "it needs `do` insert or raw"),
        ("text", inserts, "it needs `do` insert or raw"),
        ("hex", inserts, "it needs `do` insert or raw"),
        ("repeat", inserts, "it needs `do` insert or raw"),
        (
            "size_bytes",
            word::<What>(table, "what") == Some(What::Oversized),
            "it needs `what` oversized",
        ),
    ]
}

fn word<T: FromStr>(table: &Table<'_>, name: &str) -> Option<T> {
    table.text(name)?.parse().ok()
}
