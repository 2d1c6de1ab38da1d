//! The contract (`src/CONTRACT.md`) and its proofs: every rule that is held is claimed by a test, every claim names a rule,
//! and no text names a rule that does not exist. The README's tables of keys and metrics are
//! those that the code prints.
//!
//! A rule is a list item `- **R-…** (held)` or `(planned)`; a note may follow the state inside the brackets. A claim is
//! a comment `proves R-…, R-…` right above a test.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::lexer::Line;
use super::source::{Fault, File, Tree};

const CONTRACT: &str = "src/CONTRACT.md";
const README: &str = "README.md";

struct Rule {
    line: usize,
    held: bool,
}

pub fn check(tree: &Tree) -> Vec<Fault> {
    let (rules, mut faults) = rules(tree);
    let claims = claims(tree);
    for (id, rule) in &rules {
        if rule.held && !claims.contains_key(id) {
            faults.push(fault(
                CONTRACT,
                rule.line,
                format!("{id} is held and proved by no test"),
            ));
        }
    }
    for file in &tree.rust {
        for (number, line) in file.numbered() {
            for id in ids(&line.comment).filter(|id| !rules.contains_key(id)) {
                faults.push(file.fault(number, format!("{id} is no rule of the contract")));
            }
            if is_claim(line) && !stands_above_a_test(file, number) {
                faults.push(file.fault(number, "a claim that stands above no test"));
            }
        }
    }
    for (path, text) in &tree.texts {
        for (number, line) in (1..).zip(text.lines()) {
            for id in ids(line).filter(|id| !rules.contains_key(id)) {
                faults.push(fault(
                    path,
                    number,
                    format!("{id} is no rule of the contract"),
                ));
            }
        }
    }
    faults
}

/// Every rule, its state, and the tests that claim it.
pub fn mapping(tree: &Tree) -> String {
    let (rules, claims) = (rules(tree).0, claims(tree));
    let mut out = String::new();
    for (id, rule) in &rules {
        let state = if rule.held { "held" } else { "planned" };
        let places = claims
            .get(id)
            .map_or(String::from("-"), |places| places.join(" "));
        writeln!(out, "{id:<10} {state:<8} {places}").expect("a string takes all text");
    }
    out
}

/// A table that the code prints stands in the README, between the markers of its name.
pub fn check_table(tree: &Tree, name: &str, table: &str) -> Vec<Fault> {
    let text = tree.texts.get(README).map_or("", String::as_str);
    let marks = markers(name);
    let [begin, end] = marks.each_ref().map(|marker| text.find(marker.as_str()));
    let (begin, end) = match (begin, end) {
        (Some(begin), Some(end)) if begin < end => (begin, end),
        _ => {
            let what = format!("`{}` and `{}` hold a table", marks[0], marks[1]);
            return vec![fault(README, 0, what)];
        }
    };
    let found = text[begin + marks[0].len()..end].trim();
    if found == table.trim() {
        return Vec::new();
    }
    let line = text[..begin].lines().count();
    let what = format!("the table of {name} is not this one:\n{table}");
    vec![fault(README, line, what)]
}

fn markers(name: &str) -> [String; 2] {
    ["begin", "end"].map(|side| format!("<!-- {name}: {side} -->"))
}

fn rules(tree: &Tree) -> (BTreeMap<String, Rule>, Vec<Fault>) {
    let text = tree.texts.get(CONTRACT).map_or("", String::as_str);
    let (mut rules, mut faults) = (BTreeMap::new(), Vec::new());
    for (line, text) in (1..).zip(text.lines()) {
        let Some(rest) = text.strip_prefix("- **R-") else {
            continue;
        };
        let (id, state) = rest.split_once("** (").unwrap_or((rest, ""));
        let state = state.split(|c: char| !c.is_ascii_alphabetic()).next();
        let held = match state {
            Some("held") => true,
            Some("planned") => false,
            _ => {
                faults.push(fault(CONTRACT, line, "a rule is `(held)` or `(planned)`"));
                continue;
            }
        };
        let id = format!("R-{id}");
        if ids(&id).next().as_ref() != Some(&id) {
            faults.push(fault(CONTRACT, line, format!("`{id}` is no id of a rule")));
        } else if rules.insert(id.clone(), Rule { line, held }).is_some() {
            faults.push(fault(CONTRACT, line, format!("{id} is there twice")));
        }
    }
    if rules.is_empty() {
        faults.push(fault(CONTRACT, 0, "holds no rule"));
    }
    (rules, faults)
}

/// Id to places.
fn claims(tree: &Tree) -> BTreeMap<String, Vec<String>> {
    let mut claims: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in &tree.rust {
        for (number, line) in file.numbered().filter(|(_, line)| is_claim(line)) {
            for id in ids(&line.comment) {
                claims
                    .entry(id)
                    .or_default()
                    .push(format!("{}:{number}", file.path));
            }
        }
    }
    claims
}

fn is_claim(line: &Line) -> bool {
    line.comment.trim_start().starts_with("proves R-")
}

/// Only comments and attributes between the claim and its function, `#[…test…]` among them.
fn stands_above_a_test(file: &File, number: usize) -> bool {
    let below = file.lines[number..].iter().map(|line| line.code.trim());
    below
        .take_while(|code| code.is_empty() || code.starts_with("#["))
        .any(|code| super::lexer::words(code, "test").next().is_some())
}

/// Ids of rules in a text.
fn ids(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .filter_map(|word| {
            let (room, number) = word.strip_prefix("R-")?.split_once('-')?;
            let is_room =
                (2..=5).contains(&room.len()) && room.bytes().all(|b| b.is_ascii_uppercase());
            let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            (is_room && is_number).then(|| word.to_string())
        })
}

fn fault(path: &str, line: usize, what: impl Into<String>) -> Fault {
    let (path, what) = (path.to_string(), what.into());
    Fault { path, line, what }
}

#[cfg(test)]
const SAMPLE: &str = "- **R-AA-1** (held) one.\n- **R-AA-2** (planned; but x) two, see R-AA-1.\n";

#[test]
fn a_proved_contract_passes() {
    let proof = "// proves R-AA-1\n// Why.\n#[test]\nfn t() {}\n";
    assert_eq!(
        check(&Tree::of([(CONTRACT, SAMPLE), ("tests/a.rs", proof)])),
        []
    );
}

#[test]
fn each_breach_is_seen() {
    let rows: &[(&str, &str, &str)] = &[
        (SAMPLE, "", "R-AA-1 is held and proved by no test"),
        (
            SAMPLE,
            "// proves R-AA-1, R-AA-9\n#[test]\nfn t() {}",
            "R-AA-9 is no rule",
        ),
        (
            SAMPLE,
            "// proves R-AA-1\nfn t() {}",
            "a claim that stands above no test",
        ),
        (SAMPLE, "let a = \"// proves R-AA-1\";", "proved by no test"),
        (
            SAMPLE,
            "// proves R-AA-1\n#[test]\nfn t() {}\n// R-BB-1",
            "R-BB-1 is no rule",
        ),
        ("- **R-AA-1** one\n", "", "`(held)` or `(planned)`"),
        ("- **R-AA-1** (done) one\n", "", "`(held)` or `(planned)`"),
        ("- **R-A1** (held) one\n", "", "no id of a rule"),
        (
            "- **R-AA-1** (planned) a\n- **R-AA-1** (planned) b\n",
            "",
            "there twice",
        ),
        ("nothing\n", "", "holds no rule"),
    ];
    for (contract, code, want) in rows {
        let found = check(&Tree::of([(CONTRACT, *contract), ("tests/a.rs", *code)]));
        assert!(
            found.iter().any(|fault| fault.what.contains(want)),
            "{want}: {found:?}"
        );
    }
}

#[test]
fn the_mapping_names_what_is_open() {
    let proof = "// proves R-AA-1\n#[test]\nfn t() {}\n";
    let text = mapping(&Tree::of([(CONTRACT, SAMPLE), ("tests/a.rs", proof)]));
    assert_eq!(
        text,
        "R-AA-1     held     tests/a.rs:1\nR-AA-2     planned  -\n"
    );
}

#[test]
fn another_table_is_seen() {
    let marks = markers("x");
    let page = |table: &str| format!("x\n{}\n{table}\n{}\n", marks[0], marks[1]);
    let rows = [
        (page("| a |\n"), 0),
        (page("| b |\n"), 1),
        (marks[0].clone(), 1),
        ("no table".to_string(), 1),
    ];
    for (text, want) in rows {
        let found = check_table(&Tree::of([(README, text.as_str())]), "x", "| a |\n");
        assert_eq!(found.len(), want, "{text}: {found:?}");
    }
}
