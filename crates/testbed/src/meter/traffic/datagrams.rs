//! UDP at a rate that no receiver controls: a sender that is as punctual as a link's emulator, and
//! a sink.

use super::{Arrived, TrafficError, TrafficOptions, TrafficReport, local, stopped, watch};
use crate::emulator::lateness::Histogram;
use crate::emulator::scheduling;
use crate::meter::clock;
use midhop_experiment::limit::Family;
use midhop_experiment::traffic::{Departures, Load};
use midhop_units::{Bytes, Instant};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::{fs, io};

/// Receive buffer, for the time until the sink gets the processor. Unit: bytes.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Datagrams between two checks of whether to stop, when the sender does not wait.
const TURN: u64 = 256;

/// Sends the datagrams of the plan, each when it is due.
pub(super) fn send(
    options: &TrafficOptions,
    stop: BorrowedFd<'_>,
    begins: impl FnOnce() -> Result<Instant, TrafficError>,
) -> Result<TrafficReport, TrafficError> {
    let plan = &options.plan;
    let socket = open(plan.family).map_err(local("make a socket"))?;
    socket.connect(options.address).map_err(local("name the far end"))?;
    // With the same scheduling as a link's emulator, so that datagrams are as punctual.
    scheduling::be_punctual();
    let payload = vec![0; usize::try_from(payload(options).get()).unwrap_or_default()];
    let mut lateness = Histogram::new();
    let (mut sent, mut unsent) = (0, 0_u64);
    let epoch = begins()?;
    for due in Departures::of(plan, options.seed).into_iter().flatten() {
        let due = epoch + due;
        let pause = due.saturating_since(clock::now());
        if (!pause.is_zero() || sent % TURN == 0)
            && stopped(stop, Some(pause)).map_err(local("wait"))?
        {
            break;
        }
        // An ICMP error for an earlier datagram is returned by this call: send again.
        match socket.send(&payload).or_else(|_| socket.send(&payload)) {
            Ok(_) => {
                sent += 1;
                lateness.record(clock::now().saturating_since(due));
            }
            Err(_) => unsent += 1,
        }
    }
    stopped(stop, None).map_err(local("wait"))?;
    Ok(TrafficReport {
        flows: 1,
        packets_sent: sent,
        lateness: Some(lateness.summary()),
        faults: counted(unsent, "datagrams did not leave their host").into_iter().collect(),
        ..TrafficReport::default()
    })
}

/// Receives and counts what arrives.
pub(super) fn receive(
    options: &TrafficOptions,
    stop: BorrowedFd<'_>,
    begins: impl FnOnce() -> Result<Instant, TrafficError>,
) -> Result<TrafficReport, TrafficError> {
    let socket = UdpSocket::bind(options.address).map_err(local("listen for datagrams"))?;
    socket.set_nonblocking(true).map_err(local("make a socket"))?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER)
        .or_else(|_| setsockopt(&socket, RcvBuf, &RECEIVE_BUFFER))
        .map_err(|errno| local("make room to receive")(errno.into()))?;
    let mut arrived = Arrived::new(begins()?);
    let mut packets_received = 0;
    let mut watched = [watch(stop), watch(socket.as_fd())];
    let mut buffer = [0; 2048];
    while watched[0].revents == 0 {
        scheduling::wait(&mut watched, None).map_err(local("wait"))?;
        while let Ok(length) = socket.recv(&mut buffer) {
            packets_received += 1;
            arrived.add(Bytes::new(length as u64));
        }
    }
    let dropped = dropped(options.address.port()).map_err(local("read the socket's drops"))?;
    let what = "datagrams arrived and were dropped before they were counted";
    Ok(TrafficReport {
        packets_received,
        faults: counted(dropped, what).into_iter().collect(),
        ..arrived.report(&options.plan)
    })
}

fn open(family: Family) -> io::Result<UdpSocket> {
    let any = match family {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    UdpSocket::bind((any, 0))
}

fn payload(options: &TrafficOptions) -> Bytes {
    match options.plan.load {
        Load::Constant { packet, .. } | Load::OnOff { packet, .. } => options.plan.payload(packet),
        Load::Bulk { .. } | Load::Web { .. } | Load::Arrivals { .. } => Bytes::ZERO,
    }
}

fn counted(count: u64, what: &str) -> Option<String> {
    (count > 0).then(|| format!("{count} {what}"))
}

/// Datagrams that were dropped for lack of space by sockets of this network namespace that are
/// bound to `port`.
fn dropped(port: u16) -> io::Result<u64> {
    let mut dropped = 0;
    for table in ["udp", "udp6"] {
        let text = match fs::read_to_string(format!("/proc/self/net/{table}")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        dropped += drops_in(&text, port);
    }
    Ok(dropped)
}

/// The last column of the lines whose local port (behind the colon of the second column) is `port`.
fn drops_in(table: &str, port: u16) -> u64 {
    let of = |line: &str| -> Option<u64> {
        let mut columns = line.split_whitespace();
        let (_, local) = columns.nth(1)?.split_once(':')?;
        (u16::from_str_radix(local, 16).ok()? == port).then(|| columns.last()?.parse().ok())?
    };
    table.lines().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_of_sockets_is_understood() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                     uid  timeout inode ref pointer drops\n\
                     1177: 0100000A:2328 00000000:0000 07 00000000:00000000 00:00000000 00000000     \
                     0        0 51234 2 0000000000000000 17\n\
                     1178: 0100000A:2329 00000000:0000 07 00000000:00000000 00:00000000 00000000     \
                     0        0 51235 2 0000000000000000 5\n";
        assert_eq!([9000, 9001, 9002].map(|port| drops_in(table, port)), [17, 5, 0]);
    }
}
