//! A fault script of a simulated engine, and its profile file: rules or faults.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::stub::faults::fuzzing::fuzz(data));
