//! Which descriptors belong to which flow, in memory that outlives the process.
//!
//! It has no counts of bytes: the kernel has these. A flow is entered before it is relayed and
//! removed before its sockets are closed. A pipe is recorded before the first byte goes into it,
//! and removed before another flow may use it.
//!
//! Behind the regions of the workers are the listeners with waiting connections, the flows that are
//! being opened, and the [memory](super::store) for bytes that tunnels have not confirmed.
//!
//! Invariant: a process that reads it after a death trusts none of it. Because descriptors are used
//! again, a socket is the flow's only if it has the recorded cookie.

mod numbers;
mod openings;
mod streams;

pub use openings::{OpeningEntry, Openings};
pub use streams::StreamRecord;

use super::handed::monotonic;
use crate::ends::{Ends, Side};
use midhop_linux::shared_pool::{LeftBytes, PoolSize, SharedPool};
use midhop_linux::shared_words::SharedWords;
use midhop_linux::sockopt;
use nix::libc;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

/// Unit: words. What the register has in front of its regions.
const FRONT: usize = 8;
/// Unit: words. What each region has in front of its places.
const HEAD: usize = 8;
/// Unit: words. A flow's place.
const PLACE: usize = 24;
/// Unit: listeners. The most that outlive the process.
const DOORS: usize = 1024;
/// Unit: chunks. Memory for bytes that tunnels have not confirmed: 320 MiB, which are allocated
/// when they are used.
const CHUNKS: (usize, usize) = (4096, 16 << 10);
/// Unit: words. What is in front of them: the [`PoolSize`], and [`MAGIC`] again. Since format 3.
const POOL_HEAD: usize = 4;
/// The longest name of an interface, with the 0 behind it (`IFNAMSIZ`).
const INTERFACE_BYTES: usize = 16;

/// What begins every register: "midhopd\n".
const MAGIC: u64 = u64::from_be_bytes(*b"midhopd\n");
/// The format of registers that this program makes. A format with more words has the next number,
/// and keeps the existing words as they are, so that the previous program can still read it.
pub const FORMAT: u64 = 3;
/// The oldest format whose readers understand a register of this program.
pub const READABLE_FROM: u64 = 1;

/// The words in front of the regions. They keep their meaning in every format.
mod front {
    pub const MAGIC: usize = 0;
    pub const FORMAT: usize = 1;
    pub const READABLE_FROM: usize = 2;
    pub const REGIONS: usize = 3;
    pub const PLACES: usize = 4;
    /// Unit: words.
    pub const HEAD: usize = 5;
    /// Unit: words.
    pub const PLACE: usize = 6;
    /// Unit: words. Room for listeners behind the regions. Behind it is one more region, for flows
    /// that are being opened. Since format 2.
    pub const DOORS: usize = 7;
}

/// The words of a place.
mod at {
    /// 0: there is none; 1: a flow between two sockets; 2: [one](super::StreamRecord) between a socket and a tunnel, since
    /// format 3; 3: one between two sockets that may have moved to another machine: a program that does not know this
    /// finds no flow, and its sockets are closed, which sends nothing.
    pub const LIVE: usize = 0;
    pub const SOCKETS: usize = 1;
    pub const PIPES: [usize; 2] = [2, 3];
    pub const COOKIES: [usize; 2] = [4, 5];
    pub const CLIENT: usize = 6;
    pub const SERVER: usize = 8;
    pub const PORTS: usize = 10;
    pub const SCOPES: usize = 11;
    pub const LEGS: [usize; 2] = [12, 13];
    pub const INTERFACE: [usize; 2] = [14, 15];
    pub const RULE: usize = 16;
    pub const DSCP: usize = 17;
    pub const AHEAD: [usize; 2] = [18, 19];
    pub const BEGAN: usize = 20;
    /// Since format 2.
    pub const ANSWERED: usize = 21;
    /// 1: packets of a flow between two sockets may be dropped, because it stands still. A program that does not know
    /// this word leaves that to the time-out of the sets.
    pub const STILL: usize = 22;
}

/// What another process needs to continue a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its ends.
    pub ends: Ends,
    /// Descriptors of the client's socket and of the server's.
    pub sockets: [RawFd; 2],
    /// The kernel's cookies of these, which it never uses again.
    pub cookies: [u64; 2],
    /// The pipes up and down, if there are any: the end that is read, and the end that is written.
    pub pipes: [Option<(RawFd, RawFd)>; 2],
    /// [Names](name_of) of the legs towards client and server.
    pub legs: [u64; 2],
    /// The interface on which it arrived.
    pub interface: Option<Box<str>>,
    /// The rule that decided.
    pub rule: Option<usize>,
    /// The DSCP of its SYN.
    pub dscp: u8,
    /// Unit: bytes. Difference, when the flow began, between the bytes written to one socket and
    /// those read from the other; up and down, modulo 2⁶⁴.
    pub ahead: [u64; 2],
    /// Unit: nanoseconds of the monotonic clock. When it began.
    pub began: u64,
    /// The class of service of the server's SYN-ACK.
    pub answered: u8,
    /// How it is resumed, if one side of it is a tunnel. That side has no socket and no pipe.
    pub stream: Option<StreamRecord>,
    /// Whether it may have moved to another machine: it must not go on here.
    pub leaves: bool,
    /// Whether its packets may be dropped, because it stands still to move to another machine.
    pub is_still: bool,
}

/// What the first word of a place is whose flow may have moved to another machine.
const LEAVING: u64 = 3;

/// The value for a socket that does not exist yet.
pub const NO_SOCKET: RawFd = -1;

/// The name of a leg in a [`Record`]: FNV-1a, which is the same in every version of the program.
pub fn name_of(leg: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    leg.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The kernel's cookie of a socket, which it never uses again.
///
/// # Errors
/// When it is not a socket.
pub fn cookie_of(socket: impl AsFd) -> io::Result<u64> {
    let mut room = [0; 8];
    sockopt::read(socket, libc::SOL_SOCKET, libc::SO_COOKIE, &mut room)?;
    Ok(u64::from_ne_bytes(room))
}

/// Unit: nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// The flows of a daemon, in a region for each worker.
#[derive(Debug, Clone)]
pub struct Register {
    words: Arc<SharedWords>,
    regions: usize,
    places: usize,
    /// Unit: words.
    doors: usize,
    /// Whether there is memory for bytes that tunnels have not confirmed.
    has_pool: bool,
}

impl Register {
    /// Creates a register of this many regions, with this many places each.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn new(regions: usize, places: usize) -> io::Result<Self> {
        let start = size_of(regions, places, DOORS).ok_or(io::ErrorKind::InvalidInput)?;
        let size = PoolSize { rooms: regions, large: CHUNKS.0, small: CHUNKS.1 };
        let words = size.words(start + POOL_HEAD).ok_or(io::ErrorKind::InvalidInput)?;
        let words = SharedWords::new(start + POOL_HEAD + words)?;
        for (at, word) in [
            (front::MAGIC, MAGIC),
            (front::FORMAT, FORMAT),
            (front::READABLE_FROM, READABLE_FROM),
            (front::REGIONS, regions as u64),
            (front::PLACES, places as u64),
            (front::HEAD, HEAD as u64),
            (front::PLACE, PLACE as u64),
            (front::DOORS, DOORS as u64),
            (start, size.rooms as u64),
            (start + 1, size.large as u64),
            (start + 2, size.small as u64),
            (start + 3, MAGIC),
        ] {
            words[at].store(word, Release);
        }
        Ok(Self { words: Arc::new(words), regions, places, doors: DOORS, has_pool: true })
    }

    /// Opens a register that another program has made.
    ///
    /// # Errors
    /// When it is not a register, or its format is not one that this program reads.
    pub fn open(file: OwnedFd) -> Result<Self, NoRegister> {
        let words = SharedWords::open(file)?;
        if words.len() < FRONT || words[front::MAGIC].load(Relaxed) != MAGIC {
            return Err(NoRegister::Foreign);
        }
        let get = |at: usize| words[at].load(Relaxed);
        let count = |at: usize| usize::try_from(get(at)).map_err(|_| NoRegister::Foreign);
        is_read(get(front::FORMAT), get(front::READABLE_FROM))?;
        let (regions, places) = (count(front::REGIONS)?, count(front::PLACES)?);
        let doors = count(front::DOORS)?;
        let size = size_of(regions, places, doors);
        let as_here = (count(front::HEAD)?, count(front::PLACE)?) == (HEAD, PLACE);
        if !as_here || size.is_none_or(|size| size > words.len()) {
            return Err(NoRegister::Foreign);
        }
        let has_pool = get(front::FORMAT) >= 3;
        let magic = size.and_then(|start| words.get(start + 3)).map(|word| word.load(Relaxed));
        if has_pool && magic != Some(MAGIC) {
            return Err(NoRegister::Foreign);
        }
        Ok(Self { words: Arc::new(words), regions, places, doors, has_pool })
    }

    /// The file that it is in.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// The memory for bytes that tunnels have not confirmed, with what the previous process has
    /// left there. None if the register's format has no such memory. To be called once in a
    /// process.
    pub fn pool(&self) -> Option<(Arc<SharedPool>, Vec<LeftBytes>)> {
        let start = size_of(self.regions, self.places, self.doors).filter(|_| self.has_pool)?;
        let head = self.words.get(start..start + POOL_HEAD)?;
        let get = |at: usize| usize::try_from(head[at].load(Relaxed)).ok();
        let size = PoolSize { rooms: get(0)?, large: get(1)?, small: get(2)? };
        SharedPool::open(self.words.clone(), start + POOL_HEAD, size)
    }

    /// How many regions it has.
    pub fn regions(&self) -> usize {
        self.regions
    }

    /// How many flows are entered.
    pub fn flows(&self) -> usize {
        (0..self.regions).map(|region| self.records(region).len()).sum()
    }

    /// The descriptors of all flows, of those that are being opened, and of listeners.
    pub fn descriptors(&self) -> BTreeSet<RawFd> {
        let records = (0..self.regions).flat_map(|region| self.records(region));
        let records = records.chain(self.openings());
        let of_flows = records.flat_map(|(_, record)| {
            let pipes = record.pipes.into_iter().flatten().flat_map(|(from, to)| [from, to]);
            record.sockets.into_iter().chain(pipes).collect::<Vec<_>>()
        });
        of_flows.chain(self.doors()).filter(|number| *number >= 0).collect()
    }

    /// Records the listeners, in place of the previous ones. A listener beyond the room that there
    /// is ends with this process.
    pub fn note_doors(&self, numbers: &[RawFd]) {
        let numbers = numbers.iter().map(|number| u64::from(number.cast_unsigned()));
        let numbers = numbers.chain(std::iter::repeat(0));
        self.door_words()
            .iter()
            .zip(numbers)
            .for_each(|(word, number)| word.store(number, Release));
    }

    /// The listeners.
    pub fn doors(&self) -> Vec<RawFd> {
        let numbers = self.door_words().iter().map(|word| word.load(Relaxed));
        let noted = numbers.take_while(|number| *number != 0);
        noted.filter_map(|number| RawFd::try_from(number).ok()).collect()
    }

    fn door_words(&self) -> &[AtomicU64] {
        let start = FRONT + self.regions * (HEAD + self.places * PLACE);
        &self.words[start..start + self.doors]
    }

    /// The flows that are being opened, with their places.
    fn openings(&self) -> Vec<(usize, Record)> {
        if self.doors == 0 { Vec::new() } else { self.records(self.regions) }
    }

    /// The flows of a region, with their places.
    fn records(&self, region: usize) -> Vec<(usize, Record)> {
        let used = usize::try_from(self.head(region)[0].load(Relaxed)).unwrap_or(usize::MAX);
        let used = 0..used.min(self.places);
        used.filter_map(|place| Some((place, read(self.place(region, place))?))).collect()
    }

    fn head(&self, region: usize) -> &[AtomicU64] {
        let start = self.start(region);
        &self.words[start..start + HEAD]
    }

    fn place(&self, region: usize, place: usize) -> &[AtomicU64] {
        let start = self.start(region) + HEAD + place * PLACE;
        &self.words[start..start + PLACE]
    }

    /// Where a region begins. The region of flows that are being opened has the number after the
    /// last worker's.
    fn start(&self, region: usize) -> usize {
        let doors = if region == self.regions { self.doors } else { 0 };
        FRONT + region * (HEAD + self.places * PLACE) + doors
    }
}

/// Why a register cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NoRegister {
    /// Its format is not one that this program reads.
    #[error(
        "the register of flows has format {format}, which programs of format {from} and newer read; this program has format {FORMAT}"
    )]
    Format {
        /// The format.
        format: u64,
        /// The oldest one whose readers understand it.
        from: u64,
    },
    /// It is something else.
    #[error("it is not a register of flows")]
    Foreign,
    /// The kernel refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Whether this program reads a format that readers of `from` and newer ones understand.
///
/// # Errors
/// When it does not.
pub fn is_read(format: u64, from: u64) -> Result<(), NoRegister> {
    // An older format lacks no word that this program needs: a word that is not there reads as 0.
    if from <= FORMAT { Ok(()) } else { Err(NoRegister::Format { format, from }) }
}

/// Unit: words.
fn size_of(regions: usize, places: usize, doors: usize) -> Option<usize> {
    let more = usize::from(doors > 0);
    let region = places.checked_mul(PLACE)?.checked_add(HEAD)?;
    let regions = regions.checked_add(more)?.checked_mul(region)?;
    regions.checked_add(doors)?.checked_add(FRONT)
}

/// The flows of one worker.
#[derive(Debug)]
pub struct Region {
    register: Register,
    number: usize,
    /// Places that were used before and are free now.
    free: RefCell<Vec<usize>>,
    /// Number of places that were ever used.
    used: Cell<usize>,
}

impl Region {
    /// A region, with the flows that the previous process has left in it.
    pub fn of(register: &Register, number: usize) -> (Rc<Self>, Vec<(FlowEntry, Record)>) {
        let left = register.records(number);
        let used = left.last().map_or(0, |(place, _)| place + 1);
        let taken: BTreeSet<usize> = left.iter().map(|(place, _)| *place).collect();
        let free = (0..used).filter(|place| !taken.contains(place)).collect();
        let region = Rc::new(Self {
            register: register.clone(),
            number,
            free: RefCell::new(free),
            used: Cell::new(used),
        });
        region.note_used();
        let entry = |place| FlowEntry { region: region.clone(), place };
        let left = left.into_iter().map(|(place, record)| (entry(place), record)).collect();
        (region, left)
    }

    /// Enters a flow. None if there is no place: then the flow ends with this process.
    pub fn enter(self: &Rc<Self>, record: &Record) -> Option<FlowEntry> {
        let freed = self.free.borrow_mut().pop();
        let place = match freed {
            Some(place) => place,
            None if self.used.get() < self.register.places => {
                let place = self.used.get();
                self.used.set(place + 1);
                self.note_used();
                place
            }
            None => return None,
        };
        write(self.register.place(self.number, place), record);
        Some(FlowEntry { region: self.clone(), place })
    }

    fn note_used(&self) {
        self.register.head(self.number)[0].store(self.used.get() as u64, Release);
    }
}

/// A flow that is entered. Dropping it removes the flow: to be done before its sockets are closed.
#[derive(Debug)]
pub struct FlowEntry {
    region: Rc<Region>,
    place: usize,
}

impl FlowEntry {
    /// Records the pipe for what `from` sends, or that there is none.
    pub fn note_pipe(&self, from: Side, pipe: Option<(RawFd, RawFd)>) {
        let words = self.words();
        words[at::PIPES[from as usize]].store(pair_or_none(pipe), Release);
    }

    /// Notes that a flow between two sockets may be at another machine from now on, or that it is not.
    pub fn note_leaving(&self, leaves: bool) {
        self.words()[at::LIVE].store(if leaves { LEAVING } else { 1 }, Release);
    }

    /// Notes that packets of a flow between two sockets may be dropped from now on, or that they are not.
    pub fn note_still(&self, is_still: bool) {
        self.words()[at::STILL].store(is_still.into(), Release);
    }

    fn words(&self) -> &[AtomicU64] {
        self.region.register.place(self.region.number, self.place)
    }
}

impl Drop for FlowEntry {
    fn drop(&mut self) {
        self.words()[at::LIVE].store(0, Release);
        self.region.free.borrow_mut().push(self.place);
    }
}

/// Two descriptors in one number, which is never 0, as the second one is never standard input.
fn pair(first: RawFd, second: RawFd) -> u64 {
    u64::from(first.cast_unsigned()) | u64::from(second.cast_unsigned()) << 32
}

fn pair_or_none(pipe: Option<(RawFd, RawFd)>) -> u64 {
    pipe.map_or(0, |(source, sink)| pair(source, sink))
}

fn both(packed: u64) -> (RawFd, RawFd) {
    #[expect(clippy::cast_possible_truncation, reason = "each half is a number of its own")]
    let (first, second) = (packed as u32, (packed >> 32) as u32);
    (first.cast_signed(), second.cast_signed())
}

fn write(words: &[AtomicU64], record: &Record) {
    let put = |at: usize, word: u64| words[at].store(word, Relaxed);
    put(at::SOCKETS, pair(record.sockets[0], record.sockets[1]));
    for side in [0, 1] {
        put(at::PIPES[side], pair_or_none(record.pipes[side]));
        put(at::COOKIES[side], record.cookies[side]);
        put(at::LEGS[side], record.legs[side]);
        put(at::AHEAD[side], record.ahead[side]);
    }
    let Ends { client, server } = record.ends;
    for (at, address) in [(at::CLIENT, client), (at::SERVER, server)] {
        let bits = mapped(address.ip()).to_bits();
        #[expect(clippy::cast_possible_truncation, reason = "each half is a word of its own")]
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        put(at, high);
        put(at + 1, low);
    }
    put(at::PORTS, u64::from(client.port()) | u64::from(server.port()) << 16);
    put(at::SCOPES, u64::from(scope(client)) | u64::from(scope(server)) << 32);
    let mut interface = [0; INTERFACE_BYTES];
    let name = record.interface.as_deref().unwrap_or_default().as_bytes();
    let length = name.len().min(INTERFACE_BYTES);
    interface[..length].copy_from_slice(&name[..length]);
    let (halves, _) = interface.as_chunks::<8>();
    for (at, half) in at::INTERFACE.into_iter().zip(halves) {
        put(at, u64::from_ne_bytes(*half));
    }
    put(at::RULE, record.rule.map_or(0, |rule| rule as u64 + 1));
    put(at::DSCP, record.dscp.into());
    put(at::BEGAN, record.began);
    put(at::ANSWERED, record.answered.into());
    put(at::STILL, record.is_still.into());
    let split = if record.leaves { LEAVING } else { 1 };
    let kind = record.stream.as_ref().map_or(split, |stream| stream.write(record, words));
    words[at::LIVE].store(kind, Release);
}

/// The flow of a place. None if there is none, or its words are not valid.
fn read(words: &[AtomicU64]) -> Option<Record> {
    let get = |at: usize| words[at].load(Relaxed);
    let (is_stream, leaves) = match get(at::LIVE) {
        1 => (false, false),
        streams::LIVE => (true, false),
        LEAVING => (false, true),
        _ => return None,
    };
    let sockets = both(get(at::SOCKETS));
    let stream = is_stream.then(|| StreamRecord::read(sockets.into(), words));
    let pipe = |at: usize| Some(get(at)).filter(|word| *word != 0 && !is_stream).map(both);
    let (ports, scopes) = (get(at::PORTS), get(at::SCOPES));
    let address = |at: usize, side: u32| {
        let bits = u128::from(get(at)) << 64 | u128::from(get(at + 1));
        let port = u16::try_from(ports >> (16 * side) & 0xffff).ok()?;
        let scope = u32::try_from(scopes >> (32 * side) & 0xffff_ffff).ok()?;
        let address = Ipv6Addr::from_bits(bits);
        Some(match address.to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, port)),
            None => SocketAddrV6::new(address, port, 0, scope).into(),
        })
    };
    let name: Vec<u8> = at::INTERFACE.iter().flat_map(|at| get(*at).to_ne_bytes()).collect();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).ok()?;
    Some(Record {
        ends: Ends { client: address(at::CLIENT, 0)?, server: address(at::SERVER, 1)? },
        sockets: [sockets.0, sockets.1],
        cookies: at::COOKIES.map(get),
        pipes: at::PIPES.map(pipe),
        legs: at::LEGS.map(get),
        interface: Some(name).filter(|name| !name.is_empty()).map(Into::into),
        rule: get(at::RULE).checked_sub(1).and_then(|rule| usize::try_from(rule).ok()),
        dscp: u8::try_from(get(at::DSCP)).ok()?,
        ahead: at::AHEAD.map(get),
        began: get(at::BEGAN),
        answered: u8::try_from(get(at::ANSWERED)).ok()?,
        stream,
        leaves,
        is_still: get(at::STILL) == 1,
    })
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

/// Tests, and what those of other modules need.
#[cfg(test)]
pub mod tests {
    use super::*;

    /// A record in which every field is set; its sockets are `number` and the next one.
    pub fn record(number: i32) -> Record {
        Record {
            ends: Ends {
                client: "[fe80::7%3]:40001".parse().expect("an address"),
                server: "192.0.2.1:443".parse().expect("an address"),
            },
            sockets: [number, number + 1],
            cookies: [u64::MAX, 77],
            pipes: [None, Some((number + 2, number + 3))],
            legs: [name_of("lan"), name_of("satellite")],
            interface: Some("a-name-of-15-by".into()),
            rule: Some(0),
            dscp: 46,
            ahead: [0, 3_u64.wrapping_neg()],
            began: 12_345,
            answered: 8,
            stream: None,
            leaves: false,
            is_still: false,
        }
    }

    #[test]
    fn what_was_entered_is_found_by_the_next_process() -> io::Result<()> {
        let register = Register::new(2, 3)?;
        let (region, left) = Region::of(&register, 1);
        assert!(left.is_empty());
        let entries: Vec<_> = (0..3).map(|n| region.enter(&record(10 * (n + 1)))).collect();
        assert!(entries.iter().all(Option::is_some));
        assert!(region.enter(&record(90)).is_none(), "there is no fourth place");
        let mut entries = entries.into_iter().flatten();
        let (first, second) = (entries.next().expect("one"), entries.next().expect("one"));
        drop(second);
        first.note_pipe(Side::Client, Some((70, 71)));
        first.note_pipe(Side::Server, None);
        first.note_leaving(true);
        first.note_still(true);
        // The process dies: nothing is dropped.
        std::mem::forget((first, entries.collect::<Vec<_>>(), region));
        let pipes = [Some((70, 71)), None];
        let noted = Record { pipes, leaves: true, is_still: true, ..record(10) };
        let (region, left) = Region::of(&register, 1);
        let found: Vec<_> = left.iter().map(|(_, record)| record.clone()).collect();
        assert_eq!(found, [noted, record(30)]);
        assert_eq!(register.descriptors(), BTreeSet::from([10, 11, 70, 71, 30, 31, 32, 33]));
        let again = region.enter(&record(50)).expect("the place that was left");
        assert!(region.enter(&record(60)).is_none());
        drop((left, again));
        assert!(register.descriptors().is_empty());
        assert!(Region::of(&register, 0).1.is_empty());
        Ok(())
    }

    #[test]
    fn another_program_reads_what_was_entered() -> Result<(), NoRegister> {
        let register = Register::new(2, 3)?;
        let (region, _) = Region::of(&register, 1);
        std::mem::forget(region.enter(&record(10)));
        let copy = || register.file().try_clone_to_owned();
        let opened = Register::open(copy()?)?;
        assert_eq!((opened.regions(), opened.descriptors()), (2, register.descriptors()));
        // The next format adds words that this program does not know.
        register.words[front::FORMAT].store(FORMAT + 1, Relaxed);
        assert_eq!(Register::open(copy()?)?.descriptors(), register.descriptors());
        // One that this program does not understand.
        register.words[front::READABLE_FROM].store(FORMAT + 1, Relaxed);
        assert!(matches!(Register::open(copy()?), Err(NoRegister::Format { .. })));
        register.words[front::READABLE_FROM].store(1, Relaxed);
        register.words[front::PLACES].store(4, Relaxed);
        assert!(matches!(Register::open(copy()?), Err(NoRegister::Foreign)), "beyond its end");
        register.words[front::PLACES].store(3, Relaxed);
        for doors in [DOORS as u64 + 1, u64::MAX] {
            register.words[front::DOORS].store(doors, Relaxed);
            assert!(matches!(Register::open(copy()?), Err(NoRegister::Foreign)), "beyond its end");
        }
        // The format before this one had no listeners, and nothing in the word with their number.
        register.note_doors(&[33]);
        register.words[front::FORMAT].store(1, Relaxed);
        register.words[front::DOORS].store(0, Relaxed);
        let before = Register::open(copy()?)?;
        before.note_doors(&[34]);
        assert_eq!((before.doors(), before.flows()), (vec![], 1));
        register.words[front::PLACES].store(u64::MAX, Relaxed);
        assert!(matches!(Register::open(copy()?), Err(NoRegister::Foreign)));
        register.words[front::MAGIC].store(0, Relaxed);
        assert!(matches!(Register::open(copy()?), Err(NoRegister::Foreign)));
        Ok(())
    }

    #[test]
    fn listeners_are_noted_in_the_place_of_those_before() -> Result<(), NoRegister> {
        let register = Register::new(2, 3)?;
        register.note_doors(&[30, 31, 32]);
        register.note_doors(&[7, 9]);
        let opened = Register::open(register.file().try_clone_to_owned()?)?;
        assert_eq!((opened.doors(), opened.descriptors()), (vec![7, 9], BTreeSet::from([7, 9])));
        let many: Vec<_> = (10..).take(DOORS + 5).collect();
        register.note_doors(&many);
        assert_eq!(register.doors(), many[..DOORS]);
        Ok(())
    }

    #[test]
    fn a_file_that_may_shrink_is_refused() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        file.set_len(4096)?;
        assert!(matches!(Register::open(file.into()), Err(NoRegister::Io(_))));
        Ok(())
    }
}
