//! The Debian package on a machine with a real systemd: installed, started, reloaded, upgraded, removed, purged.

use crate::installed::commands_of;
use crate::machine::Machine;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const CONFIGURATION: &str = "[intercept]\ninterfaces = [\"lan0\", \"sat0\"]\n";

/// The values of a packager other than the one of `packaging/packager`.
const MAINTAINER: &str = "A Packager <packager@example.org>";
const HOMEPAGE: &str = "https://example.org/midhop";

/// Packages of this build's program in a directory that a machine can see. There is one of each
/// version, named `midhopd_VERSION-1_ARCHITECTURE.deb`.
fn packages(versions: &[&str]) -> Option<TempDir> {
    if Command::new("dh").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        midhop_testkit::skipped("packages are made by debhelper");
        return None;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_midhopd"));
    let directory = tempfile::tempdir_in(program.parent()?).expect("a directory");
    let programs = directory.path().join("programs");
    // Packing the debug symbols would take most of the time, and this test is not about them.
    std::fs::create_dir(&programs).expect("a directory");
    let stripped =
        Command::new("strip").arg("-o").arg(programs.join("midhopd")).arg(program).status();
    assert!(stripped.expect("strip starts").success(), "not stripped");
    let pages = directory.path().join("pages");
    let wrote = Command::new(program).arg("manual").arg(&pages).status();
    assert!(wrote.expect("midhopd starts").success(), "no pages");
    for version in versions {
        let mut package = Command::new("scripts/package");
        package.args(["-f", "-p", "midhopd"]).arg(&programs).arg(&pages).arg(architecture());
        package.arg(directory.path()).env("MIDHOP_VERSION", version).stdin(Stdio::null());
        package.env("MIDHOP_MAINTAINER", MAINTAINER).env("MIDHOP_HOMEPAGE", HOMEPAGE);
        let made = package.current_dir(repository()).output().expect("scripts/package starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let name = format!("midhopd_{version}-1_{}.deb", architecture());
        let mut fields = Command::new("dpkg-deb");
        fields.arg("-f").arg(directory.path().join(name)).args(["Maintainer", "Homepage"]);
        let fields = String::from_utf8(fields.output().expect("dpkg-deb starts").stdout);
        let wanted = format!("Maintainer: {MAINTAINER}\nHomepage: {HOMEPAGE}\n");
        assert_eq!(fields.expect("UTF-8"), wanted);
    }
    Some(directory)
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Debian's name of the architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A machine on which packages start what they install, as on a real one.
fn machine() -> Option<Machine> {
    let machine = Machine::boot()?;
    // Images for containers forbid it. And the index of all manual pages of this host need not be
    // made anew.
    machine.must("rm -f /usr/sbin/policy-rc.d /var/lib/man-db/auto-update");
    machine.must("echo 'APT::Get::Assume-Yes \"true\";' > /etc/apt/apt.conf.d/99test");
    Some(machine)
}

fn package(packages: &TempDir, version: &str) -> String {
    let name = format!("midhopd_{version}-1_{}.deb", architecture());
    packages.path().join(name).display().to_string()
}

/// The commands that the page about packages shows to an administrator, with these packages.
struct Page {
    install: String,
    reload: String,
    remove: String,
    purge: String,
}

impl Page {
    fn read() -> Self {
        let typed =
            commands_of("/install.md").into_iter().filter(|line| !line.starts_with("make "));
        let typed: Vec<String> = typed.collect();
        let [install, reload, remove, purge] = &typed[..] else { panic!("{typed:?}") };
        let line = |line: &String, start: &str| {
            assert!(line.starts_with(start), "{line} is not {start}");
            line.clone()
        };
        Self {
            install: line(install, "apt install ./midhopd_"),
            reload: line(reload, "systemctl reload "),
            remove: line(remove, "apt remove "),
            purge: line(purge, "apt purge "),
        }
    }

    fn install(&self, machine: &Machine, packages: &TempDir, version: &str) {
        let (before, _) = self.install.split_once("./").expect("a file");
        machine.must(&format!("{before}'{}'", package(packages, version)));
    }
}

/// All files in the directories that packages and their scripts write to, except for the databases
/// of dpkg and apt.
fn files(machine: &Machine) -> String {
    machine.must(
        "find /etc /usr /var/lib -xdev \\( -path /var/lib/dpkg -o -path /var/lib/apt \\) -prune -o -print | sort",
    )
}

pub fn main_process(machine: &Machine) -> String {
    machine.must("systemctl show --property MainPID --value midhopd")
}

#[test]
fn a_package_is_installed_reloaded_upgraded_removed_and_purged() {
    let Some(machine) = machine() else { return };
    let Some(packages) = packages(&["1.0.0", "1.0.1"]) else { return };
    let page = Page::read();
    machine.must("ip link add lan0 type veth peer name sat0");
    machine.must("ip link set lan0 up && ip link set sat0 up");
    let before = files(&machine);
    let users = machine.must("cat /etc/passwd /etc/group");

    page.install(&machine, &packages, "1.0.0");
    machine.must("systemctl is-active midhopd && systemctl is-enabled midhopd");
    machine.wait_for("Nothing is intercepted until you set");
    let pid = main_process(&machine);
    assert_eq!(machine.must(&format!("stat -c %U /proc/{}", pid.trim())), "midhopd\n");
    assert_eq!(machine.must("nft list tables"), "");
    machine.must("midhopd check && man --where midhopd midhopd-check");
    machine
        .must("bash -c '. /usr/share/bash-completion/completions/midhopd && complete -p midhopd'");

    machine.must(&format!("cat > /etc/midhopd.toml <<'EOF'\n{CONFIGURATION}EOF"));
    machine.must(&page.reload);
    machine.wait_for("serving");
    assert_eq!(main_process(&machine), pid, "a reload is no restart");
    let table = machine.must("nft list tables");
    assert!(table.contains("midhop_main"), "{table}");

    page.install(&machine, &packages, "1.0.1");
    machine.must("systemctl is-active midhopd");
    assert_eq!(main_process(&machine), pid, "an upgrade is no restart");
    let status = machine.must("midhopd status --json");
    assert!(status.contains("\"upgrades_total\": 1"), "the old program still runs: {status}");
    assert_eq!(machine.must("dpkg-query -W -f '${Version}' midhopd"), "1.0.1-1");
    assert_eq!(machine.must("cat /etc/midhopd.toml"), CONFIGURATION);
    let table = machine.must("nft list tables");
    assert!(table.contains("midhop_main"), "{table}");

    machine.must(&page.remove);
    assert!(!machine.run("systemctl is-active midhopd").status.success());
    assert_eq!(machine.must("nft list tables"), "", "{}", machine.log());
    assert!(!machine.run("command -v midhopd").status.success());
    assert_eq!(machine.must("cat /etc/midhopd.toml"), CONFIGURATION);

    machine.must(&page.purge);
    assert_eq!(files(&machine), before, "left behind");
    assert_eq!(machine.must("cat /etc/passwd /etc/group"), users, "left behind");

    page.install(&machine, &packages, "1.0.1");
    machine.must("mkdir /etc/midhopd && echo secret > /etc/midhopd/ground.key");
    machine.must("chown midhopd /etc/midhopd/ground.key && chmod 600 /etc/midhopd/ground.key");
    machine.must(&page.purge);
    assert_eq!(machine.must("stat -c %U /etc/midhopd/ground.key"), "midhopd\n", "it is not ours");
    assert!(!machine.run("test -e /etc/midhopd.toml").status.success());
    let log = machine.log();
    assert!(!log.contains("ERROR") && !log.contains("not confined"), "{log}");
}
