//! Lines of an event stream, cut at every offset, against a plain splitter.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::sse::fuzzing::fuzz(data));
