//! One connection of a client's run, from before its SYN to its last byte.

use super::clock;
use super::connection::{self, Connection};
use super::error::FlowError;
use super::message::{Amount, Direction, Received, Request};
use super::options::Progress;
use super::payload::Payload;
use super::sampler::SharedLog;
use super::series::Capacity;
use super::socket;
use super::wire::{ControlFrame, PREFACE};
use midhop_experiment::plan::RestartPlan;
use midhop_experiment::spec::RestartFrom;
use midhop_units::{Instant, Seed};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::net::{TcpSocket, TcpStream};

/// What all connections of a run have in common.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) session: u64,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) bind: Option<IpAddr>,
    pub(super) direction: Direction,
    pub(super) congestion: Option<String>,
    pub(super) interval_ns: Option<u64>,
    /// Whether times without payload are reported.
    pub(super) gaps: bool,
    pub(super) capacity: Capacity,
    pub(super) seed: Seed,
    pub(super) deadline: Option<Instant>,
    /// The end of transfers that are limited in time. None: each ends as its item has it.
    pub(super) until: Option<Instant>,
    /// How an item is restarted when its connection breaks.
    pub(super) restarts: Option<RestartPlan>,
    /// The number of the next connection that restarts one.
    pub(super) next_flow: AtomicU32,
    pub(super) clock: Option<String>,
    pub(super) progress: Arc<Progress>,
}

/// Payload to move over a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    /// Number of the object in its page; none outside pages.
    pub(super) object: Option<u32>,
    pub(super) amount: Amount,
    /// When it was first requested; none before that.
    pub(super) asked: Option<Instant>,
    /// How often it has been restarted.
    pub(super) restarts: u32,
}

impl Item {
    /// An item that was not requested yet.
    pub(super) fn new(object: Option<u32>, amount: Amount) -> Self {
        Self { object, amount, asked: None, restarts: 0 }
    }
}

/// An object that is complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectOutcome {
    pub(super) id: u32,
    pub(super) bytes: u64,
    pub(super) start: Instant,
    pub(super) first_byte: Instant,
    pub(super) end: Instant,
}

/// The outcome of a connection, kept up to date while it lives.
#[derive(Debug)]
pub(super) struct FlowOutcome {
    pub(super) flow: u32,
    pub(super) client_port: u16,
    pub(super) server_port: u16,
    pub(super) start: Instant,
    /// When the last payload arrived. Where that is not known, when the flow failed.
    pub(super) end: Instant,
    /// Payload that is known to have arrived.
    pub(super) bytes: u64,
    pub(super) hash_sent: Option<String>,
    pub(super) hash_received: Option<String>,
    /// The sending end's congestion control.
    pub(super) congestion: Option<String>,
    /// Whether the server reads the same clock.
    pub(super) clock_shared: bool,
    /// This end's log.
    pub(super) log: SharedLog,
    pub(super) objects: Vec<ObjectOutcome>,
    pub(super) error: Option<FlowError>,
    /// The item that was not complete at the end. `whole` is the payload of all items that were.
    pub(super) unfinished: Option<Item>,
    pub(super) whole: u64,
    /// Whether that item was restarted over another connection.
    pub(super) replaced: bool,
    /// When it was over, with or without success.
    pub(super) over: Instant,
    /// The flow whose item it has restarted.
    pub(super) after: Option<u32>,
}

impl Run {
    /// Moves `first` and then all items of `next` over one new connection.
    pub(super) async fn flow<N: Future<Output = Option<Item>>>(
        &self,
        flow: u32,
        first: Item,
        next: impl FnMut() -> N,
    ) -> FlowOutcome {
        let start = clock::now();
        let mut outcome = FlowOutcome {
            flow,
            client_port: 0,
            server_port: 0,
            start,
            end: start,
            bytes: 0,
            hash_sent: None,
            hash_received: None,
            congestion: None,
            clock_shared: false,
            log: SharedLog::begin(flow, start.as_ns(), self.interval_ns, self.capacity, self.gaps),
            over: start,
            after: None,
            objects: Vec::new(),
            error: None,
            unfinished: Some(Item { asked: first.asked.or(Some(start)), ..first }),
            whole: 0,
            replaced: false,
        };
        let mut socket = None;
        let drive = self.drive(&mut outcome, &mut socket, first, next);
        let result = match self.deadline {
            None => drive.await,
            Some(deadline) => tokio::time::timeout_at(clock::on_tokio(deadline), drive)
                .await
                .unwrap_or(Err(FlowError::TimeLimit)),
        };
        let sampling = self.interval_ns.filter(|_| self.direction == Direction::Up);
        if let Some(socket) = &socket {
            outcome.log.look(socket, sampling);
        }
        if let Err(error) = result {
            if let Some(socket) = &socket {
                connection::abort(socket);
            }
            if outcome.end == start {
                outcome.end = clock::now();
            }
            if let FlowError::Hash { sent, received } = &error {
                outcome.hash_sent = Some(sent.clone());
                outcome.hash_received = Some(received.clone());
            }
            outcome.error = Some(error);
        }
        outcome.over = clock::now();
        self.progress.flow_done();
        outcome
    }

    /// The same over as many connections as necessary: an item whose connection breaks may be
    /// restarted.
    pub(super) async fn flow_and_again<N: Future<Output = Option<Item>>>(
        &self,
        flow: u32,
        first: Item,
        mut next: impl FnMut() -> N,
    ) -> Vec<FlowOutcome> {
        let mut outcomes = Vec::new();
        let (mut flow, mut item, mut after) = (flow, first, None);
        loop {
            let mut outcome = self.flow(flow, item, &mut next).await;
            outcome.after = after.replace(flow);
            let broke = outcome.error.as_ref().is_some_and(FlowError::is_break);
            let again = self.restarts.zip(outcome.unfinished).filter(|(restarts, unfinished)| {
                let at = clock::now() + restarts.after;
                let in_time = self.deadline.is_none_or(|deadline| at < deadline);
                broke && in_time && unfinished.restarts < restarts.most
            });
            outcome.replaced = again.is_some();
            let arrived = outcome.bytes.saturating_sub(outcome.whole);
            if again.as_ref().is_some_and(|(restarts, _)| self.requests_the_rest(restarts)) {
                outcome.whole = outcome.bytes;
            }
            outcomes.push(outcome);
            let Some((restarts, mut unfinished)) = again else { return outcomes };
            if self.requests_the_rest(&restarts) {
                unfinished.amount = unfinished.amount.without(arrived);
            }
            tokio::time::sleep(restarts.after.into()).await;
            flow = self.next_flow.fetch_add(1, Ordering::Relaxed);
            item = Item { restarts: unfinished.restarts + 1, ..unfinished };
        }
    }

    /// Whether a restart continues where the payload ended that had arrived. Only the receiving end
    /// knows where that is.
    fn requests_the_rest(&self, restarts: &RestartPlan) -> bool {
        restarts.from == RestartFrom::Rest && self.direction == Direction::Down
    }

    async fn drive<N: Future<Output = Option<Item>>>(
        &self,
        outcome: &mut FlowOutcome,
        socket: &mut Option<Arc<TcpStream>>,
        first: Item,
        mut next: impl FnMut() -> N,
    ) -> Result<(), FlowError> {
        let stream = self.connect().await?;
        let mut connection = Connection::of_client(stream);
        let stream = Arc::clone(socket.insert(connection.socket()));
        (outcome.client_port, outcome.server_port) = connection.ports();
        if self.direction == Direction::Up {
            let name = socket::congestion(&stream).map_err(|source| FlowError::Socket {
                doing: "read the congestion control",
                source,
            })?;
            outcome.congestion = Some(name);
        }
        let log = outcome.log.clone();
        let sampling = self.interval_ns.filter(|_| self.direction == Direction::Up);
        connection.queue_raw(PREFACE);
        let items = async {
            // The first object includes the time to set up its connection.
            let mut start = first.asked.unwrap_or(outcome.start);
            let mut item = first;
            loop {
                outcome.unfinished = Some(Item { asked: Some(start), ..item });
                if let (Amount::TimeNs(span), Some(until)) = (&mut item.amount, self.until) {
                    *span = until.saturating_since(clock::now()).as_ns();
                }
                match self.direction {
                    Direction::Down => self.pull(&mut connection, outcome, item, start).await?,
                    Direction::Up => self.push(&mut connection, outcome, item, start).await?,
                }
                (outcome.unfinished, outcome.whole) = (None, outcome.bytes);
                item = match next().await {
                    Some(item) => item,
                    None => return Ok(()),
                };
                start = clock::now();
            }
        };
        tokio::select! {
            result = items => result,
            never = log.watch(&stream, sampling) => match never {},
        }
    }

    /// Tries the addresses one after the other.
    pub(super) async fn connect(&self) -> Result<TcpStream, FlowError> {
        let mut last = None;
        for &address in &self.addresses {
            match self.connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(source) => last = Some(FlowError::Connect { address, source }),
            }
        }
        Err(last.unwrap_or(FlowError::NoAnswer))
    }

    async fn connect_to(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        if let Some(local) = self.bind {
            socket.bind(SocketAddr::new(local, 0))?;
        }
        if let (Direction::Up, Some(name)) = (self.direction, &self.congestion) {
            socket::set_congestion(&socket, name)?;
        }
        socket::prepare(&socket);
        socket.connect(address).await
    }

    fn request(&self, flow: u32, item: Item) -> ControlFrame {
        ControlFrame::Request(Request {
            session: self.session,
            flow,
            direction: self.direction,
            amount: item.amount,
            congestion: self.congestion.clone().filter(|_| self.direction == Direction::Down),
            seed: self.seed.0,
            interval_ns: self.interval_ns,
            gaps: self.gaps,
        })
    }

    async fn pull(
        &self,
        connection: &mut Connection,
        outcome: &mut FlowOutcome,
        item: Item,
        start: Instant,
    ) -> Result<(), FlowError> {
        connection.queue(&self.request(outcome.flow, item));
        connection.flush().await?;
        let before = connection.received.bytes;
        let mut first_byte = None;
        let arrived = |now: Instant, bytes: u64| {
            first_byte.get_or_insert(now);
            outcome.end = now;
            outcome.bytes += bytes;
            self.progress.add(bytes);
            let at = now.saturating_since(outcome.start).as_ns();
            let mut log = outcome.log.lock();
            log.arrivals.add(at, bytes as f64);
            if let Some(gaps) = &mut log.gaps {
                gaps.arrived(at);
            }
        };
        let (congestion, clock_shared) = (&mut outcome.congestion, &mut outcome.clock_shared);
        let control = |frame: ControlFrame| match frame {
            ControlFrame::Accept(accept) => {
                *clock_shared = accept.clock.is_some() && accept.clock == self.clock;
                *congestion = Some(accept.congestion);
                Ok(())
            }
            ControlFrame::Refuse(refusal) => Err(FlowError::Refused(refusal)),
            other => Err(FlowError::Unexpected { what: other.name() }),
        };
        let end = connection.receive(arrived, control).await?;
        outcome.hash_sent = Some(end.hash);
        outcome.hash_received = Some(connection.received.hash());
        let received = connection.received.bytes - before;
        match item.amount {
            Amount::Bytes(asked) if asked != received => {
                return Err(FlowError::Amount { asked, received });
            }
            _ => {}
        }
        if received == 0 {
            // No payload was to arrive: there is only the end mark.
            outcome.end = clock::now();
        }
        outcome.objects.extend(item.object.map(|id| ObjectOutcome {
            id,
            bytes: received,
            start,
            first_byte: first_byte.unwrap_or(outcome.end),
            end: outcome.end,
        }));
        Ok(())
    }

    async fn push(
        &self,
        connection: &mut Connection,
        outcome: &mut FlowOutcome,
        item: Item,
        start: Instant,
    ) -> Result<(), FlowError> {
        connection.queue(&self.request(outcome.flow, item));
        let before = connection.sent.bytes;
        let payload = Payload::of_flow(self.seed, outcome.flow);
        connection.send(payload, item.amount, |bytes| self.progress.add(bytes)).await?;
        let received = loop {
            match connection.frame().await? {
                Some(ControlFrame::Accept(accept)) => {
                    outcome.clock_shared = accept.clock.is_some() && accept.clock == self.clock;
                }
                Some(ControlFrame::Received(received)) => break received,
                Some(ControlFrame::Refuse(refusal)) => return Err(FlowError::Refused(refusal)),
                Some(other) => return Err(FlowError::Unexpected { what: other.name() }),
                None => return Err(FlowError::NoAnswer),
            }
        };
        let (first_byte, end) = on_this_clock(&received, outcome.clock_shared, clock::now());
        outcome.end = end;
        outcome.bytes = received.bytes;
        outcome.hash_sent = Some(connection.sent.hash());
        outcome.hash_received = Some(received.hash.clone());
        if received.bytes != connection.sent.bytes {
            return Err(FlowError::Count { sent: connection.sent.bytes, received: received.bytes });
        }
        let hash = connection.sent.hash();
        if received.hash != hash {
            return Err(FlowError::Hash { sent: hash, received: received.hash });
        }
        outcome.objects.extend(item.object.map(|id| ObjectOutcome {
            id,
            bytes: received.bytes - before,
            start,
            first_byte,
            end,
        }));
        Ok(())
    }
}

/// When first and last byte arrived, on this end's clock.
///
/// Where the receiver has another clock, its last byte counts as received when its report arrived
/// here. That is too late by the delay of the report, never too early.
fn on_this_clock(received: &Received, clock_shared: bool, reported: Instant) -> (Instant, Instant) {
    if clock_shared {
        let at = |ns| Instant::from_ns(ns).min(reported);
        (at(received.first_byte_ns), at(received.last_byte_ns))
    } else {
        let span = received.last_byte_ns.saturating_sub(received.first_byte_ns);
        (Instant::from_ns(reported.as_ns().saturating_sub(span)), reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_clock_is_used_for_spans_only() {
        let received =
            Received { bytes: 1, hash: String::new(), first_byte_ns: 10, last_byte_ns: 40 };
        let at = Instant::from_ns;
        assert_eq!(on_this_clock(&received, true, at(50)), (at(10), at(40)));
        assert_eq!(on_this_clock(&received, false, at(1_000)), (at(970), at(1_000)));
    }
}
