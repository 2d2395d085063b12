//! What cannot be dumped or restored, and options that are carried.

use super::stage::*;
use crate::sockopt;
use crate::stream_position::StreamPosition;
use crate::tcp_repair::{
    Buffer, DumpError, Keepalive, LocalEnd, Mode, RestoreError, TcpSnapshot, dump, go_on, prepare,
    restore, switch,
};
use nix::libc;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;

fn refusal(socket: impl AsFd) -> DumpError {
    dump(socket, QUEUE_MAX).expect_err("it cannot move")
}

#[test]
fn only_connections_in_repair_mode_are_dumped() {
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    assert!(matches!(refusal(&datagrams), DumpError::NotTcp));
    let (one, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    assert!(matches!(refusal(&one), DumpError::NotTcp));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    assert!(matches!(refusal(&listener), DumpError::State { state: 10 }));
    assert!(switch(&listener, Mode::On).is_err());
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    assert!(matches!(refusal(&near), DumpError::NotInRepair));
    let denied = unprivileged(|| switch(&near, Mode::On)).expect_err("it takes a capability");
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_queue_beyond_the_limit_is_not_dumped() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let pair = stage.connect(Opener::Near);
    let [mut out, mut back] = Writer::both();
    back.write(&pair.far, 1_000);
    wait_for_unread(&pair.near, 1_000);
    stage.freeze(0);
    switch(&pair.near, Mode::On).expect("repair mode");
    let refused = dump(&pair.near, 999).expect_err("the queue is longer");
    assert!(matches!(refused, DumpError::TooLong { bytes: 1_000, bytes_max: 999 }), "{refused}");
    assert_eq!(dump(&pair.near, 1_000).expect("a state").receive.unread.len(), 1_000);
    switch(&pair.near, Mode::Off).expect("the connection goes on");
    out.write(&pair.near, 2_000);
    switch(&pair.near, Mode::On).expect("repair mode");
    let refused = dump(&pair.near, 1_999).expect_err("the queue is longer");
    assert!(matches!(refused, DumpError::TooLong { bytes: 2_000, .. }), "{refused}");
}

/// A connection and its state, frozen and in repair mode.
fn dumped(stage: &Stage) -> (Pair, TcpSnapshot) {
    let pair = stage.connect(Opener::Near);
    stage.freeze(0);
    switch(&pair.near, Mode::On).expect("repair mode");
    let state = dump(&pair.near, QUEUE_MAX).expect("a state");
    (pair, state)
}

#[test]
fn only_prepared_sockets_are_restored() {
    let Some(stage) = Stage::new(false, &[]) else { return };
    let (pair, state) = dumped(&stage);
    assert!(matches!(restore(&pair.near, &state), Err(RestoreError::NotPrepared)));
    let prepare_at = |place: usize, address| {
        let made = stage.places[place].run(|| prepare(address, &state.buffers));
        made.expect("entered").expect("a socket")
    };
    let left = prepare_at(1, state.local);
    switch(&left, Mode::OffWithoutProbe).expect("no repair mode");
    assert!(matches!(restore(&left, &state), Err(RestoreError::NotPrepared)));
    let mut other = state.local;
    other.set_port(7);
    let elsewhere = prepare_at(1, other);
    let refused = restore(&elsewhere, &state).expect_err("another address");
    assert!(matches!(refused, RestoreError::Address { bound, .. } if bound == other), "{refused}");
    // The connection is here already.
    let again = prepare_at(0, state.local);
    let refused = restore(&again, &state).expect_err("it is there");
    let RestoreError::Kernel { what: "far end", source } = refused else { panic!("{refused}") };
    assert_eq!(source.raw_os_error(), Some(libc::EADDRNOTAVAIL));
    // In repair mode, what is written would count as sent.
    let socket = prepare_at(1, state.local);
    let mut unsent = restore(&socket, &state).expect("restored");
    assert_eq!(unsent.send(&socket).expect_err("in repair mode").kind(), ErrorKind::InvalidInput);
    // As if it had been sent: the caller has forgotten the end.
    let mut ended = state.clone();
    ended.local_end = LocalEnd::Sent;
    let elsewhere = prepare_at(1, state.local);
    // The place has one connection of these addresses at a time.
    drop((socket, unsent));
    let mut unsent = restore(&elsewhere, &ended).expect("restored");
    assert!(unsent.is_end_sent());
    go_on(&elsewhere, false).expect("the connection goes on");
    assert_eq!(unsent.send(&elsewhere).expect_err("no FIN").kind(), ErrorKind::InvalidInput);
    switch(&elsewhere, Mode::On).expect("repair mode");
    go_on(&elsewhere, true).expect("the connection goes on");
    assert!(unsent.send(&elsewhere).expect("a connection"));
    let denied = unprivileged(|| prepare(state.local, &state.buffers).map(drop));
    assert_eq!(denied.expect_err("no capability").kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_window_that_the_kernel_cannot_have_is_refused() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let (_pair, mut state) = dumped(&stage);
    state.window.receive_updated_at = state.receive.next.wrapping_add(1);
    let made = stage.places[1].run(|| prepare(state.local, &state.buffers));
    let refused = restore(made.expect("entered").expect("a socket"), &state);
    assert!(matches!(refused, Err(RestoreError::Kernel { what: "window", .. })), "{refused:?}");
}

#[test]
fn queues_that_do_not_fit_are_refused() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let (_pair, mut state) = dumped(&stage);
    let small = Buffer { bytes: 8_192, locked: true };
    state.buffers.receive = small;
    state.buffers.send = small;
    // Four times what a process may set, which the kernel doubles.
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").expect("a limit");
    let bytes = most.trim().parse::<usize>().expect("a number") * 4;
    if bytes > 256 << 20 {
        return midhop_testkit::skipped(
            "everybody may have as large a buffer as this machine's memory",
        );
    }
    state.receive.unread = vec![7; bytes];
    let made = stage.places[1].run(|| prepare(state.local, &state.buffers));
    let socket = made.expect("entered").expect("a socket");
    let refused = unprivileged(|| restore(&socket, &state)).expect_err("no room");
    assert!(
        matches!(refused, RestoreError::NoRoom { bytes: all, .. } if all == bytes),
        "{refused}"
    );
}

#[test]
fn options_are_carried() {
    for v4 in [true, false] {
        let Some(stage) = Stage::new(v4, &[]) else { return };
        let mut pair = stage.connect(Opener::Far);
        let class = match v4 {
            true => (libc::SOL_IP, libc::IP_TOS),
            false => (libc::SOL_IPV6, libc::IPV6_TCLASS),
        };
        let set = [
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 1_234),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 56),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 7),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
            (libc::IPPROTO_TCP, libc::TCP_CORK, 1),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 123_456),
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 100_000),
            (libc::SOL_SOCKET, libc::SO_RCVBUF, 100_000),
            (class.0, class.1, 0xb8),
        ];
        for (level, name, value) in set {
            sockopt::set_int(&pair.near, level, name, value).expect("an option");
        }
        let rate = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
        sockopt::set_u64(&pair.near, rate.0, rate.1, 123 << 20).expect("an option");
        let name = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        sockopt::set(&pair.near, name.0, name.1, b"reno").expect("a part of every kernel");
        // Less than a segment: it waits for more.
        let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
        out.write(&pair.near, 100);
        let first = stage.relocate(pair.near, [0, 1], false);
        let options = &first.state.options;
        let keepalive = Keepalive { on: true, idle_s: 1_234, interval_s: 56, probes: 7 };
        assert_eq!(options.keepalive, keepalive);
        assert!(options.no_delay && options.cork);
        assert_eq!((options.user_timeout_ms, options.unsent_low_water), (123_456, 100_000));
        assert_eq!((options.traffic_class, options.pacing_rate_max), (0xb8, 123 << 20));
        assert_eq!(options.congestion_control, "reno");
        let buffers = first.state.buffers;
        assert_eq!(buffers.receive, Buffer { bytes: 200_000, locked: true });
        assert!(!buffers.send.locked);
        let (state, mut moved) = (first.state.clone(), first);
        assert_eq!(state.send.unsent.len(), 100);
        moved.send_rest(&pair.far, &mut read[0]);
        let second = stage.relocate(moved.near, [1, 0], false);
        assert_eq!(second.state.options, state.options);
        assert_eq!(second.state.buffers.receive, state.buffers.receive);
        assert_eq!(second.state.buffers.send.locked, state.buffers.send.locked);
        assert_eq!(second.state.send.unsent.len(), 100, "corked");
        let mut moved = second;
        moved.send_rest(&pair.far, &mut read[0]);
        pair.near = moved.near;
        sockopt::set_int(&pair.near, libc::IPPROTO_TCP, libc::TCP_CORK, 0).expect("an option");
        read_all(&pair.far, &mut read[0], out.written);
        back.write(&pair.far, 5_000);
        read_all(&pair.near, &mut read[1], back.written);
        out.check(&read[0]);
        back.check(&read[1]);
    }
}

#[test]
fn positions_begin_with_the_new_life() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let mut pair = stage.connect(Opener::Far);
    let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
    out.write(&pair.near, 1_000);
    read_all(&pair.far, &mut read[0], 1_000);
    back.write(&pair.far, 3_000);
    wait_for_unread(&pair.near, 3_000);
    deafen(&stage.far);
    out.write(&pair.near, 2_000);
    stage.freeze(0);
    heal(&stage.far);
    let mut moved = stage.relocate(pair.near, [0, 1], true);
    moved.send_rest(&pair.far, &mut read[0]);
    pair.near = moved.near;
    let opened_by = moved.state.opened_by();
    let position = StreamPosition::of(&pair.near, opened_by).expect("a position");
    assert_eq!((position.read, position.written), (0, 2_000));
    read_all(&pair.near, &mut read[1], 3_000);
    out.write(&pair.near, 500);
    read_all(&pair.far, &mut read[0], 3_500);
    let position = StreamPosition::of(&pair.near, opened_by).expect("a position");
    assert_eq!((position.read, position.written), (3_000, 2_500));
}

/// An IPv4 connection of an IPv6 socket is one of IPv4.
#[test]
fn ipv4_in_ipv6_moves_as_ipv4() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let work = || {
        let listener = TcpListener::bind("[::]:0").expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let near = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let (mut far, _) = listener.accept().expect("connected");
        switch(&far, Mode::On).expect("repair mode");
        let state = dump(&far, QUEUE_MAX).expect("a state");
        assert!(state.local.is_ipv4() && state.remote.is_ipv4(), "{state:?}");
        drop(far);
        let socket = prepare(state.local, &state.buffers).expect("a socket");
        let mut unsent = restore(&socket, &state).expect("restored");
        go_on(&socket, unsent.is_end_sent()).expect("the connection goes on");
        assert!(unsent.send(&socket).expect("a connection"));
        far = TcpStream::from(socket);
        far.write_all(b"still here").expect("written");
        wait_for_unread(&near, 10);
    };
    stage.places[0].run(work).expect("entered");
}
