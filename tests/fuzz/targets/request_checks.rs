//! Request bodies: what passes as JSON passes with serde_json.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::openai::fuzzing::check_body(data));
