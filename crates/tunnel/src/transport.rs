//! The QUIC transport settings that a leg needs.

use crate::control::Steering;
use crate::fec;
use midhop_congestion::{BuildError, Law, Settings};
use midhop_units::{Bytes, Duration, Rate};
use quinn_proto::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use std::sync::Arc;

/// Used if no round-trip time is configured: a geostationary leg (RFC 9002 has 333 ms for the internet at large).
const RTT_DEFAULT: Duration = Duration::from_ms(600);
/// Used for acknowledgements if no rate is known: no leg that we have seen carries more.
const RATE_DEFAULT: Rate = Rate::from_mbit_per_s(200);
/// Used for flow control if no window is configured.
const WINDOW_DEFAULT: Bytes = Bytes::new(32 << 20);
/// The size of an acknowledgement on a lossy path: headers and some dozens of ranges. Unit: bytes.
const ACK_SIZE: u64 = 250;
/// The part of the return leg that acknowledgements may take. Unit: percent.
const ACK_PERCENT: u64 = 40;
/// At least so many acknowledgements per round trip, whatever the return leg carries: otherwise windows and repairs
/// would be late.
const ACKS_PER_RTT_MIN: u64 = 6;
/// At most so many.
const ACKS_PER_RTT_MAX: u64 = 32;
/// The shortest acknowledgement delay that timers can keep.
const ACK_DELAY_MIN: Duration = Duration::from_ms(1);
/// The most datagrams that one acknowledgement covers: it names 64 gaps, one for every eight of these.
const ACK_EVERY_MAX: u64 = 500;
/// The headers of IP and UDP: over IPv4, over IPv6. Unit: bytes.
const OVERHEAD: [u64; 2] = [28, 48];
/// A window for a known rate exceeds the product by this much, for the queue that may stand at the bottleneck.
const WINDOW_PERCENT: u64 = 120;
/// A repair arrives within this time, or not at all: the time that one repair covers. Unit: round trips.
const REPAIRED_WITHIN: f32 = 1.25;

/// A leg, as one of its ends sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct LegSettings {
    /// The round-trip time without queues. Default: unknown; 600 ms are assumed.
    pub rtt: Option<Duration>,
    /// The rate that the leg carries away from here, at its IP layer. Default: unknown.
    pub rate: Option<Rate>,
    /// The rate that it carries towards here. Default: unknown.
    pub return_rate: Option<Rate>,
    /// The largest IP packet. Default: 1500 bytes.
    pub mtu: u16,
    /// Whether its packets are IPv6. Default: no.
    pub ipv6: bool,
    /// What a layer below QUIC may add to a datagram. Default: nothing.
    pub headroom: u16,
    /// Whether a layer below QUIC repairs losses, with a delay of more than a few datagrams. Default: no.
    pub repaired: bool,
    /// How many streams the peer may have open. Default: 4096.
    pub streams_max: u32,
    /// After so long without a packet the connection is lost. Default: 60 s.
    pub idle_timeout: Duration,
    /// How often an idle connection sends a keep-alive. Default: 15 s.
    pub keep_alive: Duration,
    /// How much may be sent and unacknowledged. Default: 32 MiB.
    pub send_window: Bytes,
    /// How much may be received of one stream and unread. Default: 32 MiB.
    pub stream_window: Bytes,
    /// How much may be received of all streams and unread. Default: 32 MiB.
    pub receive_window: Bytes,
}

impl Default for LegSettings {
    fn default() -> Self {
        Self {
            rtt: None,
            rate: None,
            return_rate: None,
            mtu: 1500,
            ipv6: false,
            headroom: 0,
            repaired: false,
            streams_max: 4096,
            idle_timeout: Duration::from_s(60),
            keep_alive: Duration::from_s(15),
            send_window: WINDOW_DEFAULT,
            stream_window: WINDOW_DEFAULT,
            receive_window: WINDOW_DEFAULT,
        }
    }
}

impl LegSettings {
    /// What the leg carries of each datagram beyond the UDP payload.
    pub fn overhead(&self) -> Bytes {
        Bytes::new(OVERHEAD[usize::from(self.ipv6)])
    }

    /// The largest datagram that QUIC may make.
    pub fn datagram_max(&self) -> u16 {
        let added = self.overhead().get() + u64::from(self.headroom);
        let payload = u64::from(self.mtu).saturating_sub(added);
        u16::try_from(payload).unwrap_or(u16::MAX).max(1200)
    }

    /// The same leg with a [shim](crate::fec::Shim) below QUIC, for ends that may agree on it.
    #[must_use]
    pub fn repaired(self) -> Self {
        Self { headroom: fec::HEADROOM, repaired: true, ..self }
    }

    /// The shim's settings for this leg.
    pub fn fec(&self) -> fec::FecSettings {
        fec::FecSettings { rtt: self.rtt(), ..fec::FecSettings::default() }
    }

    /// The congestion control of a connection over this leg. `settings` has what the leg does not decide.
    ///
    /// # Errors
    /// When the algorithm does not support the settings.
    pub fn steering(&self, settings: Settings) -> Result<Arc<Steering>, BuildError> {
        Ok(Arc::new(Steering::new(self.complete(settings), self.overhead())?))
    }

    /// Changes the congestion control of a connection over this leg.
    ///
    /// # Errors
    /// When the algorithm does not support the settings; then nothing changes.
    pub fn turn(
        &self,
        steering: &Steering,
        now: std::time::Instant,
        settings: Settings,
    ) -> Result<(), BuildError> {
        steering.turn(now, self.complete(settings))
    }

    /// Completes the settings with what the leg decides.
    fn complete(&self, mut settings: Settings) -> Settings {
        if let Law::KnownRate(own) = &mut settings.law {
            own.rtt = own.rtt.or(self.rtt);
            own.overhead = self.overhead();
            own.bounds.window_percent = self.window_percent();
        }
        if let Some(own) = &mut settings.committed {
            own.rtt = own.rtt.or(self.rtt);
            own.overhead = self.overhead();
        }
        settings
    }

    /// The window for a known rate, in percent of the product of rate and round-trip time: the product, what waits
    /// for an acknowledgement that is delayed on purpose, and what may wait at the bottleneck.
    fn window_percent(&self) -> u32 {
        let rtt_us = (self.rtt() / 1000).as_ns().max(1);
        let slack_us = ((self.ack_delay() + crate::pacer::LATE_MAX) / 1000).as_ns();
        u32::try_from(WINDOW_PERCENT + 100 * slack_us / rtt_us).unwrap_or(u32::MAX)
    }

    fn rtt(&self) -> Duration {
        self.rtt.unwrap_or(RTT_DEFAULT).max(Duration::from_us(1))
    }

    /// How long the peer may delay the acknowledgement of what this end sends.
    pub fn ack_delay(&self) -> Duration {
        let rtt = self.rtt();
        let affordable = self
            .return_rate
            .map_or(Duration::ZERO, |rate| rate.time_for(Bytes::new(ACK_SIZE * 100 / ACK_PERCENT)));
        affordable.max(rtt / ACKS_PER_RTT_MAX).min(rtt / ACKS_PER_RTT_MIN).max(ACK_DELAY_MIN)
    }

    /// Twice the datagrams that leave in that time, so that the delay decides when the sender is busy.
    fn ack_every(&self) -> u64 {
        let rate = self.rate.unwrap_or(RATE_DEFAULT);
        let datagrams = rate.bytes_in(self.ack_delay()).get() / u64::from(self.mtu.max(1));
        (2 * datagrams).clamp(2, ACK_EVERY_MAX)
    }

    /// The packet threshold for reordering: how many datagrams may overtake one before it counts as lost.
    fn reordering(&self) -> u32 {
        // A repair takes time: then the time threshold decides, not the count.
        if !self.repaired {
            return 3;
        }
        let rate = self.rate.unwrap_or(RATE_DEFAULT);
        let datagrams = rate.bytes_in(self.rtt() / 2).get() / u64::from(self.mtu.max(1));
        u32::try_from(datagrams).unwrap_or(u32::MAX).clamp(16, 10_000)
    }

    /// The time threshold for reordering, in round trips.
    fn patience(&self) -> f32 {
        if self.repaired { REPAIRED_WITHIN } else { 9.0 / 8.0 }
    }
}

/// QUIC's settings for a connection over this leg.
///
/// - Flow control follows the [plan of a peer](crate::peer), which derives it from the product of rate and
///   round-trip time. QUIC does not divide the send window among streams: the writer must keep any one stream from
///   filling it.
/// - The peer is asked to acknowledge (draft-ietf-quic-ack-frequency) as seldom as the return leg needs it: 32
///   times per round trip, or as often as fits into two fifths of the return rate, but at least six times. A gap
///   alone causes no acknowledgement.
/// - Until it is measured, the round-trip time is the leg's, so that nothing is retransmitted too early.
pub fn transport(leg: &LegSettings, steering: Arc<Steering>) -> TransportConfig {
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(varint(leg.ack_every()))
        .max_ack_delay(Some(leg.ack_delay().into()))
        .reordering_threshold(varint(0));
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(leg.datagram_max());
    let idle_ms = leg.idle_timeout.as_ns() / 1_000_000;
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(leg.streams_max.into())
        .max_idle_timeout(Some(IdleTimeout::from(varint(idle_ms))))
        .keep_alive_interval(Some(leg.keep_alive.into()))
        .stream_receive_window(varint(leg.stream_window.get()))
        .receive_window(varint(leg.receive_window.get()))
        .send_window(leg.send_window.get())
        .initial_rtt(leg.rtt().into())
        .packet_threshold(leg.reordering())
        .time_threshold(leg.patience())
        .mtu_discovery_config(Some(discovery))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(steering);
    config
}

fn varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_congestion::{Algorithm, Opening, committed};

    fn geo() -> LegSettings {
        LegSettings {
            rtt: Some(Duration::from_ms(600)),
            rate: Some(Rate::from_mbit_per_s(140)),
            return_rate: Some(Rate::from_bits_per_s(60_000)),
            ..LegSettings::default()
        }
    }

    #[test]
    fn acknowledgements_fit_the_return_leg() {
        let leg = geo();
        let per_s = 1.0 / leg.ack_delay().as_s_f64();
        assert!(per_s * ACK_SIZE as f64 * 8.0 <= 0.4 * 60_000.0, "{per_s} a second");
        // The delay decides, not the count.
        let datagrams = leg.rate.unwrap_or_default().bytes_in(leg.ack_delay()).get() / 1500;
        assert!(leg.ack_every() >= datagrams.min(ACK_EVERY_MAX));
        let wide = LegSettings { return_rate: Some(Rate::from_mbit_per_s(5)), ..geo() };
        assert_eq!(wide.ack_delay(), Duration::from_us(18_750));
        let near = LegSettings { rtt: Some(Duration::from_ms(10)), ..wide };
        assert_eq!(near.ack_delay(), Duration::from_ms(1));
        // The delay stays bounded on a hopelessly slow return leg.
        let narrow = LegSettings { return_rate: Some(Rate::from_bits_per_s(1200)), ..geo() };
        assert_eq!(narrow.ack_delay(), Duration::from_ms(100));
    }

    #[test]
    fn datagrams_fit_the_leg_with_all_that_is_added() {
        assert_eq!(LegSettings::default().datagram_max(), 1472);
        let v6 = LegSettings { ipv6: true, headroom: 8, ..LegSettings::default() };
        assert_eq!((v6.datagram_max(), v6.overhead()), (1444, Bytes::new(48)));
        assert_eq!(LegSettings { mtu: 576, ..LegSettings::default() }.datagram_max(), 1200);
    }

    #[test]
    fn a_known_rate_is_the_leg_s() {
        let leg = geo();
        let steering = leg.steering(known()).expect("a leg");
        let rate = steering.pace().rate().map(|rate| rate.mbit_per_s());
        assert!(rate.is_some_and(|mbit| (mbit - 140.0).abs() < 0.001), "{rate:?}");
        // The product plus what waits on purpose: 120 % + 135 ms of 600.
        let product = 10_500_000.0 * 1200.0 / 1228.0;
        let window = steering.pace().window().get() as f64 / product;
        assert!((1.2..1.43).contains(&window), "{window}");
    }

    /// The rate of [`geo`] for a law.
    fn known() -> Settings {
        Settings::of(Law::usual(Algorithm::KnownRate, geo().rate).expect("a rate is known"))
    }

    #[test]
    fn a_committed_rate_takes_the_leg_s_round_trip_and_overhead() {
        let promised = committed::CommittedSettings::new(Rate::from_mbit_per_s(2));
        let settings = Settings { committed: Some(promised), ..Settings::of(Law::Cubic) };
        let committed = geo().complete(settings).committed.expect("what was promised");
        assert_eq!((committed.rtt, committed.overhead), (geo().rtt, Bytes::new(28)));
    }

    #[test]
    fn what_steers_may_learn_late_who_the_peer_is() {
        let unknown = LegSettings { rate: None, ..geo() };
        let steering = unknown.steering(Settings::of(Law::BbrV3)).expect("a steering");
        #[expect(clippy::disallowed_methods, reason = "there is no other way to have an instant")]
        let now = std::time::Instant::now();
        let mut spread = Settings::of(Law::BbrV3);
        spread.opening = Opening::Spread;
        unknown.turn(&steering, now, spread).expect_err("BBR begins by a rule of its own");
        geo().turn(&steering, now, known()).expect("a known rate");
        let rate = steering.pace().rate().map(|rate| rate.mbit_per_s());
        assert!(rate.is_some_and(|mbit| (mbit - 140.0).abs() < 0.001), "{rate:?}");
    }
}
