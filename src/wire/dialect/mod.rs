//! How each engine family speaks: what a leg's body looks like, and what its answers hold.

pub mod vllm;

/// Engine families. The fleet file names one for all its engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// vLLM: legs in sequence, the prefill answer carries the handoff.
    Vllm,
    /// SGLang: both legs at once, joined by a bootstrap room.
    Sglang,
    /// Any server of the OpenAI API: one leg, no token ids.
    Openai,
}
