//! Failures by class: what requests saw of an engine, as evidence for whoever judges it.

/// What a failure says about an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultClass {
    Connection,
    Timeout,
    Overload,
    InferenceStatus,
    KvHandoff,
    Stream,
}

impl FaultClass {
    pub const ALL: [FaultClass; 6] = [
        FaultClass::Connection,
        FaultClass::Timeout,
        FaultClass::Overload,
        FaultClass::InferenceStatus,
        FaultClass::KvHandoff,
        FaultClass::Stream,
    ];

    /// The word in metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            FaultClass::Connection => "connection",
            FaultClass::Timeout => "timeout",
            FaultClass::Overload => "overload",
            FaultClass::InferenceStatus => "inference_status",
            FaultClass::KvHandoff => "kv_handoff",
            FaultClass::Stream => "stream",
        }
    }
}
