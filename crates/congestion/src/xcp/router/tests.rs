//! Tests of the router's arithmetic, and of routers and senders together.

use super::*;
use crate::{
    Ack, CongestionControl, Established,
    xcp::{DEMAND_MAX_Q16, Receiver, Xcp, XcpSettings},
};
use proptest::prelude::*;
use std::collections::VecDeque;

const SIZE: Bytes = Bytes::new(1500);

fn header(window: u64, rtt_ms: u64) -> Header {
    let window = Bytes::new(window);
    Header { window, rtt: Duration::from_ms(rtt_ms), feedback_q16: DEMAND_MAX_Q16 }
}

fn at(us: u64) -> Instant {
    Instant::from_ns(us * 1000)
}

/// Sends `headers` in turn, `count` segments evenly over an interval of 600 ms that begins at
/// `from_us`; returns the total for each header. Unit: bytes.
fn interval(
    router: &mut Router,
    headers: &[Header],
    count: u64,
    from_us: u64,
    queue: Bytes,
) -> Vec<f64> {
    let mut got = vec![0.0; headers.len()];
    for n in 0..count {
        let which = n as usize % headers.len();
        let mut header = headers[which];
        let now = at(from_us + n * 600_000 / count);
        router.on_arrival(now, SIZE, &header, queue);
        router.on_departure(now, SIZE, &mut header);
        got[which] += header.feedback_q16 as f64 / 65_536.0;
    }
    got
}

/// A router whose intervals last 600 ms; the first of them is over.
fn settled(capacity: Rate, headers: &[Header], count: u64, queue: Bytes) -> (Router, u64) {
    let mut router = Router::new(capacity);
    router.interval = Duration::from_ms(600);
    interval(&mut router, headers, count, 0, queue);
    (router, 600_000)
}

#[test]
fn the_aggregate_is_the_spare_rate_less_the_queue() {
    let phi = |queue| {
        let capacity = Rate::from_mbit_per_s(20).bytes_in(Duration::from_ms(600));
        let input = Rate::from_mbit_per_s(15).bytes_in(Duration::from_ms(600));
        aggregate_q16(capacity, input.get(), Some(Bytes::new(queue))) >> 16
    };
    assert_eq!(phi(0), 150_000);
    assert_eq!(phi(100_000), 127_400);
}

#[test]
fn spare_rate_goes_to_all_flows_alike_and_sums_up_to_phi() {
    // Ten flows of 112.5 kB over 600 ms send 15 of 20 Mbit/s in 750 segments.
    let flows = [header(112_500, 600); 10];
    let (mut router, from) = settled(Rate::from_mbit_per_s(20), &flows, 750, Bytes::ZERO);
    let got = interval(&mut router, &flows, 750, from, Bytes::ZERO);
    for flow in &got {
        assert!((flow - 15_000.0).abs() < 1.0, "{got:?}");
    }
    // Two hundred bytes each, except for the last, which finds only roundings in the residue.
    assert!((got.iter().sum::<f64>() - 150_000.0).abs() < 1.0, "{got:?}");
}

#[test]
fn a_queue_that_stays_is_taken_from_flows_by_their_rate() {
    // 20 of 20 Mbit/s and 600 kB in the queue: φ is −135.6 kB, and what h is shuffled nets to zero.
    let flows = [header(1_000_000, 600), header(500_000, 600)];
    let queue = Bytes::new(600_000);
    // Two segments of the first to each of the second.
    let sent = [flows[0], flows[1], flows[0]];
    let (mut router, from) = settled(Rate::from_mbit_per_s(20), &sent, 1000, queue);
    let got = interval(&mut router, &sent, 1000, from, queue);
    let sum: f64 = got.iter().sum();
    assert!((sum + 135_600.0).abs() < 10.0, "{sum}");
    let (large, small) = (got[0] + got[2], got[1]);
    // The shuffle of 14.4 kB gives each flow half and takes two thirds and one.
    let expected_large = -(135_600.0 + 14_400.0) * 2.0 / 3.0 + 14_400.0 / 2.0;
    assert!((large - expected_large).abs() < 1200.0, "{large}, {small}");
    assert!((small - (sum - large)).abs() < 1.0);
}

#[test]
fn without_spare_rate_a_tenth_is_shuffled_from_the_large_to_the_small() {
    let sent = [header(1_200_000, 600), header(300_000, 600)];
    let mut order = vec![sent[0]; 4];
    order.push(sent[1]);
    let (mut router, from) = settled(Rate::from_mbit_per_s(20), &order, 1000, Bytes::ZERO);
    let got = interval(&mut router, &order, 1000, from, Bytes::ZERO);
    let large: f64 = got[..4].iter().sum();
    let small = got[4];
    // 150 kB: half for each, four fifths and one fifth from them.
    assert!((large + 45_000.0).abs() < 500.0, "{large}");
    assert!((small - 45_000.0).abs() < 500.0, "{small}");
}

#[test]
fn what_a_flow_does_not_want_stays_for_the_others() {
    let modest = Header { feedback_q16: 50 << 16, ..header(112_500, 600) };
    let mut flows = [header(112_500, 600); 10];
    flows[0] = modest;
    let (mut router, from) = settled(Rate::from_mbit_per_s(20), &flows, 750, Bytes::ZERO);
    let got = interval(&mut router, &flows, 750, from, Bytes::ZERO);
    assert!((got[0] - 75.0 * 50.0).abs() < 1.0, "{got:?}");
    let (left, spare) = (router.positive.residue_q16 >> 16, 150_000.0 - got.iter().sum::<f64>());
    assert!((left as f64 - spare).abs() < 2.0, "{left} left of {spare}");
}

#[test]
fn a_segment_without_a_round_trip_time_gets_nothing() {
    let unknown = Header { feedback_q16: 7, ..header(15_000, 0) };
    let (mut router, from) = settled(Rate::from_mbit_per_s(20), &[unknown], 100, Bytes::ZERO);
    assert_eq!(interval(&mut router, &[unknown], 100, from, Bytes::ZERO), [0.0]);
    assert_eq!(router.interval, Duration::from_ms(600), "nor does it say how long to wait");
}

#[test]
fn a_router_left_alone_begins_anew() {
    let flows = [header(112_500, 600)];
    let (mut router, from) = settled(Rate::from_mbit_per_s(20), &flows, 75, Bytes::ZERO);
    assert_eq!(router.poll_timeout(), Some(at(600_000)));
    router.handle_timeout(at(from));
    assert!(router.positive.residue_q16 > 0);
    router.handle_timeout(at(from + 3_600_000_000));
    assert_eq!((router.poll_timeout(), router.positive.residue_q16), (None, 0));
}

proptest! {
    /// With any flows in any order an interval distributes φ, to a hundredth of
    /// all changes.
    #[test]
    fn feedback_is_conserved(
        windows in prop::collection::vec(20_000..2_000_000_u64, 1..8),
        order in prop::collection::vec(any::<prop::sample::Index>(), 200..600),
        capacity_mbit in 1..100_u64,
        queue in 0..200_000_u64,
    ) {
        let flows: Vec<Header> = windows.iter().map(|&window| header(window, 600)).collect();
        let sent: Vec<Header> = order.iter().map(|index| flows[index.index(flows.len())]).collect();
        let count = sent.len() as u64;
        let queue = Bytes::new(queue);
        let capacity = Rate::from_mbit_per_s(capacity_mbit);
        let (mut router, from) = settled(capacity, &sent, count, queue);
        let got: f64 = interval(&mut router, &sent, count, from, queue).iter().sum();
        let input = count * SIZE.get();
        let carried = capacity.bytes_in(Duration::from_ms(600));
        let phi = aggregate_q16(carried, input, Some(queue)) as f64 / 65_536.0;
        let moved = phi.abs().max(0.1 * input as f64);
        prop_assert!((got - phi).abs() < 0.01 * moved, "{got}, φ is {phi}");
    }
}

/// A sender with its own path to the shared port.
struct Flow {
    xcp: Xcp,
    receiver: Receiver,
    delay_us: u64,
    in_flight: u64,
    /// Segments on the way back, by arrival.
    acks: VecDeque<(u64, u64, i64)>,
    delivered: u64,
}

/// Two flows of 100 and 300 ms share 20 Mbit/s in steps of 100 µs; returns what each delivered in the
/// last ten of `seconds`, and the longest queue of that time. Unit: bytes.
fn share(seconds: u64) -> ([u64; 2], u64) {
    let capacity = Rate::from_mbit_per_s(20);
    let mut router = Router::new(capacity);
    let mut flows = [50_000, 150_000].map(|delay_us| {
        let mut xcp = Xcp::new(SIZE, 10, XcpSettings::default());
        let rtt = Some(Duration::from_us(2 * delay_us));
        xcp.on_established(&Established { now: at(0), rtt });
        let receiver = Receiver::default();
        Flow { xcp, receiver, delay_us, in_flight: 0, acks: VecDeque::new(), delivered: 0 }
    });
    let mut queue: VecDeque<(usize, Header, u64)> = VecDeque::new();
    let (mut credit, mut longest) = (0, 0);
    for now_us in (0..seconds * 1_000_000).step_by(100) {
        let counts = now_us >= (seconds - 10) * 1_000_000;
        for (which, flow) in flows.iter_mut().enumerate() {
            while let Some(&(due, sent, feedback_q16)) = flow.acks.front()
                && due <= now_us
            {
                flow.acks.pop_front();
                flow.in_flight -= SIZE.get();
                flow.delivered += if counts { SIZE.get() } else { 0 };
                flow.xcp.on_xcp_feedback(feedback_q16);
                flow.xcp.on_ack(&Ack {
                    now: at(now_us),
                    acked: SIZE,
                    rtt: Some(Duration::from_us(now_us - sent)),
                    in_flight: Bytes::new(flow.in_flight),
                    ..Ack::default()
                });
            }
            while flow.in_flight + SIZE.get() <= flow.xcp.window().get() {
                flow.in_flight += SIZE.get();
                let header = flow.xcp.xcp_header().expect("XCP");
                let waiting = Bytes::new(queue.len() as u64 * SIZE.get());
                router.on_arrival(at(now_us), SIZE, &header, waiting);
                queue.push_back((which, header, now_us));
            }
        }
        credit += capacity.bytes_in(Duration::from_us(100)).get();
        while credit >= SIZE.get()
            && let Some((which, mut header, sent)) = queue.pop_front()
        {
            credit -= SIZE.get();
            router.on_departure(at(now_us), SIZE, &mut header);
            let flow = &mut flows[which];
            flow.receiver.on_segment(&header);
            let back = now_us + 2 * flow.delay_us;
            flow.acks.push_back((back, sent, flow.receiver.take()));
        }
        credit = if queue.is_empty() { 0 } else { credit };
        if counts {
            longest = longest.max(queue.len() as u64 * SIZE.get());
        }
    }
    (flows.map(|flow| flow.delivered), longest)
}

#[test]
fn two_flows_fill_the_port_and_share_it_although_one_is_three_times_as_far() {
    let (delivered, longest) = share(40);
    let carried = Rate::from_mbit_per_s(20).bytes_in(Duration::from_s(10)).get() as f64;
    let total = (delivered[0] + delivered[1]) as f64;
    assert!(total > 0.93 * carried && total <= carried * 1.001, "{delivered:?} of {carried}");
    let ratio = delivered[0] as f64 / delivered[1] as f64;
    assert!((0.85..1.18).contains(&ratio), "{delivered:?}");
    assert!(longest < 100_000, "{longest} waited");
}
