//! The two processes: what each may do, and what happens to one when the other dies.

use crate::program::{self, Running, Setup, log_of, output_in, traces, wording_of};
use crate::stage::{self, Family, Stage, receive_all, send_all, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n";

/// What the kernel reports of a process under a key.
fn status(process: Pid, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
    found.unwrap_or_else(|| panic!("{key} in {text}")).to_owned()
}

fn works(stage: &Stage) {
    for family in [Family::V4, Family::V6] {
        let listener = stage.listen(family);
        let (client, server) = stage.flow(&listener);
        send_all(&client, b"through whatever there is");
        assert_eq!(receive_all(&server), b"through whatever there is", "{family:?}");
    }
}

#[test]
fn the_keeper_has_what_it_needs_and_no_more() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let keeper = running.keeper();
    assert_eq!(status(keeper, "Name"), "midhopd-keeper");
    assert_eq!(status(keeper, "NoNewPrivs"), "1");
    assert_eq!(status(keeper, "Seccomp"), "2");
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        // CAP_NET_BIND_SERVICE and CAP_NET_ADMIN.
        let set = u64::from_str_radix(&status(keeper, set), 16).expect("a number");
        assert_eq!(set & !(1 << 10 | 1 << 12), 0, "{set:x}");
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert!(
        !wording_of(&setup).contains("ERROR"),
        "an end in order is no fault: {}",
        log_of(&setup)
    );
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
    assert!(kill(keeper, None).is_err(), "the keeper has ended before the daemon has");
}

#[test]
fn nothing_stays_of_a_data_plane_that_was_killed() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    works(&stage);
    let keeper = running.keeper();
    running.signal(Signal::SIGKILL);
    assert_eq!(running.end(), None);
    until("the keeper ends", || kill(keeper, None).is_err());
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind: {}", log_of(&setup));
    works(&stage);
}

#[test]
fn a_keeper_that_was_killed_takes_the_daemon_with_it() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    kill(running.keeper(), Signal::SIGKILL).expect("a signal");
    assert_eq!(running.end(), Some(1), "{}", log_of(&setup));
    assert!(wording_of(&setup).contains("the keeper has ended"), "{}", log_of(&setup));
    works(&stage);
    let next = Running::start(&stage, &setup);
    works(&stage);
    next.signal(Signal::SIGTERM);
    assert_eq!(next.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn a_rule_that_rejects_stands_though_all_die() {
    let Some(stage) = Stage::set() else { return };
    let rules = "[[rules]]\nmatch = { destination_port = 81 }\naction = \"reject\"\n";
    let setup = Setup::new(&format!("{CONFIG}{rules}"));
    let running = Running::start(&stage, &setup);
    let keeper = running.keeper();
    running.signal(Signal::SIGKILL);
    assert_eq!(running.end(), None);
    until("the keeper ends", || kill(keeper, None).is_err());
    assert_eq!(traces(&stage.gateway), ["nft list tables: table inet midhop_main"]);
    works(&stage);
    // The next start replaces it.
    let next = Running::start(&stage, &setup);
    works(&stage);
    next.signal(Signal::SIGTERM);
    assert_eq!(next.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn a_start_waits_for_the_cleaning_of_the_one_before() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let mut running = Running::start(&stage, &setup);
    let whole = traces(&stage.gateway);
    for _ in 0..3 {
        running.signal(Signal::SIGKILL);
        assert_eq!(running.end(), None);
        running = Running::start(&stage, &setup);
        assert_eq!(traces(&stage.gateway), whole, "{}", log_of(&setup));
    }
    works(&stage);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

/// In a network namespace of an ordinary user, in which root of a user namespace may do less than
/// root of the host.
#[test]
fn an_ordinary_user_has_a_keeper_in_a_namespace_of_its_own() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    open(setup.path(), 0o777);
    let program = setup.path().join("midhopd");
    program::copy_program(program::midhopd().get_program(), &program);
    open(&program, 0o755);
    let path = setup.path().join("ready");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(stage::PATIENCE)).expect("a timeout");
    open(&path, 0o777);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urn"]);
    command.args(["sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
    command.arg(&program).arg("run").arg("--config").arg(setup.config());
    command.env("NOTIFY_SOCKET", &path).stderr(Stdio::piped()).stdin(Stdio::null());
    let child = stage.gateway.run(|| command.spawn()).expect("entering").expect("starting");
    let ready = program::wait_for_ready(&socket);
    let capabilities = ready.is_ok().then(|| {
        status(program::part_of(child.id(), "midhopd-data").expect("a data plane"), "CapEff")
    });
    let process = Pid::from_raw(i32::try_from(child.id()).expect("a process"));
    kill(process, if ready.is_ok() { Signal::SIGTERM } else { Signal::SIGKILL }).expect("a signal");
    let output = child.wait_with_output().expect("its end");
    let errors = program::errors(&output);
    if errors.contains("unshare failed") {
        return midhop_testkit::skipped("ordinary users may make no namespaces here");
    }
    assert!(ready.is_ok(), "{errors}");
    assert_eq!(capabilities.as_deref(), Some("0000000000000000"));
    assert_eq!(output.status.code(), Some(0), "{errors}");
}

#[test]
fn a_reload_brings_a_leg_and_its_settings() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    works(&stage);
    let congestion = restricted();
    setup.rewrite(&format!(
        "{CONFIG}[legs.wan0]\ncongestion = \"{congestion}\"\nbuffer = \"64 MiB\"\n"
    ));
    running.signal(Signal::SIGHUP);
    until("it is read again", || setup.reloads() == [1, 0]);
    for family in [Family::V4, Family::V6] {
        let listener = stage.listen(family);
        let (client, server) = stage.flow(&listener);
        let sides = far_sides(&stage, family, &listener);
        assert!(sides.contains(&format!(" {congestion} ")), "{sides}");
        send_all(&client, b"by another leg");
        assert_eq!(receive_all(&server), b"by another leg", "{family:?}");
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

#[test]
fn the_keeper_by_itself_is_refused() {
    let output = program::midhopd().arg("keeper").output().expect("the program");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(program::errors(&output).contains("`midhopd run` starts it"), "{output:?}");
}

/// Opens a flow from a port of the client's.
fn flow_from(stage: &Stage, family: Family, listener: &TcpListener, port: u16) -> Flow {
    let server = listener.local_addr().expect("an address");
    let client = stage.client.run(|| {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(family.client(), port).into())?;
        socket.connect(&server.into())?;
        Ok::<_, std::io::Error>(TcpStream::from(socket))
    });
    let client = client.expect("entering").expect("a connection");
    (client, listener.accept().expect("its other end").0)
}

type Flow = (TcpStream, TcpStream);

/// Receives this many bytes.
fn receive_exactly(mut stream: &TcpStream, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).map(|()| bytes)
}

/// What `ss` prints of the daemon's sockets towards the server.
fn far_sides(stage: &Stage, family: Family, listener: &TcpListener) -> String {
    let port = listener.local_addr().expect("an address").port();
    let mut ss = Command::new("ss");
    ss.args(["-tinmOH", "dst", &format!("{}:{port}", bracketed(family))]);
    String::from_utf8_lossy(&output_in(&stage.gateway, &mut ss).stdout).into_owned()
}

fn bracketed(family: Family) -> String {
    match family {
        Family::V4 => family.server().to_string(),
        Family::V6 => format!("[{}]", family.server()),
    }
}

/// A congestion control that takes a privilege on this host, if there is one.
fn restricted() -> String {
    let read = |what: &str| {
        let file = format!("/proc/sys/net/ipv4/tcp_{what}_congestion_control");
        std::fs::read_to_string(file).expect("a list")
    };
    let (available, allowed) = (read("available"), read("allowed"));
    let allowed: Vec<&str> = allowed.split_whitespace().collect();
    let mut names = available.split_whitespace();
    names.find(|name| !allowed.contains(name)).unwrap_or("reno").to_owned()
}

#[test]
fn what_takes_privileges_is_had_without_any() {
    let Some(stage) = Stage::set() else { return };
    let marking = "add table inet theirs\n\
        add chain inet theirs marking { type filter hook prerouting priority -150; }\n\
        add rule inet theirs marking iifname lan0 tcp sport 1000-1005 \
        meta mark set tcp sport map { 1000 : 64, 1001 : 65, 1002 : 66, 1003 : 67, 1004 : 68, 1005 : 69 }\n";
    let rules = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&rules, marking).expect("rules");
    let loaded = output_in(&stage.gateway, Command::new("nft").arg("-f").arg(rules.path()));
    assert!(loaded.status.success(), "{loaded:?}");
    let congestion = restricted();
    let legs = format!("[legs.wan0]\ncongestion = \"{congestion}\"\nbuffer = \"64 MiB\"\n");
    let setup = Setup::new(&format!("{CONFIG}{legs}"));
    let running = Running::start(&stage, &setup);
    let before = setup.status().log_messages_total;
    for family in [Family::V4, Family::V6] {
        let listener = stage.listen(family);
        // More sockets than are made at a time, with the usual mark and with more other marks than
        // are kept in stock, and from all kinds of ports.
        let ports = (600..640).chain(1000..1006).chain(30_000..30_006);
        let flows: Vec<Flow> =
            ports.map(|port| flow_from(&stage, family, &listener, port)).collect();
        for (client, server) in &flows {
            (&*client).write_all(b"with a keeper's help").expect("room");
            let received = receive_exactly(server, 20);
            let received = received.unwrap_or_else(|error| panic!("{error}:\n{}", log_of(&setup)));
            assert_eq!(received, b"with a keeper's help");
            let (seen, own) = (server.peer_addr(), client.local_addr());
            assert_eq!(seen.expect("an address"), own.expect("an address"));
        }
        let sides = far_sides(&stage, family, &listener);
        assert_eq!(sides.lines().count(), flows.len(), "all are split: {sides}");
        for side in sides.lines() {
            assert!(side.contains(&format!(" {congestion} ")), "{side}");
            let buffer = side.split_once(",rb").and_then(|(_, rest)| rest.split_once(','));
            let buffer: u64 = buffer.expect("its buffer").0.parse().expect("a number");
            assert!(buffer >= 64 << 20, "{side}");
        }
    }
    assert_eq!(setup.status().log_messages_total, before, "{}", log_of(&setup));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// A keeper that gets requests from this test, as from a compromised data plane.
fn asked(stage: &Stage, requests: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut near, far) = UnixStream::pair().expect("sockets");
    let (_news, reports) = UnixStream::pair().expect("sockets");
    near.set_read_timeout(Some(stage::PATIENCE)).expect("a timeout");
    let mut command = program::midhopd();
    command.arg("keeper").stdin(OwnedFd::from(far)).stdout(OwnedFd::from(reports));
    command.stderr(Stdio::null());
    let mut child = stage.gateway.run(|| command.spawn()).expect("entering").expect("starting");
    drop(command);
    let mut answers = Vec::new();
    for request in requests {
        let length = u32::try_from(request.len()).expect("a length").to_le_bytes();
        near.write_all(&[&length[..], request.as_bytes()].concat()).expect("room");
        let mut length = [0; 4];
        if near.read_exact(&mut length).is_err() {
            break;
        }
        let mut answer = vec![0; u32::from_le_bytes(length) as usize];
        near.read_exact(&mut answer).expect("an answer");
        answers.push(String::from_utf8(answer).expect("text"));
    }
    let there = traces(&stage.gateway);
    drop(near);
    let ended = || child.try_wait().expect("waiting").is_some();
    until("the keeper ends", ended);
    (answers, there)
}

#[test]
fn who_asks_for_what_there_is_not_gets_nothing_more() {
    let Some(stage) = Stage::set() else { return };
    let begin = r#"{"Begin":{"name":"a.toml","text":"[intercept]\ninterfaces = \"lan0\"\n"}}"#;
    let install = r#"{"Install":{"queues":1}}"#;
    let rules = r#"{"Apply":{"text":"flush ruleset"}}"#;
    let all = [begin, install, rules, install].map(str::to_owned);
    let (answers, _) = asked(&stage, &all);
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.starts_with(r#"{"Ok""#)), "{answers:?}");
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn nothing_is_done_out_of_turn() {
    let Some(stage) = Stage::set() else { return };
    let begin = r#"{"Begin":{"name":"a.toml","text":"[admin]\nlisten = []\n"}}"#;
    let other = r#"{"Begin":{"name":"b.toml","text":"[intercept]\ninterfaces = \"lan0\"\n"}}"#;
    let install = r#"{"Install":{"queues":1}}"#;
    let (close, passed, end) = (r#""Close""#, r#""Passed""#, r#""End""#);
    let all = [install, close, passed, begin, other, install, end].map(str::to_owned);
    let (answers, there) = asked(&stage, &all);
    let done: Vec<bool> = answers.iter().map(|answer| answer.starts_with(r#"{"Ok""#)).collect();
    // A configuration is accepted once. If it intercepts nothing, nothing is installed.
    assert_eq!(done, [false, false, false, true, false, false, true], "{answers:?}");
    assert_eq!(there, [""; 0]);
}
