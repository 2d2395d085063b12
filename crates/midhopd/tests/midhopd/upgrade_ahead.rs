//! The next program starts while the data plane still relays, and takes the flows over when it is ready.

use crate::flows::exchange;
use crate::program::{Running, Setup, log_of, traces};
use crate::stage::{self, Family, ReadOnce, Stage, until};
use crate::survival::relayed;
use crate::upgrade::{CONFIG, another, assert_done, program_of, upgrade};
use midhopd::keeper::descriptors;
use midhopd::survival::door::UpgradeOutcome;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;
use std::thread::{Scope, ScopedJoinHandle, scope};

/// A configuration file that is read when the test writes it.
struct AwaitedFile<'a>(&'a Setup);

impl<'a> AwaitedFile<'a> {
    fn of(setup: &'a Setup) -> Self {
        std::fs::remove_file(setup.config()).expect("removing a file");
        mkfifo(&setup.config(), Mode::S_IRUSR | Mode::S_IWUSR).expect("a pipe");
        Self(setup)
    }

    fn write(&self, text: &str) {
        let mut file = std::fs::OpenOptions::new().write(true).open(self.0.config());
        file.as_mut().expect("a reader").write_all(text.as_bytes()).expect("writing");
    }
}

/// Starts an upgrade, whose next program has been executed and waits for its configuration when this returns.
fn started<'scope>(
    scope: &'scope Scope<'scope, '_>,
    (stage, setup, running): (&'scope Stage, &'scope Setup, &Running),
    file: &AwaitedFile<'_>,
    program: &'scope Path,
) -> ScopedJoinHandle<'scope, Output> {
    let upgraded = scope.spawn(move || upgrade(stage, setup, program));
    // For `midhopd takeover`, which checks it.
    file.write(CONFIG);
    until("the next program is executed", || program_of(running) == program);
    upgraded
}

fn end(stage: &Stage, setup: &Setup, running: Running) {
    assert_eq!(running.end(), Some(0), "{}", log_of(setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn flows_go_on_while_the_next_program_starts() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let flows: Vec<_> = (0..4).map(|_| relayed(&stage, &listener)).collect();
    let (busy, flows) = flows.split_first().expect("flows");
    let (mut ends, mut idle) = (relayed(&stage, &listener), relayed(&stage, &listener));
    let program = another(&setup, "next");
    let before = running.data_plane();
    let file = AwaitedFile::of(&setup);
    let mut young = scope(|scope| {
        let upgraded = started(scope, (&stage, &setup, &running), &file, &program);
        for (client, server) in flows {
            exchange(client, server, 1_000_000);
        }
        // One flow begins meanwhile, and one ends: no other process has its sockets.
        let mut young = relayed(&stage, &listener);
        stage::pass(&mut young.0, &mut young.1);
        drop(ends.0);
        assert_eq!(ends.1.read_once(&mut [0]).expect("the end"), 0);
        drop(ends.1);
        assert_eq!(running.data_plane(), before, "it relays");
        scope.spawn(|| exchange(&busy.0, &busy.1, 30_000_000));
        file.write(CONFIG);
        assert_done(&upgraded.join().expect("an upgrade"), &setup);
        young
    });
    assert_ne!(running.data_plane(), before);
    stage::pass(&mut idle.0, &mut idle.1);
    stage::pass(&mut young.0, &mut young.1);
    until("it has come up", || setup.try_status().is_ok());
    assert_eq!(setup.status().upgrades_total, 1);
    // The sockets of a flow are held by no process of before.
    drop(idle.0);
    assert_eq!(idle.1.read_once(&mut [0]).expect("the end"), 0);
    let zombies = children_of(running.first()).into_iter().filter(|child| is_zombie(*child));
    assert_eq!(zombies.count(), 0, "ended processes are waited for");
    drop((young, idle.1));
    running.signal(Signal::SIGTERM);
    end(&stage, &setup, running);
}

fn children_of(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let children = std::fs::read_to_string(path).expect("children");
    children.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

fn is_zombie(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

/// An upgrade during whose start something happens, with a flow that it leaves alive.
fn happens_meanwhile(what: impl Fn(&Running)) -> (Stage, Setup, Running, (TcpStream, TcpStream)) {
    let stage = Stage::set().expect("a place for it");
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (client, server) = relayed(&stage, &listener);
    let program = another(&setup, "next");
    {
        let file = AwaitedFile::of(&setup);
        scope(|scope| {
            let upgraded = started(scope, (&stage, &setup, &running), &file, &program);
            what(&running);
            file.write(CONFIG);
            assert_done(&upgraded.join().expect("an upgrade"), &setup);
        });
    }
    exchange(&client, &server, 1_000_000);
    (stage, setup, running, (client, server))
}

#[test]
fn a_data_plane_that_dies_while_the_next_program_starts_leaves_its_flows() {
    if Stage::set().is_none() {
        return;
    }
    let kill = |running: &Running| kill(running.data_plane(), Signal::SIGKILL).expect("a signal");
    let (stage, setup, running, flow) = happens_meanwhile(kill);
    drop(flow);
    running.signal(Signal::SIGTERM);
    end(&stage, &setup, running);
}

#[test]
fn an_order_to_end_while_the_next_program_starts_is_followed() {
    if Stage::set().is_none() {
        return;
    }
    let order = |running: &Running| running.signal(Signal::SIGTERM);
    let (stage, setup, running, flow) = happens_meanwhile(order);
    drop(flow);
    end(&stage, &setup, running);
}

/// What `midhopd upgrade` would have refused: a file that is no program. The program before goes on with the flows, with its
/// configuration of before.
#[test]
fn a_file_that_cannot_be_executed_harms_no_flow() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (client, server) = relayed(&stage, &listener);
    let own = program_of(&running);
    setup.rewrite("this is no configuration");
    for _ in 0..2 {
        let file = std::fs::File::open("/etc/passwd").expect("a file");
        let door = setup.socket().with_extension("upgrade");
        let mut stream = UnixStream::connect(door).expect("a connection");
        stream.write_all(b"^").expect("asking");
        descriptors::send(&stream, b"p", &[file.as_raw_fd()]).expect("a program");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let outcome: UpgradeOutcome = serde_json::from_str(&answer).expect("an outcome");
        assert!(outcome.error.is_some_and(|error| error.contains("cannot be started")));
        assert_eq!((program_of(&running), outcome.flows), (own.clone(), 1));
        until("it has come up", || setup.try_status().is_ok());
    }
    exchange(&client, &server, 1_000_000);
    assert_eq!(setup.status().upgrades_total, 0);
    drop((client, server));
    running.signal(Signal::SIGTERM);
    end(&stage, &setup, running);
}

/// The process that becomes the next program is killed: all others end with it, and nothing of them stays.
#[test]
fn nothing_stays_of_a_next_program_that_was_killed() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (mut client, server) = relayed(&stage, &listener);
    let program = another(&setup, "next");
    let file = AwaitedFile::of(&setup);
    scope(|scope| {
        let upgraded = started(scope, (&stage, &setup, &running), &file, &program);
        let all = children_of(running.first());
        assert!(all.len() >= 3, "the data plane, its caretaker, and the keeper: {all:?}");
        kill(Pid::from_raw(running.first().cast_signed()), Signal::SIGKILL).expect("a signal");
        assert!(!upgraded.join().expect("an upgrade").status.success());
        let is_there = |process: &u32| Path::new(&format!("/proc/{process}")).exists();
        until("they have ended", || !all.iter().any(|it| is_there(it) && !is_zombie(*it)));
    });
    assert!(client.read_once(&mut [0]).is_err(), "it is reset");
    until("nothing is left", || traces(&stage.gateway).is_empty());
    drop(server);
}
