//! Congestion marks through agents that thin acknowledgements: each mark is echoed in time and
//! answered.

use crate::scenes::{FILE, plan};
use midhop_sim::agent::{Actions, Agent};
use midhop_sim::packet::{Body, NodeId, Packet};
use midhop_sim::{Options, run};
use midhop_tcp::{Ecn, Flags, Segment};
use midhop_units::{Duration, Instant};
use std::cell::RefCell;
use std::rc::Rc;

/// One flow's marks, as a receiver by RFC 3168 §6.1.3 handles them: from the first mark, which it
/// must echo, until the sender reports that it has reduced its window.
#[derive(Debug, Default)]
struct Book {
    open: Option<Echo>,
    closed: Vec<Echo>,
}

#[derive(Debug, Clone, Copy)]
struct Echo {
    marked: Instant,
    /// The acknowledgment number of the first echo.
    first: Option<u32>,
    /// When the sender received an echo of it.
    received: Option<Instant>,
}

/// Records the marks at its node and forwards everything.
#[derive(Debug)]
struct Witness {
    at_receiver: bool,
    book: Rc<RefCell<Book>>,
}

impl Witness {
    fn note(&self, now: Instant, segment: &Segment) {
        let mut book = self.book.borrow_mut();
        let is_data = segment.length > 0;
        let echoes = !is_data && segment.flags.contains(Flags::ECE);
        if self.at_receiver && is_data {
            if segment.flags.contains(Flags::CWR) {
                let open = book.open.take();
                book.closed.extend(open);
            }
            if segment.ecn == Ecn::Congested {
                book.open.get_or_insert(Echo { marked: now, first: None, received: None });
            }
        }
        let Some(open) = &mut book.open else { return };
        if self.at_receiver && echoes {
            open.first.get_or_insert(segment.acknowledgment);
        }
        let answers = |first: u32| segment.acknowledgment.wrapping_sub(first) < 1 << 31;
        if !self.at_receiver && echoes && open.first.is_some_and(answers) {
            open.received.get_or_insert(now);
        }
    }
}

impl Agent for Witness {
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions) {
        if let Body::Segment(segment) = &packet.body
            && !segment.flags.contains(Flags::SYN)
        {
            self.note(now, segment);
        }
        actions.send(packet);
    }

    fn handle_timeout(&mut self, _now: Instant, _actions: &mut Actions) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

const AGENTS: &str = r#"
[agents.thin]
kind = "ack-filter"
links = ["satellite"]
[agents.few]
kind = "ack-decimation"
links = ["satellite"]
keep_one_in = 4
[agents.even]
kind = "ack-spacing"
rebuild = "2896 B"
links = ["satellite"]
"#;

/// The echoes of marks in a file of 20 MB, over a wide link that marks and a narrow return link.
fn echoes(terminal: &str, gateway: &str) -> Vec<Echo> {
    let set = [
        "tcp.ecn=true",
        "links.satellite.down.aqm=codel",
        "links.satellite.down.rate=10 Mbit/s",
        "links.satellite.down.queue=1000 packets",
        "links.satellite.up.rate=60 kbit/s",
        "links.satellite.up.queue=100 packets",
        "transfers.file.congestion=reno",
        "transfers.file.bytes=20 MB",
        &format!("nodes.terminal.agents={terminal}"),
        &format!("nodes.gateway.agents={gateway}"),
    ];
    let plan = plan(&format!("{FILE}{AGENTS}"), &set);
    let book = Rc::new(RefCell::new(Book::default()));
    let agents = |plan: &midhop_experiment::Plan| {
        let witness = |name, at_receiver| {
            let at = plan.nodes.iter().position(|node| node.name == name).expect("named");
            let witness = Witness { at_receiver, book: Rc::clone(&book) };
            (NodeId(at as u16), Box::new(witness) as Box<dyn Agent>)
        };
        Ok(vec![witness("client", true), witness("server", false)])
    };
    let options = Options { agents: &agents, checking: true, ..Options::default() };
    let (record, _) = run(&plan, &options).unwrap_or_else(|error| panic!("{error}"));
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0]);
    let marks: u64 = record.links.iter().map(|link| link.marks).sum();
    let closed = book.borrow().closed.clone();
    assert!(closed.len() > 2 && closed.len() as u64 <= marks, "{marks}: {closed:?}");
    closed
}

/// One acknowledgement of 52 bytes on the narrow link, and the rest of the way back.
const SLOT: Duration = Duration::from_us(52 * 8 * 1_000_000 / 60_000);
const CABLES: Duration = Duration::from_us(35_300);

#[test]
fn an_echo_waits_for_no_more_than_a_few_others() {
    // At most three acknowledgements wait before an echo: the one that is being sent, the last echo
    // of an earlier mark, and one without an echo behind that. The echo's own time is added.
    let most = CABLES + SLOT + SLOT + SLOT + SLOT;
    for (terminal, gateway) in [("[\"thin\"]", "[]"), ("[\"thin\"]", "[\"even\"]")] {
        for echo in echoes(terminal, gateway) {
            let received = echo.received.expect("the sender reduced its window for it");
            let took = received.saturating_since(echo.marked);
            assert!(took <= most, "{terminal} {gateway}: {took}, at most {most}");
        }
    }
}

#[test]
fn decimation_leaves_out_no_first_echo() {
    // One in four of 417 acknowledgements a second are 104, of which the narrow link can carry 144.
    // The first of each kind, and what was held before it, are added.
    let most = CABLES + SLOT + SLOT + SLOT + SLOT;
    for echo in echoes("[\"few\"]", "[]") {
        let received = echo.received.expect("the sender reduced its window for it");
        let took = received.saturating_since(echo.marked);
        assert!(took <= most, "{took}, at most {most}");
    }
}
