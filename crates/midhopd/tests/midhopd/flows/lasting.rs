//! Flows through a tunnel that outlive faults of the tunnel, or the processes that relay them.

use super::pass;
use crate::ends::PORT;
use crate::pages::{metric, page, wait_until_served};
use crate::pair::Pair;
use crate::program::log_of;
use crate::stage::{Family, PATIENCE, ReadOnce, Stage, nft, noise, receive_all, send_all, until};
use midhop_testbed::namespace::Namespace;
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::scope;
use std::time::Duration;

/// Bounds a flow that stands still: a fault may last a while on a busy machine.
const LONG: Duration = PATIENCE.saturating_mul(6);

/// The number of flows of [`outlive`] that are certainly resumed: three without bytes, and two
/// whose ends leave little unread. The rest of the other two may wait in the receiver's kernel, and
/// then the tunnel has finished with them.
pub const SURELY: u64 = 5;

/// Drops all packets of the tunnel, until [`mend`].
pub fn cut(stage: &Stage) {
    for way in [Way::ToFar, Way::ToNear] {
        cut_one_way(stage, way);
    }
}

/// A direction of the tunnel.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    ToFar,
    ToNear,
}

/// Drops all packets of the tunnel in one direction, until [`mend`].
pub fn cut_one_way(stage: &Stage, way: Way) {
    let (hook, port) = match way {
        Way::ToFar => ("input", "dport"),
        Way::ToNear => ("output", "sport"),
    };
    nft(&stage.server, "add table inet cut");
    let chain = format!("add chain inet cut {hook} {{ type filter hook {hook} priority 0; }}");
    nft(&stage.server, &chain);
    let ports = format!("meta l4proto {{ tcp, udp }} th {port} {PORT}");
    nft(&stage.server, &format!("add rule inet cut {hook} {ports} drop"));
}

pub fn mend(stage: &Stage) {
    nft(&stage.server, "delete table inet cut");
}

/// Number of flows that were resumed with this outcome, as one end counts them.
pub fn outcomes(host: &Namespace, outcome: &str) -> u64 {
    let name = format!("midhop_resumptions_total{{outcome=\"{outcome}\"}}");
    metric(&page(host, "/metrics"), &name)
}

/// A flow that can be resumed. The first flow of a tunnel may be requested before both ends know
/// that they resume flows, so another one precedes it.
pub fn lasting_flow(stage: &Stage, family: Family) -> (TcpStream, TcpStream) {
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    drop((client, server));
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    (client, server)
}

/// Lets a flow stand still for longer than usual.
pub fn patient(flow: &(TcpStream, TcpStream)) {
    for end in [&flow.0, &flow.1] {
        end.set_read_timeout(Some(LONG)).expect("a timeout");
        end.set_write_timeout(Some(LONG)).expect("a timeout");
    }
}

/// Waits until neither end has a flow.
pub fn none_is_left(stage: &Stage) {
    for host in [&stage.gateway, &stage.server] {
        wait_until_served(host);
        until("no flow is left", || metric(&page(host, "/metrics"), "midhop_flows") == 0);
    }
}

/// Both have ended in order, and nothing followed.
pub fn assert_ended(flow: &(TcpStream, TcpStream)) {
    for mut end in [&flow.0, &flow.1] {
        assert_eq!(end.read_once(&mut [0]).expect("an end is one for good"), 0);
        assert!(end.take_error().expect("a socket").is_none());
    }
}

/// How far every reader has read, and may read.
struct Gate {
    state: Mutex<GateState>,
    moved: Condvar,
}

struct GateState {
    read: Vec<usize>,
    open_to: usize,
    is_broken: bool,
}

impl Gate {
    fn new(readers: usize, open_to: usize) -> Self {
        let state = GateState { read: vec![0; readers], open_to, is_broken: false };
        Self { state: Mutex::new(state), moved: Condvar::new() }
    }

    fn set(&self, set: impl FnOnce(&mut GateState)) {
        set(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.moved.notify_all();
    }

    /// Waits as long as `waits` holds and no thread has failed. Returns how far it is open.
    fn wait(&self, waits: impl Fn(&GateState) -> bool) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |state: &mut GateState| waits(state) && !state.is_broken;
        let waited = self.moved.wait_timeout_while(state, LONG, waits);
        let (state, late) = waited.unwrap_or_else(PoisonError::into_inner);
        let at = (state.read.clone(), state.open_to, state.is_broken);
        drop(state);
        assert!(
            !late.timed_out() && !at.2,
            "readers are at {:?} of {}: who fails is first",
            at.0,
            at.1
        );
        at.1
    }
}

/// Makes all other threads fail at once if the owner of this does.
struct Failing<'a>(&'a Gate);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(|state| state.is_broken = true);
        }
    }
}

/// Reads up to the end, and checks that this is `bytes`.
fn receive_exactly(mut stream: &TcpStream, bytes: &[u8], gate: &Gate, reader: usize) {
    let _failing = Failing(gate);
    let (mut at, mut buffer) = (0, vec![0; 32 << 10]);
    loop {
        gate.set(|state| state.read[reader] = at);
        let most = buffer.len().min(gate.wait(|state| state.open_to <= at) - at);
        let count = stream.read_once(&mut buffer[..most]).expect("no reset");
        if count == 0 {
            return assert_eq!(at, bytes.len(), "it ended in order, but not where it should");
        }
        let as_sent = bytes.get(at..at + count).is_some_and(|sent| sent == &buffer[..count]);
        assert!(as_sent, "bytes are not as sent, after {at}");
        at += count;
    }
}

/// Both ends of several flows send much, faults occur again and again in the middle, and everything
/// arrives. Among the flows are an idle one, and flows with one end that has sent everything. The
/// `events` occur one after the other: the first one when every reader has read a part and none
/// much more, each later one when every reader has read more since.
pub fn outlive(stage: &Stage, pair: &Pair, family: Family, events: &[&dyn Fn()]) {
    const BYTES: usize = 4_000_000;
    /// What readers leave in the kernel, for half of the flows: so more waits in the proxies.
    const FEW: usize = 64 << 10;
    let listener = stage.listen(family);
    // The first flow may be requested before it is known that flows can be resumed.
    let first = stage.flow(&listener);
    pass(&first.0, &first.1);
    let by = first.1.peer_addr().expect("a peer").ip();
    assert_eq!(by, family.server(), "the far proxy connects as itself");
    drop(first);
    let [idle, asked, answered] = [(); 3].map(|()| stage.flow(&listener));
    pass(&idle.0, &idle.1);
    send_all(&asked.0, b"all that is sent");
    assert_eq!(receive_all(&asked.1), b"all that is sent");
    pass(&answered.0, &answered.1);
    send_all(&answered.1, b"a greeting");
    assert_eq!(receive_all(&answered.0), b"a greeting");
    let flows: Vec<(TcpStream, TcpStream)> = (0..4).map(|_| stage.flow(&listener)).collect();
    for flow in flows.iter().chain([&idle, &asked, &answered]) {
        patient(flow);
    }
    for (client, server) in flows.iter().take(2) {
        for end in [client, server] {
            socket2::SockRef::from(end).set_recv_buffer_size(FEW).expect("a size");
        }
    }
    // Each end sends something else.
    let all = [1, 2].map(|seed| noise(seed, BYTES + 1000 * flows.len()));
    let sent: Vec<_> = (0..2 * flows.len()).map(|n| &all[n % 2][500 * n..][..BYTES]).collect();
    let part = BYTES / (events.len() + 2);
    let gate = Gate::new(sent.len(), part + part / 2);
    scope(|scope| {
        let _failing = Failing(&gate);
        for (n, (client, server)) in flows.iter().enumerate() {
            let (gate, up, down) = (&gate, sent[2 * n], sent[2 * n + 1]);
            scope.spawn(move || send_all(client, up));
            scope.spawn(move || send_all(server, down));
            scope.spawn(move || receive_exactly(server, up, gate, 2 * n));
            scope.spawn(move || receive_exactly(client, down, gate, 2 * n + 1));
        }
        for (event, n) in events.iter().zip(1..) {
            gate.wait(|state| state.read.iter().any(|read| *read < n * part));
            event();
            gate.set(|state| state.open_to = (n + 1) * part + part / 2);
        }
        gate.set(|state| state.open_to = usize::MAX);
    });
    pass(&idle.0, &idle.1);
    send_all(&asked.1, b"the answer");
    assert_eq!(receive_all(&asked.0), b"the answer");
    send_all(&answered.0, b"thanks");
    assert_eq!(receive_all(&answered.1), b"thanks");
    idle.0.shutdown(Shutdown::Write).expect("the end");
    assert_eq!(receive_all(&idle.1), b"");
    idle.1.shutdown(Shutdown::Write).expect("the end");
    assert_eq!(receive_all(&idle.0), b"");
    none_is_left(stage);
    for flow in flows.iter().chain([&idle, &asked, &answered]) {
        assert_ended(flow);
    }
    for (host, setup) in [(&stage.gateway, &pair.near), (&stage.server, &pair.far)] {
        let status = setup.status();
        // An end that was killed or replaced may have lost the confirmation that a flow is
        // complete, and then waits in vain.
        if status.data_planes_killed_total + status.upgrades_total == 0 {
            assert_eq!(outcomes(host, "lost"), 0, "{}", log_of(setup));
        }
        let waiting = "midhop_flows_without_tunnel{scope=\"all\"}";
        assert_eq!(metric(&page(host, "/metrics"), waiting), 0, "{}", log_of(setup));
    }
}
