//! The commands and configurations in the book and the README work. Installation is tested in
//! `installed.rs`.

use crate::flows::exchange;
use crate::program::{Running, Setup, errors, log_of, midhopd, output_in, wording_of};
use crate::stage::{Family, Stage, until};
use midhop_testkit::pages::{blocks, mentioned, typed};
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

/// A configuration of a document, with the paths of certificates that exist.
fn placed(text: &str, certificates: &Path) -> String {
    text.replace("/etc/midhopd/", &format!("{}/", certificates.display()))
}

/// Makes the certificates as the guide describes.
fn follow_the_guide(directory: &Path) {
    let making: Vec<_> =
        typed().into_iter().filter(|(_, line)| line.starts_with("midhopd pki ")).collect();
    assert!(!making.is_empty());
    for (document, line) in making {
        let output =
            midhopd().args(line.split(' ').skip(1)).current_dir(directory).output().expect("it");
        assert!(output.status.success(), "{document}: {line}\n{}", errors(&output));
    }
}

#[test]
fn every_configuration_in_the_documents_is_one() {
    let directory = tempfile::tempdir().expect("a directory");
    follow_the_guide(directory.path());
    let mut count = 0;
    for block in blocks("toml").iter().filter(|block| !block.text.contains("[nodes]")) {
        let mut text = placed(&block.text, &directory.path().join("authority"));
        if text.contains("[peers.") && !text.contains("[tunnel]") {
            // The README shows only the keys that its example is about.
            let at = directory.path().join("authority").display().to_string();
            text += &format!(
                "[tunnel]\ncertificate = \"{at}/terminal.pem\"\nkey = \"{at}/terminal.key\"\n\
                 authority = \"{at}/ca.pem\"\n"
            );
        }
        let setup = Setup::new(&text);
        let output = midhopd().arg("check").arg(setup.config()).output().expect("midhopd");
        assert!(output.status.success(), "{}: {}", block.document, errors(&output));
        count += 1;
    }
    assert!(count > 2, "the documents' configurations are not found any more");
}

#[test]
fn what_is_to_be_typed_works() {
    let Some(stage) = Stage::set() else { return };
    let admin = "[admin]\nlisten = \"127.0.0.1:9310\"\n";
    let setup = Setup::new(&format!("[intercept]\ninterfaces = [\"lan0\", \"wan0\"]\n{admin}"));
    let mut running = None;
    for (document, line) in typed() {
        let line = line.replace("/etc/midhopd.toml", &setup.config().display().to_string());
        let mut words = line.split(' ');
        let output = match (words.next(), words.next()) {
            (Some("midhopd"), Some("run")) => {
                running.get_or_insert_with(|| Running::start(&stage, &setup));
                continue;
            }
            // The test above runs these commands and uses their results.
            (Some("midhopd"), Some("pki")) => continue,
            (Some("midhopd" | "target/release/midhopd"), asked) => {
                // Some commands query the daemon.
                if !matches!(asked, Some("check" | "doctor" | "--version")) {
                    running.get_or_insert_with(|| Running::start(&stage, &setup));
                }
                let mut command = midhopd();
                command.args(line.split(' ').skip(1)).env("MIDHOPD_SOCKET", setup.socket());
                output_in(&stage.gateway, &mut command)
            }
            (Some("curl"), _) => {
                running.get_or_insert_with(|| Running::start(&stage, &setup));
                let mut command = Command::new("curl");
                command.arg("-f").args(line.split(' ').skip(1));
                output_in(&stage.gateway, &mut command)
            }
            // Commands of the laboratory, and those of the installation.
            _ => continue,
        };
        assert!(output.status.success(), "{document}: {line}\n{}", errors(&output));
        assert!(!output.stdout.is_empty(), "{document}: {line} says nothing");
    }
    let mut running = running.expect("a document says how to run it");
    running.signal(nix::sys::signal::Signal::SIGTERM);
    until("it ends", || running.has_ended());
}

/// Commands in sentences may lack arguments, so only their help is requested. A command or an
/// option that does not exist is an error all the same.
#[test]
fn what_is_mentioned_exists() {
    let mentioned = mentioned(&["midhopd "]);
    assert!(!mentioned.is_empty());
    for (document, line) in mentioned {
        let output = midhopd().args(line.split(' ').skip(1)).arg("--help").output().expect("it");
        assert!(output.status.success(), "{document}: {line}\n{}", errors(&output));
    }
}

/// The guide's pair in ten minutes: the certificates, both files and both logs are those of the
/// guide. The stage's gateway is the terminal, and the server's host is the ground.
#[test]
fn the_pair_of_the_guide_carries_flows() {
    let Some(stage) = Stage::set() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    follow_the_guide(directory.path());
    let setup = |table: &str| {
        let guide = blocks("toml").into_iter().filter(|it| it.document.ends_with("/terminal.md"));
        let block = guide.into_iter().find(|it| it.text.contains(table)).expect("a configuration");
        // The stage's server is on the ground's own host, to which the guide's ground forbids
        // connections.
        let text = block.text.replace("[tunnel]\n", "[tunnel]\ntargets = \"10.0.2.2/32\"\n");
        Setup::new(&placed(&text, &directory.path().join("authority")))
    };
    let (ground, terminal) = (setup("[peers.terminal]"), setup("[peers.ground]"));
    let address = IpAddr::from([192, 0, 2, 1]);
    stage.server.add_address("wan0", address, 32).expect("the ground's address");
    stage.gateway.add_route(address, 32, Family::V4.server()).expect("a route to the ground");
    let _ground = Running::start_in(&stage.server, &ground);
    let _terminal = Running::start(&stage, &terminal);
    until("the terminal has a tunnel", || terminal.peer("ground").tunnels == 1);
    until("the ground has it", || ground.peer("terminal").tunnels == 1);
    // Both logs report this, in the guide's words.
    for (setup, text) in [(&terminal, "a tunnel is open"), (&ground, "a peer has connected")] {
        assert!(wording_of(setup).contains(text), "{}", log_of(setup));
    }
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    let from = server.peer_addr().expect("a peer").ip();
    assert_eq!(from, Family::V4.server(), "servers see the machine on the ground");
    exchange(&client, &server, 100_000);
}
