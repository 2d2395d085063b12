//! Resolves targets that were requested by name: `/etc/hosts`, then the servers of `/etc/resolv.conf`.
//!
//! Invariant: a lookup costs no thread. The number of lookups that wait for an answer is bounded, in total and per
//! requester. A name in `/etc/hosts` needs no waiting.

use hickory_resolver::{
    Hosts, TokioResolver,
    config::ResolveHosts,
    proto::{
        op::Query,
        rr::{Name, RecordType},
    },
};
use midhop_tunnel::{cause::Cause, target::Target};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt, fs,
    future::ready,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    pin::Pin,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{self, Instant};

/// Timeout of a lookup.
const LOOKUP: Duration = Duration::from_secs(10);
/// How long the addresses of one family wait for those of IPv6: RFC 8305 §3.
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
/// The most addresses of a family that are tried.
const ADDRESSES_MAX: usize = 4;
/// Concurrent lookups that wait for an answer: per requester, and in total.
const EACH: usize = 64;
const ALL: usize = 256;

const HOSTS: &str = "/etc/hosts";
const SERVERS: &str = "/etc/resolv.conf";

/// The lookups of all threads that wait for an answer.
#[derive(Debug, Default)]
pub struct PendingLookups(Mutex<BTreeMap<String, usize>>);

/// A place among them. Dropping it frees the place.
#[derive(Debug)]
struct Place {
    waiting: Arc<PendingLookups>,
    asker: String,
}

impl PendingLookups {
    fn enter(self: &Arc<Self>, asker: &str) -> Option<Place> {
        let mut askers = self.lock();
        let own = askers.get(asker).copied().unwrap_or(0);
        if own >= EACH || askers.values().sum::<usize>() >= ALL {
            return None;
        }
        askers.insert(asker.to_owned(), own + 1);
        Some(Place { waiting: self.clone(), asker: asker.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut askers = self.waiting.lock();
        if let Some(count) = askers.get_mut(&self.asker) {
            *count -= 1;
            if *count == 0 {
                askers.remove(&self.asker);
            }
        }
    }
}

/// The addresses of a target, as far as they are known.
pub struct Found {
    /// In the order in which to try them.
    pub first: Vec<SocketAddr>,
    /// Those of the other family, which have not arrived.
    pub later: Later,
}

/// A lookup on its way.
pub type Lookup<'a> = Pin<Box<dyn Future<Output = Result<Found, Cause>> + 'a>>;

/// Addresses that have not arrived yet.
pub type Later = Pin<Box<dyn Future<Output = Vec<SocketAddr>>>>;

impl Found {
    fn all(addresses: Vec<SocketAddr>) -> Self {
        Self { first: alternate(addresses), later: Box::pin(ready(Vec::new())) }
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found").field("first", &self.first).finish_non_exhaustive()
    }
}

/// One thread's resolver.
#[derive(Debug)]
pub struct Resolver {
    waiting: Arc<PendingLookups>,
    names: RefCell<Option<Rc<Names>>>,
}

impl Resolver {
    /// A resolver whose lookups count among those of all threads.
    pub fn new(waiting: Arc<PendingLookups>) -> Self {
        Self { waiting, names: RefCell::default() }
    }

    /// The addresses of a target that `asker` requests; names only where they are `allowed`.
    ///
    /// # Errors
    /// When it is a name that is unknown, or cannot be looked up now.
    pub fn look_up<'a>(&'a self, target: &'a Target, allowed: bool, asker: &'a str) -> Lookup<'a> {
        // A future's code is compiled in every caller that polls it, unless it is boxed.
        Box::pin(self.look_up_now(target, allowed, asker))
    }

    async fn look_up_now(
        &self,
        target: &Target,
        allowed: bool,
        asker: &str,
    ) -> Result<Found, Cause> {
        let (name, port) = match target {
            Target::Address(address) => return Ok(Found::all(vec![*address])),
            Target::Name(..) if !allowed => return Err(Cause::NamesOff),
            Target::Name(name, port) => (name.as_str(), *port),
        };
        let name = Name::from_str_relaxed(name).map_err(|_| Cause::NameUnknown)?;
        let names = self.names();
        let known = names.static_addresses(&name, port);
        if !known.is_empty() {
            return Ok(Found::all(known));
        }
        let resolver = names.resolver.clone().ok_or(Cause::NameUnknown)?;
        let place = Rc::new(self.waiting.enter(asker).ok_or(Cause::Full)?);
        let deadline = Instant::now() + LOOKUP;
        let family = |kind| -> Later {
            Box::pin(ask(resolver.clone(), name.clone(), kind, port, deadline, place.clone()))
        };
        let (mut v6, mut v4) = (family(RecordType::AAAA), family(RecordType::A));
        let found = tokio::select! {
            first = &mut v6 => match first.is_empty() {
                true => Found::all(v4.await),
                false => Found { first, later: v4 },
            },
            mut first = &mut v4 => match time::timeout(RESOLUTION_DELAY, &mut v6).await {
                Ok(mut v6) => {
                    v6.append(&mut first);
                    Found::all(v6)
                }
                Err(_late) if first.is_empty() => Found::all(v6.await),
                Err(_late) => Found { first, later: v6 },
            },
        };
        if found.first.is_empty() { Err(Cause::NameUnknown) } else { Ok(found) }
    }

    /// The present contents of the files.
    fn names(&self) -> Rc<Names> {
        let stamps = [HOSTS, SERVERS].map(Stamp::of);
        let mut names = self.names.borrow_mut();
        match &*names {
            Some(known) if known.stamps == stamps => known.clone(),
            _ => names.insert(Rc::new(Names::read(stamps))).clone(),
        }
    }
}

/// Queries the addresses of one family; none where they do not arrive in time.
async fn ask(
    resolver: TokioResolver,
    name: Name,
    kind: RecordType,
    port: u16,
    deadline: Instant,
    _place: Rc<Place>,
) -> Vec<SocketAddr> {
    match time::timeout_at(deadline, resolver.lookup(name, kind)).await {
        Ok(Ok(lookup)) => {
            let found = lookup.answers().iter().filter_map(|record| record.data.ip_addr());
            found.take(ADDRESSES_MAX).map(|address| SocketAddr::new(address, port)).collect()
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, ?kind, "a name could not be resolved to addresses of this kind");
            Vec::new()
        }
        Err(_late) => Vec::new(),
    }
}

/// The addresses in the order of the attempts: the families alternate, from the first one's on.
fn alternate(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let leads = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (one, other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == leads);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut order = Vec::new();
    loop {
        let pair = [one.next(), other.next()];
        if pair == [None, None] {
            return order;
        }
        order.extend(pair.into_iter().flatten());
    }
}

/// The names known without a query, and the servers to query.
struct Names {
    /// The stamps of the files when they were read.
    stamps: [Option<Stamp>; 2],
    hosts: Hosts,
    resolver: Option<TokioResolver>,
}

impl Names {
    fn read(stamps: [Option<Stamp>; 2]) -> Self {
        let hosts = Hosts::from_system().unwrap_or_default();
        let resolver = TokioResolver::builder_tokio().and_then(|mut builder| {
            // They are searched before.
            builder.options_mut().use_hosts_file = ResolveHosts::Never;
            builder.build()
        });
        let resolver = resolver
            .inspect_err(|error| tracing::warn!(%error, "no resolver is available: names cannot be resolved"))
            .ok();
        Self { stamps, hosts, resolver }
    }

    fn static_addresses(&self, name: &Name, port: u16) -> Vec<SocketAddr> {
        let of = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let found = [RecordType::AAAA, RecordType::A].into_iter().filter_map(of);
        found
            .flat_map(|lookup| {
                let addresses = lookup.answers().iter().filter_map(|record| record.data.ip_addr());
                addresses.take(ADDRESSES_MAX).collect::<Vec<_>>()
            })
            .map(|address| SocketAddr::new(address, port))
            .collect()
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("stamps", &self.stamps).finish_non_exhaustive()
    }
}

/// Detects that a file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &str) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        let changed = (file.ctime(), file.ctime_nsec());
        Some(Self { inode: file.ino(), bytes: file.len(), changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    #[test]
    fn families_alternate_from_the_first_on() {
        let mixed =
            addresses(&["[2001:db8::1]:1", "[2001:db8::2]:1", "192.0.2.1:1", "192.0.2.2:1"]);
        let expected =
            addresses(&["[2001:db8::1]:1", "192.0.2.1:1", "[2001:db8::2]:1", "192.0.2.2:1"]);
        assert_eq!(alternate(mixed), expected);
        let mixed = addresses(&["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1", "[2001:db8::1]:1"]);
        let expected = addresses(&["192.0.2.1:1", "[2001:db8::1]:1", "192.0.2.2:1", "192.0.2.3:1"]);
        assert_eq!(alternate(mixed), expected);
    }

    #[test]
    fn nobody_takes_the_places_of_all() {
        let waiting = Arc::new(PendingLookups::default());
        let greedy: Vec<_> = (0..700).filter_map(|_| waiting.enter("greedy")).collect();
        assert_eq!(greedy.len(), EACH);
        let other = waiting.enter("other");
        assert!(other.is_some());
        let mut held: Vec<_> =
            (0..ALL).filter_map(|number| waiting.enter(&number.to_string())).collect();
        assert_eq!(held.len() + greedy.len() + 1, ALL);
        assert!(waiting.enter("late").is_none());
        held.pop();
        assert!(waiting.enter("late").is_some());
        drop((greedy, other, held));
        assert!(waiting.lock().is_empty());
    }
}
