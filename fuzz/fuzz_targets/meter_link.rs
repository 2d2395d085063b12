//! Hands a fuzzer's bytes to the target `meter_link`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| midhop_fuzz_targets::meter_link(data));
