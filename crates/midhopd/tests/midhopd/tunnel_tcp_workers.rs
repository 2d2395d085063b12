//! Tunnels over TCP at a far end with several workers: the kernel divides them among all workers,
//! and the limits of a peer apply to all workers together.

use crate::ends::{Authority, PORT, far_config};
use crate::flows::exchange;
use crate::pages::{ADMIN, metric, of_workers, page};
use crate::program::{Running, Setup};
use crate::stage::{Family, Stage, until};
use midhopd::data_plane::DataPlane;
use std::net::{SocketAddr, TcpListener};
use std::thread::scope;

const WORKERS: usize = 2;
/// The chance that one of two workers has fewer than [`FEWEST`] of this many is one in 300,000.
const CARRIERS: usize = 32;
const FEWEST: u64 = 4;
/// Unit: bytes. The payload of each flow in each direction.
const SIZE: usize = 300_000;

struct Scene {
    stage: Stage,
    authority: Authority,
    far: Setup,
    _daemon: Running,
    family: Family,
}

impl Scene {
    /// A far end; `peer` adds to its peer's table.
    fn set(family: Family, peer: &str) -> Option<Self> {
        let stage = Stage::set()?;
        let authority = Authority::new(&["near", "far"]);
        authority.issue_as("far", (0..CARRIERS).map(|number| format!("far-{number}")).collect());
        let far = Setup::new(&format!(
            "[daemon]\nworkers = {WORKERS}\n[admin]\nlisten = \"127.0.0.1:{}\"\n{}",
            ADMIN.1,
            far_config(family, &authority, peer)
        ));
        let daemon = Running::start_in(&stage.server, &far);
        Some(Self { stage, authority, far, _daemon: daemon, family })
    }

    /// A near end with one tunnel over TCP for each listener's flows.
    fn start_near(&self, listeners: &[TcpListener]) -> DataPlane {
        let address = SocketAddr::new(self.family.server(), PORT);
        let own = self.authority.table("near", "");
        let mut config = format!("[intercept]\ninterfaces = \"lan0\"\naccept = \"early\"\n{own}");
        for (number, listener) in listeners.iter().enumerate() {
            let port = listener.local_addr().expect("an address").port();
            config += &format!(
                "[peers.far-{number}]\naddress = \"{address}\"\nfallback = \"only\"\n\
                 [[rules]]\nmatch.destination_port = {port}\ntunnel = \"far-{number}\"\n\
                 otherwise = \"reject\"\n"
            );
        }
        self.stage.start(&config)
    }

    /// The number of the far end's tunnels, by worker.
    fn tunnels(&self) -> Vec<u64> {
        of_workers(&page(&self.stage.server, "/metrics"), "midhop_worker_tunnels")
    }
}

fn are_divided(family: Family) {
    let Some(scene) = Scene::set(family, "connections = 64\n") else { return };
    let listeners: Vec<_> = (0..CARRIERS).map(|_| scene.stage.listen(family)).collect();
    let _near = scene.start_near(&listeners);
    until("all carriers are open", || scene.tunnels().iter().sum::<u64>() == CARRIERS as u64);
    let tunnels = scene.tunnels();
    assert_eq!(tunnels.len(), WORKERS);
    assert!(tunnels.iter().all(|own| *own >= FEWEST), "{tunnels:?}");
    let flows: Vec<_> = listeners.iter().map(|listener| scene.stage.flow(listener)).collect();
    scope(|scope| {
        for (client, server) in &flows {
            scope.spawn(|| exchange(client, server, SIZE));
        }
    });
    assert_eq!(scene.tunnels(), tunnels, "each stays where it was accepted");
    scene.far.assert_no_errors();
}

#[test]
fn carriers_over_tcp_are_divided_among_all_workers_ipv4() {
    are_divided(Family::V4);
}

#[test]
fn carriers_over_tcp_are_divided_among_all_workers_ipv6() {
    are_divided(Family::V6);
}

/// The limit of a peer's connections holds, on whichever workers they are.
#[test]
fn a_peer_s_connections_over_tcp_are_counted_over_all_workers() {
    const MAY: u64 = 6;
    let Some(scene) = Scene::set(Family::V4, &format!("connections = {MAY}\n")) else { return };
    let listeners: Vec<_> = (0..16).map(|_| scene.stage.listen(Family::V4)).collect();
    let _near = scene.start_near(&listeners);
    until("it has as many as it may", || scene.tunnels().iter().sum::<u64>() == MAY);
    let denied = "midhop_peers_denied_total{reason=\"limit\"}";
    until("others are refused", || metric(&page(&scene.stage.server, "/metrics"), denied) >= 20);
    assert_eq!(scene.tunnels().iter().sum::<u64>(), MAY);
}
