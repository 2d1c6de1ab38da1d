//! The repository as the rules see it: every Rust file in lines, which lines are tests, and every other text.
//!
//! Owns the walk and the module graph. Build output, recorded vectors (but their SOURCE notes) and fuzz corpora are left out.
//! Invariant: paths are relative to the root, with `/`, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use super::lexer::{self, Line, words};

/// A rule that is broken, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub path: String,
    /// Counted from 1; 0 when it is about the whole file.
    pub line: usize,
    pub what: String,
}

#[derive(Clone, Debug)]
pub struct File {
    pub path: String,
    pub lines: Vec<Line>,
    /// A `mod` line leads here.
    pub reached: bool,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Tree {
    pub rust: Vec<File>,
    pub texts: BTreeMap<String, String>,
}

impl Tree {
    /// This repository.
    pub fn read() -> Tree {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut texts = Vec::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder of the repository") {
                let path = entry.expect("an entry of the repository").path();
                let name = path.strip_prefix(root).expect("a path below the root");
                let name = name.to_str().expect("a path in UTF-8").replace('\\', "/");
                if path.is_dir() && !is_left_out(&name) {
                    folders.push(path);
                } else if path.is_file() && is_text(&name) {
                    texts.push((name, fs::read_to_string(&path).expect("text in UTF-8")));
                }
            }
        }
        Tree::of(texts.iter().map(|(path, text)| (&path[..], &text[..])))
    }

    /// A tree made of these files.
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            if path.ends_with(".rs") {
                let mut lines = lexer::lines(text);
                mark_tests(&mut lines);
                let (path, reached) = (path.to_string(), false);
                tree.rust.push(File {
                    path,
                    lines,
                    reached,
                });
            } else {
                tree.texts.insert(path.to_string(), text.to_string());
            }
        }
        tree.rust.sort_by(|a, b| a.path.cmp(&b.path));
        tree.walk_modules();
        tree
    }

    pub fn file(&self, path: &str) -> Option<&File> {
        self.rust.iter().find(|file| file.path == path)
    }

    /// Files of the program itself, not of `tests/` and `benches/`.
    pub fn program(&self) -> impl Iterator<Item = &File> {
        self.rust
            .iter()
            .filter(|file| file.path.starts_with("src/"))
    }

    /// Follows `mod` lines from the two roots; what a test module declares is test code throughout.
    fn walk_modules(&mut self) {
        let mut next: Vec<(String, bool)> = vec![];
        next.extend(["src/lib.rs", "src/main.rs"].map(|root| (root.to_string(), false)));
        let mut seen = BTreeSet::new();
        while let Some((path, test)) = next.pop() {
            let Some(file) = self.rust.iter_mut().find(|file| file.path == path) else {
                continue;
            };
            if !seen.insert(path) {
                continue;
            }
            file.reached = true;
            if test {
                file.lines.iter_mut().for_each(|line| line.test = true);
            }
            let folder = file.folder();
            for (name, test) in file.modules() {
                next.push((format!("{folder}{name}.rs"), test));
                next.push((format!("{folder}{name}/mod.rs"), test));
            }
        }
        for file in self
            .rust
            .iter_mut()
            .filter(|file| !file.path.starts_with("src/"))
        {
            file.lines.iter_mut().for_each(|line| line.test = true);
        }
    }
}

impl File {
    /// Lines with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &Line)> {
        (1..).zip(&self.lines)
    }

    /// The same without tests.
    pub fn program_lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.numbered().filter(|(_, line)| !line.test)
    }

    pub fn fault(&self, line: usize, what: impl Into<String>) -> Fault {
        Fault {
            path: self.path.clone(),
            line,
            what: what.into(),
        }
    }

    /// Where the files of its modules lie.
    fn folder(&self) -> String {
        let stem = self.path.trim_end_matches(".rs");
        let own = ["lib", "main", "mod"]
            .iter()
            .find_map(|name| stem.strip_suffix(name));
        own.map_or(format!("{stem}/"), str::to_string)
    }

    /// Modules in files of their own: name, and whether it is test code.
    fn modules(&self) -> Vec<(String, bool)> {
        let mut found = Vec::new();
        for line in &self.lines {
            let code = line.code.trim();
            let name = words(code, "mod").next().map(|at| code[at + 3..].trim());
            if let Some(name) = name.and_then(|name| name.strip_suffix(';')) {
                found.push((name.to_string(), line.test || is_harness(name)));
            }
        }
        found
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Every source file is part of the program, and says at its top what it is.
pub fn check(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in &tree.rust {
        if file.path.starts_with("src/") && !file.reached {
            faults.push(file.fault(0, "no `mod` line leads to this file: declare or delete it"));
        }
        if !file
            .lines
            .first()
            .is_some_and(|line| line.raw.starts_with("//! "))
        {
            faults.push(file.fault(
                1,
                "open with a `//!` comment: what it is, owns and may touch",
            ));
        }
    }
    faults
}

/// Marks the items under `#[cfg(test)]` and `#[test]`, and inline modules that only tests and fuzz targets call.
fn mark_tests(lines: &mut [Line]) {
    let mut at = 0;
    while at < lines.len() {
        let code = lines[at].code.trim();
        let attribute = code.starts_with("#[")
            && !code.starts_with("#[cfg_attr")
            && (words(code, "test").next().is_some() && !code.contains("not(test"));
        let module = words(code, "mod").next().map(|at| code[at + 3..].trim());
        let harness = module.is_some_and(|m| m.strip_suffix(" {").is_some_and(is_harness));
        if attribute || harness {
            let end = item_end(lines, at);
            lines[at..=end].iter_mut().for_each(|line| line.test = true);
            at = end;
        }
        at += 1;
    }
}

fn is_harness(module: &str) -> bool {
    matches!(module, "fuzzing" | "tests" | "testing")
}

/// The last line of the item that begins at `start`, attributes included.
pub fn item_end(lines: &[Line], start: usize) -> usize {
    let (mut round, mut curly) = (0, 0);
    for (at, line) in lines.iter().enumerate().skip(start) {
        for c in line.code.chars() {
            match c {
                '(' | '[' => round += 1,
                ')' | ']' => round -= 1,
                '{' => curly += 1,
                '}' if curly == 1 && round == 0 => return at,
                '}' => curly -= 1,
                ';' if curly == 0 && round == 0 => return at,
                _ => {}
            }
        }
    }
    lines.len() - 1
}

fn is_left_out(folder: &str) -> bool {
    let name = folder.rsplit('/').next().unwrap_or(folder);
    matches!(
        name,
        ".git" | "target" | "__pycache__" | "corpus" | "artifacts" | "node_modules"
    ) || name == "proptest-regressions"
}

fn is_text(path: &str) -> bool {
    const EXTENSIONS: [&str; 9] = ["rs", "md", "toml", "sh", "py", "yml", "yaml", "html", "js"];
    let name = path.rsplit('/').next().unwrap_or(path);
    let known = name
        .rsplit_once('.')
        .is_some_and(|(_, end)| EXTENSIONS.contains(&end));
    name == "SOURCE" || known && !path.starts_with("tests/vectors/")
}

#[test]
fn tests_are_marked_and_nothing_else() {
    let tree = Tree::of([
        (
            "src/lib.rs",
            "//! x\npub mod a;\n#[cfg(test)]\nmod b;\nfn f() {}\n",
        ),
        (
            "src/a.rs",
            "fn g() {}\n#[cfg(test)]\nmod tests {\n  fn t() {}\n}\nfn h() {}\n",
        ),
        ("src/b.rs", "//! tests\nmod c;\n"),
        ("src/b/c.rs", "fn t() {}\n"),
        ("src/d.rs", "//! dead\n"),
    ]);
    let marks = |path: &str| -> Vec<bool> {
        let file = tree.file(path).expect("it is in the tree");
        file.lines.iter().map(|line| line.test).collect()
    };
    assert_eq!(marks("src/lib.rs"), [false, false, true, true, false]);
    assert_eq!(marks("src/a.rs"), [false, true, true, true, true, false]);
    assert_eq!(
        (marks("src/b.rs"), marks("src/b/c.rs")),
        (vec![true; 2], vec![true])
    );
    let faults: Vec<(String, usize)> = check(&tree).into_iter().map(|f| (f.path, f.line)).collect();
    let want = [("src/a.rs", 1), ("src/b/c.rs", 1), ("src/d.rs", 0)];
    assert_eq!(faults, want.map(|(path, line)| (path.to_string(), line)));
}

#[test]
fn a_test_with_arrays_in_its_signature_ends_where_it_ends() {
    let text = "//! x\n#[test]\nfn t() -> [u8; 4] {\n  f({ 1 });\n}\nfn g() {}\n";
    let tree = Tree::of([("src/lib.rs", text)]);
    let marks: Vec<bool> = tree.rust[0].lines.iter().map(|line| line.test).collect();
    assert_eq!(marks, [false, true, true, true, true, false]);
}

#[test]
fn this_repository_is_read() {
    let tree = Tree::read();
    assert!(tree.file("src/lib.rs").is_some_and(|file| file.reached));
    assert!(tree.file("tests/tidy/source.rs").is_some());
    assert!(tree.texts.contains_key("Cargo.toml") && tree.texts.contains_key(".rustfmt.toml"));
    assert!(tree.rust.iter().all(|file| !file.path.contains("target/")));
}
