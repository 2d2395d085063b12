//! The TCP of a host's plan, as the settings of its endpoints.
//!
//! Where the plan gives no value it is the TCP of a host of the testbed: its sysctls, and its meter's way of
//! writing and reading.

use midhop_experiment::limit::Family;
use midhop_experiment::record::PhaseTimes;
use midhop_experiment::tcp::{self, TcpPlan};
use midhop_tcp::{Autotuning, DelayedAck, Endpoint, LossDetection, RtoRule, Settings};
use midhop_units::{Bytes, Instant};

/// Headers of IP and TCP without options, by [`Family`]. Unit: bytes.
const HEADERS: [u32; 2] = [40, 60];
/// The largest window of the receiver: half of the largest buffer (`tcp_rmem`) of the testbed,
/// since the kernel keeps half for its overhead.
const RECEIVE_BUFFER: Bytes = Bytes::new(64 << 20);
/// The first window of the receiver: half of the default buffer of Linux.
const RECEIVE_BUFFER_FIRST: Bytes = Bytes::new(65_536);

/// The settings of a host's endpoints. The congestion control decides whether they pace.
pub(crate) fn settings(plan: &TcpPlan, family: Family) -> Settings {
    let mss = plan.packet.saturating_sub(HEADERS[usize::from(family == Family::Ipv6)]);
    Settings {
        mss: u16::try_from(mss).unwrap_or(u16::MAX),
        receive_buffer: plan.receive_buffer.unwrap_or(RECEIVE_BUFFER),
        receive_autotuning: match plan.receive_buffer {
            Some(_) => None,
            None => Some(Autotuning { initial: RECEIVE_BUFFER_FIRST }),
        },
        // Written data is available at once: there are no bytes to store.
        send_buffer: plan.send_buffer.unwrap_or(Bytes::MAX),
        sack: plan.sack,
        newreno: plan.newreno,
        timestamps: plan.timestamps,
        window_scaling: plan.window_scaling,
        ecn: plan.ecn,
        delayed_ack: DelayedAck {
            segments: plan.delayed_ack.segments,
            timeout: plan.delayed_ack.timeout,
            quick: plan.delayed_ack.quick,
        },
        loss_detection: match plan.loss_detection {
            tcp::LossDetection::Rack => LossDetection::Rack,
            tcp::LossDetection::RackWithoutProbe => LossDetection::RackWithoutProbe,
            tcp::LossDetection::DupThresh => LossDetection::DupThresh,
        },
        limited_transmit: plan.limited_transmit,
        prr: plan.prr,
        rto: match plan.rto {
            tcp::Rto::Linux => RtoRule::Linux,
            tcp::Rto::Rfc6298 => RtoRule::Rfc6298,
        },
        undo: plan.undo,
        nagle: false,
        slow_start_after_idle: plan.restart_after_idle,
        ..Settings::default()
    }
}

/// The overhead of a full segment of such an endpoint beyond its payload.
pub(crate) fn overhead(settings: &Settings, family: Family) -> Bytes {
    let options = u64::from(settings.mss).saturating_sub(settings.segment_payload().get());
    Bytes::new(u64::from(HEADERS[usize::from(family == Family::Ipv6)]) + options)
}

/// How long an endpoint's sender was in each phase by `now`, in the record's form.
pub(crate) fn phases(endpoint: &Endpoint, now: Instant) -> PhaseTimes {
    let midhop_tcp::PhaseTimes { slow_start, avoidance, recovery, loss } =
        endpoint.phase_times(now);
    PhaseTimes { slow_start, avoidance, recovery, loss }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_wishes_is_a_host_of_the_testbed() {
        let host = Settings {
            receive_buffer: Bytes::new(64 << 20),
            receive_autotuning: Some(Autotuning { initial: Bytes::new(65_536) }),
            send_buffer: Bytes::MAX,
            nagle: false,
            slow_start_after_idle: false,
            ..Settings::default()
        };
        assert_eq!(settings(&TcpPlan::default(), Family::Ipv4), host);
        let over_ipv6 = Settings { mss: 1440, ..host };
        assert_eq!(settings(&TcpPlan::default(), Family::Ipv6), over_ipv6);
    }
}
