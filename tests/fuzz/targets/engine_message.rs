//! An engine's error message: bounded, and clean once written.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::openai::fuzzing::engine_message(data));
