//! Source prefixes at one moment.

use crate::prefixes::{PrefixBook, Prefixes};
use midhop_status::snapshot::PrefixSnapshot;
use std::collections::BTreeMap;

/// Every prefix that has had a flow, or is configured, by name; `other` if there were more prefixes
/// than are counted separately.
pub(super) fn all(prefixes: &Prefixes) -> BTreeMap<String, PrefixSnapshot> {
    let (books, others) = prefixes.all();
    let named = books.iter().map(|(prefix, book)| (prefix.to_string(), one(book)));
    let others = one(&others);
    named.chain((others.started_total > 0).then(|| ("other".to_owned(), others))).collect()
}

fn one(book: &PrefixBook) -> PrefixSnapshot {
    PrefixSnapshot {
        flows: book.flows.value(),
        started_total: book.started.value(),
        up_bytes_total: book.up.value(),
        down_bytes_total: book.down.value(),
    }
}
