//! Broken files and the exact text each gets; the table is `tests/vectors/fleets/broken.txt`, whose head tells its form.

use super::*;

const TABLE: &str = include_str!("../../../tests/vectors/fleets/broken.txt");

fn said(kind: &str, file: &str) -> String {
    let answer = match kind {
        "json" => json(file),
        "toml" => toml(file),
        "add" => json(&SMALLEST.replace("\n}", &format!(",\n  {file}\n}}"))),
        "swap" => {
            let (from, to) = file.split_once("\n=>\n").unwrap();
            assert!(
                SMALLEST.contains(from),
                "{from} is not in the smallest file"
            );
            json(&SMALLEST.replace(from, to))
        }
        other => panic!("{other} is no kind"),
    };
    answer
        .err()
        .map_or_else(|| "no fault".to_owned(), |errors| errors.to_string())
}

// proves R-CFG-1, R-CFG-2, R-CFG-3, R-CFG-4, R-CFG-5, R-CFG-6
#[test]
fn every_fault_is_told_with_its_place() {
    let blocks: Vec<&str> = TABLE.split("\n=== ").skip(1).collect();
    assert!(blocks.len() >= 60);
    let mut wrong = String::new();
    for block in blocks {
        let (kind, rest) = block.split_once('\n').unwrap();
        let (file, want) = rest.split_once("\n---\n").unwrap();
        let (said, want) = (said(kind, file), want.trim_end_matches('\n'));
        if said != want {
            wrong += &format!("{kind} {file}\nwanted:\n{want}\nsaid:\n{said}\n\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
