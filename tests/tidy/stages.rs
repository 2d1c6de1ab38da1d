//! One word per stage, one order: the `pub mod` lines of `path/mod.rs`, its chart, and the variants of `Stage`, whose words
//! are also metric labels and journal fields.

use super::source::{Fault, Tree};

const PATH: &str = "src/path/mod.rs";
const OUTCOME: &str = "src/metrics/outcome.rs";
const STAGES: usize = 10;

pub fn check(tree: &Tree) -> Vec<Fault> {
    let (Some(path), Some(outcome)) = (tree.file(PATH), tree.file(OUTCOME)) else {
        let (path, line, what) = (
            PATH.to_string(),
            0,
            format!("{PATH} or {OUTCOME} is missing"),
        );
        return vec![Fault { path, line, what }];
    };
    let modules: Vec<&str> = path
        .lines
        .iter()
        .filter_map(|line| line.code.trim().strip_prefix("pub mod ")?.strip_suffix(';'))
        .take(STAGES)
        .collect();
    let chart: Vec<&str> = path
        .lines
        .iter()
        .filter(|line| line.comment.contains('→'))
        .flat_map(|line| line.comment.trim_start_matches('!').split(['→', '|']))
        .map(str::trim)
        .collect();
    let mut variants = Vec::new();
    let rows = outcome
        .lines
        .iter()
        .skip_while(|line| line.code.trim() != "Stage {")
        .skip(1);
    for line in rows.take_while(|line| line.code.trim() != "}") {
        if let Some((variant, _)) = line.code.split_once('=') {
            let word = line.strings.first().map_or("", String::as_str);
            variants.push((variant.trim().to_lowercase(), word));
        }
    }
    let words: Vec<&str> = variants.iter().map(|(_, word)| *word).collect();
    let mut faults = Vec::new();
    if variants.iter().any(|(variant, word)| variant != word) {
        faults.push(outcome.fault(0, format!("variants and words differ: {variants:?}")));
    }
    if modules != words || chart != words || words.len() != STAGES {
        let what =
            format!("stages differ:\n  mod {modules:?}\n  chart {chart:?}\n  Stage {words:?}");
        faults.push(path.fault(0, what));
    }
    faults
}

#[test]
fn any_other_order_is_seen() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let page = |modules: &[&str], chart: &[&str]| -> String {
        let lines: Vec<String> = modules
            .iter()
            .map(|name| format!("pub mod {name};\n"))
            .collect();
        format!(
            "//! x\n//! {}\n{}pub mod shared;\n",
            chart.join(" → "),
            lines.join("\n")
        )
    };
    let stages = |words: &[&str]| -> String {
        let row = |word: &&str| format!("  {} = \"{word}\",\n", word.to_uppercase());
        let rows: String = words.iter().map(row).collect();
        format!("//! x\nwords! {{\n  Stage {{\n{rows}  }}\n}}\n")
    };
    let mut other = names;
    other.swap(3, 4);
    let rows = [
        (names, names, names, true),
        (other, names, names, false),
        (names, other, names, false),
        (names, names, other, false),
    ];
    for (modules, chart, words, good) in rows {
        let (path, outcome) = (page(&modules, &chart), stages(&words));
        let tree = Tree::of([(PATH, path.as_str()), (OUTCOME, outcome.as_str())]);
        assert_eq!(check(&tree).is_empty(), good, "{:?}", check(&tree));
    }
    let outcome = stages(&names).replace("A = \"a\"", "A2 = \"a\"");
    let tree = Tree::of([
        (PATH, page(&names, &names).as_str()),
        (OUTCOME, outcome.as_str()),
    ]);
    assert_eq!(check(&tree).len(), 1);
}
