//! Bodies, sized, chunked or until close, in three cuts, against a plain decoder.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::h1::body::fuzzing::fuzz(data));
