//! What a flow requires of its congestion control: a controller, or a law that a test wants to inspect.

use midhop_congestion::bbr::{v1::BbrV1, v3::BbrV3};
use midhop_congestion::dvegas::DVegas;
use midhop_congestion::known_rate::{Hinted, KnownRate};
use midhop_congestion::pulse::Pulsed;
use midhop_congestion::vivace::Vivace;
use midhop_congestion::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, LostSegment, Restart, Rto,
};
use midhop_units::{Bytes, Rate};

pub trait Driven: std::fmt::Debug {
    fn on_established(&mut self, established: &Established);
    fn on_ack(&mut self, ack: &Ack);
    fn on_loss(&mut self, loss: &Loss);
    fn on_lost_segment(&mut self, segment: &LostSegment);
    fn on_rto(&mut self, rto: &Rto);
    fn on_restart(&mut self, restart: &Restart);
    fn on_handover(&mut self, handover: &Handover);
    fn window(&self) -> Bytes;
    fn pacing_rate(&self) -> Option<Rate>;
}

macro_rules! driven {
    ($by:ident: $($driven:ty),+) => {$(
        impl Driven for $driven {
            fn on_established(&mut self, established: &Established) {
                $by::on_established(self, established);
            }

            fn on_ack(&mut self, ack: &Ack) {
                $by::on_ack(self, ack);
            }

            fn on_loss(&mut self, loss: &Loss) {
                $by::on_loss(self, loss);
            }

            fn on_lost_segment(&mut self, segment: &LostSegment) {
                $by::on_lost_segment(self, segment);
            }

            fn on_rto(&mut self, rto: &Rto) {
                $by::on_rto(self, rto);
            }

            fn on_restart(&mut self, restart: &Restart) {
                $by::on_restart(self, restart);
            }

            fn on_handover(&mut self, handover: &Handover) {
                $by::on_handover(self, handover);
            }

            fn window(&self) -> Bytes {
                $by::window(self)
            }

            fn pacing_rate(&self) -> Option<Rate> {
                $by::pacing_rate(self)
            }
        }
    )+};
}

driven!(Controller: Controller);
driven!(CongestionControl: BbrV1, BbrV3, DVegas, Hinted, KnownRate, Pulsed, Vivace);
