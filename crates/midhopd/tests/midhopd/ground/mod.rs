//! The stage with one more host behind the server's host, which is the ground here.
//!
//! `client – gateway – ground – origin`, whose route back leads through the ground.
use crate::stage::{Family, PATIENCE, Stage};
use midhop_testbed::namespace::{Namespace, veth};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

/// The stage, and the host behind it.
pub struct Ground {
    pub origin: Namespace,
    pub stage: Stage,
}

/// The address of a host on one of the nets: 1 is the client's, 2 the link's, 3 the origin's.
pub fn at(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 0, net, host]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, u16::from(net), 0, 0, 0, u16::from(host)]),
    }
}

impl Ground {
    /// Sets it up; `None` if this user may create no namespaces on the host.
    pub fn set() -> Option<Self> {
        Some(Self::behind(Stage::set()?))
    }

    /// The same behind a stage with another link.
    pub fn behind(stage: Stage) -> Self {
        let origin = Namespace::create("origin").expect("a namespace for the origin");
        let macs = veth(&stage.server, "out0", &origin, "out0", 1500).expect("the origin's link");
        for family in [Family::V4, Family::V6] {
            let (prefix, any) = match family {
                Family::V4 => (24, IpAddr::from([0, 0, 0, 0])),
                Family::V6 => (64, IpAddr::from([0u16; 8])),
            };
            let (near, far) = (at(family, 3, 1), at(family, 3, 2));
            stage.server.add_address("out0", near, prefix).expect("the ground's address");
            origin.add_address("out0", far, prefix).expect("the origin's address");
            origin.add_route(any, 0, near).expect("the route back");
            origin.add_neighbour("out0", near, macs[0].mac).expect("a neighbour");
            stage.server.add_neighbour("out0", far, macs[1].mac).expect("a neighbour");
            let out = at(family, 3, 0);
            stage.gateway.add_route(out, prefix, family.server()).expect("the route out");
        }
        Self { origin, stage }
    }

    /// Listens on the origin.
    pub fn listen(&self, family: Family) -> TcpListener {
        let address = SocketAddr::new(at(family, 3, 2), 0);
        self.origin.run(|| TcpListener::bind(address)).expect("entering").expect("a listener")
    }

    /// A flow to the origin, and the address that the origin sees.
    pub fn flow(&self, listener: &TcpListener) -> (TcpStream, TcpStream, SocketAddr) {
        let (client, server) = self.stage.flow(listener);
        let seen = server.peer_addr().expect("a peer");
        (client, server, seen)
    }

    /// Listens on the client.
    pub fn listen_inside(&self, family: Family) -> TcpListener {
        let address = SocketAddr::new(family.client(), 0);
        let bind = || TcpListener::bind(address);
        self.stage.client.run(bind).expect("entering").expect("a listener")
    }

    /// A flow that the origin opens to the client: the origin's end, the client's end, and the
    /// address that the client sees.
    pub fn flow_inwards(&self, listener: &TcpListener) -> (TcpStream, TcpStream, SocketAddr) {
        let address = listener.local_addr().expect("an address");
        let connect = || TcpStream::connect_timeout(&address, PATIENCE);
        let opener = self.origin.run(connect).expect("entering").expect("a connection");
        let (accepted, seen) = listener.accept().expect("the connection's other end");
        for end in [&opener, &accepted] {
            end.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            end.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        }
        (opener, accepted, seen)
    }
}
