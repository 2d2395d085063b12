//! A daemon's configuration: any text gives a plan or one error that names a place in the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use midhop_pep::config::Plan;

fuzz_target!(|text: &str| {
    if let Err(error) = Plan::read("fuzz.toml", text) {
        assert!(!error.to_string().is_empty());
    }
});
