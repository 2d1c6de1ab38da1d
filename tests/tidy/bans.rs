//! Words that stay out of code, each with what to write instead.
//!
//! How `unwrap` and `expect` may stand outside tests: an `expect` whose text names the invariant in at least three words, or
//! either of them with a comment of at least three words on its line or the one above.

use super::lexer::{Line, words};
use super::source::{Fault, File, Tree};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Anywhere,
    Tests,
    Program,
    /// The program, but the room that prints and exits, and `main.rs`.
    BehindTheCommands,
}

/// A word, where it is banned, what to write instead.
const BANS: &[(&str, Where, &str)] = &[
    ("todo!", Where::Anywhere, "the code, or a refusal"),
    ("unimplemented!", Where::Anywhere, "the code, or a refusal"),
    (
        "dbg!",
        Where::Anywhere,
        "an assertion, or a line in the log of a room below the line",
    ),
    (
        "unreachable!()",
        Where::Program,
        "the invariant as its text",
    ),
    (
        "thread::sleep",
        Where::Tests,
        "an event to wait for, with a deadline",
    ),
    ("print!", Where::BehindTheCommands, "a returned value"),
    ("println!", Where::BehindTheCommands, "a returned value"),
    (
        "eprint!",
        Where::BehindTheCommands,
        "a returned value, or `tracing` below the line",
    ),
    (
        "eprintln!",
        Where::BehindTheCommands,
        "a returned value, or `tracing` below the line",
    ),
    (
        "process::exit",
        Where::BehindTheCommands,
        "a returned error",
    ),
    ("process::abort", Where::Program, "a returned error"),
    (
        "mem::transmute",
        Where::Anywhere,
        "a conversion that the types know",
    ),
    ("get_unchecked", Where::Anywhere, "an index"),
];

/// Words of comments: what is left over belongs in code or nowhere.
const LEFTOVERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("HA", "CK"),
];

/// Files that hold `unsafe`, and why there is no other way.
const UNSAFE: &[(&str, &str)] = &[
    ("perf/stamp.rs", "std has no clock that two processes share"),
    (
        "src/runtime/glommio.rs",
        "glommio takes a socket that is there already as a number only",
    ),
    (
        "src/runtime/settle.rs",
        "std has no calls for a thread's cores, memory node and signal mask, and the limits of a process",
    ),
    (
        "src/runtime/socket.rs",
        "a descriptor's number becomes a borrow again",
    ),
    (
        "tests/alloc.rs",
        "an allocator that counts is unsafe by its trait",
    ),
    (
        "tests/cli/seccomp.rs",
        "a filter can only be put on between fork and exec",
    ),
];

/// Lines above `unsafe` in which its safety argument may begin.
const SAFETY_LINES: usize = 6;

pub fn check(tree: &Tree) -> Vec<Fault> {
    let checks = [bans, leftovers, unwraps, attributes, unsafes];
    tree.rust
        .iter()
        .flat_map(|file| checks.map(|check| check(file)).concat())
        .collect()
}

fn bans(file: &File) -> Vec<Fault> {
    let commands = file.path.starts_with("src/cli/") || file.path == "src/main.rs";
    let mut faults = Vec::new();
    for (number, line) in file.numbered() {
        for (word, place, instead) in BANS {
            let applies = match place {
                Where::Anywhere => true,
                Where::Tests => line.test,
                Where::Program => !line.test,
                Where::BehindTheCommands => !line.test && !commands,
            };
            if applies && words(&line.code, word).next().is_some() {
                faults.push(file.fault(number, format!("`{word}`: write {instead}")));
            }
        }
    }
    faults
}

fn leftovers(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in file.numbered() {
        for word in LEFTOVERS {
            if words(&line.comment, word)
                .chain(words(&line.code, word))
                .next()
                .is_some()
            {
                faults
                    .push(file.fault(number, format!("`{word}`: do it, or say what holds today")));
            }
        }
    }
    faults
}

fn unwraps(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in file.program_lines() {
        let unwraps = [".unwrap()", ".unwrap_err()"]
            .iter()
            .any(|w| line.code.contains(w));
        let expects = expect_texts(&file.lines, number - 1);
        let bare = expects
            .iter()
            .any(|text| text.split_whitespace().count() < 3);
        let above = number.checked_sub(2).map(|at| &file.lines[at]);
        let named = |line: &Line| line.comment.split_whitespace().count() >= 3;
        let explained = named(line) || above.is_some_and(|l| l.code.trim().is_empty() && named(l));
        if (unwraps || bare) && !explained {
            faults.push(file.fault(
                number,
                "`unwrap` without its invariant: return the error, or name the invariant \
                 (three words or more) in `expect`, beside it or on the line above",
            ));
        }
    }
    faults
}

/// Texts of the `expect("…")` on a line; the text may stand on the next one. A parser's own `expect(b':')` is none.
fn expect_texts(lines: &[Line], at: usize) -> Vec<&str> {
    let line = &lines[at];
    let mut texts = Vec::new();
    for (found, word) in line.code.match_indices(".expect(") {
        let behind = line.code[found + word.len()..].trim_start();
        if behind.starts_with('"') {
            // Every string before it stands as two quotes.
            let index = line.code[..found].matches('"').count() / 2;
            texts.extend(line.strings.get(index).map(String::as_str));
        } else if behind.is_empty() {
            let next = lines
                .get(at + 1)
                .filter(|next| next.code.trim_start().starts_with('"'));
            texts.extend(
                next.and_then(|next| next.strings.first())
                    .map(String::as_str),
            );
        } else if behind.starts_with("&format!") {
            texts.push("");
        }
    }
    texts
}

/// `#[ignore]`, `#[allow]` and `#[expect]` say why.
fn attributes(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (at, line) in file.lines.iter().enumerate() {
        let code = line.code.trim_start();
        let Some(inner) = code.strip_prefix("#![").or_else(|| code.strip_prefix("#[")) else {
            continue;
        };
        let attribute: Vec<&str> = {
            let end = file.lines[at..]
                .iter()
                .position(|l| l.code.trim_end().ends_with(']'));
            file.lines[at..]
                .iter()
                .take(end.unwrap_or(0) + 1)
                .map(|l| l.code.as_str())
                .collect()
        };
        let attribute = attribute.concat();
        if inner.starts_with("ignore") && !attribute.contains("= \"\"") {
            faults.push(file.fault(at + 1, "`#[ignore]` without reason: `#[ignore = \"why\"]`"));
        }
        let lint = inner.starts_with("allow(") || inner.starts_with("expect(");
        let above = at.checked_sub(1).map(|at| &file.lines[at]);
        let comment = |line: &Line| !line.comment.trim().is_empty() && line.code.trim().is_empty();
        if inner.starts_with("allow(") && !above.is_some_and(comment) && line.comment.is_empty()
            || inner.starts_with("expect(") && !attribute.contains("reason")
        {
            let reasoned = lint && attribute.contains("reason =");
            if !reasoned {
                faults
                    .push(file.fault(at + 1, "a lint is lifted: `#[expect(…, reason = \"why\")]`"));
            }
        }
    }
    faults
}

fn unsafes(file: &File) -> Vec<Fault> {
    let listed = UNSAFE.iter().any(|row| row.0 == file.path);
    let mut faults = Vec::new();
    let mut found = false;
    for (number, line) in file.numbered() {
        if words(&line.code, "unsafe").next().is_none() {
            continue;
        }
        found = true;
        // An argument is for one `unsafe`: it does not reach past another.
        let other = |line: &&Line| words(&line.code, "unsafe").next().is_none();
        let before = file.lines[..number - 1].iter().rev().take(SAFETY_LINES);
        let mut above = before.take_while(other).chain([line]);
        if !listed {
            faults.push(file.fault(number, "`unsafe` in a file that is not listed for it"));
        } else if !above.any(|line| line.comment.contains("SAFETY:")) {
            faults.push(file.fault(number, "`unsafe` without `// SAFETY:` above it"));
        }
    }
    if listed && !found {
        faults.push(file.fault(0, "holds no `unsafe` any more: take it off the list"));
    }
    faults
}

#[test]
fn each_banned_word_is_seen() {
    let rows: &[(&str, &str, &str)] = &[
        ("src/wire/a.rs", "fn f() { todo!() }", "`todo!`"),
        (
            "src/wire/a.rs",
            "fn f() { unimplemented!() }",
            "`unimplemented!`",
        ),
        ("tests/a.rs", "fn f() { dbg!(1); }", "`dbg!`"),
        (
            "tests/a.rs",
            "fn f() { std::thread::sleep(d); }",
            "`thread::sleep`",
        ),
        (
            "src/runtime/a.rs",
            "fn f() { println!(\"x\"); }",
            "`println!`",
        ),
        (
            "src/runtime/a.rs",
            "fn f() { std::process::exit(1) }",
            "`process::exit`",
        ),
        (
            "src/wire/a.rs",
            concat!("// TO", "DO: later"),
            concat!("`TO", "DO`"),
        ),
        (
            "src/wire/a.rs",
            concat!("f(); // FIX", "ME"),
            concat!("`FIX", "ME`"),
        ),
        ("src/wire/a.rs", "let a = b.unwrap();", "`unwrap` without"),
        (
            "src/wire/a.rs",
            "let a = b.expect(\"no panic\");",
            "`unwrap` without",
        ),
        (
            "src/wire/a.rs",
            "let a = f(\"a b c\").expect(\"bad\");",
            "`unwrap` without",
        ),
        (
            "src/wire/a.rs",
            "let a = b\n    .expect(\n        \"bad\",\n    );",
            "`unwrap` without",
        ),
        (
            "src/wire/a.rs",
            "let a = b.expect(&format!(\"{c} is not there\"));",
            "`unwrap` without",
        ),
        ("src/wire/a.rs", "unreachable!()", "`unreachable!()`"),
        (
            "tests/a.rs",
            "#[ignore]\n#[test]\nfn f() {}",
            "`#[ignore]` without",
        ),
        (
            "src/wire/a.rs",
            "#[allow(dead_code)]\nfn f() {}",
            "a lint is lifted",
        ),
        ("src/wire/a.rs", "#![allow(dead_code)]", "a lint is lifted"),
        (
            "src/wire/a.rs",
            "#[expect(\n    dead_code,\n)]\nfn f() {}",
            "a lint is lifted",
        ),
        (
            "src/wire/a.rs",
            "// SAFETY: fine\nunsafe { f() }",
            "not listed",
        ),
        (
            "src/runtime/settle.rs",
            "unsafe { f() }",
            "without `// SAFETY:`",
        ),
        (
            "src/runtime/settle.rs",
            "// SAFETY: fine\nunsafe { f() }\nunsafe { g() }",
            "without `// SAFETY:`",
        ),
        ("src/runtime/settle.rs", "fn f() {}", "take it off the list"),
    ];
    for (path, text, want) in rows {
        let found = check(&Tree::of([(*path, *text)]));
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].what.contains(want), "{text}: {found:?}");
    }
}

#[test]
fn what_is_allowed_passes() {
    let rows: &[(&str, &str)] = &[
        (
            "src/wire/a.rs",
            "let a = b.expect(\"checked by the caller\");",
        ),
        (
            "src/wire/a.rs",
            "// The caller has checked it.\nlet a = b.unwrap();",
        ),
        (
            "src/wire/a.rs",
            "let a = b.unwrap(); // checked by the caller",
        ),
        (
            "src/wire/a.rs",
            "self.expect(b':')?; c.expect(open); a.unwrap_or(b); \"x.unwrap()\";",
        ),
        (
            "src/wire/a.rs",
            "#[cfg(test)]\nmod tests {\n    fn f() { a.unwrap(); println!(\"x\"); }\n}",
        ),
        ("src/cli/a.rs", "fn f() { println!(\"x\"); }"),
        (
            "tests/a.rs",
            "#[ignore = \"needs a GPU\"]\n#[test]\nfn f() {}",
        ),
        (
            "src/wire/a.rs",
            "#[allow(dead_code)] // only the fuzz target calls it\nfn f() {}",
        ),
        (
            "src/wire/a.rs",
            "#[expect(\n    dead_code,\n    reason = \"only the fuzz target calls it\"\n)]\nfn f() {}",
        ),
        (
            "src/runtime/settle.rs",
            "// SAFETY: it is initialised above.\nlet a = unsafe { f() };",
        ),
        ("src/lib.rs", "#![deny(unsafe_code)]"),
    ];
    for (path, text) in rows {
        assert_eq!(check(&Tree::of([(*path, *text)])), [], "{text}");
    }
}
