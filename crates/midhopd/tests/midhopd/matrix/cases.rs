//! Router set-ups as people have them: the configuration of the gateway before anything is proxied,
//! and the connections that are tried through it.
//!
//! The rule sets have the form that the named programs and documents produce on a router. `lan0` is
//! the inside, `wan0` and `wan1` are two uplinks.

/// One set-up.
pub struct Case {
    /// A short name.
    pub name: &'static str,
    /// The administrator's nftables rules.
    pub rules: &'static str,
    /// Commands of the administrator, one per line.
    pub commands: &'static str,
    /// Rules for `iptables-restore` and `ip6tables-restore`.
    pub tables: Option<&'static str>,
    /// Connections that are tried in addition to those of every set-up.
    pub probes: &'static [Probe],
    /// The interfaces that are intercepted.
    pub interfaces: &'static str,
    /// Why the flow passes by, if the daemon cannot split it.
    pub passes: Option<&'static str>,
}

/// A connection that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// From the client to a port of the server.
    Out(u16),
    /// From the server to a port of the client.
    In(u16),
    /// From the client to the server's address that both uplinks lead to.
    Far(u16),
    /// From the server to a port of the router's outer address (IPv4).
    Forwarded(u16),
    /// From the client to a port of the router's outer address.
    Hairpin(u16),
}

const PLAIN: Case = Case {
    name: "",
    rules: "",
    commands: "",
    tables: None,
    probes: &[],
    interfaces: "\"lan0\", \"wan0\", \"wan1\"",
    passes: None,
};

/// Connections that are tried with every set-up: an open port, one that firewalls close, and one
/// without a listener.
pub const ALWAYS: [Probe; 4] = [Probe::Out(80), Probe::Out(81), Probe::Out(99), Probe::In(80)];

/// Packets with mark 1 leave by the second uplink, and none by the first.
const SECOND_UPLINK_BY_MARK: &str = "
    ip rule add fwmark 1 pref 100 lookup 100
    ip route add default via 10.0.3.2 dev wan1 table 100
    ip route replace unreachable default
    ip -6 rule add fwmark 1 pref 100 lookup 100
    ip -6 route add default via fd00:0:0:3::2 dev wan1 table 100
    ip -6 route replace unreachable default";

macro_rules! case {
    ($name:literal, $($field:ident : $value:expr),* $(,)?) => {
        Case { name: $name, $($field: $value,)* ..PLAIN }
    };
}

/// All of them.
pub fn all() -> Vec<Case> {
    vec![
        Case { name: "plain", ..PLAIN },
        case!("forward-drops-a-port", rules: "
            table inet adm { chain f { type filter hook forward priority filter; tcp dport 81 drop
            } }"),
        case!("forward-rejects-a-port", rules: "
            table inet adm { chain f { type filter hook forward priority filter; tcp dport 81 reject with tcp reset
            } }"),
        case!("stateful-forward", rules: "
            table inet adm { chain f { type filter hook forward priority filter; ct state established accept
            } }"),
        case!("invalid-dropped-everywhere", rules: "
            table inet adm {
              chain f { type filter hook forward priority filter; ct state invalid drop
              }
              chain i { type filter hook input priority filter; ct state invalid drop
              }
              chain o { type filter hook output priority filter; ct state invalid drop
              }
            }"),
        case!("masquerade-by-uplink", rules: "
            table inet adm { chain p { type nat hook postrouting priority srcnat; oifname \"wan*\" masquerade
            } }"),
        case!("masquerade-by-both-interfaces", rules: "
            table inet adm { chain p { type nat hook postrouting priority srcnat; iifname \"lan0\" oifname \"wan0\" masquerade
            } }"),
        case!("masquerade-by-source", rules: "
            table inet adm { chain p { type nat hook postrouting priority srcnat
              ip saddr 10.0.1.0/24 masquerade
              ip6 saddr fd00:0:0:1::/64 masquerade
            } }"),
        case!("snat-to-a-fixed-address", rules: "
            table inet adm { chain p { type nat hook postrouting priority srcnat
              iifname \"lan0\" oifname \"wan0\" meta nfproto ipv4 snat ip to 10.0.2.77
              iifname \"lan0\" oifname \"wan0\" meta nfproto ipv6 snat ip6 to fd00:0:0:2::77
            } }",
            commands: "
            ip addr add 10.0.2.77/32 dev wan0
            ip addr add fd00:0:0:2::77/128 dev wan0 nodad"),
        case!("input-drops-but-established", rules: "
            table inet adm { chain i { type filter hook input priority filter; policy drop
              ct state established,related accept
              ct state invalid drop
              iifname \"lo\" accept
              icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
            } }"),
        case!("input-drops-without-loopback", rules: "
            table inet adm { chain i { type filter hook input priority filter; policy drop
              ct state established,related accept
              icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
              tcp dport 9310 accept
              tcp sport 9310 accept
            } }"),
        case!("stateless-input-with-the-line", rules: "
            table inet adm { chain i { type filter hook input priority filter; policy drop
              socket transparent 1 accept
              iifname \"lo\" accept
              iifname \"lan0\" tcp dport 22 accept
              icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
            } }"),
        case!("output-drops-but-established", rules: "
            table inet adm {
              chain i { type filter hook input priority filter; policy drop
                ct state established,related accept
                iifname \"lo\" accept
                icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
              }
              chain o { type filter hook output priority filter; policy drop
                ct state established,related accept
                oifname \"lo\" accept
                icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
              }
              chain p { type nat hook postrouting priority srcnat; oifname \"wan0\" masquerade
              }
            }"),
        case!("home-router", rules: "
            table inet adm {
              chain i { type filter hook input priority filter; policy drop
                ct state vmap { established : accept, related : accept, invalid : drop }
                iifname \"lo\" accept
                icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
                iifname \"lan0\" tcp dport 22 accept
              }
              chain f { type filter hook forward priority filter; policy drop
                ct state vmap { established : accept, related : accept, invalid : drop }
                ct status dnat accept
                iifname \"lan0\" oifname \"wan0\" tcp dport != 81 accept
              }
              chain p { type nat hook postrouting priority srcnat
                oifname \"wan0\" masquerade
                ip saddr 10.0.1.0/24 ip daddr 10.0.1.2 masquerade
              }
              chain d { type nat hook prerouting priority dstnat; ip daddr 10.0.2.1 tcp dport 8080 dnat ip to 10.0.1.2:80
              }
            }",
            probes: &[Probe::Forwarded(8080), Probe::Hairpin(8080)]),
        case!("port-forwarding", rules: "
            table inet adm { chain d { type nat hook prerouting priority dstnat; ip daddr 10.0.2.1 tcp dport 8080 dnat ip to 10.0.1.2:80
            } }",
            probes: &[Probe::Forwarded(8080)]),
        case!("uplink-by-source", commands: "
            ip rule add from 10.0.1.0/24 pref 100 lookup 100
            ip route add default via 10.0.3.2 dev wan1 table 100
            ip route replace unreachable default
            ip -6 route replace unreachable default
            ip -6 rule add from fd00:0:0:1::/64 pref 100 lookup 100
            ip -6 route add default via fd00:0:0:3::2 dev wan1 table 100",
            probes: &[Probe::Far(80)]),
        case!("uplink-by-interface", commands: "
            ip rule add iif lan0 pref 100 lookup 100
            ip route add default via 10.0.3.2 dev wan1 table 100
            ip route replace unreachable default
            ip -6 rule add iif lan0 pref 100 lookup 100
            ip -6 route add default via fd00:0:0:3::2 dev wan1 table 100
            ip -6 route replace unreachable default",
            probes: &[Probe::Far(80)]),
        case!("uplink-by-exact-mark", rules: "
            table inet adm { chain m { type filter hook prerouting priority mangle; iifname \"lan0\" meta mark set 1
            } }",
            commands: SECOND_UPLINK_BY_MARK,
            probes: &[Probe::Far(80)]),
        case!("uplink-by-connection-mark", rules: "
            table inet adm {
              chain m { type filter hook prerouting priority mangle
                iifname \"lan0\" ct state new ct mark set 1
                iifname \"lan0\" meta mark set ct mark
              }
              chain o { type route hook output priority mangle; ct mark != 0 meta mark set ct mark
              }
              chain p { type nat hook postrouting priority srcnat; oifname \"wan*\" masquerade
              }
            }",
            commands: SECOND_UPLINK_BY_MARK,
            probes: &[Probe::Far(80)]),
        case!("uplink-by-mark-and-interface", rules: "
            table inet adm { chain m { type filter hook prerouting priority mangle; iifname \"lan0\" tcp dport 80 meta mark set 1
            } }",
            commands: "
            ip rule add iif lan0 fwmark 1 pref 100 lookup 100
            ip route add default via 10.0.3.2 dev wan1 table 100
            ip route replace unreachable default
            ip -6 rule add iif lan0 fwmark 1 pref 100 lookup 100
            ip -6 route add default via fd00:0:0:3::2 dev wan1 table 100
            ip -6 route replace unreachable default",
            probes: &[Probe::Far(80)]),
        case!("strict-reverse-path-with-marks", commands: "
            sysctl -qw net.ipv4.conf.all.src_valid_mark=1 net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.lan0.rp_filter=1 net.ipv4.conf.wan0.rp_filter=1"),
        case!("loose-reverse-path", commands: "
            sysctl -qw net.ipv4.conf.all.rp_filter=2"),
        case!("reverse-path-by-nft", rules: "
            table inet adm { chain r { type filter hook prerouting priority filter + 10; fib saddr . mark . iif oif missing drop
            } }"),
        case!("bridge-with-netfilter", rules: "
            table inet adm { chain f { type filter hook forward priority filter; ct state established accept
            } }",
            commands: "
            ip link add br0 type bridge
            ip link set br0 address 02:00:00:00:00:01
            ip link set lan0 master br0
            ip addr flush dev lan0
            ip addr add 10.0.1.1/24 dev br0
            ip addr add fd00:0:0:1::1/64 dev br0 nodad
            ip link set br0 up
            sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1",
            interfaces: "\"br0\", \"wan0\""),
        // From Debian's /usr/share/doc/nftables/examples: a workstation's input filter, and NAT.
        case!("debian-examples", rules: "
            table inet filter {
              chain input { type filter hook input priority 0
                ct state { established, related } accept
                ct state invalid drop
                iif lo accept
                ip6 nexthdr icmpv6 icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem, echo-request, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept
                tcp dport { 22, 9310 } ct state new accept
                counter drop
              }
            }
            table ip nat {
              chain prerouting { type nat hook prerouting priority -100
              }
              chain postrouting { type nat hook postrouting priority 100; ip saddr 10.0.1.0/24 oif \"wan0\" snat to 10.0.2.1
              }
            }"),
        case!("iptables-nft", tables: Some("
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -i lan0 -p tcp -m tcp --dport 22 -j ACCEPT
-A INPUT -p ipv6-icmp -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -p tcp -m tcp --dport 81 -j REJECT --reject-with tcp-reset
-A FORWARD -i lan0 -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -o wan0 -j MASQUERADE
COMMIT
")),
        // From firewalld's nftables backend: raw reverse-path check, zones as chains.
        case!("firewalld", rules: "
            table inet firewalld {
              chain mangle_PREROUTING { type filter hook prerouting priority mangle + 10
                icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
                meta nfproto ipv6 fib saddr . mark . iif oif missing drop
              }
              chain nat_POSTROUTING { type nat hook postrouting priority srcnat + 10; jump nat_POSTROUTING_POLICIES
              }
              chain nat_POSTROUTING_POLICIES { iifname \"lan0\" oifname \"wan0\" goto nat_POST_external
              }
              chain nat_POST_external { meta nfproto ipv4 oifname != \"lo\" masquerade
              }
              chain filter_INPUT { type filter hook input priority filter + 10
                ct state { established, related } accept
                ct status dnat accept
                iifname \"lo\" accept
                ct state invalid drop
                icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
                iifname \"lan0\" tcp dport 22 accept
                reject with icmpx admin-prohibited
              }
              chain filter_FORWARD { type filter hook forward priority filter + 10
                ct state { established, related } accept
                ct status dnat accept
                iifname \"lo\" accept
                ct state invalid drop
                ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 addr-unreachable
                iifname \"lan0\" oifname \"wan0\" tcp dport != 81 accept
                reject with icmpx admin-prohibited
              }
              chain filter_OUTPUT { type filter hook output priority filter + 10
                ct state { established, related } accept
                oifname \"lo\" accept
                ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 addr-unreachable
              }
            }"),
        // From ufw's before and user chains.
        case!("ufw", tables: Some("
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:before-input - [0:0]
:before-forward - [0:0]
:before-output - [0:0]
:not-local - [0:0]
:user-input - [0:0]
:user-forward - [0:0]
-A INPUT -j before-input
-A FORWARD -j before-forward
-A OUTPUT -j before-output
-A before-input -i lo -j ACCEPT
-A before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A before-input -m conntrack --ctstate INVALID -j DROP
-A before-input -p ipv6-icmp -j ACCEPT
-A before-input -j not-local
-A before-input -j user-input
-A not-local -m addrtype --dst-type LOCAL -j RETURN
-A not-local -m addrtype --dst-type MULTICAST -j RETURN
-A not-local -m addrtype --dst-type BROADCAST -j RETURN
-A not-local -j DROP
-A user-input -p tcp -m tcp --dport 22 -j ACCEPT
-A before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A before-forward -j user-forward
-A user-forward -i lan0 -o wan0 -p tcp -m multiport --dports 80,99 -j ACCEPT
-A before-output -o lo -j ACCEPT
-A before-output -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -o wan0 -j MASQUERADE
COMMIT
")),
        // From what Docker installs on a host that forwards: a published port, and no other
        // forwarding.
        case!("docker", tables: Some("
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION
-A FORWARD -o lan0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o lan0 -j DOCKER
-A FORWARD -i lan0 ! -o lan0 -j ACCEPT
-A DOCKER -p tcp ! -i lan0 -o lan0 -m tcp --dport 80 -j ACCEPT
-A DOCKER-ISOLATION -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING ! -o lan0 -m addrtype ! --src-type LOCAL -j MASQUERADE
COMMIT
")),
        // From fw4 of OpenWrt 22.03.
        case!("openwrt-fw4", rules: "
            table inet fw4 {
              chain input { type filter hook input priority filter; policy drop
                iifname \"lo\" accept
                ct state vmap { established : accept, related : accept }
                tcp flags & (fin | syn | rst | ack) == syn jump syn_flood
                iifname \"lan0\" jump accept_from_lan
                iifname \"wan0\" jump input_wan
                jump handle_reject
              }
              chain forward { type filter hook forward priority filter; policy drop
                ct state vmap { established : accept, related : accept }
                iifname \"lan0\" tcp dport 81 jump handle_reject
                iifname \"lan0\" oifname \"wan0\" accept
                iifname \"lan0\" oifname \"lan0\" accept
                iifname \"wan0\" ct status dnat accept
                jump handle_reject
              }
              chain output { type filter hook output priority filter
                oifname \"lo\" accept
                ct state vmap { established : accept, related : accept }
              }
              chain accept_from_lan { iifname \"lan0\" accept
              }
              chain input_wan {
                icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } limit rate 1000/second accept
                ct status dnat accept
                jump handle_reject
              }
              chain syn_flood { limit rate 25/second burst 50 packets return
                drop
              }
              chain handle_reject { meta l4proto tcp reject with tcp reset
                reject with icmpx port-unreachable
              }
              chain dstnat { type nat hook prerouting priority dstnat; iifname \"wan0\" ip daddr 10.0.2.1 tcp dport 8080 dnat ip to 10.0.1.2:80
              }
              chain srcnat { type nat hook postrouting priority srcnat
                oifname \"wan0\" meta nfproto ipv4 masquerade
                ip saddr 10.0.1.0/24 ip daddr 10.0.1.2 tcp dport 80 snat to 10.0.1.1
              }
              chain raw_prerouting { type filter hook prerouting priority raw
              }
              chain mangle_forward { type filter hook forward priority mangle
                iifname \"wan0\" tcp flags syn tcp option maxseg size set rt mtu
                oifname \"wan0\" tcp flags syn tcp option maxseg size set rt mtu
              }
            }",
            probes: &[Probe::Forwarded(8080)]),
    ]
}
