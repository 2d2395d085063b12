//! Flows through a tunnel outlive the processes at its ends.
//!
//! `client – gateway with one proxy – link – server's host with the other, and the server`

use crate::flows::lasting::{assert_ended, lasting_flow, none_is_left, outcomes, outlive, patient};
use crate::flows::{exchange, read_until_error, reset};
use crate::pages::wait_until_served;
use crate::pair::{Pair, REJECT};
use crate::program::{Running, Setup, log_of, traces};
use crate::stage::{Family, Stage, queued, receive_all, send_all, until};
use crate::survival::kill_data_plane;
use crate::upgrade::{another, assert_done, upgrade};
use midhop_testbed::namespace::Namespace;
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// A tunnel over QUIC that is given up soon, without a fallback.
pub const QUIC: &str = "keepalive = \"1 s\"\ntimeout = \"3 s\"\nfallback = \"off\"\n";
/// The same over TCP.
pub const TCP: &str = "keepalive = \"1 s\"\ntimeout = \"3 s\"\nfallback = \"only\"\n";
const LINK: &str = "rate = \"40 Mbit/s\"\ndelay = \"5 ms\"\n";

/// One of the two ends of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Near,
    Far,
}
use End::{Far, Near};

pub const BOTH: [End; 2] = [Near, Far];

/// Both ends, running.
pub struct Place {
    /// They end before the namespaces do.
    running: [Option<Running>; 2],
    pub pair: Pair,
    pub stage: Stage,
    pub family: Family,
}

impl Place {
    /// Both ends with these keys for their peers, and a link between them.
    pub fn set(family: Family, carrier: &str) -> Option<Self> {
        Some(Self::between(Stage::set_over(LINK, LINK, "10 ms")?, family, carrier))
    }

    /// Both ends on this stage.
    pub fn between(stage: Stage, family: Family, carrier: &str) -> Self {
        // A flow that one end has finished, and of which the other end has not learned, is kept for
        // so long.
        let carrier = format!("{carrier}resume = \"15 s\"\n");
        Self::on(stage, family, [&carrier; 2], "")
    }

    /// `peers` are keys for each end's peer, `daemon` adds to the configuration of both.
    pub fn on(stage: Stage, family: Family, peers: [&str; 2], daemon: &str) -> Self {
        let [near, far] = peers;
        let far = format!("{far}{daemon}");
        let pair = Pair::over(family, near, &far, &format!("{REJECT}{daemon}"));
        let running = pair.start(&stage).map(Some);
        Self { running, pair, stage, family }
    }

    pub fn running(&self, end: End) -> &Running {
        self.running[end as usize].as_ref().expect("it runs")
    }

    pub fn setup(&self, end: End) -> &Setup {
        match end {
            Near => &self.pair.near,
            Far => &self.pair.far,
        }
    }

    pub fn host(&self, end: End) -> &Namespace {
        match end {
            Near => &self.stage.gateway,
            Far => &self.stage.server,
        }
    }

    fn kill(&self, end: End) {
        kill_data_plane(self.running(end));
    }

    /// Lets another program take the place of an end.
    fn upgrade(&self, end: End, name: &str) {
        let setup = self.setup(end);
        let program = another(setup, name);
        assert_done(&upgrade(&self.stage, setup, &program), setup);
    }

    /// Kills an end's data plane and lets no other one start, until [`Place::revive`].
    fn hold_dead(&self, end: End) {
        let running = self.running(end);
        let before = running.data_plane();
        // The first process starts another data plane, so it is stopped.
        running.signal(Signal::SIGSTOP);
        until("it stands still", || state(running.first()) == Some('T'));
        running.signal_data_plane(Signal::SIGKILL);
        until("all of it is dead", || {
            let threads = std::fs::read_dir(format!("/proc/{before}/task")).expect("its threads");
            threads.count() == 1 && state(before.as_raw().cast_unsigned()) == Some('Z')
        });
    }

    fn revive(&self, end: End) {
        self.running(end).signal(Signal::SIGCONT);
    }

    /// Waits until both ends serve, and both report an open tunnel.
    pub fn wait_for_a_tunnel(&self) {
        for end in BOTH {
            wait_until_served(self.host(end));
        }
        until("there is a tunnel", || {
            self.pair.tunnels_of_near(&self.stage)[0] > 0
                && self.pair.tunnels_of_far(&self.stage)[0] > 0
        });
    }

    /// A flow that can be resumed.
    pub fn lasting_flow(&self) -> (TcpStream, TcpStream) {
        let flow = lasting_flow(&self.stage, self.family);
        patient(&flow);
        flow
    }

    /// The end of a flow on this side of the tunnel, and the other one.
    fn sides(end: End, (client, server): (TcpStream, TcpStream)) -> [TcpStream; 2] {
        match end {
            Near => [client, server],
            Far => [server, client],
        }
    }

    /// Ends a daemon in order.
    pub fn end(&mut self, end: End) {
        let running = self.running[end as usize].take().expect("it runs");
        running.signal(Signal::SIGTERM);
        assert_eq!(running.end(), Some(0), "{}", log_of(self.setup(end)));
        assert_eq!(traces(self.host(end)), [""; 0], "left behind");
    }

    pub fn start(&mut self, end: End) {
        let running = match end {
            Near => self.pair.start_near(&self.stage),
            Far => self.pair.start_far(&self.stage),
        };
        self.running[end as usize] = Some(running);
    }

    /// No flow was broken without need, and both ends work as usual.
    fn close(mut self) {
        self.wait_for_a_tunnel();
        for end in BOTH {
            let totals = self.setup(end).status().orphaned_flows_total;
            assert_eq!(totals.get("lost"), Some(&0), "{totals:?}: {}", log_of(self.setup(end)));
        }
        let (client, server) = self.lasting_flow();
        exchange(&client, &server, 1_000_000);
        none_is_left(&self.stage);
        self.end(Near);
        self.end(Far);
    }
}

/// The state of a process, as the system reports it.
fn state(process: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The data planes of these ends are killed one after the other, while flows are in progress.
fn deaths_are_outlived(family: Family, carrier: &str, deaths: &[End]) {
    let Some(place) = Place::set(family, carrier) else { return };
    let kills: Vec<_> = deaths.iter().map(|end| || place.kill(*end)).collect();
    let events: Vec<_> = kills.iter().map(|kill| kill as &dyn Fn()).collect();
    outlive(&place.stage, &place.pair, family, &events);
    drop(events);
    drop(kills);
    for end in BOTH {
        let killed = deaths.iter().filter(|dead| **dead == end).count() as u64;
        assert_eq!(place.setup(end).status().data_planes_killed_total, killed);
    }
    let last = *deaths.last().expect("a death");
    let resumed = outcomes(place.host(last), "resumed");
    assert!(resumed >= 7, "{resumed} flows were resumed: {}", log_of(place.setup(last)));
    place.close();
}

#[test]
fn flows_outlive_deaths_of_the_near_end_over_quic_ipv4() {
    deaths_are_outlived(Family::V4, QUIC, &[Near; 3]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_deaths_of_the_near_end_over_quic_ipv6() {
    deaths_are_outlived(Family::V6, QUIC, &[Near; 3]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_deaths_of_the_near_end_over_tcp_ipv4() {
    deaths_are_outlived(Family::V4, TCP, &[Near; 3]);
}

#[test]
#[ignore = "a tunnel over TCP that was torn is taken for one that was closed: make bench-survival"]
fn flows_outlive_deaths_of_the_near_end_over_tcp_ipv6() {
    deaths_are_outlived(Family::V6, TCP, &[Near; 3]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_deaths_of_the_far_end_over_quic_ipv4() {
    deaths_are_outlived(Family::V4, QUIC, &[Far; 3]);
}

#[test]
fn flows_outlive_deaths_of_the_far_end_over_quic_ipv6() {
    deaths_are_outlived(Family::V6, QUIC, &[Far; 3]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_deaths_of_the_far_end_over_tcp_ipv4() {
    deaths_are_outlived(Family::V4, TCP, &[Far; 3]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_deaths_of_the_far_end_over_tcp_ipv6() {
    deaths_are_outlived(Family::V6, TCP, &[Far; 3]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_deaths_of_both_ends_in_turn_over_quic() {
    deaths_are_outlived(Family::V4, QUIC, &[Near, Far, Near, Far]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_deaths_of_both_ends_in_turn_over_tcp() {
    deaths_are_outlived(Family::V6, TCP, &[Far, Near, Far, Near]);
}

/// Both ends lose their memory at the same time: everything is in what outlives them.
#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_the_death_of_both_ends_at_once() {
    let Some(place) = Place::set(Family::V4, QUIC) else { return };
    let both = || {
        BOTH.iter().for_each(|end| place.hold_dead(*end));
        BOTH.iter().for_each(|end| place.revive(*end));
    };
    outlive(&place.stage, &place.pair, place.family, &[&both, &both]);
    place.close();
}

/// Another program takes the place of these ends one after the other, while flows are in progress.
fn upgrades_are_outlived(family: Family, carrier: &str, upgrades: &[End]) {
    let Some(place) = Place::set(family, carrier) else { return };
    let programs: Vec<_> = (0..upgrades.len()).map(|n| format!("program{n}")).collect();
    let changes: Vec<_> =
        upgrades.iter().zip(&programs).map(|(end, it)| || place.upgrade(*end, it)).collect();
    let events: Vec<_> = changes.iter().map(|change| change as &dyn Fn()).collect();
    outlive(&place.stage, &place.pair, family, &events);
    drop(events);
    drop(changes);
    for end in BOTH {
        let changed = upgrades.iter().filter(|changed| **changed == end).count() as u64;
        let status = place.setup(end).status();
        assert_eq!((status.upgrades_total, status.data_planes_killed_total), (changed, 0));
    }
    place.close();
}

#[test]
fn flows_outlive_upgrades_of_the_near_end_over_quic() {
    upgrades_are_outlived(Family::V4, QUIC, &[Near; 2]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_upgrades_of_the_near_end_over_tcp() {
    upgrades_are_outlived(Family::V6, TCP, &[Near; 2]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_upgrades_of_the_far_end_over_quic() {
    upgrades_are_outlived(Family::V6, QUIC, &[Far; 2]);
}

#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_upgrades_of_the_far_end_over_tcp() {
    upgrades_are_outlived(Family::V4, TCP, &[Far; 2]);
}

/// A death follows an upgrade: the next data plane has what the new program was handed.
#[test]
#[ignore = "others have its parts; all of them: make bench-survival"]
fn flows_outlive_an_upgrade_and_a_death_of_each_end() {
    let Some(place) = Place::set(Family::V4, QUIC) else { return };
    outlive(
        &place.stage,
        &place.pair,
        place.family,
        &[
            &|| place.upgrade(Near, "next"),
            &|| place.kill(Near),
            &|| place.upgrade(Far, "next"),
            &|| place.kill(Far),
        ],
    );
    place.close();
}

/// While one end of the tunnel is dead, an end of a flow breaks, after it has sent bytes that were
/// acknowledged. The other end receives these bytes, and then a reset. A flow that ends in order
/// meanwhile does so at both ends.
fn breaks_are_passed_on(carrier: &str, dead: End, breaking: End) {
    let Some(place) = Place::set(Family::V4, carrier) else { return };
    let [mut broken, mut left] = [place.lasting_flow(), place.lasting_flow()]
        .map(|flow| Place::sides(breaking, flow))
        .map(|[leaving, staying]| (leaving, staying));
    place.hold_dead(dead);
    broken.0.write_all(b"last words").expect("writing");
    until("its kernel knows that they have arrived", || queued::unacknowledged(&broken.0) == 0);
    reset(broken.0);
    send_all(&left.0, b"all that there is");
    place.revive(dead);
    let mut received = [0; 10];
    broken.1.read_exact(&mut received).expect("the last words");
    assert_eq!(&received, b"last words");
    assert_eq!(read_until_error(&broken.1), ErrorKind::ConnectionReset);
    assert_eq!(receive_all(&left.1), b"all that there is");
    left.1.write_all(b"well").expect("writing");
    let mut answer = [0; 4];
    left.0.read_exact(&mut answer).expect("an answer behind the end");
    send_all(&left.1, b"");
    none_is_left(&place.stage);
    assert_ended(&left);
    place.close();
}

#[test]
fn a_client_that_breaks_while_the_near_end_is_dead_breaks_the_flow() {
    breaks_are_passed_on(QUIC, Near, Near);
}

#[test]
fn a_server_that_breaks_while_the_far_end_is_dead_breaks_the_flow() {
    breaks_are_passed_on(QUIC, Far, Far);
}

#[test]
#[ignore = "a tunnel over TCP that was torn is taken for one that was closed: make bench-survival"]
fn a_client_that_breaks_while_the_near_end_is_dead_breaks_the_flow_over_tcp() {
    breaks_are_passed_on(TCP, Near, Near);
}

#[test]
fn a_server_that_breaks_while_the_far_end_is_dead_breaks_the_flow_over_tcp() {
    breaks_are_passed_on(TCP, Far, Far);
}

/// How an end changes to another configuration.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// Another program takes over, and follows the file.
    Upgrade,
    /// Its data plane dies with an order to reload that it has not followed yet.
    DeathAndReload,
}

/// An end changes to another configuration, in which an existing flow has no place. The flow breaks
/// at both ends, and ends in order at neither.
fn breaks_by(end: End, turn: Turn, change: impl FnOnce(&str) -> String) {
    // The other end is not informed, and keeps the flow until its timeout.
    let short = format!("{QUIC}resume = \"5 s\"\n");
    let Some(stage) = Stage::set() else { return };
    let place = Place::on(stage, Family::V4, [&short; 2], "");
    let (client, server) = place.lasting_flow();
    let setup = place.setup(end);
    let text = std::fs::read_to_string(setup.config()).expect("a configuration");
    let changed = change(&text);
    assert_ne!(changed, text, "nothing is changed");
    setup.rewrite(&changed);
    match turn {
        Turn::Upgrade => place.upgrade(end, "next"),
        Turn::DeathAndReload => {
            let running = place.running(end);
            running.stop_data_plane();
            running.signal(Signal::SIGHUP);
            place.kill(end);
            wait_until_served(place.host(end));
            until("it has read the file", || setup.reloads() == [1, 0]);
        }
    }
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
    none_is_left(&place.stage);
}

/// The peer gets another name, for which no peer is known.
fn renamed(text: &str) -> String {
    text.replace("[peers.far]", "[peers.stranger]")
        .replace("tunnel = \"far\"", "tunnel = \"stranger\"")
        .replace("[peers.near]", "[peers.stranger]")
}

#[test]
fn a_flow_whose_peer_the_next_program_does_not_know_breaks_at_the_near_end() {
    breaks_by(Near, Turn::Upgrade, renamed);
}

#[test]
fn a_flow_whose_peer_the_next_program_does_not_know_breaks_at_the_far_end() {
    breaks_by(Far, Turn::Upgrade, renamed);
}

#[test]
fn a_flow_whose_peer_the_next_data_plane_does_not_know_breaks_at_the_near_end() {
    breaks_by(Near, Turn::DeathAndReload, renamed);
}

#[test]
fn a_flow_whose_peer_the_next_data_plane_does_not_know_breaks_at_the_far_end() {
    breaks_by(Far, Turn::DeathAndReload, renamed);
}

fn kept_no_more(text: &str) -> String {
    text.replace("resume = \"5 s\"", "resume = \"0 s\"")
}

#[test]
fn a_flow_that_the_next_program_keeps_no_more_breaks_at_the_near_end() {
    breaks_by(Near, Turn::Upgrade, kept_no_more);
}

#[test]
fn a_flow_that_the_next_program_keeps_no_more_breaks_at_the_far_end() {
    breaks_by(Far, Turn::Upgrade, kept_no_more);
}

/// If one end keeps no flows, none outlives the death of either end.
#[test]
fn where_one_end_keeps_no_flows_they_break_with_a_data_plane() {
    let none = format!("{QUIC}resume = \"0 s\"\n");
    for peers in [[QUIC, &none], [&none, QUIC]] {
        for dead in BOTH {
            let Some(stage) = Stage::set() else { return };
            let place = Place::on(stage, Family::V4, peers, "");
            let (client, server) = place.lasting_flow();
            place.kill(dead);
            assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
            assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
            none_is_left(&place.stage);
        }
    }
}
