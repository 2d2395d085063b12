//! Peers, requests and bytes of flows for the tests of connections.

use midhop_pep::config::{ClassPlan, PeerPlan, Plan};
use midhop_tunnel::connect::Request;
use midhop_tunnel::target::Target;
use std::net::{Ipv4Addr, SocketAddr};

pub fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A peer with this table.
pub fn peer(written: &str) -> PeerPlan {
    let text = format!(
        "[tunnel]\ncertificate = \"/c\"\nkey = \"/k\"\nauthority = \"/a\"\nlisten = \"127.0.0.1:443\"\n\
         [peers.far]\n{written}"
    );
    Plan::read("flows.toml", &text).expect("a plan").peers.remove(0)
}

pub fn class() -> ClassPlan {
    Plan::read("flows.toml", "").expect("a plan").class_named(None).clone()
}

pub fn request() -> Request {
    Request { target: Target::Address(address(80)), client: None, class: None, hops: 0 }
}

/// Bytes without a repetition.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    (0..len).map(next).collect()
}
