//! Takes flows from the wire: an nftables table of our own, and a route that leads marked packets
//! to the daemon's sockets.
//!
//! Invariants: nobody else's table, rule or route is touched; what is installed is removed when the
//! value is dropped; what a dead predecessor of the same name left is replaced, and only that.

pub mod gate;
pub mod passed;
mod queue;
mod route;
mod ruleset;
mod segment;
mod table;

use midhop_pep::config::Plan;
use passed::Passed;
pub use queue::{Packet, Queue};
use route::Delivery;
pub use ruleset::Ruleset;
pub use segment::Segment;
use std::io::{self, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
pub use table::{Entrance, Sight};

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
        /// What nft said.
        reason: String,
    },
    /// The kernel hands no SYNs over.
    #[error(
        "SYNs cannot wait for the far side: {source}; this takes CAP_NET_ADMIN and a kernel with \
         NETFILTER_NETLINK_QUEUE and NFT_QUEUE, or NFT_COMPAT and NETFILTER_XT_TARGET_NFQUEUE; \
         accept = \"early\" without rules does without"
    )]
    Queue {
        /// What the kernel said.
        source: io::Error,
    },
    /// The routing rule or table was refused.
    #[error("cannot route marked packets to this host over table {table}: {source}")]
    Route {
        /// The table's number.
        table: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The firewall marks that say what becomes of a SYN. They live inside `prerouting` only: no packet
/// leaves this host with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Deliver to a socket of this host.
    pub here: u32,
    /// The far side accepted: let the client in.
    pub approved: u32,
    /// The far side refused: reset.
    pub reset: u32,
    /// The far side cannot be reached; the ICMP code is added.
    pub unreachable: u32,
}

impl Marks {
    /// ICMP codes of "destination unreachable" that can be told on, with nft's names for them.
    pub const ICMP: [(&str, u8); 7] = [
        ("net-unreachable", 0),
        ("host-unreachable", 1),
        ("prot-unreachable", 2),
        ("port-unreachable", 3),
        ("net-prohibited", 9),
        ("host-prohibited", 10),
        ("admin-prohibited", 13),
    ];
    /// The same for ICMPv6.
    pub const ICMPV6: [(&str, u8); 6] = [
        ("no-route", 0),
        ("admin-prohibited", 1),
        ("addr-unreachable", 3),
        ("port-unreachable", 4),
        ("policy-fail", 5),
        ("reject-route", 6),
    ];

    /// The marks that follow from the configured one: it and the next few numbers.
    pub const fn new(mark: u32) -> Self {
        Self { here: mark, approved: mark + 1, reset: mark + 2, unreachable: mark + 3 }
    }
}

/// An installed interception.
#[derive(Debug)]
pub struct Interception {
    instance: String,
    delivery: Delivery,
    passed: Arc<Passed>,
}

impl Interception {
    /// Installs the route first and the table last, so that nothing is taken before it can be
    /// delivered.
    ///
    /// # Errors
    /// When the kernel or `nft` refuses; nothing is left behind then.
    pub fn install(
        plan: &Plan,
        entrances: &[Entrance<'_>],
        sight: Sight,
        queues: u16,
    ) -> Result<Self, InterceptError> {
        let marks = Marks::new(plan.intercept.mark);
        let delivery = Delivery { mark: marks.here, table: plan.intercept.table };
        delivery
            .install()
            .map_err(|source| InterceptError::Route { table: delivery.table, source })?;
        let instance = plan.intercept.instance.clone();
        let passed = Passed::open(&instance).map(Arc::new).map_err(|error| {
            let _ = delivery.remove();
            InterceptError::Table { table: table::name(&instance), reason: error.to_string() }
        })?;
        // From here on dropping `this` cleans up.
        let this = Self { instance, delivery, passed };
        // Not through `across`: what a dead predecessor's table counted is not ours.
        nft(&this.instance, &table::transaction(plan, marks, entrances, sight))?;
        this.queue(plan, sight, queues)?;
        Ok(this)
    }

    /// What the firewall lets pass on its own.
    pub fn passed(&self) -> &Arc<Passed> {
        &self.passed
    }

    /// Puts another table in the place of this one, in one step as far as flows can tell: between
    /// the table and its rule for the queues, SYNs pass by.
    ///
    /// # Errors
    /// When the kernel or `nft` refuses.
    pub fn replace(
        &self,
        plan: &Plan,
        entrances: &[Entrance<'_>],
        sight: Sight,
        queues: u16,
    ) -> Result<(), InterceptError> {
        let marks = Marks::new(plan.intercept.mark);
        let text = table::transaction(plan, marks, entrances, sight);
        self.passed.across(|| nft(&self.instance, &text))?;
        self.queue(plan, sight, queues)
    }

    fn queue(&self, plan: &Plan, sight: Sight, queues: u16) -> Result<(), InterceptError> {
        if sight == Sight::Nothing {
            return Ok(());
        }
        let queued = Ruleset::open(&self.instance)
            .and_then(|ruleset| ruleset.queue(plan.intercept.queue, queues));
        match queued {
            Err(source) if sight == Sight::Openings => Err(InterceptError::Queue { source }),
            Err(error) => {
                tracing::info!(%error, "the class in which servers answer is not passed on");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

impl Interception {
    /// Takes no new flows from now on. Live ones need the table still: their packets carry addresses
    /// that are not this host's.
    ///
    /// # Errors
    /// When `nft` refuses; then new flows are still taken.
    pub fn close(&self) -> Result<(), InterceptError> {
        nft(&self.instance, &table::closing(&self.instance))
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        if let Err(error) = nft(&self.instance, &table::removal(&self.instance)) {
            tracing::warn!(%error, "the table stays behind; the next start replaces it");
        }
        if let Err(error) = self.delivery.remove() {
            tracing::warn!(%error, table = self.delivery.table, "the routing rule stays behind");
        }
    }
}

/// Runs one transaction.
fn nft(instance: &str, text: &str) -> Result<(), InterceptError> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A terminal's ^C is for the daemon, which then has something to clean up.
        .process_group(0)
        .spawn()
        .map_err(InterceptError::NoNft)?;
    if let Some(mut input) = child.stdin.take() {
        // A child that fails early closes its input; its exit status says so below.
        let _ = input.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(InterceptError::NoNft)?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    // What a signal ended has said nothing.
    let said = errors.lines().next().map(|line| line.trim().to_owned());
    let reason = said.unwrap_or_else(|| format!("nft ended with {}", output.status));
    Err(InterceptError::Table { table: table::name(instance), reason })
}
