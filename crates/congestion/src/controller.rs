//! A controller: a transport's interface to any algorithm.
//!
//! It has four parts, each with one task: the law finds the window, the [opening](crate::opening)
//! sets the first one, a [committed rate](crate::committed) is a floor beneath it, and a cap bounds the pacing
//! rate as `SO_MAX_PACING_RATE` does on a socket. Only laws whose window is counted in segments take an opening
//! or a floor.
//!
//! Transports hold a [`Controller`] and no [`CongestionControl`]: a new event of the trait cannot be sent
//! before this file passes it on to the law.
//!
//! Decision 0039.

mod windowed;

pub(crate) use self::windowed::Windowed;

use crate::committed::Floor;
use crate::common::Common;
use crate::opening::ActiveOpening;
use crate::segments::Segmented;
use crate::{
    Ack, CongestionControl, Established, Handover, Loss, LostSegment, QueueReport, Restart, Rto,
    Spurious, xcp,
};
use midhop_units::{Bytes, Rate};

/// The congestion control of one connection.
///
/// The transport calls one method per event, in the order of time, and reads window and pacing rate
/// after each. It calls [`on_loss`](Self::on_loss) once per recovery, not once per lost segment; a
/// congestion mark (ECN) that begins a reduction is a loss of zero bytes.
#[derive(Debug)]
pub struct Controller {
    drive: Drive,
    /// The largest pacing rate of payload; `None`: the law's.
    cap: Option<Rate>,
}

/// The law.
#[derive(Debug)]
enum Drive {
    /// It has a rule of its own for the beginning, and cannot have a floor.
    Own(Box<dyn CongestionControl>),
    Windowed(Windowed),
}

impl Drive {
    fn get(&self) -> &dyn CongestionControl {
        match self {
            Self::Own(law) => &**law,
            Self::Windowed(windowed) => &*windowed.law,
        }
    }

    fn get_mut(&mut self) -> &mut dyn CongestionControl {
        match self {
            Self::Own(law) => &mut **law,
            Self::Windowed(windowed) => &mut *windowed.law,
        }
    }
}

impl Controller {
    /// A controller with `law` alone.
    pub fn new(law: impl CongestionControl + 'static) -> Self {
        Self { drive: Drive::Own(Box::new(law)), cap: None }
    }

    /// A controller with `law`, and with window, opening and floor from `common`.
    pub(crate) fn windowed(mut law: impl Segmented + 'static, common: &Common<'_>) -> Self {
        let window = law.segments();
        window.cwnd = common.initial_window;
        if let Some(threshold) = common.threshold {
            window.ssthresh = threshold;
        }
        let opening = ActiveOpening::new(common.opening, law.window());
        let floor = common.committed.map(|committed| Box::new(Floor::new(committed)));
        Self { drive: Drive::Windowed(Windowed { law: Box::new(law), opening, floor }), cap: None }
    }

    /// Bounds the pacing rate from now on; `None`: the law's rate. Where the law has no rate, the
    /// cap is the rate.
    pub fn cap(&mut self, rate: Option<Rate>) {
        self.cap = rate;
    }

    /// The handshake is complete. Without this call the first acknowledgement's round-trip time is
    /// the first known one.
    pub fn on_established(&mut self, established: &Established) {
        match &mut self.drive {
            Drive::Own(law) => law.on_established(established),
            Drive::Windowed(windowed) => windowed.on_established(established),
        }
    }

    /// Data has arrived.
    pub fn on_ack(&mut self, ack: &Ack) {
        match &mut self.drive {
            Drive::Own(law) => law.on_ack(ack),
            Drive::Windowed(windowed) => windowed.on_ack(ack),
        }
    }

    /// A loss begins a recovery.
    pub fn on_loss(&mut self, loss: &Loss) {
        match &mut self.drive {
            Drive::Own(law) => law.on_loss(loss),
            Drive::Windowed(windowed) => windowed.on_loss(loss),
        }
    }

    /// The retransmission timer has fired.
    pub fn on_rto(&mut self, rto: &Rto) {
        match &mut self.drive {
            Drive::Own(law) => law.on_rto(rto),
            Drive::Windowed(windowed) => windowed.on_rto(rto),
        }
    }

    /// The last loss or timeout was spurious: everything had arrived.
    pub fn on_spurious(&mut self, spurious: &Spurious) {
        match &mut self.drive {
            Drive::Own(law) => law.on_spurious(spurious),
            Drive::Windowed(windowed) => windowed.on_spurious(spurious),
        }
    }

    /// The path has changed, or will change at once.
    pub fn on_handover(&mut self, handover: &Handover) {
        match &mut self.drive {
            Drive::Own(law) => law.on_handover(handover),
            Drive::Windowed(windowed) => windowed.on_handover(handover),
        }
    }

    /// A segment has been found lost: once per transmission considered lost, by any means
    /// (also by a timeout), before the event that reports the loss as a whole.
    pub fn on_lost_segment(&mut self, segment: &LostSegment) {
        match &mut self.drive {
            Drive::Own(law) => law.on_lost_segment(segment),
            Drive::Windowed(windowed) => windowed.on_lost_segment(segment),
        }
    }

    /// Data is about to leave although nothing was in flight.
    pub fn on_restart(&mut self, restart: &Restart) {
        self.drive.get_mut().on_restart(restart);
    }

    /// This flow's part of a leg of known rate has changed. The transport keeps to it, or
    /// [caps](Self::cap) the pacing rate; an algorithm that starts at a rate uses it as its own.
    pub fn on_share(&mut self, share: Rate) {
        self.drive.get_mut().on_share(share);
    }

    /// The rate of the leg is reported, headers included: by its modem, or by whoever configures it. Only an algorithm
    /// that relies on a known rate uses it.
    pub fn on_rate(&mut self, rate: Rate) {
        self.drive.get_mut().on_rate(rate);
    }

    /// The device at the bottleneck reports its queue.
    pub fn on_queue(&mut self, report: &QueueReport) {
        self.drive.get_mut().on_queue(report);
    }

    /// An acknowledgement carries feedback of XCP routers; call it before the
    /// [`on_ack`](Self::on_ack) of the same acknowledgement. Unit: bytes, with sixteen binary places.
    pub fn on_xcp_feedback(&mut self, feedback_q16: i64) {
        self.drive.get_mut().on_xcp_feedback(feedback_q16);
    }

    /// The congestion header of the next segment; `None` except for XCP.
    pub fn xcp_header(&self) -> Option<xcp::Header> {
        self.drive.get().xcp_header()
    }

    /// The limit of data in flight.
    pub fn window(&self) -> Bytes {
        self.drive.get().window()
    }

    /// Whether it searches for the path's capacity from below, by slow start or its equivalent.
    pub fn is_in_slow_start(&self) -> bool {
        self.drive.get().is_in_slow_start()
    }

    /// The window at which slow start ends; `None` before the first slow start has ended, and for laws
    /// without one.
    pub fn slow_start_threshold(&self) -> Option<Bytes> {
        self.drive.get().slow_start_threshold()
    }

    /// Whether [`window`](Self::window) applies unchanged in recovery. If not, the transport spreads the
    /// reduction over a round trip itself (RFC 9937).
    pub fn governs_recovery(&self) -> bool {
        match &self.drive {
            Drive::Own(law) => law.governs_recovery(),
            Drive::Windowed(windowed) => windowed.governs_recovery(),
        }
    }

    /// Whether it now measures the path by the times at which it sends. If so, nothing may wait below it for long.
    pub fn measures(&self) -> bool {
        self.drive.get().measures()
    }

    /// What the path carries instead of the configured rate, headers included; `None` while the configured rate is
    /// believed, or none is configured.
    pub fn carried(&self) -> Option<Rate> {
        self.drive.get().carried()
    }

    /// How fast payload may leave; `None` while no round-trip time is known: as fast as the window allows.
    pub fn pacing_rate(&self) -> Option<Rate> {
        let rate = match &self.drive {
            Drive::Own(law) => law.pacing_rate(),
            Drive::Windowed(windowed) => windowed.pacing_rate(),
        };
        rate.into_iter().chain(self.cap).min()
    }

    /// Whether each segment keeps to [`pacing_rate`](Self::pacing_rate) from the first on, without the
    /// bursts that a pacing transport allows. Read until the first acknowledgement.
    pub fn spreads(&self) -> bool {
        matches!(&self.drive, Drive::Windowed(windowed) if windowed.opening.spreads())
    }

    /// Memory on the heap. Unit: bytes.
    pub fn memory(&self) -> usize {
        let around = match &self.drive {
            Drive::Own(_) => 0,
            Drive::Windowed(windowed) => windowed.memory(),
        };
        size_of_val(self.drive.get()) + around
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Law, Settings, build};
    use midhop_units::{Duration, Instant};

    #[test]
    fn the_cap_holds_and_only_the_cap() {
        let mut controller = build(&Settings::of(Law::Cubic)).expect("cubic");
        assert_eq!(controller.pacing_rate(), None);
        let rtt = Some(Duration::from_ms(100));
        controller.on_established(&Established { now: Instant::START, rtt });
        let free = controller.pacing_rate().expect("a round trip is known");
        controller.cap(Some(Rate::from_bits_per_s(1000)));
        assert_eq!(controller.pacing_rate(), Some(Rate::from_bits_per_s(1000)));
        controller.cap(Some(Rate::from_mbit_per_s(1000)));
        assert_eq!(controller.pacing_rate(), Some(free));
        controller.cap(None);
        assert_eq!(controller.pacing_rate(), Some(free));
    }

    #[test]
    fn a_cap_is_the_rate_of_a_law_that_names_none() {
        let mut controller = build(&Settings::of(Law::Reno)).expect("reno");
        controller.cap(Some(Rate::from_mbit_per_s(2)));
        assert_eq!(controller.pacing_rate(), Some(Rate::from_mbit_per_s(2)));
    }
}
