//! Registering with the real kernel. Without the privilege to, each test prints that it is skipped.
//!
//! A program of its own: these tests check that a registration is gone, and whoever registers an algorithm holds those of
//! others for a moment while it looks. Here the tests wait for one another; cargo runs programs of tests one by one.

use midhop_bpf::{Algorithm, Hold, Parameters, available, ensure, missing_to_load};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A test that looks for an existing registration holds each of them for a moment. While one
/// test checks whether its own is gone, no other may look.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this test must be skipped; prints that and why.
fn skipped() -> bool {
    missing_to_load().inspect(|missing| midhop_testkit::skipped(missing)).is_some()
}

/// Parameters that no other test and no daemon uses, so that the registration is this test's own.
fn own_parameters(test: u64) -> Parameters {
    let rtt0 = Duration::from_micros(10_000_000 * (test + 1) + u64::from(std::process::id()));
    Parameters { rtt0, ..Parameters::default() }
}

#[test]
fn a_registration_lives_as_long_as_its_last_holder() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let parameters = own_parameters(0);
    let first = ensure(Algorithm::Hybla, &parameters).expect("the kernel takes the program");
    let name = first.kernel_name().to_owned();
    assert!(matches!(first.hold(), Hold::Own(_)), "{:?}", first.hold());
    assert!(available(&name));
    let second = ensure(Algorithm::Hybla, &parameters).expect("it is there already");
    assert!(matches!(second.hold(), Hold::Shared(_)), "{:?}", second.hold());
    assert_eq!(second.kernel_name(), name);
    drop(first);
    assert!(available(&name), "the second holder keeps it");
    drop(second);
    assert!(!available(&name), "nobody holds it");
}

#[test]
fn the_kernel_takes_every_program() {
    if skipped() {
        return;
    }
    let _alone = alone();
    for algorithm in Algorithm::ALL {
        let loaded = ensure(algorithm, &Parameters::default())
            .unwrap_or_else(|error| panic!("{algorithm}: {error}"));
        assert_eq!(loaded.kernel_name(), algorithm.kernel_name());
        assert!(available(algorithm.kernel_name()), "{algorithm}");
    }
}

#[test]
fn a_connection_keeps_an_algorithm_that_is_gone() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let loaded = ensure(Algorithm::Hybla, &own_parameters(1)).expect("the kernel takes it");
    let name = loaded.kernel_name().to_owned();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
    let (mut far, _) = listener.accept().expect("accept");
    loaded.select(&near).expect("select");
    drop(loaded);
    assert!(!available(&name));
    let used = socket2::SockRef::from(&near).tcp_congestion().expect("TCP_CONGESTION");
    assert!(used.starts_with(name.as_bytes()), "{used:?}");
    let sent: Vec<u8> = (0..1_000_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    let expected = sent.clone();
    let sender = std::thread::spawn(move || near.write_all(&sent));
    let mut received = Vec::new();
    far.read_to_end(&mut received).expect("read");
    sender.join().expect("the sender is done").expect("write");
    assert!(received == expected, "{} bytes of {}", received.len(), expected.len());
}
