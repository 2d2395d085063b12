//! Continues flows of which one side was a tunnel, which is gone: another tunnel resumes each.

use super::{NotAdopted, leg_of};
use crate::ends::{Ends, Side};
use crate::ledger::{FlowBook, FlowOrigin, Party};
use crate::survival::register::{Record, StreamRecord, name_of};
use crate::tunnel::carry::{Moved, Permits, StreamStart, start_at};
use crate::tunnel::resumable_flows::most_kept;
use crate::tunnel::stream::Stream;
use crate::tunnel::stream::kept::Offer;
use crate::tunnel::stream::resumable::LeftFlow;
use crate::worker::Worker;
use midhop_linux::sockopt;
use midhop_linux::stream_position::{OpenedBy, StreamPosition};
use midhop_tunnel::connect::Request;
use midhop_tunnel::resumption::SentBytes;
use midhop_tunnel::target::Target;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Continues a flow that another process carried until it was killed.
///
/// # Errors
/// When it cannot be continued. Its socket is reset then.
pub fn adopt(
    worker: &Rc<Worker>,
    super::InheritedFlow { entry, record, sockets }: super::InheritedFlow,
    stream: StreamRecord,
) -> Result<(), NotAdopted> {
    let side = record.side();
    let [client, server] = sockets;
    let socket = match side {
        Side::Client => client,
        Side::Server => server,
    };
    let socket = socket.ok_or(NotAdopted::Closed)?;
    let plan = worker.plan();
    let find = || {
        let leg = leg_of(&plan, record.legs[side as usize]).ok_or(NotAdopted::NoLeg)?;
        let is_peer = |name: &str| name_of(name) == stream.peer;
        let peer = plan.peers.iter().find(|peer| is_peer(&peer.name));
        let peer = peer.filter(|peer| peer.resume > Duration::ZERO.into());
        Ok((leg, peer.ok_or(NotAdopted::NoPeer)?))
    };
    let (leg, peer) = match find() {
        Ok(found) => found,
        Err(why) => return Err(reset(socket, why)),
    };
    let left = match left_of(worker, &socket, &record) {
        Ok(left) => left,
        Err(why) => return Err(reset(socket, why)),
    };
    let class = plan.classes.iter().find(|class| name_of(&class.name) == stream.class);
    let class = class.unwrap_or_else(|| plan.class_named(None)).clone();
    let Record { ends, interface, rule, dscp, .. } = record;
    let request = (side == Side::Client).then(|| Request {
        target: Target::Address(ends.server),
        client: Some(ends.client),
        class: class.announced(),
        hops: 0,
    });
    let moved = Moved {
        outward_end: left.sent.has_ended(),
        inward: left.delivered,
        inward_end: left.delivered_end,
    };
    let offer = Offer { id: stream.id, request, class };
    let stream = Stream::left(left, offer, most_kept(peer.send_window.get()));
    let tunnel = Party::tunnel(&peer.name);
    let (client_leg, server_leg) = match side {
        Side::Client => (leg.into(), tunnel),
        Side::Server => (tunnel, leg.into()),
    };
    let book = FlowBook::new(ends, client_leg, server_leg).with_origin(FlowOrigin {
        rule,
        interface,
        dscp,
    });
    let socket = TcpStream::from_std(socket.into())?;
    let permits = match side {
        Side::Client => Permits {
            ticket: worker.admission.enter_from(ends.client.ip()),
            life: Some(worker.hold.entries.revive(ends)),
            of_peer: None,
            leaving: None,
        },
        Side::Server => Permits {
            ticket: worker.admission.enter(),
            life: None,
            of_peer: worker.tunnels.peer_limits.open(peer),
            leaving: socket
                .local_addr()
                .ok()
                .map(|client| worker.tunnels.opened.note(Ends { client, server: ends.server })),
        },
    };
    let start = StreamStart { noted: Some(entry), moved, ..StreamStart::default() };
    start_at(worker, (socket, side), stream, book, permits, Some(Box::new(start)));
    Ok(())
}

/// How far the flow had come.
fn left_of(worker: &Worker, socket: &OwnedFd, record: &Record) -> Result<LeftFlow, NotAdopted> {
    let side = record.side();
    let opened_by = match side {
        Side::Client => OpenedBy::FarEnd,
        Side::Server => OpenedBy::ThisEnd,
    };
    let position = StreamPosition::of(socket, opened_by)?;
    let cookie = record.cookies[side as usize];
    let writer = worker.store.writer(cookie).ok_or(NotAdopted::NoStore)?;
    let read = position.read.wrapping_sub(record.ahead[0]);
    // The FIN of a connection that is over is counted with the written bytes.
    let fin = u64::from(position.closed && position.shut);
    let delivered = position.written.wrapping_sub(record.ahead[1]).wrapping_sub(fin);
    let has_all = position.ended && sockopt::unread(socket)? == 0;
    let pieces = worker.store.take(cookie, read);
    Ok(LeftFlow {
        sent: SentBytes::left(read, pieces, has_all),
        delivered,
        delivered_end: position.shut,
        writer,
    })
}

/// Resets a flow that cannot be continued, since it must not seem to have ended in order.
fn reset(socket: impl AsFd, why: NotAdopted) -> NotAdopted {
    let socket = socket2::SockRef::from(&socket);
    let _ = socket.set_linger(Some(Duration::ZERO));
    why
}
