//! The firewall's table when another program takes over: it stays where it is as the next program would make it.

use crate::program::{Running, Setup, log_of, output_in, traces, write_script};
use crate::stage::{self, Family, Stage, nft, until};
use crate::survival::relayed;
use crate::upgrade::{another, assert_done, upgrade};
use nix::sys::signal::Signal;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n";

/// An `nft` that fails to do some things for some keepers.
struct PartialNft(PathBuf);

impl PartialNft {
    /// To be called before the daemon is started. `pattern` is one of the shell for all arguments: what matches it has
    /// this outcome as long as the file `partial` exists, or `partial-` with the number of the keeper.
    fn prepare(setup: &Setup, pattern: &str, outcome: &str) {
        let here = setup.path().display().to_string();
        let script = format!(
            "#!/bin/sh\nif [ -e {here}/partial ] || [ -e {here}/partial-$PPID ]; then\n  \
             case \"$*\" in {pattern}) {outcome};; esac\nfi\nPATH=${{PATH#*:}} exec nft \"$@\"\n"
        );
        write_script(&setup.path().join("nft"), &script);
    }

    fn of(setup: &Setup, name: &str) -> Self {
        let path = setup.path().join(name);
        std::fs::write(&path, "").expect("a file");
        Self(path)
    }

    fn end(self) {
        std::fs::remove_file(self.0).expect("removing a file");
    }
}

fn table_of(stage: &Stage) -> String {
    let mut list = Command::new("nft");
    let output = output_in(&stage.gateway, list.args(["list", "table", "inet", "midhop_main"]));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn end(stage: &Stage, setup: &Setup, running: Running) {
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn a_table_stays_if_it_is_as_the_next_program_would_make_it() {
    let Some(stage) = Stage::set() else { return };
    let passing = stage.listen(Family::V4);
    let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
    let rule = |action: &str| {
        let port = port(&passing);
        format!("[[rules]]\nmatch = {{ destination_port = {port} }}\naction = \"{action}\"\n")
    };
    let setup = Setup::new(&format!("{CONFIG}{}", rule("bypass")));
    PartialNft::prepare(&setup, "'-f -'", "echo not now >&2; exit 1");
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let mut flow = relayed(&stage, &listener);
    let passed = || {
        drop(stage.connect(passing.local_addr().expect("an address")).expect("a connection"));
        drop(passing.accept().expect("a connection"));
    };
    (0..3).for_each(|_| passed());
    assert_eq!(setup.status().bypassed_total["rule"], 3);
    // A part of the table that no program makes.
    nft(&stage.gateway, "add chain inet midhop_main foreign");
    let program = another(&setup, "next");
    // If a program replaced the table, it would be refused.
    let refusing = PartialNft::of(&setup, "partial");
    for _ in 0..2 {
        assert_done(&upgrade(&stage, &setup, &program), &setup);
        assert!(table_of(&stage).contains("chain foreign"));
        stage::pass(&mut flow.0, &mut flow.1);
        let mut new = relayed(&stage, &listener);
        stage::pass(&mut new.0, &mut new.1);
        passed();
        until("it has come up", || setup.try_status().is_ok());
        assert_eq!(setup.status().bypassed_total["rule"], 1, "counts begin anew");
    }
    refusing.end();
    // With another rule, the table is another one.
    setup.rewrite(&format!("{CONFIG}{}", rule("reject")));
    assert_done(&upgrade(&stage, &setup, &program), &setup);
    assert!(!table_of(&stage).contains("chain foreign"));
    assert!(stage.connect(passing.local_addr().expect("an address")).is_err());
    stage::pass(&mut flow.0, &mut flow.1);
    drop((flow, listener));
    end(&stage, &setup, running);
}

/// The next program does not ask which rules others have before it keeps the table: it asks afterwards.
#[test]
fn a_table_that_stays_is_adapted_to_what_others_have_changed() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    PartialNft::prepare(&setup, "*ruleset*", "exit 0");
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let mut flow = relayed(&stage, &listener);
    // The first program does not see the rule that tracks connections.
    let blind = PartialNft::of(&setup, &format!("partial-{}", running.keeper()));
    nft(
        &stage.gateway,
        "table inet tracking { chain c { type filter hook forward priority 0; ct state invalid counter; }; }",
    );
    assert!(!table_of(&stage).contains("ct zone"));
    assert_done(&upgrade(&stage, &setup, &another(&setup, "next")), &setup);
    until("connections are entered", || table_of(&stage).contains("ct zone"));
    stage::pass(&mut flow.0, &mut flow.1);
    let mut new = relayed(&stage, &listener);
    stage::pass(&mut new.0, &mut new.1);
    blind.end();
    drop((flow, new, listener));
    nft(&stage.gateway, "delete table inet tracking");
    end(&stage, &setup, running);
}
