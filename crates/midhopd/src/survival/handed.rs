//! What a program hands to the one that takes its place in the same process (`execve(2)`), and the other end of that.
//!
//! The next program gets the configuration that was followed, the register of flows, their descriptors, the client that
//! waits for the outcome, and the program before it, which it gives the process back to if it cannot go on.
//!
//! Keys of [`Handed`] may be added; one that is there keeps its meaning: either program may be the older one.

use super::door::{UpgradeClient, UpgradeOutcome};
use super::inherited::{Inherited, keep_over_exec};
use super::register::Register;
use crate::failure::Failure;
use midhop_pep::config::Plan;
use midhop_process::configuration;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::fexecve;
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

/// Has the descriptor of what is handed over.
pub const VARIABLE: &str = "MIDHOPD_TAKEOVER";
/// This program, even if its file has been renamed.
const PROGRAM: &str = "/proc/self/exe";

/// What is handed over, beside descriptors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Handed {
    /// The version of the program before.
    pub version: String,
    /// The text of the configuration that the first program was started with. Some of its keys stay until a restart.
    pub begun: String,
    /// The text of the configuration that was followed. None: nobody has kept it.
    pub text: Option<String>,
    /// How many data planes were killed.
    pub deaths: u64,
    /// How many programs have taken the place of one before them.
    pub upgrades: u64,
    /// Unit: nanoseconds of the monotonic clock. When the last data plane was ended.
    pub stopped_ns: u64,
    /// Why another program could not go on, after which this one is back.
    pub failure: Option<String>,
    register: RawFd,
    client: Option<RawFd>,
    previous: Option<RawFd>,
}

impl Handed {
    /// What is to be handed over now.
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
            register: -1,
            client: None,
            previous: None,
        }
    }

    /// Gives this process to another program; to this one again if that cannot be started.
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

    /// Notes that the next program is the one before.
    fn fail(&mut self, why: String) {
        self.failure = Some(why);
        self.previous = None;
        self.upgrades = self.upgrades.saturating_sub(1);
    }

    fn exec(&self, program: BorrowedFd<'_>, config: &Path) -> io::Result<Infallible> {
        let mut file = File::from(memfd_create(c"midhopd-takeover", MFdFlags::empty())?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        let own = [Some(self.register), self.client, self.previous].into_iter().flatten().collect();
        keep_over_exec(&own, true)?;
        let words = [c"midhopd", c"run", c"--config"].map(CStr::to_owned);
        let config = CString::new(config.as_os_str().as_bytes())?;
        let words: Vec<_> = words.into_iter().chain([config]).collect();
        let variables = std::env::vars_os().filter(|(name, _)| name != VARIABLE);
        let handed = (VARIABLE.into(), file.as_raw_fd().to_string().into());
        let variables = variables
            .chain([handed])
            .map(|(name, value)| CString::new([name.into_vec(), value.into_vec()].join(&b'=')));
        let variables = variables.collect::<Result<Vec<_>, _>>()?;
        Ok(fexecve(program, &words, &variables)?)
    }
}

/// What a program has from the one before it in the same process.
#[derive(Debug)]
pub struct Taken {
    /// What was handed over.
    pub handed: Handed,
    /// Where flows are entered.
    pub register: Register,
    /// The descriptors of flows.
    pub flows: BTreeSet<RawFd>,
    /// None once the outcome is known.
    client: RefCell<Option<UpgradeClient>>,
    /// The program before. None once this one serves.
    previous: RefCell<Option<OwnedFd>>,
}

impl Taken {
    /// What was handed over to this program; none if it is the first one. To be called before anything is opened.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn received() -> Result<Option<Self>, Failure> {
        let Some(number) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let failure = |error: Box<dyn Error + Send + Sync>| {
            Failure::usage(format!("{VARIABLE} has nothing that a daemon has handed over"))
                .because(error)
                .hint("`midhopd upgrade` sets it; unset it to start a daemon")
        };
        let number = number.to_str().and_then(|number| number.parse::<RawFd>().ok());
        let number = number.ok_or_else(|| failure("it is no descriptor".into()))?;
        Self::read(number).map(Some).map_err(failure)
    }

    fn read(number: RawFd) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let take = |number: RawFd| {
            Inherited::of(BTreeSet::from([number])).take(number, |_| true).ok_or("it is not open")
        };
        let mut text = String::new();
        File::from(take(number)?).read_to_string(&mut text)?;
        let handed: Handed = serde_json::from_str(&text)?;
        let own: BTreeSet<_> =
            [Some(handed.register), handed.client, handed.previous].into_iter().flatten().collect();
        let register = take(handed.register)?;
        let client = handed.client.map(take).transpose()?.map(UpgradeClient::from);
        let previous = handed.previous.map(take).transpose()?;
        let register = Register::open(register)?;
        let flows: BTreeSet<_> = register.descriptors().difference(&own).copied().collect();
        keep_over_exec(&flows, false)?;
        keep_over_exec(&own, false)?;
        let _ = nix::sys::prctl::set_name(c"midhopd");
        Ok(Self {
            handed,
            register,
            flows,
            client: RefCell::new(client),
            previous: RefCell::new(previous),
        })
    }

    /// The plan to follow, and its text: the file's as far as a reload follows it. What was followed before, if this
    /// program is back after another one that could not go on.
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
            let stopped = Duration::from_nanos(self.handed.stopped_ns);
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

    /// Whether the program before could have the process back.
    pub fn may_go_back(&self) -> bool {
        self.previous.borrow().is_some()
    }

    /// Gives the process back to the program before, since this one cannot go on.
    ///
    /// # Errors
    /// `failure`, if there is none or it cannot be started.
    pub fn give_back(&self, config: &Path, failure: Failure) -> Result<Infallible, Failure> {
        let Some(previous) = self.previous.take() else { return Err(failure) };
        let mut text = failure.to_string();
        if let Some(cause) = failure.source() {
            text += &format!(": {cause}");
        }
        let client = self.client.take();
        let mut handed = Handed {
            client: client.as_ref().map(|it| it.as_fd().as_raw_fd()),
            register: self.register.file().as_raw_fd(),
            ..self.handed.clone()
        };
        handed.fail(text);
        let again = keep_over_exec(&self.register.descriptors(), true);
        again.and_then(|()| handed.exec(previous.as_fd(), config)).map_err(|error| {
            Failure::run("the program before cannot be started again").because(error)
        })
    }
}

/// The time of the monotonic clock, which all processes of a host share.
pub fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}
