//! The file as written: every value checked by itself against its row of the key table, not yet against other values.
//!
//! One walk over the located tree; no serde, because a fault must name the place, the unit and the range, and because all
//! faults are wanted at once. A value that is wrong is noted and then reads as its default, so that the checks of whole
//! combinations (`checked`) can go on.
//!
//! Pure; may use `keys`, `source`, `fault`. Invariant: what a getter returns lies in its key's range.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fault::Faults;
use super::keys::{self, KEYS, Key, Known, Preset, Want};
use super::source::{Format, Member, Node, Value, shown_text};

/// The whole file.
pub(super) struct Raw<'a> {
    pub top: Scope<'a>,
    pub engines: Vec<Scope<'a>>,
    /// Items in the list of engines, those that are no tables included.
    pub engines_listed: usize,
    /// Accepted and not used, each path once, in file order.
    pub not_used: Vec<String>,
    format: Format,
}

/// One set of keys: the file's own, or one engine's.
pub(super) struct Scope<'a> {
    /// Where a key that is not there would have to be written.
    pub at: usize,
    /// What messages put in place of the table's `engines[].`; empty at the top.
    shown: String,
    found: Vec<Found<'a>>,
    /// Keys that are there with a value that was refused: they are not missing.
    refused: Vec<&'static str>,
}

/// A key that is there, with a value of the right kind and range.
struct Found<'a> {
    key: &'static Key,
    at: usize,
    got: Got<'a>,
}

enum Got<'a> {
    Section,
    Text(&'a str),
    Texts(Vec<(&'a str, usize)>),
    Flag(bool),
    Count(u64),
    Real(f64),
}

pub(super) fn read<'a>(root: &'a Node, format: Format, faults: &mut Faults<'_>) -> Raw<'a> {
    let mut raw = Raw {
        top: Scope::new(0, String::new()),
        engines: Vec::new(),
        engines_listed: 0,
        not_used: Vec::new(),
        format,
    };
    let Value::Table(members) = &root.value else {
        let fault = faults.add(root.at, "", "wrong type");
        (fault.found, fault.allowed) = (root.shown(), "a table".to_owned());
        return raw;
    };
    let mut top = Scope::new(root.at, String::new());
    raw.table("", members, &mut top, faults);
    raw.missing("", &top, faults);
    raw.top = top;
    raw
}

impl<'a> Raw<'a> {
    /// Takes the members of the section `path` in. Recurses as deep as the key table, not as the file.
    fn table(
        &mut self,
        path: &str,
        members: &'a [Member],
        scope: &mut Scope<'a>,
        faults: &mut Faults<'_>,
    ) {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for member in members {
            let name = member.key.as_str();
            if name.starts_with('_') {
                continue;
            }
            let full = join(path, name);
            let shown = scope.shown(&full);
            if let Some(first) = seen.get(name) {
                let what = format!("given twice, first on line {}", faults.line(*first));
                faults.add(member.key_at, &shown, what);
                continue;
            }
            seen.insert(name, member.key_at);
            match keys::find(&full) {
                Some(Known::Key(key)) => self.value(key, &member.node, scope, faults),
                Some(Known::NotUsed) => self.ignore(&full),
                Some(Known::NotUsedSection) => match &member.node.value {
                    Value::Table(inner) if !inner.is_empty() => {
                        self.table(&full, inner, scope, faults);
                    }
                    _ => self.ignore(&full),
                },
                None => {
                    let fault = faults.add(member.key_at, &shown, "unknown key");
                    if let Some(near) = keys::near_miss(path, name) {
                        let (section, same) = keys::split(near);
                        let near = if section == path { same } else { near };
                        fault.hint = format!("did you mean {near}?");
                    }
                }
            }
        }
    }

    fn value(
        &mut self,
        key: &'static Key,
        node: &'a Node,
        scope: &mut Scope<'a>,
        faults: &mut Faults<'_>,
    ) {
        let shown = scope.shown(key.path);
        let got = match (&node.value, key.want) {
            // JSON's way to say "not set".
            (Value::Null, _) => return,
            (Value::Table(members), Want::Section) => {
                self.table(key.path, members, scope, faults);
                Got::Section
            }
            (Value::List(items), Want::Sections) => {
                self.items(key, items, faults);
                Got::Section
            }
            _ => match scalar(key, node, &shown, faults) {
                Some(got) => got,
                None => return scope.refused.push(key.path),
            },
        };
        scope.found.push(Found {
            key,
            at: node.at,
            got,
        });
    }

    fn items(&mut self, key: &Key, items: &'a [Node], faults: &mut Faults<'_>) {
        let path = format!("{}[]", key.path);
        self.engines_listed = items.len();
        for (i, item) in items.iter().enumerate() {
            let shown = format!("{}[{i}]", key.path);
            let Value::Table(members) = &item.value else {
                let fault = faults.add(item.at, &shown, "wrong type");
                (fault.found, fault.allowed) = (item.shown(), "a table".to_owned());
                continue;
            };
            let mut scope = Scope::new(item.at, shown);
            self.table(&path, members, &mut scope, faults);
            self.missing(&path, &scope, faults);
            self.engines.push(scope);
        }
    }

    /// Notes the keys under `root` that must be there and are not.
    fn missing(&self, root: &str, scope: &Scope<'a>, faults: &mut Faults<'_>) {
        for key in KEYS {
            let Preset::Must(_) = key.preset else {
                continue;
            };
            let (section, name) = keys::split(key.path);
            let under = if root.is_empty() {
                !section.contains("[]")
            } else {
                section == root
            };
            if !under || scope.has(key.path) || scope.refused.contains(&key.path) {
                continue;
            }
            // A section that is missing too is named instead of its members.
            let at = match scope.find(section) {
                Some(found) => found.at,
                None if section == root => scope.at,
                None => continue,
            };
            let example = key.example(self.format);
            let fault = faults.add(at, &scope.shown(key.path), "missing");
            fault.hint = match self.format {
                Format::Json => format!("write \"{name}\": {example}"),
                Format::Toml => format!("write {name} = {example}"),
            };
        }
    }

    fn ignore(&mut self, path: &str) {
        if !self.not_used.iter().any(|p| p == path) {
            self.not_used.push(path.to_owned());
        }
    }
}

impl<'a> Scope<'a> {
    fn new(at: usize, shown: String) -> Self {
        Scope {
            at,
            shown,
            found: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// A table path as messages show it.
    pub fn shown(&self, path: &str) -> String {
        match path.split_once("[]") {
            Some((_, rest)) => format!("{}{rest}", self.shown),
            None => path.to_owned(),
        }
    }

    pub fn has(&self, path: &str) -> bool {
        self.find(path).is_some()
    }

    /// Where the key's value stands; where it would have to stand when it is not there.
    pub fn at(&self, path: &str) -> usize {
        self.find(path).map_or(self.at, |found| found.at)
    }

    pub fn text(&self, path: &str) -> Option<&'a str> {
        match self.find(path).map(|found| &found.got) {
            Some(Got::Text(text)) => Some(text),
            _ => match row(path).preset {
                Preset::Text(text) => Some(text),
                _ => None,
            },
        }
    }

    /// Each text with its place.
    pub fn texts(&self, path: &str) -> Vec<(&'a str, usize)> {
        match self.find(path).map(|found| &found.got) {
            Some(Got::Texts(texts)) => texts.clone(),
            _ => match row(path).preset {
                Preset::Texts(texts) => texts.iter().map(|text| (*text, self.at)).collect(),
                _ => Vec::new(),
            },
        }
    }

    pub fn flag(&self, path: &str) -> bool {
        match self.find(path).map(|found| &found.got) {
            Some(Got::Flag(flag)) => *flag,
            _ => row(path).preset == Preset::Flag(true),
        }
    }

    /// `None` when it is not there and the table sets no number.
    pub fn count(&self, path: &str) -> Option<u64> {
        match self.find(path).map(|found| &found.got) {
            Some(Got::Count(n)) => Some(*n),
            _ => match row(path).preset {
                Preset::Count(n) => Some(n),
                _ => None,
            },
        }
    }

    /// 0 when it is not there and the table sets no number: the caller has a missing key to report.
    pub fn real(&self, path: &str) -> f64 {
        match self.find(path).map(|found| &found.got) {
            Some(Got::Real(n)) => *n,
            _ => match row(path).preset {
                Preset::Real(n) => n,
                _ => 0.0,
            },
        }
    }

    /// Every key in seconds is finite, not negative and at most a day, so the conversion cannot fail.
    pub fn seconds(&self, path: &str) -> Duration {
        Duration::try_from_secs_f64(self.real(path)).unwrap_or_default()
    }

    fn find(&self, path: &str) -> Option<&Found<'a>> {
        self.found.iter().find(|found| found.key.path == path)
    }
}

/// A value that is no table of keys, or a fault.
fn scalar<'a>(
    key: &'static Key,
    node: &'a Node,
    shown: &str,
    faults: &mut Faults<'_>,
) -> Option<Got<'a>> {
    let (what, found) = match (&node.value, key.want) {
        (Value::Flag(flag), Want::Flag) => return Some(Got::Flag(*flag)),
        (Value::Text(text), Want::Text | Want::Word(_)) if text.trim().is_empty() => {
            ("empty", String::new())
        }
        (Value::Text(text), Want::Text) => return Some(Got::Text(text)),
        (Value::Text(text), Want::Word(words) | Want::Place(words)) => {
            if words.contains(&text.as_str()) {
                return Some(Got::Text(text));
            }
            ("unknown word", node.shown())
        }
        (Value::List(items), Want::Texts) => return texts(key, items, shown, faults),
        (Value::Number(text), Want::Count(from, to)) => match whole(text) {
            Some(n) if (i128::from(from)..=i128::from(to)).contains(&n) => {
                // In a range of u64.
                return Some(Got::Count(n as u64));
            }
            Some(_) => ("out of range", node.shown()),
            None => ("not a whole number", node.shown()),
        },
        (Value::Number(text), Want::Place(_)) => match whole(text) {
            Some(n) if (0..=i128::from(u16::MAX)).contains(&n) => {
                return Some(Got::Count(n as u64));
            }
            Some(_) => ("out of range", node.shown()),
            None => ("not a whole number", node.shown()),
        },
        (Value::Number(text), Want::Real(from, to)) => match text.parse::<f64>() {
            // NaN (TOML has one) is in no range.
            Ok(n) if (from..=to).contains(&n) => return Some(Got::Real(n)),
            _ => ("out of range", node.shown()),
        },
        (Value::Text(text), _) => ("wrong type", format!("the string {}", shown_text(text))),
        (Value::Number(_), _) => ("wrong type", format!("the number {}", node.shown())),
        _ => ("wrong type", node.shown()),
    };
    let fault = faults.add(node.at, shown, what);
    (fault.found, fault.allowed, fault.unit) = (found, key.allowed(), key.unit);
    None
}

fn texts<'a>(
    key: &Key,
    items: &'a [Node],
    shown: &str,
    faults: &mut Faults<'_>,
) -> Option<Got<'a>> {
    let mut out: Vec<(&str, usize)> = Vec::with_capacity(items.len());
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut sound = true;
    for (i, item) in items.iter().enumerate() {
        let shown = format!("{shown}[{i}]");
        match &item.value {
            Value::Text(text) if !text.trim().is_empty() => {
                if let Some(first) = seen.insert(text, item.at) {
                    let what = format!("listed twice, first on line {}", faults.line(first));
                    faults.add(item.at, &shown, what).found = item.shown();
                    sound = false;
                }
                out.push((text, item.at));
            }
            _ => {
                let fault = faults.add(item.at, &shown, "wrong type");
                (fault.found, fault.allowed) = (item.shown(), "a nonempty string".to_owned());
                sound = false;
            }
        }
    }
    debug_assert!(key.want == Want::Texts);
    sound.then_some(Got::Texts(out))
}

/// A number without point and exponent; saturated far outside every range when it is long.
fn whole(text: &str) -> Option<i128> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(i128::MAX))
}

fn join(section: &str, name: &str) -> String {
    if section.is_empty() {
        name.to_owned()
    } else {
        format!("{section}.{name}")
    }
}

/// The row of a path that this room's own code names; a test builds a fleet, which asks for every one of them.
fn row(path: &str) -> &'static Key {
    debug_assert!(KEYS.iter().any(|key| key.path == path), "{path}");
    KEYS.iter().find(|key| key.path == path).unwrap_or(&KEYS[0])
}
