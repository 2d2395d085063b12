//! Hands a fuzzer's bytes to the target `relocation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| midhop_fuzz_targets::relocation(data));
