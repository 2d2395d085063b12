//! Routes through a network of nodes: fewest hops, then shortest delay, then the link's name.

use midhop_path::Direction;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A link as routing sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// Its name.
    pub name: String,
    /// Its two nodes.
    pub ends: [String; 2],
    /// Delay there and back. Unit: nanoseconds.
    pub delay_ns: u64,
}

/// A link as a route crosses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossing {
    /// The link.
    pub link: String,
    /// The direction in which it is crossed.
    pub direction: Direction,
}

impl Edge {
    fn other(&self, node: &str) -> Option<&str> {
        match self.ends.iter().position(|end| end == node)? {
            0 => Some(&self.ends[1]),
            _ => Some(&self.ends[0]),
        }
    }
}

/// For each node that can reach `destination`: the link to take and the node at its other end.
/// The destination itself is not among them.
///
/// Invariant: following the links ends at the destination, from any node.
pub fn towards<'e>(edges: &'e [Edge], destination: &str) -> BTreeMap<String, (&'e Edge, String)> {
    let mut next: BTreeMap<String, (&Edge, String)> = BTreeMap::new();
    let mut cost: BTreeMap<String, (u32, u64)> = BTreeMap::from([(destination.to_owned(), (0, 0))]);
    let mut waiting: BTreeSet<((u32, u64), String)> =
        BTreeSet::from([((0, 0), destination.to_owned())]);
    while let Some((known, node)) = waiting.pop_first() {
        for edge in edges {
            let Some(far) = edge.other(&node) else { continue };
            let through = (known.0 + 1, known.1.saturating_add(edge.delay_ns));
            let better = match (cost.get(far), next.get(far)) {
                (Some(&before), _) if through < before => {
                    waiting.remove(&(before, far.to_owned()));
                    true
                }
                (Some(&before), Some((taken, _))) => through == before && edge.name < taken.name,
                (Some(_), None) => false,
                (None, _) => true,
            };
            if better {
                cost.insert(far.to_owned(), through);
                next.insert(far.to_owned(), (edge, node.clone()));
                waiting.insert((through, far.to_owned()));
            }
        }
    }
    next
}

/// The links from `start` to `destination` in order, each with the node from which it is entered;
/// none when there is no route.
pub fn path<'e>(
    edges: &'e [Edge],
    start: &str,
    destination: &str,
) -> Option<Vec<(&'e Edge, String)>> {
    let next = towards(edges, destination);
    let mut hops = Vec::new();
    let mut node = start.to_owned();
    while node != destination {
        let (edge, far) = next.get(&node)?;
        hops.push((*edge, node));
        node = far.clone();
    }
    Some(hops)
}

/// The links of a route, each with the direction in which it is crossed.
pub(crate) fn crossings(hops: &[(&Edge, String)]) -> Vec<Crossing> {
    hops.iter()
        .map(|(edge, entered_from)| Crossing {
            link: edge.name.clone(),
            direction: if edge.ends[0] == *entered_from { Direction::Up } else { Direction::Down },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edge(name: &str, a: &str, b: &str, delay_ns: u64) -> Edge {
        Edge { name: name.into(), ends: [a.into(), b.into()], delay_ns }
    }

    fn names(edges: &[Edge], start: &str, end: &str) -> Option<Vec<String>> {
        let hops = path(edges, start, end)?;
        Some(hops.iter().map(|(edge, _)| edge.name.clone()).collect())
    }

    #[test]
    fn hops_come_before_delay_and_delay_before_names() {
        let edges = [
            edge("slow", "a", "d", 1_000),
            edge("one", "a", "b", 1),
            edge("two", "b", "d", 1),
            edge("quick", "d", "e", 5),
            edge("bad", "d", "e", 9),
            edge("alike", "d", "e", 5),
            edge("away", "x", "y", 1),
        ];
        assert_eq!(names(&edges, "a", "d"), Some(vec!["slow".into()]));
        assert_eq!(names(&edges, "b", "e"), Some(vec!["two".into(), "alike".into()]));
        assert_eq!(names(&edges, "e", "b"), Some(vec!["alike".into(), "two".into()]));
        assert_eq!(names(&edges, "a", "a"), Some(vec![]));
        assert_eq!((names(&edges, "a", "y"), names(&edges, "q", "a")), (None, None));
    }

    proptest! {
        #[test]
        fn no_way_is_longer_than_it_must_be(
            pairs in proptest::collection::vec((0..8u8, 0..8u8, 0..20u64), 1..20),
            start in 0..8u8,
            end in 0..8u8,
        ) {
            let edges: Vec<Edge> = pairs
                .iter()
                .enumerate()
                .filter(|(_, (a, b, _))| a != b)
                .map(|(n, (a, b, delay))| edge(&format!("l{n}"), &a.to_string(), &b.to_string(), *delay))
                .collect();
            // An independent breadth-first search.
            let mut reached = BTreeSet::from([start.to_string()]);
            let mut steps = 0;
            while !reached.contains(&end.to_string()) {
                let more: BTreeSet<String> = edges
                    .iter()
                    .flat_map(|edge| reached.iter().filter_map(|node| edge.other(node)))
                    .map(str::to_owned)
                    .collect();
                let before = reached.len();
                reached.extend(more);
                steps += 1;
                if reached.len() == before {
                    break;
                }
            }
            let found = path(&edges, &start.to_string(), &end.to_string());
            match found {
                Some(hops) => prop_assert_eq!(hops.len(), steps),
                None => prop_assert!(!reached.contains(&end.to_string())),
            }
        }
    }
}
