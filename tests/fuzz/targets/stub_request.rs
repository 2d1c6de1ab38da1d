//! Requests as the simulated engine reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::stub::ask::fuzzing::fuzz(data));
