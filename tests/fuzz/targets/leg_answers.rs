//! Prefill and tokenize answers: a handoff or a count is what serde_json finds there.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| narwhal::wire::dialect::vllm::fuzzing::answers(data));
