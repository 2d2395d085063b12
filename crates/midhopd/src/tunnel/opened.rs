//! Flows that were opened here for peers. If one of them comes back through a tunnel, there is a loop.
//!
//! A proxy on a flow's route keeps the flow's addresses and ports, whether it splits the flow or
//! sends it into a tunnel. So a request for a flow that leaves from here is a loop, however many
//! hosts it has passed. If NAT on the route changes the client's address, the number of hops in
//! requests bounds the loop.

use crate::ends::Ends;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The live flows of all workers. `client` is the client that the server sees.
#[derive(Debug, Clone, Default)]
pub struct Opened(Arc<Mutex<HashMap<Ends, usize>>>);

/// A live flow. Dropping it removes it.
#[derive(Debug)]
pub struct Leaving {
    opened: Opened,
    ends: Ends,
}

impl Opened {
    /// Records a flow that leaves from here.
    pub fn note(&self, ends: Ends) -> Leaving {
        let ends = canonical(ends);
        *self.flows().entry(ends).or_default() += 1;
        Leaving { opened: self.clone(), ends }
    }

    /// Whether a flow leaves from here.
    pub fn has(&self, ends: Ends) -> bool {
        self.flows().contains_key(&canonical(ends))
    }

    fn flows(&self) -> MutexGuard<'_, HashMap<Ends, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut flows = self.opened.flows();
        if let Some(count) = flows.get_mut(&self.ends) {
            *count -= 1;
            if *count == 0 {
                flows.remove(&self.ends);
            }
        }
    }
}

fn canonical(mut ends: Ends) -> Ends {
    for end in [&mut ends.client, &mut ends.server] {
        end.set_ip(end.ip().to_canonical());
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(client: &str, server: &str) -> Ends {
        let address = |text: &str| text.parse().expect("an address");
        Ends { client: address(client), server: address(server) }
    }

    #[test]
    fn a_flow_is_known_as_long_as_it_lives() {
        let opened = Opened::default();
        let flow = ends("192.0.2.1:5", "192.0.2.2:80");
        let first = opened.note(flow);
        let second = opened.note(flow);
        assert!(opened.has(ends("[::ffff:192.0.2.1]:5", "192.0.2.2:80")));
        assert!(!opened.has(ends("192.0.2.1:6", "192.0.2.2:80")));
        assert!(!opened.has(ends("192.0.2.1:5", "192.0.2.2:81")));
        drop(first);
        assert!(opened.has(flow));
        drop(second);
        assert!(!opened.has(flow) && opened.flows().is_empty());
    }
}
