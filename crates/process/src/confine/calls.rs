//! The system calls of serving, and those that are never needed here.

use super::ConfineError;
use nix::libc::*;
use seccompiler::{
    SeccompCmpArgLen::{Dword, Qword},
    SeccompCmpOp::{self, Eq, MaskedEq},
    SeccompCondition, SeccompRule,
};
use std::collections::BTreeMap;

/// System calls by number, each with its permitted arguments; empty: any.
pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Allowed with any arguments.
const SERVING: &[c_long] = &[
    // Descriptors, and files as far as Landlock lets them be opened.
    SYS_read,
    SYS_readv,
    SYS_pread64,
    SYS_write,
    SYS_writev,
    SYS_close,
    SYS_close_range,
    SYS_openat,
    SYS_newfstatat,
    SYS_fstat,
    SYS_statx,
    SYS_lseek,
    SYS_getdents64,
    SYS_readlinkat,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_unlinkat,
    SYS_fcntl,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_splice,
    SYS_tee,
    SYS_getcwd,
    // Waiting.
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    // Sockets.
    SYS_socketpair,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_connect,
    SYS_getsockname,
    SYS_getpeername,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_sendto,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_recvmmsg,
    // Memory.
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_mincore,
    SYS_get_mempolicy,
    // Threads and signals of this process, and the end of a child.
    SYS_clone3,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_set_tid_address,
    SYS_futex,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_membarrier,
    SYS_exit,
    SYS_exit_group,
    SYS_tgkill,
    SYS_restart_syscall,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_wait4,
    SYS_waitid,
    // Threads that confine themselves further.
    SYS_landlock_create_ruleset,
    SYS_landlock_add_rule,
    SYS_landlock_restrict_self,
    // Queries.
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_getrandom,
    SYS_uname,
    SYS_sysinfo,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getgroups,
    SYS_capget,
    SYS_getcpu,
    SYS_getrusage,
];

/// The same for calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const SERVING_HERE: &[c_long] = &[
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_unlink,
    SYS_poll,
    SYS_select,
    SYS_pipe,
    SYS_dup2,
    SYS_epoll_wait,
    SYS_epoll_create,
    SYS_eventfd,
    SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const SERVING_HERE: &[c_long] = &[];

/// Never needed by this program or its libraries.
const DEADLY: &[c_long] = &[
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kexec_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_mount,
    SYS_umount2,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsmount,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_userfaultfd,
    SYS_perf_event_open,
    SYS_open_by_handle_at,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_acct,
    SYS_quotactl,
    SYS_syslog,
    SYS_personality,
    SYS_pidfd_getfd,
    SYS_io_uring_setup,
    SYS_setuid,
    SYS_setgid,
    SYS_setresuid,
    SYS_setresgid,
];

/// The system calls of serving.
pub(super) fn allowed() -> Result<Rules, ConfineError> {
    let mut rules: Rules =
        SERVING.iter().chain(SERVING_HERE).map(|call| (*call, Vec::new())).collect();
    let mut some = |call: c_long, any_of: Vec<Vec<Condition>>| -> Result<(), ConfineError> {
        let any_of: Result<Vec<_>, _> = any_of.into_iter().map(rule).collect();
        rules.insert(call, any_of?);
        Ok(())
    };
    some(SYS_socket, sockets())?;
    some(SYS_ioctl, ioctls().into_iter().map(|request| vec![is(1, request)]).collect())?;
    // Threads of this process, and nothing in namespaces of its own.
    some(SYS_clone, vec![vec![bits(0, CLONE_THREAD, CLONE_THREAD)]])?;
    // Nothing written or read becomes code: all code was loaded before.
    some(SYS_mmap, vec![vec![bits(2, PROT_EXEC, 0)]])?;
    some(SYS_mprotect, vec![vec![bits(2, PROT_EXEC, 0)]])?;
    // Names of threads and of mappings (`PR_SET_VMA`), and what goes before Landlock.
    let names = [PR_SET_NAME, PR_GET_NAME, 0x5356_4d41, PR_SET_NO_NEW_PRIVS];
    some(SYS_prctl, names.into_iter().map(|option| vec![is(0, wide(option))]).collect())?;
    // Limits can be read.
    some(SYS_prlimit64, vec![vec![Condition { length: Qword, ..is(2, 0) }]])?;
    Ok(rules)
}

/// The system calls that end the process.
pub(super) fn deadly() -> Rules {
    DEADLY.iter().map(|call| (*call, Vec::new())).collect()
}

/// The system calls that end the keeper, which starts `nft`.
pub(super) fn deadly_to_the_keeper() -> Rules {
    let mut rules = deadly();
    rules.remove(&SYS_execve);
    rules
}

/// Address families, and for netlink the protocols that the daemon uses.
fn sockets() -> Vec<Vec<Condition>> {
    let families = [AF_UNIX, AF_INET, AF_INET6].map(|family| vec![is(0, wide(family))]);
    let netlink = [NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_NETFILTER]
        .map(|protocol| vec![is(0, wide(AF_NETLINK)), is(2, wide(protocol))]);
    families.into_iter().chain(netlink).collect()
}

/// Queues of sockets, non-blocking, whether it is a terminal, and interfaces' names and numbers.
fn ioctls() -> [u64; 7] {
    /// What has never been sent (`include/uapi/linux/sockios.h`).
    const SIOCOUTQNSD: u64 = 0x894b;
    [FIONREAD, TIOCOUTQ, SIOCOUTQNSD, FIONBIO, TCGETS, 0x8910, 0x8933]
}

/// The condition on an argument.
struct Condition {
    argument: u8,
    length: seccompiler::SeccompCmpArgLen,
    operation: SeccompCmpOp,
    value: u64,
}

fn is(argument: u8, value: u64) -> Condition {
    Condition { argument, length: Dword, operation: Eq, value }
}

fn bits(argument: u8, mask: i32, value: i32) -> Condition {
    Condition { argument, length: Qword, operation: MaskedEq(wide(mask)), value: wide(value) }
}

fn wide(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

fn rule(all_of: Vec<Condition>) -> Result<SeccompRule, ConfineError> {
    let conditions: Result<Vec<_>, _> = all_of
        .into_iter()
        .map(|it| SeccompCondition::new(it.argument, it.length, it.operation, it.value))
        .collect();
    conditions.and_then(SeccompRule::new).map_err(ConfineError::of)
}
