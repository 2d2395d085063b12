//! Keys that only some kinds of a table take.
//!
//! A table such as `[agents.thin]` has one Rust type for all its kinds, so that every key is checked and
//! suggested in one place. What a kind takes no part in is refused here, so that nobody believes a key to
//! act that does not.

/// A key, whether the file gives it, and the kinds that take it.
pub(crate) type Key<'k, K> = (&'static str, bool, &'k [K]);

/// The first key that is given and not for this `kind`, and all keys that are; none where every key that
/// is given is its own.
pub(crate) fn foreign<K: PartialEq>(
    kind: &K,
    keys: &[Key<'_, K>],
) -> Option<(&'static str, Vec<&'static str>)> {
    let (key, ..) = keys.iter().find(|(_, given, owners)| *given && !owners.contains(kind))?;
    let own = keys.iter().filter(|(.., owners)| owners.contains(kind)).map(|(key, ..)| *key);
    Some((key, own.collect()))
}

/// What a person is told about the keys that there are instead.
pub(crate) fn hint(own: &[&str]) -> String {
    if own.is_empty() {
        "it takes no other key than its name".to_owned()
    } else {
        format!("it takes {}", own.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_foreign_key_is_named_and_those_of_its_own_in_their_order() {
        let keys = |rate: bool, size: bool| {
            [("links", true, &['a', 'b'][..]), ("rate", rate, &['b']), ("size", size, &['b'])]
        };
        assert_eq!(foreign(&'a', &keys(false, false)), None);
        assert_eq!(foreign(&'b', &keys(true, true)), None);
        assert_eq!(foreign(&'a', &keys(true, true)), Some(("rate", vec!["links"])));
        assert_eq!(foreign(&'a', &keys(false, true)), Some(("size", vec!["links"])));
        let (key, own) = foreign(&'c', &keys(false, false)).expect("c takes none");
        assert_eq!((key, hint(&own).as_str()), ("links", "it takes no other key than its name"));
        assert_eq!(hint(&["links", "rate"]), "it takes links, rate");
    }
}
