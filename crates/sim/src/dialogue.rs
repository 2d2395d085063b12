//! An endpoint's part in XCP: the requests in its segments, and its feedback to the other end.

use crate::packet::Xcp;
use midhop_congestion::xcp;
use midhop_tcp::{Endpoint, Flags, Segment};

/// The feedback that one endpoint has to send back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dialogue {
    collected: xcp::Receiver,
}

impl Dialogue {
    /// Gives the endpoint the routers' feedback, and keeps the feedback that it has to send back.
    pub fn receive(&mut self, endpoint: &mut Endpoint, xcp: &Xcp) {
        if xcp.reverse_q16 != 0 {
            endpoint.congestion_control().on_xcp_feedback(xcp.reverse_q16);
        }
        if let Some(header) = xcp.header() {
            self.collected.on_segment(&header);
        }
    }

    /// The request of a leaving segment to XCP's routers, and its feedback for the other end.
    pub fn ask(&mut self, endpoint: &Endpoint, segment: &Segment) -> Xcp {
        let reverse_q16 =
            if segment.flags.contains(Flags::ACK) { self.collected.take() } else { 0 };
        let back = Xcp::returning(reverse_q16);
        let asks = segment.length > 0;
        match endpoint.xcp_header().filter(|_| asks) {
            Some(header) => back.asking(&header),
            None => back,
        }
    }
}
