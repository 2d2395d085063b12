//! Flows that a tunnel would carry back to where they came from.
//!
//! A rule such as `tunnel = "ground"` is meant for flows that go to the ground. A flow that arrives from there, or
//! whose two ends are on the same side of this host, would cross the link twice. On its second crossing it would
//! arrive here as another new flow.

use std::net::IpAddr;

/// How packets to an address leave this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextHop<I> {
    /// The interface.
    pub interface: I,
    /// The router; none: the address is on the interface's own link.
    pub gateway: Option<IpAddr>,
}

/// How a flow crosses this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing<'a> {
    /// The client's address, before any translation.
    pub client: IpAddr,
    /// The server's address, after any translation.
    pub server: IpAddr,
    /// The interface on which the flow arrives.
    pub arrival: &'a str,
    /// The interface through which it leaves.
    pub departure: &'a str,
}

/// Why a flow does not go through a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turnback {
    /// It arrives from the peer's side.
    FromPeer,
    /// It leaves to the side from which it arrives, and the peer is elsewhere.
    Hairpin,
}

impl Crossing<'_> {
    /// Whether a tunnel to a peer at `peer` would carry the flow back. `route` returns how packets to an address
    /// leave this host; none: there is no route.
    ///
    /// If the flow arrives and leaves by one interface, and the peer is reached through the same interface, routers
    /// are compared. Routers of different address families cannot be compared: then the flow goes into the tunnel.
    pub fn turns_back<I: AsRef<str>>(
        &self,
        peer: IpAddr,
        mut route: impl FnMut(IpAddr) -> Option<NextHop<I>>,
    ) -> Option<Turnback> {
        if self.client.to_canonical() == peer.to_canonical() {
            return Some(Turnback::FromPeer);
        }
        let towards_peer = route(peer)?;
        let from_peer = self.arrival == towards_peer.interface.as_ref();
        if self.arrival != self.departure {
            return from_peer.then_some(Turnback::FromPeer);
        }
        if !from_peer {
            return Some(Turnback::Hairpin);
        }
        let (client, server) = (route(self.client)?, route(self.server)?);
        let same_link = client.interface.as_ref() == self.arrival;
        if same_link && client.neighbour(self.client) == towards_peer.neighbour(peer) {
            return Some(Turnback::FromPeer);
        }
        (same_link && client.gateway == server.gateway).then_some(Turnback::Hairpin)
    }
}

impl<I> NextHop<I> {
    /// The neighbour that a packet to `address` is sent to.
    fn neighbour(&self, address: IpAddr) -> IpAddr {
        self.gateway.unwrap_or(address).to_canonical()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    /// A terminal: its clients are behind `lan0` and `lan1`, the ground behind `sat0`; or all of it is behind
    /// `eth0`.
    fn route(to: IpAddr) -> Option<NextHop<&'static str>> {
        let via = |gateway: &str| Some(address(gateway));
        let (interface, gateway) = match to.to_string().as_str() {
            "10.0.1.2" | "fd01::2" => ("lan0", None),
            "10.0.4.2" => ("lan1", None),
            "10.0.3.2" | "198.51.100.1" => ("sat0", via("10.0.2.2")),
            "10.0.2.2" => ("sat0", None),
            "fd03::2" => ("sat0", via("fd02::2")),
            "192.168.0.7" | "192.168.0.8" => ("eth0", None),
            "192.168.0.1" => ("eth0", None),
            "203.0.113.1" | "203.0.113.9" => ("eth0", via("192.168.0.1")),
            "203.0.113.77" => ("eth0", via("192.168.0.2")),
            _ => return None,
        };
        Some(NextHop { interface, gateway })
    }

    fn turns(client: &str, server: &str, by: [&str; 2], peer: &str) -> Option<Turnback> {
        let [arrival, departure] = by;
        let (client, server) = (address(client), address(server));
        Crossing { client, server, arrival, departure }.turns_back(address(peer), route)
    }

    #[test]
    fn flows_towards_the_peer_are_the_tunnels() {
        for peer in ["10.0.2.2", "198.51.100.1", "fd03::2"] {
            assert_eq!(turns("10.0.1.2", "10.0.3.2", ["lan0", "sat0"], peer), None, "{peer}");
            assert_eq!(turns("fd01::2", "fd03::2", ["lan0", "sat0"], peer), None, "{peer}");
            // Without the tunnel the flow leaves through another uplink.
            assert_eq!(turns("10.0.1.2", "10.0.3.2", ["lan0", "dsl0"], peer), None, "{peer}");
        }
    }

    #[test]
    fn flows_from_where_the_peer_is_are_not() {
        let from = Some(Turnback::FromPeer);
        for peer in ["10.0.2.2", "198.51.100.1", "fd03::2"] {
            assert_eq!(turns("10.0.3.2", "10.0.1.2", ["sat0", "lan0"], peer), from, "{peer}");
            assert_eq!(turns("fd03::2", "fd01::2", ["sat0", "lan0"], peer), from, "{peer}");
        }
        // The peer's own flows, whichever way they arrive.
        assert_eq!(turns("10.0.2.2", "10.0.1.2", ["dsl0", "lan0"], "10.0.2.2"), from);
        assert_eq!(turns("::ffff:10.0.2.2", "10.0.1.2", ["dsl0", "lan0"], "10.0.2.2"), from);
    }

    #[test]
    fn flows_that_stay_on_one_side_are_not() {
        let hairpin = Some(Turnback::Hairpin);
        assert_eq!(turns("10.0.1.2", "10.0.1.3", ["lan0", "lan0"], "10.0.2.2"), hairpin);
    }

    #[test]
    fn on_a_host_with_one_interface_the_routers_distinguish_the_sides() {
        let one = ["eth0", "eth0"];
        let (own, other, far) = ("192.168.0.7", "192.168.0.8", "203.0.113.9");
        for peer in ["203.0.113.1", "192.168.0.1"] {
            assert_eq!(turns(own, far, one, peer), None, "{peer}");
            assert_eq!(turns(far, own, one, peer), Some(Turnback::FromPeer), "{peer}");
            assert_eq!(turns(own, other, one, peer), Some(Turnback::Hairpin), "{peer}");
            assert_eq!(turns("203.0.113.77", own, one, peer), None, "{peer}");
        }
    }

    #[test]
    fn a_peer_without_a_route_turns_nothing_back() {
        assert_eq!(turns("10.0.3.2", "10.0.1.2", ["sat0", "lan0"], "192.0.2.9"), None);
    }
}
