//! SYNs that wait in the daemon's queue when it is killed go on to their servers: no client has to
//! retransmit its SYN. SYNs of flows that were split already do not go on.

use crate::program::{Running, Setup, traces};
use crate::stage::{self, Family, Stage, nft, receive_all, send_all, until};
use crate::strangers::counter;
use nix::sys::signal::Signal;
use socket2::{Domain, Socket, Type};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};

const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n";
const CLIENTS: usize = 24;

/// Counts the SYNs that clients send, and those that reach the server's host. SYNs of the gateway
/// itself have not lost a hop there: if `refused`, the server never receives them.
fn count(stage: &Stage, family: Family, port: u16, refused: bool) {
    let syn = format!("tcp flags & (fin|syn|rst|ack) == syn tcp dport {port}");
    nft(
        &stage.client,
        &format!(
            "table inet seen {{ counter sent {{ }}; chain c {{ type filter hook output priority 0; \
             {syn} counter name sent; }}; }}"
        ),
    );
    let own = match family {
        Family::V4 => "ip ttl 64",
        Family::V6 => "ip6 hoplimit 64",
    };
    let fate = if refused { "drop" } else { "accept" };
    nft(
        &stage.server,
        &format!(
            "table inet seen {{ counter own {{ }}; counter came {{ }}; \
             chain c {{ type filter hook prerouting priority -300; \
             {syn} {own} counter name own {fate}; {syn} counter name came; }}; }}"
        ),
    );
}

fn sent(stage: &Stage) -> u64 {
    counter(&stage.client, "seen", "sent")
}

/// SYNs that wait in the kernel for the decision of the gateway's daemon.
fn waiting(stage: &Stage) -> usize {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue");
    let text = stage.gateway.run(read).expect("entering").expect("the kernel's list of queues");
    let of_queue = |line: &str| line.split_whitespace().nth(2)?.parse::<usize>().ok();
    text.lines().map(|line| of_queue(line).unwrap_or_else(|| panic!("{text}"))).sum()
}

/// Clients that have sent their SYNs and wait for a response.
fn knock(stage: &Stage, server: SocketAddr) -> Vec<Socket> {
    let knock = || {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&server.into()) {
            Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => Ok(socket),
            outcome => outcome.map(|()| socket),
        }
    };
    (0..CLIENTS).map(|_| stage.client.run(knock).expect("entering").expect("a SYN")).collect()
}

/// Whether all threads of a process are stopped.
fn stands_still(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("a process");
    let mut states = tasks.map(|task| {
        let stat = task.expect("a thread").path().join("stat");
        // The name before it may contain any character.
        std::fs::read_to_string(stat).expect("a state").rsplit(')').next().map(str::to_owned)
    });
    states.all(|state| state.is_some_and(|state| state.starts_with(" T ")))
}

/// Checks that each client is connected with a server of its own, and with no other.
fn are_connected(clients: Vec<Socket>, listener: &TcpListener) {
    for client in &clients {
        until("it is connected", || match client.peer_addr() {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NotConnected => {
                let refused = client.take_error().expect("its state");
                assert!(refused.is_none(), "{refused:?}");
                false
            }
            Err(error) => panic!("{error}"),
        });
    }
    let accept = || listener.accept().expect("its other end");
    let mut servers: BTreeMap<SocketAddr, TcpStream> =
        clients.iter().map(|_| accept()).map(|(server, from)| (from, server)).collect();
    for client in clients {
        client.set_nonblocking(false).expect("a mode");
        let client = TcpStream::from(client);
        let own = client.local_addr().expect("an address");
        let server = servers.remove(&own).expect("a server of its own");
        for end in [&client, &server] {
            end.set_read_timeout(Some(stage::PATIENCE)).expect("a timeout");
        }
        send_all(&client, own.to_string().as_bytes());
        assert_eq!(receive_all(&server), own.to_string().as_bytes());
        send_all(&server, b"heard");
        assert_eq!(receive_all(&client), b"heard");
    }
}

/// The daemon is stopped before it has read any of them: not one SYN is lost.
fn unseen(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    let server = listener.local_addr().expect("an address");
    count(&stage, family, server.port(), false);
    running.stop_data_plane();
    until("it stands still", || stands_still(running.id()));
    let clients = knock(&stage, server);
    until("all of them wait", || waiting(&stage) >= CLIENTS);
    assert_eq!(counter(&stage.server, "seen", "came"), 0);
    running.signal(Signal::SIGKILL);
    assert_eq!(running.end(), None);
    are_connected(clients, &listener);
    until("its keeper has cleaned", || traces(&stage.gateway).is_empty());
    let (sent, came) = (sent(&stage), counter(&stage.server, "seen", "came"));
    assert_eq!(sent, came, "SYNs that were sent, and those that came");
    assert_eq!(counter(&stage.server, "seen", "own"), 0, "the daemon sent none itself");
}

#[test]
fn syns_that_nobody_has_looked_at_go_on_ipv4() {
    unseen(Family::V4);
}

#[test]
fn syns_that_nobody_has_looked_at_go_on_ipv6() {
    unseen(Family::V6);
}

/// The daemon connects to the server for each client and has no response yet. If a client
/// retransmits its SYN meanwhile, the daemon drops that SYN. No SYN of the others is lost.
fn held(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    let server = listener.local_addr().expect("an address");
    count(&stage, family, server.port(), true);
    let clients = knock(&stage, server);
    let asked = || counter(&stage.server, "seen", "own");
    until("the daemon asks for all of them", || asked() >= CLIENTS as u64);
    until("all of them are held", || waiting(&stage) >= CLIENTS);
    assert_eq!(counter(&stage.server, "seen", "came"), 0);
    running.signal(Signal::SIGKILL);
    assert_eq!(running.end(), None);
    let repeated = sent(&stage) - CLIENTS as u64;
    are_connected(clients, &listener);
    until("its keeper has cleaned", || traces(&stage.gateway).is_empty());
    let (sent, came) = (sent(&stage), counter(&stage.server, "seen", "came"));
    assert!(
        came <= sent && sent - came <= repeated,
        "{sent} SYNs were sent, {repeated} of them again to the daemon, and {came} came"
    );
}

#[test]
fn syns_that_are_held_go_on_ipv4() {
    held(Family::V4);
}

#[test]
fn syns_that_are_held_go_on_ipv6() {
    held(Family::V6);
}

/// Clients that were let in: a SYN that the daemon has not dropped yet reaches no server when the
/// daemon is gone.
fn let_in(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    let server = listener.local_addr().expect("an address");
    count(&stage, family, server.port(), false);
    let flows: Vec<_> = (0..CLIENTS / 4).map(|_| stage.flow(&listener)).collect();
    running.signal(Signal::SIGKILL);
    assert_eq!(running.end(), None);
    until("its keeper has cleaned", || traces(&stage.gateway).is_empty());
    assert_eq!(counter(&stage.server, "seen", "own"), flows.len() as u64, "all were split");
    assert_eq!(counter(&stage.server, "seen", "came"), 0, "SYNs of flows that were split");
}

#[test]
fn syns_of_flows_that_were_split_go_nowhere_ipv4() {
    let_in(Family::V4);
}

#[test]
fn syns_of_flows_that_were_split_go_nowhere_ipv6() {
    let_in(Family::V6);
}
