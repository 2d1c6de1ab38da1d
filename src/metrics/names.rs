//! Every metric there is: name, type, unit, labels, meaning. The text is written through these rows only, a test holds
//! the two equal, and the README's table is printed from here.
//!
//! Invariant: names are unique and start with `narwhal_`; counters end in `_total`; every label has a bounded set of
//! values (closed enums, the fleet's engines, the shards), never a client's words.

/// How Prometheus treats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    pub meaning: &'static str,
}

/// The table as Markdown.
pub fn markdown() -> String {
    let mut out =
        String::from("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
    for m in ALL {
        let labels: Vec<String> = m.labels.iter().map(|l| format!("`{l}`")).collect();
        let row = [
            &format!("`{}`", m.name),
            m.kind.name(),
            m.unit,
            &labels.join(", "),
            m.meaning,
        ];
        out.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    out
}

macro_rules! metrics {
    ($($id:ident = $name:literal $kind:ident $unit:literal [$($label:literal),*] $meaning:literal;)+) => {
        $(pub const $id: Metric = Metric {
            name: $name,
            kind: Kind::$kind,
            unit: $unit,
            labels: &[$($label),*],
            meaning: $meaning,
        };)+
        /// The table, in the order of the text.
        pub const ALL: &[Metric] = &[$($id),+];
    };
}

metrics! {
    BUILD_INFO = "narwhal_build_info" Gauge "1" ["version"] "Always 1; the version that runs.";
    UPTIME = "narwhal_uptime_seconds" Gauge "seconds" [] "Since this process began to serve.";
    ROUTER_READY = "narwhal_router_ready" Gauge "0 or 1" [] "What `/ready` says.";
    ROUTER_STANDING = "narwhal_router_standing" Gauge "0 or 1" ["standing"] "1 at what the router as a whole is doing.";
    TOKEN_ACCOUNTING = "narwhal_token_accounting" Gauge "0 or 1" ["source"] "1 at where output lengths come from: ids of the engines, or nowhere.";
    FLEET_EPOCH = "narwhal_fleet_epoch" Gauge "reloads" [] "1 at the start, one more with each reload of the fleet file that was applied.";
    RELOADS = "narwhal_reloads_total" Counter "reloads" ["result"] "The fleet file was read again: applied, refused for what is in it, or aborted.";
    LAST_RELOAD_OK = "narwhal_last_reload_ok" Gauge "0 or 1" [] "0 after a reload that changed nothing because it failed.";

    OFFERED = "narwhal_offered_total" Counter "requests" [] "Completion requests with a well-formed head. Equals the sum of all ends and `narwhal_inflight` at every scrape.";
    UNSIZED_OFFERED = "narwhal_unsized_offered_total" Counter "requests" [] "Offered, and ended before the model check.";
    SERVED = "narwhal_served_total" Counter "requests" [] "Ended with a complete answer.";
    FAILED = "narwhal_failed_total" Counter "requests" ["reason"] "Ended because the router or an engine could not do it.";
    REJECTED = "narwhal_rejected_total" Counter "requests" ["reason"] "Turned away: no room, or not serving.";
    REFUSED = "narwhal_refused_total" Counter "requests" ["cause"] "Turned away by the prediction.";
    EXPIRED = "narwhal_expired_total" Counter "requests" ["reason"] "Ended by a time bound of the router.";
    INVALID = "narwhal_invalid_requests_total" Counter "requests" [] "Ended because the request itself is at fault.";
    INVALID_REASONS = "narwhal_invalid_request_reasons_total" Counter "requests" ["reason"] "The same by reason.";
    CANCELLED = "narwhal_cancelled_total" Counter "requests" [] "The client was gone before the end.";
    CANCELLED_STAGES = "narwhal_cancelled_stages_total" Counter "requests" ["stage"] "The same by the stage it left in.";
    UNAUTHORIZED = "narwhal_unauthorized_total" Counter "requests" [] "Requests to `/v1/*` without a valid key; not offered.";
    HEADS_REFUSED = "narwhal_heads_refused_total" Counter "requests" [] "Request heads malformed, too large or too slow; not offered.";
    SLO_MET = "narwhal_slo_met_total" Counter "requests" [] "Served within both targets.";
    INFLIGHT = "narwhal_inflight" Gauge "requests" [] "Offered and not ended.";

    ADMISSION_INFLIGHT = "narwhal_admission_inflight" Gauge "seats" [] "Seats taken.";
    ADMISSION_LIMIT = "narwhal_admission_limit" Gauge "seats" [] "Seats there are.";
    HTTP_RETAINED = "narwhal_http_retained" Gauge "requests" [] "Exchanges from the arrival of the head to the end of the answer.";
    HTTP_RETAINED_LIMIT = "narwhal_http_retained_limit" Gauge "requests" [] "How many of those there may be.";
    QUEUED = "narwhal_queued" Gauge "requests" [] "Waiting for a seat.";
    QUEUE_LIMIT = "narwhal_queue_limit" Gauge "requests" [] "How many may wait.";
    PHASE_WAITING = "narwhal_phase_waiting" Gauge "requests" ["phase"] "Seated, waiting for room in a phase of an engine.";

    TOKENIZE_ATTEMPTS = "narwhal_tokenize_attempts_total" Counter "legs" [] "Prompt counts asked of engines.";
    PREFILL_ATTEMPTS = "narwhal_prefill_attempts_total" Counter "legs" [] "Prefill legs sent.";
    DECODE_ATTEMPTS = "narwhal_decode_attempts_total" Counter "legs" [] "Decode legs sent.";
    RETRY_ATTEMPTS = "narwhal_retry_attempts_total" Counter "attempts" [] "Attempts after a request's first.";
    DECODE_TOKENS = "narwhal_decode_tokens_observed_total" Counter "tokens" [] "Output tokens counted from ids.";
    ORPHANED_HANDOFFS = "narwhal_orphaned_handoffs_total" Counter "handoffs" [] "Prefilled and never sent to a decode engine.";
    PREFIX_LOOKUPS = "narwhal_prefix_lookups_total" Counter "prompts" [] "Prompts placed with prefix affinity, retries again.";
    PREFIX_PROMPT_TOKENS = "narwhal_prefix_prompt_tokens_total" Counter "tokens" [] "How long those prompts were.";
    PREFIX_BELIEVED_TOKENS = "narwhal_prefix_believed_tokens_total" Counter "tokens" [] "What of them the engines that read them were believed to hold.";
    PREFIX_COMPARED_TOKENS = "narwhal_prefix_compared_tokens_total" Counter "tokens" [] "What was remembered of prompts whose engine says what it held.";
    PREFIX_HELD_TOKENS = "narwhal_prefix_held_tokens_total" Counter "tokens" [] "What those engines said they held (`cached_tokens` of the prefill answer).";
    FENCED_LATE = "narwhal_fenced_late_total" Counter "legs" [] "Legs sent after the lease deadline and closed at once.";

    JOURNAL_ROWS = "narwhal_journal_rows_total" Counter "rows" [] "Rows written; 0 without a journal, like the next ones.";
    JOURNAL_DROPPED = "narwhal_journal_dropped_total" Counter "rows" [] "Rows lost because too many waited to be written.";
    JOURNAL_WAITING = "narwhal_journal_waiting" Gauge "rows" [] "Rows that wait to be written.";
    JOURNAL_BYTES = "narwhal_journal_bytes_total" Counter "bytes" [] "What was written.";
    JOURNAL_FAULTS = "narwhal_journal_faults_total" Counter "tries" [] "Writes, moves and opens of its file that failed.";
    JOURNAL_ROTATIONS = "narwhal_journal_rotations_total" Counter "files" [] "Files that were full and moved aside.";

    RESIDENT = "narwhal_resident_requests" Gauge "requests" ["iid", "phase"] "Requests an engine has from this router.";
    OUTSTANDING_TOKENS = "narwhal_outstanding_tokens" Gauge "tokens" ["iid"] "Tokens those requests still hold on it.";
    ENGINE_LIVE = "narwhal_engine_live" Gauge "0 or 1" ["iid"] "It answers its health route.";
    EJECTED = "narwhal_ejected" Gauge "0 or 1" ["iid"] "Its breaker is open.";
    ENGINE_FAILURES = "narwhal_engine_failures_total" Counter "requests" ["iid", "class"] "Attempts that failed on it, by class of failure, as its breaker counts them.";
    PROBATION = "narwhal_probation" Gauge "0 or 1" ["iid"] "It was slow of late: new work goes there at a price.";
    EVICTED = "narwhal_evicted" Gauge "0 or 1" ["iid"] "It was slow for so long that no new work goes there.";
    PROFILE_DIGEST = "narwhal_profile_digest" Gauge "0 or 1" ["iid", "digest"] "1 at how the engine compares with its profile's digest; none without a profile.";
    ENGINES_AVAILABLE = "narwhal_engines_available" Gauge "engines" [] "Live, not ejected and not evicted.";

    DECODE_CORRECTION = "narwhal_decode_correction" Gauge "of the profile" ["iid"] "Live / profiled interval between tokens, as prices use it.";
    PACE_SAMPLES = "narwhal_pace_samples_total" Counter "samples" ["iid"] "Segments of streams whose interval was compared with the profile.";
    DRIFT_SCORE = "narwhal_drift_score" Gauge "of the profile" ["iid"] "Mean of them in the last window that had enough; NaN before.";
    DRIFT_BASELINE = "narwhal_drift_baseline" Gauge "of the profile" ["iid"] "What is usual for the engine; NaN before the first window.";
    DRIFT_BAD_WINDOWS = "narwhal_drift_bad_windows" Gauge "windows" ["iid"] "Slow windows in a row.";
    LENGTH_SAMPLES = "narwhal_output_length_samples_total" Counter "requests" [] "Served requests whose length was learned from.";
    LENGTH_BUCKETS = "narwhal_output_length_buckets" Gauge "buckets" [] "Buckets of prompt and cap whose length is known.";

    TTFT = "narwhal_ttft_seconds" Histogram "seconds" [] "Arrival of the head to the first token.";
    TPOT = "narwhal_tpot_seconds" Histogram "seconds" [] "Mean time per output token after the first, one value per request.";
    QUEUE_WAIT = "narwhal_queue_wait_seconds" Histogram "seconds" [] "Wait for a seat, whether one came or not.";
    REQUEST_DURATION = "narwhal_request_duration_seconds" Histogram "seconds" [] "Arrival of the head to the end of the answer.";
    OVERHEAD = "narwhal_overhead_seconds" Histogram "seconds" ["stage"] "The router's own time by stage; of relayed reads one in 64 is timed.";
    LOOP_DELAY = "narwhal_loop_delay_seconds" Histogram "seconds" [] "How late the shards' loops turn.";

    SHARD_INFO = "narwhal_shard_info" Gauge "1" ["shard", "core", "node", "driver"] "Always 1; where a shard runs.";
    SHARD_INFLIGHT = "narwhal_shard_inflight" Gauge "requests" ["shard"] "Offered and not ended.";
    SHARD_OFFERED = "narwhal_shard_offered_total" Counter "requests" ["shard"] "Completion requests that came to it.";
    SHARD_STREAMS = "narwhal_shard_streams_active" Gauge "streams" ["shard"] "Event streams being relayed.";
    SHARD_CONNECTIONS = "narwhal_shard_connections_open" Gauge "connections" ["shard"] "Client connections.";
    SHARD_ACCEPTED = "narwhal_shard_connections_accepted_total" Counter "connections" ["shard"] "Client connections that it took, from its listener or another shard.";
    SHARD_MOVED = "narwhal_shard_connections_moved_total" Counter "connections" ["shard"] "Handed to a less loaded shard at accept.";
    SHARD_KEPT = "narwhal_shard_connections_kept_total" Counter "connections" ["shard"] "Were to be handed over, but there was no room for that.";
    SHARD_LEGS = "narwhal_shard_legs_open" Gauge "legs" ["shard"] "Engine requests under way.";
    SHARD_POOL_IDLE = "narwhal_shard_pool_idle" Gauge "connections" ["shard"] "Idle engine connections kept.";
    SHARD_POOL_HITS = "narwhal_shard_pool_hits_total" Counter "legs" ["shard"] "Legs on a kept connection.";
    SHARD_POOL_MISSES = "narwhal_shard_pool_misses_total" Counter "legs" ["shard"] "Legs on a fresh connection.";
    SHARD_EVENTS = "narwhal_shard_events_relayed_total" Counter "events" ["shard"] "Stream events relayed.";
    SHARD_BYTES = "narwhal_shard_bytes_relayed_total" Counter "bytes" ["shard"] "Answer bytes written to clients.";
    SHARD_READS = "narwhal_shard_engine_reads_total" Counter "reads" ["shard"] "Reads from engine connections.";
    SHARD_WRITES = "narwhal_shard_client_writes_total" Counter "writes" ["shard"] "Writes to client connections.";
    SHARD_MAIL_DROPPED = "narwhal_shard_mail_dropped_total" Counter "messages" ["shard"] "Messages to a shard that found its mailbox full.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    // proves R-OBS-1
    #[test]
    fn rows_keep_the_conventions() {
        let mut seen = BTreeSet::new();
        for m in ALL {
            assert!(seen.insert(m.name), "{} twice", m.name);
            assert!(m.name.starts_with("narwhal_"), "{}", m.name);
            let plain = |b: u8| b.is_ascii_lowercase() || b == b'_';
            assert!(m.name.bytes().all(plain) && m.labels.iter().all(|l| l.bytes().all(plain)));
            assert_eq!(
                m.name.ends_with("_total"),
                m.kind == Kind::Counter,
                "{}",
                m.name
            );
            if m.kind == Kind::Histogram {
                assert!(
                    m.name.ends_with("_seconds") && m.unit == "seconds",
                    "{}",
                    m.name
                );
            }
            assert!(
                m.meaning.ends_with('.') && !m.meaning.contains(['|', '\n']),
                "{}",
                m.name
            );
        }
    }

    // proves R-OBS-1
    #[test]
    fn the_contract_names_are_there() {
        let want: &[(&str, &[&str])] = &[
            ("narwhal_offered_total", &[]),
            ("narwhal_served_total", &[]),
            ("narwhal_failed_total", &["reason"]),
            ("narwhal_refused_total", &["cause"]),
            ("narwhal_rejected_total", &["reason"]),
            ("narwhal_expired_total", &["reason"]),
            ("narwhal_invalid_requests_total", &[]),
            ("narwhal_cancelled_total", &[]),
            ("narwhal_slo_met_total", &[]),
            ("narwhal_admission_inflight", &[]),
            ("narwhal_http_retained", &[]),
            ("narwhal_queued", &[]),
            ("narwhal_ttft_seconds", &[]),
            ("narwhal_tpot_seconds", &[]),
            ("narwhal_queue_wait_seconds", &[]),
            ("narwhal_resident_requests", &["iid", "phase"]),
            ("narwhal_ejected", &["iid"]),
            ("narwhal_router_ready", &[]),
            ("narwhal_phase_waiting", &["phase"]),
            ("narwhal_orphaned_handoffs_total", &[]),
        ];
        for (name, labels) in want {
            let row = ALL.iter().find(|m| m.name == *name);
            assert_eq!(row.map(|m| m.labels), Some(*labels), "{name}");
        }
    }

    #[test]
    fn markdown_has_a_row_each() {
        let text = markdown();
        assert_eq!(text.lines().count(), ALL.len() + 2);
        assert!(text.lines().all(|l| l.matches('|').count() == 6), "{text}");
        assert!(
            text.contains("| `narwhal_resident_requests` | gauge | requests | `iid`, `phase` |")
        );
    }
}
