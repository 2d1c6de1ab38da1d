//! The hashes of a prompt's blocks against those of a plain reader, which builds the whole string first.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::prefix::fuzzing::fuzz(data));
