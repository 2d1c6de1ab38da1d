//! Answers assembled from events, against a plain assembler.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::path::assemble::fuzzing::fuzz(data));
