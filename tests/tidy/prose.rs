//! What the project's texts do not say: paths of one machine, who was at work and how, and documents that are not here.
//!
//! Recorded vectors are what they are, and left out (see `source`).

use super::lexer::{is_word, words};
use super::source::{Fault, Tree};

/// Folders of one machine or one person.
const MACHINE: &[&str] = &[
    concat!("/wo", "rk"),
    concat!("/ho", "me"),
    concat!("/ro", "ot"),
];
/// Tests may have a folder there.
const TEMPORARY: &str = concat!("/tm", "p/");

/// A word, and what it may be part of all the same.
const WORKPLACE: &[(&str, &[&str])] = &[
    (concat!("hel", "per"), &[]),
    (concat!("hel", "pers"), &[]),
    (concat!("sub", "agent"), &[]),
    (concat!("coordi", "nator"), &[]),
    (concat!("ses", "sion"), &["TLS ", "NIXL "]),
    (concat!("ses", "sions"), &["TLS ", "NIXL "]),
    (concat!("issue", " #"), &[]),
    (concat!("issue", "s/"), &[]),
    (concat!("../", "shared"), &[]),
];

pub fn check(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (path, number, text, test) in all_lines(tree) {
        let mut fault = |what: String| {
            let (path, line) = (path.to_string(), number);
            faults.push(Fault { path, line, what });
        };
        for folder in MACHINE {
            if names_folder(text, folder) {
                fault(format!(
                    "`{folder}` is a path of one machine: take it from the environment"
                ));
            }
        }
        if !test && names_folder(text, TEMPORARY) {
            fault(format!(
                "`{TEMPORARY}` outside a test: take the folder from the environment"
            ));
        }
        for (word, allowed) in WORKPLACE {
            let said = words(text, word).any(|at| !allowed.iter().any(|p| text[..at].ends_with(p)));
            if said {
                fault(format!(
                    "`{word}` speaks of the workplace: speak of the project alone"
                ));
            }
        }
    }
    faults.extend(documents_that_are_missing(tree));
    faults
}

/// Documents are named in comments and in Markdown.
fn documents_that_are_missing(tree: &Tree) -> Vec<Fault> {
    let comments = tree.rust.iter().flat_map(|file| {
        let lines = file.numbered();
        lines.map(|(n, line)| (file.path.as_str(), n, line.comment.as_str()))
    });
    let pages = tree.texts.iter().filter(|(path, _)| path.ends_with(".md"));
    let pages = pages.flat_map(|(path, text)| {
        (1..)
            .zip(text.lines())
            .map(move |(n, line)| (path.as_str(), n, line))
    });
    let mut faults = Vec::new();
    for (path, line, text) in comments.chain(pages) {
        for document in documents(text).filter(|document| !is_here(tree, path, document)) {
            let (path, what) = (path.to_string(), format!("`{document}` is not here"));
            faults.push(Fault { path, line, what });
        }
    }
    faults
}

/// Path, number, text, whether it is a test's.
fn all_lines(tree: &Tree) -> Vec<(&str, usize, &str, bool)> {
    let rust = tree.rust.iter().flat_map(|file| {
        file.numbered()
            .map(|(n, line)| (file.path.as_str(), n, line.raw.as_str(), line.test))
    });
    let texts = tree.texts.iter().flat_map(|(path, text)| {
        let test = path.starts_with("tests/");
        (1..)
            .zip(text.lines())
            .map(move |(n, line)| (path.as_str(), n, line, test))
    });
    rust.chain(texts).collect()
}

/// Whether the folder is named from the root: behind no name, and before the end of one.
fn names_folder(text: &str, folder: &str) -> bool {
    text.match_indices(folder).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + folder.len()..].chars().next();
        let open = before.is_none_or(|c| !is_word(c) && !"./-}:$".contains(c));
        open && (folder.ends_with('/') || after.is_none_or(|c| !is_word(c) && c != '-'))
    })
}

/// Names of documents in Markdown.
fn documents(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !is_word(c) && !"./-".contains(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| {
            word.strip_suffix(".md")
                .is_some_and(|name| !name.is_empty())
        })
}

fn is_here(tree: &Tree, from: &str, document: &str) -> bool {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    [
        document.to_string(),
        format!("{folder}/{document}"),
        format!("src/{document}"),
    ]
    .iter()
    .any(|path| tree.texts.contains_key(path))
}

#[test]
fn each_slip_is_seen() {
    let rows = [
        (
            "src/a.rs",
            concat!("let a = \"/wo", "rk/x\";"),
            "one machine",
        ),
        (
            "README.md",
            concat!("run it in /ho", "me/me"),
            "one machine",
        ),
        ("scripts/ci.sh", concat!("cd /ro", "ot"), "one machine"),
        (
            "src/a.rs",
            concat!("let a = \"/tm", "p/x\";"),
            "outside a test",
        ),
        ("README.md", concat!("a ses", "sion of work"), "workplace"),
        ("src/a.rs", concat!("// by a hel", "per"), "workplace"),
        ("src/a.rs", concat!("// see issue", " #4"), "workplace"),
        (
            "src/a.rs",
            "// see `docs/PLAN.md`.",
            "`docs/PLAN.md` is not here",
        ),
    ];
    for (path, text, want) in rows {
        let found = check(&Tree::of([(path, text)]));
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].what.contains(want), "{found:?}");
    }
}

#[test]
fn what_is_allowed_passes() {
    let rows = [
        (
            "README.md",
            "the net/worker at http://a/home/x, /workers and ${A}/root",
        ),
        ("tests/a.rs", concat!("let a = \"/tm", "p/x\";")),
        ("README.md", concat!("TLS ses", "sion tickets; obsession")),
        ("src/x/a.rs", "// see CONTRACT.md and `notes.md`."),
    ];
    for (path, text) in rows {
        let others = [("src/CONTRACT.md", ""), ("src/x/notes.md", "")];
        let found = check(&Tree::of([(path, text)].into_iter().chain(others)));
        assert_eq!(found, [], "{text}");
    }
}
