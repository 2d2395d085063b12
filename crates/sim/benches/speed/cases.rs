//! The cases: scenarios, and the same networks in ns-3.

use midhop_experiment::{Plan, Scenario};
use midhop_sim::RunError;

/// Whether this is the short form: the same cases with a short duration and few flows. It checks
/// that they run; its figures have no meaning.
pub fn is_short() -> bool {
    std::env::args().any(|word| word == "--short")
}

/// The value for the selected form.
fn size<T>(whole: T, short: T) -> T {
    if is_short() { short } else { whole }
}

/// A case.
pub struct Case {
    pub name: String,
    text: String,
    /// Its number among the runs of the scenario.
    number: usize,
    /// The arguments of the ns-3 program for the same network; empty where there is no such run.
    pub peer: Vec<String>,
    /// How often it is measured: the least processor time counts.
    pub repetitions: u32,
}

impl Case {
    /// The run.
    pub fn plan(&self) -> Plan {
        plans(&self.text).swap_remove(self.number)
    }
}

/// A chain of links, the first one narrow, with flows from the last node to the first.
struct Chain {
    name: &'static str,
    links: usize,
    /// Rate in Mbit/s and delay in ms of the first link and of all others.
    narrow: [u32; 2],
    wide: [u32; 2],
    /// Unit: packets.
    queue: u32,
    /// Other keys of the first link.
    keys: &'static str,
    congestion: &'static str,
    seconds: u32,
    flows: u32,
    /// The part that ns-3 runs: all of it where that is fast, a few seconds where all would take
    /// minutes, none where even that takes too long.
    peer_seconds: u32,
}

impl Chain {
    fn case(&self) -> Case {
        let Self { links, queue, congestion, keys, .. } = self;
        let (seconds, flows) = (size(self.seconds, 1), size(self.flows, self.flows.min(50)));
        let nodes: Vec<String> = (0..=*links).map(|node| format!("n{node} = {{}}")).collect();
        let lines: Vec<String> = (0..*links)
            .map(|link| {
                let [rate, delay] = if link == 0 { self.narrow } else { self.wide };
                let queue = if link == 0 { *queue } else { 1_000_000 };
                let keys = if link == 0 { keys } else { &"" };
                format!(
                    "[links.l{link}]\nbetween = [\"n{link}\", \"n{}\"]\nrate = \"{rate} Mbit/s\"\n\
                     delay = \"{delay} ms\"\nqueue = \"{queue} packets\"\n{keys}\n",
                    link + 1,
                )
            })
            .collect();
        let text = format!(
            "title = \"speed\"\nduration = \"10 min\"\n[nodes]\n{}\n{}\n[transfers.t]\n\
             from = \"n{links}\"\nto = \"n0\"\nseconds = {seconds}\nflows = {flows}\n\
             congestion = \"{congestion}\"\n",
            nodes.join("\n"),
            lines.concat(),
        );
        let words = |[rate, delay]: [u32; 2]| [format!("{rate}Mbps"), format!("{delay}ms")];
        let peer = [
            vec![links.to_string()],
            words(self.narrow).to_vec(),
            words(self.wide).to_vec(),
            vec![
                queue.to_string(),
                "TcpCubic".to_owned(),
                size(self.peer_seconds, 1).to_string(),
                flows.to_string(),
            ],
        ];
        Case {
            name: self.name.to_owned(),
            text,
            number: 0,
            peer: if self.peer_seconds > 0 { peer.concat() } else { Vec::new() },
            repetitions: size(3, 1),
        }
    }
}

fn plans(text: &str) -> Vec<Plan> {
    let scenario = Scenario::parse("bench.toml", text).expect("the bench's own text");
    scenario.plans().expect("can be run")
}

const SMALL: Chain = Chain {
    name: "5 hops, small window",
    links: 5,
    narrow: [10, 2],
    wide: [100, 2],
    queue: 100,
    keys: "",
    congestion: "cubic",
    seconds: 30,
    flows: 1,
    peer_seconds: 30,
};

/// As many seconds as ns-3 can run in a short time: from here on, each further second takes it
/// twice as long.
const GEO: Chain = Chain {
    name: "5 hops, geo window, 7 s",
    narrow: [140, 280],
    wide: [1000, 5],
    queue: 7000,
    seconds: 7,
    peer_seconds: 7,
    ..SMALL
};

/// Sixty seconds, which take ns-3 too long.
const GEO_LONG: Chain = Chain {
    name: "1 hop, geo 140 Mbit/s, cubic",
    links: 1,
    narrow: [140, 300],
    seconds: 60,
    peer_seconds: 0,
    ..GEO
};

/// Speed: link-packets per second of one processor.
pub fn speed() -> Vec<Case> {
    vec![
        Chain { name: "1 hop, small window", links: 1, ..SMALL }.case(),
        SMALL.case(),
        Chain { name: "1 hop, geo window, 7 s", links: 1, ..GEO }.case(),
        GEO.case(),
        GEO_LONG.case(),
        Chain { name: "5 hops, geo 140 Mbit/s, cubic", links: 5, ..GEO_LONG }.case(),
    ]
}

/// From ten flows to ten thousand through one bottleneck.
pub fn flows() -> Vec<Case> {
    [(10, "10 flows"), (100, "100 flows"), (1_000, "1000 flows"), (10_000, "10000 flows")]
        .map(|(flows, name)| {
            let (narrow, wide) = ([400, 50], [10_000, 1]);
            let both = Chain { name, links: 2, narrow, wide, queue: 3400, flows, ..SMALL };
            // With more than a hundred flows, ns-3 takes minutes for each second.
            let peer_seconds = if flows <= 100 { 1 } else { 0 };
            Chain { seconds: 5, peer_seconds, ..both }.case()
        })
        .into()
}

/// Sixty seconds over a geostationary satellite, clean and not.
pub fn geo() -> Vec<Case> {
    let clean = Chain { name: "geo 140 Mbit/s, 60 s", congestion: "hybla-plus", ..GEO_LONG };
    let keys = "loss = \"0.05 %\"";
    let lossy = Chain { name: "geo 140 Mbit/s, 60 s, 0.05 % lost", keys, ..clean };
    vec![clean.case(), lossy.case()]
}

const PLACEMENT: &str = include_str!("../../../../studies/ntn-placement/download.toml");

/// Runs of the proxy placement study, as its authors most likely meant it: without loss, and with
/// the most. Also returns how many of these cells need features that the simulator lacks; they are
/// left out.
pub fn placement() -> (Vec<Case>, usize) {
    let cells = plans(PLACEMENT);
    let each = cells.first().map_or(1, |plan| plan.seeds.max(1) as usize);
    let label = |plan: &Plan| {
        let labels: Vec<&str> = plan.axes.iter().map(|at| at.label.as_str()).collect();
        format!("E1 {}", labels.join(" "))
    };
    let some = ["E1 b 1 ", "E1 b 5 "];
    let once = cells.into_iter().step_by(each);
    let once = once.filter(|plan| some.iter().any(|cells| label(plan).starts_with(cells)));
    let (cells, refused): (Vec<Plan>, Vec<Plan>) = once.partition(is_simulated);
    let cases = cells.into_iter().take(size(usize::MAX, 3)).map(|plan| Case {
        name: label(&plan),
        text: PLACEMENT.to_owned(),
        number: plan.number as usize,
        peer: Vec::new(),
        repetitions: 1,
    });
    (cases.collect(), refused.len())
}

/// Whether the simulator supports a run: only the laboratory has programs, and peers of tunnels
/// that are not nodes. Any other refusal is a fault, which running the case then shows.
fn is_simulated(plan: &Plan) -> bool {
    !matches!(midhop_sim::check(plan), Err(RunError::Tunnel { .. } | RunError::Programs { .. }))
}

/// Flows that are open and idle, few and many: for the memory of a flow.
pub fn idle() -> [(u32, Case); 2] {
    [100, size(10_000, 200)].map(|flows| {
        let text = format!(
            "title = \"speed\"\nduration = \"1 min\"\n[nodes]\na = {{}}\nb = {{}}\n[links.l]\n\
             between = [\"a\", \"b\"]\nrate = \"1 Gbit/s\"\ndelay = \"50 ms\"\n[transfers.t]\n\
             from = \"b\"\nto = \"a\"\nbytes = \"1 B\"\nflows = {flows}\n"
        );
        let name = format!("{flows} flows of one byte");
        (flows, Case { name, text, number: 0, peer: Vec::new(), repetitions: 1 })
    })
}

/// One flow with fewer and with more packets in flight: for the memory of a packet.
pub fn under_way() -> [Case; 2] {
    let few = Chain { name: "geo 140 Mbit/s, hybla-plus", congestion: "hybla-plus", ..GEO_LONG };
    let narrow = [1400, 300];
    let many =
        Chain { name: "geo 1.4 Gbit/s, hybla-plus", narrow, queue: 70_000, seconds: 30, ..few };
    [few, many].map(|chain| Case { repetitions: 1, ..chain.case() })
}

/// The case of that name. The cases of the placement study come last: there are many, and the
/// memory for reading them would hide in that of other cases.
pub fn find(name: &str) -> Option<Case> {
    let [idle, under_way] = [idle().map(|(_, case)| case), under_way()];
    let few = [speed(), flows(), geo(), idle.into(), under_way.into()].into_iter().flatten();
    few.chain(std::iter::once_with(|| placement().0).flatten()).find(|case| case.name == name)
}
