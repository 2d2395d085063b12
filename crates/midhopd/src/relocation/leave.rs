//! The old place of a flow that moves: its own task freezes it, offers its state, and closes its sockets or goes on.

use super::copy::{Positions, read_position};
use super::halt::{LeaveOrder, LeavingFlow, Stay};
use super::privilege;
use crate::ends::{Broken, Ends, RelayOutcome, Side};
use crate::flow_sampler::BothLegs;
use crate::keeper::order::{Repair, Stillness};
use crate::ledger::FlowBook;
use crate::relay::{Halted, Pipe, StartDirection};
use crate::survival::register::FlowEntry;
use crate::worker::Worker;
use midhop_linux::tcp_repair::{DumpError, LocalEnd, TcpSnapshot, dump};
use midhop_tunnel::relocation::copies::leave_out;
use midhop_tunnel::relocation::{Arrival, FLOW_BYTES_MAX, FlowOffer};
use nix::fcntl::{SpliceFFlags, tee};
use std::io::{self, Read};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Maximum time for which a flow stands still before the commit: longer than the mover waits for its peer.
const STILL: Duration = Duration::from_secs(20);
/// How long it waits for what has become of it after the commit.
const OUTCOME: Duration = Duration::from_secs(30);
/// How often a state is taken again that has changed meanwhile: a timer of the kernel may expire.
const ATTEMPTS: u32 = 3;
/// Unit: bytes. The most in each queue of a socket.
const QUEUE_BYTES_MAX: usize = FLOW_BYTES_MAX / 2;
/// Unit: bytes. More than the state of a flow takes beside its queues.
const HEADS: usize = 1 << 10;

/// Where a flow is after that.
#[derive(Debug)]
pub enum Whereabouts {
    /// Here, and goes on.
    Stays(Box<Halted>),
    /// At the new place. The sockets are to be closed, which sends nothing.
    Gone,
    /// Nobody knows. The sockets are to be closed, which resets both ends: if it goes on at the new place, a reset with
    /// the sequence numbers of this place is stale there, or ends it.
    Reset,
}

/// How a flow ended that was reset because nobody knows where it is.
pub fn reset() -> RelayOutcome {
    let error = io::ErrorKind::ConnectionAborted.into();
    RelayOutcome { outcome: Err(Broken { side: Side::Server, error }) }
}

/// Offers a flow that was asked to stand still, and waits for what becomes of it.
pub async fn leave(
    worker: &Worker,
    legs: &BothLegs,
    book: &FlowBook,
    halted: Box<Halted>,
    entry: &mut Option<Rc<FlowEntry>>,
) -> Whereabouts {
    let Some(request) = legs.halt.take() else { return Whereabouts::Stays(halted) };
    let frozen = Frozen {
        instance: &worker.plan().intercept.instance.clone(),
        legs,
        ends: book.ends,
        neighbour: request.neighbour,
    };
    // From here on, the next process lifts this if this one dies.
    let note_still = |is_still| entry.iter().for_each(|entry| entry.note_still(is_still));
    note_still(true);
    let offer = match frozen.offer(&halted.left, &request.copied, request.bytes_max) {
        Ok(offer) => offer,
        Err(why) => {
            note_still(!frozen.thaw());
            let _ = request.answer.send(Err(why));
            return Whereabouts::Stays(halted);
        }
    };
    let (commit, ordered) = oneshot::channel();
    let asked = request.answer.send(Ok(LeavingFlow { offer, commit }));
    let ordered = match asked {
        Ok(()) => timeout(STILL, ordered).await.ok().and_then(Result::ok),
        Err(_) => None,
    };
    let Some(LeaveOrder { noted, arrival }) = ordered else {
        note_still(!frozen.thaw());
        return Whereabouts::Stays(halted);
    };
    // An upgrade would cut it off.
    let Some(_open) = worker.open_moves.begin() else {
        note_still(!frozen.thaw());
        return Whereabouts::Stays(halted);
    };
    // From here on, the next process resets it if this one dies.
    let note = |leaves| entry.iter().for_each(|entry| entry.note_leaving(leaves));
    note(true);
    let arrival = match noted.send(()) {
        Ok(()) => timeout(OUTCOME, arrival).await.ok().and_then(Result::ok),
        Err(()) => Some(Arrival::Discarded),
    };
    match arrival {
        Some(Arrival::Discarded) => {
            note(false);
            note_still(!frozen.thaw());
            Whereabouts::Stays(halted)
        }
        Some(Arrival::GoesOn) => {
            *entry = None;
            Whereabouts::Gone
        }
        // What was not reset there is reset here.
        Some(Arrival::Lost) | None => {
            tracing::warn!(ends = ?book.ends, "a flow is reset: whether it has moved is unknown");
            worker.ledger.lost_in_moving.add(1);
            frozen.abandon();
            Whereabouts::Reset
        }
    }
}

/// A flow whose packets are dropped.
struct Frozen<'a> {
    instance: &'a str,
    legs: &'a BothLegs,
    ends: Ends,
    /// The new place, if what arrives here is forwarded there. It drops what it cannot give to a socket.
    neighbour: Option<IpAddr>,
}

impl Frozen<'_> {
    /// Freezes it, and takes its state, without what was copied before.
    fn offer(
        &self,
        left: &[StartDirection; 2],
        copied: &[Positions; 2],
        bytes_max: usize,
    ) -> Result<FlowOffer, Stay> {
        let BothLegs { client, server, .. } = self.legs;
        match self.is_mirrored() {
            Ok(true) => {}
            Ok(false) => return Err(Stay::Addresses),
            // It has no far end any more.
            Err(_) => return Err(Stay::Ended),
        }
        let refused = |what: &'static str| {
            move |error: io::Error| {
                tracing::warn!(ends = ?self.ends, what, %error, "a flow cannot be moved");
                Stay::Kernel
            }
        };
        // It does not change any more: nobody reads. In repair mode the kernel does not count it.
        let mut read = [0; 2];
        for ((read, socket), copied) in read.iter_mut().zip([client, server]).zip(copied) {
            if !copied.is_empty() {
                *read = read_position(socket).map_err(refused("its position"))?;
            }
        }
        privilege::freeze(self.instance, self.ends, [client, server], self.neighbour).map_err(
            |stopped| {
                let what =
                    if matches!(stopped.done, 1 | 2) { "repair mode" } else { "its packets" };
                refused(what)(stopped.error)
            },
        )?;
        let mut states = [state_of(client)?, state_of(server)?];
        for (direction, to) in left.iter().zip([Side::Server, Side::Client]) {
            let Some((pipe, bytes)) = &direction.piped else { continue };
            let state = &mut states[to as usize];
            if state.local_end != LocalEnd::Open {
                return Err(Stay::Kernel);
            }
            // They would be written next.
            state.send.unsent.extend(copy_of(pipe, *bytes).map_err(refused("its pipe"))?);
        }
        let queued: usize = states.iter().map(TcpSnapshot::queued_bytes).sum();
        let left_out = copied.iter().any(|copied| !copied.is_empty()).then(|| {
            let [client, server] = &mut states;
            [
                leave_out(queues_between(client, server), read[0], &copied[0]),
                leave_out(queues_between(server, client), read[1], &copied[1]),
            ]
        });
        let connections = states.map(|state| state.encode());
        let offer = FlowOffer { connections, left_out };
        let fits = queued <= FLOW_BYTES_MAX - HEADS && offer.is_within(bytes_max);
        if fits { Ok(offer) } else { Err(Stay::Queues) }
    }

    /// Whether each socket has the address of the far end of the other, so that nobody notices where they are.
    fn is_mirrored(&self) -> io::Result<bool> {
        let BothLegs { client, server, .. } = self.legs;
        let Ends { client: client_end, server: server_end } = self.ends;
        let of_client = (client.peer_addr()?, client.local_addr()?);
        let of_server = (server.local_addr()?, server.peer_addr()?);
        Ok(of_client == of_server && of_client == (client_end, server_end))
    }

    /// It goes on here. Returns whether its packets pass again.
    fn thaw(&self) -> bool {
        self.switch_off(Repair::Off)
    }

    /// It does not go on. Its sockets can reset their far ends then.
    fn abandon(&self) {
        self.switch_off(Repair::OffWithoutProbe);
    }

    fn switch_off(&self, repair: Repair) -> bool {
        let BothLegs { client, server, .. } = self.legs;
        let lifted = privilege::still(self.instance, &[self.ends], Stillness::None);
        let passes = lifted.is_ok();
        let switched =
            [client, server].map(|socket| match midhop_linux::tcp_repair::is_on(socket) {
                Ok(true) => privilege::switch(socket, repair),
                _ => Ok(()),
            });
        for error in [lifted].into_iter().chain(switched).filter_map(Result::err) {
            tracing::warn!(ends = ?self.ends, %error, "a flow could not be released after an attempt to move it");
        }
        passes
    }
}

/// The queues of a direction, in the order of its bytes.
pub fn queues_between<'a>(
    from: &'a mut TcpSnapshot,
    to: &'a mut TcpSnapshot,
) -> [&'a mut Vec<u8>; 3] {
    [&mut to.send.sent, &mut to.send.unsent, &mut from.receive.unread]
}

fn state_of(socket: &TcpStream) -> Result<TcpSnapshot, Stay> {
    let mut attempt = 1;
    loop {
        match dump(socket, QUEUE_BYTES_MAX) {
            Ok(state) => return Ok(state),
            Err(DumpError::Changing) if attempt < ATTEMPTS => attempt += 1,
            Err(DumpError::State { .. }) => return Err(Stay::Ended),
            Err(error @ (DumpError::TooLong { .. } | DumpError::TooManySegments { .. })) => {
                tracing::info!(%error, "a flow stays: its queues cannot be moved");
                return Err(Stay::Queues);
            }
            Err(DumpError::LinkLocal { .. }) => return Err(Stay::Addresses),
            Err(error) => {
                tracing::warn!(%error, "a flow cannot be moved");
                return Err(Stay::Kernel);
            }
        }
    }
}

/// The bytes of a pipe, which stay in it: if this process dies, the next one finds them there.
fn copy_of(pipe: &Pipe, bytes: usize) -> io::Result<Vec<u8>> {
    let copy = Pipe::open()?;
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
    if tee(&pipe.source, &copy.sink, bytes, flags)? != bytes {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let mut copied = vec![0; bytes];
    std::fs::File::from(copy.source).read_exact(&mut copied)?;
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_in_a_pipe_is_copied_and_stays() -> io::Result<()> {
        let pipe = Pipe::open()?;
        let pieces: Vec<Vec<u8>> = (1..=20).map(|n| vec![n; 100 * usize::from(n)]).collect();
        for piece in &pieces {
            nix::unistd::write(pipe.sink.as_fd(), piece)?;
        }
        let all = pieces.concat();
        for _ in 0..2 {
            assert!(copy_of(&pipe, all.len())? == all);
        }
        assert_eq!(midhop_linux::sockopt::unread(&pipe.source)?, all.len());
        Ok(())
    }
}
