//! The guides on a machine with a real systemd: midhopd is installed, started, changed, upgraded
//! and stopped as they describe.

use crate::machine::Machine;
use crate::packages::main_process;
use midhop_testkit::pages::{blocks, typed};

/// A configuration in a guide, with this table.
fn configuration(guide: &str, table: &str) -> String {
    let block = blocks("toml")
        .into_iter()
        .find(|block| block.document.ends_with(guide) && block.text.contains(table));
    block.unwrap_or_else(|| panic!("{guide} has no {table}")).text
}

pub fn commands_of(guide: &str) -> Vec<String> {
    let typed = typed().into_iter().filter(|(document, _)| document.ends_with(guide));
    typed.map(|(_, line)| line).collect()
}

/// Replaces the program that would be built there by the one that this test was built with.
fn with_our_program(line: &str) -> String {
    line.replace("target/release/midhopd", env!("CARGO_BIN_EXE_midhopd"))
}

fn write(machine: &Machine, file: &str, text: &str) {
    machine.must(&format!("cat > {file} <<'EOF'\n{text}\nEOF"));
}

#[test]
fn the_guide_of_the_gateway_holds_under_systemd() {
    let Some(machine) = Machine::boot() else { return };
    machine.must("ip link add lan0 type veth peer name sat0");
    machine.must("ip link set lan0 up && ip link set sat0 up");
    let (mut asked, mut upgraded) = (Vec::new(), false);
    for line in commands_of("/gateway.md") {
        if line.starts_with("midhopd check") {
            write(&machine, "/etc/midhopd.toml", &configuration("/gateway.md", "[intercept]"));
        }
        if line.starts_with("systemctl stop") {
            // What the daemon is about to do must not be interrupted.
            machine.must("systemctl reload midhopd");
        }
        match line.split_once(' ') {
            Some(("midhopd", "upgrade")) => {
                let pid = main_process(&machine);
                machine.must(&line);
                assert_eq!(main_process(&machine), pid, "an upgrade is no restart");
                let status = machine.must("midhopd status --json");
                assert!(status.contains("\"upgrades_total\": 1"), "{status}");
                upgraded = true;
            }
            // The program is built already, the doctor is tested elsewhere, and the unit runs the
            // daemon.
            Some(("make", _) | ("midhopd", "doctor")) => continue,
            Some(("midhopd", arguments)) if arguments.starts_with("run ") => continue,
            _ => drop(machine.must(&with_our_program(&line))),
        }
        let Some(verb) = line.strip_prefix("systemctl ").and_then(|rest| rest.split(' ').next())
        else {
            continue;
        };
        match verb {
            "start" | "restart" => {
                machine.must("systemctl is-active midhopd");
                let table = machine.must("nft list tables");
                assert!(table.contains("midhop_main"), "{line}: {table}\n{}", machine.log());
                let user = machine
                    .must("cat /proc/$(systemctl show --property MainPID --value midhopd)/status");
                assert!(!user.contains("Uid:\t0\t"), "it is no root: {user}");
            }
            "enable" => drop(machine.must("systemctl is-enabled midhopd")),
            "reload" => machine.wait_for("configuration reloaded"),
            "stop" => {
                assert!(!machine.run("systemctl is-active midhopd").status.success());
                assert_eq!(machine.must("nft list tables"), "", "{}", machine.log());
            }
            _ => {}
        }
        asked.push(verb.to_owned());
    }
    let expected = ["daemon-reload", "enable", "start", "reload", "stop"];
    assert_eq!(asked, expected, "what the guide has an operator do");
    assert!(upgraded, "the guide does not say how to upgrade");
    let log = machine.log();
    assert!(!log.contains("ERROR"), "{log}");
    // The unit's own filter permits the calls with which the daemon confines its threads.
    assert!(!log.contains("not confined"), "{log}");
}

/// The guide of the upgrade: neither the unit nor its main process is affected.
#[test]
fn the_guide_of_the_upgrade_holds_under_systemd() {
    let Some(machine) = Machine::boot() else { return };
    machine.must("ip link add lan0 type veth peer name sat0");
    machine.must("ip link set lan0 up && ip link set sat0 up");
    for line in commands_of("/gateway.md").iter().filter(|line| line.starts_with("install ")) {
        machine.must(&with_our_program(line));
    }
    write(&machine, "/etc/midhopd.toml", &configuration("/gateway.md", "[intercept]"));
    machine.must("systemctl daemon-reload && systemctl start midhopd");
    let pid = main_process(&machine);
    let mut followed = Vec::new();
    for line in commands_of("/upgrade.md").iter().filter(|line| line.starts_with("midhopd ")) {
        machine.must(line);
        assert_eq!(main_process(&machine), pid, "{line}: an upgrade is no restart");
        followed.push(line.split(' ').nth(1).unwrap_or_default().to_owned());
    }
    assert_eq!(followed, ["check", "status", "upgrade", "status"]);
    let status = machine.must("midhopd status --json");
    assert!(status.contains("\"upgrades_total\": 1"), "{status}");
    machine.must("systemctl stop midhopd");
    let log = machine.log();
    assert!(!log.contains("ERROR"), "{log}");
}

/// Commands that administer a host are followed on a machine. Other documents may only repeat them.
#[test]
fn only_these_guides_administer_a_host() {
    const BY: [&str; 5] = ["apt ", "install ", "systemctl ", "useradd ", "chown "];
    for (document, line) in typed() {
        let followed = ["/gateway.md", "/install.md", "/terminal.md"];
        let followed = followed.iter().any(|it| document.ends_with(it))
            || commands_of("/install.md").contains(&line);
        assert!(followed || !BY.iter().any(|by| line.starts_with(by)), "{document}: {line}");
    }
}

/// Only the owner may read the key of a pair, and the unit's midhopd is not root.
#[test]
fn the_guide_of_the_terminal_holds_under_systemd() {
    let Some(machine) = Machine::boot() else { return };
    for line in commands_of("/gateway.md").iter().filter(|line| line.starts_with("install ")) {
        machine.must(&with_our_program(line));
    }
    machine.must("systemctl daemon-reload");
    machine.must("ip address add 192.0.2.1/32 dev lo");
    machine.must("mkdir /etc/midhopd");
    let commands = commands_of("/terminal.md");
    for line in commands.iter().filter(|line| line.starts_with("midhopd pki ")) {
        machine.must(&format!("cd /etc/midhopd && {line}"));
    }
    machine.must("cd /etc/midhopd && cp authority/ca.pem authority/ground.* .");
    write(&machine, "/etc/midhopd.toml", &configuration("/terminal.md", "[peers.terminal]"));
    // The unit cannot read root's key, and reports what to do.
    assert!(!machine.run("systemctl start midhopd").status.success(), "{}", machine.log());
    let log = machine.log();
    assert!(log.contains("/etc/midhopd/ground.key cannot be read: Permission denied"), "{log}");
    assert!(log.contains("hint: give the file to the user that midhopd runs as"), "{log}");
    let mut owned = 0;
    let own = ["useradd ", "chown ", "systemctl "];
    for line in commands.iter().filter(|line| own.iter().any(|start| line.starts_with(start))) {
        machine.must(line);
        owned += 1;
    }
    assert_eq!(owned, 4, "the guide does not say any more to whom a key belongs");
    machine.must("systemctl is-active midhopd");
    assert_eq!(machine.must("stat -c '%U %a' /etc/midhopd/ground.key"), "midhopd 600\n");
    // The user that owns new certificates reads them, and no flow ends.
    machine.must("systemctl reload midhopd");
    machine.wait_for("configuration reloaded");
    let log = machine.log();
    assert!(!log.contains("ERROR"), "{log}");
}
