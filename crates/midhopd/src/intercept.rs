//! Takes flows from the wire. It uses an nftables table of its own, routing rules that lead packets to the daemon's
//! sockets, raw sockets that inject held SYNs again, and entries in connection tracking.
//!
//! Invariants: tables, rules and routes of others are not touched. What is installed is removed
//! when the value is dropped. Only leftovers of a dead predecessor with the same name are replaced.

pub mod conntrack;
mod detect;
mod follow;
pub mod forward;
pub mod gate;
pub mod inject;
pub mod marks;
mod mirror;
pub mod origin;
pub mod passed;
pub mod queue;
mod route;
mod ruleset;
mod segment;
mod still;
pub mod syn;
mod table;

use crate::keeper::line::line;
use crate::keeper::order::{Done, Order};
use crate::watchdog::{Handshakes, Passage};
pub use follow::Follower;
pub use inject::Injector;
pub use marks::Marks;
use midhop_linux::nft::{self, NftError, Table};
use midhop_pep::config::{Conntrack, Intercept, Plan};
use mirror::Mirror;
pub use origin::Origins;
use passed::PassedCounters;
pub use queue::Queue;
use route::Delivery;
pub use ruleset::{NetlinkRule, Ruleset};
pub use segment::Segment;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub use still::StillTables;
pub use table::{Entrance, REFUSED, TableSetting, open_table};

/// Why flows cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterceptError {
    /// There is no `nft`.
    #[error("cannot start nft: {0}; install nftables")]
    NoNft(#[source] io::Error),
    /// The kernel or `nft` refused the table.
    #[error(
        "the table {table} was refused: {reason}; \
         this takes CAP_NET_ADMIN and a kernel with NFT_TPROXY, NFT_SOCKET and NFT_FIB"
    )]
    Table {
        /// Its name.
        table: String,
        /// The message of nft.
        reason: String,
    },
    /// The kernel does not hand over SYNs.
    #[error(
        "SYNs cannot be held: {source}; this takes CAP_NET_ADMIN, queue numbers that no other program has, and a kernel \
         with NETFILTER_NETLINK_QUEUE and NFT_QUEUE, or NFT_COMPAT and NETFILTER_XT_TARGET_NFQUEUE"
    )]
    Queue {
        /// The kernel's error. EPERM also if another socket has the queue (`nfqnl_recv_config`).
        source: io::Error,
    },
    /// Held SYNs cannot be injected.
    #[error("no raw sockets: {source}; this takes CAP_NET_RAW at the start")]
    Raw {
        /// The kernel's error.
        source: io::Error,
    },
    /// The routing rule or table was refused.
    #[error("cannot route marked packets to this host over table {table}: {source}")]
    Route {
        /// The table's number.
        table: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The keeper refuses.
    #[error("{0}")]
    Keeper(String),
}

/// Receives whether connections are entered into connection tracking.
pub struct OnTracked(Box<dyn Fn(bool) + Send + Sync>);

impl OnTracked {
    /// Calls a function with it.
    pub fn by(callback: impl Fn(bool) + Send + Sync + 'static) -> Self {
        Self(Box::new(callback))
    }

    /// Stores it in a flag.
    pub fn in_flag(flag: Arc<AtomicBool>) -> Self {
        Self::by(move |tracked| flag.store(tracked, Relaxed))
    }
}

impl fmt::Debug for OnTracked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnTracked")
    }
}

/// An installed interception.
#[derive(Debug)]
pub struct Interception {
    instance: String,
    delivery: Delivery,
    passed: Arc<PassedCounters>,
    tracked: OnTracked,
    installed: Mutex<Installed>,
    /// Whether the table outlives this.
    leaves_table: AtomicBool,
    /// Whether the table is the one that a program before this one has left.
    has_left_table: bool,
}

/// What is installed in the system.
#[derive(Debug)]
struct Installed {
    plan: Arc<Plan>,
    entrances: Vec<Entrance>,
    queues: u16,
    setting: TableSetting,
    mirror: Mirror,
    /// Warnings that were already logged about the routing rules of others.
    warnings: Vec<String>,
    /// Whether new flows are taken.
    open: bool,
}

impl Interception {
    /// Installs the routes first and the table last, so that nothing is taken before it can be delivered. `tracked`
    /// receives whether connections are entered into connection tracking.
    ///
    /// If a program before this one has `left` its table, and the table is as this one would make it, it stays: to
    /// replace it takes tens of milliseconds, in which no new flow is taken.
    ///
    /// # Errors
    /// When the kernel or `nft` refuses; nothing is left behind then.
    pub fn install(
        plan: &Arc<Plan>,
        entrances: Vec<Entrance>,
        queues: u16,
        tracked: OnTracked,
        left: bool,
    ) -> Result<Self, InterceptError> {
        let delivery = Delivery::of(&plan.intercept);
        let refused = |source| InterceptError::Route { table: delivery.table(), source };
        delivery.install().map_err(refused)?;
        let instance = plan.intercept.instance.clone();
        let passed = PassedCounters::open(&instance).map(Arc::new).map_err(|error| {
            let _ = delivery.remove();
            InterceptError::Table { table: table::name(&instance), reason: error.to_string() }
        })?;
        let mut installed = Installed {
            setting: TableSetting { conntrack: false },
            mirror: mirror(plan, delivery),
            plan: plan.clone(),
            entrances,
            queues,
            warnings: Vec::new(),
            open: true,
        };
        let setting_left = if left { installed.setting_left() } else { None };
        installed.setting = setting_left.unwrap_or_else(|| setting(plan));
        // From here on dropping `this` cleans up.
        let installed = Mutex::new(installed);
        let leaves_table = AtomicBool::new(false);
        let has_left_table = setting_left.is_some();
        let this =
            Self { instance, delivery, passed, tracked, installed, leaves_table, has_left_table };
        let mut installed = this.installed();
        installed.follow_rules().map_err(refused)?;
        if has_left_table {
            (this.tracked.0)(installed.setting.conntrack);
            this.passed.begin_anew();
        } else {
            // Not through `across`: the counts of a dead predecessor's table are not ours.
            this.put(&installed, |text| transact(&this.instance, text))?;
        }
        drop(installed);
        Ok(this)
    }

    /// Whether the table is the one that a program before this one has left. What others have changed since the end of
    /// that program is not known then.
    pub fn has_left_table(&self) -> bool {
        self.has_left_table
    }

    /// The counters of SYNs that the firewall lets pass without the daemon.
    pub fn passed(&self) -> &Arc<PassedCounters> {
        &self.passed
    }

    /// Applies another plan, or goes back to the previous one.
    ///
    /// # Errors
    /// When the kernel or `nft` refuses.
    pub fn follow(&self, plan: &Arc<Plan>) -> Result<(), InterceptError> {
        let before = self.installed().plan.clone();
        self.replace(plan).inspect_err(|refused| {
            // If `nft` refuses a table, nothing has changed. If the queue is refused, the new table is already in
            // place.
            if matches!(refused, InterceptError::Queue { .. })
                && let Err(error) = self.replace(&before)
            {
                tracing::error!(%error, "the previous firewall rules could not be restored");
            }
        })
    }

    /// Keeps the table when this is dropped: if it has a rule that rejects, it must go on stopping flows though no
    /// process holds them.
    pub fn leave_table(&self) {
        self.leaves_table.store(true, Relaxed);
    }

    /// Applies another plan, in one step as far as flows can observe: between the table and its rule for the queues,
    /// SYNs pass by.
    fn replace(&self, plan: &Arc<Plan>) -> Result<(), InterceptError> {
        let mut installed = self.installed();
        installed.plan = plan.clone();
        installed.setting = setting(plan);
        installed.mirror = mirror(plan, self.delivery);
        let refused = |source| InterceptError::Route { table: self.delivery.table(), source };
        installed.follow_rules().map_err(refused)?;
        self.put(&installed, |text| self.passed.across(|| transact(&self.instance, text)))
    }

    /// Checks what others have changed in the firewall and in the routing rules, and adapts to it.
    pub fn refresh(&self) {
        let mut installed = self.installed();
        if let Err(error) = installed.follow_rules() {
            tracing::warn!(%error, "other programs' routing rules could not be followed");
        }
        let setting = setting(&installed.plan);
        let gone = !table::exists(&self.instance);
        if !gone && setting == installed.setting {
            return;
        }
        if gone {
            tracing::warn!(
                "another program removed midhopd's nftables table: it is installed again"
            );
        } else {
            tracing::info!(conntrack = setting.conntrack, "the host's firewall rules have changed");
        }
        installed.setting = setting;
        let replaced =
            self.put(&installed, |text| self.passed.across(|| transact(&self.instance, text)));
        if let Err(error) = replaced {
            tracing::error!(%error, "the nftables table could not be installed: new flows pass by");
        }
    }

    /// Installs the table, by `run`, and adds what `nft` cannot write.
    fn put(
        &self,
        installed: &Installed,
        run: impl FnOnce(&str) -> Result<(), InterceptError>,
    ) -> Result<(), InterceptError> {
        let Installed { entrances, setting, open, .. } = installed;
        (self.tracked.0)(setting.conntrack);
        let mut text = installed.transaction(*setting);
        if !open {
            text.push_str(&table::closing(&self.instance));
        }
        if entrances.is_empty() {
            return run(&text);
        }
        let rules = installed.netlink_rules(*setting)?;
        let mark = installed.mark(&text, &rules);
        still::across(&self.instance, &mut text, run)?;
        forward::install(&installed.plan);
        let refused = |source| InterceptError::Queue { source };
        let ruleset = Ruleset::open(&self.instance).map_err(refused)?;
        for rule in &rules {
            ruleset.add(rule).map_err(|source| match rule {
                NetlinkRule::Queue { .. } => refused(source),
                NetlinkRule::Update { .. } => InterceptError::Table {
                    table: table::name(&self.instance),
                    reason: format!("its notes of flows: {source}"),
                },
            })?;
        }
        ruleset.mark(&mark).map_err(refused)
    }

    /// Takes no new flows from now on. Live flows still need the table: their packets carry addresses that are not
    /// this host's.
    ///
    /// # Errors
    /// When `nft` refuses; then new flows are still taken.
    pub fn close(&self) -> Result<(), InterceptError> {
        let mut installed = self.installed();
        if !installed.entrances.is_empty() {
            transact(&self.instance, &table::closing(&self.instance))?;
        }
        installed.open = false;
        Ok(())
    }

    fn installed(&self) -> MutexGuard<'_, Installed> {
        self.installed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Installed {
    /// The setting for which a program before this one has made the table, if that is the table that this one would make
    /// for it.
    fn setting_left(&self) -> Option<TableSetting> {
        let settings = match self.plan.intercept.conntrack {
            Conntrack::On => &[true][..],
            Conntrack::Off => &[false],
            Conntrack::Auto => &[false, true],
        };
        let ruleset = Ruleset::open(&self.plan.intercept.instance).ok()?;
        let is_left = |setting: &TableSetting| {
            let mark = self.netlink_rules(*setting).ok();
            let mark = mark.map(|rules| self.mark(&self.transaction(*setting), &rules));
            mark.is_some_and(|mark| ruleset.has_mark(&mark).unwrap_or(false))
        };
        settings.iter().map(|conntrack| TableSetting { conntrack: *conntrack }).find(is_left)
    }

    /// The mark of the table, and of whether there are tables that forward.
    fn mark(&self, text: &str, rules: &[NetlinkRule]) -> String {
        let forwards = !forward::neighbours(&self.plan).is_empty();
        table::mark(&format!("{text}{forwards}"), rules)
    }

    /// The part of the table that `nft` writes.
    fn transaction(&self, setting: TableSetting) -> String {
        table::transaction(&self.plan, &self.entrances, self.queues, setting)
    }

    fn netlink_rules(&self, setting: TableSetting) -> Result<Vec<NetlinkRule>, InterceptError> {
        ruleset::netlink_rules(&self.plan, self.queues, setting)
            .map_err(|source| InterceptError::Queue { source })
    }

    /// Copies the administrator's routing rules as far as they matter. Warns of rules that take
    /// packets before ours.
    fn follow_rules(&mut self) -> io::Result<()> {
        if self.entrances.is_empty() {
            return Ok(());
        }
        let warnings = self.mirror.follow()?;
        for warning in warnings.iter().filter(|warning| !self.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        self.warnings = warnings;
        Ok(())
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        if !self.leaves_table.load(Relaxed)
            && let Err(error) = transact(&self.instance, &table::removal(&self.instance))
        {
            tracing::warn!(%error, "the nftables table could not be removed; the next start replaces it");
        }
        if let Err(error) = transact(&self.instance, &forward::removal(&self.instance)) {
            tracing::warn!(%error, "the nftables tables that forward packets could not be removed");
        }
        let removed = self.installed().mirror.remove().and_then(|()| self.delivery.remove());
        if let Err(error) = removed {
            tracing::warn!(%error, table = self.delivery.table(), "routing rules could not be removed");
        }
    }
}

/// Removes what another process has installed by this plan and has left.
pub fn remove(plan: &Plan) {
    let instance = &plan.intercept.instance;
    let removal = table::removal(instance) + &forward::removal(instance);
    if let Err(error) = transact(instance, &removal) {
        tracing::warn!(%error, "the nftables tables could not be removed; the next start replaces them");
    }
    let delivery = Delivery::of(&plan.intercept);
    if let Err(error) = mirror(plan, delivery).remove().and_then(|()| delivery.remove()) {
        tracing::warn!(%error, table = delivery.table(), "routing rules could not be removed");
    }
}

/// The number of the queue for packets of assisted flows. It follows the queues of the workers, of
/// which there are `queues`.
pub fn assist_queue(plan: &Plan, queues: u16) -> u16 {
    plan.intercept.queue.saturating_add(queues)
}

/// The number of the queue for packets of flows that move here. It follows that one.
pub fn still_queue(plan: &Plan, queues: u16) -> u16 {
    assist_queue(plan, queues).saturating_add(1)
}

fn setting(plan: &Plan) -> TableSetting {
    let Intercept { conntrack, instance, .. } = &plan.intercept;
    TableSetting { conntrack: detect::wants_conntrack(*conntrack, instance) }
}

fn mirror(plan: &Plan, delivery: Delivery) -> Mirror {
    let Intercept { mark, interfaces, .. } = &plan.intercept;
    Mirror::new(Marks::new(*mark), interfaces, delivery.preferences())
}

/// The handshakes that an instance's table has counted.
///
/// # Errors
/// When the kernel does not answer.
pub fn handshakes(table: &Table) -> io::Result<Handshakes> {
    if let Some(line) = line() {
        return match line.order(&Order::Handshakes, None)? {
            Done::Handshakes(numbers) => Ok(Handshakes::of(numbers)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
    }
    let counters = table.counters()?;
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    let passage = |before, behind| Passage { entered: of(before), left: of(behind) };
    Ok(Handshakes {
        inward: passage(table::ARRIVED, table::DELIVERED),
        outward: passage(table::SENT, table::DEPARTED),
        mended: of(table::MENDED),
    })
}

/// Runs one transaction.
fn transact(instance: &str, text: &str) -> Result<(), InterceptError> {
    nft::run(text).map_err(|error| match error {
        NftError::Start(error) => InterceptError::NoNft(error),
        refused => {
            InterceptError::Table { table: table::name(instance), reason: refused.first_line() }
        }
    })
}
