//! Detects whether the host's own firewall rules use connection tracking.
//!
//! Entering connections costs two system calls per flow, and a statement about them turns tracking on for the whole
//! host. So both are done only where stateful rules or NAT already exist.

use super::table;
use midhop_linux::nft;
use midhop_pep::config::Conntrack;
use std::fs;

/// Words of `nft` listings that show the use of connection tracking.
const STATEFUL: [&str; 8] =
    ["ct", "masquerade", "snat", "dnat", "redirect", "flow", "synproxy", "xt"];

/// Whether connections are to be entered.
pub fn wants_conntrack(wanted: Conntrack, instance: &str) -> bool {
    match wanted {
        Conntrack::On => true,
        Conntrack::Off => false,
        Conntrack::Auto => is_used(instance),
    }
}

/// Whether any rule outside the instance's own table is stateful. If the rules cannot be read, the answer is yes.
fn is_used(instance: &str) -> bool {
    if legacy_tables() {
        return true;
    }
    let listed = nft::ask(&["-n", "-t", "list", "ruleset"]);
    listed.map_or(true, |listed| is_stateful(&listed, instance))
}

/// Whether there are rules of the older iptables, which `nft` does not list.
fn legacy_tables() -> bool {
    ["ip_tables_names", "ip6_tables_names"].iter().any(|file| {
        let names = fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        names.is_ok_and(|names| !names.trim().is_empty())
    })
}

fn is_stateful(ruleset: &str, instance: &str) -> bool {
    let own = format!("table inet {} {{", table::name(instance));
    let mut inside = false;
    ruleset.lines().any(|line| {
        if !line.starts_with(['\t', ' ', '}']) {
            inside = line == own;
        }
        let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'));
        !inside
            && line.starts_with(['\t', ' '])
            && words.into_iter().any(|word| STATEFUL.contains(&word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_others_count_and_our_own_do_not() {
        let own = "table inet midhop_main {\n\tchain a {\n\t\tct zone set 28008\n\t}\n}\n";
        let plain = "table ip filter {\n\tchain f {\n\t\ttcp dport 80 accept\n\t}\n}\n";
        let stateful = "table ip filter {\n\tchain f {\n\t\tct state established accept\n\t}\n}\n";
        assert!(!is_stateful(own, "main"));
        assert!(!is_stateful(&[own, plain].concat(), "main"));
        assert!(is_stateful(&[own, stateful].concat(), "main"));
        assert!(is_stateful(own, "other"));
    }
}
