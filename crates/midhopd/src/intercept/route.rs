//! The routing rule and table that deliver marked packets to this host's own sockets.

use crate::netlink::on_own_runtime;
use futures_util::TryStreamExt;
use nix::libc::{EEXIST, ENOENT, ESRCH};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

/// What is put into the routing policy: a rule for the mark, and a table that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// The mark of the packets that are meant.
    pub mark: u32,
    /// The table's number and the rule's priority.
    pub table: u32,
}

impl Delivery {
    /// Adds the rules and routes, in place of those that a dead predecessor left.
    pub fn install(self) -> io::Result<()> {
        on_own_runtime(async move |handle| {
            self.sweep(&handle).await?;
            for route in self.routes() {
                handle.route().add(route).replace().execute().await?;
            }
            let rule = || {
                let rule = handle.rule().add().fw_mark(self.mark).table_id(self.table);
                rule.priority(self.table).action(RuleAction::ToTable)
            };
            allow(&[EEXIST], rule().v4().execute().await)?;
            allow(&[EEXIST], rule().v6().execute().await)
        })
    }

    /// Removes them. Rules and routes of others stay as they are.
    pub fn remove(self) -> io::Result<()> {
        on_own_runtime(async move |handle| self.sweep(&handle).await)
    }

    async fn sweep(self, handle: &Handle) -> Result<(), rtnetlink::Error> {
        for version in [IpVersion::V4, IpVersion::V6] {
            let rules: Vec<RuleMessage> =
                handle.rule().get(version).execute().try_collect().await?;
            for rule in rules.into_iter().filter(|rule| self.is_ours(rule)) {
                allow(&[ENOENT, ESRCH], handle.rule().del(rule).execute().await)?;
            }
        }
        for route in self.routes() {
            allow(&[ENOENT, ESRCH], handle.route().del(route).execute().await)?;
        }
        Ok(())
    }

    fn is_ours(self, rule: &RuleMessage) -> bool {
        let has = |wanted: RuleAttribute| rule.attributes.contains(&wanted);
        has(RuleAttribute::FwMark(self.mark))
            && has(RuleAttribute::Table(self.table))
            && has(RuleAttribute::Priority(self.table))
    }

    fn routes(self) -> [RouteMessage; 2] {
        // The loopback is the first device of every network namespace.
        const LOOPBACK: u32 = 1;
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(Ipv4Addr::UNSPECIFIED, 0)
            .output_interface(LOOPBACK)
            .table_id(self.table)
            .scope(RouteScope::Host)
            .kind(RouteType::Local);
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(Ipv6Addr::UNSPECIFIED, 0)
            .output_interface(LOOPBACK)
            .table_id(self.table)
            .kind(RouteType::Local);
        [v4.build(), v6.build()]
    }
}

/// Takes a refusal for success where the thing is as wanted already.
fn allow(codes: &[i32], result: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    match &result {
        Err(rtnetlink::Error::NetlinkError(message))
            if message.code.is_some_and(|code| codes.contains(&-code.get())) =>
        {
            Ok(())
        }
        _ => result,
    }
}
