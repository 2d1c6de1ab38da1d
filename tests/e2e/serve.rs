//! The command itself: what it is told, what it says, and how it ends.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{self, Client, PATIENCE};
use super::world::{Fleet, World, everywhere, number, poll, reason};

const TEXT: &str = "/v1/completions";

fn prompt(stream: bool) -> Value {
    json!({"model": "stub-model", "prompt": "hello there", "max_tokens": 3, "stream": stream})
}

/// Two of the stages were shown and never timed.
// proves R-OBS-1, R-OBS-2
#[test]
fn each_stage_of_our_own_is_timed() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        let event = r#"data: {"choices":[{"index":0,"text":"a","token_ids":[1]}]}"#;
        // One read in 64 is timed; each of these is one.
        let one = [json!(format!("{event}\n\n")), json!({"delay_ms": 1})];
        let mut chunks: Vec<Value> = (0..70).flat_map(|_| one.clone()).collect();
        chunks.push(json!("data: [DONE]\n\n"));
        world
            .engines
            .script_for_good(&json!({"decode": {"chunks": chunks}}));
        world.until("each is timed", |world| {
            assert_eq!(world.post(TEXT, &prompt(true)).status, Some(200));
            let state = world.state();
            let timed = |stage: &str| number(&state, &format!("/serving/overhead_s/{stage}/count"));
            assert!(timed("parse") > 0 && timed("admit") > 0 && timed("place") > 0);
            assert_eq!(timed("place"), number(&state, "/offered"));
            timed("connect") > 0 && timed("relay") > 0
        });
        let state = world.state();
        for stage in ["parse", "admit", "place", "connect", "relay"] {
            let time = &state["serving"]["overhead_s"][stage];
            let mean = time["sum"].as_f64().expect("seconds") / time["count"].as_f64().expect("n");
            // The engines' time, 70 ms and more for each request, is in none of them.
            assert!(mean > 0.0 && mean < 0.05, "{stage}: {time}");
        }
    });
}

// proves R-CLI-1, R-CTL-1, R-OBS-2
#[test]
fn flags_decide_where_and_how_it_serves() {
    everywhere(|setup| {
        let mut fleet = Fleet::pairs();
        fleet.args = [
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
            "--router-id",
            "r-7",
        ]
        .map(str::to_owned)
        .into();
        let world = World::start(setup, &fleet);
        world.until("two addresses", |world| {
            world.addresses("listening on http://").len() == 2
        });
        for addr in world.addresses("listening on http://") {
            let mut client = Client::connect(addr);
            client.send(&client::post(TEXT, &prompt(false)));
            assert_eq!(client.answer().status, Some(200));
            // These have a port of their own now.
            client.send(&client::get("/narwhal/state"));
            assert_eq!(client.answer().status, Some(404));
        }
        let admin = world.addresses("admin routes on http://");
        assert_eq!(admin.len(), 1, "{}", world.said());
        let ask = |path: &str| {
            let mut client = Client::connect(admin[0]);
            client.send(&client::get(path));
            client.answer()
        };
        let state = ask("/narwhal/state").json();
        assert_eq!(state["ha"]["router_id"], "r-7");
        assert_eq!(number(&state, "/served"), 2);
        let shards = state["shards"].as_array().expect("shards");
        assert_eq!(shards.len(), setup.shards);
        assert!(shards.iter().all(|shard| shard["driver"] == setup.driver));
        assert!(world.said().contains(setup.driver), "{}", world.said());
        assert_eq!(ask("/ready").status, Some(200));
        assert_eq!(ask("/health").json()["available_instances"], 4);
        assert!(ask("/metrics").text().contains("narwhal_served_total"));
    });
}

// proves R-CLI-1, R-ADM-6
#[test]
fn what_it_cannot_do_is_refused_by_name() {
    let dir = std::env::temp_dir().join(format!("narwhal-e2e-serve-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = |name: &str, fleet: &Fleet| {
        let path = dir.join(name);
        std::fs::write(&path, fleet.file.to_string()).expect("a fleet file");
        path.display().to_string()
    };
    let good = file("good.json", &Fleet::pairs());
    let predictive = file(
        "a.json",
        &Fleet::pairs().with("serving", "admission", "predictive"),
    );
    let typo = file(
        "b.json",
        &Fleet::pairs().with("serving", "max_conections", 3),
    );
    let range = file("c.json", &Fleet::pairs().with("serving", "max_attempts", 9));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    // Arguments, exit code, what it says.
    let rows: [(&[&str], i32, &[&str]); 8] = [
        (&["--help"], 0, &["--fleet", "--listen", "--driver"]),
        (&[], 2, &["--fleet"]),
        (&["--fleet", &good, "--nonsense"], 2, &["--nonsense"]),
        (
            &["--fleet", &good, "--driver", "kqueue"],
            2,
            &["--driver", "kqueue"],
        ),
        (
            &["--fleet", "/nowhere/fleet.json"],
            2,
            &["/nowhere/fleet.json"],
        ),
        (
            &["--fleet", &predictive],
            2,
            &["a.json", "serving.admission", "predictive"],
        ),
        (
            &["--fleet", &typo],
            2,
            &["b.json", "max_conections", "max_connections"],
        ),
        (
            &["--fleet", &range],
            2,
            &["c.json", "max_attempts", "9", "1", "3"],
        ),
    ];
    for (args, code, words) in rows {
        let out = narwhal_serve(args);
        let said = said(&out);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?} without {word}: {said}");
        }
    }
    let out = narwhal_serve(&["--fleet", &good, "--listen", &taken]);
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(said(&out).contains(&taken), "{}", said(&out));
    std::fs::remove_dir_all(dir).expect("a directory");
}

fn narwhal_serve(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narwhal"));
    command.arg("serve").args(args).output().expect("it runs")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&[&*out.stdout, &*out.stderr].concat()).into_owned()
}

/// No prediction stands between a request and its prefill, however late it will be.
// proves R-ADM-6
#[test]
fn open_admission_predicts_nothing() {
    everywhere(|setup| {
        // A quarter of it is what the router's own loop may be late.
        let fleet = Fleet::pair().with("slo", "ttft_s", 0.5);
        let fleet = fleet.with("slo", "tpot_s", 0.001);
        let world = World::start(setup, &fleet);
        world
            .engines
            .script(&json!({"prefill": {"raw": [{"hang": true}]}}));
        let long = json!({"prompt": vec![1; 5000], "stream": true});
        let held: Vec<Client> = (0..20)
            .map(|_| {
                let mut client = world.connect();
                client.send(&client::post(TEXT, &long));
                client
            })
            .collect();
        world.until_leg("prefill", held.len());
        let state = world.state();
        assert_eq!(number(&state, "/admission/inflight"), 20);
        assert_eq!(number(&state, "/admission/refused"), 0);
        assert_eq!(number(&state, "/resident/e0/prefill"), 20);
        drop(held);
        world.at_rest();
    });
}

// proves R-CTL-7, R-CTL-2
#[test]
fn a_signal_drains_and_a_second_one_ends() {
    everywhere(|setup| {
        let fleet = Fleet::pairs().with("serving", "drain_window_s", 1.0);
        let world = World::start(setup, &fleet);
        let event = "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1]}]}\n\n";
        world.engines.script(&json!({"decode": {"chunks": [
            event, {"delay_ms": 1500}, event, "data: [DONE]\n\n",
        ]}}));
        let mut running = world.connect();
        running.send(&client::post(TEXT, &prompt(true)));
        let begun = running.begin_answer(1);
        assert_eq!(begun.status, Some(200));
        let mut idle = world.connect();
        idle.send(&client::get("/health"));
        assert_eq!(idle.answer().status, Some(200));

        world.signal("TERM");
        // Listeners stay open for a while, so that no one is refused a connection before balancers have seen this.
        let ready = poll(PATIENCE, || {
            world.ask(&client::get("/ready")).status == Some(503)
        });
        assert!(ready, "{}", world.said());
        let answer = world.post(TEXT, &prompt(true));
        assert_eq!(answer.status, Some(503), "{}", answer.text());
        assert_eq!(answer.error().0, "standby");
        assert_eq!(answer.header("retry-after"), Some("1"));
        let state = world.state();
        assert_eq!(reason(&state, "rejected", "draining"), 1);
        // What runs is finished.
        running.eof = false;
        assert!(running.ends_within(PATIENCE));
        let rest = String::from_utf8_lossy(&running.buf).into_owned();
        assert!(rest.contains("data: [DONE]"), "{rest}");
        assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
        assert!(idle.ends_within(PATIENCE));
        assert_eq!(world.exit_code(), Some(0), "{}", world.said());

        // Twice: at once, whatever runs.
        let world = World::start(
            setup,
            &Fleet::pairs().with("serving", "drain_window_s", 60.0),
        );
        world
            .engines
            .script(&json!({"decode": {"chunks": [event, {"hang": true}]}}));
        let mut running = world.connect();
        running.send(&client::post(TEXT, &prompt(true)));
        running.begin_answer(1);
        world.signal("INT");
        world.until("it drains", |world| world.said().contains("draining"));
        let second = Instant::now();
        world.signal("TERM");
        world.exit_code();
        assert!(second.elapsed() < Duration::from_secs(5));
    });
}

/// `graceful_timeout_s` bounds what is waited for.
// proves R-CTL-7
#[test]
fn a_drain_ends_even_if_an_exchange_does_not() {
    everywhere(|setup| {
        let fleet = Fleet::pairs()
            .with("serving", "drain_window_s", 0.2)
            .with("serving", "graceful_timeout_s", 0.5)
            .with("engine", "decode_read_timeout_s", 0);
        let world = World::start(setup, &fleet);
        let event = "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1]}]}\n\n";
        world
            .engines
            .script(&json!({"decode": {"chunks": [event, {"hang": true}]}}));
        let mut running = world.connect();
        running.send(&client::post(TEXT, &prompt(true)));
        running.begin_answer(1);
        let signalled = Instant::now();
        world.signal("TERM");
        world.exit_code();
        assert!(signalled.elapsed() < Duration::from_secs(10));
    });
}

/// What was accepted before the signal is answered, wherever it is by then.
// proves R-CTL-7
#[test]
fn a_router_that_drains_finishes_what_it_has_begun() {
    everywhere(|setup| {
        let fleet = Fleet::pair()
            .with("serving", "max_connections", 1)
            .with("serving", "queue_capacity", 4)
            .with("serving", "queue_timeout_s", 20)
            .with("serving", "drain_window_s", 2);
        let world = World::start(setup, &fleet);
        let slow = json!({"delay_ms": 400, "body": {"count": 3}});
        world
            .engines
            .script(&json!({"tokenize": [slow, slow, {"default": true}]}));
        let mut clients: Vec<_> = (0..2)
            .map(|_| {
                let mut client = world.connect();
                client.send(&client::post(TEXT, &prompt(true)));
                client
            })
            .collect();
        world.until_leg("tokenize", 2);
        world.signal("TERM");
        world.until("draining", |world| world.said().contains("draining"));
        let refused = world.post(TEXT, &prompt(true));
        assert_eq!(refused.status, Some(503), "{}", refused.text());
        for client in &mut clients {
            let answer = client.answer();
            assert_eq!(answer.status, Some(200), "{}", answer.text());
            assert!(answer.complete);
        }
        assert_eq!(world.exit_code(), Some(0));
    });
}

/// A debugger, a cgroup freezer or a moved machine stops the process for a while: every pending system call then ends
/// interrupted, which is no fault of any peer.
#[test]
fn a_router_that_was_stopped_goes_on_where_it_was() {
    everywhere(|setup| {
        let world = World::start(setup, &Fleet::pairs());
        let slow = json!({"decode": [{"chunks": [
            "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1]}]}\n\n",
            {"delay_ms": 300},
            "data: {\"choices\":[{\"index\":0,\"text\":\"b\",\"token_ids\":[2]}]}\n\n",
            "data: [DONE]\n\n",
        ]}]});
        world.engines.script(&slow);
        let mut idle = world.connect();
        idle.send(&client::post(TEXT, &prompt(false))[..40]);
        let mut streaming = world.connect();
        streaming.send(&client::post(TEXT, &prompt(true)));
        let head = streaming.begin_answer(1);
        assert_eq!(head.status, Some(200));
        for _ in 0..3 {
            world.signal("STOP");
            world.until("stopped", |world| process_state(world.id()) == Some('T'));
            world.signal("CONT");
            world.until("running", |world| process_state(world.id()) != Some('T'));
        }
        let mut rest = Vec::new();
        while streaming.more(PATIENCE) {
            rest.clone_from(&streaming.buf);
            if rest.ends_with(b"0\r\n\r\n") {
                break;
            }
        }
        assert!(
            rest.ends_with(b"0\r\n\r\n"),
            "{}",
            String::from_utf8_lossy(&rest)
        );
        idle.send(&client::post(TEXT, &prompt(false))[40..]);
        assert_eq!(idle.answer().status, Some(200), "{setup:?}");
        assert_eq!(world.post(TEXT, &prompt(false)).status, Some(200));
        assert_eq!(number(&world.at_rest(), "/served"), 3, "{setup:?}");
    });
}

/// The letter of proc(5) `stat`.
fn process_state(id: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
