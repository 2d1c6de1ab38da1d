//! The JSON cursor against a plain reader of the grammar, and serde_json.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::json::fuzzing::fuzz(data));
