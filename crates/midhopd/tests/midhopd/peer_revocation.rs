//! Peers that may not stay: their open tunnels are closed, their flows are reset, and they cannot
//! connect again.

use crate::ends::{Authority, PORT, TARGETS, near_config};
use crate::stage::{self, Family, ReadOnce, Stage, until};
use midhop_pep::config::Plan;
use midhop_testbed::namespace::Namespace;
use midhopd::data_plane::DataPlane;
use midhopd::snapshot::Source;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

const REJECT: &str = "otherwise = \"reject\"\n";
const EARLY: &str = "accept = \"early\"\n";
const ONLY_TCP: &str = "fallback = \"only\"\n";

/// Both ends of a tunnel over QUIC or TCP.
struct Pair {
    stage: Stage,
    authority: Authority,
    family: Family,
    carrier: &'static str,
}

impl Pair {
    /// Runs the test for each family and carrier. The runs mostly wait, so they run in parallel.
    fn each(test: impl Fn(&Self) + Sync) {
        let test = &test;
        thread::scope(|scope| {
            for family in [Family::V4, Family::V6] {
                for carrier in ["", ONLY_TCP] {
                    let pair = move || {
                        let Some(stage) = Stage::set() else { return };
                        let authority = Authority::new(&["near", "far", "second"]);
                        test(&Self { stage, authority, family, carrier });
                    };
                    // The thread's name shows which run has failed.
                    let name = format!("{family:?} {carrier}");
                    let pair = thread::Builder::new().name(name).spawn_scoped(scope, pair);
                    pair.expect("a thread");
                }
            }
        });
    }

    /// The far end, whose peers are `peers`; `tunnel` adds to its own table.
    fn far_config(&self, tunnel: &str, peers: &str) -> String {
        let address = SocketAddr::new(self.family.server(), PORT);
        let Self { carrier, .. } = self;
        let more = format!("listen = \"{address}\"\n{carrier}{TARGETS}{tunnel}");
        format!("{}[peers.second]\n{peers}", self.authority.table("far", &more))
    }

    fn near_config(&self, peer: &str) -> String {
        let peer = format!("{}{peer}", self.carrier);
        near_config(self.family, &self.authority, EARLY, &peer, REJECT)
    }

    fn start_far(&self, tunnel: &str) -> DataPlane {
        stage::start(&self.stage.server, &self.far_config(tunnel, "[peers.near]\n"))
    }

    fn start_near(&self) -> DataPlane {
        self.stage.start(&self.near_config(""))
    }

    fn reload_far(&self, far: &DataPlane, tunnel: &str, peers: &str) {
        assert_eq!(reload(&self.stage.server, far, &self.far_config(tunnel, peers)), [""; 0]);
    }

    /// A flow through the tunnel, with four bytes in each direction.
    fn flow(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let (mut client, mut server) = self.stage.flow(listener);
        client.write_all(b"ping").expect("writing");
        server.read_exact(&mut [0; 4]).expect("reading");
        server.write_all(b"pong").expect("writing");
        client.read_exact(&mut [0; 4]).expect("reading");
        (client, server)
    }

    /// Whether a new flow fails now. A flow that works is ended again.
    fn fails(&self, listener: &TcpListener) -> bool {
        let address = listener.local_addr().expect("an address");
        let Ok(mut client) = self.stage.connect(address) else { return true };
        listener.set_nonblocking(true).expect("a mode");
        let mut passed = false;
        client.set_nonblocking(true).expect("a mode");
        until("the client hears something, or the server", || {
            passed = listener.accept().is_ok();
            let received = client.read_once(&mut [0; 1]);
            passed || !matches!(received, Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        listener.set_nonblocking(false).expect("a mode");
        !passed
    }

    /// Whether no flow passes: with `otherwise = "reject"` there is no way but the tunnel.
    fn is_shut(&self, listener: &TcpListener) -> bool {
        let address = listener.local_addr().expect("an address");
        let Ok(mut client) = self.stage.connect(address) else { return true };
        // With early acceptance, the client is accepted and then reset.
        matches!(client.read_once(&mut [0; 1]), Err(error) if error.kind() == ErrorKind::ConnectionReset)
    }
}

/// Reloads as the daemon does. Returns the keys that take effect only after a restart.
fn reload(host: &Namespace, proxy: &DataPlane, config: &str) -> Vec<String> {
    let next = Plan::read("test.toml", config).unwrap_or_else(|error| panic!("{error}"));
    let (next, kept) = proxy.plan().borrow().reloaded(next);
    host.run(|| proxy.reload(next)).expect("entering").expect("a reload");
    kept
}

fn tunnels(proxy: &DataPlane, peer: &str) -> u64 {
    Source::of(proxy).take().peers.get(peer).map_or(0, |peer| peer.tunnels)
}

fn is_reset(mut stream: &TcpStream) {
    let error = stream.read_once(&mut [0; 1]).expect_err("a reset, not an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_peer_that_is_removed_loses_its_tunnel_and_comes_back_once_it_is_there_again() {
    Pair::each(|pair| {
        let far = pair.start_far("");
        let _near = pair.start_near();
        let listener = pair.stage.listen(pair.family);
        let (client, server) = pair.flow(&listener);
        pair.reload_far(&far, "", "");
        is_reset(&client);
        is_reset(&server);
        until("the tunnel is gone", || tunnels(&far, "near") == 0);
        assert!(pair.is_shut(&listener), "a stranger's flow was opened");
        pair.reload_far(&far, "", "[peers.near]\n");
        until("the peer has come again", || tunnels(&far, "near") == 1);
        until("flows pass again", || !pair.fails(&listener));
    });
}

#[test]
fn a_peer_whose_table_has_changed_begins_anew_and_others_stay() {
    Pair::each(|pair| {
        let far = pair.start_far("");
        let _near = pair.start_near();
        let listener = pair.stage.listen(pair.family);
        let (mut client, mut server) = pair.flow(&listener);
        // A change of another peer's table, and one more peer, have no effect, whatever follows
        // from them for windows.
        pair.reload_far(&far, "", "flows = 9\n[peers.near]\n[peers.third]\n");
        client.write_all(b"ping").expect("writing");
        server.read_exact(&mut [0; 4]).expect("reading");
        pair.reload_far(&far, "", "[peers.near]\nflows = 9\n");
        is_reset(&client);
        is_reset(&server);
        until("flows pass again", || !pair.fails(&listener));
    });
}

#[test]
fn a_revoked_certificate_closes_the_tunnel_at_either_end() {
    Pair::each(|pair| {
        let list = pair.authority.path().join("crl.pem");
        let revoked = format!("revoked = \"{}\"\n", list.display());
        pair.authority.revoke(&["second"]);
        let far = pair.start_far(&revoked);
        let near = pair.start_near();
        let listener = pair.stage.listen(pair.family);
        let (client, server) = pair.flow(&listener);
        // The same configuration, with another list of revoked certificates.
        pair.authority.revoke(&["second", "near"]);
        pair.reload_far(&far, &revoked, "[peers.near]\n");
        is_reset(&client);
        is_reset(&server);
        assert!(pair.is_shut(&listener), "whose certificate is revoked gets no tunnel");
        pair.authority.revoke(&["second"]);
        pair.reload_far(&far, &revoked, "[peers.near]\n");
        until("flows pass again", || !pair.fails(&listener));
        // The end that opens tunnels closes one whose peer's certificate is revoked, too.
        let (client, server) = pair.flow(&listener);
        pair.authority.revoke(&["far"]);
        let config = pair.near_config("").replace("[peers.far]", &format!("{revoked}[peers.far]"));
        assert_eq!(reload(&pair.stage.gateway, &near, &config), [""; 0]);
        is_reset(&client);
        is_reset(&server);
        assert!(pair.is_shut(&listener), "a tunnel to whose certificate is revoked");
    });
}

#[test]
fn a_tunnel_ends_with_its_peer_s_certificate() {
    Pair::each(|pair| {
        let far = pair.start_far("");
        pair.authority.issue_for("near", time::Duration::seconds(8));
        let _near = pair.start_near();
        let listener = pair.stage.listen(pair.family);
        let (client, server) = pair.flow(&listener);
        is_reset(&client);
        is_reset(&server);
        until("the tunnel is gone", || tunnels(&far, "near") == 0);
        assert!(pair.is_shut(&listener));
    });
}

#[test]
fn a_tunnel_is_opened_and_given_up_by_reload() {
    Pair::each(|pair| {
        let far = pair.start_far("");
        // A near end that knows only another peer.
        let config = pair.near_config("");
        let without =
            config.replace("[peers.far]", "[peers.nobody]").replace("\"far\"", "\"nobody\"");
        let without = without.replace("name = \"nobody\"", "name = \"far\"");
        let without = without.replace(&format!("{PORT}"), &format!("{}", PORT + 1));
        let near = pair.stage.start(&without);
        let listener = pair.stage.listen(pair.family);
        assert_eq!(reload(&pair.stage.gateway, &near, &config), [""; 0]);
        until("the tunnel is open", || tunnels(&far, "near") == 1);
        let (client, server) = pair.flow(&listener);
        assert_eq!(reload(&pair.stage.gateway, &near, &without), [""; 0]);
        is_reset(&client);
        is_reset(&server);
        until("the tunnel is gone", || tunnels(&far, "near") == 0);
        assert!(pair.is_shut(&listener));
        // After a change of its table, the tunnel is opened with the new table.
        assert_eq!(reload(&pair.stage.gateway, &near, &config), [""; 0]);
        until("flows pass again", || !pair.fails(&listener));
        let (client, _server) = pair.flow(&listener);
        let changed = pair.near_config("patience = \"4 s\"\n");
        assert_eq!(reload(&pair.stage.gateway, &near, &changed), [""; 0]);
        is_reset(&client);
        until("flows pass again", || !pair.fails(&listener));
    });
}
