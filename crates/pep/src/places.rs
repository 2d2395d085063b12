//! How many flows each source may have at a time.
//!
//! Invariant: a source that may have `n` flows never gets another while it has `n` or more; a source without flows
//! leaves nothing behind, so that there are never more entries than flows.

use ipnet::IpNet;
use std::collections::BTreeMap;

/// The present flows of each source.
#[derive(Debug, Default)]
pub struct Places(BTreeMap<IpNet, u32>);

impl Places {
    /// Whether `source` may have one more of `most` flows.
    pub fn has_room(&self, source: IpNet, most: u32) -> bool {
        self.of(source) < most
    }

    /// The flows of a source.
    pub fn of(&self, source: IpNet) -> u32 {
        self.0.get(&source).copied().unwrap_or(0)
    }

    /// Adds a flow, whether there is room for it or not: one that was accepted stays.
    pub fn enter(&mut self, source: IpNet) {
        let count = self.0.entry(source).or_default();
        *count = count.saturating_add(1);
    }

    /// Removes a flow that had entered.
    pub fn leave(&mut self, source: IpNet) {
        if let Some(count) = self.0.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&source);
            }
        }
    }

    /// Sources that have flows.
    pub fn sources(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Flows of a few sources begin and end. A flow that begins while there is no room passes by.
        #[test]
        fn no_source_has_more_than_it_may_and_nothing_is_left(
            most in 1u32..5,
            steps in proptest::collection::vec((0u8..4, any::<bool>()), 0..200),
        ) {
            let source = |number: u8| format!("10.0.{number}.0/24").parse::<IpNet>().expect("a prefix");
            let (mut places, mut flows) = (Places::default(), Vec::new());
            for (number, comes) in steps {
                let source = source(number);
                if comes && places.has_room(source, most) {
                    places.enter(source);
                    flows.push(source);
                } else if let Some(at) = flows.iter().position(|it| *it == source).filter(|_| !comes) {
                    places.leave(flows.swap_remove(at));
                }
                let live = flows.iter().filter(|it| **it == source).count();
                prop_assert_eq!(places.of(source) as usize, live);
                prop_assert!(places.of(source) <= most);
                prop_assert!(places.sources() <= flows.len());
            }
            for source in flows {
                places.leave(source);
            }
            prop_assert_eq!(places.sources(), 0);
        }
    }
}
