//! What a program hands to the one that takes its place in the same process (`execve(2)`), and the other end of that.
//!
//! The next program gets the configuration that was followed, the register of flows, their
//! descriptors, and the client that waits for the outcome. It also gets the previous program, to
//! which it gives the process back if it cannot go on.
//!
//! Keys may be added to [`Handed`]. A key that exists keeps its meaning, as either program may be
//! the older one.

use super::caretaker::{Caretaker, LeftState, end_by_force};
use super::door::{UpgradeClient, UpgradeOutcome};
use super::inherited::{Inherited, duplicate, keep_over_exec};
use super::register::Register;
use crate::failure::{self, Failure};
use midhop_pep::config::Plan;
use midhop_process::configuration;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::waitpid;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, fexecve};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::error::Error;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

/// Contains the descriptor of what is handed over.
pub const VARIABLE: &str = "MIDHOPD_TAKEOVER";
/// Contains the descriptor of the previous program, for a program that cannot read what is handed
/// over.
const BEFORE: &str = "MIDHOPD_BEFORE";
/// Contains the reason why another program could not read what is handed over. It is handed back
/// unchanged.
const REFUSED: &str = "MIDHOPD_REFUSED";
/// This program, even if its file has been renamed.
const PROGRAM: &str = "/proc/self/exe";

/// What is handed over, beside descriptors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Handed {
    /// The version of the previous program.
    pub version: String,
    /// The text of the configuration that the first program was started with. Some of its keys stay until a restart.
    pub begun: String,
    /// The text of the configuration that was followed. None: it was not kept.
    pub text: Option<String>,
    /// How many data planes were killed.
    pub deaths: u64,
    /// How many programs have replaced one before them.
    pub upgrades: u64,
    /// Unit: nanoseconds of the monotonic clock. When the last data plane was ended.
    pub stopped_ns: u64,
    /// Why another program could not go on, so that this one has the process back.
    pub failure: Option<String>,
    /// Whether a requested reload is still to be done.
    #[serde(default)]
    pub owes_reload: bool,
    register: RawFd,
    client: Option<RawFd>,
    previous: Option<RawFd>,
    /// The channel to the caretaker of flows that are still relayed, and its process number.
    #[serde(default)]
    caretaker: Option<(RawFd, i32)>,
    /// Child processes that end without this program's doing.
    #[serde(default)]
    ending: Vec<i32>,
}

impl Handed {
    /// Collects what is to be handed over now.
    pub fn new(
        version: &str,
        begun: &str,
        text: Option<String>,
        (deaths, upgrades): (u64, u64),
        stopped: Duration,
    ) -> Self {
        Self {
            version: version.to_owned(),
            begun: begun.to_owned(),
            text,
            deaths,
            upgrades,
            stopped_ns: u64::try_from(stopped.as_nanos()).unwrap_or(u64::MAX),
            failure: None,
            owes_reload: false,
            register: -1,
            client: None,
            previous: None,
            caretaker: None,
            ending: Vec::new(),
        }
    }

    /// The flows are still relayed, and a caretaker sends them. It, the data plane and the keeper
    /// end then.
    pub fn kept_by(mut self, caretaker: &Caretaker, ending: &[Pid]) -> Self {
        self.caretaker = Some((caretaker.as_fd().as_raw_fd(), caretaker.process().as_raw()));
        self.ending = ending.iter().map(|process| process.as_raw()).collect();
        self
    }

    /// Gives this process to another program, or to this one again if that cannot be started.
    ///
    /// # Errors
    /// When this one cannot be started again either.
    pub fn pass_on(
        mut self,
        program: BorrowedFd<'_>,
        config: &Path,
        register: &Register,
        flows: &BTreeSet<RawFd>,
        client: &UpgradeClient,
    ) -> io::Result<Infallible> {
        let previous = File::open(PROGRAM)?;
        (self.register, self.client) =
            (register.file().as_raw_fd(), Some(client.as_fd().as_raw_fd()));
        self.previous = Some(previous.as_raw_fd());
        keep_over_exec(flows, true)?;
        let Err(error) = self.exec(program, config);
        self.fail(format!("the program cannot be started: {error}"));
        self.exec(previous.as_fd(), config)
    }

    /// Records that the next program is the previous one.
    fn fail(&mut self, why: String) {
        self.failure = Some(why);
        self.previous = None;
        self.upgrades = self.upgrades.saturating_sub(1);
    }

    fn exec(&self, program: BorrowedFd<'_>, config: &Path) -> io::Result<Infallible> {
        let mut file = File::from(memfd_create(c"midhopd-takeover", MFdFlags::empty())?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        let caretaker = self.caretaker.map(|(channel, _)| channel);
        let own = [Some(self.register), self.client, self.previous, caretaker];
        keep_over_exec(&own.into_iter().flatten().collect(), true)?;
        let previous = self.previous.map(|number| (BEFORE, number.to_string()));
        let handed = (VARIABLE, file.as_raw_fd().to_string());
        execute(program, config, previous.into_iter().chain([handed]))
    }
}

/// Executes a program as a daemon, with variables of the environment.
fn execute(
    program: BorrowedFd<'_>,
    config: &Path,
    variables: impl IntoIterator<Item = (&'static str, String)>,
) -> io::Result<Infallible> {
    let words = [c"midhopd", c"run", c"--config"].map(CStr::to_owned);
    let config = CString::new(config.as_os_str().as_bytes())?;
    let words: Vec<_> = words.into_iter().chain([config]).collect();
    let own = [VARIABLE, BEFORE, REFUSED];
    let others = std::env::vars_os().filter(|(name, _)| own.iter().all(|own| name != own));
    let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
    let variables = others
        .chain(variables)
        .map(|(name, value)| CString::new([name.into_vec(), value.into_vec()].join(&b'=')));
    let variables = variables.collect::<Result<Vec<_>, _>>()?;
    Ok(fexecve(program, &words, &variables)?)
}

/// What a program has from the previous one in the same process.
#[derive(Debug)]
pub struct Taken {
    /// What was handed over.
    pub handed: Handed,
    /// The register in which flows are entered.
    pub register: Register,
    /// The descriptors of flows.
    pub flows: BTreeSet<RawFd>,
    /// None once the outcome is known.
    client: RefCell<Option<UpgradeClient>>,
    /// The previous program. None once this one serves.
    previous: RefCell<Option<OwnedFd>>,
    /// Has the flows, as long as they are still relayed.
    caretaker: RefCell<Option<Caretaker>>,
    /// What the data plane left beside flows, if a caretaker has sent them.
    left: RefCell<Option<LeftState>>,
}

impl Taken {
    /// What was handed over to this program; none if it is the first one. To be called before
    /// anything is opened. A program that cannot read it gives the process back to the previous
    /// program.
    ///
    /// # Errors
    /// When it cannot be read, and no previous program can be started again.
    pub fn received(config: &Path) -> Result<Option<Self>, Failure> {
        let Some(number) = number_in(VARIABLE) else { return Ok(None) };
        let error = match number.and_then(Self::read) {
            Ok(mut taken) => {
                if let Ok(why) = std::env::var(REFUSED) {
                    taken.handed.fail(why);
                    taken.previous.take();
                }
                if taken.handed.failure.is_some() {
                    // It follows the configuration that was followed, which comes with the flows.
                    if let Err(failure) = taken.take_over() {
                        // It begins without flows.
                        failure::report(&failure);
                    }
                    taken.flows = taken.register.descriptors();
                    if let Some(left) = taken.left.borrow().as_ref() {
                        taken.handed.text.clone_from(&left.text);
                        taken.handed.owes_reload |= left.owes_reload;
                    }
                }
                return Ok(Some(taken));
            }
            Err(error) => error,
        };
        let failure = Failure::usage(format!("{VARIABLE} is not readable by this program"))
            .because(error.to_string())
            .hint("`midhopd upgrade` sets it; unset it to start a daemon");
        let (Some(Ok(handed)), Some(Ok(before))) = (number_in(VARIABLE), number_in(BEFORE)) else {
            return Err(failure);
        };
        failure::report(&failure);
        match refuse(handed, before, config, &error.to_string()) {
            Ok(never) => match never {},
            Err(error) => {
                Err(Failure::run("the program before cannot be started again").because(error))
            }
        }
    }

    /// Takes what was handed over, if all of it can be read.
    fn read(number: RawFd) -> Result<Self, Unread> {
        let mut text = String::new();
        let mut file = File::from(duplicate(number)?);
        file.rewind()?;
        file.read_to_string(&mut text)?;
        let handed: Handed = serde_json::from_str(&text)?;
        let register = Register::open(duplicate(handed.register)?)?;
        // From here on these descriptors belong to this program. Nothing is closed before, because
        // the previous program may need it.
        let caretaker = handed.caretaker.map(|(channel, _)| channel);
        let own = [Some(number), Some(handed.register), handed.client, handed.previous, caretaker];
        let own: BTreeSet<_> = own.into_iter().flatten().collect();
        let inherited = Inherited::of(own.clone());
        let take = |number: RawFd| inherited.take(number, |_| true);
        let client = handed.client.and_then(take).map(UpgradeClient::from);
        let previous = handed.previous.and_then(take);
        let caretaker = handed
            .caretaker
            .and_then(|(channel, process)| Some((take(channel)?, Pid::from_raw(process))))
            .map(|(channel, process)| Caretaker::at(channel, process));
        let flows: BTreeSet<_> = match caretaker {
            // The numbers are those in another process.
            Some(_) => BTreeSet::new(),
            None => register.descriptors().difference(&own).copied().collect(),
        };
        keep_over_exec(&flows, false)?;
        keep_over_exec(&own, false)?;
        let _ = nix::sys::prctl::set_name(c"midhopd");
        Ok(Self {
            handed,
            register,
            flows,
            client: RefCell::new(client),
            previous: RefCell::new(previous),
            caretaker: RefCell::new(caretaker),
            left: RefCell::default(),
        })
    }

    /// Takes the flows over, if they are still relayed: from here on they wait. Returns the
    /// descriptor that is closed with that.
    ///
    /// # Errors
    /// When they cannot be continued. No process relays them any more.
    pub fn take_over(&self) -> Result<Option<RawFd>, Failure> {
        let Some(caretaker) = self.caretaker.take() else { return Ok(None) };
        let channel = caretaker.as_fd().as_raw_fd();
        let left = caretaker.take_over(&self.register, true).map_err(|error| {
            // Never do two data planes relay.
            self.handed.ending.iter().for_each(|process| end_by_force(Pid::from_raw(*process)));
            Failure::run("the flows could not be taken over").because(error)
        })?;
        self.left.replace(Some(left));
        Ok(Some(channel))
    }

    /// Waits for the ends of the caretaker, and of the data plane and the keeper before.
    pub fn wait_for_those_before(&self) {
        for process in &self.handed.ending {
            let _ = waitpid(Pid::from_raw(*process), None);
        }
    }

    /// The plan to follow, and its text. It is the file's, as far as a reload follows it. If this
    /// program is back because another one could not go on, it is what was followed before.
    ///
    /// # Errors
    /// When the file is wrong.
    pub fn plan(&self, config: &Path) -> Result<(Plan, String), Failure> {
        let name = config.display().to_string();
        let Handed { begun, text, failure, .. } = &self.handed;
        let (next, text) = match (failure, text) {
            (None, _) => configuration::read(config)?,
            (Some(_), text) => {
                let text = text.as_ref().unwrap_or(begun);
                (Plan::read(&name, text)?, text.clone())
            }
        };
        let mut plan = configuration::after(&name, begun, next);
        // A region for each worker.
        plan.daemon.workers = u16::try_from(self.register.regions()).unwrap_or(u16::MAX);
        Ok((plan, text))
    }

    /// Reports to the client that this program serves. Returns the descriptors that are closed with that.
    pub fn is_done(&self, version: &str) -> BTreeSet<RawFd> {
        let previous = self.previous.take();
        let client = self.client.take();
        let closed = previous.as_ref().map(AsRawFd::as_raw_fd);
        let closed = closed.into_iter().chain(client.as_ref().map(|it| it.as_fd().as_raw_fd()));
        let closed = closed.collect();
        if let Some(client) = client {
            let left = self.left.borrow();
            let stopped = left.as_ref().map_or(self.handed.stopped_ns, |left| left.stopped_ns);
            let stopped = Duration::from_nanos(stopped);
            let pause = monotonic().saturating_sub(stopped);
            let Handed { version: before, failure, .. } = &self.handed;
            client.answer(&UpgradeOutcome {
                version: version.to_owned(),
                before: before.clone(),
                flows: self.register.flows(),
                pause_s: pause.as_secs_f64(),
                error: failure.clone(),
            });
        }
        closed
    }

    /// Whether the process can still be given back to the previous program.
    pub fn may_go_back(&self) -> bool {
        self.previous.borrow().is_some()
    }

    /// Gives the process back to the previous program, since this one cannot go on.
    ///
    /// # Errors
    /// `failure`, if there is none or it cannot be started.
    pub fn give_back(&self, config: &Path, failure: Failure) -> Result<Infallible, Failure> {
        let Some(previous) = self.previous.take() else { return Err(failure) };
        if let Err(failure) = self.take_over() {
            // The previous program begins without flows.
            failure::report(&failure);
        }
        let mut text = failure.to_string();
        if let Some(cause) = failure.source() {
            text += &format!(": {cause}");
        }
        let client = self.client.take();
        let mut handed = Handed {
            client: client.as_ref().map(|it| it.as_fd().as_raw_fd()),
            register: self.register.file().as_raw_fd(),
            caretaker: None,
            ..self.handed.clone()
        };
        if let Some(left) = self.left.take() {
            handed.text = left.text;
            handed.stopped_ns = left.stopped_ns;
            handed.owes_reload |= left.owes_reload;
        }
        handed.fail(text);
        let again = keep_over_exec(&self.register.descriptors(), true);
        again.and_then(|()| handed.exec(previous.as_fd(), config)).map_err(|error| {
            Failure::run("the program before cannot be started again").because(error)
        })
    }
}

/// Why what was handed over cannot be read.
type Unread = Box<dyn Error + Send + Sync>;

/// The descriptor in a variable. None: it is not set.
fn number_in(variable: &str) -> Option<Result<RawFd, Unread>> {
    let number = std::env::var_os(variable)?;
    let number = number.to_str().and_then(|number| number.parse().ok());
    Some(number.ok_or_else(|| "it has no number of a descriptor".into()))
}

/// Gives the process back to the previous program as it was handed over: nothing of it has been
/// closed, and all of it outlives another `execve`.
fn refuse(handed: RawFd, before: RawFd, config: &Path, why: &str) -> io::Result<Infallible> {
    let before = duplicate(before)?;
    let why = why.replace('\0', " ");
    execute(before.as_fd(), config, [(VARIABLE, handed.to_string()), (REFUSED, why)])
}

/// The time of the monotonic clock, which all processes of a host share.
pub fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}
