//! What live traffic teaches: how fast engines really are, which of them drift, and how long answers become.
//!
//! Pure arithmetic and one state machine. The memory that shards share is `shard::learned`; whoever judges engines runs [`drift`].
//! Only counted token ids teach, so engines that send none are taken as their profiles say.

pub mod correction;

pub mod drift;

pub mod lengths;

pub mod pace;

#[cfg(test)]
mod tests;
