//! Keys that only some kinds of a table take.
//!
//! A table such as `[agents.thin]` has one Rust type for all its kinds, so that every key is
//! checked and suggested in one place. A key that a kind does not use is refused here, so that no
//! key is ignored silently.

/// A key, whether the file has it, and the kinds that use it.
pub(crate) type Key<'k, K> = (&'static str, bool, &'k [K]);

/// The first given key that this `kind` does not use, and all keys that it uses; none where it uses
/// every given key.
pub(crate) fn foreign<K: PartialEq>(
    kind: &K,
    keys: &[Key<'_, K>],
) -> Option<(&'static str, Vec<&'static str>)> {
    let (key, ..) = keys.iter().find(|(_, given, owners)| *given && !owners.contains(kind))?;
    let own = keys.iter().filter(|(.., owners)| owners.contains(kind)).map(|(key, ..)| *key);
    Some((key, own.collect()))
}

/// The hint that names the keys of this kind.
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
