//! A peer requests flows through a chain and does not let the responses be sent: what its flows
//! held is freed.
//!
//! `gateway with the peer – server's host with the second proxy, the last, and the server`

use crate::ends::{Authority, far_config};
use crate::hostile::Hostile;
use crate::stage::{self, Family, Stage, noise, until};
use crate::visitor::Shown;
use midhop_tunnel::connect::Request;
use midhop_tunnel::target::Target;
use std::net::SocketAddr;

const FLOWS: usize = 60;
/// Enough for the second proxy's announcements, and for a few responses. Unit: bytes.
const WINDOW: u32 = 100;
/// Early data of a flow. Unit: bytes.
const FIRST: usize = 9_700;

fn nothing_is_kept_of_grants_that_could_not_be_sent(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far", "last"]);
    let at = SocketAddr::new(family.server(), 4434);
    let last = authority.table("last", &format!("listen = \"{at}\"\nlocal_targets = true\n"));
    let _last = stage::start(&stage.server, &format!("{last}[peers.far]\n"));
    let onwards = format!(
        "[peers.last]\naddress = \"{at}\"\n[[rules]]\ntunnel = \"last\"\notherwise = \"reject\"\n"
    );
    let middle = stage::start(&stage.server, &far_config(family, &authority, &onwards));
    until("the second tunnel is open", || {
        midhopd::snapshot::Source::of(&middle).take().peers["last"].tunnels == 1
    });
    let mut transport = quinn::TransportConfig::default();
    transport.receive_window(WINDOW.into());
    let shown = Shown::of(&authority, "near");
    let peer = Hostile::enter_with(&stage.gateway, family, &shown, false, transport);
    let listener = stage.listen(family);
    let target = Target::Address(listener.local_addr().expect("an address"));
    let asked = Request { target, client: None, class: None, hops: 0 };
    let first = noise(1, FIRST);
    let flows: Vec<_> = (0..FLOWS).map(|_| peer.begin(&asked, &first)).collect();
    // All are connected, and their data goes on to the server, though no response can be sent.
    let servers: Vec<_> = (0..FLOWS).map(|_| listener.accept().expect("a flow").0).collect();
    // Some of it is counted before the response arrives.
    until("what they hold is counted", || middle.budget().held() > 2 * FIRST as u64);
    for mut flow in flows {
        flow.send.reset(0x10f_u32.into()).expect("a reset");
        flow.receive.stop(0x10f_u32.into()).expect("a stop");
    }
    until("all flows are over", || middle.admission().flows() == 0);
    until("all is given back", || middle.budget().held() == 0);
    drop(servers);
}

#[test]
fn nothing_is_kept_of_grants_that_could_not_be_sent_ipv4() {
    nothing_is_kept_of_grants_that_could_not_be_sent(Family::V4);
}

#[test]
fn nothing_is_kept_of_grants_that_could_not_be_sent_ipv6() {
    nothing_is_kept_of_grants_that_could_not_be_sent(Family::V6);
}
