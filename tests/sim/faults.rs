//! What may be wrong with an engine's answer to one request, and how often each is, in thousandths.

use narwhal::base::prng::Prng;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// No connection: refused at once, or never made.
    Refuse,
    DialHang,
    NoAddress,
    /// An error status instead of an answer.
    Status500,
    Status503,
    Status429,
    Status400,
    Status404,
    /// 200, with an error in it: as one JSON object, or as an event.
    ErrorObject,
    ErrorEvent,
    /// Events that break the rule on ids, that abort, or that end the stream too early.
    BadIds,
    Abort,
    EarlyDone,
    NoDone,
    /// Many events without a token, or one that is too large.
    ManyHeld,
    LargeEvent,
    /// A member that nobody knows how to merge.
    OddMember,
    /// A prefill answer without a handoff.
    NoHandoff,
    /// The answer stops at some byte: closed, reset, or silent.
    CutFin,
    CutReset,
    CutHang,
    /// Bytes that are no HTTP.
    Garbage,
    /// Bytes behind the answer.
    TrailingBytes,
    /// Each part comes late.
    Slow,
    /// Ended by closing; closed behind a whole answer; interim answers first.
    UntilClose,
    Closes,
    Interim,
    /// Idle sockets are closed early.
    ShortIdle,
}

impl Fault {
    pub const ALL: [Fault; 28] = [
        Fault::Refuse,
        Fault::DialHang,
        Fault::NoAddress,
        Fault::Status500,
        Fault::Status503,
        Fault::Status429,
        Fault::Status400,
        Fault::Status404,
        Fault::ErrorObject,
        Fault::ErrorEvent,
        Fault::BadIds,
        Fault::Abort,
        Fault::EarlyDone,
        Fault::NoDone,
        Fault::ManyHeld,
        Fault::LargeEvent,
        Fault::OddMember,
        Fault::NoHandoff,
        Fault::CutFin,
        Fault::CutReset,
        Fault::CutHang,
        Fault::Garbage,
        Fault::TrailingBytes,
        Fault::Slow,
        Fault::UntilClose,
        Fault::Closes,
        Fault::Interim,
        Fault::ShortIdle,
    ];

    /// Whether it is about connections and not about one answer.
    fn is_of_sockets(self) -> bool {
        matches!(
            self,
            Fault::Refuse | Fault::DialHang | Fault::NoAddress | Fault::ShortIdle
        )
    }
}

/// How often each is.
#[derive(Clone, Debug)]
pub struct Rates([u64; Fault::ALL.len()]);

impl Default for Rates {
    fn default() -> Self {
        Rates([0; Fault::ALL.len()])
    }
}

impl Rates {
    pub fn set(&mut self, fault: Fault, thousandths: u64) {
        self.0[fault as usize] = thousandths;
    }

    /// Whether it happens now.
    pub fn strikes(&self, c: &mut Prng, fault: Fault) -> bool {
        let rate = self.0[fault as usize];
        rate > 0 && c.below(1_000) < rate
    }

    /// The fault of one answer, if any.
    pub fn of_answer(&self, c: &mut Prng) -> Option<Fault> {
        Fault::ALL
            .into_iter()
            .find(|fault| !fault.is_of_sockets() && self.strikes(c, *fault))
    }
}
