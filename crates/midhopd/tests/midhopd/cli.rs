//! The program's command line: bad input gives one clear error and the right exit code, and leaves
//! nothing half-configured.

use crate::program::{self, Running, Setup, errors, midhopd, output_in, traces, wait_for_ready};
use crate::stage::{self, Stage};
use caps::{CapSet, Capability};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

const INTERCEPT: &str = "[intercept]\ninterfaces = \"lan0\"\n";

/// Runs `midhopd check` on a configuration.
fn check(config: &str) -> Output {
    let setup = Setup::new(config);
    midhopd().arg("check").arg(setup.config()).output().expect("starting the program")
}

/// Runs a daemon that does not start, and checks how it reports that.
fn refused(stage: &Stage, config: &str, code: i32, parts: &[&str]) {
    let setup = Setup::new(config);
    let output = output_in(&stage.gateway, &mut setup.command());
    assert_error(&output, code, parts);
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

/// One error, one hint at most, no panic.
fn assert_error(output: &Output, code: i32, parts: &[&str]) {
    let stderr = errors(output);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert!(output.stdout.is_empty(), "standard output is for data");
    for part in parts {
        assert!(stderr.contains(part), "\"{part}\" is not in:\n{stderr}");
    }
}

#[test]
fn help_and_version_are_answers() {
    for option in ["--help", "--version"] {
        let output = midhopd().arg(option).output().expect("starting the program");
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).contains("midhopd"));
    }
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for arguments in [&["--no-such-option"][..], &["no-such-command"], &["check", "a", "b"]] {
        let output = midhopd().args(arguments).output().expect("starting the program");
        assert_error(&output, 64, &[]);
    }
    let output = midhopd().args(["--config", "/no/such/file"]).output().expect("starting");
    assert_error(&output, 64, &["/no/such/file cannot be read", "hint: "]);
}

/// Wherever addresses and networks are read, an invalid one is reported in our own words, with a
/// correct example.
#[test]
fn addresses_and_networks_are_refused_with_what_to_write() {
    for (config, key, message, hint) in [
        (
            "[admin]\nlisten = \"192.0.2.1\"\n",
            "admin.listen",
            "the port is missing",
            "192.0.2.1:PORT",
        ),
        (
            "[explicit]\nhttp_connect = [\"[::1]:80\", \"::1:80\"]\n",
            "http_connect",
            "stands in brackets",
            "[::1]:80",
        ),
        (
            "[explicit]\nclients = \"10.0.0.0/33\"\n",
            "explicit.clients",
            "at most 32 bits, not 33",
            "10.0.0.0/32",
        ),
        (
            "[legs.a]\nprefixes = \"10.0.0.0/8 \"\n",
            "legs.a.prefixes",
            "spaces around it",
            "\"10.0.0.0/8\"",
        ),
        (
            "[[rules]]\naction = \"split\"\nmatch = { source = \"10.1.2.3/8\" }\n",
            "source",
            "bits behind the first 8",
            "10.0.0.0/8 for the network",
        ),
        (
            "[sources]\nprefixes = [\"10.0.0.1\"]\n",
            "sources.prefixes",
            "number of bits is missing",
            "10.0.0.1/32",
        ),
        (
            "[tunnel]\nlisten = \"2001:db8::1\"\n",
            "tunnel.listen",
            "stands in brackets",
            "[2001:db8::1]:PORT",
        ),
        ("[tunnel]\ntargets = [\"[fd00::]/8\"]\n", "tunnel.targets", "no brackets", "fd00::/8"),
        (
            "[peers.far]\naddress = \"192.0.2.1\"\n",
            "peers.far.address",
            "the port is missing",
            "192.0.2.1:PORT",
        ),
        (
            "[peers.far]\ntransparent = \"10.1.2.3/8\"\n",
            "peers.far.transparent",
            "bits behind",
            "10.0.0.0/8 for the network, or 10.1.2.3/32",
        ),
        ("[peers.far]\ntargets = \"10.0.0.0/40\"\n", "peers.far.targets", "not 40", "10.0.0.0/32"),
    ] {
        let hint = format!("hint: write {hint}");
        assert_error(&check(config), 64, &[key, message, &hint]);
    }
    for (arguments, part) in [
        (&["why", "10.0.0.7", "192.0.2.1"][..], "the port is missing: write 192.0.2.1:PORT"),
        (&["why", "10.0.0.7", "2001:db8::1:443"], "write [2001:db8::1]:443"),
        (
            &["why", "10.0.0.0/8", "192.0.2.1:443"],
            "\"10.0.0.0/8\" is not an address: write 192.0.2.1",
        ),
        (&["flows", "--match", "source=10.0.0.0/33"], "at most 32 bits, not 33"),
        (&["flows", "--match", "destination=10.1.2.3/8"], "write 10.0.0.0/8 for the network"),
    ] {
        let output = midhopd().args(arguments).output().expect("starting the program");
        assert_error(&output, 64, &[part]);
    }
}

#[test]
fn check_prints_the_plan_with_every_default() {
    let output = check("[legs.sat0]\nrate = \"20 Mbit/s\"\nrtt = \"600 ms\"");
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let plan = String::from_utf8(output.stdout).expect("text");
    for part in ["accept = \"after-connect\"", "buffer = \"4.5 MB\"", "flows = 20000", "\"other\""]
    {
        assert!(plan.contains(part), "\"{part}\" is not in:\n{plan}");
    }
    let setup = Setup::new("");
    let output =
        midhopd().arg("check").arg(setup.config()).arg("--json").output().expect("starting");
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(plan["limits"]["flows"], 20_000);
}

#[test]
fn a_wrong_configuration_is_reported_by_file_line_and_key() {
    for (config, parts) in [
        ("[limits]\n\nflow = 3", &["midhopd.toml:3:1: limits.flow: unknown key", "`flows`"][..]),
        ("[legs.s]\nrate = \"0 bit/s\"", &["midhopd.toml:2:", "legs.s.rate", "not above zero"]),
        ("[legs.s]\nrate = \"fast\"", &["legs.s.rate", "20 Mbit/s"]),
        ("[[rules]]\ntunnel = \"hub\"", &["rules.0.tunnel", "there is no peer", "hint: "]),
        ("[log]\nlevel = \"loud=loud\"", &["log.level", "hint: "]),
        ("[intercept\n", &["midhopd.toml:1:"]),
    ] {
        assert_error(&check(config), 64, parts);
    }
}

/// For example ppp0 at boot: the daemon serves, reports that the interface is missing, and takes
/// its flows once it exists.
#[test]
fn an_interface_that_is_not_there_yet_is_waited_for() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new("[intercept]\ninterfaces = [\"nope0\", \"lan0\"]\naccept = \"early\"");
    let running = Running::start(&stage, &setup);
    let log = program::wording_of(&setup);
    assert!(log.contains("no such interface yet") && log.contains("nope0"), "{log}");
    running.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(running.end(), Some(0));
}

/// `check --host` finds in advance what would be missing at a start or a reload.
#[test]
fn a_check_against_the_host_finds_what_is_missing_on_it() {
    let on_host = |config: &str| {
        let setup = Setup::new(config);
        midhopd().args(["check", "--host"]).arg(setup.config()).output().expect("starting")
    };
    let config = "[explicit]\nsocks5 = \"127.0.0.1:1080\"\n";
    let good = on_host(&format!("{config}[legs.lo]\ncongestion = \"reno\"\n"));
    assert!(good.status.success(), "{}", errors(&good));
    for (more, part) in [
        ("[intercept]\ninterfaces = \"nowhere0\"\n", "no interface nowhere0"),
        ("[legs.nowhere0]\n", "no interface nowhere0"),
        ("[legs.lo]\ncongestion = \"hyblla\"\n", "did you mean `hybla`?"),
        ("[legs.lo]\ncongestion = \"nothing-like-it\"\n", "nothing-like-it"),
    ] {
        assert_error(&on_host(&format!("{config}{more}")), 1, &[part, "hint: "]);
    }
    // Another host's kernel may have an algorithm with such a name.
    for (name, warning) in [("hyblla", true), ("hybla", false), ("nothing-like-it", false)] {
        let setup = Setup::new(&format!("[legs.lo]\ncongestion = \"{name}\"\n"));
        let output = midhopd().arg("check").arg(setup.config()).output().expect("starting");
        assert!(output.status.success(), "{}", errors(&output));
        assert_eq!(errors(&output).contains("did you mean `hybla`?"), warning, "{name}");
    }
}

#[test]
fn a_port_in_use_is_one_clear_error() {
    let Some(stage) = Stage::set() else { return };
    for (address, key) in
        [("127.0.0.1:9310", "admin.listen"), ("127.0.0.1:28009", "intercept.port")]
    {
        let taken = stage.gateway.run(|| TcpListener::bind(address)).expect("entering");
        let taken = taken.expect("a listener");
        let config = format!("{INTERCEPT}[legs.lan0]\n");
        refused(&stage, &config, 1, &[key, address, "in use", "hint: "]);
        drop(taken);
    }
}

#[test]
fn a_second_daemon_of_the_same_instance_does_not_disturb_the_first() {
    let Some(stage) = Stage::set() else { return };
    let first = Setup::new(INTERCEPT);
    let running = Running::start(&stage, &first);
    let before = traces(&stage.gateway);
    assert!(before.len() >= 3, "{before:?}");
    let second = Setup::new(&format!("{INTERCEPT}[admin]\nlisten = []"));
    let output = output_in(&stage.gateway, &mut second.command());
    assert_error(&output, 1, &["intercept.port", "instance"]);
    assert_eq!(traces(&stage.gateway), before);
    drop(running);
}

#[test]
fn a_missing_privilege_is_one_clear_error() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(INTERCEPT);
    let mut command = setup.command();
    let output = stage.gateway.run(|| {
        // Only for this thread and its children: root does not get a capability that is not in the
        // bounding set.
        caps::drop(None, CapSet::Bounding, Capability::CAP_NET_ADMIN).expect("one capability less");
        command.output()
    });
    let output = output.expect("entering").expect("starting the program");
    assert_error(&output, 1, &["CAP_NET_ADMIN", "hint: "]);
    assert_eq!(traces(&stage.gateway), [""; 0]);
}

#[test]
fn an_unknown_congestion_control_is_one_clear_error() {
    let Some(stage) = Stage::set() else { return };
    let config = format!("{INTERCEPT}[legs.lan0]\ncongestion = \"warp\"\n");
    refused(&stage, &config, 1, &["leg \"lan0\"", "\"warp\"", "hint: "]);
}

/// Runs with another `nft` first in the path.
fn refused_with_nft(script: Option<&str>, parts: &[&str]) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(INTERCEPT);
    let mut command = setup.command();
    let tools = setup.path().join("tools");
    std::fs::create_dir(&tools).expect("a directory");
    if let Some(script) = script {
        program::write_script(&tools.join("nft"), script);
    }
    command.env("PATH", &tools);
    let output = output_in(&stage.gateway, &mut command);
    assert_error(&output, 1, parts);
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn a_host_without_nft_is_one_clear_error() {
    refused_with_nft(None, &["nft", "install nftables"]);
}

/// What nft prints on a kernel without this expression.
#[test]
fn a_kernel_without_tproxy_is_one_clear_error() {
    let script = "#!/bin/sh\n\
        export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
        rules=$(cat)\n\
        case $rules in *tproxy*)\n\
          echo 'Error: Could not process rule: No such file or directory' >&2; exit 1;;\n\
        esac\n\
        printf '%s\\n' \"$rules\" | nft -f -\n";
    refused_with_nft(Some(script), &["Could not process rule", "NFT_TPROXY"]);
}

#[test]
fn an_explicit_proxy_needs_no_privilege() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new("[explicit]\nsocks5 = \"127.0.0.1:1080\"\n");
    let mut command = setup.command();
    let notify = setup.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&notify).expect("a socket");
    socket.set_read_timeout(Some(stage::PATIENCE)).expect("a timeout");
    command.env("NOTIFY_SOCKET", &notify).stderr(std::process::Stdio::null());
    let child = stage.gateway.run(|| {
        for capability in caps::all() {
            let _ = caps::drop(None, CapSet::Bounding, capability);
        }
        command.spawn()
    });
    let mut child = child.expect("entering").expect("starting the program");
    let ready = wait_for_ready(&socket);
    child.kill().expect("ending it");
    child.wait().expect("ending it");
    assert!(ready.is_ok(), "it did not get ready: {ready:?}");
}

/// The start as systemd does it: an ordinary user with the unit's capabilities, and no way to
/// others.
#[test]
fn the_units_privileges_are_enough() {
    let Some(stage) = Stage::set() else { return };
    let users = std::fs::read_to_string("/proc/self/uid_map").expect("a map of users");
    if users.split_whitespace().last() != Some("4294967295") {
        midhop_testkit::skipped("no other user can be taken on in here, that takes root");
        return;
    }
    let unit = include_str!("../../../../packaging/midhopd.service");
    let set = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let set = set.expect("capabilities in the unit").to_lowercase();
    let set = set.split(' ').map(|name| name.replace("cap_", "+")).collect::<Vec<_>>().join(",");
    let setup = Setup::new(&format!("{INTERCEPT}[legs.lan0]\ncongestion = \"reno\"\n"));
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    open(setup.path(), 0o777);
    let program = setup.path().join("midhopd");
    program::copy_program(env!("CARGO_BIN_EXE_midhopd"), &program);
    open(&program, 0o755);
    let notify = setup.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&notify).expect("a socket");
    socket.set_read_timeout(Some(stage::PATIENCE)).expect("a timeout");
    open(&notify, 0o777);
    let mut command = std::process::Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"])
        .args(["--inh-caps", "--ambient-caps", "--bounding-set"].map(|o| format!("{o}=-all,{set}")))
        .arg(&program)
        .arg("--config")
        .arg(setup.config())
        .env("NOTIFY_SOCKET", &notify)
        .stderr(std::process::Stdio::piped());
    let mut child = stage.gateway.run(|| command.spawn()).expect("entering").expect("starting");
    let ready = wait_for_ready(&socket);
    let there = traces(&stage.gateway);
    let process = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    let capabilities = ["midhopd-data", "midhopd-keeper"].map(|name| {
        let part = program::part_of(child.id(), name)?;
        std::fs::read_to_string(format!("/proc/{part}/status")).ok()
    });
    let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM);
    if ready.is_err() {
        let _ = child.kill();
    }
    let output = child.wait_with_output().expect("its end");
    assert!(ready.is_ok(), "it did not get ready: {}", errors(&output));
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(there.len() >= 3, "it intercepts nothing: {there:?}");
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
    // The keeper has CAP_NET_ADMIN and CAP_NET_BIND_SERVICE, and has given up the rest. The data
    // plane has none.
    let [data_plane, keeper] = capabilities.map(|status| status.expect("its status"));
    assert!(data_plane.contains("CapEff:\t0000000000000000"), "{data_plane}");
    assert!(keeper.contains("CapEff:\t0000000000001400"), "{keeper}");
}
