//! An attempt on shards that are played: what they are told, and what is left of it when one of them does not answer.

#![expect(
    clippy::disallowed_types,
    reason = "what played shards have heard is read by the test"
)]

use std::sync::Mutex;

use serde_json::json;

use super::*;
use crate::config::{Format, parse};
use crate::control::tests::pair;
use crate::metrics::picture::ReloadResult;

/// Two shards, the second of which answers once it is told that it may.
struct Shards {
    mail: Arc<[Arc<Mailbox<Mail>>]>,
    heard: Arc<[Mutex<Vec<&'static str>>; 2]>,
    answers: watch::Sender<bool>,
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::Survey(_) => "survey",
        Step::Prepare(_) => "prepare",
        Step::Commit => "commit",
        Step::Drop => "drop",
    }
}

impl Shards {
    fn play() -> (Shards, mpsc::Receiver<Told>) {
        let (told, hears) = mpsc::channel(16);
        let mail: Arc<[_]> = (0..2).map(|_| Arc::new(Mailbox::new(8))).collect();
        let shards = Shards {
            mail,
            heard: Arc::default(),
            answers: watch::Sender::new(false),
        };
        for shard in 0..2 {
            let (mailbox, told) = (shards.mail[shard].clone(), told.clone());
            let (heard, mut answers) = (shards.heard.clone(), shards.answers.subscribe());
            tokio::spawn(async move {
                loop {
                    let Mail::Fleet(Letter { round, step }) = mailbox.recv().await else {
                        panic!("a letter of another kind");
                    };
                    heard[shard].lock().expect("no panic").push(name(&step));
                    if shard == 1 && matches!(step, Step::Prepare(_)) {
                        // Its answer comes when the attempt is over.
                        let _ = answers.wait_for(|answers| *answers).await;
                    }
                    let busy = Vec::new();
                    let _ = told.send(Told { shard, round, busy }).await;
                }
            });
        }
        (shards, hears)
    }

    fn heard(&self) -> [Vec<&'static str>; 2] {
        [0, 1].map(|shard| std::mem::take(&mut *self.heard[shard].lock().expect("no panic")))
    }
}

fn read() -> Result<Reading, String> {
    let engine = |iid: &str, role: &str, port: u16| json!({"iid": iid, "url": format!("http://127.0.0.1:{port}/base"), "role": role, "pin": true});
    let file = json!({
        "schema": "narwhal.fleet", "schema_version": 2, "model": "stub-model",
        "engines": [engine("e0", "prefill", 9), engine("e2", "decode", 11)],
        "slo": {"ttft_s": 1, "tpot_s": 0.1},
        "serving": {"admission": "open", "max_connections": 3},
    });
    let loaded = parse("f", &file.to_string(), Format::Json, &|_| None);
    Ok(Reading {
        fleet: loaded.map_err(|why| why.to_string())?.fleet,
        profiles: Vec::new(),
        api_keys: None,
        admin_key: None,
        warnings: Vec::new(),
    })
}

// proves R-CFG-7
#[test]
fn a_shard_that_does_not_get_ready_ends_the_attempt_everywhere() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (shards, told) = Shards::play();
        let before = pair();
        let limit = |shared: &Shared| shared.state.seats.limit();
        let (current, seats) = (Arc::new(watch::Sender::new(before.clone())), limit(&before));
        let again = Again {
            read: Arc::new(read),
            mail: shards.mail.clone(),
            told,
        };
        let mut reloader = Reloader::new(current.clone(), Some(again), Names::default());
        reloader.patience = Duration::from_millis(50);
        reloader.reload().await;
        let shown = before.reloads.shown(&before.snapshot);
        let last = shown.last.expect("an attempt");
        assert_eq!(last.result, ReloadResult::Aborted);
        let why = last.reason.expect("why");
        assert_eq!(why, "shard 1 was not ready in 50ms");
        assert!(Arc::ptr_eq(&before, &current.borrow()), "as it was");
        assert_eq!(limit(&before), seats);
        assert!(before.state.board.line(EngineId(1)).available());
        // The late answer is to an attempt that is over; the next one is told everything anew.
        shards.answers.send_replace(true);
        reloader.patience = PREPARE_MAX;
        reloader.reload().await;
        let after = current.borrow().clone();
        let last = after.reloads.shown(&after.snapshot).last.expect("another");
        assert_eq!((last.result, last.reason), (ReloadResult::Applied, None));
        assert_eq!(
            (last.added, last.removed),
            (vec!["e2".into()], vec!["e1".into()])
        );
        let each = ["prepare", "drop", "prepare", "commit"];
        assert_eq!(shards.heard(), [each; 2]);
        assert_eq!(limit(&after), 3);
        let board = &after.state.board;
        let open = [0, 1, 2].map(|engine| board.line(EngineId(engine)).available());
        assert_eq!(open, [true, false, true]);
    });
}
