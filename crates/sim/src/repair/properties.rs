//! With any loss, delay or duplicate on any stretch, agents keep TCP's promises to the ends: see
//! [`rig`](super::rig) for the checks.

use super::rig::{Rig, Stretch};
use super::{DProxyNode, SnoopNode};
use crate::agent::Agent;
use crate::packet::NodeId;
use midhop_experiment::agents;
use midhop_tcp::{DelayedAck, LossDetection, Settings};
use midhop_units::{Bytes, Duration};
use proptest::prelude::*;

/// The agents between the ends.
#[derive(Debug, Clone, Copy)]
enum Cast {
    Snoop,
    /// With room for a few packets, and a short wait.
    TightSnoop,
    JudgingSnoop,
    TwoSnoops,
    DProxies,
    /// With room for a few packets, and a short wait.
    TightDProxies,
    SnoopBeforeDProxies,
}

fn snoop(settings: agents::Snoop, nodes: usize) -> Box<dyn Agent> {
    // Both sides count as lossy: data in both directions is cached.
    Box::new(SnoopNode::new(&settings, vec![true; nodes]))
}

fn d_proxies(settings: &agents::DProxy, first: u16, nodes: u16) -> [Box<dyn Agent>; 2] {
    let agent = |node: u16, peer: u16| -> Box<dyn Agent> {
        let beyond = (0..nodes).map(|at| if peer > node { at >= peer } else { at <= peer });
        let beyond = beyond.collect();
        Box::new(DProxyNode::new(settings, NodeId(node), NodeId(peer), beyond))
    };
    [agent(first, first + 1), agent(first + 1, first)]
}

impl Cast {
    fn agents(self) -> Vec<Box<dyn Agent>> {
        let tight = agents::Snoop {
            cache: Bytes::new(6000),
            threshold: 1,
            timer_min: Duration::from_ms(1),
            resends: 2,
            idle: Duration::from_ms(300),
            ..agents::Snoop::default()
        };
        let short = agents::DProxy {
            cache: Bytes::new(6000),
            held: Bytes::new(6000),
            hold: Duration::from_ms(30),
            idle: Duration::from_ms(300),
            ..agents::DProxy::default()
        };
        match self {
            Self::Snoop => vec![snoop(agents::Snoop::default(), 3)],
            Self::TightSnoop => vec![snoop(tight, 3)],
            Self::JudgingSnoop => {
                let judging = agents::Snoop { judges_queue: true, ..agents::Snoop::default() };
                vec![snoop(judging, 3)]
            }
            Self::TwoSnoops => {
                vec![snoop(agents::Snoop::default(), 4), snoop(tight, 4)]
            }
            Self::DProxies => d_proxies(&agents::DProxy::default(), 1, 4).into(),
            Self::TightDProxies => d_proxies(&short, 1, 4).into(),
            Self::SnoopBeforeDProxies => {
                let [near, far] = d_proxies(&agents::DProxy::default(), 2, 5);
                vec![snoop(agents::Snoop::default(), 5), near, far]
            }
        }
    }
}

fn stretch() -> impl Strategy<Value = Stretch> {
    (1_u64..80, 0_u64..20, 0_u32..80, 0_u32..50).prop_map(|(delay, jitter, lost, twice)| Stretch {
        delay: Duration::from_ms(delay),
        // Every other stretch keeps the order.
        jitter: Duration::from_ms(jitter.saturating_sub(10)),
        lost,
        twice,
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    (any::<[bool; 4]>(), 0..3_u8).prop_map(|([sack, timestamps, ecn, delayed], detection)| {
        let defaults = Rig::settings();
        Settings {
            sack,
            timestamps,
            ecn,
            delayed_ack: if delayed { defaults.delayed_ack } else { DelayedAck::NONE },
            loss_detection: match detection {
                0 => LossDetection::Rack,
                1 => LossDetection::RackWithoutProbe,
                _ => LossDetection::DupThresh,
            },
            ..defaults
        }
    })
}

fn cast() -> impl Strategy<Value = Cast> {
    prop_oneof![
        Just(Cast::Snoop),
        Just(Cast::TightSnoop),
        Just(Cast::JudgingSnoop),
        Just(Cast::TwoSnoops),
        Just(Cast::DProxies),
        Just(Cast::TightDProxies),
        Just(Cast::SnoopBeforeDProxies),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn all_arrives_and_nothing_is_acknowledged_that_did_not(
        cast in cast(),
        stretches in prop::collection::vec(stretch(), 4),
        settings in settings(),
        bytes in (0_u64..120_000, 0_u64..40_000),
        seed in any::<u64>(),
    ) {
        let agents = cast.agents();
        let stretches = stretches[..=agents.len()].to_vec();
        let mut rig = Rig::new(agents, stretches, settings, bytes.into(), seed);
        rig.run();
    }
}
