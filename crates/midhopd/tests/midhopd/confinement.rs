//! What the running daemon may do, as the kernel reports it, and what happens to a process that
//! tries more.

use crate::program::{Running, Setup};
use crate::stage::{Family, Stage, receive_all, send_all, until};
use midhop_process::confine;
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n";

/// Set for a copy of this program: the name of what it is to try.
const TRY: &str = "MIDHOP_TEST_TRY";

/// What the kernel reports of the threads of a process, by their names.
fn threads(process: u32) -> BTreeMap<String, BTreeMap<String, String>> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    // A thread that has ended meanwhile has no status.
    let status = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let pair = |line: &str| {
            let (key, value) = line.split_once(":\t")?;
            Some((key.to_owned(), value.trim().to_owned()))
        };
        let status: BTreeMap<String, String> = text.lines().filter_map(pair).collect();
        Some((status.get("Name")?.clone(), status))
    };
    tasks.filter_map(status).collect()
}

#[test]
fn whoever_reads_what_strangers_send_is_confined() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(&format!(
        "{CONFIG}[explicit]\nsocks5 = \"127.0.0.1:1080\"\nclients = \"127.0.0.0/8\"\n[daemon]\nworkers = 2\n"
    ));
    let running = Running::start(&stage, &setup);
    let names = ["midhopd-data", "worker-0", "worker-1", "explicit", "gate", "keeper"];
    // Each thread sets its own name, perhaps after the daemon has reported that it serves.
    until("its threads", || {
        let threads = threads(running.id());
        names.iter().all(|name| threads.contains_key(*name))
    });
    let threads = threads(running.id());
    for (name, status) in &threads {
        assert_eq!(status["Seccomp"], "2", "{name}");
        assert_eq!(status["NoNewPrivs"], "1", "{name}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status[set], "0000000000000000", "{name}: {set}");
        }
    }
    for family in [Family::V4, Family::V6] {
        let listener = stage.listen(family);
        let (client, server) = stage.flow(&listener);
        send_all(&client, b"through a confined worker");
        assert_eq!(receive_all(&server), b"through a confined worker", "{family:?}");
    }
    running.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(running.end(), Some(0));
}

/// Runs a copy of this program that confines itself and tries something.
fn attempt(what: &str) -> ExitStatus {
    let program = std::env::current_exe().expect("this program");
    let mut copy = Command::new(program);
    let test = "confinement::a_copy_of_this_program_tries";
    copy.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    copy.env(TRY, what).status().expect("a copy of this program")
}

#[test]
fn what_nothing_here_has_a_reason_for_ends_the_process() {
    for what in ["execve", "unshare", "mount", "setns"] {
        let status = attempt(what);
        // SIGSYS.
        assert_eq!(status.signal(), Some(31), "{what}: {status}");
    }
}

#[test]
fn what_serving_does_not_use_is_refused() {
    for what in ["packet-socket", "process", "executable-memory", "kill", "file"] {
        let status = attempt(what);
        assert!(status.success(), "{what}: {status}");
    }
}

#[test]
fn a_copy_of_this_program_tries() {
    // Without the variable this is an ordinary test run, and nothing is tried.
    let Some(what) = std::env::var_os(TRY) else { return };
    let what = what.into_string().expect("a word");
    if what == "file" {
        return files_are_read_and_not_written();
    }
    confine::system_calls().expect("a filter");
    match what.as_str() {
        "execve" => {
            let _ = nix::unistd::execv(c"/bin/true", &[c"true"]);
        }
        "unshare" => {
            let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
        }
        "mount" => {
            let flags = nix::mount::MsFlags::empty();
            let _ = nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>);
        }
        "setns" => {
            let here = std::fs::File::open("/proc/self/ns/net").expect("a namespace");
            let _ = nix::sched::setns(here, nix::sched::CloneFlags::CLONE_NEWNET);
        }
        "packet-socket" => {
            use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
            let refused = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), None);
            assert_eq!(refused.expect_err("no packet sockets"), Errno::EPERM);
        }
        "process" => {
            let refused = Command::new("/bin/true").status().expect_err("no programs");
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        }
        "executable-memory" => {
            assert_eq!(executable_memory(), Err(Errno::EPERM));
        }
        "kill" => {
            let refused = nix::sys::signal::kill(nix::unistd::Pid::this(), None);
            assert_eq!(refused, Err(Errno::EPERM));
        }
        other => panic!("nobody knows how to try {other}"),
    }
}

/// Memory that can be both written and executed.
#[expect(unsafe_code, reason = "mapping memory is unsafe")]
fn executable_memory() -> Result<(), Errno> {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
    let length = std::num::NonZero::new(4096).expect("a length");
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no other.
    unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }.map(drop)
}

fn files_are_read_and_not_written() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let elsewhere = tempfile::TempDir::new().expect("another");
    for at in [&directory, &elsewhere] {
        std::fs::write(at.path().join("file"), "text").expect("a file");
    }
    let file = directory.path().join("file");
    let enforced = confine::files(&[directory.path().to_owned()], None).expect("Landlock, or none");
    if enforced == confine::Enforced::Not {
        return midhop_testkit::skipped("this kernel has no Landlock");
    }
    let kind = |result: std::io::Result<()>| result.map_err(|error| error.kind());
    let refused = Err(ErrorKind::PermissionDenied);
    assert_eq!(std::fs::read_to_string(&file).expect("its text"), "text");
    assert_eq!(kind(std::fs::write(&file, "other")), refused);
    assert_eq!(kind(std::fs::remove_file(&file)), refused);
    assert_eq!(kind(std::fs::write(directory.path().join("new"), "text")), refused);
    assert_eq!(kind(std::fs::read(elsewhere.path().join("file")).map(drop)), refused);
    let refused = Command::new("/bin/true").status().map(drop);
    assert_eq!(kind(refused), Err(ErrorKind::PermissionDenied));
}
