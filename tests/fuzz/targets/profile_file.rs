//! A profile file: curves within their bounds, or faults with their places.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::config::fuzzing::fuzz_profiles(data));
