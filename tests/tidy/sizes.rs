//! Small files, small functions, narrow lines. What is over is listed with its size and a reason, may not grow, and leaves
//! the list when it has shrunk.
//!
//! Tests are free in length, as tables are long; their lines keep to the width of prose once strings are left out.

use super::lexer::words;
use super::source::{Fault, File, Tree, item_end};

/// Lines of a file without its tests.
const FILE_LINES_MAX: usize = 400;
/// Lines from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Characters of any line, prose included.
const WIDTH_MAX: usize = 140;
/// Characters of code, strings counted as empty: the formatter's own limit, for the macros that it leaves alone.
const CODE_WIDTH_MAX: usize = 100;

/// A file, its lines at most, why.
const LONG_FILES: &[(&str, usize, &str)] = &[(
    "src/wire/json.rs",
    476,
    "one grammar in one place: a cursor's steps call each other",
)];

/// A file, a function, its lines at most, why.
const LONG_FUNCTIONS: &[(&str, &str, usize, &str)] = &[
    (
        "src/cli/router.rs",
        "start",
        81,
        "the order of the start, told once",
    ),
    (
        "src/runtime/drive.rs",
        "connection",
        160,
        "one task: its futures live on its stack and borrow each other",
    ),
];

/// A file, the width of its lines, why.
const WIDE_FILES: &[(&str, usize, &str)] = &[
    ("src/config/keys/table.rs", 160, "a table: one row, one key"),
    ("src/metrics/names.rs", 175, "a table: one row, one metric"),
];

pub fn check(tree: &Tree) -> Vec<Fault> {
    tree.rust
        .iter()
        .flat_map(|file| [file_lines(file), functions(file), widths(file)].concat())
        .collect()
}

fn file_lines(file: &File) -> Vec<Fault> {
    let count = file.program_lines().count();
    let listed = LONG_FILES.iter().find(|row| row.0 == file.path);
    let most = listed.map_or(FILE_LINES_MAX, |row| row.1);
    if count > most {
        return vec![file.fault(
            0,
            format!("{count} lines without tests, {most} at most: split it"),
        )];
    }
    if listed.is_some() && count <= FILE_LINES_MAX {
        return vec![file.fault(0, "no longer long: take it off the list")];
    }
    Vec::new()
}

fn functions(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in file.program_lines() {
        let Some(at) = words(&line.code, "fn").next() else {
            continue;
        };
        let name: String = line.code[at + 2..]
            .trim_start()
            .chars()
            .take_while(|c| super::lexer::is_word(*c))
            .collect();
        // A function pointer's type has no name.
        if name.is_empty() {
            continue;
        }
        let count = item_end(&file.lines, number - 1) + 2 - number;
        let listed = LONG_FUNCTIONS
            .iter()
            .find(|row| row.0 == file.path && row.1 == name);
        let most = listed.map_or(FUNCTION_LINES_MAX, |row| row.2);
        if count > most {
            let what =
                format!("`{name}` has {count} lines, {most} at most: move straight-line work out");
            faults.push(file.fault(number, what));
        } else if listed.is_some() && count <= FUNCTION_LINES_MAX {
            faults.push(file.fault(
                number,
                format!("`{name}` is no longer long: take it off the list"),
            ));
        }
    }
    faults
}

fn widths(file: &File) -> Vec<Fault> {
    let listed = WIDE_FILES.iter().find(|row| row.0 == file.path);
    let most = listed.map_or(WIDTH_MAX, |row| row.1);
    let mut faults = Vec::new();
    let mut widest = 0;
    for (number, line) in file.numbered() {
        let (all, code) = (
            line.raw.chars().count(),
            line.code.trim_end().chars().count(),
        );
        widest = widest.max(all);
        // Tests hold tables of long strings, and macros that nobody formats.
        let (counted, code_most) = if line.test {
            (code.max(line.comment.chars().count()), most)
        } else {
            (all, CODE_WIDTH_MAX.max(listed.map_or(0, |row| row.1)))
        };
        if counted > most {
            faults.push(file.fault(number, format!("{counted} characters, {most} at most")));
        } else if code > code_most {
            let what = format!("{code} characters of code, {code_most} at most");
            faults.push(file.fault(number, what));
        }
    }
    if listed.is_some() && widest <= WIDTH_MAX {
        faults.push(file.fault(0, "no longer wide: take it off the list"));
    }
    faults
}

#[test]
fn each_excess_is_seen() {
    let long_file = format!("//! x\n{}", "fn f() {}\n".repeat(FILE_LINES_MAX));
    let long_fn = format!(
        "fn f(\n  a: u8,\n) {{\n{}}}\n",
        "  g();\n".repeat(FUNCTION_LINES_MAX)
    );
    let wide = format!("// {}\n", "x".repeat(WIDTH_MAX));
    let wide_code = format!("let a = {};\n", "x".repeat(CODE_WIDTH_MAX));
    let rows = [
        (long_file.as_str(), "lines without tests"),
        (long_fn.as_str(), "`f` has 74 lines"),
        (wide.as_str(), "characters, 140 at most"),
        (wide_code.as_str(), "characters of code"),
    ];
    for (text, want) in rows {
        let found = check(&Tree::of([("src/lib.rs", text)]));
        assert!(
            found.len() == 1 && found[0].what.contains(want),
            "{want}: {found:?}"
        );
    }
}

#[test]
fn tests_may_be_long_and_hold_wide_strings() {
    let row = format!("        f(\"{}\");\n", "x".repeat(300));
    let text = format!(
        "//! x\n#[cfg(test)]\nmod tests {{\n    fn t() {{\n{}    }}\n}}\n",
        row.repeat(500)
    );
    assert_eq!(check(&Tree::of([("src/lib.rs", text.as_str())])), []);
}

#[test]
fn lists_only_get_shorter() {
    let (path, most, _) = LONG_FILES[0];
    for (lines, want) in [
        (most, None),
        (most + 1, Some("split it")),
        (9, Some("no longer long")),
    ] {
        let found = check(&Tree::of([(path, "fn f() {}\n".repeat(lines).as_str())]));
        assert_eq!(found.len(), usize::from(want.is_some()), "{found:?}");
        assert!(
            found
                .iter()
                .zip(want)
                .all(|(fault, want)| fault.what.contains(want))
        );
    }
}
