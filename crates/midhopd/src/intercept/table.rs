//! The daemon's nftables table, as text.
//!
//! Only two kinds of packets are ever touched: SYNs that open flows which may be split, and packets
//! of connections whose socket is the daemon's own. When nothing listens, `tproxy` and `queue` with
//! `bypass` let SYNs pass: a daemon that died leaves a network that works.

use super::Marks;
use midhop_pep::config::{LegPlan, Plan};
use std::fmt::Write;
use std::net::SocketAddr;

/// Where the flows of one leg's clients are to be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrance<'a> {
    /// The leg.
    pub leg: &'a LegPlan,
    /// Listeners on the loopback, one per address family.
    pub listeners: Vec<SocketAddr>,
}

/// What the daemon sees of flows before their clients are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// Nothing: SYNs are taken at once.
    Nothing,
    /// Of servers that answer in a class of service of their own, the answer.
    Answers,
    /// Every SYN as well: only those are taken that the daemon marked.
    Openings,
}

/// Why the firewall lets a SYN pass on its own, on interfaces that are intercepted: it is for this
/// host or a group, speaks Multipath TCP, is signed, fits a rule, or a limit was reached.
pub const PASSED: [&str; 5] = ["local", "multipath", "signed", "rule", "limit"];

/// The name of the counter of SYNs that pass for a reason.
pub fn counter(reason: &str) -> String {
    format!("passed_{reason}")
}

/// A flag pattern: the packet opens a connection.
const SYN: &str = "tcp flags & (fin|syn|rst|ack) == syn";

/// The name of the table of an instance.
pub fn name(instance: &str) -> String {
    format!("midhop_{instance}")
}

/// Deletes the table of an instance if it is there.
pub fn removal(instance: &str) -> String {
    let table = name(instance);
    format!("add table inet {table}\ndelete table inet {table}\n")
}

/// Lets every new flow pass by from now on; packets of live flows are still delivered.
pub fn closing(instance: &str) -> String {
    let table = name(instance);
    format!(
        "flush chain inet {table} offered\n\
         add rule inet {table} offered socket transparent 1 goto take\n\
         add rule inet {table} offered accept\n"
    )
}

/// The transaction that puts the table in place, instead of one that a dead predecessor left.
///
/// How much goes to the chain `waiting`, and so to the daemon's queues, is said by `sight`.
pub fn transaction(plan: &Plan, marks: Marks, entrances: &[Entrance<'_>], sight: Sight) -> String {
    let queued = sight == Sight::Openings;
    let mut text = removal(&plan.intercept.instance);
    let table = name(&plan.intercept.instance);
    let here = marks.here;
    let _ = writeln!(text, "table inet {table} {{");
    text.push_str("  set gate { type inet_proto; }\n");
    for reason in PASSED {
        let _ = writeln!(text, "  counter {} {{ }}", counter(reason));
    }
    text.push_str("  chain waiting { }\n");
    chain(&mut text, "take", &take(marks, entrances));
    chain(&mut text, "offered", &offered(plan, queued));
    let tcp_only = "meta l4proto != tcp accept".to_owned();
    let own = format!("socket transparent 1 meta mark set {here} accept");
    let mut rules = vec![
        // Most packets by far, so they come first.
        format!("tcp flags & (fin|syn|rst|ack) != syn {own}"),
        // What the network says about a packet of an own socket is addressed to whom the socket
        // stands for, but meant for the socket: without it neither "unreachable" nor a path's MTU
        // gets through.
        format!("meta l4proto {{ icmp, icmpv6 }} {own}"),
        tcp_only.clone(),
    ];
    if sight != Sight::Nothing {
        let mut hold = vec![tcp_only];
        if queued {
            hold.push(format!("{SYN} goto offered"));
        }
        // The class in which the server answers is learned from its SYN-ACK, where there is one.
        hold.push("tcp flags & (fin|syn|rst|ack) != (syn|ack) accept".to_owned());
        for family in ["ip", "ip6"] {
            hold.push(format!("{family} dscp != 0 socket transparent 1 goto waiting"));
        }
        base_chain(&mut text, "hold", "mangle - 1", &hold);
    }
    if queued {
        rules.push(format!("{SYN} meta mark {} goto take", marks.approved));
        rules.extend(refusals(marks));
    } else {
        rules.push(format!("{SYN} goto offered"));
    }
    base_chain(&mut text, "prerouting", "mangle", &rules);
    text.push_str("}\n");
    text
}

/// Which SYNs are offered to the daemon: rules that accept let the flow pass by.
fn offered(plan: &Plan, queued: bool) -> Vec<String> {
    if plan.intercept.interfaces.is_empty() {
        // The table is there for what comes for own sockets alone.
        return vec!["accept".to_owned()];
    }
    let interfaces: Vec<_> =
        plan.intercept.interfaces.iter().map(|name| format!("\"{name}\"")).collect();
    let mut rules = vec![format!("iifname != {{ {} }} accept", interfaces.join(", "))];
    if !queued {
        // A repeated SYN belongs to the flow that it opened, whatever the gate says now.
        rules.push("socket transparent 1 goto take".to_owned());
        rules.push(format!("meta l4proto @gate {}", pass("limit")));
    }
    rules.extend([
        // To this host itself, to groups, or to nowhere: not to be split.
        format!("fib daddr type != unicast {}", pass("local")),
        // What a split connection cannot carry: Multipath TCP, and segments that both ends sign.
        format!("tcp option mptcp exists {}", pass("multipath")),
        format!("tcp option md5sig exists {}", pass("signed")),
        format!("tcp option 29 exists {}", pass("signed")),
    ]);
    rules.extend(plan.policy.firewall_bypasses().iter().map(|found| {
        let found = found.to_string();
        let pass = pass("rule");
        if found.is_empty() { pass } else { format!("{found} {pass}") }
    }));
    rules.push(if queued { "goto waiting".to_owned() } else { "goto take".to_owned() });
    rules
}

/// Counts a SYN and lets it pass.
fn pass(reason: &str) -> String {
    format!("counter name {} accept", counter(reason))
}

/// Delivers a SYN to the listener of its client's leg; legs with long prefixes come first.
fn take(marks: Marks, entrances: &[Entrance<'_>]) -> Vec<String> {
    let mut rules = Vec::new();
    for entrance in entrances {
        let interface = entrance.leg.interface.as_ref();
        let named = interface.is_some();
        let iifname = interface.map_or(String::new(), |name| format!("iifname \"{name}\" "));
        let prefixes = &entrance.leg.prefixes;
        for listener in &entrance.listeners {
            let v4 = listener.is_ipv4();
            let (protocol, family) = if v4 { ("ip", "ipv4") } else { ("ip6", "ipv6") };
            let action = format!(
                "meta nfproto {family} meta l4proto tcp tproxy {protocol} to {listener} meta mark set {} accept",
                marks.here
            );
            if prefixes.is_empty() {
                rules.push((0, named, format!("{iifname}{action}")));
            }
            for prefix in prefixes.iter().filter(|prefix| prefix.addr().is_ipv4() == v4) {
                let rule = format!("{iifname}{protocol} saddr {} {action}", prefix.trunc());
                rules.push((prefix.prefix_len() + 1, named, rule));
            }
        }
    }
    // A stable sort: among equals the order of the configuration stays.
    rules.sort_by_key(|(length, named, _)| std::cmp::Reverse((*length, *named)));
    rules.into_iter().map(|(_, _, rule)| rule).collect()
}

/// Tells the client what the far side said, in the same words.
fn refusals(marks: Marks) -> Vec<String> {
    let reset = format!("meta l4proto tcp meta mark {} reject with tcp reset", marks.reset);
    let v4 = Marks::ICMP.iter().map(|(name, code)| {
        let mark = marks.unreachable + u32::from(*code);
        format!("meta nfproto ipv4 meta mark {mark} reject with icmp type {name}")
    });
    let v6 = Marks::ICMPV6.iter().map(|(name, code)| {
        let mark = marks.unreachable + u32::from(*code);
        format!("meta nfproto ipv6 meta mark {mark} reject with icmpv6 type {name}")
    });
    [reset].into_iter().chain(v4).chain(v6).collect()
}

fn base_chain(text: &mut String, name: &str, priority: &str, rules: &[String]) {
    let hook = format!("type filter hook prerouting priority {priority}; policy accept;");
    let _ = writeln!(text, "  chain {name} {{\n    {hook}");
    lines(text, rules);
}

fn chain(text: &mut String, name: &str, rules: &[String]) {
    let _ = writeln!(text, "  chain {name} {{");
    lines(text, rules);
}

fn lines(text: &mut String, rules: &[String]) {
    for rule in rules {
        let _ = writeln!(text, "    {rule}");
    }
    text.push_str("  }\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        Plan::read("test.toml", text).expect("a sound plan")
    }

    fn entrances(plan: &Plan) -> Vec<Entrance<'_>> {
        let listeners: Vec<SocketAddr> =
            ["127.0.0.1:28008", "[::1]:28008"].map(|text| text.parse().expect("an address")).into();
        plan.legs.iter().map(|leg| Entrance { leg, listeners: listeners.clone() }).collect()
    }

    #[test]
    fn the_longest_prefix_is_asked_first() {
        let plan = plan(
            "[intercept]\ninterfaces = \"lan0\"\n\
             [legs.wide]\nprefixes = \"10.0.0.0/8\"\n[legs.near]\nprefixes = \"10.1.0.0/16\"\n",
        );
        let rules = take(Marks::new(1), &entrances(&plan));
        assert!(rules[0].contains("10.1.0.0/16"), "{rules:?}");
        assert!(rules[1].contains("10.0.0.0/8"), "{rules:?}");
        assert!(rules.last().is_some_and(|rule| rule.starts_with("meta nfproto ipv6")));
    }

    #[test]
    fn a_table_without_interfaces_takes_no_flow() {
        let plan = plan("");
        let text = transaction(&plan, Marks::new(100), &[], Sight::Nothing);
        assert!(text.contains("!= syn socket transparent 1 meta mark set 100 accept"), "{text}");
        assert!(!text.contains("iifname") && !text.contains("tproxy"), "{text}");
    }

    #[test]
    fn only_a_queued_table_asks_for_the_mark() {
        let plan = plan("[intercept]\ninterfaces = \"lan0\"\n");
        let queued = transaction(&plan, Marks::new(100), &entrances(&plan), Sight::Openings);
        let direct = transaction(&plan, Marks::new(100), &entrances(&plan), Sight::Answers);
        assert!(queued.contains("meta mark 101 goto take"));
        assert!(!direct.contains("meta mark 101"));
        assert!(!queued.contains("@gate") && direct.contains("@gate"));
    }
}
