//! Members removed and set in raw JSON, against the same edit made member by member.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::splice::fuzzing::edits(data));
