//! How each engine family speaks: what a leg's body looks like, and what its answers hold.

pub mod openai;

pub mod sglang;

pub mod vllm;

pub use crate::base::units::Dialect;
