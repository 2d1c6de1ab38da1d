//! The fleet file read again by a router that runs: what counts from then on, what does not, and that nobody notices.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::client::{self, Client, PATIENCE, data_of};
use super::world::{Fleet, World, everywhere, number};

const TEXT: &str = "/v1/completions";

fn prompt(stream: bool) -> Value {
    json!({"model": "stub-model", "prompt": "hello there", "max_tokens": 3, "stream": stream})
}

fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"token_ids\":[1]}}]}}\n\n")
}

/// A stream that pauses in the middle.
fn slow(ms: u64) -> Value {
    json!({"chunks": [event("a"), {"delay_ms": ms}, event("b"), "data: [DONE]\n\n"]})
}

/// One that goes on until its client leaves.
fn endless() -> Value {
    json!({"chunks": [event("a"), {"hang": true}]})
}

fn attempts(world: &World) -> u64 {
    let state = world.state();
    let results = ["applied", "refused", "aborted"];
    results
        .map(|result| number(&state, &format!("/reload/{result}")))
        .iter()
        .sum()
}

/// A signal, and what came of it.
fn hang_up(world: &World) -> Value {
    let before = attempts(world);
    world.signal("HUP");
    world.until("a reload", |world| attempts(world) == before + 1);
    world.state()["reload"]["last"].take()
}

/// The same for a file that is right.
fn follow(world: &World, fleet: &Fleet) -> Value {
    world.rewrite(fleet);
    let last = hang_up(world);
    assert_eq!(last["result"], "applied", "{last}");
    last
}

fn served(world: &World) {
    let answer = world.post(TEXT, &prompt(false));
    assert_eq!(answer.status, Some(200), "{}", answer.text());
}

fn begun(world: &World) -> Client {
    let mut client = world.connect();
    client.send(&client::post(TEXT, &prompt(true)));
    assert_eq!(client.begin_answer(1).status, Some(200));
    client
}

/// The stream goes on to its own end.
fn ends_well(client: &mut Client) {
    while !client.buf.ends_with(b"0\r\n\r\n") && client.more(PATIENCE) {}
    let text = String::from_utf8_lossy(&client.buf).into_owned();
    assert!(text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{text}");
    assert!(text.contains("\"b\"") && !text.contains("error"), "{text}");
    client.buf.clear();
}

fn iids(world: &World) -> Vec<String> {
    let state = world.state();
    let engines = state["health"]["engines"].as_array().expect("engines");
    let iid = |engine: &Value| engine["iid"].as_str().expect("an iid").to_owned();
    engines.iter().map(iid).collect()
}

/// Engines that had legs of this name, by number.
fn workers(world: &World, leg: &str) -> BTreeSet<usize> {
    world
        .engines
        .legs(leg)
        .iter()
        .map(|seen| seen.engine)
        .collect()
}

/// The fleet with an engine more, which is the spare one `n`.
fn with_engine(mut fleet: Fleet, iid: &str, n: usize, role: &str) -> Fleet {
    let url = format!("http://127.0.0.1:{}", 8101 + n);
    let engine = json!({"iid": iid, "url": url, "role": role, "pin": true});
    let engines = fleet.file["engines"].as_array_mut().expect("engines");
    engines.push(engine);
    fleet
}

fn without_engine(mut fleet: Fleet, iid: &str) -> Fleet {
    let engines = fleet.file["engines"].as_array_mut().expect("engines");
    engines.retain(|engine| engine["iid"] != iid);
    fleet
}

// proves R-CFG-7
#[test]
fn limits_and_time_outs_change_without_dropping_an_exchange() {
    everywhere(|setup| {
        let fleet = Fleet::pair();
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"decode": [slow(1500), slow(1500), {"default": true}]}));
        // Two are in, one seat is left for both of them: nobody is evicted, nobody new comes in.
        let (mut one, mut two) = (begun(&world), begun(&world));
        let small = fleet.clone().with("serving", "max_connections", 1).with(
            "serving",
            "request_timeout_s",
            0.3,
        );
        follow(&world, &small);
        let state = world.state();
        assert_eq!(number(&state, "/admission/limit"), 1);
        assert_eq!(number(&state, "/admission/max_retained"), 1);
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(429));
        // Their own deadline is the one that they came with.
        ends_well(&mut one);
        ends_well(&mut two);
        served(&world);
        world
            .engines
            .script(&json!({"prefill": {"raw": [{"hang": true}]}}));
        let late = world.post(TEXT, &prompt(false));
        assert_eq!(late.status, Some(504), "{}", late.text());
        assert_eq!(late.error().0, json!("request_expired"));
        world.engines.reset();
        follow(&world, &fleet.clone().with("serving", "max_connections", 2));
        world
            .engines
            .script(&json!({"decode": [endless(), endless(), {"default": true}]}));
        let both = (begun(&world), begun(&world));
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(429));
        drop(both);
        let state = world.at_rest();
        assert_eq!(number(&state, "/admission/limit"), 2);
        assert_eq!(number(&state, "/reload/epoch"), 3);
    });
}

// proves R-CFG-7, R-ADM-2
#[test]
fn a_queue_opens_and_more_seats_let_in_who_waits() {
    everywhere(|setup| {
        let fleet = Fleet::pair().with("serving", "max_connections", 1);
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"decode": [endless(), {"default": true}]}));
        let holds = begun(&world);
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(429));
        let queueing = fleet.clone().with("serving", "queue_capacity", 2).with(
            "serving",
            "queue_timeout_s",
            20,
        );
        follow(&world, &queueing);
        let mut waits = world.connect();
        waits.send(&client::post(TEXT, &prompt(true)));
        world.until("it waits", |world| {
            number(&world.state(), "/admission/queued") == 1
        });
        // The line is closed again, and who is in it stays.
        follow(&world, &fleet.clone().with("serving", "max_retained", 9));
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(429));
        assert_eq!(number(&world.state(), "/admission/queued"), 1);
        follow(
            &world,
            &queueing.clone().with("serving", "max_connections", 2),
        );
        let answer = waits.answer();
        assert_eq!(answer.status, Some(200), "{}", answer.text());
        drop(holds);
        world.at_rest();
    });
}

// proves R-CFG-7
#[test]
fn a_bad_file_changes_nothing_and_says_why() {
    everywhere(|setup| {
        let fleet = Fleet::pairs();
        let world = World::start(setup, &fleet);
        served(&world);
        let file = || world.read("fleet.json");
        let good = file();
        let state = world.state();
        // Rows: what is in the file, what is said.
        let rows: Vec<(String, &str)> = vec![
            ("{".to_owned(), "fleet.json:1:2: not JSON"),
            (good.replace("\"slo\"", "\n\"slow\""), "unknown key"),
            (good.replace("0.01", "-1"), "serving.retry_"),
            (
                good.replace("\"narwhal.fleet\"", "\"narwhal.profiles\""),
                "schema",
            ),
            (
                good.replace("\"stub-model\"", "\"other\""),
                "model: another fleet",
            ),
            (
                good.replace("\"open\"", "\"predictive\""),
                "needs a profile for every engine",
            ),
            (
                good.replace(
                    "\"serving\":{",
                    "\"profiles\":{\"path\":\"none.json\"},\"serving\":{",
                ),
                "none.json: cannot be read",
            ),
            (
                good.replace(
                    "\"serving\":{",
                    "\"runtime\":{\"api_keys_file\":\"none\"},\"serving\":{",
                ),
                "none",
            ),
            (String::new(), "fleet.json"),
        ];
        for (count, (text, why)) in rows.iter().enumerate() {
            assert_ne!(*text, good, "{why}");
            world.write("fleet.json", text);
            let last = hang_up(&world);
            assert_eq!(last["result"], "refused", "{last}");
            let reason = last["reason"].as_str().expect("a reason");
            assert!(reason.contains(why), "{why} in {reason}");
            // The log may come a moment behind the state.
            world.until("it says so", |world| {
                world.said().contains("nothing has changed")
            });
            let now = world.state();
            assert_eq!(number(&now, "/reload/refused"), count as u64 + 1);
            for part in ["/health/engines", "/admission/limit", "/reload/epoch"] {
                assert_eq!(now.pointer(part), state.pointer(part), "{why}");
            }
            served(&world);
        }
        let page = world.ask(&client::get("/metrics")).text();
        let line = format!(
            "narwhal_reloads_total{{result=\"refused\"}} {}\n",
            rows.len()
        );
        assert!(
            page.contains(&line) && page.contains("narwhal_last_reload_ok 0\n"),
            "{page}"
        );
        world.write("fleet.json", &good);
        assert_eq!(hang_up(&world)["result"], "applied");
        served(&world);
        let page = world.ask(&client::get("/metrics")).text();
        assert!(page.contains("narwhal_last_reload_ok 1\n"), "{page}");
        world.at_rest();
    });
}

// proves R-CFG-7
#[test]
fn keys_that_wait_for_a_restart_are_named() {
    everywhere(|setup| {
        let fleet = Fleet::pair();
        let world = World::start(setup, &fleet);
        // The number of shards is the command line's, so the file's does not count.
        let next = fleet
            .with("runtime", "admin_listen", "127.0.0.1:1")
            .with("runtime", "numa", "off")
            .with("runtime", "shards", 7)
            .with("recovery", "resume", true)
            .with("serving", "max_connections", 5);
        let last = follow(&world, &next);
        let named = json!(["recovery.resume", "runtime.admin_listen", "runtime.numa"]);
        assert_eq!(last["restart"], named);
        world.until("it says so", |world| {
            world.said().contains("needs a restart")
        });
        let state = world.state();
        assert_eq!(number(&state, "/admission/limit"), 5, "the rest counts");
        assert_eq!(state["shards"].as_array().map(Vec::len), Some(setup.shards));
        served(&world);
    });
}

// proves R-CFG-7
#[test]
fn an_engine_leaves_while_it_streams() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "placement", "round_robin");
        let world = World::start(setup, &fleet);
        for _ in 0..6 {
            served(&world);
        }
        world.engines.reset();
        world
            .engines
            .script(&json!({"decode": [slow(2000), {"default": true}]}));
        let mut client = begun(&world);
        let decodes = world.engines.legs("decode")[0].engine;
        let reads = world.engines.legs("prefill")[0].engine;
        let mut small = fleet.clone();
        for n in [decodes, reads] {
            small = without_engine(small, &format!("e{n}"));
        }
        let last = follow(&world, &small);
        assert_eq!(last["removed"].as_array().map(Vec::len), Some(2), "{last}");
        world.engines.reset();
        for _ in 0..8 {
            served(&world);
        }
        assert_eq!(workers(&world, "prefill"), BTreeSet::from([1 - reads]));
        assert_eq!(workers(&world, "decode"), BTreeSet::from([5 - decodes]));
        // It is nowhere to be seen, and its stream goes on.
        let gone = format!("e{decodes}");
        assert!(!iids(&world).contains(&gone));
        let state = world.state();
        assert!(state["resident"][&gone].is_null() && state["ejected"] == json!([]));
        assert_eq!(number(&state, "/health/instances"), 2);
        assert_eq!(number(&state, "/admission/inflight"), 1);
        assert!(!world.ask(&client::get("/metrics")).text().contains(&gone));
        let drain = world.post("/narwhal/lifecycle/drain", &json!({"engines": [gone]}));
        assert_eq!(drain.status, Some(404));
        ends_well(&mut client);
        world.at_rest();
        // Back, it begins anew and is given work; its place is another one's or its own.
        let last = follow(&world, &fleet);
        assert_eq!(last["added"].as_array().map(Vec::len), Some(2), "{last}");
        world.engines.reset();
        world.until("work for all", |world| {
            served(world);
            workers(world, "decode").len() == 2 && workers(world, "prefill").len() == 2
        });
        assert_eq!(iids(&world).len(), 4);
        world.at_rest();
    });
}

// proves R-CFG-7
#[test]
fn engines_come_and_move() {
    everywhere(|setup| {
        let mut fleet = Fleet::pair().with("serving", "placement", "round_robin");
        fleet.spare = 2;
        let world = World::start(setup, &fleet);
        served(&world);
        let last = follow(&world, &with_engine(fleet.clone(), "e2", 2, "decode"));
        assert_eq!(last["added"], json!(["e2"]));
        world.engines.reset();
        world.until("work for it", |world| {
            served(world);
            workers(world, "decode") == BTreeSet::from([1, 2])
        });
        // Another address is another engine, under the same name.
        let moved = with_engine(fleet.clone(), "e2", 3, "decode");
        let last = follow(&world, &moved);
        assert_eq!(
            (&last["added"], &last["removed"]),
            (&json!(["e2"]), &json!(["e2"]))
        );
        world.engines.reset();
        world.until("work there", |world| {
            served(world);
            workers(world, "decode") == BTreeSet::from([1, 3])
        });
        // Another role is the same engine.
        let mut turned = moved.clone();
        turned.file["engines"][2]["role"] = json!("prefill");
        let last = follow(&world, &turned);
        assert_eq!(
            (&last["added"], &last["changed"]),
            (&json!([]), &json!(["e2"]))
        );
        world.engines.reset();
        world.until("other work", |world| {
            served(world);
            workers(world, "prefill") == BTreeSet::from([0, 3])
        });
        assert_eq!(workers(&world, "decode"), BTreeSet::from([1]));
        // A role without engines is refused work, as at a start.
        let mut none = fleet.clone();
        none.file["engines"].as_array_mut().expect("engines").pop();
        follow(&world, &none);
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(503));
        let ready = world.ask(&client::get("/ready"));
        assert_eq!(ready.json()["reason"], "no decode engines");
        follow(&world, &fleet);
        served(&world);
        world.at_rest();
    });
}

// proves R-CFG-7, R-CTL-6
#[test]
fn what_is_known_of_an_engine_stays_with_it() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("recovery", "state_path", "state.json");
        let world = World::start(setup, &fleet);
        let drain = |iid: &str| {
            let answer = world.post("/narwhal/lifecycle/drain", &json!({"engines": [iid]}));
            assert_eq!(answer.status, Some(200), "{}", answer.text());
        };
        drain("e2");
        drain("e0");
        let held = |world: &World| world.state()["lifecycle"]["held"].take();
        // One that is held stays held over a reload; one that leaves is forgotten.
        follow(&world, &without_engine(fleet.clone(), "e0"));
        assert_eq!(held(&world), json!(["e2"]));
        world.engines.reset();
        for _ in 0..6 {
            served(&world);
        }
        assert_eq!(workers(&world, "prefill"), BTreeSet::from([1]));
        assert_eq!(workers(&world, "decode"), BTreeSet::from([3]));
        world.until("the state file forgets", |world| {
            let text = world.read("state.json");
            text.contains("\"e2\"") && !text.contains("\"e0\"")
        });
        follow(&world, &fleet);
        assert_eq!(held(&world), json!(["e2"]));
        world.until("work for it", |world| {
            served(world);
            workers(world, "prefill") == BTreeSet::from([0, 1])
        });
        assert_eq!(workers(&world, "decode"), BTreeSet::from([3]));
        world.at_rest();
    });
}

// proves R-CFG-7, R-HTTP-6
#[test]
fn client_keys_come_and_go() {
    // As sha256sum prints it for `k1`.
    const K1: &str = "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0\n";
    everywhere(|setup| {
        let fleet = Fleet::pair();
        let world = World::start(setup, &fleet);
        served(&world);
        world.write("keys", K1);
        let keyed = fleet.clone().with("runtime", "api_keys_file", "@DIR/keys");
        follow(&world, &keyed);
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(401));
        follow(&world, &fleet);
        served(&world);
    });
}

/// Descriptors of the process.
fn descriptors(world: &World) -> usize {
    let folder = format!("/proc/{}/fd", world.id());
    fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Files that alternate while clients keep coming: each answer is whole, none is missing, and nothing is left behind.
// proves R-CFG-7
#[test]
fn reloads_under_load_go_unnoticed() {
    const ROUNDS: usize = 20;
    everywhere(|setup| {
        let mut fleet = Fleet::pairs();
        fleet.spare = 2;
        let world = World::start(setup, &fleet);
        let bounded = fleet
            .clone()
            .with("serving", "decode_concurrency", 3)
            .with("serving", "max_connections", 64)
            .with("engine", "pool_max", 4)
            .with("engine", "pool_timeout_s", 30);
        let files = [
            with_engine(without_engine(fleet.clone(), "e0"), "e4", 4, "prefill"),
            with_engine(without_engine(bounded, "e2"), "e5", 5, "decode"),
            fleet.clone(),
            // A whole role is another's: at no moment is there nobody.
            with_engine(
                without_engine(without_engine(fleet.clone(), "e2"), "e3"),
                "e5",
                5,
                "decode",
            ),
        ];
        let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let client = |stream: bool| {
            while !over.load(Ordering::SeqCst) {
                let mut client = world.connect();
                // A few on each connection.
                for _ in 0..5 {
                    client.send(&client::post(TEXT, &prompt(stream)));
                    let answer = client.answer();
                    assert_eq!(answer.status, Some(200), "{}", answer.text());
                    if stream {
                        let events = data_of(&answer.text());
                        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
                        assert!(!answer.text().contains("error"), "{}", answer.text());
                    } else {
                        assert_eq!(answer.json()["object"], "text_completion");
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }
        };
        let mut before = 0;
        thread::scope(|scope| {
            let all = [true, false, true, false].map(|stream| scope.spawn(move || client(stream)));
            for round in 0..ROUNDS {
                let served = done.load(Ordering::SeqCst);
                follow(&world, &files[round % files.len()]);
                world.until("some are served", |_| {
                    done.load(Ordering::SeqCst) > served + 4 || all.iter().any(|t| t.is_finished())
                });
                if round == 5 {
                    before = descriptors(&world);
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        // The file of the last round.
        let state = world.at_rest();
        assert_eq!(number(&state, "/served"), done.load(Ordering::SeqCst));
        assert_eq!(number(&state, "/offered"), number(&state, "/served"));
        assert_eq!(number(&state, "/serving/retry_attempts"), 0);
        assert_eq!(number(&state, "/reload/applied"), ROUNDS as u64);
        follow(&world, &fleet);
        served(&world);
        assert_eq!(iids(&world), ["e0", "e1", "e2", "e3"].map(str::to_owned));
        // Those that left have made room for those that came.
        let places = number(&world.state(), "/reload/places");
        assert!(places <= 8, "{places}");
        // Sockets come and go; a leak would have left one each time.
        world.until("descriptors as before", |world| {
            descriptors(world) <= before + 8
        });
    });
}

/// Signals that come during an attempt are one more attempt.
// proves R-CFG-7
#[test]
fn signals_in_a_row_lose_none() {
    everywhere(|setup| {
        let fleet = Fleet::pair();
        let world = World::start(setup, &fleet);
        for seats in 1..=10 {
            world.rewrite(&fleet.clone().with("serving", "max_connections", seats));
            world.signal("HUP");
        }
        world.until("the last one", |world| {
            number(&world.state(), "/admission/limit") == 10
        });
        served(&world);
        assert!(attempts(&world) <= 10);
    });
}
