//! The daemon's life as a process: ready, reload, drain, the second signal, and being killed.

use crate::program::{Running, Setup, log_of, output_in, traces, wording_of};
use crate::stage::{self, Family, ReadOnce, Stage, noise, receive_all, send_all, until};
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;

const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\naccept = \"early\"\n[legs.lan0]\n";

/// Sends bytes from one end of a live flow and receives them at the other.
fn pass(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) {
    from.write_all(bytes).expect("writing");
    let mut received = vec![0; bytes.len()];
    to.read_exact(&mut received).expect("reading");
    assert_eq!(received, bytes);
}

/// The response of the admin server, requested on the gateway itself.
fn status(stage: &Stage, path: &str) -> String {
    stage
        .gateway
        .run(|| {
            let mut stream = TcpStream::connect("127.0.0.1:9310").expect("the admin server");
            stream.set_read_timeout(Some(stage::PATIENCE)).expect("a timeout");
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .expect("a request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        })
        .expect("entering")
}

/// The value of a metric without labels, or with those given.
fn metric(stage: &Stage, name: &str) -> f64 {
    let text = status(stage, "/metrics");
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in:\n{text}"))
}

#[test]
fn it_takes_flows_while_it_serves_and_leaves_nothing() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    for family in [Family::V4, Family::V6] {
        let listener = stage.listen(family);
        let (client, server) = stage.flow(&listener);
        let bytes = noise(1, 300_000);
        std::thread::scope(|scope| {
            let received = scope.spawn(|| receive_all(&server));
            send_all(&client, &bytes);
            assert!(received.join().expect("hearing") == bytes, "other bytes arrived");
        });
        send_all(&server, b"done");
        assert_eq!(receive_all(&client), b"done");
    }
    until("both flows are booked", || metric(&stage, "midhop_flows") == 0.0);
    assert_eq!(metric(&stage, "midhop_flows_started_total{action=\"split\"}"), 2.0);
    let up = metric(&stage, "midhop_relayed_bytes_total{direction=\"up\"}");
    let down = metric(&stage, "midhop_relayed_bytes_total{direction=\"down\"}");
    assert_eq!((up, down), (600_000.0, 8.0));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn metrics_and_page_show_a_flow_while_it_lives_and_after() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(&format!("{CONFIG}[legs.wan0]\ncongestion = \"reno\"\n"));
    let _running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V6);
    let (client, server) = stage.flow(&listener);
    let bytes = noise(3, 100_000);
    std::thread::scope(|scope| {
        scope.spawn(|| pass(&client, &server, &bytes));
    });
    pass(&server, &client, b"1234567");
    let of = |name: &str, leg: &str| metric(&stage, &format!("{name}{{leg=\"{leg}\"}}"));
    until("the flow has been looked at", || of("midhop_leg_rtt_samples_total", "wan0") > 0.0);
    for _ in 0..2 {
        assert_eq!(of("midhop_leg_sent_bytes_total", "wan0"), 100_000.0);
        assert_eq!(of("midhop_leg_received_bytes_total", "wan0"), 7.0);
        assert_eq!(of("midhop_leg_sent_bytes_total", "lan0"), 7.0);
        assert_eq!(of("midhop_leg_received_bytes_total", "lan0"), 100_000.0);
        assert!(of("midhop_leg_rtt_seconds", "wan0") > 0.0);
        if metric(&stage, "midhop_flows") == 1.0 {
            assert_eq!(of("midhop_leg_connections", "lan0"), 1.0);
            let page = status(&stage, "/status.json");
            for part in
                ["\"congestion\":\"reno\"", "\"client_leg\":\"lan0\"", "\"up_bytes\":100000"]
            {
                assert!(page.contains(part), "{part} is not in {page}");
            }
            send_all(&client, b"");
            send_all(&server, b"");
            until("the flow is over", || metric(&stage, "midhop_flows") == 0.0);
        }
    }
    assert_eq!(of("midhop_leg_connections", "lan0"), 0.0);
    assert_eq!(metric(&stage, "midhop_flows_ended_total{end=\"fin\"}"), 1.0);
    assert!(status(&stage, "/status.json").contains("\"busiest\":[]"));
}

/// The daemon as a package installs it: it takes no flows until the administrator names interfaces,
/// which requires no restart.
#[test]
fn what_is_shipped_idles_until_it_is_asked_for_flows() {
    let Some(stage) = Stage::set() else { return };
    let shipped = include_str!("../../../../packaging/midhopd.toml");
    let setup = Setup::new("");
    // Only the control socket is the test's own.
    let own = format!("[control]\nsocket = {:?}", setup.socket().display().to_string());
    setup.rewrite(&shipped.replace("[control]", &own));
    let running = Running::start(&stage, &setup);
    let idle = "Nothing is intercepted until you set `interfaces`.";
    assert!(wording_of(&setup).contains(idle), "{}", log_of(&setup));
    assert!(setup.status().passing.is_some());
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server, b"past it");
    assert_eq!(traces(&stage.gateway), [""; 0], "it has put something into the system");

    running.signal(Signal::SIGHUP);
    until("it has reloaded", || setup.reloads() == [1, 0]);
    assert!(setup.status().passing.is_some(), "it still idles");
    setup.rewrite("[limits]\nflosw = 3\n");
    running.signal(Signal::SIGHUP);
    until("the wrong one is reported", || setup.reloads() == [1, 1]);

    setup.rewrite(CONFIG);
    running.signal(Signal::SIGHUP);
    // The socket is another while it changes.
    until("it serves", || setup.try_status().is_ok_and(|status| status.passing.is_none()));
    assert_eq!(setup.reloads(), [2, 1]);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server, b"through it");
    assert_eq!(metric(&stage, "midhop_flows"), 1.0);
    drop((client, server));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn an_idle_one_ends_at_once() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new("");
    let running = Running::start(&stage, &setup);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// If the firewall refuses a configuration, neither the rules nor anything else of it is followed.
#[test]
fn what_the_firewall_refuses_leaves_all_as_it_was() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let next = "[log]\nlevel = \"off\"\n[legs.wan0]\ncongestion = \"reno\"\n";
    setup.rewrite(&format!("{CONFIG}{next}"));
    {
        let _refusing = setup.refusing("nft", "not today");
        running.signal(Signal::SIGHUP);
        until("it is told", || setup.reloads() == [0, 1]);
    }
    let failure = setup.status().reload.and_then(|reload| reload.error).expect("an error");
    assert!(failure.error.contains("not today"), "{failure:?}");
    let (client, server) = stage.flow(&listener);
    pass(&client, &server, b"as before");
    let page = status(&stage, "/status.json");
    assert!(page.contains("\"congestion\":") && !page.contains("reno"), "{page}");
    setup.rewrite(CONFIG);
    running.signal(Signal::SIGHUP);
    until("it reloads", || setup.reloads() == [1, 1]);
    // Its log was not turned off.
    assert!(wording_of(&setup).contains("configuration reloaded"), "{}", log_of(&setup));
}

#[test]
fn a_reload_touches_no_live_flow() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server, b"before");

    setup.rewrite("[limits]\nflosw = 3\n");
    running.signal(Signal::SIGHUP);
    until("the wrong one is reported", || setup.reloads() == [0, 1]);
    let wrong = setup.status().reload.and_then(|reload| reload.error).expect("an error");
    assert!(wrong.error.contains("midhopd.toml:2:1: limits.flosw"), "{wrong:?}");
    pass(&server, &client, b"after a wrong one");

    setup.rewrite(&format!("{CONFIG}[limits]\nflows = 7\n[daemon]\nworkers = 1\n"));
    running.signal(Signal::SIGHUP);
    until("the right one is taken", || setup.reloads() == [1, 1]);
    assert_eq!(setup.status().reload.expect("a reload").kept, ["daemon.workers"]);
    pass(&client, &server, b"after a right one");
    {
        let (client, server) = stage.flow(&listener);
        pass(&client, &server, b"and a new flow");
        assert_eq!(metric(&stage, "midhop_flows"), 2.0);
    }

    let port = listener.local_addr().expect("an address").port();
    setup.rewrite(&format!(
        "{CONFIG}[legs.wan0]\ncongestion = \"reno\"\n\
         [[rules]]\nmatch.destination_port = {port}\naction = \"bypass\"\n"
    ));
    running.signal(Signal::SIGHUP);
    until("the rule holds", || setup.reloads() == [2, 1]);
    pass(&client, &server, b"a rule against flows such as this one");
    until("the second flow is over", || metric(&stage, "midhop_flows") == 1.0);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server, b"past it");
    assert_eq!(metric(&stage, "midhop_flows"), 1.0, "a new flow was taken against the rule");
    assert!(status(&stage, "/status.json").contains("\"congestion\":\"reno\""));
    // The firewall let it pass without the daemon, and the count outlives the table that held it.
    let by_rule = || metric(&stage, "midhop_firewall_passed_syns_total{reason=\"rule\"}");
    assert_eq!(by_rule(), 1.0);
    running.signal(Signal::SIGHUP);
    until("the table is another", || setup.reloads() == [3, 1]);
    assert_eq!(by_rule(), 1.0);
    let _again = stage.flow(&listener);
    assert_eq!(by_rule(), 2.0);

    setup.rewrite("[intercept]\ninterfaces = [\"lan0\", \"nope0\"]\n");
    running.signal(Signal::SIGHUP);
    until("an interface may come later", || setup.reloads() == [4, 1]);
    assert_eq!(setup.status().interfaces, ["lan0", "nope0"]);
}

#[test]
fn a_drain_lets_live_flows_end_and_new_ones_pass_directly() {
    for accept in ["early", "after-connect"] {
        drain(accept);
    }
}

fn drain(accept: &str) {
    let Some(stage) = Stage::set() else { return };
    let config = CONFIG.replace("early", accept);
    let setup = Setup::new(&format!("{config}[daemon]\ndrain = \"1 h\"\n"));
    let mut running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server, b"before");
    running.signal(Signal::SIGTERM);
    until("it drains", || status(&stage, "/healthz").starts_with("HTTP/1.1 503 "));
    assert_eq!(metric(&stage, "midhop_flows"), 1.0);
    pass(&server, &client, b"while it drains");
    {
        let (client, server) = stage.flow(&listener);
        pass(&client, &server, b"past it");
        assert_eq!(metric(&stage, "midhop_flows"), 1.0, "a new flow was taken");
    }
    assert!(!running.has_ended());
    send_all(&client, b"last");
    assert_eq!(receive_all(&server), b"last");
    drop((client, server));
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn a_second_signal_ends_it_at_once_and_resets_what_lives() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(&format!("{CONFIG}[daemon]\ndrain = \"1 h\"\n"));
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V6);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server, b"before");
    running.signal(Signal::SIGINT);
    until("it drains", || status(&stage, "/healthz").starts_with("HTTP/1.1 503 "));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    for mut end in [&client, &server] {
        let cut = end.read_once(&mut [0]).map_err(|error| error.kind());
        assert_eq!(cut, Err(ErrorKind::ConnectionReset), "half a stream must not look whole");
    }
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn sudden_death_leaves_a_network_that_works_and_the_next_start_sweeps() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let first = Running::start(&stage, &setup);
    let whole = traces(&stage.gateway);
    first.signal(Signal::SIGKILL);
    assert_eq!(first.end(), None);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server, b"nobody in between");
    drop((client, server));

    let second = Running::start(&stage, &setup);
    assert_eq!(traces(&stage.gateway), whole);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server, b"through the second");
    assert_eq!(metric(&stage, "midhop_flows"), 1.0);
    drop((client, server));
    second.signal(Signal::SIGTERM);
    assert_eq!(second.end(), Some(0));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn others_rules_are_never_touched() {
    let Some(stage) = Stage::set() else { return };
    for command in [
        "nft add table inet theirs",
        "nft add chain inet theirs input { type filter hook input priority 0 ; }",
        "nft add rule inet theirs input tcp dport 9 counter accept",
        "ip rule add fwmark 0x77 lookup 77",
        "ip route add local 192.0.2.0/24 dev lo table 77",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let output = output_in(&stage.gateway, Command::new(words[0]).args(&words[1..]));
        assert!(output.status.success(), "{command}: {output:?}");
    }
    let theirs = || {
        [&["nft", "list", "ruleset"][..], &["ip", "rule"], &["ip", "route", "list", "table", "77"]]
            .map(|words| {
                let output = output_in(&stage.gateway, Command::new(words[0]).args(&words[1..]));
                String::from_utf8_lossy(&output.stdout).into_owned()
            })
    };
    let before = theirs();
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    assert_ne!(theirs(), before);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0));
    assert_eq!(theirs(), before);
}
