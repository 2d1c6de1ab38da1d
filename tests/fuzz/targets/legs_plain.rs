//! The leg to a plain server: read again it is the intended JSON, with no forbidden member in any spelling.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::dialect::openai::fuzzing::legs(data));
