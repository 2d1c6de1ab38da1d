//! Legs side by side: read again they are the intended JSON, with no forbidden member in any spelling.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::dialect::sglang::fuzzing::legs(data));
