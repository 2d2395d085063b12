//! How many SYNs the firewall let pass on its own, by why: flows that the daemon never sees.
//!
//! Invariant: what is told never falls, though a reload puts a new table in the place of the old one
//! and its counters begin anew.

use super::table;
use midhop_linux::netlink::{Channel, Message, attributes};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

const SUBSYSTEM: u16 = 10;
const NEW_OBJECT: u16 = SUBSYSTEM << 8 | 18;
const GET_OBJECT: u16 = SUBSYSTEM << 8 | 19;
const INET: i32 = 1;
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
const TYPE_COUNTER: u32 = 1;
const COUNTER_PACKETS: u16 = 2;
/// The header of netfilter's own that attributes follow.
const NETFILTER_HEADER: usize = 4;
/// More than the kernel puts into one piece of an answer.
const ANSWER_BYTES: usize = 32 << 10;

/// The counters of an instance's table.
#[derive(Debug)]
pub struct PassedCounters {
    table: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    channel: Channel,
    /// Counted by tables that are gone, and by this one when it was last read.
    counts: BTreeMap<&'static str, Count>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    before: u64,
    now: u64,
}

impl PassedCounters {
    /// Opens a channel to the table of an instance, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel gives no channel.
    pub fn open(instance: &str) -> io::Result<Self> {
        let channel = Channel::open(SockProtocol::NetlinkNetFilter)?;
        let counts = table::PASSED.into_iter().map(|reason| (reason, Count::default())).collect();
        Ok(Self { table: table::name(instance), state: Mutex::new(State { channel, counts }) })
    }

    /// SYNs let pass since the start, by the reasons of [`table::PASSED`]. Where the kernel does not
    /// answer, as when the table is gone, what it said last.
    pub fn total(&self) -> BTreeMap<String, u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.read(&self.table);
        let sum = |count: &Count| count.before + count.now;
        state.counts.iter().map(|(reason, count)| ((*reason).to_owned(), sum(count))).collect()
    }

    /// Does what replaces the table, and keeps what the old one counted.
    ///
    /// # Errors
    /// That of `replace`; then the old table is still there.
    pub fn across<E>(&self, replace: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.read(&self.table);
        replace()?;
        for count in state.counts.values_mut() {
            *count = Count { before: count.before + count.now, now: 0 };
        }
        Ok(())
    }
}

impl State {
    fn read(&mut self, table: &str) {
        match counters(&self.channel, table) {
            Ok(counters) => {
                for (reason, count) in &mut self.counts {
                    if let Some(packets) = counters.get(&table::counter(reason)) {
                        if *packets < count.now {
                            // Somebody replaced the table unnoticed, or set its counters back.
                            count.before += count.now;
                        }
                        count.now = *packets;
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the firewall's counters are not to be had"),
        }
    }
}

/// All counters of a table by name.
///
/// # Errors
/// When the kernel does not answer.
pub fn counters(channel: &Channel, table: &str) -> io::Result<BTreeMap<String, u64>> {
    let question = Message::netfilter(GET_OBJECT, libc::NLM_F_DUMP, INET, 0)
        .with_name(OBJECT_TABLE, table)
        .with(OBJECT_TYPE, &TYPE_COUNTER.to_be_bytes());
    let mut counters = BTreeMap::new();
    channel.dump(question, &mut vec![0; ANSWER_BYTES], |message| {
        if message.kind == NEW_OBJECT {
            counters.extend(counter(message.body, table));
        }
    })?;
    Ok(counters)
}

/// Name and packets of one counter, if it is one of `table`.
fn counter(body: &[u8], table: &str) -> Option<(String, u64)> {
    let text = |value: &[u8]| {
        std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok().map(str::to_owned)
    };
    let (mut of, mut name, mut packets) = (None, None, None);
    for (kind, value) in attributes(body.get(NETFILTER_HEADER..)?) {
        match kind {
            OBJECT_TABLE => of = text(value),
            OBJECT_NAME => name = text(value),
            OBJECT_DATA => {
                packets = attributes(value)
                    .find(|(kind, _)| *kind == COUNTER_PACKETS)
                    .and_then(|(_, value)| Some(u64::from_be_bytes(value.try_into().ok()?)));
            }
            _ => {}
        }
    }
    (of? == table).then_some((name?, packets?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_linux::netlink::messages;

    fn object(table: &str, packets: &[u8]) -> Vec<u8> {
        Message::netfilter(NEW_OBJECT, 0, INET, 0)
            .with_name(OBJECT_TABLE, table)
            .with_name(OBJECT_NAME, "passed_rule")
            .with(OBJECT_TYPE, &TYPE_COUNTER.to_be_bytes())
            .with_nested(OBJECT_DATA, |data| {
                data.with(1, &600u64.to_be_bytes()).with(COUNTER_PACKETS, packets)
            })
            .finish()
    }

    fn read(bytes: &[u8]) -> Option<(String, u64)> {
        counter(messages(bytes).next()?.body, "midhop_main")
    }

    #[test]
    fn a_counter_is_read_and_others_are_not() {
        let ours = object("midhop_main", &10u64.to_be_bytes());
        assert_eq!(read(&ours), Some(("passed_rule".to_owned(), 10)));
        assert_eq!(read(&object("midhop_other", &10u64.to_be_bytes())), None);
        assert_eq!(read(&object("midhop_main", &[0, 1])), None, "no number of 64 bits");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100)) {
            let _ = counter(&bytes, "midhop_main");
        }
    }
}
