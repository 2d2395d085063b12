//! An endpoint's part in XCP: what its segments ask the routers for, and what it tells the other end.

use crate::packet::Xcp;
use midhop_congestion::xcp;
use midhop_tcp::{Endpoint, Flags, Segment};

/// What one endpoint has to send back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dialogue {
    collected: xcp::Receiver,
}

impl Dialogue {
    /// Tells the endpoint what XCP's routers say, and keeps what it has to send back.
    pub fn receive(&mut self, endpoint: &mut Endpoint, xcp: &Xcp) {
        if xcp.reverse_q16 != 0 {
            endpoint.congestion_control().on_xcp_feedback(xcp.reverse_q16);
        }
        if let Some(header) = xcp.header() {
            self.collected.on_segment(&header);
        }
    }

    /// What a segment that leaves asks XCP's routers for, and tells the other end.
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
