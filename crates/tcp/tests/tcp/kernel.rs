//! The endpoint against this machine's kernel, over a cable that loses, in both directions at once.
//!
//! A failing case names its seed. `MIDHOP_SEEDS=17 cargo test -p midhop-tcp --test tcp kernel::` repeats it,
//! `MIDHOP_SEEDS=0..500` runs many. The dice are the same each time, the clock is not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says why where it stops")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the kernel has real sockets and a real clock"
)]

mod cable;

use std::{
    env,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Instant as Clock,
};

use crate::pair::Dice;
use cable::{Cable, Faults, Kernel};
use midhop_congestion::{Law, build};
use midhop_tcp::{
    Autotuning, Counters, DelayedAck, Endpoint, Event, LossDetection, RtoRule, Settings,
};
use midhop_units::{Bytes, Duration, Instant};

/// Everything that a seed decides.
#[derive(Debug, Clone)]
struct Case {
    seed: u64,
    six: bool,
    /// Whether the endpoint opens the connection, else the kernel does.
    active: bool,
    /// From the endpoint, from the kernel.
    bytes: [u64; 2],
    faults: Faults,
    settings: Settings,
    law: Law,
    sysctls: Vec<(&'static str, &'static str)>,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let mut one_in = |sides: u64| dice.roll().is_multiple_of(sides);
        let mut sysctls = Vec::new();
        let mut off = |is: bool, key| {
            if is {
                sysctls.push((key, "0"));
            }
        };
        off(one_in(6), "net.ipv4.tcp_sack");
        off(one_in(6), "net.ipv4.tcp_timestamps");
        off(one_in(8), "net.ipv4.tcp_window_scaling");
        let ecn = one_in(3);
        if ecn {
            sysctls.push(("net.ipv4.tcp_ecn", "1"));
        }
        let settings = Settings {
            mss: if one_in(4) { 536 } else { 1440 },
            receive_buffer: Bytes::new(if one_in(4) { 9_000 } else { 1 << 20 }),
            receive_autotuning: one_in(3).then_some(Autotuning { initial: Bytes::new(65_535) }),
            send_buffer: Bytes::new(if one_in(4) { 30_000 } else { 1 << 20 }),
            sack: !one_in(6),
            timestamps: !one_in(6),
            window_scaling: !one_in(8),
            ecn,
            delayed_ack: if one_in(4) { DelayedAck::NONE } else { DelayedAck::default() },
            loss_detection: if one_in(3) { LossDetection::DupThresh } else { LossDetection::Rack },
            limited_transmit: !one_in(5),
            prr: !one_in(5),
            rto: if one_in(6) { RtoRule::Rfc6298 } else { RtoRule::Linux },
            undo: !one_in(5),
            pacing: one_in(3),
            nagle: one_in(2),
            time_wait: Duration::from_ms(1),
            ..Settings::default()
        };
        let size = |most: u64, dice: &mut Dice| dice.roll() % most;
        let most = [3_000_000, 300_000, 30_000, 3_000][dice.roll() as usize % 4];
        Self {
            seed,
            six: dice.roll().is_multiple_of(3),
            active: dice.roll().is_multiple_of(2),
            bytes: [size(most, &mut dice), size(most, &mut dice)],
            faults: Faults {
                loss_per_mille: [0, 5, 10, 30][dice.roll() as usize % 4],
                duplicate_per_mille: [0, 10][dice.roll() as usize % 2],
                mark_per_mille: 10,
                delay_us: dice.roll() % 3000,
                jitter_us: [0, 0, 300, 3000][dice.roll() as usize % 4],
            },
            settings,
            law: [Law::Reno, Law::Cubic, Law::Westwood][seed as usize % 3].clone(),
            sysctls,
        }
    }

    fn endpoint(&self) -> Endpoint {
        let congestion = midhop_congestion::Settings {
            mss: self.settings.segment_payload(),
            ..midhop_congestion::Settings::of(self.law.clone())
        };
        let control = build(&congestion).unwrap();
        // Close to the wrap, so that many cases cross it.
        let initial = 0_u32.wrapping_sub((self.seed as u32 % 7) * 100_000);
        if self.active {
            Endpoint::connect(self.settings.clone(), control, initial)
        } else {
            Endpoint::listen(self.settings.clone(), control, initial)
        }
    }
}

/// The byte at an offset of a stream.
fn content(seed: u64, offset: u64) -> u8 {
    let word = Dice(seed ^ (offset / 8)).roll().to_le_bytes();
    word[(offset % 8) as usize]
}

fn stretch(seed: u64, from: u64, length: u64) -> Vec<u8> {
    (from..from + length).map(|offset| content(seed, offset)).collect()
}

/// The kernel's side: writes its stream, reads ours, and returns what it read.
fn kernel_side(
    mut stream: TcpStream,
    seed: u64,
    bytes: u64,
) -> io::Result<thread::JoinHandle<io::Result<Vec<u8>>>> {
    let mut writing = stream.try_clone()?;
    let writer = thread::spawn(move || {
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(1 + Dice(seed ^ at).roll() % 60_000);
            writing.write_all(&stretch(seed, at, length))?;
            at += length;
        }
        writing.shutdown(Shutdown::Write)
    });
    Ok(thread::spawn(move || {
        let mut read = Vec::new();
        stream.read_to_end(&mut read)?;
        writer.join().expect("the kernel's writer does not panic")?;
        Ok(read)
    }))
}

/// Opens the kernel's side, in its namespace.
fn open_kernel(
    kernel: &Kernel,
    case: &Case,
    endpoint: SocketAddr,
) -> (SocketAddr, thread::JoinHandle<io::Result<Vec<u8>>>) {
    for (key, value) in &case.sysctls {
        kernel.namespace.set_sysctl(key, value).unwrap();
    }
    let (seed, bytes) = (case.seed + 1, case.bytes[1]);
    if case.active {
        let listener = kernel
            .namespace
            .run(|| TcpListener::bind(SocketAddr::new(kernel.address, 0)))
            .unwrap()
            .unwrap();
        let address = listener.local_addr().unwrap();
        let side = thread::spawn(move || {
            let (stream, _) = listener.accept()?;
            drop(listener);
            kernel_side(stream, seed, bytes)?.join().expect("the kernel's reader does not panic")
        });
        (address, side)
    } else {
        let socket = kernel
            .namespace
            .run(|| {
                let domain = socket2::Domain::for_address(endpoint);
                let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
                socket.bind(&SocketAddr::new(kernel.address, 0).into())?;
                io::Result::Ok(socket)
            })
            .unwrap()
            .unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let side = thread::spawn(move || {
            socket.connect(&endpoint.into())?;
            let stream = TcpStream::from(socket);
            kernel_side(stream, seed, bytes)?.join().expect("the kernel's reader does not panic")
        });
        (address, side)
    }
}

/// Our side: what was read, and how it went.
struct Ours {
    read: Vec<u8>,
    events: Vec<Event>,
    counters: Counters,
    lost: u64,
    marked: u64,
}

fn our_side(case: &Case, cable: &mut Cable, peer: SocketAddr) -> Ours {
    let began = Clock::now();
    let clock = || Instant::from_ns(began.elapsed().as_nanos() as u64);
    let mut end = case.endpoint();
    let (mut left, mut closed) = (case.bytes[0], false);
    // Received bytes are stored here at their offset until they are read. They are never more than a buffer.
    let mut stream = vec![0; case.bytes[1] as usize];
    let (mut read, mut events, mut steps) = (0, Vec::new(), 0_u64);
    while !events.iter().any(|event| matches!(event, Event::Closed | Event::Reset(_))) {
        assert!(began.elapsed().as_secs() < 100, "no end: {:?} {:?}", end.state(), end.counters());
        let now = clock();
        cable.move_on(now, |packet, payload| {
            if let Some(place) = end.placement(&packet.segment) {
                let from = &payload[place.skip as usize..(place.skip + place.length) as usize];
                let to = place.offset as usize..(place.offset + place.length) as usize;
                stream.get_mut(to).expect("no byte beyond the stream's end").copy_from_slice(from);
            }
            end.handle_segment(now, &packet.segment);
            steps += 1;
            if steps % 16 == 0 {
                end.check_invariants().unwrap();
            }
        });
        if end.poll_timeout().is_some_and(|at| at <= now) {
            end.handle_timeout(now);
        }
        left -= end.write(left);
        if left == 0 && !closed && end.state() != midhop_tcp::State::Listen {
            end.close();
            closed = true;
        }
        read += end.read(now, 1 << 16);
        while let Some(segment) = end.poll_transmit(now) {
            let payload = stretch(case.seed, segment.offset, u64::from(segment.length));
            cable.send(now, &segment, peer, &payload);
        }
        while let Some(event) = end.poll_event() {
            events.push(event);
        }
        let more = end.readable() > 0;
        cable.wait(now, if more { Some(now) } else { end.poll_timeout() });
    }
    // The last acknowledgement may be lost as well: then the kernel retransmits.
    let until = clock() + Duration::from_ms(1);
    while clock() < until {
        cable.move_on(clock(), |_, _| {});
    }
    read += end.read(clock(), u64::MAX);
    stream.truncate(read as usize);
    Ours { read: stream, events, counters: end.counters(), lost: cable.lost, marked: cable.marked }
}

fn play(case: &Case) -> Counters {
    let dice = Dice(case.seed ^ 0x5eed);
    let (mut cable, kernel) = Cable::lay(case.six, 5001, case.faults, dice);
    let (peer, side) = open_kernel(&kernel, case, cable.endpoint());
    let ours = our_side(case, &mut cable, peer);
    assert!(ours.events.contains(&Event::Closed), "{:?} {:?}", ours.events, ours.counters);
    assert_eq!(ours.read.len() as u64, case.bytes[1], "{:?}", ours.counters);
    assert!(ours.read == stretch(case.seed + 1, 0, case.bytes[1]), "the kernel's bytes are others");
    let theirs = side.join().expect("the kernel's side does not panic").expect("the kernel's side");
    assert_eq!(theirs.len() as u64, case.bytes[0]);
    assert!(theirs == stretch(case.seed, 0, case.bytes[0]), "our bytes arrived as others");
    println!("seed {}: {} lost, {} marked, {:?}", case.seed, ours.lost, ours.marked, ours.counters);
    ours.counters
}

/// Plays each seed, a few at a time, and names those that fail.
fn play_all(seeds: Vec<u64>) {
    let (count, next) = (seeds.len(), std::sync::Mutex::new(seeds.into_iter()));
    let failed = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(seed) = next.lock().ok().and_then(|mut seeds| seeds.next()) {
                    let case = Case::new(seed);
                    if std::panic::catch_unwind(|| play(&case)).is_err() {
                        eprintln!(
                            "again: MIDHOP_SEEDS={seed} cargo test -p midhop-tcp --test tcp kernel::\n{case:#?}"
                        );
                        failed.lock().expect("no panic holds it").push(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic holds it");
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
}

/// The seeds that the environment names, else `usual`.
fn seeds(usual: std::ops::Range<u64>) -> Vec<u64> {
    let Ok(text) = env::var("MIDHOP_SEEDS") else { return usual.collect() };
    let parse = |text: &str| text.trim().parse::<u64>().expect("MIDHOP_SEEDS is N or FROM..TO");
    match text.split_once("..") {
        Some((from, to)) => (parse(from)..parse(to)).collect(),
        None => vec![parse(&text)],
    }
}

/// Whether this process may make namespaces; prints what is missing if not.
fn may_make_namespaces() -> bool {
    match midhop_testbed::namespace::Namespace::create("probe") {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: the endpoint against this kernel: {error}");
            false
        }
    }
}

#[test]
fn streams_arrive_whole_in_both_directions() {
    if may_make_namespaces() {
        play_all(seeds(0..24));
    }
}

#[test]
#[ignore = "minutes; run it with `make test-kernel`"]
fn streams_arrive_whole_for_hundreds_of_seeds() {
    if may_make_namespaces() {
        play_all(seeds(100..500));
    }
}
