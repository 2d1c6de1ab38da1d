//! The simulated engine: what stands on the other end of a leg, in tests, in the demo and under load.
//!
//! Pure and deterministic: the same setup, seed, requests and times give the same bytes. Sockets (`cli::engine`) and the
//! simulator drive the same model. It may use `base` and `wire`, and knows nothing of `path` and `shard`: it is their peer.
//!
//! | file | holds |
//! |---|---|
//! | [`profile`] | how long things take, and how much there is room for |
//! | `file` | its own files, read strictly |
//! | [`text`] | the vocabulary: tokens of prompts and answers, and a check that an answer is complete |
//! | [`ask`] | what a request body asks |
//! | [`handoff`] | KV between engines (vLLM) |
//! | [`rooms`] | legs that meet (SGLang) |
//! | [`load`] | what is resident on an engine, and what waits |
//! | [`cache`] | which prompts it knows |
//! | [`faults`] | what goes wrong on purpose |
//! | [`engine`] | requests to replies |
//! | [`stream`] | a streamed reply, event by event |
//! | [`vllm`], [`sglang`], [`openai`] | the bytes of a dialect |
//! | [`refusal`], [`answer`] | errors; whole answers and heads |
//! | [`output`] | a reply as writes on a connection, faults and all |
//!
//! A dialect is a module like `vllm` that fills a [`stream::Shape`] and writes whole answers; the rest is common to all.

pub mod profile;

pub mod text;

pub mod ask;

pub mod handoff;

pub mod rooms;

pub mod load;

pub mod cache;

pub mod faults;

pub mod engine;

pub mod stream;

pub mod vllm;

pub mod sglang;

pub mod openai;

pub mod refusal;

pub mod answer;

pub mod output;

#[cfg(test)]
mod tests;
