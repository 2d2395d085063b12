//! A compromised data plane: what it can do to the first process, with which it shares its
//! descriptors.
//!
//! The test makes its system calls by a thread of it that is stopped and controlled (`ptrace(2)`).
//! So the calls pass the filters that confine it.
#![cfg(target_arch = "x86_64")]

use crate::program::{Running, Setup, log_of, traces};
use crate::stage::{self, Family, Stage, until};
use crate::survival::relayed;
use crate::upgrade::{another, program_of};
use nix::libc::{self, c_long};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n";
/// The instruction that makes a system call.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The calls in which a worker waits.
const WAITS: [c_long; 2] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait];

/// A thread of a data plane that the test controls.
struct Captured {
    thread: Pid,
    memory: File,
    /// The address of memory for the arguments of calls.
    room: u64,
    before: libc::user_regs_struct,
}

impl Captured {
    /// None where processes may not be traced.
    fn new(running: &Running) -> Option<Self> {
        let process = running.id();
        // Of its threads, this one may read the most files.
        let thread = running.data_plane();
        ptrace::seize(thread, ptrace::Options::PTRACE_O_TRACESYSGOOD).ok()?;
        let mut before = None;
        until("it has nothing to do, and waits", || {
            ptrace::interrupt(thread).expect("it is traced");
            stopped(thread);
            let registers = ptrace::getregs(thread).expect("registers");
            let call = c_long::from_ne_bytes(registers.orig_rax.to_ne_bytes());
            before = WAITS.contains(&call).then_some(registers);
            if before.is_none() {
                ptrace::cont(thread, None).expect("it is stopped");
            }
            before.is_some()
        });
        let mut before = before.expect("it waits");
        let path = format!("/proc/{process}/mem");
        let memory = OpenOptions::new().read(true).write(true).open(path).expect("its memory");
        let mut instruction = [0; 2];
        memory.read_exact_at(&mut instruction, before.rip - 2).expect("its instruction");
        assert_eq!(instruction, SYSCALL, "it waits in a call");
        // The wait is interrupted: the thread checks its events, and waits again.
        before.rax = u64::from_ne_bytes((-i64::from(libc::EINTR)).to_ne_bytes());
        before.orig_rax = u64::MAX;
        let room = (before.rsp - 8192) & !15;
        Some(Self { thread, memory, room, before })
    }

    /// Makes a system call. Returns its result, or the negated error number.
    fn call(&self, number: c_long, arguments: [u64; 3]) -> i64 {
        let [rdi, rsi, rdx] = arguments;
        let rax = number.cast_unsigned();
        let rip = self.before.rip - 2;
        let call = libc::user_regs_struct { rax, rip, rdi, rsi, rdx, r10: 0, ..self.before };
        ptrace::setregs(self.thread, call).expect("registers");
        for _ in ["it begins", "it ends"] {
            ptrace::syscall(self.thread, None).expect("it is stopped");
            stopped(self.thread);
        }
        let result = ptrace::getregs(self.thread).expect("registers").rax;
        ptrace::setregs(self.thread, self.before).expect("registers");
        result.cast_signed()
    }

    /// The same, for a call that has to work.
    fn make(&self, number: c_long, arguments: [u64; 3]) -> u64 {
        let result = self.call(number, arguments);
        u64::try_from(result).unwrap_or_else(|_| panic!("call {number} fails: {result}"))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> u64 {
        self.memory.write_all_at(bytes, self.room + at).expect("its memory");
        self.room + at
    }

    fn open(&self, path: &Path) -> u64 {
        let path = self.write(0, &[path.as_os_str().as_bytes(), b"\0"].concat());
        let here = u64::from(libc::AT_FDCWD.cast_unsigned());
        self.make(libc::SYS_openat, [here, path, 0])
    }

    fn connect(&self, path: &Path) -> u64 {
        let kind = u64::from(libc::SOCK_STREAM.cast_unsigned());
        let unix = u64::from(libc::AF_UNIX.cast_unsigned());
        let socket = self.make(libc::SYS_socket, [unix, kind, 0]);
        let address = [&1_u16.to_ne_bytes()[..], path.as_os_str().as_bytes(), b"\0"].concat();
        let at = self.write(0, &address);
        self.make(libc::SYS_connect, [socket, at, address.len() as u64]);
        socket
    }

    /// Sends a byte, with a descriptor. Returns whether the other end is still there.
    fn send(&self, socket: u64, byte: u8, descriptor: Option<u64>) -> bool {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let byte = self.write(0, &[byte]);
        let part: Vec<u8> = words(&[byte, 1]);
        let part = self.write(64, &part);
        // SOL_SOCKET and SCM_RIGHTS are 1.
        let rights: Vec<u8> = words(&[20, 1 << 32 | 1, descriptor.unwrap_or(0)]);
        let rights = self.write(128, &rights);
        let length = if descriptor.is_some() { 24 } else { 0 };
        let message: Vec<u8> = words(&[0, 0, part, 1, rights, length, 0]);
        let message = self.write(192, &message);
        match self.call(libc::SYS_sendmsg, [socket, message, 0]) {
            1 => true,
            error if error == -i64::from(libc::EPIPE) => false,
            error => panic!("nothing is sent: {error}"),
        }
    }

    /// Requests another program of the holder, as root would: by `!` one that follows this process,
    /// by `^` one that starts ahead.
    fn choose(&self, setup: &Setup, program: &Path, request: u8) {
        let socket = self.connect(&setup.socket().with_extension("upgrade"));
        let program = self.open(program);
        let _ = self.send(socket, request, None) && self.send(socket, b'p', Some(program));
    }

    /// Lets it continue as before.
    fn release(self) {
        ptrace::detach(self.thread, None).expect("it is stopped");
    }
}

/// Waits until a thread is stopped.
fn stopped(thread: Pid) {
    match waitpid(thread, Some(WaitPidFlag::__WALL)) {
        Ok(
            WaitStatus::PtraceSyscall(_) | WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..),
        ) => {}
        other => panic!("a traced thread is lost: {other:?}"),
    }
}

/// Waits until the holder has answered all earlier clients.
fn holder_answers(setup: &Setup) {
    until("the holder answers", || {
        let door = setup.socket().with_extension("upgrade");
        let Ok(mut stream) = UnixStream::connect(door) else { return false };
        let mut answer = String::new();
        stream.write_all(b"?").is_ok()
            && stream.shutdown(Shutdown::Write).is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.contains("readable_from")
    });
}

/// Whether a process has ended, and only its parent has not collected it yet.
fn is_dead(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

/// The data plane requests a program at the holder's door. It has the user number that the door
/// admits: in this test the daemon's user is root.
#[test]
fn it_chooses_no_program() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = relayed(&stage, &listener);
    let (before, own) = (running.data_plane(), program_of(&running));
    let program = another(&setup, "chosen");
    for request in *b"!^" {
        let Some(captured) = Captured::new(&running) else {
            return midhop_testkit::skipped("no process may be traced here");
        };
        captured.choose(&setup, &program, request);
        captured.release();
        holder_answers(&setup);
        assert_eq!((running.data_plane(), program_of(&running)), (before, own.clone()));
        stage::pass(&mut client, &mut server);
    }
    drop((client, server));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// It makes the request, and has ended when the holder reads it: its process number belongs to no
/// process any more.
#[test]
fn it_chooses_no_program_by_its_death() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = relayed(&stage, &listener);
    let own = program_of(&running);
    let program = another(&setup, "chosen");
    for (deaths, request) in (1..).zip(*b"!^!^") {
        let Some(captured) = Captured::new(&running) else {
            return midhop_testkit::skipped("no process may be traced here");
        };
        let before = running.data_plane();
        running.signal(Signal::SIGSTOP);
        captured.choose(&setup, &program, request);
        captured.release();
        kill(before, Signal::SIGKILL).expect("a signal");
        until("it is gone", || is_dead(before));
        running.signal(Signal::SIGCONT);
        until("there is another data plane", || running.data_plane() != before);
        let next = running.data_plane();
        holder_answers(&setup);
        until("it has come up", || setup.try_status().is_ok());
        assert_eq!((running.data_plane(), program_of(&running)), (next, own.clone()));
        let status = setup.status();
        assert_eq!((status.upgrades_total, status.data_planes_killed_total), (0, deaths));
        stage::pass(&mut client, &mut server);
    }
    drop((client, server));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// Descriptors of the holder stay the holder's: if another one is in their place, the holder does
/// not go on.
#[test]
fn it_leaves_the_holder_no_descriptor_of_its_own() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (_client, _server) = relayed(&stage, &listener);
    let Some(captured) = Captured::new(&running) else {
        return midhop_testkit::skipped("no process may be traced here");
    };
    // The first sockets are older than any data plane.
    let holders = (3..64).find(|number| {
        let path = std::fs::read_link(format!("/proc/{}/fd/{number}", running.first()));
        path.is_ok_and(|path| path.as_os_str().as_bytes().starts_with(b"socket:"))
    });
    let holders = holders.expect("a socket of the holder's");
    let socket = captured.connect(&setup.socket());
    captured.make(libc::SYS_dup3, [socket, holders, u64::from(libc::O_CLOEXEC.cast_unsigned())]);
    captured.release();
    running.signal_data_plane(Signal::SIGKILL);
    assert_eq!(running.end(), Some(1), "{}", log_of(&setup));
    until("the keeper has cleaned", || traces(&stage.gateway).is_empty());
}
