//! Engine URLs: what parses prints to something that parses to the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::config::fuzzing::fuzz_url(data));
