//! The daemon's nftables table, as text.
//!
//! A SYN that opens a flow is held after source NAT, when the administrator's rules have decided on
//! it. It then passes by unchanged, or it is dropped and injected again over the loopback, to a
//! listener. Apart from that, only packets of the daemon's own sockets are touched. When nothing
//! listens to the queue, SYNs pass: a daemon that died leaves a working network.

use super::marks::Marks;
use super::ruleset::NetlinkRule;
use super::still;
use crate::leg::REPEATS;
use midhop_linux::nft::{self, Table};
use midhop_pep::config::{OneOrMany, Plan};
use midhop_pep::policy::{ClientTuple, Unjudged};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;

/// Where the flows of one leg's clients are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entrance {
    /// The leg's number, which injected SYNs carry.
    pub tag: u16,
    /// Listeners on the loopback, one per address family.
    pub listeners: [SocketAddr; 2],
}

/// Properties of the host for which the table is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSetting {
    /// Whether connections are entered into connection tracking.
    pub conntrack: bool,
}

impl TableSetting {
    /// Where rules find the addresses of a flow's client.
    const fn client(self) -> ClientTuple {
        if self.conntrack { ClientTuple::Original } else { ClientTuple::Packet }
    }
}

/// Why the firewall lets a SYN pass without the daemon, on intercepted interfaces: it uses Multipath TCP, is signed, has
/// a routing header, matches a rule, or a limit was reached.
pub const PASSED: [&str; 5] = ["multipath", "signed", "routing_header", "rule", "limit"];

/// The counter of handshake packets for the daemon's sockets, before any filter.
pub const ARRIVED: &str = "arrived";
/// The counter of those that pass all filters.
pub const DELIVERED: &str = "delivered";
/// The counter of SYNs that the daemon sends to servers, before any filter.
pub const SENT: &str = "sent";
/// The counter of those that leave this host.
pub const DEPARTED: &str = "departed";

/// The counter of packets of assisted flows that this host sends, as they leave it.
pub const MENDED: &str = "mended";
/// The chain whose rule sends packets of assisted flows to the daemon. `nft` cannot write this
/// rule: see [`super::Ruleset`].
pub const ASSISTING: &str = "assisting";

/// The name of the counter of SYNs that pass for a reason.
pub fn counter(reason: &str) -> String {
    format!("passed_{reason}")
}

/// The map from an IPv4 flow as it leaves to how its client sees it.
pub const ORIGINS_V4: &str = "origins4";
/// The same for IPv6, as far as the client's address, its port and the connection's mark go.
pub const CLIENTS_V6: &str = "clients6";
/// The server's address and port of IPv6 flows.
pub const SERVERS_V6: &str = "servers6";
/// The chains that fill the maps. `nft` cannot write their rules: see [`super::Ruleset`].
pub const NOTE_V4: &str = "note4";
/// For IPv6.
pub const NOTE_V6: &str = "note6";

/// Distinguishes SYNs that are to be refused from those of any leg.
pub const REFUSED: u16 = u16::MAX;

/// Packets that may be for a socket of ours, or report on its packets.
const OF_SOCKETS: &str = "meta l4proto { tcp, icmp, icmpv6 }";

/// Flows of one address family whose clients were accepted a moment ago.
///
/// While the kernel replaces a request socket by the connection, a lookup on another processor
/// finds neither. The client's next packet would be forwarded, and the server would reset the
/// connection. So the packet is dropped, and retransmitted some milliseconds later.
struct Begun {
    name: &'static str,
    key: &'static str,
    address: &'static str,
}

const BEGUN: [Begun; 2] = [
    Begun {
        name: "begun4",
        key: "ip saddr . tcp sport . ip daddr . tcp dport",
        address: "ipv4_addr",
    },
    Begun {
        name: "begun6",
        key: "ip6 saddr . tcp sport . ip6 daddr . tcp dport",
        address: "ipv6_addr",
    },
];

impl Begun {
    fn set(&self) -> String {
        let Self { name, address, .. } = self;
        format!(
            "  set {name} {{ type {address} . inet_service . {address} . inet_service; \
             flags dynamic, timeout; timeout 1s; size 65535; }}\n"
        )
    }

    /// The statement that enters a flow.
    fn note(&self) -> String {
        format!("add @{} {{ {} }}", self.name, self.key)
    }

    /// Matches packets of such a flow.
    fn is(&self) -> String {
        format!("{} @{}", self.key, self.name)
    }

    /// Matches the packets that follow the SYN.
    fn has(&self) -> String {
        format!("tcp flags & syn == 0 {}", self.is())
    }
}

/// Number of parts per queue into which flows are divided by source port.
const PARTS: u16 = 16;
/// The most parts of all queues together; a power of two.
const PARTS_MAX: u16 = 1 << 12;

/// A flag pattern: the packet opens a connection.
const SYN: &str = "tcp flags & (fin|syn|rst|ack) == syn";

/// The name of the table of an instance.
pub fn name(instance: &str) -> String {
    format!("midhop_{instance}")
}

/// Whether the table of an instance exists. If this cannot be queried, the answer is yes.
pub fn exists(instance: &str) -> bool {
    let table = name(instance);
    let listed = nft::ask(&["list", "tables", "inet"]);
    let is_it = |line: &str| line.ends_with(&format!(" {table}"));
    listed.map_or(true, |listed| listed.lines().any(is_it))
}

/// Opens a channel to the table of an instance, in the calling thread's network namespace.
///
/// # Errors
/// When the kernel gives no channel.
pub fn open_table(instance: &str) -> io::Result<Table> {
    Table::open(name(instance))
}

/// Deletes the table of an instance if it is there.
pub fn removal(instance: &str) -> String {
    let table = name(instance);
    format!("add table inet {table}\ndelete table inet {table}\n")
}

/// Lets every new flow pass by from now on; packets of live flows are still delivered.
pub fn closing(instance: &str) -> String {
    let table = name(instance);
    format!("flush chain inet {table} offered\nadd rule inet {table} offered accept\n")
}

/// The name of the chain that marks a table as complete. It has no rules, and its name stands for everything that
/// is in the table, so that another program recognizes a table that is as it would make it.
pub fn mark(transaction: &str, rules: &[NetlinkRule]) -> String {
    let mut hasher = DefaultHasher::new();
    (transaction, format!("{rules:?}")).hash(&mut hasher);
    format!("made_{:016x}", hasher.finish())
}

/// The transaction that installs the table for this many queues, and replaces one that a dead predecessor left.
pub fn transaction(
    plan: &Plan,
    entrances: &[Entrance],
    queues: u16,
    setting: TableSetting,
) -> String {
    let mut text = removal(&plan.intercept.instance);
    let _ = writeln!(text, "table inet {} {{", name(&plan.intercept.instance));
    text.push_str("  set gate { type inet_proto; }\n");
    for reason in PASSED {
        let _ = writeln!(text, "  counter {} {{ }}", counter(reason));
    }
    let intercepts = !entrances.is_empty();
    if intercepts {
        BEGUN.iter().for_each(|begun| text.push_str(&begun.set()));
        let marks = Marks::new(plan.intercept.mark);
        still::drop_packets(&mut text, plan.intercept.hooks.raw, marks);
    }
    for name in [ARRIVED, DELIVERED, SENT, DEPARTED] {
        let _ = writeln!(text, "  counter {name} {{ }}");
    }
    let marks = Marks::new(plan.intercept.mark);
    let hooks = &plan.intercept.hooks;
    let assists = intercepts && plan.assist.is_on();
    if assists {
        assisted(&mut text, plan, setting);
    }
    if setting.conntrack {
        maps(&mut text);
        let zoned = format!("ct zone set {}", plan.intercept.zone);
        chain(&mut text, "zoned", std::slice::from_ref(&zoned));
        let early = [
            format!("meta mark & {:#x} != 0 accept", marks.injected),
            // For most packets, one lookup of the socket finds the owner.
            format!(
                "{OF_SOCKETS} socket mark & {:#x} vmap {{ {:#x} : goto zoned, {:#x} : accept }}",
                marks.client | marks.server,
                marks.client,
                marks.server
            ),
            format!("{OF_SOCKETS} socket transparent 1 goto unmarked"),
        ];
        let begun = BEGUN.map(|begun| format!("{} goto zoned", begun.has()));
        let early = early.into_iter().chain(begun.into_iter().filter(|_| intercepts));
        let early: Vec<String> = early.collect();
        chain(&mut text, "unmarked", &[others(marks), zoned]);
        base_chain(&mut text, "early", "prerouting", hooks.raw, &early);
        // The original packet was tracked when it arrived.
        let mended =
            format!("meta mark & {:#x} == {:#x} notrack accept", marks.all(), marks.mended());
        let mut out: Vec<String> = assists.then_some(mended).into_iter().collect();
        out.extend([
            format!(
                "meta mark & {:#x} != 0 ct zone set {} accept",
                marks.client | marks.injected,
                plan.intercept.zone
            ),
            format!(
                "meta mark & {:#x} != 0 socket transparent 1 ct original zone set {}",
                marks.server,
                plan.intercept.zone + 1
            ),
        ]);
        base_chain(&mut text, "out", "output", hooks.raw, &out);
        let again = again(plan.intercept.zone, marks);
        chain_at(&mut text, "again", "route", "output", hooks.delivery, &again);
    }
    wait(&mut text, queues);
    delivery(&mut text, hooks.delivery, marks, entrances);
    let passing = marks.here | marks.injected;
    let clear =
        format!("meta mark & {passing:#x} != 0 meta mark set meta mark & {:#x}", !marks.all());
    base_chain(&mut text, "in", "input", hooks.input, &[clear]);
    if !entrances.is_empty() {
        if setting.conntrack {
            let noted = [
                format!("meta nfproto ipv4 jump {NOTE_V4}"),
                format!("meta nfproto ipv6 jump {NOTE_V6}"),
                format!("meta mark set meta mark | {:#x} goto waiting", marks.noted),
            ];
            chain(&mut text, "noted", &noted);
        }
        chain(&mut text, "offered", &offered(plan, setting));
        // These marks are cleared in the chain `assist`.
        let mended = format!("meta mark & {:#x} == {:#x} accept", marks.all(), marks.mended());
        let mut hold: Vec<String> = assists.then_some(mended).into_iter().collect();
        hold.extend([
            // No mark of ours may leave the host.
            format!(
                "meta mark & {:#x} != 0 oifname != \"lo\" meta mark set meta mark & {:#x}",
                marks.all(),
                !marks.all()
            ),
            format!("{SYN} goto offered"),
        ]);
        base_chain(&mut text, "hold", "postrouting", hooks.hold, &hold);
        let released = format!("meta mark & {:#x} != 0", marks.released());
        let clear = format!("meta mark set meta mark & {:#x}", !marks.all());
        let mut decided = Vec::new();
        if assists {
            let assisted = marks.assisted();
            decided.push(format!("meta mark & {assisted:#x} == {assisted:#x} jump assisted"));
        }
        decided.push(format!("{released} {clear} accept"));
        // The daemon that let the client in has ended before it dropped this SYN. The daemon's own
        // SYN has the same addresses, but no input interface.
        let names = interfaces(plan);
        decided.extend(BEGUN.map(|begun| format!("iifname {names} {} drop", begun.is())));
        decided.extend([
            // The daemon has not seen it: it is not running, or is overloaded.
            format!("meta mark & {:#x} != 0 oifname != \"lo\" {clear}", marks.all()),
            "goto unjudged".to_owned(),
        ]);
        chain(&mut text, "unjudged", &unjudged(plan, setting));
        chain(&mut text, "decided", &decided);
        let behind = format!("{SYN} goto decided");
        base_chain(&mut text, "behind", "postrouting", hooks.hold + 1, &[behind]);
        // The flags alone exclude nearly every packet.
        let opening = |name: &str| {
            format!(
                "tcp flags & (fin|syn|rst|ack) vmap {{ syn : goto {name}_syn, syn|ack : goto {name}_answer }}"
            )
        };
        let mut answers = vec![format!("socket transparent 1 counter name {ARRIVED}")];
        // The class of the server's response is read from its SYN-ACK, where there is one.
        answers.extend(
            ["ip", "ip6"]
                .map(|family| format!("{family} dscp != 0 socket transparent 1 goto waiting")),
        );
        chain(&mut text, "arrived_answer", &answers);
        let injected =
            format!("meta mark & {:#x} == {:#x} iifname \"lo\"", marks.all(), marks.injected);
        let mut syns = vec![format!("{injected} counter name {ARRIVED}")];
        syns.extend(BEGUN.map(|begun| format!("{injected} {}", begun.note())));
        chain(&mut text, "arrived_syn", &syns);
        base_chain(&mut text, "arrivals", "prerouting", hooks.raw - 1, &[opening("arrived")]);
        let transparent = format!("socket transparent 1 counter name {DELIVERED}");
        chain(&mut text, "delivered_syn", &[format!("iifname \"lo\" {transparent}")]);
        chain(&mut text, "delivered_answer", &[transparent]);
        let sent = format!("{SYN} socket transparent 1 counter name");
        // One SYN out for each SYN in: a retransmission by the kernel waits for the client's. It is
        // counted when it leaves.
        let repeated = format!(
            "{SYN} meta mark & {0:#x} != 0 meta priority 0:{REPEATS} socket transparent 1 \
             meta mark set meta mark | {1:#x} goto waiting",
            marks.server, marks.noted
        );
        base_chain(&mut text, "repeating", "output", hooks.raw - 2, &[repeated]);
        // A full queue lets packets pass unchanged. Such a retransmission is not decided on and is
        // dropped: the kernel sends another.
        let undecided = marks.repeated();
        let sending = [
            format!("{SYN} meta mark & {undecided:#x} == {undecided:#x} drop"),
            format!("{sent} {SENT}"),
        ];
        base_chain(&mut text, "sending", "output", hooks.raw - 1, &sending);
        base_chain(&mut text, "departing", "output", i32::MAX - 1, &[format!("{sent} {DEPARTED}")]);
        base_chain(&mut text, "delivered", "input", i32::MAX - 1, &[opening("delivered")]);
    }
    text.push_str("}\n");
    text
}

/// The sets of assisted flows, in both directions.
pub const ASSISTED_V4: &str = "assisted4";
/// For IPv6.
pub const ASSISTED_V6: &str = "assisted6";

/// The chain that enters the responses of a flow into such a set, from what connection tracking knows of it.
pub fn answers(set: &str) -> String {
    format!("answers_{set}")
}

/// Selects the flows that are assisted, and sends their packets to the daemon, in both directions: after the
/// administrator's rules have decided and translated. Where no daemon listens, they pass.
fn assisted(text: &mut String, plan: &Plan, setting: TableSetting) {
    let marks = Marks::new(plan.intercept.mark);
    let mut note = Vec::new();
    let mut packets = vec![
        format!(
            "meta mark & {:#x} == {:#x} counter name {MENDED} meta mark set meta mark & {:#x} accept",
            marks.all(),
            marks.mended(),
            !marks.all()
        ),
        "meta l4proto != tcp accept".to_owned(),
        "tcp flags & syn != 0 accept".to_owned(),
    ];
    let lossy = named(&plan.assist.interfaces);
    packets.push(format!("iifname != {lossy} oifname != {lossy} accept"));
    let _ = writeln!(text, "  counter {MENDED} {{ }}\n  chain {ASSISTING} {{ }}");
    for (begun, (family, set)) in BEGUN.iter().zip([("ip", ASSISTED_V4), ("ip6", ASSISTED_V6)]) {
        let address = begun.address;
        let _ = writeln!(
            text,
            "  set {set} {{ type {address} . inet_service . {address} . inet_service; \
             flags dynamic, timeout; timeout 5m; size 65535; }}"
        );
        // The flow as it leaves, and its responses as they are after the reverse translation.
        let version = if family == "ip" { "ipv4" } else { "ipv6" };
        note.push(format!("meta nfproto {version} update @{set} {{ {} }}", begun.key));
        note.push(if setting.conntrack {
            let _ = writeln!(text, "  chain {} {{ }}", answers(set));
            format!("meta nfproto {version} jump {}", answers(set))
        } else {
            let back = format!("{family} daddr . tcp dport . {family} saddr . tcp sport");
            format!("meta nfproto {version} update @{set} {{ {back} }}")
        });
        let kept = format!("update @{set} {{ {} }} goto {ASSISTING}", begun.key);
        chain(text, &format!("kept_{set}"), &[kept]);
        packets.push(format!("{} @{set} goto kept_{set}", begun.key));
    }
    chain(text, "assisted", &note);
    base_chain(text, "assist", "postrouting", plan.intercept.hooks.hold + 1, &packets);
}

/// The chain whose rule sends SYNs to one of the queues. `nft` cannot write this rule: see
/// [`super::Ruleset`].
pub fn waiting(number: u16) -> String {
    format!("waiting{number}")
}

/// Divides the waiting packets among the queues by source port. Every SYN of a flow, also the daemon's own, gets to
/// the same worker, and the flows of one client are spread over all workers. The lowest bit is not used: Linux
/// clients do not vary it.
fn wait(text: &mut String, queues: u16) {
    for number in 0..queues {
        let _ = writeln!(text, "  chain {} {{ }}", waiting(number));
    }
    let count = queues.saturating_mul(PARTS).min(PARTS_MAX).next_power_of_two();
    let part = |part: u16| format!("{} : goto {}", part << 1, waiting(part % queues));
    let parts: Vec<String> = (0..count).filter(|_| queues > 0).map(part).collect();
    let rule = format!("tcp sport & {} vmap {{ {} }}", (count - 1) << 1, parts.join(", "));
    chain(text, "waiting", if queues > 0 { std::slice::from_ref(&rule) } else { &[] });
}

fn maps(text: &mut String) {
    let v4 = "ipv4_addr . inet_service . ipv4_addr . inet_service";
    let v6 = "ipv6_addr . inet_service . ipv6_addr . inet_service";
    for (name, kind) in [
        (ORIGINS_V4, format!("{v4} : {v4} . mark")),
        (CLIENTS_V6, format!("{v6} : ipv6_addr . inet_service . mark")),
        (SERVERS_V6, format!("{v6} : ipv6_addr . inet_service")),
    ] {
        let _ = writeln!(
            text,
            "  map {name} {{ type {kind}; flags dynamic, timeout; timeout 10s; size 65535; }}"
        );
    }
    let _ = writeln!(text, "  chain {NOTE_V4} {{ }}\n  chain {NOTE_V6} {{ }}");
}

/// Selects the SYNs that are offered to the daemon: rules that accept let the flow pass by.
fn offered(plan: &Plan, setting: TableSetting) -> Vec<String> {
    let mut rules = vec![
        outside(plan),
        format!("meta l4proto @gate {}", pass("limit")),
        // A split connection cannot carry Multipath TCP, or segments that both ends sign.
        format!("tcp option mptcp exists {}", pass("multipath")),
        format!("tcp option md5sig exists {}", pass("signed")),
        format!("tcp option 29 exists {}", pass("signed")),
        // With a routing header, the destination may be an intermediate node, and sockets receive
        // no packets with some types of it (RFC 8754, 6554).
        format!("exthdr rt exists {}", pass("routing_header")),
    ];
    let client = setting.client();
    let release =
        format!("meta mark set meta mark | {:#x}", Marks::new(plan.intercept.mark).released());
    rules.extend(plan.policy.firewall_bypasses().iter().map(|found| {
        format!("meta l4proto tcp {} {release} {}", found.text(client), pass("rule"))
    }));
    if setting.conntrack {
        rules.extend(
            ["ct status snat,dnat goto noted", "ct mark != 0 goto noted"].map(str::to_owned),
        );
    }
    rules.push("goto waiting".to_owned());
    rules
}

/// Counts a SYN and lets it pass.
fn pass(reason: &str) -> String {
    format!("counter name {} accept", counter(reason))
}

/// Stops undecided SYNs that may not pass: those that a rule rejects, or that may only go through a
/// tunnel. This also works when the queue is full, not there yet, or left by a daemon that died.
fn unjudged(plan: &Plan, setting: TableSetting) -> Vec<String> {
    let stops = plan.policy.firewall_stops();
    if stops.is_empty() {
        return Vec::new();
    }
    let client = setting.client();
    let rules = stops.iter().map(|(found, unjudged)| {
        let found = found.text(client);
        let end = match unjudged {
            Unjudged::Pass => "accept",
            Unjudged::Drop => "drop",
        };
        format!("meta l4proto tcp {found} {end}")
    });
    [outside(plan)].into_iter().chain(rules).collect()
}

/// Excludes packets of other interfaces.
fn outside(plan: &Plan) -> String {
    format!("iifname != {} accept", interfaces(plan))
}

/// The set of intercepted interfaces.
fn interfaces(plan: &Plan) -> String {
    named(&plan.intercept.interfaces)
}

/// A set of these interfaces.
fn named(interfaces: &OneOrMany<String>) -> String {
    let names = interfaces.iter().map(|name| format!("\"{name}\""));
    format!("{{ {} }}", names.collect::<Vec<_>>().join(", "))
}

/// Delivers injected SYNs to the listener of their client's leg, and packets of own sockets to these.
fn delivery(text: &mut String, priority: i32, marks: Marks, entrances: &[Entrance]) {
    let mut late = Vec::new();
    if !entrances.is_empty() {
        let is = |mark| format!("meta l4proto tcp meta mark & {:#x} == {mark:#x}", marks.all());
        let mut injected = vec![format!("{} reject with tcp reset", is(marks.refused()))];
        for entrance in entrances {
            for listener in &entrance.listeners {
                let (family, tag, protocol) = if listener.is_ipv4() {
                    ("ipv4", "ip id", "ip")
                } else {
                    ("ipv6", "ip6 flowlabel", "ip6")
                };
                injected.push(format!(
                    "{} meta nfproto {family} {tag} {} tproxy {protocol} to {listener} accept",
                    is(marks.injected),
                    entrance.tag
                ));
            }
        }
        chain(text, "injected", &injected);
        late.push(format!("meta mark & {:#x} != 0 iifname \"lo\" jump injected", marks.injected));
    }
    // An ICMP error about a packet of an own socket is addressed to the host that the socket stands
    // for, but it concerns the socket. Without this rule the socket would receive neither
    // "unreachable" nor the path MTU.
    let deliver = format!("meta mark set meta mark | {:#x}", marks.here);
    let own = marks.client | marks.server;
    late.push(format!("{OF_SOCKETS} socket mark & {own:#x} != 0 {deliver} accept"));
    late.push(format!("{OF_SOCKETS} socket transparent 1 goto unmarked_here"));
    if !entrances.is_empty() {
        late.extend(BEGUN.map(|begun| format!("{} drop", begun.has())));
    }
    chain(text, "unmarked_here", &[others(marks), deliver]);
    base_chain(text, "late", "prerouting", priority, &late);
}

/// Ends the chain for other programs' transparent sockets. A request socket and a socket in
/// TIME_WAIT have no mark. The rule does not match them, so their packets are treated as those of
/// our clients.
fn others(marks: Marks) -> String {
    format!("socket mark & {:#x} == 0 accept", marks.client | marks.server)
}

/// Restores the marks of injected SYNs if the administrator's rules have replaced them, for example
/// by the connection's mark. Nothing else on this host opens connections in their zone.
fn again(zone: u16, marks: Marks) -> Vec<String> {
    let opens = format!("ct zone {zone} ct direction original {SYN}");
    let lost =
        |mark: u32| format!("meta mark & {:#x} != {mark:#x} meta mark set {mark:#x}", marks.all());
    let mut rules = Vec::new();
    for tag in ["ip id", "ip6 flowlabel"] {
        rules.push(format!("{opens} {tag} {REFUSED} {} accept", lost(marks.refused())));
    }
    for tag in ["ip id", "ip6 flowlabel"] {
        rules.push(format!("{opens} {tag} != {REFUSED} {}", lost(marks.injected)));
    }
    rules
}

pub(super) fn base_chain(
    text: &mut String,
    name: &str,
    hook: &str,
    priority: i32,
    rules: &[String],
) {
    chain_at(text, name, "filter", hook, priority, rules);
}

fn chain_at(
    text: &mut String,
    name: &str,
    kind: &str,
    hook: &str,
    priority: i32,
    rules: &[String],
) {
    let hook = format!("type {kind} hook {hook} priority {priority}; policy accept;");
    let _ = writeln!(text, "  chain {name} {{\n    {hook}");
    lines(text, rules);
}

pub(super) fn chain(text: &mut String, name: &str, rules: &[String]) {
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

    fn text(config: &str, conntrack: bool) -> String {
        let plan = Plan::read("test.toml", config).expect("a sound plan");
        let listeners =
            ["127.0.0.1:28008", "[::1]:28008"].map(|text| text.parse().expect("an address"));
        let intercepts = !plan.intercept.interfaces.is_empty();
        let entrances: &[_] = if intercepts { &[Entrance { tag: 1, listeners }] } else { &[] };
        transaction(&plan, entrances, 2, TableSetting { conntrack })
    }

    #[test]
    fn a_table_without_interfaces_takes_no_flow() {
        let text = text("", false);
        assert!(text.contains("socket transparent 1 goto unmarked_here"), "{text}");
        assert!(!text.contains("hold") && !text.contains("tproxy"), "{text}");
    }

    #[test]
    fn a_host_without_connection_tracking_is_not_given_it() {
        let config = "[intercept]\ninterfaces = \"lan0\"\n[[rules]]\nmatch = { source = \"10.0.0.0/8\" }\naction = \"bypass\"";
        let without = text(config, false);
        assert!(!without.contains(" ct ") && without.contains("hold"), "{without}");
        assert!(without.contains("tcp ip saddr { 10.0.0.0/8 }"), "{without}");
        let with = text(config, true);
        assert!(with.contains("ct original ip saddr { 10.0.0.0/8 }"), "{with}");
    }
}
