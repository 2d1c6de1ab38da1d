//! One connection in a hostile world: client, engines, clock and faults from the input.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::path::fuzzing::fuzz(data));
