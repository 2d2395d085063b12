//! A private key that other users of the host can read is refused, wherever one is used.

use crate::program::{Desk, Running, errors, midhopd, output_in};
use crate::stage::{Stage, until};
use midhop_pki::authority;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A daemon with a tunnel, whose key file has this mode.
fn desk(mode: u32) -> Desk {
    let desk = Desk::new("");
    authority::init(desk.path(), "test").expect("an authority");
    authority::issue(desk.path(), "near", 7).expect("a certificate");
    let at = |file: &str| desk.path().join(file).display().to_string();
    desk.rewrite(&format!(
        "[tunnel]\nlisten = \"127.0.0.1:4433\"\ncertificate = \"{}\"\nkey = \"{}\"\nauthority = \"{}\"\n\
         [peers.far]\nname = \"far\"\n",
        at("near.pem"),
        at("near.key"),
        at("ca.pem")
    ));
    give(&desk.path().join("near.key"), mode);
    desk
}

fn give(file: &Path, mode: u32) {
    set_permissions(file, Permissions::from_mode(mode)).expect("a mode");
}

#[test]
fn the_check_and_the_start_refuse_a_key_that_others_can_read() {
    let Some(stage) = Stage::set() else { return };
    for mode in [0o604, 0o644] {
        let desk = desk(mode);
        let checked = midhopd().arg("check").arg(desk.config()).output().expect("starting");
        let started = output_in(&stage.gateway, &mut desk.command());
        for output in [checked, started] {
            let stderr = errors(&output);
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            let expected = format!("near.key: others than its owner can use it (mode {mode:04o}");
            for part in [expected.as_str(), "hint: `chmod 600 FILE`"] {
                assert!(stderr.contains(part), "\"{part}\" is not in:\n{stderr}");
            }
            assert!(!stderr.contains("PRIVATE KEY"), "{stderr}");
        }
    }
    let sound = desk(0o600);
    let checked = midhopd().arg("check").arg(sound.config()).output().expect("starting");
    assert_eq!(checked.status.code(), Some(0), "{}", errors(&checked));
}

#[test]
fn a_reload_refuses_one_and_serves_on() {
    let Some(stage) = Stage::set() else { return };
    let desk = desk(0o600);
    let running = Running::start(&stage, &desk);
    give(&desk.path().join("near.key"), 0o644);
    running.signal(nix::sys::signal::Signal::SIGHUP);
    until("the reload is refused", || desk.reloads() == [0, 1]);
    let refused = desk.status().reload.and_then(|reload| reload.error).expect("an error");
    assert!(refused.error.contains("others than its owner can use it"), "{refused:?}");
    give(&desk.path().join("near.key"), 0o600);
    running.signal(nix::sys::signal::Signal::SIGHUP);
    until("the next one is not", || desk.reloads() == [1, 1]);
    running.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(running.end(), Some(0));
}

#[test]
fn an_authority_whose_key_others_can_read_issues_nothing() {
    let desk = desk(0o600);
    give(&desk.path().join("ca.key"), 0o640);
    let owner = nix::unistd::geteuid();
    if owner.is_root() {
        // Root's own group may read it; other groups may not.
        give(&desk.path().join("ca.key"), 0o644);
    }
    let failure = authority::issue(desk.path(), "other", 7).expect_err("an exposed key");
    assert!(failure.hint_text().is_some_and(|hint| hint.contains("chmod 600")), "{failure}");
    assert!(!desk.path().join("other.pem").exists(), "nothing was issued");
}
