//! How an exchange can end, and at which stage it was. Every enum here is closed: its words are metric labels, members
//! of `/narwhal/state` and fields of the journal, so a new ending is a new row here and nowhere else.
//!
//! Invariant: `End::ALL[e.index()] == e` for every end, and no two ends share an index.

use crate::base::words::words;

words! {
    /// The stages of the request path, in reading order.
    Stage {
        Accept = "accept",
        Parse = "parse",
        Admit = "admit",
        Place = "place",
        Prefill = "prefill",
        Decode = "decode",
        Relay = "relay",
        Assemble = "assemble",
        Account = "account",
        Close = "close",
    }
}

words! {
    /// The seven ends without their reasons, plus nothing: an offered exchange is in flight or in one of these.
    Outcome {
        Served = "served",
        Failed = "failed",
        Rejected = "rejected",
        Refused = "refused",
        Expired = "expired",
        Invalid = "invalid_requests",
        Cancelled = "cancelled",
    }
}

words! {
    /// The router or an engine could not do it.
    FailReason {
        /// The prompt could not be counted.
        Admission = "admission",
        Prefill = "prefill",
        /// The prefill answer held no usable KV descriptor.
        Handoff = "handoff",
        Decode = "decode",
        /// The engine's stream does not make one answer.
        Assembly = "assembly",
        /// Too many held events, or more bytes than `max_response_bytes`.
        ResponseLimit = "response_limit",
        /// No engine eligible for placement.
        NoEngine = "no_engine",
        /// No leg connection within `pool_timeout_s`: our own shortage.
        Pool = "pool",
        /// A fault of ours.
        Internal = "internal",
    }
}

words! {
    /// No room, or not serving.
    RejectReason {
        Retained = "retained",
        Seats = "seats",
        QueueFull = "queue_full",
        Saturated = "saturated",
        NotReady = "not_ready",
        Standby = "standby",
        Draining = "draining",
    }
}

words! {
    /// The prediction says the targets cannot be met.
    RefuseCause {
        Ttft = "ttft",
        /// The prompt alone is over the budget.
        Prompt = "prompt",
        /// Pushed over by its own waiting.
        Queue = "queue",
        SlotWait = "slot_wait",
        KvCapacity = "kv_capacity",
        Tpot = "tpot",
    }
}

words! {
    /// A time bound of ours ran out.
    ExpireReason {
        Deadline = "deadline",
        QueueExpired = "queue_expired",
        HandoffExpired = "handoff_expired",
        /// The body was still coming at the request deadline.
        BodyDeadline = "body_deadline",
    }
}

words! {
    /// The request itself is at fault.
    InvalidReason {
        BadJson = "bad_json",
        BadType = "bad_type",
        Reserved = "reserved",
        Option = "option",
        Model = "model",
        Width = "width",
        Prompts = "prompts",
        TooLarge = "too_large",
        Framing = "framing",
        BodyIdle = "body_idle",
        Expectation = "expectation",
        /// An engine's own 400, 413 or 422, passed on.
        EngineRejected = "engine_rejected",
    }
}

/// Where an offered exchange ends, exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    Served,
    Failed(FailReason),
    Rejected(RejectReason),
    Refused(RefuseCause),
    Expired(ExpireReason),
    Invalid(InvalidReason),
    /// The client was gone; the stage it left in.
    Cancelled(Stage),
}

impl End {
    pub const COUNT: usize = CANCELLED_AT + Stage::COUNT;
    /// Every end, in index order.
    pub const ALL: [End; End::COUNT] = all();

    /// Dense, `0..End::COUNT`.
    pub const fn index(self) -> usize {
        match self {
            End::Served => SERVED_AT,
            End::Failed(r) => FAILED_AT + r.index(),
            End::Rejected(r) => REJECTED_AT + r.index(),
            End::Refused(r) => REFUSED_AT + r.index(),
            End::Expired(r) => EXPIRED_AT + r.index(),
            End::Invalid(r) => INVALID_AT + r.index(),
            End::Cancelled(s) => CANCELLED_AT + s.index(),
        }
    }

    pub const fn outcome(self) -> Outcome {
        match self {
            End::Served => Outcome::Served,
            End::Failed(_) => Outcome::Failed,
            End::Rejected(_) => Outcome::Rejected,
            End::Refused(_) => Outcome::Refused,
            End::Expired(_) => Outcome::Expired,
            End::Invalid(_) => Outcome::Invalid,
            End::Cancelled(_) => Outcome::Cancelled,
        }
    }

    /// The word of the outcome.
    pub const fn name(self) -> &'static str {
        self.outcome().name()
    }

    /// The word of the reason, cause or stage; `None` when served.
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            End::Served => None,
            End::Failed(r) => Some(r.name()),
            End::Rejected(r) => Some(r.name()),
            End::Refused(r) => Some(r.name()),
            End::Expired(r) => Some(r.name()),
            End::Invalid(r) => Some(r.name()),
            End::Cancelled(s) => Some(s.name()),
        }
    }
}

const SERVED_AT: usize = 0;
const FAILED_AT: usize = 1;
const REJECTED_AT: usize = FAILED_AT + FailReason::COUNT;
const REFUSED_AT: usize = REJECTED_AT + RejectReason::COUNT;
const EXPIRED_AT: usize = REFUSED_AT + RefuseCause::COUNT;
const INVALID_AT: usize = EXPIRED_AT + ExpireReason::COUNT;
const CANCELLED_AT: usize = INVALID_AT + InvalidReason::COUNT;

const fn all() -> [End; End::COUNT] {
    let mut out = [End::Served; End::COUNT];
    let mut i = FAILED_AT;
    while i < End::COUNT {
        out[i] = if i < REJECTED_AT {
            End::Failed(FailReason::ALL[i - FAILED_AT])
        } else if i < REFUSED_AT {
            End::Rejected(RejectReason::ALL[i - REJECTED_AT])
        } else if i < EXPIRED_AT {
            End::Refused(RefuseCause::ALL[i - REFUSED_AT])
        } else if i < INVALID_AT {
            End::Expired(ExpireReason::ALL[i - EXPIRED_AT])
        } else if i < CANCELLED_AT {
            End::Invalid(InvalidReason::ALL[i - INVALID_AT])
        } else {
            End::Cancelled(Stage::ALL[i - CANCELLED_AT])
        };
        i += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    // proves R-ADM-10
    #[test]
    fn index_and_all_agree_and_words_are_unique() {
        let mut words = BTreeSet::new();
        for (i, end) in End::ALL.iter().enumerate() {
            assert_eq!(end.index(), i, "{end:?}");
            assert!(words.insert((end.name(), end.reason())), "{end:?} twice");
            assert_eq!(end.reason().is_none(), *end == End::Served);
        }
        assert_eq!(words.len(), End::COUNT);
    }

    #[test]
    fn every_outcome_has_its_ends() {
        let count = |o: Outcome| End::ALL.iter().filter(|e| e.outcome() == o).count();
        let want = [
            (Outcome::Served, 1),
            (Outcome::Failed, FailReason::COUNT),
            (Outcome::Rejected, RejectReason::COUNT),
            (Outcome::Refused, RefuseCause::COUNT),
            (Outcome::Expired, ExpireReason::COUNT),
            (Outcome::Invalid, InvalidReason::COUNT),
            (Outcome::Cancelled, Stage::COUNT),
        ];
        assert_eq!(want.len(), Outcome::COUNT);
        for (outcome, ends) in want {
            assert_eq!(count(outcome), ends, "{outcome:?}");
        }
    }

    #[test]
    fn words_are_label_safe() {
        for end in End::ALL {
            for word in [Some(end.name()), end.reason()].into_iter().flatten() {
                assert!(
                    word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                    "{word}"
                );
            }
        }
        assert_eq!(Stage::ALL.first().map(|s| s.name()), Some("accept"));
        assert_eq!(Stage::ALL.last().map(|s| s.name()), Some("close"));
    }
}
