//! Copies of the administrator's routing rules for servers' legs.
//!
//! A forwarded packet arrives by an interface and has a mark. A packet of the daemon starts on this
//! host and has one more bit in its mark. So a rule that matches an intercepted interface, or all
//! bits of the mark, does not match it. Each such rule gets a copy behind it, with the same
//! preference, that matches what servers' legs have instead.

use super::Marks;
use midhop_linux::netlink::{Channel, allow};
use midhop_linux::route_table::Family;
use midhop_linux::rule::{Rule, RulePart};
use nix::libc::{EEXIST, ENOENT};
use std::io;

use super::route::LOOPBACK;

/// Marks a routing rule as a copy of ours: a routing protocol number that nobody else uses.
const PROTOCOL: u8 = 109;

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

    /// Adds the copies that are missing and removes those whose rule is gone. Returns warnings
    /// about rules that take packets before ours.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn follow(&self) -> io::Result<Vec<String>> {
        let mut warnings = Vec::new();
        let channel = Channel::routing()?;
        for family in Family::BOTH {
            let (copies, others): (Vec<_>, Vec<_>) =
                Rule::all(&channel, family)?.into_iter().partition(|rule| self.is_copy(rule));
            let wanted: Vec<Rule> = others.iter().filter_map(|rule| self.copy(rule)).collect();
            for copy in copies.iter().filter(|copy| !has(&wanted, copy)) {
                allow(&[ENOENT], copy.remove(&channel))?;
            }
            for copy in wanted.iter().filter(|copy| !has(&copies, copy)) {
                allow(&[EEXIST], copy.add(&channel))?;
            }
            warnings.extend(others.iter().filter_map(|rule| self.ahead(rule)));
        }
        Ok(warnings)
    }

    /// Removes all copies.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(&self) -> io::Result<()> {
        let channel = Channel::routing()?;
        for family in Family::BOTH {
            for rule in Rule::all(&channel, family)?.iter().filter(|rule| self.is_copy(rule)) {
                allow(&[ENOENT], rule.remove(&channel))?;
            }
        }
        Ok(())
    }

    fn is_copy(&self, rule: &Rule) -> bool {
        let ours = |part: &RulePart| match part {
            RulePart::Mask(mask) => mask & self.marks.server != 0,
            _ => false,
        };
        rule.parts.contains(&RulePart::Protocol(PROTOCOL)) && rule.parts.iter().any(ours)
    }

    /// The copy that a rule needs, if it needs one.
    fn copy(&self, rule: &Rule) -> Option<Rule> {
        if rule.is_inverted() {
            // An inverted rule matches packets with another mark, and so those with our bit as
            // well.
            return None;
        }
        let (mut interface, mut mark, mut mask, mut preference) = (None, None, u32::MAX, 0);
        for part in &rule.parts {
            match part {
                RulePart::InputDevice(name) => interface = Some(name.as_str()),
                RulePart::Mark(value) => mark = Some(*value),
                RulePart::Mask(value) => mask = *value,
                RulePart::Preference(value) => preference = *value,
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
        copy.flags = 0;
        copy.parts.retain(|part| {
            !matches!(
                part,
                RulePart::InputDevice(_)
                    | RulePart::Mark(_)
                    | RulePart::Mask(_)
                    | RulePart::Protocol(_)
            )
        });
        copy.parts.extend([
            RulePart::InputDevice(LOOPBACK.to_owned()),
            RulePart::Mark(value),
            RulePart::Mask(theirs | self.marks.server | arrival.1),
            RulePart::Protocol(PROTOCOL),
        ]);
        Some(copy)
    }

    /// Warns of a rule before ours, if it may take packets that are for this host's sockets.
    fn ahead(&self, rule: &Rule) -> Option<String> {
        let mut preference = 0;
        for part in &rule.parts {
            match part {
                RulePart::Preference(value) => preference = *value,
                // Rules for what leaves this host, and for other interfaces, do not matter.
                RulePart::InputDevice(name) if !self.interfaces.contains(name) => return None,
                _ => {}
            }
        }
        let local = rule.table == 255;
        let ahead = preference < self.own.start && !local;
        let family = if rule.family == Family::V4 { "" } else { "-6 " };
        ahead.then(|| {
            format!(
                "the routing rule of preference {preference} (`ip {family}rule`) comes before midhopd's: \
                 set intercept.preference below it, or give it a preference above {}",
                self.own.end
            )
        })
    }
}

/// Whether a rule is among others, in any order of its parts.
fn has(rules: &[Rule], wanted: &Rule) -> bool {
    let key = |rule: &Rule| {
        let all = RulePart::SuppressedPrefix(u32::MAX);
        let mut parts: Vec<_> = rule.parts.iter().filter(|part| **part != all).cloned().collect();
        parts.sort_unstable();
        let Rule { action, table, source_bits, destination_bits, tos, .. } = *rule;
        (action, table, source_bits, destination_bits, tos, parts)
    };
    let wanted = key(wanted);
    rules.iter().any(|rule| key(rule) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_linux::rule::RuleAction;

    fn mirror() -> Mirror {
        Mirror::new(Marks::new(0xff00_0000), &["wan0".to_owned(), "lan0".to_owned()], 10..14)
    }

    fn rule(parts: &[RulePart]) -> Rule {
        let mut rule = Rule::new(Family::V4, RuleAction::ToTable, Vec::new());
        rule.parts.extend_from_slice(parts);
        rule.parts.push(RulePart::Preference(100));
        rule
    }

    fn mark_of(copy: &Rule) -> (u32, u32) {
        let (mut mark, mut mask) = (0, 0);
        for part in &copy.parts {
            match part {
                RulePart::Mark(value) => mark = *value,
                RulePart::Mask(value) => mask = *value,
                _ => {}
            }
        }
        (mark, mask)
    }

    #[test]
    fn a_rule_for_an_interface_asks_for_its_number() {
        let copy =
            mirror().copy(&rule(&[RulePart::InputDevice("lan0".to_owned())])).expect("a copy");
        assert!(copy.parts.contains(&RulePart::InputDevice("lo".to_owned())));
        // The second interface of the list, and the bit of servers' legs.
        assert_eq!(mark_of(&copy), (0x4200_0000, 0xe200_0000));
        assert!(mirror().is_copy(&copy));
        assert!(mirror().copy(&rule(&[RulePart::InputDevice("eth7".to_owned())])).is_none());
    }

    #[test]
    fn a_rule_for_an_exact_mark_leaves_our_bits_out() {
        let exact = rule(&[RulePart::Mark(1), RulePart::Mask(u32::MAX)]);
        assert_eq!(mark_of(&mirror().copy(&exact).expect("a copy")), (0x0200_0001, 0x02ff_ffff));
        let masked = rule(&[RulePart::Mark(1), RulePart::Mask(0xff)]);
        assert!(mirror().copy(&masked).is_none(), "it matches as it is");
    }
}
