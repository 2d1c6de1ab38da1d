//! Lines of journals as found on disks, and what they come to.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::metrics::journal::read::fuzzing::fuzz(data));
