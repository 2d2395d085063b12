//! Which packets enter, and how long they wait: exact limits, CoDel and PIE with simulated senders.

use crate::drive::{Driven, at_ms, ms, plan};
use midhop_path::Cause;
use midhop_units::{Bytes, Duration};
use std::collections::BTreeMap;

#[test]
fn limits_hold_to_the_packet() {
    // One packet is being sent and no longer waits; a full queue waits behind it.
    for (limit, accepted) in [
        ("15 kB", 11),
        ("14999 B", 10),
        ("1500 B", 2),
        ("0 B", 1),
        ("10 packets", 11),
        ("1 packets", 2),
        ("0 packets", 1),
    ] {
        let mut driven =
            Driven::new(&plan(&format!("rate = \"12 Mbit/s\"\nqueue = \"{limit}\"")), 1);
        for _ in 0..30 {
            driven.send(1500);
        }
        driven.run_dry();
        let counters = driven.link.counters();
        assert_eq!(counters.packets_out, accepted, "{limit}");
        assert_eq!(counters.dropped(Cause::Queue), 30 - accepted, "{limit}");
        assert_eq!(counters.queue_packets_max, accepted - 1, "{limit}");
        assert_eq!(counters.queue_bytes_max, Bytes::new(1500 * (accepted - 1)), "{limit}");
        // Drop-tail: the first packets stay.
        assert!(driven.came.iter().map(|came| came.0).eq(0..accepted), "{limit}");
    }
}

#[test]
fn a_small_packet_fits_where_a_large_one_does_not() {
    let mut driven = Driven::new(&plan("rate = \"12 Mbit/s\"\nqueue = \"2000 B\""), 1);
    for bytes in [1500, 1500, 1500, 500, 1] {
        driven.send(bytes);
    }
    driven.run_dry();
    assert!(driven.came.iter().map(|came| came.0).eq([0, 1, 3]));
}

#[test]
fn room_is_there_again_as_soon_as_a_packet_has_left() {
    let mut driven = Driven::new(&plan("rate = \"12 Mbit/s\"\nqueue = \"1 packets\""), 1);
    driven.send(1500);
    driven.send(1500);
    driven.run_until(at_ms(1));
    driven.send(1500);
    driven.run_dry();
    assert_eq!(driven.came.len(), 3);
}

/// Flows that increase their window by a packet per round trip and halve it on loss.
struct Senders {
    driven: Driven,
    flows: Vec<Flow>,
    /// Packet number → flow and number in that flow.
    owners: BTreeMap<u64, (usize, u64)>,
    sent_ns: BTreeMap<u64, u64>,
    waits_ms: Vec<f64>,
}

struct Flow {
    window: f64,
    next: u64,
    expected: u64,
    /// No second halving for losses of packets before this one.
    recover: u64,
    timer_start_ns: u64,
}

const ONE_WAY: Duration = Duration::from_ms(20);
const PACKET: u64 = 1500;

impl Senders {
    /// Round-trip time 40 ms, 10 Mbit/s: 33 packets in flight in all.
    fn run(aqm: &str, flows: usize, seconds: u64) -> Self {
        let plan = plan(&format!(
            "rate = \"10 Mbit/s\"\ndelay = \"20 ms\"\nqueue = \"1 MB\"\naqm = {aqm}"
        ));
        let flow = || Flow { window: 2.0, next: 0, expected: 0, recover: 0, timer_start_ns: 0 };
        let mut own = Self {
            driven: Driven::new(&plan, 1),
            flows: (0..flows).map(|_| flow()).collect(),
            owners: BTreeMap::new(),
            sent_ns: BTreeMap::new(),
            waits_ms: Vec::new(),
        };
        for flow in 0..flows {
            own.fill_window(flow);
        }
        let mut acks: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        while own.driven.now < at_ms(seconds * 1000) {
            let wake = own.driven.link.poll_timeout().map_or(u64::MAX, |wake| wake.as_ns());
            let ack = acks.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            own.driven.run_until(midhop_units::Instant::from_ns(wake.min(ack)));
            for (number, due) in std::mem::take(&mut own.driven.came) {
                own.note_wait(number, due.as_ns());
                acks.insert(((due + ONE_WAY).as_ns(), number), number);
            }
            while let Some(entry) = acks.first_entry() {
                if entry.key().0 > own.driven.now.as_ns() {
                    break;
                }
                let number = entry.remove();
                own.acknowledge(number);
            }
        }
        own
    }

    fn fill_window(&mut self, index: usize) {
        while ((self.flows[index].next - self.flows[index].expected) as f64)
            < self.flows[index].window
        {
            let number = self.driven.send(PACKET);
            self.sent_ns.insert(number, self.driven.now.as_ns());
            self.owners.insert(number, (index, self.flows[index].next));
            self.flows[index].next += 1;
        }
    }

    fn acknowledge(&mut self, number: u64) {
        let Some((index, place)) = self.owners.remove(&number) else { return };
        let flow = &mut self.flows[index];
        if place > flow.expected && place > flow.recover {
            flow.window = (flow.window / 2.0).max(2.0);
            flow.recover = flow.next;
        } else {
            flow.window += 1.0 / flow.window;
        }
        flow.expected = place + 1;
        flow.timer_start_ns = self.driven.now.as_ns();
        self.fill_window(index);
        for flow in 0..self.flows.len() {
            self.time_out(flow);
        }
    }

    /// A flow without an acknowledgement for a second considers everything lost and starts again.
    fn time_out(&mut self, index: usize) {
        let now = self.driven.now.as_ns();
        let flow = &mut self.flows[index];
        if now > flow.timer_start_ns + 1_000_000_000 {
            flow.timer_start_ns = now;
            flow.expected = flow.next;
            flow.window = 2.0;
            self.fill_window(index);
        }
    }

    fn note_wait(&mut self, number: u64, due_ns: u64) {
        if let Some(sent) = self.sent_ns.get(&number) {
            // 1.2 ms to send it, 20 ms of propagation.
            self.waits_ms.push((due_ns - sent) as f64 / 1e6 - 21.2);
        }
    }

    /// Mean wait of the second half of the run.
    fn mean_wait_ms(&self) -> f64 {
        let later = &self.waits_ms[self.waits_ms.len() / 2..];
        later.iter().sum::<f64>() / later.len() as f64
    }

    fn utilisation(&self, seconds: u64) -> f64 {
        self.waits_ms.len() as f64 * PACKET as f64 * 8.0 / (10e6 * seconds as f64)
    }
}

#[test]
fn aqm_keeps_the_standing_queue_near_its_target() {
    let tail = Senders::run("\"none\"", 2, 30);
    assert!(tail.mean_wait_ms() > 200.0, "drop-tail waits {} ms", tail.mean_wait_ms());
    for (aqm, least, most) in [
        ("\"codel\"", 3.0, 8.0),
        ("{ kind = \"codel\", target = \"40 ms\", interval = \"200 ms\" }", 25.0, 50.0),
        ("\"pie\"", 12.0, 20.0),
        ("{ kind = \"pie\", target = \"50 ms\" }", 42.0, 60.0),
    ] {
        let senders = Senders::run(aqm, 2, 30);
        let wait = senders.mean_wait_ms();
        assert!((least..most).contains(&wait), "{aqm} waits {wait} ms");
        let used = senders.utilisation(30);
        assert!(used > 0.9, "{aqm} uses {used} of the link");
        let counters = senders.driven.link.counters();
        assert!(counters.dropped(Cause::Aqm) > 0, "{aqm} dropped nothing");
        assert_eq!(counters.dropped(Cause::Queue), 0, "{aqm} let the queue run full");
    }
}

/// The result of a load of 12 Mbit/s on 10, for twenty seconds: marks, AQM's drops, and the numbers
/// of the packets that it dropped.
fn overload(aqm: &str, mark: fn(&mut u64) -> bool) -> (u64, u64, Vec<u64>) {
    let plan = plan(&format!("rate = \"10 Mbit/s\"\naqm = \"{aqm}\"\nqueue = \"100 MB\""));
    let mut driven = Driven::new(&plan, 1);
    driven.link = driven.link.clone().marking(mark).keeping_dropped();
    let mut dropped = Vec::new();
    for _ in 0..20_000 {
        driven.send(1500);
        driven.run_until(driven.now + ms(1));
        driven.link.check_invariants();
        while let Some(drop) = driven.link.poll_dropped() {
            dropped.push(drop.packet);
        }
    }
    let counters = driven.link.counters();
    (counters.marks, counters.dropped(Cause::Aqm), dropped)
}

/// RFC 3168: ECN-capable packets are marked, others are dropped.
#[test]
fn aqm_marks_what_can_be_marked_and_drops_the_rest() {
    for aqm in ["codel", "pie"] {
        let (marks, drops, _) = overload(aqm, |_| false);
        assert!(marks == 0 && drops > 1000, "{aqm}: {marks} marks, {drops} drops");
    }
    let (marks, drops, dropped) = overload("codel", |number| *number % 2 == 0);
    assert!(marks > 100 && drops > 100, "{marks} marks, {drops} drops");
    assert!(dropped.iter().all(|number| number % 2 == 1), "{dropped:?}");
    let (marks, drops, _) = overload("codel", |_| true);
    assert!(marks > 100 && drops == 0, "{marks} marks, {drops} drops");
    // RFC 8033 §5.1: packets of a load that does not respond to marks are dropped all the same.
    let (marks, drops, _) = overload("pie", |_| true);
    assert!(marks > 0 && drops > 1000, "{marks} marks, {drops} drops");
}

#[test]
fn aqm_leaves_an_unloaded_link_alone() {
    for aqm in ["codel", "pie"] {
        let text = format!("rate = \"10 Mbit/s\"\naqm = \"{aqm}\"\nqueue = \"1 MB\"");
        let mut driven = Driven::new(&plan(&text), 1);
        // 60 % load, and a burst of 40 packets (48 ms) every ten seconds.
        for _ in 0..10 {
            for _ in 0..40 {
                driven.send(1500);
            }
            driven.run_until(driven.now + ms(60));
            for _ in 0..5000 {
                driven.send(1500);
                driven.run_until(driven.now + ms(2));
            }
        }
        driven.run_dry();
        assert_eq!(driven.link.counters().dropped_in_all(), 0, "{aqm}");
    }
}

#[test]
fn codel_drops_ever_faster_under_a_load_that_does_not_yield() {
    let text = "rate = \"10 Mbit/s\"\naqm = \"codel\"\nqueue = \"100 MB\"";
    let mut driven = Driven::new(&plan(text), 1);
    // 12 Mbit/s into 10: only drops can keep the queue short.
    let mut drops = Vec::new();
    for _ in 0..20 {
        let before = driven.link.counters().dropped(Cause::Aqm);
        for _ in 0..1000 {
            driven.send(1500);
            driven.run_until(driven.now + ms(1));
        }
        drops.push(driven.link.counters().dropped(Cause::Aqm) - before);
    }
    // RFC 8289: the n-th drop is interval / √n after the one before, so about t² / (4 · interval²)
    // drops after t: 25 in the first second, and 50 more in each second than in the one before,
    // until the drops equal the excess.
    assert!(drops[0] > 10 && drops[0] < 40, "{drops:?}");
    assert!(drops[3] > drops[1] && drops[1] > drops[0], "{drops:?}");
    assert!(*drops.iter().max().expect("seconds") >= 160, "{drops:?}");
}
