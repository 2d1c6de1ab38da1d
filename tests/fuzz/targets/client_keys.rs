//! A file of client keys: all its hashes, or its faults, and no key in a message.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::config::fuzzing::fuzz_keys(data));
