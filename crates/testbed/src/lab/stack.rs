//! The TCP that a host's plan asks for, as kernel parameters of its namespace.
//!
//! Source of the names: the kernel's `ip-sysctl` document. Those of `net.ipv4.tcp_*` hold for IPv6 too.

use midhop_experiment::tcp::{LossDetection, TcpPlan};

/// The first key of a plan for which the kernel has no parameter per host.
pub fn lacking(plan: &TcpPlan) -> Option<&'static str> {
    let linux = TcpPlan::default();
    let keys = [
        ("send_buffer", plan.send_buffer == linux.send_buffer),
        ("delayed_ack", plan.delayed_ack == linux.delayed_ack),
        ("limited_transmit", plan.limited_transmit == linux.limited_transmit),
        ("newreno", plan.newreno == linux.newreno),
        ("prr", plan.prr == linux.prr),
        ("rto", plan.rto == linux.rto),
        ("undo", plan.undo == linux.undo),
    ];
    keys.into_iter().find(|(_, same)| !same).map(|(key, _)| key)
}

/// The parameters that differ from what every node gets.
pub(super) fn parameters(plan: &TcpPlan) -> Vec<(&'static str, String)> {
    let linux = TcpPlan::default();
    let switch = |on: bool| u8::from(on).to_string();
    let mut all = Vec::new();
    let mut set = |differs: bool, key, value| {
        if differs {
            all.push((key, value));
        }
    };
    set(plan.sack != linux.sack, "net.ipv4.tcp_sack", switch(plan.sack));
    set(plan.timestamps != linux.timestamps, "net.ipv4.tcp_timestamps", switch(plan.timestamps));
    set(
        plan.window_scaling != linux.window_scaling,
        "net.ipv4.tcp_window_scaling",
        switch(plan.window_scaling),
    );
    // The kernel's default accepts ECN when the other end requests it; a plan's host uses it only
    // if the plan enables it.
    set(true, "net.ipv4.tcp_ecn", switch(plan.ecn));
    set(
        plan.restart_after_idle,
        "net.ipv4.tcp_slow_start_after_idle",
        switch(plan.restart_after_idle),
    );
    // A host that caches thresholds also caches the kernel's other metrics: round trips,
    // reordering.
    for key in ["net.ipv4.tcp_no_metrics_save", "net.ipv4.tcp_no_ssthresh_metrics_save"] {
        set(plan.threshold_cache, key, switch(false));
    }
    let (recovery, probes) = match plan.loss_detection {
        LossDetection::Rack => ("1", "3"),
        LossDetection::RackWithoutProbe => ("1", "0"),
        LossDetection::DupThresh => ("0", "0"),
    };
    let detection = plan.loss_detection != linux.loss_detection;
    set(detection, "net.ipv4.tcp_recovery", recovery.to_owned());
    set(detection, "net.ipv4.tcp_early_retrans", probes.to_owned());
    if let Some(buffer) = plan.receive_buffer {
        // The kernel accounts segments with their overhead and offers half of the buffer; its
        // parameter is an int.
        let buffer = buffer.get().saturating_mul(2).min(i32::MAX as u64);
        set(true, "net.ipv4.tcp_rmem", format!("4096 {buffer} {buffer}"));
        set(true, "net.ipv4.tcp_moderate_rcvbuf", switch(false));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_units::Bytes;

    #[test]
    fn a_host_that_asks_for_nothing_changes_nothing_but_ecn() {
        let linux = TcpPlan::default();
        assert_eq!(lacking(&linux), None);
        assert_eq!(parameters(&linux), [("net.ipv4.tcp_ecn", "0".to_owned())]);
    }

    #[test]
    fn an_old_host_is_configured_so() {
        let old = TcpPlan {
            sack: false,
            timestamps: false,
            receive_buffer: Some(Bytes::new(65_536)),
            threshold_cache: true,
            ..TcpPlan::default()
        };
        let all = parameters(&old);
        assert!(all.contains(&("net.ipv4.tcp_sack", "0".to_owned())), "{all:?}");
        assert!(all.contains(&("net.ipv4.tcp_rmem", "4096 131072 131072".to_owned())), "{all:?}");
        let forgets = ["tcp_no_metrics_save", "tcp_no_ssthresh_metrics_save"];
        for key in forgets.map(|key| format!("net.ipv4.{key}")) {
            assert!(all.iter().any(|(it, value)| *it == key && value == "0"), "{all:?}");
        }
        assert_eq!(lacking(&TcpPlan { packet: 1024, ..old.clone() }), None);
        assert_eq!(lacking(&TcpPlan { prr: false, packet: 1024, ..old }), Some("prr"));
    }
}
