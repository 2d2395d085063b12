//! Copies of the administrator's routing rules for servers' legs.
//!
//! A forwarded packet arrives by an interface and has a mark. A packet of the daemon begins on this host and has one
//! additional bit in its mark. A rule that matches an intercepted interface, or all bits of the mark, would not match
//! it. So each such rule gets a copy behind it, with the same preference, that matches what servers' legs have
//! instead.

use super::Marks;
use futures_util::TryStreamExt;
use midhop_linux::route::{allow, on_own_runtime};
use nix::libc::{EEXIST, ENOENT};
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::{Handle, IpVersion};
use std::io;

use super::route::LOOPBACK;

/// Marks a routing rule as a copy of ours: a routing protocol number that nobody else uses.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(109);

/// Keeps copies of routing rules.
#[derive(Debug, Clone)]
pub struct Mirror {
    marks: Marks,
    interfaces: Vec<String>,
    /// Rules of these preferences are the interception's own.
    own: std::ops::Range<u32>,
}

impl Mirror {
    /// Creates it for servers' legs of flows that arrive by `interfaces`.
    pub fn new(marks: Marks, interfaces: &[String], own: std::ops::Range<u32>) -> Self {
        Self { marks, interfaces: interfaces.to_vec(), own }
    }

    /// Adds the copies that are missing and removes those whose rule is gone. Returns warnings about rules in the
    /// way.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn follow(&self) -> io::Result<Vec<String>> {
        let mut warnings = Vec::new();
        on_own_runtime(async |handle| {
            for version in [IpVersion::V4, IpVersion::V6] {
                let rules = rules(&handle, &version).await?;
                let (copies, others): (Vec<_>, Vec<_>) =
                    rules.into_iter().partition(|rule| self.is_copy(rule));
                let wanted: Vec<RuleMessage> =
                    others.iter().filter_map(|rule| self.copy(rule)).collect();
                for copy in copies.iter().filter(|copy| !has(&wanted, copy)) {
                    allow(&[ENOENT], handle.rule().del(copy.clone()).execute().await)?;
                }
                for copy in wanted.iter().filter(|copy| !has(&copies, copy)) {
                    let mut request = handle.rule().add();
                    *request.message_mut() = copy.clone();
                    allow(&[EEXIST], request.execute().await)?;
                }
                warnings.extend(others.iter().filter_map(|rule| self.ahead(rule, &version)));
            }
            Ok(())
        })?;
        Ok(warnings)
    }

    /// Removes all copies.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(&self) -> io::Result<()> {
        on_own_runtime(async |handle| {
            for version in [IpVersion::V4, IpVersion::V6] {
                for rule in rules(&handle, &version).await? {
                    if self.is_copy(&rule) {
                        allow(&[ENOENT], handle.rule().del(rule).execute().await)?;
                    }
                }
            }
            Ok(())
        })
    }

    fn is_copy(&self, rule: &RuleMessage) -> bool {
        let ours = |attribute: &RuleAttribute| match attribute {
            RuleAttribute::FwMask(mask) => mask & self.marks.server != 0,
            _ => false,
        };
        rule.attributes.contains(&RuleAttribute::Protocol(PROTOCOL))
            && rule.attributes.iter().any(ours)
    }

    /// The copy that a rule needs, if it needs one.
    fn copy(&self, rule: &RuleMessage) -> Option<RuleMessage> {
        if rule.header.flags.contains(RuleFlags::Invert) {
            // It matches what differs from the mark, and so our bit as well.
            return None;
        }
        let (mut interface, mut mark, mut mask, mut preference) = (None, None, u32::MAX, 0);
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Iifname(name) => interface = Some(name.as_str()),
                RuleAttribute::FwMark(value) => mark = Some(*value),
                RuleAttribute::FwMask(value) => mask = *value,
                RuleAttribute::Priority(value) => preference = *value,
                _ => {}
            }
        }
        if self.own.contains(&preference) {
            return None;
        }
        let arrival = match interface {
            Some(name) => {
                self.marks.arrival(self.interfaces.iter().position(|own| own == name)?)?
            }
            None => (0, 0),
        };
        let exact = mark.is_some() && mask & self.marks.all() != 0;
        if interface.is_none() && !exact {
            return None;
        }
        let theirs = if mark.is_some() { mask & !self.marks.all() } else { 0 };
        let value = mark.unwrap_or(0) & theirs | self.marks.server | arrival.0;
        let mut copy = rule.clone();
        copy.header.flags = RuleFlags::empty();
        copy.attributes.retain(|attribute| {
            !matches!(
                attribute,
                RuleAttribute::Iifname(_)
                    | RuleAttribute::FwMark(_)
                    | RuleAttribute::FwMask(_)
                    | RuleAttribute::Protocol(_)
            )
        });
        copy.attributes.extend([
            RuleAttribute::Iifname(LOOPBACK.to_owned()),
            RuleAttribute::FwMark(value),
            RuleAttribute::FwMask(theirs | self.marks.server | arrival.1),
            RuleAttribute::Protocol(PROTOCOL),
        ]);
        Some(copy)
    }

    /// Warns of a rule before ours, if it may take packets that are for this host's sockets.
    fn ahead(&self, rule: &RuleMessage, version: &IpVersion) -> Option<String> {
        let mut preference = 0;
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Priority(value) => preference = *value,
                // Rules for what leaves this host, and for other interfaces, do not matter.
                RuleAttribute::Iifname(name) if !self.interfaces.contains(name) => return None,
                _ => {}
            }
        }
        let local = rule.header.table == 255;
        let ahead = preference < self.own.start && !local;
        let family = if matches!(version, IpVersion::V4) { "" } else { "-6 " };
        ahead.then(|| {
            format!(
                "the routing rule of preference {preference} (`ip {family}rule`) comes before midhopd's: \
                 set intercept.preference below it, or give it a preference above {}",
                self.own.end
            )
        })
    }
}

async fn rules(handle: &Handle, version: &IpVersion) -> Result<Vec<RuleMessage>, rtnetlink::Error> {
    let version = match version {
        IpVersion::V4 => IpVersion::V4,
        IpVersion::V6 => IpVersion::V6,
    };
    handle.rule().get(version).execute().try_collect().await
}

/// Whether a rule is among others, in any order of its parts.
fn has(rules: &[RuleMessage], wanted: &RuleMessage) -> bool {
    let key = |rule: &RuleMessage| {
        let mut parts: Vec<String> = rule
            .attributes
            .iter()
            .filter(|part| !matches!(part, RuleAttribute::SuppressPrefixLen(u32::MAX)))
            .map(|part| format!("{part:?}"))
            .collect();
        parts.sort_unstable();
        let header = &rule.header;
        (header.action, header.table, header.src_len, header.dst_len, header.tos, parts)
    };
    let wanted = key(wanted);
    rules.iter().any(|rule| key(rule) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror() -> Mirror {
        Mirror::new(Marks::new(0xff00_0000), &["wan0".to_owned(), "lan0".to_owned()], 10..14)
    }

    fn rule(attributes: &[RuleAttribute]) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.attributes.extend_from_slice(attributes);
        rule.attributes.push(RuleAttribute::Priority(100));
        rule
    }

    fn mark_of(copy: &RuleMessage) -> (u32, u32) {
        let (mut mark, mut mask) = (0, 0);
        for attribute in &copy.attributes {
            match attribute {
                RuleAttribute::FwMark(value) => mark = *value,
                RuleAttribute::FwMask(value) => mask = *value,
                _ => {}
            }
        }
        (mark, mask)
    }

    #[test]
    fn a_rule_for_an_interface_asks_for_its_number() {
        let copy =
            mirror().copy(&rule(&[RuleAttribute::Iifname("lan0".to_owned())])).expect("a copy");
        assert!(copy.attributes.contains(&RuleAttribute::Iifname("lo".to_owned())));
        // The second interface of the list, and the bit of servers' legs.
        assert_eq!(mark_of(&copy), (0x4200_0000, 0xe200_0000));
        assert!(mirror().is_copy(&copy));
        assert!(mirror().copy(&rule(&[RuleAttribute::Iifname("eth7".to_owned())])).is_none());
    }

    #[test]
    fn a_rule_for_an_exact_mark_leaves_our_bits_out() {
        let exact = rule(&[RuleAttribute::FwMark(1), RuleAttribute::FwMask(u32::MAX)]);
        assert_eq!(mark_of(&mirror().copy(&exact).expect("a copy")), (0x0200_0001, 0x02ff_ffff));
        let masked = rule(&[RuleAttribute::FwMark(1), RuleAttribute::FwMask(0xff)]);
        assert!(mirror().copy(&masked).is_none(), "it matches as it is");
    }
}
