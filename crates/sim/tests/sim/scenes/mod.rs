//! The network that most tests run on.

use midhop_experiment::{Plan, Scenario};

/// Four nodes in a line, the middle link narrow.
pub const CHAIN: &str = r#"
title = "a chain"
duration = "60 s"

[nodes]
client = {}
terminal = {}
gateway = {}
server = {}

[links.lan]
between = ["client", "terminal"]
rate = "1 Gbit/s"
delay = "0.2 ms"

[links.satellite]
between = ["terminal", "gateway"]
rate = "20 Mbit/s"
delay = "25 ms"
queue = "1 BDP"

[links.internet]
between = ["gateway", "server"]
rate = "1 Gbit/s"
delay = "10 ms"
"#;

/// A file from one end to the other.
pub const FILE: &str = "[transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"2 MB\"\n";

/// The first plan of the chain with something added and changed.
pub fn plan(more: &str, set: &[&str]) -> Plan {
    let scenario = Scenario::parse("chain.toml", &(CHAIN.to_owned() + more));
    let plans = scenario.and_then(|mut scenario| {
        set.iter().try_for_each(|assignment| scenario.set(assignment))?;
        scenario.plans()
    });
    plans.unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
}
