//! What a shard believes about engines, and policy as plain functions over readings that are handed in.
//! Never touches bytes, sockets or another shard's memory.

pub mod breaker;

pub mod learn;

pub mod measure;

pub mod pick;

pub mod price;
