//! Peers at one moment.

use crate::ledger::{PeerBook, Repaired};
use midhop_pep::source::Condition;
use midhop_status::snapshot::PeerSnapshot;
use midhop_units::{Bytes, Duration};

/// Adds what one worker has booked.
pub(super) fn add(at: &mut PeerSnapshot, book: &PeerBook) {
    at.sent_packets_total += book.sent_packets;
    at.lost_packets_total += book.lost_packets;
    at.opened_total += book.opened;
    at.tcp_opened_total += book.tcp_opened;
    at.open_failures_total += book.open_failures;
    at.retry_pause = book.retry_pause.map(duration).or(at.retry_pause);
    at.carrier = book.carrier.or(at.carrier);
    at.carrier_changes_total += book.carrier_changes;
    at.tcp_trials_total += book.tcp_trials;
    at.vain_tcp_trials_total += book.vain_tcp_trials;
    at.violations_total += book.violations;
    at.certificate_expires_unix_s = book.certificate_until.or(at.certificate_expires_unix_s);
    let failures = at.failure.take().into_iter().chain(book.trouble.clone());
    at.failure = failures.max_by_key(|trouble| trouble.at_unix_s);
    add_repaired(at, &book.repaired);
    for tunnel in book.open.values() {
        at.tunnels += 1;
        at.tcp_tunnels += u64::from(tunnel.is_tcp);
        at.closing_tunnels += u64::from(tunnel.is_closing);
        at.rtt = Some(duration(tunnel.rtt));
        at.rtt_min = at.rtt_min.into_iter().chain([duration(tunnel.rtt_min)]).min();
        for condition in Condition::ALL {
            at.conditions.entry(condition.name()).or_default();
        }
        at.window += tunnel.window;
        at.rate = tunnel.rate.or(at.rate);
        at.carried = tunnel.carried.or(at.carried);
        at.reported = tunnel.reported.or(at.reported);
        at.in_flight += tunnel.in_flight;
        at.streams += tunnel.streams;
        at.sent_packets_total += tunnel.sent_packets;
        at.lost_packets_total += tunnel.lost_packets;
        add_repaired(at, &tunnel.repaired);
    }
}

fn duration(time: std::time::Duration) -> Duration {
    Duration::from_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn add_repaired(at: &mut PeerSnapshot, repaired: &Repaired) {
    at.repairs_sent_total += repaired.sent;
    at.repaired_total += repaired.given_back;
    at.protected_total += repaired.protected;
    at.repair_total += repaired.added;
    if repaired.protected > Bytes::ZERO {
        at.loss = Some(repaired.missed);
    }
}
