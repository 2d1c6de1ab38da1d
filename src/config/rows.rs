//! Files that are a list of tables (profiles, fault scripts), read as strictly as the fleet file and with the same words: file,
//! line, column, key, what was found, what is allowed, and a hint where a name is nearly right. Owns the walk over one table;
//! JSON and TOML both come from the fleet file's reader. Pure.
//!
//! Invariant: what a getter returns lies in its key's range; a name that starts with `_` is an annotation and is passed over.

use super::fault::Faults;
use super::keys::distance;
use super::source::{self, Node, Value};
use super::{Errors, Format};

/// One name that a table may hold.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub want: Want,
    /// Shown behind the range; empty for what has no unit.
    pub unit: &'static str,
    pub must: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Want {
    Count(u64, u64),
    Real(f64, f64),
    Text,
    Word(&'static [&'static str]),
    List,
}

#[derive(Clone, Copy, Debug)]
enum Got<'n> {
    Count(u64),
    Real(f64),
    Text(&'n str),
    List(&'n [Node]),
}

/// The members of one table that are all right.
#[derive(Debug)]
pub struct Table<'n> {
    /// What stands before its keys in messages: empty, or `rules[3].`.
    shown: String,
    at: usize,
    got: Vec<(&'static str, usize, Got<'n>)>,
}

/// Longest file of this kind.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Reads `text` and gives its top table's list `list` to `each`, item by item. All faults of the file come back together.
pub fn read<T>(
    (file, text, format): (&str, &str, Format),
    (schema, list): (&'static str, &'static str),
    each: impl Fn(&Node, &str, &mut Faults<'_>) -> Option<T>,
) -> Result<Vec<T>, Errors> {
    if text.len() > FILE_BYTES_MAX {
        let what = format!("longer than {FILE_BYTES_MAX} bytes");
        return Err(Errors::of_file(file, what));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut faults = Faults::new(file, text);
    let root = match source::read(text, format) {
        Ok(root) => root,
        Err(fault) => {
            faults.add(fault.at, "", fault.what);
            return Err(faults.into_errors());
        }
    };
    let keys = [
        Key::new("schema", Want::Text).must(),
        Key::new("schema_version", Want::Count(1, 1)).must(),
        Key::new(list, Want::List).must(),
    ];
    let mut out = Vec::new();
    if let Some(top) = Table::read(&root, "", &keys, &mut faults) {
        if let Some(found) = top.text("schema").filter(|found| *found != schema) {
            let fault = faults.add(top.at("schema"), "schema", "another kind of file");
            (fault.found, fault.allowed) = (format!("{found:?}"), format!("{schema:?}"));
        }
        for (i, node) in top.list(list).iter().enumerate() {
            out.extend(each(node, &format!("{list}[{i}]."), &mut faults));
        }
    }
    if faults.is_empty() {
        Ok(out)
    } else {
        Err(faults.into_errors())
    }
}

impl Key {
    pub const fn new(name: &'static str, want: Want) -> Self {
        Key {
            name,
            want,
            unit: "",
            must: false,
        }
    }

    pub const fn unit(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }

    pub const fn must(mut self) -> Self {
        self.must = true;
        self
    }

    fn allowed(&self) -> String {
        match self.want {
            Want::Count(from, to) => format!("{from} to {to}"),
            Want::Real(from, to) => format!("{from} to {to}"),
            Want::Text => "text".into(),
            Want::Word(words) => format!("one of {}", words.join(", ")),
            Want::List => "a list".into(),
        }
    }
}

impl<'n> Table<'n> {
    /// Notes what is unknown, doubled, missing, of a wrong type or out of range; `None` when the node is no table.
    pub fn read(
        node: &'n Node,
        shown: &str,
        keys: &[Key],
        faults: &mut Faults<'_>,
    ) -> Option<Self> {
        let Value::Table(members) = &node.value else {
            let fault = faults.add(node.at, shown.trim_end_matches('.'), "wrong type");
            (fault.found, fault.allowed) = (node.shown(), "a table".into());
            return None;
        };
        let mut table = Table {
            shown: shown.to_owned(),
            at: node.at,
            got: Vec::new(),
        };
        for (i, member) in members.iter().enumerate() {
            let name = member.key.as_str();
            if name.starts_with('_') {
                continue;
            }
            let path = format!("{shown}{name}");
            let Some(key) = keys.iter().find(|key| key.name == name) else {
                let fault = faults.add(member.key_at, &path, "unknown key");
                let names = keys.iter().map(|key| key.name);
                fault.hint = nearest(name, names);
                continue;
            };
            if members[..i].iter().any(|earlier| earlier.key == name) {
                faults.add(member.key_at, &path, "given twice");
                continue;
            }
            if let Some(got) = value(key, &member.node, &path, faults) {
                table.got.push((key.name, member.node.at, got));
            }
        }
        for key in keys.iter().filter(|key| key.must) {
            if !members.iter().any(|member| member.key == key.name) {
                let fault = faults.add(node.at, &format!("{shown}{}", key.name), "missing");
                (fault.allowed, fault.unit) = (key.allowed(), key.unit);
            }
        }
        Some(table)
    }

    /// The key's path, for a fault that the caller finds.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.shown)
    }

    /// Where its value stands; else where the table starts.
    pub fn at(&self, name: &str) -> usize {
        self.find(name).map_or(self.at, |(at, _)| at)
    }

    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    pub fn count(&self, name: &str) -> Option<u64> {
        match self.find(name)?.1 {
            Got::Count(n) => Some(n),
            _ => None,
        }
    }

    pub fn real(&self, name: &str) -> Option<f64> {
        match self.find(name)?.1 {
            Got::Real(n) => Some(n),
            _ => None,
        }
    }

    pub fn text(&self, name: &str) -> Option<&'n str> {
        match self.find(name)?.1 {
            Got::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn list(&self, name: &str) -> &'n [Node] {
        match self.find(name) {
            Some((_, Got::List(items))) => items,
            _ => &[],
        }
    }

    fn find(&self, name: &str) -> Option<(usize, Got<'n>)> {
        let found = self.got.iter().find(|got| got.0 == name)?;
        Some((found.1, found.2))
    }
}

fn value<'n>(key: &Key, node: &'n Node, path: &str, faults: &mut Faults<'_>) -> Option<Got<'n>> {
    let mut hint = String::new();
    let what = match (&node.value, key.want) {
        (Value::List(items), Want::List) => return Some(Got::List(items)),
        (Value::Text(text), Want::Text) => return Some(Got::Text(text)),
        (Value::Text(text), Want::Word(words)) => {
            if words.contains(&text.as_str()) {
                return Some(Got::Text(text));
            }
            hint = nearest(text, words.iter().copied());
            "unknown word"
        }
        (Value::Number(text), Want::Count(from, to)) => match text.parse::<u64>() {
            Ok(n) if (from..=to).contains(&n) => return Some(Got::Count(n)),
            Ok(_) => "out of range",
            Err(_) => "not a whole number",
        },
        (Value::Number(text), Want::Real(from, to)) => match text.parse::<f64>() {
            Ok(n) if (from..=to).contains(&n) => return Some(Got::Real(n)),
            _ => "out of range",
        },
        _ => "wrong type",
    };
    let fault = faults.add(node.at, path, what);
    (fault.found, fault.allowed, fault.unit) = (node.shown(), key.allowed(), key.unit);
    fault.hint = hint;
    None
}

fn nearest<'w>(name: &str, words: impl Iterator<Item = &'w str>) -> String {
    if name.len() > NEAR_NAME_BYTES_MAX {
        return String::new();
    }
    let near = words
        .filter_map(|word| Some((distance(name, word)?, word)))
        .min_by_key(|(distance, _)| *distance);
    near.map_or(String::new(), |(_, word)| format!("did you mean {word}?"))
}

/// Longer names are no slips, and comparing them costs their square.
const NEAR_NAME_BYTES_MAX: usize = 64;
