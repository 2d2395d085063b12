//! A node: packets are for an endpoint here, or take the next hop.

use crate::agent::Agent;
use crate::agents::AckFilter;
use crate::engine::Timer;
use crate::hop::HopId;
use crate::packet::NodeId;
use midhop_experiment::record::{LegResult, Series};
use midhop_units::Instant;
use std::collections::BTreeMap;

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The next hop to each node, by the node's number; `None` to itself and to unreachable nodes.
    routes: Vec<Option<HopId>>,
    /// The agents here, in the order in which packets pass them; the proxy, if there is one, last.
    pub(crate) posts: Vec<Post>,
    /// The ACK filter for the queues of the links that leave it.
    pub(crate) filter: Option<(String, AckFilter)>,
    /// Packets that ended here without a destination here, by cause.
    pub(crate) drops: BTreeMap<&'static str, u64>,
}

/// An agent at a node.
#[derive(Debug)]
pub(crate) struct Post {
    /// Its name in the scenario, before its counts in the record; the proxy's have none.
    pub name: Option<String>,
    pub agent: Box<dyn Agent>,
    /// Its timer.
    pub timer: Timer,
    /// It ends connections and sends in their ends' names: it stands behind all others, and does not
    /// process its own packets.
    pub is_proxy: bool,
}

impl Node {
    /// A node with these routes to all others.
    pub fn new(name: String, routes: Vec<Option<HopId>>) -> Self {
        Self { name, routes, posts: Vec::new(), filter: None, drops: BTreeMap::new() }
    }

    /// The next hop on the route to `destination`.
    pub fn route(&self, destination: NodeId) -> Option<HopId> {
        self.routes.get(destination.index()).copied().flatten()
    }

    /// Changes the route to `destination`.
    pub fn set_route(&mut self, destination: NodeId, hop: Option<HopId>) {
        if let Some(route) = self.routes.get_mut(destination.index()) {
            *route = hop;
        }
    }

    /// Adds an agent here, behind the present ones but before a proxy.
    pub(crate) fn place(&mut self, post: Post) {
        let proxies = self.posts.iter().filter(|post| post.is_proxy).count();
        let behind = if post.is_proxy { 0 } else { proxies };
        self.posts.insert(self.posts.len() - behind, post);
    }

    /// Counts a packet that ends here.
    pub(crate) fn count_drop(&mut self, cause: &'static str) {
        *self.drops.entry(cause).or_default() += 1;
    }

    /// The counts of the agents here, each by its own names.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let named = |name: Option<&String>, what: &str| match name {
            Some(name) => format!("{name}.{what}"),
            None => what.to_owned(),
        };
        let filter = self.filter.iter().flat_map(|(name, filter)| {
            filter.counts().into_iter().map(move |(what, count)| (named(Some(name), what), count))
        });
        let posts = self.posts.iter().flat_map(|post| {
            let counts = post.agent.counts().into_iter();
            counts.map(move |(what, count)| (named(post.name.as_ref(), what), count))
        });
        posts.chain(filter).collect()
    }

    /// The counts of the connections of proxies here.
    pub fn legs(&self, now: Instant) -> Vec<LegResult> {
        self.posts.iter().flat_map(|post| post.agent.legs(now)).collect()
    }

    /// Samples the connections of proxies here, as at `at`.
    pub(crate) fn sample(&mut self, at: Instant) {
        self.posts.iter_mut().for_each(|post| post.agent.sample(at));
    }

    /// Their samples over time.
    pub fn series(&self) -> impl Iterator<Item = Series> {
        self.posts.iter().flat_map(|post| post.agent.series())
    }

    /// Packets that ended here without a destination here, by cause.
    pub fn drops(&self) -> &BTreeMap<&'static str, u64> {
        &self.drops
    }
}
