//! Groups the sockets of a node by the link that they use.

use super::{INTERVAL, ProbeReport};
use crate::meter::series::{Capacity, Samples};
use crate::meter::tcp_sample::TcpSample;
use midhop_experiment::metrics::median;
use midhop_experiment::plan::{Plan, PlannedNode, Route};
use midhop_experiment::record::LegResult;
use midhop_linux::sock_diag::DiagSocket;
use midhop_linux::tcp_state::FIN_WAIT_2;
use midhop_units::{Bytes, Duration};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// A socket and its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    state: u8,
    local: SocketAddr,
    remote: SocketAddr,
    cookie: u64,
    info: TcpSample,
}

impl Seen {
    /// The socket that the kernel describes; none where nothing is measured on it.
    pub(super) fn of(socket: DiagSocket) -> Option<Self> {
        let DiagSocket { state, local, remote, cookie, info } = socket;
        Some(Self { state, local, remote, cookie, info: info?.into() })
    }
}

/// The legs of one proxy.
#[derive(Debug)]
pub(super) struct Legs {
    node: PlannedNode,
    /// The addresses to which transfers connect. Each of their connections has such an address at
    /// one end, on either side of a transparent proxy. Connections of the node's own programs do
    /// not.
    listeners: BTreeSet<SocketAddr>,
    /// The node's routes after handovers that are to come, the next one last, and their times.
    later: Vec<(Duration, Vec<Route>)>,
    /// The leg of each socket. It stays when routes change.
    links: BTreeMap<u64, String>,
    legs: BTreeMap<String, Leg>,
    /// Sockets in the current dump.
    present: BTreeSet<u64>,
    /// Sockets in a dump whose close was not reported yet.
    unburied: BTreeSet<u64>,
}

/// The sockets that use one link.
#[derive(Debug, Default)]
struct Leg {
    /// Counters of every socket so far: retransmissions, acknowledged bytes.
    known: BTreeMap<u64, (u64, u64)>,
    retransmissions: u64,
    acknowledged_bytes: u64,
    rtt_min_us: Option<u64>,
    /// The round trip of the last sample that had one.
    rtt_us: Option<u64>,
    /// Its sockets in the current dump.
    now: Vec<TcpSample>,
    samples: Samples,
}

impl Legs {
    /// The legs of `node`. In a plan without transfers all connections count: they are those of its
    /// programs.
    pub(super) fn of(plan: &Plan, node: &PlannedNode) -> Self {
        let number = plan.nodes.iter().position(|it| it.name == node.name);
        let times = plan.timeline().moments().iter().map(|moment| moment.at).collect::<Vec<_>>();
        let states = plan.routes().into_iter().skip(1);
        let routes = states.filter_map(|mut nodes| Some(nodes.swap_remove(number?)));
        let mut later: Vec<_> = times.into_iter().zip(routes).collect();
        later.reverse();
        Self {
            node: node.clone(),
            later,
            links: BTreeMap::new(),
            listeners: plan.transfers.iter().map(|transfer| transfer.listener).collect(),
            legs: BTreeMap::new(),
            present: BTreeSet::new(),
            unburied: BTreeSet::new(),
        }
    }

    /// From here on, sockets are seen at this time.
    pub(super) fn begin(&mut self, at: Duration) {
        while let Some((_, routes)) = self.later.pop_if(|(time, _)| *time <= at) {
            self.node.routes = routes;
        }
    }

    /// Counts a socket of the dump.
    pub(super) fn see(&mut self, socket: &Seen) {
        let Some(leg) = self.leg(socket) else { return };
        leg.count(socket);
        // A socket that has nothing left to send does not use its window.
        if socket.state != FIN_WAIT_2 {
            leg.now.push(socket.info);
        }
        self.present.insert(socket.cookie);
        self.unburied.insert(socket.cookie);
    }

    /// Counts the final counters of a closed socket.
    pub(super) fn bury(&mut self, socket: &Seen) {
        if let Some(leg) = self.leg(socket) {
            leg.count(socket);
        }
        self.unburied.remove(&socket.cookie);
    }

    /// Stops waiting for the notices of closed sockets: some were lost.
    pub(super) fn await_no_notice(&mut self) {
        self.unburied.retain(|cookie| self.present.contains(cookie));
    }

    /// Ends a dump: adds a sample to each leg that has a socket, if the dump was complete
    /// (`whole`). Returns `true` when the final counts of every closed socket are included.
    pub(super) fn sample(&mut self, at: Duration, whole: bool) -> bool {
        let present = std::mem::take(&mut self.present);
        let complete = whole && self.unburied.is_subset(&present);
        for leg in self.legs.values_mut() {
            let now = std::mem::take(&mut leg.now);
            if whole {
                leg.sample(at, &now);
            }
        }
        complete
    }

    /// Adds the results of these legs to `report`.
    pub(super) fn report(self, report: &mut ProbeReport) {
        for (link, leg) in self.legs {
            let result = LegResult {
                node: self.node.name.clone(),
                link,
                tunnel: None,
                connections: leg.known.len() as u64,
                bytes: Bytes::new(leg.acknowledged_bytes),
                retransmissions: leg.retransmissions,
                rtt_min: leg.rtt_min_us.map(Duration::from_us),
                phases: None,
            };
            report.series.extend(leg.samples.series(&result.place(), None, 0.0));
            report.legs.push(result);
        }
    }

    /// The leg of `socket`; none when it belongs to no transfer.
    fn leg(&mut self, socket: &Seen) -> Option<&mut Leg> {
        let ours = self.listeners.is_empty()
            || self.listeners.contains(&socket.local)
            || self.listeners.contains(&socket.remote);
        let first = self.node.link_to(socket.remote.ip()).filter(|_| ours)?;
        let link = self.links.entry(socket.cookie).or_insert_with(|| first.to_owned());
        Some(
            self.legs.entry(link.clone()).or_insert_with(|| Leg {
                samples: Samples::new(Capacity::among(1)),
                ..Leg::default()
            }),
        )
    }
}

impl Leg {
    fn count(&mut self, socket: &Seen) {
        let info = &socket.info;
        let (resent, acknowledged) = self.known.entry(socket.cookie).or_default();
        self.retransmissions += info.retransmissions.saturating_sub(*resent);
        self.acknowledged_bytes += info.acknowledged_bytes.saturating_sub(*acknowledged);
        *resent = info.retransmissions.max(*resent);
        *acknowledged = info.acknowledged_bytes.max(*acknowledged);
        self.rtt_min_us = self.rtt_min_us.into_iter().chain(info.rtt_min_us).min();
    }

    fn sample(&mut self, at: Duration, now: &[TcpSample]) {
        // A connection whose SYN was retransmitted has no round trip yet.
        let rtts: Vec<f64> =
            now.iter().filter(|info| info.rtt_us > 0).map(|info| info.rtt_us as f64).collect();
        self.rtt_us = median(&rtts).map(|rtt| rtt as u64).or(self.rtt_us);
        let (Some(rtt_us), false) = (self.rtt_us, now.is_empty()) else { return };
        let sum = |figure: fn(&TcpSample) -> u64| {
            now.iter().fold(0u64, |sum, info| sum.saturating_add(figure(info)))
        };
        let paced = now.iter().any(|info| info.pacing_rate.is_some());
        let together = TcpSample {
            cwnd_bytes: sum(|info| info.cwnd_bytes),
            rtt_us,
            rtt_min_us: self.rtt_min_us,
            retransmissions: self.retransmissions,
            delivery_rate: sum(|info| info.delivery_rate),
            in_flight_bytes: sum(|info| info.in_flight_bytes),
            outstanding_bytes: sum(|info| info.outstanding_bytes),
            pacing_rate: paced.then(|| sum(|info| info.pacing_rate.unwrap_or(0))),
            acknowledged_bytes: self.acknowledged_bytes,
        };
        self.samples.push(at.as_ns(), INTERVAL.as_ns(), together);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::Scenario;
    use midhop_experiment::record::Series;
    use midhop_linux::tcp_state::ESTABLISHED;

    const MS: u64 = 1_000_000;

    fn plan() -> Plan {
        let text = "title = \"a test\"\nduration = \"10 s\"\n\
                    [nodes]\nclient = {}\ngateway = { pep = \"gw\" }\nserver = {}\n\
                    [links.satellite]\nbetween = [\"client\", \"gateway\"]\n\
                    [links.internet]\nbetween = [\"gateway\", \"server\"]\n\
                    [peps.gw]\n\
                    [transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"1 kB\"\n";
        let scenario = Scenario::parse("test.toml", text).expect("a scenario");
        scenario.plans().expect("a plan").swap_remove(0)
    }

    /// A plan, the legs of its gateway, and the addresses of a flow: client, server.
    fn gateway() -> (Legs, SocketAddr, SocketAddr) {
        let plan = plan();
        let legs = Legs::of(&plan, plan.node("gateway").expect("a gateway"));
        let client = plan.node("client").expect("a client").interfaces[0].ipv4;
        (legs, SocketAddr::new(client.into(), 40_000), plan.transfers[0].listener)
    }

    fn seen(cookie: u64, local: SocketAddr, remote: SocketAddr, info: TcpSample) -> Seen {
        Seen { state: ESTABLISHED, local, remote, cookie, info }
    }

    fn info(cwnd_bytes: u64, rtt_us: u64, retransmissions: u64) -> TcpSample {
        TcpSample {
            cwnd_bytes,
            rtt_us,
            rtt_min_us: Some(rtt_us),
            retransmissions,
            acknowledged_bytes: 1_000 * (retransmissions + 1),
            ..TcpSample::default()
        }
    }

    fn curve<'a>(report: &'a ProbeReport, place: &str, quantity: &str) -> &'a Series {
        let belongs = |series: &&Series| series.place == place && series.quantity == quantity;
        report.series.iter().find(belongs).expect("a curve")
    }

    #[test]
    fn both_sides_of_a_flow_are_legs_and_other_sockets_are_not() {
        let (mut legs, client, server) = gateway();
        legs.see(&seen(1, server, client, info(10, 5, 0)));
        legs.see(&seen(2, client, server, info(20, 5, 0)));
        let local: SocketAddr = "127.0.0.1:9090".parse().expect("an address");
        let own = SocketAddr::new(legs.node.interfaces[0].ipv4.into(), 40_001);
        legs.see(&seen(3, local, local, info(1, 1, 1)));
        legs.see(&seen(4, own, SocketAddr::new(client.ip(), 22), info(1, 1, 1)));
        legs.see(&seen(5, server, own, info(1, 1, 1)));
        legs.sample(Duration::from_ms(100), true);
        let mut report = ProbeReport::default();
        legs.report(&mut report);
        let places: Vec<(String, u64)> =
            report.legs.iter().map(|leg| (leg.place(), leg.connections)).collect();
        assert_eq!(places, [("gateway.internet".into(), 1), ("gateway.satellite".into(), 1)]);
        assert_eq!(curve(&report, "gateway.satellite", "cwnd").value, [10.0]);
    }

    #[test]
    fn windows_add_up_round_trips_do_not_and_the_gone_stay_counted() {
        let (mut legs, client, server) = gateway();
        legs.see(&seen(1, server, client, info(10_000, 600_000, 1)));
        legs.see(&seen(2, server, client, info(20_000, 700_000, 2)));
        legs.see(&seen(3, server, client, info(30_000, 900_000, 0)));
        legs.sample(Duration::from_ms(100), true);
        // The first is closed after one more retransmission; the second has sent everything; the
        // third goes on.
        legs.bury(&seen(1, server, client, info(10_000, 600_000, 4)));
        legs.see(&Seen { state: FIN_WAIT_2, ..seen(2, server, client, info(9, 700_000, 2)) });
        legs.see(&seen(3, server, client, info(40_000, 800_000, 0)));
        legs.sample(Duration::from_ms(200), true);
        // An incomplete dump gives no sample, and neither does one without sockets.
        legs.see(&seen(3, server, client, info(50_000, 800_000, 0)));
        legs.sample(Duration::from_ms(300), false);
        legs.sample(Duration::from_ms(400), true);
        let mut report = ProbeReport::default();
        legs.report(&mut report);
        let value = |quantity| curve(&report, "gateway.satellite", quantity).value.clone();
        assert_eq!(value("cwnd"), [60_000.0, 40_000.0]);
        assert_eq!(value("rtt"), [700.0, 800.0]);
        assert_eq!(value("retransmissions"), [3.0, 6.0]);
        assert_eq!(curve(&report, "gateway.satellite", "rtt").time_s, [0.1, 0.2]);
        assert_eq!(report.legs[0].retransmissions, 6);
        assert_eq!(report.legs[0].connections, 3);
        assert_eq!(report.legs[0].bytes, Bytes::new(5_000 + 3_000 + 1_000));
        assert_eq!(report.legs[0].rtt_min, Some(Duration::from_ms(600)));
    }

    #[test]
    fn a_look_is_complete_once_all_that_is_gone_was_announced() {
        let (mut legs, client, server) = gateway();
        let [one, two] = [1, 2].map(|cookie| seen(cookie, server, client, info(10, 5, 0)));
        let at = Duration::from_ms(100);
        assert!(legs.sample(at, true), "nothing is awaited");
        legs.see(&one);
        legs.see(&two);
        assert!(legs.sample(at, true), "both are there");
        legs.see(&two);
        assert!(!legs.sample(at, true), "the first is gone, and its last figures are not known");
        legs.bury(&one);
        legs.see(&two);
        assert!(!legs.sample(at, false), "an incomplete sample has no value");
        legs.see(&two);
        assert!(legs.sample(at, true));
        legs.see(&two);
        legs.bury(&two);
        assert!(legs.sample(at, true), "it ended within the look");
        legs.see(&one);
        assert!(legs.sample(at, true));
        legs.await_no_notice();
        assert!(legs.sample(at, true), "its notice was lost");
    }

    #[test]
    fn ipv6_and_far_addresses_have_their_links() {
        let plan = plan();
        let client = plan.node("client").expect("a client");
        let server = plan.node("server").expect("a server").interfaces[0].clone();
        let legs = Legs::of(&plan, client);
        // The server is two hops away, over a route.
        assert_eq!(legs.node.link_to(server.ipv4.into()), Some("satellite"));
        assert_eq!(legs.node.link_to(server.ipv6.into()), Some("satellite"));
        let gateway = plan.node("gateway").expect("a gateway");
        let legs = Legs::of(&plan, gateway);
        assert_eq!(legs.node.link_to(client.interfaces[0].ipv6.into()), Some("satellite"));
        assert_eq!(legs.node.link_to(server.ipv6.into()), Some("internet"));
        assert_eq!(legs.node.link_to(gateway.interfaces[0].ipv6.into()), None);
        assert_eq!(legs.node.link_to("192.0.2.1".parse().expect("an address")), None);
    }

    #[test]
    fn a_long_run_keeps_a_bounded_number_of_samples() {
        let (mut legs, client, server) = gateway();
        for tick in 0..20_000 {
            legs.see(&seen(1, server, client, info(tick, 5, 0)));
            legs.sample(Duration::from_ns(tick * 100 * MS), true);
        }
        let mut report = ProbeReport::default();
        legs.report(&mut report);
        let cwnd = curve(&report, "gateway.satellite", "cwnd");
        assert!(cwnd.value.len() <= 4096 && cwnd.time_s.last() > Some(&1_990.0));
    }
}
