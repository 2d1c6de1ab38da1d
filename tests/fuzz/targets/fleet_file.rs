//! A fleet file, as JSON and as TOML: a fleet or faults with their places.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::config::fuzzing::fuzz(data));
