//! The paths that a file's code names, groups taken apart: `use crate::{a, b::{c, d}};` names `crate::a`, `crate::b::c`
//! and `crate::b::d`.
//!
//! Pure text. Invariant: every path starts with one of the roots asked for, and the root is no part of a longer path.

use super::lexer::{Line, is_word, words};

/// A path and the line it begins on.
pub type Named = (usize, Vec<String>);

/// All paths that begin with one of `roots`, tests left out.
pub fn named<'a>(lines: impl Iterator<Item = (usize, &'a Line)>, roots: &[&str]) -> Vec<Named> {
    let (mut text, mut starts) = (String::new(), Vec::new());
    for (number, line) in lines {
        starts.push((text.len(), number));
        text.push_str(&line.code);
        text.push('\n');
    }
    let mut found = Vec::new();
    for root in roots {
        for at in words(&text, root) {
            let before = text[..at].trim_end();
            let follows = text[at + root.len()..].trim_start();
            let is_path = follows.starts_with("::") && !follows.starts_with("::<");
            let is_use = follows.starts_with(';') && before.ends_with("use");
            if before.ends_with("::") || before.ends_with('.') || !(is_path || is_use) {
                continue;
            }
            let line = starts
                .iter()
                .rev()
                .find(|(start, _)| *start <= at)
                .map_or(0, |s| s.1);
            let mut tree = Reader { text: &text, at };
            let mut paths = Vec::new();
            tree.read(&mut Vec::new(), &mut paths);
            found.extend(paths.into_iter().map(|path| (line, path)));
        }
    }
    found
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    /// Reads `a::b::{…}` behind `prefix`.
    fn read(&mut self, prefix: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
        let depth = prefix.len();
        loop {
            self.space();
            let rest = &self.text[self.at..];
            if rest.starts_with('{') {
                self.at += 1;
                self.group(prefix, out);
                break;
            }
            let name: String = rest
                .chars()
                .take_while(|c| is_word(*c) || *c == '*')
                .collect();
            self.at += name.len();
            if !name.is_empty() && name != "self" {
                prefix.push(name);
            }
            self.space();
            let rest = &self.text[self.at..];
            if !rest.starts_with("::") || rest.starts_with("::<") {
                out.push(prefix.clone());
                break;
            }
            self.at += 2;
        }
        prefix.truncate(depth);
    }

    fn group(&mut self, prefix: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
        loop {
            self.space();
            if self.text[self.at..].starts_with('}') || self.at == self.text.len() {
                self.at = self.text.len().min(self.at + 1);
                return;
            }
            self.read(prefix, out);
            // A name after `as`, and the comma.
            let rest = &self.text[self.at..];
            self.at += rest.find([',', '}']).unwrap_or(rest.len());
            if self.text[self.at..].starts_with(',') {
                self.at += 1;
            }
        }
    }

    fn space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }
}

#[test]
fn groups_are_taken_apart() {
    let rows: &[(&str, &[&str])] = &[
        ("use crate::a::b;", &["crate::a::b"]),
        (
            "use crate::{a, b::{self, c as x, D}, e::*};",
            &[
                "crate::a",
                "crate::b",
                "crate::b::c",
                "crate::b::D",
                "crate::e::*",
            ],
        ),
        (
            "use crate::a::{\n    b,\n    c,\n};",
            &["crate::a::b", "crate::a::c"],
        ),
        ("let x = crate::a::B::<u8>::new();", &["crate::a::B"]),
        ("use a::crate::b; x.crate::c; pub(crate) fn f() {}", &[]),
        ("fn f(t: std::fs::File, s: &str) {}", &["std::fs::File"]),
        ("use std;", &["std"]),
    ];
    for (text, want) in rows {
        let lines = super::lexer::lines(text);
        let got = named((1..).zip(&lines), &["crate", "std"]);
        let got: Vec<String> = got.into_iter().map(|(_, path)| path.join("::")).collect();
        assert_eq!(got, *want, "{text}");
    }
}
