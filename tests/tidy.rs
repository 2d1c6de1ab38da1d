//! The house rules as a test: layers, stage order, sizes, bans, dead files, and a contract whose every kept rule is proved.
//!
//! It reads the repository as text (`tidy/source.rs` tells code, comments and strings apart, and test code from the rest)
//! and owns nothing. Each rule lives in a file of its own beside its exceptions, each exception with a reason, and has a
//! test of its own on a bad snippet, so that a rule that finds nothing is known to look. An exception that is no longer
//! needed is a fault too: the lists only get shorter.

#[path = "tidy/bans.rs"]
mod bans;
#[path = "tidy/contract.rs"]
mod contract;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/lexer.rs"]
mod lexer;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/sizes.rs"]
mod sizes;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/stages.rs"]
mod stages;

use source::{Fault, Tree};

/// Fails with one line a fault.
fn assert_clean(faults: &[Fault]) {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(faults.is_empty(), "\n\n{}\n", lines.join("\n"));
}

#[test]
fn rooms_keep_to_their_layer() {
    assert_clean(&layers::check(&Tree::read()));
}

#[test]
fn stages_are_named_once() {
    assert_clean(&stages::check(&Tree::read()));
}

#[test]
fn files_functions_and_lines_stay_small() {
    assert_clean(&sizes::check(&Tree::read()));
}

#[test]
fn banned_words_stay_out_of_code() {
    assert_clean(&bans::check(&Tree::read()));
}

#[test]
fn prose_speaks_of_the_project_alone() {
    assert_clean(&prose::check(&Tree::read()));
}

#[test]
fn every_file_is_reached_and_opens_with_its_head() {
    assert_clean(&source::check(&Tree::read()));
}

#[test]
fn the_readme_holds_the_tables_that_the_code_prints() {
    let tree = Tree::read();
    let metrics = narwhal::metrics::names::markdown();
    assert_clean(&contract::check_table(&tree, "metrics", &metrics));
    let keys = narwhal::config::keys::markdown();
    assert_clean(&contract::check_table(&tree, "keys", &keys));
    let members = narwhal::metrics::journal::members::markdown();
    assert_clean(&contract::check_table(&tree, "journal", &members));
}

#[test]
fn every_held_rule_is_proved() {
    let tree = Tree::read();
    let faults = contract::check(&tree);
    if !faults.is_empty() {
        eprintln!("{}", contract::mapping(&tree));
    }
    assert_clean(&faults);
}
