//! Events and their facts against serde_json, streams in several cuts, what is cut out of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::event::fuzzing::fuzz(data));
