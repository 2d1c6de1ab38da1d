//! Asking engines as a router would, from outside of the data path: the legs of a request, timed, one connection each. For whoever
//! wants to know what an engine does: `narwhal profile`, and the control thread before it believes that an engine fails.
//!
//! | file | holds |
//! |---|---|
//! | `legs` | how an engine is asked, by dialect and role |
//! | `prompt` | prompts of a wanted length that no cache knows |
//! | `tokens` | what comes back |
//! | `client` | timed requests |
//!
//! Below the line: tokio and hyper. Owns nothing that outlives a question.

pub mod client;

pub mod legs;

pub mod prompt;

pub mod tokens;
