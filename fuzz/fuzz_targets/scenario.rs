//! A scenario: any text gives plans or one error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use midhop_experiment::Scenario;

fuzz_target!(|text: &str| {
    if let Ok(scenario) = Scenario::parse("fuzz.toml", text) {
        let _ = scenario.plans();
    }
});
