//! Peers that move what is no flow, or what is not to be moved there.

use crate::ends::{Authority, far_config};
use crate::stage::{self, Family, Stage, until};
use crate::visitor::{Flow, Shown, Visitor};
use midhop_linux::tcp_repair::{
    Buffer, Buffers, Keepalive, LocalEnd, Negotiated, PathState, ReceiveQueue, SendQueue,
    SocketOptions, TcpSnapshot, Window,
};
use midhop_tunnel::http3::{Frame, frame};
use midhop_tunnel::relocation::copies::{Advance, LeftOut};
use midhop_tunnel::relocation::{
    AnnouncedFlow, FLOWS_MAX, FlowOffer, encode_announced, encode_offer, request,
};
use midhopd::data_plane::DataPlane;
use std::net::SocketAddr;

const FAMILY: Family = Family::V4;
/// Somewhere behind the only link of the far end.
const SERVER: &str = "10.0.9.9:80";
const CLIENT: &str = "10.0.1.2:5000";

struct Door {
    far: DataPlane,
    visitor: Visitor,
    shown: Shown,
    _stage: Stage,
    _authority: Authority,
}

impl Door {
    fn set(more: &str) -> Option<Self> {
        let stage = Stage::set()?;
        let authority = Authority::new(&["near", "far"]);
        let more = format!("{more}[intercept]\ninterfaces = \"wan0\"\n");
        let far = stage::start(&stage.server, &far_config(FAMILY, &authority, &more));
        let visitor = Visitor::new(&stage.gateway);
        let shown = Shown::of(&authority, "near");
        Some(Self { far, visitor, shown, _stage: stage, _authority: authority })
    }

    /// Asks whether flows may move there: the status of the answer.
    fn ask(&self) -> (String, Flow) {
        let (answer, flow) = self.visitor.ask_with("far", &self.shown, &request("far:4433"));
        (answer[0].value.to_string(), flow)
    }

    fn granted(&self) -> Flow {
        let mut granted = None;
        until("the place is free", || {
            let (status, flow) = self.ask();
            granted = (status == "200").then_some(flow);
            granted.is_some()
        });
        granted.expect("a stream")
    }

    fn send(&self, flow: &mut Flow, message: &[u8]) {
        let mut stream = Vec::new();
        message.chunks(5000).for_each(|piece| frame::write(frame::DATA, piece, &mut stream));
        // The other end may have broken off before it has all.
        let _ = self.visitor.runtime.block_on(flow.send.write_all(&stream));
    }

    fn answer(&self, flow: &mut Flow, count: usize) -> Vec<u8> {
        let mut octets = Vec::new();
        while octets.len() < count {
            match self.visitor.runtime.block_on(flow.frame()).expect("no reset") {
                Some(Frame::Data(bytes)) => octets.extend_from_slice(&bytes),
                other => panic!("{other:?}"),
            }
        }
        octets
    }

    fn is_broken_off(&self, flow: &mut Flow) -> bool {
        matches!(self.visitor.runtime.block_on(flow.frame()), Err(quinn::ReadError::Reset(_)))
    }

    /// Whether nothing of a flow that was offered is left, but for rules that drop its packets for a while.
    fn is_clean(&self) -> bool {
        self.far.admission().flows() == 0
    }
}

fn end(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// The state of a connection that there is nowhere.
fn state(local: &str, remote: &str) -> TcpSnapshot {
    let buffer = Buffer { bytes: 1 << 17, locked: false };
    let keepalive = Keepalive { on: false, idle_s: 7200, interval_s: 75, probes: 9 };
    TcpSnapshot {
        local: end(local),
        remote: end(remote),
        local_end: LocalEnd::Open,
        remote_ended: false,
        send: SendQueue { unacknowledged: 77, sent: b"sent".to_vec(), unsent: b"unsent".to_vec() },
        receive: ReceiveQueue { next: 1077, unread: b"unread".to_vec() },
        negotiated: Negotiated {
            mss: 1400,
            selective_acks: true,
            window_scales: None,
            timestamps: None,
            ecn: false,
        },
        window: Window {
            send_updated_at: 1077,
            send: 5000,
            send_max: 5000,
            receive: 9000,
            receive_updated_at: 1077,
        },
        buffers: Buffers { receive: buffer, send: buffer },
        options: SocketOptions {
            no_delay: true,
            cork: false,
            keepalive,
            user_timeout_ms: 0,
            traffic_class: 0,
            unsent_low_water: 0,
            window_clamp: 65_535,
            pacing_rate_max: u64::MAX,
            congestion_control: "reno".to_owned(),
        },
        path: PathState::default(),
    }
}

fn offer(client: &str, server: &str) -> FlowOffer {
    let connections = [state(server, client), state(client, server)];
    FlowOffer { connections: connections.map(|state| state.encode()), left_out: None }
}

/// Without copies in front.
fn encode_offers(offers: &[Option<FlowOffer>]) -> Vec<u8> {
    let states = offers.iter().flat_map(|offer| encode_offer(offer.as_ref()));
    Advance::States.encode().into_iter().chain(states).collect()
}

fn announced(client: &str, server: &str) -> AnnouncedFlow {
    AnnouncedFlow { client: end(client), server: end(server), dscp: 0 }
}

#[test]
fn what_is_no_flow_does_not_move() {
    let Some(door) = Door::set("moves = \"accept\"\n") else { return };
    let beyond = [&[0, 1][..], &u32::MAX.to_be_bytes()].concat();
    for broken in [vec![0, 0], (FLOWS_MAX as u16 + 1).to_be_bytes().to_vec(), beyond] {
        let mut flow = door.granted();
        door.send(&mut flow, &broken);
        assert!(door.is_broken_off(&mut flow));
    }
    let sound = offer(CLIENT, SERVER);
    let garbage = FlowOffer { connections: [b"garbage".to_vec(), Vec::new()], left_out: None };
    let [client, server] = sound.connections.clone();
    let turned = FlowOffer { connections: [server.clone(), client.clone()], left_out: None };
    let twice = FlowOffer { connections: [client.clone(), client], left_out: None };
    let large = TcpSnapshot {
        send: SendQueue { unacknowledged: 7, sent: vec![7; 9_000_000], unsent: Vec::new() },
        ..state("10.0.9.9:84", "10.0.1.2:5004")
    };
    let large = FlowOffer {
        connections: [large.encode(), state("10.0.1.2:5004", "10.0.9.9:84").encode()],
        left_out: None,
    };
    let flows = [
        (CLIENT, SERVER, Some(sound.clone())),
        ("10.0.1.2:5001", "10.0.9.9:81", Some(garbage)),
        ("10.0.1.2:5002", "10.0.9.9:82", Some(twice)),
        ("10.0.1.2:5003", "10.0.9.9:83", Some(turned)),
        ("10.0.1.2:5004", "10.0.9.9:84", Some(large)),
        // Another flow than the one that was announced.
        ("10.0.1.2:5005", "10.0.9.9:85", Some(sound.clone())),
        // Where it goes is the far end itself.
        ("10.0.1.2:5006", "10.0.2.2:80", None),
        // Twice the same.
        (CLIENT, SERVER, None),
        // It stays.
        ("10.0.1.2:5007", "10.0.9.9:87", None),
    ];
    let mut flow = door.granted();
    let names: Vec<_> = flows.iter().map(|(client, server, _)| announced(client, server)).collect();
    door.send(&mut flow, &encode_announced(&names));
    assert_eq!(door.answer(&mut flow, flows.len()), [0, 0, 0, 0, 0, 0, 4, 5, 0]);
    let offers: Vec<_> = flows.into_iter().map(|(_, _, offer)| offer).collect();
    door.send(&mut flow, &encode_offers(&offers));
    let answers = door.answer(&mut flow, offers.len());
    assert_eq!(answers, [0, 1, 1, 1, 0, 1, 4, 5, 1]);
    // While they wait, there is room for a few others and no more.
    let others: Vec<_> =
        (0..).map(|_| door.ask()).take_while(|(status, _)| status == "200").collect();
    assert!((1..16).contains(&others.len()), "{}", others.len());
    drop(others);
    // No commit comes.
    drop(flow);
    until("nothing is left of it", || door.is_clean());
    // What is no commit ends it as well.
    let mut flow = door.granted();
    door.send(&mut flow, &encode_announced(&[announced(CLIENT, SERVER)]));
    assert_eq!(door.answer(&mut flow, 1), [0]);
    door.send(&mut flow, &encode_offers(&[Some(sound.clone())]));
    assert_eq!(door.answer(&mut flow, 1), [0]);
    door.send(&mut flow, &[9]);
    assert!(door.is_broken_off(&mut flow));
    until("nothing is left of it", || door.is_clean());
    // A flow that stays at the old place is discarded, and one that comes goes on.
    let mut flow = door.granted();
    let other = "10.0.1.2:6000";
    door.send(&mut flow, &encode_announced(&[announced(CLIENT, SERVER), announced(other, SERVER)]));
    assert_eq!(door.answer(&mut flow, 2), [0, 0]);
    door.send(&mut flow, &encode_offers(&[Some(sound), Some(offer(other, SERVER))]));
    assert_eq!(door.answer(&mut flow, 2), [0, 0]);
    door.send(&mut flow, &[0, 1]);
    assert_eq!(door.answer(&mut flow, 2), [1, 0]);
    until("one goes on", || door.far.admission().flows() == 1);
}

#[test]
fn what_was_left_out_has_to_be_there() {
    let Some(door) = Door::set("moves = \"accept\"\n") else { return };
    let left_out = |from, length| LeftOut { at: 2, from, length };
    let flows = [
        // Of the copy, all or a part, or more; or behind the queue.
        ([left_out(0, 900_000); 1], true),
        ([left_out(400_000, 300_000); 1], true),
        ([left_out(1, 900_000); 1], false),
        ([LeftOut { at: 5, from: 0, length: 1 }; 1], false),
    ];
    for (number, ([sent], fits)) in flows.into_iter().enumerate() {
        let mut flow = door.granted();
        let (client, server) = (format!("10.0.1.2:{}", 7000 + number), SERVER);
        door.send(&mut flow, &encode_announced(&[announced(&client, server)]));
        assert_eq!(door.answer(&mut flow, 1), [0]);
        for _ in 0..3 {
            let copy = Advance::Copy { flow: 0, direction: 1, bytes: vec![7; 300_000] };
            door.send(&mut flow, &copy.encode());
        }
        door.send(&mut flow, &Advance::Confirm.encode());
        assert_eq!(door.answer(&mut flow, 1), [0]);
        let none = LeftOut::default();
        let left_out = Some([[none; 3], [sent, none, none]]);
        let offer = FlowOffer { left_out, ..offer(&client, server) };
        door.send(&mut flow, &encode_offers(&[Some(offer)]));
        assert_eq!(door.answer(&mut flow, 1), [u8::from(!fits)], "{sent:?}");
    }
    // What is no copy ends it.
    let copy = Advance::Copy { flow: 1, direction: 0, bytes: vec![7] };
    for broken in [copy.encode(), vec![9]] {
        let mut flow = door.granted();
        door.send(&mut flow, &encode_announced(&[announced(CLIENT, SERVER)]));
        assert_eq!(door.answer(&mut flow, 1), [0]);
        door.send(&mut flow, &broken);
        assert!(door.is_broken_off(&mut flow));
    }
    until("nothing is left of it", || door.is_clean());
}

#[test]
fn a_peer_that_may_not_gets_no_further() {
    let Some(door) = Door::set("") else { return };
    let (status, _) = door.ask();
    assert_eq!(status, "403");
    assert!(door.is_clean());
}
