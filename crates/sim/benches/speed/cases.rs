//! What is measured: scenarios, and the same networks in ns-3.

use midhop_experiment::{Plan, Scenario};

/// A case.
pub struct Case {
    pub name: String,
    text: String,
    /// What the ns-3 program is called with to run the same; empty where it runs nothing like it.
    pub peer: Vec<String>,
    /// How often it is measured: the least processor time counts.
    pub repetitions: u32,
}

impl Case {
    /// The run.
    pub fn plan(&self) -> Plan {
        let scenario = Scenario::parse("bench.toml", &self.text).expect("the bench's own text");
        scenario.plans().expect("can be run").swap_remove(0)
    }
}

/// So many links in a row, the first one narrow, and a transfer from the last node to the first.
struct Chain<'a> {
    links: usize,
    /// Keys of the first link and of all others.
    narrow: &'a str,
    wide: &'a str,
    transfer: String,
}

impl Chain<'_> {
    fn case(&self, name: &str) -> Case {
        let nodes: Vec<String> = (0..=self.links).map(|node| format!("n{node} = {{}}")).collect();
        let links: Vec<String> = (0..self.links)
            .map(|link| {
                let keys = if link == 0 { self.narrow } else { self.wide };
                format!("[links.l{link}]\nbetween = [\"n{link}\", \"n{}\"]\n{keys}\n", link + 1)
            })
            .collect();
        let text = format!(
            "title = \"speed\"\nduration = \"10 min\"\n[nodes]\n{}\n{}\n[transfers.t]\n\
             from = \"n{}\"\nto = \"n0\"\n{}\n",
            nodes.join("\n"),
            links.concat(),
            self.links,
            self.transfer,
        );
        Case { name: name.to_owned(), text, peer: Vec::new(), repetitions: 3 }
    }
}

/// One bulk transfer over five links, here and in ns-3.
struct Together {
    name: &'static str,
    /// Rate in Mbit/s and delay in ms of the first link and of all others.
    narrow: [u32; 2],
    wide: [u32; 2],
    /// Unit: packets.
    queue: u32,
    /// The congestion control, here and there.
    congestion: [&'static str; 2],
    seconds: u32,
}

impl Together {
    fn case(&self) -> Case {
        let keys =
            |[rate, delay]: [u32; 2]| format!("rate = \"{rate} Mbit/s\"\ndelay = \"{delay} ms\"");
        let Self { queue, congestion: [here, there], seconds, .. } = self;
        let chain = Chain {
            links: 5,
            narrow: &format!("{}\nqueue = \"{queue} packets\"", keys(self.narrow)),
            wide: &keys(self.wide),
            transfer: format!("seconds = {seconds}\ncongestion = \"{here}\""),
        };
        let words = |[rate, delay]: [u32; 2]| [format!("{rate}Mbps"), format!("{delay}ms")];
        let peer = [
            vec!["5".to_owned()],
            words(self.narrow).to_vec(),
            words(self.wide).to_vec(),
            vec![queue.to_string(), (*there).to_owned(), seconds.to_string()],
        ]
        .concat();
        Case { peer, ..chain.case(self.name) }
    }
}

const SMALL: Together = Together {
    name: "5 hops, small window",
    narrow: [10, 2],
    wide: [100, 2],
    queue: 100,
    congestion: ["cubic", "TcpCubic"],
    seconds: 60,
};

/// A phone, three satellites, a gateway, a server; the narrow link is the phone's.
const PHONE: &str = r#"
title = "speed"
duration = "35 s"
[nodes]
phone = {}
sat1 = {}
sat2 = {}
sat3 = {}
gateway = {}
server = {}
[links.user]
between = ["phone", "sat1"]
down = { rate = "2 Mbit/s", queue = "100 packets" }
up = { rate = "60 kbit/s" }
delay = "4 ms"
[links.isl12]
between = ["sat1", "sat2"]
rate = "2 Gbit/s"
delay = "8500 us"
[links.isl23]
between = ["sat2", "sat3"]
rate = "2 Gbit/s"
delay = "8500 us"
[links.feeder]
between = ["sat3", "gateway"]
rate = "10 Gbit/s"
delay = "4 ms"
[links.internet]
between = ["gateway", "server"]
rate = "100 Mbit/s"
delay = "50 ms"
[transfers.download]
from = "server"
to = "phone"
seconds = 30
opens = "from"
congestion = "hybla"
"#;

/// All cases.
pub fn all() -> Vec<Case> {
    let geo = |name: &str, narrow: &str, congestion: &str| {
        let transfer = format!("seconds = 60\ncongestion = \"{congestion}\"");
        Chain { links: 1, narrow, wide: "", transfer }.case(name)
    };
    const GEO: &str = "rate = \"140 Mbit/s\"\ndelay = \"300 ms\"\nqueue = \"1 BDP\"";
    const GEO_LOSSY: &str =
        "rate = \"140 Mbit/s\"\ndelay = \"300 ms\"\nqueue = \"1 BDP\"\nloss = \"0.05 %\"";
    const GEO_LARGE: &str = "rate = \"1400 Mbit/s\"\ndelay = \"300 ms\"\nqueue = \"1 BDP\"";
    let phone = |name: &str, loss: &str| Case {
        name: name.to_owned(),
        text: PHONE.replace("[links.isl12]", &format!("{loss}\n[links.isl12]")),
        peer: Vec::new(),
        repetitions: 9,
    };
    let mut all = vec![
        SMALL.case(),
        Together {
            name: "5 hops, geo window",
            narrow: [140, 280],
            wide: [1000, 5],
            queue: 7000,
            seconds: 10,
            ..SMALL
        }
        .case(),
        Together { name: "5 hops, newreno", congestion: ["reno", "TcpNewReno"], ..SMALL }.case(),
        geo("geo 140 Mbit/s, cubic", GEO, "cubic"),
        geo("geo 140 Mbit/s, hybla", GEO, "hybla"),
        geo("geo 140 Mbit/s, 0.05 % lost, hybla", GEO_LOSSY, "hybla"),
        geo("geo 140 Mbit/s, 0.05 % lost, bbr", GEO_LOSSY, "bbr"),
        geo("geo 1.4 Gbit/s, hybla", GEO_LARGE, "hybla"),
        phone("phone over leo, 30 s", ""),
        phone("phone over leo, 30 s, 0.5 % lost", "loss = \"0.5 %\""),
    ];
    for flows in [10, 100, 1_000, 10_000] {
        let chain = Chain {
            links: 2,
            narrow: "rate = \"400 Mbit/s\"\ndelay = \"50 ms\"",
            wide: "rate = \"10 Gbit/s\"\ndelay = \"1 ms\"",
            transfer: format!("seconds = 20\nflows = {flows}"),
        };
        all.push(chain.case(&format!("{flows} flows")));
    }
    // All open at once, and none has more than a packet under way: what a flow itself takes.
    let idle = Chain {
        links: 1,
        narrow: "rate = \"1 Gbit/s\"\ndelay = \"50 ms\"",
        wide: "",
        transfer: "bytes = \"1 B\"\nflows = 10000".to_owned(),
    };
    all.push(Case { repetitions: 1, ..idle.case("10000 flows of one byte") });
    all
}
