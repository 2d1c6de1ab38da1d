//! Many streams open at once, all between two tokens: what a stream costs in memory.
//!
//! The engine writes `--held-tokens` of each and then nothing (`--hold-after`). Memory of what is watched is read before the first stream is
//! opened, when all of them are silent, and once more a while later.

use std::rc::Rc;
use std::time::Duration;

use narwhal::runtime::io::Rt;
use serde_json::{Value, json};

use super::client::Client;
use super::watch::Used;
use super::{Load, Seen, request, stamp};

/// Head and a few events.
const READ_BYTES: usize = 2 << 10;

/// For all streams to open.
const OPEN: Duration = Duration::from_secs(60);

pub async fn measure<R: Rt>(load: &Rc<Load>) -> Value {
    let before = load.mark();
    for index in 0..load.args.connections {
        load.start::<R>(index, held::<R>(load.clone()));
    }
    let end = stamp::now_ns() + OPEN.as_nanos() as u64;
    let all = u64::from(load.args.connections);
    while load.requests.get() < all && !load.stop.get() && stamp::now_ns() < end {
        R::sleep(Duration::from_millis(20)).await;
    }
    if load.requests.get() < all {
        load.fail(format!("{} of {all} streams opened", load.requests.get()));
    }
    R::sleep(Duration::from_millis(load.args.warm_ms)).await;
    let open = load.mark();
    R::sleep(Duration::from_millis(load.args.count_ms)).await;
    let after = load.mark();
    load.stop.set(true);
    let mut report = load.report(&open, &after);
    let opened = before.watched.iter().zip(&open.watched);
    let opened: Vec<Value> = opened.map(|(a, b)| Used::report(*a, *b)).collect();
    report["opened"] = json!(opened);
    report["streams"] = json!(load.requests.get());
    report
}

async fn held<R: Rt>(load: Rc<Load>) -> Result<(), String> {
    let mut client = Client::<R>::with_buffer(load.args.target, READ_BYTES).await?;
    let want = load.want();
    let mut seen = Seen::new(&load);
    request::completion(&load.args, want.tag, &mut client.out);
    client.send(want).await?;
    while client.answer.tokens < load.args.held_tokens {
        seen.tokens(client.read().await?);
    }
    load.requests.set(load.requests.get() + 1);
    // Nothing is to come.
    let more = client.read().await;
    match load.stop.get() {
        true => Ok(()),
        false => more.and(Err("the engine went on".to_owned())),
    }
}
