//! Registers an algorithm, or holds an existing registration.
//!
//! Decision 0006.

use crate::program::Program;
use crate::{
    Algorithm, Missing, ParameterError, Parameters, SelectError, available, missing_to_load,
    object, registered, select,
};
use libbpf_rs::{Link, MapCore, MapType, OpenObject, PrintLevel};
use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

const TYPE_INFORMATION: &str = "/sys/kernel/btf/vmlinux";
/// How many processes that may not hold each other's registrations can have the same algorithm at a time, beside the first.
const OTHER_NAMES: u32 = 15;
/// How often all names are tried: one that was taken may be free a moment later, with nobody left to hold it.
const TRIES: usize = 3;
/// How much of the verifier's log an error contains.
const LOG_BYTES_MAX: usize = 4096;

/// An algorithm that sockets may select while this value lives.
#[derive(Debug)]
pub struct Loaded {
    algorithm: Algorithm,
    name: String,
    hold: Hold,
}

/// What keeps the algorithm registered.
#[derive(Debug)]
#[non_exhaustive]
pub enum Hold {
    /// This process has registered it.
    Own(Registration),
    /// Another process has, and this one holds the same registration: either may exit first.
    Shared(OwnedFd),
    /// Another process has, and this one may neither hold it nor register another: it ends with that process.
    Borrowed,
}

/// A registration made by this process.
#[derive(Debug)]
pub struct Registration {
    _link: Link,
}

/// Why an algorithm could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A parameter is outside its range.
    #[error("{algorithm}: {source}")]
    Parameter {
        /// The algorithm.
        algorithm: Algorithm,
        /// Which parameter, and its range.
        source: ParameterError,
    },
    /// The process lacks capabilities, or is not where they count.
    #[error(
        "{program}: {missing}; run as root, or grant CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN \
         (systemd: AmbientCapabilities=), or choose an algorithm that the kernel has"
    )]
    NoPrivilege {
        /// The algorithm's name, or the program's.
        program: &'static str,
        /// What is missing.
        missing: Missing,
    },
    /// The process is in a user namespace.
    #[error(
        "{program}: {}; register it from outside first (it can then be selected from inside), or \
         choose an algorithm that the kernel has",
        Missing::InitialUserNamespace
    )]
    NotInitialUserNamespace {
        /// The algorithm's name, or the program's.
        program: &'static str,
    },
    /// The kernel cannot do it at all.
    #[error(
        "{program}: this kernel lacks {what}; Linux 6.4 or later with CONFIG_DEBUG_INFO_BTF and \
         CONFIG_BPF_JIT is needed, or choose an algorithm that the kernel has"
    )]
    KernelLacks {
        /// The algorithm's name, or the program's.
        program: &'static str,
        /// What it lacks.
        what: &'static str,
        /// What the kernel and libbpf printed.
        log: String,
    },
    /// The kernel's verifier, or its registration, turned the program down.
    #[error("{program}: the kernel refused the program ({reason}); its log:\n{log}")]
    Refused {
        /// The algorithm's name, or the program's.
        program: &'static str,
        /// The kernel's answer.
        reason: String,
        /// What the verifier printed.
        log: String,
    },
    /// Another program has the name in the kernel.
    #[error(
        "{program}: other programs are registered by its name and by those with a number; end one of them, or choose an \
         algorithm that the kernel has"
    )]
    Taken {
        /// The algorithm's name, or the program's.
        program: &'static str,
    },
    /// The embedded object is not what this release expects.
    #[error("{program}: the embedded object is unusable: {reason}; rebuild midhop")]
    Object {
        /// The algorithm's name, or the program's.
        program: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// Makes `algorithm` with `parameters` selectable: uses an existing registration, else makes one.
///
/// # Errors
/// When there is none and the algorithm cannot be registered, see [`LoadError`].
pub fn ensure(algorithm: Algorithm, parameters: &Parameters) -> Result<Loaded, LoadError> {
    let wrong = |source| LoadError::Parameter { algorithm, source };
    let name = parameters.kernel_name(algorithm).map_err(wrong)?;
    let settings = parameters.settings(algorithm).map_err(wrong)?;
    let (name, hold) = ensure_program(&Program::of(algorithm), &name, &settings)?;
    Ok(Loaded { algorithm, name, hold })
}

/// Makes `program` selectable by `name`, or by another name if somebody else has that one and this process may not hold it.
/// Returns the name.
pub(crate) fn ensure_program(
    program: &Program,
    name: &str,
    settings: &[u8],
) -> Result<(String, Hold), LoadError> {
    let shared = || registered::open_link(name).map(|link| (name.to_owned(), Hold::Shared(link)));
    let numbered = (1..=OTHER_NAMES).map(|number| other_name(name, number));
    let names: Vec<_> = std::iter::once(name.to_owned()).chain(numbered).collect();
    let mut messages = Messages::listen();
    let mut refused = LoadError::Taken { program: program.title };
    if let Some(shared) = shared() {
        return Ok(shared);
    }
    for other in std::iter::repeat_n(&names, TRIES).flatten() {
        match register(program, other, settings, &mut messages) {
            Ok(link) => return Ok((other.clone(), Hold::Own(Registration { _link: link }))),
            Err(error @ LoadError::Taken { .. }) => refused = error,
            Err(error) => {
                refused = error;
                break;
            }
        }
        // It may have been registered a moment ago.
        if other == name
            && let Some(shared) = shared()
        {
            return Ok(shared);
        }
    }
    if available(name) { Ok((name.to_owned(), Hold::Borrowed)) } else { Err(refused) }
}

/// The name of the same with a number, for a process that may not hold what has the name itself.
fn other_name(name: &str, number: u32) -> String {
    let suffix = format!("_{number:x}");
    let kept = name.len().min(object::NAME_BYTES - 1 - suffix.len());
    format!("{}{suffix}", &name[..kept])
}

impl Loaded {
    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The name to select it by.
    pub fn kernel_name(&self) -> &str {
        &self.name
    }

    /// What keeps it registered.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Makes `socket` use it.
    ///
    /// # Errors
    /// When the kernel refuses, see [`SelectError`].
    pub fn select(&self, socket: impl AsFd) -> Result<(), SelectError> {
        select(socket, &self.name)
    }
}

fn register(
    program: &Program,
    name: &str,
    settings: &[u8],
    messages: &mut Messages,
) -> Result<Link, LoadError> {
    if !Path::new(TYPE_INFORMATION).exists() {
        let what = "type information (/sys/kernel/btf/vmlinux)";
        return Err(LoadError::KernelLacks { program: program.title, what, log: String::new() });
    }
    match missing_to_load() {
        Some(Missing::InitialUserNamespace) => {
            return Err(LoadError::NotInitialUserNamespace { program: program.title });
        }
        Some(missing) => return Err(LoadError::NoPrivilege { program: program.title, missing }),
        None => {}
    }
    attach(object::prepare(program, name, settings)?, program.title, messages)
}

fn attach(
    prepared: OpenObject,
    program: &'static str,
    messages: &mut Messages,
) -> Result<Link, LoadError> {
    let refused = |error: libbpf_rs::Error, log: String| {
        if log.contains("not found in kernel") {
            let what = "a function or type that the program uses";
            return LoadError::KernelLacks { program, what, log };
        }
        LoadError::Refused { program, reason: format!("{error:#}"), log }
    };
    let mut object = prepared.load().map_err(|error| refused(error, messages.take()))?;
    let mut operations =
        object.maps_mut().find(|map| map.map_type() == MapType::StructOps).ok_or_else(|| {
            LoadError::Object { program, reason: "it holds no struct_ops map".to_owned() }
        })?;
    operations.attach_struct_ops().map_err(|error| match error.kind() {
        libbpf_rs::ErrorKind::AlreadyExists => LoadError::Taken { program },
        _ => refused(error, messages.take()),
    })
}

/// What libbpf prints while a program is loaded. Its printing is one hook for the whole process, so one
/// load happens at a time.
struct Messages {
    before: Option<(PrintLevel, libbpf_rs::PrintCallback)>,
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());
static PRINTED: Mutex<String> = Mutex::new(String::new());

impl Messages {
    fn listen() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        PRINTED.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let before = libbpf_rs::set_print(Some((PrintLevel::Warn, |_, message| {
            PRINTED.lock().unwrap_or_else(PoisonError::into_inner).push_str(&message);
        })));
        Self { before, _turn: turn }
    }

    /// The end of what was printed: a verifier that gives up may have printed megabytes before.
    fn take(&mut self) -> String {
        let printed = std::mem::take(&mut *PRINTED.lock().unwrap_or_else(PoisonError::into_inner));
        let from = printed.len().saturating_sub(LOG_BYTES_MAX);
        match printed.get(from..).filter(|_| from > 0).and_then(|end| end.split_once('\n')) {
            Some((_, end)) => format!("[…]\n{end}"),
            None => printed,
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        libbpf_rs::set_print(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VEGAS: Program = Program::of(Algorithm::Vegas);

    #[test]
    fn other_names_fit_and_differ() {
        let names = Algorithm::ALL.map(Algorithm::kernel_name);
        let mut all: Vec<_> = (1..=OTHER_NAMES)
            .flat_map(|number| names.map(|name| other_name(name, number)))
            .chain(names.map(str::to_owned))
            .collect();
        assert!(all.iter().all(|name| name.len() < object::NAME_BYTES), "{all:?}");
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "{all:?}");
    }

    #[test]
    fn a_name_that_is_taken_gets_a_number() {
        if let Some(missing) = missing_to_load() {
            return midhop_testkit::skipped(missing);
        }
        let settings = Parameters::default().settings(Algorithm::Vegas).expect("defaults");
        let refused = register(&VEGAS, "cubic", &settings, &mut Messages::listen());
        assert!(matches!(refused, Err(LoadError::Taken { .. })), "{refused:?}");
        // Each holds its own, as long as it lives.
        let [one, other] = [(); 2].map(|()| ensure_program(&VEGAS, "cubic", &settings));
        let [(one, held), (other, _other)] = [one, other].map(|it| it.expect("registered"));
        assert!(one.starts_with("cubic_") && other.starts_with("cubic_") && one != other);
        drop(held);
        assert!(available(&other));
    }

    /// Vegas' object with every `old` in it replaced.
    fn altered(old: &[u8], new: &[u8]) -> Vec<u8> {
        assert_eq!(old.len(), new.len());
        let mut bytes = VEGAS.object.to_vec();
        let places: Vec<usize> =
            (0..bytes.len() - old.len()).filter(|at| bytes[*at..].starts_with(old)).collect();
        assert!(!places.is_empty(), "the object has changed");
        for at in places {
            bytes[at..at + new.len()].copy_from_slice(new);
        }
        bytes
    }

    fn attach_altered(bytes: Vec<u8>, name: &str) -> LoadError {
        let settings = Parameters::default().settings(Algorithm::Vegas).expect("defaults");
        let mut messages = Messages::listen();
        let altered = Program { object: bytes.leak(), ..VEGAS };
        let prepared = object::prepare(&altered, name, &settings);
        attach(prepared.expect("an object"), altered.title, &mut messages).expect_err("refused")
    }

    #[test]
    fn a_kernel_without_a_function_is_distinguished_from_a_refusal() {
        if let Some(missing) = missing_to_load() {
            midhop_testkit::skipped(missing);
            return;
        }
        let bytes = altered(b"tcp_reno_ssthresh\0", b"tcp_reno_nonsense\0");
        match attach_altered(bytes, "mhvega_test0001") {
            LoadError::KernelLacks { log, .. } => assert!(log.contains("nonsense"), "{log}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_refusal_carries_the_verifiers_log() {
        if let Some(missing) = missing_to_load() {
            midhop_testkit::skipped(missing);
            return;
        }
        // A field no kernel has: libbpf leaves the access unresolved, and the verifier reports that.
        let bytes = altered(b"\0snd_cwnd\0", b"\0snd_cwnx\0");
        match attach_altered(bytes, "mhvega_test0002") {
            LoadError::Refused { log, .. } => assert!(log.contains("PROG LOAD LOG"), "{log}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_long_log_keeps_its_end() {
        let mut messages = Messages::listen();
        let line = "x".repeat(99) + "\n";
        PRINTED.lock().expect("nobody panicked").push_str(&(line.repeat(100) + "the end\n"));
        let log = messages.take();
        assert!(log.starts_with("[…]\nxxx"), "{log}");
        assert!(log.ends_with("the end\n") && log.len() < LOG_BYTES_MAX + 10, "{}", log.len());
        assert_eq!(messages.take(), "");
    }
}
