//! Another program takes the place of the running one, with its flows.

use crate::flows::exchange;
use crate::program::{Running, Setup, copy_program, errors, log_of, midhopd, output_in, traces};
use crate::records::{load, ms, record};
use crate::stage::{self, Family, ReadOnce, Stage, until};
use crate::survival::{kill_data_plane, relayed};
use midhop_testbed::namespace::Namespace;
use midhopd::survival::door::UpgradeOutcome;
use nix::sys::signal::Signal;
use serde_json::json;
use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

pub const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n[legs.wan0]\n";

/// The same program under another name.
pub fn another(setup: &Setup, name: &str) -> PathBuf {
    let path = setup.path().join(name);
    let program = midhopd();
    if std::fs::hard_link(program.get_program(), &path).is_err() {
        std::fs::copy(program.get_program(), &path).expect("a copy");
    }
    path
}

fn command(setup: &Setup, program: &Path) -> Command {
    let mut command = midhopd();
    command.arg("upgrade").arg("--program").arg(program);
    command.arg("--socket").arg(setup.socket());
    command
}

pub fn upgrade(stage: &Stage, setup: &Setup, program: &Path) -> Output {
    upgrade_in(&stage.gateway, setup, program)
}

pub fn upgrade_in(namespace: &Namespace, setup: &Setup, program: &Path) -> Output {
    output_in(namespace, &mut command(setup, program))
}

pub fn assert_done(output: &Output, setup: &Setup) {
    assert!(output.status.success(), "{}\n{}", errors(output), log_of(setup));
}

/// The program that a daemon runs.
pub fn program_of(running: &Running) -> PathBuf {
    std::fs::read_link(format!("/proc/{}/exe", running.first())).expect("a program")
}

fn every_byte_passes(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    let mut idle = relayed(&stage, &listener);
    let flows: Vec<_> = (0..6).map(|_| relayed(&stage, &listener)).collect();
    let programs = ["first", "second"].map(|name| another(&setup, name));
    let mut before = running.data_plane();
    scope(|scope| {
        for (n, (client, server)) in flows.iter().enumerate() {
            scope.spawn(move || exchange(client, server, 5_000_000 << (n % 4)));
        }
        for program in &programs {
            sleep(Duration::from_millis(50));
            assert_done(&upgrade(&stage, &setup, program), &setup);
            assert_eq!(program_of(&running), *program);
            assert_ne!(running.data_plane(), std::mem::replace(&mut before, running.data_plane()));
        }
        // It is a normal daemon.
        kill_data_plane(&running);
    });
    stage::pass(&mut idle.0, &mut idle.1);
    let (client, server) = relayed(&stage, &listener);
    exchange(&client, &server, 1_000_000);
    until("it has come up", || setup.try_status().is_ok());
    let status = setup.status();
    assert_eq!((status.upgrades_total, status.data_planes_killed_total), (2, 1));
    // The flow's two sockets are held by no other process.
    drop((client, idle.0));
    assert_eq!(idle.1.read_once(&mut [0]).expect("the end"), 0);
    drop((server, idle.1, flows));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
    assert!(!setup.socket().with_extension("upgrade").exists());
}

#[test]
fn every_byte_passes_an_upgrade_ipv4() {
    every_byte_passes(Family::V4);
}

#[test]
fn every_byte_passes_an_upgrade_ipv6() {
    every_byte_passes(Family::V6);
}

/// The next program follows the configuration file as it is then, as a reload would.
#[test]
fn the_next_program_follows_another_configuration() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = relayed(&stage, &listener);
    let shut = listener.local_addr().expect("an address").port();
    let rule = format!("[[rules]]\nmatch = {{ destination_port = {shut} }}\naction = \"reject\"\n");
    // Keys that require a restart keep their values for the flows that continue.
    let moved = CONFIG.replace("[daemon]", "port = 7000\ntable = 7001\n[daemon]");
    setup.rewrite(&format!("{moved}{rule}"));
    let program = another(&setup, "next");
    for _ in 0..2 {
        assert_done(&upgrade(&stage, &setup, &program), &setup);
        assert!(stage.connect(listener.local_addr().expect("an address")).is_err());
        stage::pass(&mut client, &mut server);
    }
    exchange(&client, &server, 1_000_000);
    drop((client, server));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

/// A program that cannot take over is detected before anything has ended, or gives the process
/// back.
#[test]
fn programs_that_cannot_take_over_harm_no_flow() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = relayed(&stage, &listener);
    let (before, own) = (running.data_plane(), program_of(&running));
    for no_midhopd in ["/bin/true", "/bin/false", "/etc/passwd", "/nowhere"] {
        let output = upgrade(&stage, &setup, Path::new(no_midhopd));
        assert!(!output.status.success());
        assert!(errors(&output).contains(no_midhopd), "{}", errors(&output));
    }
    let program = another(&setup, "next");
    setup.rewrite("this is no configuration");
    assert!(!upgrade(&stage, &setup, &program).status.success());
    assert_eq!(running.data_plane(), before, "nothing has ended");
    // No file shows that this kernel has no such congestion control: only the start finds that.
    setup.rewrite(&CONFIG.replace("[legs.wan0]\n", "[legs.wan0]\ncongestion = \"nosuch\"\n"));
    for _ in 0..2 {
        let output = upgrade(&stage, &setup, &program);
        assert_eq!(output.status.code(), Some(1), "{}", log_of(&setup));
        assert!(errors(&output).contains("continues with all flows"), "{}", errors(&output));
        assert_eq!(program_of(&running), own);
        stage::pass(&mut client, &mut server);
    }
    setup.rewrite(CONFIG);
    assert_done(&upgrade(&stage, &setup, &program), &setup);
    exchange(&client, &server, 1_000_000);
    assert_eq!(setup.status().upgrades_total, 1);
    drop((client, server));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

/// A program in which some bytes are replaced, wherever they are. None: it does not contain these
/// bytes.
fn altered(setup: &Setup, name: &str, from: &[u8], to: &[u8]) -> Option<PathBuf> {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(midhopd().get_program()).expect("a program");
    let found: Vec<_> =
        (0..bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
    for at in &found {
        bytes[*at..*at + to.len()].copy_from_slice(to);
    }
    let (written, path) = (setup.path().join("written"), setup.path().join(name));
    std::fs::write(&written, bytes).expect("a program");
    std::fs::set_permissions(&written, PermissionsExt::from_mode(0o755)).expect("a mode");
    copy_program(&written, &path);
    std::fs::remove_file(written).expect("removing a copy");
    (!found.is_empty()).then_some(path)
}

/// A program finds only after taking over that it cannot read what it was handed. The previous
/// program then gets it back unchanged.
#[test]
fn programs_that_cannot_read_what_they_are_handed_give_it_back() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let flows: Vec<_> = (0..4).map(|_| relayed(&stage, &listener)).collect();
    let (mut client, mut server) = relayed(&stage, &listener);
    let own = program_of(&running);
    // The first bytes of a register, in this machine's byte order, and a key of what is handed over
    // with it.
    let magic = u64::from_be_bytes(*b"midhopd\n").to_ne_bytes();
    let other = u64::from_be_bytes(*b"midhopx\n").to_ne_bytes();
    let unable = [
        altered(&setup, "register", &magic, &other),
        altered(&setup, "handed", b"stopped_ns", b"stopped_us"),
    ];
    let unable: Vec<_> = unable.into_iter().flatten().collect();
    if unable.is_empty() {
        return midhop_testkit::skipped("the program has its constants in other words");
    }
    scope(|scope| {
        for (client, server) in &flows {
            scope.spawn(move || exchange(client, server, 20_000_000));
        }
        for program in unable.iter().chain(&unable) {
            let output = upgrade(&stage, &setup, program);
            assert_eq!(output.status.code(), Some(1), "{}", log_of(&setup));
            assert!(errors(&output).contains("continues with all flows"), "{}", errors(&output));
            assert_eq!(program_of(&running), own);
            stage::pass(&mut client, &mut server);
        }
    });
    until("it has come up", || setup.try_status().is_ok());
    assert_eq!(setup.status().upgrades_total, 0);
    assert_done(&upgrade(&stage, &setup, &another(&setup, "next")), &setup);
    exchange(&client, &server, 1_000_000);
    until("it has come up", || setup.try_status().is_ok());
    assert_eq!(setup.status().upgrades_total, 1);
    drop((client, server, flows));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

/// A user who may choose the program may use its privileges.
#[test]
fn strangers_choose_no_program() {
    const NOBODY: u32 = 65534;
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (client, server) = relayed(&stage, &listener);
    let before = running.data_plane();
    let door = setup.socket().with_extension("upgrade");
    let mode = |path: &Path| std::fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode(&door), 0o600);
    // The file's permissions would let every user connect.
    for path in [setup.path(), setup.socket().parent().expect("a directory"), &door] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("a mode");
    }
    let program = another(&setup, "next");
    let refused = output_in(&stage.gateway, command(&setup, &program).uid(NOBODY).gid(NOBODY));
    assert!(!refused.status.success());
    assert!(errors(&refused).contains("it closed the connection"), "{}", errors(&refused));
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"p", b"\0", b""] {
        let mut stream = UnixStream::connect(&door).expect("a connection");
        // The connection may be closed already.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            Ok(_) => assert_eq!(answer, ""),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    assert_eq!(running.data_plane(), before, "nothing has ended");
    // A request of root without a program: the data plane ends, and its flows continue.
    for request in [b"!", b"^"] {
        let mut stream = UnixStream::connect(&door).expect("a connection");
        stream.write_all(request).expect("asking");
        stream.shutdown(Shutdown::Write).expect("ending");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains("\"error\":\""), "{answer}");
        until("it has come up", || setup.try_status().is_ok());
    }
    exchange(&client, &server, 1_000_000);
    until("it has come up", || setup.try_status().is_ok());
    assert_eq!(setup.status().upgrades_total, 0);
    drop((client, server));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// A client that is late, for example on a busy machine, holds up other clients, and no data plane.
#[test]
fn a_late_client_is_served_and_holds_up_no_data_plane() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (client, server) = relayed(&stage, &listener);
    let connect = || UnixStream::connect(setup.socket().with_extension("upgrade"));
    let mut late = connect().expect("a connection");
    sleep(Duration::from_secs(1));
    late.write_all(b"?").expect("asking");
    let mut description = String::new();
    late.read_to_string(&mut description).expect("an answer");
    assert!(description.contains("\"version\""), "{description}");
    // A data plane that dies takes the silent client with it.
    let mut silent = connect().expect("a connection");
    kill_data_plane(&running);
    assert!(silent.read_once(&mut [0]).map_or(true, |bytes| bytes == 0));
    until("it has come up", || setup.try_status().is_ok());
    let silent = connect().expect("a connection");
    let program = another(&setup, "next");
    scope(|scope| {
        let upgraded = scope.spawn(|| upgrade(&stage, &setup, &program));
        exchange(&client, &server, 1_000_000);
        drop(silent);
        assert_done(&upgraded.join().expect("an upgrade"), &setup);
    });
    drop((client, server));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// Does something when it is dropped, even if the test fails.
pub struct Finally<F: Fn()>(pub F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// The longest delay of a round trip in the second around an upgrade, for each flow that it left
/// alive. `word` makes a round trip, and returns whether the flow lives.
pub fn longest_waits<F: Send>(
    flows: &mut [F],
    word: impl Fn(&mut F) -> bool + Sync,
    upgrade: impl FnOnce(),
) -> Vec<Duration> {
    const PAUSE: Duration = Duration::from_millis(50);
    let (upgrades, over) = (AtomicBool::new(false), AtomicBool::new(false));
    scope(|scope| {
        let (upgrades, over, word) = (&upgrades, &over, &word);
        let finally = Finally(|| over.store(true, Relaxed));
        let waiting: Vec<_> = flows
            .iter_mut()
            .enumerate()
            .map(|(n, flow)| {
                scope.spawn(move || {
                    let mut longest = Duration::ZERO;
                    sleep(PAUSE / 100 * u32::try_from(n % 100).unwrap_or(0));
                    while !over.load(Relaxed) {
                        let counts = upgrades.load(Relaxed);
                        let begun = Instant::now();
                        if !word(flow) {
                            return None;
                        }
                        if counts || upgrades.load(Relaxed) {
                            longest = longest.max(begun.elapsed());
                        }
                        sleep(PAUSE);
                    }
                    Some(longest)
                })
            })
            .collect();
        sleep(Duration::from_millis(500));
        upgrades.store(true, Relaxed);
        upgrade();
        sleep(Duration::from_millis(500));
        drop(finally);
        waiting.into_iter().filter_map(|it| it.join().expect("it passes words")).collect()
    })
}

/// The figures of `make bench-survival` on upgrades: half of many flows are busy with short
/// messages.
#[test]
#[ignore = "takes a minute: make bench-survival"]
fn figures() {
    const BUSY: usize = 500;
    let upgrades: usize = std::env::var("MIDHOP_SURVIVAL_UPGRADES")
        .map_or(20, |count| count.parse().expect("a number"));
    let stage = Stage::set().expect("a place for it");
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let mut flows: Vec<_> = (0..2 * BUSY).map(|_| relayed(&stage, &listener)).collect();
    let program = another(&setup, "next");
    let (mut waits, mut pauses, mut usual) = (Vec::new(), Vec::new(), Vec::new());
    let word = |(client, server): &mut (TcpStream, TcpStream)| {
        stage::pass(client, server);
        true
    };
    for _ in 0..upgrades {
        usual.extend(longest_waits(&mut flows[..BUSY], word, || {}));
        let pause = RefCell::new(0.0);
        waits.extend(longest_waits(&mut flows[..BUSY], word, || {
            let output = output_in(&stage.gateway, command(&setup, &program).arg("--json"));
            assert_done(&output, &setup);
            let outcome: UpgradeOutcome =
                serde_json::from_slice(&output.stdout).expect("an outcome");
            assert_eq!(outcome.flows, 2 * BUSY);
            pause.replace(outcome.pause_s);
        }));
        pauses.push(Duration::from_secs_f64(pause.into_inner()));
        // The seconds around two upgrades do not overlap.
        until("it answers", || setup.try_status().is_ok());
    }
    record(
        "upgrades",
        json!({
            "upgrades": upgrades, "flows": 2 * BUSY, "busy": BUSY, "waits_ms": ms(&waits),
            "usual_waits_ms": ms(&usual), "pauses_ms": ms(&pauses),
        }),
    );
    let quantiles = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        let last = times.len() - 1;
        [last / 2, last * 99 / 100, last]
            .map(|at| format!("{:.0} ms", times[at].as_secs_f64() * 1e3))
    };
    let ([median, most_of, most], [usual, usual_most_of, usual_most]) =
        (quantiles(&mut waits), quantiles(&mut usual));
    let [pause, _, longest] = quantiles(&mut pauses);
    println!(
        "{upgrades} upgrades, {} flows, {BUSY} of them busy, none broken; longest wait of a word there and back in the second \
         of an upgrade: median {median}, 99 % {most_of}, most {most} (without one: {usual}, {usual_most_of}, {usual_most}); \
         without a data plane: median {pause}, most {longest}; load {}",
        2 * BUSY,
        load()
    );
    for (client, server) in &mut flows {
        stage::pass(client, server);
    }
    drop(flows);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// The next program cannot hold what the present one has registered, and has to outlive it.
#[test]
fn new_flows_have_a_congestion_control_of_ours_after_an_upgrade() {
    if let Some(missing) = midhop_bpf::missing_to_load() {
        return midhop_testkit::skipped(missing);
    }
    let Some(stage) = Stage::set() else { return };
    let leg = "congestion = \"hybla-plus\"\nrtt0 = \"26 ms\"\n";
    let setup = Setup::new(&format!("{CONFIG}{leg}"));
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let mut flows = vec![relayed(&stage, &listener)];
    for name in ["second", "third"] {
        assert_done(&upgrade(&stage, &setup, &another(&setup, name)), &setup);
        flows.push(relayed(&stage, &listener));
        flows.iter_mut().for_each(|(client, server)| stage::pass(client, server));
        // A flow whose leg cannot have its congestion control passes by.
        assert_eq!(setup.flows().len(), flows.len(), "{}", log_of(&setup));
    }
    drop(flows);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}
