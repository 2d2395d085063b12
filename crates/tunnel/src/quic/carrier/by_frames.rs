//! Flows whose frames the caller reads and writes itself.

use super::{Carrier, Session};
use crate::http3::{Code, Frame};
use crate::quic::flow::FlowFault;
use midhop_units::Instant;
use quinn_proto::StreamId;

impl Carrier {
    /// The next frame of a stream; inner none: the stream has ended; outer none: no frame has arrived yet.
    ///
    /// # Errors
    /// Why no more of it will follow.
    pub fn next_frame(&mut self, id: StreamId) -> Result<Option<Option<Frame>>, FlowFault> {
        match &mut self.session {
            Some(session) => session.next_frame(id, &mut self.connection),
            None => Ok(None),
        }
    }

    /// The frames of a stream that were delivered have been passed on: grants the peer as much again.
    pub fn pass_on(&mut self, now: Instant, id: StreamId) {
        self.with(|session, _| session.pass_on(id));
        self.work(now);
    }

    /// The fault that broke a stream that nobody reads; none: it is intact.
    pub fn reset_of(&mut self, id: StreamId) -> Option<FlowFault> {
        self.session.as_mut()?.reset_of(id, &mut self.connection)
    }

    /// Nobody reads a stream for now. Unless somebody does within a short time, its bytes are read out of QUIC, so
    /// that QUIC's window is free for others. Returns whether this is new.
    pub fn stand_still(&mut self, now: Instant, id: StreamId) -> bool {
        self.session.as_mut().is_some_and(|session| session.stand_still(now, id))
    }

    /// Resets this end's half of a stream.
    pub fn reset(&mut self, id: StreamId, code: Code) {
        self.with(|session, connection| session.reset(id, code, connection));
    }

    /// Stops the peer's half of a stream.
    pub fn stop(&mut self, id: StreamId, code: Code) {
        self.with(|session, connection| session.stop(id, code, connection));
    }

    /// Unit: bytes. What was written on all streams so far.
    pub fn written(&self) -> u64 {
        self.session.as_ref().map_or(0, Session::written)
    }

    /// Whether the peer has acknowledged as much as had been [written](Self::written) at a time. Bytes that were
    /// written later and acknowledged earlier count as well. In that case a part of the former may be lost, and be in
    /// retransmission.
    pub fn has_arrived(&mut self, written: u64) -> bool {
        let session = self.session.as_mut();
        session.is_some_and(|session| session.has_arrived(written, &mut self.connection))
    }
}
