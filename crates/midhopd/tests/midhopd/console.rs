//! The commands that query a running daemon: what they show of live flows, and who may use them.

use crate::pages::{ADMIN, assert_published, json};
use crate::program::{Running, Setup, errors, log_of, midhopd, output_in, traces};
use crate::stage::{Family, Stage, noise, receive_all, send_all, until};
use midhop_status::console::Rates;
use midhop_status::control::answer::{DaemonStatus, FlowOutcome, Flows, Reload, Why};
use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Output;
use std::time::Duration;

const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[legs.lan0]\n[legs.wan0]\nrate = \"50 Mbit/s\"\n\
    [[rules]]\nmatch.destination_port = 9\naction = \"bypass\"\n\
    [[rules]]\nmatch.destination_port = 25\naction = \"reject\"\n\
    [[rules]]\nmatch.source = \"10.0.0.0/8\"\naction = \"split\"\n";

/// The output of a command that queries this setup's daemon.
fn ask(stage: &Stage, setup: &Setup, arguments: &[&str]) -> Output {
    let mut command = midhopd();
    command.args(arguments).arg("--socket").arg(setup.socket());
    output_in(&stage.gateway, &mut command)
}

fn answer<T: DeserializeOwned>(stage: &Stage, setup: &Setup, arguments: &[&str]) -> T {
    let output = ask(stage, setup, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    serde_json::from_slice(&output.stdout).expect("the answer's JSON")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn live_flows_and_legs_are_shown() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    let bytes = noise(1, 100_000);
    let mut received = vec![0; bytes.len()];
    (&client).write_all(&bytes).expect("writing");
    (&server).read_exact(&mut received).expect("reading");
    let status: DaemonStatus = answer(&stage, &setup, &["status"]);
    assert_eq!((status.flows, status.up_bytes_total, status.pid), (1, 100_000, running.id()));
    assert_eq!(status.legs["wan0"].rate_bit_per_s, Some(50_000_000));
    assert_eq!(status.legs["wan0"].connections, 1);
    let (from, to) = (client.local_addr().expect("an end"), client.peer_addr().expect("an end"));
    let flows: Flows = answer(&stage, &setup, &["flows"]);
    let flow = &flows.flows[0];
    assert_eq!((flow.client, flow.server, flow.up_bytes), (from, to, 100_000));
    assert_eq!((flow.rule, flow.interface.as_deref()), (Some(2), Some("lan0")));
    for (condition, count) in [
        ("source=10.0.0.0/8", 1),
        ("source=192.0.2.0/24", 0),
        ("interface=lan0", 1),
        ("interface=wan0", 0),
    ] {
        let some: Flows = answer(&stage, &setup, &["flows", "--match", condition]);
        assert_eq!(some.matching, count, "{condition}");
    }
    let shown = text(&ask(&stage, &setup, &["flows"]));
    assert!(shown.contains(&from.to_string()) && shown.contains("100 kB"), "{shown}");
    for (command, part) in
        [("status", "1 of at most"), ("legs", "50.0 Mbit/s"), ("peers", "no peers")]
    {
        let output = ask(&stage, &setup, &[command]);
        assert!(output.status.success() && text(&output).contains(part), "{}", text(&output));
    }
    // The flow moves bytes between the two samples, so that it has a rate.
    let mut watched = |format: &[&str]| {
        let command = [&["top", "-n", "2", "-i", "0.5"], format].concat();
        std::thread::scope(|scope| {
            let page = scope.spawn(|| text(&ask(&stage, &setup, &command)));
            while !page.is_finished() {
                (&client).write_all(&bytes).expect("writing");
                (&server).read_exact(&mut received).expect("reading");
                std::thread::sleep(Duration::from_millis(20));
            }
            page.join().expect("a page")
        })
    };
    let lines = watched(&["--json"]);
    let looks: Vec<Rates> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a look")).collect();
    let [_, look] = &looks[..] else { panic!("two looks: {lines}") };
    assert_published("top", &serde_json::to_value(look).expect("JSON"));
    assert_eq!((look.flow_count, look.flows[0].client), (1, from), "{look:?}");
    assert!(look.up_bit_per_s > 0.0 && look.legs["wan0"].sent_bit_per_s > 0.0, "{look:?}");
    assert!(look.legs["wan0"].utilisation_ratio.is_some_and(|ratio| ratio > 0.0), "{look:?}");
    let page = watched(&[]);
    assert!(page.contains(&from.to_string()) && page.contains("Mbit/s"), "{page}");
    assert!(!page.contains('\x1b'), "no screen is controlled where there is none");
    send_all(&client, b"");
    send_all(&server, b"");
    assert!(receive_all(&client).is_empty());
    until("the flow is over", || answer::<DaemonStatus>(&stage, &setup, &["status"]).flows == 0);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
    assert!(!setup.socket().exists(), "the socket is left behind");
    let gone = ask(&stage, &setup, &["status"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(errors(&gone).contains("hint: start the daemon"), "{}", errors(&gone));
}

/// Before the configuration takes any flow, and while the daemon begins to serve, without a gap
/// between the two.
#[test]
fn a_daemon_that_idles_answers_that_nothing_is_configured() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new("[limits]\nflows = 77\n");
    let running = Running::start(&stage, &setup);
    until("it has a socket", || setup.socket().exists());
    let status: DaemonStatus = answer(&stage, &setup, &["status"]);
    assert_published("status", &serde_json::to_value(&status).expect("JSON"));
    assert_eq!((status.pid, status.flows, status.flows_max), (running.first(), 0, 77));
    assert!(status.interfaces.is_empty() && status.illness.is_none(), "{status:?}");
    let shown = ask(&stage, &setup, &["status"]);
    let page = text(&shown);
    assert!(shown.status.success() && page.contains("nothing is configured"), "{page}");
    assert_eq!(answer::<Flows>(&stage, &setup, &["flows"]).matching, 0);
    let why: Why = answer(&stage, &setup, &["why", "10.0.1.2", "10.0.2.2:443"]);
    assert_eq!(why.outcome, FlowOutcome::NotIntercepted);
    assert!(why.steps[0].finding.contains("nothing is configured"), "{why:?}");
    // A client that does not speak HTTP is refused, and the daemon goes on.
    let mut stranger = UnixStream::connect(setup.socket()).expect("a connection");
    stranger.write_all(&[0x16; 100_000]).ok();
    drop(stranger);

    setup.rewrite("[limits]\nflosw = 3\n");
    let wrong = ask(&stage, &setup, &["reload"]);
    assert_eq!(wrong.status.code(), Some(64), "{}", errors(&wrong));
    let status: DaemonStatus = answer(&stage, &setup, &["status"]);
    let refused = status.reload.and_then(|reload| reload.error).expect("it is remembered");
    assert!(refused.error.contains("flosw"), "{refused:?}");
    setup.rewrite("[limits]\nflows = 78\n");
    let good = ask(&stage, &setup, &["reload"]);
    assert!(good.status.success(), "{}", errors(&good));
    assert_eq!(answer::<DaemonStatus>(&stage, &setup, &["status"]).flows_max, 78);

    setup.rewrite(CONFIG);
    let begun = ask(&stage, &setup, &["reload"]);
    assert!(begun.status.success() && text(&begun).contains("reloaded"), "{}", errors(&begun));
    let status: DaemonStatus = answer(&stage, &setup, &["status"]);
    assert_eq!((status.interfaces, status.passing), (vec!["lan0".to_owned()], None));
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    send_all(&client, b"carried");
    assert_eq!(receive_all(&server), b"carried");
    running.signal(Signal::SIGTERM);
    drop((client, server));
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert!(!setup.socket().exists(), "the socket is left behind");
}

/// An idle daemon moves its socket when a reload changes the path, and leaves none behind.
#[test]
fn a_daemon_that_idles_moves_its_socket() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new("");
    let running = Running::start(&stage, &setup);
    until("it has a socket", || setup.socket().exists());
    let other = setup.path().join("other.sock");
    setup.rewrite(&format!("[control]\nsocket = {:?}\n", other.display().to_string()));
    running.signal(Signal::SIGHUP);
    until("it is elsewhere", || other.exists() && !setup.socket().exists());
    let mut command = midhopd();
    command.args(["status", "--socket"]).arg(&other);
    let moved = output_in(&stage.gateway, &mut command);
    assert!(text(&moved).contains("nothing is configured"), "{}", errors(&moved));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert!(!other.exists(), "the socket is left behind");
}

/// The answer about a hypothetical flow is what then happens to a real one.
#[test]
fn why_explains_live_and_hypothetical_flows() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let server = listener.local_addr().expect("an address");
    let why = |client: &str, server: &SocketAddr, more: &[&str]| -> Why {
        let server = server.to_string();
        answer(&stage, &setup, &[&["why", client, server.as_str()], more].concat())
    };
    let on = |port: u16| SocketAddr::new(server.ip(), port);
    let client = "10.0.1.2";
    let split = why(client, &server, &[]);
    assert_eq!((split.outcome, split.live.is_none()), (FlowOutcome::Split, true), "{split:?}");
    assert_eq!(
        (split.client_leg.as_deref(), split.server_leg.as_deref()),
        (Some("lan0"), Some("wan0"))
    );
    assert_eq!(why(client, &on(9), &[]).outcome, FlowOutcome::Bypass);
    assert_eq!(why(client, &on(25), &[]).outcome, FlowOutcome::Reject);
    let other = why(client, &server, &["--interface", "wan0"]);
    assert_eq!(other.outcome, FlowOutcome::NotIntercepted, "{other:?}");
    let decided = other.steps.iter().find(|step| step.decides).expect("a reason");
    assert_eq!(decided.subject, "intercept.interfaces");
    let here = why(client, &"10.0.1.1:22".parse().expect("an address"), &[]);
    assert_eq!(here.outcome, FlowOutcome::NotIntercepted, "{here:?}");

    let (flow, _accepted) = stage.flow(&listener);
    let from = flow.local_addr().expect("an end").to_string();
    let live = why(&from, &server, &[]);
    let shown = live.live.as_ref().expect("it is live");
    assert_eq!((live.outcome, shown.rule), (FlowOutcome::Split, Some(2)));
    let page = text(&ask(&stage, &setup, &["why", &from, &server.to_string()]));
    assert!(page.contains("rules.2") && page.contains("10.0.0.0/8"), "{page}");

    // The live flow keeps its decision. A new flow is decided on by the present rules.
    setup.rewrite(&CONFIG.replace("\"split\"", "\"reject\""));
    let reloaded: Reload = answer(&stage, &setup, &["reload"]);
    assert_eq!(reloaded.error, None);
    assert_eq!(why(&from, &server, &[]).outcome, FlowOutcome::Split);
    assert_eq!(why(client, &on(443), &[]).outcome, FlowOutcome::Reject);
    running.signal(Signal::SIGTERM);
    until("it drains", || setup.status().draining);
    let draining = why(client, &on(443), &[]);
    assert_eq!(draining.outcome, FlowOutcome::Bypass, "{draining:?}");
}

/// Answers conform to their published schemas.
#[test]
fn answers_hold_to_their_schemas() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(&format!("{CONFIG}[admin]\nlisten = \"127.0.0.1:{}\"\n", ADMIN.1));
    let _running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V6);
    let (client, _server) = stage.flow(&listener);
    let (from, to) = (client.local_addr().expect("an end"), client.peer_addr().expect("an end"));
    let (from, to) = (from.to_string(), to.to_string());
    for arguments in [vec!["status"], vec!["flows"], vec!["why", &from, &to]] {
        assert_published(arguments[0], &answer(&stage, &setup, &arguments));
    }
    let status = json(&stage.gateway, "/status.json");
    assert_published("page", &status);
    let flow = &status["data_plane"]["busiest"][0];
    assert!(flow["age_s"].is_f64() && flow["up_bytes"] == 0, "{status}");
    until("there is some history", || {
        let history = json(&stage.gateway, "/history.json");
        assert_published("history", &history);
        history["recent"]["at_s"].as_array().is_some_and(|it| !it.is_empty())
    });
}

#[test]
fn a_reload_reports_its_result() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let _running = Running::start(&stage, &setup);
    let good = ask(&stage, &setup, &["reload"]);
    assert!(good.status.success() && text(&good).contains("reloaded"), "{}", errors(&good));
    setup.rewrite("[intercept]\ninterfaces = \"lan0\"\ncolour = 1\n");
    let wrong = ask(&stage, &setup, &["reload"]);
    let stderr = errors(&wrong);
    assert_eq!(wrong.status.code(), Some(64), "{stderr}");
    assert!(stderr.contains("the old one stays") && stderr.contains("colour"), "{stderr}");
    let status: DaemonStatus = answer(&stage, &setup, &["status"]);
    let refused = status.reload.and_then(|reload| reload.error).expect("it is remembered");
    assert!(refused.error.contains("colour"), "{refused:?}");
    setup.rewrite(&CONFIG.replace("[legs.lan0]", "queue = 77\n[legs.lan0]"));
    let kept = ask(&stage, &setup, &["reload"]);
    assert!(errors(&kept).contains("intercept.queue"), "{}", errors(&kept));
    assert_published("reload", &answer(&stage, &setup, &["reload"]));
    setup.rewrite("colour = 1\n");
    let refused = ask(&stage, &setup, &["reload", "--json"]);
    assert_eq!(refused.status.code(), Some(64));
    assert_published("reload", &serde_json::from_slice(&refused.stdout).expect("JSON"));
}

/// Only its user may connect, no client can fill it or stop it, and it refuses what it does not
/// understand.
#[test]
fn the_control_socket_withstands_its_clients() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let _running = Running::start(&stage, &setup);
    let mode = std::fs::metadata(setup.socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // More idle clients than there are places: their connections end when their request heads are
    // late.
    let idle: Vec<_> =
        (0..40).map(|_| UnixStream::connect(setup.socket()).expect("a connection")).collect();
    for request in [
        "GET /flows HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "POST /why HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}".to_owned(),
        "POST /flows HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{\"a\": 1} ".to_owned(),
        "POST /flows HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".to_owned()
            + &"[".repeat(100_000),
        "\x16\x03\x01".to_owned() + &"x".repeat(100_000),
    ] {
        let mut stream = UnixStream::connect(setup.socket()).expect("a connection");
        stream.set_read_timeout(Some(crate::stage::PATIENCE)).expect("a timeout");
        // It may close before all is written.
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    drop(idle);
    let listener = stage.listen(Family::V4);
    let (client, server): (TcpStream, TcpStream) = stage.flow(&listener);
    send_all(&client, b"still carried");
    assert_eq!(receive_all(&server), b"still carried");
    assert_eq!(answer::<DaemonStatus>(&stage, &setup, &["status"]).illness, None);
}
