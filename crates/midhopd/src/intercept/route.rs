//! The routing rules and the table that deliver packets to this host's own sockets.
//!
//! | preference | rule | why |
//! |---|---|---|
//! | first | `iif lo fwmark INJECTED lookup TABLE` | a held SYN comes again over the loopback |
//! | + 1 | `iif lo goto` + 3 | nothing else that this host sends or checks in reverse sees the next one |
//! | + 2 | `fwmark HERE lookup TABLE` | packets of own sockets, whose addresses are others' |
//! | + 3 | `nop` | |
//!
//! Without the second rule, a kernel that looks up routes in reverse with the packet's mark (`src_valid_mark`, which
//! WireGuard's script sets) would take every source for this host's own address.

use super::Marks;
use futures_util::TryStreamExt;
use midhop_linux::route::{allow, on_own_runtime};
use midhop_linux::tproxy::local_routes;
use midhop_pep::config::Intercept;
use nix::libc::{EEXIST, ENOENT, ESRCH};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion};
use std::io;

/// The input device of packets that this host sends, as rules name it.
pub(super) const LOOPBACK: &str = "lo";

/// The parts that are added to the routing policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    marks: Marks,
    table: u32,
    preference: u32,
}

impl Delivery {
    /// What `intercept` asks for.
    pub fn of(intercept: &Intercept) -> Self {
        let Intercept { table, preference, .. } = *intercept;
        Self { marks: Marks::new(intercept.mark), table, preference }
    }

    /// The preferences of its rules.
    pub fn preferences(&self) -> std::ops::Range<u32> {
        self.preference..self.preference + 4
    }

    /// The table's number.
    pub fn table(&self) -> u32 {
        self.table
    }

    /// Adds the rules and routes, and replaces those that a dead predecessor left.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn install(self) -> io::Result<()> {
        on_own_runtime(async move |handle| {
            self.sweep(&handle).await?;
            for route in local_routes(self.table) {
                handle.route().add(route).replace().execute().await?;
            }
            for version in [IpVersion::V4, IpVersion::V6] {
                for rule in self.rules() {
                    self.add(&handle, &version, rule).await?;
                }
            }
            Ok(())
        })
    }

    /// Removes them. Rules and routes of others stay as they are.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(self) -> io::Result<()> {
        on_own_runtime(async move |handle| self.sweep(&handle).await)
    }

    async fn add(
        &self,
        handle: &Handle,
        version: &IpVersion,
        rule: Rule,
    ) -> Result<(), rtnetlink::Error> {
        let mut request = handle.rule().add();
        let message = request.message_mut();
        message.header.family = match version {
            IpVersion::V4 => rtnetlink::packet_route::AddressFamily::Inet,
            IpVersion::V6 => rtnetlink::packet_route::AddressFamily::Inet6,
        };
        message.header.action = rule.action;
        message.attributes.extend(rule.attributes);
        allow(&[EEXIST], request.execute().await)
    }

    /// The rules, from the last to the first: a jump needs its target.
    fn rules(&self) -> [Rule; 4] {
        let at = |offset: u32| RuleAttribute::Priority(self.preference + offset);
        let from_here = || RuleAttribute::Iifname(LOOPBACK.to_owned());
        let marked = |bit: u32| [RuleAttribute::FwMark(bit), RuleAttribute::FwMask(bit)];
        let lookup = |attributes: Vec<RuleAttribute>, bit: u32| Rule {
            action: RuleAction::ToTable,
            attributes: [attributes, marked(bit).into(), vec![RuleAttribute::Table(self.table)]]
                .concat(),
        };
        [
            Rule { action: RuleAction::Nop, attributes: vec![at(3)] },
            lookup(vec![at(2)], self.marks.here),
            Rule {
                action: RuleAction::Goto,
                attributes: vec![at(1), from_here(), RuleAttribute::Goto(self.preference + 3)],
            },
            lookup(vec![at(0), from_here()], self.marks.injected),
        ]
    }

    async fn sweep(self, handle: &Handle) -> Result<(), rtnetlink::Error> {
        for version in [IpVersion::V4, IpVersion::V6] {
            let rules: Vec<RuleMessage> =
                handle.rule().get(version).execute().try_collect().await?;
            // From the first to the last: the jump goes before its target does.
            for rule in rules.into_iter().filter(|rule| self.is_ours(rule)) {
                allow(&[ENOENT, ESRCH], handle.rule().del(rule).execute().await)?;
            }
        }
        for route in local_routes(self.table) {
            allow(&[ENOENT, ESRCH], handle.route().del(route).execute().await)?;
        }
        Ok(())
    }

    fn is_ours(self, rule: &RuleMessage) -> bool {
        self.rules().iter().any(|own| {
            own.action == rule.header.action
                && own.attributes.iter().all(|wanted| rule.attributes.contains(wanted))
        })
    }
}

/// A routing rule.
#[derive(Debug, Clone, PartialEq)]
struct Rule {
    action: RuleAction,
    attributes: Vec<RuleAttribute>,
}
