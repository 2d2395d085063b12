//! The first process: it holds all descriptors, and starts the next data plane when one was killed.
//!
//! It has one thread, and reads only single bytes: those of the data plane, and those of users who
//! may choose its program. What ends the daemon in order ends it as well. So does a data plane that
//! fails by itself, or is killed too often.

use super::caretaker::{self, Caretaker, LeftState, end_by_force};
use super::door::{self, Door, UpgradeClient, UpgradeOutcome};
use super::handed::{Handed, Taken, monotonic};
use super::inherited::{Inherited, close_all_but, only_open, open_descriptors};
use super::left::LeftDoors;
use super::open_moves::OpenMoves;
use super::orders::{Notices, Orders};
use super::own::OwnDescriptors;
use super::register::Register;
use super::store::Store;
use crate::failure::Failure;
use crate::keeper::Keeper;
use midhop_linux::twin::{Twin, await_end, twin, watch_process};
use midhop_process::notify::{self, Notice};
use nix::fcntl::OFlag;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that the data plane reads its configuration again.
pub const RELOAD: Signal = Signal::SIGUSR1;
/// Requests that the data plane ends.
pub const END: Signal = Signal::SIGUSR2;
/// This many deaths within this time are not chance: the next data plane would be killed as well.
const DEATHS: (usize, Duration) = (5, Duration::from_secs(10));
/// This many faults within this time may be an attack. Each data plane has the same address layout
/// as the one before; a daemon that is started anew has another one.
const FAULTS: (usize, Duration) = (3, Duration::from_secs(3600));

/// What a data plane has from the previous one.
#[derive(Debug, Clone)]
pub struct Succession {
    /// The register in which flows are entered.
    pub register: Register,
    /// The bytes that tunnels had not confirmed.
    pub store: Arc<Store>,
    /// The descriptors that were left open.
    pub inherited: Arc<Inherited>,
    /// The listeners among them.
    pub left: Arc<LeftDoors>,
    /// How many data planes were killed before this one.
    pub deaths: u64,
    /// How many programs have replaced one before them.
    pub upgrades: u64,
    /// Whether it is the first one of this program.
    pub is_first: bool,
    /// Sends notices for the service manager.
    pub notices: Notices,
    /// Its moves that an upgrade waits for.
    pub moves: OpenMoves,
}

impl Succession {
    /// Whether there may be flows to continue, and interception is installed.
    pub fn takes_over(&self) -> bool {
        self.deaths + self.upgrades > 0
    }
}

/// The role in which a call of [`Holder::split`] has returned.
pub enum Role {
    /// A data plane. It ends its process by itself.
    DataPlane(Succession),
    /// The holder, with the exit code of the data plane that ended last.
    Holder(u8),
}

/// What the holder has to know of the daemon.
#[derive(Debug, Clone)]
pub struct Holding {
    /// The path of the configuration.
    pub config: PathBuf,
    /// The text of it with which the first program was started.
    pub begun: String,
    /// The version of this program.
    pub version: &'static str,
}

/// The holder before it has split.
pub struct Holder {
    holding: Holding,
    register: Register,
    signals: SignalFd,
    /// Orders to the data plane, and its notices.
    orders: Orders,
    /// Moves of flows that an upgrade waits for.
    moves: OpenMoves,
    /// Whether the service manager knows that the daemon serves.
    ready: Cell<bool>,
    /// Whether it was asked to end.
    ends: Cell<bool>,
    /// The signal mask of before.
    before: SigSet,
    keeper: Option<Arc<Keeper>>,
    /// The socket for upgrades.
    door: Option<Door>,
    /// What this program has from the one before it.
    taken: Option<Rc<Taken>>,
    /// The descriptors of the holder that belong to no data plane.
    own: RefCell<OwnDescriptors>,
}

impl Holder {
    /// Creates a holder of the flows of a register. Blocks signals for good.
    ///
    /// # Errors
    /// When the kernel has no signals that can be read.
    pub fn new(
        holding: Holding,
        register: Register,
        keeper: Option<Arc<Keeper>>,
        door: Option<Door>,
        taken: Option<Rc<Taken>>,
    ) -> io::Result<Self> {
        let read = [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD];
        let signals: SigSet = read.into_iter().collect();
        // The last two are the data plane's own: they wait until it can take them.
        let blocked = read.into_iter().chain([RELOAD, END]).collect::<SigSet>();
        let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        // The previous program has blocked these signals, and none of them is lost.
        let before = if taken.is_some() { SigSet::empty() } else { before };
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&signals, flags)?;
        let orders = Orders::new(pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?)?;
        let handed = taken.as_ref().map(|taken| &taken.handed);
        if handed.is_some_and(|handed| handed.owes_reload && handed.failure.is_some()) {
            // Another program would have read the file. This one has the configuration that was
            // followed.
            orders.ask_to_reload();
        }
        let moves = OpenMoves::new()?;
        let (ends, own) = Default::default();
        let ready = Cell::new(taken.is_some());
        Ok(Self {
            holding,
            register,
            signals,
            orders,
            moves,
            ready,
            ends,
            before,
            keeper,
            door,
            taken,
            own,
        })
    }

    /// Starts data planes, and waits for their ends. Returns in each of them, and in the holder after the last.
    ///
    /// # Errors
    /// When no data plane can be started, or the next one cannot go on.
    pub fn split(self) -> Result<Role, Failure> {
        let failure = |error| Failure::run("the data plane could not be started").because(error);
        let mut own = open_descriptors().map_err(failure)?;
        own.retain(|number| self.taken.as_ref().is_none_or(|taken| !taken.flows.contains(number)));
        self.own.replace(OwnDescriptors::of(own).map_err(failure)?);
        let handed = self.taken.as_ref().map(|taken| &taken.handed);
        let mut deaths = Deaths { total: handed.map_or(0, |it| it.deaths), ..Deaths::default() };
        let upgrades = handed.map_or(0, |it| it.upgrades);
        if let Some(taken) = &self.taken {
            // Everything that needs no flow is done.
            self.own.borrow_mut().remove(&taken.take_over()?.into_iter().collect());
        }
        let mut is_first = true;
        loop {
            self.moves.renew();
            match twin().map_err(failure)? {
                Twin::Child => {
                    let inherited = Inherited::of(self.flows());
                    self.begin_data_plane();
                    // A descriptor that is closed here is closed in the holder as well.
                    let this = ManuallyDrop::new(self);
                    let (register, notices) = (this.register.clone(), this.orders.notices());
                    let (inherited, deaths) = (Arc::new(inherited), deaths.total);
                    let store = Arc::new(Store::of(&register));
                    let moves = this.moves.clone();
                    return Ok(Role::DataPlane(Succession {
                        register,
                        store,
                        inherited,
                        left: Arc::default(),
                        deaths,
                        upgrades,
                        is_first,
                        notices,
                        moves,
                    }));
                }
                Twin::Parent(data_plane) => {
                    if let Some(keeper) = &self.keeper {
                        keeper.begins_elsewhere();
                    }
                    if let Some(taken) = self.taken.as_ref().filter(|_| is_first) {
                        taken.wait_for_those_before();
                    }
                    if self.ends.get() {
                        // The previous data plane was killed while its flows ended.
                        let _ = kill(data_plane, END);
                    } else if self.orders.owes_reload() {
                        // The previous data plane was killed before it had done a requested reload.
                        let _ = kill(data_plane, RELOAD);
                    }
                    is_first = false;
                    match self.wait(data_plane).map_err(failure)? {
                        End::Exit(0) => return Ok(Role::Holder(0)),
                        End::Exit(code) => {
                            if self.taken.as_ref().is_some_and(|taken| taken.may_go_back()) {
                                self.clear().map_err(failure)?;
                                return Err(Failure::run("its data plane did not start"));
                            }
                            return Ok(Role::Holder(code));
                        }
                        End::Killed(signal) => {
                            tracing::error!(%signal, "the data plane was killed");
                            if deaths.are_too_many(signal) {
                                return Err(Failure::run(format!(
                                    "the data plane was killed by {signal}"
                                ))
                                .hint("its flows were reset; new ones pass directly"));
                            }
                            self.clear().map_err(|error| {
                                Failure::run("the next data plane could not continue")
                                    .because(error)
                            })?;
                        }
                        End::Upgrade(client, stopped) => {
                            let counts = (deaths.total, upgrades + 1);
                            let refused = match client.is_ahead() {
                                true => self.upgrade_ahead(&client, data_plane, counts)?,
                                false => self.upgrade(&client, data_plane, stopped, counts)?,
                            };
                            tracing::warn!(
                                error = refused,
                                "the upgrade has failed: the previous program continues"
                            );
                            client.answer(&UpgradeOutcome {
                                version: self.holding.version.to_owned(),
                                before: self.holding.version.to_owned(),
                                flows: self.register.flows(),
                                pause_s: (monotonic() - stopped).as_secs_f64(),
                                error: Some(refused),
                            });
                        }
                    }
                }
            }
        }
    }

    /// The descriptors of flows.
    fn flows(&self) -> BTreeSet<RawFd> {
        self.register.descriptors().difference(&self.own.borrow().numbers()).copied().collect()
    }

    /// Gives this process to the program that a client sends, when the data plane has ended. If
    /// that fails and this program starts the next data plane, returns the reason.
    ///
    /// # Errors
    /// When this program cannot go on either.
    fn upgrade(
        &self,
        client: &UpgradeClient,
        data_plane: Pid,
        stopped: Duration,
        counts: (u64, u64),
    ) -> Result<String, Failure> {
        let failure =
            |error: io::Error| Failure::run("the daemon could not continue").because(error);
        // From now on no other process shares the descriptors.
        let program = client.program(data_plane);
        let both = [Some(client.as_fd()), program.as_ref().ok().map(AsFd::as_fd)];
        let both: BTreeSet<_> = both.into_iter().flatten().map(|it| it.as_raw_fd()).collect();
        let added = both.iter().try_for_each(|number| self.own.borrow_mut().add(*number));
        let cleared = added.and_then(|()| self.clear());
        self.own.borrow_mut().remove(&both);
        cleared.map_err(failure)?;
        let program = match program {
            Ok(program) => program,
            Err(error) => return Ok(error.to_string()),
        };
        let text = match &self.keeper {
            Some(keeper) => Some(keeper.text().map_err(|failed| Failure::run(failed.message))?),
            None => None,
        };
        let Holding { config, begun, version } = &self.holding;
        let mut handed = Handed::new(version, begun, text, counts, stopped);
        handed.owes_reload = self.orders.owes_reload();
        tracing::info!(flows = self.register.flows(), "another program takes over");
        if let Some(keeper) = &self.keeper {
            keeper.leave().map_err(failure)?;
        }
        let given = handed.pass_on(program.as_fd(), config, &self.register, &self.flows(), client);
        match given.map_err(failure)? {}
    }

    /// Gives this process to the program that a client sends, while the data plane goes on. The
    /// program takes the flows over when it is ready. If that fails and this program starts the
    /// next data plane, returns the reason.
    ///
    /// # Errors
    /// When this program cannot go on either.
    fn upgrade_ahead(
        &self,
        client: &UpgradeClient,
        data_plane: Pid,
        counts: (u64, u64),
    ) -> Result<String, Failure> {
        let failure =
            |error: io::Error| Failure::run("the daemon could not continue").because(error);
        let caretaker = match self.part_from(client, data_plane) {
            Ok(caretaker) => caretaker,
            Err(error) => {
                tracing::warn!(%error, "the next program cannot start ahead");
                let stopped = monotonic();
                end_by_force(data_plane);
                self.read_the_last();
                return self.upgrade(client, data_plane, stopped, counts);
            }
        };
        let process = caretaker.process();
        let cleared = self.own.borrow().check();
        let cleared = cleared.and_then(|()| {
            let own = self.own.borrow().numbers();
            let kept =
                own.into_iter().chain([client.as_fd(), caretaker.as_fd()].map(|it| it.as_raw_fd()));
            close_all_but(&kept.collect())
        });
        cleared.map_err(failure)?;
        let program = match client.program(data_plane) {
            Ok(program) => program,
            Err(error) => {
                let taken = caretaker.take_over(&self.register, false);
                [data_plane, process].into_iter().for_each(end_by_force);
                taken.map_err(failure)?;
                return Ok(error.to_string());
            }
        };
        let Holding { config, begun, version } = &self.holding;
        let keeper = self.keeper.as_ref().and_then(|keeper| keeper.process());
        let ending: Vec<_> = [process, data_plane].into_iter().chain(keeper).collect();
        let handed = Handed::new(version, begun, None, counts, monotonic());
        let handed = handed.kept_by(&caretaker, &ending);
        tracing::info!("another program starts, to take over");
        self.door.iter().for_each(Door::shut);
        let none = BTreeSet::new();
        let given = handed.pass_on(program.as_fd(), config, &self.register, &none, client);
        match given.map_err(failure)? {}
    }

    /// Starts a caretaker of the data plane's descriptors, and has a table of its own from then on.
    fn part_from(&self, client: &UpgradeClient, data_plane: Pid) -> io::Result<Caretaker> {
        let (its_channel, channel) = caretaker::channel()?;
        let added = [client.as_fd(), its_channel.as_fd(), channel.as_fd()];
        let added = BTreeSet::from(added.map(|it| it.as_raw_fd()));
        let adding = added.iter().try_for_each(|number| self.own.borrow_mut().add(*number));
        let process = match adding.and_then(|()| twin()) {
            Ok(Twin::Child) => self.take_care(&its_channel, data_plane),
            Ok(Twin::Parent(process)) => Ok(process),
            Err(error) => Err(error),
        };
        self.own.borrow_mut().remove(&added);
        let process = process?;
        // What the data plane opens from now on is its own and the caretaker's.
        if let Err(error) = unshare(CloneFlags::CLONE_FILES) {
            end_by_force(process);
            return Err(error.into());
        }
        Ok(Caretaker::at(channel, process))
    }

    /// Keeps the data plane's descriptors, as its caretaker, until the next program asks for them.
    fn take_care(&self, channel: &OwnedFd, data_plane: Pid) -> ! {
        let Some(keeper_leaves) = caretaker::wait_for_order(channel) else {
            std::process::exit(1);
        };
        self.await_moves(data_plane);
        let stopped_ns = u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX);
        let left = self.leave_flows(data_plane, keeper_leaves);
        let failed =
            |error: io::Error| LeftState { error: Some(error.to_string()), ..LeftState::default() };
        let left = LeftState { stopped_ns, ..left.unwrap_or_else(failed) };
        let flows = match &left.error {
            None => only_open(self.flows()),
            Some(_) => BTreeSet::new(),
        };
        if let Err(error) = caretaker::send(channel, &flows, &left) {
            tracing::error!(%error, "flows could not be sent to the next program");
        }
        std::process::exit(0)
    }

    /// Waits until no flow is between this machine and another one, where it would be reset.
    fn await_moves(&self, data_plane: Pid) {
        let open = self.moves.shut(data_plane);
        if open > 0 {
            tracing::warn!(
                open,
                "the upgrade does not wait longer for flows that move: they may be reset"
            );
        }
    }

    /// Ends the data plane, as its caretaker, and closes what it had open, except its flows.
    fn leave_flows(&self, data_plane: Pid, keeper_leaves: bool) -> io::Result<LeftState> {
        let _ = kill(data_plane, Signal::SIGKILL);
        // Another process is its parent, and does not wait for it before this is done. So the number
        // is still its own.
        await_end(watch_process(data_plane)?)?;
        self.read_the_last();
        self.clear()?;
        let mut left = LeftState { owes_reload: self.orders.owes_reload(), ..LeftState::default() };
        if let Some(keeper) = self.keeper.as_ref().filter(|_| keeper_leaves) {
            left.text = Some(keeper.text().map_err(|failed| io::Error::other(failed.message))?);
            keeper.leave()?;
        }
        Ok(left)
    }

    /// Changes, in the data plane, what is the holder's alone.
    fn begin_data_plane(&self) {
        let _ = nix::sys::prctl::set_name(c"midhopd-data");
        // Signals to the whole process group, as from a terminal, reach the holder as well, which
        // passes them on.
        let orders: SigSet =
            [Signal::SIGCHLD].into_iter().filter(|it| !self.before.contains(*it)).collect();
        let _ = orders.thread_unblock();
    }

    /// Passes signals on until the data plane ends.
    fn wait(&self, data_plane: Pid) -> io::Result<End> {
        loop {
            if let Some(client) = self.door.as_ref().and_then(|door| door.next(data_plane))
                && !self.ends.get()
            {
                if client.is_ahead() {
                    return Ok(End::Upgrade(client, monotonic()));
                }
                self.await_moves(data_plane);
                let stopped = monotonic();
                let _ = kill(data_plane, Signal::SIGKILL);
                waitpid(data_plane, None)?;
                self.read_the_last();
                return Ok(End::Upgrade(client, stopped));
            }
            let Some(signal) = self.next_signal()? else { continue };
            let order = match i32::try_from(signal.ssi_signo) {
                Ok(libc::SIGCHLD) => match waitpid(data_plane, Some(WaitPidFlag::WNOHANG))? {
                    WaitStatus::Exited(_, code) => {
                        return Ok(End::Exit(u8::try_from(code).unwrap_or(1)));
                    }
                    WaitStatus::Signaled(_, signal, _) => {
                        self.read_the_last();
                        return Ok(End::Killed(signal));
                    }
                    _ => continue,
                },
                Ok(libc::SIGHUP) => {
                    self.orders.ask_to_reload();
                    RELOAD
                }
                _ => {
                    self.ends.set(true);
                    END
                }
            };
            // If it has ended meanwhile, that is the next signal.
            let _ = kill(data_plane, order);
        }
    }

    /// Reads what a data plane has sent before its end, and refuses all clients at the door: the
    /// next data plane has another process number.
    fn read_the_last(&self) {
        self.pass_notices_on();
        if let Some(door) = &self.door {
            door.turn_all_away();
        }
    }

    /// Passes notices to the service manager on.
    fn pass_notices_on(&self) {
        while let Some(notice) = self.orders.next() {
            if let (Notice::Ready, Some(taken)) = (notice, &self.taken) {
                self.own.borrow_mut().remove(&taken.is_done(self.holding.version));
            }
            // A daemon that serves goes on serving, whatever the number of its data plane.
            if notice != Notice::Ready || !self.ready.replace(true) {
                notify::send(notice);
            }
        }
    }

    /// Waits for a signal, a notice, or a client at the door. Passes notices on.
    fn next_signal(&self) -> io::Result<Option<siginfo>> {
        door::wait(self.door.as_ref(), [self.signals.as_fd(), self.orders.as_fd()])?;
        self.pass_notices_on();
        Ok(self.signals.read_signal()?)
    }

    /// Closes what a killed data plane had open, except its flows.
    fn clear(&self) -> io::Result<()> {
        let own = self.own.borrow();
        own.check()?;
        let kept = own.numbers().union(&self.register.descriptors()).copied().collect();
        close_all_but(&kept)?;
        match &self.keeper {
            Some(keeper) => keeper.succeed(),
            None => Ok(()),
        }
    }
}

/// How a data plane ended.
enum End {
    Exit(u8),
    Killed(Signal),
    /// By the holder, at this time, for a client that has another program; or not yet, if that
    /// program starts ahead.
    Upgrade(UpgradeClient, Duration),
}

/// When data planes were killed.
#[derive(Debug, Default)]
struct Deaths {
    total: u64,
    recent: VecDeque<Instant>,
    faults: VecDeque<Instant>,
}

impl Deaths {
    /// Counts a death. Returns whether there were so many that the daemon should end.
    fn are_too_many(&mut self, by: Signal) -> bool {
        self.total += 1;
        let now = Instant::now();
        let is_fault = !matches!(by, Signal::SIGKILL | Signal::SIGTERM | Signal::SIGINT);
        let faults = is_fault && are_too_many(&mut self.faults, now, FAULTS);
        are_too_many(&mut self.recent, now, DEATHS) || faults
    }
}

/// Records one more, and returns whether the last `most` of them were within `time`.
fn are_too_many(
    seen: &mut VecDeque<Instant>,
    now: Instant,
    (most, time): (usize, Duration),
) -> bool {
    seen.push_back(now);
    if seen.len() > most {
        seen.pop_front();
    }
    seen.len() == most && seen.front().is_some_and(|first| now - *first < time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kills_each_data_plane_is_given_up() {
        let mut deaths = Deaths::default();
        let counted = [(); 5].map(|()| deaths.are_too_many(Signal::SIGKILL));
        assert_eq!(counted, [false, false, false, false, true]);
        let mut deaths = Deaths::default();
        let counted = [(); 3].map(|()| deaths.are_too_many(Signal::SIGSEGV));
        assert_eq!(counted, [false, false, true]);
    }

    #[test]
    fn what_happens_seldom_is_no_reason_to_end() {
        let (mut seen, begun) = (VecDeque::new(), Instant::now());
        let within = (3, Duration::from_secs(10));
        let counted = [0, 6, 12, 15, 21]
            .map(|second| are_too_many(&mut seen, begun + Duration::from_secs(second), within));
        assert_eq!(counted, [false, false, false, true, true]);
    }
}
