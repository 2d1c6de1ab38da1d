//! `/narwhal/state` (schema `narwhal.state`, version 1): the whole live picture as one JSON object, for people, the
//! dashboard and the `status` command. Members are added over time, never renamed.
//!
//! Invariant: offered = served + failed + expired + cancelled + invalid_requests + admission.rejected +
//! admission.refused + (Σ shards[].inflight).

use serde_json::{Map, Value, json};

use super::histogram::{Distribution, Series};
use super::ledger::{Cell, Counts};
use super::outcome::{End, Outcome};
use super::picture::{
    Breaker, EngineView, JournalView, Length, Picture, ReloadResult, Reloads, ShardView,
};
use super::standing::EngineLine;

pub const SCHEMA: &str = "narwhal.state";
pub const SCHEMA_VERSION: u32 = 1;

/// The object.
pub fn render(p: &Picture<'_>) -> Value {
    let c = &p.totals;
    let those = |holds: fn(&EngineLine) -> bool| -> Vec<&str> {
        let engines = p.engines.iter().filter(|e| holds(&e.line));
        engines.map(|e| e.iid).collect()
    };
    json!({
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "offered": c.offered(),
        "unsized_offered": c.cell(Cell::UnsizedOffered),
        "served": c.outcome(Outcome::Served),
        "slo_met": c.cell(Cell::SloMet),
        "failed": c.outcome(Outcome::Failed),
        "expired": c.outcome(Outcome::Expired),
        "cancelled": c.outcome(Outcome::Cancelled),
        "invalid_requests": c.outcome(Outcome::Invalid),
        "token_accounting": p.token_accounting.name(),
        "admission": admission(p),
        "serving": serving(p),
        "outcome_reasons": reasons(c),
        "pools": pools(c),
        "resident": resident(p),
        "ejected": those(|line| line.ejected),
        "probation": those(|line| line.on_probation),
        "evicted": those(|line| line.evicted),
        "learned": learned(p),
        "health": health(p),
        "ha": {"router_id": p.router_id, "epoch": p.epoch, "holder": p.holder},
        "lifecycle": {
            "standing": p.standing.name(),
            "reason": p.health().reason(),
            "held": those(|line| line.held),
        },
        "reload": reload(&p.reloads),
        "journal": p.journal.as_ref().map(|view| journal(view, c)),
        "shards": p.shards.iter().enumerate().map(|(i, s)| shard(i, s)).collect::<Vec<_>>(),
    })
}

fn journal(view: &JournalView<'_>, c: &Counts) -> Value {
    json!({
        "path": view.path,
        "rows": view.rows,
        "dropped": c.cell(Cell::JournalDropped),
        "waiting": view.waiting,
        "bytes": view.bytes,
        "faults": view.faults,
        "rotations": view.rotations,
        "failing": view.failing,
    })
}

fn admission(p: &Picture<'_>) -> Value {
    let c = &p.totals;
    json!({
        "inflight": p.seats.held,
        "limit": p.seats.limit,
        "queued": c.cell(Cell::Queued),
        "queue_capacity": p.queue_limit,
        "retained": p.retained.held,
        "max_retained": p.retained.limit,
        "phase_waiting": {
            "prefill": c.cell(Cell::PrefillWaiting),
            "decode": c.cell(Cell::DecodeWaiting),
        },
        "rejected": c.outcome(Outcome::Rejected),
        "refused": c.outcome(Outcome::Refused),
        "unauthorized": c.cell(Cell::Unauthorized),
        "heads_refused": c.cell(Cell::HeadsRefused),
        "mode": p.mode.name(),
    })
}

fn serving(p: &Picture<'_>) -> Value {
    let c = &p.totals;
    let overhead: Map<String, Value> = Series::STAGES
        .iter()
        .map(|s| (s.name().to_owned(), seconds(p.times.of(*s))))
        .collect();
    json!({
        "models": p.models,
        "inflight": c.inflight(),
        "tokenize_attempts": c.cell(Cell::TokenizeAttempts),
        "prefill_attempts": c.cell(Cell::PrefillAttempts),
        "decode_attempts": c.cell(Cell::DecodeAttempts),
        "retry_attempts": c.cell(Cell::RetryAttempts),
        "decode_tokens_observed": c.cell(Cell::DecodeTokensObserved),
        "orphaned_handoffs": c.cell(Cell::OrphanedHandoffs),
        "fenced_late": c.cell(Cell::FencedLate),
        "prefix": {
            "lookups": c.cell(Cell::PrefixLookups),
            "prompt_tokens": c.cell(Cell::PrefixPromptTokens),
            "believed_tokens": c.cell(Cell::PrefixBelievedTokens),
            "compared_tokens": c.cell(Cell::PrefixComparedTokens),
            "held_tokens": c.cell(Cell::PrefixHeldTokens),
        },
        "streams_active": c.cell(Cell::StreamsActive),
        "ttft_s": seconds(p.times.of(Series::Ttft)),
        "tpot_s": seconds(p.times.of(Series::Tpot)),
        "queue_wait_s": seconds(p.times.of(Series::QueueWait)),
        "request_duration_s": seconds(p.times.of(Series::Duration)),
        "loop_delay_s": seconds(p.times.of(Series::LoopDelay)),
        "overhead_s": overhead,
    })
}

fn seconds(d: &Distribution) -> Value {
    json!({
        "count": d.count(),
        "sum": d.sum_seconds(),
        "p50": d.quantile(0.5),
        "p90": d.quantile(0.9),
        "p99": d.quantile(0.99),
    })
}

/// Every reason there is, zeros included, so that a reader need not know which to expect.
fn reasons(c: &Counts) -> Value {
    let mut out = Map::new();
    for end in End::ALL {
        let Some(reason) = end.reason() else { continue };
        let group = out.entry(end.name()).or_insert_with(|| json!({}));
        group[reason] = json!(c.end(end));
    }
    Value::Object(out)
}

fn pools(c: &Counts) -> Value {
    json!({
        "legs_open": c.cell(Cell::LegsOpen),
        "idle": c.cell(Cell::PoolIdle),
        "hits": c.cell(Cell::PoolHits),
        "misses": c.cell(Cell::PoolMisses),
    })
}

fn resident(p: &Picture<'_>) -> Value {
    let line = |e: &EngineView<'_>| {
        let l = e.line;
        json!({
            "prefill": l.prefill_requests,
            "decode": l.decode_requests,
            "outstanding_tokens": l.outstanding_tokens,
        })
    };
    Value::Object(
        p.engines
            .iter()
            .map(|e| (e.iid.to_owned(), line(e)))
            .collect(),
    )
}

/// What live traffic has taught.
fn learned(p: &Picture<'_>) -> Value {
    let engine = |e: &EngineView<'_>| {
        json!({
            "iid": e.iid,
            "correction": e.pace.correction,
            "samples": e.pace.samples,
            "health": e.pace.health,
            "score": e.pace.score,
            "baseline": e.pace.baseline,
            "bad_windows": e.pace.bad_windows,
            "good_windows": e.pace.good_windows,
            "window_samples": e.pace.window_samples,
        })
    };
    let length = |l: &Length| {
        let of_cap = l.median.filter(|_| l.cap_min.is_some());
        json!({
            "prompt_tokens_min": l.prompt_tokens_min,
            "cap_min": l.cap_min,
            "samples": l.samples,
            "fraction": of_cap,
            "tokens": l.median.filter(|_| of_cap.is_none()),
        })
    };
    json!({
        "engines": p.engines.iter().map(engine).collect::<Vec<_>>(),
        "output_lengths": p.lengths.iter().map(length).collect::<Vec<_>>(),
    })
}

fn health(p: &Picture<'_>) -> Value {
    let view = p.health();
    let engines: Vec<Value> = p
        .engines
        .iter()
        .map(|e| {
            json!({
                "iid": e.iid,
                "role": e.role.name(),
                "pin": e.pinned,
                "live": e.line.live,
                "ejected": e.line.ejected,
                "breaker": breaker(&e.breaker),
                "profile": e.digest.map(|digest| json!({"digest": digest.name()})),
            })
        })
        .collect();
    json!({
        "status": view.status(),
        "ready": view.reason().is_none(),
        "control_ready": p.standing.control_ready(),
        "instances": view.fleet.instances,
        "available_instances": view.available(),
        "version": p.version,
        "uptime_s": p.uptime.as_secs_f64(),
        "engines": engines,
    })
}

/// What is 0 is left out.
fn breaker(b: &Breaker) -> Value {
    let failures = b.failures.iter().filter(|(_, n)| *n > 0);
    let failures: Map<String, Value> = failures.map(|(c, n)| ((*c).into(), json!(n))).collect();
    let mut in_a_row = Map::new();
    for (phase, class, n) in b.in_a_row.iter().filter(|(_, _, n)| *n > 0) {
        let of_phase = in_a_row.entry(*phase).or_insert_with(|| json!({}));
        of_phase[*class] = json!(n);
    }
    json!({"open_for": b.open_for, "failures": failures, "in_a_row": in_a_row})
}

fn reload(r: &Reloads) -> Value {
    let last = r.last.as_ref().map(|last| {
        json!({
            "result": last.result.name(),
            "reason": last.reason,
            "at_unix_s": last.at_unix_s,
            "took_s": last.took.as_secs_f64(),
            "added": last.added,
            "removed": last.removed,
            "changed": last.changed,
            "restart": last.restart,
        })
    });
    let mut out = json!({"epoch": r.epoch, "places": r.places, "last": last});
    for result in ReloadResult::ALL {
        out[result.name()] = json!(r.counts[result.index()]);
    }
    out
}

fn shard(number: usize, s: &ShardView<'_>) -> Value {
    let c = &s.counts;
    json!({
        "shard": number,
        "core": s.core,
        "node": s.node,
        "driver": s.driver,
        "connections": {
            "open": c.cell(Cell::ConnectionsOpen),
            "accepted": c.cell(Cell::ConnectionsAccepted),
            "moved": c.cell(Cell::ConnectionsMoved),
            "kept": c.cell(Cell::ConnectionsKept),
        },
        "offered": c.offered(),
        "ended": c.ended(),
        "inflight": c.inflight(),
        "queued": c.cell(Cell::Queued),
        "streams_active": c.cell(Cell::StreamsActive),
        "decode_tokens_observed": c.cell(Cell::DecodeTokensObserved),
        "events_relayed": c.cell(Cell::EventsRelayed),
        "bytes_relayed": c.cell(Cell::BytesRelayed),
        "engine_reads": c.cell(Cell::EngineReads),
        "client_writes": c.cell(Cell::ClientWrites),
        "mail_dropped": c.cell(Cell::MailDropped),
        "pools": pools(c),
        "loop_delay_s": seconds(s.times.of(Series::LoopDelay)),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::metrics::picture::sample;

    // proves R-OBS-2, R-TOK-2
    #[test]
    fn members_are_those_of_the_contract() {
        let state = render(&sample());
        let got: BTreeSet<&str> = state
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let want = "schema schema_version offered unsized_offered served slo_met failed expired cancelled \
            invalid_requests token_accounting admission serving outcome_reasons pools resident ejected probation evicted learned \
            health ha lifecycle reload journal shards";
        assert_eq!(got, want.split_whitespace().collect());
        assert_eq!(
            (&state["schema"], &state["token_accounting"]),
            (&json!("narwhal.state"), &json!("token_ids"))
        );
        for (group, members) in [
            ("admission", "inflight limit queued rejected refused mode"),
            (
                "serving",
                "prefill_attempts decode_attempts retry_attempts decode_tokens_observed",
            ),
        ] {
            for member in members.split_whitespace() {
                assert!(!state[group][member].is_null(), "{group}.{member}");
            }
        }
    }

    // proves R-ADM-10, R-OBS-2
    #[test]
    fn the_account_adds_up() {
        let picture = sample();
        let state = render(&picture);
        let n = |v: &Value| v.as_u64().unwrap();
        let ends = [
            "served",
            "failed",
            "expired",
            "cancelled",
            "invalid_requests",
        ];
        let ended: u64 = ends.iter().map(|k| n(&state[k])).sum::<u64>()
            + n(&state["admission"]["rejected"])
            + n(&state["admission"]["refused"]);
        let shards = state["shards"].as_array().unwrap();
        let inflight: u64 = shards.iter().map(|s| n(&s["inflight"])).sum();
        assert_eq!(n(&state["offered"]), ended + inflight);
        assert_eq!(inflight, n(&state["serving"]["inflight"]));
        let groups = state["outcome_reasons"].as_object().unwrap();
        for (group, reasons) in groups {
            let total: u64 = reasons.as_object().unwrap().values().map(n).sum();
            let said = match group.as_str() {
                "rejected" | "refused" => n(&state["admission"][group]),
                _ => n(&state[group]),
            };
            assert_eq!(total, said, "{group}");
        }
        assert_eq!(groups.len(), Outcome::COUNT - 1);
    }

    // proves R-OBS-2
    #[test]
    fn engines_and_shards_are_in_it() {
        let state = render(&sample());
        assert_eq!(state["ejected"], json!(["e\"1\\\n"]));
        assert_eq!(
            (&state["probation"], &state["evicted"]),
            (&json!(["e0"]), &state["ejected"])
        );
        let engine = &state["learned"]["engines"][1];
        assert_eq!(engine["iid"], "e\"1\\\n");
        assert_eq!(
            (&engine["correction"], &engine["score"]),
            (&json!(1.25), &json!(2.5))
        );
        let [capped, free] = [0, 1].map(|i| &state["learned"]["output_lengths"][i]);
        assert_eq!(
            (&capped["fraction"], &capped["tokens"]),
            (&json!(0.25), &json!(null))
        );
        assert_eq!(
            (&free["cap_min"], &free["tokens"]),
            (&json!(null), &json!(null))
        );
        assert_eq!(
            state["resident"]["e0"],
            json!({"prefill": 2, "decode": 0, "outstanding_tokens": 100})
        );
        let health = &state["health"];
        assert_eq!(health["available_instances"], 1);
        let profile = |i: usize| &health["engines"][i]["profile"];
        assert_eq!(
            (profile(0), profile(1)),
            (&json!({"digest": "mismatch"}), &json!(null))
        );
        let breaker = |i: usize| &health["engines"][i]["breaker"];
        assert_eq!(
            breaker(1),
            &json!({"open_for": "stream", "failures": {"stream": 5}, "in_a_row": {"decode": {"stream": 3}}})
        );
        assert_eq!(breaker(0)["open_for"], json!(null));
        let shard = &state["shards"][1];
        assert_eq!(
            (&shard["shard"], &shard["core"], &shard["driver"]),
            (&json!(1), &json!(3), &json!("epoll"))
        );
        assert_eq!(
            shard["connections"]["open"],
            state["shards"][0]["connections"]["open"].as_u64().unwrap() * 2
        );
        assert_eq!(
            state["serving"]["overhead_s"].as_object().unwrap().len(),
            Series::STAGES.len()
        );
        assert_eq!(state["serving"]["ttft_s"]["count"], 2);
    }
}
