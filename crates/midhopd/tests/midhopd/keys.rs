//! A private key that other users of the host can read is refused, wherever one is used.

use crate::program::{Running, Setup, errors, midhopd, output_in};
use crate::stage::{Stage, until};
use midhop_pki::authority;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A daemon with a tunnel, whose key file has this mode.
fn setup(mode: u32) -> Setup {
    let setup = Setup::new("");
    authority::init(setup.path(), "test").expect("an authority");
    authority::issue(setup.path(), "near", 7).expect("a certificate");
    let at = |file: &str| setup.path().join(file).display().to_string();
    setup.rewrite(&format!(
        "[tunnel]\nlisten = \"127.0.0.1:4433\"\ncertificate = \"{}\"\nkey = \"{}\"\nauthority = \"{}\"\n\
         [peers.far]\nname = \"far\"\n",
        at("near.pem"),
        at("near.key"),
        at("ca.pem")
    ));
    give(&setup.path().join("near.key"), mode);
    setup
}

fn give(file: &Path, mode: u32) {
    set_permissions(file, Permissions::from_mode(mode)).expect("a mode");
}

#[test]
fn the_check_and_the_start_refuse_a_key_that_others_can_read() {
    let Some(stage) = Stage::set() else { return };
    for mode in [0o604, 0o644] {
        let setup = setup(mode);
        let checked = midhopd().arg("check").arg(setup.config()).output().expect("starting");
        let started = output_in(&stage.gateway, &mut setup.command());
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
    let sound = setup(0o600);
    let checked = midhopd().arg("check").arg(sound.config()).output().expect("starting");
    assert_eq!(checked.status.code(), Some(0), "{}", errors(&checked));
}

#[test]
fn a_reload_refuses_one_and_serves_on() {
    let Some(stage) = Stage::set() else { return };
    let setup = setup(0o600);
    let running = Running::start(&stage, &setup);
    give(&setup.path().join("near.key"), 0o644);
    running.signal(nix::sys::signal::Signal::SIGHUP);
    until("the reload is refused", || setup.reloads() == [0, 1]);
    let refused = setup.status().reload.and_then(|reload| reload.error).expect("an error");
    assert!(refused.error.contains("others than its owner can use it"), "{refused:?}");
    give(&setup.path().join("near.key"), 0o600);
    running.signal(nix::sys::signal::Signal::SIGHUP);
    until("the next one is not", || setup.reloads() == [1, 1]);
    running.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(running.end(), Some(0));
}

#[test]
fn an_authority_whose_key_others_can_read_issues_nothing() {
    let setup = setup(0o600);
    give(&setup.path().join("ca.key"), 0o640);
    let owner = nix::unistd::geteuid();
    if owner.is_root() {
        // Root's own group may read it; other groups may not.
        give(&setup.path().join("ca.key"), 0o644);
    }
    let failure = authority::issue(setup.path(), "other", 7).expect_err("an exposed key");
    assert!(failure.hint_text().is_some_and(|hint| hint.contains("chmod 600")), "{failure}");
    assert!(!setup.path().join("other.pem").exists(), "nothing was issued");
}
