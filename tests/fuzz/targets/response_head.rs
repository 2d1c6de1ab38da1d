//! An engine's response head: the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::h1::head::fuzzing::response(data));
