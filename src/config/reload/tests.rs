//! Each key changed by itself, and fleets that follow each other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::*;
use crate::config::keys::{KEYS, Want};
use crate::config::{Format, parse};

const FULL: &str = include_str!("../../../tests/vectors/fleets/full.toml");

fn read(tree: &Value) -> Fleet {
    let env = |name: &str| match name {
        "DECODE_URL" => Some("http://10.0.0.2:8000/d".to_owned()),
        _ => Some("sk-1".to_owned()),
    };
    let loaded = parse("f", &tree.to_string(), Format::Json, &env);
    loaded.unwrap_or_else(|why| panic!("{why}")).fleet
}

/// The member at a path; of a list its first item.
fn at<'v>(tree: &'v mut Value, path: &str) -> &'v mut Value {
    path.split('.')
        .fold(tree, |tree, name| match name.strip_suffix("[]") {
            Some(list) => &mut tree[list][0],
            None => &mut tree[name],
        })
}

/// Another value that the key may have.
fn another(want: Want, now: &Value) -> Value {
    match want {
        Want::Flag => json!(now != &json!(true)),
        Want::Count(_, to) => {
            let n = now.as_u64().expect("a count");
            json!(if n < to { n + 1 } else { n - 1 })
        }
        Want::Real(from, to) => {
            let n = now.as_f64().expect("a number");
            json!(if n == to { from } else { n + (to - n) / 1e6 })
        }
        Want::Word(words) => {
            let other = words.iter().find(|word| now != &json!(**word));
            json!(other.expect("two words"))
        }
        Want::Text => json!(format!("{}x", now.as_str().expect("a text"))),
        Want::Texts => json!(["other"]),
        Want::Place(_) => json!(1),
        Want::Section | Want::Sections => unreachable!("no value"),
    }
}

/// What it takes to change a key where its neighbours have a say, or its text a form.
fn edits(path: &str) -> Option<Vec<(&'static str, Value)>> {
    Some(match path {
        "engines[].url" => vec![("engines[].url", json!("https://10.0.0.9:8000"))],
        "engines[].role" => vec![("engines[].role", json!("decode"))],
        "serving.queue_capacity" => vec![
            ("serving.queue_capacity", json!(5)),
            ("serving.queue_timeout_s", json!(1)),
        ],
        "engine.backend" | "engine.dialect" => vec![
            ("engine.backend", json!("openai")),
            ("engine.dialect", json!("openai")),
            ("engine.connector", json!("none")),
            ("engines[].role", json!("both")),
        ],
        "engine.connector" => vec![("engine.connector", json!("nixl"))],
        "runtime.listen" => vec![("runtime.listen", json!(["127.0.0.1:8001"]))],
        "runtime.admin_listen" => vec![("runtime.admin_listen", json!("127.0.0.1:9001"))],
        "runtime.cpus" => vec![("runtime.cpus", json!("0-2"))],
        "runtime.driver" => vec![("runtime.driver", json!("epoll"))],
        "runtime.forward_headers" => vec![("runtime.forward_headers", json!(["baggage"]))],
        "runtime.cors_origins" => vec![("runtime.cors_origins", json!(["*"]))],
        "engine.engine_api_key_env" => return None,
        _ => return None,
    })
}

/// Every key is in one class, and what a reload does with it is what its class says.
// proves R-CFG-7
#[test]
fn each_key_does_what_its_class_says() {
    let tree: Value = ::toml::from_str(FULL).expect("a file");
    let old = Snapshot::new(1, read(&tree));
    let follow = |fleet: Fleet| follow(&old, fleet, Vec::new(), |_| true);
    let same = follow(old.fleet.clone()).expect("the same");
    assert_eq!(same.snapshot.engines, old.engines);
    assert_eq!(
        (same.restart.len(), same.changed.len(), same.added.len()),
        (0, 0, 0)
    );
    let mut seen = BTreeSet::new();
    for key in KEYS {
        let is_section = matches!(key.want, Want::Section | Want::Sections);
        // Another schema is no file of ours; both versions read alike; the key's name does not matter when its value stays.
        let has_one_value = ["schema", "schema_version", "engine.engine_api_key_env"];
        if is_section || has_one_value.contains(&key.path) {
            continue;
        }
        let mut tree = tree.clone();
        match edits(key.path) {
            Some(edits) => {
                for (path, value) in edits {
                    *at(&mut tree, path) = value;
                }
            }
            None => {
                let place = at(&mut tree, key.path);
                *place = another(key.want, place);
            }
        }
        let new = read(&tree);
        assert_ne!(new, old.fleet, "{} has no effect at all", key.path);
        let effect = Effect::of(key.path);
        seen.insert(effect.name());
        let names = |named: &[&str]| {
            let mut named = named.iter();
            named.any(|named| key.path.starts_with(named) || key.path == "engine.dialect")
        };
        match (effect, follow(new.clone())) {
            (Effect::Live, Ok(change)) => {
                assert!(
                    change.restart.is_empty(),
                    "{}: {:?}",
                    key.path,
                    change.restart
                );
                assert_eq!(change.snapshot.fleet, new, "{}", key.path);
            }
            (Effect::Restart, Ok(change)) => {
                assert!(names(&change.restart), "{}: {:?}", key.path, change.restart);
                assert_eq!(change.snapshot.fleet, old.fleet, "{} waits", key.path);
            }
            (Effect::Refused, Err(Refusal::OtherFleet(keys))) => {
                assert!(names(&keys), "{}: {keys:?}", key.path);
            }
            (effect, got) => panic!("{} is {effect:?}: {got:?}", key.path),
        }
    }
    assert_eq!(seen.len(), 3);
    for key in restart::KEYS.iter().chain(refused::KEYS) {
        assert!(KEYS.iter().any(|known| known.path == *key), "{key}");
    }
}

// proves R-CFG-7
#[test]
fn the_rest_of_a_file_counts_beside_keys_that_wait() {
    let mut tree: Value = ::toml::from_str(FULL).expect("a file");
    let old = Snapshot::new(7, read(&tree));
    tree["runtime"]["shards"] = json!(9);
    tree["runtime"]["lease"] = json!("file:/elsewhere");
    tree["serving"]["request_timeout_s"] = json!(1);
    let change = follow(&old, read(&tree), Vec::new(), |_| true).expect("a change");
    assert_eq!(change.restart, ["runtime.shards", "runtime.lease"]);
    let fleet = &change.snapshot.fleet;
    assert_eq!(fleet.runtime, old.fleet.runtime);
    assert_eq!(fleet.serving.request_timeout.as_secs(), 1);
    assert_eq!(change.snapshot.epoch, 8);
    // Said again as long as it waits.
    let again = follow(&change.snapshot, read(&tree), Vec::new(), |_| true).expect("a change");
    assert_eq!(again.restart, change.restart);
    tree["model"] = json!("other");
    let refused = follow(&old, read(&tree), Vec::new(), |_| true).expect_err("another fleet");
    assert!(
        refused.to_string().starts_with("model: another fleet"),
        "{refused}"
    );
}

/// A fleet of engines, each `name@port`, with a `*` for another role.
fn fleet(engines: &str) -> Fleet {
    let engine = |word: &str| {
        let (role, word) = match word.strip_prefix('*') {
            Some(word) => ("prefill", word),
            None => ("decode", word),
        };
        let (iid, port) = word.split_once('@').expect("a name and a port");
        json!({"iid": iid, "url": format!("http://10.0.0.1:{port}"), "role": role})
    };
    let engines: Vec<Value> = engines.split(' ').map(engine).collect();
    read(&json!({
        "schema": "narwhal.fleet", "schema_version": 2, "model": "m", "engines": engines,
        "slo": {"ttft_s": 2, "tpot_s": 0.05}, "serving": {"admission": "open"},
    }))
}

/// By id: `+` here, `-` leaving, `.` free.
fn shown(snapshot: &Snapshot) -> String {
    let view = |e: &EngineView| match e.presence {
        Presence::Here => format!("+{}", e.iid),
        Presence::Leaving => format!("-{}", e.iid),
        Presence::Gone => ".".to_owned(),
    };
    let all: Vec<String> = snapshot.engines.iter().map(view).collect();
    all.join(" ")
}

/// Rows: the next file, whether those that left have no work any more, what stands where then, and who was added, removed, changed.
// proves R-CFG-7
#[test]
fn engines_keep_their_places() {
    type Row<'a> = (&'a str, bool, &'a str, &'a [u16], &'a [u16], &'a [u16]);
    let rows: &[Row] = &[
        ("a@1 b@2 c@3", false, "+a +b +c", &[], &[], &[]),
        // Order is nothing.
        ("c@3 a@1 b@2", false, "+a +b +c", &[], &[], &[]),
        ("c@3 *a@1 b@2", false, "+a +b +c", &[], &[], &[0]),
        ("a@1 c@3 d@4", false, "+a -b +c +d", &[3], &[1], &[0]),
        // Who comes back while its work is not done has its place still, whatever has become of its role.
        ("a@1 *b@2 c@3", false, "+a +b +c -d", &[], &[3], &[]),
        ("a@1 c@3 e@5", true, "+a -b +c +e", &[3], &[1], &[]),
        // Another address is another engine.
        ("a@1 c@3 e@6", false, "+a -b +c -e +e", &[4], &[3], &[]),
        // It may be the one before that comes back.
        ("a@1 c@3 e@5", false, "+a -b +c +e -e", &[], &[4], &[]),
        ("a@1 c@3 e@6", true, "+a +e +c -e .", &[1], &[3], &[]),
        ("a@1 c@3 e@6", true, "+a +e +c . .", &[], &[], &[]),
        ("x@1", true, "-a -e -c +x .", &[3], &[0, 1, 2], &[]),
        ("x@1 y@2 z@3", true, "+y +z . +x .", &[0, 1], &[], &[]),
    ];
    let mut now = Snapshot::new(1, fleet("a@1 b@2 c@3"));
    for row @ (file, at_rest, stand, added, removed, changed) in rows {
        let change = follow(&now, fleet(file), Vec::new(), |_| *at_rest).expect("a change");
        assert_eq!(shown(&change.snapshot), *stand, "{row:?}");
        let ids = |of: &[EngineId]| of.iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(ids(&change.added), *added, "{row:?}");
        assert_eq!(ids(&change.removed), *removed, "{row:?}");
        assert_eq!(ids(&change.changed), *changed, "{row:?}");
        let left = |id: &EngineId| now.engines[id.index()].presence == Presence::Leaving;
        assert!(change.returned.iter().all(left), "{row:?}");
        let here = |e: &&EngineView| e.is_here() && now.engine(e.id).is_none_or(|e| !e.is_here());
        let came = change.snapshot.engines.iter().filter(here).count();
        assert_eq!(came, added.len() + change.returned.len(), "{row:?}");
        now = change.snapshot;
        let file: BTreeMap<_, _> = file
            .split(' ')
            .map(|w| (w.trim_start_matches('*'), ()))
            .collect();
        let here = now.present().map(|e| format!("{}@{}", e.iid, e.port));
        assert_eq!(here.collect::<BTreeSet<_>>().len(), file.len(), "{row:?}");
    }
    let since = |iid: &str| now.by_iid(iid).expect("it is here").since;
    assert_eq!((since("x"), since("y")), (12, 13));
    assert!(now.by_iid("a").is_none());
}

// proves R-CFG-7
#[test]
fn no_place_is_no_change() {
    let many = |from: usize| {
        let all: Vec<String> = (from..from + ENGINES_MAX)
            .map(|n| format!("e{n}@1"))
            .collect();
        fleet(&all.join(" "))
    };
    let old = Snapshot::new(1, many(0));
    let refused = follow(&old, many(1), Vec::new(), |_| false).expect_err("no place");
    assert_eq!(refused, Refusal::NoPlace);
}

proptest::proptest! {
    /// Whatever follows whatever: the fleet is the file's, ids stay, and a place goes to another only once it is free.
    #[test]
    fn places_are_nobody_elses(
        files in proptest::collection::vec((proptest::collection::btree_map(0u8..6, 1u16..3, 1..6), 0u64..32), 1..12),
    ) {
        let text = |file: &BTreeMap<u8, u16>| -> String {
            let words: Vec<String> = file.iter().map(|(n, port)| format!("e{n}@{port}")).collect();
            words.join(" ")
        };
        let mut now = Snapshot::new(1, fleet(&text(&files[0].0)));
        for (file, free) in &files[1..] {
            let is_free = |id: EngineId| free >> (id.0 % 5) & 1 == 1;
            let change = follow(&now, fleet(&text(file)), Vec::new(), is_free).expect("a change");
            let next = &change.snapshot;
            let here: BTreeSet<String> = next.present().map(|e| format!("{}@{}", e.iid, e.port)).collect();
            let wanted: BTreeSet<String> = text(file).split(' ').map(str::to_owned).collect();
            proptest::prop_assert_eq!(here, wanted);
            for (i, view) in next.engines.iter().enumerate() {
                proptest::prop_assert_eq!(view.id.index(), i);
                let Some(before) = now.engines.get(i) else { continue };
                let same = view.since == before.since && view.is_same_as(before);
                let was_free = match before.presence {
                    Presence::Here => false,
                    Presence::Leaving => is_free(before.id),
                    Presence::Gone => true,
                };
                proptest::prop_assert!(same || was_free, "{:?} {:?}", before, view);
                let returns = before.presence == Presence::Leaving && view.is_here() && same;
                proptest::prop_assert_eq!(change.returned.contains(&view.id), returns);
                let there = next.present().filter(|e| e.is_same_as(view)).count();
                proptest::prop_assert!(view.presence != Presence::Leaving || there == 0, "{:?} is there twice", view);
                proptest::prop_assert_eq!(change.added.contains(&view.id), view.since == next.epoch);
                proptest::prop_assert_eq!(change.removed.contains(&view.id), before.is_here() && view.presence == Presence::Leaving);
            }
            now = change.snapshot;
        }
    }
}
