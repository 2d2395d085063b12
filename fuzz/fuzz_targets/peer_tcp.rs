//! Hands a fuzzer's bytes to the target `peer_tcp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| midhop_fuzz_targets::peer_tcp(data));
