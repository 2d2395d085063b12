//! The routing rules and the table that deliver packets to this host's own sockets.
//!
//! | preference | rule | why |
//! |---|---|---|
//! | first | `iif lo fwmark INJECTED lookup TABLE` | a held SYN comes again over the loopback |
//! | + 1 | `iif lo goto` + 3 | nothing else that this host sends or checks in reverse sees the next one |
//! | + 2 | `fwmark HERE lookup TABLE` | packets of own sockets, whose addresses are others' |
//! | + 3 | `nop` | |
//!
//! Some kernels look up reverse routes with the packet's mark (`src_valid_mark`, which WireGuard's
//! script sets). Without the second rule, they would take every source for this host's own address.

use super::Marks;
use midhop_linux::netlink::{Channel, allow};
use midhop_linux::route_table::Family;
use midhop_linux::rule::{Rule, RuleAction, RulePart};
use midhop_linux::tproxy::local_routes;
use midhop_pep::config::Intercept;
use nix::libc::{EEXIST, ENOENT, ESRCH};
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
    /// The parts that `intercept` requires.
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

    /// Adds the rules and routes. Those of a predecessor that are as they should be stay: live flows need them.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn install(self) -> io::Result<()> {
        let channel = Channel::routing()?;
        for route in local_routes(self.table) {
            route.replace(&channel)?;
        }
        for family in Family::BOTH {
            let there = Rule::all(&channel, family)?;
            let own = self.rules(family);
            // A rule that is left of an incomplete installation has the same preference as one of
            // ours.
            let ours = |rule: &&Rule| own.iter().any(|own| is_as(rule, own));
            if there.iter().filter(ours).count() == own.len() {
                continue;
            }
            for rule in there.iter().filter(ours) {
                allow(&[ENOENT, ESRCH], rule.remove(&channel))?;
            }
            for rule in own {
                allow(&[EEXIST], rule.add(&channel))?;
            }
        }
        Ok(())
    }

    /// Removes them. Rules and routes of others stay as they are.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(self) -> io::Result<()> {
        self.sweep(&Channel::routing()?)
    }

    /// The rules, from the last to the first: a jump can only be added after its target.
    fn rules(&self, family: Family) -> [Rule; 4] {
        let at = |offset: u32| RulePart::Preference(self.preference + offset);
        let from_here = || RulePart::InputDevice(LOOPBACK.to_owned());
        let rule = |action, parts| Rule::new(family, action, parts);
        let lookup = |mut parts: Vec<RulePart>, bit: u32| {
            parts.extend([RulePart::Mark(bit), RulePart::Mask(bit), RulePart::Table(self.table)]);
            rule(RuleAction::ToTable, parts)
        };
        [
            rule(RuleAction::Nop, vec![at(3)]),
            lookup(vec![at(2)], self.marks.here),
            rule(RuleAction::Goto, vec![at(1), from_here(), RulePart::Goto(self.preference + 3)]),
            lookup(vec![at(0), from_here()], self.marks.injected),
        ]
    }

    fn sweep(self, channel: &Channel) -> io::Result<()> {
        for family in Family::BOTH {
            let own = self.rules(family);
            let is_ours = |rule: &Rule| own.iter().any(|own| is_as(rule, own));
            // From the first to the last: the jump is removed before its target.
            for rule in Rule::all(channel, family)?.iter().filter(|rule| is_ours(rule)) {
                allow(&[ENOENT, ESRCH], rule.remove(channel))?;
            }
        }
        for route in local_routes(self.table) {
            allow(&[ENOENT, ESRCH], route.remove(channel))?;
        }
        Ok(())
    }
}

/// Whether a rule, as the kernel describes it, has all that `wanted` has.
fn is_as(rule: &Rule, wanted: &Rule) -> bool {
    rule.action == wanted.action && wanted.parts.iter().all(|part| rule.parts.contains(part))
}
