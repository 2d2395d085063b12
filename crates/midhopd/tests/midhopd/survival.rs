//! Flows outlive the process that relays them.

use crate::flows::duties::count_until_error;
use crate::flows::{exchange, fill, reset};
use crate::pages::wait_until_served;
use crate::panics::thread;
use crate::program::{Running, Setup, log_of, traces};
use crate::records::{load, ms, record};
use crate::stage::{
    self, Family, PATIENCE, ReadOnce, Stage, noise, queued, receive_all, send_all, until,
};
use midhop_linux::tcp_info::TcpInfo;
use midhop_process::privileges::HOLDING;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::json;
use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

pub const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n";

/// Kills the data plane, and waits until there is another one.
pub fn kill_data_plane(running: &Running) {
    let before = running.data_plane();
    kill(before, Signal::SIGKILL).expect("a signal");
    until("there is another data plane", || running.data_plane() != before);
}

/// A flow that is relayed. A flow that is still being opened does not outlive a data plane.
pub fn relayed(stage: &Stage, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let (mut client, mut server) = stage.flow(listener);
    stage::pass(&mut client, &mut server);
    (client, server)
}

/// Waits until the present data plane takes new flows.
pub fn wait_until_it_serves(stage: &Stage) {
    wait_until_served(&stage.gateway);
}

fn no_byte_is_lost(family: Family, mode: &str) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(&CONFIG.replace("[daemon]", &format!("{mode}[daemon]")));
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    let mut idle = relayed(&stage, &listener);
    let (asking, mut answering) = stage.flow(&listener);
    send_all(&asking, b"a question");
    assert_eq!(receive_all(&answering), b"a question");
    let flows: Vec<_> = (0..6).map(|_| relayed(&stage, &listener)).collect();
    scope(|scope| {
        for (n, (client, server)) in flows.iter().enumerate() {
            scope.spawn(move || exchange(client, server, 5_000_000 << (n % 4)));
        }
        for pause in [30, 70, 200] {
            sleep(Duration::from_millis(pause));
            kill_data_plane(&running);
        }
    });
    stage::pass(&mut idle.0, &mut idle.1);
    // An end that was passed on before is not passed on again.
    answering.write_all(b"the answer").expect("writing");
    answering.shutdown(Shutdown::Write).expect("ending");
    assert_eq!(receive_all(&asking), b"the answer");
    let (client, server) = stage.flow(&listener);
    exchange(&client, &server, 1_000_000);
    reset(idle.0);
    let error = idle.1.read_once(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn no_byte_is_lost_ipv4() {
    no_byte_is_lost(Family::V4, "");
}

#[test]
fn no_byte_is_lost_ipv6() {
    no_byte_is_lost(Family::V6, "");
}

/// A thread of another process, which is stopped at each of its system calls.
pub struct Traced(Pid);

impl Traced {
    /// None where processes may not be traced.
    pub fn new(thread: Pid) -> Option<Self> {
        ptrace::seize(thread, ptrace::Options::PTRACE_O_TRACESYSGOOD).ok()?;
        ptrace::interrupt(thread).expect("it is traced");
        let this = Self(thread);
        this.wait(|| false);
        Some(this)
    }

    /// Waits until it is stopped, or until `over` holds. Returns whether it is stopped.
    fn wait(&self, over: impl Fn() -> bool) -> bool {
        loop {
            match waitpid(self.0, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) if over() => return false,
                // No call waits for a stop and for `over` at once.
                Ok(WaitStatus::StillAlive) => sleep(Duration::from_micros(20)),
                Ok(_) => return true,
                Err(error) => panic!("a traced thread is lost: {error}"),
            }
        }
    }

    /// Lets it run until its next system call begins or ends.
    pub fn step(&self, over: impl Fn() -> bool) -> bool {
        ptrace::syscall(self.0, None).expect("it is stopped");
        self.wait(over)
    }

    /// The number of the system call that it has stopped at.
    pub fn call(&self) -> Option<i64> {
        let stopped = std::fs::read_to_string(format!("/proc/{}/syscall", self.0)).ok()?;
        stopped.split(' ').next()?.parse().ok()
    }

    /// Collects its end, so that its parent is informed.
    pub fn reap(&self) {
        while waitpid(self.0, Some(WaitPidFlag::__WALL)).is_ok() {}
    }

    /// Lets it continue for good.
    pub fn release(self) {
        ptrace::interrupt(self.0).expect("it is traced");
        self.wait(|| false);
        ptrace::detach(self.0, None).expect("it is stopped");
    }
}

/// A request, and a response that is large enough to be spliced; then both ends end.
fn conversation(mut client: &TcpStream, mut server: &TcpStream, answer: &[u8]) {
    client.write_all(b"how many?").expect("asking");
    let mut asked = [0; 9];
    server.read_exact(&mut asked).expect("a question");
    assert_eq!(&asked, b"how many?");
    client.shutdown(Shutdown::Write).expect("ending");
    scope(|scope| {
        scope.spawn(|| send_all(server, answer));
        assert!(receive_all(client) == answer, "every byte of the answer, once");
    });
    assert_eq!(receive_all(server), b"", "nothing behind the question");
}

/// Number of deaths after which a daemon is started anew: at one more it would end, as it should.
pub const DEATHS: u32 = 4;

#[test]
fn it_may_die_before_and_after_each_system_call() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(&CONFIG.replace("workers = 2", "workers = 1"));
    let answer = noise(3, 300_000);
    let mut running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let mut deaths = 0;
    for number in 1.. {
        running.data_plane();
        wait_until_it_serves(&stage);
        let (client, server) = relayed(&stage, &listener);
        let worker = thread(running.id(), "worker-0").cast_signed();
        let Some(traced) = Traced::new(Pid::from_raw(worker)) else {
            return midhop_testkit::skipped("no process may be traced here");
        };
        let over = AtomicBool::new(false);
        let mut steps = 0;
        scope(|scope| {
            scope.spawn(|| {
                conversation(&client, &server, &answer);
                over.store(true, Relaxed);
            });
            while steps < number && traced.step(|| over.load(Relaxed)) {
                steps += 1;
            }
            if steps == number {
                eprintln!("killed at the start or end of its system call {number}");
                running.signal_data_plane(Signal::SIGKILL);
                deaths += 1;
                traced.reap();
            }
        });
        if steps < number {
            traced.release();
            eprintln!("{} system calls were tried", number / 2);
            break;
        }
        if deaths % DEATHS == 0 {
            running.signal(Signal::SIGTERM);
            drop((client, server));
            assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
            running = Running::start(&stage, &setup);
        }
    }
    assert!(deaths > 20, "{deaths} deaths: the relay is elsewhere");
}

/// What an end sent before it broke, or ended, is delivered by the next data plane. Then its reset
/// or FIN follows.
fn ends_are_passed_on(from_server: bool) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let flow = || {
        let (client, server) = relayed(&stage, &listener);
        if from_server { (server, client) } else { (client, server) }
    };
    let ((breaking, broken), (ending, late), (leaving, left)) = (flow(), flow(), flow());
    let written = fill(&breaking);
    let acknowledged = written - queued::unacknowledged(&breaking);
    reset(breaking);
    let bytes = noise(8, 12 << 20);
    let all_written = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            send_all(&ending, &bytes);
            drop(ending);
            all_written.store(true, Relaxed);
        });
        // An end that has all of its bytes in some kernel, and has closed.
        send_all(&leaving, b"all that there is");
        drop(leaving);
        until("bytes wait at the reader", || queued::unread(&late) > 0);
        sleep(Duration::from_millis(300));
        kill_data_plane(&running);
        wait_until_it_serves(&stage);
        let (received, kind) = count_until_error(&broken);
        assert_eq!(kind, ErrorKind::ConnectionReset, "after {received} of {acknowledged} bytes");
        assert!(
            received >= acknowledged,
            "{received} of {acknowledged} bytes came before the reset"
        );
        assert!(receive_all(&late) == bytes, "every byte arrives before the end does");
        assert_eq!(receive_all(&left), b"all that there is");
    });
    assert!(all_written.load(Relaxed));
    let totals = setup.status().orphaned_flows_total;
    assert_eq!(totals.get("lost"), Some(&0), "{totals:?}: {}", log_of(&setup));
    drop((broken, late, left));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

#[test]
fn ends_of_servers_are_passed_on() {
    ends_are_passed_on(true);
}

#[test]
fn ends_of_clients_are_passed_on() {
    ends_are_passed_on(false);
}

/// A server has sent everything and closed its connection, and the client has not read all of it
/// yet.
fn what_a_server_left_is_read_after_a_death(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    let (client, server) = relayed(&stage, &listener);
    // More than the client has room for: the rest waits in the gateway.
    SockRef::from(&client).set_recv_buffer_size(16 << 10).expect("a size");
    let answer = noise(9, 100_000);
    client.shutdown(Shutdown::Write).expect("shutting down");
    assert_eq!(receive_all(&server), b"");
    send_all(&server, &answer);
    until("its connection is over", || TcpInfo::of(&server).expect("information").is_closed());
    // As long as the gateway may take to detect that.
    sleep(Duration::from_millis(1500));
    let unread = queued::unread(&client);
    assert!(unread < answer.len(), "all {unread} bytes have arrived, and nothing is at stake");
    kill_data_plane(&running);
    wait_until_it_serves(&stage);
    assert!(receive_all(&client) == answer, "what the server sent");
    let totals = setup.status().orphaned_flows_total;
    assert_eq!(totals.get("lost"), Some(&0), "{totals:?}: {}", log_of(&setup));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

#[test]
fn what_a_server_left_is_read_after_a_death_ipv4() {
    what_a_server_left_is_read_after_a_death(Family::V4);
}

#[test]
fn what_a_server_left_is_read_after_a_death_ipv6() {
    what_a_server_left_is_read_after_a_death(Family::V6);
}

/// If one data plane after the other is killed, the next one would be killed as well: new flows are
/// better off without the daemon.
#[test]
fn a_daemon_whose_data_planes_die_one_after_the_other_ends() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (_client, mut server) = stage.flow(&listener);
    for _ in 0..DEATHS {
        kill_data_plane(&running);
    }
    running.signal_data_plane(Signal::SIGKILL);
    assert_eq!(running.end(), Some(1), "{}", log_of(&setup));
    until("the keeper has cleaned", || traces(&stage.gateway).is_empty());
    let error = server.read_once(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let (client, server) = stage.flow(&listener);
    exchange(&client, &server, 100_000);
}

/// The next data plane finds that the kernel already has our congestion control.
#[test]
fn flows_keep_a_congestion_control_of_ours() {
    let Some(stage) = Stage::set() else { return };
    let leg = "[legs.wan0]\ncongestion = \"hybla-plus\"\nrtt0 = \"25 ms\"\nfallback = \"reno\"\n";
    let setup = Setup::new(&format!("{CONFIG}{leg}"));
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (client, server) = relayed(&stage, &listener);
    scope(|scope| {
        scope.spawn(|| exchange(&client, &server, 10_000_000));
        kill_data_plane(&running);
        kill_data_plane(&running);
    });
    wait_until_it_serves(&stage);
    let leg = || setup.status().legs["wan0"].congestion.clone();
    let before = leg();
    kill_data_plane(&running);
    wait_until_it_serves(&stage);
    assert_eq!(leg(), before, "{}", log_of(&setup));
    let (client, server) = stage.flow(&listener);
    exchange(&client, &server, 100_000);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// The first process gives up what the start of another data plane does not need, and each data
/// plane that follows can start.
#[test]
fn the_first_process_has_what_a_start_of_a_data_plane_takes() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let capabilities = |process: &str| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a status");
        ["CapPrm:", "CapEff:"].map(|set| {
            let line = status.lines().find_map(|line| line.strip_prefix(set)).expect("a set");
            u64::from_str_radix(line.trim(), 16).expect("a number")
        })
    };
    let needed = HOLDING.iter().fold(0, |all, one| all | one.bitmask());
    let expected = capabilities("self").map(|own| own & needed);
    for _ in 0..2 {
        assert_eq!(capabilities(&running.first().to_string()), expected);
        assert_eq!(capabilities(&running.id().to_string()), [0, 0]);
        kill_data_plane(&running);
        wait_until_it_serves(&stage);
        let (client, server) = relayed(&stage, &listener);
        exchange(&client, &server, 100_000);
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// Three faults: they may be an attack.
#[test]
fn a_daemon_that_fails_by_faults_ends_sooner() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    for _ in 0..2 {
        let before = running.data_plane();
        kill(before, Signal::SIGABRT).expect("a signal");
        until("there is another data plane", || running.data_plane() != before);
    }
    running.signal_data_plane(Signal::SIGABRT);
    assert_eq!(running.end(), Some(1), "{}", log_of(&setup));
    until("the keeper has cleaned", || traces(&stage.gateway).is_empty());
}

/// What a reload has changed still applies after a death: the keeper has the text, whatever the
/// file contains by then.
#[test]
fn the_next_data_plane_follows_what_was_reloaded() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let shut = listener.local_addr().expect("an address").port();
    let rule = format!("[[rules]]\nmatch = {{ destination_port = {shut} }}\naction = \"reject\"\n");
    setup.rewrite(&format!("{CONFIG}{rule}"));
    running.signal(Signal::SIGHUP);
    let is_shut = || stage.connect(listener.local_addr().expect("an address")).is_err();
    until("the rule holds", is_shut);
    setup.rewrite("this is no configuration");
    kill_data_plane(&running);
    wait_until_it_serves(&stage);
    assert!(is_shut(), "{}", log_of(&setup));
    // The flows that were not accepted end with the listener.
    drop(listener);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

/// The figures of `make bench-survival`: flows that never rest, and deaths at arbitrary moments.
#[test]
#[ignore = "takes minutes: make bench-survival"]
fn figures() {
    const FLOWS: usize = 100;
    const PIECE: usize = 1 << 20;
    let deaths: u32 = std::env::var("MIDHOP_SURVIVAL_DEATHS")
        .map_or(200, |count| count.parse().expect("a number"));
    let stage = Stage::set().expect("a place for it");
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let flows: Vec<_> = (0..FLOWS).map(|_| relayed(&stage, &listener)).collect();
    let (mut pinging, mut ponging) = relayed(&stage, &listener);
    // Both processors are busy: a turn may take long, but nothing stands still for ever.
    for end in
        flows.iter().flat_map(|(client, server)| [client, server]).chain([&pinging, &ponging])
    {
        end.set_read_timeout(Some(6 * PATIENCE)).expect("a timeout");
        end.set_write_timeout(Some(6 * PATIENCE)).expect("a timeout");
    }
    let pattern = noise(9, PIECE);
    let (over, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut pauses, mut usual) = (Vec::new(), Vec::new());
    scope(|scope| {
        for (n, (client, server)) in flows.iter().enumerate() {
            let (from, to) = if n % 2 == 0 { (client, server) } else { (server, client) };
            let (pattern, over, moved) = (&pattern, &over, &moved);
            scope.spawn(move || {
                let mut from = from;
                while !over.load(Relaxed) {
                    from.write_all(pattern).expect("writing");
                }
                from.shutdown(Shutdown::Write).expect("ending");
            });
            scope.spawn(move || {
                let (mut to, mut at, mut buffer) = (to, 0, vec![0; PIECE]);
                loop {
                    let count = to.read_once(&mut buffer[..PIECE - at]).expect("no reset");
                    if count == 0 {
                        return assert_eq!(at, 0, "an end that nobody sent");
                    }
                    assert!(buffer[..count] == pattern[at..at + count], "bytes are not as sent");
                    at = (at + count) % PIECE;
                    moved.fetch_add(count as u64, Relaxed);
                }
            });
        }
        let mut dice = noise(u64::from(std::process::id()), 8 * deaths as usize).into_iter();
        for _ in 0..deaths {
            // Seldom enough for the daemon to go on, and at arbitrary moments.
            let rest = u64::from(dice.next().expect("a die")) * 4;
            let begun = Instant::now();
            let mut longest = |from: Instant, time: Duration| {
                let mut longest = Duration::ZERO;
                while from.elapsed() < time {
                    let asked = Instant::now();
                    stage::pass(&mut pinging, &mut ponging);
                    longest = longest.max(asked.elapsed());
                }
                longest
            };
            longest(begun, Duration::from_millis(1600 + rest));
            usual.push(longest(Instant::now(), Duration::from_secs(1)));
            let died = Instant::now();
            running.signal_data_plane(Signal::SIGKILL);
            pauses.push(longest(died, Duration::from_secs(1)));
        }
        over.store(true, Relaxed);
    });
    record(
        "deaths",
        json!({
            "deaths": deaths, "flows": FLOWS, "bytes": moved.load(Relaxed), "pauses_ms": ms(&pauses),
            "usual_ms": ms(&usual),
        }),
    );
    let quantiles = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        let last = times.len() - 1;
        [last / 2, last * 99 / 100, last]
            .map(|at| format!("{:.0} ms", times[at].as_secs_f64() * 1e3))
            .join(", ")
    };
    println!(
        "{deaths} deaths, {FLOWS} flows, {:.1} GB, none broken or changed; longest wait of a word there and back in the second \
         after a death: median, 99 %, most: {}; in the one before: {}; load {}",
        moved.load(Relaxed) as f64 / 1e9,
        quantiles(&mut pauses),
        quantiles(&mut usual),
        load()
    );
    running.signal(Signal::SIGTERM);
    drop((flows, pinging, ponging));
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}
