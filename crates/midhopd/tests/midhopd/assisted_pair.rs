//! Flows that pass by two daemons whole, and that these repair together: `repair = "d-proxy"`.
//!
//! `client – gateway with one daemon – ground with the other – origin`; the link between the two
//! loses packets in both directions.

use crate::ground::Ground;
use crate::program::{Running, Setup, traces};
use crate::stage::{
    Family, PATIENCE, Stage, nft, noise, receive_all, send_all, start, until, until_within,
};
use crate::strangers;
use midhop_testbed::namespace::Namespace;
use midhopd::data_plane::DataPlane;
use nix::sys::signal::Signal;
use std::fmt::Write as _;
use std::net::TcpStream;
use std::time::Duration;

const PORT: u16 = 7007;

/// How long flows are exchanged until each daemon has repaired something. On a busy machine every
/// loss seems to come from a queue and is left to its source, and an exchange takes seconds.
const REPAIRED_WITHIN: Duration = PATIENCE.saturating_mul(6);

/// The gateway, the ground behind a link that loses packets, and the secret of both daemons.
struct Scene {
    ground: Ground,
    setup: Setup,
}

impl Scene {
    fn set() -> Option<Self> {
        // The link is so fast that its queue stays short: losses are those of the link.
        let link = "rate = \"500 Mbit/s\"\ndelay = \"10 ms\"\nqueue = \"4 MB\"\nloss = 0.03";
        let stage = Stage::set_over(link, link, "20 ms")?;
        let setup = Setup::new("");
        let key = setup.path().join("key");
        std::fs::write(&key, noise(1, 32)).expect("a secret");
        let only_its_owners = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, only_its_owners).expect("its mode");
        Some(Self { ground: Ground::behind(stage), setup })
    }

    /// The configuration of a daemon that takes flows from `interfaces`, and whose peer is the
    /// other daemon.
    fn config(&self, interface: &str, hosts: [u8; 2]) -> String {
        let mut config = format!("[intercept]\ninterfaces = \"{interface}\"\n");
        config += "[[rules]]\naction = \"assist\"\n";
        config += "[assist]\ninterfaces = \"wan0\"\nrepair = \"d-proxy\"\n[assist.peer]\n";
        for (name, host) in ["listen", "address"].iter().zip(hosts) {
            let _ = writeln!(config, "{name} = \"10.0.2.{host}:{PORT}\"");
        }
        let _ = writeln!(config, "key = {:?}", self.setup.path().join("key"));
        config
    }

    fn near(&self) -> String {
        self.config("lan0", [1, 2])
    }

    fn far(&self) -> String {
        self.config("wan0", [2, 1])
    }

    /// Sends `length` bytes up to the origin, and as many back.
    fn exchange(&self, family: Family, length: usize) {
        let listener = self.ground.listen(family);
        let (client, server, _) = self.ground.flow(&listener);
        exchange(&client, &server, length);
    }
}

fn exchange(client: &TcpStream, server: &TcpStream, length: usize) {
    let (sent, answer) = (noise(3, length), noise(4, length));
    let (received, answered) = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let received = receive_all(server);
            send_all(server, &answer);
            received
        });
        send_all(client, &sent);
        let answered = receive_all(client);
        (receiver.join().expect("all arrives"), answered)
    });
    assert!(received == sent, "other bytes arrived than were sent");
    assert!(answered == answer, "other bytes came back than were sent");
}

/// Source NAT to a host's address for everything that leaves by an interface.
fn masquerade(host: &Namespace, interface: &str) {
    nft(
        host,
        &format!(
            "add table inet nat; add chain inet nat post {{ type nat hook postrouting priority 100; }}; \
             add rule inet nat post oifname {interface} masquerade"
        ),
    );
}

/// A counter of a daemon, by its name, as of the last report.
fn counted(proxy: &DataPlane, what: &str) -> u64 {
    let [count] = counted_at_once(proxy, [what]);
    count
}

/// Several counters, as of the same report.
fn counted_at_once<const N: usize>(proxy: &DataPlane, what: [&str; N]) -> [u64; N] {
    let counts: Vec<_> = proxy.ledgers().iter().map(|ledger| ledger.assist.counts()).collect();
    what.map(|what| counts.iter().filter_map(|counts| counts.get(what)).sum())
}

fn losses_are_repaired_between_the_two(scene: &Scene, family: Family) {
    let Ground { stage, .. } = &scene.ground;
    let (near, far) = (start(&stage.gateway, &scene.near()), start(&stage.server, &scene.far()));
    until_within(REPAIRED_WITHIN, "it is repaired", || {
        scene.exchange(family, 1 << 20);
        let repaired =
            |proxy| counted_at_once(proxy, ["segments-resent", "segments-held", "gaps-filled"]);
        let repaired = [&near, &far].map(repaired);
        println!("sent again, held and gaps filled, by the near and by the far one: {repaired:?}");
        repaired.as_flattened().iter().all(|count| *count > 0)
    });
    for proxy in [&near, &far] {
        let split: u64 = proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum();
        assert_eq!((split, counted(proxy, "packets-unsent")), (0, 0));
        assert_eq!(counted(proxy, "reports-refused"), 0);
        assert!(counted(proxy, "reports-received") > 0);
    }
}

#[test]
fn losses_are_repaired_between_the_two_ipv4() {
    if let Some(scene) = Scene::set() {
        losses_are_repaired_between_the_two(&scene, Family::V4);
    }
}

#[test]
fn losses_are_repaired_between_the_two_ipv6() {
    if let Some(scene) = Scene::set() {
        losses_are_repaired_between_the_two(&scene, Family::V6);
    }
}

/// The ground sees the addresses with which a flow leaves the gateway.
#[test]
fn losses_are_repaired_behind_source_nat_too() {
    let Some(scene) = Scene::set() else { return };
    masquerade(&scene.ground.stage.gateway, "wan0");
    losses_are_repaired_between_the_two(&scene, Family::V4);
}

/// The ground has other addresses towards the origin.
#[test]
fn losses_are_repaired_before_source_nat_too() {
    let Some(scene) = Scene::set() else { return };
    masquerade(&scene.ground.stage.server, "out0");
    losses_are_repaired_between_the_two(&scene, Family::V4);
}

/// NAT at both ends: each end has its own addresses for the flow, and on the link it has others.
#[test]
fn losses_are_repaired_between_two_that_translate() {
    let Some(scene) = Scene::set() else { return };
    let Ground { stage, .. } = &scene.ground;
    masquerade(&stage.gateway, "wan0");
    masquerade(&stage.server, "out0");
    for family in [Family::V4, Family::V6] {
        losses_are_repaired_between_the_two(&scene, family);
    }
}

/// The daemon that retransmits is gone. The other one first waits for its retransmissions, and then
/// no more.
#[test]
fn nothing_is_waited_for_that_nobody_repairs() {
    let Some(scene) = Scene::set() else { return };
    let Ground { stage, .. } = &scene.ground;
    let far = start(&stage.server, &scene.far());
    let setup = Setup::new(&scene.near());
    let near = Running::start_in(&stage.gateway, &setup);
    until_within(REPAIRED_WITHIN, "it is repaired", || {
        scene.exchange(Family::V4, 1 << 20);
        counted(&far, "segments-held") > 0
    });
    near.signal(Signal::SIGKILL);
    near.end();
    until_within(REPAIRED_WITHIN, "nothing is held any more", || {
        let booked = || counted_at_once(&far, ["gaps", "segments-held"]);
        let before = booked();
        scene.exchange(Family::V4, 1 << 19);
        let [gaps, held] = booked();
        gaps >= before[0] + 5 && held == before[1]
    });
}

/// The processes that read the packets have no privilege. When one of them is stopped, the packets
/// that it holds go on. When one is killed, flows go on.
#[test]
fn daemons_with_keepers_repair_and_may_be_stopped_and_killed() {
    let Some(scene) = Scene::set() else { return };
    let Ground { stage, .. } = &scene.ground;
    let before = [&stage.gateway, &stage.server].map(traces);
    let [near, far] = [Setup::new(&scene.near()), Setup::new(&scene.far())];
    let [near, far] =
        [Running::start_in(&stage.gateway, &near), Running::start_in(&stage.server, &far)];
    let mended = |host| strangers::counter(host, "midhop_main", "mended");
    until_within(REPAIRED_WITHIN, "it is repaired", || {
        scene.exchange(Family::V4, 1 << 20);
        mended(&stage.gateway) > 0 && mended(&stage.server) > 0
    });
    let listener = scene.ground.listen(Family::V4);
    let (client, server, _) = scene.ground.flow(&listener);
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&client, &server, 2 << 20));
        near.signal(Signal::SIGTERM);
        near.end();
        far.signal(Signal::SIGKILL);
        far.end();
    });
    until("nothing is left", || [&stage.gateway, &stage.server].map(traces) == before);
}
