//! Namespaces, devices, addresses and routes of a plan.

use super::stack;
use crate::emulator::{Emulator, EmulatorError, Policy, PostPlan, Wire, WireReport, scheduling};
use crate::namespace::{Namespace, NamespaceError, VethEnd, veth};
use crate::netem::{Netem, NetemError};
use midhop_experiment::agents::{PlannedAgent, Role, SackRule};
use midhop_experiment::plan::{
    IPV4_PREFIX, IPV6_PREFIX, Interface, Plan, PlannedLink, TransferPlan,
};
use midhop_experiment::record::{LinkResult, NodeResult, Series};
use midhop_experiment::tcp::TcpPlan;
use midhop_units::{Bytes, Duration, Instant, Seed};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Time between the start of the carriers and the start of the run.
const START_AHEAD: Duration = Duration::from_ms(20);

/// Why a network could not be built or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The kernel refused a namespace, a device, an address or a route.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A link could not be emulated.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// netem could not carry a link.
    #[error(transparent)]
    Netem(#[from] NetemError),
    /// The plan contradicts itself.
    #[error("the plan names {what}, which it does not describe")]
    Plan {
        /// What is named and missing.
        what: String,
    },
}

/// What all links did.
#[derive(Debug, Clone, Default)]
pub struct NetworkReport {
    /// Down, then up, of each link in the plan's order.
    pub links: Vec<LinkResult>,
    /// Queue and rate of each direction.
    pub series: Vec<Series>,
    /// Links whose emulator missed frames, and how many.
    pub missed: Vec<(String, u64)>,
    /// Links whose devices dropped frames before anybody received them, and how many.
    pub dropped: Vec<(String, u64)>,
    /// What agents did, by node and in the order of the links at whose ends they stand.
    pub nodes: Vec<NodeResult>,
    /// The weakest scheduling that an emulator got.
    pub policy: Option<Policy>,
}

/// What carries frames over the links of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Links {
    /// Our emulator, which supports all that a scenario may ask for.
    #[default]
    Emulated,
    /// The kernel's netem, an independent implementation; see [`crate::netem::refusal`].
    Netem,
}

/// What carries the frames of one link.
#[derive(Debug)]
enum Carrier {
    Emulator(Emulator),
    Netem(Box<Netem>),
}

impl Carrier {
    /// Stops and reports what the link did.
    fn finish(self) -> Result<WireReport, LabError> {
        Ok(match self {
            Self::Emulator(emulator) => emulator.finish()?,
            Self::Netem(netem) => netem.finish(scheduling::now())?,
        })
    }
}

/// Nodes and links of one plan.
#[derive(Debug)]
pub struct Network {
    /// The first field, so that carriers stop before their devices are removed.
    carriers: Vec<Carrier>,
    links: Links,
    nodes: BTreeMap<String, Namespace>,
    hub: Namespace,
    homes: BTreeMap<String, [IpAddr; 2]>,
    wires: Vec<Wire>,
    /// What the devices of each wire had dropped when the emulators started.
    dropped_before: Vec<u64>,
    epoch: Instant,
}

impl Network {
    /// Makes the nodes and wires them up; no frame is carried yet.
    ///
    /// Neighbours are set by hand, so that no ARP or neighbour discovery crosses a link.
    ///
    /// # Errors
    /// When the kernel refuses a part.
    pub fn build(plan: &Plan, links: Links) -> Result<Self, LabError> {
        let namespaces = plan.nodes.iter().map(|node| {
            let namespace = Namespace::create(&node.name)?;
            Ok((node.name.clone(), namespace))
        });
        let mut network = Self {
            nodes: namespaces.collect::<Result<_, NamespaceError>>()?,
            hub: Namespace::create("hub")?,
            homes: BTreeMap::new(),
            wires: Vec::new(),
            carriers: Vec::new(),
            links,
            dropped_before: Vec::new(),
            epoch: Instant::START,
        };
        let broken = plan.broken_links();
        for (number, link) in plan.links.iter().enumerate() {
            let mut wire = network.wire(plan, number, link)?;
            if let Some([down, up]) = broken.get(link.name.as_str()) {
                (wire.down, wire.up) = (down.clone(), up.clone());
            }
            network.wires.push(wire);
        }
        for node in &plan.nodes {
            let namespace = network.named(&node.name)?;
            for (key, value) in stack::parameters(&node.tcp) {
                namespace.set_sysctl(key, &value)?;
            }
            for route in &node.routes {
                namespace.add_route(route.to, host_prefix(route.to), route.via)?;
            }
            if node.tcp.packet != TcpPlan::default().packet {
                namespace.advertise_packets(node.tcp.packet)?;
            }
            if let Some(interface) = node.interfaces.first() {
                network.homes.insert(node.name.clone(), addresses(interface).map(|(ip, _)| ip));
            }
        }
        Ok(network)
    }

    /// Joins the two nodes of a link to the hub.
    fn wire(&self, plan: &Plan, number: usize, link: &PlannedLink) -> Result<Wire, LabError> {
        let mut ends = Vec::new();
        for (end, node) in link.between.iter().enumerate() {
            let namespace = self.named(node)?;
            let hub_device = format!("link{number}.{end}");
            let [VethEnd { mac, .. }, _] =
                veth(namespace, &link.name, &self.hub, &hub_device, link.mtu)?;
            let addresses = plan
                .node(node)
                .and_then(|node| node.interfaces.iter().find(|own| own.link == link.name))
                .map(addresses)
                .ok_or_else(|| LabError::Plan { what: format!("{} on {node}", link.name) })?;
            for (address, prefix) in addresses {
                namespace.add_address(&link.name, address, prefix)?;
            }
            ends.push((namespace, hub_device, addresses, mac));
        }
        let [(first, first_device, first_addresses, first_mac), second] =
            <[_; 2]>::try_from(ends).map_err(|_| LabError::Plan { what: link.name.clone() })?;
        let (second, second_device, second_addresses, second_mac) = second;
        for (address, _) in second_addresses {
            first.add_neighbour(&link.name, address, second_mac)?;
        }
        for (address, _) in first_addresses {
            second.add_neighbour(&link.name, address, first_mac)?;
        }
        Ok(Wire {
            name: link.name.clone(),
            first: first_device,
            second: second_device,
            nodes: link.between.clone(),
            mtu: link.mtu,
            down: link.down.clone(),
            up: link.up.clone(),
            ack_filters: [1, 0].map(|sender| ack_filter(plan, link, sender)),
            posts: [
                post(plan, link, 0, [first_addresses, second_addresses]),
                post(plan, link, 1, [second_addresses, first_addresses]),
            ],
            burst: burst(plan),
        })
    }

    fn named(&self, node: &str) -> Result<&Namespace, LabError> {
        self.nodes.get(node).ok_or_else(|| LabError::Plan { what: format!("the node {node}") })
    }

    /// Carries frames before the run, while `ready` works. No report includes what the links do
    /// during that time, and packets that are in flight at the end are lost.
    ///
    /// # Errors
    /// When sockets or threads are refused, and as `ready`.
    pub fn rehearse<E: From<LabError>>(
        &self,
        seed: Seed,
        ready: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut carriers = self.open(seed)?;
        begin(&mut carriers, scheduling::now());
        let outcome = ready();
        for carrier in carriers {
            carrier.finish()?;
        }
        outcome
    }

    /// Starts the carriers. The clock of traces and outages begins [`START_AHEAD`] from now, so
    /// that every process of the run has received that moment before it comes.
    ///
    /// # Errors
    /// When sockets or threads are refused.
    pub fn start(&mut self, seed: Seed) -> Result<(), LabError> {
        self.dropped_before = self.dropped()?;
        self.carriers = self.open(seed)?;
        self.epoch = scheduling::now() + START_AHEAD;
        begin(&mut self.carriers, self.epoch);
        Ok(())
    }

    /// What the devices of each wire have dropped, in the hub and on its nodes.
    fn dropped(&self) -> Result<Vec<u64>, LabError> {
        let of = |wire: &Wire| {
            let mut sum = self.hub.dropped(&wire.first)? + self.hub.dropped(&wire.second)?;
            for node in &wire.nodes {
                sum += self.named(node)?.dropped(&wire.name)?;
            }
            Ok(sum)
        };
        self.wires.iter().map(of).collect()
    }

    fn open(&self, seed: Seed) -> Result<Vec<Carrier>, LabError> {
        let open = |wire: &Wire| -> Result<Carrier, LabError> {
            let (hub, wire) = (&self.hub, wire.clone());
            Ok(match self.links {
                Links::Emulated => Carrier::Emulator(Emulator::open(hub, wire, seed)?),
                Links::Netem => Carrier::Netem(Box::new(Netem::start(hub, wire)?)),
            })
        };
        self.wires.iter().map(open).collect()
    }

    /// The moment at which the run starts, as set by [`Self::start`], on the machine's monotonic
    /// clock.
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    /// A node's namespace.
    pub fn node(&self, name: &str) -> Option<&Namespace> {
        self.nodes.get(name)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Namespace)> {
        self.nodes.iter().map(|(name, namespace)| (name.as_str(), namespace))
    }

    /// The main addresses of a node: IPv4, then IPv6. None for a node without links.
    pub fn home(&self, node: &str) -> Option<[IpAddr; 2]> {
        self.homes.get(node).copied()
    }

    /// Stops the carriers and reports what the links did.
    ///
    /// # Errors
    /// When a carrier had stopped by itself.
    pub fn finish(mut self) -> Result<NetworkReport, LabError> {
        let mut report = NetworkReport::default();
        let dropped = self.dropped()?.into_iter().zip(&self.dropped_before);
        for (wire, (now, before)) in self.wires.iter().zip(dropped) {
            if now > *before {
                report.dropped.push((wire.name.clone(), now - before));
            }
        }
        for carrier in self.carriers.drain(..) {
            let wire = carrier.finish()?;
            if wire.missed > 0 {
                report.missed.push((wire.directions[0].name.clone(), wire.missed));
            }
            report.nodes.extend(wire.nodes);
            report.policy = report.policy.max(wire.policy);
            report.links.extend(wire.directions);
            report.series.extend(wire.series);
        }
        Ok(report)
    }
}

/// Lets `carriers` carry frames, with traces and series that count from `epoch`.
fn begin(carriers: &mut [Carrier], epoch: Instant) {
    for carrier in carriers {
        match carrier {
            Carrier::Emulator(emulator) => emulator.begin(epoch),
            Carrier::Netem(netem) => netem.begin(epoch),
        }
    }
}

/// The largest burst: what all senders of `plan` together may have in flight, and so may send at
/// once when all their acknowledgements arrive together. It is four times what fits into their
/// paths and into the queues before the narrowest hops. Rings for the whole queues of much faster
/// links would take gigabytes, and seconds to allocate and to clear; other runs on the machine
/// would lack both.
fn burst(plan: &Plan) -> Bytes {
    let fits = |transfer: &TransferPlan| {
        let limit = transfer.limit.as_ref()?;
        let narrowest = plan.link(&limit.bottleneck.link)?;
        let queue = narrowest.direction(limit.bottleneck.direction).queue;
        let fits = limit.goodput_peak.bytes_in(limit.rtt);
        Some(fits.saturating_add(queue.in_full_packets(narrowest.mtu)))
    };
    let sum = plan
        .transfers
        .iter()
        .map(fits)
        .try_fold(Bytes::ZERO, |sum, it| Some(sum.saturating_add(it?)));
    sum.map_or(Bytes::MAX, |it| it.scale(4.0))
}

/// The rule by which the end `sender` of a link thins the acknowledgements that it sends onto the
/// link.
fn ack_filter(plan: &Plan, link: &PlannedLink, sender: usize) -> Option<SackRule> {
    plan.node(link.between.get(sender)?)?.agents.iter().find_map(|agent| match &agent.role {
        Role::AckFilter(filter) if filter.links.contains(&link.name) => Some(filter.sack),
        _ => None,
    })
}

/// The agents at one end of a link. `addresses` are those of this end, then those of the far end.
fn post(
    plan: &Plan,
    link: &PlannedLink,
    end: usize,
    addresses: [[(IpAddr, u8); 2]; 2],
) -> PostPlan {
    let far = &link.between[1 - end];
    let here = |agent: &&PlannedAgent| match &agent.role {
        Role::AckFilter(_) => false,
        Role::Snoop(snoop) => snoop.links.contains(&link.name),
        Role::AckDecimation(agent) => agent.links.contains(&link.name),
        Role::AckSpacing(agent) => agent.links.contains(&link.name),
        Role::DProxy(half) => half.peer == *far,
    };
    let agents = plan.node(&link.between[end]).map(|node| node.agents.iter().filter(here).cloned());
    PostPlan {
        agents: agents.into_iter().flatten().collect(),
        addresses: Some(addresses.map(|end| end.map(|(address, _)| address))),
    }
}

/// Both addresses of an interface with the lengths of their networks.
fn addresses(interface: &Interface) -> [(IpAddr, u8); 2] {
    [(interface.ipv4.into(), IPV4_PREFIX), (interface.ipv6.into(), IPV6_PREFIX)]
}

/// The prefix length of a single host.
fn host_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::Scenario;

    /// A client behind a link of 2 Mbit/s, and a server behind one of 10 Gbit/s.
    fn plan(queue: &str) -> Plan {
        let text = format!(
            "title = \"t\"\nduration = \"20 s\"\n[nodes]\nclient = {{}}\ngateway = {{}}\nserver = {{}}\n\
             [links.beam]\nbetween = [\"client\", \"gateway\"]\nrate = \"2 Mbit/s\"\ndelay = \"250 ms\"\n\
             queue = \"{queue}\"\n\
             [links.fibre]\nbetween = [\"gateway\", \"server\"]\nrate = \"10 Gbit/s\"\ndelay = \"50 ms\"\n\
             [transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"2 MB\"\n"
        );
        let scenario = Scenario::parse("one.toml", &text).expect("a scenario");
        scenario.plans().expect("plans").remove(0)
    }

    #[test]
    fn no_more_comes_at_once_than_the_slow_path_holds_however_fast_the_others_are() {
        // 2 Mbit/s for 600 ms are 150 kB, a little less without headers.
        let burst = burst(&plan("100 kB")).get();
        assert!((900_000..1_000_000).contains(&burst), "{burst}");
        let packets = super::burst(&plan("1000 packets")).get();
        assert!(packets > 4 * 1_500_000, "{packets}");
    }

    #[test]
    fn what_has_no_limit_may_send_whatever_a_queue_holds() {
        let mut plan = plan("100 kB");
        plan.transfers[0].limit = None;
        assert_eq!(burst(&plan), Bytes::MAX);
    }
}
