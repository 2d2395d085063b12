//! Which targets have recently accepted connections, for `accept = "learned"`.

use std::collections::BTreeMap;

/// The most targets that are remembered.
const TARGETS: usize = 1 << 16;

/// When targets last accepted a connection. A target that has failed since then is removed. `T` is a moment of the
/// caller's clock.
#[derive(Debug)]
pub struct Answered<K, T> {
    at: BTreeMap<K, T>,
}

impl<K, T> Default for Answered<K, T> {
    fn default() -> Self {
        Self { at: BTreeMap::new() }
    }
}

impl<K: Ord, T: Copy> Answered<K, T> {
    /// Remembers whether a target accepts connections.
    pub fn learn(&mut self, target: K, accepts: bool, now: T) {
        if !accepts {
            self.at.remove(&target);
            return;
        }
        if self.at.len() >= TARGETS && !self.at.contains_key(&target) {
            // It does not matter which one is removed: the cost is one round trip.
            self.at.pop_first();
        }
        self.at.insert(target, now);
    }

    /// Whether a target has accepted a connection at a moment that is recent enough.
    pub fn accepts(&self, target: &K, is_recent: impl FnOnce(T) -> bool) -> bool {
        self.at.get(target).copied().is_some_and(is_recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_forgotten_by_a_failure_and_when_it_is_old() {
        let mut answered = Answered::default();
        answered.learn("a", true, 10);
        assert!(answered.accepts(&"a", |at| at == 10));
        assert!(!answered.accepts(&"a", |at| at > 10));
        assert!(!answered.accepts(&"b", |_| true));
        answered.learn("a", false, 11);
        assert!(!answered.accepts(&"a", |_| true));
    }

    #[test]
    fn memory_is_bounded() {
        let mut answered = Answered::default();
        for target in 0..TARGETS + 10 {
            answered.learn(target, true, 0);
        }
        assert_eq!(answered.at.len(), TARGETS);
        assert!(answered.accepts(&(TARGETS + 9), |_| true), "the newest");
    }
}
