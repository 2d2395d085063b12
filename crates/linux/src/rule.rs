//! Routing rules (`ip-rule(8)`): lists, adds and removes them.

use crate::netlink::{Channel, Message, attributes};
use crate::route_table::{Family, octets};
use nix::libc;
use std::io;
use std::net::SocketAddr;

const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_GOTO: u16 = 4;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PROTOCOL: u16 = 21;
const FRA_IP_PROTO: u16 = 22;
const FRA_SPORT_RANGE: u16 = 23;
const FRA_DPORT_RANGE: u16 = 24;
/// `FIB_RULE_INVERT`: a rule that matches what its parts do not.
const INVERT: u32 = 2;
/// Unit: bytes. `struct fib_rule_hdr`.
const HEADER: usize = 12;

/// What happens to packets that a rule matches (`FR_ACT_…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// A table of routes decides.
    ToTable,
    /// The rules continue at another preference.
    Goto,
    /// The next rule decides.
    Nop,
    /// Another action, by its number.
    Other(u8),
}

impl RuleAction {
    fn number(self) -> u8 {
        match self {
            Self::ToTable => 1,
            Self::Goto => 2,
            Self::Nop => 3,
            Self::Other(number) => number,
        }
    }

    fn of(number: u8) -> Self {
        match number {
            1 => Self::ToTable,
            2 => Self::Goto,
            3 => Self::Nop,
            other => Self::Other(other),
        }
    }
}

/// A part of a rule: what it matches, where it is, or what it leads to (`FRA_…`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RulePart {
    /// It matches packets that arrive by this device.
    InputDevice(String),
    /// The preference at which the rules continue.
    Goto(u32),
    /// Rules with a lower preference are checked first.
    Preference(u32),
    /// It matches packets with this mark.
    Mark(u32),
    /// The bits of the mark that count.
    Mask(u32),
    /// The table that decides.
    Table(u32),
    /// The program that added it (`RTPROT_…`).
    Protocol(u8),
    /// Routes with a prefix as short as this are ignored; all bits set: none are.
    SuppressedPrefix(u32),
    /// Another part: its number, and its value as the kernel has it.
    Other(u16, Vec<u8>),
}

impl RulePart {
    fn written(&self, message: Message) -> Message {
        match self {
            Self::InputDevice(name) => message.with_name(FRA_IIFNAME, name),
            Self::Goto(preference) => message.with(FRA_GOTO, &preference.to_ne_bytes()),
            Self::Preference(value) => message.with(FRA_PRIORITY, &value.to_ne_bytes()),
            Self::Mark(value) => message.with(FRA_FWMARK, &value.to_ne_bytes()),
            Self::Mask(value) => message.with(FRA_FWMASK, &value.to_ne_bytes()),
            Self::Table(table) => message.with(FRA_TABLE, &table.to_ne_bytes()),
            Self::Protocol(number) => message.with(FRA_PROTOCOL, &[*number]),
            Self::SuppressedPrefix(bits) => {
                message.with(FRA_SUPPRESS_PREFIXLEN, &bits.to_ne_bytes())
            }
            Self::Other(kind, value) => message.with(*kind, value),
        }
    }

    fn read((kind, value): (u16, &[u8])) -> Self {
        let number = || value.try_into().ok().map(u32::from_ne_bytes);
        let name = || String::from_utf8(value.strip_suffix(&[0])?.to_vec()).ok();
        let known = match (kind, value) {
            (FRA_IIFNAME, _) => name().map(Self::InputDevice),
            (FRA_GOTO, _) => number().map(Self::Goto),
            (FRA_PRIORITY, _) => number().map(Self::Preference),
            (FRA_FWMARK, _) => number().map(Self::Mark),
            (FRA_FWMASK, _) => number().map(Self::Mask),
            (FRA_TABLE, _) => number().map(Self::Table),
            (FRA_SUPPRESS_PREFIXLEN, _) => number().map(Self::SuppressedPrefix),
            (FRA_PROTOCOL, &[protocol]) => Some(Self::Protocol(protocol)),
            _ => None,
        };
        known.unwrap_or_else(|| Self::Other(kind, value.to_vec()))
    }
}

/// A routing rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The family of its addresses.
    pub family: Family,
    /// The length of the prefix of destinations that it matches; the prefix is one of its parts.
    pub destination_bits: u8,
    /// The length of the prefix of sources that it matches.
    pub source_bits: u8,
    /// The type of service that it matches; 0: any.
    pub tos: u8,
    /// Its table's number, if that is below 256; [`RulePart::Table`] has every number.
    pub table: u8,
    /// What happens to packets that it matches.
    pub action: RuleAction,
    /// `FIB_RULE_…`.
    pub flags: u32,
    /// Its parts.
    pub parts: Vec<RulePart>,
}

impl Rule {
    /// A rule that these `parts` describe.
    pub fn new(family: Family, action: RuleAction, parts: Vec<RulePart>) -> Self {
        let (destination_bits, source_bits, tos, table, flags) = (0, 0, 0, 0, 0);
        Self { family, destination_bits, source_bits, tos, table, action, flags, parts }
    }

    /// A rule for TCP segments from `source` to `destination`, which leads to a table.
    pub fn of_connection(source: SocketAddr, destination: SocketAddr, table: u32) -> Self {
        let family = Family::of(source.ip());
        let bits = if family == Family::V4 { 32 } else { 128 };
        let only = |port: u16| [port, port].map(u16::to_ne_bytes).concat();
        let parts = [
            (FRA_SRC, octets(source.ip())),
            (FRA_DST, octets(destination.ip())),
            (FRA_IP_PROTO, vec![6]),
            (FRA_SPORT_RANGE, only(source.port())),
            (FRA_DPORT_RANGE, only(destination.port())),
        ];
        let parts = parts.map(|(kind, value)| RulePart::Other(kind, value));
        let parts = parts.into_iter().chain([RulePart::Table(table)]).collect();
        let rule = Self::new(family, RuleAction::ToTable, parts);
        Self { source_bits: bits, destination_bits: bits, ..rule }
    }

    /// All rules of a family, in the order in which they are checked.
    ///
    /// # Errors
    /// When the kernel refuses, or does not respond.
    pub fn all(channel: &Channel, family: Family) -> io::Result<Vec<Self>> {
        let mut header = [0; HEADER];
        header[0] = family.number();
        let question = Message::new(RTM_GETRULE, libc::NLM_F_DUMP, &header);
        let mut rules = Vec::new();
        channel.dump(question, &mut vec![0; 1 << 15], |message| {
            let rule = (message.kind == RTM_NEWRULE).then(|| Self::read(family, message.body));
            rules.extend(rule.flatten());
        })?;
        Ok(rules)
    }

    /// Adds it.
    ///
    /// # Errors
    /// When the kernel refuses, for example because there is such a rule.
    pub fn add(&self, channel: &Channel) -> io::Result<()> {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        channel.request(&self.message(RTM_NEWRULE, flags).finish())
    }

    /// Removes it.
    ///
    /// # Errors
    /// When the kernel refuses, for example because there is no such rule.
    pub fn remove(&self, channel: &Channel) -> io::Result<()> {
        channel.request(&self.message(RTM_DELRULE, libc::NLM_F_ACK).finish())
    }

    /// Whether it matches what its parts do not.
    pub fn is_inverted(&self) -> bool {
        self.flags & INVERT != 0
    }

    fn message(&self, kind: u16, flags: i32) -> Message {
        let mut header = [0; HEADER];
        header[0] = self.family.number();
        header[1] = self.destination_bits;
        header[2] = self.source_bits;
        header[3] = self.tos;
        header[4] = self.table;
        header[7] = self.action.number();
        header[8..].copy_from_slice(&self.flags.to_ne_bytes());
        let message = Message::new(kind, flags, &header);
        self.parts.iter().fold(message, |message, part| part.written(message))
    }

    fn read(family: Family, body: &[u8]) -> Option<Self> {
        let (header, parts) = body.split_first_chunk::<HEADER>()?;
        let &[_, destination_bits, source_bits, tos, table, _, _, action, ref flags @ ..] = header;
        Some(Self {
            family,
            destination_bits,
            source_bits,
            tos,
            table,
            action: RuleAction::of(action),
            flags: u32::from_ne_bytes(*flags),
            parts: attributes(parts).map(RulePart::read).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNamespace;
    use proptest::prelude::*;

    #[test]
    fn what_is_added_is_found_and_can_be_removed() {
        let place = match NetNamespace::new() {
            Ok(place) => place,
            Err(error) => {
                return midhop_testkit::skipped(format!("this takes CAP_SYS_ADMIN: {error}"));
            }
        };
        for family in Family::BOTH {
            let parts = vec![
                RulePart::Preference(70),
                RulePart::InputDevice("eth7".to_owned()),
                RulePart::Mark(0x0102_0304),
                RulePart::Mask(0xff00_ffff),
                RulePart::Table(70_000),
                RulePart::Protocol(109),
            ];
            let rule = Rule::new(family, RuleAction::ToTable, parts);
            let found = place.run(|| {
                let channel = Channel::routing()?;
                let before = Rule::all(&channel, family)?;
                rule.add(&channel)?;
                let again = rule.add(&channel).map_err(|error| error.raw_os_error());
                let between = Rule::all(&channel, family)?;
                // As the kernel describes it, with all that it adds.
                between[1].remove(&channel)?;
                let gone = rule.remove(&channel).map_err(|error| error.raw_os_error());
                Ok::<_, io::Error>((before, between, Rule::all(&channel, family)?, again, gone))
            });
            let (before, between, after, again, gone) =
                found.expect("entered").expect("the kernel agrees");
            assert_eq!(again, Err(Some(libc::EEXIST)));
            assert_eq!(gone, Err(Some(libc::ENOENT)));
            assert_eq!(before, after);
            assert_eq!(between.len(), before.len() + 1);
            let added = &between[1];
            assert_eq!((added.action, added.is_inverted()), (RuleAction::ToTable, false));
            for part in &rule.parts {
                assert!(added.parts.contains(part), "{part:?} of {added:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(rule) = Rule::read(Family::V4, &bytes) {
                let _ = rule.message(RTM_NEWRULE, 0).finish();
            }
        }
    }
}
