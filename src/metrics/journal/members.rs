//! Every member of a line: name, kind, whether it may be null, meaning. Lines are written in this order, a test holds the two equal, and
//! the README's table is printed from here. Durations end in `_s` and are seconds; counts of tokens end in `_tokens`.
//!
//! Invariant: names are unique and never change their meaning within a version.

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// RFC 3339 in UTC, with microseconds.
    Moment,
    Integer,
    /// With six decimals.
    Seconds,
    Flag,
    /// Of objects.
    List,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Moment => "moment",
            Kind::Integer => "integer",
            Kind::Seconds => "seconds",
            Kind::Flag => "true, false",
            Kind::List => "list",
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: &'static str,
    pub kind: Kind,
    /// When it is null; empty when never.
    pub null: &'static str,
    pub meaning: &'static str,
}

/// The table as Markdown.
pub fn markdown() -> String {
    let mut out = String::from("| member | kind | null | meaning |\n|---|---|---|---|\n");
    for m in ALL {
        let (name, kind, null, meaning) = (m.name, m.kind.name(), m.null, m.meaning);
        out.push_str(&format!("| `{name}` | {kind} | {null} | {meaning} |\n"));
    }
    out
}

const fn member(
    name: &'static str,
    kind: Kind,
    null: &'static str,
    meaning: &'static str,
) -> Member {
    Member {
        name,
        kind,
        null,
        meaning,
    }
}

/// In the order of a line.
#[rustfmt::skip]
pub const ALL: &[Member] = &[
    member("schema", Kind::Text, "", "`narwhal.journal`."),
    member("schema_version", Kind::Integer, "", "1. Members may be added within a version."),
    member("arrived_at", Kind::Moment, "", "When the head of the request was whole, by the world's clock."),
    member("router_id", Kind::Text, "", "The router, as in `/narwhal/state`."),
    member("shard", Kind::Integer, "", "Its shard."),
    member("rid", Kind::Text, "", "The answer's `x-request-id`; what engines were sent begins with it."),
    member("client_rid", Kind::Text, "none was sent", "The client's own `x-request-id`, cut at 128 bytes (then it ends in `…`)."),
    member("route", Kind::Text, "", "`completions` or `chat`."),
    member("model", Kind::Text, "it ended before the model check", "The fleet's model."),
    member("stream", Kind::Flag, "it ended before its checks were passed", "Whether a stream was asked for."),
    member("outcome", Kind::Text, "", "`served`, `failed`, `rejected`, `refused`, `expired`, `invalid_requests` or `cancelled`."),
    member("reason", Kind::Text, "served", "The reason, cause or stage that metrics have beside it."),
    member("stage", Kind::Text, "", "The stage it ended in: `parse`, `admit`, `place`, `prefill`, `decode`, `relay` or `assemble`."),
    member("status", Kind::Integer, "nothing was answered", "The status of the answer. A stream that broke off had 200."),
    member("slo_met", Kind::Flag, "it was not served", "Whether both targets of `slo` were met."),
    member("attempts", Kind::Integer, "", "Placements, the first one included."),
    member("request_bytes", Kind::Integer, "", "Bytes of the body that came."),
    member("prompt_tokens", Kind::Integer, "it was not counted", "Length of the prompt."),
    member("prompt_estimated", Kind::Flag, "", "Whether that was estimated from its characters at first."),
    member("cached_tokens", Kind::Integer, "the engine did not say", "What of it the prefill engine had in its cache."),
    member("max_tokens", Kind::Integer, "none was given", "The request's cap."),
    member("token_accounting", Kind::Text, "", "`token_ids`, or `unavailable` where the engine sends no ids."),
    member("output_tokens", Kind::Integer, "there are no ids", "Ids counted in the last attempt."),
    member("output_events", Kind::Integer, "there are ids", "Events with output, of one token or more each."),
    member("prefill_engine", Kind::Text, "no prefill leg was placed", "The last attempt's engine for the prompt."),
    member("decode_engine", Kind::Text, "no decode leg was placed", "The last attempt's engine for the output; with one leg, its own."),
    member("receive_s", Kind::Seconds, "", "From arrival to the last byte of the body."),
    member("size_s", Kind::Seconds, "not begun", "Counting the prompt, `/tokenize` included."),
    member("queue_wait_s", Kind::Seconds, "not begun", "Waiting for a seat."),
    member("retry_s", Kind::Seconds, "not begun", "From the seat to the last placement: earlier attempts and the pauses between."),
    member("prefill_wait_s", Kind::Seconds, "not begun, or one leg", "From there to the prefill leg: waiting for its phase."),
    member("prefill_s", Kind::Seconds, "not begun, or one leg", "The prefill leg, to the end of its answer."),
    member("decode_wait_s", Kind::Seconds, "not begun", "From there (side by side or with one leg, from the placement) to the decode leg."),
    member("first_token_s", Kind::Seconds, "not begun", "From the decode leg to the first token."),
    member("decode_s", Kind::Seconds, "not begun", "From the first token to the end."),
    member("ttft_s", Kind::Seconds, "there was no token", "From arrival to the first token."),
    member("tpot_s", Kind::Seconds, "fewer than two tokens, or no ids", "Mean time per output token after the first event."),
    member("total_s", Kind::Seconds, "", "From arrival to the end."),
    member("faults", Kind::List, "", "Legs that failed: `{engine, leg, fault, status}` each, the last null but with `fault` `status`."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    // proves R-OBS-2
    #[test]
    fn rows_keep_the_conventions() {
        let mut seen = BTreeSet::new();
        for m in ALL {
            assert!(seen.insert(m.name), "{} twice", m.name);
            assert_eq!(
                m.kind == Kind::Seconds,
                m.name.ends_with("_s"),
                "{}",
                m.name
            );
            let cells = [m.name, m.null, m.meaning];
            assert!(cells.iter().all(|cell| !cell.contains(['|', '\n'])));
            assert!(m.meaning.ends_with('.'), "{}", m.name);
        }
        assert_eq!(markdown().lines().count(), ALL.len() + 2);
    }
}
