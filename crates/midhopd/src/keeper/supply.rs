//! The keeper's end of a thread's line: executes its orders, and makes sockets in advance.

use super::descriptors;
use super::order::{
    BATCH, Batch, ConntrackEntry, Done, ENTRIES, ENTRIES_MAX, ENTRY_BYTES, ORDER_BYTES, Order,
    OrderMessage, Outcome, Recipe, STILL_MAX, Setting, VERDICT_BYTES, VERDICTS, Verdict, ends,
};
use crate::ends::Ends;
use crate::intercept::conntrack::{TrackedConnection, Tracker};
use crate::intercept::forward;
use crate::intercept::marks::Marks;
use crate::intercept::origin::Origins;
use crate::intercept::queue::QueueJudge;
use crate::intercept::{self, StillTables};
use crate::leg;
use crate::relocation::privilege;
use midhop_linux::nft::Table;
use midhop_linux::sockopt;
use midhop_linux::tcp_repair;
use midhop_linux::tproxy::set_transparent;
use midhop_pep::config::{Intercept, Plan};
use nix::libc;
use socket2::{SockRef, Socket};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which it checks whether a line has ended.
const PAUSE: Duration = Duration::from_millis(1);

/// What all lines of a data plane share.
#[derive(Debug, Clone)]
pub struct Terms {
    instance: String,
    zone: u16,
    marks: Marks,
    /// To whom packets of flows that have moved may be forwarded.
    neighbours: Arc<Mutex<Vec<IpAddr>>>,
    /// Held by the door and by each end of a line.
    lines: Arc<()>,
    /// The queues of lines that have ended.
    left: Arc<Mutex<Vec<QueueJudge>>>,
}

impl Terms {
    /// The terms of a plan.
    pub fn of(plan: &Plan) -> Self {
        let Intercept { instance, zone, mark, .. } = &plan.intercept;
        let this = Self {
            instance: instance.clone(),
            zone: *zone,
            marks: Marks::new(*mark),
            neighbours: Arc::default(),
            lines: Arc::default(),
            left: Arc::default(),
        };
        this.follow(plan);
        this
    }

    /// Follows another plan, as far as the terms of a running daemon can change.
    pub fn follow(&self, plan: &Plan) {
        *self.neighbours() = forward::neighbours(plan);
    }

    fn neighbours(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.neighbours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no line is served with these terms any more, but no longer than `patience`. Then
    /// the packets that waited for a data plane that is gone go on. To be called when all its sockets
    /// are closed. Returns whether there is no such line.
    pub fn outlive(&self, patience: Duration, has_door: bool) -> bool {
        let (begin, others) = (Instant::now(), 1 + usize::from(has_door));
        let mut has_ended = true;
        while has_ended && Arc::strong_count(&self.lines) > others {
            has_ended = begin.elapsed() < patience;
            thread::sleep(PAUSE);
        }
        drop(std::mem::take(&mut *held(&self.left)));
        has_ended
    }
}

/// Serves all threads of the data plane that connect. Ends with it.
pub fn welcome(door: &OwnedFd, terms: Terms) {
    loop {
        let come = descriptors::receive(door, &mut [0; 8], true);
        let Ok(Some((_, come))) = come else { return };
        let Ok([orders, supply]) = <[OwnedFd; 2]>::try_from(come) else { continue };
        let (clerk_terms, maker_terms) = (terms.clone(), terms.clone());
        let clerk = thread::Builder::new().name("orders".to_owned());
        let maker = thread::Builder::new().name("supply".to_owned());
        // Without a thread the line closes, and the other end notices.
        let _ = clerk.spawn(move || Clerk::new(clerk_terms).serve_to_the_end(&orders));
        let _ = maker.spawn(move || make_all(&supply, &maker_terms));
    }
}

/// Makes sockets as long as they are ordered.
fn make_all(supply: &OwnedFd, terms: &Terms) {
    let mut buffer = [0; 4096];
    while let Ok(Some((length, _))) = descriptors::receive(supply, &mut buffer, true) {
        let Ok(batch) = serde_json::from_slice(&buffer[..length]) else { return };
        let Batch { shelf, count, recipe } = batch;
        let mut sockets = Vec::with_capacity(BATCH);
        let mut error = 0;
        while error == 0 && sockets.len() < count.min(BATCH) {
            match make(&recipe, terms) {
                Ok(socket) => sockets.push(socket),
                Err(refused) => error = number(&refused),
            }
        }
        if !sockets.is_empty() {
            error = 0;
        }
        let mut head = shelf.to_le_bytes().to_vec();
        head.extend(error.to_le_bytes());
        let numbers: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        if descriptors::send(supply, &head, &numbers).is_err() {
            return;
        }
    }
}

fn make(recipe: &Recipe, terms: &Terms) -> io::Result<Socket> {
    if !Setting::Mark(recipe.mark).is_allowed(terms.marks) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    leg::prepare(recipe)
}

/// Executes the orders of one thread.
struct Clerk {
    judges: BTreeMap<u16, QueueJudge>,
    tracker: Option<Tracker>,
    origins: Option<Origins>,
    table: Option<Table>,
    stills: Option<StillTables>,
    // Dropped last: the line is seen to have ended then.
    terms: Terms,
}

impl Clerk {
    fn new(terms: Terms) -> Self {
        let (judges, tracker, origins, table, stills) = Default::default();
        Self { terms, judges, tracker, origins, table, stills }
    }

    /// Serves the line until it ends. Packets in its queue wait then: the data plane may have opened
    /// far sides for them, whose servers would take a client's SYN for one of that connection.
    fn serve_to_the_end(mut self, orders: &OwnedFd) {
        self.serve(orders);
        let Self { judges, terms, .. } = self;
        held(&terms.left).extend(judges.into_values().filter(QueueJudge::passes));
    }

    fn serve(&mut self, orders: &OwnedFd) {
        let mut buffer = vec![0; ORDER_BYTES];
        while let Ok(Some((length, sockets))) = descriptors::receive(orders, &mut buffer, true) {
            let answer = match buffer[..length].split_first() {
                Some((&ENTRIES, entries)) => {
                    if descriptors::send(orders, &self.enter(entries), &[]).is_err() {
                        return;
                    }
                    continue;
                }
                Some((&VERDICTS, verdicts)) => {
                    self.judge(verdicts);
                    continue;
                }
                _ => match serde_json::from_slice(&buffer[..length]) {
                    Ok(OrderMessage::One(order)) => {
                        serde_json::to_vec(&self.outcome(&order, sockets.into_iter().next()))
                    }
                    Ok(OrderMessage::InTurn(orders)) => {
                        serde_json::to_vec(&self.in_turn(&orders, sockets))
                    }
                    // The sender of such a message is not the program that was started.
                    Err(_) => return,
                },
            };
            let Ok(answer) = answer else { return };
            if descriptors::send(orders, &answer, &[]).is_err() {
                return;
            }
        }
    }

    /// Enters legs. The answer has the system's error number for each.
    fn enter(&mut self, entries: &[u8]) -> Vec<u8> {
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        let entries: Vec<ConntrackEntry> =
            entries.iter().take(ENTRIES_MAX).map(ConntrackEntry::read).collect();
        let is_sound =
            |one: &ConntrackEntry| one.ends.client.is_ipv4() == one.ends.server.is_ipv4();
        let entered = if entries.iter().all(is_sound) {
            self.tracker().and_then(|tracker| tracker.enter(&entries))
        } else {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        };
        let numbers: Vec<i32> = match entered {
            Ok(outcomes) => {
                let number =
                    |outcome: &io::Result<()>| outcome.as_ref().map_or_else(number, |()| 0);
                outcomes.iter().map(number).collect()
            }
            Err(error) => vec![number(&error); entries.len()],
        };
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn judge(&self, verdicts: &[u8]) {
        let (verdicts, _) = verdicts.as_chunks::<VERDICT_BYTES>();
        for verdict in verdicts.iter().copied().map(Verdict::read) {
            let Some(judge) = self.judges.get(&verdict.queue) else { continue };
            if let Err(error) = judge.give(&verdict) {
                tracing::warn!(%error, "a verdict could not be sent to the netfilter queue");
            }
        }
    }

    /// Executes orders until one fails.
    fn in_turn(&mut self, orders: &[Order], sockets: Vec<OwnedFd>) -> Vec<Outcome> {
        let (mut outcomes, mut sockets) = (Vec::with_capacity(orders.len()), sockets.into_iter());
        for order in orders {
            let about = if order.is_about_socket() { sockets.next() } else { None };
            outcomes.push(self.outcome(order, about));
            if outcomes.last().is_some_and(Result::is_err) {
                break;
            }
        }
        outcomes
    }

    fn outcome(&mut self, order: &Order, about: Option<OwnedFd>) -> Outcome {
        self.fulfil(order, about).map_err(|error| number(&error))
    }

    fn fulfil(&mut self, order: &Order, about: Option<OwnedFd>) -> io::Result<Done> {
        let short = || io::Error::from_raw_os_error(libc::EINVAL);
        match order {
            Order::Set(setting) => {
                if !setting.is_allowed(self.terms.marks) {
                    return Err(io::Error::from_raw_os_error(libc::EPERM));
                }
                apply(setting, &about.ok_or_else(short)?)?;
            }
            Order::Bind(address) => {
                SockRef::from(&about.ok_or_else(short)?).bind(&(*address).into())?;
            }
            Order::Queue(number, left) => {
                let judge = QueueJudge::of(about.ok_or_else(short)?, *number, *left);
                self.judges.insert(*number, judge);
            }
            Order::ForgetServer(pair) => self.tracker()?.forget_server(ends(*pair)),
            Order::Origin(pair) => {
                let origins = match self.origins.take() {
                    Some(origins) => origins,
                    None => Origins::open(&self.terms.instance)?,
                };
                let TrackedConnection { ends, mark } =
                    self.origins.insert(origins).ask(ends(*pair))?;
                return Ok(Done::Origin((ends.client, ends.server), mark));
            }
            Order::Dismiss(pair) => return leg::dismiss(ends(*pair)).map(Done::Found),
            Order::Settle => {}
            Order::Handshakes => {
                let counted = intercept::handshakes(self.table()?)?;
                return Ok(Done::Handshakes(counted.numbers()));
            }
            Order::Repair(mode) => {
                tcp_repair::switch(about.ok_or_else(short)?, privilege::mode(*mode))?;
            }
            Order::Prepare(prepared) => {
                if !prepared.is_allowed(self.terms.marks) {
                    return Err(io::Error::from_raw_os_error(libc::EPERM));
                }
                privilege::prepare_here(&about.ok_or_else(short)?, prepared)?;
            }
            Order::GoOn { end_is_sent, window } => {
                privilege::go_on_here(&about.ok_or_else(short)?, *end_is_sent, window.as_ref())?;
            }
            Order::Still(flows, stillness) => {
                if flows.len() > STILL_MAX {
                    return Err(short());
                }
                if let Some(neighbour) = stillness.neighbour()
                    && !self.terms.neighbours().contains(&neighbour)
                {
                    return Err(io::Error::from_raw_os_error(libc::EPERM));
                }
                let flows: Vec<Ends> = flows.iter().copied().map(ends).collect();
                self.stills()?.set(&flows, *stillness)?;
            }
        }
        Ok(Done::Yes)
    }

    fn table(&mut self) -> io::Result<&Table> {
        let table = match self.table.take() {
            Some(table) => table,
            None => intercept::open_table(&self.terms.instance)?,
        };
        Ok(self.table.insert(table))
    }

    fn stills(&mut self) -> io::Result<&StillTables> {
        let stills = match self.stills.take() {
            Some(stills) => stills,
            None => StillTables::open(&self.terms.instance)?,
        };
        Ok(self.stills.insert(stills))
    }

    fn tracker(&mut self) -> io::Result<&Tracker> {
        let tracker = match self.tracker.take() {
            Some(tracker) => tracker,
            None => Tracker::open(self.terms.zone)?,
        };
        Ok(self.tracker.insert(tracker))
    }
}

fn apply(setting: &Setting, socket: &OwnedFd) -> io::Result<()> {
    let handle = SockRef::from(socket);
    match setting {
        Setting::Transparent { v4 } => set_transparent(socket, *v4),
        Setting::Mark(mark) => handle.set_mark(*mark),
        Setting::Buffer { sends, bytes } => {
            let option = if *sends { libc::SO_SNDBUFFORCE } else { libc::SO_RCVBUFFORCE };
            sockopt::set_int(socket, libc::SOL_SOCKET, option, *bytes)
        }
        Setting::Congestion(name) => handle.set_tcp_congestion(name.as_bytes()),
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::super::order::LeftPackets;
    use super::*;
    use midhop_pep::config::Plan;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    /// The end of a line is no sign that the sockets of its data plane are closed.
    #[test]
    fn packets_wait_after_the_end_of_a_line() -> io::Result<()> {
        let pair = || {
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(io::Error::from)
        };
        let plan = Plan::read("test.toml", "[intercept]\ninterfaces = \"lan0\"\n").expect("a plan");
        let terms = Terms::of(&plan);
        let mut clerk = Clerk::new(terms.clone());
        // The other end shows whether the queue is open.
        let (queue, other) = pair()?;
        clerk.judges.insert(7, QueueJudge::of(queue, 7, LeftPackets::Passes));
        let (orders, ended) = pair()?;
        drop(ended);
        clerk.serve_to_the_end(&orders);
        let is_open = || match descriptors::receive(&other, &mut [0; 64], false) {
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            Ok(_) => false,
        };
        assert!(is_open(), "its packets went on, or were dropped");
        assert!(terms.outlive(Duration::ZERO, false));
        assert!(!is_open());
        Ok(())
    }
}
