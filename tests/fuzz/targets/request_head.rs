//! A client's request head: how it was cut changes nothing, and no plain reader sees another message in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::h1::head::fuzzing::request(data));
