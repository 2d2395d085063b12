//! Source prefixes at one moment.

use crate::prefixes::{PrefixBook, Prefixes};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// What clients of one prefix do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PrefixSnapshot {
    /// Live flows.
    pub flows: u64,
    /// Flows that have begun.
    pub started_total: u64,
    /// From these clients.
    pub up_bytes_total: u64,
    /// To them.
    pub down_bytes_total: u64,
}

impl From<&PrefixBook> for PrefixSnapshot {
    fn from(book: &PrefixBook) -> Self {
        Self {
            flows: book.flows.value(),
            started_total: book.started.value(),
            up_bytes_total: book.up.value(),
            down_bytes_total: book.down.value(),
        }
    }
}

/// Every prefix that ever had a flow, or is configured, by name; `other` where there were more than are counted each.
pub(super) fn all(prefixes: &Prefixes) -> BTreeMap<String, PrefixSnapshot> {
    let (books, others) = prefixes.all();
    let named =
        books.iter().map(|(prefix, book)| (prefix.to_string(), PrefixSnapshot::from(&**book)));
    let others = PrefixSnapshot::from(&*others);
    named.chain((others.started_total > 0).then(|| ("other".to_owned(), others))).collect()
}
