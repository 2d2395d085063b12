//! Orders to reload, and changes of the firewall that are under way, when a data plane dies or
//! another program takes over.

use crate::flows::exchange;
use crate::program::{Running, Setup, log_of, output_in, traces, write_script};
use crate::stage::{self, Family, Stage, nft, until};
use crate::survival::{kill_data_plane, relayed};
use crate::upgrade::{another, assert_done, upgrade};
use nix::sys::signal::{Signal, kill};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n";

/// The same, with a rule that rejects the flows to a listener.
fn shutting(listener: &TcpListener) -> String {
    let shut = listener.local_addr().expect("an address").port();
    let rule = format!("[[rules]]\nmatch = {{ destination_port = {shut} }}\naction = \"reject\"\n");
    format!("{CONFIG}{rule}")
}

fn is_shut(stage: &Stage, listener: &TcpListener) -> bool {
    stage.connect(listener.local_addr().expect("an address")).is_err()
}

/// The signal has arrived, and the file has not been read yet.
#[test]
fn an_order_to_reload_outlives_the_data_plane_that_had_it() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let (listener, shut) = (stage.listen(Family::V4), stage.listen(Family::V4));
    let (client, server) = relayed(&stage, &listener);
    let before = running.data_plane();
    kill(before, Signal::SIGSTOP).expect("a signal");
    setup.rewrite(&shutting(&shut));
    running.signal(Signal::SIGHUP);
    // The signal may wait at the stopped process, or still at the holder: both must work.
    kill(before, Signal::SIGKILL).expect("a signal");
    until("the rule holds", || is_shut(&stage, &shut));
    assert_ne!(running.data_plane(), before);
    exchange(&client, &server, 1_000_000);
    assert_eq!(setup.reloads(), [1, 0], "{}", log_of(&setup));
    // No reload is due any more.
    kill_data_plane(&running);
    until("it has come up", || setup.try_status().is_ok());
    assert_eq!(setup.reloads(), [0, 0], "{}", log_of(&setup));
    assert!(is_shut(&stage, &shut));
    drop((client, server, listener, shut));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

/// Makes `nft` wait as long as a file exists, if this keeper starts it.
struct SlowNft(PathBuf);

impl SlowNft {
    /// To be called before the daemon is started.
    fn prepare(setup: &Setup) {
        let gate = setup.path().display().to_string();
        let script = format!(
            "#!/bin/sh\nwhile [ -e {gate}/slow-$PPID ]; do sleep 0.02; done\n\
             PATH=${{PATH#*:}} exec nft \"$@\"\n"
        );
        write_script(&setup.path().join("nft"), &script);
    }

    fn of(setup: &Setup, running: &Running) -> Self {
        let path = setup.path().join(format!("slow-{}", running.keeper()));
        std::fs::write(&path, "").expect("a file");
        Self(path)
    }

    /// Waits until an `nft` waits.
    fn wait(&self, running: &Running) {
        let keeper = running.keeper().as_raw().cast_unsigned();
        until("nft waits", || has_nft(keeper));
    }

    fn end(self) {
        std::fs::remove_file(self.0).expect("removing a file");
    }
}

/// Whether a process, in any of its threads, has started an `nft` that has not ended.
fn has_nft(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().any(|thread| {
        let children = std::fs::read_to_string(thread.path().join("children"));
        children.unwrap_or_default().split_whitespace().any(|child| {
            let name = std::fs::read_to_string(format!("/proc/{child}/comm"));
            name.is_ok_and(|name| name.trim_end() == "nft")
        })
    })
}

/// The keeper is changing the firewall for a data plane that dies before the response.
#[test]
fn a_change_of_the_firewall_outlives_the_data_plane_that_asked() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    SlowNft::prepare(&setup);
    let running = Running::start(&stage, &setup);
    let (listener, shut) = (stage.listen(Family::V4), stage.listen(Family::V4));
    let (mut client, mut server) = relayed(&stage, &listener);
    for text in [shutting(&shut), CONFIG.to_owned()] {
        let slow = SlowNft::of(&setup, &running);
        setup.rewrite(&text);
        running.signal(Signal::SIGHUP);
        slow.wait(&running);
        let before = running.data_plane();
        kill(before, Signal::SIGKILL).expect("a signal");
        slow.end();
        until("the file holds", || is_shut(&stage, &shut) == (text != CONFIG));
        assert_ne!(running.data_plane(), before);
        stage::pass(&mut client, &mut server);
    }
    exchange(&client, &server, 1_000_000);
    drop((client, server, listener, shut));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

/// The table was removed, and the keeper is installing it again, when another program takes over.
/// The old table must not replace the next program's table.
#[test]
fn a_change_of_the_firewall_is_over_when_another_program_takes_over() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    SlowNft::prepare(&setup);
    let running = Running::start(&stage, &setup);
    let (listener, shut) = (stage.listen(Family::V4), stage.listen(Family::V4));
    let (client, server) = relayed(&stage, &listener);
    let slow = SlowNft::of(&setup, &running);
    nft(&stage.gateway, "delete table inet midhop_main");
    slow.wait(&running);
    setup.rewrite(&shutting(&shut));
    let program = another(&setup, "next");
    scope(|scope| {
        let upgraded = scope.spawn(|| upgrade(&stage, &setup, &program));
        // The takeover waits while the change is under way. If it did not wait, it would be
        // finished first.
        let begun = Instant::now();
        while !upgraded.is_finished() && begun.elapsed() < Duration::from_secs(2) {
            sleep(Duration::from_millis(10));
        }
        slow.end();
        assert_done(&upgraded.join().expect("it ends"), &setup);
    });
    // Nothing replaces this table: it has the rule, which the firewall enforces even without a
    // process.
    let port = shut.local_addr().expect("an address").port().to_string();
    for _ in 0..20 {
        let mut list = Command::new("nft");
        let output = output_in(&stage.gateway, list.args(["list", "table", "inet", "midhop_main"]));
        let table = String::from_utf8_lossy(&output.stdout);
        assert!(table.contains(&port), "{table}\n{}", log_of(&setup));
        sleep(Duration::from_millis(20));
    }
    assert!(is_shut(&stage, &shut), "{}", log_of(&setup));
    exchange(&client, &server, 1_000_000);
    drop((client, server, listener, shut));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}
