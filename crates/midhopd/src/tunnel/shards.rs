//! One address with a socket per worker. Each connection is handled by the worker that has its keys.
//!
//! The kernel divides datagrams among the sockets of an address by source and destination (`SO_REUSEPORT`). That
//! selects the right socket until a peer's address changes. So a connection ID identifies the worker that made it, to
//! those who know the key, and a worker hands over a datagram that it receives for another one. Repair packets have
//! no connection ID: they go to the worker that got the last datagram from their address.
//!
//! Decision 0030.

use super::quic::{EndpointShared, QuicEndpoint};
use midhop_tunnel::fec::Packet;
use midhop_tunnel::quic::Datagram;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, HashedConnectionIdGenerator, InvalidCid};
use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock, Weak},
};

/// Unit: bytes. Length of a connection ID of ours.
const LEN: usize = 8;

/// The keys that make and recognize connection IDs.
#[derive(Clone, Copy)]
pub struct Keys {
    /// Distinguishes an ID of ours from any other.
    own: u64,
    /// Identifies the worker.
    shard: u64,
}

impl Keys {
    /// Derives the keys from a secret.
    pub fn of(secret: &[u8; 32]) -> Self {
        let key = |at: usize| {
            let bytes = secret.get(at..at + 8).and_then(|bytes| bytes.first_chunk().copied());
            bytes.map_or(0, u64::from_be_bytes)
        };
        Self { own: key(0), shard: key(8) }
    }

    /// Which of `count` shards has made this connection ID, if any.
    fn shard_of(&self, id: &[u8], count: usize) -> Option<usize> {
        let bytes: [u8; LEN] = id.try_into().ok()?;
        let own = HashedConnectionIdGenerator::from_key(self.own);
        own.validate(&ConnectionId::new(&bytes)).ok()?;
        Some(self.part(bytes, count))
    }

    /// Evenly selects one of `count`. Without the key it cannot be predicted.
    fn part(&self, id: [u8; LEN], count: usize) -> usize {
        // The final mix of SplitMix64.
        let mut mixed = u64::from_be_bytes(id) ^ self.shard;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * count as u128) >> 64) as usize
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys must not be printed.
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// Makes the connection IDs of one shard.
pub struct Ids {
    keys: Keys,
    any: HashedConnectionIdGenerator,
    shard: usize,
    count: usize,
}

impl Ids {
    /// The IDs of the `shard`th of `count` shards; of the only shard where there are no others.
    pub fn new(keys: Keys, shard: usize, count: usize) -> Self {
        Self { keys, any: HashedConnectionIdGenerator::from_key(keys.own), shard, count }
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        // One in `count` is this shard's: this takes a few draws and as many hashes.
        loop {
            let id = self.any.generate_cid();
            let bytes: Option<[u8; LEN]> = id[..].try_into().ok();
            if bytes.is_none_or(|bytes| self.keys.part(bytes, self.count) == self.shard) {
                return id;
            }
        }
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        // IDs of any shard are valid: a peer of an earlier process must receive a reset.
        if id.len() == LEN { self.any.validate(id) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        LEN
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

/// The sockets of one address.
#[derive(Debug)]
pub struct Shards {
    keys: Keys,
    /// One socket per worker, where it is open.
    sockets: Vec<RwLock<Weak<EndpointShared>>>,
}

/// One worker's place among the sockets.
#[derive(Debug, Clone)]
pub struct Shard {
    all: Arc<Shards>,
    number: usize,
}

impl Shards {
    /// Creates this many places, none of them open.
    pub fn divide(keys: Keys, count: usize) -> Vec<Shard> {
        let sockets = (0..count).map(|_| RwLock::default()).collect();
        let all = Arc::new(Self { keys, sockets });
        (0..count).map(|number| Shard { all: all.clone(), number }).collect()
    }
}

impl Shard {
    /// Creates the only place of a socket that is not shared.
    pub fn alone(keys: Keys) -> Self {
        let all = Arc::new(Shards { keys, sockets: vec![RwLock::default()] });
        Self { all, number: 0 }
    }

    /// The generator of its connection IDs.
    pub fn ids(&self) -> Ids {
        Ids::new(self.all.keys, self.number, self.all.sockets.len())
    }

    /// Its socket is open.
    pub fn open(&self, endpoint: &QuicEndpoint) {
        if let Some(own) = self.all.sockets.get(self.number) {
            *own.write().unwrap_or_else(PoisonError::into_inner) = endpoint.downgrade();
        }
    }

    /// Whether it is the only one.
    pub fn is_alone(&self) -> bool {
        self.all.sockets.len() < 2
    }

    /// The other shard that a datagram is for, if its connection ID identifies one. A datagram that
    /// begins a connection is for the shard that receives it.
    pub fn other(&self, datagram: &[u8]) -> Option<usize> {
        let shard = self.all.keys.shard_of(destination(datagram)?, self.all.sockets.len())?;
        (shard != self.number).then_some(shard)
    }

    /// Hands a datagram over to another shard. If that has no room, the datagram is lost, as in any network.
    ///
    /// # Errors
    /// Returns the datagram if that shard has no socket.
    pub fn hand_over(&self, shard: usize, datagram: Datagram) -> Result<(), Datagram> {
        let socket = self
            .all
            .sockets
            .get(shard)
            .and_then(|socket| socket.read().unwrap_or_else(PoisonError::into_inner).upgrade());
        match socket {
            Some(endpoint) => endpoint.take_over(datagram),
            None => Err(datagram),
        }
    }
}

/// The destination connection ID in a datagram, if it may be one of ours (RFC 9000 §17.2, §17.3.1).
/// The datagram may have a header of the repair layer. None if there is no such ID.
fn destination(datagram: &[u8]) -> Option<&[u8]> {
    const LONG: u8 = 0x80;
    let quic = Packet::quic_in(datagram)?;
    if quic.first()? & LONG == 0 {
        return quic.get(1..=LEN);
    }
    // Flags, the version, the ID's length.
    let len = usize::from(*quic.get(5)?);
    (len == LEN).then(|| quic.get(6..6 + LEN)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::of(&std::array::from_fn(|at| at as u8))
    }

    /// QUIC datagrams with this connection ID: with a short header, a long one, and the first below headers of ours.
    fn datagrams(id: &[u8]) -> Vec<Vec<u8>> {
        let short = [&[0x41], id, &[7; 30]].concat();
        let long = [&[0xe0, 0, 0, 0, 1, id.len() as u8], id, &[7; 30]].concat();
        let source = [&[0x80, 0, 9], &short[..]].concat();
        let plain = [&[0; 7], &short[..]].concat();
        vec![short, long, source, plain]
    }

    #[test]
    fn a_connection_id_shows_us_which_shard_it_is_of() {
        for count in [1, 2, 3, 64] {
            let shards = Shards::divide(keys(), count);
            for (number, shard) in shards.iter().enumerate() {
                let mut ids = shard.ids();
                for _ in 0..20 {
                    let id = ids.generate_cid();
                    assert!(ids.validate(&id).is_ok() && id.len() == ids.cid_len());
                    for datagram in datagrams(&id) {
                        assert_eq!(shard.other(&datagram), None, "it is its own");
                        let others = shards.iter().filter(|it| it.number != number);
                        for other in others {
                            assert_eq!(other.other(&datagram), Some(number));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn shards_have_like_parts_of_all_ids() {
        let mut any = HashedConnectionIdGenerator::from_key(1);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            let id: [u8; LEN] = any.generate_cid()[..].try_into().expect("eight bytes");
            counts[keys().part(id, 4)] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    #[test]
    fn what_is_not_ours_stays_where_it_was_received() {
        let shards = Shards::divide(keys(), 2);
        let mut foreign = HashedConnectionIdGenerator::from_key(5);
        for _ in 0..100 {
            for datagram in datagrams(&foreign.generate_cid()) {
                assert!(shards.iter().all(|shard| shard.other(&datagram).is_none()));
            }
        }
        let longer = datagrams(&[1; 20]).swap_remove(1);
        for datagram in [&[][..], &[0x40], &[0xc0, 0, 0, 0, 1, 8, 1], &[0xa0; 40], &longer] {
            assert!(shards.iter().all(|shard| shard.other(datagram).is_none()), "{datagram:?}");
        }
        assert!(shards[0].ids().validate(&ConnectionId::new(&[1])).is_err());
    }
}
