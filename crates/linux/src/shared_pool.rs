//! Bytes that outlive the process that holds them: chunks of [`SharedWords`], each with its owner and its offset in the
//! data that the owner sends.
//!
//! Each thread also has a *room*, into which it reads before it knows how many bytes arrive. So bytes that a process
//! had taken from the kernel when it died are in a chunk, or still in the room.
//!
//! Invariants: a chunk is written by one [`PoolWriter`], behind the bytes that were handed out of it, so that these
//! never change. A chunk has its owner before it has a byte, and its count of bytes after they are there.
#![expect(
    unsafe_code,
    reason = "memory is lent in parts, of which one is written and the others are read"
)]

use crate::shared_words::SharedWords;
use bytes::Bytes;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

/// Unit: bytes. The size of a room, and of a large chunk.
pub const LARGE: usize = 64 << 10;
/// Unit: bytes. The size of a small chunk.
const SMALL: usize = 4 << 10;
/// Unit: bytes. The size of a page of memory.
const PAGE: usize = 4 << 10;
/// Unit: bytes.
const WORD: usize = size_of::<u64>();

/// Unit: words. The size of the head of each room and chunk. All heads are in front of all rooms.
const HEAD: usize = 3;
/// The words of a head.
const OWNER: usize = 0;
const OFFSET: usize = 1;
const FILLED: usize = 2;

/// The numbers of rooms and chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSize {
    /// Rooms.
    pub rooms: usize,
    /// Large chunks.
    pub large: usize,
    /// Small chunks.
    pub small: usize,
}

impl PoolSize {
    /// Unit: words. The size of a pool that begins behind so many words; none: more than there can be.
    pub fn words(&self, behind: usize) -> Option<usize> {
        let large = self.rooms.checked_add(self.large)?.checked_mul(LARGE)?;
        let data = self.small.checked_mul(SMALL)?.checked_add(large)?;
        let end = self.data(behind)?.checked_add(data)?;
        Some(end / WORD - behind)
    }

    fn count(&self) -> Option<usize> {
        self.rooms.checked_add(self.large)?.checked_add(self.small)
    }

    /// Unit: bytes. Where rooms and chunks begin, in memory in which the heads begin behind so many words.
    fn data(&self, behind: usize) -> Option<usize> {
        let heads = self.count()?.checked_mul(HEAD)?.checked_add(behind)?;
        heads.checked_mul(WORD)?.checked_next_multiple_of(PAGE)
    }
}

/// The rooms and chunks of all threads.
#[derive(Debug)]
pub struct SharedPool {
    words: Arc<SharedWords>,
    /// Unit: words. Where the heads begin.
    heads: usize,
    /// Unit: bytes. Where the rooms begin, and the chunks behind them.
    data: usize,
    size: PoolSize,
    free: Mutex<FreeChunks>,
}

/// The free chunks and the free rooms.
#[derive(Debug)]
struct FreeChunks {
    rooms: Vec<usize>,
    large: Vec<usize>,
    small: Vec<usize>,
}

/// Bytes that another process has left in a chunk. The chunk is in use as long as they are held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftBytes {
    /// Their owner.
    pub owner: u64,
    /// The offset of the first one in the data that the owner sends.
    pub offset: u64,
    /// The bytes. Bytes left in a room are the whole room: only the owner knows how many were read.
    pub bytes: Bytes,
}

impl SharedPool {
    /// A pool in memory behind so many words, which were 0 or a pool of the same size. Also returns the bytes that are
    /// left in it. None: the memory has no room for the pool.
    pub fn open(
        words: Arc<SharedWords>,
        behind: usize,
        size: PoolSize,
    ) -> Option<(Arc<Self>, Vec<LeftBytes>)> {
        let end = size.words(behind)?.checked_add(behind)?;
        if end > words.len() {
            return None;
        }
        let free = FreeChunks { rooms: Vec::new(), large: Vec::new(), small: Vec::new() };
        let data = size.data(behind)?;
        let this = Arc::new(Self { words, heads: behind, data, size, free: Mutex::new(free) });
        let mut left = Vec::new();
        let mut free = this.free();
        free.rooms = (0..size.rooms).rev().collect();
        // Chunks are always taken in the same order: pages that were never written take no memory.
        for number in (size.rooms..size.rooms + size.large + size.small).rev() {
            let [owner, offset, filled] = this.head(number).each_ref().map(|it| it.load(Relaxed));
            if owner == 0 {
                free.of(number, size).push(number);
                continue;
            }
            let filled = usize::try_from(filled).map_or(0, |it| it.min(this.size_of(number)));
            let chunk = Arc::new(Chunk { pool: this.clone(), number });
            let bytes = Bytes::from_owner(Part { chunk, range: 0..filled });
            left.push(LeftBytes { owner, offset, bytes });
        }
        drop(free);
        for number in 0..size.rooms {
            let [owner, offset, _] = this.head(number).each_ref().map(|it| it.load(Relaxed));
            if owner == 0 {
                continue;
            }
            // Until the room is released, the bytes are in two places.
            // SAFETY: nobody has taken a room yet.
            let bytes = unsafe { this.slice(number, 0..LARGE) };
            if let Some(bytes) = this.writer(owner).write(offset, bytes) {
                left.push(LeftBytes { owner, offset, bytes });
            }
            this.head(number)[OWNER].store(0, Release);
        }
        Some((this, left))
    }

    /// A room, for one thread. None: all are taken.
    pub fn room(self: &Arc<Self>) -> Option<Room> {
        let number = self.free().rooms.pop()?;
        Some(Room { pool: self.clone(), number })
    }

    /// A writer of the data that an owner sends. An owner is never 0.
    pub fn writer(self: &Arc<Self>, owner: u64) -> PoolWriter {
        PoolWriter { pool: self.clone(), owner, open: None }
    }

    /// Takes a free chunk that has room for so many bytes.
    fn take(self: &Arc<Self>, bytes: usize) -> Option<Chunk> {
        let mut free = self.free();
        let small = if bytes <= SMALL { free.small.pop() } else { None };
        let number = match small {
            Some(number) => number,
            None if bytes <= LARGE => free.large.pop()?,
            None => return None,
        };
        Some(Chunk { pool: self.clone(), number })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, FreeChunks> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn head(&self, number: usize) -> &[AtomicU64; HEAD] {
        let start = self.heads + number * HEAD;
        let (head, _) = self.words[start..].split_first_chunk().expect("a pool fits its memory");
        head
    }

    fn size_of(&self, number: usize) -> usize {
        if number < self.size.rooms + self.size.large { LARGE } else { SMALL }
    }

    /// Where a room or chunk begins.
    fn start(&self, number: usize) -> *mut u8 {
        let large = self.size.rooms + self.size.large;
        let behind = number.min(large) * LARGE + number.saturating_sub(large) * SMALL;
        // SAFETY: the memory has so many bytes, as `open` has made sure.
        unsafe { self.words.start().cast::<u8>().as_ptr().add(self.data + behind) }
    }

    /// # Safety
    /// Nobody writes these bytes as long as they are borrowed, and the room or chunk has them.
    unsafe fn slice(&self, number: usize, range: Range<usize>) -> &[u8] {
        // SAFETY: the caller's; the memory lives as long as the pool, and any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.start(number).add(range.start), range.len()) }
    }
}

impl FreeChunks {
    fn of(&mut self, number: usize, size: PoolSize) -> &mut Vec<usize> {
        if number < size.rooms + size.large { &mut self.large } else { &mut self.small }
    }
}

/// A chunk in use. Dropping it frees it.
#[derive(Debug)]
struct Chunk {
    pool: Arc<SharedPool>,
    number: usize,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.head(self.number)[OWNER].store(0, Release);
        let (number, size) = (self.number, self.pool.size);
        self.pool.free().of(number, size).push(number);
    }
}

/// Some bytes of a chunk, which are not written any more.
struct Part {
    chunk: Arc<Chunk>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: they were written before they were handed out, and the writer goes on behind them.
        unsafe { self.chunk.pool.slice(self.chunk.number, self.range.clone()) }
    }
}

/// Writes the data that one owner sends.
#[derive(Debug)]
pub struct PoolWriter {
    pool: Arc<SharedPool>,
    owner: u64,
    open: Option<OpenChunk>,
}

/// A chunk that has room left.
#[derive(Debug)]
struct OpenChunk {
    chunk: Arc<Chunk>,
    /// Unit: bytes.
    filled: usize,
    /// The offset of the next byte in the data that the owner sends.
    next: u64,
}

impl PoolWriter {
    /// Copies bytes with this offset in the data that the owner sends. None: there is no chunk for them.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<Bytes> {
        let fits = |open: &OpenChunk| {
            let size = open.chunk.pool.size_of(open.chunk.number);
            open.next == offset && size - open.filled >= bytes.len()
        };
        if !self.open.as_ref().is_some_and(fits) {
            self.open = None;
            let chunk = self.pool.take(bytes.len())?;
            let head = self.pool.head(chunk.number);
            head[FILLED].store(0, Release);
            head[OFFSET].store(offset, Release);
            head[OWNER].store(self.owner, Release);
            self.open = Some(OpenChunk { chunk: Arc::new(chunk), filled: 0, next: offset });
        }
        let OpenChunk { chunk, filled, next } = self.open.as_mut()?;
        let range = *filled..*filled + bytes.len();
        // SAFETY: the chunk has room for them, and what lies behind `filled` was handed out to nobody. This writer alone
        // writes the chunk; `bytes` are not in it, as it is not borrowed there.
        unsafe {
            let to = self.pool.start(chunk.number).add(range.start);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        (*filled, *next) = (range.end, offset + bytes.len() as u64);
        self.pool.head(chunk.number)[FILLED].store(range.end as u64, Release);
        Some(Bytes::from_owner(Part { chunk: chunk.clone(), range }))
    }

    /// Releases the open chunk until there is something to write.
    pub fn rest(&mut self) {
        self.open = None;
    }

    /// The owner of the bytes that it writes.
    pub fn owner(&self) -> u64 {
        self.owner
    }
}

/// The buffer into which one thread reads.
#[derive(Debug)]
pub struct Room {
    pool: Arc<SharedPool>,
    number: usize,
}

impl Room {
    /// Notes that the bytes read into it next have this offset in the data that the owner sends. Owner 0: the room has
    /// no owner.
    pub fn note(&self, owner: u64, offset: u64) {
        let head = self.pool.head(self.number);
        // After a death at this point the room has no owner.
        head[OWNER].store(0, Release);
        head[OFFSET].store(offset, Release);
        head[OWNER].store(owner, Release);
    }
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the room is this value's alone.
        unsafe { self.pool.slice(self.number, 0..LARGE) }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed from nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.pool.start(self.number), LARGE) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.note(0, 0);
        self.pool.free().rooms.push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io;

    const SIZE: PoolSize = PoolSize { rooms: 2, large: 3, small: 2 };

    fn memory(behind: usize) -> io::Result<Arc<SharedWords>> {
        let words = SIZE.words(behind).expect("a size") + behind;
        Ok(Arc::new(SharedWords::new(words)?))
    }

    fn open(words: &Arc<SharedWords>, behind: usize) -> (Arc<SharedPool>, Vec<LeftBytes>) {
        SharedPool::open(words.clone(), behind, SIZE).expect("it fits")
    }

    /// Does not drop a value, like a process that dies.
    fn die<T>(what: T) {
        std::mem::forget(what);
    }

    #[test]
    fn the_next_process_finds_what_was_written_and_what_was_read() -> io::Result<()> {
        let words = memory(5)?;
        let (pool, left) = open(&words, 5);
        assert!(left.is_empty());
        let mut writer = pool.writer(7);
        let first = writer.write(100, b"what was ").expect("a chunk");
        let second = writer.write(109, b"written").expect("a chunk");
        assert_eq!((&first[..], &second[..]), (&b"what was "[..], &b"written"[..]));
        let long = vec![3; LARGE];
        let mut other = pool.writer(8);
        let third = other.write(0, &long).expect("a chunk");
        let (mut room, idle) = (pool.room().expect("a room"), pool.room().expect("a room"));
        assert!(pool.room().is_none());
        room.note(7, 116);
        room[..4].copy_from_slice(b"read");
        assert_eq!(room.len(), LARGE);
        die((first, second, third, writer, other, room, idle, pool));

        // The next process dies as well, and then another one.
        for _process in 0..2 {
            let (pool, mut left) = open(&words, 5);
            left.sort_by_key(|it| (it.owner, it.offset));
            let [small, read, large] = &left[..] else { panic!("{left:?}") };
            assert_eq!((small.owner, small.offset), (7, 100));
            assert_eq!(&small.bytes[..], b"what was written");
            assert_eq!((read.owner, read.offset, &read.bytes[..4]), (7, 116, &b"read"[..]));
            assert_eq!((large.owner, large.offset, &large.bytes[..]), (8, 0, &long[..]));
            let mut rooms = [pool.room().expect("a room"), pool.room().expect("a room")];
            rooms.iter_mut().for_each(|room| room.fill(9));
            die((rooms, left, pool));
        }

        // Bytes that were left are not overwritten as long as they are held.
        let (pool, left) = open(&words, 5);
        let mut writer = pool.writer(9);
        let rest = (0..4).map_while(|_| {
            writer.rest();
            writer.write(0, b"x")
        });
        let rest: Vec<_> = rest.collect();
        assert_eq!(rest.len(), 2, "of five chunks three are taken");
        assert!(left.iter().any(|it| it.bytes == b"what was written"[..]));
        drop((left, rest, writer));
        let (_, left) = open(&words, 5);
        assert!(left.is_empty(), "{left:?}");
        Ok(())
    }

    #[test]
    fn a_chunk_is_free_once_nobody_holds_its_bytes() -> io::Result<()> {
        let words = memory(0)?;
        let (pool, _) = open(&words, 0);
        let mut writer = pool.writer(1);
        let long = vec![1; LARGE];
        let held: Vec<_> = (0..3).filter_map(|n| writer.write(n * LARGE as u64, &long)).collect();
        assert_eq!(held.len(), 3);
        assert!(writer.write(3 * LARGE as u64, &long).is_none(), "there is no fourth");
        assert!(writer.write(0, &vec![0; LARGE + 1]).is_none(), "too much for any");
        let part = held[1].slice(10..20);
        drop(held);
        let again: Vec<_> = (0..3).filter_map(|n| writer.write(n * LARGE as u64, &long)).collect();
        assert_eq!(again.len(), 2, "one is held by a part of its bytes");
        drop(part);
        assert!(writer.write(9, &long).is_some());
        Ok(())
    }

    #[test]
    fn a_size_beyond_the_memory_is_refused() -> io::Result<()> {
        let words = memory(0)?;
        for size in [
            PoolSize { large: SIZE.large + 1, ..SIZE },
            PoolSize { rooms: usize::MAX, ..SIZE },
            PoolSize { large: usize::MAX / LARGE, ..SIZE },
            PoolSize { small: usize::MAX, ..SIZE },
        ] {
            assert!(SharedPool::open(words.clone(), 0, size).is_none(), "{size:?}");
        }
        assert!(SharedPool::open(words.clone(), PAGE, SIZE).is_none(), "it begins later");
        // Nonsense in the heads is bounded.
        let (pool, _) = open(&words, 0);
        for word in pool.head(SIZE.rooms) {
            word.store(u64::MAX, Relaxed);
        }
        die(pool);
        assert_eq!(open(&words, 0).1[0].bytes.len(), LARGE);
        Ok(())
    }

    proptest! {
        /// Whatever is written and freed: held bytes stay as they were, and are found again.
        #[test]
        fn what_is_held_stays_what_it_was(
            steps in prop::collection::vec((0..3_u64, 0..6000_usize, any::<bool>()), 1..30),
        ) {
            let words = memory(3)?;
            let (pool, _) = open(&words, 3);
            let mut writers = [1, 2, 3].map(|owner| (pool.writer(owner), 0_u64));
            let mut held: Vec<(u64, u64, u8, Bytes)> = Vec::new();
            for (step, (who, length, lets_go)) in steps.into_iter().enumerate() {
                let byte = u8::try_from(step).expect("few steps");
                let (writer, offset) = &mut writers[usize::try_from(who).expect("few")];
                if let Some(bytes) = writer.write(*offset, &vec![byte; length]) {
                    held.push((who + 1, *offset, byte, bytes));
                    *offset += length as u64;
                }
                if lets_go && !held.is_empty() {
                    held.remove(step % held.len());
                }
                prop_assert!(held.iter().all(|(.., byte, bytes)| bytes.iter().all(|it| it == byte)));
            }
            die((writers, pool));
            let (_, left) = open(&words, 3);
            for (owner, offset, _, bytes) in held.iter().filter(|it| !it.3.is_empty()) {
                let found = left.iter().any(|chunk| {
                    chunk.owner == *owner
                        && offset.checked_sub(chunk.offset).is_some_and(|at| {
                            let at = usize::try_from(at).unwrap_or(usize::MAX);
                            chunk.bytes.get(at..at.saturating_add(bytes.len())) == Some(&bytes[..])
                        })
                });
                prop_assert!(found, "{owner} {offset}");
            }
            die(held);
        }
    }
}
