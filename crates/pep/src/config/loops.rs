//! Configurations in which a daemon would be its own peer, or a tunnel would run inside itself.
//!
//! Loops that depend on the host's routes are found when a flow arrives: [`crate::policy::Crossing`].

use super::resolve::fault;
use super::{Config, PeerPlan, ResolveError, Rule};
use midhop_config::KeyPath;
use std::net::{IpAddr, SocketAddr};

impl Config {
    /// Checks that each peer's address can be another host's, and is none at which this daemon listens.
    pub(super) fn check_peers_are_others(&self) -> Result<(), ResolveError> {
        let listeners = [
            ("tunnel.listen", &self.tunnel.listen),
            ("explicit.http_connect", &self.explicit.http_connect),
            ("explicit.socks5", &self.explicit.socks5),
            ("admin.listen", &self.admin.listen),
        ];
        for (name, peer) in &self.peers {
            let Some(address) = peer.address else { continue };
            let key = KeyPath::of(["peers", name.as_str(), "address"]);
            let ip = address.ip().to_canonical();
            if ip.is_unspecified() || ip.is_multicast() || address.port() == 0 {
                return fault(
                    &key,
                    format!("{address} is no host's address and port"),
                    "write the address and the port at which the peer listens",
                );
            }
            for (listener, own) in listeners {
                if own.iter().any(|own| reaches(*own, address)) {
                    return fault(
                        &key,
                        format!(
                            "{address} is this daemon's own {listener}: flows would go round in circles"
                        ),
                        "write the address at which the other end listens",
                    );
                }
            }
        }
        Ok(())
    }
}

/// Checks that a rule's tunnel can be opened from here, and that the rule is not about the tunnel itself.
pub(super) fn check_rule(
    key: &KeyPath,
    rule: &Rule,
    peers: &[PeerPlan],
) -> Result<(), ResolveError> {
    let Some(name) = &rule.tunnel else { return Ok(()) };
    // That there is such a peer is checked elsewhere.
    let Some(peer) = peers.iter().find(|peer| peer.name == *name) else { return Ok(()) };
    if peer.address.is_none() {
        return fault(
            &key.join("tunnel"),
            format!("no tunnel to \"{name}\" is opened from here: the peer has no address"),
            format!(
                "set peers.{name}.address, or take the rule out: what the peer sends needs none"
            ),
        );
    }
    let from = &rule.matches.peer;
    if !from.is_empty() && from.iter().all(|from| from == name) {
        return fault(
            &key.join("match").join("peer"),
            format!("what comes by the tunnel of \"{name}\" never goes back by it"),
            "name another peer, or take the rule out: such flows are opened here",
        );
    }
    let endpoint =
        peers.iter().filter_map(PeerPlan::tcp_endpoint).find(|it| rule.matches.is_only(*it));
    if let Some(endpoint) = endpoint {
        return fault(
            &key.join("match").join("destination"),
            format!("{endpoint} is where a peer takes tunnels: these never go through a tunnel"),
            "take the rule out",
        );
    }
    Ok(())
}

/// Whether a packet to `address` is one for a listener at `own`, as far as addresses tell.
fn reaches(own: SocketAddr, address: SocketAddr) -> bool {
    let (own_ip, ip) = (own.ip().to_canonical(), address.ip().to_canonical());
    let any = match own.ip() {
        IpAddr::V4(own) => own.is_unspecified() && ip.is_ipv4(),
        IpAddr::V6(own) => own.is_unspecified(),
    };
    own.port() == address.port() && (own_ip == ip || any && ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use crate::config::{Action, Plan};
    use crate::policy::FlowKey;

    const OWN: &str =
        "[tunnel]\ncertificate = \"a.pem\"\nkey = \"a.key\"\nauthority = \"ca.pem\"\n";

    #[test]
    fn what_would_go_round_in_circles_is_refused_by_its_key() {
        let listen = |at: &str| format!("{OWN}listen = \"{at}\"\n");
        let peer = |at: &str| format!("[peers.ground]\naddress = \"{at}\"\n");
        let own = "peers.ground.address";
        for (text, key) in [
            (listen("192.0.2.1:443") + &peer("192.0.2.1:443"), own),
            (listen("0.0.0.0:443") + &peer("127.0.0.2:443"), own),
            (listen("[::]:443") + &peer("127.0.0.1:443"), own),
            (listen("[::]:443") + &peer("[::1]:443"), own),
            (OWN.to_owned() + &peer("127.0.0.1:9310"), own),
            (OWN.to_owned() + &peer("10.0.0.1:80") + "[explicit]\nsocks5 = \"10.0.0.1:80\"\n", own),
            (OWN.to_owned() + &peer("0.0.0.0:443"), own),
            (OWN.to_owned() + &peer("[ff02::1]:443"), own),
            (OWN.to_owned() + &peer("192.0.2.1:0"), own),
            (
                listen("0.0.0.0:443") + "[peers.ground]\n[[rules]]\ntunnel = \"ground\"\n",
                "rules.0.tunnel",
            ),
            (
                OWN.to_owned()
                    + &peer("192.0.2.1:443")
                    + "[[rules]]\nmatch.peer = \"ground\"\ntunnel = \"ground\"\n",
                "rules.0.match.peer",
            ),
            (
                OWN.to_owned()
                    + &peer("192.0.2.1:443")
                    + "[[rules]]\nmatch = { destination = \"192.0.2.1/32\", destination_port = 443 }\n\
                       tunnel = \"ground\"\n",
                "rules.0.match.destination",
            ),
        ] {
            let error = Plan::read("test.toml", &text).expect_err(&text);
            assert_eq!(error.key.as_deref(), Some(key), "{text}{error}");
            assert!(error.hint.is_some(), "{error}");
        }
    }

    #[test]
    fn what_only_looks_like_a_loop_is_allowed() {
        for text in [
            // Another port of the same host, and another host's.
            "listen = \"192.0.2.1:443\"\n[peers.ground]\naddress = \"192.0.2.1:444\"\n",
            "listen = \"0.0.0.0:443\"\n[peers.ground]\naddress = \"192.0.2.1:443\"\n",
            // Both ends send flows to each other.
            "listen = \"192.0.2.2:443\"\n[peers.ground]\naddress = \"192.0.2.1:443\"\n\
             [[rules]]\ntunnel = \"ground\"\n",
            // Its TCP port is somebody else's.
            "[peers.ground]\naddress = \"192.0.2.1:443\"\nfallback = \"off\"\n[[rules]]\n\
             match = { destination = \"192.0.2.1/32\", destination_port = 443 }\ntunnel = \"ground\"\n",
        ] {
            let text = format!("{OWN}{text}");
            Plan::read("test.toml", &text).unwrap_or_else(|error| panic!("{text}{error}"));
        }
    }

    #[test]
    fn tunnels_over_tcp_never_go_through_a_tunnel() {
        let rules = "[[rules]]\ntunnel = \"ground\"\n";
        for (address, fallback) in [
            ("192.0.2.1:443", "tcp"),
            ("192.0.2.1:443", "only"),
            ("192.0.2.1:443", "off"),
            ("[2001:db8::1]:443", "tcp"),
        ] {
            let peer =
                format!("[peers.ground]\naddress = \"{address}\"\nfallback = \"{fallback}\"\n");
            let plan = Plan::read("test.toml", &format!("{OWN}{peer}{rules}")).expect("a plan");
            let destination: std::net::SocketAddr = address.parse().expect("an address");
            let to = |port| {
                let mut destination = destination;
                destination.set_port(port);
                let key = FlowKey {
                    source: destination,
                    destination,
                    interface: None,
                    peer: None,
                    dscp: 0,
                };
                let passes = plan.policy.firewall_bypasses().iter().any(|it| it.covers(&key));
                let action = plan.policy.decide(&key).action;
                assert_eq!(passes, action == Action::Bypass, "{address} {fallback}");
                action
            };
            let meant = if fallback == "off" { Action::Split } else { Action::Bypass };
            assert_eq!((to(443), to(444)), (meant, Action::Split), "{address} {fallback}");
        }
    }
}
