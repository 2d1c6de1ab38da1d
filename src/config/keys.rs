//! Every key a fleet file may hold: path, kind, unit, range, default, meaning. One row, one key; nothing about keys is known
//! anywhere else. `[]` in a path stands for each item of a list. The keys of the existing router that we do not use follow
//! the table; they are accepted and reported.
//!
//! Pure; std only. Invariants, held by tests: paths are unique, every path's section has a row of its own, a default lies
//! inside its range.

use super::reload::Effect;
use super::source::Format;

mod table;

pub use table::KEYS;
use table::{NOT_USED, NOT_USED_SECTIONS};

/// One known key.
#[derive(Debug)]
pub struct Key {
    pub path: &'static str,
    pub want: Want,
    /// Empty when the value has none.
    pub unit: &'static str,
    pub preset: Preset,
    pub doc: &'static str,
}

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want {
    /// A table of keys that have rows of their own.
    Section,
    /// A list of such tables.
    Sections,
    /// A nonempty string.
    Text,
    /// A list of nonempty strings, none twice.
    Texts,
    /// One of these words.
    Word(&'static [&'static str]),
    Flag,
    /// A whole number from..=to.
    Count(u64, u64),
    /// A number from..=to.
    Real(f64, f64),
    /// A whole number in 0..=65535, or one of these words.
    Place(&'static [&'static str]),
}

/// What holds when the key is not there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preset {
    /// Nothing: the feature is off or the value comes from elsewhere, as the row's text says.
    Unset,
    /// The key must be there (when its section is); an example of its value, in JSON.
    Must(&'static str),
    Text(&'static str),
    Texts(&'static [&'static str]),
    Flag(bool),
    Count(u64),
    Real(f64),
    /// Follows from other keys, in words.
    Rule(&'static str),
}

/// What the table says about a path.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    Key(&'static Key),
    /// A key of the existing router that we do not use.
    NotUsed,
    /// A table that holds such keys only.
    NotUsedSection,
}

/// Looks a path up; `None` means an unknown key.
pub fn find(path: &str) -> Option<Known> {
    if let Some(key) = KEYS.iter().find(|key| key.path == path) {
        return Some(Known::Key(key));
    }
    if NOT_USED_SECTIONS.contains(&path) {
        return Some(Known::NotUsedSection);
    }
    NOT_USED.contains(&path).then_some(Known::NotUsed)
}

/// Every path, used or not, sections included.
pub fn paths() -> impl Iterator<Item = &'static str> {
    let used = KEYS.iter().map(|key| key.path);
    used.chain(NOT_USED_SECTIONS.iter().copied())
        .chain(NOT_USED.iter().copied())
}

/// The table of used keys as Markdown, for the README.
pub fn markdown() -> String {
    let head = "| key | unit | allowed | default | reload | meaning |\n|---|---|---|---|---|---|\n";
    KEYS.iter().fold(head.to_owned(), |table, key| {
        table + &format!("| {} |\n", key.cells().join(" | "))
    })
}

/// The section that holds `path` (empty for the top level), and the name within it.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// The known path that a mistyped one most likely means: a neighbour at most two edits away or made of the same letters,
/// else the same name in another section.
pub fn near_miss(section: &str, name: &str) -> Option<&'static str> {
    if name.len() > NEAR_NAME_BYTES_MAX {
        return None;
    }
    let neighbour = paths()
        .filter(|path| split(path).0 == section)
        .filter_map(|path| Some((distance(name, split(path).1)?, path)))
        .min_by_key(|(distance, _)| *distance);
    if let Some((_, path)) = neighbour {
        return Some(path);
    }
    let mut same = paths().filter(|path| split(path).1 == name);
    same.next().filter(|_| same.next().is_none())
}

/// Edits from one name to the other when they are few enough to be a slip: 0 for the same letters in another order, case
/// or with other separators; `None` when the names are too different.
pub(crate) fn distance(a: &str, b: &str) -> Option<usize> {
    let letters = |name: &str| {
        let mut letters: Vec<u8> = name
            .bytes()
            .filter(u8::is_ascii_alphanumeric)
            .map(|b| b.to_ascii_lowercase())
            .collect();
        letters.sort_unstable();
        letters
    };
    if letters(a) == letters(b) {
        return Some(0);
    }
    // Two edits turn any word of two letters into any other, so short names get fewer.
    let bound = if b.len() < 4 { 1 } else { 2 };
    if a.len().abs_diff(b.len()) > bound {
        return None;
    }
    Some(edits(a.as_bytes(), b.as_bytes())).filter(|edits| *edits <= bound)
}

/// Levenshtein distance, one row at a time.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

impl Key {
    /// The allowed values in words, without the unit.
    pub fn allowed(&self) -> String {
        match self.want {
            Want::Section => "a table".to_owned(),
            Want::Sections => "a list of tables".to_owned(),
            Want::Text => "a nonempty string".to_owned(),
            Want::Texts => "a list of nonempty strings".to_owned(),
            Want::Word(words) => words.join(", "),
            Want::Flag => "true or false".to_owned(),
            Want::Count(from, to) => format!("a whole number from {from} to {to}"),
            Want::Real(from, to) => format!("a number from {from} to {to}"),
            Want::Place(words) => format!("{}, or a whole number", words.join(", ")),
        }
    }

    /// The default in words, as TOML writes it.
    pub fn default(&self) -> String {
        match self.preset {
            Preset::Unset => "none".to_owned(),
            Preset::Must(_) => "none; must be given".to_owned(),
            Preset::Text(text) => format!("{text:?}"),
            Preset::Texts(texts) => format!("{texts:?}"),
            Preset::Flag(flag) => flag.to_string(),
            Preset::Count(n) => n.to_string(),
            Preset::Real(n) => format!("{n:?}"),
            Preset::Rule(words) => words.to_owned(),
        }
    }

    /// A row of the README's table. A section stands as a row without values.
    fn cells(&self) -> [String; 6] {
        let (path, doc) = (self.path, self.doc.to_owned());
        let words = |words: &[&str]| -> String {
            let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            quoted.join(", ")
        };
        let allowed = match self.want {
            Want::Section | Want::Sections => {
                let none = String::new;
                let path = format!("**`{path}`**");
                return [path, none(), none(), none(), none(), doc];
            }
            Want::Text => "text".to_owned(),
            Want::Texts => "list of texts".to_owned(),
            Want::Word(known) => words(known),
            Want::Flag => words(&["true", "false"]),
            Want::Count(from, to) => format!("{from} to {to}"),
            Want::Real(from, to) => format!("{from} to {to}"),
            Want::Place(known) => format!("{}, or a whole number", words(known)),
        };
        let default = match self.preset {
            Preset::Must(_) => "must be given".to_owned(),
            Preset::Unset => "not set".to_owned(),
            Preset::Rule(rule) => rule.to_owned(),
            _ => format!("`{}`", self.default()),
        };
        let reload = Effect::of(path).name().to_owned();
        let (path, unit) = (format!("`{path}`"), self.unit.to_owned());
        [path, unit, allowed, default, reload, doc]
    }

    /// What a reader of a fleet file should know: comment lines to stand above the key.
    pub fn comment(&self) -> String {
        if matches!(self.want, Want::Section | Want::Sections) {
            return format!("# {}", self.doc);
        }
        let unit = if self.unit.is_empty() {
            String::new()
        } else {
            format!(" {}", self.unit)
        };
        let (allowed, default) = (self.allowed(), self.default());
        format!(
            "# {}\n# Allowed: {allowed}{unit}. Default: {default}.",
            self.doc
        )
    }

    /// How the value of a key that must be there is written; a section shows the members it must have.
    pub(super) fn example(&self, format: Format) -> String {
        let Preset::Must(json) = self.preset else {
            return String::new();
        };
        if !json.is_empty() {
            return in_format(json, format);
        }
        let members = KEYS.iter().filter(|key| split(key.path).0 == self.path);
        let inner: Vec<String> = members
            .filter_map(|member| match member.preset {
                Preset::Must(value) => Some(format!("\"{}\": {value}", split(member.path).1)),
                _ => None,
            })
            .collect();
        in_format(&format!("{{{}}}", inner.join(", ")), format)
    }
}

/// An example from the table in either format. The table's examples hold only tables, names, numbers, and strings
/// without `": `.
fn in_format(json: &str, format: Format) -> String {
    if format == Format::Json {
        return json.to_owned();
    }
    let mut toml = String::new();
    let mut rest = json;
    while let Some((before, after)) = rest.split_once("\": ") {
        match before.rsplit_once('"') {
            Some((head, name)) => toml.extend([head, name, " = "]),
            None => toml.push_str(before),
        }
        rest = after;
    }
    toml + rest
}

/// A longer name is no slip of a known one.
const NEAR_NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    // proves R-CFG-1
    #[test]
    fn every_key_of_the_existing_router_is_known() {
        let list = include_str!("../../tests/vectors/fleet_keys.txt");
        let keys: Vec<&str> = list.lines().filter(|l| !l.starts_with('#')).collect();
        assert!(keys.len() > 100);
        for key in &keys {
            assert!(find(key).is_some(), "{key}");
        }
        for key in NOT_USED {
            assert!(keys.contains(key), "{key} is nobody's");
        }
    }

    #[test]
    fn the_table_is_sound() {
        let mut seen = BTreeSet::new();
        for path in paths() {
            assert!(seen.insert(path), "{path} twice");
            let section = split(path).0.trim_end_matches("[]");
            assert!(
                section.is_empty() || seen.contains(section) || find(section).is_some(),
                "{path}"
            );
        }
        for key in KEYS {
            assert!(key.doc.ends_with('.'), "{}", key.path);
            match (key.want, key.preset) {
                (Want::Count(a, b), Preset::Count(n)) => {
                    assert!((a..=b).contains(&n), "{}", key.path)
                }
                (Want::Real(a, b), Preset::Real(n)) => {
                    assert!((a..=b).contains(&n), "{}", key.path)
                }
                (Want::Word(words), Preset::Text(word)) => {
                    assert!(words.contains(&word), "{}", key.path)
                }
                (Want::Flag, Preset::Flag(_)) | (Want::Texts, Preset::Texts(_)) => {}
                (_, Preset::Must(_) | Preset::Unset | Preset::Rule(_)) => {}
                other => panic!("{}: {other:?}", key.path),
            }
            // A name tells its unit.
            let seconds = matches!(key.want, Want::Real(..)) && key.path.ends_with("_s");
            assert_eq!(key.unit == "seconds", seconds, "{}", key.path);
            assert_eq!(
                key.unit == "bytes",
                key.path.ends_with("_bytes"),
                "{}",
                key.path
            );
        }
    }

    #[test]
    fn the_markdown_has_a_row_each() {
        let text = markdown();
        assert_eq!(text.lines().count(), KEYS.len() + 2);
        assert!(text.lines().all(|l| l.matches('|').count() == 7), "{text}");
        for row in [
            "| **`serving`** |  |  |  |  | Admission, bounds and deadlines. |",
            "| `slo.ttft_s` | seconds | 0.001 to 86400 | must be given | live | Time to the first token. |",
            "| `runtime.driver` |  | `auto`, `io_uring`, `epoll`, `glommio` | `\"auto\"` | restart | How sockets are driven. |",
        ] {
            assert!(text.contains(row), "{row} in {text}");
        }
    }

    // proves R-CFG-1
    #[test]
    fn near_misses_are_found() {
        let rows: &[(&str, &str, Option<&str>)] = &[
            ("serving", "max_conections", Some("serving.max_connections")),
            (
                "serving",
                "prefill_timeout",
                Some("serving.prefill_timeout_s"),
            ),
            (
                "serving",
                "prefill_timeout_ms",
                Some("serving.prefill_timeout_s"),
            ),
            ("serving", "Retry-Base-S", Some("serving.retry_base_s")),
            ("serving", "retries", None),
            ("", "max_connections", Some("serving.max_connections")),
            ("", "modle", Some("model")),
            ("", "engine", Some("engine")),
            ("engines[]", "uri", Some("engines[].url")),
            ("engines[]", "idd", Some("engines[].iid")),
            ("engines[]", "abc", None),
            (
                "engine_contract",
                "kv_rolle",
                Some("engine_contract.kv_role"),
            ),
            (
                "serving",
                "min_samples",
                Some("recovery.health.min_samples"),
            ),
            // `path` of another section would be a guess worth making; a name in no section is none.
            ("serving", "path", Some("profiles.path")),
            ("serving", "nothing_like_it", None),
        ];
        for (section, name, want) in rows {
            assert_eq!(near_miss(section, name), *want, "{section} {name}");
        }
        assert_eq!(near_miss("", &"x".repeat(1000)), None);
    }

    /// The same by the definition, without memory.
    fn naive_edits(a: &[u8], b: &[u8]) -> usize {
        match (a, b) {
            ([], rest) | (rest, []) => rest.len(),
            ([x, a_rest @ ..], [y, b_rest @ ..]) => (naive_edits(a_rest, b_rest)
                + usize::from(x != y))
            .min(naive_edits(a_rest, b) + 1)
            .min(naive_edits(a, b_rest) + 1),
        }
    }

    proptest::proptest! {
        #[test]
        fn edits_are_counted_as_defined(a in "[abc]{0,6}", b in "[abc]{0,6}") {
            proptest::prop_assert_eq!(edits(a.as_bytes(), b.as_bytes()), naive_edits(a.as_bytes(), b.as_bytes()));
        }
    }
}
