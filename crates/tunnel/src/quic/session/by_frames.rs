//! Flows whose frames the caller reads and writes itself.

use super::{Awaited, DRAW, FlowFault, Session};
use crate::http3::{Code, Frame};
use bytes::Bytes;
use midhop_units::Instant;
use quinn_proto::{Connection, Dir, StreamId, VarInt};

impl Session {
    /// Opens a stream for a flow; none: the peer accepts no more for now.
    pub fn open_flow(&mut self, now: Instant, connection: &mut Connection) -> Option<StreamId> {
        if self.is_leaving() {
            return None;
        }
        let id = connection.streams().open(Dir::Bi)?;
        self.open(now, id, Awaited::Answer).incoming.awaits = None;
        Some(id)
    }

    /// The next frame of a stream; inner none: the stream has ended; outer none: no frame has arrived yet.
    ///
    /// # Errors
    /// Why no more of it will follow.
    pub fn next_frame(
        &mut self,
        id: StreamId,
        connection: &mut Connection,
    ) -> Result<Option<Option<Frame>>, FlowFault> {
        let Some(flow) = self.flows.get_mut(&id) else { return Ok(None) };
        flow.incoming.untaken = None;
        flow.incoming.frame(connection, &mut self.credit)
    }

    /// The frames of a stream that were delivered have been passed on: grants the peer as much again.
    pub fn pass_on(&mut self, id: StreamId) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.incoming.grant(&mut self.credit);
        }
    }

    /// The fault that broke a stream that nobody reads; none: it is intact.
    pub fn reset_of(&mut self, id: StreamId, connection: &mut Connection) -> Option<FlowFault> {
        let flow = self.flows.get_mut(&id).filter(|flow| !flow.incoming.ended)?;
        let code = connection.recv_stream(id).received_reset().ok().flatten()?;
        flow.incoming.ended = true;
        Some(FlowFault::Reset(Code(code.into_inner())))
    }

    /// Nobody reads a stream for now. Unless somebody does within a short time, its bytes are read out of QUIC.
    /// Returns whether this is new.
    pub fn stand_still(&mut self, now: Instant, id: StreamId) -> bool {
        let Some(flow) = self.flows.get_mut(&id).filter(|flow| !flow.incoming.ended) else {
            return false;
        };
        let is_new = flow.incoming.untaken.replace(now).is_none();
        if is_new {
            self.draws.push_back((now + DRAW, id));
        }
        is_new
    }

    /// Resets this end's half of a stream.
    pub fn reset(&mut self, id: StreamId, code: Code, connection: &mut Connection) {
        self.release_turn(id);
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.ended = true;
            flow.waiting = [Bytes::new(), Bytes::new()];
            let code = VarInt::from_u64(code.0).unwrap_or(VarInt::MAX);
            let _ = connection.send_stream(id).reset(code);
        }
    }

    /// Stops the peer's half of a stream.
    pub fn stop(&mut self, id: StreamId, code: Code, connection: &mut Connection) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if !std::mem::replace(&mut flow.incoming.ended, true) {
            let code = VarInt::from_u64(code.0).unwrap_or(VarInt::MAX);
            let _ = connection.recv_stream(id).stop(code);
        }
    }

    /// Unit: bytes. What was written on all streams so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether the peer has acknowledged as much as had been written at a time.
    pub fn has_arrived(&self, written: u64, connection: &mut Connection) -> bool {
        // quinn reports only whether its send window has room. So the window is set to one byte more than may be
        // unacknowledged.
        let Some(own) = &self.control else { return false };
        let may_be_unacknowledged = self.written.saturating_sub(written);
        connection.set_send_window(may_be_unacknowledged.saturating_add(1));
        let has_room = connection.send_stream(own.id).write(&[]);
        connection.set_send_window(self.pool);
        has_room.is_ok()
    }
}
