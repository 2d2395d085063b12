//! The path under test: four namespaces in a row, plain veth pairs, IPv4.

use crate::Result;
use midhop_testbed::namespace::{Namespace, veth_with_offloads};
use std::net::{IpAddr, Ipv4Addr};

/// Where the server listens.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 3, 2);
/// The gateway's address for the terminal.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 2);
/// The gateway's interface on the client's side.
pub const GATEWAY_INSIDE: &str = "inside";
/// The terminal's interface on the client's side.
pub const TERMINAL_INSIDE: &str = "down";

/// client – terminal – gateway – server.
pub struct Path {
    pub client: Namespace,
    pub terminal: Namespace,
    pub gateway: Namespace,
    pub server: Namespace,
}

impl Path {
    pub fn build() -> Result<Self> {
        let client = Namespace::create("client")?;
        let terminal = Namespace::create("terminal")?;
        let gateway = Namespace::create("gateway")?;
        let server = Namespace::create("server")?;
        let subnet = |net: u8, host: u8| IpAddr::V4(Ipv4Addr::new(10, 9, net, host));
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        for (net, left, left_name, right, right_name) in [
            (1, &client, "up", &terminal, TERMINAL_INSIDE),
            (2, &terminal, "up", &gateway, GATEWAY_INSIDE),
            (3, &gateway, "outside", &server, "down"),
        ] {
            veth_with_offloads(left, left_name, right, right_name, 1500)?;
            left.add_address(left_name, subnet(net, 1), 24)?;
            right.add_address(right_name, subnet(net, 2), 24)?;
        }
        client.add_route(any, 0, subnet(1, 2))?;
        terminal.add_route(any, 0, subnet(2, 2))?;
        gateway.add_route(subnet(1, 0), 24, subnet(2, 1))?;
        server.add_route(any, 0, subnet(3, 1))?;
        // Each address opens thousands of short connections a second: let ports be reused.
        for node in [&client, &gateway] {
            node.set_sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
            node.set_sysctl("net.ipv4.tcp_tw_reuse", "1")?;
        }
        for node in [&client, &terminal, &gateway, &server] {
            node.set_sysctl("net.core.somaxconn", "16384")?;
            node.set_sysctl("net.ipv4.tcp_max_syn_backlog", "16384")?;
        }
        Ok(Self { client, terminal, gateway, server })
    }
}
