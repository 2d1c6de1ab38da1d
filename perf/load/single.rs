//! One request at a time, in turn through the target and straight to the engines: what the router adds to the engines' own time.
//!
//! With two engines to compare with, the client does both legs itself, as the router does them: first the prefill leg, then the decode
//! leg with what it handed over. Its own connections stay open, as the router's do.

use std::rc::Rc;

use memchr::memmem;
use narwhal::runtime::io::Rt;
use serde_json::Value;

use super::answer::Want;
use super::client::Client;
use super::{Load, Seen, Times, request};

pub async fn measure<R: Rt>(load: &Rc<Load>) -> Value {
    let own = Rc::new(Load::new(load.args.clone()));
    load.start::<R>(0, in_turn::<R>(load.clone(), own.clone()));
    // Both are counted from the same mark on, which is before the request that follows it.
    let warm = std::time::Duration::from_millis(load.args.warm_ms);
    R::spawn({
        let own = own.clone();
        async move {
            R::sleep(warm).await;
            *own.times.borrow_mut() = Times::default();
        }
    });
    let mut report = load.count::<R>().await;
    let times = own.times.take();
    report["reference"] = serde_json::json!({
        "ttft": times.ttft.report(),
        "total": times.total.report(),
    });
    report
}

async fn in_turn<R: Rt>(load: Rc<Load>, own: Rc<Load>) -> Result<(), String> {
    let mut client = Client::<R>::connect(load.args.target).await?;
    let mut engines = Vec::new();
    for at in &load.args.reference {
        engines.push(Client::<R>::connect(*at).await?);
    }
    while !load.stop.get() {
        let want = load.want();
        let mut seen = Seen::new(&load);
        request::completion(&load.args, want.tag, &mut client.out);
        client.exchange(want, |tokens| seen.tokens(tokens)).await?;
        seen.end();
        if !engines.is_empty() {
            legs(&own, &mut engines, load.want()).await?;
        }
    }
    Ok(())
}

/// The engines' own time for one request.
async fn legs<R: Rt>(own: &Load, engines: &mut [Client<R>], want: Want) -> Result<(), String> {
    let args = &own.args;
    let mut seen = Seen::new(own);
    let mut handoff = String::new();
    if let [prefill, _] = engines {
        request::prefill(args, want.tag, &mut prefill.out);
        let first = Want {
            tokens: 1,
            whole: true,
            ..want
        };
        prefill.exchange(first, |_| ()).await?;
        let body = prefill.answer.body();
        handoff = handoff_of(body).ok_or("no handoff")?.to_owned();
    }
    let decode = engines.last_mut().ok_or("no engine")?;
    match handoff.is_empty() {
        true => request::completion(args, want.tag, &mut decode.out),
        false => request::decode(args, want.tag, &handoff, &mut decode.out),
    }
    decode.exchange(want, |tokens| seen.tokens(tokens)).await?;
    seen.end();
    Ok(())
}

/// An object without objects in it.
fn handoff_of(body: &[u8]) -> Option<&str> {
    const KEY: &[u8] = b"\"kv_transfer_params\":";
    let at = memmem::find(body, KEY)? + KEY.len();
    let end = at + memchr::memchr(b'}', &body[at..])? + 1;
    std::str::from_utf8(&body[at..end]).ok()
}
