//! Words that all rooms share. Owns nothing; may use std only.

pub mod words;

pub mod units;

pub mod limits;

pub mod time;

pub mod prng;
