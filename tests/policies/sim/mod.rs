//! Whole routers under load, in virtual time: what each policy makes of the same requests. The code under test is the very code that runs
//! on sockets; engines are those of `narwhal::stub`, with the curves of a real machine; the network is a constant.
//!
//! | file | holds |
//! |---|---|
//! | [`fleet`] | engines, what they cost, and what the router is told of them |
//! | [`traffic`] | traces: who asks what, and when |
//! | [`shared`] | traces whose prompts have much in common, and a placement that knows all caches |
//! | [`drive`] | the clock, the connections and the engines' side |
//! | [`leg`] | one leg's bytes, between the router and a simulated engine |
//! | [`measure`] | what came of it |

pub mod drive;
pub mod fleet;
pub mod leg;
pub mod measure;
pub mod shared;
pub mod traffic;
